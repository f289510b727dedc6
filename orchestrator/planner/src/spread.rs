//! Removal order within a group, such that the nodes that stay keep the required spread.

use std::{cmp::Reverse, collections::BTreeMap};

use drover_core::{
    Millis, Node, NodeState,
    spec::{RemovalOrder, Spread},
};

use crate::Planner;

/// Sort key for removal: marked, unhealthy, not yet Ready, outdated.
type Ladder = (bool, bool, bool, bool);

/// Number of nodes that stay, by the value of a topology key.
struct Counts<'a> {
    spread: &'a Spread,
    by_value: BTreeMap<&'a str, u32>,
}

impl<'a> Planner<'a> {
    /// The first `count` of these nodes to go: marked, unhealthy, not yet Ready, outdated, from the fullest domains of
    /// a required spread, then by age, or on named hosts the last of them; never random.
    pub(crate) fn removal_order(
        &self,
        group: usize,
        mut candidates: Vec<usize>,
        count: usize,
    ) -> Vec<usize> {
        // Of most groups none has to go.
        if count == 0 {
            return Vec::new();
        }
        let spec = &self.input.groups[group];
        candidates.sort_by_key(|&at| (self.ladder(at), self.seniority(group, at)));
        let mut counts: Vec<Counts<'a>> = spec
            .placement
            .spread
            .iter()
            .filter(|spread| spread.required)
            .map(|spread| self.staying(group, spread))
            .collect();
        if counts.is_empty() {
            candidates.truncate(count);
            return candidates;
        }
        let mut order = Vec::with_capacity(count);
        while order.len() < count && !candidates.is_empty() {
            let fullest = |at: usize| -> Vec<Reverse<u32>> {
                let node = &self.state.nodes[at];
                let full = |c: &Counts<'a>| c.by_value.get(self.domain(node, c.spread)).copied();
                counts
                    .iter()
                    .map(|count| Reverse(full(count).unwrap_or_default()))
                    .collect()
            };
            // The first of the minima, so that equal nodes keep their order.
            let next = (0..candidates.len())
                .min_by_key(|&i| (self.ladder(candidates[i]), fullest(candidates[i])))
                .unwrap_or_default();
            let at = candidates.remove(next);
            let node = &self.state.nodes[at];
            for count in &mut counts {
                let value = self.domain(node, count.spread);
                if let Some(left) = count.by_value.get_mut(value) {
                    *left = left.saturating_sub(1);
                }
            }
            order.push(at);
        }
        order
    }

    fn ladder(&self, at: usize) -> Ladder {
        let node = &self.state.nodes[at];
        let sick = self.marks[at].sick || node.state == NodeState::Unhealthy;
        (
            !node.marked,
            !sick,
            self.marks[at].available,
            !self.is_outdated(at) && !self.is_expired(at),
        )
    }

    fn seniority(&self, group: usize, at: usize) -> (Millis, u64) {
        let spec = &self.input.groups[group];
        let node = &self.state.nodes[at];
        if self.is_ordered(group) {
            return (0, u64::MAX - u64::from(node.ordinal));
        }
        let hosts = &spec.placement.hosts;
        if let Some(place) = hosts.iter().position(|host| *host == node.host) {
            return (0, u64::MAX - place as u64);
        }
        match spec.removal_order {
            RemovalOrder::Newest => (Millis::MAX - node.create_time, u64::MAX - node.slot),
            RemovalOrder::Oldest => (node.create_time, node.slot),
        }
    }

    /// Counts the nodes that a spread covers, without those that leave.
    fn staying(&self, group: usize, spread: &'a Spread) -> Counts<'a> {
        let mut by_value = BTreeMap::new();
        let all = 0..self.state.nodes.len();
        let counted = all.filter(|&at| {
            let mark = &self.marks[at];
            let own = usize::from(mark.group) == group;
            !mark.forgotten && !mark.leaving && !mark.dead && (own || spread.over_cluster)
        });
        for at in counted {
            let value = self.domain(&self.state.nodes[at], spread);
            *by_value.entry(value).or_default() += 1;
        }
        Counts { spread, by_value }
    }

    /// Value of the topology key for a node. Empty if not known.
    fn domain(&self, node: &Node, spread: &Spread) -> &'a str {
        let view = self.input.platforms.get(&node.platform);
        view.map_or("", |view| {
            view.topology(&node.seen.failure_domain, &spread.topology_key)
        })
    }
}
