//! One cluster: desired, recorded and observed state, and the calls in flight.

use std::sync::Arc;

use bytes::Bytes;
use drover_core::{
    Error, Millis, Result, Sym,
    node::InFlight,
    spec::{Group, MAX_GROUPS},
};
use drover_planner::{BackOffKind, Leaving, Skipped, SmallMap, State};
use drover_store::{ClusterRow, Desired, DigestKey, Head, Versioned};
use uuid::Uuid;

use crate::{
    codec::{self, Interner},
    counts::NodeCounts,
    desired::{AcceptedLosses, Repairs, Restarts, adopt_order},
    order,
    resolved::Resolved,
    resources,
    suggestions::Defaults,
};

/// A cluster: what is desired of it, what is recorded and observed, and what is in flight. Others read it; it changes only
/// by what it is told.
#[derive(Clone, Debug)]
pub struct ClusterState {
    pub(crate) desired: Versioned<Desired>,
    pub(crate) spec: Arc<Resolved>,
    /// Without its encoded state, which every step encodes from `state`.
    pub(crate) head: Versioned<Head>,
    pub(crate) state: State,
    /// Open requests, encoded as they are sent.
    pub(crate) bodies: SmallMap<Uuid, Bytes>,
    /// First slot of each request.
    pub(crate) first_slots: SmallMap<Uuid, u64>,
    /// Defaults from templates.
    pub(crate) defaults: Option<Defaults>,
    /// Removed groups that still have nodes.
    pub(crate) leaving: Arc<[Leaving]>,
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

impl ClusterState {
    pub(crate) fn load(
        row: ClusterRow,
        first: u64,
        interner: &Interner,
        digests: &DigestKey,
    ) -> Result<Self> {
        let ClusterRow {
            uid,
            mut desired,
            head,
            nodes,
            requests,
            resources: rows,
            ..
        } = row;
        // A slice would keep all that was read together with it.
        desired.value.spec = Bytes::copy_from_slice(&desired.value.spec);
        let mut head = head.unwrap_or_else(|| Versioned {
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
        let encoded = std::mem::take(&mut head.value.state);
        codec::decode_head(&encoded, &mut state, interner)?;
        resources::codec::load(rows, &mut state, interner)?;
        state.nodes.reserve_exact(nodes.len());
        for node in nodes {
            let before = state.nodes.last();
            let mut node = codec::decode_node(node.slot, &node.value, interner, before)?;
            node.in_flight = InFlight::unknown(&node.record);
            state.nodes.push(node);
        }
        state.nodes.sort_by_key(|node| node.slot);
        state.doubt_soles();
        let mut bodies = SmallMap::new();
        for (_, bytes) in requests {
            let (request, body) = codec::decode_request(&bytes, interner)?;
            bodies.insert(request.id, body);
            state.requests.insert(request.id, request);
        }
        let digests = digests.of_cluster(uid);
        let spec =
            Arc::new(Resolved::from_stored(&desired.value.spec, &digests)?.interned(interner));
        Ok(Self::of(desired, spec, head, state, bodies))
    }

    fn of(
        desired: Versioned<Desired>,
        spec: Arc<Resolved>,
        head: Versioned<Head>,
        state: State,
        bodies: SmallMap<Uuid, Bytes>,
    ) -> Self {
        let mut inner = Self {
            first_slots: first_slots(&state),
            desired,
            spec,
            head,
            state,
            bodies,
            defaults: None,
            leaving: Arc::default(),
            unstored: None,
            calmed: Vec::new(),
            version: 1,
            finished: false,
        };
        inner.follow_desired();
        inner
    }

    pub(crate) fn create(uid: Uuid, desired: Versioned<Desired>, spec: Arc<Resolved>) -> Self {
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
        Self::of(desired, spec, head, state, SmallMap::new())
    }
}

/// Keeps what is not in the store: what platforms show, and what is in flight. Without it, a call in flight would be mistaken
/// for one that has ended.
fn keep_unrecorded(old: State, new: &mut State) {
    new.orphans = old.orphans;
    new.resource_orphans = old.resource_orphans;
    new.foreign = old.foreign;
    new.confirms = old.confirms;
    for (key, before) in old.resources {
        if let Some(record) = new.resources.get_mut(&key) {
            record.continue_from(before);
        }
    }
    for (id, before) in old.requests {
        if let Some(request) = new.requests.get_mut(&id) {
            request.continue_from(before);
        }
    }
    for before in old.nodes {
        if let Some(node) = new.node_mut(before.slot) {
            node.continue_from(before);
        }
    }
}

fn empty_head() -> Head {
    let mut head = Head::default();
    head.next_slot = 1;
    head.next_sequence = 1;
    head
}

fn first_slots(state: &State) -> SmallMap<Uuid, u64> {
    let mut first = SmallMap::new();
    for node in &state.nodes {
        let slot = node.slot.saturating_sub(u64::from(node.index));
        first.or_insert(node.request, slot);
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
        self.leaving = order::leaving(desired).unwrap_or_default();
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
        // If unreadable, nothing is given up.
        let accepted = AcceptedLosses::of(desired).unwrap_or_default();
        self.state.accepted_losses = accepted.slots.into_iter().collect();
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

    /// Groups of the current spec; none if the cluster is being deleted.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        if self.state.deleting {
            &[]
        } else {
            &self.spec.groups
        }
    }
}

/// Reading.
impl ClusterState {
    /// The uid of the cluster.
    #[must_use]
    pub fn uid(&self) -> Uuid {
        self.state.uid
    }

    /// What users desire, as it is stored.
    #[must_use]
    pub fn desired(&self) -> &Versioned<Desired> {
        &self.desired
    }

    /// The desired spec, with all inherited settings resolved.
    #[must_use]
    pub fn spec(&self) -> &Arc<Resolved> {
        &self.spec
    }

    /// The head of the record, as it is stored, but without its encoded state.
    #[must_use]
    pub fn head(&self) -> &Versioned<Head> {
        &self.head
    }

    /// What is recorded and observed, in the form in which it is planned.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// An open request, encoded as it is stored.
    #[must_use]
    pub fn body(&self, request: &Uuid) -> Option<&Bytes> {
        self.bodies.get(request)
    }

    /// All open requests, encoded as they are stored.
    pub fn bodies(&self) -> impl Iterator<Item = &Bytes> {
        self.bodies.values()
    }

    /// Removed groups that still have nodes.
    #[must_use]
    pub fn leaving(&self) -> &Arc<[Leaving]> {
        &self.leaving
    }

    /// Why the plan cannot be stored, and is therefore not carried out; since when. `None` as long as no failure is known.
    #[must_use]
    pub fn unstored(&self) -> Option<&(Error, Millis)> {
        self.unstored.as_ref()
    }

    /// Number that grows with every change that is visible to readers.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether the record was deleted.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Whether it has nodes or resources on a platform, or may have.
    #[must_use]
    pub fn uses(&self, platform: &str) -> bool {
        let used = self.state.used.iter();
        used.map(|(name, _)| name).any(|name| **name == *platform) || self.names(platform)
    }

    /// Whether its spec names a platform.
    #[must_use]
    pub fn names(&self, platform: &str) -> bool {
        let mut choices = self.spec.groups.iter().flat_map(|group| &group.choices);
        let infrastructure = self.spec.infrastructure.iter();
        let addons = self.spec.addons.iter().map(|addon| &addon.wanted);
        choices.any(|choice| *choice.platform == *platform)
            || infrastructure
                .chain(addons)
                .any(|one| *one.platform == *platform)
    }

    /// Whether something of it is recorded or shown on a platform.
    #[must_use]
    pub fn is_on(&self, platform: &str) -> bool {
        let state = &self.state;
        let nodes = state.nodes.iter().map(|node| &node.platform);
        let requests = state.requests.values().map(|request| &request.platform);
        let resources = state.resources.keys().map(|key| &key.platform);
        let resources = resources.chain(state.resource_orphans.keys().map(|key| &key.platform));
        let orphans = state.orphans.keys().map(|(name, _)| name);
        let mut all = nodes.chain(requests).chain(resources).chain(orphans);
        all.any(|name| **name == *platform)
    }
}

/// What a stored cluster is replaced by, after a step of which the outcome is unknown.
#[derive(Debug)]
pub struct Fresh(ClusterState);

impl Fresh {
    /// Decodes what is stored.
    ///
    /// # Errors
    /// `Internal` if a row is damaged, or of a newer version.
    pub fn load(
        row: ClusterRow,
        first: u64,
        interner: &Interner,
        digests: &DigestKey,
    ) -> Result<Self> {
        ClusterState::load(row, first, interner, digests).map(Self)
    }
}

/// Changes, other than those that calls, observations, probes and steps make.
impl ClusterState {
    pub(crate) fn count_from(&mut self, first: u64) {
        self.state.count_from(first);
    }

    /// Notes a change that is visible to readers.
    pub fn touch(&mut self) {
        self.version += 1;
    }

    /// Follows a desired state that has been stored, unless a later one is known. `spec` if it has changed.
    pub fn desire(&mut self, desired: Versioned<Desired>, spec: Option<Arc<Resolved>>) {
        if desired.revision < self.desired.revision {
            return;
        }
        self.desired = desired;
        if let Some(spec) = spec {
            self.spec = spec;
        }
        self.follow_desired();
    }

    /// Replaces the record by what is stored; what platforms show and what is in flight stays, and what was stored while that
    /// was read. Returns by how much the numbers of nodes change.
    pub fn replace(&mut self, Fresh(fresh): Fresh) -> NodeCounts {
        self.desire(fresh.desired, Some(fresh.spec));
        if fresh.head.revision < self.head.revision {
            return NodeCounts::default();
        }
        let old = std::mem::replace(&mut self.state, fresh.state);
        self.head = fresh.head;
        self.bodies = fresh.bodies;
        self.first_slots = fresh.first_slots;
        let before = NodeCounts::of(&old.nodes);
        keep_unrecorded(old, &mut self.state);
        self.follow_desired();
        before.until(NodeCounts::of(&self.state.nodes))
    }

    /// The record was deleted. Returns by how much the numbers of nodes change.
    pub fn finish(&mut self) -> NodeCounts {
        self.finished = true;
        NodeCounts::of(&self.state.nodes).until(NodeCounts::default())
    }

    /// Plans can be stored, again if they could not before.
    pub fn stored(&mut self) {
        let failed = self.unstored.take().is_some();
        self.version += u64::from(failed);
    }

    /// A plan could not be stored. This itself is kept in memory only.
    pub fn not_stored(&mut self, error: Error, now: Millis) {
        let since = self.unstored.take().map(|(_, since)| since);
        self.unstored = Some((error, since.unwrap_or(now)));
        self.version += 1;
    }

    /// Platforms of nodes whose failed probes were forgotten since the last call, one entry per node.
    pub fn take_calmed(&mut self) -> Vec<Sym> {
        std::mem::take(&mut self.calmed)
    }

    /// A platform was unregistered: nodes of others that only it showed are forgotten. Returns whether there were any.
    pub fn forget_foreign(&mut self, platform: &str) -> bool {
        let before = self.state.foreign.len();
        (self.state.foreign).retain(|(name, _), _| **name != *platform);
        self.state.foreign.len() < before
    }

    /// Makes calls in slow backoff due immediately; with `all`, ends every backoff and forgets its cause.
    pub fn retry_now(&mut self, all: bool, now: Millis) {
        if all {
            self.state.backoffs.clear();
            for node in &mut self.state.nodes {
                node.in_flight.call.next = 0;
            }
        }
        for back_off in self.state.backoffs.values_mut() {
            if back_off.kind == BackOffKind::NoCapacity
                || back_off.next.saturating_sub(back_off.last) >= drover_planner::SLOW_CADENCE
            {
                back_off.next = now;
            }
        }
    }
}

#[cfg(test)]
mod tests;
