//! The provision request of a group, as stored and as sent.

use bytes::Bytes;
use drover_convert::{spec::to_placement, value::to_struct};
use drover_core::{
    Error, Node, NodeState, Reason, Result,
    node::Request,
    secrecy::Hidden,
    spec::{Choice, Group, SecretRef, UserDataSource},
};
use drover_proto::platform::v1 as wire;
use prost::Message;
use uuid::Uuid;

use crate::{Cluster, ClusterState, resources};

/// Maximum number of peers in a request, so that it fits into one step of the store together with its nodes.
const MAX_PEERS: usize = 500;

/// Builds the request, without the fence and the instance, which each attempt adds.
#[must_use]
pub fn build(
    inner: &ClusterState,
    request: &Request,
    nodes: &[Node],
    group: usize,
    choice: usize,
) -> wire::ProvisionRequest {
    let spec = &inner.spec.groups[group];
    let choice = &spec.choices[choice];
    let slots = nodes.iter().map(|node| slot(inner.uid(), node));
    let living = |node: &&Node| node.removal.is_none() && node.state != NodeState::Failed;
    let mut peers: Vec<&Node> = inner.state.nodes.iter().filter(living).collect();
    // The node's own group comes first: if not all peers fit, those of its own group matter most.
    peers.sort_by_key(|node| (node.group != spec.path, node.group.clone(), node.ordinal));
    peers.truncate(MAX_PEERS);
    wire::ProvisionRequest {
        expected_platform_uid: request.platform_uid.to_string(),
        owner: inner.uid().to_string(),
        request_id: request.id.to_string(),
        sequence: request.sequence,
        slots: slots.collect(),
        cluster: Some(context(inner)),
        group: Some(resolved_group(spec, choice)),
        peers: peers.into_iter().map(peer).collect(),
        spec_hash: request.spec_hash.to_string(),
        // Stored by reference; the data itself is added when the request is sent.
        bootstrap: spec.bootstrap.as_ref().map(|bootstrap| wire::Bootstrap {
            user_data: None,
            render: bootstrap.render,
            parse_only: false,
        }),
        storage: (spec.storage.as_deref()).map(drover_convert::spec::to_storage),
        infrastructure: resources::outputs(&inner.state, &request.platform),
        ..wire::ProvisionRequest::default()
    }
}

/// Upper bound of the stored size of a request for a group, without its nodes.
pub fn most_bytes(inner: &ClusterState, group: usize, choice: usize) -> usize {
    /// Allowance for references to secrets, ids and field names.
    const REST: usize = 4 * 1024;
    let Some(spec) = inner.spec.groups.get(group) else {
        return REST;
    };
    let Some(choice) = spec.choices.get(choice) else {
        return REST;
    };
    let secrets = spec.secrets.iter().map(|(name, of)| {
        // Plus the version of the content.
        name.len() + of.name.len() + of.key.len() + 64
    });
    let labels = inner.desired.value.labels.iter();
    let labels = labels.map(|(key, value)| key.len() + value.len() + 8);
    let outputs = resources::outputs(&inner.state, &choice.platform);
    let outputs = outputs.iter().map(|one| one.encoded_len() + 8);
    let peers = inner
        .state
        .nodes
        .iter()
        .map(|node| peer(node).encoded_len() + 8);
    let mut peers: Vec<usize> = peers.collect();
    peers.sort_unstable_by(|a, b| b.cmp(a));
    peers.truncate(MAX_PEERS);
    to_struct(&inner.spec.attributes).encoded_len()
        + resolved_group(spec, choice).encoded_len()
        + secrets.sum::<usize>()
        + labels.sum::<usize>()
        + outputs.sum::<usize>()
        + peers.into_iter().sum::<usize>()
        + REST
}

/// A slot in the wire format.
#[must_use]
pub fn slot(cluster: Uuid, node: &Node) -> wire::Slot {
    wire::Slot {
        index: Some(node.index),
        id: node.id(cluster),
        name: node.name(),
        ordinal: Some(node.ordinal),
        role: drover_convert::node::to_role(node.role).into(),
        host_id: (!node.host.is_empty()).then(|| node.host.to_string()),
    }
}

/// A node as its platform identifies it. `None` if the platform has not reported an id yet.
#[must_use]
pub fn target(cluster: &Cluster, node: &Node) -> Option<wire::NodeTarget> {
    Some(wire::NodeTarget {
        expected_platform_uid: node.platform_uid.to_string(),
        expected_instance_id: String::new(),
        cluster_id: cluster.name().to_string(),
        node_id: node.node_id.as_ref()?.to_string(),
        expected_slot: Some(wire::SlotKey {
            owner: cluster.uid().to_string(),
            request_id: node.request.to_string(),
            index: Some(node.index),
        }),
    })
}

/// References that are stored with a request, so that it is either resent byte for byte or not at all. They are
/// appended to the message as fields that no platform knows.
#[derive(Clone, PartialEq, Message)]
pub struct Reference {
    /// SHA-256 of the user data. Empty if there is none, or if it comes from a secret.
    #[prost(string, tag = "1001")]
    pub user_data: String,
    /// Name of the secret that contains the user data. Empty if there is none.
    #[prost(string, tag = "1002")]
    secret: String,
    #[prost(string, tag = "1003")]
    secret_key: String,
    /// Version of the content of that key.
    #[prost(bytes = "bytes", tag = "1004")]
    secret_version: Bytes,
    /// The secrets that the templates see.
    #[prost(message, repeated, tag = "1005")]
    template_secrets: Vec<TemplateSecret>,
}

impl Reference {
    /// The secret that contains the user data, and the version of its content.
    #[must_use]
    pub fn secret(&self) -> Option<(SecretRef, &Bytes)> {
        let of = SecretRef {
            name: self.secret.clone(),
            key: self.secret_key.clone(),
        };
        self.is_secret().then_some((of, &self.secret_version))
    }

    /// The secrets that the templates see: their name there, and the version of the content.
    pub fn template_secrets(&self) -> impl Iterator<Item = (&str, SecretRef, &Bytes)> {
        self.template_secrets.iter().map(|seen| {
            let of = SecretRef {
                name: seen.secret.clone(),
                key: seen.key.clone(),
            };
            (seen.name.as_str(), of, &seen.version)
        })
    }

    /// Whether the user data comes from a secret.
    pub fn is_secret(&self) -> bool {
        !self.secret.is_empty()
    }
}

/// Reference to a secret that the templates see, without its content.
#[derive(Clone, PartialEq, Message)]
struct TemplateSecret {
    /// The name by which the templates refer to it.
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    secret: String,
    #[prost(string, tag = "3")]
    key: String,
    /// Version of the content.
    #[prost(bytes = "bytes", tag = "4")]
    version: Bytes,
}

/// Encodes a request for the store: the message, with references to its user data and to secrets, each with the current
/// version of its content.
pub fn encode(
    message: &wire::ProvisionRequest,
    group: &Group,
    version: impl Fn(&SecretRef) -> Bytes,
) -> Bytes {
    let mut reference = Reference::default();
    match group.bootstrap.as_ref().map(|own| &own.source) {
        None => {}
        Some(UserDataSource::Sha256(digest)) => reference.user_data.clone_from(digest),
        Some(UserDataSource::Secret(of)) => {
            reference.secret.clone_from(&of.name);
            reference.secret_key.clone_from(&of.key);
            reference.secret_version = version(of);
        }
    }
    let seen = group.secrets.iter().map(|(name, of)| TemplateSecret {
        name: name.clone(),
        secret: of.name.clone(),
        key: of.key.clone(),
        version: version(of),
    });
    reference.template_secrets.extend(seen);
    let mut stored = message.encode_to_vec();
    // Appends nothing if the reference is empty.
    stored.extend(reference.encode_to_vec());
    stored.into()
}

/// Decodes a stored request and its references.
pub fn decode(stored: &Bytes) -> Result<(wire::ProvisionRequest, Reference)> {
    let damaged = |_| Error::internal("the stored request cannot be read");
    let message = wire::ProvisionRequest::decode(stored.clone()).map_err(damaged)?;
    let reference = Reference::decode(stored.clone()).map_err(damaged)?;
    Ok((message, reference))
}

/// A template secret in the wire format.
pub fn template_secret(of: &SecretRef, content: &[u8]) -> Result<wire::TemplateSecret> {
    let text = std::str::from_utf8(content)
        .map_err(|_| Error::invalid("secrets", format!("secret {of} holds no text")))?;
    Ok(wire::TemplateSecret {
        text: text.to_owned(),
    })
}

/// The values to redact from all texts about a request. User data from a secret is redacted as a whole.
pub fn hidden(message: &wire::ProvisionRequest, secret: bool) -> Hidden {
    use wire::bootstrap::UserData;
    let hidden = drover_convert::secrecy::hidden(message);
    let bootstrap = message.bootstrap.as_ref();
    match bootstrap.and_then(|bootstrap| bootstrap.user_data.as_ref()) {
        Some(UserData::Text(text)) if secret => hidden.secret(text.as_bytes()),
        Some(UserData::Binary(data)) if secret => hidden.secret(data),
        _ => hidden,
    }
}

/// The error for user data that is referred to but not stored.
pub fn digest_not_stored(digest: &str) -> Error {
    Error::new(
        Reason::DigestNotStored,
        format!("no user data with digest {digest} is stored; apply the data itself"),
    )
    .with_metadata("sha256", digest)
}

/// Re-encodes a stored request for a backend with another uid.
pub fn for_backend(stored: &Bytes, uid: &str) -> Result<Bytes> {
    let (mut message, reference) = decode(stored)?;
    uid.clone_into(&mut message.expected_platform_uid);
    let mut stored = message.encode_to_vec();
    // Appends nothing if the reference is empty.
    stored.extend(reference.encode_to_vec());
    Ok(stored.into())
}

/// User data in the wire format: as text if it is UTF-8.
pub fn bootstrap(data: &[u8], render: bool) -> wire::Bootstrap {
    use wire::bootstrap::UserData;
    let user_data = match std::str::from_utf8(data) {
        Ok(text) => UserData::Text(text.to_owned()),
        Err(_) => UserData::Binary(data.to_vec()),
    };
    wire::Bootstrap {
        user_data: Some(user_data),
        render,
        parse_only: false,
    }
}

/// A group in the wire format.
pub fn resolved_group(group: &Group, choice: &Choice) -> wire::ResolvedGroup {
    wire::ResolvedGroup {
        path: group.path.to_string(),
        role: group.role.clone(),
        size: group.size.unwrap_or(1),
        standby: Some(group.standby),
        node_class: choice.class.to_string(),
        version: group.version.to_string(),
        attributes: Some(to_struct(&group.attributes)),
        properties: Some(to_struct(&choice.properties)),
        placement: to_placement(&group.placement),
    }
}

fn context(inner: &ClusterState) -> wire::ClusterContext {
    wire::ClusterContext {
        id: inner.desired.value.name.clone(),
        store: inner.spec.software.clone(),
        version: inner.spec.version.clone(),
        attributes: Some(to_struct(&inner.spec.attributes)),
        labels: inner.desired.value.labels.clone(),
    }
}

fn peer(node: &Node) -> wire::Peer {
    wire::Peer {
        name: node.name(),
        group: node.group.to_string(),
        ordinal: node.ordinal,
        role: drover_convert::node::to_role(node.role).into(),
        endpoints: node
            .seen
            .endpoints
            .iter()
            .map(|(name, to)| (name.to_string(), to.to_string()))
            .collect(),
        ready: node.state == NodeState::Ready,
    }
}
