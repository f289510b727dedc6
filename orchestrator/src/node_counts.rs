//! How many nodes platforms have, and how many of them are in trouble: kept up with what steps and probes change.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{Node, Sym};
use drover_planner::{Op, is_troubled};

use crate::{cluster::ClusterState, shared::Shared};

/// Nodes and those in trouble, by platform.
pub(crate) type NodeCounts = BTreeMap<Sym, (i64, i64)>;

/// The same among those that operations touch.
pub(crate) fn of(nodes: &[Node], ops: &[Op]) -> NodeCounts {
    let mut counts = NodeCounts::new();
    let mut add = |node: &Node| {
        let (total, sick) = counts.entry(node.platform.clone()).or_default();
        *total += 1;
        *sick += i64::from(is_troubled(node));
    };
    let find = |slot: u64| {
        nodes
            .binary_search_by_key(&slot, |node| node.slot)
            .ok()
            .map(|at| &nodes[at])
    };
    let mut seen = BTreeSet::new();
    for op in ops {
        let slots: Vec<u64> = match op {
            Op::StateChanged { slot, .. }
            | Op::Remove { slot, .. }
            | Op::RecordDropped { slot, .. } => {
                vec![*slot]
            }
            Op::Request { nodes, .. } => nodes.iter().map(|node| node.slot).collect(),
            Op::TakeOrphan { node } => vec![node.slot],
            _ => Vec::new(),
        };
        for slot in slots {
            if seen.insert(slot)
                && let Some(node) = find(slot)
            {
                add(node);
            }
        }
    }
    counts
}

/// The same among all of these nodes.
pub(crate) fn all(nodes: &[Node]) -> NodeCounts {
    let mut counts = NodeCounts::new();
    for node in nodes {
        let (total, sick) = counts.entry(node.platform.clone()).or_default();
        *total += 1;
        *sick += i64::from(is_troubled(node));
    }
    counts
}

/// Tells platforms of nodes of which other probes have said that they do not answer.
pub(crate) fn calmed(shared: &Shared, inner: &mut ClusterState) {
    for platform in std::mem::take(&mut inner.calmed) {
        if let Some(registered) = shared.platform(&platform) {
            registered.platform.count(0, -1, shared.now());
        }
    }
}

/// Tells platforms by how much their numbers have changed.
pub(crate) fn count(shared: &Shared, before: NodeCounts, after: NodeCounts) {
    let mut change = after;
    for (platform, (total, sick)) in before {
        let entry = change.entry(platform).or_default();
        entry.0 -= total;
        entry.1 -= sick;
    }
    for (platform, (total, sick)) in change {
        if (total, sick) != (0, 0)
            && let Some(registered) = shared.platform(&platform)
        {
            registered.platform.count(total, sick, shared.now());
        }
    }
}
