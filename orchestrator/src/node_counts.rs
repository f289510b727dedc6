//! How many nodes platforms have, and how many of them are in trouble: kept up with what steps and probes change.

use std::collections::BTreeMap;

use drover_core::{Node, Sym};
use drover_planner::{Rows, State, is_troubled};

use crate::{cluster::ClusterState, shared::Shared};

/// Nodes and those in trouble, by platform.
pub(crate) type NodeCounts = BTreeMap<Sym, (i64, i64)>;

/// Counts the nodes among these rows that have a record.
pub(crate) fn of(state: &State, rows: &Rows) -> NodeCounts {
    count_all(rows.nodes.iter().filter_map(|slot| state.node(*slot)))
}

/// Counts all of these nodes.
pub(crate) fn all(nodes: &[Node]) -> NodeCounts {
    count_all(nodes)
}

fn count_all<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> NodeCounts {
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
