//! Redacted observations: nodes as platforms show them, without the secrets that their texts may repeat. All
//! observations of nodes pass through here.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
};

use drover_proto::platform::v1 as wire;
use uuid::Uuid;

use crate::{secrets, shared::Shared};

/// A node whose texts do not repeat anything that its group was given.
#[derive(Clone, Debug)]
pub(crate) struct Heard(wire::Node);

impl Deref for Heard {
    type Target = wire::Node;

    fn deref(&self) -> &wire::Node {
        &self.0
    }
}

impl Heard {
    /// A node without anything to redact.
    #[cfg(test)]
    pub(crate) fn harmless(node: wire::Node) -> Self {
        Self(node)
    }

    /// Redacts the texts of nodes.
    pub(crate) async fn of(shared: &Shared, nodes: Vec<wire::Node>) -> Vec<Self> {
        // What to redact is read once per group, however many of its nodes have texts.
        let mut talking: BTreeMap<(Uuid, String), BTreeSet<String>> = BTreeMap::new();
        for node in &nodes {
            if let Some(group) = group(node) {
                let hashes = talking.entry(group).or_default();
                hashes.insert(node.spec_hash.clone());
            }
        }
        let mut unsaid = BTreeMap::new();
        for ((owner, group), hashes) in talking {
            // Nothing is known to be secret for an unknown cluster.
            if let Some(cluster) = shared.cluster(owner) {
                let hidden = secrets::hidden_with(shared, &cluster, &group, &hashes).await;
                unsaid.insert((owner, group), hidden);
            }
        }
        let clean = nodes.into_iter().map(|mut node| {
            if let Some(hidden) = group(&node).and_then(|group| unsaid.get(&group)) {
                node.message = hidden.text(&node.message).into_owned();
            }
            Self(node)
        });
        clean.collect()
    }
}

/// The cluster and the group of a node that has texts.
fn group(node: &wire::Node) -> Option<(Uuid, String)> {
    if node.message.is_empty() {
        return None;
    }
    let owner = Uuid::parse_str(&node.slot.as_ref()?.owner).ok()?;
    Some((owner, node.group.clone()))
}
