//! Watches of clusters and nodes: a snapshot, then changes, always with the latest state.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use drover_cluster::Cluster;
use drover_convert::value::to_duration;
use drover_core::{Error, Reason, Result, Sym};
use drover_proto::orchestrator::v1 as pb;
use futures::{FutureExt, stream};
use prost::Message;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    access::{Access, per_call},
    clusters::{Selector, is_full},
    events::{heartbeat, mark},
    nodes::{Answers, Filter},
};
use crate::{
    changes::Follower,
    limits::{Held, Limits},
    readiness::ReadinessReporter,
    records::Records,
    status::{self, Viewer, Visible},
};

/// Maximum number of objects in a message.
const BATCH: usize = 256;
/// Maximum size of a message with more than one object: well below the maximum message size.
const BATCH_BYTES: usize = 1024 * 1024;
/// Fixed memory charge of a stream: its task, and buffers of unread responses.
pub(super) const STREAM_BYTES: usize = 64 * 1024;
/// Factor between the memory of a pending response and its encoded size.
pub(super) const WAITING: usize = 3;
/// Memory charge for each node, and for each cluster, that a watch has sent.
const NODE_BYTES: usize = 96;
const CLUSTER_BYTES: usize = 160;
/// Changes within this period are sent together.
const GATHER: Duration = Duration::from_millis(5);
/// The same while many clusters change: each of them is told of once instead of at every step.
const GATHER_MANY: Duration = Duration::from_millis(50);
/// Number of clusters that change within [`GATHER`] from which they are many.
const MANY: usize = 64;

/// The kind of objects that a watch is about.
trait Subject: Send + 'static {
    type Answer: Send + 'static;

    /// Collects the changes of a cluster from a slot on. `cluster` is `None` if it was deleted.
    fn look(
        &mut self,
        access: &Access,
        at: (Uuid, u64),
        cluster: Option<&Arc<Cluster>>,
        visible: &Visible,
    ) -> Looked;
    /// Memory for the record of what was sent.
    fn bytes(&self) -> usize;
    /// Collected responses, in batches.
    fn take(&mut self) -> Vec<Self::Answer>;
    fn started(&self, interval: Duration) -> Self::Answer;
    fn complete(&self, mark: pb::WatchMark) -> Self::Answer;
    fn heartbeat(&self, mark: pb::WatchMark) -> Self::Answer;
}

/// Result of looking at a cluster.
#[derive(Default)]
struct Looked {
    /// Size of the collected responses in bytes.
    bytes: usize,
    /// The slot at which to continue. `None` if the cluster is complete.
    next: Option<u64>,
}

struct Watch<S: Subject> {
    on: Watches,
    subject: S,
    follower: Follower,
    interval: Duration,
    next_heartbeat: Instant,
    /// Where the snapshot continues. `None` if it is complete.
    snapshot: Option<Cursor>,
    /// Changed clusters that are still to be looked at.
    changed: VecDeque<Uuid>,
    /// Clusters to look at next, each from a slot on.
    looking: VecDeque<(Uuid, u64)>,
    /// Backends that were visible at the last look, by platform.
    seen: Option<BTreeMap<Sym, String>>,
    /// Memory held on behalf of the caller.
    held: Held,
    ready: VecDeque<S::Answer>,
    /// Sent after everything collected so far.
    owed: Option<S::Answer>,
    ended: bool,
}

/// The name after which to continue; `None` to begin.
type Cursor = Option<Arc<str>>;

/// Looks at clusters only as fast as the responses are read, one batch at a time: a stalled reader holds one batch,
/// regardless of the number and size of the clusters.
fn open<S: Subject>(on: &Watches, subject: S, interval: Duration) -> Result<Answers<S::Answer>> {
    let held = on.limits.hold(on.access.record.payer(), STREAM_BYTES)?;
    // Before the snapshot, so that no change in between is missed.
    let follower = on.records.follow();
    let mark = mark(&on.records, on.viewer.clock.now());
    let watch = Watch {
        on: on.clone(),
        follower,
        interval,
        next_heartbeat: Instant::now() + interval,
        snapshot: Some(None),
        changed: VecDeque::new(),
        looking: VecDeque::new(),
        seen: None,
        held,
        ready: VecDeque::from([subject.started(interval)]),
        owed: Some(subject.complete(mark)),
        subject,
        ended: false,
    };
    let end = on.readiness.ended();
    Ok(Box::pin(futures::StreamExt::take_until(
        stream::unfold(watch, step),
        Box::pin(end),
    )))
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
        match watch.look_on() {
            Ok(true) => {
                // Skipping thousands of filtered objects must not starve other tasks.
                tokio::task::consume_budget().await;
                continue;
            }
            Ok(false) => {}
            Err(error) => {
                watch.ended = true;
                watch.ready.clear();
                return Some((Err(drover_convert::error::to_status(&error)), watch));
            }
        }
        if let Some(answer) = watch.owed.take() {
            return Some((Ok(answer), watch));
        }
        tokio::select! {
            () = tokio::time::sleep_until(watch.next_heartbeat) => {
                watch.next_heartbeat = Instant::now() + watch.interval;
                // The mark states that all changes up to it were sent.
                let mark = mark(&watch.on.records, watch.on.viewer.clock.now());
                if let Some(changed) = watch.follower.next().now_or_never()
                    && !watch.note(changed)
                {
                    return Some((Err(too_slow()), watch));
                }
                watch.owed = Some(watch.subject.heartbeat(mark));
            }
            changed = watch.follower.next() => {
                let changed = match changed {
                    Some(uids) => watch.gather(uids).await,
                    None => None,
                };
                if !watch.note(changed) {
                    return Some((Err(too_slow()), watch));
                }
            }
        }
    }
}

impl<S: Subject> Watch<S> {
    /// Adds what changes shortly after these clusters. `None` if more changed than is remembered.
    async fn gather(&mut self, mut uids: Vec<Uuid>) -> Option<Vec<Uuid>> {
        for period in [GATHER, GATHER_MANY - GATHER] {
            tokio::time::sleep(period).await;
            if let Some(more) = self.follower.next().now_or_never() {
                uids.extend(more?);
                uids.sort_unstable();
                uids.dedup();
            }
            if uids.len() < MANY {
                break;
            }
        }
        Some(uids)
    }

    /// Queues changed clusters. On `None` the watch has fallen too far behind: it ends, and `false` is returned.
    fn note(&mut self, changed: Option<Vec<Uuid>>) -> bool {
        let Some(uids) = changed else {
            self.ended = true;
            return false;
        };
        self.changed.extend(uids);
        true
    }

    /// Queues the clusters that look different because the visibility of a platform changed. That may happen by the
    /// passage of time alone, and too briefly for other parts to notice.
    fn note_sight(&mut self, visible: &Visible) {
        let now = visible.backends();
        let before = match &mut self.seen {
            Some(before) if before == now => return,
            Some(before) => std::mem::replace(before, now.clone()),
            None => {
                self.seen = Some(now.clone());
                return;
            }
        };
        let names = before.keys().chain(now.keys()).collect::<BTreeSet<_>>();
        for name in names
            .into_iter()
            .filter(|it| before.get(*it) != now.get(*it))
        {
            let users = self.on.records.clusters().users(name);
            self.changed
                .extend(users.iter().map(|cluster| cluster.uid()));
        }
    }

    /// Looks at the next clusters, those of the snapshot first, until there is a batch. Returns `false` if none are
    /// left, and `Overloaded` if the caller holds too much memory.
    fn look_on(&mut self) -> Result<bool> {
        let visible = self.on.viewer.visible();
        self.note_sight(&visible);
        let all = self.on.records.clusters();
        if self.looking.is_empty() {
            if let Some(after) = self.snapshot.take() {
                let (clusters, last) = all.after(after.as_deref(), BATCH);
                self.looking.extend(clusters.iter().map(|it| (it.uid(), 0)));
                self.snapshot = last.map(Some);
            } else if !self.changed.is_empty() {
                let next = self.changed.drain(..self.changed.len().min(BATCH));
                self.looking.extend(next.map(|uid| (uid, 0)));
                if self.changed.is_empty() {
                    self.changed = VecDeque::new();
                }
            } else {
                // No responses are pending any more.
                self.held.resize(STREAM_BYTES + self.subject.bytes())?;
                return Ok(false);
            }
        }
        let mut bytes = 0;
        while bytes < BATCH_BYTES / 4
            && let Some((uid, from)) = self.looking.pop_front()
        {
            let cluster = all.get(uid);
            let looked =
                (self.subject).look(&self.on.access, (uid, from), cluster.as_ref(), &visible);
            bytes += looked.bytes;
            if let Some(next) = looked.next {
                self.looking.push_front((uid, next));
                break;
            }
        }
        self.held
            .resize(STREAM_BYTES + WAITING * bytes + self.subject.bytes())?;
        self.ready.extend(self.subject.take());
        Ok(true)
    }
}

fn too_slow() -> tonic::Status {
    let error = Error::new(
        Reason::WatchTooSlow,
        "too much changed since the last read; watch again",
    );
    drover_convert::error::to_status(&error)
}

/// Splits changes into messages, by number and by size.
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
    /// Names of the clusters that were sent.
    sent: HashMap<Uuid, Arc<str>>,
    upserts: Vec<pb::Cluster>,
    removals: Vec<String>,
}

impl Subject for Clusters {
    type Answer = pb::WatchClustersResponse;

    fn look(
        &mut self,
        access: &Access,
        (uid, _): (Uuid, u64),
        cluster: Option<&Arc<Cluster>>,
        visible: &Visible,
    ) -> Looked {
        let mut looked = Looked::default();
        let wanted = cluster.and_then(|cluster| {
            let inner = cluster.lock();
            let named = self
                .name
                .as_deref()
                .is_none_or(|name| *name == **cluster.name());
            let wanted = named
                && access.sees(cluster, &inner)
                && !inner.is_finished()
                && self.selector.selects(&inner.desired().value.labels);
            wanted.then(|| {
                let answer = status::cluster(cluster, &inner, visible, self.full);
                (cluster.name().clone(), answer)
            })
        });
        match wanted {
            Some((name, cluster)) => {
                looked.bytes = cluster.encoded_len();
                self.sent.insert(uid, name);
                self.upserts.push(cluster);
            }
            None => {
                let gone = self.sent.remove(&uid);
                self.removals.extend(gone.map(|name| name.to_string()));
            }
        }
        looked
    }

    fn bytes(&self) -> usize {
        self.sent.len() * CLUSTER_BYTES
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

/// The nodes of a cluster as last sent.
struct Sent {
    cluster: Arc<str>,
    /// Id and fingerprint, by slot.
    nodes: BTreeMap<u64, (Box<str>, u64)>,
}

struct Nodes {
    filter: Filter,
    sent: HashMap<Uuid, Sent>,
    /// Total number of nodes in `sent`.
    count: usize,
    upserts: Vec<pb::Node>,
    removals: Vec<String>,
}

impl Nodes {
    /// Reports nodes in this range of slots that were sent and no longer exist.
    fn drop_gone(&mut self, uid: Uuid, slots: std::ops::Range<u64>, here: &BTreeSet<u64>) {
        let Some(sent) = self.sent.get_mut(&uid) else {
            return;
        };
        let known = sent.nodes.range(slots).map(|(slot, _)| *slot);
        let gone: Vec<u64> = known.filter(|slot| !here.contains(slot)).collect();
        for slot in gone {
            if let Some((id, _)) = sent.nodes.remove(&slot) {
                self.count -= 1;
                self.removals.push(format!("{}/{id}", sent.cluster));
            }
        }
        if sent.nodes.is_empty() {
            self.sent.remove(&uid);
        }
    }
}

impl Subject for Nodes {
    type Answer = pb::WatchNodesResponse;

    fn look(
        &mut self,
        access: &Access,
        (uid, from): (Uuid, u64),
        cluster: Option<&Arc<Cluster>>,
        visible: &Visible,
    ) -> Looked {
        let (mut here, mut looked) = (BTreeSet::new(), Looked::default());
        let named = |cluster: &&Arc<Cluster>| {
            let wanted = self.filter.cluster.as_deref();
            wanted.is_none_or(|name| *name == **cluster.name())
        };
        if let Some(cluster) = cluster.filter(named) {
            let inner = cluster.lock();
            let seen = access.sees(cluster, &inner);
            let first = inner.state().nodes.partition_point(|node| node.slot < from);
            let nodes = inner.state().nodes[first..].iter();
            for (at, node) in nodes.filter(|_| seen).enumerate() {
                if at == BATCH {
                    looked.next = Some(node.slot);
                    break;
                }
                if !self.filter.has(&node.group) {
                    continue;
                }
                here.insert(node.slot);
                let answer = status::node(cluster, &inner, visible, node);
                let (print, bytes) = fingerprint(&answer);
                let sent = self.sent.entry(uid).or_insert_with(|| Sent {
                    cluster: cluster.name().clone(),
                    nodes: BTreeMap::new(),
                });
                match sent.nodes.get_mut(&node.slot) {
                    Some((_, before)) if *before == print => continue,
                    Some((_, before)) => *before = print,
                    None => {
                        let id = answer.id.as_str().into();
                        sent.nodes.insert(node.slot, (id, print));
                        self.count += 1;
                    }
                }
                looked.bytes += bytes;
                self.upserts.push(answer);
            }
        }
        self.drop_gone(uid, from..looked.next.unwrap_or(u64::MAX), &here);
        looked
    }

    fn bytes(&self) -> usize {
        self.count * NODE_BYTES + self.sent.len() * CLUSTER_BYTES
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

/// Fingerprint and size of a node in a response. The time when a node was last seen does not count as a change.
fn fingerprint(node: &pb::Node) -> (u64, usize) {
    use std::hash::Hasher;
    let mut node = node.clone();
    node.observe_time = None;
    let mut hasher = std::hash::DefaultHasher::new();
    let encoded = node.encode_to_vec();
    hasher.write(&encoded);
    (hasher.finish(), encoded.len())
}

/// Opens watches of clusters and nodes.
#[derive(Clone)]
pub(crate) struct Watches {
    pub(crate) access: Access,
    pub(crate) records: Arc<Records>,
    pub(crate) viewer: Viewer,
    pub(crate) limits: Arc<Limits>,
    pub(crate) readiness: ReadinessReporter,
}

per_call!(Watches: access);

impl Watches {
    pub(super) async fn watch_clusters(
        &self,
        request: pb::WatchClustersRequest,
    ) -> Result<Answers<pb::WatchClustersResponse>> {
        self.records.reach(request.min_revision).await?;
        let subject = Clusters {
            name: request.name,
            selector: Selector::new(request.selector)?,
            full: is_full(request.view)?,
            sent: HashMap::new(),
            upserts: Vec::new(),
            removals: Vec::new(),
        };
        open(
            self,
            subject,
            heartbeat(request.heartbeat_interval.as_ref())?,
        )
    }

    pub(super) async fn watch_nodes(
        &self,
        request: pb::WatchNodesRequest,
    ) -> Result<Answers<pb::WatchNodesResponse>> {
        self.records.reach(request.min_revision).await?;
        let subject = Nodes {
            filter: Filter::new(&self.access, request.cluster, request.group)?,
            sent: HashMap::new(),
            count: 0,
            upserts: Vec::new(),
            removals: Vec::new(),
        };
        open(
            self,
            subject,
            heartbeat(request.heartbeat_interval.as_ref())?,
        )
    }
}
