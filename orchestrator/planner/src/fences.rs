//! Active nodes that the promotion of another one keeps out, whether or not they live.

use drover_core::{
    Phase,
    node::{RemovalReason, Role},
    spec::Group,
};

use crate::Planner;

impl Planner<'_> {
    /// Whether the promotion of another node keeps this one out, though it may live: its group fences, and it is to go
    /// because it is sick or nobody answers on its machine, or its platform is ending it. Until then, who leaves in good
    /// health acts.
    pub(crate) fn is_fenced(&self, at: usize) -> bool {
        let (mark, node) = (&self.marks[at], &self.state.nodes[at]);
        let group = self.input.groups.get(usize::from(mark.group));
        let sick = || {
            let removal = node.removal.map(|removal| removal.reason);
            let ends = node.seen.phase == Phase::Deprovisioning;
            let lost = node.seen.host.lost.is_some();
            mark.sick || removal == Some(RemovalReason::Sick) || lost || ends
        };
        // What is being promoted may be through.
        let settled = matches!(mark.role, Role::Active | Role::Standby);
        // Who may acknowledge alone does so, whoever else is promoted.
        let is_sole = |group: &Group| {
            let sole = self.state.sole.get(&group.path);
            sole.is_some_and(|sole| sole.slot == node.slot)
                || self.state.accepted_losses.contains(&node.slot)
        };
        let fences = |group: &Group| group.fences() && !is_sole(group);
        mark.leaving && settled && group.is_some_and(fences) && sick()
    }

    /// Takes active nodes that somebody else ends, as an eviction does, for sick at once if a standby keeps them out when it
    /// is promoted. They still serve meanwhile: the sooner it is promoted, the shorter nobody does.
    pub(crate) fn relieve_ending(&mut self, group: usize) {
        let fences = self.input.groups[group].fences();
        let mut heirs = self.heirs(group).into_iter();
        if !fences || !heirs.any(|heir| !self.is_outdated(heir)) {
            return;
        }
        let ends = |at: &usize| {
            let (mark, node) = (&self.marks[*at], &self.state.nodes[*at]);
            let ends = mark.fresh && node.seen.phase == Phase::Deprovisioning;
            let repaired = self.state.repairs.contains(&node.slot);
            ends && mark.role == Role::Active && !mark.leaving && !mark.dead && !repaired
        };
        let ending: Vec<usize> = self.own(group).filter(ends).collect();
        for at in ending {
            (self.marks[at].sick, self.marks[at].ripe) = (true, true);
        }
    }

    /// Has an active node that fails its probes go at once, if a standby answers its own and keeps it out when it is promoted.
    /// Others wait until it is known whether many fail: then the cause is not in the nodes. Here the worst is a promotion
    /// that was not necessary, and meanwhile nobody serves.
    pub(crate) fn relieve_failing(&mut self, group: usize) {
        if !self.input.groups[group].fences() {
            return;
        }
        let answers = |heir: usize| {
            let probe = &self.state.nodes[heir].probe;
            probe.good > 0 && probe.bad == 0 && !self.is_outdated(heir)
        };
        let fails = |at: &usize| {
            let (mark, node) = (&self.marks[*at], &self.state.nodes[*at]);
            mark.role == Role::Active && mark.sick && !mark.leaving && node.probe.bad > 0
        };
        let failing: Vec<usize> = self.own(group).filter(fails).collect();
        if !failing.is_empty() && self.heirs(group).into_iter().any(answers) {
            for at in failing {
                self.marks[at].ripe = true;
            }
        }
    }

    /// Whether a node is out for good, though its end may never be known: others are made in its place. Not the last
    /// ones, whose data nobody else has.
    pub(crate) fn is_given_up(&self, at: usize) -> bool {
        let group = usize::from(self.marks[at].group);
        self.is_fenced(at)
            && self.state.nodes[at].seen.host.lost.is_some()
            && self.own(group).any(|other| self.marks[other].available)
    }

    /// Whether a standby is needed while the active node of before is only kept out.
    pub(crate) fn relies_on_fence(&self, group: usize) -> bool {
        self.own(group).any(|at| {
            let mark = &self.marks[at];
            mark.role == Role::Active && !mark.dead && self.is_fenced(at)
        })
    }
}
