//! Conversion of documents of other tools, which are recognised by their structure.

mod build;
pub(crate) mod capm;
mod fields;
mod kadende;
pub(crate) mod sip;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::{decode::Decoder, tree::Node};

/// Origin of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A Drover manifest, or an unknown document.
    Drover,
    Kadende,
    /// A SIPCluster of Airship.
    Sip,
    /// A document of the Cluster API or of its metal-stack provider: several together describe a cluster.
    ClusterApi,
    /// An object of Kubernetes itself, which only has a meaning beside those.
    Kubernetes,
    /// Name of a known document that is not supported.
    Unsupported(String),
}

/// Result of a conversion.
pub(crate) struct Converted {
    /// The cluster as a Drover manifest.
    pub(crate) cluster: Node,
    /// Platforms in the addresses of plugins: endpoints by name.
    pub(crate) platforms: BTreeMap<String, String>,
    /// Plugins that are not a registered platform, each already reported.
    pub(crate) unresolved: BTreeSet<String>,
    /// Warnings, each a sentence.
    pub(crate) warnings: Vec<String>,
}

/// Determines the origin of a document.
pub(crate) fn recognise(root: &Node) -> Origin {
    let word = |key: &str| root.get(key).and_then(Node::text).unwrap_or_default();
    let (api, kind) = (word("apiVersion"), word("kind"));
    if kind == sip::KIND {
        return Origin::Sip;
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

/// Converts a SIPCluster to a manifest, with warnings. `None` if it is invalid, which is reported.
pub(crate) fn sip(decoder: &mut Decoder<'_>, root: &Node) -> (Option<Node>, Vec<String>) {
    sip::convert(decoder, root)
}

/// The items of a list of SIPClusters. Empty for any other document.
pub(crate) fn items(root: &Node) -> &[Node] {
    if recognise(root) != Origin::Kubernetes {
        return &[];
    }
    let items = capm::items(root);
    let any = items.iter().any(|item| recognise(item) == Origin::Sip);
    if any { items } else { &[] }
}
