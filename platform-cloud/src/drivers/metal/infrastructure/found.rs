//! The existing resources of an owner, identified by tags only.

use std::collections::BTreeMap;

use drover_core::Result;
use drover_proto::platform::v1::{
    Endpoint, InfrastructureOutputs, InfrastructureState, Resource, ResourcePhase, Warning,
};
use prost_types::{ListValue, Struct, Value as ProtoValue, value::Kind};
use serde_json::json;

use super::{
    super::{
        Metal,
        api::{Entry, search, whole},
        documents::{Ip, Machine, Network, pairs},
    },
    ENDPOINT, FIREWALL, NETWORK,
    plan::{NetworkPlan, Plan},
};
use crate::cloud::CLUSTER;
use drover_platform::infrastructure::Owner;

pub(super) const OWNER: &str = "drover.dev/owner";
pub(super) const SEQUENCE: &str = "drover.dev/sequence";
/// Kind of the resource.
pub(super) const RESOURCE: &str = "drover.dev/resource";
/// Id of a network that the user provided.
pub(super) const GIVEN: &str = "drover.dev/network";
pub(super) const PROJECT: &str = "drover.dev/project";
pub(super) const PARTITION: &str = "drover.dev/partition";
pub(super) const PUBLIC: &str = "drover.dev/public-network";
pub(super) const PORT: &str = "drover.dev/endpoint-port";
pub(super) const TARGETS: &str = "drover.dev/endpoint-targets";
/// Who announces the endpoint, if not metal-stack for a machine that has it.
pub(super) const BY: &str = "drover.dev/endpoint-by";
pub(super) const RULES: &str = "drover.dev/firewall-rules";

/// Tag of an address that is attached to a machine.
const MACHINE: &str = "metal.metal-stack.io/machineid";

/// The existing resources of an owner, oldest of each kind first.
#[derive(Default)]
pub(super) struct Found {
    pub networks: Vec<Network>,
    pub ips: Vec<Ip>,
    pub firewalls: Vec<Machine>,
}

/// The tags that identify the owner. Every search includes them.
fn identity(owner: &Owner) -> BTreeMap<String, String> {
    BTreeMap::from([
        (CLUSTER.to_owned(), owner.cluster_id.clone()),
        (OWNER.to_owned(), owner.owner.clone()),
    ])
}

/// Whether the tags identify this resource of this owner.
pub(super) fn is_owned(tags: &BTreeMap<String, String>, owner: &Owner, kind: &str) -> bool {
    identity(owner)
        .iter()
        .all(|(key, value)| tags.get(key) == Some(value))
        && tags.get(RESOURCE).is_some_and(|resource| resource == kind)
}

impl Metal {
    /// The existing resources of an owner.
    pub(super) async fn found(&self, owner: &Owner) -> Result<Found> {
        let project = &self.settings.project;
        let tags: Vec<String> = super::super::documents::tags(&identity(owner));
        let mut found = Found::default();
        let query = json!({ "projectid": project, "labels": identity(owner) });
        found.networks = whole(self.api.networks(&query).await?)?;
        // The results are checked against the filter, as everything returned here may be freed.
        found.networks.retain(|network| {
            network.projectid == *project && is_owned(&network.labels, owner, NETWORK)
        });
        let query = json!({ "projectid": project, "tags": tags });
        found.ips = whole(self.api.ips(&query).await?)?;
        found
            .ips
            .retain(|ip| ip.projectid == *project && is_owned(&pairs(&ip.tags), owner, ENDPOINT));
        let mut query = search(project, "firewall");
        query["tags"] = tags.into();
        found.firewalls = whole(self.api.firewalls(&query).await?)?;
        found
            .firewalls
            .retain(|machine| is_firewall(machine, project, owner));
        found
            .networks
            .sort_by(|a, b| (&a.created, &a.id).cmp(&(&b.created, &b.id)));
        found
            .ips
            .sort_by(|a, b| (&a.created, &a.ipaddress).cmp(&(&b.created, &b.ipaddress)));
        let made = |machine: &Machine| {
            let created = machine
                .allocation
                .as_ref()
                .map(|allocation| allocation.created.clone());
            (created, machine.id.clone())
        };
        found.firewalls.sort_by_key(made);
        Ok(found)
    }

    /// All resources of the managed kinds in the project.
    pub(super) async fn all(&self) -> Result<(Vec<Resource>, Vec<Warning>)> {
        let project = &self.settings.project;
        let mut resources = Vec::new();
        let mut warnings = Vec::new();
        let mut unreadable = |kind: &str, id: Option<String>, message: String| {
            warnings.push(Warning {
                message: format!("this {kind} cannot be read: {message}"),
                id,
                ..Warning::default()
            });
        };
        for entry in self.api.networks(&json!({ "projectid": project })).await? {
            match entry {
                Entry::Read(network) if network.privatesuper || network.underlay => {}
                Entry::Read(network) => resources.push(of_network(&network)),
                Entry::Unreadable { id, message } => unreadable(NETWORK, id, message),
            }
        }
        for entry in self.api.ips(&json!({ "projectid": project })).await? {
            match entry {
                // An ephemeral address is part of its machine and is freed with it.
                Entry::Read(ip) if ip.kind == "ephemeral" && ip.machines().next().is_some() => {}
                Entry::Read(ip) => resources.push(of_ip(&ip)),
                Entry::Unreadable { id, message } => unreadable(ENDPOINT, id, message),
            }
        }
        for entry in self.api.firewalls(&search(project, "firewall")).await? {
            match entry {
                Entry::Read(machine) => resources.push(of_firewall(&machine)),
                Entry::Unreadable { id, message } => unreadable(FIREWALL, id, message),
            }
        }
        Ok((resources, warnings))
    }
}

pub(super) fn is_firewall(machine: &Machine, project: &str, owner: &Owner) -> bool {
    machine
        .allocation
        .as_ref()
        .is_some_and(|allocation| allocation.role == "firewall" && allocation.project == project)
        && is_owned(&pairs(&machine.tags), owner, FIREWALL)
}

impl Ip {
    /// Ids of the machines that it is attached to.
    pub(in crate::drivers::metal) fn machines(&self) -> impl Iterator<Item = &str> {
        self.tags
            .iter()
            .filter_map(|tag| tag.strip_prefix(MACHINE)?.strip_prefix('='))
    }
}

impl Found {
    pub(super) fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.ips.is_empty() && self.firewalls.is_empty()
    }

    /// The value of a tag that all resources of the owner have.
    fn tag(&self, key: &str) -> String {
        let firewall = self.firewalls.first().map(|machine| pairs(&machine.tags));
        let ip = self.ips.first().map(|ip| pairs(&ip.tags));
        let network = self.networks.first().map(|network| network.labels.clone());
        let all = [ip, firewall, network];
        all.iter()
            .flatten()
            .find_map(|tags| tags.get(key).filter(|value| !value.is_empty()))
            .cloned()
            .unwrap_or_default()
    }

    pub(super) fn rules_hash(&self) -> String {
        self.tag(RULES)
    }

    /// Id of the private network. Empty if there is none yet.
    pub(super) fn network_id(&self) -> String {
        match self.networks.first() {
            Some(network) => network.id.clone(),
            None => self.tag(GIVEN),
        }
    }

    /// The state of every resource, and the outputs for nodes.
    pub(super) fn state(&self, plan: Option<&Plan>) -> InfrastructureState {
        let mut resources: Vec<Resource> = self.networks.iter().map(of_network).collect();
        resources.extend(self.ips.iter().map(of_ip));
        resources.extend(self.firewalls.iter().map(of_firewall));
        InfrastructureState {
            phase: ResourcePhase::Unspecified.into(),
            resources,
            outputs: Some(self.outputs(plan)),
        }
    }

    fn outputs(&self, plan: Option<&Plan>) -> InfrastructureOutputs {
        let or = |tag: String, planned: Option<&String>| {
            if tag.is_empty() {
                planned.cloned().unwrap_or_default()
            } else {
                tag
            }
        };
        let given = plan.and_then(|plan| match &plan.network {
            Some(NetworkPlan::Given(id)) => Some(id),
            _ => None,
        });
        let mut properties = BTreeMap::new();
        let mut say = |key: &str, value: String| {
            if !value.is_empty() {
                properties.insert(key.to_owned(), text(value));
            }
        };
        say(
            "project",
            or(self.tag(PROJECT), plan.map(|plan| &plan.project)),
        );
        say(
            "partition",
            or(self.tag(PARTITION), plan.map(|plan| &plan.partition)),
        );
        say(
            "public_network",
            or(self.tag(PUBLIC), plan.map(|plan| &plan.public)),
        );
        if let Some(network) = self.networks.first() {
            let prefixes = network.prefixes.iter().cloned().map(text).collect();
            properties.insert("prefixes".to_owned(), list(prefixes));
        }
        let mut endpoint = None;
        if let Some(ip) = self.ips.first() {
            let tags = pairs(&ip.tags);
            let port = tags
                .get(PORT)
                .and_then(|port| port.parse().ok())
                .unwrap_or_default();
            endpoint = Some(Endpoint {
                host: ip.ipaddress.clone(),
                port,
            });
            let targets = tags.get(TARGETS).map_or("", String::as_str);
            let targets = targets.split(',').filter(|target| !target.is_empty());
            let targets = targets.map(|target| text(target.to_owned())).collect();
            properties.insert("endpoint_targets".to_owned(), list(targets));
            if let Some(by) = tags.get(BY) {
                properties.insert("endpoint_by".to_owned(), text(by.clone()));
            }
        }
        InfrastructureOutputs {
            platform: String::new(),
            endpoint,
            network_id: or(self.network_id(), given),
            properties: Some(Struct {
                fields: properties.into_iter().collect(),
            }),
        }
    }
}

fn text(value: String) -> ProtoValue {
    ProtoValue {
        kind: Some(Kind::StringValue(value)),
    }
}

fn list(values: Vec<ProtoValue>) -> ProtoValue {
    ProtoValue {
        kind: Some(Kind::ListValue(ListValue { values })),
    }
}

fn resource(kind: &str, id: &str, tags: &BTreeMap<String, String>, created: &str) -> Resource {
    let get = |key: &str| tags.get(key).cloned().unwrap_or_default();
    let is_ours = tags.contains_key(OWNER) && get(RESOURCE) == kind;
    let said = |key: &str| if is_ours { get(key) } else { String::new() };
    Resource {
        cluster_id: said(CLUSTER),
        owner: said(OWNER),
        kind: kind.to_owned(),
        name: name(kind).to_owned(),
        id: id.to_owned(),
        phase: ResourcePhase::Ready.into(),
        message: String::new(),
        sequence: said(SEQUENCE).parse().unwrap_or_default(),
        create_time: created.parse().ok(),
    }
}

/// The resource name of a kind, of which each owner has one.
pub(super) fn name(kind: &str) -> &'static str {
    match kind {
        NETWORK => "private",
        ENDPOINT => "control-plane",
        _ => "firewall",
    }
}

pub(super) fn of_network(network: &Network) -> Resource {
    resource(NETWORK, &network.id, &network.labels, &network.created)
}

pub(super) fn of_ip(ip: &Ip) -> Resource {
    let tags = pairs(&ip.tags);
    let machines: Vec<&str> = ip.machines().collect();
    let mut made = resource(ENDPOINT, &ip.ipaddress, &tags, &ip.created);
    if !machines.is_empty() {
        made.message = format!("leads to {}", machines.join(", "));
    } else if tags.contains_key(BY) {
        "announced by the software on the machines".clone_into(&mut made.message);
    } else if !made.owner.is_empty() {
        made.set_phase(ResourcePhase::Pending);
        "leads to no machine; the next one that is made in its groups has it"
            .clone_into(&mut made.message);
    }
    made
}

pub(super) fn of_firewall(machine: &Machine) -> Resource {
    let created = machine
        .allocation
        .as_ref()
        .map_or("", |allocation| &allocation.created);
    let mut made = resource(FIREWALL, &machine.id, &pairs(&machine.tags), created);
    let succeeded = machine
        .allocation
        .as_ref()
        .is_some_and(|allocation| allocation.succeeded);
    let doing = machine.events.log.first();
    let doing = doing.map_or_else(String::new, |event| {
        format!("{}: {}", event.event, event.message)
    });
    if succeeded {
        return made;
    }
    if machine.events.crash_loop {
        made.phase = ResourcePhase::Failed.into();
        made.message = format!("the installation crashes again and again ({doing})");
    } else {
        made.phase = ResourcePhase::Pending.into();
        made.message = format!("being installed ({doing})");
    }
    made
}

/// A resource that may exist although the API does not show it yet.
pub(super) fn perhaps(owner: &Owner, kind: &str, phase: ResourcePhase, sequence: u64) -> Resource {
    Resource {
        cluster_id: owner.cluster_id.clone(),
        owner: owner.owner.clone(),
        kind: kind.to_owned(),
        name: name(kind).to_owned(),
        phase: phase.into(),
        message: "an earlier attempt may have made it; metal-stack is asked again when it surely shows it".to_owned(),
        sequence,
        ..Resource::default()
    }
}
