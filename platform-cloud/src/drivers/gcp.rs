//! Compute Engine through Google's client library. A platform is one region of one project.
//!
//! - A node is an instance; its node id is the instance's numeric id, which is never reused.
//! - Ownership is stored in labels, see `labels`; nothing is parsed from names or metadata.
//! - The name is derived from the slot, so a slot's machine can be read by name before lists show it.
//! - Lists are read zone by zone for all zones of the region: an outage in another region does not matter, and a zone that
//!   does not answer is told apart from the others.
//! - Each machine is created by its own insert, with a `requestId` that is fixed per slot and zone; Compute Engine
//!   answers a repeated id with the operation of the first call.

mod client;
mod credentials;
mod error;
mod labels;
mod machine;
mod name;
mod properties;
mod resolve;
mod settings;
mod user_data;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{Capability, FailureDomain, Limits};
use futures::future::join_all;
use google_cloud_compute_v1::model::{Instance, InstancesSetLabelsRequest, Zone, operation, zone};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::client::Client;
use crate::cloud::{
    CLUSTER, Cloud, CloudDeleted, CloudInfo, CloudListing, CloudOutcome, Filter, Launch, Machine,
    REQUEST, TagLimits,
};
use drover_platform::driver::Deletion;

pub use settings::Settings;

/// Maximum number of nodes per request. Each slot is a separate call.
const MAX_BATCH: u32 = 200;
/// Maximum number of concurrent inserts.
const MAX_CONCURRENT: usize = 32;
/// Maximum length of a tag value. It is split over labels, of which there are at most 64.
const MAX_TAG: usize = 512;
/// Maximum number of concurrent calls to the platform: [`MAX_CONCURRENT`] operations of each can be waited for.
const MAX_CALLS: u32 = 16;
/// How long a read of one zone may take before the zone counts as silent; staleness of the others is the price.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for a zone that was silent before, except for every [`FULL_PATIENCE`]th read.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);
const FULL_PATIENCE: u32 = 4;
/// Maximum number of concurrent label modifications by others that are retried when labels are set.
const MAX_CONFLICTS: usize = 5;

/// Opens the platform. Reads the zones of the region, which validates credentials, project and region.
///
/// # Errors
/// `Invalid` with the setting, `CredentialsRefused`, `PermissionDenied`, or network errors.
pub async fn open(settings: Settings) -> Result<Arc<Gcp>> {
    let settings = settings.checked()?;
    let client = Client::open(&settings).await?;
    let zones = client
        .zones(&settings.region)
        .await
        .map_err(|error| wrong_project(&settings, error))?;
    let is_up = |zone: &&Zone| zone.status != Some(zone::Status::Down);
    let all: Vec<String> = zones.iter().filter_map(|zone| zone.name.clone()).collect();
    if all.is_empty() {
        return Err(Error::invalid(
            "region",
            format!(
                "project {:?} has no zones in region {:?}; `gcloud compute regions list` shows what there is",
                settings.project, settings.region
            ),
        ));
    }
    for (at, zone) in settings.zones.iter().enumerate() {
        if !all.contains(zone) {
            return Err(Error::invalid(
                format!("zones[{at}]"),
                format!(
                    "{zone:?} is no zone of the region; there are: {}",
                    all.join(", ")
                ),
            ));
        }
    }
    let up: Vec<&String> = zones
        .iter()
        .filter(is_up)
        .filter_map(|zone| zone.name.as_ref())
        .collect();
    let used = all
        .iter()
        .filter(|zone| up.contains(zone) || settings.zones.contains(zone))
        .filter(|zone| settings.zones.is_empty() || settings.zones.contains(zone));
    let info = cloud_info(&settings, used);
    Ok(Arc::new(Gcp {
        info: Arc::new(info),
        settings,
        client,
        zones: all,
        opened: Instant::now(),
        doubtful: Mutex::default(),
        silent: Mutex::default(),
    }))
}

/// Compute Engine as a cloud.
pub struct Gcp {
    info: Arc<CloudInfo>,
    settings: Settings,
    client: Client,
    /// All zones of the region.
    zones: Vec<String>,
    opened: Instant,
    /// Names of machines whose insert has an unknown outcome, and when it ended.
    doubtful: Mutex<HashMap<String, Instant>>,
    /// Zones that have not answered, and how many reads in a row.
    silent: Mutex<HashMap<String, u32>>,
}

fn wrong_project(settings: &Settings, error: Error) -> Error {
    if error.reason() == Reason::NotFound {
        return Error::invalid(
            "project",
            format!("there is no project {:?}: {error}", settings.project),
        );
    }
    error
}

fn cloud_info<'a>(settings: &Settings, zones: impl Iterator<Item = &'a String>) -> CloudInfo {
    let failure_domains = zones
        .map(|zone| FailureDomain {
            name: zone.clone(),
            labels: [
                ("zone".to_owned(), zone.clone()),
                ("region".to_owned(), settings.region.clone()),
            ]
            .into(),
            control_plane: true,
        })
        .collect();
    let duration = |time: Duration| prost_types::Duration::try_from(time).ok();
    let operation = settings.operation_timeout();
    let mut warnings = Vec::new();
    if settings.anonymous {
        warnings.push(
            "calls Compute Engine without credentials, which only an emulator answers".to_owned(),
        );
    }
    CloudInfo {
        uid: format!("gcp:{}:{}", settings.project, settings.region),
        name: "gcp".to_owned(),
        kind: "cloud",
        driver: "gcp",
        backend_version: "v1".to_owned(),
        scope: [
            ("project".to_owned(), settings.project.clone()),
            ("region".to_owned(), settings.region.clone()),
        ]
        .into(),
        capabilities: vec![
            Capability::Bootstrap,
            Capability::BootstrapRender,
            Capability::UpdateNode,
            Capability::Adopt,
            Capability::NodeLogs,
        ],
        limits: Limits {
            max_batch: Some(MAX_BATCH),
            max_concurrent_calls: Some(MAX_CALLS),
            max_bootstrap_bytes: Some(machine::MAX_USER_DATA),
            min_poll_interval: duration(settings.common.poll_interval()),
            // A call that has timed out may still be executed, and its operation takes its time.
            max_creation_time: duration(operation + 2 * settings.common.call_timeout()),
            visibility_delay: duration(settings.common.visibility_delay()),
            // A repeated insert is deduplicated by its request id, so there is nothing to wait for.
            replay_delay: duration(Duration::from_secs(1)),
            provision_timeout: duration(operation + Duration::from_secs(60)),
            ..Limits::default()
        },
        max_launch: 1,
        max_concurrent_launches: MAX_CONCURRENT,
        failure_domains,
        node_classes: Vec::new(),
        properties_schema: Arc::new(properties::schema()),
        properties_example: Arc::new(properties::example()),
        tag_limits: TagLimits {
            max_value: MAX_TAG,
            max_tags: 60,
        },
        warnings,
    }
}

impl Gcp {
    /// The zone of a launch.
    fn zone<'a>(&'a self, launch: &'a Launch) -> Result<&'a str> {
        launch
            .failure_domain
            .as_deref()
            .or(self.zones.first().map(String::as_str))
            .ok_or_else(|| Error::internal("a region without zones"))
    }

    fn read(&self, zone: &str, instance: &Instance) -> Option<Machine> {
        machine::read(&self.settings, zone, instance)
    }

    /// The machines of all zones that answer.
    async fn all(&self, filter: Option<&str>) -> CloudListing {
        self.each_zone(|zone, patience| self.client.list(zone, filter, patience))
            .await
    }

    /// The machine with this id in any of the zones that answer.
    async fn by_id(&self, id: &str) -> CloudListing {
        self.each_zone(|zone, patience| self.client.find(zone, id, patience))
            .await
    }

    async fn each_zone<'a, F, Fut>(&'a self, read: F) -> CloudListing
    where
        F: Fn(&'a str, Duration) -> Fut,
        Fut: Future<Output = Result<Vec<Instance>>>,
    {
        let reads = self.zones.iter().map(|zone| {
            let read = read(zone, self.patience(zone));
            async move { (zone, read.await) }
        });
        let mut listing = CloudListing::default();
        for (zone, instances) in join_all(reads).await {
            self.heard(zone, instances.is_ok());
            let outcome = instances.map(|instances| {
                let machines = instances.iter();
                let machines = machines.filter_map(|instance| self.read(zone, instance));
                listing.machines.extend(machines);
            });
            listing.domains.push((zone.clone(), outcome));
        }
        listing
    }

    fn patience(&self, zone: &str) -> Duration {
        let reads = self.silent.lock().get(zone).copied().unwrap_or_default();
        let patience = if reads.is_multiple_of(FULL_PATIENCE) {
            PATIENCE
        } else {
            SHORT_PATIENCE
        };
        patience.min(self.settings.common.call_timeout())
    }

    fn heard(&self, zone: &str, answered: bool) {
        let mut silent = self.silent.lock();
        if answered {
            silent.remove(zone);
        } else {
            let reads = silent.entry(zone.to_owned()).or_default();
            *reads = reads.wrapping_add(1);
        }
    }

    /// The machine with this name or id in any of these zones. Not subject to the visibility delay of lists.
    async fn one<'a>(
        &self,
        name: &str,
        zones: impl Iterator<Item = &'a String>,
    ) -> Result<Option<Machine>> {
        let looks = zones.map(|zone| async move {
            let instance = self.client.get(zone, name).await?;
            Ok(instance.and_then(|instance| self.read(zone, &instance)))
        });
        let mut failed = None;
        for look in join_all(looks).await {
            match look {
                // At most one exists, so the other zones do not matter.
                Ok(Some(machine)) => return Ok(Some(machine)),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Whether a machine of this name may exist without being listed, created by an insert of this process or of its
    /// predecessor.
    fn is_doubtful(&self, name: &str) -> bool {
        let visible = self.settings.common.visibility_delay();
        let mut doubtful = self.doubtful.lock();
        doubtful.retain(|_, since| since.elapsed() < visible);
        self.opened.elapsed() < visible || doubtful.contains_key(name)
    }

    async fn make(&self, launch: &Launch) -> Result<Machine> {
        let zone = self.zone(launch)?;
        let slot = launch
            .slots
            .first()
            .ok_or_else(|| Error::internal("a launch without slots"))?;
        let body = machine::body(&self.settings, launch, slot, zone)?;
        let name = body.name.clone().unwrap_or_default();
        if self.is_doubtful(&name) {
            // Name and requestId make a retry in the same zone idempotent; this covers a retry in another zone.
            let others = self.zones.iter().filter(|other| *other != zone);
            if let Some(machine) = self.one(&name, others).await.map_err(undecided)?
                && machine::is_of(&machine, &launch.tags)
            {
                return Ok(machine);
            }
        }
        let made = self.insert(launch, zone, &body).await;
        if let Err(error) = &made
            && error.class() == drover_core::Class::Unknown
        {
            self.doubtful.lock().insert(name, Instant::now());
        }
        made
    }

    async fn insert(&self, launch: &Launch, zone: &str, body: &Instance) -> Result<Machine> {
        let request_id = name::request_id(launch, zone)?;
        let name = body.name.as_deref().unwrap_or_default();
        let operation = match self.client.insert(zone, &request_id, body).await {
            Ok(operation) => operation,
            Err(error) if error.reason() == Reason::AlreadyExists => {
                return self.already(launch, zone, name, error).await;
            }
            Err(error) => return Err(error::in_zone(error, zone)),
        };
        let within = self.settings.operation_timeout();
        // A new operation is never done at once, so this one belongs to an earlier call.
        let repeated = operation.status == Some(operation::Status::Done);
        let operation = match self.client.ended(operation, zone, within).await {
            Ok(operation) => operation,
            // The operation may be slow although its machine exists already.
            Err(error) => return self.already(launch, zone, name, error).await,
        };
        if let Some(error) = error::of_operation(&operation, zone) {
            return Err(error);
        }
        match operation.target_id {
            Some(id) if id != 0 && repeated => self.repeated(zone, id).await,
            Some(id) if id != 0 => Ok(machine::made(&self.settings, launch, body, zone, id)),
            _ => {
                let error = Error::unavailable("the operation does not say what it made");
                self.already(launch, zone, name, error).await
            }
        }
    }

    /// The machine that an earlier call created for the same slot.
    async fn repeated(&self, zone: &str, id: u64) -> Result<Machine> {
        let instance = self
            .client
            .get(zone, &id.to_string())
            .await
            .map_err(undecided)?;
        let machine = instance.and_then(|instance| self.read(zone, &instance));
        machine.ok_or_else(|| {
            Error::new(
                Reason::Precondition,
                "the machine of this slot was made and removed; it is not made again",
            )
        })
    }

    /// The machine with the name of this launch, if it is ours; otherwise the error of the insert.
    async fn already(
        &self,
        launch: &Launch,
        zone: &str,
        name: &str,
        why: Error,
    ) -> Result<Machine> {
        let found = match self.client.get(zone, name).await {
            Ok(Some(instance)) => self.read(zone, &instance),
            Ok(None) => None,
            Err(error) => return Err(undecided(error)),
        };
        match found {
            Some(machine) if machine::is_of(&machine, &launch.tags) => Ok(machine),
            Some(_) => Err(Error::new(
                Reason::Precondition,
                format!(
                    "a machine called {name} that is not ours is in zone {zone}; rename or remove it"
                ),
            )),
            None => Err(why),
        }
    }
}

/// Converts the error of a lookup: it is unknown what an earlier insert has created.
fn undecided(error: Error) -> Error {
    if error.class() == drover_core::Class::Unknown {
        return error;
    }
    Error::unavailable(format!("whether it exists already cannot be seen: {error}"))
}

#[async_trait]
impl Cloud for Gcp {
    fn info(&self) -> Arc<CloudInfo> {
        Arc::clone(&self.info)
    }

    async fn check(&self, launch: &Launch, deep: bool) -> Result<()> {
        let zone = self.zone(launch)?;
        for slot in &launch.slots {
            let body = machine::body(&self.settings, launch, slot, zone)?;
            if deep {
                let machine_type = machine::last(body.machine_type.as_deref());
                self.client.check_machine_type(zone, &machine_type).await?;
                let image = body
                    .disks
                    .first()
                    .and_then(|disk| disk.initialize_params.as_ref())
                    .and_then(|params| params.source_image.as_deref());
                self.client.check_image(image.unwrap_or_default()).await?;
            }
        }
        Ok(())
    }

    async fn list(&self, filter: &Filter) -> Result<CloudListing> {
        let tagged = |key: &'static str, value: &str| {
            let (filter, value) = (labels::filter(key, value), value.to_owned());
            async move {
                let mut listing = self.all(Some(&filter)).await;
                let machines = &mut listing.machines;
                machines.retain(|machine| machine.tags.get(key) == Some(&value));
                listing
            }
        };
        Ok(match filter {
            Filter::All => self.all(None).await,
            Filter::Cluster(cluster) => tagged(CLUSTER, cluster).await,
            Filter::Request(request_id) => tagged(REQUEST, request_id).await,
            // A name would be found as well, but is not a node id.
            Filter::Id(id) if id.parse::<u64>().is_err() => CloudListing::default(),
            Filter::Id(id) => self.by_id(id).await,
        })
    }

    async fn create(&self, launch: &Launch) -> Vec<CloudOutcome> {
        match self.make(launch).await {
            Ok(machine) => vec![CloudOutcome::Made(Box::new(machine))],
            Err(error) => CloudOutcome::all(launch, &error),
        }
    }

    async fn delete(&self, machine: &Machine, _options: &Deletion) -> Result<CloudDeleted> {
        let request_id = name::fresh_request_id();
        let operation = self
            .client
            .delete(&machine.location, &machine.id, &request_id)
            .await?;
        match operation.map(|operation| error::of_operation(&operation, &machine.location)) {
            None => Ok(CloudDeleted::Gone),
            Some(None) => Ok(CloudDeleted::Started),
            Some(Some(error)) => Err(error),
        }
    }

    async fn retag(
        &self,
        machine: &Machine,
        set: &BTreeMap<String, String>,
        remove: &[String],
    ) -> Result<()> {
        let (zone, id) = (&machine.location, &machine.id);
        let mut conflicts = 0;
        loop {
            let Some(instance) = self.client.get(zone, id).await? else {
                return Err(Error::not_found("node", id));
            };
            let labels = labels::change(&instance.labels, set, remove);
            let mut body = InstancesSetLabelsRequest::new().set_labels(labels);
            body.label_fingerprint
                .clone_from(&instance.label_fingerprint);
            match self.client.set_labels(zone, id, &body).await {
                Ok(operation) => {
                    let within = self.settings.operation_timeout();
                    let operation = self.client.ended(operation, zone, within).await?;
                    return error::of_operation(&operation, zone).map_or(Ok(()), Err);
                }
                Err(error) if error.reason() == Reason::Conflict && conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn console(&self, machine: &Machine) -> Result<Vec<u8>> {
        self.client.console(&machine.location, &machine.id).await
    }
}
