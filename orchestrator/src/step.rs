//! The step of a plan: the rows that it changes in the store, and the same changes in memory once they are durable.

use std::collections::BTreeSet;

use bytes::Bytes;
use drover_core::{Millis, Phase};
use drover_planner::{Call, Op, Plan, Rows, State};
use drover_store::{Step, StepDone};
use uuid::Uuid;

use crate::{
    cluster::{Cluster, ClusterState},
    codec, infrastructure, node_counts,
    shared::Shared,
};

/// Encodes the rows that operations change, applying them to a copy of the entries that they touch.
pub(crate) fn encode_step(
    inner: &ClusterState,
    ops: &[Op],
    bodies: &[(Uuid, Bytes)],
    now: Millis,
) -> Step {
    let state = &inner.state;
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
            .or_else(|| inner.bodies.get(id))
            .cloned()
    };
    let mut head = inner.head.value.clone();
    head.next_slot = touched.next_slot;
    head.next_sequence = touched.next_sequence;
    head.skipped = touched.skipped.bounds();
    head.observed_generation = touched.observed_generation;
    head.state = codec::encode_head(&touched);
    let mut step = Step {
        expect_head: inner.head.revision,
        expect_desired: Some(inner.desired.revision),
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
            .filter(|id| !touched.requests.contains_key(*id) && state.requests.contains_key(*id))
            .map(Uuid::to_string)
            .collect(),
        ..Step::default()
    };
    infrastructure::codec::fill(&mut step, &rows.infrastructure, state, &touched);
    step
}

/// Applies a durable step to memory.
pub(crate) fn take_over(
    shared: &Shared,
    cluster: &Cluster,
    plan: &Plan,
    bodies: Vec<(Uuid, Bytes)>,
    done: StepDone,
    now: Millis,
) {
    let mut inner = cluster.inner.lock();
    let rows = Rows::of(&plan.ops, &inner.state.nodes);
    let before = node_counts::of(&inner.state, &rows);
    drover_planner::apply(&mut inner.state, &plan.ops, now);
    let after = node_counts::of(&inner.state, &rows);
    inner.head = drover_store::Versioned {
        value: done.head,
        revision: done.revision,
    };
    inner.bodies.extend(bodies);
    for op in &plan.ops {
        match op {
            Op::BackOff { key, to: Some(_) } => {
                let platform = key.platform.to_string();
                metrics::counter!("drover_back_offs_total", "platform" => platform).increment(1);
            }
            Op::Close { request, .. } => {
                inner.bodies.remove(request);
            }
            Op::Request { request, nodes, .. } => {
                if let Some(first) = nodes.first() {
                    inner.first_slots.insert(request.id, first.slot);
                }
            }
            Op::TakeOrphan { node } if node.removal.is_none() => {
                inner
                    .first_slots
                    .entry(node.request)
                    .or_insert(node.slot.saturating_sub(u64::from(node.index)));
                if node.seen.phase == Phase::Running {
                    shared
                        .probes
                        .track(shared, cluster.uid, &mut inner, &node.group, node.slot);
                }
            }
            _ => {}
        }
    }
    if plan
        .ops
        .iter()
        .any(|op| matches!(op, Op::RecordDropped { .. }))
    {
        let living: BTreeSet<Uuid> = inner.state.nodes.iter().map(|node| node.request).collect();
        inner
            .first_slots
            .retain(|request, _| living.contains(request));
    }
    if inner.bodies.is_empty() {
        // Most clusters have no open requests most of the time.
        inner.bodies.shrink_to_fit();
    }
    mark_called(&mut inner, &plan.calls);
    shared.changed(cluster, &mut inner);
    shared.wrote(done.revision);
    drop(inner);
    node_counts::count(shared, before, after);
}

/// Marks calls as in flight before they are made, so that no other pass makes them too.
pub(crate) fn mark_called(inner: &mut ClusterState, calls: &[Call]) {
    for call in calls {
        match call {
            Call::Provision { request, .. } => {
                if let Some(request) = inner.state.requests.get_mut(request) {
                    request.call.in_flight = true;
                }
            }
            Call::Deprovision { slot } | Call::Drain { slot, .. } | Call::Adopt { slot } => {
                if let Some(node) = inner.state.node_mut(*slot) {
                    node.call.in_flight = true;
                }
            }
            Call::RoleChange { slot } => {
                if let Some(node) = inner.state.node_mut(*slot) {
                    node.role_change.get_or_insert_default().call.in_flight = true;
                }
            }
            Call::Confirm { platform } => {
                inner.state.confirms.or_default(platform.clone()).in_flight = true;
            }
            Call::Infrastructure { platform, uid, .. } => {
                let key = (platform.clone(), uid.clone());
                if let Some(record) = inner.state.infrastructure.get_mut(&key) {
                    record.call.in_flight = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
