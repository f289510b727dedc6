//! Test fixtures for parts of a cluster.

use std::{collections::BTreeSet, sync::Arc};

use drover_core::{
    Node, NodeState, Rare,
    node::{Origin, Record, Request, RequestInFlight, Role},
    spec::OrphanPolicy,
};
use drover_store::{Desired, Versioned};
use uuid::Uuid;

use crate::{Cluster, ClusterState, Resolved};

/// A cluster with this name, without groups, nodes or requests.
#[must_use]
pub fn cluster(uid: Uuid, name: &str) -> Cluster {
    let spec = Resolved {
        software: String::new(),
        version: String::new(),
        attributes: Default::default(),
        groups: Vec::new(),
        infrastructure: Vec::new(),
        addons: Vec::new(),
        orphans: OrphanPolicy::default(),
        orphan_grace: 0,
        secrets: BTreeSet::new(),
        addon_secrets: BTreeSet::new(),
    };
    let value = Desired {
        name: name.to_owned(),
        ..Desired::default()
    };
    let desired = Versioned { value, revision: 1 };
    Cluster::create(uid, desired, Arc::new(spec))
}

/// The state of a cluster without groups, nodes or requests.
#[must_use]
pub fn cluster_state() -> ClusterState {
    cluster(Uuid::from_u128(1), "").lock().clone()
}

/// Adds a recorded node to a cluster.
pub fn record(cluster: &Cluster, node: Node) {
    let mut state = cluster.lock();
    let first = node.slot - u64::from(node.index);
    state.first_slots.insert(node.request, first);
    state.state.nodes.push(node);
}

/// An open request with this id.
pub fn request(id: Uuid) -> Request {
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
        in_flight: RequestInFlight {
            sent: true,
            ..RequestInFlight::default()
        },
    }
}

/// A node in this state, of the request with uid 3, with defaults otherwise.
pub fn node(slot: u64, state: NodeState) -> Node {
    Node::new(Record {
        origin: Arc::new(Origin {
            request: Uuid::from_u128(3),
            sequence: 1,
            group: "db".into(),
            platform: "p".into(),
            platform_uid: "u".into(),
            class: "".into(),
            version: "".into(),
            spec_hash: "h".into(),
            storage_size: None,
            storage: false,
        }),
        slot,
        index: 0,
        ordinal: u32::try_from(slot).unwrap_or_default(),
        host: "".into(),
        template: "".into(),
        labels_hash: "".into(),
        attempts: 1,
        create_time: 1_000,
        state,
        state_time: 1_000,
        reason: "".into(),
        message: Box::default(),
        marked: false,
        stable: false,
        role: Role::Active,
        node_id: Some("i-1".into()),
        removal: None,
        settled: 0,
        maybe_until: 0,
        reached: None,
        adopted: Rare::default(),
    })
}

/// The node after a change.
pub fn with(mut node: Node, change: impl FnOnce(&mut Node)) -> Node {
    change(&mut node);
    node
}
