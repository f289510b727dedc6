//! Effects of operations on the record.

use drover_core::{
    Millis, NodeState,
    node::{CHANGING, Removal, Role, SoleChange},
    resource::ResourceKey,
};

use crate::{Op, ResourceChange, State};

/// Applies operations, in order.
///
/// Deterministic: the same operations on the same record always result in the same record. Observations made since the
/// plan was made are kept.
pub fn apply(state: &mut State, ops: &[Op], now: Millis) {
    for op in ops {
        apply_one(state, op, now);
    }
}

fn apply_one(state: &mut State, op: &Op, now: Millis) {
    match op {
        Op::StateChanged {
            slot,
            state: entered,
            reason,
            message,
            stable,
        } => {
            if let Some(node) = state.node_mut(*slot) {
                if node.state != *entered {
                    node.state = *entered;
                    node.state_time = now;
                }
                if *node.reason != **reason {
                    node.reason = drover_core::name::sym(reason);
                }
                node.message.clone_from(message);
                node.stable = *stable;
            }
        }
        Op::NodeIdAssigned { slot, node_id } => {
            if let Some(node) = state.node_mut(*slot) {
                node.node_id = Some(node_id.clone());
                node.seen.node_id = Box::default();
                if node.state == NodeState::Requested {
                    node.state = NodeState::Provisioning;
                    node.state_time = now;
                }
            }
        }
        Op::Request { request, nodes, .. } => {
            state.next_slot = state
                .next_slot
                .max(nodes.last().map_or(0, |node| node.slot + 1));
            state.next_sequence = state.next_sequence.max(request.sequence + 1);
            let backend = (request.platform.clone(), request.platform_uid.clone());
            if !state.used.contains(&backend) {
                state.used.insert(backend);
            }
            state.nodes.extend(nodes.iter().cloned());
            state.requests.insert(request.id, (**request).clone());
        }
        Op::Attempt { request, deadline } => {
            if let Some(request) = state.requests.get_mut(request) {
                request.attempts += 1;
                request.deadline = *deadline;
                request.in_flight.answer = None;
                request.in_flight.call.in_flight = true;
                request.in_flight.sent = true;
            }
        }
        Op::MadeNothing { request } => {
            if let Some(request) = state.requests.get_mut(request) {
                request.made_nothing += 1;
                if let Some(answer) = &mut request.in_flight.answer {
                    answer.taken = true;
                }
            }
        }
        Op::Close {
            request,
            maybe_until,
            settled,
        } => {
            state.requests.remove(request);
            for node in state
                .nodes
                .iter_mut()
                .filter(|node| node.request == *request)
            {
                node.maybe_until = *maybe_until;
                node.settled = *settled;
            }
        }
        Op::Remove {
            slot,
            reason,
            retain,
        } => {
            if let Some(node) = state.node_mut(*slot) {
                node.removal = Some(Removal {
                    reason: *reason,
                    since: now,
                    retain: *retain,
                    drain: 0,
                });
                node.state = if node.node_id.is_some() {
                    NodeState::Deprovisioning
                } else {
                    NodeState::Draining
                };
                node.state_time = now;
                node.reason = reason.as_str().into();
                node.in_flight.call = drover_core::node::Call::default();
            }
        }
        Op::Drain {
            slot,
            until,
            failed,
        } => {
            if let Some(node) = state.node_mut(*slot) {
                if let Some(removal) = &mut node.removal {
                    removal.drain = *until;
                }
                if *until > 0 {
                    node.state = NodeState::Draining;
                }
                if let Some(failed) = failed {
                    node.message = format!("preStop: {failed}").into();
                }
                node.in_flight.call = drover_core::node::Call::default();
                node.in_flight.changes.hook = None;
            }
        }
        Op::RecordDropped { slot, .. } => {
            if let Some(at) = state.at(*slot) {
                let node = state.nodes.remove(at);
                let key =
                    ResourceKey::infrastructure(node.platform.clone(), node.platform_uid.clone());
                if let Some(record) = state.resources.get_mut(&key) {
                    record.in_flight.node_dropped = now;
                }
            }
        }
        Op::TakeOrphan { node } => {
            state.next_slot = state.next_slot.max(node.slot + 1);
            state
                .used
                .insert((node.platform.clone(), node.platform_uid.clone()));
            state.next_sequence = state.next_sequence.max(node.sequence + 1);
            state.skipped.take(node.sequence);
            if let Some(id) = &node.node_id {
                state.orphans.remove(&(node.platform.clone(), id.clone()));
            }
            state.nodes.push((**node).clone());
        }
        Op::Own { slot } => {
            let Some(node) = state.node_mut(*slot) else {
                return;
            };
            node.adopted.former = None;
            node.state = crate::adopt::state_of(node.seen.phase);
            node.state_time = now;
            (node.reason, node.message) = (drover_core::Sym::default(), Box::default());
            node.in_flight.call = drover_core::node::Call::default();
            let key = (
                node.platform.clone(),
                node.node_id.clone().unwrap_or_default(),
            );
            state.foreign.remove(&key);
        }
        Op::Adopted { order } => {
            state.adopted = *order;
        }
        Op::Rebind {
            platform,
            from,
            to,
            slots,
            requests,
            last,
        } => {
            for slot in slots {
                if let Some(node) = state.node_mut(*slot) {
                    node.origin_mut().platform_uid = to.clone();
                }
            }
            for id in requests {
                if let Some(request) = state.requests.get_mut(id) {
                    request.platform_uid = to.clone();
                }
            }
            if state.used.contains(&(platform.clone(), from.clone())) {
                state.used.insert((platform.clone(), to.clone()));
            }
            if *last {
                state.used.remove(&(platform.clone(), from.clone()));
                // Its next list shows them under the new uid.
                state
                    .resource_orphans
                    .retain(|key, _| !key.is_on(platform, from));
                // The promise to leave an abandoned backend alone holds under either uid.
                if state.is_abandoned(from) {
                    state.abandoned.insert((platform.clone(), to.clone()));
                }
            }
        }
        Op::BackOff { key, to } => match to {
            Some(back_off) => {
                state.backoffs.insert(key.clone(), back_off.clone());
            }
            None => {
                state.backoffs.remove(key);
            }
        },
        Op::Condition { key, to } => match to {
            Some(condition) => {
                state.conditions.insert(key.clone(), condition.clone());
            }
            None => {
                state.conditions.remove(key);
            }
        },
        Op::Restamp {
            slot,
            spec_hash,
            storage_size,
            labels_hash,
        } => {
            if let Some(node) = state.node_mut(*slot) {
                let origin = node.origin_mut();
                origin.spec_hash = spec_hash.clone();
                origin.storage_size = *storage_size;
                node.labels_hash = labels_hash.clone();
            }
        }
        Op::Grown {
            slot,
            spec_hash,
            storage_size,
        } => {
            if let Some(node) = state.node_mut(*slot) {
                let origin = node.origin_mut();
                origin.spec_hash = spec_hash.clone();
                origin.storage_size = Some(*storage_size);
                node.in_flight.changes.growth = None;
            }
        }
        Op::Template { slot, digest } => {
            if let Some(node) = state.node_mut(*slot) {
                node.template = digest.clone();
            }
        }
        Op::RoleChange { slot, role } => {
            if let Some(node) = state.node_mut(*slot) {
                node.role = *role;
                // The failures count until the promotion succeeds: whether another node is tried depends on them.
                node.in_flight.changes.role_change = match role {
                    Role::Active => None,
                    Role::Promoting | Role::Demoting | Role::Standby => node
                        .in_flight
                        .changes
                        .role_change
                        .take()
                        .map(|mut role_change| {
                            role_change.done = false;
                            role_change
                        }),
                };
            }
        }
        Op::Reached { slot, to } => {
            if let Some(node) = state.node_mut(*slot) {
                node.reached = Some(to.clone());
            }
        }
        Op::HostLabels { slot, hash } => {
            if let Some(node) = state.node_mut(*slot) {
                node.labels_hash = hash.clone();
                if **hash != *CHANGING {
                    node.in_flight.changes.relabel = None;
                }
            }
        }
        Op::Rollout { group, to } => match to {
            Some(rollout) => {
                state.rollouts.insert(group.clone(), rollout.clone());
            }
            None => {
                state.rollouts.remove(group);
            }
        },
        Op::PeakSizeChanged { group, to } => match to {
            Some(most) => {
                state.grown.insert(group.clone(), *most);
            }
            None => {
                state.grown.remove(group);
            }
        },
        Op::Vacated { group, to } if to.is_empty() => {
            state.vacated.remove(group);
        }
        Op::Vacated { group, to } => {
            state.vacated.insert(group.clone(), to.clone());
        }
        Op::Sole {
            group,
            to: Some(sole),
            doubt,
        } => {
            state.sole.insert(group.clone(), *sole);
            if *doubt && let Some(node) = state.node_mut(sole.slot) {
                node.in_flight.changes.sole = Some(Box::new(SoleChange::unknown()));
            }
        }
        Op::Sole {
            group, to: None, ..
        } => {
            if let Some(sole) = state.sole.remove(group)
                && let Some(node) = state.node_mut(sole.slot)
                && let Some(change) = &mut node.in_flight.changes.sole
            {
                change.ended();
            }
        }
        Op::Resource { key, to, change } => match to {
            Some(record) => {
                let orphan = state.resource_orphans.get(key);
                let sequence = orphan.and_then(|orphan| orphan.sequence);
                let given_out = sequence.is_none_or(|sequence| state.gave_out(sequence));
                let taken_in = *change == ResourceChange::TakeIn;
                if taken_in {
                    state.skipped.take(record.sequence);
                }
                if taken_in || given_out {
                    state.resource_orphans.remove(key);
                }
                state.next_sequence = state.next_sequence.max(record.sequence + 1);
                let backend = key.backend();
                if !state.used.contains(&backend) {
                    state.used.insert(backend);
                }
                state.resources.insert(key.clone(), (**record).clone());
            }
            None => {
                state.resources.remove(key);
                state.resource_orphans.remove(key);
            }
        },
        Op::Abandon {
            platform,
            uid,
            keep,
            last,
        } => {
            let backend = (platform.clone(), uid.clone());
            if *last {
                state.used.remove(&backend);
                state
                    .orphans
                    .retain(|(name, _), one| *name != *platform || one.platform_uid != *uid);
                state
                    .resource_orphans
                    .retain(|key, _| !key.is_on(platform, uid));
            }
            if *keep {
                state.abandoned.insert(backend);
            } else {
                state.abandoned.retain(|(_, own)| own != uid);
            }
        }
        Op::Sweep { uid, shown_by } => {
            state.abandoned.retain(|(_, own)| own != uid);
            if let Some(platform) = shown_by {
                // The nodes that it shows are known to belong to the cluster.
                state.used.insert((platform.clone(), uid.clone()));
            }
        }
        Op::Observed { generation } => state.observed_generation = *generation,
    }
}
