//! Removal of nodes that are no longer wanted, because their group is gone or their cluster is deleted, and the calls
//! that remove nodes.

use drover_core::{NodeState, node::RemovalReason};

use crate::{Call, Op, Planner};

impl Planner<'_> {
    /// A deletion that a user requested bypasses budget and circuit breaker, and needs neither spec nor health.
    /// Existing nodes wait until their platform is visible.
    pub(crate) fn remove_unwanted(&mut self) {
        let held = self.held_back();
        for at in 0..self.state.nodes.len() {
            let mark = self.marks[at];
            if mark.forgotten || mark.leaving || !self.is_unwanted(at) {
                continue;
            }
            if let Some(why) = held.get(&at) {
                let node = &self.state.nodes[at];
                self.note(&node.group, Some(node.slot), false, "Ordered", || {
                    why.clone()
                });
                continue;
            }
            if self.full() {
                return;
            }
            if self.gives_up_adoption(at) {
                continue;
            }
            if self.is_out_of_sight(at) {
                let node = &self.state.nodes[at];
                self.note(
                    &node.group,
                    Some(node.slot),
                    false,
                    "PlatformUnavailable",
                    || format!("goes when {} can be seen", node.platform),
                );
                continue;
            }
            self.intend(at, RemovalReason::User);
        }
    }

    /// Whether a node exists on a platform that cannot be reached now. It could not be removed there anyway, and the
    /// removal order of its group and its pre-stop hook may be known only from that platform; the time for them would
    /// pass unused.
    fn is_out_of_sight(&self, at: usize) -> bool {
        let (node, mark) = (&self.state.nodes[at], self.marks[at]);
        let known = self.input.platforms.get(&node.platform);
        node.node_id.is_some()
            && !mark.dead
            && !mark.visible
            && known.is_some_and(|view| !view.visible)
    }

    /// Requests the removal of nodes for which that intent is durable.
    pub(crate) fn call_removals(&mut self) {
        for at in 0..self.state.nodes.len() {
            let (node, mark) = (&self.state.nodes[at], self.marks[at]);
            if !mark.leaving
                || mark.draining
                || mark.forgotten
                || node.is_adopting()
                || node.in_flight.call.in_flight
                || node.node_id.is_none()
                || node.seen.gone
            {
                continue;
            }
            let Some(view) = self.input.platforms.get(&node.platform) else {
                continue;
            };
            if !view.callable || *view.uid != *node.platform_uid {
                continue;
            }
            if self.input.now < node.in_flight.call.next {
                self.wake(node.in_flight.call.next);
                continue;
            }
            if node.removal.is_some() && node.state != NodeState::Deprovisioning {
                if self.full() {
                    return;
                }
                let (state, reason) = (
                    NodeState::Deprovisioning,
                    node.removal.map_or("", |r| r.reason.as_str()),
                );
                self.op(Op::StateChanged {
                    slot: node.slot,
                    state,
                    reason,
                    message: node.message.clone(),
                    stable: node.stable,
                });
            }
            self.plan.calls.push(Call::Deprovision { slot: node.slot });
        }
    }
}
