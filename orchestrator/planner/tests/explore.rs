//! Every state that a group can come into: each order of what platforms do, each fault at each point of it, a spec that
//! changes in the middle. In none of them are there too many or, by our own doing, too few, and from each there is a way
//! to what is wanted.
//!
//! `PLANNER_EXPLORE=full cargo test --release -p drover-planner --test explore -- --nocapture` goes through all of it;
//! without that, smaller worlds have to do.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what must be there fails the test if it is not, and how much was seen is part of the result"
)]

mod world;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use drover_core::{
    Error, Millis, NodeState, Phase, Sym,
    error::Reason,
    node::{Answer, Call as Attempt, Outcome, RemovalReason, Seen},
    spec::{Group, OrphanPolicy},
};
use drover_planner::{Call, Input, Op, PlatformView, State, apply, plan};
use uuid::Uuid;
use world::build::{at_version, group, rolling, view};

/// Older than this is all the same: beyond every deadline of these worlds.
const OLD: i64 = 4_000_000;
/// Nothing goes on by itself for so many passes without something from outside.
const MAX_PASSES: usize = 60;

#[derive(Clone, Debug)]
struct Thing {
    platform: Sym,
    ordinal: u32,
    phase: Phase,
    ready: bool,
    leaving: bool,
}

impl Thing {
    fn lives(&self) -> bool {
        self.phase != Phase::Failed
    }

    fn is_up(&self) -> bool {
        self.phase == Phase::Running && self.ready && !self.leaving
    }
}

/// One world: the record, what there really is, and what may still go wrong.
#[derive(Clone)]
struct Model {
    now: Millis,
    process_start: Millis,
    state: State,
    group: Group,
    views: BTreeMap<Sym, PlatformView>,
    things: BTreeMap<(Uuid, u32), Thing>,
    /// Reads under way, each with its beginning.
    reads: BTreeMap<Sym, Millis>,
    /// When to plan again.
    wake: Option<Millis>,
    /// The most that there may be, as long as calls of before the last change are under way.
    most: usize,
    faults: u32,
    wishes: u32,
    ids: u64,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Made(Uuid),
    LostButMade(Uuid),
    LostAndNothing(Uuid),
    Refused(Uuid),
    NoCapacity(Uuid),
    Partly(Uuid),
    Ready(Uuid, u32),
    Unready(Uuid, u32),
    Recovers(Uuid, u32),
    Dies(Uuid, u32),
    Vanishes(Uuid, u32),
    Removed(u64),
    NotRemoved(u64),
    Read,
    Restart,
    Unreachable,
    Reachable,
    Tick,
    Want(&'static str),
    Scale(u32),
}

impl Step {
    fn is_fault(self, quiet: bool) -> bool {
        match self {
            Self::LostButMade(_)
            | Self::LostAndNothing(_)
            | Self::Refused(_)
            | Self::NoCapacity(_)
            | Self::Partly(_)
            | Self::Unready(..)
            | Self::Dies(..)
            | Self::Vanishes(..)
            | Self::NotRemoved(_)
            | Self::Restart
            | Self::Unreachable => true,
            // To take long while something is under way.
            Self::Tick => !quiet,
            _ => false,
        }
    }

    fn is_wish(self) -> bool {
        matches!(self, Self::Want(_) | Self::Scale(_))
    }
}

impl Model {
    fn new(group: Group, faults: u32, wishes: u32) -> Self {
        let mut views = BTreeMap::new();
        for name in ["a", "b"] {
            let mut view = view(name);
            (view.visible, view.callable) = (true, true);
            views.insert(Sym::from(name), view);
        }
        let mut model = Self {
            now: 1_000_000_000,
            process_start: 1,
            state: State {
                uid: Uuid::from_u128(7),
                generation: 1,
                next_slot: 1,
                next_sequence: 1,
                ..State::default()
            },
            most: 0,
            group,
            views,
            things: BTreeMap::new(),
            reads: BTreeMap::new(),
            wake: None,
            faults,
            wishes,
            ids: 0,
        };
        model.most = model.ceiling();
        model
    }

    fn ceiling(&self) -> usize {
        (self.group.size.unwrap() + self.group.budget().surge) as usize
    }

    /// Plans until nothing is left to be done. Answers the worlds in which the process dies on the way, after a plan was
    /// durable and before any call was made.
    fn settle(&mut self) -> Vec<Self> {
        let mut deaths = Vec::new();
        for _ in 0..MAX_PASSES {
            let ids = &mut self.ids;
            let groups = std::slice::from_ref(&self.group);
            let input = Input {
                now: self.now,
                process_start: self.process_start,
                groups,
                infrastructure: &[],
                health_defaults: &[],
                orphans: OrphanPolicy::Delete,
                orphan_grace: 120_000,
                orphan_hold: false,
                state: &self.state,
                platforms: &self.views,
                explain: false,
            };
            let planned = plan(&input, &mut || {
                *ids += 1;
                Uuid::from_u64_pair(1, *ids)
            });
            self.check(&planned.ops);
            apply(&mut self.state, &planned.ops, self.now);
            self.wake = planned.wake;
            if planned.ops.is_empty() && planned.calls.is_empty() {
                return deaths;
            }
            if self.faults > 0 && !planned.calls.is_empty() {
                let mut dead = self.clone();
                dead.faults -= 1;
                dead.restart(false);
                deaths.push(dead);
            }
            for call in &planned.calls {
                self.begin(call);
            }
        }
        panic!("goes round in circles: {:?}", self.state);
    }

    fn check(&self, ops: &[Op]) {
        let mut leaving: BTreeSet<u64> = self
            .state
            .nodes
            .iter()
            .filter(|node| node.removal.is_some())
            .map(|node| node.slot)
            .collect();
        for op in ops {
            let Op::Remove { slot, reason } = op else {
                continue;
            };
            assert!(leaving.insert(*slot), "removed twice");
            let node = self.state.node(*slot).unwrap();
            let up = |node: &drover_core::Node| {
                let thing = self.things.get(&(node.request, node.index));
                thing.is_some_and(Thing::is_up)
            };
            if !matches!(reason, RemovalReason::Outdated | RemovalReason::Surplus) || !up(node) {
                continue;
            }
            assert!(self.views[&node.platform].visible, "unseen and removed");
            let staying = self.state.nodes.iter();
            let staying = staying.filter(|node| !leaving.contains(&node.slot) && up(node));
            let floor = self.group.size.unwrap() - self.group.budget().unavailable;
            let left = staying.count();
            assert!(
                left >= floor as usize,
                "{left} stay, {reason:?} of {node:?}"
            );
        }
    }

    fn begin(&mut self, call: &Call) {
        match call {
            Call::Provision { request, .. } => {
                self.state.requests.get_mut(request).unwrap().call.in_flight = true;
            }
            Call::Deprovision { slot } => {
                self.state.node_mut(*slot).unwrap().call.in_flight = true;
            }
            Call::Confirm { platform } => {
                self.state.confirms.or_default(platform.clone()).in_flight = true;
                self.reads.insert(platform.clone(), self.now);
            }
            Call::Infrastructure { .. } => unreachable!("there is none"),
        }
    }

    /// What can happen now.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (id, request) in self.state.requests.iter() {
            if request.call.in_flight && self.views[&request.platform].visible {
                steps.extend([
                    Step::Made(*id),
                    Step::LostButMade(*id),
                    Step::LostAndNothing(*id),
                    Step::Refused(*id),
                    Step::NoCapacity(*id),
                ]);
                let asked = self.state.nodes.iter().filter(|n| n.request == *id);
                if asked.count() > 1 {
                    steps.push(Step::Partly(*id));
                }
            }
        }
        for (&(id, index), thing) in &self.things {
            if !self.views[&thing.platform].visible {
                continue;
            }
            match (thing.phase, thing.ready) {
                (Phase::Failed, _) => continue,
                (Phase::Running, true) => steps.push(Step::Unready(id, index)),
                (Phase::Running, false) => steps.push(Step::Recovers(id, index)),
                _ => steps.push(Step::Ready(id, index)),
            }
            steps.extend([Step::Dies(id, index), Step::Vanishes(id, index)]);
        }
        for node in &self.state.nodes {
            if node.call.in_flight && self.views[&node.platform].visible {
                steps.extend([Step::Removed(node.slot), Step::NotRemoved(node.slot)]);
            }
        }
        if !self.reads.is_empty() {
            steps.push(Step::Read);
        }
        let dark = self.views.values().any(|view| !view.visible);
        steps.push(if dark {
            Step::Reachable
        } else {
            Step::Unreachable
        });
        steps.push(Step::Restart);
        if self.wake.is_some() {
            steps.push(Step::Tick);
        }
        let now = &*self.group.choices[0].spec_hash;
        for version in ["v1", "v2"] {
            if !now.starts_with(version) {
                steps.push(Step::Want(version));
            }
        }
        let size = self.group.size.unwrap();
        steps.push(Step::Scale(if size == 1 { 2 } else { size - 1 }));
        // Whether only time has to pass.
        let quiet = !steps.iter().any(|step| {
            matches!(
                step,
                Step::Made(_) | Step::Ready(..) | Step::Removed(_) | Step::Read | Step::Reachable
            )
        });
        steps.retain(|step| {
            (!step.is_fault(quiet) || self.faults > 0) && (!step.is_wish() || self.wishes > 0)
        });
        steps
    }

    fn take(&mut self, step: Step, quiet: bool) {
        if step.is_fault(quiet) {
            self.faults -= 1;
        }
        if step.is_wish() {
            self.wishes -= 1;
        }
        match step {
            Step::Made(id) => {
                let made = self.make(id, usize::MAX);
                self.answer(id, Ok(made));
            }
            Step::LostButMade(id) => {
                self.make(id, usize::MAX);
                let lost = Error::new(Reason::DeadlineExceeded, "lost");
                self.answer(id, Err(lost));
            }
            Step::LostAndNothing(id) => self.answer(id, Err(Error::unavailable("lost"))),
            Step::Refused(id) => self.answer(id, Err(Error::new(Reason::Invalid, "no"))),
            Step::NoCapacity(id) => self.answer(id, Err(Error::new(Reason::NoCapacity, "full"))),
            Step::Partly(id) => {
                let made = self.make(id, 1);
                self.answer(id, Ok(made));
            }
            Step::Ready(id, index) | Step::Recovers(id, index) => {
                let thing = self.things.get_mut(&(id, index)).unwrap();
                (thing.phase, thing.ready) = (Phase::Running, true);
                self.show();
            }
            Step::Unready(id, index) => {
                self.things.get_mut(&(id, index)).unwrap().ready = false;
                self.show();
            }
            Step::Dies(id, index) => {
                self.things.get_mut(&(id, index)).unwrap().phase = Phase::Failed;
                self.show();
            }
            Step::Vanishes(id, index) => {
                self.things.remove(&(id, index));
                let now = self.now;
                let node = self.node_of(id, index);
                if let Some(node) = node {
                    (node.seen.unlisted, node.seen.last) = (true, now);
                }
            }
            Step::Removed(slot) => {
                let node = self.state.node_mut(slot).unwrap();
                node.call = Attempt::default();
                node.seen.gone = true;
                let key = (node.request, node.index);
                self.things.remove(&key);
            }
            Step::NotRemoved(slot) => {
                let next = self.now + 1_000;
                let node = self.state.node_mut(slot).unwrap();
                (node.call.in_flight, node.call.failures, node.call.next) = (false, 1, next);
            }
            Step::Read => self.read(),
            Step::Restart => self.restart(true),
            Step::Unreachable => {
                let view = self.views.get_mut("a").unwrap();
                (view.visible, view.callable) = (false, false);
            }
            Step::Reachable => {
                let view = self.views.get_mut("a").unwrap();
                (view.visible, view.callable, view.visible_since) = (true, true, self.now);
                self.show();
            }
            Step::Tick => self.tick(),
            Step::Want(version) => {
                self.group = at_version(self.group.clone(), version);
                self.wish();
            }
            Step::Scale(size) => {
                self.group.size = Some(size);
                self.wish();
            }
        }
        let living = self.things.values().filter(|thing| thing.lives());
        let (living, most) = (living.count(), self.most);
        assert!(
            living <= most,
            "{living} live, at most {most} may: {step:?}"
        );
        let places: BTreeSet<(u32, bool)> = self
            .things
            .values()
            .filter(|thing| thing.lives())
            .map(|thing| (thing.ordinal, true))
            .collect();
        assert_eq!(places.len(), living, "two in one place");
    }

    fn wish(&mut self) {
        self.state.generation += 1;
        self.most = self.most.max(self.ceiling());
    }

    fn node_of(&mut self, request: Uuid, index: u32) -> Option<&mut drover_core::Node> {
        let mut nodes = self.state.nodes.iter_mut();
        nodes.find(|node| (node.request, node.index) == (request, index))
    }

    fn make(&mut self, request: Uuid, most: usize) -> Vec<Outcome> {
        let own = self.state.nodes.iter().filter(|n| n.request == request);
        let own: Vec<_> = own
            .map(|n| (n.index, n.ordinal, n.platform.clone()))
            .collect();
        let mut outcomes = Vec::new();
        for (at, (index, ordinal, platform)) in own.into_iter().enumerate() {
            if at >= most {
                outcomes.push(Outcome::Failed(Error::internal("broken")));
                continue;
            }
            self.things.entry((request, index)).or_insert(Thing {
                platform,
                ordinal,
                phase: Phase::Pending,
                ready: true,
                leaving: false,
            });
            outcomes.push(Outcome::Made(format!("{request}-{index}").into()));
        }
        self.show();
        outcomes
    }

    fn answer(&mut self, id: Uuid, outcome: Result<Vec<Outcome>, Error>) {
        let at = self.now;
        if let Some(request) = self.state.requests.get_mut(&id) {
            request.call.in_flight = false;
            request.answer = Some(Answer {
                at,
                taken: false,
                outcome,
            });
        }
    }

    /// What platforms show of what there is.
    fn show(&mut self) {
        let now = self.now;
        for (&(id, index), thing) in &self.things.clone() {
            if !self.views[&thing.platform].visible {
                continue;
            }
            if let Some(node) = self.node_of(id, index) {
                if node.node_id.is_none() {
                    node.seen.node_id = format!("{id}-{index}").into();
                }
                node.seen.phase = thing.phase;
                node.seen.ready = Some(thing.ready);
                node.seen.last = now;
                node.seen.missing_from = 0;
                node.seen.unlisted = false;
            }
        }
    }

    /// Complete reads end.
    fn read(&mut self) {
        for (platform, begun) in std::mem::take(&mut self.reads) {
            let confirm = self.state.confirms.or_default(platform.clone());
            (confirm.in_flight, confirm.next) = (false, 0);
            if !self.views[&platform].visible {
                confirm.next = self.now + 5_000;
                continue;
            }
            for node in &mut self.state.nodes {
                let there = self.things.contains_key(&(node.request, node.index));
                if node.platform == platform && !there {
                    (node.seen.missing_from, node.seen.silent) = (begun, true);
                }
            }
        }
        self.show();
    }

    fn restart(&mut self, begun: bool) {
        // What was under way is done, and nobody hears of it.
        let under_way: Vec<Uuid> = self
            .state
            .requests
            .values()
            .filter(|request| request.call.in_flight && begun)
            .map(|request| request.id)
            .collect();
        for id in under_way {
            self.make(id, usize::MAX);
        }
        for node in &mut self.state.nodes {
            node.seen = Seen::default();
            node.call = Attempt::default();
        }
        for request in self.state.requests.values_mut() {
            request.call = Attempt::default();
            request.answer = None;
            request.sent = false;
        }
        self.state.confirms.clear();
        self.reads.clear();
        self.process_start = self.now;
        for view in self.views.values_mut() {
            view.visible_since = self.now;
        }
        self.show();
    }

    /// Time passes until the planner has something to do; what is called ends by its deadline.
    fn tick(&mut self) {
        let Some(wake) = self.wake else { return };
        self.now = self.now.max(wake);
        let late: Vec<Uuid> = self
            .state
            .requests
            .values()
            .filter(|request| request.call.in_flight && request.deadline <= self.now)
            .map(|request| request.id)
            .collect();
        for id in late {
            let error = Error::new(Reason::DeadlineExceeded, "late");
            self.answer(id, Err(error));
        }
        // What goes on to be shown has been seen a moment ago.
        self.show();
    }

    /// Whether all is as wanted.
    fn is_as_wanted(&self) -> bool {
        let group = &self.group;
        let right = |node: &drover_core::Node| {
            let thing = self.things.get(&(node.request, node.index));
            group.makes(node) && node.state == NodeState::Ready && thing.is_some_and(Thing::is_up)
        };
        self.state.nodes.len() == group.size.unwrap() as usize
            && self.things.len() == self.state.nodes.len()
            && self.state.nodes.iter().all(right)
    }

    /// The state without what makes no difference: names, counters, words, and how long ago what is long ago was.
    fn key(&self) -> u64 {
        let ago = |time: Millis| match time {
            0 => i64::MIN,
            _ => (time as i64 - self.now as i64).max(-OLD),
        };
        let requests: Vec<Uuid> = {
            let mut all: Vec<(u64, Uuid)> = self
                .state
                .nodes
                .iter()
                .map(|node| (node.sequence, node.request))
                .chain(self.state.requests.values().map(|r| (r.sequence, r.id)))
                .collect();
            all.sort_unstable();
            all.dedup();
            all.into_iter().map(|(_, id)| id).collect()
        };
        let name = |id: &Uuid| requests.iter().position(|one| one == id);
        let mut hash = DefaultHasher::new();
        (self.faults, self.wishes, self.most, self.group.size).hash(&mut hash);
        self.group.choices[0].spec_hash.hash(&mut hash);
        ago(self.process_start).hash(&mut hash);
        self.wake.map(ago).hash(&mut hash);
        for view in self.views.values() {
            (view.visible, ago(view.visible_since)).hash(&mut hash);
        }
        for (id, thing) in &self.things {
            let phase = format!("{:?}", thing.phase);
            (name(&id.0), id.1, phase, thing.ready, &*thing.platform).hash(&mut hash);
        }
        for (platform, begun) in &self.reads {
            (&**platform, ago(*begun)).hash(&mut hash);
        }
        for node in &self.state.nodes {
            let removal = node.removal.map(|r| (r.reason.as_str(), ago(r.since)));
            (
                name(&node.request),
                node.index,
                node.ordinal,
                &*node.spec_hash,
            )
                .hash(&mut hash);
            (format!("{:?}", node.state), &*node.reason, node.stable).hash(&mut hash);
            (ago(node.create_time), ago(node.state_time), removal).hash(&mut hash);
            (
                ago(node.settled),
                ago(node.maybe_until),
                node.node_id.is_some(),
            )
                .hash(&mut hash);
            let seen = &node.seen;
            (format!("{:?}", seen.phase), seen.ready, ago(seen.last)).hash(&mut hash);
            (
                ago(seen.missing_from),
                seen.silent,
                seen.gone,
                seen.unlisted,
            )
                .hash(&mut hash);
            (node.call.in_flight, node.call.failures, ago(node.call.next)).hash(&mut hash);
        }
        for request in self.state.requests.values() {
            (
                name(&request.id),
                ago(request.first_sent),
                ago(request.deadline),
            )
                .hash(&mut hash);
            (
                request.attempts,
                request.made_nothing,
                request.call.in_flight,
            )
                .hash(&mut hash);
            (request.sent, request.answer.is_some(), &*request.spec_hash).hash(&mut hash);
            request
                .answer
                .as_ref()
                .map(|answer| ago(answer.at))
                .hash(&mut hash);
        }
        for (key, back_off) in self.state.backoffs.iter() {
            (
                &*key.spec_hash,
                &*key.platform,
                format!("{:?}", key.subject),
            )
                .hash(&mut hash);
            (back_off.failures, ago(back_off.last), ago(back_off.next)).hash(&mut hash);
            format!("{:?}", back_off.kind).hash(&mut hash);
        }
        for (_, rollout) in self.state.rollouts.iter() {
            (&*rollout.target, rollout.ready, rollout.left).hash(&mut hash);
            ago(rollout.progress).hash(&mut hash);
        }
        hash.finish()
    }

    /// From here on nothing goes wrong any more: how it ends.
    fn calm(mut self) -> bool {
        self.faults = 0;
        self.wishes = 0;
        for _ in 0..3_000 {
            self.settle();
            // Each thing that is under way comes to its end, then time passes.
            let good = self.steps().into_iter().find(|step| {
                matches!(
                    step,
                    Step::Made(_)
                        | Step::Ready(..)
                        | Step::Recovers(..)
                        | Step::Removed(_)
                        | Step::Read
                        | Step::Reachable
                )
            });
            match good {
                Some(step) => self.take(step, true),
                None if self.wake.is_some() => self.take(Step::Tick, true),
                None => return self.is_as_wanted(),
            }
        }
        false
    }
}

/// Goes through all states. Answers how many there are.
fn explore(what: &str, start: Model, most: usize) -> usize {
    let mut seen = HashSet::new();
    let mut transitions = 0_u64;
    let mut ends = 0_u64;
    let mut open = vec![start];
    while let Some(mut model) = open.pop() {
        open.extend(model.settle());
        if !seen.insert(model.key()) {
            continue;
        }
        if seen.len() >= most {
            break;
        }
        let steps = model.steps();
        let quiet = !steps.iter().any(|step| {
            matches!(
                step,
                Step::Made(_) | Step::Ready(..) | Step::Removed(_) | Step::Read | Step::Reachable
            )
        });
        // From a sample of all states, and from each in which nothing happens by itself any more.
        if seen.len() % 64 == 0
            || steps
                .iter()
                .all(|step| step.is_fault(quiet) || step.is_wish())
        {
            ends += 1;
            let shown = format!("{:#?}", model.state);
            assert!(model.clone().calm(), "it never becomes as wanted: {shown}");
        }
        for step in steps {
            let mut next = model.clone();
            next.take(step, quiet);
            transitions += 1;
            open.push(next);
        }
    }
    let whole = if open.is_empty() { "all" } else { "the first" };
    println!(
        "{what}: {whole} {} states, {transitions} transitions, {ends} followed to their end, 0 violations",
        seen.len()
    );
    seen.len()
}

fn start(size: u32, platforms: &[&str], budget: (u32, u32), faults: u32, wishes: u32) -> Model {
    let mut group = group("data", size, platforms);
    group.update = rolling(budget.0, budget.1);
    if platforms.len() > 1 {
        group.choices[0].max = Some(size.max(2) - 1);
    }
    let mut model = Model::new(group, 0, 0);
    // It begins with all nodes Ready.
    for _ in 0..50 {
        model.settle();
        let steps = model.steps();
        let good = |step: &&Step| matches!(step, Step::Made(_) | Step::Ready(..));
        match steps.iter().find(good) {
            Some(step) => model.take(*step, true),
            None => break,
        }
    }
    assert!(model.is_as_wanted());
    model.now += 3_600_000;
    model.show();
    model.faults = faults;
    model.wishes = wishes;
    model
}

#[test]
fn no_state_of_an_update_breaks_floor_or_ceiling_and_each_leads_to_what_is_wanted() {
    let full = std::env::var("PLANNER_EXPLORE").is_ok_and(|value| value == "full");
    let mut states = 0;
    let most = if full { usize::MAX } else { 12_000 };
    for (surge, unavailable) in [(1, 0), (0, 1), (1, 1)] {
        let what = format!("1 node, surge {surge}, unavailable {unavailable}, 2 faults, 1 change");
        states += explore(&what, start(1, &["a"], (surge, unavailable), 2, 1), most);
        let what = format!("2 nodes, surge {surge}, unavailable {unavailable}, 1 fault, 1 change");
        states += explore(&what, start(2, &["a"], (surge, unavailable), 1, 1), most);
        let what =
            format!("2 nodes on 2 platforms, surge {surge}, unavailable {unavailable}, 1 fault");
        states += explore(
            &what,
            start(2, &["a", "b"], (surge, unavailable), 1, 1),
            most,
        );
    }
    if full {
        for (surge, unavailable) in [(1, 0), (0, 1), (1, 1)] {
            for (size, faults, wishes) in [(2, 2, 1), (2, 1, 2), (3, 1, 1), (3, 2, 1)] {
                let what = format!(
                    "{size} nodes on 2 platforms, surge {surge}, unavailable {unavailable}, {faults} faults, {wishes} changes"
                );
                let model = start(size, &["a", "b"], (surge, unavailable), faults, wishes);
                states += explore(&what, model, 3_000_000);
            }
        }
    }
    println!("{states} states in all");
    assert!(states > 10_000, "{states}");
}
