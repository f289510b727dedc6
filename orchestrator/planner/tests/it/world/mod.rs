//! A world of simulated platforms in virtual time, and an executor that carries plans out literally.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test file uses another part of it"
)]

pub mod backend;
pub mod build;
mod checks;
pub mod infrastructure;
pub mod labels;
mod roles;
pub mod steps;
mod storage;

pub mod addons;
mod events;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use backend::{Backend, Faults, Thing};
use drover_core::{
    Error, Millis, Phase, Sym,
    addon::WantedAddon,
    node::{Call as Attempt, Outcome, ProbeResult, RemovalReason, Role, Seen},
    resource::{Observed, ResourceKey, Wanted},
    spec::{Group, Health, OrphanPolicy, UpdateStrategy},
};
use drover_planner::{Call, Input, Leaving, Op, Plan, PlatformView, State, apply, plan};
use uuid::Uuid;

/// Consecutive passes without an event or a wake-up from which on the planner counts as looping.
const MAX_ROUNDS: usize = 200;

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
            queue: BTreeMap::new(),
            process_start: now,
            epoch: 0,
            counter: 0,
        };
        world.start();
        world
    }

    /// Changes the desired groups.
    pub fn want(&mut self, groups: Vec<Group>) {
        if std::env::var_os("PLANNER_TRACE").is_some() {
            for g in &groups {
                let hash = g.choices.first().map(|c| &*c.spec_hash);
                eprintln!(
                    "at {}: want {} x{:?}+{} {hash:?} {:?}, kept: {:?}",
                    self.now - 1_000_000_000,
                    g.path,
                    g.size,
                    g.standby,
                    g.budget(),
                    g.storage.as_ref().map(|storage| storage.policy)
                );
            }
        }
        let gone: Vec<Sym> = self.groups.iter().map(|g| g.path.clone()).collect();
        self.sizes
            .extend(gone.into_iter().map(|path| (self.now, path, 0, 0)));
        for group in &groups {
            let mut most = group.total() as usize;
            let rolls = group.update.strategy == UpdateStrategy::Rolling;
            if rolls || group.expire_after.is_some() || group.management.is_some() {
                most += group.budget().surge as usize;
            }
            if group.remediation.create_first && most == group.total() as usize {
                most += 1;
            }
            let marked = most.max(group.total() as usize + group.budget().surge as usize);
            self.sizes
                .push((self.now, group.path.clone(), most, marked));
            let actives = match group.standby {
                0 => marked,
                _ => group.size.unwrap_or(1) as usize,
            };
            self.actives.push((self.now, group.path.clone(), actives));
        }
        for group in &groups {
            self.ask_size(group);
            if let Some(storage) = &group.storage {
                for state in [&mut self.state, &mut self.durable] {
                    state.storage.insert(group.path.clone(), storage.policy);
                }
            }
        }
        self.leaving.extend(self.groups.iter().map(Leaving::of));
        let kept = |one: &Leaving| groups.iter().all(|group| group.path != one.path);
        self.leaving.retain(kept);
        self.groups = groups;
        self.state.generation += 1;
        self.durable.generation += 1;
    }

    pub fn delete(&mut self) {
        self.want(Vec::new());
        self.state.deleting = true;
        self.durable.deleting = true;
    }

    /// Abandons a platform. With `keep`, what it may still show is left alone.
    pub fn abandon(&mut self, platform: &Sym, keep: bool) {
        let uid = self.views[platform].uid.clone();
        let left = self.platforms[platform].things.keys().cloned();
        self.given_up.extend(left);
        let there = |node: &&drover_core::Node| node.platform == *platform;
        let mut ops: Vec<Op> = self
            .state
            .requests
            .values()
            .filter(|request| request.platform == *platform)
            .map(|request| Op::Close {
                request: request.id,
                maybe_until: self.now,
                settled: self.now,
            })
            .collect();
        ops.extend(
            self.state
                .nodes
                .iter()
                .filter(there)
                .map(|node| Op::RecordDropped {
                    slot: node.slot,
                    reason: "Abandoned",
                    message: "".into(),
                    lost: false,
                }),
        );
        ops.push(Op::Abandon {
            platform: platform.clone(),
            uid,
            keep,
            last: true,
        });
        for state in [&mut self.state, &mut self.durable] {
            apply(state, &ops, self.now);
        }
    }

    /// Allows what an abandoned platform shows to be swept after all.
    pub fn sweep(&mut self, platform: &Sym) {
        let op = Op::Sweep {
            uid: self.views[platform].uid.clone(),
            shown_by: Some(platform.clone()),
        };
        for state in [&mut self.state, &mut self.durable] {
            apply(state, std::slice::from_ref(&op), self.now);
        }
    }

    /// Orders the adoption of what platforms show of the cluster and has no record.
    pub fn order_adoption(&mut self) {
        for state in [&mut self.state, &mut self.durable] {
            state.adopt += 1;
        }
    }

    pub fn mark(&mut self, slot: u64) {
        for state in [&mut self.state, &mut self.durable] {
            if let Some(node) = state.node_mut(slot) {
                node.marked = true;
            }
        }
    }

    /// Names a node that is to go because its group is scaled down.
    pub fn scale_away(&mut self, slot: u64) {
        self.mark(slot);
        self.state.scaled_away.insert(slot);
        self.durable.scaled_away.insert(slot);
    }

    pub fn pause(&mut self, paused: bool) {
        self.state.paused = paused;
        self.durable.paused = paused;
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

    /// One pass: plans, checks, makes the plan durable, makes its calls. Returns the plan.
    pub fn pass(&mut self) -> Plan {
        self.passes += 1;
        let planned = self.plan_at(self.now, false);
        let mut explained = self.plan_at(self.now, true);
        explained.report.clear();
        explained.renewals.clear();
        explained.outlook.clear();
        assert_eq!(planned, explained, "a plan is a function of its input");
        self.trace(&planned);
        self.check(&planned);
        self.check_below(&planned);
        self.check_addons(&planned);
        self.counter += planned.ops.len() as u64;
        let crash = self.crash.take();
        if crash == Some(Crash::BeforeCommit) {
            self.restart();
            return planned;
        }
        self.note_storage(&planned);
        if !planned.ops.is_empty() {
            self.durable.next_sequence = self.state.next_sequence;
            self.durable.skipped = self.state.skipped.clone();
        }
        apply(&mut self.durable, &planned.ops, self.now);
        apply(&mut self.state, &planned.ops, self.now);
        for op in &planned.ops {
            if let Op::Request { .. } = op {
                self.requested.push(self.now);
            }
        }
        self.finished |= planned.finished;
        if crash == Some(Crash::BeforeCalls) {
            self.restart();
            return planned;
        }
        for call in &planned.calls {
            self.call(call);
        }
        if crash == Some(Crash::AfterCalls) {
            self.restart();
        }
        planned
    }

    /// Prints what happens, for the analysis of a failing seed.
    fn trace(&self, planned: &Plan) {
        if std::env::var_os("PLANNER_TRACE").is_none() || planned.is_empty() {
            return;
        }
        eprintln!("at {}, crash {:?}", self.now - 1_000_000_000, self.crash);
        for op in &planned.ops {
            match op {
                Op::Request { nodes, request, .. } => {
                    let slots: Vec<_> = nodes.iter().map(|n| (n.slot, n.ordinal)).collect();
                    eprintln!("  request {} {} {slots:?}", request.id, request.group);
                }
                Op::Condition { .. }
                | Op::Own { .. }
                | Op::Adopted { .. }
                | Op::Observed { .. } => {}
                _ => eprintln!("  {op:?}"),
            }
        }
        for call in &planned.calls {
            eprintln!("  {call:?}");
        }
    }

    fn call(&mut self, call: &Call) {
        match call {
            Call::Provision { request, deadline } => self.provision(*request, *deadline),
            Call::Deprovision { slot } => self.deprovision(*slot),
            Call::RoleChange { slot } => self.change_role(*slot),
            Call::Relabel { slot } => self.relabel(*slot),
            Call::Drain { slot, until } => self.run_hook(*slot, *until),
            Call::Adopt { slot } => self.adopt(*slot),
            Call::Confirm { platform } => {
                let confirm = self.state.confirms.or_default(platform.clone());
                assert!(!confirm.in_flight, "one complete read at a time");
                confirm.in_flight = true;
                self.begin_read(platform);
            }
            Call::Resource { key, asked } => self.ask(key, *asked),
        }
    }

    /// Runs until nothing is left to happen or `until` is reached. Returns whether nothing is left.
    pub fn run_until(&mut self, until: Millis) -> bool {
        let mut rounds = 0;
        loop {
            let planned = self.pass();
            if self.finished {
                return true;
            }
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "goes round in circles: {planned:?}");
            if planned.again {
                continue;
            }
            let event = self.queue.keys().next().map(|(at, _)| *at);
            let Some(next) = planned.wake.into_iter().chain(event).min() else {
                return true;
            };
            if next > until {
                self.now = until;
                return false;
            }
            if next > self.now + 1 {
                rounds = 0;
            }
            self.now = self.now.max(next);
            while let Some(entry) = self.queue.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let event = entry.remove();
                self.happen(event);
            }
        }
    }

    /// Whether nothing is left to do or to happen.
    pub fn is_quiet(&self) -> bool {
        let planned = self.plan_at(self.now, false);
        self.queue.is_empty() && planned.is_empty() && planned.wake.is_none()
    }

    /// One pass, then moves on to the next event.
    pub fn run_one(&mut self) {
        let planned = self.pass();
        if self.finished || planned.again {
            return;
        }
        let event = self.queue.keys().next().map(|(at, _)| *at);
        let next = planned.wake.into_iter().chain(event).min();
        self.now = self.now.max(next.unwrap());
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let event = entry.remove();
            self.happen(event);
        }
    }

    pub fn run_for(&mut self, span: Duration) -> bool {
        self.run_until(self.now + span.as_millis() as Millis)
    }

    /// Runs until nothing is left to happen; a day is enough for anything.
    pub fn settle(&mut self) {
        assert!(
            self.run_for(Duration::from_secs(24 * 3600)),
            "still busy after a day: {:?}",
            self.plan()
        );
    }
}
