//! Nodes as platforms show them, without what their words repeat of secrets. Whatever is taken in of a node passes here.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
};

use drover_proto::platform::v1 as wire;
use uuid::Uuid;

use crate::{secrets, shared::Shared};

/// A node whose words repeat nothing that its group was given.
#[derive(Clone, Debug)]
pub(crate) struct Heard(wire::Node);

impl Deref for Heard {
    type Target = wire::Node;

    fn deref(&self) -> &wire::Node {
        &self.0
    }
}

impl Heard {
    /// A node that nothing is to be hidden of.
    #[cfg(test)]
    pub(crate) fn harmless(node: wire::Node) -> Self {
        Self(node)
    }

    /// Takes what nodes may not repeat out of their words.
    pub(crate) async fn of(shared: &Shared, nodes: Vec<wire::Node>) -> Vec<Self> {
        // What each group may not repeat is read once, however many of its nodes say something.
        let mut talking: BTreeMap<(Uuid, String), BTreeSet<String>> = BTreeMap::new();
        for node in &nodes {
            if let Some(group) = group(node) {
                let hashes = talking.entry(group).or_default();
                hashes.insert(node.spec_hash.clone());
            }
        }
        let mut unsaid = BTreeMap::new();
        for ((owner, group), hashes) in talking {
            // Of a cluster that is not known nothing is known to be hidden.
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

/// The cluster and the group of a node that says something.
fn group(node: &wire::Node) -> Option<(Uuid, String)> {
    if node.message.is_empty() {
        return None;
    }
    let owner = Uuid::parse_str(&node.slot.as_ref()?.owner).ok()?;
    Some((owner, node.group.clone()))
}
