//! The step of a plan: the rows that it changes in the store, and the same changes in memory once they are durable.

use std::collections::BTreeSet;

use bytes::Bytes;
use drover_core::{Millis, Phase, Sym, node::SoleChange};
use drover_planner::{Call, Op, Plan, Rows, State};
use drover_store::{Step, StepDone, Versioned};
use uuid::Uuid;

use crate::{ClusterState, codec, counts::NodeCounts, resources};

impl ClusterState {
    /// Encodes the rows that operations change, applying them to a copy of the entries that they touch.
    #[must_use]
    pub fn encode_step(&self, ops: &[Op], bodies: &[(Uuid, Bytes)], now: Millis) -> Step {
        let state = &self.state;
        let rows = Rows::of(ops, &state.nodes);
        let mut touched = State {
            uid: state.uid,
            observed_generation: state.observed_generation,
            next_slot: state.next_slot,
            next_sequence: state.next_sequence,
            skipped: state.skipped.clone(),
            nodes: rows
                .nodes
                .iter()
                .filter_map(|slot| state.node(*slot))
                .cloned()
                .collect(),
            requests: rows
                .requests
                .iter()
                .filter_map(|id| Some((*id, state.requests.get(id)?.clone())))
                .collect(),
            backoffs: state.backoffs.clone(),
            conditions: state.conditions.clone(),
            rollouts: state.rollouts.clone(),
            storage: state.storage.clone(),
            grown: state.grown.clone(),
            vacated: state.vacated.clone(),
            sole: state.sole.clone(),
            used: state.used.clone(),
            abandoned: state.abandoned.clone(),
            adopted: state.adopted,
            ..State::default()
        };
        drover_planner::apply(&mut touched, ops, now);
        let body = |id: &Uuid| {
            bodies
                .iter()
                .find(|(own, _)| own == id)
                .map(|(_, body)| body)
                .or_else(|| self.bodies.get(id))
                .cloned()
        };
        let mut head = self.head.value.clone();
        head.next_slot = touched.next_slot;
        head.next_sequence = touched.next_sequence;
        head.skipped = touched.skipped.bounds();
        head.observed_generation = touched.observed_generation;
        head.state = codec::encode_head(&touched);
        let mut step = Step {
            expect_head: self.head.revision,
            expect_desired: Some(self.desired.revision),
            head,
            put_nodes: touched
                .nodes
                .iter()
                .map(|node| (node.slot, codec::encode_node(node)))
                .collect(),
            delete_nodes: rows
                .nodes
                .iter()
                .copied()
                .filter(|slot| touched.at(*slot).is_none())
                .collect(),
            put_requests: touched
                .requests
                .values()
                .map(|r| {
                    (
                        r.id.to_string(),
                        codec::encode_request(r, &body(&r.id).unwrap_or_default()),
                    )
                })
                .collect(),
            delete_requests: rows
                .requests
                .iter()
                .filter(|id| {
                    !touched.requests.contains_key(*id) && state.requests.contains_key(*id)
                })
                .map(Uuid::to_string)
                .collect(),
            ..Step::default()
        };
        resources::codec::fill(&mut step, &rows.resources, state, &touched);
        step
    }
}

/// A node that has begun to run, and is to be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// Its group.
    pub group: Sym,
    /// Its slot.
    pub slot: u64,
}

/// What follows from a durable step outside of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stepped {
    /// By how much the numbers of nodes change.
    pub counts: NodeCounts,
    /// Nodes to probe.
    pub probe: Vec<Track>,
    /// Platforms on which a group begins to wait, or waits longer, after a failure.
    pub backed_off: Vec<Sym>,
}

impl ClusterState {
    /// Applies a step that has become durable.
    pub fn commit(
        &mut self,
        plan: &Plan,
        bodies: Vec<(Uuid, Bytes)>,
        done: StepDone,
        now: Millis,
    ) -> Stepped {
        let rows = Rows::of(&plan.ops, &self.state.nodes);
        let before = NodeCounts::of_rows(&self.state, &rows);
        drover_planner::apply(&mut self.state, &plan.ops, now);
        let after = NodeCounts::of_rows(&self.state, &rows);
        let mut stepped = Stepped {
            counts: before.until(after),
            ..Stepped::default()
        };
        self.head = Versioned {
            value: done.head,
            revision: done.revision,
        };
        self.head.value.state = Bytes::new();
        self.bodies.extend(bodies);
        for op in &plan.ops {
            self.committed(op, &mut stepped);
        }
        let dropped = |op: &Op| matches!(op, Op::RecordDropped { .. });
        if plan.ops.iter().any(dropped) {
            let living: BTreeSet<Uuid> = self.state.nodes.iter().map(|node| node.request).collect();
            self.first_slots
                .retain(|request, _| living.contains(request));
        }
        self.mark_called(&plan.calls);
        stepped
    }

    fn committed(&mut self, op: &Op, stepped: &mut Stepped) {
        match op {
            Op::BackOff { key, to: Some(_) } => stepped.backed_off.push(key.platform.clone()),
            Op::Close { request, .. } => {
                self.bodies.remove(request);
            }
            Op::Request { request, nodes, .. } => {
                if let Some(first) = nodes.first() {
                    self.first_slots.insert(request.id, first.slot);
                }
            }
            Op::TakeOrphan { node } if node.removal.is_none() => {
                let first = node.slot.saturating_sub(u64::from(node.index));
                self.first_slots.or_insert(node.request, first);
                if node.seen.phase == Phase::Running {
                    stepped.probe.push(Track {
                        group: node.group.clone(),
                        slot: node.slot,
                    });
                }
            }
            _ => {}
        }
    }
    /// Marks calls as in flight before they are made, so that no other pass makes them too.
    pub fn mark_called(&mut self, calls: &[Call]) {
        for call in calls {
            match call {
                Call::Provision { request, .. } => {
                    if let Some(request) = self.state.requests.get_mut(request) {
                        request.in_flight.call.in_flight = true;
                    }
                }
                Call::Deprovision { slot } | Call::Drain { slot, .. } | Call::Adopt { slot } => {
                    if let Some(node) = self.state.node_mut(*slot) {
                        node.in_flight.call.in_flight = true;
                    }
                }
                Call::RoleChange { slot } => {
                    if let Some(node) = self.state.node_mut(*slot) {
                        node.in_flight
                            .changes
                            .role_change
                            .get_or_insert_default()
                            .call
                            .in_flight = true;
                    }
                }
                Call::Relabel { slot } => {
                    if let Some(node) = self.state.node_mut(*slot) {
                        let change = node.in_flight.changes.relabel.get_or_insert_default();
                        change.done = None;
                        change.call.in_flight = true;
                    }
                }
                Call::Grow { slot } => {
                    if let Some(node) = self.state.node_mut(*slot) {
                        let change = node.in_flight.changes.growth.get_or_insert_default();
                        change.done = None;
                        change.call.in_flight = true;
                    }
                }
                Call::Sole { slot, allow } => {
                    if let Some(node) = self.state.node_mut(*slot) {
                        let first = || Box::new(SoleChange::first());
                        let change = node.in_flight.changes.sole.get_or_insert_with(first);
                        change.begin(*allow);
                    }
                }
                Call::Confirm { platform } => {
                    self.state.confirms.or_default(platform.clone()).in_flight = true;
                }
                Call::Resource { key, .. } => {
                    if let Some(record) = self.state.resources.get_mut(key) {
                        record.in_flight.call.in_flight = true;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
