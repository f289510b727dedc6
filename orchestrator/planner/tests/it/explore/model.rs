//! States of the exploration: a group, its platforms and what may happen to them.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{
    Millis, NodeState, Phase, Sym,
    node::{RemovalReason, Role},
    spec::{Group, OrphanPolicy},
};
use drover_planner::{Call, Input, Op, PlatformView, State, apply, plan};
use uuid::Uuid;

use crate::world::build::view;

use super::{MAX_PASSES, balancer::Balancer};

/// Age in ms beyond which all times are the same: longer than every deadline of these worlds.
pub(super) const OLD: i64 = 4_000_000;

#[derive(Clone, Debug)]
pub(super) struct Thing {
    pub(super) platform: Sym,
    pub(super) ordinal: u32,
    pub(super) phase: Phase,
    pub(super) ready: bool,
    pub(super) leaving: bool,
    /// Whether it is active.
    pub(super) acts: bool,
}

impl Thing {
    pub(super) fn lives(&self) -> bool {
        self.phase != Phase::Failed
    }

    fn is_up(&self) -> bool {
        self.phase == Phase::Running && self.ready && !self.leaving
    }
}

/// One world: the record, the actual state, and the faults that may still happen.
#[derive(Clone)]
pub(super) struct Model {
    pub(super) now: Millis,
    pub(super) process_start: Millis,
    pub(super) state: State,
    pub(super) group: Group,
    pub(super) views: BTreeMap<Sym, PlatformView>,
    pub(super) things: BTreeMap<(Uuid, u32), Thing>,
    /// Reads in flight, each with its start.
    pub(super) reads: BTreeMap<Sym, Millis>,
    pub(super) wake: Option<Millis>,
    /// The most nodes that may exist while calls from before the last change are in flight.
    pub(super) most: usize,
    /// The same for active nodes.
    pub(super) most_acting: usize,
    pub(super) faults: u32,
    pub(super) wishes: u32,
    pub(super) balancer: Balancer,
    ids: u64,
}

/// The next event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
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
    Drained(u64),
    NotDrained(u64),
    Removed(u64),
    NotRemoved(u64),
    Turned(u64),
    TurnLost(u64),
    TurnRefused(u64),
    Told,
    ToldLost,
    NotTold,
    Read,
    Restart,
    /// The platform at this position by name.
    Unreachable(usize),
    Reachable,
    Tick,
    Want(&'static str),
    Template(&'static str),
    Scale(u32),
    Balance(bool),
}

impl Step {
    pub(super) fn is_fault(self, quiet: bool) -> bool {
        match self {
            Self::LostButMade(_)
            | Self::LostAndNothing(_)
            | Self::Refused(_)
            | Self::NoCapacity(_)
            | Self::Partly(_)
            | Self::Unready(..)
            | Self::Dies(..)
            | Self::Vanishes(..)
            | Self::NotDrained(_)
            | Self::NotRemoved(_)
            | Self::TurnLost(_)
            | Self::TurnRefused(_)
            | Self::ToldLost
            | Self::NotTold
            | Self::Restart
            | Self::Unreachable(_) => true,
            // Delays while something is in flight.
            Self::Tick => !quiet,
            _ => false,
        }
    }

    /// Whether something in flight ends without a fault.
    pub(super) fn is_progress(self) -> bool {
        matches!(
            self,
            Self::Made(_)
                | Self::Ready(..)
                | Self::Drained(_)
                | Self::Removed(_)
                | Self::Turned(_)
                | Self::Told
                | Self::Read
                | Self::Reachable
        )
    }

    pub(super) fn is_wish(self) -> bool {
        matches!(
            self,
            Self::Want(_) | Self::Template(_) | Self::Scale(_) | Self::Balance(_)
        )
    }
}

impl Model {
    pub(super) fn new(group: Group, faults: u32, wishes: u32) -> Self {
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
            most_acting: 0,
            group,
            views,
            things: BTreeMap::new(),
            reads: BTreeMap::new(),
            wake: None,
            faults,
            wishes,
            balancer: Balancer::default(),
            ids: 0,
        };
        model.most = model.ceiling();
        model.most_acting = model.acting_ceiling();
        model
    }

    pub(super) fn ceiling(&self) -> usize {
        (self.group.total() + self.group.budget().surge) as usize
    }

    pub(super) fn acting_ceiling(&self) -> usize {
        match self.group.standby {
            0 => self.ceiling(),
            _ => self.group.size.unwrap() as usize,
        }
    }

    /// Plans until nothing is left to do. Returns the worlds in which the process crashes on the way, after a plan was
    /// durable and before any call was made.
    pub(super) fn settle(&mut self) -> Vec<Self> {
        let mut deaths = Vec::new();
        for _ in 0..MAX_PASSES {
            let ids = &mut self.ids;
            let groups = std::slice::from_ref(&self.group);
            let input = Input {
                now: self.now,
                process_start: self.process_start,
                groups,
                infrastructure: &[],
                addons: &self.balancer.wanted,
                addon_secrets: &[],
                health_defaults: &[],
                leaving: &[],
                orphans: OrphanPolicy::Delete,
                orphan_grace: 120_000,
                orphan_hold: false,
                state: &self.state,
                platforms: &self.views,
                sizes: &(),
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
            let Op::Remove { slot, reason, .. } = op else {
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
            let floor = self.group.total() - self.group.budget().unavailable;
            // Surplus active nodes while standby nodes are missing: the active ones that stay have to be enough.
            let acts = self.group.standby > 0 && node.role.may_act();
            let (left, floor) = if acts && *reason == RemovalReason::Surplus {
                let acting = staying.filter(|node| node.role == Role::Active);
                (acting.count(), self.group.size.unwrap())
            } else {
                (staying.count(), floor)
            };
            assert!(
                left >= floor as usize,
                "{left} stay, {reason:?} of {node:?}"
            );
        }
    }

    fn begin(&mut self, call: &Call) {
        match call {
            Call::Provision { request, .. } => {
                self.state
                    .requests
                    .get_mut(request)
                    .unwrap()
                    .in_flight
                    .call
                    .in_flight = true;
            }
            Call::Deprovision { slot } | Call::Drain { slot, .. } => {
                if let Call::Deprovision { .. } = call {
                    self.check_served(*slot);
                }
                self.state.node_mut(*slot).unwrap().in_flight.call.in_flight = true;
            }
            Call::Adopt { .. } => {}
            Call::Confirm { platform } => {
                self.state.confirms.or_default(platform.clone()).in_flight = true;
                self.reads.insert(platform.clone(), self.now);
            }
            Call::RoleChange { slot } => {
                let node = self.state.node_mut(*slot).unwrap();
                let role_change = node.in_flight.changes.role_change.get_or_insert_default();
                assert!(
                    !role_change.call.in_flight,
                    "one change of a role at a time"
                );
                role_change.call.in_flight = true;
            }
            Call::Relabel { .. } => unreachable!("no host has labels"),
            Call::Grow { .. } => unreachable!("no storage grows"),
            Call::Sole { .. } => unreachable!("no store needs standbys"),
            Call::Resource { key, asked } => self.begin_telling(key, *asked),
        }
    }

    /// Possible next steps.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (id, request) in self.state.requests.iter() {
            if request.in_flight.call.in_flight && !self.views[&request.platform].visible {
                steps.extend([Step::LostButMade(*id), Step::LostAndNothing(*id)]);
            } else if request.in_flight.call.in_flight {
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
                // Things that are not visible can die too.
                if thing.phase != Phase::Failed {
                    steps.extend([Step::Dies(id, index), Step::Vanishes(id, index)]);
                }
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
            if node.in_flight.call.in_flight && self.views[&node.platform].visible {
                steps.extend(if node.removal.unwrap().drain > 0 {
                    [Step::Drained(node.slot), Step::NotDrained(node.slot)]
                } else {
                    [Step::Removed(node.slot), Step::NotRemoved(node.slot)]
                });
            }
            let turning = |role_change: &drover_core::node::RoleChange| role_change.call.in_flight;
            if node
                .in_flight
                .changes
                .role_change
                .as_deref()
                .is_some_and(turning)
                && self.views[&node.platform].visible
            {
                let slot = node.slot;
                steps.extend([
                    Step::Turned(slot),
                    Step::TurnLost(slot),
                    Step::TurnRefused(slot),
                ]);
            }
        }
        steps.extend(self.tellings());
        if !self.reads.is_empty() {
            steps.push(Step::Read);
        }
        let dark = self.views.values().any(|view| !view.visible);
        if dark {
            steps.push(Step::Reachable);
        } else {
            steps.extend((0..self.views.len()).map(Step::Unreachable));
        }
        steps.push(Step::Restart);
        if self.wake.is_some() {
            steps.push(Step::Tick);
        }
        let choice = &self.group.choices[0];
        if let Some(template) = &choice.template {
            let others = ["t1", "t2"].into_iter();
            let others = others.filter(|other| *template.digest != **other);
            steps.extend(others.map(Step::Template));
        } else {
            let others = ["v1", "v2"].into_iter();
            let others = others.filter(|other| !choice.spec_hash.starts_with(other));
            steps.extend(others.map(Step::Want));
        }
        let size = self.group.size.unwrap();
        steps.push(Step::Scale(if size == 1 { 2 } else { size - 1 }));
        if self.balancer.is_possible {
            steps.push(Step::Balance(self.balancer.wanted.is_empty()));
        }
        // Whether only time has to pass.
        let quiet = !steps.iter().any(|step| step.is_progress());
        steps.retain(|step| {
            (!step.is_fault(quiet) || self.faults > 0) && (!step.is_wish() || self.wishes > 0)
        });
        steps
    }

    /// Whether the actual state is the desired one.
    pub(super) fn is_as_wanted(&self) -> bool {
        let group = &self.group;
        let right = |node: &drover_core::Node| {
            let thing = self.things.get(&(node.request, node.index));
            let current = group.makes(node) && group.newer_template(node).is_none();
            current && node.state == NodeState::Ready && thing.is_some_and(Thing::is_up)
        };
        let active = self.state.nodes.iter().filter(|n| n.role == Role::Active);
        let acting = self.things.values().filter(|thing| thing.acts).count();
        (active.count(), acting) == (group.size.unwrap() as usize, group.size.unwrap() as usize)
            && self.state.nodes.len() == group.total() as usize
            && self.things.len() == self.state.nodes.len()
            && self.state.nodes.iter().all(right)
            && self.is_balanced()
    }
}
