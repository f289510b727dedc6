//! A world of simulated platforms in virtual time, and an executor that carries plans out literally.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test file uses another part of it"
)]

pub mod backend;
pub mod build;
mod checks;
pub mod growth;
pub mod infrastructure;
pub mod labels;
mod orders;
mod roles;
mod run;
pub mod sole;
pub mod steps;
mod storage;

pub mod addons;
mod events;

use std::collections::{BTreeMap, BTreeSet};

use backend::{Backend, Faults, Thing};
use drover_core::{
    Error, Millis, Phase, Sym,
    addon::WantedAddon,
    node::{Call as Attempt, Outcome, ProbeResult, RemovalReason, Role, Seen},
    resource::{Observed, ResourceKey, Wanted},
    spec::{Group, Health, OrphanPolicy},
};
use drover_planner::{Input, Leaving, Op, Plan, PlatformView, State, plan};
use uuid::Uuid;

/// Size of the range of sequence numbers of a process.
const EPOCH: u64 = 1_000_000;

/// Slots that a plan removes, with the cause.
pub fn removals(planned: &Plan) -> Vec<(u64, RemovalReason)> {
    let ops = planned.ops.iter();
    ops.filter_map(|op| match op {
        Op::Remove { slot, reason, .. } => Some((*slot, *reason)),
        _ => None,
    })
    .collect()
}

/// A future event at a platform or in the orchestrator.
pub enum Event {
    /// Things are created, unless they exist.
    Make(Sym, Vec<Thing>),
    /// A thing changes its phase.
    Phase(Sym, String, Phase),
    /// A thing is listed from now on.
    Appear(Sym, String),
    /// A thing is gone for good; the watch reports that with proof, without proof, or not at all.
    Gone(Sym, String, Option<bool>),
    /// A Provision call ends.
    Answered(u64, Uuid, Result<Vec<Outcome>, Error>),
    /// A hook ends in a node, or cannot be run.
    Drained(u64, u64, Option<bool>),
    /// A Deprovision call ends.
    Deprovisioned(u64, u64, bool),
    /// A node takes a role.
    RoleChange(u64, Role),
    /// A call for a role change ends: with success, a refusal, or an unknown outcome.
    Turned(u64, u64, Role, Result<(), bool>),
    /// The host of a node gets labels.
    Labels(u64, Sym),
    /// A change of labels ends; with the labels if it is known to have succeeded.
    Relabelled(u64, u64, Option<Sym>),
    /// The storage of a node grows.
    Grows(u64, u64, Sym),
    /// A call for that ends; with the hash that the node has then if it is known to have succeeded.
    Grown(u64, u64, Option<Sym>),
    /// A hook runs in a node that allows it to acknowledge alone, or ends that; with the process that hears of it.
    Permits(u64, bool, Option<u64>),
    /// A call for that ends: with success, a refusal, or an unknown outcome.
    Permitted(u64, u64, bool, Result<(), bool>),
    /// A call about infrastructure or an addon takes effect.
    Effect(infrastructure::Ask),
    /// A call about infrastructure or an addon ends.
    Told(infrastructure::Ask, Result<Observed, Error>),
    /// An adoption call ends. `Some(true)` if the node is another owner's.
    Adopted(u64, u64, Option<bool>),
    /// A complete read ends.
    Read(u64, Sym, Millis, Option<Vec<Thing>>),
}

/// Crash points of the orchestrator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    BeforeCommit,
    BeforeCalls,
    AfterCalls,
}

/// The same size in bytes for every request.
pub struct Fixed(pub usize);

impl drover_planner::Sizes for Fixed {
    fn request(&self, _: usize, _: usize) -> usize {
        self.0
    }

    fn open(&self, _: &Uuid) -> usize {
        self.0
    }
}

pub struct World {
    pub now: Millis,
    pub rng: fastrand::Rng,
    pub groups: Vec<Group>,
    pub infrastructure: Vec<Wanted>,
    pub addons: Vec<WantedAddon>,
    /// Versions of the secrets of the addons.
    pub addon_secrets: Vec<Sym>,
    /// Health that templates suggest, by position of the group.
    pub health_defaults: Vec<Option<Health>>,
    /// Groups that are no longer wanted.
    pub leaving: Vec<Leaving>,
    /// Slots in which a hook ran to its end.
    pub drained: Vec<u64>,
    /// The infrastructure and the addons that really exist.
    pub sites: BTreeMap<ResourceKey, infrastructure::Site>,
    pub state: State,
    /// The state in the store, which survives crashes.
    pub durable: State,
    pub platforms: BTreeMap<Sym, Backend>,
    pub views: BTreeMap<Sym, PlatformView>,
    pub orphan_hold: bool,
    pub orphans: OrphanPolicy,
    /// Crash point of the next pass.
    pub crash: Option<Crash>,
    /// Whether maintenance was ever announced that stops a node.
    pub maintains: bool,
    pub finished: bool,
    pub sizes_of_requests: Fixed,
    /// Things on abandoned platforms.
    pub given_up: BTreeSet<String>,
    pub passes: usize,
    /// Times at which requests were recorded.
    pub requested: Vec<Millis>,
    /// The most nodes that each group may have, and since when: without and with the surge for marked nodes.
    sizes: Vec<(Millis, Sym, usize, usize)>,
    /// The most active nodes that each group may have, and since when.
    pub actives: Vec<(Millis, Sym, usize)>,
    /// How long nodes live that are about to become Ready. `None` for no limit.
    pub lifetime: Option<Millis>,
    asked: storage::Asked,
    stores: sole::Stores,
    queue: BTreeMap<(Millis, u64), Event>,
    process_start: Millis,
    epoch: u64,
    pub counter: u64,
}

impl World {
    /// The call for the node of a slot.
    pub fn node_call(&mut self, slot: u64) -> &mut Attempt {
        &mut self.state.node_mut(slot).unwrap().in_flight.call
    }

    /// The call for a resource.
    pub fn resource_call(&mut self, key: &ResourceKey) -> &mut Attempt {
        let record = self.state.resources.get_mut(key);
        &mut record.unwrap().in_flight.call
    }

    pub fn new(seed: u64, platforms: &[&str]) -> Self {
        let now = 1_000_000_000;
        let state = State {
            uid: Uuid::from_u64_pair(7, seed),
            generation: 1,
            next_slot: 1,
            next_sequence: 1,
            ..State::default()
        };
        let mut world = Self {
            now,
            rng: fastrand::Rng::with_seed(seed),
            groups: Vec::new(),
            infrastructure: Vec::new(),
            addons: Vec::new(),
            addon_secrets: Vec::new(),
            health_defaults: Vec::new(),
            leaving: Vec::new(),
            drained: Vec::new(),
            sites: BTreeMap::new(),
            durable: state.clone(),
            state,
            platforms: platforms
                .iter()
                .map(|name| ((*name).into(), Backend::new(name)))
                .collect(),
            views: platforms
                .iter()
                .map(|name| ((*name).into(), build::view(name)))
                .collect(),
            orphan_hold: false,
            orphans: OrphanPolicy::Delete,
            crash: None,
            maintains: false,
            finished: false,
            sizes_of_requests: Fixed(0),
            given_up: BTreeSet::new(),
            passes: 0,
            requested: Vec::new(),
            sizes: Vec::new(),
            actives: Vec::new(),
            lifetime: None,
            asked: storage::Asked::default(),
            stores: sole::Stores::default(),
            queue: BTreeMap::new(),
            process_start: now,
            epoch: 0,
            counter: 0,
        };
        world.start();
        world
    }

    pub fn set_faults(&mut self, faults: Faults) {
        for backend in self.platforms.values_mut() {
            backend.faults = faults;
        }
    }

    pub fn at(&mut self, after: Millis, event: Event) {
        self.counter += 1;
        self.queue.insert((self.now + after, self.counter), event);
    }

    pub fn input<'a>(&'a self, now: Millis, explain: bool) -> Input<'a> {
        Input {
            now,
            process_start: self.process_start,
            groups: &self.groups,
            infrastructure: &self.infrastructure,
            addons: &self.addons,
            addon_secrets: &self.addon_secrets,
            health_defaults: &self.health_defaults,
            leaving: &self.leaving,
            orphans: self.orphans,
            orphan_grace: 120_000,
            orphan_hold: self.orphan_hold,
            state: &self.state,
            platforms: &self.views,
            sizes: &self.sizes_of_requests,
            explain,
        }
    }

    pub fn plan_at(&self, now: Millis, explain: bool) -> Plan {
        let mut counter = self.counter;
        let salt = self.state.uid.as_u64_pair().1;
        plan(&self.input(now, explain), &mut || {
            counter += 1;
            Uuid::from_u64_pair(salt + 1, counter)
        })
    }

    pub fn plan(&self) -> Plan {
        self.plan_at(self.now, true)
    }

    /// Ends the process; another one starts with the state in the store.
    pub fn restart(&mut self) {
        self.epoch += 1;
        self.end_relabels();
        self.state = self.durable.clone();
        self.state.count_from(self.epoch * EPOCH);
        for node in &mut self.state.nodes {
            node.seen = Seen::default();
            node.probe = ProbeResult::default();
            node.in_flight = drover_core::node::InFlight::unknown(&node.record);
        }
        self.state.doubt_soles();
        for request in self.state.requests.values_mut() {
            request.in_flight.call = Attempt::default();
            request.in_flight.answer = None;
        }
        self.forget_calls();
        self.process_start = self.now;
        self.start();
    }

    fn start(&mut self) {
        let names: Vec<Sym> = self.views.keys().cloned().collect();
        for name in names {
            self.hide(&name);
            self.begin_read(&name);
        }
    }

    fn hide(&mut self, platform: &Sym) {
        if let Some(view) = self.views.get_mut(platform) {
            view.visible = false;
            view.callable = false;
            view.trouble = "cannot be reached".into();
        }
    }

    pub fn set_reachable(&mut self, platform: &Sym, reachable: bool) {
        let backend = self.platforms.get_mut(platform).unwrap();
        if backend.reachable == reachable {
            return;
        }
        backend.reachable = reachable;
        if reachable {
            self.begin_read(platform);
        } else {
            self.hide(platform);
        }
    }

    fn begin_read(&mut self, platform: &Sym) {
        let backend = &self.platforms[platform];
        let shown = backend.reachable.then(|| backend.list(self.now));
        let after = self.rng.u64(1..2_000);
        self.at(
            after,
            Event::Read(self.epoch, platform.clone(), self.now, shown),
        );
    }
}
