//! Droplets of a DigitalOcean account as nodes.
//!
//! Creation has no idempotency token. A request with an unknown outcome is therefore looked up by its tag before it is
//! retried, and only once the droplets of the previous attempt are guaranteed to be listed (`Limits.replay_delay`). As tags
//! come later than droplets, names that may have been asked for before are looked up as well. The droplets of one call share
//! their tags and differ in their names, which are the ids of their slots.

mod catalogue;
mod client;
mod cloud_info;
mod creations;
mod doubts;
mod errors;
mod firewall;
mod list;
mod machine;
mod properties;
mod quota;
mod retag;
mod settings;
mod sweep;
mod tags;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use parking_lot::{Mutex, RwLock};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cloud::{
    Cloud, CloudDeleted, CloudInfo, CloudListing, CloudOutcome, Filter, Launch, Machine,
};
use drover_platform::driver::Deletion;

use catalogue::{Names, Size};
use client::Client;
use creations::Creations;
use doubts::Doubts;
use firewall::CLOSED;
use machine::Droplet;
use properties::WantedDroplet;
use sweep::Sweep;

pub use settings::Settings;

/// Maximum length of a droplet name.
const MAX_NAME: usize = 255;
/// How long cached sizes and regions are used.
const CATALOGUE_AGE: Duration = Duration::from_secs(3600);
/// How long a refusal based on the cache is trusted; shorter, as capacity comes back.
const REFUSAL_AGE: Duration = Duration::from_secs(60);
/// How long a deletion waits for a busy droplet: one that is still being created cannot be deleted.
const BUSY_WAIT: Duration = Duration::from_secs(20);
/// Metadata key that marks the error of a busy droplet.
const BUSY_WITH: &str = "busy_with";
/// Retry delay after that.
const BUSY: Duration = Duration::from_secs(10);

/// A DigitalOcean account. Created by [`open`].
pub struct DigitalOcean {
    settings: Settings,
    client: Client,
    info: RwLock<Arc<CloudInfo>>,
    sizes: RwLock<(Arc<Vec<Size>>, Instant)>,
    names: Names,
    /// Droplets with our tags in the last complete list.
    seen: Mutex<HashSet<u64>>,
    /// Number of calls of the last complete list.
    pages: AtomicUsize,
    sweep: Mutex<Sweep>,
    doubts: Doubts,
    creations: Creations,
    /// When the firewall was last seen.
    closed: Mutex<Option<Instant>>,
}

/// Opens the account: reads its identity, regions and sizes.
///
/// # Errors
/// `CredentialsRefused` and `PermissionDenied` with a remedy; `Invalid` for a region that does not exist; API errors.
pub async fn open(settings: Settings) -> Result<Arc<DigitalOcean>> {
    let client = Client::new(&settings)?;
    let account = client
        .get(&["account"], &[])
        .await?
        .map(|body| body["account"].clone())
        .ok_or_else(|| Error::unavailable("DigitalOcean does not say whose the token is"))?;
    let regions = client.list(&["regions"], &[]).await?.items;
    cloud_info::check_regions(&settings.regions, &regions)?;
    let sizes = catalogue::sizes(&client).await?;
    let mut info = cloud_info::cloud_info(&settings, &account, &regions, &sizes)?;
    if settings.firewall
        && let Err(error) = firewall::listed(&client).await
        && error.reason() == Reason::PermissionDenied
    {
        info.warnings.push(format!(
            "no store can be installed: the token may not read firewalls, and droplets of stores get the firewall {CLOSED}. \
             Give the token the scope firewall (create, read), or set `firewall: false` here or in properties of groups"
        ));
    }
    if let Some(owner) = cloud_info::owner(&account) {
        client.belongs_to(owner);
    }
    let doubts = Doubts::new(cloud_info::settles_after(&settings));
    Ok(Arc::new(DigitalOcean {
        settings,
        client,
        info: RwLock::new(Arc::new(info)),
        sizes: RwLock::new((Arc::new(sizes), Instant::now())),
        names: Names::default(),
        seen: Mutex::default(),
        pages: AtomicUsize::new(1),
        sweep: Mutex::new(Sweep::new()),
        doubts,
        creations: Creations::default(),
        closed: Mutex::default(),
    }))
}

impl DigitalOcean {
    /// The sizes, reloaded if they are older than `age`.
    async fn sizes(&self, age: Duration) -> Result<Arc<Vec<Size>>> {
        let (sizes, read) = self.sizes.read().clone();
        if read.elapsed() < age {
            return Ok(sizes);
        }
        let sizes = Arc::new(catalogue::sizes(&self.client).await?);
        *self.sizes.write() = (Arc::clone(&sizes), Instant::now());
        let mut info = CloudInfo::clone(&self.info.read());
        info.node_classes = cloud_info::node_classes(&self.settings, &sizes);
        *self.info.write() = Arc::new(info);
        Ok(sizes)
    }

    /// The slug of the selected size.
    fn size(&self, sizes: &[Size], launch: &Launch, wanted: &WantedDroplet) -> Result<String> {
        let common = &self.settings.common;
        let default = common.node_class(&self.settings.instance_type);
        let size = catalogue::choose(
            sizes,
            &launch.node_class,
            &wanted.properties,
            default,
            &wanted.region,
        )?;
        if size.has_gpus() && !self.settings.gpus {
            return Err(Error::new(
                Reason::NodeClassNotFound,
                format!(
                    "{} has GPUs; allow it with `gpus` in the platform's settings",
                    size.slug
                ),
            ));
        }
        if !size.is_sold_in(&wanted.region) {
            let elsewhere = size.regions();
            return Err(Error::new(
                Reason::NoCapacity,
                format!(
                    "DigitalOcean does not sell {} in {} now{}",
                    size.slug,
                    wanted.region,
                    if elsewhere.is_empty() {
                        String::new()
                    } else {
                        format!("; it does in {elsewhere}")
                    }
                ),
            )
            .with_metadata("failure_domain", &wanted.region));
        }
        Ok(size.slug.clone())
    }

    /// Validates a launch without a call.
    fn look(&self, launch: &Launch, sizes: &[Size]) -> Result<(WantedDroplet, String)> {
        let wanted = WantedDroplet::of(launch, &self.settings)?;
        let size = self.size(sizes, launch, &wanted)?;
        if let Some(data) = &launch.user_data
            && std::str::from_utf8(data).is_err()
        {
            return Err(Error::invalid(
                "bootstrap",
                "DigitalOcean takes text only, and this is no UTF-8; encode it, and let the text decode it",
            ));
        }
        for slot in &launch.slots {
            let name = &slot.identity.id;
            let of_hostname = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
            if !name.chars().all(of_hostname) || name.ends_with(['.', '-']) {
                return Err(Error::invalid(
                    "slots",
                    format!(
                        "{name:?} is not a valid name for a droplet: letters, digits, dots and dashes"
                    ),
                ));
            }
        }
        tags::encode_all(&launch.tags)?;
        Ok((wanted, size))
    }

    /// The body of a create request, with every name in it resolved.
    async fn request(&self, launch: &Launch) -> Result<(Value, WantedDroplet)> {
        let sizes = self.sizes(CATALOGUE_AGE).await?;
        let (wanted, size) = match self.look(launch, &sizes) {
            Err(error) if error.reason() == Reason::NoCapacity => {
                let sizes = self.sizes(REFUSAL_AGE).await?;
                self.look(launch, &sizes)?
            }
            looked => looked?,
        };
        let image = self.names.image(&self.client, &wanted.image).await?;
        let mut keys = Vec::with_capacity(wanted.keys.len());
        for key in &wanted.keys {
            keys.push(self.names.key(&self.client, key).await?);
        }
        let mut slots = launch.slots.iter();
        if let Some(slot) = slots.find(|slot| slot.identity.id.len() > MAX_NAME) {
            return Err(Error::invalid(
                format!("slots[{}].id", slot.identity.index),
                format!("names of droplets have {MAX_NAME} characters at most"),
            ));
        }
        let mut tags = tags::encode_all(&launch.tags)?;
        tags.extend(wanted.tags.iter().cloned());
        if wanted.firewall && !tags.iter().any(|tag| tag == CLOSED) {
            tags.push(CLOSED.to_owned());
        }
        let properties = &wanted.properties;
        let mut body = json!({
            "region": wanted.region,
            "size": size,
            "image": image,
            "ssh_keys": keys,
            "backups": properties.backups,
            "ipv6": properties.ipv6,
            "monitoring": properties.monitoring,
            "tags": tags,
        });
        if let Some(public) = properties.public_networking {
            body["public_networking"] = json!(public);
        }
        if let Some(vpc) = &wanted.vpc {
            body["vpc_uuid"] = json!(vpc);
        }
        if let Some(data) = &launch.user_data {
            body["user_data"] = json!(String::from_utf8_lossy(data));
        }
        match doubts::names(launch).as_slice() {
            [name] => body["name"] = json!(name),
            names => body["names"] = json!(names),
        }
        Ok((body, wanted))
    }

    async fn make(&self, launch: &Launch) -> Result<Vec<CloudOutcome>> {
        self.check_doubts(launch).await?;
        let (body, wanted) = self.request(launch).await?;
        if wanted.firewall {
            self.ensure_firewall().await?;
        }
        self.doubts.asked(&doubts::names(launch));
        let droplets = self
            .client
            .call(Method::POST, &["droplets"], &[], Some(&body));
        let reply = droplets.await?;
        if !(200..300).contains(&reply.status) {
            let error = errors::create(&reply, &wanted.region);
            if error.reason() == Reason::Invalid {
                // A cached name may refer to something that was deleted.
                self.names.forget();
            }
            return Err(error);
        }
        let made = match &reply.body["droplets"] {
            Value::Array(droplets) => droplets.clone(),
            _ => vec![reply.body["droplet"].clone()],
        };
        let actions = reply.body["links"]["actions"].as_array();
        let actions = actions.into_iter().flatten();
        let actions = actions.map(|action| action["id"].as_u64());
        let made: Vec<(Droplet, Option<u64>)> = made
            .iter()
            .zip(actions.chain(std::iter::repeat(None)))
            .filter_map(|(value, action)| Some((Droplet::read(value).ok()?, action)))
            .collect();
        let of_slot = |name: &str| {
            let Some((droplet, action)) = made.iter().find(|(droplet, _)| droplet.name == name)
            else {
                return CloudOutcome::Unknown(Error::unavailable(
                    "DigitalOcean did not say what became of it",
                ));
            };
            let mut machine = droplet.machine();
            machine.tags.clone_from(&launch.tags);
            if machine.failure_domain.is_empty() {
                machine.failure_domain.clone_from(&wanted.region);
            }
            if let Some(action) = action {
                self.creations.begin(&machine, *action);
            }
            CloudOutcome::Made(Box::new(machine))
        };
        Ok(launch
            .slots
            .iter()
            .map(|slot| of_slot(&slot.identity.id))
            .collect())
    }

    /// One attempt. An error with [`BUSY_WITH`] means that nothing was done.
    async fn destroy(&self, machine: &Machine) -> Result<CloudDeleted> {
        let path = ["droplets", machine.id.as_str()];
        let reply = self.client.call(Method::DELETE, &path, &[], None).await?;
        let message = reply.message();
        match reply.status {
            200..300 => Ok(CloudDeleted::Started),
            404 => Ok(CloudDeleted::Gone),
            422 if message.contains("pending event") => self.busy(machine).await,
            422 if message.contains("locked") => Err(Error::new(
                Reason::Precondition,
                format!(
                    "droplet {} is locked by DigitalOcean ({message}); ask its support to unlock it: \
                     https://cloudsupport.digitalocean.com",
                    machine.id
                ),
            )),
            _ => Err(reply.error(&format!("to delete droplet {}", machine.id))),
        }
    }

    /// Describes the running action for a deletion that was refused because of it.
    async fn busy(&self, machine: &Machine) -> Result<CloudDeleted> {
        let actions = self
            .client
            .list(&["droplets", &machine.id, "actions"], &[])
            .await;
        let actions = actions.map(|list| list.items).unwrap_or_default();
        let doing = actions
            .iter()
            .find(|action| action["status"] == "in-progress")
            .and_then(|action| action["type"].as_str())
            .unwrap_or("something");
        if doing == "destroy" {
            return Ok(CloudDeleted::Started);
        }
        Err(Error::unavailable(format!(
            "droplet {} is busy with {doing} and cannot be deleted before it is done",
            machine.id
        ))
        .with_metadata(BUSY_WITH, doing)
        .with_retry_after(BUSY))
    }
}

#[async_trait]
impl Cloud for DigitalOcean {
    fn info(&self) -> Arc<CloudInfo> {
        Arc::clone(&self.info.read())
    }

    async fn check(&self, launch: &Launch, deep: bool) -> Result<()> {
        let sizes = Arc::clone(&self.sizes.read().0);
        if !deep {
            return match self.look(launch, &sizes) {
                // Another region may have it, and it is checked again before a launch.
                Err(error) if error.reason() == Reason::NoCapacity => Ok(()),
                looked => looked.map(drop),
            };
        }
        let (_, wanted) = self.request(launch).await?;
        if wanted.firewall {
            firewall::listed(&self.client).await?;
        }
        if let Some(vpc) = &wanted.vpc {
            let found = self.client.get(&["vpcs", vpc], &[]).await?;
            let region = found
                .as_ref()
                .and_then(|body| body["vpc"]["region"].as_str());
            let why = match region {
                Some(region) if region == wanted.region => None,
                Some(region) => Some(format!(
                    "VPC {vpc} is in {region}, not in {}",
                    wanted.region
                )),
                None => Some(format!("the account has no VPC {vpc}")),
            };
            if let Some(why) = why {
                return Err(Error::invalid("group.properties.vpcUuid", why));
            }
        }
        let account = self
            .client
            .get(&["account"], &[])
            .await?
            .unwrap_or_default();
        let one = [("per_page", "1".to_owned())];
        let droplets = self
            .client
            .get(&["droplets"], &one)
            .await?
            .unwrap_or_default();
        let limit = account["account"]["droplet_limit"].as_u64();
        let count = droplets["meta"]["total"].as_u64();
        match (limit, count) {
            (Some(limit), Some(count)) if count >= limit => Err(Error::new(
                Reason::QuotaExceeded,
                format!("the account has {count} droplets and may have {limit}"),
            )),
            _ => Ok(()),
        }
    }

    async fn list(&self, filter: &Filter) -> Result<CloudListing> {
        self.read(filter).await
    }

    /// One call each, so only for fewer than a list takes.
    async fn look(&self, machines: Vec<Machine>) -> Result<Option<Vec<Machine>>> {
        if machines.is_empty() || machines.len() >= self.pages.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut found = Vec::with_capacity(machines.len());
        for machine in machines {
            let listed = self.read(&Filter::Id(machine.id)).await?;
            found.extend(listed.machines);
        }
        Ok(Some(found))
    }

    fn poll_interval(&self, usual: Duration) -> Duration {
        let pages = self.pages.load(Ordering::Relaxed);
        let quota = self.client.quota();
        quota.map_or(usual, |quota| quota.pause(pages).max(usual))
    }

    async fn create(&self, launch: &Launch) -> Vec<CloudOutcome> {
        match self.make(launch).await {
            Ok(created) => created,
            Err(error) => CloudOutcome::all(launch, &error),
        }
    }

    async fn delete(&self, machine: &Machine, _: &Deletion) -> Result<CloudDeleted> {
        let until = Instant::now() + BUSY_WAIT;
        loop {
            match self.destroy(machine).await {
                Err(error)
                    if error.metadata().contains_key(BUSY_WITH) && Instant::now() < until =>
                {
                    sleep(self.settings.common.pending_poll_interval()).await;
                }
                outcome => {
                    if outcome.is_ok() {
                        self.creations.end(&machine.id);
                    }
                    return outcome;
                }
            }
        }
    }

    async fn retag(
        &self,
        machine: &Machine,
        set: &BTreeMap<String, String>,
        remove: &[String],
    ) -> Result<()> {
        self.change_tags(machine, set, remove).await
    }
}
