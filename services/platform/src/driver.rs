//! The interface that a backend implements to become a platform. Everything that platforms have in common (validation,
//! fences, idempotency, paging, watches) is implemented above this trait, so that a new backend is a single module.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_core::{Class, Error, Reason, Result};
use drover_proto::{
    common::v1::ProcessOutput,
    platform::v1::{
        Capability, DeprovisionState, ExecRequest, ExecStart, FailureDomain, KeptStorage, Limits,
        Node, NodeClass, Slot, SlotKey, StreamLogsRequest, Warning,
    },
};
use futures::stream::BoxStream;

use crate::{
    addons::Addons,
    infrastructure::Infrastructure,
    inventory::{Inventory, properties::HostLabels},
};

pub use crate::{
    batch::Batch,
    feed::Changes,
    identity::Identity,
    templates::{Place, Rendered},
};

/// A backend that runs nodes.
///
/// Errors are interpreted by their class as in the protos: `Cannot`, `NoCapacity` and `Credentials` promise that this
/// call created nothing. Methods are called without any of the caller's locks held, and may be called concurrently.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Describes the backend and its capabilities. Called often, so it must be answered from memory; a change results
    /// in a new etag.
    fn description(&self) -> Description;

    /// Checks what only the driver can check: node class, placement, hosts, properties beyond their JSON Schema (with
    /// paths such as `group.properties.image`), and the structure of the template output for the first slot. Creates
    /// nothing.
    async fn check(&self, batch: &Batch) -> Result<()>;

    /// Lists all existing nodes, including foreign, partially created and dead ones. Returns an error rather than an
    /// incomplete list.
    async fn list(&self) -> Result<Listing>;

    /// Lists the existing nodes of one cluster, as completely as [`Driver::list`], if that is cheaper than reading
    /// everything. `None` if it is not.
    async fn list_cluster(&self, cluster_id: &str) -> Result<Option<Listing>> {
        let _ = cluster_id;
        Ok(None)
    }

    /// Lists the existing nodes that a request created, avoiding visibility delays where the driver can.
    async fn of_request(&self, request_id: &str) -> Result<Vec<Found>> {
        let made_by = |found: &Found| {
            found
                .node
                .slot
                .as_ref()
                .is_some_and(|slot| slot.request_id == request_id)
        };
        Ok(self
            .list()
            .await?
            .nodes
            .into_iter()
            .filter(made_by)
            .collect())
    }

    /// Whether nodes of a request exist that are all made or none, and not all of them are yet, as
    /// [`Driver::of_request`] has just seen. [`Driver::create`] then gets all of its slots, completes them or takes back
    /// what there is, and answers for each.
    fn is_unfinished(&self, request_id: &str) -> bool {
        let _ = request_id;
        false
    }

    /// Lists the existing nodes with this id, at most one per cluster.
    async fn by_node_id(&self, node_id: &str) -> Result<Vec<Found>> {
        Ok(self
            .list()
            .await?
            .nodes
            .into_iter()
            .filter(|found| found.node.node_id == node_id)
            .collect())
    }

    /// Creates the nodes of [`Batch::slots`], each with its identity stored from the very beginning. Returns one
    /// outcome per slot, in their order. [`Batch::may_start`] must be checked right before every create at the backend.
    /// Runs to completion even if the caller is gone.
    async fn create(&self, batch: &Batch) -> Vec<Outcome>;

    /// Removes a node if it still has this cluster and slot; otherwise fails with [`Reason::SlotMismatch`]. Returns
    /// `Gone` if it does not exist.
    async fn delete(&self, target: &Target, options: &Deletion) -> Result<Deleted>;

    /// Lists all storage that was retained when its node was removed ([`Deletion::retain_storage`]) and that no node
    /// uses now. Returns an error rather than an incomplete list.
    async fn kept_storage(&self) -> Result<Vec<KeptStorage>> {
        Err(lacks(Capability::RetainStorage))
    }

    /// Deletes retained storage with its data, if it has this id, owner, cluster, group and ordinal
    /// ([`storage::is_meant`](crate::storage::is_meant)) and is not used by a node, nor handed to one concurrently.
    /// Returns `Gone` if it does not exist.
    async fn delete_storage(&self, meant: &KeptStorage) -> Result<DeprovisionState> {
        let _ = meant;
        Err(lacks(Capability::RetainStorage))
    }

    /// Changes role or labels of a node, or adopts it, if it still has this cluster and slot.
    async fn update(&self, target: &Target, change: &Change) -> Result<Node> {
        let _ = (target, change);
        Err(lacks(Capability::UpdateNode))
    }

    /// Reads the log of a node, in chunks of any size.
    async fn logs(&self, node: &Node, request: &StreamLogsRequest) -> Result<LogStream> {
        let _ = (node, request);
        Err(lacks(Capability::NodeLogs))
    }

    /// Runs a command inside a node. The exit code is the last item. Dropping the stream ends the command.
    async fn exec(&self, node: &Node, start: ExecStart, input: ExecInput) -> Result<ExecOutput> {
        let _ = (node, start, input);
        Err(lacks(Capability::NodeExec))
    }

    /// The push interface, if the driver learns of every change immediately. Without it, the backend is polled with
    /// [`Driver::list`].
    fn live(&self) -> Option<&dyn Live> {
        None
    }

    /// The infrastructure interface, if the backend supports it.
    fn infrastructure(&self) -> Option<&dyn Infrastructure> {
        None
    }

    /// The inventory, if nodes are hosts that exist before.
    fn inventory(&self) -> Option<&dyn Inventory> {
        None
    }

    /// The addons, if the backend can run them.
    fn addons(&self) -> Option<&dyn Addons> {
        None
    }

    /// Reads the current state of the nodes that were in transition, if that is cheaper than reading everything. A node
    /// that is missing in the result allows no conclusion. `None` if it is not cheaper.
    async fn look(&self) -> Result<Option<Vec<Node>>> {
        Ok(None)
    }

    /// When a polled backend should be read again earlier than usual, because a node is in transition.
    fn next_poll(&self) -> Option<Duration> {
        None
    }

    /// Ends all operations of the driver. Nodes keep running.
    async fn shutdown(&self) {}
}

/// The push interface of a driver.
pub trait Live: Send + Sync {
    /// Called once, before anything else. From then on the driver reports every change, starting with all existing
    /// nodes.
    fn connect(&self, changes: Changes);

    /// Returns the current state of a node from memory.
    fn node(&self, cluster_id: &str, node_id: &str) -> Option<Node>;

    /// Whether everything reported is complete as of now. False while the backend does not respond.
    fn is_current(&self) -> bool;
}

/// Bytes of a log as they arrive.
pub type LogStream = BoxStream<'static, Result<Vec<u8>>>;
/// The input that the client sends to a command after the start: `stdin`, `resize` and `stdin_closed`. The end of the
/// stream is the end of standard input.
pub type ExecInput = BoxStream<'static, Result<ExecRequest>>;
/// The output of a command; the exit code is the last item.
pub type ExecOutput = BoxStream<'static, Result<ProcessOutput>>;

/// Description of a backend and its capabilities. The fields are those of `Platform` in the protos.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// Uid of the backend including its scope.
    pub uid: String,
    /// Suggested name.
    pub name: String,
    /// Kind of infrastructure: cloud, metal, process, simulated.
    pub kind: String,
    /// Name of the driver: local, simulated, aws.
    pub driver: String,
    /// Version of the backend. Empty if it has none.
    pub backend_version: String,
    /// Human-readable meaning of the uid.
    pub scope: BTreeMap<String, String>,
    /// Capabilities of the driver. The common layer adds `Watch` and `Fence`.
    pub capabilities: Vec<Capability>,
    /// Rate and size limits for calls to the backend.
    pub limits: Limits,
    /// Failure domains. Every call reads the description, and an inventory may have a thousand of them.
    pub failure_domains: Arc<[FailureDomain]>,
    /// Node classes. Empty if they cannot be listed, in which case any name is passed on.
    pub node_classes: Vec<NodeClass>,
    /// JSON Schema (2020-12) of a group's properties. `None` if there are no constraints.
    pub properties_schema: Option<Arc<serde_json::Value>>,
    /// Example of valid properties.
    pub properties_example: Option<Arc<serde_json::Value>>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// A complete read of the backend.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// All nodes.
    pub nodes: Vec<Found>,
    /// Objects that exist but could not be read.
    pub warnings: Vec<Warning>,
}

/// A node as found at the backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The node.
    pub node: Node,
    /// The stored [`Identity::fingerprint`]. Empty for a foreign or adopted node, which has none.
    pub fingerprint: String,
}

/// Outcome of creating the node of one slot.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The node exists.
    Made(Box<Node>),
    /// The node does not exist and never will.
    Failed(Error),
    /// It is unknown whether the node exists.
    Unknown(Error),
    /// The call ended before the create was started.
    NotStarted,
}

impl Outcome {
    /// The outcome of a slot for which nothing was started because of an error.
    #[must_use]
    pub fn not_begun(error: Error) -> Self {
        if error.class() == Class::Unknown {
            Self::Unknown(error)
        } else {
            Self::Failed(error)
        }
    }
}

/// A node, and the conditions under which it may be changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Cluster of the node. Empty if it has none, which is only allowed for adoption.
    pub cluster_id: String,
    /// The platform's id of the node.
    pub node_id: String,
    /// Slot of the node. `None` if it has none, which is only allowed for adoption.
    pub slot: Option<SlotKey>,
}

/// How a node is removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deletion {
    /// Time to stop gracefully. `None` for the driver's default.
    pub grace_period: Option<Duration>,
    /// Whether to retain its storage and report it.
    pub retain_storage: bool,
    /// Reason for the backend's own records: User, Dead, Sick, …
    pub reason: String,
}

/// Progress of a removal.
#[derive(Clone, Debug, PartialEq)]
pub struct Deleted {
    /// `Deprovisioning` or `Gone`.
    pub state: DeprovisionState,
    /// The backend's ids of the retained storage.
    pub retained_storage: Vec<String>,
}

/// A change of an existing node.
#[derive(Clone, Debug)]
pub enum Change {
    /// Changes role and labels.
    Edit {
        /// The new role. `None` to leave it unchanged.
        role: Option<drover_proto::platform::v1::NodeRole>,
        /// Labels to set.
        set_labels: BTreeMap<String, String>,
        /// Labels to remove.
        remove_labels: Vec<String>,
        /// All labels that the host has for its group from now on. `None` to leave them unchanged, and without an
        /// inventory.
        host_labels: Option<HostLabels>,
        /// Least size in bytes that the declared storage has from now on. `None` to leave it unchanged, and without
        /// [`Capability::GrowStorage`].
        storage_size: Option<u64>,
        /// The new spec hash. Empty to leave it unchanged.
        spec_hash: String,
        /// Whether it only becomes what the role says: clients are not led to it yet.
        promoting: bool,
    },
    /// Assigns a new owner and slot. Version, class, labels and endpoints are kept; `fingerprint` is empty.
    Adopt(Box<Identity>),
}

impl Target {
    /// Checks that a node is the intended one.
    ///
    /// # Errors
    ///
    /// [`Reason::NodeNotInCluster`] for another cluster or owner, [`Reason::SlotMismatch`] for another slot.
    pub fn matches(&self, node: &Node) -> Result<()> {
        let owner =
            |slot: Option<&SlotKey>| slot.map(|slot| slot.owner.clone()).unwrap_or_default();
        if node.cluster_id != self.cluster_id
            || owner(node.slot.as_ref()) != owner(self.slot.as_ref())
        {
            return Err(Error::new(
                Reason::NodeNotInCluster,
                format!(
                    "node {:?} belongs to another cluster or owner; it was left alone",
                    self.node_id
                ),
            ));
        }
        if node.slot.clone().unwrap_or_default() != self.slot.clone().unwrap_or_default() {
            return Err(Error::new(
                Reason::SlotMismatch,
                format!(
                    "node {:?} has another slot than expected; it was left alone",
                    self.node_id
                ),
            ));
        }
        Ok(())
    }
}

/// The error for a capability that the driver lacks.
#[must_use]
pub fn lacks(capability: Capability) -> Error {
    let name = capability.as_str_name();
    let name = name.strip_prefix("CAPABILITY_").unwrap_or(name);
    Error::new(
        Reason::CapabilityMissing,
        format!("this platform lacks the capability {name}"),
    )
    .with_metadata("capability", name)
}

/// The error for a node that is not running.
#[must_use]
pub fn not_running(node_id: &str) -> Error {
    Error::new(
        Reason::NodeNotRunning,
        format!("node {node_id:?} does not run"),
    )
}

/// The index of a slot that has passed the checks of the common layer.
#[must_use]
pub fn index(slot: &Slot) -> u32 {
    slot.index.unwrap_or_default()
}
