//! `top`: how many nodes and clusters are in which state, as that changes.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, IsTerminal, Write as _},
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};

use drover_core::Error;
use drover_proto::orchestrator::v1::{Cluster, Node};
use parking_lot::Mutex;
use rustix::termios::tcgetwinsize;
use tokio::time::MissedTickBehavior;

use super::describe::is_ready;
use crate::{
    cli::TopArgs,
    client::{Change, Client},
    failure::{Exit, Outcome},
    output::{self, Table, rows},
};

/// How often the picture is drawn, if anything changed.
const FRAME: Duration = Duration::from_millis(500);
/// Lines above the table.
const HEAD: usize = 4;
/// Height of a terminal that does not say how high it is.
const HEIGHT: usize = 24;

/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Everything there is, as far as it was told.
#[derive(Debug, Default)]
struct Picture {
    clusters: BTreeMap<String, Cluster>,
    /// State of each node, by cluster and id.
    nodes: BTreeMap<String, (String, String)>,
    changed: bool,
}

impl Picture {
    fn cluster(&mut self, cluster: &Cluster) {
        self.clusters.insert(cluster.name.clone(), cluster.clone());
        self.changed = true;
    }

    fn node(&mut self, node: &Node) {
        let key = format!("{}/{}", node.cluster, node.id);
        let state = rows::node_status(node);
        self.nodes.insert(key, (node.cluster.clone(), state));
        self.changed = true;
    }

    /// The numbers, and the clusters that fit: first those that are not ready.
    fn draw(&self, most: usize, colours: bool) -> String {
        let states = self.clusters.values().map(rows::cluster_status);
        let mut out = summary("clusters", states);
        let states = self.nodes.values().map(|(_, state)| state.clone());
        out.push_str(&summary("nodes", states));
        let mut of: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (cluster, state) in self.nodes.values() {
            of.entry(cluster).or_default().push(state.clone());
        }
        let mut clusters: Vec<&Cluster> = self.clusters.values().collect();
        clusters.sort_by_key(|cluster| is_ready(cluster));
        let mut table = Table::new(&["CLUSTER", "STATUS", "READY", "NODES"]);
        for cluster in clusters.iter().take(most) {
            let states = of.remove(cluster.name.as_str()).unwrap_or_default();
            table.rows.push(vec![
                cluster.name.clone(),
                rows::cluster_status(cluster),
                rows::Readiness::of(cluster).words(),
                by_state(states.into_iter()).join(", "),
            ]);
        }
        if !table.rows.is_empty() {
            let _ = write!(out, "\n{}", table.render(true, colours));
        }
        let left = clusters.len().saturating_sub(most);
        if left > 0 {
            let _ = writeln!(out, "and {left} more");
        }
        out
    }
}

/// `nodes     3: 2 Ready · 1 Starting`
fn summary(what: &str, states: impl Iterator<Item = String>) -> String {
    let states: Vec<String> = states.collect();
    let all = states.len();
    let words = by_state(states.into_iter()).join(" · ");
    let line = format!("{what:8} {all:6}: {words}");
    format!("{}\n", line.trim_end_matches([':', ' ']))
}

/// `2 Ready`, the most frequent first.
fn by_state(states: impl Iterator<Item = String>) -> Vec<String> {
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    for state in states {
        *numbers.entry(state).or_default() += 1;
    }
    let mut numbers: Vec<(String, usize)> = numbers.into_iter().collect();
    numbers.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    numbers
        .into_iter()
        .map(|(state, number)| format!("{number} {state}"))
        .collect()
}

pub(crate) async fn run(client: &Client, args: TopArgs) -> Outcome {
    if args.once || !io::stdout().is_terminal() {
        let mut picture = Picture::default();
        for cluster in &client.list_clusters(None).await?.clusters {
            picture.cluster(cluster);
        }
        for node in &client.list_nodes(None).await?.nodes {
            picture.node(node);
        }
        output::print_painted(&picture.draw(usize::MAX, output::colours()))?;
        return Ok(Exit::Done);
    }
    let picture = Arc::new(Mutex::new(Picture::default()));
    let failed = tokio::select! {
        error = watch_clusters(client, &picture) => error,
        error = watch_nodes(client, &picture) => error,
        outcome = redraw(&picture) => return outcome,
    };
    Err(failed.into())
}

async fn redraw(picture: &Mutex<Picture>) -> Outcome {
    let mut frames = tokio::time::interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        frames.tick().await;
        let text = {
            let mut picture = picture.lock();
            if !std::mem::take(&mut picture.changed) {
                continue;
            }
            let rows = tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_row);
            picture.draw(room(rows), output::colours())
        };
        let mut out = io::stdout().lock();
        out.write_all(CLEAR.as_bytes())?;
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
}

/// How many clusters fit on a terminal of so many rows; 0 of one that does not say it.
fn room(rows: u16) -> usize {
    let height = match rows {
        0 => HEIGHT,
        rows => rows.into(),
    };
    height.saturating_sub(HEAD + 2).max(1)
}

async fn watch_clusters(client: &Client, picture: &Mutex<Picture>) -> Error {
    let watch = client.watch_clusters(None, None, |change| {
        let mut picture = picture.lock();
        match change {
            Change::Upsert(cluster) => picture.cluster(cluster),
            Change::Removal(name) => {
                picture.clusters.remove(name);
                picture.changed = true;
            }
            Change::Complete => picture.changed = true,
        }
        ControlFlow::<()>::Continue(())
    });
    ended(watch.await)
}

async fn watch_nodes(client: &Client, picture: &Mutex<Picture>) -> Error {
    let watch = client.watch_nodes(None, |change| {
        let mut picture = picture.lock();
        match change {
            Change::Upsert(node) => picture.node(node),
            Change::Removal(key) => {
                picture.nodes.remove(key);
                picture.changed = true;
            }
            Change::Complete => picture.changed = true,
        }
        ControlFlow::<()>::Continue(())
    });
    ended(watch.await)
}

fn ended(result: Result<(), Error>) -> Error {
    result
        .err()
        .unwrap_or_else(|| Error::unavailable("the watch ended"))
}

#[cfg(test)]
mod tests {
    use drover_proto::orchestrator::v1::{ClusterPhase, ClusterStatus, GroupStatus, NodeState};

    use super::*;

    fn cluster(name: &str, phase: ClusterPhase, ready: u32) -> Cluster {
        let group = GroupStatus {
            size: 2,
            ready,
            ..Default::default()
        };
        Cluster {
            name: name.into(),
            status: Some(ClusterStatus {
                phase: phase.into(),
                groups: vec![group],
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_terminal_that_does_not_say_how_high_it_is_has_a_usual_height() {
        assert_eq!([0, 1, 24, 50].map(room), [18, 1, 18, 44]);
    }

    #[test]
    fn states_are_counted_and_clusters_in_trouble_come_first() {
        let mut picture = Picture::default();
        picture.cluster(&cluster("a", ClusterPhase::Ready, 2));
        picture.cluster(&cluster("b", ClusterPhase::Progressing, 1));
        for (id, state) in [
            ("a-0", NodeState::Ready),
            ("a-1", NodeState::Ready),
            ("b-0", NodeState::Ready),
            ("b-1", NodeState::Starting),
        ] {
            picture.node(&Node {
                cluster: id[..1].into(),
                id: id.into(),
                state: state.into(),
                ..Default::default()
            });
        }
        assert_eq!(
            picture.draw(9, false),
            "clusters      2: 1 Progressing · 1 Ready\n\
             nodes         4: 3 Ready · 1 Starting\n\
             \n\
             CLUSTER   STATUS        READY    NODES\n\
             b         Progressing   1 of 2   1 Ready, 1 Starting\n\
             a         Ready         2 of 2   2 Ready\n"
        );
        assert!(picture.draw(1, false).ends_with("and 1 more\n"));
        assert_eq!(
            Picture::default().draw(9, false),
            "clusters      0\nnodes         0\n"
        );
    }
}
