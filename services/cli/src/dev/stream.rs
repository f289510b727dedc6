//! The lines about changes that `drover dev` prints.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use drover_proto::{
    orchestrator::v1::{Cluster, ClusterPhase, Node, NodeState},
    platform::v1::NodeRole,
};
use tokio::time::Instant;

use crate::output::{age, one_line, paint, rows};

/// Width of the name column, which fits most names.
const NAME_WIDTH: usize = 12;
/// Width of the state column.
const STATE_WIDTH: usize = 8;

/// States of a cluster on its way to the desired state.
const QUIET: [&str; 3] = ["Progressing", "ScalingUp", "ScalingDown"];

/// Everything that was shown so far.
pub(super) struct Lines {
    nodes: BTreeMap<String, Node>,
    clusters: BTreeMap<String, Shown>,
    /// Ready clusters some of whose nodes were not shown yet: nodes and clusters come from different watches.
    held: BTreeMap<String, (Cluster, Instant)>,
    colours: bool,
    /// Time of the last line.
    last: SystemTime,
    /// Widths of the columns of names and states: as wide as what was shown.
    widths: (usize, usize),
}

#[derive(Debug)]
struct Shown {
    status: String,
    /// Since when it has not been ready.
    waiting: Option<Instant>,
}

impl Lines {
    pub(super) fn new(colours: bool) -> Self {
        Self {
            nodes: BTreeMap::new(),
            clusters: BTreeMap::new(),
            held: BTreeMap::new(),
            colours,
            last: SystemTime::UNIX_EPOCH,
            widths: (NAME_WIDTH, STATE_WIDTH),
        }
    }

    /// The nodes that exist now.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Number of clusters shown, if all of them are ready.
    pub(super) fn all_ready(&self) -> Option<usize> {
        self.clusters
            .values()
            .all(|shown| shown.waiting.is_none())
            .then_some(self.clusters.len())
    }

    /// The line for a change of a node. `None` for an intermediate step.
    pub(super) fn node(&mut self, node: &Node) -> Option<String> {
        let before = self
            .nodes
            .insert(format!("{}/{}", node.cluster, node.id), node.clone());
        if let Some(line) = before.as_ref().and_then(|was| self.role(was, node)) {
            return Some(line);
        }
        // A node that stays ready has nothing to tell but its role, whatever else is said of it.
        let told = |node: &Node| match node.state() {
            NodeState::Ready => (node.state, String::new()),
            _ => (node.state, node.reason.clone()),
        };
        if before.as_ref().map(told) == Some(told(node)) {
            return None;
        }
        let mut about = Vec::new();
        match node.state() {
            NodeState::Ready => {
                let address = rows::address(node);
                if !address.is_empty() {
                    about.push(format!("agent {address}"));
                }
                about.extend(rows::pid(node).map(|pid| format!("pid {pid}")));
                about.extend(took(node));
            }
            // An intermediate step without anything else to report.
            NodeState::Requested | NodeState::Provisioning | NodeState::Starting
                if node.reason.is_empty() =>
            {
                return None;
            }
            _ => {
                about.push(node.reason.clone());
                about.push(node.message.clone());
            }
        }
        let time = node
            .state_time
            .and_then(|time| SystemTime::try_from(time).ok())
            .unwrap_or_else(SystemTime::now);
        let state = rows::node_state(node.state());
        Some(self.line(
            time,
            &format!("{}/{}", node.cluster, node.name),
            &state,
            &about,
        ))
    }

    /// The line for a node that has another role now.
    fn role(&mut self, was: &Node, node: &Node) -> Option<String> {
        let word = match (was.role(), node.role()) {
            (NodeRole::Standby, NodeRole::Active) => "promoted, was standby",
            (NodeRole::Active, NodeRole::Standby) => "demoted, was active",
            _ => return None,
        };
        let name = format!("{}/{}", node.cluster, node.name);
        let role = rows::word(node.role().as_str_name(), "NODE_ROLE_");
        Some(self.line(SystemTime::now(), &name, &role, &[word.to_owned()]))
    }

    /// The line for a node that is gone.
    pub(super) fn node_gone(&mut self, key: &str) -> Option<String> {
        let node = self.nodes.remove(key)?;
        let about = [node.reason.clone()];
        Some(self.line(
            SystemTime::now(),
            &format!("{}/{}", node.cluster, node.name),
            "Gone",
            &about,
        ))
    }

    /// The line of a cluster that became ready before its last node was shown.
    pub(super) fn released(&mut self) -> Option<String> {
        let name = self
            .held
            .iter()
            .find(|(_, (cluster, _))| self.shows_all(cluster))
            .map(|(name, _)| name.clone())?;
        let (cluster, at) = self.held.remove(&name)?;
        self.cluster(&cluster, at)
    }

    /// Whether the number of nodes shown as ready matches the count of the cluster.
    fn shows_all(&self, cluster: &Cluster) -> bool {
        let counted = rows::Readiness::of(cluster);
        let shown = self
            .nodes
            .values()
            .filter(|node| node.cluster == cluster.name && node.state() == NodeState::Ready)
            .count();
        shown >= (counted.ready + counted.standby_ready) as usize
    }

    /// The line for a change of a cluster. `None` if it became ready but some of its nodes were not shown as ready yet.
    pub(super) fn cluster(&mut self, cluster: &Cluster, now: Instant) -> Option<String> {
        self.held.remove(&cluster.name);
        let current = cluster
            .status
            .as_ref()
            .is_some_and(|status| status.observed_generation >= cluster.generation);
        let ready = current
            && cluster
                .status
                .as_ref()
                .is_some_and(|status| status.phase() == ClusterPhase::Ready);
        let status = if ready {
            rows::cluster_status(cluster)
        } else {
            not_ready(cluster)
        };
        if ready && !self.shows_all(cluster) {
            self.clusters.entry(cluster.name.clone()).or_insert(Shown {
                status: String::new(),
                waiting: Some(now),
            });
            self.held
                .insert(cluster.name.clone(), (cluster.clone(), now));
            return None;
        }
        let before = self.clusters.remove(&cluster.name);
        let waiting = match (ready, before.as_ref().and_then(|shown| shown.waiting)) {
            (true, _) => None,
            (false, since) => Some(since.unwrap_or(now)),
        };
        let since = before.as_ref().and_then(|shown| shown.waiting);
        let unchanged = before.as_ref().is_some_and(|shown| shown.status == status);
        let was_ready = before.as_ref().is_some_and(|shown| shown.waiting.is_none());
        // Intermediate steps are not shown, unless the cluster was ready before.
        let on_the_way = !ready && !was_ready && QUIET.contains(&status.as_str());
        self.clusters.insert(
            cluster.name.clone(),
            Shown {
                status: status.clone(),
                waiting,
            },
        );
        if unchanged || on_the_way {
            return None;
        }
        let mut about = rows::Readiness::of(cluster).words();
        if ready && let Some(since) = since {
            about.push_str(&format!(" in {}", seconds(now.duration_since(since))));
        }
        Some(self.line(SystemTime::now(), &cluster.name, &status, &[about]))
    }

    /// The line for a cluster that is gone.
    pub(super) fn cluster_gone(&mut self, name: &str) -> Option<String> {
        self.held.remove(name);
        self.clusters.remove(name)?;
        Some(self.line(SystemTime::now(), name, "Gone", &[]))
    }

    fn line(&mut self, time: SystemTime, name: &str, state: &str, about: &[String]) -> String {
        let (name, state) = (one_line(name), one_line(state));
        // Two watches tell of nodes and clusters; what comes late is shown when it came.
        self.last = self.last.max(time);
        let width = |known: usize, text: &str| known.max(text.chars().count());
        self.widths = (width(self.widths.0, &name), width(self.widths.1, &state));
        let (name_width, state_width) = self.widths;
        let padding = " ".repeat(state_width.saturating_sub(state.chars().count()));
        let state = if self.colours { paint(&state) } else { state };
        let about: Vec<&str> = about
            .iter()
            .map(String::as_str)
            .filter(|text| !text.is_empty())
            .collect();
        let line = format!(
            "{}  {name:name_width$}  {state}{padding} {}",
            age::clock(self.last),
            one_line(&about.join("  "))
        );
        line.trim_end().to_owned()
    }
}

fn not_ready(cluster: &Cluster) -> String {
    match rows::cluster_status(cluster).as_str() {
        // Ready as of an earlier generation.
        "Ready" => "Progressing".into(),
        other => other.into(),
    }
}

/// The time that a node took to become ready.
fn took(node: &Node) -> Option<String> {
    let created = SystemTime::try_from(node.create_time?).ok()?;
    let ready = SystemTime::try_from(node.state_time?).ok()?;
    Some(seconds(ready.duration_since(created).ok()?))
}

/// Formats a duration: `0.19 s`, `12 s`.
fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 1.0 {
        format!("{seconds:.2} s")
    } else if seconds < 10.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{seconds:.0} s")
    }
}

#[cfg(test)]
mod tests {
    use drover_proto::orchestrator::v1::{ClusterStatus, GroupStatus};
    use prost_types::Timestamp;

    use super::*;

    fn node(state: NodeState) -> Node {
        Node {
            id: "web-0-x7k2p".into(),
            name: "web-0".into(),
            cluster: "hello".into(),
            state: state.into(),
            agent_address: Some("grpc://127.0.0.1:41001".into()),
            provider_id: "local://host/41822".into(),
            create_time: Some(Timestamp {
                seconds: 1_000,
                nanos: 0,
            }),
            state_time: Some(Timestamp {
                seconds: 1_000,
                nanos: 190_000_000,
            }),
            ..Default::default()
        }
    }

    /// Without the time of day, which depends on the time zone of the test.
    fn rest(line: Option<String>) -> String {
        line.unwrap()[12..].to_owned()
    }

    #[test]
    fn what_happens_is_shown_as_designed() {
        let mut lines = Lines::new(false);
        assert_eq!(lines.node(&node(NodeState::Requested)), None);
        assert_eq!(
            rest(lines.node(&node(NodeState::Ready))),
            "  hello/web-0   Ready    agent 127.0.0.1:41001  pid 41822  0.19 s"
        );
        assert_eq!(lines.node(&node(NodeState::Ready)), None, "nothing new");
        let mut dead = node(NodeState::Failed);
        dead.reason = "Terminated".into();
        assert_eq!(
            rest(lines.node(&dead)),
            "  hello/web-0   Failed   Terminated"
        );
        assert_eq!(
            rest(lines.node_gone("hello/web-0-x7k2p")),
            "  hello/web-0   Gone     Terminated"
        );

        let group = GroupStatus {
            size: 3,
            ready: 3,
            ..Default::default()
        };
        let cluster = |phase: ClusterPhase| Cluster {
            name: "hello".into(),
            generation: 1,
            status: Some(ClusterStatus {
                phase: phase.into(),
                observed_generation: 1,
                groups: vec![group.clone()],
                ..Default::default()
            }),
            ..Default::default()
        };
        let start = Instant::now();
        let later = start + Duration::from_millis(300);
        for index in 0..3 {
            let mut other = node(NodeState::Ready);
            other.id = format!("web-{index}");
            lines.node(&other);
        }
        assert_eq!(
            lines.cluster(&cluster(ClusterPhase::Progressing), start),
            None
        );
        assert_eq!(
            rest(lines.cluster(&cluster(ClusterPhase::Ready), later)),
            "  hello         Ready    3 of 3 in 0.30 s"
        );
        assert_eq!(lines.all_ready(), Some(1));
    }

    #[test]
    fn a_failover_is_told_as_a_change_of_roles() {
        let mut lines = Lines::new(false);
        let mut standby = node(NodeState::Ready);
        standby.name = "db-1".into();
        standby.role = NodeRole::Standby.into();
        assert!(lines.node(&standby).is_some());
        let promoting = Node {
            reason: "Promoting".into(),
            ..standby.clone()
        };
        assert_eq!(lines.node(&promoting), None, "it is as ready as before");
        let active = Node {
            role: NodeRole::Active.into(),
            ..standby.clone()
        };
        assert_eq!(
            rest(lines.node(&active)),
            "  hello/db-1    Active   promoted, was standby"
        );
        assert_eq!(lines.node(&active), None);
        let back = rest(lines.node(&standby));
        assert_eq!(back, "  hello/db-1    Standby  demoted, was active");
    }

    #[test]
    fn columns_grow_with_what_is_in_them() {
        let mut lines = Lines::new(false);
        let mut long = node(NodeState::Deprovisioning);
        long.name = "a-long-name-0".into();
        long.reason = "Surplus".into();
        let first = rest(lines.node(&long));
        let second = rest(lines.node(&node(NodeState::Ready)));
        let column = first.find("Surplus");
        assert!(column.is_some());
        assert_eq!(second.find("agent"), column, "{first}\n{second}");
    }

    #[test]
    fn a_line_gives_a_terminal_nothing_to_obey() {
        let mut lines = Lines::new(true);
        let mut dead = node(NodeState::Failed);
        dead.name = "web\x1b[2J".into();
        dead.reason = "Termi\x1b]0;x\x07nated".into();
        dead.message = "died\r\n\u{9b}2Jhello Ready".into();
        let line = lines.node(&dead).unwrap();
        let plain = line.replace("\x1b[31mFailed\x1b[0m", "Failed");
        assert!(!plain.chars().any(char::is_control), "{line:?}");
        assert!(plain.contains("\\u001b"), "{line:?}");
    }

    #[test]
    fn a_cluster_is_shown_ready_after_the_last_of_its_nodes() {
        let mut lines = Lines::new(false);
        let cluster = Cluster {
            name: "hello".into(),
            generation: 1,
            status: Some(ClusterStatus {
                phase: ClusterPhase::Ready.into(),
                observed_generation: 1,
                groups: vec![GroupStatus {
                    size: 1,
                    ready: 1,
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(lines.cluster(&cluster, Instant::now()), None);
        assert_eq!(lines.released(), None);
        assert_eq!(lines.all_ready(), None);
        assert!(lines.node(&node(NodeState::Ready)).is_some());
        assert!(lines.released().unwrap().contains("Ready    1 of 1"));
        assert_eq!(lines.released(), None);
        assert_eq!(lines.all_ready(), Some(1));
    }
}
