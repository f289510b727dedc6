//! [`Driver`] over a [`Cloud`].

mod known;
mod make;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_core::{Class, Error, Reason, Result};
use drover_proto::platform::v1::{Capability, Node, NodePhase, StreamLogsRequest};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Cloud, CloudSettings, Facts, Filter, Listed, Machine, Removed, address, launch, tags};
use crate::placement::{self, HOST, Placer};
use drover_platform::{
    driver::{
        Batch, Change, Deleted, Deletion, Description, Driver, Found, Listing, LogStream, Outcome,
        Target,
    },
    infrastructure::Infrastructure,
};
use known::{Creating, Known};

/// A cloud as a platform.
pub struct CloudDriver<C> {
    cloud: Arc<C>,
    settings: CloudSettings,
    /// Schema of properties and of templates, built once.
    template_validator: jsonschema::Validator,
    known: Mutex<Known>,
}

impl<C: Cloud> CloudDriver<C> {
    /// A platform over this cloud.
    ///
    /// # Errors
    /// `Internal` if the schema of the cloud is none.
    pub fn new(cloud: Arc<C>, settings: CloudSettings) -> Result<Self> {
        let facts = cloud.facts();
        let template_validator = jsonschema::validator_for(&facts.properties_schema)
            .map_err(|error| Error::internal(format!("the properties schema is wrong: {error}")))?;
        Ok(Self {
            cloud,
            settings,
            template_validator,
            known: Mutex::default(),
        })
    }

    /// The cloud.
    #[must_use]
    pub fn cloud(&self) -> &Arc<C> {
        &self.cloud
    }

    /// The facts, with the failure domains that are left for this request.
    fn facts(&self, batch: &Batch) -> Arc<Facts> {
        let facts = self.cloud.facts();
        match self.cloud.domains(&batch.request) {
            None => facts,
            Some(left) => {
                let mut facts = Facts::clone(&facts);
                facts
                    .failure_domains
                    .retain(|domain| left.contains(&domain.name));
                Arc::new(facts)
            }
        }
    }

    async fn read(&self, filter: &Filter) -> Result<Listed> {
        let began = Instant::now();
        let mut listed = self.cloud.list(filter).await?;
        let mut known = self.known.lock();
        known.forget(began, self.settings.visibility_delay());
        for machine in &mut listed.machines {
            known.made.remove(&machine.id);
            if known.removed.contains_key(&machine.id)
                && matches!(
                    machine.phase,
                    NodePhase::Pending | NodePhase::Running | NodePhase::Stopped
                )
            {
                machine.phase = NodePhase::Deprovisioning;
            }
        }
        // What was made and is not listed yet exists all the same.
        let unseen = known
            .made
            .values()
            .map(|(machine, _)| machine)
            .filter(|machine| filter.fits(machine) && !known.removed.contains_key(&machine.id));
        listed.machines.extend(unseen.cloned());
        if *filter == Filter::All {
            let moving = listed.machines.iter().filter(|machine| is_moving(machine));
            known.moving = moving
                .map(|machine| (machine.id.clone(), machine.clone()))
                .collect();
            known.removing = false;
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

    /// The machine that is meant, if it is still what the caller believes.
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

/// Whether a machine of ours is on its way to another phase.
fn is_moving(machine: &Machine) -> bool {
    matches!(
        machine.phase,
        NodePhase::Pending | NodePhase::Deprovisioning
    ) && tags::decode(&machine.tags, machine.launch_index, &machine.name).is_some()
}

/// Whether a machine was only just made, and more of it will be known soon.
fn is_new(machine: &Machine) -> bool {
    machine.phase != NodePhase::Running || machine.addresses.is_empty()
}

/// Whether nodes are checked before their infrastructure is made.
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
        let facts = self.cloud.facts();
        let mut capabilities = facts.capabilities.clone();
        capabilities.push(Capability::SpreadPreferred);
        if !facts.failure_domains.is_empty() {
            capabilities.extend([Capability::SpreadRequired, Capability::FailureDomains]);
        }
        Description {
            uid: facts.uid.clone(),
            name: facts.name.clone(),
            kind: facts.kind.to_owned(),
            driver: facts.driver.to_owned(),
            backend_version: facts.backend_version.clone(),
            scope: facts.scope.clone(),
            capabilities,
            limits: facts.limits,
            failure_domains: facts.failure_domains.clone(),
            node_classes: facts.node_classes.clone(),
            properties_schema: Some(Arc::clone(&facts.properties_schema)),
            properties_example: Some(Arc::clone(&facts.properties_example)),
            warnings: facts.warnings.clone(),
        }
    }

    async fn check(&self, batch: &Batch) -> Result<()> {
        let facts = self.facts(batch);
        let group = batch.request.group.as_ref();
        placement::check(
            &facts.failure_domains,
            group.and_then(|group| group.placement.as_ref()),
            // Every machine is a host of its own.
            &[HOST],
        )?;
        let Some(first) = batch.slots().next() else {
            return Ok(());
        };
        let domain = Placer::new(
            &facts.failure_domains,
            group.and_then(|group| group.placement.as_ref()),
        )
        .choose()?;
        let launches = launch::launches(
            batch,
            &[first],
            domain,
            &facts,
            &self.settings,
            &self.template_validator,
        )
        .await;
        let launches = match launches {
            // A template may need what is not known before the infrastructure is made.
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
        let facts = self.facts(batch);
        let mut placer = match self.placer(batch, &facts).await {
            Ok(placer) => placer,
            Err(error) => {
                // Reading has made nothing, but only its class may say so.
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
        let full: Vec<String> = {
            let mut known = self.known.lock();
            known.forget(Instant::now(), self.settings.visibility_delay());
            let of_class = known.full.keys().filter(|(full, _)| full == class);
            of_class.map(|(_, domain)| domain.clone()).collect()
        };
        // When all are full the cloud itself is asked again.
        if full.len() < facts.failure_domains.len() {
            for domain in &full {
                placer.full(domain);
            }
        }
        let _creating = Creating::begin(&self.known);
        self.place(batch, &mut placer, &facts).await
    }

    async fn delete(&self, target: &Target, options: &Deletion) -> Result<Deleted> {
        let removed = match self.target(target).await? {
            None => Removed::Gone,
            Some(machine) if machine.phase == NodePhase::Terminated => Removed::Gone,
            Some(machine) => self.cloud.delete(&machine, options).await?,
        };
        let mut known = self.known.lock();
        known.removed.insert(target.node_id.clone(), Instant::now());
        known.made.remove(&target.node_id);
        known.removing = true;
        if let Some((seats, _)) = known.seats.get_mut(&target.cluster_id) {
            seats.retain(|seat| seat.id != target.node_id);
        }
        drop(known);
        Ok(Deleted {
            state: removed.into(),
            retained_storage: Vec::new(),
        })
    }

    async fn update(&self, target: &Target, change: &Change) -> Result<Node> {
        let Some(mut machine) = self.target(target).await? else {
            return Err(Error::not_found("node", &target.node_id));
        };
        let facts = self.cloud.facts();
        let (set, remove) = match change {
            Change::Edit {
                role,
                set_labels,
                remove_labels,
            } => {
                let mut set = set_labels.clone();
                set.extend(role.and_then(tags::role_tag));
                (set, remove_labels.clone())
            }
            Change::Adopt(identity) => {
                let set = tags::encode(std::slice::from_ref(identity.as_ref()), facts.tag_limits)?;
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
            let known = self.known.lock();
            let made = known.made.values().map(|(machine, _)| machine);
            let moving = known
                .moving
                .values()
                .chain(made.filter(|made| is_new(made)));
            // A removal is complete when the machine is not listed any more, which only a list shows.
            if known.removing
                || moving
                    .clone()
                    .any(|machine| machine.phase != NodePhase::Pending)
            {
                return Ok(None);
            }
            moving.cloned().collect()
        };
        let Some(machines) = self.cloud.look(pending).await? else {
            return Ok(None);
        };
        let mut known = self.known.lock();
        let mut nodes = Vec::with_capacity(machines.len());
        for machine in machines {
            nodes.push(self.found(&machine).node);
            if let Some((made, _)) = known.made.get_mut(&machine.id) {
                *made = machine;
            } else if is_moving(&machine) {
                known.moving.insert(machine.id.clone(), machine);
            } else {
                known.moving.remove(&machine.id);
            }
        }
        Ok(Some(nodes))
    }

    fn next_poll(&self) -> Option<Duration> {
        let known = self.known.lock();
        let mut made = known.made.values().map(|(machine, _)| machine);
        let soon =
            known.creating == 0 && (known.removing || !known.moving.is_empty() || made.any(is_new));
        soon.then(|| self.settings.pending_poll_interval())
    }

    async fn shutdown(&self) {
        self.cloud.shutdown().await;
    }
}

/// The last lines of a text.
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
