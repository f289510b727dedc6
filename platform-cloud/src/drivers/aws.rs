//! EC2 instances as nodes. Each platform is one account and region.

mod api;
mod catalogue;
mod errors;
mod infrastructure;
mod launch;
mod machines;
mod properties;
mod settings;
mod status;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use aws_sdk_ec2::types::{AvailabilityZoneState, Tag};
use aws_smithy_types::base64;
use drover_core::{Class, Error, Reason, Result};
use drover_proto::platform::v1::{Capability, FailureDomain, Limits};
use parking_lot::Mutex;
use tokio::time::Instant;

pub use settings::{ImagePattern, Settings};

use crate::cloud::{
    AddressSource, Batches, Cloud, CloudDeleted, CloudInfo, CloudListing, CloudOutcome, Filter,
    Launch, Machine, PREFIX, TagLimits,
};
use api::Api;
use catalogue::Catalogue;
use drover_platform::{driver::Deletion, infrastructure::Infrastructure};
use launch::LaunchRequest;

/// Tag that the AWS console shows as the name.
const NAME: &str = "Name";
/// Tag with the keys of the tags that a group has requested in addition to the labels of its nodes.
const EXTRA: &str = "drover.dev/extra-tags";
const API_VERSION: &str = "2016-11-15";
/// How long EC2 shows terminated instances. A request is recognised by its instances, so for this long, with one
/// exception: EC2 takes the tags of a terminated instance away at a time that it does not say. Then the client token tells
/// that its slot was made, if just the slots of its launch are asked for again in its zone; otherwise a process that has
/// not removed it itself makes the slot anew. An instance that is not terminated is never made twice.
const REQUEST_MEMORY: Duration = Duration::from_secs(30 * 60);
/// How long and how often a call about a new instance is retried while EC2 does not know it yet.
const NEW_PATIENCE: Duration = Duration::from_secs(5);
const NEW_PAUSE: Duration = Duration::from_millis(200);
/// Concurrent launches. More would hit EC2's own limit on `RunInstances`.
const CONCURRENT_LAUNCHES: usize = 4;

/// Maximum number of pending instances whose states are read by id, a hundred per call. Beyond that they are read with
/// the full list, which keeps the number of calls low.
const MAX_LOOK: usize = 1000;

/// Maximum number of instances per termination
/// (<https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html>).
const MAX_TERMINATE: usize = 1000;

/// EC2 in one account and region.
pub struct Aws {
    api: Arc<Api>,
    settings: Settings,
    catalogue: Catalogue,
    info: Arc<CloudInfo>,
    zones: Vec<String>,
    recent: infrastructure::Recent,
    follower: infrastructure::Follower,
    checks: status::AllChecks,
    /// Reads of single instances.
    reads: Batches<Option<Machine>>,
    /// Terminations of instances.
    removals: Batches<CloudDeleted>,
    /// Recently created instances that EC2 may not know everywhere yet.
    new: Mutex<HashMap<String, Instant>>,
}

/// Connects to EC2 and reads the account and its zones.
///
/// # Errors
/// `Invalid` with the setting that is wrong (region, zones, endpoint); `CredentialsRefused` for missing or wrong
/// credentials; otherwise the connection errors.
pub async fn open(settings: Settings) -> Result<Arc<Aws>> {
    settings.check()?;
    let api = Arc::new(Api::open(&settings).await?);
    let region = api.region();
    let account = api
        .account()
        .await
        .map_err(|error| about_region(error, &region))?;
    let zones = zones(&api, &settings)
        .await
        .map_err(|error| about_region(error, &region))?;
    let catalogue = Catalogue::default();
    // Missing permissions for these two are only reported as warnings here; the first launch that needs them fails.
    let mut warnings = Vec::new();
    if let Err(error) = catalogue.default_subnets(&api).await {
        warnings.push(format!("the default subnets cannot be read: {error}"));
    }
    Ok(Arc::new(Aws {
        info: Arc::new(cloud_info(&settings, &account, &region, &zones, warnings)),
        zones,
        recent: infrastructure::Recent::default(),
        follower: infrastructure::Follower::new(&api),
        checks: status::AllChecks::new(settings.common.poll_interval()),
        reads: Batches::new(machines::FILTER_VALUES),
        removals: Batches::new(MAX_TERMINATE),
        new: Mutex::default(),
        api,
        settings,
        catalogue,
    }))
}

/// Adds a hint about the region: an API that cannot be reached may belong to a region that does not exist.
fn about_region(error: Error, region: &str) -> Error {
    match error.reason() {
        Reason::Unavailable | Reason::DeadlineExceeded => error.context(format!(
            "AWS cannot be reached in region {region:?} (is that the right region, and `endpoint`?)"
        )),
        _ => error,
    }
}

async fn zones(api: &Api, settings: &Settings) -> Result<Vec<String>> {
    let region = api.region();
    let answer = api
        .send("DescribeAvailabilityZones", |ec2| {
            ec2.describe_availability_zones().send()
        })
        .await?;
    let mut zones: Vec<String> = answer
        .availability_zones()
        .iter()
        .filter(|zone| {
            zone.state()
                .is_none_or(|state| *state == AvailabilityZoneState::Available)
        })
        // Local Zones and Wavelength Zones are not availability zones of the region.
        .filter(|zone| {
            zone.zone_type()
                .is_none_or(|kind| kind == "availability-zone")
        })
        .filter(|zone| zone.region_name().is_none_or(|of| of == region))
        .filter_map(|zone| zone.zone_name().map(str::to_owned))
        .collect();
    zones.sort();
    if zones.is_empty() {
        return Err(Error::invalid(
            "region",
            format!("AWS has no region {region:?}, or it is not enabled for this account"),
        ));
    }
    for (at, zone) in settings.zones.iter().enumerate() {
        if !zones.contains(zone) {
            return Err(Error::invalid(
                format!("zones[{at}]"),
                format!(
                    "region {region} has no zone {zone:?}; there are: {}",
                    zones.join(", ")
                ),
            ));
        }
    }
    if !settings.zones.is_empty() {
        zones.retain(|zone| settings.zones.contains(zone));
    }
    Ok(zones)
}

fn cloud_info(
    settings: &Settings,
    account: &str,
    region: &str,
    zones: &[String],
    warnings: Vec<String>,
) -> CloudInfo {
    let duration = |time: Duration| prost_types::Duration::try_from(time).ok();
    let common = &settings.common;
    CloudInfo {
        uid: format!("aws:{account}:{region}"),
        name: "aws".to_owned(),
        kind: "cloud",
        driver: "aws",
        backend_version: API_VERSION.to_owned(),
        scope: [("account", account), ("region", region)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        capabilities: vec![
            Capability::Bootstrap,
            Capability::BootstrapRender,
            Capability::UpdateNode,
            Capability::Adopt,
            Capability::NodeLogs,
            Capability::Infrastructure,
        ],
        limits: Limits {
            max_batch: Some(settings.max_launch * 2),
            calls_per_second: Some(common.calls_per_second),
            max_bootstrap_bytes: u32::try_from(properties::MAX_USER_DATA).ok(),
            min_poll_interval: duration(common.poll_interval()),
            visibility_delay: duration(common.visibility_delay()),
            request_memory: duration(REQUEST_MEMORY),
            // EC2 may still execute a call that the client has given up on, but not for long.
            max_creation_time: duration(2 * common.call_timeout()),
            ..Limits::default()
        },
        max_launch: settings.max_launch as usize,
        max_concurrent_launches: CONCURRENT_LAUNCHES,
        failure_domains: zones
            .iter()
            .map(|zone| FailureDomain {
                name: zone.clone(),
                labels: [("zone", zone.as_str()), ("region", region)]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
                control_plane: true,
            })
            .collect(),
        node_classes: Vec::new(),
        properties_schema: Arc::new(properties::schema()),
        properties_example: Arc::new(properties::example()),
        // One tag is reserved for `Name`.
        tag_limits: TagLimits {
            max_tags: TagLimits::default().max_tags - 1,
            ..TagLimits::default()
        },
        warnings,
    }
}

impl Aws {
    /// Makes a call about an instance and retries while EC2 does not know everywhere that a new instance exists: "not
    /// found" proves nothing until then.
    async fn about<T, Fut>(&self, id: &str, call: impl Fn() -> Fut) -> Result<T>
    where
        Fut: Future<Output = Result<T>>,
    {
        let end = Instant::now() + NEW_PATIENCE;
        loop {
            match call().await {
                Err(error) if errors::is_absent(&error) && self.is_new(id) => {
                    if Instant::now() >= end {
                        return Err(Error::unavailable(format!(
                            "EC2 does not know everywhere yet that {id} was made: {error}"
                        )));
                    }
                    tokio::time::sleep(NEW_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Terminates instances. One that EC2 does not know or that is protected makes it refuse others too, so what is
    /// refused is tried again in halves.
    async fn terminate(&self, ids: Vec<String>) -> HashMap<String, Result<CloudDeleted>> {
        let mut outcomes = HashMap::new();
        let mut rest = vec![ids];
        while let Some(ids) = rest.pop() {
            match self.terminate_all(&ids).await {
                Ok(terminated) => {
                    let each = ids.into_iter().map(|id| {
                        let outcome = deleted(&id, &terminated);
                        (id, Ok(outcome))
                    });
                    outcomes.extend(each);
                }
                Err(error) if ids.len() > 1 && error.class() == Class::Cannot => {
                    let (first, second) = ids.split_at(ids.len() / 2);
                    rest.extend([first.to_vec(), second.to_vec()]);
                }
                Err(error) => {
                    outcomes.extend(ids.into_iter().map(|id| (id, Err(error.clone()))));
                }
            }
        }
        outcomes
    }

    /// Terminates instances. Returns those that are terminated already.
    async fn terminate_all(&self, ids: &[String]) -> Result<HashSet<String>> {
        let answer = self
            .api
            .send("TerminateInstances", |ec2| {
                ec2.terminate_instances()
                    .set_instance_ids(Some(ids.to_vec()))
                    .send()
            })
            .await?;
        let terminated = answer.terminating_instances().iter().filter(|change| {
            let state = change.current_state().and_then(|state| state.name());
            state.is_some_and(|state| state.as_str() == "terminated")
        });
        Ok(terminated
            .filter_map(|change| change.instance_id().map(str::to_owned))
            .collect())
    }

    fn is_new(&self, id: &str) -> bool {
        let visibility = self.settings.common.visibility_delay();
        let mut new = self.new.lock();
        new.retain(|_, at| at.elapsed() < visibility);
        new.contains_key(id)
    }
}

#[async_trait]
impl Cloud for Aws {
    fn info(&self) -> Arc<CloudInfo> {
        Arc::clone(&self.info)
    }

    async fn check(&self, launch: &Launch, deep: bool) -> Result<()> {
        let request = LaunchRequest::of(launch, &self.settings)?;
        if deep {
            let plan = request
                .plan(&self.api, &self.catalogue, &self.settings, false)
                .await?;
            plan.try_out(&self.api, launch).await?;
        }
        Ok(())
    }

    async fn list(&self, filter: &Filter) -> Result<CloudListing> {
        let mut machines = match filter {
            Filter::Id(id) => {
                let read = |ids| machines::by_ids(&self.api, ids);
                self.reads.run(id, read).await?.into_iter().collect()
            }
            Filter::All => {
                let list = machines::list(&self.api, filter);
                let (listed, ()) = futures::join!(list, self.checks.read(&self.api));
                listed?
            }
            Filter::Cluster(_) | Filter::Request(_) => machines::list(&self.api, filter).await?,
        };
        self.checks.show(&mut machines);
        if *filter == Filter::All {
            self.follower.seen(&machines);
        }
        Ok(CloudListing {
            machines,
            ..CloudListing::default()
        })
    }

    async fn look(&self, machines: Vec<Machine>) -> Result<Option<Vec<Machine>>> {
        // Private addresses are known from the start; others appear only in a list.
        let known = self.settings.common.agent.address == AddressSource::Private
            && machines.iter().all(|machine| !machine.addresses.is_empty());
        if !known || machines.len() > MAX_LOOK {
            return Ok(None);
        }
        machines::look(&self.api, &machines).await.map(Some)
    }

    async fn create(&self, launch: &Launch) -> Vec<CloudOutcome> {
        let plan = match LaunchRequest::of(launch, &self.settings) {
            Ok(request) => {
                request
                    .plan(&self.api, &self.catalogue, &self.settings, true)
                    .await
            }
            Err(error) => Err(error),
        };
        let created = match &plan {
            Ok(plan) => plan.run(&self.api, launch).await,
            Err(error) => CloudOutcome::all(launch, error),
        };
        for made in &created {
            if let CloudOutcome::Made(machine) = made {
                self.new.lock().insert(machine.id.clone(), Instant::now());
            }
        }
        // A cached subnet, security group or image may have been deleted.
        if let Some(CloudOutcome::Failed(error)) = created.first()
            && matches!(error.reason(), Reason::Invalid | Reason::NotFound)
        {
            self.catalogue.forget();
        }
        created
    }

    async fn delete(&self, machine: &Machine, _: &Deletion) -> Result<CloudDeleted> {
        let answer = self
            .about(&machine.id, || {
                self.removals.run(&machine.id, |ids| self.terminate(ids))
            })
            .await;
        match answer {
            Ok(deleted) => Ok(deleted),
            Err(error) if errors::is_absent(&error) => Ok(CloudDeleted::Gone),
            Err(error) if error.reason() == Reason::Protected => {
                Err(protected(&machine.id, &error))
            }
            Err(error) => Err(error),
        }
    }

    async fn retag(
        &self,
        machine: &Machine,
        set: &BTreeMap<String, String>,
        remove: &[String],
    ) -> Result<()> {
        if !set.is_empty() {
            let mut set = set.clone();
            // Tags of a former life say nothing from the same call on: the one that removes them may not come to pass.
            let former = remove.iter().filter(|key| key.starts_with(PREFIX));
            set.extend(former.map(|key| (key.clone(), String::new())));
            let tags: Vec<Tag> = set
                .iter()
                .map(|(key, value)| Tag::builder().key(key).value(value).build())
                .collect();
            self.about(&machine.id, || {
                self.api.send("CreateTags", |ec2| {
                    ec2.create_tags()
                        .resources(&machine.id)
                        .set_tags(Some(tags.clone()))
                        .send()
                })
            })
            .await?;
        }
        if !remove.is_empty() {
            let tags: Vec<Tag> = remove
                .iter()
                .map(|key| Tag::builder().key(key).build())
                .collect();
            self.about(&machine.id, || {
                self.api.send("DeleteTags", |ec2| {
                    ec2.delete_tags()
                        .resources(&machine.id)
                        .set_tags(Some(tags.clone()))
                        .send()
                })
            })
            .await?;
        }
        Ok(())
    }

    async fn console(&self, machine: &Machine) -> Result<Vec<u8>> {
        let answer = self
            .api
            .send("GetConsoleOutput", |ec2| {
                ec2.get_console_output().instance_id(&machine.id).send()
            })
            .await?;
        let encoded: String = answer
            .output()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        base64::decode(encoded).map_err(|error| {
            Error::internal(format!(
                "GetConsoleOutput: the output is not base64: {error}"
            ))
        })
    }

    fn infrastructure(&self) -> Option<&dyn Infrastructure> {
        Some(self)
    }

    async fn shutdown(&self) {
        self.follower.end();
    }
}

fn deleted(id: &str, terminated: &HashSet<String>) -> CloudDeleted {
    if terminated.contains(id) {
        CloudDeleted::Gone
    } else {
        CloudDeleted::Started
    }
}

fn protected(id: &str, error: &Error) -> Error {
    Error::new(
        Reason::Protected,
        format!(
            "instance {id} is protected against termination and was left alone. To lift it: aws ec2 \
             modify-instance-attribute --instance-id {id} --no-disable-api-termination ({error})"
        ),
    )
}
