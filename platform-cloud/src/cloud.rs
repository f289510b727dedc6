//! Clouds: backends whose nodes are machines behind a web API. Everything that they have in common (identity in tags,
//! look-up before creation, batches, placement over failure domains, rate limits, addresses, properties and their
//! aliases) is written once here, so that a new cloud is the five methods of [`Cloud`].

mod address;
mod driver;
mod gate;
mod launch;
mod settings;
mod tags;
mod trace;

use std::{collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;
use drover_core::{Error, Result};
use drover_proto::{
    common::v1::Address,
    platform::v1::{
        Capability, DeprovisionState, FailureDomain, InfrastructureOutputs, Limits, NodeClass,
        NodePhase, ProvisionRequest, Warning,
    },
};
use prost_types::Timestamp;
use serde_json::{Map, Value};

use drover_platform::{driver::Deletion, identity::Identity, infrastructure::Infrastructure};

pub use driver::CloudDriver;
pub use gate::{Gate, not_started};
pub use settings::{AddressSource, AgentSettings, CloudSettings};
pub use tags::{CLUSTER, PREFIX, REQUEST, TagLimits};
pub use trace::traced;

/// A cloud. Nothing here is called with a lock held, and calls may run at once. Every call to the API goes through the
/// driver's [`Gate`].
///
/// The errors are judged by their class as in the protos: `Cannot`, `NoCapacity` and `Credentials` promise that this
/// call made nothing, everything else leaves it open.
#[async_trait]
pub trait Cloud: Send + Sync + 'static {
    /// What the cloud is and can do. Asked often, so answered from memory.
    fn facts(&self) -> Arc<Facts>;

    /// Checks what only the cloud knows of a launch: that image, node class, network and keys exist and that the account
    /// may do it. `deep`: asks the API; otherwise only what can be seen without a call. Makes nothing.
    async fn check(&self, launch: &Launch, deep: bool) -> Result<()>;

    /// Every existing machine that the filter lets through, half-made, stopped and terminated ones included as long as
    /// the API shows them; or an error, never a short list. All pages.
    async fn list(&self, filter: &Filter) -> Result<Listed>;

    /// These machines as they are now, those that are not found left out, if that costs less than listing everything.
    /// `None`: it does not.
    async fn look(&self, machines: Vec<Machine>) -> Result<Option<Vec<Machine>>> {
        let _ = machines;
        Ok(None)
    }

    /// Makes the machines of one launch, each with its tags from the first moment. Answers one outcome a slot, in their
    /// order. The call that creates goes through [`Gate::create`]. One attempt: nothing is tried again unless the API promises that the first one did nothing (the [`Gate`]
    /// does that for throttling).
    async fn create(&self, launch: &Launch) -> Vec<Created>;

    /// Removes a machine that was just read and has passed the check of ownership. Not there any more: `Gone`.
    async fn delete(&self, machine: &Machine, options: &Deletion) -> Result<Removed>;

    /// Sets and removes tags of a machine. A cloud whose machines cannot be retagged leaves this out.
    async fn retag(
        &self,
        machine: &Machine,
        set: &BTreeMap<String, String>,
        remove: &[String],
    ) -> Result<()> {
        let _ = (machine, set, remove);
        Err(drover_platform::driver::lacks(Capability::UpdateNode))
    }

    /// What the machine has written to its console. A cloud without consoles leaves this out.
    async fn console(&self, machine: &Machine) -> Result<Vec<u8>> {
        let _ = machine;
        Err(drover_platform::driver::lacks(Capability::NodeLogs))
    }

    /// The failure domains that the request's infrastructure or properties leave, where these are tied to some. `None`:
    /// all of them.
    fn domains(&self, request: &ProvisionRequest) -> Option<Vec<String>> {
        let _ = request;
        None
    }

    /// Makes what a cluster needs before its nodes, if the cloud can.
    fn infrastructure(&self) -> Option<&dyn Infrastructure> {
        None
    }

    /// Ends what the cloud has under way.
    async fn shutdown(&self) {}
}

/// What a cloud is and can do.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Uid of the account together with its scope (`aws:123456789012:eu-central-1`).
    pub uid: String,
    /// Suggested name (aws).
    pub name: String,
    /// What nodes are made on: cloud or metal.
    pub kind: &'static str,
    /// Which driver it is (aws).
    pub driver: &'static str,
    /// Version of the API.
    pub backend_version: String,
    /// What the uid stands for, for people (account, region).
    pub scope: BTreeMap<String, String>,
    /// What the cloud can do beyond what every cloud can: `Bootstrap` with `BootstrapRender`, `UpdateNode`, `Adopt`,
    /// `NodeLogs`, `NamedHosts`, `GracePeriod`, `Infrastructure`. Spread and failure domains are added by
    /// [`CloudDriver`].
    pub capabilities: Vec<Capability>,
    /// How the API wants to be called; `max_batch` is the largest Provision request, not the largest launch.
    pub limits: Limits,
    /// Most machines that one call makes. 1: every machine is a launch of its own.
    pub max_launch: usize,
    /// Most launches under way at a time.
    pub max_concurrent_launches: usize,
    /// Where nodes may be placed (zones).
    pub failure_domains: Vec<FailureDomain>,
    /// Node classes. Empty: any name is passed on.
    pub node_classes: Vec<NodeClass>,
    /// JSON Schema (2020-12) of a group's properties. The output of a template must fit it, too; `userData`, `ports` and
    /// `agent` are added to it for templates.
    pub properties_schema: Arc<Value>,
    /// Valid properties, as an example.
    pub properties_example: Arc<Value>,
    /// What a tag may hold.
    pub tag_limits: TagLimits,
    /// What the operator should see.
    pub warnings: Vec<String>,
}

/// Which machines are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All in the scope of the platform, foreign ones included.
    All,
    /// Those with this cluster id in their tags.
    Cluster(String),
    /// Those that one request made. Without any delay of visibility that the cloud can avoid.
    Request(String),
    /// The one with this id.
    Id(String),
}

/// One complete reading.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// The machines.
    pub machines: Vec<Machine>,
    /// What was there and could not be read.
    pub warnings: Vec<Warning>,
}

/// A machine as the API shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// The cloud's id of it (i-0abc…): the node id.
    pub id: String,
    /// Id that is unique over all clouds (aws:///eu-central-1a/i-0abc…).
    pub provider_id: String,
    /// Its name at the cloud. Empty: none.
    pub name: String,
    /// Its tags, decoded to what [`Launch::tags`] had.
    pub tags: BTreeMap<String, String>,
    /// Which of the machines of its launch it is, where the API says so. `None`: it is found by its name.
    pub launch_index: Option<u32>,
    /// How far it is.
    pub phase: NodePhase,
    /// Whether it works, where the API knows more than the phase. `None`: it does when it runs.
    pub ready: Option<bool>,
    /// Why it is in this phase.
    pub message: String,
    /// Name of its failure domain. Empty: not known.
    pub failure_domain: String,
    /// Its node class.
    pub node_class: String,
    /// The host that it is on, where hosts can be named.
    pub host_id: Option<String>,
    /// Its addresses.
    pub addresses: Vec<Address>,
    /// When it was made.
    pub create_time: Option<Timestamp>,
    /// Anything that the cloud needs to delete it (a zone). Never shown.
    pub location: String,
}

impl Machine {
    /// Who it is by its tags. `None`: nobody of ours.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        tags::decode(&self.tags, self.launch_index, &self.name)
    }
}

/// Machines that are alike but for their slots, to be made by one call.
#[derive(Clone)]
pub struct Launch {
    /// What is made, at least one and at most [`Facts::max_launch`].
    pub slots: Vec<LaunchSlot>,
    /// Tags for every machine of the launch.
    pub tags: BTreeMap<String, String>,
    /// Idempotency token: 32 lower-case hexadecimal characters, the same for the same slots of the same request.
    pub token: String,
    /// Failure domain. `None`: the cloud has none, or any will do.
    pub failure_domain: Option<String>,
    /// Node class after aliases. Empty: the properties or the platform's default say.
    pub node_class: String,
    /// What the template and the group say together, valid by the schema.
    pub properties: Map<String, Value>,
    /// User data. Secret.
    pub user_data: Option<Arc<Vec<u8>>>,
    /// What infrastructure offers.
    pub infrastructure: Vec<InfrastructureOutputs>,
}

/// One machine of a launch.
#[derive(Clone, Debug)]
pub struct LaunchSlot {
    /// Who it is. Machines are called by [`Identity::id`].
    pub identity: Identity,
    /// The host that must be used. `None`: any.
    pub host_id: Option<String>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Properties and user data may be secret.
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

/// What became of one slot of a launch.
#[derive(Clone, Debug)]
pub enum Created {
    /// It exists now.
    Made(Box<Machine>),
    /// It does not exist and this launch will never make it.
    Failed(Error),
    /// Nobody can say whether it exists.
    Unknown(Error),
}

impl Created {
    /// An error for every slot: final if its class promises that nothing was made, otherwise unknown.
    #[must_use]
    pub fn all(launch: &Launch, error: &Error) -> Vec<Self> {
        let outcome = Self::from_error(error.clone());
        launch.slots.iter().map(|_| outcome.clone()).collect()
    }

    /// An error as the outcome of one slot.
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

/// How far a removal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// It is being removed.
    Started,
    /// It is not there.
    Gone,
}

impl From<Removed> for DeprovisionState {
    fn from(removed: Removed) -> Self {
        match removed {
            Removed::Started => Self::Deprovisioning,
            Removed::Gone => Self::Gone,
        }
    }
}
