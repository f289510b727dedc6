//! Numbers of nodes and of troubled nodes per platform.

use std::collections::BTreeMap;

use drover_core::{Node, Sym};
use drover_planner::{Rows, State, is_troubled};

use crate::ClusterState;

/// Numbers of nodes and of troubled nodes, by platform; or by how much they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts(BTreeMap<Sym, (i64, i64)>);

impl NodeCounts {
    /// Counts the recorded nodes among these rows.
    pub(crate) fn of_rows(state: &State, rows: &Rows) -> Self {
        Self::of(rows.nodes.iter().filter_map(|slot| state.node(*slot)))
    }

    /// Counts these nodes.
    pub fn of<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Self {
        let mut counts = BTreeMap::<_, (i64, i64)>::new();
        for node in nodes {
            let sick = i64::from(is_troubled(node));
            match counts.get_mut(&node.platform) {
                Some(numbers) => {
                    numbers.0 += 1;
                    numbers.1 += sick;
                }
                None => drop(counts.insert(node.platform.clone(), (1, sick))),
            }
        }
        Self(counts)
    }

    /// By how much the numbers change if they are these afterwards.
    #[must_use]
    pub fn until(self, after: Self) -> Self {
        let mut change = after;
        for (platform, (total, sick)) in self.0 {
            let entry = change.0.entry(platform).or_default();
            entry.0 -= total;
            entry.1 -= sick;
        }
        change.0.retain(|_, numbers| *numbers != (0, 0));
        change
    }

    /// Adds a change.
    pub fn change(&mut self, by: &Self) {
        for (platform, total, sick) in by.iter() {
            match self.0.get_mut(platform) {
                Some(numbers) => {
                    numbers.0 += total;
                    numbers.1 += sick;
                }
                None => drop(self.0.insert(platform.clone(), (total, sick))),
            }
        }
    }

    /// The numbers of nodes and of troubled nodes on a platform.
    #[must_use]
    pub fn on(&self, platform: &str) -> (i64, i64) {
        self.0.get(platform).copied().unwrap_or_default()
    }

    /// The platforms with their numbers of nodes and of troubled nodes.
    pub fn iter(&self) -> impl Iterator<Item = (&Sym, i64, i64)> {
        self.0
            .iter()
            .map(|(platform, (total, sick))| (platform, *total, *sick))
    }
}

impl ClusterState {
    /// Its numbers of nodes and of troubled nodes.
    #[must_use]
    pub fn counts(&self) -> NodeCounts {
        NodeCounts::of(&self.state.nodes)
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
        let elsewhere = fixture::with(fixture::node(3, NodeState::Ready), |node| {
            node.origin_mut().platform = "q".into();
        });
        state.nodes.push(elsewhere);
        let troubled = i64::from(is_troubled(&state.nodes[1]));
        let rows = Rows {
            nodes: [1, 2, 99].into(),
            ..Rows::default()
        };
        let counted = NodeCounts::of_rows(&state, &rows);
        assert_eq!(counted.0, [("p".into(), (2, troubled))].into());
        let all = NodeCounts::of(&state.nodes);
        assert_eq!(all.0[&Sym::from("q")], (1, 0));
    }

    #[test]
    fn a_change_names_the_platforms_that_have_changed_and_no_others() {
        let before = NodeCounts([("a".into(), (2, 1)), ("b".into(), (1, 0))].into());
        let after = NodeCounts([("a".into(), (2, 1)), ("c".into(), (3, 0))].into());
        let mut numbers = before.clone();
        let change = before.until(after.clone());
        assert_eq!(
            change.0,
            [("b".into(), (-1, 0)), ("c".into(), (3, 0))].into()
        );
        numbers.change(&change);
        for platform in ["a", "b", "c", "d"] {
            assert_eq!(numbers.on(platform), after.on(platform), "{platform}");
        }
    }
}
