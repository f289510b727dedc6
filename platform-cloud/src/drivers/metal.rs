//! metal-stack: physical machines behind metal-api, with the networks, addresses and firewalls of their clusters.
//!
//! The API has no idempotency tokens. Therefore everything is tagged with its identity on creation, and looked up by
//! these tags before it is created; before something is freed, it is read again.

mod api;
mod auth;
mod documents;
mod endpoint;
mod infrastructure;
mod machine;
mod properties;

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{Capability, FailureDomain, Limits, NodeClass, ProvisionRequest};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::{
    api::{Api, Entry, search},
    documents::{Partition, Size, Version},
    properties::Offer,
};
use crate::cloud::{
    CLUSTER, Cloud, CloudDeleted, CloudInfo, CloudListing, CloudOutcome, CloudSettings, Filter,
    Launch, Machine, REQUEST, TagLimits,
};
use drover_platform::{
    driver::Deletion,
    identity::Identity,
    infrastructure::{Infrastructure, Owner},
};

/// Maximum size of user data: metal-hammer reads it into memory, and cloud-init's own data sources accept no more.
const MAX_USER_DATA: u32 = 512 * 1024;

/// Settings of a platform on metal-stack: one project of one installation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Settings {
    /// Settings shared by all clouds. `visibility_delay_seconds` defaults to 5.
    pub common: CloudSettings,
    /// URL of metal-api (`https://api.metal-stack.dev/metal`). Required.
    pub url: String,
    /// Project id. Required.
    pub project: String,
    /// Name of the metal-stack installation, for the uid of the platform. If empty, the host of `url`.
    pub stack: String,
    /// Default partition. Empty for none.
    pub partition: String,
    /// Allowed partitions. Empty for all.
    pub partitions: Vec<String>,
    /// Id of the public network. Empty for none.
    pub public_network: String,
    /// Id of the private network for machines of clusters without infrastructure. Empty for none.
    pub private_network: String,
    /// Default image of machines. If empty, groups must specify one.
    pub image: String,
    /// Default size of machines. If empty, groups must specify one.
    pub node_class: String,
    /// Defaults for firewalls.
    pub firewall: FirewallSettings,
    /// Form of the provider ids of nodes: that which the Node objects of Kubernetes have on these machines. Part of no
    /// identity, so it can be changed.
    pub provider_id: ProviderId,
    /// Public keys by name, for use in properties.
    pub ssh_keys: BTreeMap<String, String>,
    /// Names of keys in `ssh_keys`, or public keys, for machines and firewalls that specify none.
    pub default_ssh_keys: Vec<String>,
    /// File with the bearer token. Read for every call, so that a renewed token takes effect at once.
    pub token_file: Option<PathBuf>,
    /// File with the HMAC key. Used if there is no token.
    pub hmac_file: Option<PathBuf>,
    /// Environment variable with the bearer token. Used if no file is configured.
    pub token_env: String,
    /// Environment variable with the HMAC key. Used if no other credentials are configured.
    pub hmac_env: String,
    /// HMAC auth type: Metal-Edit or Metal-Admin.
    pub hmac_type: String,
    /// PEM file with CA certificates to trust in addition to those of the system.
    pub ca_file: Option<PathBuf>,
}

/// Form of provider ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderId {
    /// `metalstack://UUID`, as the archived Cluster API provider writes.
    #[default]
    Metalstack,
    /// `metal://PARTITION/UUID`, as the maintained Cluster API provider and the cloud controller manager of metal-stack
    /// write.
    Metal,
}

impl ProviderId {
    /// The provider id of a machine.
    fn of(self, partition: &str, machine: &str) -> String {
        match self {
            Self::Metalstack => format!("metalstack://{machine}"),
            Self::Metal => format!("metal://{partition}/{machine}"),
        }
    }
}

/// Defaults for firewalls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct FirewallSettings {
    /// Image. If empty, clusters must specify one.
    pub image: String,
    /// Size. If empty, clusters must specify one.
    pub node_class: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            common: CloudSettings {
                // The API's database shows a change as soon as the call returns; the delay is for its replicas.
                visibility_delay_seconds: 5.0,
                call_timeout_seconds: 60.0,
                ..CloudSettings::default()
            },
            url: String::new(),
            project: String::new(),
            stack: String::new(),
            partition: String::new(),
            partitions: Vec::new(),
            public_network: String::new(),
            private_network: String::new(),
            image: String::new(),
            node_class: String::new(),
            firewall: FirewallSettings::default(),
            provider_id: ProviderId::default(),
            ssh_keys: BTreeMap::new(),
            default_ssh_keys: Vec::new(),
            token_file: None,
            hmac_file: None,
            token_env: "METALCTL_API_TOKEN".to_owned(),
            hmac_env: "METALCTL_HMAC".to_owned(),
            hmac_type: "Metal-Edit".to_owned(),
            ca_file: None,
        }
    }
}

/// One project of a metal-stack installation.
pub struct Metal {
    api: Api,
    settings: Settings,
    info: Arc<CloudInfo>,
    /// When everything that was created before this start is guaranteed to be listed.
    settled: Instant,
    /// Infrastructure with a recent create attempt, which the API may not show yet.
    recent: Mutex<HashMap<(Owner, &'static str), Instant>>,
    /// Held while a machine is made that gets an address because no other has it: only one of them may.
    inheriting: tokio::sync::Mutex<()>,
}

/// Connects to the API and reads the installation.
///
/// # Errors
/// `Invalid` for wrong settings; `CredentialsRefused` and `PermissionDenied` from the API; connection errors.
pub async fn open(settings: Settings) -> Result<Arc<Metal>> {
    let url = reqwest::Url::parse(&settings.url)
        .ok()
        .filter(|url| ["http", "https"].contains(&url.scheme()))
        .ok_or_else(|| {
            Error::invalid(
                "url",
                format!(
                    "{:?} is not an address of metal-api (https://api.metal-stack.dev/metal)",
                    settings.url
                ),
            )
        })?;
    if settings.project.is_empty() {
        return Err(Error::invalid(
            "project",
            "is required: the id of a project",
        ));
    }
    let api = Api::new(&settings)?;
    let found: Result<serde_json::Value> =
        api.get(&format!("/v1/project/{}", settings.project)).await;
    match found {
        Ok(_) => {}
        Err(error) if error.reason() == Reason::NotFound => {
            return Err(Error::invalid(
                "project",
                format!("there is no project {:?}", settings.project),
            ));
        }
        Err(error) => return Err(error),
    }
    let info = cloud_info(&api, &settings, url.host_str().unwrap_or_default()).await?;
    let settled = Instant::now() + settings.common.visibility_delay();
    Ok(Arc::new(Metal {
        api,
        info: Arc::new(info),
        settings,
        settled,
        recent: Mutex::default(),
        inheriting: tokio::sync::Mutex::default(),
    }))
}

async fn cloud_info(api: &Api, settings: &Settings, host: &str) -> Result<CloudInfo> {
    let version: Version = api.get("/v1/version").await?;
    let sizes: Vec<Size> = api.get("/v1/size").await?;
    let partitions: Vec<Partition> = api.get("/v1/partition").await?;
    let mut warnings = Vec::new();
    let asked = settings
        .partitions
        .iter()
        .chain(Some(&settings.partition).filter(|p| !p.is_empty()));
    for name in asked {
        if !partitions.iter().any(|partition| partition.id == *name) {
            return Err(Error::invalid(
                "partition",
                format!("there is no partition {name:?}"),
            ));
        }
    }
    if sizes.is_empty() {
        warnings.push("metal-stack knows no sizes".to_owned());
    }
    let is_allowed = |partition: &Partition| {
        settings.partitions.is_empty() || settings.partitions.contains(&partition.id)
    };
    let stack = if settings.stack.is_empty() {
        host
    } else {
        &settings.stack
    };
    Ok(CloudInfo {
        uid: format!("metal:{stack}:{}", settings.project),
        name: "metal".to_owned(),
        kind: "metal",
        driver: "metal",
        backend_version: version.version,
        scope: BTreeMap::from([
            ("stack".to_owned(), stack.to_owned()),
            ("project".to_owned(), settings.project.clone()),
        ]),
        capabilities: vec![
            Capability::Bootstrap,
            Capability::BootstrapRender,
            Capability::UpdateNode,
            Capability::Adopt,
            Capability::NamedHosts,
            Capability::Infrastructure,
        ],
        limits: limits(settings),
        max_launch: 1,
        // The API handles only a few allocations at once and rejects more.
        max_concurrent_launches: 4,
        failure_domains: partitions
            .into_iter()
            .filter(is_allowed)
            .map(domain)
            .collect(),
        node_classes: sizes.into_iter().map(class).collect(),
        properties_schema: Arc::new(properties::schema()),
        properties_example: Arc::new(properties::example()),
        tag_limits: TagLimits {
            max_value: 1024,
            max_tags: 100,
        },
        warnings,
    })
}

fn limits(settings: &Settings) -> Limits {
    let duration = |seconds: u64| {
        Some(drover_convert::value::to_duration(Duration::from_secs(
            seconds,
        )))
    };
    let exact = |duration: Duration| Some(drover_convert::value::to_duration(duration));
    Limits {
        max_batch: Some(16),
        calls_per_second: Some(settings.common.calls_per_second),
        max_concurrent_calls: Some(32),
        max_bootstrap_bytes: Some(MAX_USER_DATA),
        min_poll_interval: exact(settings.common.poll_interval()),
        // An allocation waits for locks and switches; a machine that is still being installed exists already.
        max_creation_time: duration(300),
        request_memory: duration(1800),
        visibility_delay: exact(settings.common.visibility_delay()),
        replay_delay: exact(settings.common.visibility_delay()),
        provision_timeout: duration(180),
    }
}

fn domain(partition: Partition) -> FailureDomain {
    let mut labels = partition.labels.unwrap_or_default();
    labels.insert("zone".to_owned(), partition.id.clone());
    labels.insert("partition".to_owned(), partition.id.clone());
    FailureDomain {
        name: partition.id,
        labels: labels.into_iter().collect(),
        control_plane: true,
    }
}

fn class(size: Size) -> NodeClass {
    let least = |kind: &str| {
        let of_kind = size
            .constraints
            .iter()
            .find(|constraint| constraint.kind == kind);
        of_kind
            .map(|constraint| constraint.min)
            .filter(|min| *min > 0)
    };
    NodeClass {
        cpus: least("cores").map(|cores| cores as f64),
        memory_bytes: least("memory"),
        disk_bytes: least("storage"),
        name: size.id,
        description: size.description,
    }
}

#[async_trait]
impl Cloud for Metal {
    fn info(&self) -> Arc<CloudInfo> {
        Arc::clone(&self.info)
    }

    async fn check(&self, launch: &Launch, deep: bool) -> Result<()> {
        self.check_machine(launch, deep).await
    }

    async fn list(&self, filter: &Filter) -> Result<CloudListing> {
        let mut query = search(&self.settings.project, "machine");
        match filter {
            Filter::All => {}
            Filter::Cluster(cluster) => query["tags"] = vec![format!("{CLUSTER}={cluster}")].into(),
            Filter::Request(request_id) => {
                query["tags"] = vec![format!("{REQUEST}={request_id}")].into();
            }
            Filter::Id(id) => return self.one(id).await,
        }
        let mut listed = CloudListing::default();
        for entry in self.api.machines(&query).await? {
            match entry {
                Entry::Read(document) => listed.machines.extend(self.show(&document)),
                Entry::Unreadable { id, message } => {
                    listed.warnings.push(machine::warning(id, &message));
                }
            }
        }
        Ok(listed)
    }

    async fn create(&self, launch: &Launch) -> Vec<CloudOutcome> {
        match self.allocate_machine(launch).await {
            Ok(machine) => vec![CloudOutcome::Made(Box::new(machine))],
            Err(error) => vec![CloudOutcome::from_error(error)],
        }
    }

    async fn delete(&self, machine: &Machine, _options: &Deletion) -> Result<CloudDeleted> {
        self.free_machine(machine).await
    }

    async fn retag(
        &self,
        machine: &Machine,
        set: &BTreeMap<String, String>,
        remove: &[String],
    ) -> Result<()> {
        self.update_tags(machine, set, remove).await
    }

    fn domains(&self, request: &ProvisionRequest) -> Option<Vec<String>> {
        let offer = Offer::of(&request.infrastructure, &self.settings.project);
        if !offer.partition.is_empty() {
            return Some(vec![offer.partition]);
        }
        let said = request
            .group
            .as_ref()?
            .properties
            .as_ref()?
            .fields
            .get("partition")?;
        match &said.kind {
            Some(prost_types::value::Kind::StringValue(partition)) => Some(vec![partition.clone()]),
            _ => None,
        }
    }

    fn infrastructure(&self) -> Option<&dyn Infrastructure> {
        Some(self)
    }
}

/// Sanitizes a name to a host name.
fn hostname(name: &str) -> String {
    let fits = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let name: String = name.chars().map(fits).take(63).collect();
    name.trim_matches('-').to_owned()
}

/// The tag by which the API spreads the machines of a group over racks.
fn placement_tag(identity: &Identity) -> String {
    format!(
        "drover.dev/together={}.{}",
        identity.cluster_id, identity.group
    )
}
