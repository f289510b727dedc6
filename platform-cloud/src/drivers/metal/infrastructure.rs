//! Network, control-plane address and firewall of a cluster, created in this order and freed in reverse. Each is looked
//! up by its tags before it is created, as the API has no idempotency tokens.

mod found;
mod plan;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_trait::async_trait;
use drover_core::{Class, Error, Reason, Result};
use drover_proto::platform::v1::{
    InfrastructureSpec, InfrastructureState, Resource, ResourcePhase, Warning,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::{
    found::{
        BY, Found, GIVEN, OWNER, PARTITION, PORT, PROJECT, PUBLIC, RESOURCE, RULES, SEQUENCE,
        TARGETS, is_firewall, is_owned, perhaps,
    },
    plan::{EndpointPlan, FirewallPlan, NetworkPlan, Plan},
};
use super::{
    Metal,
    api::{Entry, search},
    documents::{AllocateMachine, Ip, Machine, Network, pairs, tags},
    hostname,
    machine::{Fields, claimed, fits, networks},
    properties::ANNOUNCED,
};
use crate::cloud::CLUSTER;
use drover_platform::infrastructure::{
    ENDPOINT, Infrastructure, Owner, Progress, phase_before_nodes,
};

const NETWORK: &str = "network";
const FIREWALL: &str = "firewall";

/// Paths of a firewall's fields in the spec.
const FIELDS: Fields = Fields {
    image: "spec.firewall.image",
    size: "spec.firewall.node_class",
    partition: "spec.properties.partition",
    network: "spec.network",
    keys: "default_ssh_keys",
};

/// One call of `ensure`.
struct Work<'a> {
    owner: &'a Owner,
    sequence: u64,
    plan: &'a Plan,
}

impl Work<'_> {
    /// The tags of a resource, set on creation.
    fn tags(&self, kind: &str) -> BTreeMap<String, String> {
        let mut tags = BTreeMap::from([
            (CLUSTER.to_owned(), self.owner.cluster_id.clone()),
            (OWNER.to_owned(), self.owner.owner.clone()),
            (SEQUENCE.to_owned(), self.sequence.to_string()),
            (RESOURCE.to_owned(), kind.to_owned()),
            (PROJECT.to_owned(), self.plan.project.clone()),
            (PARTITION.to_owned(), self.plan.partition.clone()),
            (PUBLIC.to_owned(), self.plan.public.clone()),
        ]);
        if let Some(NetworkPlan::Given(id)) = &self.plan.network {
            tags.insert(GIVEN.to_owned(), id.clone());
        }
        tags
    }

    fn name(&self, what: &str) -> String {
        format!("{}-{what}", self.owner.cluster_id)
    }

    fn description(&self) -> String {
        format!("of cluster {}", self.owner.cluster_id)
    }
}

#[async_trait]
impl Infrastructure for Metal {
    async fn check(&self, owner: &Owner, spec: &InfrastructureSpec) -> Result<()> {
        let plan = self.plan(spec).await?;
        self.check_plan(&plan).await?;
        let found = self.found(owner).await?;
        plan.agrees(&found)?;
        plan.lets_through(&found)?;
        if let Some(endpoint) = &plan.endpoint
            && found.ips.is_empty()
        {
            self.fixed(owner, &endpoint.host).await?;
        }
        if let Some(firewall) = &plan.firewall
            && found.firewalls.is_empty()
        {
            self.named_firewall(owner, firewall, &plan.partition)
                .await?;
        }
        Ok(())
    }

    async fn ensure(
        &self,
        owner: &Owner,
        sequence: u64,
        spec: &InfrastructureSpec,
    ) -> Result<Progress> {
        let plan = self.plan(spec).await?;
        let mut found = self.found(owner).await?;
        self.free_surplus(owner, &mut found).await?;
        plan.agrees(&found)?;
        plan.lets_through(&found)?;
        let work = Work {
            owner,
            sequence,
            plan: &plan,
        };
        let mut waiting = None;
        for kind in missing(&plan, &found) {
            if let Some(wait) = self.wait(owner, kind) {
                waiting = Some((kind, wait));
                break;
            }
            self.make(&work, kind, &mut found).await?;
        }
        if let (Some(endpoint), Some(ip)) = (&plan.endpoint, found.ips.first()) {
            let ip = self.endpoint_tags(&work, endpoint, ip).await?;
            if let Some(ip) = ip {
                found.ips[0] = ip;
            }
        }
        let mut state = found.state(Some(&plan));
        if let Some(NetworkPlan::Given(id)) = &plan.network {
            state.resources.push(given(owner, sequence, id));
        }
        let mut poll_after =
            unfinished(&state).then(|| self.settings.common.pending_poll_interval());
        if let Some((kind, wait)) = waiting {
            state
                .resources
                .push(perhaps(owner, kind, ResourcePhase::Pending, sequence));
            poll_after = Some(wait);
        }
        state.phase = phase_before_nodes(&state.resources).into();
        Ok(Progress { state, poll_after })
    }

    async fn get(&self, owner: &Owner) -> Result<InfrastructureState> {
        let mut state = self.found(owner).await?.state(None);
        state.phase = phase_before_nodes(&state.resources).into();
        Ok(state)
    }

    async fn list(&self) -> Result<(Vec<Resource>, Vec<Warning>)> {
        self.all().await
    }

    async fn release(&self, owner: &Owner) -> Result<Progress> {
        let found = self.found(owner).await?;
        let pause = self.settings.common.pending_poll_interval();
        if found.is_empty() {
            return Ok(self.gone(owner));
        }
        let mut messages = BTreeMap::new();
        for machine in &found.firewalls {
            if let Some(why) = self.free_firewall(owner, machine).await? {
                messages.insert(machine.id.clone(), why);
            }
        }
        for ip in &found.ips {
            if let Some(why) = self.free_endpoint(owner, ip).await? {
                messages.insert(ip.ipaddress.clone(), why);
            }
        }
        for network in &found.networks {
            if let Some(why) = self.free_private(network).await? {
                messages.insert(network.id.clone(), why);
            }
        }
        let mut state = found.state(None);
        for resource in &mut state.resources {
            resource.phase = ResourcePhase::Releasing.into();
            resource.message = messages.remove(&resource.id).unwrap_or_default();
        }
        Ok(Progress {
            state,
            poll_after: Some(pause),
        })
    }
}

impl Metal {
    async fn make(&self, work: &Work<'_>, kind: &'static str, found: &mut Found) -> Result<()> {
        let key = (work.owner.clone(), kind);
        // Before the call, as it may be cancelled at any point.
        self.recent.lock().insert(key.clone(), Instant::now());
        let outcome = match (
            kind,
            &work.plan.network,
            &work.plan.endpoint,
            &work.plan.firewall,
        ) {
            (NETWORK, Some(NetworkPlan::New(length)), ..) => {
                let made = self.allocate_network(work, *length).await;
                made.map(|network| found.networks.push(network))
            }
            (ENDPOINT, _, Some(endpoint), _) => {
                let made = self.allocate_endpoint(work, endpoint).await;
                made.map(|ip| found.ips.push(ip))
            }
            (FIREWALL, .., Some(firewall)) => {
                let network = match &work.plan.network {
                    Some(NetworkPlan::Given(id)) => id.clone(),
                    _ => found.network_id(),
                };
                let made = self.allocate_firewall(work, firewall, &network).await;
                made.map(|machine| found.firewalls.push(machine))
            }
            _ => Ok(()),
        };
        let is_nothing = |error: &Error| {
            error.class() != Class::Unknown || error.reason() == Reason::RateLimited
        };
        let mut recent = self.recent.lock();
        if outcome.as_ref().is_err_and(is_nothing) {
            recent.remove(&key);
        } else {
            // The API may have started as late as now.
            recent.insert(key, Instant::now());
        }
        drop(recent);
        outcome
    }

    /// How long until the result of an earlier attempt is guaranteed to be visible. `None` if it is now.
    fn wait(&self, owner: &Owner, kind: &'static str) -> Option<Duration> {
        let now = Instant::now();
        let delay = self.settings.common.visibility_delay();
        let mut recent = self.recent.lock();
        recent.retain(|_, since| *since + delay > now);
        let until = recent
            .get(&(owner.clone(), kind))
            .map(|since| *since + delay);
        let until = until.into_iter().chain([self.settled]).max()?;
        until
            .checked_duration_since(now)
            .filter(|wait| !wait.is_zero())
    }

    /// Progress when nothing is listed any more: done once nothing can be invisible either.
    fn gone(&self, owner: &Owner) -> Progress {
        let hidden = [FIREWALL, ENDPOINT, NETWORK];
        let hidden = hidden
            .into_iter()
            .filter_map(|kind| Some((kind, self.wait(owner, kind)?)));
        let (resources, waits): (Vec<Resource>, Vec<Duration>) = hidden
            .map(|(kind, wait)| (perhaps(owner, kind, ResourcePhase::Releasing, 0), wait))
            .unzip();
        Progress {
            state: InfrastructureState {
                resources,
                ..InfrastructureState::default()
            },
            poll_after: waits.into_iter().max(),
        }
    }

    /// Frees duplicates, youngest first. They only occur if the API's visibility delay exceeds the configured one.
    async fn free_surplus(&self, owner: &Owner, found: &mut Found) -> Result<()> {
        while found.firewalls.len() > 1
            && let Some(machine) = found.firewalls.pop()
        {
            self.free_firewall(owner, &machine).await?;
        }
        while found.ips.len() > 1
            && let Some(ip) = found.ips.pop()
        {
            self.free_endpoint(owner, &ip).await?;
        }
        while found.networks.len() > 1
            && let Some(network) = found.networks.pop()
        {
            self.free_private(&network).await?;
        }
        Ok(())
    }

    async fn allocate_network(&self, work: &Work<'_>, length: Option<u32>) -> Result<Network> {
        let mut body = json!({
            "name": work.name("private"),
            "description": work.description(),
            "projectid": self.settings.project,
            "partitionid": work.plan.partition,
            "labels": work.tags(NETWORK),
        });
        if let Some(length) = length {
            body["length"] = json!({ "IPv4": length });
        }
        let network: Network =
            self.api
                .post("/v1/network/allocate", &body)
                .await
                .map_err(|error| {
                    if error.message().contains("could not allocate child prefix") {
                        return Error::new(Reason::NoCapacity, error.message())
                            .with_metadata("failure_domain", &work.plan.partition);
                    }
                    error
                })?;
        if !is_owned(&network.labels, work.owner, NETWORK) {
            return Err(Error::internal("metal-stack answered with another network"));
        }
        Ok(network)
    }

    /// The fixed address, if it is already allocated and ours. `None` if there is none.
    async fn fixed(&self, owner: &Owner, host: &str) -> Result<Option<Ip>> {
        if host.is_empty() {
            return Ok(None);
        }
        let Some(ip) = self.api.ip(host).await? else {
            return Ok(None);
        };
        if ip.projectid == self.settings.project && is_owned(&pairs(&ip.tags), owner, ENDPOINT) {
            return Ok(Some(ip));
        }
        Err(Error::new(
            Reason::NotOwned,
            format!(
                "address {host} is allocated to somebody else and was left alone; free it with metalctl network ip delete, or choose another in spec.endpoint.host"
            ),
        ))
    }

    async fn allocate_endpoint(&self, work: &Work<'_>, endpoint: &EndpointPlan) -> Result<Ip> {
        if let Some(ip) = self.fixed(work.owner, &endpoint.host).await? {
            return Ok(ip);
        }
        let body = json!({
            "name": work.name("api-server"),
            "description": work.description(),
            "projectid": self.settings.project,
            "networkid": work.plan.public,
            "type": "static",
            "tags": tags(&endpoint_tags(work, endpoint)),
        });
        let refused = match self.api.allocate_ip(&endpoint.host, &body).await {
            Ok(ip) => return Ok(ip),
            Err(error) => ip_refusal(&error),
        };
        if refused.reason() == Reason::Conflict
            && let Some(ip) = self.fixed(work.owner, &endpoint.host).await?
        {
            return Ok(ip);
        }
        Err(refused)
    }

    /// Updates the tags after a change of port or targets. Existing machines keep their addresses.
    async fn endpoint_tags(
        &self,
        work: &Work<'_>,
        endpoint: &EndpointPlan,
        ip: &Ip,
    ) -> Result<Option<Ip>> {
        let about = [PORT, TARGETS, BY];
        let mut new = endpoint_tags(work, endpoint);
        new.retain(|key, _| about.contains(&key.as_str()));
        // Others stay as they are: several machines that have the address have tags with the same key.
        let is_other = |tag: &&String| {
            let key = tag.split_once('=').map_or(tag.as_str(), |(key, _)| key);
            !about.contains(&key)
        };
        let mut wanted: Vec<String> = ip.tags.iter().filter(is_other).cloned().collect();
        wanted.extend(tags(&new));
        let as_set = |tags: &[String]| tags.iter().cloned().collect::<BTreeSet<_>>();
        if as_set(&wanted) == as_set(&ip.tags) {
            return Ok(None);
        }
        let body = json!({ "ipaddress": ip.ipaddress, "type": ip.kind, "tags": wanted });
        self.api.post("/v1/ip", &body).await.map(Some)
    }

    /// The named machine, if it is already allocated and our firewall.
    async fn named_firewall(
        &self,
        owner: &Owner,
        firewall: &FirewallPlan,
        partition: &str,
    ) -> Result<Option<Machine>> {
        let Some(id) = &firewall.host else {
            return Ok(None);
        };
        let machine = self.may_take(id).await?;
        if machine.allocation.is_some() {
            return if is_firewall(&machine, &self.settings.project, owner) {
                Ok(Some(machine))
            } else {
                Err(claimed(id))
            };
        }
        fits(&machine, &firewall.size, partition, &FIELDS)?;
        Ok(None)
    }

    async fn allocate_firewall(
        &self,
        work: &Work<'_>,
        firewall: &FirewallPlan,
        network: &str,
    ) -> Result<Machine> {
        let taken = self
            .named_firewall(work.owner, firewall, &work.plan.partition)
            .await?;
        if let Some(machine) = taken {
            return Ok(machine);
        }
        let mut marks = work.tags(FIREWALL);
        if !firewall.rules_hash.is_empty() {
            marks.insert(RULES.to_owned(), firewall.rules_hash.clone());
        }
        let public: Vec<String> = Some(work.plan.public.clone())
            .filter(|public| !public.is_empty())
            .into_iter()
            .collect();
        let request = AllocateMachine {
            name: work.name(FIREWALL),
            hostname: hostname(&work.name(FIREWALL)),
            description: work.description(),
            projectid: self.settings.project.clone(),
            partitionid: work.plan.partition.clone(),
            sizeid: firewall.size.clone(),
            imageid: firewall.image.clone(),
            networks: networks(network, &public),
            tags: tags(&marks),
            ssh_pub_keys: self.settings.default_ssh_keys(),
            uuid: firewall.host.clone(),
            firewall_rules: firewall.rules.clone(),
            ..AllocateMachine::default()
        };
        let is_ours = |machine: &Machine| is_firewall(machine, &self.settings.project, work.owner);
        self.allocate(&request, true, &FIELDS, is_ours).await
    }

    /// Frees a firewall if it is still ours. Returns the reason if it cannot be freed yet.
    async fn free_firewall(&self, owner: &Owner, machine: &Machine) -> Result<Option<String>> {
        let Some(now) = self.api.machine(&machine.id).await? else {
            return Ok(None);
        };
        let uuid = |machine: &Machine| {
            machine
                .allocation
                .as_ref()
                .map(|allocation| allocation.allocationuuid.clone())
        };
        if uuid(&now) != uuid(machine) || !is_firewall(&now, &self.settings.project, owner) {
            return Ok(None);
        }
        if now.is_locked() {
            return Ok(Some(super::machine::locked(&now).message().to_owned()));
        }
        self.api.free_machine(&machine.id).await?;
        Ok(None)
    }

    async fn free_endpoint(&self, owner: &Owner, ip: &Ip) -> Result<Option<String>> {
        let Some(now) = self.api.ip(&ip.ipaddress).await? else {
            return Ok(None);
        };
        if !is_owned(&pairs(&now.tags), owner, ENDPOINT) {
            return Ok(None);
        }
        let users: Vec<&str> = now.machines().collect();
        if !users.is_empty() {
            return Ok(Some(format!(
                "machines still have it: {}",
                users.join(", ")
            )));
        }
        refused(self.api.free_ip(&ip.ipaddress).await)
    }

    /// Network ids are never reused, so there is no need to read it again first.
    async fn free_private(&self, network: &Network) -> Result<Option<String>> {
        let Some(why) = refused(self.api.free_network(&network.id).await)? else {
            return Ok(None);
        };
        let mut query: Value = search(&self.settings.project, "machine");
        query["network_ids"] = json!([network.id]);
        let users = self.api.machines(&query).await?;
        let users: Vec<String> = users
            .into_iter()
            .filter_map(|entry| match entry {
                Entry::Read(machine) => Some(machine.id),
                Entry::Unreadable { id, .. } => id,
            })
            .collect();
        Ok(Some(match users.as_slice() {
            [] => why,
            users => format!("{why}; machines in it: {}", users.join(", ")),
        }))
    }
}

/// The planned kinds that do not exist, in creation order.
fn missing(plan: &Plan, found: &Found) -> Vec<&'static str> {
    let is_new = matches!(plan.network, Some(NetworkPlan::New(_)));
    let kinds = [
        (NETWORK, is_new && found.networks.is_empty()),
        (ENDPOINT, plan.endpoint.is_some() && found.ips.is_empty()),
        (
            FIREWALL,
            plan.firewall.is_some() && found.firewalls.is_empty(),
        ),
    ];
    kinds
        .into_iter()
        .filter(|(_, missing)| *missing)
        .map(|(kind, _)| kind)
        .collect()
}

fn unfinished(state: &InfrastructureState) -> bool {
    let phase = phase_before_nodes(&state.resources);
    // Gone: nothing was asked for that is made.
    !matches!(phase, ResourcePhase::Ready | ResourcePhase::Gone)
}

/// A network provided by the user, reported so that it is visible what is used.
fn given(owner: &Owner, sequence: u64, id: &str) -> Resource {
    Resource {
        id: id.to_owned(),
        message: "given; it is used and never freed".to_owned(),
        ..perhaps(owner, NETWORK, ResourcePhase::Ready, sequence)
    }
}

fn endpoint_tags(work: &Work<'_>, endpoint: &EndpointPlan) -> BTreeMap<String, String> {
    let mut all = work.tags(ENDPOINT);
    all.insert(PORT.to_owned(), endpoint.port.to_string());
    all.insert(TARGETS.to_owned(), endpoint.targets.join(","));
    if endpoint.announced {
        all.insert(BY.to_owned(), ANNOUNCED.to_owned());
    }
    all
}

/// Returns the reason if the API refuses to free something, or the error if the call failed otherwise.
fn refused<T>(outcome: Result<T>) -> Result<Option<String>> {
    match outcome {
        Ok(_) => Ok(None),
        Err(error) => match error.reason() {
            Reason::Conflict | Reason::Exhausted | Reason::Invalid => {
                Ok(Some(error.message().to_owned()))
            }
            _ => Err(error),
        },
    }
}

fn ip_refusal(error: &Error) -> Error {
    let words = error.message();
    if words.contains("no ips left") {
        return Error::new(Reason::NoCapacity, words);
    }
    if words.contains("specific ip not contained") || words.contains("unable to parse specific ip")
    {
        return Error::invalid("spec.endpoint.host", words);
    }
    if words.contains("no network") {
        return Error::invalid("spec.network.public", words);
    }
    error.clone()
}
