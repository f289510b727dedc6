//! What a plan leaves for later passes, so that a preview can tell everything that a change leads to.

use drover_core::{Sym, node::RemovalReason};

use crate::{Op, Planner};

/// Steps of a group that follow a plan if nothing changes, beside the replacements of its [`Renewal`](super::Renewal).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Path of the group.
    pub group: Sym,
    /// Number of nodes still to be created, replacements not counted.
    pub creations: u32,
    /// Nodes still to be removed without a replacement, in this order.
    pub removals: Vec<Removal>,
    /// Number of further such removals of which it is not known yet which nodes they concern.
    pub unnamed_removals: u32,
}

/// A node that is still to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Slot of the node.
    pub slot: u64,
    /// Whether its storage is retained.
    pub retain: bool,
}

impl Planner<'_> {
    pub(crate) fn look_ahead(&mut self) {
        if !self.input.explain {
            return;
        }
        let mut outlooks = Vec::new();
        if !self.state.deleting {
            for group in 0..self.input.groups.len() {
                outlooks.push(self.outlook(group));
            }
        }
        let unwanted = (0..self.marks.len()).filter(|&at| {
            let mark = self.marks[at];
            self.is_unwanted(at) && !mark.forgotten && !mark.leaving
        });
        for at in unwanted {
            let node = &self.state.nodes[at];
            let removal = Removal {
                slot: node.slot,
                retain: self.retains(at, RemovalReason::User),
            };
            let known = (outlooks.iter_mut()).find(|outlook| outlook.group == node.group);
            match known {
                Some(outlook) => outlook.removals.push(removal),
                None => outlooks.push(Outlook {
                    group: node.group.clone(),
                    creations: 0,
                    removals: vec![removal],
                    unnamed_removals: 0,
                }),
            }
        }
        outlooks.retain(|outlook| {
            outlook.creations + outlook.unnamed_removals > 0 || !outlook.removals.is_empty()
        });
        self.plan.outlook = outlooks;
    }

    fn outlook(&self, group: usize) -> Outlook {
        let path = &self.input.groups[group].path;
        let going = self.still_surplus(group);
        let named = going.len();
        let removals = going.into_iter().map(|at| Removal {
            slot: self.state.nodes[at].slot,
            retain: self.retains(at, RemovalReason::Surplus) || self.keeps_as_scaled_away(at),
        });
        let owed = self.owed.get(&group).copied().unwrap_or_default();
        Outlook {
            group: path.clone(),
            creations: self.still_missing(group),
            removals: removals.collect(),
            unnamed_removals: owed.saturating_sub(named) as u32,
        }
    }

    /// How many nodes a group lacks after this plan, those whose predecessors are on their way out not counted.
    fn still_missing(&self, group: usize) -> u32 {
        let path = &self.input.groups[group].path;
        let stays = |at: &usize| !self.marks[*at].leaving && !self.marks[*at].dead;
        let staying = self.own(group).filter(stays).count();
        let replaced = self.own(group).filter(|at| {
            let removal = self.state.nodes[*at].removal;
            !stays(at) && removal.is_none_or(|it| it.reason != RemovalReason::Surplus)
        });
        let (mut asked, mut successors) = (0, 0);
        for op in &self.plan.ops {
            if let Op::Request {
                request,
                nodes,
                reason,
                ..
            } = op
                && request.group == *path
            {
                asked += nodes.len();
                successors += if *reason == "ScaleUp" { 0 } else { nodes.len() };
            }
        }
        let awaited = replaced.count().saturating_sub(successors);
        Self::size(&self.input.groups[group]).saturating_sub(staying + asked + awaited) as u32
    }

    /// The nodes that a group has too many, and that this plan leaves.
    fn still_surplus(&self, group: usize) -> Vec<usize> {
        let spec = &self.input.groups[group];
        if self.owed.contains_key(&group) {
            let waits = |at: &usize| self.marks[*at].surplus && !self.marks[*at].leaving;
            return self.own(group).filter(waits).collect();
        }
        let certain = self.tally(group).certain;
        let spare = if self.own(group).any(|at| self.is_renewed(at)) {
            self.budget(group).surge as usize
        } else {
            0
        };
        let surplus = certain.len().saturating_sub(Self::size(spec) + spare);
        match self.beyond(group, &certain) {
            Some((_, last_first)) => last_first.into_iter().take(surplus).collect(),
            None => self.surplus_order(group, certain, surplus),
        }
    }
}
