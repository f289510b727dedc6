//! [`Driver`] over a [`Cloud`].

mod asked;
mod earlier;
mod make;
mod node_cache;
mod silent;

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use drover_core::{Class, Error, Reason, Result};
use drover_proto::platform::v1::{Capability, Limits, Node, NodePhase, StreamLogsRequest};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Cloud, CloudDeleted, CloudInfo, CloudListing, CloudSettings, Filter, Machine, address, launch,
    tags,
};
use drover_platform::placement::domains::{self, HOST, Placer};
use drover_platform::{
    driver::{
        Batch, Change, Deleted, Deletion, Description, Driver, Found, Listing, LogStream, Outcome,
        Target,
    },
    infrastructure::Infrastructure,
    limits,
};
use earlier::Earlier;
use node_cache::{Creating, NodeCache, lend};

/// Runs a [`Cloud`] as a platform driver.
pub struct CloudDriver<C> {
    cloud: Arc<C>,
    settings: CloudSettings,
    /// Validator for properties and template output, compiled once.
    template_validator: jsonschema::Validator,
    cache: Mutex<NodeCache>,
    earlier: Earlier,
}

impl<C: Cloud> CloudDriver<C> {
    /// Creates the driver.
    ///
    /// # Errors
    /// `Internal` if the cloud's properties schema is not a valid JSON Schema.
    pub fn new(cloud: Arc<C>, settings: CloudSettings) -> Result<Self> {
        let info = cloud.info();
        let template_validator = jsonschema::validator_for(&info.properties_schema)
            .map_err(|error| Error::internal(format!("the properties schema is wrong: {error}")))?;
        Ok(Self {
            earlier: Earlier::until_now(settings.call_timeout()),
            cache: Mutex::new(NodeCache::new(
                settles_after(&info.limits),
                settings.call_timeout(),
            )),
            cloud,
            settings,
            template_validator,
        })
    }

    /// The underlying cloud.
    #[must_use]
    pub fn cloud(&self) -> &Arc<C> {
        &self.cloud
    }

    /// The cloud's description, restricted to the failure domains that this request may use.
    fn info(&self, batch: &Batch) -> Arc<CloudInfo> {
        let info = self.cloud.info();
        match self.cloud.domains(&batch.request) {
            None => info,
            Some(left) => {
                let mut info = CloudInfo::clone(&info);
                info.failure_domains
                    .retain(|domain| left.contains(&domain.name));
                Arc::new(info)
            }
        }
    }

    async fn read(&self, filter: &Filter) -> Result<CloudListing> {
        let began = Instant::now();
        let mut listed = self.cloud.list(filter).await?;
        let mut cache = self.cache.lock();
        cache.forget(began, self.settings.visibility_delay());
        for machine in &mut listed.machines {
            cache.recognise(machine, began);
            if cache.removed.contains_key(&machine.id)
                && matches!(
                    machine.phase,
                    NodePhase::Pending | NodePhase::Running | NodePhase::Stopped
                )
            {
                machine.phase = NodePhase::Deprovisioning;
            }
        }
        let seen: HashSet<&str> = listed.machines.iter().map(|m| m.id.as_str()).collect();
        // Machines that were created but are not listed yet exist all the same (eventual consistency of the API).
        let unseen: Vec<Machine> = cache
            .made
            .values()
            .map(|(machine, _)| machine)
            .filter(|machine| filter.fits(machine) && !cache.removed.contains_key(&machine.id))
            .filter(|machine| !seen.contains(machine.id.as_str()))
            .cloned()
            .collect();
        listed.machines.extend(unseen);
        cache.domains.complete(&mut listed, filter, began)?;
        if *filter == Filter::All {
            let moving = listed.machines.iter().filter(|machine| is_moving(machine));
            cache.moving = moving
                .map(|machine| (machine.id.clone(), machine.clone()))
                .collect();
            cache.removing = false;
        }
        Ok(listed)
    }

    fn found(&self, machine: &Machine) -> Found {
        let identity = tags::decode(&machine.tags, machine.launch_index, &machine.name);
        let mut found = match &identity {
            Some(identity) => Found {
                node: identity.node(&machine.id),
                fingerprint: identity.fingerprint.clone(),
            },
            None => Found {
                node: Node {
                    node_id: machine.id.clone(),
                    cluster_id: tags::cluster(&machine.tags).to_owned(),
                    name: machine.name.clone(),
                    labels: tags::labels(&machine.tags),
                    ..Node::default()
                },
                fingerprint: String::new(),
            },
        };
        let node = &mut found.node;
        node.phase = machine.phase.into();
        node.ready = Some(machine.ready.unwrap_or(true) && machine.phase == NodePhase::Running);
        node.message.clone_from(&machine.message);
        node.maintenance.clone_from(&machine.maintenance);
        node.provider_id.clone_from(&machine.provider_id);
        node.failure_domain.clone_from(&machine.failure_domain);
        if !machine.node_class.is_empty() {
            node.node_class.clone_from(&machine.node_class);
        }
        node.create_time = machine.create_time;
        node.addresses.clone_from(&machine.addresses);
        node.host_id.clone_from(&machine.host_id);
        node.agent_address = address::agent_address(machine, &self.settings.agent);
        node.endpoints = address::endpoints(machine, &self.settings.agent);
        found
    }

    /// The target machine, if it still has the identity that the caller expects.
    async fn target(&self, target: &Target) -> Result<Option<Machine>> {
        let machines = self
            .read(&Filter::Id(target.node_id.clone()))
            .await?
            .machines;
        let Some(machine) = machines
            .into_iter()
            .find(|machine| machine.id == target.node_id)
        else {
            return Ok(None);
        };
        target.matches(&self.found(&machine).node)?;
        Ok(Some(machine))
    }
}

/// How long after the start of this process lists may lack what another one has made.
fn settles_after(limits: &Limits) -> Duration {
    limits::max_creation_time(limits) + limits::visibility_delay(limits)
}

/// Whether the machine is in transition to another phase.
fn is_moving(machine: &Machine) -> bool {
    matches!(
        machine.phase,
        NodePhase::Pending | NodePhase::Deprovisioning
    ) && tags::decode(&machine.tags, machine.launch_index, &machine.name).is_some()
}

/// Whether the machine is so new that its state or addresses are still incomplete.
fn is_new(machine: &Machine) -> bool {
    machine.phase != NodePhase::Running || machine.addresses.is_empty()
}

/// Whether this is a dry run for nodes whose infrastructure is not created yet.
fn is_announced(batch: &Batch) -> bool {
    let outputs = batch.request.infrastructure.iter();
    batch.request.validate_only
        && outputs
            .into_iter()
            .any(|outputs| outputs.network_id.is_empty() && outputs.properties.is_none())
}

impl Filter {
    fn fits(&self, machine: &Machine) -> bool {
        match self {
            Self::All => true,
            Self::Cluster(cluster) => tags::cluster(&machine.tags) == cluster,
            Self::Request(request_id) => tags::request(&machine.tags) == request_id,
            Self::Id(id) => machine.id == *id,
        }
    }
}

#[async_trait]
impl<C: Cloud> Driver for CloudDriver<C> {
    fn description(&self) -> Description {
        let info = self.cloud.info();
        let mut limits = info.limits;
        let mut warnings = info.warnings.clone();
        let usual = self.settings.poll_interval();
        let interval = self.cloud.poll_interval(usual);
        if interval > usual {
            limits.min_poll_interval = prost_types::Duration::try_from(interval).ok();
            warnings.push(format!(
                "little is left of the API's quota of calls, so nodes are read every {} s only, and not every {} s, \
                 until it is reset",
                interval.as_secs(),
                usual.as_secs()
            ));
        }
        let mut capabilities = info.capabilities.clone();
        capabilities.push(Capability::SpreadPreferred);
        if !info.failure_domains.is_empty() {
            capabilities.extend([Capability::SpreadRequired, Capability::FailureDomains]);
        }
        Description {
            uid: info.uid.clone(),
            name: info.name.clone(),
            kind: info.kind.to_owned(),
            driver: info.driver.to_owned(),
            backend_version: info.backend_version.clone(),
            scope: info.scope.clone(),
            capabilities,
            limits,
            failure_domains: info.failure_domains.as_slice().into(),
            node_classes: info.node_classes.clone(),
            properties_schema: Some(Arc::clone(&info.properties_schema)),
            properties_example: Some(Arc::clone(&info.properties_example)),
            warnings,
        }
    }

    async fn check(&self, batch: &Batch) -> Result<()> {
        let info = self.info(batch);
        let group = batch.request.group.as_ref();
        domains::check(
            &info.failure_domains,
            group.and_then(|group| group.placement.as_ref()),
            // Every machine is its own host.
            &[HOST],
        )?;
        let Some(first) = batch.slots().next() else {
            return Ok(());
        };
        let domain = Placer::new(
            &info.failure_domains,
            group.and_then(|group| group.placement.as_ref()),
        )
        .choose()?;
        let launches = launch::launches(
            batch,
            &[first],
            domain,
            &info,
            &self.settings,
            &self.template_validator,
        )
        .await;
        let launches = match launches {
            // A template may depend on outputs that are unknown until the infrastructure exists.
            Err(error) if error.reason() == Reason::Precondition && is_announced(batch) => {
                return Ok(());
            }
            launches => launches?,
        };
        for launch in &launches {
            self.cloud
                .check(launch, batch.request.validate_only)
                .await?;
        }
        Ok(())
    }

    async fn list(&self) -> Result<Listing> {
        let listed = self.read(&Filter::All).await?;
        Ok(Listing {
            nodes: listed
                .machines
                .iter()
                .map(|machine| self.found(machine))
                .collect(),
            warnings: listed.warnings,
        })
    }

    async fn list_cluster(&self, cluster_id: &str) -> Result<Option<Listing>> {
        let listed = self.read(&Filter::Cluster(cluster_id.to_owned())).await?;
        Ok(Some(Listing {
            nodes: listed
                .machines
                .iter()
                .map(|machine| self.found(machine))
                .collect(),
            warnings: listed.warnings,
        }))
    }

    async fn of_request(&self, request_id: &str) -> Result<Vec<Found>> {
        let filter = Filter::Request(request_id.to_owned());
        let listed = self.read(&filter).await?;
        if let Some(warning) = listed.warnings.first() {
            return Err(Error::unavailable(format!(
                "whether this request made something cannot be said now: {}",
                warning.message
            )));
        }
        Ok(listed
            .machines
            .iter()
            .map(|machine| self.found(machine))
            .collect())
    }

    async fn by_node_id(&self, node_id: &str) -> Result<Vec<Found>> {
        let listed = self.read(&Filter::Id(node_id.to_owned())).await?;
        Ok(listed
            .machines
            .iter()
            .filter(|machine| machine.id == node_id)
            .map(|machine| self.found(machine))
            .collect())
    }

    async fn create(&self, batch: &Batch) -> Vec<Outcome> {
        let info = self.info(batch);
        // A repeat in the same failure domain is recognised by the cloud.
        if info.failure_domains.len() > 1
            && let Some(error) = self.earlier.may_make(&batch.request.request_id)
        {
            return (batch.slots())
                .map(|_| Outcome::Unknown(error.clone()))
                .collect();
        }
        let mut placer = match self.placer(batch, &info).await {
            Ok(placer) => placer,
            Err(error) => {
                // A read has created nothing, but only the error's class may say so.
                let outcome = match error.class() {
                    Class::Unknown => Outcome::Unknown(error),
                    _ => Outcome::Failed(error),
                };
                return batch.slots().map(|_| outcome.clone()).collect();
            }
        };
        let class = batch
            .request
            .group
            .as_ref()
            .map_or("", |group| self.settings.node_class(&group.node_class));
        let (mut full, silent) = {
            let mut cache = self.cache.lock();
            cache.forget(Instant::now(), self.settings.visibility_delay());
            let of_class = cache.full.keys().filter(|(full, _)| full == class);
            let full: HashSet<String> = of_class.map(|(_, domain)| domain.clone()).collect();
            let offered = |domain: &&str| info.failure_domains.iter().any(|of| of.name == **domain);
            let silent = cache.domains.silent().filter(offered).map(str::to_owned);
            (full, silent.collect::<Vec<_>>())
        };
        // What is made in a domain that does not answer would stay in doubt for long.
        full.extend(silent.iter().cloned());
        // If every domain is marked full, ask the cloud again instead of failing from memory.
        if full.len() < info.failure_domains.len() {
            for domain in &full {
                placer.full(domain);
            }
        }
        let _creating = Creating::begin(&self.cache);
        self.place(batch, &mut placer, &info, &silent).await
    }

    async fn delete(&self, target: &Target, options: &Deletion) -> Result<Deleted> {
        let removed = match self.target(target).await? {
            None => CloudDeleted::Gone,
            Some(machine) if machine.phase == NodePhase::Terminated => CloudDeleted::Gone,
            Some(machine) => self.cloud.delete(&machine, options).await?,
        };
        let mut cache = self.cache.lock();
        cache.removed.insert(target.node_id.clone(), Instant::now());
        cache.made.remove(&target.node_id);
        cache.removing = true;
        if let Some((placements, _)) = cache.placements.get_mut(&target.cluster_id) {
            placements.retain(|node| node.id != target.node_id);
        }
        drop(cache);
        Ok(Deleted {
            state: removed.into(),
            retained_storage: Vec::new(),
        })
    }

    async fn update(&self, target: &Target, change: &Change) -> Result<Node> {
        let Some(mut machine) = self.target(target).await? else {
            return Err(Error::not_found("node", &target.node_id));
        };
        let info = self.cloud.info();
        let (set, remove) = match change {
            Change::Edit {
                role,
                set_labels,
                remove_labels,
                ..
            } => {
                let mut set = set_labels.clone();
                set.extend(role.and_then(tags::role_tag));
                (set, remove_labels.clone())
            }
            Change::Adopt(identity) => {
                let set = tags::encode(std::slice::from_ref(identity.as_ref()), info.tag_limits)?;
                let remove = tags::of_former_life(&machine.tags, &set);
                (set, remove)
            }
        };
        self.cloud.retag(&machine, &set, &remove).await?;
        machine.tags.extend(set);
        machine.tags.retain(|key, _| !remove.contains(key));
        Ok(self.found(&machine).node)
    }

    async fn logs(&self, node: &Node, request: &StreamLogsRequest) -> Result<LogStream> {
        if request.previous {
            return Err(drover_platform::driver::not_running(&node.node_id));
        }
        let listed = self.read(&Filter::Id(node.node_id.clone())).await?;
        let Some(machine) = listed
            .machines
            .iter()
            .find(|machine| machine.id == node.node_id)
        else {
            return Err(Error::not_found("node", &node.node_id));
        };
        let text = self.cloud.console(machine).await?;
        let text = match request.tail_lines {
            Some(lines) => tail(&text, lines as usize).to_vec(),
            None => text,
        };
        Ok(stream::once(async move { Ok(text) }).boxed())
    }

    fn infrastructure(&self) -> Option<&dyn Infrastructure> {
        self.cloud.infrastructure()
    }

    async fn look(&self) -> Result<Option<Vec<Node>>> {
        let pending: Vec<Machine> = {
            let cache = self.cache.lock();
            let made = cache.made.values().map(|(machine, _)| machine);
            let moving = cache
                .moving
                .values()
                .chain(made.filter(|made| is_new(made)));
            // A deletion is complete once the machine is no longer listed, which only a list shows.
            if cache.removing
                || moving
                    .clone()
                    .any(|machine| machine.phase != NodePhase::Pending)
            {
                return Ok(None);
            }
            // One that was made a moment ago and is listed by now is looked at once.
            let once: BTreeMap<&str, &Machine> =
                moving.map(|machine| (&*machine.id, machine)).collect();
            once.into_values().cloned().collect()
        };
        let Some(machines) = self.cloud.look(pending).await? else {
            return Ok(None);
        };
        let mut cache = self.cache.lock();
        let mut nodes = Vec::with_capacity(machines.len());
        for mut machine in machines {
            let made = cache.made.get_mut(&machine.id);
            if let Some((made, _)) = &made {
                lend(made, &mut machine);
            }
            nodes.push(self.found(&machine).node);
            if let Some((made, _)) = made {
                *made = machine;
            } else if is_moving(&machine) {
                cache.moving.insert(machine.id.clone(), machine);
            } else {
                cache.moving.remove(&machine.id);
            }
        }
        Ok(Some(nodes))
    }

    fn next_poll(&self) -> Option<Duration> {
        let cache = self.cache.lock();
        let mut made = cache.made.values().map(|(machine, _)| machine);
        let soon =
            cache.creating == 0 && (cache.removing || !cache.moving.is_empty() || made.any(is_new));
        soon.then(|| {
            self.cloud
                .poll_interval(self.settings.pending_poll_interval())
        })
    }

    async fn shutdown(&self) {
        self.cloud.shutdown().await;
    }
}

fn tail(text: &[u8], lines: usize) -> &[u8] {
    if lines == 0 {
        return &[];
    }
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let newlines = body
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, byte)| **byte == b'\n');
    let start = newlines.map(|(at, _)| at + 1).nth(lines - 1).unwrap_or(0);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::tail;

    #[test]
    fn the_tail_of_a_text_is_its_last_lines() {
        let text = b"one\ntwo\nthree\n";
        assert_eq!(tail(text, 0), b"");
        assert_eq!(tail(text, 1), b"three\n");
        assert_eq!(tail(text, 2), b"two\nthree\n");
        assert_eq!(tail(text, 9), text);
        assert_eq!(tail(b"no end", 1), b"no end");
    }
}
