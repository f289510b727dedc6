//! Roles: which nodes of a group are active, which are standby, and which take over.
//!
//! There are never more active nodes than wanted: a node that may still act counts as active until it is proven dead or
//! absent, and a node that was told to become active counts from that intent on. No node is told to give way to
//! another; a role is taken back only if the promotion was refused, so that nothing of it happened. Where promotions
//! fence, an active node that is to go and is sick, or ends already, need not be proven dead: once another one is promoted,
//! it can do nothing.

use std::collections::BTreeSet;

use drover_core::{
    NodeState, Phase, Sym,
    node::{RemovalReason, Role, RoleChange},
    spec::{Budget, Group},
};

use crate::{Call, ConditionKey, ConditionKind, Op, Planner};

/// Refused promotions of a node before another one is tried instead.
const ATTEMPTS: u8 = 3;

impl Planner<'_> {
    /// Desired number of active nodes.
    pub(crate) fn actives(group: &Group) -> usize {
        group.size.unwrap_or(1) as usize
    }

    /// Continues role changes, and promotes ready standby nodes in place of active nodes that are proven gone.
    pub(crate) fn assign_roles(&mut self, group: usize) {
        if self
            .own(group)
            .all(|at| self.marks[at].role == Role::Active)
        {
            return;
        }
        let turning: Vec<usize> = self
            .own(group)
            .filter(|&at| {
                let mark = &self.marks[at];
                let turns = matches!(mark.role, Role::Promoting | Role::Demoting);
                turns && !mark.dead && !mark.leaving
            })
            .collect();
        for at in turning {
            if self.full() {
                return;
            }
            self.follow_turn(group, at);
        }
        self.promote(group);
    }

    /// Evaluates the result of a role change, or retries it.
    fn follow_turn(&mut self, group: usize, at: usize) {
        let (spec, node) = (&self.input.groups[group], &self.state.nodes[at]);
        let role_change = node.in_flight.changes.role_change.as_deref();
        if role_change.is_some_and(|role_change| role_change.done) {
            let role = match node.role {
                Role::Promoting | Role::Active => Role::Active,
                Role::Demoting | Role::Standby => Role::Standby,
            };
            self.change_role(at, role);
            return;
        }
        if let Some(role_change) = role_change.filter(|role_change| role_change.call.failures > 0) {
            self.hold_promotion(group, at, role_change);
        }
        if role_change.is_some_and(|role_change| role_change.call.in_flight) {
            return;
        }
        if node.role == Role::Promoting && self.acting(group) > Self::actives(spec) {
            // Fewer are wanted by now. Told again, it would be one too many; it is removed as surplus.
            self.note(&spec.path, Some(node.slot), false, "Standby", || {
                "is not wanted as an active one any more".into()
            });
            return;
        }
        let exhausted =
            |role_change: &RoleChange| role_change.refused && role_change.call.failures >= ATTEMPTS;
        if node.role == Role::Promoting && role_change.is_some_and(exhausted) {
            let other = self.heirs(group).into_iter().next();
            if other.is_some_and(|other| self.failures(other) < ATTEMPTS) {
                self.change_role(at, Role::Demoting);
                self.plan.calls.push(Call::RoleChange { slot: node.slot });
                return;
            }
        }
        self.call_turn(at, &spec.path);
    }

    /// Makes a node take its intended role, as soon as that is possible.
    fn call_turn(&mut self, at: usize, group: &str) {
        let node = &self.state.nodes[at];
        let (slot, platform) = (node.slot, node.platform.clone());
        let runs = self.marks[at].fresh && node.seen.phase == Phase::Running;
        let callable = self.input.platforms.get(&platform);
        if !runs || !callable.is_some_and(|view| view.callable) {
            self.note(group, Some(slot), false, "Promote", || {
                format!("its role is changed when {platform} shows that it runs")
            });
            return;
        }
        let next = node
            .in_flight
            .changes
            .role_change
            .as_ref()
            .map_or(0, |role_change| role_change.call.next);
        if self.input.now < next {
            self.wake(next);
            self.note_until(group, Some(slot), false, "BackOff", Some(next), || {
                "its promotion is tried again then".into()
            });
            return;
        }
        self.plan.calls.push(Call::RoleChange { slot });
    }

    fn hold_promotion(&mut self, group: usize, at: usize, role_change: &RoleChange) {
        let (path, node) = (&self.input.groups[group].path, &self.state.nodes[at]);
        let key = ConditionKey {
            group: path.clone(),
            kind: ConditionKind::PromotionFailed,
        };
        let way_out = if role_change.refused {
            ""
        } else {
            "; whether it is active is not known, so no other one is tried while it lives"
        };
        let message = format!("{}: {}{way_out}", node.name(), role_change.message);
        let reason = if role_change.refused {
            "Refused"
        } else {
            "Unknown"
        };
        self.hold(key, reason, &message);
        self.note(path, Some(node.slot), false, "PromotionFailed", || message);
    }

    /// Promotes ready standby nodes, as many as active ones are certainly missing.
    fn promote(&mut self, group: usize) {
        let spec = &self.input.groups[group];
        let lacks = Self::actives(spec).saturating_sub(self.acting(group));
        if lacks == 0 || self.awaits_sole(group) {
            return;
        }
        let mut told = 0;
        // What the group says of its hook is said of nodes that were made by it.
        let fences = self.relies_on_fence(group);
        for at in self.heirs(group) {
            if told == lacks || self.full() {
                return;
            }
            if fences && self.is_outdated(at) {
                continue;
            }
            let node = &self.state.nodes[at];
            let (slot, name) = (node.slot, node.name());
            let next = node
                .in_flight
                .changes
                .role_change
                .as_ref()
                .map_or(0, |role_change| role_change.call.next);
            if self.input.now < next {
                self.wake(next);
                continue;
            }
            self.note(&spec.path, Some(slot), true, "Promote", || {
                format!("{name} becomes active")
            });
            self.change_role(at, Role::Promoting);
            self.plan.calls.push(Call::RoleChange { slot });
            told += 1;
        }
        if told < lacks {
            self.note(&spec.path, None, false, "Standby", || {
                format!(
                    "{} active nodes are missing, and no standby is Ready",
                    lacks - told
                )
            });
        }
    }

    /// Reports that active nodes are missing and no standby can take over. Called after everything that is done about
    /// it.
    pub(crate) fn judge_promotion(&mut self, group: usize) {
        let spec = &self.input.groups[group];
        let there = self.acting(group) + self.asked_active(group);
        let lacks = Self::actives(spec).saturating_sub(there);
        if spec.standby == 0 || lacks == 0 || self.awaits_sole(group) {
            return;
        }
        let waiting: Vec<String> = self
            .own(group)
            .filter(|&at| {
                let mark = &self.marks[at];
                mark.role == Role::Standby && !mark.available && !mark.leaving && !mark.dead
            })
            .map(|at| {
                let node = &self.state.nodes[at];
                let words = format!("{} is not Ready {}", node.name(), node.message);
                words.trim_end().to_owned()
            })
            .collect();
        if waiting.is_empty() {
            return;
        }
        let key = ConditionKey {
            group: spec.path.clone(),
            kind: ConditionKind::PromotionFailed,
        };
        let message = format!("{lacks} active nodes are missing: {}", waiting.join(", "));
        self.hold(key, "NoStandbyReady", &message);
    }

    fn change_role(&mut self, at: usize, role: Role) {
        let slot = self.state.nodes[at].slot;
        self.marks[at].role = role;
        self.op(Op::RoleChange { slot, role });
    }

    /// Number of nodes that are active, or may be for all that is known.
    pub(crate) fn acting(&self, group: usize) -> usize {
        self.own(group).filter(|&at| self.may_act(at)).count()
    }

    pub(crate) fn may_act(&self, at: usize) -> bool {
        let (mark, seen) = (&self.marks[at], &self.state.nodes[at].seen);
        let ended = mark.fresh && matches!(seen.phase, Phase::Failed | Phase::Terminated);
        let out = mark.leaving && ended || self.is_fenced(at);
        mark.role.may_act() && !mark.dead && !out
    }

    /// Number of available nodes that are active.
    pub(crate) fn serving(&self, group: usize) -> usize {
        let serves = |at: &usize| self.serves(*at) && self.marks[*at].role == Role::Active;
        self.own(group).filter(serves).count()
    }

    /// Standby nodes that can take over now, best first: fewest failures, then up to date, then oldest. None while only
    /// another node may have what was acknowledged.
    pub(crate) fn heirs(&self, group: usize) -> Vec<usize> {
        if self.sole(group).is_some() {
            return Vec::new();
        }
        self.ready_standbys(group)
    }

    fn ready_standbys(&self, group: usize) -> Vec<usize> {
        let mut heirs: Vec<usize> = self
            .own(group)
            .filter(|&at| {
                let (mark, node) = (&self.marks[at], &self.state.nodes[at]);
                let view = self.input.platforms.get(&node.platform);
                mark.role == Role::Standby
                    && mark.available
                    && !mark.leaving
                    && !mark.dead
                    && view.is_some_and(|view| view.callable)
            })
            .collect();
        heirs.sort_by_key(|&at| {
            let slot = self.state.nodes[at].slot;
            (self.failures(at), self.is_renewed(at), slot)
        });
        heirs
    }

    fn failures(&self, at: usize) -> u8 {
        let role_change = self.state.nodes[at].in_flight.changes.role_change.as_ref();
        role_change.map_or(0, |role_change| role_change.call.failures)
    }

    /// Whether a standby is ready to take over from this node as soon as it is gone.
    pub(crate) fn is_relieved(&self, group: usize, at: usize) -> bool {
        self.marks[at].role.may_act() && !self.heirs(group).is_empty()
    }

    /// Those of the sick nodes that standby nodes can take over from now. No breaker holds a promotion: it is there so
    /// that one cause does not replace everybody, and here somebody else is ready.
    pub(crate) fn handed_over(&self, group: usize, sick: &[usize]) -> Vec<usize> {
        let staying = self
            .own(group)
            .filter(|&at| self.may_act(at) && !self.marks[at].leaving)
            .count();
        // They follow others.
        let taken = Self::actives(&self.input.groups[group]).saturating_sub(staying);
        let free = self.heirs(group).len().saturating_sub(taken);
        let sick = sick.iter().copied();
        sick.filter(|&at| self.marks[at].ripe && self.may_act(at))
            .take(free)
            .collect()
    }

    /// Which of the requested nodes start as active: those that follow an active node in its place, then the lowest
    /// ordinals. If a standby has ever run, it takes over and the new node becomes standby; one that never ran has
    /// nothing to take over with.
    pub(crate) fn who_begins_active(&self, group: usize, ordinals: &[u32]) -> BTreeSet<u32> {
        let spec = &self.input.groups[group];
        if spec.standby == 0 {
            return ordinals.iter().copied().collect();
        }
        let ran = |at: &usize| {
            let (mark, node) = (&self.marks[*at], &self.state.nodes[*at]);
            let ran = match node.state {
                NodeState::Ready => true,
                NodeState::Unhealthy => *node.reason != *"StartTimeout",
                NodeState::Requested
                | NodeState::Provisioning
                | NodeState::Starting
                | NodeState::Draining
                | NodeState::Deprovisioning
                | NodeState::Failed => false,
            };
            mark.role == Role::Standby && !mark.dead && !mark.leaving && (ran || mark.available)
        };
        // Whoever gets the storage of a sole writer is active, whatever others have.
        let returns = self.sole_returns(group);
        let heirs = self.own(group).filter(|at| ran(at) && !returns);
        let heirs = heirs.count();
        // Nobody but a standby takes over from a node that may live: only promotions fence.
        let awaited = |&at: &usize| {
            self.leaves_its_part(at) || self.marks[at].role.may_act() && self.is_fenced(at)
        };
        let awaited = self.own(group).filter(awaited);
        let there = self.acting(group) + self.asked_active(group) + heirs + awaited.count();
        let lacks = Self::actives(spec).saturating_sub(there);
        let vacated = self.vacated(group);
        let (mut order, others): (Vec<u32>, Vec<u32>) = ordinals
            .iter()
            .partition(|ordinal| vacated.contains(ordinal));
        // Places that are taken later keep their share.
        let later = vacated.len() - order.len();
        let count = lacks.min(order.len().max(lacks.saturating_sub(later)));
        order.extend(others);
        order.into_iter().take(count).collect()
    }

    /// Number of active nodes that this plan requests.
    fn asked_active(&self, group: usize) -> usize {
        let asked = self.asked(group);
        asked.filter(|node| node.role.may_act()).count()
    }

    /// Whether a node no longer acts and its storage waits for its successor in the same place: it holds the most
    /// recent writes, and no other storage may be taken for it.
    fn leaves_its_part(&self, at: usize) -> bool {
        !self.may_act(at) && self.hands_on_its_part(at)
    }

    fn hands_on_its_part(&self, at: usize) -> bool {
        let node = &self.state.nodes[at];
        let spec = &self.input.groups[usize::from(self.marks[at].group)];
        // The role that an orphan had is not known.
        let kept = node.removal.map_or_else(
            || self.retains(at, RemovalReason::Dead),
            |it| it.retain && it.reason != RemovalReason::Orphan,
        );
        let followed = spec.hands_on_storage() && (node.ordinal as usize) < Self::size(spec);
        self.marks[at].role.may_act() && node.storage && kept && followed
    }

    /// Free ordinals whose storage an active node has left, and in whose place no node has acted since.
    pub(crate) fn vacated(&self, group: usize) -> BTreeSet<u32> {
        let spec = &self.input.groups[group];
        if spec.standby == 0 || !spec.hands_on_storage() {
            return BTreeSet::new();
        }
        let (from, to) = (self.starts[group] as usize, self.starts[group + 1] as usize);
        let left = self.members[from..to]
            .iter()
            .map(|&at| at as usize)
            .filter(|&at| self.marks[at].forgotten && self.hands_on_its_part(at))
            .map(|at| self.state.nodes[at].ordinal);
        let mut vacated: BTreeSet<u32> = left.collect();
        if let Some(before) = self.state.vacated.get(&spec.path) {
            let size = Self::size(spec);
            vacated.extend(before.iter().filter(|ordinal| (**ordinal as usize) < size));
        }
        if !vacated.is_empty() {
            let own = self.own(group).filter(|&at| !self.is_orphan(at));
            let held: BTreeSet<u32> = own
                .map(|at| self.state.nodes[at].ordinal)
                .chain(self.asked(group).map(|node| node.ordinal))
                .collect();
            vacated.retain(|ordinal| !held.contains(ordinal));
        }
        vacated
    }

    /// Whether a node goes because it had no record: it neither succeeds nor acts for another node.
    fn is_orphan(&self, at: usize) -> bool {
        let removal = self.state.nodes[at].removal;
        removal.is_some_and(|it| it.reason == RemovalReason::Orphan)
    }

    /// Once others act, the storage of their predecessors no longer holds the most recent writes.
    fn supersede(&mut self, group: usize) {
        let active = self.own(group).filter(|&at| {
            self.marks[at].role == Role::Active && self.may_act(at) && !self.is_orphan(at)
        });
        if active.count() < Self::actives(&self.input.groups[group]) {
            return;
        }
        let former: Vec<usize> = self
            .own(group)
            .filter(|&at| self.leaves_its_part(at))
            .collect();
        for at in former {
            if self.full() {
                return;
            }
            self.change_role(at, Role::Standby);
        }
    }

    /// Records which places have to be filled by active nodes, as nodes may be requested when nothing else tells any
    /// more who was active.
    pub(crate) fn follow_vacated(&mut self) {
        for group in 0..self.input.groups.len() {
            let spec = &self.input.groups[group];
            if spec.standby == 0 && self.state.vacated.is_empty() {
                continue;
            }
            self.supersede(group);
            let acting = self.own(group).filter(|&at| self.may_act(at));
            let acting = acting.filter(|&at| !self.is_orphan(at)).count();
            let to = if acting + self.asked_active(group) >= Self::actives(spec) {
                BTreeSet::new()
            } else {
                self.vacated(group)
            };
            let before = self.state.vacated.get(&spec.path);
            if before.map_or(!to.is_empty(), |before| *before != to) {
                let group = spec.path.clone();
                self.op(Op::Vacated { group, to });
            }
        }
        let gone = |path: &&Sym| !self.paths.contains_key(&***path);
        let gone: Vec<Sym> = self.state.vacated.keys().filter(gone).cloned().collect();
        for group in gone {
            let to = BTreeSet::new();
            self.op(Op::Vacated { group, to });
        }
    }

    /// The order in which surplus nodes go: standby nodes before active ones, and of each role only as many as are too
    /// many.
    pub(crate) fn surplus_order(
        &self,
        group: usize,
        certain: Vec<usize>,
        surplus: usize,
    ) -> Vec<usize> {
        let spec = &self.input.groups[group];
        let (acting, standby): (Vec<usize>, Vec<usize>) = certain
            .iter()
            .partition(|&&at| self.marks[at].role.may_act());
        if standby.is_empty() && spec.standby == 0 {
            return self.pick(group, certain, surplus);
        }
        let over = standby.len().saturating_sub(spec.standby as usize);
        // Nodes that are about to be promoted are still needed.
        let lacks = Self::actives(spec).saturating_sub(self.acting(group));
        let mut order = self.pick(group, standby, surplus.min(over.saturating_sub(lacks)));
        let too_many = acting.len().saturating_sub(Self::actives(spec));
        let too_many = if spec.standby == 0 {
            too_many.min(surplus.saturating_sub(order.len()))
        } else {
            too_many
        };
        let mut active = self.pick(group, acting.clone(), acting.len());
        // A node that does not act yet is missed least.
        active.sort_by_key(|&at| self.marks[at].role == Role::Active);
        active.truncate(too_many);
        order.extend(active);
        order
    }

    fn pick(&self, group: usize, candidates: Vec<usize>, count: usize) -> Vec<usize> {
        if !self.is_ordered(group) {
            return self.removal_order(group, candidates, count);
        }
        let mut order = self.highest(candidates);
        order.truncate(count);
        order
    }

    /// The order of replacement: standby nodes first, so that one of them can take over from an active one.
    pub(crate) fn renewal_order(
        &self,
        group: usize,
        candidates: Vec<usize>,
        count: usize,
    ) -> Vec<usize> {
        let mut order = self.removal_order(group, candidates, count);
        if self.input.groups[group].standby > 0 {
            order.sort_by_key(|&at| self.marks[at].role.may_act());
        }
        order
    }

    /// Whether an active node that is to be replaced has to stay until an up-to-date standby can take over. As many may
    /// change at a time as may be unavailable, and at least one, because no other node can be active while it is.
    pub(crate) fn awaits_standby(&mut self, group: usize, at: usize, budget: Budget) -> bool {
        let spec = &self.input.groups[group];
        if spec.standby == 0 || !self.marks[at].role.may_act() {
            return false;
        }
        let (slot, marked) = (self.state.nodes[at].slot, self.state.nodes[at].marked);
        let open = self.own(group).any(|other| {
            let mark = &self.marks[other];
            mark.role == Role::Standby && !mark.leaving && self.is_renewed(other)
        });
        let changing = self
            .own(group)
            .filter(|&other| {
                let mark = &self.marks[other];
                let turns = matches!(mark.role, Role::Promoting | Role::Demoting);
                other != at && self.may_act(other) && (mark.leaving || turns)
            })
            .count();
        let staying = self
            .own(group)
            .filter(|&other| self.may_act(other) && !self.marks[other].leaving)
            .count();
        let lacks = Self::actives(spec).saturating_sub(staying);
        // A permission that does not end would hold it for ever.
        let mut heirs = if marked && self.is_stuck_alone(at) {
            self.ready_standbys(group)
        } else {
            self.heirs(group)
        };
        heirs.retain(|&heir| !self.is_renewed(heir));
        let waits = (open && !marked)
            || changing >= (budget.unavailable as usize).max(1)
            || heirs.len() <= lacks;
        if waits {
            self.note(&spec.path, Some(slot), false, "Standby", || {
                "replaced when a standby that is as wanted can take over".into()
            });
        }
        waits
    }
}
