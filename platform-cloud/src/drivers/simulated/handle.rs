//! Controls of the simulated backend for tests.

use std::{collections::BTreeMap, fmt, sync::Arc};

use drover_core::{Error, Result};
use drover_proto::platform::v1::{KeptStorage, Node, Resource};

use super::{
    Simulated,
    faults::{Death, Fault, Operation},
    world::number,
};
use drover_platform::identity::Identity;

/// How often a slot was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Owner of the slot.
    pub owner: String,
    /// Request of the slot.
    pub request_id: String,
    /// Index of the slot.
    pub index: u32,
    /// How many nodes were ever created for it. More than 1 is what must never be.
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

    /// Lets a node die. Answers whether there was one to die.
    pub fn kill(&self, node_id: &str, how: Death) -> bool {
        let mut world = self.0.world.lock();
        let Some(number) = number(node_id).filter(|_| world.by_node_id(node_id).is_some()) else {
            return false;
        };
        world.die(number, how);
        true
    }

    /// Makes a running node ready or not. Answers whether it runs.
    pub fn set_ready(&self, node_id: &str, ready: bool) -> bool {
        number(node_id).is_some_and(|number| self.0.world.lock().set_ready(number, ready))
    }

    /// The most nodes from now on. `None`: no limit. Existing ones stay.
    pub fn set_capacity(&self, capacity: Option<u32>) {
        self.0.world.lock().capacity = capacity;
    }

    /// The user data that a node was given, rendered if that was asked for. Secret.
    #[must_use]
    pub fn user_data(&self, node_id: &str) -> Option<Vec<u8>> {
        let number = number(node_id)?;
        self.0.world.lock().user_data.get(&number).cloned()
    }

    /// Gives a machine to somebody else; empty: back to nobody. Answers whether there is such a machine.
    pub fn claim_host(&self, id: &str, by: &str) -> bool {
        let mut world = self.0.world.lock();
        let host = world.hosts.iter_mut().find(|host| host.id == id);
        host.map(|host| by.clone_into(&mut host.claimed_by))
            .is_some()
    }

    /// The most nodes of a failure domain from now on. Answers whether there is such a domain.
    pub fn set_domain_capacity(&self, domain: &str, capacity: Option<u32>) -> bool {
        let mut world = self.0.world.lock();
        let room = world.domains.iter_mut().find(|room| room.name == domain);
        room.map(|room| room.capacity = capacity).is_some()
    }

    /// The most nodes of a class from now on. Answers whether there is such a class.
    pub fn set_class_capacity(&self, class: &str, capacity: Option<u32>) -> bool {
        let mut world = self.0.world.lock();
        world
            .classes
            .get_mut(class)
            .map(|room| room.capacity = capacity)
            .is_some()
    }

    /// The backend says to be another one from now on, with all that it has.
    pub fn set_uid(&self, uid: &str) {
        uid.clone_into(&mut self.0.uid.lock());
    }

    /// What happens to the next call of this kind that has no fault yet. Faults on demand go before those by chance.
    pub fn fail_next(&self, operation: Operation, fault: Fault) {
        self.0.world.lock().faults.add(operation, fault);
    }

    /// Makes the backend unreachable, or reachable again. Its nodes go on; what happens meanwhile is seen afterwards.
    pub fn pause_backend(&self, paused: bool) {
        let mut world = self.0.world.lock();
        world.paused = paused;
        if paused {
            world.freeze();
        } else {
            world.thaw();
        }
    }

    /// Every command in a node ends with 1, whatever it is, or what it should again: nodes go on, and whoever asks them
    /// hears nothing good, as behind a network that is cut.
    pub fn deafen(&self, deaf: bool) {
        self.0.world.lock().deaf = deaf;
    }

    /// Lists and watches show what is there now, whatever happens, until they are thawed: an old answer that looks new.
    pub fn freeze_visibility(&self, frozen: bool) {
        let mut world = self.0.world.lock();
        if frozen { world.freeze() } else { world.thaw() }
    }

    /// How often each slot was made, by request id and index.
    #[must_use]
    pub fn ledger(&self) -> BTreeMap<(String, u32), LedgerEntry> {
        self.0.world.lock().ledger.clone()
    }

    /// Slots for which more than one node was ever made.
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

    /// Every piece of infrastructure that exists.
    #[must_use]
    pub fn infrastructure(&self) -> Vec<Resource> {
        self.0.estate.lock().resources()
    }

    /// How often each piece of infrastructure was ever made, by cluster id, owner and kind.
    #[must_use]
    pub fn infrastructure_created(&self) -> BTreeMap<(String, String, String), u32> {
        self.0.estate.lock().created()
    }

    /// Takes a piece of infrastructure away (network, endpoint, firewall) as somebody else would. Answers whether there
    /// was one.
    pub fn remove_infrastructure(&self, cluster_id: &str, kind: &str) -> bool {
        self.0.estate.lock().vanish(cluster_id, kind)
    }

    /// All storage as it really is, each with the id of the node that has it, if one does.
    #[must_use]
    pub fn storage(&self) -> Vec<(KeptStorage, Option<String>)> {
        self.0.world.lock().storage()
    }

    /// Every node as it really is, whatever lists show.
    #[must_use]
    pub fn nodes(&self) -> Vec<Node> {
        self.0.world.lock().all()
    }

    /// How many nodes there really are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.world.lock().len()
    }

    /// Whether there are no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes a node that no orchestrator asked for, in a cluster or in none (empty), as another tool would.
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

    /// Makes a node with any identity, behind the back of every idempotency.
    ///
    /// # Errors
    /// `NoCapacity`; `Internal` when all ids were given out.
    pub fn create_as(&self, identity: Identity) -> Result<Node> {
        let mut world = self.0.world.lock();
        let domain = world.domains.iter().position(|room| !room.is_full());
        if domain.is_none() && !world.domains.is_empty() {
            return Err(Error::new(
                drover_core::Reason::NoCapacity,
                "no failure domain has room",
            ));
        }
        let node = world.create(identity, None, (domain, None), &mut None, &self.0.settings)?;
        drop(world);
        self.wake();
        Ok(node)
    }
}
