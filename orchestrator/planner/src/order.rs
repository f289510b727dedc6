//! Ordering: by ordinal within a group, and by dependency between groups.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{
    Millis, NodeState, Sym,
    spec::{Group, Hook, Management},
};

use crate::{NO_GROUP, Op, Planner, observe::millis};

/// A group that is no longer wanted, as far as the removal of its nodes depends on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaving {
    /// Path of the group.
    pub path: Sym,
    /// Whether its nodes are removed one at a time, the highest ordinal first.
    pub ordered: bool,
    /// Paths of the groups whose nodes stay until its own are gone.
    pub depends_on: Vec<Sym>,
    /// Hook that runs inside a node before its removal.
    pub pre_stop: Option<Hook>,
    /// Time that a node has to stop gracefully.
    pub grace: std::time::Duration,
}

impl Leaving {
    /// Keeps these settings of a group while its spec is known.
    #[must_use]
    pub fn of(group: &Group) -> Self {
        Self {
            path: group.path.clone(),
            ordered: is_ordered(group),
            depends_on: group.depends_on.clone(),
            pre_stop: group.lifecycle.as_ref().and_then(|l| l.pre_stop.clone()),
            grace: group.grace,
        }
    }
}

/// Whether the nodes of a group are created and removed one at a time.
pub(crate) fn is_ordered(group: &Group) -> bool {
    group.management == Some(Management::OrderedReady)
}

/// Per mille of the group's maximum age at which a node expires: 900 to 1100. Derived from the identity of the node, so
/// that it never changes.
fn share(node: &drover_core::Node) -> u64 {
    let seed = node.request.as_u128() ^ u128::from(node.index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    900 + (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as u64 % 201
}

impl Planner<'_> {
    pub(crate) fn is_ordered(&self, group: usize) -> bool {
        is_ordered(&self.input.groups[group])
    }

    /// Finds the ordered groups in which an ordinal below the size is free, as an update with surge leaves them: nodes
    /// with ordinals beyond the size are then replaced until the low ordinals are taken again.
    pub(crate) fn find_gaps(&mut self) {
        for group in 0..self.input.groups.len() {
            if !self.is_ordered(group) {
                continue;
            }
            let size = Self::size(&self.input.groups[group]);
            let taken: BTreeSet<u32> = self
                .own(group)
                .filter(|&at| !self.marks[at].dead)
                .map(|at| self.state.nodes[at].ordinal)
                .collect();
            if taken.range(..size as u32).count() < size {
                self.gaps.insert(group);
            }
        }
    }

    /// Whether a node has an ordinal beyond the size of its ordered group while a lower one is free.
    pub(crate) fn is_misplaced(&self, at: usize) -> bool {
        let group = usize::from(self.marks[at].group);
        // An active node is not replaced merely because of its ordinal.
        let acts = |spec: &Group| spec.standby > 0 && self.marks[at].role.may_act();
        self.gaps.contains(&group)
            && !acts(&self.input.groups[group])
            && self.state.nodes[at].ordinal as usize >= Self::size(&self.input.groups[group])
    }

    /// When a node reaches the maximum age of its group.
    fn expiry(&self, at: usize) -> Option<Millis> {
        let group = self.input.groups.get(usize::from(self.marks[at].group))?;
        let age = millis(group.expire_after?);
        let node = &self.state.nodes[at];
        Some(node.create_time + (age / 1000).saturating_mul(share(node)) + age % 1000)
    }

    /// Whether a node has reached the maximum age of its group.
    pub(crate) fn is_expired(&self, at: usize) -> bool {
        self.expiry(at).is_some_and(|due| self.input.now >= due)
    }

    /// Wakes when the next node of a group reaches its maximum age.
    pub(crate) fn watch_expiry(&mut self, group: usize) {
        if self.input.groups[group].expire_after.is_none() {
            return;
        }
        let now = self.input.now;
        let next = self
            .own(group)
            .filter(|&at| !self.marks[at].leaving)
            .filter_map(|at| Some((self.expiry(at)?, at)))
            .filter(|(due, _)| *due > now)
            .min();
        if let Some((next, at)) = next {
            self.wake(next);
            let (path, slot) = (
                self.input.groups[group].path.clone(),
                self.state.nodes[at].slot,
            );
            self.note_until(&path, Some(slot), false, "Lifetime", Some(next), || {
                "the first of its group to be replaced for its age".into()
            });
        }
    }

    /// Records the most nodes that a group has had at a time. Nodes that are missing below that number are healed,
    /// which waits for fewer others than nodes that never existed.
    pub(crate) fn follow_growth(&mut self, group: usize) {
        let spec = &self.input.groups[group];
        let before = self.state.grown.get(&spec.path).copied();
        let to = if self.is_ordered(group) || !spec.depends_on.is_empty() {
            let size = Self::size(spec) as u32;
            let available = self.own(group).filter(|&at| self.marks[at].available);
            let available = (available.count() as u32).min(size);
            Some(before.unwrap_or_default().min(size).max(available)).filter(|most| *most > 0)
        } else {
            None
        };
        if to != before {
            self.op(Op::PeakSizeChanged {
                group: spec.path.clone(),
                to,
            });
        }
    }

    /// Drops the record for groups that are gone.
    pub(crate) fn drop_growth(&mut self) {
        let gone: Vec<Sym> = self
            .state
            .grown
            .keys()
            .filter(|path| !self.paths.contains_key(&***path))
            .cloned()
            .collect();
        for group in gone {
            self.op(Op::PeakSizeChanged { group, to: None });
        }
    }

    fn grown(&self, group: usize) -> usize {
        let path = &self.input.groups[group].path;
        self.state.grown.get(path).copied().unwrap_or_default() as usize
    }

    /// How many of the missing nodes of a group may be requested now, given the number of nodes that it has and keeps.
    pub(crate) fn in_order(&mut self, group: usize, need: usize, staying: usize) -> usize {
        let mut may = need;
        let grown = self.grown(group);
        if let Some(on) = self.awaited_group(group) {
            may = may.min(grown.saturating_sub(staying));
            if may < need {
                let path = self.input.groups[group].path.clone();
                self.note(&path, None, false, "DependsOn", || {
                    format!("waits for group {on}; {} wait", need - may)
                });
            }
        }
        if may == 0 || !self.is_ordered(group) {
            return may;
        }
        let next = self.free_ordinals(group, 1).first().copied();
        let next = next.unwrap_or_default();
        // Standby nodes may not become Ready without the active one, so its replacement does not wait for them.
        let acts = self.vacated(group).contains(&next);
        let heals = acts || (next as usize) < grown;
        let blocker = self.own(group).find(|&at| {
            let (mark, ordinal) = (&self.marks[at], self.state.nodes[at].ordinal);
            let lower = ordinal < next && !acts;
            let made = self.is_being_made(at);
            !mark.dead && (made && (lower || !heals) || lower && !heals && !mark.available)
        });
        let Some(at) = blocker else {
            if may > 1 {
                let path = self.input.groups[group].path.clone();
                self.note(&path, None, false, "Ordered", || {
                    format!("{} more after it, one at a time", may - 1)
                });
            }
            return 1;
        };
        let (path, other) = (
            self.input.groups[group].path.clone(),
            self.state.nodes[at].name(),
        );
        self.note(&path, None, false, "Ordered", || {
            format!("number {next} waits until {other} is Ready")
        });
        0
    }

    /// Whether a node is about to be Ready for the first time, and stays.
    fn is_being_made(&self, at: usize) -> bool {
        let (mark, node) = (&self.marks[at], &self.state.nodes[at]);
        let never = node.state == NodeState::Unhealthy && *node.reason == *"StartTimeout";
        let making = matches!(
            node.state,
            NodeState::Requested | NodeState::Provisioning | NodeState::Starting
        );
        (making && !mark.available || never) && !mark.dead && !mark.leaving && !self.is_renewed(at)
    }

    /// Whether a node of an ordered group is on its way out, which holds up the removal of the next one.
    pub(crate) fn one_goes(&mut self, group: usize) -> bool {
        if !self.is_ordered(group) {
            return false;
        }
        let going = self
            .own(group)
            .find(|&at| self.marks[at].leaving && !self.marks[at].dead);
        if let Some(at) = going {
            let (path, name) = (
                self.input.groups[group].path.clone(),
                self.state.nodes[at].name(),
            );
            self.note(&path, None, false, "Ordered", || {
                format!("the next one goes when {name} is gone")
            });
        }
        going.is_some()
    }

    /// Whether a node of an ordered group is still being replaced, which holds up the next one.
    pub(crate) fn one_is_renewed(&mut self, group: usize) -> bool {
        if self.one_goes(group) {
            return true;
        }
        self.is_ordered(group) && self.own(group).any(|at| self.is_being_made(at))
    }

    /// The order in which surplus nodes of an ordered group go: those marked by the user first, then by descending
    /// ordinal.
    pub(crate) fn highest(&self, mut candidates: Vec<usize>) -> Vec<usize> {
        candidates.sort_by_key(|&at| {
            let node = &self.state.nodes[at];
            (!node.marked, std::cmp::Reverse((node.ordinal, node.slot)))
        });
        candidates
    }

    /// A group that this one depends on and that is not in its desired state.
    pub(crate) fn awaited_group(&self, group: usize) -> Option<Sym> {
        let mut on = self.input.groups[group].depends_on.iter();
        on.find(|path| {
            let at = self.paths.get(&***path);
            at.is_some_and(|&at| !self.is_settled(usize::from(at)))
        })
        .cloned()
    }

    /// Whether all nodes of a group are available and up to date.
    fn is_settled(&self, group: usize) -> bool {
        let spec = &self.input.groups[group];
        let available = self.own(group).filter(|&at| {
            let mark = &self.marks[at];
            mark.available && !mark.leaving
        });
        available.count() >= Self::size(spec)
            && !self.own(group).any(|at| self.is_renewed(at))
            && !self.rolls(&spec.path)
    }

    /// Whether the rollout of a group waits for another group.
    pub(crate) fn renewal_waits(&mut self, group: usize) -> bool {
        let Some(on) = self.awaited_group(group) else {
            return false;
        };
        if !self.own(group).any(|at| self.is_renewed(at)) {
            return false;
        }
        let path = self.input.groups[group].path.clone();
        self.note(&path, None, false, "DependsOn", || {
            format!("is updated when group {on} is as wanted")
        });
        true
    }

    /// How the nodes of a group that is no longer wanted are removed.
    pub(crate) fn leaving(&self, path: &str) -> Option<&Leaving> {
        self.input.leaving.iter().find(|one| *one.path == *path)
    }

    /// Unwanted nodes that stay for now, with what they wait for: groups that depend on theirs go first, and in an
    /// ordered group the highest ordinal.
    pub(crate) fn held_back(&self) -> BTreeMap<usize, String> {
        let mut held = BTreeMap::new();
        if self.input.leaving.is_empty() {
            return held;
        }
        let present = |path: &str| {
            let mut all = self.state.nodes.iter().zip(&self.marks);
            all.any(|(node, mark)| !mark.forgotten && *node.group == *path)
        };
        let dependents: Vec<&Leaving> = self
            .input
            .leaving
            .iter()
            .filter(|one| !one.depends_on.is_empty() && present(&one.path))
            .collect();
        let mut last: BTreeMap<&str, (u32, u64)> = BTreeMap::new();
        for (node, mark) in self.state.nodes.iter().zip(&self.marks) {
            // A node that cannot be reached holds up no other node of its group.
            let counts = mark.group == NO_GROUP && !mark.forgotten && !mark.dead && mark.visible;
            if counts && self.leaving(&node.group).is_some_and(|one| one.ordered) {
                let last = last.entry(&node.group).or_default();
                *last = (*last).max((node.ordinal, node.slot));
            }
        }
        for (at, (node, mark)) in self.state.nodes.iter().zip(&self.marks).enumerate() {
            if mark.group != NO_GROUP || mark.leaving || mark.forgotten {
                continue;
            }
            let dependent = dependents
                .iter()
                .find(|one| one.depends_on.contains(&node.group));
            if let Some(one) = dependent {
                held.insert(at, format!("goes when group {} is gone", one.path));
            } else if let Some(last) = last.get(&*node.group)
                && *last > (node.ordinal, node.slot)
                && !mark.dead
            {
                held.insert(at, format!("goes when number {} is gone", last.0));
            }
        }
        held
    }
}
