//! The context that templates can read.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// All values that a template can read, under these names.
///
/// `Debug` shows no values, because attributes, secrets and user data may be confidential.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct Context {
    /// The cluster.
    pub cluster: ClusterContext,
    /// The group of the node.
    pub group: GroupContext,
    /// The node that is created.
    pub node: NodeContext,
    /// The living nodes of the cluster, by group and ordinal.
    pub peers: Vec<PeerContext>,
    /// Storage of the node. `None` (`none` in a template) if none is declared.
    pub storage: Option<StorageContext>,
    /// Values of the secrets that the spec refers to, by the names that it assigns.
    pub secrets: BTreeMap<String, String>,
    /// Id of the request that creates the node.
    pub request_id: String,
    /// User data of the node. `None` if there is none.
    pub bootstrap: Option<String>,
    /// Options of the catalogue entry. Set when rendering.
    pub options: Map<String, Value>,
    /// Information of the platform about itself and the location of this node; the keys are documented by each
    /// platform.
    pub platform: Map<String, Value>,
    /// Outputs of the cluster's infrastructure, this platform's first.
    pub infrastructure: Vec<InfrastructureContext>,
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
    /// Store software. Empty if the cluster does not specify any.
    pub store: String,
    /// Store version of the cluster. Empty if none.
    pub version: String,
    /// Attributes of the cluster as written by the user.
    pub attributes: Map<String, Value>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// `group` in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupContext {
    /// Path (`data/hot`).
    pub path: String,
    /// Role, an arbitrary word. Empty if none.
    pub role: String,
    /// Desired number of nodes of the group, without standby nodes.
    pub size: u32,
    /// Desired number of standby nodes of the group. `None` (`none` in a template) if it is not known.
    pub standby: Option<u32>,
    /// Node class. Empty for the platform's default.
    pub class: String,
    /// Store version of these nodes. Empty if none.
    pub version: String,
    /// Attributes with inheritance applied.
    pub attributes: Map<String, Value>,
}

/// `node` in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeContext {
    /// Id (`db-1-x7k2p`).
    pub id: String,
    /// Name (`db-1`).
    pub name: String,
    /// Ordinal within its group.
    pub ordinal: u32,
    /// Initial role.
    pub role: NodeRole,
    /// Name of its failure domain. Empty if none.
    pub failure_domain: String,
}

/// `active` or `standby`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    /// Serves the workload of its group.
    #[default]
    Active,
    /// Available for promotion.
    Standby,
}

/// An entry of `peers` in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerContext {
    /// Name (`db-0`).
    pub name: String,
    /// Path of its group.
    pub group: String,
    /// Ordinal within its group.
    pub ordinal: u32,
    /// Current role.
    pub role: NodeRole,
    /// Named ports, each as `host:port`.
    pub endpoints: BTreeMap<String, String>,
    /// Whether it is Ready.
    pub ready: bool,
}

/// `storage` in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StorageContext {
    /// Size in bytes. `None` for the platform's default.
    pub size_bytes: Option<u64>,
    /// Storage class. Empty for the platform's default.
    pub class: String,
    /// Directory of the node's storage, on platforms where storage is a directory; otherwise `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// An entry of `infrastructure` in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InfrastructureContext {
    /// Name of the platform that created it.
    pub platform: String,
    /// Host and port of the control-plane endpoint. `None` if there is none or if it is not known yet.
    pub endpoint: Option<EndpointContext>,
    /// The backend's id of the network. Empty if none.
    pub network_id: String,
    /// Additional free-form values.
    pub properties: Map<String, Value>,
}

/// An endpoint in a template.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointContext {
    /// IP address or DNS name.
    pub host: String,
    /// TCP port.
    pub port: u32,
}

/// The parts of a context that are specific to a node.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeScope {
    /// `node` in a template.
    pub node: NodeContext,
    /// `platform` in a template.
    pub platform: Map<String, Value>,
    /// `storage` in a template, if it differs from that of the context.
    pub storage: Option<StorageContext>,
}

/// The parts of a context that are specific to an addon.
#[derive(Clone, Default)]
pub struct AddonScope {
    /// `addon` in a template: what is wanted, as documented by each platform.
    pub addon: Value,
    /// `targets` in a template: the nodes that it serves.
    pub targets: Vec<Value>,
    /// `secrets` in a template: content by name and key, in base64.
    pub secrets: BTreeMap<String, BTreeMap<String, String>>,
    /// `platform` in a template.
    pub platform: Map<String, Value>,
}
