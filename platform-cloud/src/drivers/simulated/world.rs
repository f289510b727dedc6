//! The state of the simulated backend.

mod life;
mod node;
mod shown;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, atomic::AtomicU32},
    time::{Duration, UNIX_EPOCH},
};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{FailureDomain, KeptStorage, Node, NodePhase, Storage};
use tokio::time::Instant;

use super::{
    faults::Faults,
    handle::LedgerEntry,
    journal::{Journal, Past, Stored},
    settings::SimulatedSettings,
    timers::{Event, Timers},
    volumes::{Volume, Volumes},
};
use drover_platform::{
    clock::Clock, driver::Changes, identity::Identity, inventory::properties::HostLabels,
    placement::hosts::Availability,
};
use node::{SimNode, packed, sim_node};
pub(super) use node::{node_id, number};
use shown::Frozen;

/// Marks a node without failure domain.
const NO_DOMAIN: u16 = u16::MAX;
/// Marks a node without named host.
const NO_HOST: u16 = u16::MAX;

/// Capacity and usage of a failure domain or node class.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) capacity: Option<u32>,
    pub(super) used: u32,
}

impl Room {
    pub(super) fn is_full(&self) -> bool {
        self.capacity.is_some_and(|capacity| self.used >= capacity)
    }
}

/// A host that can be requested by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    pub(super) id: String,
    pub(super) domain: Option<usize>,
    /// Claimant outside of this platform. Empty if there is none.
    pub(super) claimed_by: String,
    pub(super) labels: BTreeMap<String, String>,
    /// Why it cannot be claimed. Empty if it can.
    pub(super) unusable: String,
    /// By interface.
    pub(super) addresses: BTreeMap<String, String>,
    /// Why its management controller has no user name and password. Empty if it has.
    pub(super) without_credentials: String,
    /// Labels that it has for the group of the node on it.
    pub(super) lent: HostLabels,
    /// Number of the node on it.
    node: Option<u32>,
}

pub(super) struct World {
    pub(super) random: fastrand::Rng,
    pub(super) faults: Faults,
    pub(super) timers: Timers,
    pub(super) domains: Vec<Room>,
    pub(super) hosts: Vec<Host>,
    /// User data by node number. Secret.
    pub(super) user_data: HashMap<u32, Vec<u8>>,
    pub(super) classes: HashMap<String, Room>,
    pub(super) capacity: Option<u32>,
    pub(super) paused: bool,
    /// Whether every command in a node fails.
    pub(super) deaf: bool,
    /// Ids of nodes that are told to be active and not promoted yet.
    pub(super) promoting: HashSet<String>,
    pub(super) ledger: BTreeMap<(String, u32), LedgerEntry>,
    clock: Clock,
    nodes: HashMap<u32, SimNode>,
    by_cluster: HashMap<Box<str>, BTreeSet<u32>>,
    by_request: HashMap<Box<str>, Vec<u32>>,
    last_id: u32,
    volumes: Volumes,
    frozen: Option<Frozen>,
    flickering: bool,
    /// Number of lists so far.
    lists: AtomicU32,
    changes: Option<Changes>,
    journal: Option<Journal>,
    keep_ledger: bool,
}

impl World {
    pub(super) fn new(
        settings: &SimulatedSettings,
        clock: Clock,
        journal: Option<Journal>,
        past: Past,
    ) -> Self {
        let domains = settings.failure_domains.iter().map(|domain| {
            let mut labels = domain.labels.clone();
            if labels.is_empty() {
                labels.insert("zone".to_owned(), domain.name.clone());
            }
            Room {
                name: domain.name.clone(),
                labels,
                capacity: domain.capacity,
                used: 0,
            }
        });
        let domains: Vec<Room> = domains.collect();
        let hosts = settings.hosts.iter().map(|host| {
            let domain = domains.iter().position(|d| d.name == host.failure_domain);
            let mut labels = domain.map_or_else(BTreeMap::new, |at| domains[at].labels.clone());
            labels.extend(host.labels.clone());
            Host {
                id: host.id.clone(),
                domain,
                claimed_by: host.claimed_by.clone(),
                labels,
                unusable: host.unusable.clone(),
                addresses: host.addresses.clone(),
                without_credentials: host.without_credentials.clone(),
                lent: HostLabels::new(),
                node: None,
            }
        });
        let hosts = hosts.collect();
        let classes = settings.node_classes.iter().map(|class| {
            let room = Room {
                name: class.name.clone(),
                capacity: class.capacity,
                ..Room::default()
            };
            (class.name.clone(), room)
        });
        let mut world = Self {
            random: settings
                .seed
                .map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed),
            faults: Faults::new(settings.errors),
            timers: Timers::default(),
            domains,
            hosts,
            user_data: HashMap::new(),
            classes: classes.collect(),
            capacity: settings.capacity,
            paused: false,
            deaf: false,
            promoting: HashSet::new(),
            ledger: BTreeMap::new(),
            clock,
            nodes: HashMap::new(),
            by_cluster: HashMap::new(),
            by_request: HashMap::new(),
            last_id: past.last_id,
            volumes: Volumes::default(),
            frozen: None,
            flickering: settings.flickering,
            lists: AtomicU32::new(0),
            changes: None,
            journal,
            keep_ledger: settings.ledger,
        };
        world.volumes = Volumes::restore(past.volumes, |number| {
            past.nodes.get(&number).map(|stored| &stored.identity)
        });
        for (number, stored) in past.nodes {
            world.restore(number, stored, settings);
        }
        world
    }

    /// The failure domains as reported by the platform.
    pub(super) fn failure_domains(&self) -> Vec<FailureDomain> {
        self.domains
            .iter()
            .map(|room| FailureDomain {
                name: room.name.clone(),
                labels: room.labels.clone(),
                control_plane: true,
            })
            .collect()
    }

    fn restore(&mut self, number: u32, stored: Stored, settings: &SimulatedSettings) {
        let domain = self
            .domains
            .iter()
            .position(|room| room.name == stored.domain);
        let mut phase = NodePhase::try_from(stored.phase).unwrap_or(NodePhase::Unknown);
        if phase == NodePhase::Pending {
            // It has started while this process was down.
            phase = NodePhase::Running;
        }
        if phase == NodePhase::Deprovisioning {
            self.timers.set(
                Instant::now() + settings.scaled(settings.stop_delay),
                number,
                Event::Gone,
            );
        }
        let host = self.hosts.iter().position(|host| host.id == stored.host);
        if let Some(host) = host.and_then(|at| self.hosts.get_mut(at)) {
            host.lent = stored.host_labels;
        }
        let node = sim_node(stored.identity, domain, stored.created);
        self.insert(
            number,
            SimNode {
                host: packed(host, NO_HOST),
                phase,
                ready: phase == NodePhase::Running,
                message: stored.message.map(Into::into),
                ..node
            },
        );
    }

    fn insert(&mut self, number: u32, node: SimNode) {
        self.index(number, &node, true);
        if let Some(room) = node.domain().and_then(|at| self.domains.get_mut(at)) {
            room.used += 1;
        }
        if let Some(room) = self.classes.get_mut(&node.shared.node_class) {
            room.used += 1;
        }
        if let Some(host) = self.hosts.get_mut(usize::from(node.host)) {
            host.node = Some(number);
        }
        self.nodes.insert(number, node);
    }

    fn index(&mut self, number: u32, node: &SimNode, add: bool) {
        let (cluster, request) = (
            node.shared.cluster_id.as_str(),
            node.shared.request_id.as_str(),
        );
        if add {
            self.by_cluster
                .entry(cluster.into())
                .or_default()
                .insert(number);
            if !request.is_empty() {
                self.by_request
                    .entry(request.into())
                    .or_default()
                    .push(number);
            }
            return;
        }
        if let Some(numbers) = self.by_cluster.get_mut(cluster) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_cluster.remove(cluster);
            }
        }
        if let Some(numbers) = self.by_request.get_mut(request) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.by_request.remove(request);
            }
        }
    }

    /// Creates a node. Shares the identity of a sibling in `like` if possible.
    pub(super) fn create(
        &mut self,
        identity: Identity,
        storage: Option<&Storage>,
        (domain, host): (Option<usize>, Option<usize>),
        host_labels: &HostLabels,
        like: &mut Option<Arc<Identity>>,
        settings: &SimulatedSettings,
    ) -> Result<Node> {
        self.room_for(&identity.node_class, domain)?;
        if storage.is_some() {
            self.volumes.check(&identity)?;
        }
        self.last_id = self
            .last_id
            .checked_add(1)
            .ok_or_else(|| Error::internal("all node ids were given out"))?;
        let number = self.last_id;
        if self.keep_ledger && !identity.request_id.is_empty() {
            let slot = (identity.request_id.clone(), identity.index);
            let entry = self.ledger.entry(slot).or_insert_with(|| LedgerEntry {
                owner: identity.owner.clone(),
                request_id: identity.request_id.clone(),
                index: identity.index,
                created: 0,
            });
            entry.created += 1;
        }
        if let Some(storage) = storage {
            let volume = self.volumes.attach(&identity, storage, number);
            self.write_volume(volume);
        }
        let mut node = sim_node(identity, domain, self.now());
        node.host = packed(host, NO_HOST);
        match like {
            Some(shared) if **shared == *node.shared => node.shared = Arc::clone(shared),
            _ => *like = Some(Arc::clone(&node.shared)),
        }
        let now = Instant::now();
        let boot = settings.jittered(settings.boot_delay, settings.boot_jitter, &mut self.random);
        self.timers.set(now + boot, number, Event::Run);
        if !settings.visibility_delay.is_zero() {
            node.hidden = true;
            self.timers.set(
                now + settings.scaled(settings.visibility_delay),
                number,
                Event::Show,
            );
        }
        if settings.deaths_per_hour > 0.0 {
            // Exponential, so that the probability of death is independent of a node's age.
            let hours = -(1.0 - self.random.f64()).ln() / settings.deaths_per_hour;
            let life = Duration::try_from_secs_f64(hours * 3600.0)
                .unwrap_or(Duration::from_secs(u32::MAX.into()));
            self.timers
                .set(now + settings.scaled(life), number, Event::Die);
        }
        if let Some(host) = host.and_then(|at| self.hosts.get_mut(at)) {
            host.lent.clone_from(host_labels);
        }
        self.insert(number, node);
        self.write(number);
        self.tell(number);
        Ok(self
            .nodes
            .get(&number)
            .map(|node| self.node(number, node))
            .unwrap_or_default())
    }

    fn room_for(&self, class: &str, domain: Option<usize>) -> Result<()> {
        let none = |what: String| {
            Err(Error::new(
                Reason::NoCapacity,
                format!("{what} has no room for another node"),
            ))
        };
        if self
            .capacity
            .is_some_and(|capacity| self.nodes.len() >= capacity as usize)
        {
            return none("the simulated backend".to_owned());
        }
        if let Some(room) = self.classes.get(class)
            && room.is_full()
        {
            return none(format!("node class {class:?}"));
        }
        match domain.and_then(|at| self.domains.get(at)) {
            Some(room) if room.is_full() => none(format!("failure domain {:?}", room.name))
                .map_err(|error| error.with_metadata("failure_domain", &room.name)),
            _ => Ok(()),
        }
    }

    /// The node that has claimed a host. One that has ended has it no more.
    pub(super) fn node_on(&self, host: &Host) -> Option<(u32, &SimNode)> {
        let number = host.node?;
        let node = self.nodes.get(&number)?;
        (node.phase != NodePhase::Terminated).then_some((number, node))
    }

    /// Whether a host can be claimed.
    pub(super) fn availability<'a>(&self, host: &'a Host) -> Availability<'a> {
        match (
            self.node_on(host),
            host.claimed_by.as_str(),
            host.unusable.as_str(),
        ) {
            (None, "", "") => Availability::Free,
            (None, "", reason) => Availability::Unusable(reason),
            _ => Availability::Claimed,
        }
    }

    /// The free host with this name.
    pub(super) fn host(&self, id: &str) -> Result<usize> {
        let at = self.hosts.iter().position(|host| host.id == id);
        let at = at.ok_or_else(|| {
            Error::new(Reason::HostNotFound, format!("there is no machine {id:?}"))
                .with_resource("host", id)
        })?;
        let host = &self.hosts[at];
        let owner = match self.node_on(host) {
            Some((_, node)) => format!("cluster {}", node.cluster_id()),
            None if !host.claimed_by.is_empty() => host.claimed_by.clone(),
            None if host.unusable.is_empty() => return Ok(at),
            None => return Err(unusable(id, &host.unusable)),
        };
        Err(Error::new(
            Reason::HostClaimed,
            format!("machine {id:?} belongs to {owner}; it was left alone"),
        )
        .with_resource("host", id))
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// All storage, each with the node that has it.
    pub(super) fn storage(&self) -> Vec<(KeptStorage, Option<String>)> {
        self.volumes.all()
    }

    /// Detached storage.
    pub(super) fn kept_storage(&self) -> Vec<KeptStorage> {
        self.volumes.kept()
    }

    /// Deletes retained storage.
    ///
    /// # Errors
    /// As the platform documents them for DeleteStorage.
    pub(super) fn delete_storage(&mut self, meant: &KeptStorage) -> Result<()> {
        if self.volumes.delete(meant)?
            && let Some(journal) = &mut self.journal
        {
            journal.no_volume(meant.id.clone());
        }
        Ok(())
    }

    fn write_volume(&mut self, volume: Volume) {
        if let Some(journal) = &mut self.journal {
            journal.volume(volume);
        }
    }

    /// Milliseconds since the Unix epoch.
    fn now(&self) -> u64 {
        let now = self.clock.now();
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn write(&mut self, number: u32) {
        let (Some(journal), Some(node)) = (&mut self.journal, self.nodes.get(&number)) else {
            return;
        };
        let identity = Identity {
            id: node.id.to_string(),
            name: node.name.to_string(),
            index: node.index,
            ordinal: node.ordinal,
            role: i32::from(node.role),
            ..Identity::clone(&node.shared)
        };
        let domain = node
            .domain()
            .and_then(|at| self.domains.get(at))
            .map(|room| room.name.clone());
        let host = self.hosts.get(usize::from(node.host));
        journal.put(
            number,
            Stored {
                identity,
                domain: domain.unwrap_or_default(),
                host: host.map_or_else(String::new, |host| host.id.clone()),
                host_labels: host.map_or_else(HostLabels::new, |host| host.lent.clone()),
                created: node.created,
                phase: node.phase.into(),
                message: node.message.as_deref().map(str::to_owned),
            },
        );
    }
}

/// The error for a host that is asked for by its name, and is free but cannot be claimed.
pub(super) fn unusable(id: &str, why: &str) -> Error {
    let message = format!("machine {id:?} cannot be used: {why}");
    Error::new(Reason::NoCapacity, message).with_resource("host", id)
}
