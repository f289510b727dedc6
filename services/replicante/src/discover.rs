//! `GET /discover`.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{Node, Warning};
use serde::Serialize;

use crate::{ReplicanteApi, provision::exists};

/// Address of nodes whose own address is not known (yet): a URL with a name that never resolves (RFC 6761).
///
/// Clients require the field and interpret everything before the first colon as the transport: an empty address, or an
/// unknown scheme, makes them discard the whole cluster. With this address they lose only this node, which is indeed
/// unreachable.
const UNKNOWN_ADDRESS: &str = "http://address-unknown.invalid";

/// A `ClusterDiscoveryResponse`.
#[derive(Debug, Serialize)]
pub(crate) struct Discovered {
    clusters: Vec<Cluster>,
}

#[derive(Debug, Serialize)]
struct Cluster {
    cluster_id: String,
    nodes: Vec<Listed>,
}

#[derive(Debug, Serialize)]
struct Listed {
    agent_address: String,
    node_class: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_group: Option<String>,
    node_id: String,
}

impl ReplicanteApi {
    /// Lists all nodes with a cluster id, sorted by cluster and id.
    pub(crate) async fn discover(&self) -> Result<Discovered> {
        let reading = self.platform.reading("").await?;
        let mut clusters: BTreeMap<&str, BTreeMap<&str, Listed>> = BTreeMap::new();
        for found in &reading.listing.nodes {
            let node = &found.node;
            if !node.cluster_id.is_empty() && exists(node) {
                clusters
                    .entry(&node.cluster_id)
                    .or_default()
                    .insert(&node.node_id, listed(node));
            }
        }
        for warning in &reading.listing.warnings {
            let (cluster_id, node_id) = unreadable(warning)?;
            clusters
                .entry(cluster_id)
                .or_default()
                .entry(node_id)
                .or_insert_with(|| Listed {
                    agent_address: UNKNOWN_ADDRESS.to_owned(),
                    node_class: String::new(),
                    node_group: None,
                    node_id: node_id.to_owned(),
                });
        }
        let clusters = clusters.into_iter().map(|(cluster_id, nodes)| Cluster {
            cluster_id: cluster_id.to_owned(),
            nodes: nodes.into_values().collect(),
        });
        Ok(Discovered {
            clusters: clusters.collect(),
        })
    }
}

fn listed(node: &Node) -> Listed {
    let address = node.agent_address.clone();
    Listed {
        agent_address: address
            .filter(|address| !address.is_empty())
            .unwrap_or_else(|| UNKNOWN_ADDRESS.to_owned()),
        node_class: node.node_class.clone(),
        node_group: (!node.group.is_empty()).then(|| node.group.clone()),
        node_id: node.node_id.clone(),
    }
}

/// Returns the node that a warning is about. A warning without a node could hide any node, so it is an error.
fn unreadable(warning: &Warning) -> Result<(&str, &str)> {
    match (warning.cluster_id.as_deref(), warning.id.as_deref()) {
        // Objects without a cluster are not listed, but they cannot be represented here either.
        (Some(cluster), Some(id)) if !cluster.is_empty() && !id.is_empty() => Ok((cluster, id)),
        _ => Err(Error::new(
            Reason::Unavailable,
            format!("the list would not be whole: {}", warning.message),
        )),
    }
}
