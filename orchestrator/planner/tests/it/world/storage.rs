//! What has to become of storage, derived only from what users requested: outdated, sick and dead nodes are replaced;
//! surplus nodes of a group that is scaled down are scaled away; nodes of a group that is no longer wanted are deleted.

use std::collections::BTreeMap;

use drover_core::{Node, Sym, spec::Group, storage::Retention};
use drover_planner::{Op, Plan};

use super::World;

/// How many nodes of a group had to go without a replacement.
#[derive(Clone, Copy, Debug, Default)]
struct Shrinks {
    /// Upper bound of those that have still to go: reduced only by nodes that were certainly scaled away.
    most: usize,
    /// Lower bound: reduced by all nodes that may have been scaled away.
    least: usize,
    /// Whether there were ever any.
    ever: bool,
}

/// The sizes of groups that users requested.
#[derive(Debug, Default)]
pub struct Asked {
    sizes: BTreeMap<Sym, (u32, u32)>,
    shrinks: BTreeMap<Sym, Shrinks>,
}

impl World {
    /// Records the desired size of a group.
    pub(super) fn ask_size(&mut self, group: &Group) {
        let now = (group.size.unwrap_or(1), group.standby);
        let Some(before) = self.asked.sizes.insert(group.path.clone(), now) else {
            return;
        };
        let nodes = self.state.nodes.iter();
        let there = nodes.filter(|n| n.group == group.path && n.removal.is_none());
        let beyond = there.count().saturating_sub(group.total() as usize);
        let less = before.0.saturating_sub(now.0) + before.1.saturating_sub(now.1);
        let more = now.0.saturating_sub(before.0) + now.1.saturating_sub(before.1);
        let shrinks = self.asked.shrinks.entry(group.path.clone()).or_default();
        shrinks.ever |= less > 0;
        // If fewer active nodes are wanted, some go even if more standby nodes are wanted.
        shrinks.most = match less {
            0 => shrinks.most.saturating_sub(more as usize),
            less => shrinks.most + less as usize,
        };
        shrinks.least = (shrinks.least + less as usize)
            .saturating_sub(more as usize)
            .min(beyond);
    }

    /// Checks that storage is retained according to the policy of its group, as specified now or last.
    pub(super) fn check_storage(&self, node: &Node, retain: bool) {
        let wanted = self.groups.iter().find(|g| g.path == node.group);
        let said = self.state.storage.get(&node.group).copied();
        let own = wanted.and_then(|g| g.storage.as_ref()).map(|it| it.policy);
        let policy = own.or(said).unwrap_or_default();
        if !node.storage {
            assert!(!retain, "there is none: {node:?}");
            return;
        }
        if self.state.deleting || wanted.is_none() {
            assert_eq!(retain, policy.deleted == Retention::Retain, "{node:?}");
            return;
        }
        let named = self.state.scaled_away.contains(&node.slot);
        let shrinks = self.asked.shrinks.get(&node.group).copied();
        let shrinks = shrinks.unwrap_or_default();
        let replaced = policy.replaced == Retention::Retain;
        let scaled = policy.scaled == Retention::Retain;
        if retain {
            // While some have to go, it is better to retain one too many than one too few.
            let total = wanted.map_or(0, Group::total) as usize;
            let fewer = named || shrinks.ever || self.living(&node.group).len() > total;
            assert!(
                replaced || scaled && fewer,
                "kept, and nobody asked for that: {node:?}"
            );
        } else {
            assert!(
                !(named && scaled),
                "was named when its group got smaller: {node:?}"
            );
            let may_go = !scaled && (named || shrinks.most > 0);
            assert!(
                !replaced || may_go,
                "nobody asked for fewer: {node:?}, {shrinks:?}"
            );
        }
    }

    /// Records what an executed plan removes.
    pub(super) fn note_storage(&mut self, planned: &Plan) {
        for op in &planned.ops {
            let (slot, retain) = match op {
                Op::Remove { slot, retain, .. } => (*slot, Some(*retain)),
                Op::RecordDropped { slot, .. } => (*slot, None),
                _ => continue,
            };
            let Some(node) = self.state.node(slot) else {
                continue;
            };
            let policy = self.state.storage.get(&node.group).copied();
            let Some(shrinks) = self.asked.shrinks.get_mut(&node.group) else {
                continue;
            };
            match (retain, policy) {
                // It went before a policy could be applied to its storage, or had none.
                (None, _) if node.removal.is_none() => {
                    shrinks.least = shrinks.least.saturating_sub(1);
                }
                (Some(_), _) if !node.storage => {
                    shrinks.least = shrinks.least.saturating_sub(1);
                }
                (Some(retain), Some(policy)) => {
                    let scaled = (policy.scaled == Retention::Retain) == retain;
                    let only = scaled && policy.scaled != policy.replaced;
                    shrinks.most = shrinks.most.saturating_sub(usize::from(only));
                    shrinks.least = shrinks.least.saturating_sub(usize::from(scaled));
                }
                (None, _) | (Some(_), None) => {}
            }
        }
    }

    /// When a group is in its desired state, all nodes that had to be scaled away were, with their storage retained as
    /// required.
    pub(super) fn check_scaled(&mut self) {
        for group in &self.groups {
            let shrinks = self.asked.shrinks.get_mut(&group.path);
            let policy = group.storage.as_ref().map(|storage| storage.policy);
            let (Some(shrinks), Some(policy)) = (shrinks, policy) else {
                continue;
            };
            let least = std::mem::take(shrinks).least;
            let kept = policy.scaled == Retention::Retain;
            assert!(
                least == 0 || !kept,
                "{least} of {} were scaled away and nothing of them is kept",
                group.path
            );
        }
    }
}
