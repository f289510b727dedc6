//! Controls of the simulated backend for tests.

use std::{collections::BTreeMap, fmt, sync::Arc};

use drover_core::{Error, Result};
use drover_proto::platform::v1::{AddonKind, AddonState, KeptStorage, Node, Resource};

use super::{
    AddonLedger, Simulated,
    faults::{Death, Fault, Operation},
    world::number,
};
use drover_platform::{addons::AddonWanted, identity::Identity, inventory::properties::HostLabels};

/// How often nodes were created for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Owner of the slot.
    pub owner: String,
    /// Request id of the slot.
    pub request_id: String,
    /// Index of the slot.
    pub index: u32,
    /// Number of nodes ever created for it. More than 1 violates idempotency.
    pub created: u32,
}

/// Controls of a simulated backend. Cheap to clone.
#[derive(Clone)]
pub struct SimulatedHandle(Arc<Simulated>);

impl fmt::Debug for SimulatedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimulatedHandle")
            .field(&*self.0.uid.lock())
            .finish()
    }
}

impl SimulatedHandle {
    pub(super) fn new(simulated: Arc<Simulated>) -> Self {
        Self(simulated)
    }

    fn wake(&self) {
        self.0.changed.send_replace(());
    }

    /// Kills a node. Returns whether it existed and was alive.
    pub fn kill(&self, node_id: &str, how: Death) -> bool {
        let mut world = self.0.world.lock();
        let Some(number) = number(node_id).filter(|_| world.by_node_id(node_id).is_some()) else {
            return false;
        };
        world.die(number, how);
        true
    }

    /// Sets the readiness of a running node. Returns whether it is running.
    pub fn set_ready(&self, node_id: &str, ready: bool) -> bool {
        number(node_id).is_some_and(|number| self.0.world.lock().set_ready(number, ready))
    }

    /// Sets the maximum number of nodes. `None` for no limit. Existing nodes stay.
    pub fn set_capacity(&self, capacity: Option<u32>) {
        self.0.world.lock().capacity = capacity;
    }

    /// The user data of a node, rendered if requested. Secret.
    #[must_use]
    pub fn user_data(&self, node_id: &str) -> Option<Vec<u8>> {
        let number = number(node_id)?;
        self.0.world.lock().user_data.get(&number).cloned()
    }

    /// Marks a host as claimed by someone else, or as free if `by` is empty. Returns whether the host exists.
    pub fn claim_host(&self, id: &str, by: &str) -> bool {
        let mut world = self.0.world.lock();
        let host = world.hosts.iter_mut().find(|host| host.id == id);
        host.map(|host| by.clone_into(&mut host.claimed_by))
            .is_some()
    }

    /// Sets the maximum number of nodes in a failure domain. Returns whether the domain exists.
    pub fn set_domain_capacity(&self, domain: &str, capacity: Option<u32>) -> bool {
        let mut world = self.0.world.lock();
        let room = world.domains.iter_mut().find(|room| room.name == domain);
        room.map(|room| room.capacity = capacity).is_some()
    }

    /// Sets the maximum number of nodes of a class. Returns whether the class exists.
    pub fn set_class_capacity(&self, class: &str, capacity: Option<u32>) -> bool {
        let mut world = self.0.world.lock();
        world
            .classes
            .get_mut(class)
            .map(|room| room.capacity = capacity)
            .is_some()
    }

    /// Changes the uid of the backend, which keeps its nodes.
    pub fn set_uid(&self, uid: &str) {
        uid.clone_into(&mut self.0.uid.lock());
    }

    /// Sets the fault of the next call of this kind that has none yet. These take precedence over random faults.
    pub fn fail_next(&self, operation: Operation, fault: Fault) {
        self.0.world.lock().faults.add(operation, fault);
    }

    /// Makes the backend unreachable, or reachable again. Its nodes keep running; their changes become visible
    /// afterwards.
    pub fn pause_backend(&self, paused: bool) {
        let mut world = self.0.world.lock();
        world.paused = paused;
        if paused {
            world.freeze();
        } else {
            world.thaw();
        }
    }

    /// If set, every command in a node exits with 1, as if the nodes were behind a network partition while they keep
    /// running.
    pub fn deafen(&self, deaf: bool) {
        self.0.world.lock().deaf = deaf;
    }

    /// If set, lists and watches keep showing the current state until they are thawed: stale data that looks fresh.
    pub fn freeze_visibility(&self, frozen: bool) {
        let mut world = self.0.world.lock();
        if frozen { world.freeze() } else { world.thaw() }
    }

    /// How often nodes were created for each slot, by request id and index.
    #[must_use]
    pub fn ledger(&self) -> BTreeMap<(String, u32), LedgerEntry> {
        self.0.world.lock().ledger.clone()
    }

    /// Slots for which more than one node was ever created.
    #[must_use]
    pub fn doubles(&self) -> Vec<LedgerEntry> {
        self.0
            .world
            .lock()
            .ledger
            .values()
            .filter(|entry| entry.created > 1)
            .cloned()
            .collect()
    }

    /// All existing infrastructure resources.
    #[must_use]
    pub fn infrastructure(&self) -> Vec<Resource> {
        self.0.estate.lock().resources()
    }

    /// How often each infrastructure resource was ever created, by cluster id, owner and kind.
    #[must_use]
    pub fn infrastructure_created(&self) -> BTreeMap<(String, String, String), u32> {
        self.0.estate.lock().created()
    }

    /// Removes an infrastructure resource (network, endpoint, firewall) out of band. Returns whether it existed.
    pub fn remove_infrastructure(&self, cluster_id: &str, kind: &str) -> bool {
        self.0.estate.lock().vanish(cluster_id, kind)
    }

    /// All existing addons.
    #[must_use]
    pub fn addons(&self) -> Vec<AddonState> {
        self.0.addons.lock().all()
    }

    /// How often each addon was created and changed, by cluster id and name.
    #[must_use]
    pub fn addon_ledger(&self) -> BTreeMap<(String, String), AddonLedger> {
        self.0.addons.lock().ledger()
    }

    /// What was last wanted of an addon, with the content of its secrets. `None` if it does not exist, or since a
    /// restart.
    #[must_use]
    pub fn addon_wanted(&self, cluster_id: &str, name: &str) -> Option<AddonWanted> {
        self.0.addons.lock().wanted(cluster_id, name)
    }

    /// Lets an addon fail with this message, or work again. Returns whether it exists.
    pub fn fail_addon(&self, cluster_id: &str, name: &str, why: Option<&str>) -> bool {
        self.0.addons.lock().fail(cluster_id, name, why)
    }

    /// Removes an object of an addon out of band. Returns whether it existed.
    pub fn remove_addon_object(&self, cluster_id: &str, name: &str, kind: &str) -> bool {
        self.0.addons.lock().vanish(cluster_id, name, kind)
    }

    /// Creates an addon that belongs to no cluster record, as another tool would.
    pub fn create_foreign_addon(&self, cluster_id: &str, kind: AddonKind, name: &str) {
        self.0.addons.lock().foreign(cluster_id, kind, name);
    }

    /// All storage without visibility delays, each with the id of the node that has it, if any.
    #[must_use]
    pub fn storage(&self) -> Vec<(KeptStorage, Option<String>)> {
        self.0.world.lock().storage()
    }

    /// All nodes without visibility delays.
    #[must_use]
    pub fn nodes(&self) -> Vec<Node> {
        self.0.world.lock().all()
    }

    /// Whether a node was told to be active, and clients may not be led to it yet.
    #[must_use]
    pub fn is_promoting(&self, node_id: &str) -> bool {
        self.0.world.lock().promoting.contains(node_id)
    }

    /// The number of nodes without visibility delays.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.world.lock().len()
    }

    /// Whether there are no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Creates a node out of band, in a cluster or in none (empty), as another tool would.
    ///
    /// # Errors
    /// `NoCapacity`.
    pub fn create_foreign(&self, cluster_id: &str, name: &str) -> Result<Node> {
        let identity = Identity {
            cluster_id: cluster_id.to_owned(),
            name: name.to_owned(),
            ..Identity::default()
        };
        self.create_as(identity)
    }

    /// Creates a node with any identity, bypassing idempotency.
    ///
    /// # Errors
    /// `NoCapacity`; `Internal` if all ids are used up.
    pub fn create_as(&self, identity: Identity) -> Result<Node> {
        let mut world = self.0.world.lock();
        let domain = world.domains.iter().position(|room| !room.is_full());
        if domain.is_none() && !world.domains.is_empty() {
            return Err(Error::new(
                drover_core::Reason::NoCapacity,
                "no failure domain has room",
            ));
        }
        let settings = &self.0.settings;
        let place = (domain, None);
        let node = world.create(
            identity,
            None,
            place,
            &HostLabels::new(),
            &mut None,
            settings,
        )?;
        drop(world);
        self.wake();
        Ok(node)
    }
}
