//! Conversion of documents of other tools, which are recognised by their structure.

mod build;
pub(crate) mod capm;
mod kadende;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub(crate) use kadende::Converted;

use crate::{decode::Decoder, tree::Node};

/// Origin of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A Drover manifest, or an unknown document.
    Drover,
    Kadende,
    /// A document of the Cluster API or of its metal-stack provider: several together describe a cluster.
    ClusterApi,
    /// An object of Kubernetes itself, which only has a meaning beside those.
    Kubernetes,
    /// Name of a known document that is not supported.
    Unsupported(String),
}

/// Determines the origin of a document.
pub(crate) fn recognise(root: &Node) -> Origin {
    let word = |key: &str| root.get(key).and_then(Node::text).unwrap_or_default();
    let (api, kind) = (word("apiVersion"), word("kind"));
    if kind == "SIPCluster" {
        return Origin::Unsupported("SIPCluster (Airship)".into());
    }
    if capm::is_one(api, kind) {
        return Origin::ClusterApi;
    }
    match (api, kind) {
        ("v1", "Secret") => {
            let kept_by_it = word("type").starts_with("cluster.x-k8s.io/");
            return if kept_by_it {
                Origin::ClusterApi
            } else {
                Origin::Kubernetes
            };
        }
        ("v1", "Namespace") => return Origin::Kubernetes,
        ("v1", "List") => {
            let of_it = |item| recognise(item) == Origin::ClusterApi;
            return if capm::items(root).iter().any(of_it) {
                Origin::ClusterApi
            } else {
                Origin::Kubernetes
            };
        }
        _ => {}
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

/// Converts a Kadende cluster configuration. `registered` are the platforms that will exist, if known.
pub(crate) fn kadende(
    decoder: &mut Decoder<'_>,
    root: &Node,
    registered: Option<&BTreeSet<String>>,
) -> Converted {
    kadende::convert(decoder, root, registered)
}
