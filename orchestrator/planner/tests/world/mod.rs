//! A world of simulated platforms in virtual time, and an executor that carries plans out as they are.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test file uses another part of it"
)]

pub mod backend;
pub mod build;
mod checks;
pub mod infrastructure;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use backend::{Backend, Faults, Thing};
use drover_core::{
    Error, Millis, Phase, Sym,
    error::Reason,
    infrastructure::{Observed, Wanted},
    node::{Answer, Call as Attempt, Outcome, ProbeResult, Seen},
    spec::{Group, OrphanPolicy, UpdateStrategy},
};
use drover_planner::{Call, Input, Op, Orphan, Plan, PlatformView, State, apply, plan};
use uuid::Uuid;

/// Passes without an event or a wake in between, before a plan counts as going round in circles.
const MAX_ROUNDS: usize = 200;

/// What will happen at a platform, or reach the orchestrator.
pub enum Event {
    /// Things come into being unless they are there.
    Make(Sym, Vec<Thing>),
    /// A thing moves on.
    Phase(Sym, String, Phase),
    /// A thing can be listed from now on.
    Appear(Sym, String),
    /// A thing is gone for good; the watch says so with proof, without, or not at all.
    Gone(Sym, String, Option<bool>),
    /// A Provision call ends.
    Answered(u64, Uuid, Result<Vec<Outcome>, Error>),
    /// A Deprovision call ends.
    Deprovisioned(u64, u64, bool),
    /// A call about infrastructure does what it asks for.
    Effect(infrastructure::Ask),
    /// A call about infrastructure ends.
    Told(infrastructure::Ask, Result<Observed, Error>),
    /// A complete read ends.
    Read(u64, Sym, Millis, Option<Vec<Thing>>),
}

/// Where the orchestrator dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    BeforeCommit,
    BeforeCalls,
    AfterCalls,
}

pub struct World {
    pub now: Millis,
    pub rng: fastrand::Rng,
    pub groups: Vec<Group>,
    pub infrastructure: Vec<Wanted>,
    /// The infrastructure that really is there, by platform.
    pub sites: BTreeMap<Sym, infrastructure::Site>,
    pub state: State,
    /// What the store has.
    pub durable: State,
    pub platforms: BTreeMap<Sym, Backend>,
    pub views: BTreeMap<Sym, PlatformView>,
    pub orphan_hold: bool,
    pub orphans: OrphanPolicy,
    /// The next pass ends in a crash there.
    pub crash: Option<Crash>,
    pub finished: bool,
    pub passes: usize,
    /// Requests that were recorded, each with its time.
    pub requested: Vec<Millis>,
    /// The most nodes that each group might have, and since when.
    /// With what is replaced by name alone, and without.
    sizes: Vec<(Millis, Sym, usize, usize)>,
    /// Nodes of this group on its way to Ready die after so long.
    pub lifetime: Option<Millis>,
    queue: BTreeMap<(Millis, u64), Event>,
    process_start: Millis,
    epoch: u64,
    pub counter: u64,
}

impl World {
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
            finished: false,
            passes: 0,
            requested: Vec::new(),
            sizes: Vec::new(),
            lifetime: None,
            queue: BTreeMap::new(),
            process_start: now,
            epoch: 0,
            counter: 0,
        };
        world.start();
        world
    }

    /// Wants these groups from now on.
    pub fn want(&mut self, groups: Vec<Group>) {
        if std::env::var_os("PLANNER_TRACE").is_some() {
            for g in &groups {
                let hash = g.choices.first().map(|c| &*c.spec_hash);
                eprintln!(
                    "at {}: want {} x{:?} {hash:?} {:?}",
                    self.now - 1_000_000_000,
                    g.path,
                    g.size,
                    g.budget()
                );
            }
        }
        let gone: Vec<Sym> = self.groups.iter().map(|g| g.path.clone()).collect();
        self.sizes
            .extend(gone.into_iter().map(|path| (self.now, path, 0, 0)));
        for group in &groups {
            let mut most = group.size.unwrap_or(1) as usize;
            if group.update.strategy == UpdateStrategy::Rolling {
                most += group.budget().surge as usize;
            }
            if group.remediation.create_first && most == group.size.unwrap_or(1) as usize {
                most += 1;
            }
            let marked = most.max(group.size.unwrap_or(1) as usize + group.budget().surge as usize);
            self.sizes
                .push((self.now, group.path.clone(), most, marked));
        }
        self.groups = groups;
        self.state.generation += 1;
        self.durable.generation += 1;
    }

    pub fn delete(&mut self) {
        self.want(Vec::new());
        self.state.deleting = true;
        self.durable.deleting = true;
    }

    pub fn mark(&mut self, slot: u64) {
        for state in [&mut self.state, &mut self.durable] {
            if let Some(node) = state.node_mut(slot) {
                node.marked = true;
            }
        }
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
            health_defaults: &[],
            orphans: self.orphans,
            orphan_grace: 120_000,
            orphan_hold: self.orphan_hold,
            state: &self.state,
            platforms: &self.views,
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

    /// The process ends and another begins with what the store has.
    pub fn restart(&mut self) {
        self.epoch += 1;
        self.state = self.durable.clone();
        for node in &mut self.state.nodes {
            node.seen = Seen::default();
            node.probe = ProbeResult::default();
            node.call = Attempt::default();
        }
        for request in self.state.requests.values_mut() {
            request.call = Attempt::default();
            request.answer = None;
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

    /// A platform cannot be reached any more, or again.
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

    /// One pass: plans, checks, makes it durable, calls. Answers the plan.
    pub fn pass(&mut self) -> Plan {
        self.passes += 1;
        let planned = self.plan_at(self.now, false);
        let mut explained = self.plan_at(self.now, true);
        explained.report.clear();
        explained.renewals.clear();
        assert_eq!(planned, explained, "a plan is a function of its input");
        self.trace(&planned);
        self.check(&planned);
        self.check_below(&planned);
        self.counter += planned.ops.len() as u64;
        let crash = self.crash.take();
        if crash == Some(Crash::BeforeCommit) {
            self.restart();
            return planned;
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

    /// Prints what happens, to find out why a seed fails.
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
                Op::Condition { .. } | Op::Observed { .. } => {}
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
            Call::Confirm { platform } => {
                let confirm = self.state.confirms.or_default(platform.clone());
                assert!(!confirm.in_flight, "one complete read at a time");
                confirm.in_flight = true;
                self.begin_read(platform);
            }
            Call::Infrastructure {
                platform,
                uid,
                asked,
            } => self.ask(&(platform.clone(), uid.clone()), *asked),
        }
    }

    /// Runs until nothing is left to happen or `until` has come. Answers whether nothing is left.
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

    /// One pass, and then on to when something happens next.
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

    fn happen(&mut self, event: Event) {
        match event {
            Event::Make(platform, things) => self.make(&platform, things),
            Event::Phase(platform, id, phase) => {
                let backend = self.platforms.get_mut(&platform).unwrap();
                if let Some(thing) = backend.things.get_mut(&id)
                    && !thing.is_dead()
                {
                    thing.phase = phase;
                    self.show(&platform, &id);
                    if phase == Phase::Running
                        && let Some(lifetime) = self.lifetime
                    {
                        self.at(lifetime, Event::Phase(platform, id, Phase::Failed));
                    }
                }
            }
            Event::Appear(platform, id) => self.show(&platform, &id),
            Event::Gone(platform, id, confirmed) => {
                self.platforms
                    .get_mut(&platform)
                    .unwrap()
                    .things
                    .remove(&id);
                if let Some(confirmed) = confirmed {
                    self.unlist(&platform, &id, confirmed);
                }
            }
            Event::Answered(epoch, request, outcome) => {
                if epoch == self.epoch
                    && let Some(request) = self.state.requests.get_mut(&request)
                {
                    if let Err(error) = &outcome
                        && error.reason() == Reason::NoCapacity
                    {
                        let until = self.now + 60_000;
                        let view = self.views.get_mut(&request.platform).unwrap();
                        view.no_capacity.push(build::shortage(until));
                    }
                    request.call.in_flight = false;
                    request.answer = Some(Answer {
                        at: self.now,
                        taken: false,
                        outcome,
                    });
                }
            }
            Event::Deprovisioned(epoch, slot, good) => {
                if epoch == self.epoch
                    && let Some(node) = self.state.node_mut(slot)
                {
                    node.call.in_flight = false;
                    node.call.failures = if good { 0 } else { node.call.failures + 1 };
                    node.call.next = self.now + if good { 30_000 } else { 1_000 };
                }
            }
            Event::Effect(ask) => self.effect(ask),
            Event::Told(ask, outcome) => self.told(&ask, outcome),
            Event::Read(epoch, platform, begun, shown) => {
                if epoch == self.epoch {
                    self.end_read(&platform, begun, shown);
                }
            }
        }
    }

    fn end_read(&mut self, platform: &Sym, begun: Millis, shown: Option<Vec<Thing>>) {
        let read = shown.filter(|_| self.platforms[platform].reachable);
        if let Some(confirm) = self.state.confirms.get_mut(platform) {
            confirm.in_flight = false;
            confirm.next = self.now + if read.is_some() { 0 } else { 5_000 };
        }
        let Some(shown) = read else { return };
        let backend = &self.platforms[platform];
        let view = self.views.get_mut(platform).unwrap();
        if !view.visible {
            (view.visible, view.callable, view.visible_since) = (true, true, self.now);
            view.trouble = "".into();
        }
        let slots: BTreeSet<(Uuid, u32)> = shown.iter().map(|t| (t.request, t.index)).collect();
        for node in &mut self.state.nodes {
            if *node.platform_uid == *backend.uid && !slots.contains(&(node.request, node.index)) {
                if node.seen.missing_from == 0 && !node.seen.unlisted && node.seen.last > 0 {
                    // Listed until now.
                    node.seen.last = node.seen.last.max(begun);
                }
                node.seen.missing_from = begun;
                let runs = |t: &&Thing| t.request == node.request && t.index == node.index;
                node.seen.silent = backend
                    .things
                    .values()
                    .find(runs)
                    .is_none_or(|t| t.phase != Phase::Running);
            }
        }
        self.state
            .orphans
            .retain(|(at, id), _| at != platform || shown.iter().any(|t| t.id == **id));
        for thing in &shown {
            self.take_in(platform, thing, begun);
        }
        // What changed while it was read.
        let listed = self.platforms[platform].list(self.now);
        for thing in shown {
            if listed.iter().all(|t| t.id != thing.id) {
                self.unlist(platform, &thing.id, false);
            }
        }
        for thing in listed {
            self.take_in(platform, &thing, self.now);
        }
    }

    fn show(&mut self, platform: &Sym, id: &str) {
        let backend = &self.platforms[platform];
        if !self.views[platform].visible {
            return;
        }
        let thing = backend
            .list(self.now)
            .into_iter()
            .find(|thing| thing.id == id);
        if let Some(thing) = thing {
            self.take_in(platform, &thing, self.now);
        }
    }

    fn take_in(&mut self, platform: &Sym, thing: &Thing, at: Millis) {
        if thing.owner != self.state.uid {
            return;
        }
        let slot = |n: &&mut drover_core::Node| {
            n.request == thing.request && n.index == thing.index && n.platform == *platform
        };
        if let Some(node) = self.state.nodes.iter_mut().find(slot) {
            if at < node.seen.last {
                return;
            }
            if node.node_id.is_none() {
                node.seen.node_id = thing.id.as_str().into();
            }
            node.seen.phase = thing.phase;
            node.seen.ready = Some(thing.ready);
            node.seen.last = at;
            node.seen.missing_from = 0;
            node.seen.unlisted = false;
        } else {
            let since = self.now;
            let key = (platform.clone(), thing.id.as_str().into());
            self.state.orphans.entry(key).or_insert_with(|| Orphan {
                request: thing.request,
                index: thing.index,
                sequence: thing.sequence,
                group: thing.group.clone(),
                ordinal: thing.ordinal,
                platform_uid: self.views[platform].uid.clone(),
                since,
            });
        }
    }

    fn unlist(&mut self, platform: &Sym, id: &str, confirmed: bool) {
        if !self.views[platform].visible {
            return;
        }
        let own =
            |n: &&mut drover_core::Node| n.node_id.as_deref().unwrap_or(&n.seen.node_id) == id;
        if let Some(node) = self.state.nodes.iter_mut().find(own) {
            node.seen.gone |= confirmed;
            node.seen.unlisted = true;
            node.seen.last = self.now;
        }
        self.state.orphans.remove(&(platform.clone(), id.into()));
    }
}
