//! Documents of other tools, recognised by their own shape.

mod kadende;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub(crate) use kadende::Converted;

use crate::manifest::{decode::Decoder, tree::Node};

/// What a document is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// One of ours, or one that nobody knows.
    Drover,
    Kadende,
    /// Known and not supported: what it is called.
    Unsupported(String),
}

/// Kinds of Cluster API Provider Metal-Stack and of the Cluster API around it.
const CAPM_GROUPS: &[&str] = &[
    "cluster.x-k8s.io/",
    "infrastructure.cluster.x-k8s.io/",
    "controlplane.cluster.x-k8s.io/",
    "bootstrap.cluster.x-k8s.io/",
];

/// Whose document it is.
pub(crate) fn recognise(root: &Node) -> Origin {
    let word = |key: &str| root.get(key).and_then(Node::text).unwrap_or_default();
    let (api, kind) = (word("apiVersion"), word("kind"));
    if kind == "SIPCluster" {
        return Origin::Unsupported("SIPCluster (Airship)".into());
    }
    if CAPM_GROUPS.iter().any(|group| api.starts_with(group)) || kind.starts_with("MetalStack") {
        return Origin::Unsupported(format!("{kind} (Cluster API, CAPM)"));
    }
    if api.starts_with("replicante.io/") {
        return Origin::Unsupported(format!("{kind} (Replicante)"));
    }
    let foreign = root.entry("apiVersion").is_none()
        && root.entry("kind").is_none()
        && root.entry("metadata").is_none();
    if foreign
        && root.entry("groups").is_some()
        && (root.entry("name").is_some() || root.entry("version").is_some())
    {
        return Origin::Kadende;
    }
    Origin::Drover
}

/// Converts a Kadende cluster configuration. `registered` are the platforms that will be there, if that is known.
pub(crate) fn kadende(
    decoder: &mut Decoder<'_>,
    root: &Node,
    registered: Option<&BTreeSet<String>>,
) -> Converted {
    kadende::convert(decoder, root, registered)
}
