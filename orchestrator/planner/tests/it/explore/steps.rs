//! Effects of the steps on a state.

use std::collections::BTreeSet;

use drover_core::{
    Error, Phase,
    error::Reason,
    node::{Answer, Call as Attempt, Outcome, Role, Seen},
};
use uuid::Uuid;

use crate::world::build::{at_version, of_template};

use super::{
    balancer::address,
    model::{Model, Step, Thing},
};

impl Model {
    pub(super) fn take(&mut self, step: Step, quiet: bool) {
        if step.is_fault(quiet) {
            self.faults -= 1;
        }
        if step.is_wish() {
            self.wishes -= 1;
        }
        match step {
            Step::Made(id) => {
                let made = self.make(id, usize::MAX);
                self.render(id);
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
                let thing = self.things.remove(&(id, index)).unwrap();
                if self.views[&thing.platform].visible {
                    self.unlisted(id, index);
                }
            }
            Step::Drained(slot) | Step::NotDrained(slot) => {
                let node = self.state.node_mut(slot).unwrap();
                node.in_flight.call.in_flight = false;
                let ended = match step {
                    Step::Drained(_) => Ok(()),
                    _ => Err("exit code 1".into()),
                };
                node.in_flight.changes.hook = Some(Box::new(ended));
            }
            Step::Removed(slot) => {
                let node = self.state.node_mut(slot).unwrap();
                node.in_flight.call = Attempt::default();
                node.seen.gone = true;
                let key = (node.request, node.index);
                self.things.remove(&key);
            }
            Step::NotRemoved(slot) => {
                let next = self.now + 1_000;
                let node = self.state.node_mut(slot).unwrap();
                (
                    node.in_flight.call.in_flight,
                    node.in_flight.call.failures,
                    node.in_flight.call.next,
                ) = (false, 1, next);
            }
            Step::Turned(slot) => self.change_role(slot, true, None),
            Step::TurnLost(slot) => self.change_role(slot, true, Some(false)),
            Step::TurnRefused(slot) => self.change_role(slot, false, Some(true)),
            Step::Told => self.told(true, true),
            Step::ToldLost => self.told(true, false),
            Step::NotTold => self.told(false, false),
            Step::Balance(wanted) => self.balance(wanted),
            Step::Read => self.read(),
            Step::Restart => self.restart(true),
            Step::Unreachable(at) => {
                let view = self.views.values_mut().nth(at).unwrap();
                (view.visible, view.callable) = (false, false);
            }
            Step::Reachable => {
                let mut dark = self.views.iter_mut().filter(|(_, view)| !view.visible);
                let (platform, view) = dark.next().unwrap();
                (view.visible, view.callable, view.visible_since) = (true, true, self.now);
                let known = self.state.nodes.iter();
                let known =
                    known.filter(|node| node.platform == *platform && node.node_id.is_some());
                let gone = known.map(|node| (node.request, node.index));
                let gone = gone.filter(|key| !self.things.contains_key(key));
                for (id, index) in gone.collect::<Vec<_>>() {
                    self.unlisted(id, index);
                }
                self.show();
            }
            Step::Tick => self.tick(),
            Step::Want(version) => {
                self.group = at_version(self.group.clone(), version);
                self.wish();
            }
            Step::Template(digest) => {
                self.group = of_template(self.group.clone(), digest);
                // The spec is unchanged.
                self.most = self.most.max(self.ceiling());
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
        let acting = self.things.values().filter(|thing| thing.lives());
        let acting = acting.filter(|thing| thing.acts).count();
        let most = self.most_acting;
        assert!(
            acting <= most,
            "{acting} are active, at most {most} may: {step:?}"
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
        self.most_acting = self.most_acting.max(self.acting_ceiling());
    }

    /// A role change ends: it took effect or not, and the response is a success, lost or a refusal.
    pub(super) fn change_role(&mut self, slot: u64, happens: bool, failure: Option<bool>) {
        let now = self.now;
        let Some(node) = self.state.node_mut(slot) else {
            return;
        };
        let (key, role) = ((node.request, node.index), node.role);
        if let Some(role_change) = node.in_flight.changes.role_change.as_mut() {
            role_change.call.in_flight = false;
            role_change.done = failure.is_none();
            if let Some(refused) = failure {
                role_change.failed(refused, "");
                role_change.call.failures = role_change.call.failures.min(4);
                role_change.call.next = now + 1_000;
            }
        }
        if happens && let Some(thing) = self.things.get_mut(&key) {
            thing.acts = role != Role::Demoting;
        }
    }

    fn node_of(&mut self, request: Uuid, index: u32) -> Option<&mut drover_core::Node> {
        let mut nodes = self.state.nodes.iter_mut();
        nodes.find(|node| (node.request, node.index) == (request, index))
    }

    /// A thing is no longer listed.
    fn unlisted(&mut self, request: Uuid, index: u32) {
        let now = self.now;
        if let Some(node) = self.node_of(request, index) {
            (node.seen.unlisted, node.seen.last) = (true, now);
        }
    }

    fn make(&mut self, request: Uuid, most: usize) -> Vec<Outcome> {
        let own = self.state.nodes.iter().filter(|n| n.request == request);
        let own: Vec<_> = own
            .map(|n| (n.index, n.ordinal, n.platform.clone(), n.role))
            .collect();
        let mut outcomes = Vec::new();
        for (at, (index, ordinal, platform, role)) in own.into_iter().enumerate() {
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
                acts: role == Role::Active,
            });
            outcomes.push(Outcome::Made(format!("{request}-{index}").into()));
        }
        self.show();
        outcomes
    }

    /// The platform reports to have created all nodes from its present template.
    fn render(&mut self, id: Uuid) {
        let template = self.group.choices[0].template.as_ref();
        let digest = template.map(|template| template.digest.clone());
        self.state.requests.get_mut(&id).unwrap().in_flight.rendered = digest;
    }

    pub(super) fn answer(&mut self, id: Uuid, outcome: Result<Vec<Outcome>, Error>) {
        let at = self.now;
        if let Some(request) = self.state.requests.get_mut(&id) {
            request.in_flight.call.in_flight = false;
            request.in_flight.answer = Some(Answer {
                at,
                taken: false,
                outcome,
            });
        }
    }

    /// Platforms report the actual state.
    pub(super) fn show(&mut self) {
        let now = self.now;
        for (&(id, index), thing) in &self.things.clone() {
            if !self.views[&thing.platform].visible {
                continue;
            }
            let balanced = self.balancer.is_possible;
            if let Some(node) = self.node_of(id, index) {
                if balanced && thing.phase == Phase::Running {
                    node.seen.addresses = [address(node.slot)].into();
                }
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

    pub(super) fn restart(&mut self, begun: bool) {
        // Calls in flight take effect, and their responses are lost.
        let under_way: Vec<Uuid> = self
            .state
            .requests
            .values()
            .filter(|request| request.in_flight.call.in_flight && begun)
            .map(|request| request.id)
            .collect();
        for id in under_way {
            self.make(id, usize::MAX);
        }
        let turning = |node: &drover_core::Node| {
            let role_change = node.in_flight.changes.role_change.as_ref();
            role_change
                .is_some_and(|role_change| role_change.call.in_flight)
                .then_some(node.slot)
        };
        let turning: Vec<u64> = self.state.nodes.iter().filter_map(turning).collect();
        for slot in turning.into_iter().filter(|_| begun) {
            self.change_role(slot, true, None);
        }
        self.forget_balancer(begun);
        for node in &mut self.state.nodes {
            node.seen = Seen::default();
            node.in_flight = drover_core::node::InFlight::unknown(&node.record);
        }
        for request in self.state.requests.values_mut() {
            request.in_flight.call = Attempt::default();
            request.in_flight.answer = None;
            request.in_flight.rendered = None;
            request.in_flight.sent = false;
        }
        self.state.confirms.clear();
        self.reads.clear();
        self.process_start = self.now;
        for view in self.views.values_mut() {
            view.visible_since = self.now;
        }
        self.show();
    }

    /// Time passes until the planner has something to do; calls end by their deadlines.
    fn tick(&mut self) {
        let Some(wake) = self.wake else { return };
        self.now = self.now.max(wake);
        let late: Vec<Uuid> = self
            .state
            .requests
            .values()
            .filter(|request| request.in_flight.call.in_flight && request.deadline <= self.now)
            .map(|request| request.id)
            .collect();
        for id in late {
            let error = Error::new(Reason::DeadlineExceeded, "late");
            self.answer(id, Err(error));
        }
        for node in &mut self.state.nodes {
            let drain = node.removal.map_or(0, |removal| removal.drain);
            if node.in_flight.call.in_flight && drain > 0 && drain <= self.now {
                node.in_flight.call.in_flight = false;
                node.in_flight.changes.hook = Some(Box::new(Err("late".into())));
            }
        }
        self.end_late_telling();
        // Things that are still visible were observed just now.
        self.show();
    }
}
