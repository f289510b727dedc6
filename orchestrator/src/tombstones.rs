//! Tombstones of deleted clusters: nodes that show up late are still ours to remove.

use std::collections::{BTreeMap, HashMap};

use drover_cluster::codec::UsedList;
use drover_core::{Millis, Phase, Sym};
use drover_planner::{Skipped, State};
use drover_platforms::Platform;
use drover_proto::platform::v1 as wire;
use parking_lot::Mutex;
use prost::Message;
use uuid::Uuid;

mod late;

pub(crate) use late::LateNodes;

/// Time for which a late node of a deleted cluster must be visible before it is removed.
const GRACE: Millis = 120_000;
/// Maximum removals on one platform before the due ones are determined again.
const MOST_AT_A_TIME: usize = 64;

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

    /// Deleted clusters of which a platform still shows nodes.
    pub(crate) fn late_owners(&self) -> Vec<Uuid> {
        self.late.lock().values().map(|late| late.owner).collect()
    }

    /// Forgets what was deleted until then, except some clusters.
    pub(crate) fn expire(&self, oldest: Millis, except: &[Uuid]) {
        let mut clusters = self.clusters.lock();
        clusters.retain(|uid, t| t.deleted > oldest || except.contains(uid));
    }

    fn asked(&self, platform: &Sym, node_id: &str, now: Millis) {
        let mut late = self.late.lock();
        if let Some(late) = late.get_mut(&(platform.clone(), node_id.to_owned())) {
            late.asked = now;
        }
    }
}
