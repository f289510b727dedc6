//! Watches of clusters and nodes: a snapshot, then whatever changed, always the latest state.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use drover_convert::value::to_duration;
use drover_core::{Error, Reason, Result};
use drover_proto::orchestrator::v1 as pb;
use futures::{FutureExt, stream};
use prost::Message;
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
/// Bytes in one message, if there is more than one object: well below the largest message.
const BATCH_BYTES: usize = 1024 * 1024;
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
    /// Where the snapshot goes on. None: all of it was looked at.
    snapshot: Option<Cursor>,
    /// Clusters that changed and were not looked at yet.
    changed: VecDeque<Uuid>,
    ready: VecDeque<S::Answer>,
    /// Sent when everything before it was.
    owed: Option<S::Answer>,
    ended: bool,
}

/// After this name; none: at the beginning.
type Cursor = Option<Arc<str>>;

/// Looks at clusters only as fast as the answers are read, a batch at a time: a reader that does not read holds one
/// batch, however many clusters there are.
fn open<S: Subject>(api: &Api, subject: S, interval: Duration) -> Answers<S::Answer> {
    // Before the snapshot, so that nothing between the two is missed.
    let follower = api.shared.changes.follow();
    let mark = mark(&api.shared);
    let watch = Watch {
        api: api.clone(),
        follower,
        interval,
        next_heartbeat: Instant::now() + interval,
        snapshot: Some(None),
        changed: VecDeque::new(),
        ready: VecDeque::from([subject.started(interval)]),
        owed: Some(subject.complete(mark)),
        subject,
        ended: false,
    };
    let stop = api.shared.stop.clone();
    Box::pin(futures::StreamExt::take_until(
        stream::unfold(watch, step),
        stop.cancelled_owned(),
    ))
}

async fn step<S: Subject>(
    mut watch: Watch<S>,
) -> Option<(Result<S::Answer, tonic::Status>, Watch<S>)> {
    loop {
        if let Some(answer) = watch.ready.pop_front() {
            return Some((Ok(answer), watch));
        }
        if watch.ended {
            return None;
        }
        if watch.look_on() {
            // Thousands that are not wanted must not keep others from their turn.
            tokio::task::consume_budget().await;
            continue;
        }
        if let Some(answer) = watch.owed.take() {
            return Some((Ok(answer), watch));
        }
        tokio::select! {
            () = tokio::time::sleep_until(watch.next_heartbeat) => {
                watch.next_heartbeat = Instant::now() + watch.interval;
                // The mark says that everything up to it was sent.
                let mark = mark(&watch.api.shared);
                if let Some(changed) = watch.follower.next().now_or_never()
                    && !watch.note(changed)
                {
                    return Some((Err(too_slow()), watch));
                }
                watch.owed = Some(watch.subject.heartbeat(mark));
            }
            changed = watch.follower.next() => {
                let mut changed = changed;
                if let Some(uids) = &mut changed {
                    tokio::time::sleep(GATHER).await;
                    match watch.follower.next().now_or_never() {
                        None => {}
                        Some(None) => changed = None,
                        Some(Some(more)) => {
                            uids.extend(more);
                            uids.sort_unstable();
                            uids.dedup();
                        }
                    }
                }
                if !watch.note(changed) {
                    return Some((Err(too_slow()), watch));
                }
            }
        }
    }
}

impl<S: Subject> Watch<S> {
    /// Notes what changed. None: too much did, which ends the watch; answers false.
    fn note(&mut self, changed: Option<Vec<Uuid>>) -> bool {
        let Some(uids) = changed else {
            self.ended = true;
            return false;
        };
        self.changed.extend(uids);
        true
    }

    /// Looks at the next clusters, of the snapshot first. False: there are none left.
    fn look_on(&mut self) -> bool {
        let shared = &self.api.shared;
        if let Some(after) = self.snapshot.take() {
            let visible = status::visible(shared);
            let (clusters, last) = shared.after(after.as_deref(), BATCH);
            for cluster in clusters {
                self.subject
                    .look(&self.api, cluster.uid, Some(&cluster), &visible);
            }
            self.snapshot = last.map(Some);
        } else if !self.changed.is_empty() {
            let visible = status::visible(shared);
            for uid in self.changed.drain(..self.changed.len().min(BATCH)) {
                let cluster = shared.cluster(uid);
                self.subject
                    .look(&self.api, uid, cluster.as_ref(), &visible);
            }
            if self.changed.is_empty() {
                self.changed = VecDeque::new();
            }
        } else {
            return false;
        }
        self.ready.extend(self.subject.take());
        true
    }
}

fn too_slow() -> tonic::Status {
    let error = Error::new(
        Reason::WatchTooSlow,
        "too much changed since the last read; watch again",
    );
    drover_convert::error::to_status(&error)
}

/// Splits what changed into messages, by number and by size.
fn batches<T: Message>(items: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut items = items.into_iter().peekable();
    std::iter::from_fn(move || {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH
            && let Some(item) = items.next_if(|item| {
                bytes += item.encoded_len();
                batch.is_empty() || bytes <= BATCH_BYTES
            })
        {
            batch.push(item);
        }
        (!batch.is_empty()).then_some(batch)
    })
}

struct Clusters {
    name: Option<String>,
    selector: Selector,
    full: bool,
    /// Names of those that were sent.
    sent: HashMap<Uuid, Arc<str>>,
    upserts: Vec<pb::Cluster>,
    removals: Vec<String>,
}

impl Subject for Clusters {
    type Answer = pb::WatchClustersResponse;

    fn look(&mut self, api: &Api, uid: Uuid, cluster: Option<&Arc<Cluster>>, visible: &Visible) {
        let wanted = cluster.and_then(|cluster| {
            let inner = cluster.inner.lock();
            let named = self
                .name
                .as_deref()
                .is_none_or(|name| *name == *cluster.name);
            let wanted = named
                && api.sees(cluster, &inner)
                && !inner.finished
                && self.selector.selects(&inner.desired.value.labels);
            wanted.then(|| {
                let answer = status::cluster(cluster, &inner, visible, self.full);
                (cluster.name.clone(), answer)
            })
        });
        match wanted {
            Some((name, cluster)) => {
                self.sent.insert(uid, name);
                self.upserts.push(cluster);
            }
            None => {
                let gone = self.sent.remove(&uid);
                self.removals.extend(gone.map(|name| name.to_string()));
            }
        }
    }

    fn take(&mut self) -> Vec<Self::Answer> {
        use pb::watch_clusters_response::Event;
        let removals = batches(std::mem::take(&mut self.removals))
            .map(|names| Event::Removals(pb::Removals { names }));
        let upserts = batches(std::mem::take(&mut self.upserts))
            .map(|clusters| Event::Upserts(pb::ClusterUpserts { clusters }));
        removals
            .chain(upserts)
            .map(|event| pb::WatchClustersResponse { event: Some(event) })
            .collect()
    }

    fn started(&self, interval: Duration) -> Self::Answer {
        let started = pb::WatchStarted {
            heartbeat_interval: Some(to_duration(interval)),
        };
        pb::WatchClustersResponse {
            event: Some(pb::watch_clusters_response::Event::Started(started)),
        }
    }

    fn complete(&self, mark: pb::WatchMark) -> Self::Answer {
        pb::WatchClustersResponse {
            event: Some(pb::watch_clusters_response::Event::SnapshotComplete(mark)),
        }
    }

    fn heartbeat(&self, mark: pb::WatchMark) -> Self::Answer {
        pb::WatchClustersResponse {
            event: Some(pb::watch_clusters_response::Event::Heartbeat(mark)),
        }
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

    fn look(&mut self, api: &Api, uid: Uuid, cluster: Option<&Arc<Cluster>>, visible: &Visible) {
        let mut here = BTreeSet::new();
        if let Some(cluster) = cluster
            && self
                .filter
                .cluster
                .as_deref()
                .is_none_or(|name| *name == *cluster.name)
        {
            let inner = cluster.inner.lock();
            let seen = api.sees(cluster, &inner);
            for node in inner
                .state
                .nodes
                .iter()
                .filter(|node| seen && self.filter.has(&node.group))
            {
                let answer = status::node(cluster, &inner, visible, node);
                let print = fingerprint(&answer);
                let sent = self.sent.entry(uid).or_default();
                here.insert(node.slot);
                if sent
                    .get(&node.slot)
                    .is_some_and(|(_, before)| *before == print)
                {
                    continue;
                }
                sent.insert(
                    node.slot,
                    (format!("{}/{}", cluster.name, answer.id), print),
                );
                self.upserts.push(answer);
            }
        }
        if let Some(sent) = self.sent.get_mut(&uid) {
            let gone: Vec<u64> = sent
                .keys()
                .filter(|slot| !here.contains(slot))
                .copied()
                .collect();
            self.removals.extend(
                gone.iter()
                    .filter_map(|slot| sent.remove(slot))
                    .map(|(name, _)| name),
            );
        }
    }

    fn take(&mut self) -> Vec<Self::Answer> {
        use pb::watch_nodes_response::Event;
        let removals = batches(std::mem::take(&mut self.removals))
            .map(|names| Event::Removals(pb::Removals { names }));
        let upserts = batches(std::mem::take(&mut self.upserts))
            .map(|nodes| Event::Upserts(pb::NodeUpserts { nodes }));
        removals
            .chain(upserts)
            .map(|event| pb::WatchNodesResponse { event: Some(event) })
            .collect()
    }

    fn started(&self, interval: Duration) -> Self::Answer {
        let started = pb::WatchStarted {
            heartbeat_interval: Some(to_duration(interval)),
        };
        pb::WatchNodesResponse {
            event: Some(pb::watch_nodes_response::Event::Started(started)),
        }
    }

    fn complete(&self, mark: pb::WatchMark) -> Self::Answer {
        pb::WatchNodesResponse {
            event: Some(pb::watch_nodes_response::Event::SnapshotComplete(mark)),
        }
    }

    fn heartbeat(&self, mark: pb::WatchMark) -> Self::Answer {
        pb::WatchNodesResponse {
            event: Some(pb::watch_nodes_response::Event::Heartbeat(mark)),
        }
    }
}

/// Tells two answers about a node apart. When it was last seen is no news.
fn fingerprint(node: &pb::Node) -> u64 {
    use std::hash::Hasher;
    let mut node = node.clone();
    node.observe_time = None;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(&node.encode_to_vec());
    hasher.finish()
}

impl Api {
    pub(super) async fn watch_clusters(
        &self,
        request: pb::WatchClustersRequest,
    ) -> Result<Answers<pb::WatchClustersResponse>> {
        self.shared.reach(request.min_revision).await?;
        let subject = Clusters {
            name: request.name,
            selector: Selector::new(request.selector)?,
            full: is_full(request.view)?,
            sent: HashMap::new(),
            upserts: Vec::new(),
            removals: Vec::new(),
        };
        Ok(open(
            self,
            subject,
            heartbeat(request.heartbeat_interval.as_ref())?,
        ))
    }

    pub(super) async fn watch_nodes(
        &self,
        request: pb::WatchNodesRequest,
    ) -> Result<Answers<pb::WatchNodesResponse>> {
        self.shared.reach(request.min_revision).await?;
        let subject = Nodes {
            filter: Filter::new(self, request.cluster, request.group)?,
            sent: HashMap::new(),
            upserts: Vec::new(),
            removals: Vec::new(),
        };
        Ok(open(
            self,
            subject,
            heartbeat(request.heartbeat_interval.as_ref())?,
        ))
    }
}
