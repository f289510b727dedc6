//! What a plan leaves for later passes, so that a preview can tell everything that a change leads to.

use std::collections::BTreeSet;

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
    /// Further such removals of which it is not known yet which nodes they concern, at most.
    pub unnamed: Unnamed,
    /// Number of nodes whose storage is still to grow.
    pub growths: u32,
}

/// Nodes that go, whichever they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unnamed {
    /// How many.
    pub nodes: u32,
    /// How many of them may go with their storage.
    pub losing: u32,
    /// How many of the others have storage, which is retained.
    pub keeping: u32,
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
                self.explain_waiting_renewal(group);
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
                    unnamed: Unnamed::default(),
                    growths: 0,
                }),
            }
        }
        outlooks.retain(|outlook| {
            outlook.creations + outlook.unnamed.nodes + outlook.growths > 0
                || !outlook.removals.is_empty()
        });
        self.plan.outlook = outlooks;
    }

    /// Announces replacements that this plan did not come to because the whole group waits.
    fn explain_waiting_renewal(&mut self, group: usize) {
        let path = &self.input.groups[group].path;
        if (self.plan.renewals.iter()).any(|known| known.group == *path) {
            return;
        }
        let left: Vec<usize> = (self.own(group))
            .filter(|&at| self.is_renewed(at) && self.stays(at))
            .collect();
        if !left.is_empty() {
            self.explain_renewal(group, self.budget(group), &left);
        }
    }

    fn outlook(&self, group: usize) -> Outlook {
        let going = self.still_surplus(group);
        let removals = going.iter().map(|&at| Removal {
            slot: self.state.nodes[at].slot,
            retain: self.retains_scaled(at),
        });
        Outlook {
            group: self.input.groups[group].path.clone(),
            creations: self.still_missing(group),
            removals: removals.collect(),
            unnamed: self.unnamed(group, &going),
            growths: self.growths(group),
        }
    }

    fn retains_scaled(&self, at: usize) -> bool {
        self.retains(at, RemovalReason::Surplus) || self.keeps_as_scaled_away(at)
    }

    /// The nodes that a group may have too many beyond those that are known. What is not seen may be one of them.
    fn unnamed(&self, group: usize, named: &[usize]) -> Unnamed {
        let staying: Vec<usize> = self.own(group).filter(|&at| self.stays(at)).collect();
        let most = match self.owed.get(&group) {
            Some(owed) => *owed,
            None => {
                let wanted = Self::size(&self.input.groups[group]) + self.spare(group);
                staying.len().saturating_sub(wanted)
            }
        };
        let nodes = most.saturating_sub(named.len());
        let named: BTreeSet<usize> = named.iter().copied().collect();
        let (mut losing, mut keeping) = (0, 0);
        for at in staying {
            if self.state.nodes[at].storage && !named.contains(&at) {
                let retained = self.retains_scaled(at);
                *(if retained { &mut keeping } else { &mut losing }) += 1;
            }
        }
        let losing = nodes.min(losing);
        Unnamed {
            nodes: nodes as u32,
            losing: losing as u32,
            keeping: keeping.min(nodes - losing) as u32,
        }
    }

    fn stays(&self, at: usize) -> bool {
        !self.marks[at].leaving && !self.marks[at].dead
    }

    /// How many nodes beyond its size a group may have while nodes of it are replaced.
    fn spare(&self, group: usize) -> usize {
        if self.own(group).any(|at| self.is_renewed(at)) {
            self.budget(group).surge as usize
        } else {
            0
        }
    }

    /// How many nodes a group lacks after this plan, those whose predecessors are on their way out not counted.
    fn still_missing(&self, group: usize) -> u32 {
        let path = &self.input.groups[group].path;
        let staying = self.own(group).filter(|&at| self.stays(at)).count();
        let replaced = self.own(group).filter(|&at| {
            let removal = self.state.nodes[at].removal;
            !self.stays(at) && removal.is_none_or(|it| it.reason != RemovalReason::Surplus)
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
        let surplus = certain
            .len()
            .saturating_sub(Self::size(spec) + self.spare(group));
        match self.beyond(group, &certain) {
            Some((_, last_first)) => last_first.into_iter().take(surplus).collect(),
            None => self.surplus_order(group, certain, surplus),
        }
    }
}
