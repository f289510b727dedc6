//! Scaling down: which nodes go without a replacement, at any point of an update or a repair, and what becomes of their
//! storage.

use drover_core::{node::RemovalReason, storage::Retention};

use crate::{NO_GROUP, Op, Planner, Rollout};

impl Planner<'_> {
    /// Removes the surplus nodes of a group that is scaled down. Those that have to wait are marked, so that they are
    /// not replaced in the meantime: a different policy applies to their data than to that of replaced nodes.
    pub(crate) fn scale_away(&mut self, group: usize) {
        let spec = &self.input.groups[group];
        // If replacements take over the storage, ordinals decide which nodes are surplus.
        if spec.hands_on_storage() {
            return;
        }
        let certain = self.tally(group).certain;
        let beyond = certain.len().saturating_sub(Self::size(spec));
        // A dead node may be one of them.
        let dead = |at: &usize| self.marks[*at].dead && !self.marks[*at].leaving;
        let dead = self.own(group).filter(dead).count();
        let most = (certain.len() + dead).saturating_sub(Self::size(spec));
        let ahead = self.made_ahead(group);
        // Nodes that are not seen now may be surplus too, which has to be known when they are seen again.
        let (surplus, unseen) = match self.rollout(&spec.path) {
            Some(rollout) => (self.surplus_of(group, &rollout, most), 0),
            None => {
                let there = |at: &usize| !self.marks[*at].dead && !self.marks[*at].leaving;
                let there = self.own(group).filter(there).count() + dead;
                let at_most = there.saturating_sub(Self::size(spec) + ahead);
                let surplus = most.saturating_sub(ahead);
                (surplus, at_most.saturating_sub(surplus))
            }
        };
        // It may not be known yet whether some of them exist.
        let goes = surplus.min(beyond);
        let order = self.surplus_order(group, certain, surplus - dead.min(surplus));
        for &at in &order {
            self.marks[at].surplus = true;
        }
        if goes > 0 {
            self.remove_surplus(group, beyond - goes);
        }
        let left = order.iter().filter(|&&at| self.marks[at].leaving).count();
        (self.owed).insert(group, (surplus + unseen).saturating_sub(left));
    }

    /// Whether the storage of a node that is removed for another reason is retained like that of a node that is scaled
    /// away: as long as some have still to go, it is not known which of them has a replacement.
    pub(crate) fn goes_for_surplus(&mut self, at: usize, reason: RemovalReason) -> bool {
        let group = self.marks[at].group;
        if group == NO_GROUP || !self.state.nodes[at].storage || reason == RemovalReason::Surplus {
            return false;
        }
        let kept = self.keeps_scaled(&self.state.nodes[at].group);
        let waiting = self.waiting_surplus(usize::from(group)) > 0;
        match self.owed.get_mut(&usize::from(group)) {
            Some(owed) if *owed > 0 => {
                // It counts as one of those that have to go, unless these are known.
                *owed -= usize::from(!waiting);
                kept
            }
            _ => false,
        }
    }

    /// Whether a node was named when its group was scaled down, and scaling retains its storage. It may go for another
    /// reason before its turn comes, or although there is no other node.
    pub(crate) fn keeps_as_scaled_away(&self, at: usize) -> bool {
        let node = &self.state.nodes[at];
        let group = self.marks[at].group;
        if group == NO_GROUP || !node.storage || self.state.deleting {
            return false;
        }
        self.keeps_scaled(&node.group) && self.state.scaled_away.contains(&node.slot)
    }

    /// Whether a group retains the storage of nodes that are scaled away, as specified now or last.
    fn keeps_scaled(&self, group: &str) -> bool {
        let policy = self.policy(group);
        policy.is_some_and(|policy| policy.scaled == Retention::Retain)
    }

    /// Number of nodes that are known to go without a replacement, and have to wait.
    fn waiting_surplus(&self, group: usize) -> usize {
        let waits = |at: &usize| self.marks[*at].surplus && !self.marks[*at].leaving;
        self.own(group).filter(waits).count()
    }

    /// How many nodes are still to be scaled away during a rollout.
    fn surplus_of(&self, group: usize, rollout: &Rollout, most: usize) -> usize {
        let size = Self::size(&self.input.groups[group]);
        let was = match rollout.size {
            0 => size,
            was => was as usize,
        };
        let surplus = (rollout.surplus as usize + was.saturating_sub(size))
            .saturating_sub(size.saturating_sub(was));
        // A death may have taken one of them. While the fate of any node is unknown, that cannot be told.
        let known = self.own(group).all(|at| {
            let mark = &self.marks[at];
            mark.leaving || mark.dead || mark.fresh && self.state.nodes[at].is_resolved()
        });
        if known { surplus.min(most) } else { surplus }
    }

    /// Replacements of sick nodes that were created before those go.
    fn made_ahead(&self, group: usize) -> usize {
        if !self.creates_first(group) {
            return 0;
        }
        let nodes = || self.own(group).map(|at| (at, &self.state.nodes[at]));
        let sick = nodes().filter(|(at, _)| self.marks[*at].sick);
        let Some(since) = sick.map(|(_, node)| node.state_time).min() else {
            return 0;
        };
        let newer = nodes().any(|(at, node)| !self.marks[at].dead && node.create_time >= since);
        usize::from(newer)
    }

    /// Makes the number of nodes that have still to go durable during a rollout, as it cannot be derived from the
    /// number of nodes then.
    pub(crate) fn record_surplus(&mut self, group: usize) {
        let spec = &self.input.groups[group];
        let (Some(&owed), Some(before)) = (self.owed.get(&group), self.rollout(&spec.path)) else {
            return;
        };
        let to = Rollout {
            size: Self::size(spec) as u32,
            surplus: owed as u32,
            ..before.clone()
        };
        if to == before {
            return;
        }
        let path = spec.path.clone();
        let mut ops = self.plan.ops.iter_mut().rev();
        let planned = ops.find_map(|op| match op {
            Op::Rollout { group, to } if *group == path => Some(to),
            _ => None,
        });
        match planned {
            Some(planned) => *planned = Some(to),
            None => self.op(Op::Rollout {
                group: path,
                to: Some(to),
            }),
        }
    }
}
