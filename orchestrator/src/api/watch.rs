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
    ready: VecDeque<S::Answer>,
    ended: bool,
}

fn open<S: Subject>(api: &Api, mut subject: S, interval: Duration) -> Answers<S::Answer> {
    // Before the snapshot, so that nothing between the two is missed.
    let follower = api.shared.changes.follow();
    let mark = mark(&api.shared);
    let visible = status::visible(&api.shared);
    let mut ready = VecDeque::from([subject.started(interval)]);
    for cluster in api.shared.by_name() {
        subject.look(api, cluster.uid, Some(&cluster), &visible);
    }
    ready.extend(subject.take());
    ready.push_back(subject.complete(mark));
    let next_heartbeat = Instant::now() + interval;
    let watch = Watch {
        api: api.clone(),
        subject,
        follower,
        interval,
        next_heartbeat,
        ready,
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
        tokio::select! {
            () = tokio::time::sleep_until(watch.next_heartbeat) => {
                watch.next_heartbeat = Instant::now() + watch.interval;
                // The mark says that everything up to it was sent.
                let mark = mark(&watch.api.shared);
                if let Some(changed) = watch.follower.next().now_or_never()
                    && !watch.look(changed)
                {
                    return Some((Err(too_slow()), watch));
                }
                watch.ready.push_back(watch.subject.heartbeat(mark));
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
                if !watch.look(changed) {
                    return Some((Err(too_slow()), watch));
                }
            }
        }
    }
}

impl<S: Subject> Watch<S> {
    /// Looks at what changed. None: too much did, which ends the watch; answers false.
    fn look(&mut self, changed: Option<Vec<Uuid>>) -> bool {
        let Some(uids) = changed else {
            self.ended = true;
            return false;
        };
        let visible = status::visible(&self.api.shared);
        for uid in uids {
            let cluster = self.api.shared.cluster(uid);
            self.subject
                .look(&self.api, uid, cluster.as_ref(), &visible);
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
    /// Those that were sent, by name.
    sent: HashMap<Uuid, String>,
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
