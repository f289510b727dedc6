//! Collects the events of a watch of all nodes.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use drover_proto::platform::v1::{
    Node, NodePhase, RemovalEvidence, WatchMark, watch_nodes_response::Event,
};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use drover_testing::kubernetes::{PATIENCE, until};

use super::bench::Bench;

#[derive(Default)]
struct Told {
    nodes: BTreeMap<String, Node>,
    removed: Vec<(String, RemovalEvidence)>,
    complete: bool,
    marks: usize,
    observed: Option<SystemTime>,
    ended: Option<String>,
}

pub(crate) struct Story {
    told: Arc<Mutex<Told>>,
    task: JoinHandle<()>,
}

impl Drop for Story {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Told {
    fn mark(&mut self, mark: &WatchMark) {
        self.marks += 1;
        self.observed = mark
            .observe_time
            .and_then(|time| SystemTime::try_from(time).ok());
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Upserts(upserts) => {
                let nodes = upserts.nodes.into_iter();
                self.nodes
                    .extend(nodes.map(|node| (node.node_id.clone(), node)));
            }
            Event::Removals(removals) => {
                for removed in removals.nodes {
                    self.nodes.remove(&removed.node_id);
                    let evidence = removed.evidence();
                    self.removed.push((removed.node_id, evidence));
                }
            }
            Event::SnapshotComplete(mark) => {
                self.complete = true;
                self.mark(&mark);
            }
            Event::Heartbeat(mark) => self.mark(&mark),
            Event::Started(_) | Event::Warnings(_) => {}
        }
    }
}

impl Story {
    pub(crate) async fn of(bench: &Bench) -> Self {
        let mut stream = bench.watch().await;
        let told = Arc::new(Mutex::new(Told::default()));
        let heard = Arc::clone(&told);
        let task = tokio::spawn(async move {
            let end = loop {
                match stream.message().await {
                    Ok(Some(message)) => {
                        if let Some(event) = message.event {
                            heard.lock().hear(event);
                        }
                    }
                    Ok(None) => break "the end".to_owned(),
                    Err(status) => break status.to_string(),
                }
            };
            heard.lock().ended = Some(end);
        });
        Self { told, task }
    }

    pub(crate) async fn until_complete(&self) {
        self.until_told("the snapshot is complete", |story| {
            story.told.lock().complete
        })
        .await;
    }

    /// Waits until the events meet a condition.
    pub(crate) async fn until_told(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = tokio::time::Instant::now() + PATIENCE;
        while !holds(self) {
            let told = self.told.lock().ended.clone();
            assert_eq!(told, None, "{what}: the watch has ended");
            let knows = || {
                let told = self.told.lock();
                let phases = told.nodes.values();
                let phases: Vec<String> = phases
                    .map(|node| format!("{} {:?} {}", node.node_id, node.phase(), node.message))
                    .collect();
                format!("{phases:?}, removed {:?}", told.removed)
            };
            assert!(
                tokio::time::Instant::now() < end,
                "not told within {PATIENCE:?}: {what}: {}",
                knows()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn knows(&self, id: &str) -> bool {
        self.told.lock().nodes.contains_key(id)
    }

    pub(crate) fn phase(&self, id: &str) -> Option<NodePhase> {
        self.told.lock().nodes.get(id).map(Node::phase)
    }

    pub(crate) fn runs(&self, id: &str) -> bool {
        self.phase(id) == Some(NodePhase::Running)
    }

    /// Whether an event reported the backend's confirmation that a node is gone.
    pub(crate) fn confirmed(&self, id: &str) -> bool {
        let told = self.told.lock();
        let confirmed = |(removed, evidence): &(String, RemovalEvidence)| {
            removed == id && *evidence == RemovalEvidence::Confirmed
        };
        told.removed.iter().any(confirmed)
    }

    /// Asserts that none of these was ever reported as removed.
    pub(crate) fn never_removed(&self, ids: &[String]) {
        let told = self.told.lock();
        let invented: Vec<_> = told
            .removed
            .iter()
            .filter(|(removed, _)| ids.contains(removed))
            .collect();
        assert!(invented.is_empty(), "{invented:?}");
        for id in ids {
            assert!(told.nodes.contains_key(id), "{id} is known");
        }
    }

    fn age(&self) -> Option<Duration> {
        let observed = self.told.lock().observed?;
        Some(observed.elapsed().unwrap_or_default())
    }

    /// Waits for a heartbeat whose last complete read is at least this old.
    pub(crate) async fn until_behind(&self, age: Duration) {
        let marks = self.told.lock().marks;
        until("what was observed is old", || async {
            let lives = self.told.lock().marks > marks;
            (lives && self.age()? >= age).then_some(())
        })
        .await;
        assert_eq!(self.told.lock().ended, None);
    }

    /// Waits for a heartbeat whose last complete read is younger than this.
    pub(crate) async fn until_fresh(&self, age: Duration) {
        until("what was observed is new", || async {
            (self.age()? < age).then_some(())
        })
        .await;
    }
}
