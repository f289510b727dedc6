//! A node for tests.

use drover_core::{
    Node, NodeState,
    node::{Call, ProbeResult, Role, Seen},
};
use uuid::Uuid;

/// A node in this state, of the request with the uid 3, with nothing special.
pub(crate) fn node(slot: u64, state: NodeState) -> Node {
    Node {
        slot,
        request: Uuid::from_u128(3),
        index: 0,
        ordinal: u32::try_from(slot).unwrap(),
        sequence: 1,
        group: "db".into(),
        platform: "p".into(),
        platform_uid: "u".into(),
        class: "".into(),
        host: "".into(),
        version: "".into(),
        spec_hash: "h".into(),
        template: "".into(),
        attempts: 1,
        create_time: 1_000,
        state,
        state_time: 1_000,
        reason: "".into(),
        message: Box::default(),
        marked: false,
        stable: false,
        role: Role::Active,
        storage: false,
        node_id: Some("i-1".into()),
        removal: None,
        settled: 0,
        maybe_until: 0,
        given_id: None,
        adoption: None,
        seen: Seen::default(),
        probe: ProbeResult::default(),
        call: Call::default(),
        turn: None,
        hook: None,
    }
}
