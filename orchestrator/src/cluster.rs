//! One cluster in memory: desired, recorded and observed state, behind one lock.

mod absence;
mod calls;
mod desired;
mod observation;
mod probed;
mod resolved;
mod suggestions;

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use drover_core::{
    Error, Millis, Result, Sym,
    spec::{Group, MAX_GROUPS},
};
use drover_planner::{Leaving, Skipped, State};
use drover_store::{ClusterRow, Desired, DigestKey, Head, Versioned};
use parking_lot::Mutex;
use uuid::Uuid;

pub(crate) use absence::{CompleteRead, Removed};
pub(crate) use calls::{CallEnd, RoleChangeFailure};
use desired::adopt_order;
pub(crate) use desired::{Repairs, Restart, Restarts, order_adoption};
pub(crate) use observation::{Effect, Observation, Observed, Source};
pub(crate) use probed::ProbeOutcome;
pub(crate) use resolved::{Resolved, stored_spec};
use suggestions::Defaults;
pub(crate) use suggestions::Suggestions;

use crate::{
    codec::{self, Interner},
    secrets::FormerGroup,
    waiter::ReconcileWaiter,
};

/// A cluster in memory. The lock is never held across an await.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) uid: Uuid,
    pub(crate) name: Arc<str>,
    pub(crate) inner: Mutex<ClusterState>,
    /// Held while the desired state is changed, so that concurrent edits do not keep conflicting.
    pub(crate) change: tokio::sync::Mutex<()>,
    /// Held by a caller that requested a pass and waits for its end.
    pub(crate) reconciling: tokio::sync::Mutex<()>,
    /// Groups of the retained former specs, cached for the desired generation that they precede.
    pub(crate) former: Mutex<Option<(u64, Arc<Vec<FormerGroup>>)>>,
}

/// Mutable state of a cluster.
#[derive(Debug)]
pub(crate) struct ClusterState {
    pub(crate) desired: Versioned<Desired>,
    pub(crate) spec: Arc<Resolved>,
    pub(crate) head: Versioned<Head>,
    pub(crate) state: State,
    /// Open requests, encoded as they are sent.
    pub(crate) bodies: HashMap<Uuid, Bytes>,
    /// First slot of each request.
    pub(crate) first_slots: HashMap<Uuid, u64>,
    /// Defaults from templates.
    pub(crate) defaults: Option<Defaults>,
    /// Removed groups that still have nodes.
    pub(crate) leaving: Arc<Vec<Leaving>>,
    /// The caller that requested a pass and waits for its result.
    pub(crate) waiter: Option<Arc<ReconcileWaiter>>,
    /// Why the plan cannot be stored, and is therefore not carried out; since when. `None` as long as no failure is
    /// known.
    pub(crate) unstored: Option<(Error, Millis)>,
    /// Platforms of nodes whose failed probes were forgotten, one entry per node, for the platforms' counts.
    pub(crate) calmed: Vec<Sym>,
    /// Incremented by every change that is visible to readers.
    pub(crate) version: u64,
    /// The record was deleted.
    pub(crate) finished: bool,
}

impl Cluster {
    /// Loads the state from the store. Requests are numbered from at least `first`, above those that a lost store may
    /// have issued.
    pub(crate) fn load(
        row: ClusterRow,
        first: u64,
        interner: &Interner,
        digests: &DigestKey,
    ) -> Result<Self> {
        let ClusterRow {
            uid,
            desired,
            head,
            nodes,
            requests,
            resources,
            ..
        } = row;
        let head = head.unwrap_or_else(|| Versioned {
            value: empty_head(),
            revision: 0,
        });
        let mut state = State {
            uid,
            ..State::default()
        };
        state.next_slot = head.value.next_slot;
        state.next_sequence = head.value.next_sequence;
        state.skipped = Skipped::of(&head.value.skipped);
        state.count_from(first);
        state.observed_generation = head.value.observed_generation;
        codec::decode_head(&head.value.state, &mut state, interner)?;
        crate::infrastructure::codec::load(resources, &mut state, interner)?;
        state.nodes.reserve_exact(nodes.len());
        for node in nodes {
            let before = state.nodes.last();
            let mut node = codec::decode_node(node.slot, &node.value, interner, before)?;
            node.resume_turn();
            state.nodes.push(node);
        }
        state.nodes.sort_by_key(|node| node.slot);
        let mut bodies = HashMap::new();
        for (_, bytes) in requests {
            let (request, body) = codec::decode_request(&bytes, interner)?;
            bodies.insert(request.id, body);
            state.requests.insert(request.id, request);
        }
        let digests = digests.of_cluster(uid);
        let spec =
            Arc::new(Resolved::from_stored(&desired.value.spec, &digests)?.interned(interner));
        let name: Arc<str> = desired.value.name.as_str().into();
        let mut inner = ClusterState {
            first_slots: first_slots(&state),
            desired,
            spec,
            head,
            state,
            bodies,
            defaults: None,
            leaving: Arc::default(),
            waiter: None,
            unstored: None,
            calmed: Vec::new(),
            version: 1,
            finished: false,
        };
        inner.follow_desired();
        Ok(Self {
            uid,
            name,
            inner: Mutex::new(inner),
            change: tokio::sync::Mutex::default(),
            reconciling: tokio::sync::Mutex::default(),
            former: Mutex::default(),
        })
    }

    /// Creates the state of a new cluster.
    pub(crate) fn create(uid: Uuid, desired: Versioned<Desired>, spec: Arc<Resolved>) -> Self {
        let name: Arc<str> = desired.value.name.as_str().into();
        let head = Versioned {
            value: empty_head(),
            revision: 0,
        };
        let state = State {
            uid,
            next_slot: 1,
            next_sequence: 1,
            ..State::default()
        };
        let mut inner = ClusterState {
            desired,
            spec,
            head,
            state,
            bodies: HashMap::new(),
            first_slots: HashMap::new(),
            defaults: None,
            leaving: Arc::default(),
            waiter: None,
            unstored: None,
            calmed: Vec::new(),
            version: 1,
            finished: false,
        };
        inner.follow_desired();
        Self {
            uid,
            name,
            inner: Mutex::new(inner),
            change: tokio::sync::Mutex::default(),
            reconciling: tokio::sync::Mutex::default(),
            former: Mutex::default(),
        }
    }
}

fn empty_head() -> Head {
    let mut head = Head::default();
    head.next_slot = 1;
    head.next_sequence = 1;
    head
}

fn first_slots(state: &State) -> HashMap<Uuid, u64> {
    let mut first = HashMap::new();
    for node in &state.nodes {
        first
            .entry(node.request)
            .or_insert(node.slot.saturating_sub(u64::from(node.index)));
    }
    first
}

impl ClusterState {
    /// Applies the user's desired state to the record.
    pub(crate) fn follow_desired(&mut self) {
        self.follow_storage();
        let desired = &self.desired.value;
        self.state.generation = desired.generation;
        self.state.deleting = desired.delete_time_ms.is_some();
        self.state.paused = desired.paused.is_some();
        // If unreadable, groups are removed unordered.
        self.leaving = Arc::new(crate::order::leaving(desired).unwrap_or_default());
        self.state.adopt = adopt_order(desired);
        let uid = self.state.uid;
        // If unreadable, nothing is restarted.
        let restarts = Restarts::of(desired).unwrap_or_default();
        let repairs = Repairs::of(desired).unwrap_or_default();
        self.state.repairs.clear();
        if !repairs.nodes.is_empty() {
            let nodes = self.state.nodes.iter();
            let repaired = nodes.filter(|node| repairs.nodes.contains(&node.id(uid)));
            self.state.repairs = repaired.map(|node| node.slot).collect();
        }
        self.state.scaled_away.clear();
        if !desired.scaled_away.is_empty() {
            let nodes = self.state.nodes.iter();
            let named = nodes.filter(|node| desired.scaled_away.contains(&node.id(uid)));
            self.state.scaled_away = named.map(|node| node.slot).collect();
        }
        for node in &mut self.state.nodes {
            node.marked = restarts.has(node)
                || !desired.marks.is_empty() && desired.marks.contains(&node.id(uid));
        }
    }

    /// Remembers the storage policy of groups for the time after their removal. Durable with the next step, which is
    /// before the first node is requested.
    fn follow_storage(&mut self) {
        let policies = &mut self.state.storage;
        for group in &self.spec.groups {
            if let Some(storage) = &group.storage {
                policies.insert(group.path.clone(), storage.policy);
            }
        }
        if policies.len() > 2 * MAX_GROUPS {
            let (groups, nodes) = (&self.spec.groups, &self.state.nodes);
            policies.retain(|path, _| {
                groups.iter().any(|group| group.path == *path)
                    || nodes.iter().any(|node| node.group == *path)
            });
        }
    }

    /// The position of the slot that an observed node claims.
    pub(crate) fn slot_at(&self, request: Uuid, index: u32) -> Option<usize> {
        let first = self.first_slots.get(&request)?;
        let at = self.state.at(first + u64::from(index))?;
        let node = &self.state.nodes[at];
        // An adopted orphan has a slot number of its own.
        (node.request == request && node.index == index).then_some(at)
    }

    /// Groups of the current spec.
    pub(crate) fn groups(&self) -> &[Group] {
        if self.state.deleting {
            &[]
        } else {
            &self.spec.groups
        }
    }
}
