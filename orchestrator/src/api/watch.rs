//! Watches of clusters and nodes: a snapshot, then whatever changed, always the latest state.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use drover_convert::value::to_duration;
use drover_core::{Error, Reason, Result};
use drover_proto::orchestrator::v1 as pb;
use futures::stream;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Api,
    clusters::{Selector, is_full},
    events::{heartbeat, mark},
    nodes::{Answers, Filter},
    status::{self, Visible},
};
use crate::{changes::Follower, cluster::Cluster};

/// Objects in one message.
const BATCH: usize = 256;
/// Changes that come quickly after each other go out together.
const GATHER: Duration = Duration::from_millis(5);

/// What a watch is of.
trait Subject: Send + 'static {
    type Answer: Send + 'static;

    /// What changed of a cluster, for the answers. None: it is gone.
    fn look(&mut self, api: &Api, uid: Uuid, cluster: Option<&Arc<Cluster>>, visible: &Visible);
    /// Answers that are ready, in batches.
    fn take(&mut self) -> Vec<Self::Answer>;
    fn started(&self, interval: Duration) -> Self::Answer;
    fn complete(&self, mark: pb::WatchMark) -> Self::Answer;
    fn heartbeat(&self, mark: pb::WatchMark) -> Self::Answer;
}

struct Watch<S: Subject> {
    api: Api,
    subject: S,
    follower: Follower,
    interval: Duration,
    next_heartbeat: Instant,
    ready: VecDeque<S::Answer>,
    ended: bool,
}

fn open<S: Subject>(api: &Api, mut subject: S, interval: Duration) -> Answers<S::Answer> {
    // Before the snapshot, so that nothing between the two is missed.
    let follower = api.shared.changes.follow();
    let visible = status::visible(&api.shared);
    let mut ready = VecDeque::from([subject.started(interval)]);
    for cluster in api.shared.by_name() {
        subject.look(api, cluster.uid, Some(&cluster), &visible);
    }
    ready.extend(subject.take());
    ready.push_back(subject.complete(mark(&api.shared)));
    let next_heartbeat = Instant::now() + interval;
    let watch = Watch { api: api.clone(), subject, follower, interval, next_heartbeat, ready, ended: false };
    let stop = api.shared.stop.clone();
    Box::pin(futures::StreamExt::take_until(stream::unfold(watch, step), stop.cancelled_owned()))
}

async fn step<S: Subject>(mut watch: Watch<S>) -> Option<(Result<S::Answer, tonic::Status>, Watch<S>)> {
    loop {
        if let Some(answer) = watch.ready.pop_front() {
            return Some((Ok(answer), watch));
        }
        if watch.ended {
            return None;
        }
        tokio::select! {
            () = tokio::time::sleep_until(watch.next_heartbeat) => {
                watch.next_heartbeat = Instant::now() + watch.interval;
                let mark = mark(&watch.api.shared);
                watch.ready.push_back(watch.subject.heartbeat(mark));
            }
            changed = watch.follower.next() => {
                let Some(mut uids) = changed else {
                    watch.ended = true;
                    let error = Error::new(Reason::WatchTooSlow, "too much changed since the last read; watch again");
                    return Some((Err(drover_convert::error::to_status(&error)), watch));
                };
                tokio::time::sleep(GATHER).await;
                if let Some(Some(more)) = futures::FutureExt::now_or_never(watch.follower.next()) {
                    uids.extend(more);
                    uids.sort_unstable();
                    uids.dedup();
                }
                let visible = status::visible(&watch.api.shared);
                for uid in uids {
                    let cluster = watch.api.shared.cluster(uid);
                    watch.subject.look(&watch.api, uid, cluster.as_ref(), &visible);
                }
                let answers = watch.subject.take();
                watch.ready.extend(answers);
            }
        }
    }
}

/// Splits what changed into messages.
fn batches<T>(items: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut items = items.into_iter().peekable();
    std::iter::from_fn(move || {
        items.peek()?;
        Some(items.by_ref().take(BATCH).collect())
    })
}

struct Clusters {
    name: Option<String>,
    selector: Selector,
    full: bool,
    /// Those that were sent, by name.
    sent: HashMap<Uuid, String>,
    upserts: Vec<pb::Cluster>,
    removals: Vec<String>,
}

impl Subject for Clusters {
    type Answer = pb::WatchClustersResponse;

    fn look(&mut self, _: &Api, uid: Uuid, cluster: Option<&Arc<Cluster>>, visible: &Visible) {
        let wanted = cluster.and_then(|cluster| {
            let inner = cluster.inner.lock();
            let named = self.name.as_deref().is_none_or(|name| *name == *cluster.name);
            let wanted = named && !inner.finished && self.selector.selects(&inner.desired.value.labels);
            wanted.then(|| status::cluster(cluster, &inner, visible, self.full))
        });
        match wanted {
            Some(cluster) => {
                self.sent.insert(uid, cluster.name.clone());
                self.upserts.push(cluster);
            }
            None => self.removals.extend(self.sent.remove(&uid)),
        }
    }

    fn take(&mut self) -> Vec<Self::Answer> {
        use pb::watch_clusters_response::Event;
        let removals = batches(std::mem::take(&mut self.removals)).map(|names| Event::Removals(pb::Removals { names }));
        let upserts =
            batches(std::mem::take(&mut self.upserts)).map(|clusters| Event::Upserts(pb::ClusterUpserts { clusters }));
        removals.chain(upserts).map(|event| pb::WatchClustersResponse { event: Some(event) }).collect()
    }

    fn started(&self, interval: Duration) -> Self::Answer {
        let started = pb::WatchStarted { heartbeat_interval: Some(to_duration(interval)) };
        pb::WatchClustersResponse { event: Some(pb::watch_clusters_response::Event::Started(started)) }
    }

    fn complete(&self, mark: pb::WatchMark) -> Self::Answer {
        pb::WatchClustersResponse { event: Some(pb::watch_clusters_response::Event::SnapshotComplete(mark)) }
    }

    fn heartbeat(&self, mark: pb::WatchMark) -> Self::Answer {
        pb::WatchClustersResponse { event: Some(pb::watch_clusters_response::Event::Heartbeat(mark)) }
    }
}

struct Nodes {
    filter: Filter,
    /// What was sent last of each node, by cluster and slot.
    sent: HashMap<Uuid, BTreeMap<u64, (String, u64)>>,
    upserts: Vec<pb::Node>,
    removals: Vec<String>,
}

impl Subject for Nodes {
    type Answer = pb::WatchNodesResponse;

    fn look(&mut self, _: &Api, uid: Uuid, cluster: Option<&Arc<Cluster>>, visible: &Visible) {
        let mut here = BTreeSet::new();
        if let Some(cluster) = cluster
            && self.filter.cluster.as_deref().is_none_or(|name| *name == *cluster.name)
        {
            let inner = cluster.inner.lock();
            for node in inner.state.nodes.iter().filter(|node| self.filter.has(&node.group)) {
                let answer = status::node(cluster, &inner, visible, node);
                let print = fingerprint(&answer);
                let sent = self.sent.entry(uid).or_default();
                here.insert(node.slot);
                if sent.get(&node.slot).is_some_and(|(_, before)| *before == print) {
                    continue;
                }
                sent.insert(node.slot, (format!("{}/{}", cluster.name, answer.id), print));
                self.upserts.push(answer);
            }
        }
        if let Some(sent) = self.sent.get_mut(&uid) {
            let gone: Vec<u64> = sent.keys().filter(|slot| !here.contains(slot)).copied().collect();
            self.removals.extend(gone.iter().filter_map(|slot| sent.remove(slot)).map(|(name, _)| name));
        }
    }

    fn take(&mut self) -> Vec<Self::Answer> {
        use pb::watch_nodes_response::Event;
        let removals = batches(std::mem::take(&mut self.removals)).map(|names| Event::Removals(pb::Removals { names }));
        let upserts = batches(std::mem::take(&mut self.upserts)).map(|nodes| Event::Upserts(pb::NodeUpserts { nodes }));
        removals.chain(upserts).map(|event| pb::WatchNodesResponse { event: Some(event) }).collect()
    }

    fn started(&self, interval: Duration) -> Self::Answer {
        let started = pb::WatchStarted { heartbeat_interval: Some(to_duration(interval)) };
        pb::WatchNodesResponse { event: Some(pb::watch_nodes_response::Event::Started(started)) }
    }

    fn complete(&self, mark: pb::WatchMark) -> Self::Answer {
        pb::WatchNodesResponse { event: Some(pb::watch_nodes_response::Event::SnapshotComplete(mark)) }
    }

    fn heartbeat(&self, mark: pb::WatchMark) -> Self::Answer {
        pb::WatchNodesResponse { event: Some(pb::watch_nodes_response::Event::Heartbeat(mark)) }
    }
}

/// Tells two answers about a node apart. When it was last seen is no news.
fn fingerprint(node: &pb::Node) -> u64 {
    use std::hash::Hasher;
    let mut node = node.clone();
    node.observe_time = None;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(&prost::Message::encode_to_vec(&node));
    hasher.finish()
}

impl Api {
    pub(super) async fn watch_clusters(&self, request: pb::WatchClustersRequest) -> Result<Answers<pb::WatchClustersResponse>> {
        self.shared.reach(request.min_revision).await?;
        let subject = Clusters {
            name: request.name,
            selector: Selector::new(request.selector)?,
            full: is_full(request.view)?,
            sent: HashMap::new(),
            upserts: Vec::new(),
            removals: Vec::new(),
        };
        Ok(open(self, subject, heartbeat(request.heartbeat_interval.as_ref())?))
    }

    pub(super) async fn watch_nodes(&self, request: pb::WatchNodesRequest) -> Result<Answers<pb::WatchNodesResponse>> {
        self.shared.reach(request.min_revision).await?;
        let subject = Nodes {
            filter: Filter::new(self, request.cluster, request.group)?,
            sent: HashMap::new(),
            upserts: Vec::new(),
            removals: Vec::new(),
        };
        Ok(open(self, subject, heartbeat(request.heartbeat_interval.as_ref())?))
    }
}
