//! Ownership of objects: identities as labels, for selectors, and in full in an annotation.

pub mod declared;

use std::collections::BTreeMap;

use drover_core::name::RESERVED_PREFIX;
use drover_platform::identity::{Identity, hex};
use drover_proto::platform::v1::NodeRole;
use kube::core::ObjectMeta;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use self::declared::{Declared, Plain};
use crate::client::Meta as _;

/// Label: path of the group, encoded by [`value`].
pub const GROUP: &str = "drover.dev/group";
/// Label: UUID of the owning cluster record.
pub const OWNER: &str = "drover.dev/owner";
/// Label: current role of the node, `active` or `standby`.
pub const ROLE: &str = "drover.dev/role";
/// Label: `true` if the node is active and its promotion has ended, so that clients may be led to it; [`PROMOTING`] before that.
/// An active node that an earlier version has made or promoted has something else, or nothing.
pub const ACTIVE: &str = "drover.dev/active";
/// Value of [`ACTIVE`].
pub const PROMOTING: &str = "promoting";
/// Label: request that created the node.
pub const REQUEST: &str = "drover.dev/request";
/// Annotation: the whole [`Identity`] as JSON.
pub const IDENTITY: &str = "drover.dev/identity";
/// Annotation: `"true"` on the object that is created last; a set without it is only partly created or removed.
pub const ANCHOR: &str = "drover.dev/anchor";
/// Annotation: node id of an adopted node, which keeps its former id. Without it the node id is [`Identity::id`].
pub const NODE_ID: &str = "drover.dev/node-id";
/// Annotation: the slots that an adopted node had before, as JSON. It marks the object that speaks for the node,
/// overriding the identities of its other objects.
pub const FORMER: &str = "drover.dev/former";
/// Annotation of a pod that asks for its peers: the nodes of its cluster, as JSON. The template sets it to `[]`, the
/// platform keeps it up to date.
pub const PEERS: &str = "drover.dev/peers";
/// Annotation of a pod with [`PEERS`]: name of the service for the active nodes of its group.
pub const ACTIVE_SERVICE: &str = "drover.dev/active-service";
/// Annotation of a pod with [`PEERS`]: name of the service for all nodes of its group, to read from.
pub const READ_SERVICE: &str = "drover.dev/read-service";
/// Annotation of a pod with [`PEERS`]: how many pods of its group may be evicted at the same time.
pub const DISRUPTION_BUDGET: &str = "drover.dev/disruption-budget";
/// Annotation of a pod with [`PEERS`]: the Secrets that the platform keeps for its group, as JSON.
pub const SECRETS: &str = "drover.dev/secrets";
/// Annotation of the Secret with the certificate of a group: since when its authorities are trusted, as seconds since 1970.
pub const TRUSTED_SINCE: &str = "drover.dev/trusted-since";
/// Annotation that a person sets on the Secret of an authority to have another one; any value that was not there before.
pub const RENEW: &str = "drover.dev/renew";
/// Annotation beside [`RENEW`]: the value that was done.
pub const RENEWED: &str = "drover.dev/renewed";
/// Annotation of an object that the platform has made for a group: its own name. A copy of it has another name.
pub const SHARED: &str = "drover.dev/shared";
/// Label of everything that belongs to an addon: its name, encoded by [`value`].
pub const ADDON: &str = "drover.dev/addon";
/// Label beside [`ADDON`]: cluster id, encoded by [`value`]. Never the cluster label of nodes, or the pods of the addon
/// would be nodes.
pub const ADDON_CLUSTER: &str = "drover.dev/addon-cluster";
/// Annotation beside [`ADDON`]: which addon it is and what was applied, as JSON.
pub const ADDON_IDENTITY: &str = "drover.dev/addon-identity";
/// Annotation of a pod of an addon that asks for it: the content of a ConfigMap, kept up to date.
pub const LIVE: &str = "drover.dev/live";
/// Annotation of a pod that asks for [`LIVE`]: name of the ConfigMap, whose key is `live`.
pub const LIVE_FROM: &str = "drover.dev/live-from";
/// Annotation of a pod with [`LIVE_FROM`]: `"true"` if it says in its log which content it has loaded.
pub const LIVE_CONFIRMED: &str = "drover.dev/live-confirmed";
/// Annotation of a pod with [`LIVE_FROM`]: `"true"` if its first container looks for newer content in
/// `/run/drover/handed` too, by the version that is the name of the file and the first line of [`LIVE`].
pub const LIVE_HANDED: &str = "drover.dev/live-handed";
/// Annotation of an object that is written once and then kept, until this value is another one.
pub const ONCE: &str = "drover.dev/once";
/// Annotation beside [`ONCE`]: when it is written again nevertheless, as seconds since 1970.
pub const RENEW_AFTER: &str = "drover.dev/renew-after";
/// Label with the value [`MANAGER`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGER: &str = "drover";

/// Maximum length of a label value.
const MAX_VALUE: usize = 63;
/// Characters of the text kept in front of the hash.
const KEPT: usize = 50;

/// Keys of the labels that say cluster and node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LabelKeys {
    /// Label whose value is the cluster id.
    pub cluster: String,
    /// Label whose value is the node id. Pods without it have their name as node id.
    pub node: String,
}

impl Default for LabelKeys {
    fn default() -> Self {
        Self {
            cluster: "drover.dev/cluster".to_owned(),
            node: "drover.dev/node".to_owned(),
        }
    }
}

impl LabelKeys {
    /// Label selector for the objects of any cluster.
    #[must_use]
    pub fn any_cluster(&self) -> String {
        self.cluster.clone()
    }

    /// Label selector for the objects of one cluster.
    #[must_use]
    pub fn of_cluster(&self, cluster_id: &str) -> String {
        format!("{}={}", self.cluster, value(cluster_id))
    }

    /// Label selector for the objects of one node.
    #[must_use]
    pub fn of_node(&self, cluster_id: &str, node_id: &str) -> String {
        format!(
            "{}={},{}={}",
            self.cluster,
            value(cluster_id),
            self.node,
            value(node_id)
        )
    }

    /// Label selector for the objects that one request created.
    #[must_use]
    pub fn of_request(&self, request_id: &str) -> String {
        format!("{},{REQUEST}={}", self.cluster, value(request_id))
    }
}

/// Labels and annotations of every object of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Labels that override those of the template.
    pub labels: BTreeMap<String, String>,
    /// Labels that the cluster declares.
    pub declared: Declared,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// Labels and annotations of every object of a node. The anchor also gets [`ANCHOR`].
#[must_use]
pub fn stamp(identity: &Identity, keys: &LabelKeys, plain: &Plain) -> Stamp {
    let ours = [
        (keys.cluster.as_str(), value(&identity.cluster_id)),
        (keys.node.as_str(), value(&identity.id)),
        (GROUP, value(&identity.group)),
        (OWNER, value(&identity.owner)),
        (REQUEST, value(&identity.request_id)),
        (MANAGED_BY, MANAGER.to_owned()),
    ];
    let mut labels = BTreeMap::from(ours.map(|(key, text)| (key.to_owned(), text)));
    labels.extend(role(identity).map(|role| (ROLE.to_owned(), role.to_owned())));
    labels.extend(role(identity).map(|_| (ACTIVE.to_owned(), is_active(identity).to_string())));
    let declared = Declared::of(identity, plain);
    // Serialising strings, numbers and a map of strings cannot fail.
    let identity = serde_json::to_string(identity).unwrap_or_default();
    Stamp {
        labels,
        declared,
        annotations: BTreeMap::from([(IDENTITY.to_owned(), identity)]),
    }
}

/// Label value of a role. `None` if no role is recorded.
#[must_use]
pub fn role(identity: &Identity) -> Option<&'static str> {
    match identity.role() {
        NodeRole::Unspecified => None,
        NodeRole::Active => Some("active"),
        NodeRole::Standby => Some("standby"),
    }
}

/// Whether the recorded role is the active one.
#[must_use]
pub fn is_active(identity: &Identity) -> bool {
    identity.role() == NodeRole::Active
}

/// Ownership of an object, as far as its metadata tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mark {
    /// Cluster id. Exact if the annotation agrees with the label, otherwise the label value.
    pub cluster: String,
    /// Node id. Exact if the annotation agrees with the label, otherwise the label value. `None` if there is none.
    pub node: Option<String>,
    /// Identity. `None` if it is missing (foreign), unreadable, or of another cluster than the label says.
    pub identity: Option<Identity>,
    /// Whether it is the object that was created last.
    pub anchor: bool,
    /// Slots that an adopted node had before, if this object speaks for it. Otherwise `None`.
    pub former: Option<Vec<FormerSlot>>,
    /// Problem of the identity, or contradiction to it, for people. `None` if there is none.
    pub problem: Option<String>,
}

/// A slot that an adopted node had before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FormerSlot {
    /// UUID of the owning cluster record.
    pub owner: String,
    /// Request that created the node.
    pub request: String,
    /// Index within that request.
    pub index: u32,
}

impl FormerSlot {
    /// The slot of an identity.
    #[must_use]
    pub fn of(identity: &Identity) -> Self {
        Self {
            owner: identity.owner.clone(),
            request: identity.request_id.clone(),
            index: identity.index,
        }
    }
}

/// Reads the ownership of an object. `None` if it has no cluster label, and so belongs to nobody.
#[must_use]
pub fn read(meta: &ObjectMeta, keys: &LabelKeys) -> Option<Mark> {
    let label = meta.labels().get(&keys.cluster)?;
    let node = meta
        .labels()
        .get(&keys.node)
        .filter(|node| !node.is_empty());
    // The annotations of a Deployment are copied to its ReplicaSets.
    let controlled = meta.controller().is_some();
    let mut mark = Mark {
        cluster: label.clone(),
        node: node.cloned(),
        anchor: meta
            .annotations()
            .get(ANCHOR)
            .is_some_and(|it| it == "true")
            && !controlled,
        ..Mark::default()
    };
    let Some(json) = meta.annotations().get(IDENTITY) else {
        return Some(mark);
    };
    match serde_json::from_str::<Identity>(json) {
        Err(_) => mark.problem = Some(format!("its annotation {IDENTITY} cannot be read")),
        Ok(identity) => {
            let differs = disagreement(meta, keys, &identity);
            mark.problem = differs.map(|key| {
                format!(
                    "its label {key} was changed and does not go with its annotation {IDENTITY}"
                )
            });
            // The label decides on the cluster: an object in another cluster is no longer ours.
            if *label == value(&identity.cluster_id) {
                mark.cluster.clone_from(&identity.cluster_id);
                mark.node = Some(node_id(meta, &identity).to_owned());
                let former = meta.annotations().get(FORMER).filter(|_| !controlled);
                mark.former = former.map(|json| serde_json::from_str(json).unwrap_or_default());
                mark.identity = Some(identity);
            }
        }
    }
    Some(mark)
}

fn node_id<'a>(meta: &'a ObjectMeta, identity: &'a Identity) -> &'a str {
    meta.annotations().get(NODE_ID).unwrap_or(&identity.id)
}

/// The label that contradicts the identity.
fn disagreement<'a>(
    meta: &'a ObjectMeta,
    keys: &'a LabelKeys,
    identity: &'a Identity,
) -> Option<&'a str> {
    let expected: [(&'a str, &str); 4] = [
        (&keys.cluster, &identity.cluster_id),
        (&keys.node, node_id(meta, identity)),
        (OWNER, &identity.owner),
        (REQUEST, &identity.request_id),
    ];
    expected
        .into_iter()
        .find(|(key, text)| meta.labels().get(*key) != Some(&value(text)))
        .map(|(key, _)| key)
}

/// Encodes text as a label value: unchanged if that is valid, otherwise its first characters and a hash.
#[must_use]
pub fn value(text: &str) -> String {
    if is_value(text) {
        return text.to_owned();
    }
    let kept: String = text
        .chars()
        .map(|c| if is_inner(c) { c } else { '-' })
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(KEPT)
        .collect();
    let hash = hex(&Sha256::digest(text.as_bytes())[..4]);
    if kept.is_empty() {
        hash
    } else {
        format!("{kept}-{hash}")
    }
}

/// Whether a text is a valid label value.
#[must_use]
pub fn is_value(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= MAX_VALUE
        && text.chars().all(is_inner)
        && ends(text.chars().next())
        && ends(text.chars().next_back())
}

/// Whether a text is a valid key of a label or an annotation: an optional DNS name with `/`, and a name.
#[must_use]
pub fn is_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let dns = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    !name.is_empty()
        && is_value(name)
        && prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(dns))
}

/// Whether a key is reserved for the platform.
#[must_use]
pub fn is_ours(key: &str) -> bool {
    key.starts_with(RESERVED_PREFIX) || key == MANAGED_BY || declared::is_name(key)
}

fn is_inner(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}
