//! The latest time that a cluster has recorded.

use drover_core::Millis;
use drover_planner::State;

use crate::ClusterState;

impl ClusterState {
    /// The latest time at which something was recorded: no later process may begin before it.
    #[must_use]
    pub fn latest_time(&self) -> Millis {
        latest(&self.state)
    }
}

/// Deadlines are less than this ahead of the time at which they are recorded.
const AHEAD: Millis = 3_600_000;

/// The latest time at which something was recorded. Derived from deadlines as well: otherwise one that was set by a
/// clock far ahead would block until that clock's time.
fn latest(state: &State) -> Millis {
    let before = |deadline: Millis| deadline.saturating_sub(AHEAD);
    let nodes = state.nodes.iter().flat_map(|node| {
        let removal = node.removal.map_or(0, |removal| removal.since);
        let settled = before(node.settled);
        [node.create_time, node.state_time, removal, settled]
    });
    let requests = state.requests.values();
    let requests = requests.flat_map(|one| [one.first_sent, before(one.deadline)]);
    let below = state.resources.iter().flat_map(|(_, one)| {
        let ahead = one.deadline.max(one.unsettled).max(one.next);
        [one.phase_time, one.doubt, before(ahead)]
    });
    let back_offs = state.backoffs.values().map(|back_off| back_off.last);
    let conditions = state.conditions.values().map(|condition| condition.since);
    let rollouts = state.rollouts.values().map(|rollout| rollout.progress);
    nodes
        .chain(requests)
        .chain(below)
        .chain(back_offs)
        .chain(conditions)
        .chain(rollouts)
        .max()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use drover_core::{
        NodeState,
        resource::{ResourceKey, ResourceRecord},
    };

    use super::*;
    use crate::fixture;

    #[test]
    fn what_was_closed_by_a_clock_far_ahead_tells_how_far_it_was() {
        const DAYS: Millis = 15 * 24 * AHEAD;
        let mut node = fixture::node(1, NodeState::Requested);
        (node.settled, node.maybe_until) = (DAYS, DAYS + 120_000);
        let state = State {
            nodes: vec![node],
            ..State::default()
        };
        assert_eq!(latest(&state), DAYS - AHEAD);
    }

    #[test]
    fn so_does_a_release_that_waits_for_what_a_clock_far_ahead_has_begun() {
        const DAYS: Millis = 6 * 24 * AHEAD;
        let record = ResourceRecord {
            phase_time: 1_000,
            unsettled: DAYS,
            next: DAYS + 60_000,
            ..ResourceRecord::default()
        };
        let mut state = State::default();
        state
            .resources
            .insert(ResourceKey::infrastructure("p", "u"), record);
        assert_eq!(latest(&state), DAYS + 60_000 - AHEAD);
    }
}
