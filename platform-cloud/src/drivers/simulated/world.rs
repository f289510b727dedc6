//! The state of the simulated backend.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{FailureDomain, Node, NodePhase, RemovalEvidence},
};
use tokio::time::Instant;

use super::{
    faults::{Death, Faults},
    handle::LedgerEntry,
    journal::{Journal, Stored},
    settings::SimulatedSettings,
    timers::{Event, Timers},
};
use drover_platform::{
    clock::{Clock, timestamp},
    driver::{Change, Changes, Found, Target},
    identity::Identity,
};

/// In the place of a failure domain: none.
const NO_DOMAIN: u16 = u16::MAX;
/// In the place of a named machine: none.
const NO_HOST: u16 = u16::MAX;

/// A node. What it has in common with the others of its request is shared.
#[derive(Clone, Debug)]
pub(super) struct SimNode {
    /// Everything but id, name, index, ordinal and role, which are empty in it.
    shared: Arc<Identity>,
    id: Box<str>,
    name: Box<str>,
    index: u32,
    ordinal: u32,
    created: u64,
    message: Option<Box<str>>,
    domain: u16,
    host: u16,
    role: u8,
    phase: NodePhase,
    ready: bool,
    /// Not shown by lists and watches yet.
    hidden: bool,
}

impl SimNode {
    pub(super) fn group(&self) -> &str {
        &self.shared.group
    }

    pub(super) fn cluster_id(&self) -> &str {
        &self.shared.cluster_id
    }

    pub(super) fn domain(&self) -> Option<usize> {
        (self.domain != NO_DOMAIN).then_some(usize::from(self.domain))
    }

    /// Whether it counts for a spread.
    pub(super) fn is_placed(&self) -> bool {
        matches!(
            self.phase,
            NodePhase::Pending | NodePhase::Running | NodePhase::Stopped | NodePhase::Unknown
        )
    }
}

/// How full a failure domain or node class is.
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

/// A machine that can be asked for by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    pub(super) id: String,
    pub(super) domain: Option<usize>,
    /// Who has it, beside the nodes here. Empty: nobody.
    pub(super) claimed_by: String,
    /// The node that it is.
    node: Option<u32>,
}

/// What lists and watches show while they are frozen, and what they have missed.
struct Frozen {
    nodes: HashMap<u32, SimNode>,
    changed: BTreeSet<u32>,
    removed: Vec<(String, u32, RemovalEvidence)>,
}

pub(super) struct World {
    pub(super) random: fastrand::Rng,
    pub(super) faults: Faults,
    pub(super) timers: Timers,
    pub(super) domains: Vec<Room>,
    pub(super) hosts: Vec<Host>,
    /// What each node was given to start with. Secret.
    pub(super) user_data: HashMap<u32, Vec<u8>>,
    pub(super) classes: HashMap<String, Room>,
    pub(super) capacity: Option<u32>,
    pub(super) paused: bool,
    pub(super) ledger: BTreeMap<(String, u32), LedgerEntry>,
    clock: Clock,
    nodes: HashMap<u32, SimNode>,
    by_cluster: HashMap<Box<str>, BTreeSet<u32>>,
    by_request: HashMap<Box<str>, Vec<u32>>,
    last_id: u32,
    volumes: HashMap<(String, String, u32), String>,
    frozen: Option<Frozen>,
    changes: Option<Changes>,
    journal: Option<Journal>,
    keep_ledger: bool,
}

pub(super) fn node_id(number: u32) -> String {
    format!("sim-{number:08x}")
}

pub(super) fn number(node_id: &str) -> Option<u32> {
    let digits = node_id
        .strip_prefix("sim-")
        .filter(|digits| digits.len() == 8)?;
    // Only the form that is given out.
    digits
        .bytes()
        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        .then_some(())?;
    u32::from_str_radix(digits, 16).ok()
}

impl World {
    pub(super) fn new(
        settings: &SimulatedSettings,
        clock: Clock,
        journal: Option<Journal>,
        past: BTreeMap<u32, Stored>,
        last_id: u32,
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
        let hosts = settings.hosts.iter().map(|host| Host {
            id: host.id.clone(),
            domain: domains.iter().position(|d| d.name == host.failure_domain),
            claimed_by: host.claimed_by.clone(),
            node: None,
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
            ledger: BTreeMap::new(),
            clock,
            nodes: HashMap::new(),
            by_cluster: HashMap::new(),
            by_request: HashMap::new(),
            last_id,
            volumes: HashMap::new(),
            frozen: None,
            changes: None,
            journal,
            keep_ledger: settings.ledger,
        };
        for (number, stored) in past {
            world.restore(number, stored, settings);
        }
        world
    }

    /// The failure domains as the platform offers them.
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
            // It went on while this process was away.
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

    /// Makes one node. Its identity is shared where `like` is the one of a sibling.
    pub(super) fn create(
        &mut self,
        identity: Identity,
        domain: Option<usize>,
        host: Option<usize>,
        like: &mut Option<Arc<Identity>>,
        settings: &SimulatedSettings,
    ) -> Result<Node> {
        self.room_for(&identity.node_class, domain)?;
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
        self.volumes.remove(&(
            identity.owner.clone(),
            identity.group.clone(),
            identity.ordinal,
        ));
        let created = self
            .clock
            .now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_millis();
        let mut node = sim_node(identity, domain, u64::try_from(created).unwrap_or(u64::MAX));
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
            // Exponential, so that nodes die independently of their age.
            let hours = -(1.0 - self.random.f64()).ln() / settings.deaths_per_hour;
            let life = Duration::try_from_secs_f64(hours * 3600.0)
                .unwrap_or(Duration::from_secs(u32::MAX.into()));
            self.timers
                .set(now + settings.scaled(life), number, Event::Die);
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

    /// A machine that is asked for by name and belongs to nobody.
    pub(super) fn host(&self, id: &str) -> Result<usize> {
        let at = self.hosts.iter().position(|host| host.id == id);
        let at = at.ok_or_else(|| {
            Error::new(Reason::HostNotFound, format!("there is no machine {id:?}"))
                .with_resource("host", id)
        })?;
        let host = &self.hosts[at];
        let owner = match host.node.and_then(|number| self.nodes.get(&number)) {
            Some(node) => format!("cluster {}", node.cluster_id()),
            None if host.claimed_by.is_empty() => return Ok(at),
            None => host.claimed_by.clone(),
        };
        Err(Error::new(
            Reason::HostClaimed,
            format!("machine {id:?} belongs to {owner}; it was left alone"),
        )
        .with_resource("host", id))
    }

    /// The node as it travels.
    pub(super) fn node(&self, number: u32, node: &SimNode) -> Node {
        let shared = &*node.shared;
        let foreign = shared.owner.is_empty();
        let [_, b, c, d] = number.to_be_bytes();
        Node {
            id: node.id.to_string(),
            name: node.name.to_string(),
            ordinal: (!foreign).then_some(node.ordinal),
            role: i32::from(node.role),
            slot: (!foreign).then(|| drover_proto::platform::v1::SlotKey {
                index: Some(node.index),
                ..shared.key()
            }),
            phase: node.phase.into(),
            ready: Some(node.ready),
            provider_id: format!("sim:///{}", node_id(number)),
            failure_domain: node
                .domain()
                .and_then(|at| self.domains.get(at))
                .map_or_else(String::new, |room| room.name.clone()),
            create_time: Some(timestamp(UNIX_EPOCH + Duration::from_millis(node.created))),
            message: node.message.as_deref().unwrap_or_default().to_owned(),
            host_id: self
                .hosts
                .get(usize::from(node.host))
                .map(|host| host.id.clone()),
            addresses: vec![Address {
                r#type: AddressType::InternalIp.into(),
                value: format!("10.{b}.{c}.{d}"),
                interface: String::new(),
            }],
            ..shared.node(node_id(number))
        }
    }

    fn found(&self, number: u32, node: &SimNode) -> Found {
        Found {
            node: self.node(number, node),
            fingerprint: node.shared.fingerprint.clone(),
        }
    }

    /// A node as lists and watches show it.
    pub(super) fn visible(&self, number: u32) -> Option<&SimNode> {
        match &self.frozen {
            Some(frozen) => frozen.nodes.get(&number),
            None => self.nodes.get(&number).filter(|node| !node.hidden),
        }
    }

    pub(super) fn list(&self, cluster: Option<&str>) -> Vec<Found> {
        let shown = |number: &u32| self.visible(*number).map(|node| self.found(*number, node));
        match (cluster, &self.frozen) {
            (Some(cluster), None) => self
                .by_cluster
                .get(cluster)
                .into_iter()
                .flatten()
                .filter_map(shown)
                .collect(),
            (None, None) => self.nodes.keys().filter_map(shown).collect(),
            (cluster, Some(frozen)) => {
                let all = frozen.nodes.keys().filter_map(shown);
                all.filter(|found| cluster.is_none_or(|cluster| found.node.cluster_id == cluster))
                    .collect()
            }
        }
    }

    /// The nodes of a request as they really are.
    pub(super) fn of_request(&self, request_id: &str) -> Vec<Found> {
        let numbers = self.by_request.get(request_id).into_iter().flatten();
        numbers
            .filter_map(|number| Some(self.found(*number, self.nodes.get(number)?)))
            .collect()
    }

    /// A node as it really is.
    pub(super) fn by_node_id(&self, node_id: &str) -> Option<Found> {
        let number = number(node_id)?;
        Some(self.found(number, self.nodes.get(&number)?))
    }

    pub(super) fn in_cluster(&self, cluster: &str) -> impl Iterator<Item = &SimNode> {
        self.by_cluster
            .get(cluster)
            .into_iter()
            .flatten()
            .filter_map(|number| self.nodes.get(number))
    }

    pub(super) fn all(&self) -> Vec<Node> {
        self.nodes
            .iter()
            .map(|(number, node)| self.node(*number, node))
            .collect()
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Begins to remove a node. Answers the storage that is kept; `None`: it is not there.
    pub(super) fn delete(
        &mut self,
        target: &Target,
        retain: bool,
        after: Duration,
    ) -> Result<Option<Vec<String>>> {
        let Some(number) = number(&target.node_id) else {
            return Ok(None);
        };
        let Some(node) = self.nodes.get(&number) else {
            return Ok(None);
        };
        target.matches(&self.node(number, node))?;
        let mut retained = Vec::new();
        if retain {
            let shared = &node.shared;
            let volume = format!("vol-{number:08x}");
            self.volumes.insert(
                (shared.owner.clone(), shared.group.clone(), node.ordinal),
                volume.clone(),
            );
            retained.push(volume);
        }
        if node.phase != NodePhase::Deprovisioning {
            self.change(number, |node| {
                node.phase = NodePhase::Deprovisioning;
                node.ready = false;
            });
            self.write(number);
            self.timers.set(Instant::now() + after, number, Event::Gone);
        }
        Ok(Some(retained))
    }

    /// Changes or adopts a node.
    pub(super) fn update(&mut self, target: &Target, change: &Change) -> Result<Node> {
        let missing = || Error::not_found("node", &target.node_id);
        let number = number(&target.node_id).ok_or_else(missing)?;
        let node = self.nodes.get(&number).ok_or_else(missing)?;
        target.matches(&self.node(number, node))?;
        let mut next = node.clone();
        match change {
            Change::Edit {
                role,
                set_labels,
                remove_labels,
            } => {
                if let Some(role) = role {
                    next.role = *role as u8;
                }
                let mut labels = next.shared.labels.clone();
                labels.retain(|key, _| !remove_labels.contains(key));
                labels.extend(set_labels.clone());
                if labels.len() > drover_core::name::MAX_LABELS {
                    return Err(Error::invalid(
                        "change.set_labels",
                        "the node would have more than 64 labels",
                    ));
                }
                if labels != next.shared.labels {
                    next.shared = Arc::new(Identity {
                        labels,
                        ..Identity::clone(&next.shared)
                    });
                }
            }
            Change::Adopt(identity) => {
                let kept = &node.shared;
                let identity = Identity {
                    version: kept.version.clone(),
                    node_class: kept.node_class.clone(),
                    labels: kept.labels.clone(),
                    ..Identity::clone(identity)
                };
                let adopted = sim_node(identity, None, 0);
                next = SimNode {
                    created: node.created,
                    message: node.message.clone(),
                    domain: node.domain,
                    host: node.host,
                    phase: node.phase,
                    ready: node.ready,
                    hidden: node.hidden,
                    ..adopted
                };
            }
        }
        let before = node.clone();
        self.index(number, &before, false);
        self.index(number, &next, true);
        let moved = before.shared.cluster_id != next.shared.cluster_id;
        self.nodes.insert(number, next);
        if moved {
            // It is only not in that cluster any more.
            self.tell_removed(number, &before, RemovalEvidence::NotListed);
        }
        self.write(number);
        self.tell(number);
        Ok(self
            .nodes
            .get(&number)
            .map(|node| self.node(number, node))
            .unwrap_or_default())
    }

    fn change(&mut self, number: u32, change: impl FnOnce(&mut SimNode)) {
        if let Some(node) = self.nodes.get_mut(&number) {
            change(node);
            self.tell(number);
        }
    }

    pub(super) fn run(&mut self, number: u32, settings: &SimulatedSettings, now: Instant) {
        if self
            .nodes
            .get(&number)
            .is_none_or(|node| node.phase != NodePhase::Pending)
        {
            return;
        }
        if settings.boot_failure > 0.0 && self.random.f64() < settings.boot_failure {
            return self.die(number, Death::Failed);
        }
        let ready = settings.jittered(settings.ready_delay, settings.boot_jitter, &mut self.random);
        self.timers.set(now + ready, number, Event::Ready);
        self.change(number, |node| node.phase = NodePhase::Running);
    }

    pub(super) fn ready(&mut self, number: u32) {
        if self
            .nodes
            .get(&number)
            .is_some_and(|node| node.phase == NodePhase::Running)
        {
            self.change(number, |node| node.ready = true);
        }
    }

    pub(super) fn set_ready(&mut self, number: u32, ready: bool) -> bool {
        let running = self
            .nodes
            .get(&number)
            .is_some_and(|node| node.phase == NodePhase::Running);
        if running {
            self.change(number, |node| node.ready = ready);
        }
        running
    }

    pub(super) fn show(&mut self, number: u32) {
        self.change(number, |node| node.hidden = false);
    }

    pub(super) fn die(&mut self, number: u32, death: Death) {
        let Some(node) = self.nodes.get(&number) else {
            return;
        };
        if !node.is_placed() {
            return;
        }
        let phase = match death {
            Death::Vanished => return self.gone(number, death),
            Death::Failed => NodePhase::Failed,
            Death::Terminated => NodePhase::Terminated,
        };
        self.change(number, |node| {
            node.phase = phase;
            node.ready = false;
            node.message = Some("the simulated node died".into());
        });
        self.write(number);
    }

    /// Takes a node out of existence.
    pub(super) fn gone(&mut self, number: u32, how: Death) {
        let Some(node) = self.nodes.remove(&number) else {
            return;
        };
        self.index(number, &node, false);
        if let Some(room) = node.domain().and_then(|at| self.domains.get_mut(at)) {
            room.used -= 1;
        }
        if let Some(room) = self.classes.get_mut(&node.shared.node_class) {
            room.used -= 1;
        }
        if let Some(host) = self.hosts.get_mut(usize::from(node.host)) {
            host.node = None;
        }
        self.user_data.remove(&number);
        if let Some(journal) = &mut self.journal {
            journal.gone(number);
        }
        let evidence = match how {
            Death::Vanished => RemovalEvidence::NotListed,
            Death::Failed | Death::Terminated => RemovalEvidence::Confirmed,
        };
        self.tell_removed(number, &node, evidence);
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
        let host = self
            .hosts
            .get(usize::from(node.host))
            .map(|host| host.id.clone());
        journal.put(
            number,
            Stored {
                identity,
                domain: domain.unwrap_or_default(),
                host: host.unwrap_or_default(),
                created: node.created,
                phase: node.phase.into(),
                message: node.message.as_deref().map(str::to_owned),
            },
        );
    }

    fn tell(&mut self, number: u32) {
        if let Some(frozen) = &mut self.frozen {
            frozen.changed.insert(number);
        } else if let (Some(changes), Some(node)) = (&self.changes, self.visible(number)) {
            changes.changed(&node.shared.cluster_id, &node_id(number));
        }
    }

    fn tell_removed(&mut self, number: u32, node: &SimNode, evidence: RemovalEvidence) {
        if let Some(frozen) = &mut self.frozen {
            frozen
                .removed
                .push((node.shared.cluster_id.clone(), number, evidence));
        } else if let Some(changes) = &self.changes {
            changes.removed(&node.shared.cluster_id, &node_id(number), evidence);
        }
    }

    pub(super) fn connect(&mut self, changes: Changes) {
        self.changes = Some(changes);
        let all: Vec<u32> = self.nodes.keys().copied().collect();
        all.into_iter().for_each(|number| self.tell(number));
    }

    /// Lists and watches show what is there now, until [`World::thaw`].
    pub(super) fn freeze(&mut self) {
        if self.frozen.is_none() {
            let shown =
                |(number, node): (&u32, &SimNode)| (!node.hidden).then(|| (*number, node.clone()));
            let nodes = self.nodes.iter().filter_map(shown).collect();
            self.frozen = Some(Frozen {
                nodes,
                changed: BTreeSet::new(),
                removed: Vec::new(),
            });
        }
    }

    pub(super) fn thaw(&mut self) {
        let Some(frozen) = self.frozen.take() else {
            return;
        };
        if let Some(changes) = &self.changes {
            for (cluster, number, evidence) in &frozen.removed {
                changes.removed(cluster, &node_id(*number), *evidence);
            }
        }
        frozen
            .changed
            .into_iter()
            .for_each(|number| self.tell(number));
    }
}

fn packed(at: Option<usize>, none: u16) -> u16 {
    at.and_then(|at| u16::try_from(at).ok()).unwrap_or(none)
}

fn sim_node(mut identity: Identity, domain: Option<usize>, created: u64) -> SimNode {
    let (id, name) = (
        std::mem::take(&mut identity.id),
        std::mem::take(&mut identity.name),
    );
    let (index, ordinal) = (
        std::mem::take(&mut identity.index),
        std::mem::take(&mut identity.ordinal),
    );
    let role = std::mem::take(&mut identity.role);
    SimNode {
        shared: Arc::new(identity),
        id: id.into(),
        name: name.into(),
        index,
        ordinal,
        created,
        message: None,
        domain: packed(domain, NO_DOMAIN),
        host: NO_HOST,
        role: u8::try_from(role).unwrap_or_default(),
        phase: NodePhase::Pending,
        ready: false,
        hidden: false,
    }
}
