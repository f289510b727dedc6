//! Test fixtures for parts of a cluster.

use std::{collections::BTreeSet, sync::Arc};

use drover_core::{
    Node, NodeState,
    node::{Call, ProbeResult, Request, Role, Seen},
    spec::OrphanPolicy,
};
use drover_store::{Desired, Versioned};
use uuid::Uuid;

use crate::cluster::{Cluster, ClusterState, Resolved};

/// The state of a cluster without groups, nodes or requests.
pub(crate) fn cluster_state() -> ClusterState {
    let spec = Resolved {
        software: String::new(),
        version: String::new(),
        attributes: Default::default(),
        groups: Vec::new(),
        infrastructure: Vec::new(),
        orphans: OrphanPolicy::default(),
        orphan_grace: 0,
        secrets: BTreeSet::new(),
    };
    let desired = Versioned {
        value: Desired::default(),
        revision: 1,
    };
    let cluster = Cluster::create(Uuid::from_u128(1), desired, Arc::new(spec));
    cluster.inner.into_inner()
}

/// An open request with this id.
pub(crate) fn request(id: Uuid) -> Request {
    Request {
        id,
        sequence: 1,
        group: "db".into(),
        platform: "p".into(),
        platform_uid: "u".into(),
        class: "".into(),
        spec_hash: "h".into(),
        first_sent: 1_000,
        deadline: 2_000,
        attempts: 1,
        made_nothing: 0,
        sent: true,
        call: Call::default(),
        answer: None,
        rendered: None,
    }
}

/// A node in this state, of the request with uid 3, with defaults otherwise.
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
        role_change: None,
        hook: None,
    }
}
