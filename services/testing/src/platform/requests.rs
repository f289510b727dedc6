//! Requests as an orchestrator builds them: all of them are valid, and callers change them as needed.

use std::ops::Range;

use drover_core::name;
use drover_proto::platform::v1::{
    ClusterContext, DeprovisionRequest, Fence, Node, NodeAdoption, NodeRole, ProvisionRequest,
    ResolvedGroup, Slot, SlotKey, UpdateNodeRequest, update_node_request::Update,
};
use uuid::Uuid;

/// Creates new nodes with these ordinals in a group of an owner's cluster, with sequence number 1.
pub fn provision(
    platform_uid: &str,
    fence: Fence,
    (cluster, owner): (&str, Uuid),
    group: &str,
    ordinals: Range<u32>,
) -> ProvisionRequest {
    // As an orchestrator's, which say when they were made.
    let request_id = Uuid::now_v7();
    let slots: Vec<Slot> = (0..)
        .zip(ordinals)
        .map(|(index, ordinal)| Slot {
            index: Some(index),
            id: name::node_id(group, ordinal, owner, request_id, index),
            name: name::node_name(group, ordinal),
            ordinal: Some(ordinal),
            role: NodeRole::Active.into(),
            host_id: None,
        })
        .collect();
    ProvisionRequest {
        expected_platform_uid: platform_uid.to_owned(),
        fence: Some(fence),
        owner: owner.to_string(),
        request_id: request_id.to_string(),
        sequence: 1,
        cluster: Some(ClusterContext {
            id: cluster.to_owned(),
            ..ClusterContext::default()
        }),
        group: Some(ResolvedGroup {
            path: group.to_owned(),
            size: u32::try_from(slots.len()).unwrap(),
            ..ResolvedGroup::default()
        }),
        slots,
        spec_hash: "v1-0123456789abcdef".to_owned(),
        ..ProvisionRequest::default()
    }
}

/// Removes a node.
pub fn removal(platform_uid: &str, fence: Fence, node: &Node) -> DeprovisionRequest {
    let slot = node.slot.clone().unwrap_or_default();
    DeprovisionRequest {
        expected_platform_uid: platform_uid.to_owned(),
        fence: Some(fence),
        request_id: Uuid::new_v4().to_string(),
        owner: slot.owner,
        cluster_id: node.cluster_id.clone(),
        node_request_id: slot.request_id,
        index: slot.index,
        node_id: node.node_id.clone(),
        reason: "User".to_owned(),
        ..DeprovisionRequest::default()
    }
}

/// Changes a node, which must be as it was last shown.
pub fn update(platform_uid: &str, fence: Fence, node: &Node, update: Update) -> UpdateNodeRequest {
    UpdateNodeRequest {
        expected_platform_uid: platform_uid.to_owned(),
        fence: Some(fence),
        node_id: node.node_id.clone(),
        expected_cluster_id: node.cluster_id.clone(),
        expected_slot: node.slot.clone(),
        update: Some(update),
        ..UpdateNodeRequest::default()
    }
}

/// Assigns a node to an owner, as ordinal 7 of a group of its cluster, under a request of its own.
pub fn adoption(
    platform_uid: &str,
    fence: Fence,
    node: &Node,
    (cluster, owner): (&str, Uuid),
) -> UpdateNodeRequest {
    let adoption = NodeAdoption {
        cluster_id: cluster.to_owned(),
        key: Some(SlotKey {
            owner: owner.to_string(),
            request_id: Uuid::new_v4().to_string(),
            index: None,
        }),
        slot: Some(Slot {
            index: Some(0),
            id: "db-7-abcde".to_owned(),
            name: "db-7".to_owned(),
            ordinal: Some(7),
            role: NodeRole::Active.into(),
            host_id: None,
        }),
        sequence: 3,
        group: "db".to_owned(),
        spec_hash: "v1-adopted".to_owned(),
    };
    update(platform_uid, fence, node, Update::Adoption(adoption))
}
