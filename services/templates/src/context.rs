//! What a template sees.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Everything that a template can read, under these names.
///
/// Its `Debug` shows no values, because attributes, secrets and user data may be confidential.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct Context {
    /// The cluster.
    pub cluster: ClusterContext,
    /// The group of the node.
    pub group: GroupContext,
    /// The node that is made.
    pub node: NodeContext,
    /// The living nodes of the cluster, by group and ordinal.
    pub peers: Vec<PeerContext>,
    /// Storage of the node. Absent (`none` in a template): none is declared.
    pub storage: Option<StorageContext>,
    /// What the spec names of secrets, by the names that it gives them.
    pub secrets: BTreeMap<String, String>,
    /// Id of the request that makes the node.
    pub request_id: String,
    /// User data of the node. Absent: none was given.
    pub bootstrap: Option<String>,
    /// Options of the catalogue entry. Set when it is rendered.
    pub options: Map<String, Value>,
    /// What the platform says of itself and of the place of this node; each platform documents its keys.
    pub platform: Map<String, Value>,
    /// What the cluster's infrastructure offers, this platform's first.
    pub infrastructure: Vec<InfrastructureContext>,
    /// The addon that is made. Absent: a node is made.
    pub addon: Option<Value>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("cluster", &self.cluster.id)
            .field("node", &self.node.id)
            .finish_non_exhaustive()
    }
}

/// `cluster` in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterContext {
    /// Cluster id.
    pub id: String,
    /// Store software. Empty: the cluster names none.
    pub store: String,
    /// Store version of the cluster. Empty: none.
    pub version: String,
    /// Attributes of the cluster as the user wrote them.
    pub attributes: Map<String, Value>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// `group` in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupContext {
    /// Path (data/hot).
    pub path: String,
    /// Role, a free word. Empty: none.
    pub role: String,
    /// Nodes that the group should have, standby not counted.
    pub size: u32,
    /// Node class. Empty: the platform's default.
    pub class: String,
    /// Store version of these nodes. Empty: none.
    pub version: String,
    /// Attributes with everything inherited merged in.
    pub attributes: Map<String, Value>,
}

/// `node` in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeContext {
    /// Id (db-1-x7k2p).
    pub id: String,
    /// Name (db-1).
    pub name: String,
    /// Ordinal in its group.
    pub ordinal: u32,
    /// Its role at the start.
    pub role: NodeRole,
    /// Name of its failure domain. Empty: none.
    pub failure_domain: String,
}

/// `active` or `standby`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    /// Does the work of its group.
    #[default]
    Active,
    /// Stands by for it.
    Standby,
}

/// One of `peers` in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerContext {
    /// Name (db-0).
    pub name: String,
    /// Path of its group.
    pub group: String,
    /// Ordinal in its group.
    pub ordinal: u32,
    /// Its role now.
    pub role: NodeRole,
    /// Its named ports, each as host:port.
    pub endpoints: BTreeMap<String, String>,
    /// Whether it is Ready.
    pub ready: bool,
}

/// `storage` in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StorageContext {
    /// Size in bytes. Absent: the platform's default.
    pub size_bytes: Option<u64>,
    /// Storage class. Empty: the platform's default.
    pub class: String,
    /// Directory of the node's storage, on platforms where it is one. Absent: elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// One of `infrastructure` in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InfrastructureContext {
    /// Name of the platform that made it.
    pub platform: String,
    /// Control-plane endpoint as host and port. Absent: none, or not known yet.
    pub endpoint: Option<EndpointContext>,
    /// The backend's id of the network. Empty: none.
    pub network_id: String,
    /// Further values, free-form.
    pub properties: Map<String, Value>,
}

/// An endpoint in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointContext {
    /// Address or name.
    pub host: String,
    /// TCP port.
    pub port: u32,
}

/// What a node has of its own in a context.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeScope {
    /// `node` in a template.
    pub node: NodeContext,
    /// `platform` in a template.
    pub platform: Map<String, Value>,
    /// `storage` in a template, where it is not that of the context.
    pub storage: Option<StorageContext>,
}
