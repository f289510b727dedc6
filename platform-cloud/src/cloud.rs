//! Clouds: backends whose nodes are machines behind a web API. Everything they share (identity in tags, lookup before
//! creation, batches, placement over failure domains, rate limits, addresses, properties and their aliases) is
//! implemented once here, so that a new cloud only has to implement the five required methods of [`Cloud`].

mod account;
mod address;
mod batches;
mod driver;
mod gate;
mod launch;
mod pages;
mod settings;
mod tags;
mod trace;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_core::{Error, Result};
use drover_proto::{
    common::v1::Address,
    platform::v1::{
        Capability, DeprovisionState, FailureDomain, InfrastructureOutputs, Limits, NodeClass,
        NodeMaintenance, NodePhase, ProvisionRequest, Warning,
    },
};
use prost_types::Timestamp;
use serde_json::{Map, Value};

use drover_platform::{driver::Deletion, identity::Identity, infrastructure::Infrastructure};

pub use account::Account;
pub use batches::Batches;
pub use driver::CloudDriver;
pub use gate::{Action, Gate, Lane, not_started};
pub use pages::each_once;
pub use settings::{AddressSource, AgentSettings, CloudSettings};
pub use tags::{CLUSTER, PREFIX, REQUEST, TagLimits, is_of_one_request};
pub use trace::traced;

/// The API of one cloud. No lock is held across these calls, and they may run concurrently. Every call to the API goes
/// through the driver's [`Gate`].
///
/// Errors are judged by their class, as in the protos: `Cannot`, `NoCapacity` and `Credentials` guarantee that this
/// call created nothing; every other class leaves it open.
#[async_trait]
pub trait Cloud: Send + Sync + 'static {
    /// Identity and capabilities of the cloud. Called often, so it must be served from memory.
    fn info(&self) -> Arc<CloudInfo>;

    /// Validates the parts of a launch that only the cloud knows: that image, node class, network and keys exist and
    /// that the account has the permissions. With `deep`, it asks the API; without, it checks only what can be decided
    /// without a call. Creates nothing.
    async fn check(&self, launch: &Launch, deep: bool) -> Result<()>;

    /// Lists every existing machine that matches the filter, including half-created, stopped and terminated ones for as
    /// long as the API shows them. Reads all pages; returns an error rather than a partial list, except that failure
    /// domains that do not answer are named in [`CloudListing::domains`].
    async fn list(&self, filter: &Filter) -> Result<CloudListing>;

    /// Returns the current state of these machines without those that are not found, if that is cheaper than listing
    /// everything. `None` if it is not.
    async fn look(&self, machines: Vec<Machine>) -> Result<Option<Vec<Machine>>> {
        let _ = machines;
        Ok(None)
    }

    /// Creates the machines of one launch, each tagged from the moment it exists. Returns one outcome per slot, in slot
    /// order. The create call goes through [`Gate::create`]. There is a single attempt: nothing is retried unless the
    /// API guarantees that the first attempt had no effect (the [`Gate`] does that for throttling).
    async fn create(&self, launch: &Launch) -> Vec<CloudOutcome>;

    /// Deletes a machine that was just read and has passed the ownership check. Returns `Gone` if it no longer exists.
    async fn delete(&self, machine: &Machine, options: &Deletion) -> Result<CloudDeleted>;

    /// Sets and removes tags of a machine. Not implemented by clouds whose machines cannot be retagged.
    async fn retag(
        &self,
        machine: &Machine,
        set: &BTreeMap<String, String>,
        remove: &[String],
    ) -> Result<()> {
        let _ = (machine, set, remove);
        Err(drover_platform::driver::lacks(Capability::UpdateNode))
    }

    /// Returns the console output of the machine. Not implemented by clouds without consoles.
    async fn console(&self, machine: &Machine) -> Result<Vec<u8>> {
        let _ = machine;
        Err(drover_platform::driver::lacks(Capability::NodeLogs))
    }

    /// The failure domains allowed by the request's infrastructure or properties, if these are bound to some. `None` if
    /// all are allowed.
    fn domains(&self, request: &ProvisionRequest) -> Option<Vec<String>> {
        let _ = request;
        None
    }

    /// The infrastructure API, if the cloud can create the resources that a cluster needs before its nodes.
    fn infrastructure(&self) -> Option<&dyn Infrastructure> {
        None
    }

    /// The time between two reads of the cloud: `usual`, or longer if the quota of calls that is left demands it.
    fn poll_interval(&self, usual: Duration) -> Duration {
        usual
    }

    /// Stops the cloud's background work.
    async fn shutdown(&self) {}
}

/// Identity and capabilities of a cloud.
#[derive(Clone, Debug, Default)]
pub struct CloudInfo {
    /// Uid of the account and its scope (`aws:123456789012:eu-central-1`).
    pub uid: String,
    /// Suggested platform name (aws).
    pub name: String,
    /// Kind of backend: cloud or metal.
    pub kind: &'static str,
    /// Driver name (aws).
    pub driver: &'static str,
    /// API version.
    pub backend_version: String,
    /// Human-readable parts of the uid (account, region).
    pub scope: BTreeMap<String, String>,
    /// Capabilities beyond those that every cloud has: `Bootstrap` with `BootstrapRender`, `UpdateNode`, `Adopt`,
    /// `NodeLogs`, `NamedHosts`, `GracePeriod`, `Infrastructure`. [`CloudDriver`] adds spread and failure domains.
    pub capabilities: Vec<Capability>,
    /// Limits for callers; `max_batch` is the size of the largest Provision request, not of the largest launch.
    pub limits: Limits,
    /// Maximum number of machines per create call. With 1, every machine is its own launch.
    pub max_launch: usize,
    /// Maximum number of concurrent launches.
    pub max_concurrent_launches: usize,
    /// Failure domains (zones) in which nodes can be placed.
    pub failure_domains: Vec<FailureDomain>,
    /// Known node classes. If empty, any name is passed through.
    pub node_classes: Vec<NodeClass>,
    /// JSON Schema (2020-12) of a group's properties. The output of a template must match it, too; for templates,
    /// `userData`, `ports` and `agent` are added to it.
    pub properties_schema: Arc<Value>,
    /// Example of valid properties.
    pub properties_example: Arc<Value>,
    /// Limits of the cloud's tags.
    pub tag_limits: TagLimits,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// Selects the machines of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All machines in the scope of the platform, including foreign ones.
    All,
    /// Machines tagged with this cluster id.
    Cluster(String),
    /// Machines created by one request, with as little visibility delay as the cloud allows.
    Request(String),
    /// The machine with this id.
    Id(String),
}

/// A complete list of machines.
#[derive(Clone, Debug, Default)]
pub struct CloudListing {
    /// The machines that match the filter.
    pub machines: Vec<Machine>,
    /// Items that exist but could not be read.
    pub warnings: Vec<Warning>,
    /// The failure domains, if each was read by itself, and whether it answered. The machines that are known to be in one
    /// that did not are shown in an unknown phase, and nothing in it counts as absent. Empty if a single read covers all.
    pub domains: Vec<(String, Result<()>)>,
}

/// A machine as reported by the API.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// Id at the cloud (i-0abc…), used as the node id.
    pub id: String,
    /// Id that is unique across all clouds (aws:///eu-central-1a/i-0abc…).
    pub provider_id: String,
    /// Name at the cloud. Empty if it has none.
    pub name: String,
    /// Tags, decoded to the form of [`Launch::tags`].
    pub tags: BTreeMap<String, String>,
    /// Index of the machine within its launch, if the API reports it. `None` if it has to be derived from the name.
    pub launch_index: Option<u32>,
    /// Lifecycle phase.
    pub phase: NodePhase,
    /// Readiness, if the API knows more than the phase tells. `None` if a running machine is ready.
    pub ready: Option<bool>,
    /// Reason for the phase.
    pub message: String,
    /// What the cloud has announced for it.
    pub maintenance: Option<NodeMaintenance>,
    /// Failure domain. Empty if unknown.
    pub failure_domain: String,
    /// Node class as the cloud names it.
    pub node_class: String,
    /// Host the machine runs on, if hosts can be named.
    pub host_id: Option<String>,
    /// Network addresses.
    pub addresses: Vec<Address>,
    /// Creation time.
    pub create_time: Option<Timestamp>,
    /// Extra data that the cloud needs to delete the machine (a zone). Never exposed.
    pub location: String,
}

impl Machine {
    /// The identity stored in the tags. `None` if the machine is not ours.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        tags::decode(&self.tags, self.launch_index, &self.name)
    }
}

/// Machines that differ only in their slots and are created by one call.
#[derive(Clone, Default)]
pub struct Launch {
    /// Slots to create: at least one, at most [`CloudInfo::max_launch`].
    pub slots: Vec<LaunchSlot>,
    /// Tags that every machine of the launch gets.
    pub tags: BTreeMap<String, String>,
    /// Idempotency token: 32 lower-case hexadecimal characters, identical for the same slots of the same request.
    pub token: String,
    /// Failure domain. `None` if the cloud has none, or if any will do.
    pub failure_domain: Option<String>,
    /// Node class with aliases resolved. If empty, the properties or the platform's default decide.
    pub node_class: String,
    /// Properties of template and group merged, valid against the schema.
    pub properties: Map<String, Value>,
    /// User data. Treated as secret.
    pub user_data: Option<Arc<Vec<u8>>>,
    /// Whether nothing public is to reach the machines, as their template says.
    pub private: bool,
    /// Outputs of the cluster's infrastructure.
    pub infrastructure: Vec<InfrastructureOutputs>,
}

/// One machine of a launch.
#[derive(Clone, Debug)]
pub struct LaunchSlot {
    /// Identity of the node; [`Identity::id`] is the name of the machine.
    pub identity: Identity,
    /// Required host. `None` for any.
    pub host_id: Option<String>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Properties and user data may contain secrets.
        f.debug_struct("Launch")
            .field("slots", &self.slots.len())
            .field("token", &self.token)
            .field("failure_domain", &self.failure_domain)
            .field("node_class", &self.node_class)
            .field(
                "user_data_bytes",
                &self.user_data.as_ref().map(|data| data.len()),
            )
            .finish_non_exhaustive()
    }
}

/// The outcome of one slot of a launch.
#[derive(Clone, Debug)]
pub enum CloudOutcome {
    /// The machine exists.
    Made(Box<Machine>),
    /// The machine does not exist, and this launch will never create it.
    Failed(Error),
    /// It is unknown whether the machine exists.
    Unknown(Error),
}

impl CloudOutcome {
    /// The same error for every slot: final if its class guarantees that nothing was created, otherwise unknown.
    #[must_use]
    pub fn all(launch: &Launch, error: &Error) -> Vec<Self> {
        let outcome = Self::from_error(error.clone());
        launch.slots.iter().map(|_| outcome.clone()).collect()
    }

    /// Converts an error to the outcome of one slot.
    #[must_use]
    pub fn from_error(error: Error) -> Self {
        use drover_core::Class;
        match error.class() {
            Class::Unknown => Self::Unknown(error),
            Class::Cannot
            | Class::NoCapacity
            | Class::Credentials
            | Class::Stale
            | Class::Reused => Self::Failed(error),
        }
    }
}

/// Progress of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudDeleted {
    /// The deletion was accepted.
    Started,
    /// The machine does not exist.
    Gone,
}

impl From<CloudDeleted> for DeprovisionState {
    fn from(removed: CloudDeleted) -> Self {
        match removed {
            CloudDeleted::Started => Self::Deprovisioning,
            CloudDeleted::Gone => Self::Gone,
        }
    }
}
