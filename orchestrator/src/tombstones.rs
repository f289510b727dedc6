//! Tombstones of deleted clusters: nodes that show up late are still ours to remove.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use drover_cluster::codec::UsedList;
use drover_core::{Class, Millis, Phase, Sym, Urgency};
use drover_executor::{Envelope, Kind};
use drover_planner::{Skipped, State};
use drover_platforms::Platform;
use drover_proto::platform::v1 as wire;
use futures::{
    StreamExt,
    stream::{self, FuturesUnordered},
};
use parking_lot::Mutex;
use prost::Message;
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use crate::shared::Shared;

/// Retention of tombstones.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time for which a late node of a deleted cluster must be visible before it is removed.
const GRACE: Millis = 120_000;
/// Interval between checks for late nodes.
const INTERVAL: Duration = Duration::from_secs(5);
/// Interval between checks for expired tombstones and idle logs.
const FORGET_INTERVAL: Duration = Duration::from_secs(3600);
/// Every cluster is planned at least once in this period, spread evenly.
const SAFETY_SWEEP: Duration = Duration::from_secs(300);
/// Maximum concurrent removals per platform, within the platform's call limits.
const AT_ONCE: usize = 8;
/// Maximum removals on one platform before the due ones are determined again.
const MOST_AT_A_TIME: usize = 64;
/// Deadline of a removal.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Deleted clusters and their late nodes.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    clusters: Mutex<HashMap<Uuid, Tombstone>>,
    late: Mutex<HashMap<(Sym, String), Late>>,
}

#[derive(Clone, Debug)]
struct Tombstone {
    name: String,
    next_sequence: u64,
    deleted: Millis,
    used: UsedList,
}

impl Tombstone {
    fn gave_out(&self, sequence: u64) -> bool {
        sequence < self.next_sequence && !Skipped::of(&self.used.skipped).has(sequence)
    }

    /// Whether a node belonged to the cluster, so that it is ours to remove.
    fn owns(&self, platform: &Sym, node_id: &str, sequence: u64) -> bool {
        let owns = self.gave_out(sequence);
        if !owns {
            tracing::error!(
                %platform,
                node_id,
                cluster = %self.name,
                sequence,
                "a deleted cluster has a node of a request that this store never gave out; left alone"
            );
        }
        owns
    }
}

#[derive(Clone, Debug)]
struct Late {
    owner: Uuid,
    cluster: String,
    request: String,
    index: Option<u32>,
    since: Millis,
    /// When the platform was last asked to remove it. 0 if never.
    asked: Millis,
}

impl Tombstones {
    pub(crate) fn add(
        &self,
        uid: Uuid,
        name: &str,
        next_sequence: u64,
        deleted: Millis,
        used: UsedList,
    ) {
        self.clusters.lock().insert(
            uid,
            Tombstone {
                name: name.to_owned(),
                next_sequence,
                deleted,
                used,
            },
        );
    }

    pub(crate) fn load(&self, uid: Uuid, stored: &drover_store::Tombstone) {
        let used = UsedList::decode(stored.platforms.clone()).unwrap_or_default();
        let deleted = Millis::try_from(stored.delete_time_ms).unwrap_or(0);
        self.add(uid, &stored.name, stored.next_sequence, deleted, used);
    }

    /// The most recently deleted cluster with this name.
    pub(crate) fn find(&self, name: &str) -> Option<Uuid> {
        let clusters = self.clusters.lock();
        clusters
            .iter()
            .filter(|(_, t)| t.name == name)
            .max_by_key(|(_, t)| t.deleted)
            .map(|(uid, _)| *uid)
    }

    /// The highest generation of the deleted clusters with this name.
    pub(crate) fn generation(&self, name: &str) -> u64 {
        let clusters = self.clusters.lock();
        clusters
            .values()
            .filter(|t| t.name == name)
            .map(|t| t.used.generation)
            .max()
            .unwrap_or(0)
    }

    /// The name of a deleted cluster.
    pub(crate) fn name(&self, uid: Uuid) -> Option<String> {
        self.clusters.lock().get(&uid).map(|t| t.name.clone())
    }

    /// Whether a deleted cluster issued a request with this sequence.
    pub(crate) fn gave_out(&self, uid: Uuid, sequence: u64) -> bool {
        let clusters = self.clusters.lock();
        clusters.get(&uid).is_some_and(|t| t.gave_out(sequence))
    }

    /// When a cluster was deleted.
    pub(crate) fn deleted(&self, uid: Uuid) -> Option<Millis> {
        self.clusters.lock().get(&uid).map(|t| t.deleted)
    }

    /// The name of a deleted cluster of which a platform may still show nodes.
    pub(crate) fn user(&self, platform: &str) -> Option<String> {
        let late = self
            .late
            .lock()
            .iter()
            .find(|((p, _), _)| **p == *platform)
            .map(|(_, late)| late.owner);
        self.clusters.lock().get(&late?).map(|t| t.name.clone())
    }

    /// Called when a platform is unregistered.
    pub(crate) fn forget(&self, platform: &str) {
        self.late.lock().retain(|(name, _), _| **name != *platform);
    }

    /// Returns whether a node belongs to a deleted cluster; if so, it is remembered for removal.
    pub(crate) fn show(
        &self,
        owner: Uuid,
        platform: &Platform,
        node: &wire::Node,
        now: Millis,
    ) -> bool {
        let clusters = self.clusters.lock();
        let Some(tombstone) = clusters.get(&owner) else {
            return false;
        };
        let id = &node.node_id;
        if tombstone.owns(&platform.name, id, node.sequence)
            && drover_convert::node::phase(node.phase) != Phase::Terminated
            && let Some(slot) = &node.slot
        {
            self.remember(
                (platform.name.clone(), id.clone()),
                Late {
                    owner,
                    cluster: node.cluster_id.clone(),
                    request: slot.request_id.clone(),
                    index: slot.index,
                    since: now,
                    asked: 0,
                },
            );
        }
        true
    }

    /// Takes over the nodes that showed up while the deletion was being recorded: they are not reported again, and are
    /// late from now on.
    pub(crate) fn inherit(&self, state: &State, now: Millis) {
        let clusters = self.clusters.lock();
        let Some(tombstone) = clusters.get(&state.uid) else {
            return;
        };
        for ((platform, node_id), orphan) in &state.orphans {
            if tombstone.owns(platform, node_id, orphan.sequence) {
                self.remember(
                    (platform.clone(), node_id.to_string()),
                    Late {
                        owner: state.uid,
                        cluster: tombstone.name.clone(),
                        request: orphan.request.to_string(),
                        index: Some(orphan.index),
                        since: now,
                        asked: 0,
                    },
                );
            }
        }
    }

    fn remember(&self, key: (Sym, String), new: Late) {
        let mut late = self.late.lock();
        let (since, asked) = late
            .get(&key)
            .map_or((new.since, new.asked), |late| (late.since, late.asked));
        late.insert(
            key,
            Late {
                since,
                asked,
                ..new
            },
        );
    }

    pub(crate) fn gone(&self, platform: &Sym, node_id: &str) {
        let mut late = self.late.lock();
        if !late.is_empty() {
            late.remove(&(platform.clone(), node_id.to_owned()));
        }
    }

    /// The late nodes to remove now, by platform. Least recently requested first, so that removals that make no
    /// progress do not starve others.
    fn due(&self, now: Millis) -> BTreeMap<Sym, Vec<(String, Late)>> {
        let mut due: BTreeMap<Sym, Vec<(String, Late)>> = BTreeMap::new();
        for ((platform, node_id), late) in &*self.late.lock() {
            if late.since + GRACE <= now {
                let own = due.entry(platform.clone()).or_default();
                own.push((node_id.clone(), late.clone()));
            }
        }
        for own in due.values_mut() {
            own.sort_by_key(|(_, late)| (late.asked, late.since));
            own.truncate(MOST_AT_A_TIME);
        }
        due
    }

    fn asked(&self, platform: &Sym, node_id: &str, now: Millis) {
        let mut late = self.late.lock();
        if let Some(late) = late.get_mut(&(platform.clone(), node_id.to_owned())) {
            late.asked = now;
        }
    }
}

/// Expires tombstones, and periodically plans every cluster.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut forget = tokio::time::interval(FORGET_INTERVAL);
    let mut look = tokio::time::interval(INTERVAL);
    let mut wall = Wall::new(&shared);
    loop {
        tokio::select! {
            () = shared.stop.cancelled() => return,
            _ = look.tick() => {
                wall.check(&shared);
                visit_some(&shared);
            }
            _ = forget.tick() => tidy(&shared).await,
        }
    }
}

/// Plans a share of all clusters, so that each is planned once per safety sweep.
fn visit_some(shared: &Shared) {
    let all = shared.clusters.all();
    let rounds = (SAFETY_SWEEP.as_secs() / INTERVAL.as_secs()).max(1);
    let share = all.len().div_ceil(usize::try_from(rounds).unwrap_or(1));
    let turn = usize::try_from(shared.now() / drover_core::millis(INTERVAL) % rounds).unwrap_or(0);
    for cluster in all.iter().skip(turn * share).take(share) {
        shared.queue.push(cluster.uid(), Urgency::Bulk);
    }
}

/// Removes late nodes until the orchestrator stops. In a task of its own with one round per platform, so that a slow
/// platform does not delay anything else.
pub(crate) async fn remove_late(shared: Arc<Shared>) {
    let mut look = tokio::time::interval(INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rounds = FuturesUnordered::new();
    let mut busy: BTreeSet<Sym> = BTreeSet::new();
    loop {
        tokio::select! {
            () = shared.stop.cancelled() => return,
            Some(platform) = rounds.next() => {
                busy.remove(&platform);
            }
            _ = look.tick() => {
                if shared.store.restored_hold() {
                    continue;
                }
                for (platform, late) in shared.tombstones.due(shared.now()) {
                    if busy.insert(platform.clone()) {
                        rounds.push(round(&shared, platform, late));
                    }
                }
            }
        }
    }
}

/// Removes late nodes of one platform. Returns the platform.
async fn round(shared: &Arc<Shared>, platform: Sym, late: Vec<(String, Late)>) -> Sym {
    let late = late.into_iter();
    let removals = late.map(|(node_id, late)| remove(shared, platform.clone(), node_id, late));
    stream::iter(removals)
        .buffer_unordered(AT_ONCE)
        .collect::<()>()
        .await;
    platform
}

/// Removes one late node, subject to the platform's call limits and circuit breaker like every call.
async fn remove(shared: &Arc<Shared>, platform: Sym, node_id: String, late: Late) {
    let Some(registered) = shared.platform(&platform) else {
        return;
    };
    let health = registered.platform.health(shared.now());
    if !health.visible || health.suspended {
        return;
    }
    let uid = registered.platform.uid();
    let envelope = Envelope {
        executor: &shared.executor,
        kind: Kind::Deprovision,
        platform: &platform,
        uid: &uid,
        owner: late.owner,
        urgency: Urgency::Bulk,
    };
    let answer = envelope
        .send(async |open| {
            // The tombstone is the durable intent; the platform's compare-and-delete guards against removing another
            // node.
            let message = wire::DeprovisionRequest {
                expected_platform_uid: uid.to_string(),
                expected_instance_id: open.instance.clone(),
                fence: Some(open.fence.clone()),
                request_id: Uuid::now_v7().to_string(),
                owner: late.owner.to_string(),
                cluster_id: late.cluster.clone(),
                node_request_id: late.request,
                index: late.index,
                node_id: node_id.clone(),
                reason: "Orphan".to_owned(),
                // The node may have taken over retained storage, and the storage policy of its cluster is no longer
                // known.
                retain_storage: open.registered.platform.has(wire::Capability::RetainStorage),
                ..wire::DeprovisionRequest::default()
            };
            tracing::info!(%platform, %node_id, cluster = %late.cluster, "removing a late node of a deleted cluster");
            shared.tombstones.asked(&platform, &node_id, shared.now());
            open.call(async |client| client.deprovision(message, TIMEOUT).await)
                .await
        })
        .await;
    match answer {
        // If the node is shown again after all, it is remembered as late again.
        Ok(answer) if answer.state() == wire::DeprovisionState::Gone => {
            shared.tombstones.gone(&platform, &node_id);
        }
        Ok(_) => {}
        Err(error) => {
            tracing::debug!(%platform, %node_id, %error, "a late node could not be removed");
            // Not if the platform was unregistered, so that nobody was asked.
            if error.class() == Class::Cannot && shared.platform(&platform).is_some() {
                shared.tombstones.gone(&platform, &node_id);
            }
        }
    }
}

async fn tidy(shared: &Arc<Shared>) {
    let mut late = shared.leaks.owners();
    let nodes: Vec<Uuid> = shared
        .tombstones
        .late
        .lock()
        .values()
        .map(|late| late.owner)
        .collect();
    late.extend(nodes);
    let settled = |uid: Uuid, _: &drover_store::Tombstone| !late.contains(&uid);
    match shared
        .store
        .sweep_tombstones(shared.shards.all(), KEPT, settled)
        .await
    {
        Ok(0) => {}
        Ok(_) => {
            let oldest = shared.now().saturating_sub(drover_core::millis(KEPT));
            shared
                .tombstones
                .clusters
                .lock()
                .retain(|uid, t| t.deleted > oldest || late.contains(uid));
        }
        Err(error) => tracing::warn!(%error, "deleted clusters could not be forgotten"),
    }
}

/// Detects jumps between wall clock and monotonic clock: the machine was suspended, and earlier observations no longer
/// count.
struct Wall {
    behind: i128,
}

/// A larger gap is a suspend, not a clock correction.
const GAP: i128 = 30_000;

impl Wall {
    fn new(shared: &Shared) -> Self {
        Self {
            behind: Self::difference(shared.hooks.wall(), shared.now()),
        }
    }

    fn difference(wall: Millis, monotonic: Millis) -> i128 {
        i128::from(wall) - i128::from(monotonic)
    }

    /// By how many milliseconds the clocks have diverged since the last jump.
    fn jumped(&mut self, wall: Millis, monotonic: Millis) -> Option<i128> {
        let now = Self::difference(wall, monotonic);
        let gap = now - self.behind;
        if gap.abs() <= GAP {
            return None;
        }
        self.behind = now;
        Some(gap)
    }

    fn check(&mut self, shared: &Shared) {
        if let Some(gap) = self.jumped(shared.hooks.wall(), shared.now()) {
            tracing::warn!(gap_ms = %gap, "the clock jumped; platforms are looked at anew");
            for registered in shared.platforms.read().values() {
                registered.platform.doubt();
                registered.retry();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_corrected_is_none_that_jumped_and_each_jump_counts_once() {
        let mut wall = Wall {
            behind: Wall::difference(1_000_000, 0),
        };
        assert_eq!(wall.jumped(1_005_000, 5_000), None);
        assert_eq!(
            wall.jumped(1_039_000, 10_000),
            None,
            "29 s are a correction"
        );
        assert_eq!(wall.jumped(1_046_000, 15_000), Some(31_000), "a suspend");
        assert_eq!(wall.jumped(1_051_000, 20_000), None, "once");
        assert_eq!(wall.jumped(1_020_000, 25_000), Some(-36_000), "set back");
        assert_eq!(wall.jumped(4_620_000, 30_000), Some(3_595_000), "and on");
    }
}
