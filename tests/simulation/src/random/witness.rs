//! A client that watches throughout the run; in the end its view must match the actual state.

use std::{collections::BTreeMap, time::Duration};

use drover_client::watch::{Update, Watch};
use drover_core::Result as Opened;
use drover_proto::orchestrator::v1 as pb;
use futures::{FutureExt, StreamExt};
use tokio::time::Instant;

use super::{Run, operator::CALL};

/// Virtual time within which a watch must catch up with reads.
const PATIENCE: Duration = Duration::from_secs(120);

/// Virtual time within which a watch opens, unless the orchestrator is down.
const OPENING: Duration = Duration::from_secs(5);

/// Watches of one process of the orchestrator, and the state that they have shown.
#[derive(Default)]
pub(super) struct Witness {
    /// Start of the orchestrator to which the watches belong.
    start: Option<usize>,
    clusters: Option<Watch<Update<pb::Cluster>>>,
    nodes: Option<Watch<Update<pb::Node>>>,
    seen_clusters: BTreeMap<String, (String, u64)>,
    seen_nodes: BTreeMap<String, i32>,
}

impl Run {
    /// Takes in the updates of the watches, and reopens them after a restart of the orchestrator.
    pub(super) async fn watch(&mut self) {
        let start = Some(self.world.restarts);
        let witness = &self.witness;
        let ended = witness.clusters.is_none() || witness.nodes.is_none();
        if witness.start != start || ended {
            self.witness = Witness {
                start,
                ..Witness::default()
            };
            let client = self.world.client();
            let request = pb::WatchClustersRequest::default();
            self.witness.clusters = opened(client.watch_clusters(request, CALL)).await;
            let request = pb::WatchNodesRequest::default();
            self.witness.nodes = opened(client.watch_nodes(request, CALL)).await;
        }
        self.witness.take_in();
    }

    /// Checks that the watches converge to the state that reads return.
    pub(super) async fn what_is_watched_is_there(&mut self) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            self.watch().await;
            let (clusters, nodes) = self.read_all().await;
            let witness = &self.witness;
            if witness.seen_clusters == clusters && witness.seen_nodes == nodes {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!(
                    "watches show {:?} {:?}, reads show {clusters:?} {nodes:?}",
                    witness.seen_clusters, witness.seen_nodes
                ));
            }
            self.world.pass(Duration::from_secs(1)).await;
        }
    }

    async fn read_all(&mut self) -> (BTreeMap<String, (String, u64)>, BTreeMap<String, i32>) {
        let request = pb::ListClustersRequest::default();
        let answer = self
            .world
            .call(async |client| client.list_clusters(request.clone(), CALL).await)
            .await;
        let clusters = answer.map(|answer| answer.clusters).unwrap_or_default();
        let request = pb::ListNodesRequest {
            page_size: 1000,
            ..pb::ListNodesRequest::default()
        };
        let answer = self
            .world
            .call(async |client| client.list_nodes(request.clone(), CALL).await)
            .await;
        let nodes = answer.map(|answer| answer.nodes).unwrap_or_default();
        (
            clusters.into_iter().map(shown_cluster).collect(),
            nodes.into_iter().map(shown_node).collect(),
        )
    }
}

/// Returns the watch once it is open, unless the process dies meanwhile.
async fn opened<T>(opened: impl Future<Output = Opened<T>>) -> Option<T> {
    let within = tokio::time::timeout(OPENING, opened).await;
    within.ok()?.ok()
}

fn shown_cluster(cluster: pb::Cluster) -> (String, (String, u64)) {
    (cluster.name, (cluster.uid, cluster.generation))
}

fn shown_node(node: pb::Node) -> (String, i32) {
    (format!("{}/{}", node.cluster, node.id), node.state)
}

impl Witness {
    fn take_in(&mut self) {
        let shown = drain(&mut self.clusters);
        apply(shown, &mut self.seen_clusters, shown_cluster);
        let shown = drain(&mut self.nodes);
        apply(shown, &mut self.seen_nodes, shown_node);
    }
}

/// Returns the updates received so far. A watch that has ended is dropped.
fn drain<T: Send + 'static>(watch: &mut Option<Watch<Update<T>>>) -> Vec<Update<T>> {
    let mut shown = Vec::new();
    while let Some(open) = watch {
        match open.next().now_or_never() {
            None => break,
            Some(Some(Ok(update))) => shown.push(update),
            Some(Some(Err(_)) | None) => *watch = None,
        }
    }
    shown
}

fn apply<T, V>(
    shown: Vec<Update<T>>,
    seen: &mut BTreeMap<String, V>,
    of: impl Fn(T) -> (String, V),
) {
    for update in shown {
        match update {
            Update::Upserts(all) => seen.extend(all.into_iter().map(&of)),
            Update::Removals(names) => {
                for name in names {
                    seen.remove(&name);
                }
            }
            Update::Synced { .. } | Update::Reconnecting(_) => {}
        }
    }
}
