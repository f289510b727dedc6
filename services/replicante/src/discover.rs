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
    let address = node.agent_address.as_deref();
    Listed {
        agent_address: match address.filter(|address| !address.is_empty()) {
            None => UNKNOWN_ADDRESS.to_owned(),
            Some(address) if node.slot.is_some() => over_http(address),
            // What others wrote is theirs to answer for.
            Some(address) => address.to_owned(),
        },
        node_class: node.node_class.clone(),
        node_group: (!node.group.is_empty()).then(|| node.group.clone()),
        node_id: node.node_id.clone(),
    }
}

/// The address of a node that was made from a template, for clients that discard a whole cluster for one address of a
/// transport that they do not know. The port is the same: agents of Drover answer both on it, and what speaks neither is
/// unreachable for them either way.
fn over_http(address: &str) -> String {
    let secure = |scheme: &str| {
        ["https", "grpcs"]
            .iter()
            .any(|it| scheme.eq_ignore_ascii_case(it))
    };
    match address.split_once("://") {
        Some((scheme, rest)) if secure(scheme) => format!("https://{rest}"),
        Some((_, rest)) => format!("http://{rest}"),
        None => address.to_owned(),
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

#[cfg(test)]
mod tests {
    use drover_proto::platform::v1::SlotKey;

    use super::*;

    fn shown(address: &str, slot: Option<SlotKey>) -> String {
        let node = Node {
            agent_address: Some(address.to_owned()),
            slot,
            ..Node::default()
        };
        listed(&node).agent_address
    }

    #[test]
    fn templates_answer_what_clients_can_ask_and_what_others_wrote_stays_as_it_is() {
        for (address, made) in [
            ("tcp://10.0.0.7:6379", "http://10.0.0.7:6379"),
            ("grpc://[fd00::7]:7500", "http://[fd00::7]:7500"),
            ("grpcs://db-0.example:7500", "https://db-0.example:7500"),
            ("http://10.0.0.7:2379", "http://10.0.0.7:2379"),
            ("mysql://db:1", "http://db:1"),
            ("GRPCS://db:1", "https://db:1"),
            ("https://agent.example/x", "https://agent.example/x"),
            ("", UNKNOWN_ADDRESS),
        ] {
            assert_eq!(shown(address, Some(SlotKey::default())), made);
            let foreign = if address.is_empty() { made } else { address };
            assert_eq!(shown(address, None), foreign);
        }
    }
}
