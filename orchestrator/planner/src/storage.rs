//! Storage of nodes: whether it is retained when they go, and which node takes it over.

use std::collections::BTreeSet;

use drover_core::{
    node::RemovalReason,
    storage::{Policy, Retention},
};

use crate::{NO_GROUP, Planner};

impl Planner<'_> {
    /// Whether the storage of a node that is removed now is retained.
    pub(crate) fn retains(&self, at: usize, reason: RemovalReason) -> bool {
        let node = &self.state.nodes[at];
        let unwanted = self.is_unwanted(at);
        let kept = |reason| self.retention(&node.group, reason, unwanted);
        // If the group no longer specifies storage, replacements exist beside the nodes that have it, and a surplus
        // node may be one that was replaced.
        let spec = self.paths.get(&*node.group);
        let said = spec.is_some_and(|&at| self.input.groups[usize::from(at)].storage.is_some());
        let stands = reason == RemovalReason::Surplus && !said;
        node.storage && (kept(reason) || stands && kept(RemovalReason::Outdated))
    }

    /// Whether a group retains storage. It does if its policy is no longer known.
    fn retention(&self, group: &str, reason: RemovalReason, unwanted: bool) -> bool {
        let policy = self.policy(group).unwrap_or_default();
        policy.of(reason, unwanted) == Retention::Retain
    }

    /// The policy of a group, as specified now or last.
    pub(crate) fn policy(&self, group: &str) -> Option<Policy> {
        let wanted = self
            .paths
            .get(group)
            .and_then(|&at| self.input.groups[usize::from(at)].storage.as_ref())
            .map(|storage| storage.policy);
        wanted.or_else(|| self.state.storage.get(group).copied())
    }

    /// Whether an orphan of a group may have storage, and whether that is retained.
    pub(crate) fn orphan_storage(&self, group: &str) -> (bool, bool) {
        let has = self.policy(group).is_some();
        let unwanted = self.state.deleting || !self.paths.contains_key(group);
        (
            has,
            has && self.retention(group, RemovalReason::Orphan, unwanted),
        )
    }

    /// Number of ordinals below the size that no record holds, where the storage of earlier nodes waits. `None` if
    /// nodes of the group do not take over storage.
    pub(crate) fn vacancies(&self, group: usize) -> Option<usize> {
        let spec = &self.input.groups[group];
        if !spec.hands_on_storage() {
            return None;
        }
        let size = Self::size(spec);
        let held = self.held(group);
        let below = held.iter().filter(|&&ordinal| (ordinal as usize) < size);
        Some(size - below.count())
    }

    /// Ordinals of a group that may be in use, including those that this plan requests.
    fn held(&self, group: usize) -> BTreeSet<u32> {
        self.own(group)
            .map(|at| &self.state.nodes[at])
            .chain(self.asked(group))
            .map(|node| node.ordinal)
            .collect()
    }

    /// Notes that the storage of nodes on their way out is available only when they are gone.
    pub(crate) fn note_held(&mut self, group: usize) {
        let path = self.input.groups[group].path.clone();
        let leaving: Vec<(u64, String)> = self
            .own(group)
            .filter(|&at| self.marks[at].leaving || self.marks[at].dead)
            .map(|at| (self.state.nodes[at].slot, self.state.nodes[at].name()))
            .collect();
        for (slot, name) in leaving {
            self.note(&path, Some(slot), false, "Storage", || {
                format!("the next {name} gets its storage when it is proven absent")
            });
        }
    }

    /// How many nodes beyond the size have to make way for free ordinals below it, where storage waits, and all
    /// candidates by descending ordinal. `None` for groups with standby nodes, in which roles take precedence over
    /// ordinals.
    pub(crate) fn beyond(&self, group: usize, certain: &[usize]) -> Option<(usize, Vec<usize>)> {
        if self.input.groups[group].standby > 0 {
            return None;
        }
        let vacant = self.vacancies(group)?;
        let size = Self::size(&self.input.groups[group]);
        let mut beyond: Vec<usize> = certain.to_vec();
        beyond.sort_by_key(|&at| std::cmp::Reverse(self.state.nodes[at].ordinal));
        let strays = beyond
            .iter()
            .filter(|&&at| self.state.nodes[at].ordinal as usize >= size);
        Some((strays.count().min(vacant), beyond))
    }

    /// Whether a node belongs to no wanted group.
    pub(crate) fn is_unwanted(&self, at: usize) -> bool {
        self.marks[at].group == NO_GROUP || self.state.deleting
    }
}
