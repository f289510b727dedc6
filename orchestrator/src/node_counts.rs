//! Numbers of nodes and of troubled nodes per platform, kept in step with store steps and probes.

use std::collections::BTreeMap;

use drover_core::{Node, Sym};
use drover_planner::{Rows, State, is_troubled};

use crate::{cluster::ClusterState, shared::Shared};

/// Numbers of nodes and of troubled nodes, by platform.
pub(crate) type NodeCounts = BTreeMap<Sym, (i64, i64)>;

/// Counts the recorded nodes among these rows.
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

/// Reports to platforms the nodes whose failed probes were forgotten because their probes were replaced.
pub(crate) fn calmed(shared: &Shared, inner: &mut ClusterState) {
    for platform in std::mem::take(&mut inner.calmed) {
        if let Some(registered) = shared.platform(&platform) {
            registered.platform.count(0, -1, shared.now());
        }
    }
}

/// Adds the difference between two counts to the platforms' numbers.
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

#[cfg(test)]
mod tests {
    use drover_core::NodeState;

    use super::*;
    use crate::fixture;

    #[test]
    fn only_nodes_with_a_record_are_counted_and_troubled_ones_besides() {
        let mut state = State::default();
        state.nodes.push(fixture::node(1, NodeState::Ready));
        state.nodes.push(fixture::node(2, NodeState::Failed));
        let elsewhere = Node {
            platform: "q".into(),
            ..fixture::node(3, NodeState::Ready)
        };
        state.nodes.push(elsewhere);
        let troubled = i64::from(is_troubled(&state.nodes[1]));
        let rows = Rows {
            nodes: [1, 2, 99].into(),
            ..Rows::default()
        };
        let counted = of(&state, &rows);
        assert_eq!(counted, [("p".into(), (2, troubled))].into());
        let all = all(&state.nodes);
        assert_eq!(all[&Sym::from("q")], (1, 0));
    }
}
