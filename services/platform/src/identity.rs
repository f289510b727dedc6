//! The identity that is stored with a node from its creation, so that its owner can find it again.

use std::collections::BTreeMap;

use drover_proto::platform::v1::{Node, NodeRole, ProvisionRequest, Slot, SlotKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The owner of a node, and the request and spec that it was created from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// UUID of the owning cluster record.
    pub owner: String,
    /// Cluster id.
    pub cluster_id: String,
    /// Path of the group.
    pub group: String,
    /// Request that created it.
    pub request_id: String,
    /// Index within that request.
    pub index: u32,
    /// The owner's sequence number of that request.
    pub sequence: u64,
    /// Hash of the spec that the node was created from.
    pub spec_hash: String,
    /// Store of the requesting orchestrator.
    pub store_id: String,
    /// Id, never reused (`db-1-x7k2p`).
    pub id: String,
    /// Name (`db-1`).
    pub name: String,
    /// Ordinal within its group.
    pub ordinal: u32,
    /// Role, a value of `NodeRole` in the protos.
    pub role: i32,
    /// Store version. Empty if none.
    pub version: String,
    /// Node class as requested. Empty for the platform's default.
    pub node_class: String,
    /// Labels, except those of Drover itself.
    pub labels: BTreeMap<String, String>,
    /// Fingerprint of the whole request. Empty for an adopted node.
    pub fingerprint: String,
}

impl Identity {
    /// Returns the identity of a slot of a validated request.
    #[must_use]
    pub fn of(request: &ProvisionRequest, slot: &Slot, fingerprint: &str) -> Self {
        let group = request.group.as_ref();
        let cluster = request.cluster.as_ref();
        Self {
            owner: request.owner.clone(),
            cluster_id: cluster
                .map(|cluster| cluster.id.clone())
                .unwrap_or_default(),
            group: group.map(|group| group.path.clone()).unwrap_or_default(),
            request_id: request.request_id.clone(),
            index: slot.index.unwrap_or_default(),
            sequence: request.sequence,
            spec_hash: request.spec_hash.clone(),
            store_id: request
                .fence
                .as_ref()
                .map(|fence| fence.store_id.clone())
                .unwrap_or_default(),
            id: slot.id.clone(),
            name: slot.name.clone(),
            ordinal: slot.ordinal.unwrap_or_default(),
            role: slot.role,
            version: group.map(|group| group.version.clone()).unwrap_or_default(),
            node_class: group
                .map(|group| group.node_class.clone())
                .unwrap_or_default(),
            labels: cluster
                .map(|cluster| cluster.labels.clone())
                .unwrap_or_default(),
            fingerprint: fingerprint.to_owned(),
        }
    }

    /// Returns a node with all fields of the identity; phase, endpoints and the like are left to the driver.
    #[must_use]
    pub fn node(&self, node_id: impl Into<String>) -> Node {
        Node {
            cluster_id: self.cluster_id.clone(),
            node_id: node_id.into(),
            id: self.id.clone(),
            name: self.name.clone(),
            ordinal: Some(self.ordinal),
            role: self.role,
            group: self.group.clone(),
            slot: Some(self.key()),
            store_id: self.store_id.clone(),
            sequence: self.sequence,
            spec_hash: self.spec_hash.clone(),
            version: self.version.clone(),
            node_class: self.node_class.clone(),
            labels: self.labels.clone(),
            ..Node::default()
        }
    }

    /// The slot.
    #[must_use]
    pub fn key(&self) -> SlotKey {
        SlotKey {
            owner: self.owner.clone(),
            request_id: self.request_id.clone(),
            index: Some(self.index),
        }
    }

    /// The role; unknown values become `Unspecified`.
    #[must_use]
    pub fn role(&self) -> NodeRole {
        NodeRole::try_from(self.role).unwrap_or_default()
    }
}

/// Fingerprint of a request: owner, cluster, group path, slots without their roles, spec hash. 32 hexadecimal
/// characters, short enough for a label or tag.
#[must_use]
pub fn fingerprint(request: &ProvisionRequest) -> String {
    let mut hash = Sha256::new();
    // Every part is length-prefixed, so that no two requests produce the same bytes.
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(request.owner.as_bytes());
    part(
        request
            .cluster
            .as_ref()
            .map(|cluster| cluster.id.as_bytes())
            .unwrap_or_default(),
    );
    part(
        request
            .group
            .as_ref()
            .map(|group| group.path.as_bytes())
            .unwrap_or_default(),
    );
    part(request.spec_hash.as_bytes());
    for slot in &request.slots {
        part(&slot.index.unwrap_or_default().to_be_bytes());
        part(slot.id.as_bytes());
        part(slot.name.as_bytes());
        part(&slot.ordinal.unwrap_or_default().to_be_bytes());
        match &slot.host_id {
            Some(host) => part(host.as_bytes()),
            None => part(&[0xff]),
        }
    }
    hex(&hash.finalize()[..16])
}

/// The first bytes of the SHA-256 of texts, in lower-case hexadecimal. Each counts with its length, so that no others can
/// pass for them.
#[must_use]
pub fn digest<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>, bytes: usize) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        let part = part.as_ref();
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let hash = hash.finalize();
    hex(&hash[..bytes.min(hash.len())])
}

/// Encodes bytes in lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
            // Cannot fail for a string.
            let _ = write!(out, "{byte:02x}");
            out
        })
}
