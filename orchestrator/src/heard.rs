//! Nodes as platforms show them, without what their words repeat of secrets. Whatever is taken in of a node passes here.

use std::{collections::BTreeMap, ops::Deref};

use drover_core::secrecy::Hidden;
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
    /// Takes what nodes may not repeat out of their words.
    pub(crate) async fn of(shared: &Shared, nodes: Vec<wire::Node>) -> Vec<Self> {
        let mut all = BTreeMap::new();
        let mut clean = Vec::with_capacity(nodes.len());
        for mut node in nodes {
            if let Some(hidden) = hidden(shared, &mut all, &node).await {
                node.message = hidden.text(&node.message).into_owned();
            }
            clean.push(Self(node));
        }
        clean
    }
}

/// What a node that says something may not repeat. None: it is of no cluster that is known.
async fn hidden<'a>(
    shared: &Shared,
    all: &'a mut BTreeMap<(Uuid, String), Hidden>,
    node: &wire::Node,
) -> Option<&'a Hidden> {
    if node.message.is_empty() {
        return None;
    }
    let owner = Uuid::parse_str(&node.slot.as_ref()?.owner).ok()?;
    let key = (owner, node.group.clone());
    if !all.contains_key(&key) {
        let cluster = shared.cluster(owner)?;
        let hidden = secrets::hidden(shared, &cluster, &node.group).await;
        all.insert(key.clone(), hidden);
    }
    all.get(&key)
}
