use drover_core::{
    NodeState,
    node::RemovalReason,
    resource::{Asked, ResourceKey, ResourceRecord},
};

use super::*;
use crate::{codec::Interner, fixture};

const NOW: Millis = 100_000;

/// A cluster with the nodes 1 to 3, of one open request.
fn state() -> ClusterState {
    let mut state = fixture::cluster_state();
    for slot in 1..=3 {
        let node = fixture::node(slot, NodeState::Ready);
        state.state.nodes.push(node);
    }
    state.state.next_slot = 4;
    let id = Uuid::from_u128(3);
    state.state.requests.insert(id, fixture::request(id));
    state.bodies.insert(id, Bytes::from_static(b"the request"));
    state
}

fn written(step: &Step) -> Vec<u64> {
    step.put_nodes.iter().map(|(slot, _)| *slot).collect()
}

#[test]
fn a_step_writes_the_rows_that_its_operations_concern_and_no_others() {
    let state = state();
    let remove = Op::Remove {
        slot: 2,
        reason: RemovalReason::Surplus,
        retain: false,
    };
    let step = state.encode_step(&[remove], &[], NOW);
    assert_eq!(written(&step), [2]);
    let (slot, row) = &step.put_nodes[0];
    let node = codec::decode_node(*slot, row, &Interner::default(), None).unwrap();
    assert_eq!(node.removal.unwrap().reason, RemovalReason::Surplus);
    assert_eq!(step.delete_nodes, [0; 0]);
    assert!(step.put_requests.is_empty() && step.delete_requests.is_empty());
    assert_eq!(step.expect_head, state.head.revision);
    assert_eq!(step.expect_desired, Some(state.desired.revision));
    // Memory must not show a change before it is durable.
    assert_eq!(state.state.node(2).unwrap().removal, None);
}

#[test]
fn the_encoded_state_is_in_every_step_and_not_kept_in_memory() {
    let mut state = state();
    state.state.adopted = 7;
    let step = state.encode_step(&[], &[], NOW);
    let mut read = State::default();
    codec::decode_head(&step.head.state, &mut read, &Interner::default()).unwrap();
    assert_eq!(read.adopted, 7);
    let done = StepDone {
        revision: 2,
        last_seq: step.head.last_seq(),
        head: step.head.clone(),
    };
    state.commit(&Plan::default(), Vec::new(), done, NOW);
    assert_eq!(state.head.value.state, Bytes::new());
    assert_eq!(state.encode_step(&[], &[], NOW).head, step.head);
}

#[test]
fn a_record_that_is_dropped_is_deleted() {
    let dropped = Op::RecordDropped {
        slot: 2,
        reason: "Gone",
        message: Box::default(),
        lost: false,
    };
    let step = state().encode_step(&[dropped], &[], NOW);
    assert_eq!(step.delete_nodes, [2]);
    assert_eq!(written(&step), [0; 0]);
}

#[test]
fn a_closed_request_is_deleted_and_its_nodes_remember_until_when_they_may_come() {
    let close = Op::Close {
        request: Uuid::from_u128(3),
        maybe_until: NOW + 5,
        settled: NOW,
    };
    let step = state().encode_step(&[close], &[], NOW);
    assert_eq!(step.delete_requests, [Uuid::from_u128(3).to_string()]);
    assert_eq!(written(&step), [1, 2, 3], "all of them are of this request");
}

#[test]
fn a_new_request_is_stored_with_its_body_and_its_nodes() {
    let mut state = fixture::cluster_state();
    state.state.next_slot = 1;
    let id = Uuid::from_u128(3);
    let ask = Op::Request {
        request: Box::new(fixture::request(id)),
        nodes: vec![fixture::node(1, NodeState::Starting)],
        group: 0,
        choice: 0,
        reason: "ScaleUp",
    };
    let bodies = [(id, Bytes::from_static(b"the request"))];
    let step = state.encode_step(&[ask], &bodies, NOW);
    assert_eq!(written(&step), [1]);
    let (name, row) = &step.put_requests[0];
    assert_eq!(*name, id.to_string());
    let (request, body) = codec::decode_request(row, &Interner::default()).unwrap();
    assert_eq!((request.id, &body[..]), (id, &b"the request"[..]));
    assert_eq!(step.head.next_slot, 2);
}

#[test]
fn a_request_that_is_sent_again_keeps_its_body() {
    let again = Op::Attempt {
        request: Uuid::from_u128(3),
        deadline: NOW + 60_000,
    };
    let step = state().encode_step(&[again], &[], NOW);
    let (request, body) =
        codec::decode_request(&step.put_requests[0].1, &Interner::default()).unwrap();
    assert_eq!(&body[..], b"the request");
    assert_eq!(request.deadline, NOW + 60_000);
}

#[test]
fn calls_are_marked_so_that_no_other_plan_makes_them_too() {
    let mut state = state();
    let key = ResourceKey::infrastructure("p", "u");
    let record = ResourceRecord::default();
    state.state.resources.insert(key.clone(), record);
    let request = Uuid::from_u128(3);
    state.mark_called(&[
        Call::Provision {
            request,
            deadline: NOW,
        },
        Call::Deprovision { slot: 1 },
        Call::RoleChange { slot: 2 },
        Call::Confirm {
            platform: "p".into(),
        },
        Call::Resource {
            key: key.clone(),
            asked: Asked::Ensure,
        },
        // The record was removed meanwhile.
        Call::Adopt { slot: 99 },
    ]);
    let known = &state.state;
    assert!(known.requests[&request].in_flight.call.in_flight);
    assert!(known.node(1).unwrap().in_flight.call.in_flight);
    let change = known
        .node(2)
        .unwrap()
        .in_flight
        .changes
        .role_change
        .as_ref()
        .unwrap();
    assert!(change.call.in_flight && !known.node(2).unwrap().in_flight.call.in_flight);
    assert!(!known.node(3).unwrap().in_flight.call.in_flight);
    assert!(known.resources.get(&key).unwrap().in_flight.call.in_flight);
    let platform = "p".into();
    assert!(state.state.confirms.or_default(platform).in_flight);
}
