//! Converts a request to the context of its templates.

use drover_convert::value::object;
use drover_core::Result;
use drover_proto::platform::v1::{self as proto, ProvisionRequest, Slot};
use drover_templates::{
    ClusterContext, Context, EndpointContext, GroupContext, InfrastructureContext, NodeContext,
    NodeRole, NodeScope, PeerContext, Scope, StorageContext,
};
use prost_types::Struct;
use serde_json::Map;

use super::Place;

/// The part of the template context that is specific to a node.
pub(super) fn own(scope: &Scope, slot: &Slot, place: &Place) -> NodeScope {
    NodeScope {
        node: NodeContext {
            id: slot.id.clone(),
            name: slot.name.clone(),
            ordinal: slot.ordinal.unwrap_or_default(),
            role: role(slot.role()),
            failure_domain: place.failure_domain.clone(),
        },
        platform: place.platform.clone(),
        storage: place.storage_path.as_ref().map(|path| StorageContext {
            path: Some(path.clone()),
            ..scope.context().storage.clone().unwrap_or_default()
        }),
    }
}

/// The part that all nodes of a request share.
///
/// # Errors
///
/// `Invalid` for a free-form value that cannot be represented exactly.
pub(super) fn context(request: &ProvisionRequest) -> Result<Context> {
    let free = |field: &str, value: &Option<Struct>| {
        value
            .as_ref()
            .map_or(Ok(Map::new()), |value| object(field, value))
    };
    let cluster = request.cluster.clone().unwrap_or_default();
    let group = request.group.clone().unwrap_or_default();
    Ok(Context {
        cluster: ClusterContext {
            attributes: free("cluster.attributes", &cluster.attributes)?,
            id: cluster.id,
            store: cluster.store,
            version: cluster.version,
            labels: cluster.labels,
        },
        group: GroupContext {
            attributes: free("group.attributes", &group.attributes)?,
            path: group.path,
            role: group.role,
            size: group.size,
            standby: group.standby,
            class: group.node_class,
            version: group.version,
        },
        peers: request.peers.iter().map(peer).collect(),
        storage: request.storage.as_ref().map(|storage| StorageContext {
            size_bytes: storage.size_bytes,
            class: storage.class.clone(),
            path: None,
        }),
        secrets: request
            .secrets
            .iter()
            .map(|(name, secret)| (name.clone(), secret.text.clone()))
            .collect(),
        request_id: request.request_id.clone(),
        infrastructure: request
            .infrastructure
            .iter()
            .enumerate()
            .map(|(at, outputs)| {
                Ok(InfrastructureContext {
                    platform: outputs.platform.clone(),
                    endpoint: outputs.endpoint.as_ref().map(|endpoint| EndpointContext {
                        host: endpoint.host.clone(),
                        port: endpoint.port,
                    }),
                    network_id: outputs.network_id.clone(),
                    properties: free(
                        &format!("infrastructure[{at}].properties"),
                        &outputs.properties,
                    )?,
                })
            })
            .collect::<Result<_>>()?,
        ..Context::default()
    })
}

fn peer(peer: &proto::Peer) -> PeerContext {
    PeerContext {
        name: peer.name.clone(),
        group: peer.group.clone(),
        ordinal: peer.ordinal,
        role: role(peer.role()),
        endpoints: peer.endpoints.clone(),
        ready: peer.ready,
    }
}

fn role(role: proto::NodeRole) -> NodeRole {
    match role {
        proto::NodeRole::Standby => NodeRole::Standby,
        proto::NodeRole::Unspecified | proto::NodeRole::Active => NodeRole::Active,
    }
}
