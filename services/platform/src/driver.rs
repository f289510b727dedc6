//! What a backend must be able to do to be a platform. Everything that platforms have in common (checks, fences,
//! idempotency, paging, watches) is above this trait, so that a new backend is one module.

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

use crate::infrastructure::Infrastructure;

pub use crate::{
    batch::Batch,
    feed::Changes,
    identity::Identity,
    templates::{Place, Rendered},
};

/// A backend that runs nodes.
///
/// The errors are judged by their class as in the protos: `Cannot`, `NoCapacity` and `Credentials` promise that this
/// call made nothing. Nothing here is called with a lock of the caller held, and calls may run at once.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// What the backend is and can do. Asked often, so answered from memory; a change shows as a new etag.
    fn description(&self) -> Description;

    /// Checks what only the driver knows: node class, placement, hosts, properties beyond their JSON Schema (paths as in
    /// `group.properties.image`), and that the template output for the first slot is of the right shape. Makes nothing.
    async fn check(&self, batch: &Batch) -> Result<()>;

    /// Every existing node, foreign, half-made and dead ones included; or an error, never a short list.
    async fn list(&self) -> Result<Listing>;

    /// The existing nodes of one cluster, complete like [`Driver::list`], if that costs less than reading everything.
    /// `None`: it does not.
    async fn list_cluster(&self, cluster_id: &str) -> Result<Option<Listing>> {
        let _ = cluster_id;
        Ok(None)
    }

    /// The existing nodes that one request made, without any delay of visibility that the driver can avoid.
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

    /// The existing nodes with this id, one in each cluster at most.
    async fn by_node_id(&self, node_id: &str) -> Result<Vec<Found>> {
        Ok(self
            .list()
            .await?
            .nodes
            .into_iter()
            .filter(|found| found.node.node_id == node_id)
            .collect())
    }

    /// Makes the nodes of [`Batch::slots`], each with its identity stored from the first moment. Answers one outcome a
    /// slot, in their order. [`Batch::may_start`] is asked right before every create at the backend. Runs to its end
    /// even when the caller is gone.
    async fn create(&self, batch: &Batch) -> Vec<Outcome>;

    /// Removes one node if it still has this cluster and slot; otherwise [`Reason::SlotMismatch`]. Not there: `Gone`.
    async fn delete(&self, target: &Target, options: &Deletion) -> Result<Deleted>;

    /// All storage that was kept when its node went ([`Deletion::retain_storage`]) and that no node has now; or an error,
    /// never a short list.
    async fn kept_storage(&self) -> Result<Vec<KeptStorage>> {
        Err(lacks(Capability::RetainStorage))
    }

    /// Deletes kept storage with its data if it is of this id, owner, cluster, group and ordinal
    /// ([`storage::is_meant`](crate::storage::is_meant)) and no node has it, nor gets it meanwhile. Not there: `Gone`.
    async fn delete_storage(&self, meant: &KeptStorage) -> Result<DeprovisionState> {
        let _ = meant;
        Err(lacks(Capability::RetainStorage))
    }

    /// Changes role or labels of a node, or adopts it, if it still has this cluster and slot.
    async fn update(&self, target: &Target, change: &Change) -> Result<Node> {
        let _ = (target, change);
        Err(lacks(Capability::UpdateNode))
    }

    /// Reads the log of a node, in pieces of any size.
    async fn logs(&self, node: &Node, request: &StreamLogsRequest) -> Result<LogStream> {
        let _ = (node, request);
        Err(lacks(Capability::NodeLogs))
    }

    /// Runs a command inside a node. The last output is the exit code. Dropping the stream ends the command.
    async fn exec(&self, node: &Node, start: ExecStart, input: ExecInput) -> Result<ExecOutput> {
        let _ = (node, start, input);
        Err(lacks(Capability::NodeExec))
    }

    /// The push side, if the driver hears of every change at once. Without it the backend is polled with
    /// [`Driver::list`].
    fn live(&self) -> Option<&dyn Live> {
        None
    }

    /// Makes what a cluster needs before its nodes, if the backend can.
    fn infrastructure(&self) -> Option<&dyn Infrastructure> {
        None
    }

    /// The nodes that were on their way to another phase, as they are now, if that costs less than reading everything.
    /// Nothing is concluded from a node that is missing here. `None`: it does not.
    async fn look(&self) -> Result<Option<Vec<Node>>> {
        Ok(None)
    }

    /// When a polled backend is to be read again sooner than usual, as something there is on its way.
    fn next_poll(&self) -> Option<Duration> {
        None
    }

    /// Ends what the driver has under way. Nodes live on.
    async fn shutdown(&self) {}
}

/// The push side of a driver.
pub trait Live: Send + Sync {
    /// Called once, before anything else. From now on every change is told, beginning with all nodes that exist.
    fn connect(&self, changes: Changes);

    /// What is known of a node right now, from memory.
    fn node(&self, cluster_id: &str, node_id: &str) -> Option<Node>;

    /// Whether everything that was told is complete as of now. False while the backend does not answer.
    fn is_current(&self) -> bool;
}

/// Bytes of a log as they come.
pub type LogStream = BoxStream<'static, Result<Vec<u8>>>;
/// What the client sends to a command after the start: `stdin`, `resize` and `stdin_closed`. Its end is the end of
/// standard input.
pub type ExecInput = BoxStream<'static, Result<ExecRequest>>;
/// What a command writes; the exit code is the last item.
pub type ExecOutput = BoxStream<'static, Result<ProcessOutput>>;

/// What a backend is and can do. The fields are those of `Platform` in the protos.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// Uid of the backend together with its scope.
    pub uid: String,
    /// Suggested name.
    pub name: String,
    /// What nodes are made on: cloud, metal, process, simulated.
    pub kind: String,
    /// Which driver it is: local, simulated, aws.
    pub driver: String,
    /// Version of the backend. Empty: it has none.
    pub backend_version: String,
    /// What the uid stands for, for people.
    pub scope: BTreeMap<String, String>,
    /// What the driver can do. The common layer adds `Watch` and `Fence`.
    pub capabilities: Vec<Capability>,
    /// How the backend wants to be called.
    pub limits: Limits,
    /// Failure domains.
    pub failure_domains: Vec<FailureDomain>,
    /// Node classes. Empty: they cannot be listed, any name is passed on.
    pub node_classes: Vec<NodeClass>,
    /// JSON Schema (2020-12) of a group's properties. `None`: anything goes.
    pub properties_schema: Option<Arc<serde_json::Value>>,
    /// Valid properties, as an example.
    pub properties_example: Option<Arc<serde_json::Value>>,
    /// What the operator should see.
    pub warnings: Vec<String>,
}

/// One complete reading of the backend.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Every node.
    pub nodes: Vec<Found>,
    /// What was there and could not be read.
    pub warnings: Vec<Warning>,
}

/// A node as it was found at the backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The node.
    pub node: Node,
    /// [`Identity::fingerprint`] as it was stored with it. Empty: none is (a foreign or adopted node).
    pub fingerprint: String,
}

/// What became of one slot.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It exists now.
    Made(Box<Node>),
    /// It does not exist and never will.
    Failed(Error),
    /// Nobody can say whether it exists.
    Unknown(Error),
    /// The call ended before its create was started.
    NotStarted,
}

impl Outcome {
    /// Of a slot that nothing was begun for, because of an error.
    #[must_use]
    pub fn not_begun(error: Error) -> Self {
        if error.class() == Class::Unknown {
            Self::Unknown(error)
        } else {
            Self::Failed(error)
        }
    }
}

/// A node and what it must be for a change to happen.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Cluster that it is in. Empty: in none (only when it is adopted).
    pub cluster_id: String,
    /// The platform's id of it.
    pub node_id: String,
    /// Its slot. `None`: it has none (only when it is adopted).
    pub slot: Option<SlotKey>,
}

/// How a node is removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deletion {
    /// Time to stop by itself. `None`: the driver's default.
    pub grace_period: Option<Duration>,
    /// Keep its storage and report it.
    pub retain_storage: bool,
    /// Why, for the backend's own records: User, Dead, Sick, …
    pub reason: String,
}

/// How far a removal is.
#[derive(Clone, Debug, PartialEq)]
pub struct Deleted {
    /// `Deprovisioning` or `Gone`.
    pub state: DeprovisionState,
    /// The backend's ids of the storage that was kept.
    pub retained_storage: Vec<String>,
}

/// A change of a living node.
#[derive(Clone, Debug)]
pub enum Change {
    /// New role and labels.
    Edit {
        /// The new role. `None`: as it is.
        role: Option<drover_proto::platform::v1::NodeRole>,
        /// Labels to set.
        set_labels: BTreeMap<String, String>,
        /// Labels to remove.
        remove_labels: Vec<String>,
    },
    /// A new owner and slot. Version, class, labels and endpoints stay; `fingerprint` is empty.
    Adopt(Box<Identity>),
}

impl Target {
    /// Whether a node is the one that is meant.
    ///
    /// # Errors
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

/// The error for what a driver cannot do.
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

/// The error for a node that does not run.
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
