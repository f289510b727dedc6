//! Validates, allocates, reads and frees machines.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{NodePhase, Warning},
};
use prost_types::Timestamp;
use serde_json::{Value, json};

use super::{
    Metal,
    auth::base64,
    documents::{self, AllocateMachine, AllocateNetwork, pairs, tags},
    hostname, placement_tag,
    properties::{WantedAllocation, host},
};
use crate::cloud::{CloudDeleted, CloudListing, Launch, Machine, REQUEST};

/// Paths of the request fields that errors refer to.
pub(super) struct Fields {
    pub image: &'static str,
    pub size: &'static str,
    pub partition: &'static str,
    pub network: &'static str,
    pub keys: &'static str,
}

const NODE: Fields = Fields {
    image: "group.properties.image",
    size: "group.node_class",
    partition: "group.properties.partition",
    network: "group.properties.privateNetwork",
    keys: "group.properties.sshKeys",
};

impl Metal {
    pub(super) async fn check_machine(&self, launch: &Launch, deep: bool) -> Result<()> {
        let wanted = WantedAllocation::of(launch, &self.settings, &self.info.node_classes)?;
        for slot in &launch.slots {
            if let Some(id) = &slot.host_id {
                host(&format!("slots[{}].host_id", slot.identity.index), id)?;
            }
        }
        if !wanted.size.is_empty() {
            self.check_size(NODE.size, &wanted.size)?;
        }
        if !wanted.partition.is_empty() {
            self.check_partition(NODE.partition, &wanted.partition)?;
        }
        if !deep {
            return Ok(());
        }
        self.check_image(NODE.image, &wanted.image, "machine")
            .await?;
        let mut networks = Vec::new();
        if !wanted.private_network.is_empty() {
            networks.push((NODE.network.to_owned(), &wanted.private_network));
        }
        let others = wanted.networks.iter().enumerate();
        networks.extend(others.map(|(at, id)| (format!("group.properties.networks[{at}]"), id)));
        for (field, id) in networks {
            let Some(network) = self.api.network(id).await? else {
                return Err(Error::invalid(field, format!("there is no network {id:?}")));
            };
            if network.privatesuper || network.underlay {
                return Err(Error::invalid(field, format!("{id:?} is not for machines")));
            }
        }
        for slot in &launch.slots {
            if let Some(id) = &slot.host_id {
                self.named(id, &wanted.size, &wanted.partition, launch, &NODE)
                    .await?;
            }
        }
        Ok(())
    }

    pub(super) fn check_size(&self, field: &str, size: &str) -> Result<()> {
        let classes = &self.info.node_classes;
        if classes.is_empty() || classes.iter().any(|class| class.name == size) {
            return Ok(());
        }
        let known: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
        let text = format!("there is no size {size:?}; there are: {}", known.join(", "));
        Err(Error::new(Reason::NodeClassNotFound, text.clone()).with_violation(field, text))
    }

    pub(super) fn check_partition(&self, field: &str, partition: &str) -> Result<()> {
        let domains = &self.info.failure_domains;
        if domains.iter().any(|domain| domain.name == partition) {
            return Ok(());
        }
        let known: Vec<&str> = domains.iter().map(|domain| domain.name.as_str()).collect();
        Err(Error::invalid(
            field,
            format!(
                "there is no partition {partition:?}; there are: {}",
                known.join(", ")
            ),
        ))
    }

    pub(super) async fn check_image(&self, field: &str, image: &str, feature: &str) -> Result<()> {
        let Some(found) = self.api.image(image).await? else {
            return Err(Error::invalid(
                field,
                format!("there is no image {image:?}; `metalctl image list` shows them"),
            ));
        };
        if found.features.iter().any(|known| known == feature) {
            return Ok(());
        }
        Err(Error::invalid(
            field,
            format!(
                "image {image:?} is for {}, not for a {feature}",
                found.features.join(", ")
            ),
        ))
    }

    /// The named machine, if it is free and matches the request.
    ///
    /// # Errors
    /// `HostNotFound`, `HostClaimed`; `Invalid` if size or partition differ from the request.
    async fn named(
        &self,
        id: &str,
        size: &str,
        partition: &str,
        launch: &Launch,
        fields: &Fields,
    ) -> Result<Option<documents::Machine>> {
        let machine = self.may_take(id).await?;
        if machine.allocation.is_some() {
            return if is_ours(&machine, launch) {
                Ok(Some(machine))
            } else {
                Err(claimed(id))
            };
        }
        fits(&machine, size, partition, fields)?;
        Ok(None)
    }

    /// The machine with this id, if it exists and is not locked.
    pub(super) async fn may_take(&self, id: &str) -> Result<documents::Machine> {
        let uuid = host("host", id)?;
        let Some(machine) = self.api.machine(&uuid).await? else {
            return Err(Error::new(
                Reason::HostNotFound,
                format!("metal-stack has no machine {uuid}"),
            )
            .with_resource("host", uuid));
        };
        if machine.allocation.is_none() && machine.is_locked() {
            return Err(Error::new(
                Reason::HostClaimed,
                format!(
                    "machine {uuid} is locked ({}); unlock it with metalctl machine unlock",
                    machine.state.description
                ),
            )
            .with_resource("host", uuid));
        }
        if machine.allocation.is_none() && machine.liveliness == "Dead" {
            return Err(Error::new(
                Reason::NoCapacity,
                format!("machine {uuid} is dead: metal-stack has not heard of it for a while"),
            )
            .with_resource("host", uuid));
        }
        Ok(machine)
    }

    pub(super) async fn allocate_machine(&self, launch: &Launch) -> Result<Machine> {
        let Some(slot) = launch.slots.first() else {
            return Err(Error::internal("a launch without slots"));
        };
        let mut wanted = WantedAllocation::of(launch, &self.settings, &self.info.node_classes)?;
        if wanted.private_network.is_empty() {
            return Err(Error::new(
                Reason::Precondition,
                "the infrastructure of the cluster has no network on this platform",
            ));
        }
        let _inheriting = self.inherit(&mut wanted, launch, slot).await?;
        let mut request = AllocateMachine {
            name: slot.identity.id.clone(),
            hostname: hostname(&slot.identity.id),
            description: format!(
                "{} of cluster {}",
                slot.identity.name, slot.identity.cluster_id
            ),
            projectid: self.settings.project.clone(),
            partitionid: wanted.partition.clone(),
            sizeid: wanted.size.clone(),
            imageid: wanted.image.clone(),
            networks: networks(&wanted.private_network, &wanted.networks),
            ips: wanted.ips.clone(),
            ssh_pub_keys: wanted.ssh_keys.clone(),
            user_data: launch.user_data.as_ref().map(|data| base64(data)),
            filesystemlayoutid: wanted.filesystem_layout.clone(),
            ..AllocateMachine::default()
        };
        let placement = placement_tag(&slot.identity);
        let mut labels = wanted.tags.clone();
        labels.extend(launch.tags.clone());
        request.tags = tags(&labels);
        request.tags.push(placement.clone());
        request.placement_tags = vec![placement];
        if let Some(id) = &slot.host_id {
            let taken = self
                .named(id, &wanted.size, &wanted.partition, launch, &NODE)
                .await?;
            if let Some(machine) = taken {
                return self.shown(&machine);
            }
            request.uuid = Some(host("host", id)?);
        }
        let machine = self
            .allocate(&request, false, &NODE, |machine| is_ours(machine, launch))
            .await?;
        self.shown(&machine)
    }

    /// Allocates a machine or firewall, and verifies that it is the requested one.
    pub(super) async fn allocate(
        &self,
        request: &AllocateMachine,
        firewall: bool,
        fields: &Fields,
        is_ours: impl Fn(&documents::Machine) -> bool + Send,
    ) -> Result<documents::Machine> {
        let machine = match self.api.allocate(request, firewall).await {
            Ok(machine) => machine,
            Err(error) => {
                let error = refusal(&error, &request.partitionid, fields);
                // Another client was faster, or an earlier attempt of ours.
                let (Reason::HostClaimed, Some(id)) = (error.reason(), &request.uuid) else {
                    return Err(error);
                };
                match self.api.machine(id).await? {
                    Some(machine) if is_ours(&machine) => machine,
                    _ => return Err(claimed(id)),
                }
            }
        };
        let is_named = request.uuid.as_ref().is_none_or(|id| *id == machine.id);
        if is_named && is_ours(&machine) {
            return Ok(machine);
        }
        Err(Error::internal(format!(
            "metal-stack answered with machine {}, which is not what was asked for",
            machine.id
        )))
    }

    fn shown(&self, machine: &documents::Machine) -> Result<Machine> {
        self.show(machine).ok_or_else(|| {
            Error::internal("metal-stack answered with a machine that is not allocated")
        })
    }

    /// The machine with this id. Not subject to the visibility delay.
    pub(super) async fn one(&self, id: &str) -> Result<CloudListing> {
        // Ids are UUIDs; anything else could form another path of the API.
        let machine = match uuid::Uuid::try_parse(id) {
            Ok(_) => self.api.machine(id).await?,
            Err(_) => None,
        };
        Ok(CloudListing {
            machines: machine
                .and_then(|machine| self.show(&machine))
                .into_iter()
                .collect(),
            ..CloudListing::default()
        })
    }

    /// Converts a machine. `None` if it is not allocated as a machine of this project.
    pub(super) fn show(&self, machine: &documents::Machine) -> Option<Machine> {
        let allocation = machine.allocation.as_ref()?;
        if allocation.project != self.settings.project || allocation.role != "machine" {
            return None;
        }
        let (phase, ready, message) = phase(machine, allocation);
        let mut labels = pairs(&machine.tags);
        // The API's own labels describe the hardware and differ between machines.
        labels.retain(|key, _| !key.starts_with("machine.metal-stack.io/"));
        Some(Machine {
            id: machine.id.clone(),
            provider_id: self
                .settings
                .provider_id
                .of(machine.partition(), &machine.id),
            name: allocation.name.clone(),
            tags: labels,
            launch_index: None,
            phase,
            ready,
            message,
            maintenance: None,
            failure_domain: machine.partition().to_owned(),
            node_class: machine.size().to_owned(),
            host_id: Some(machine.id.clone()),
            addresses: addresses(allocation),
            create_time: allocation.created.parse::<Timestamp>().ok(),
            location: allocation.allocationuuid.clone(),
        })
    }

    pub(super) async fn free_machine(&self, machine: &Machine) -> Result<CloudDeleted> {
        let is_same = |allocation: &documents::Allocation| {
            allocation.allocationuuid == machine.location
                && allocation.project == self.settings.project
        };
        match self.api.machine(&machine.id).await? {
            // Freed outside of Drover, and possibly allocated by someone else by now.
            Some(found) if found.allocation.as_ref().is_none_or(|now| !is_same(now)) => {
                return Ok(CloudDeleted::Gone);
            }
            Some(found) if found.is_locked() => return Err(locked(&found)),
            Some(_) => {}
            None => return Ok(CloudDeleted::Gone),
        }
        Ok(match self.api.free_machine(&machine.id).await? {
            Some(_) => CloudDeleted::Started,
            None => CloudDeleted::Gone,
        })
    }

    pub(super) async fn update_tags(
        &self,
        machine: &Machine,
        set: &BTreeMap<String, String>,
        remove: &[String],
    ) -> Result<()> {
        let found = self.api.machine(&machine.id).await?;
        let Some((found, allocation)) = found.as_ref().and_then(|found| {
            let allocation = found.allocation.as_ref()?;
            (allocation.allocationuuid == machine.location).then_some((found, allocation))
        }) else {
            return Err(Error::not_found("node", &machine.id));
        };
        let mut labels = pairs(&found.tags);
        labels.extend(set.clone());
        labels.retain(|key, _| !remove.contains(key));
        let body = json!({
            "id": machine.id,
            "description": allocation.description,
            "tags": tags(&labels),
        });
        self.api.post::<Value>("/v1/machine", &body).await?;
        Ok(())
    }
}

/// Whether it was allocated by this launch.
fn is_ours(machine: &documents::Machine, launch: &Launch) -> bool {
    let Some(slot) = launch.slots.first() else {
        return false;
    };
    let have = pairs(&machine.tags);
    let is_named = |allocation: &documents::Allocation| {
        allocation.name == slot.identity.id && allocation.role == "machine"
    };
    machine.allocation.as_ref().is_some_and(is_named)
        && have.contains_key(REQUEST)
        && launch
            .tags
            .iter()
            .filter(|(key, _)| key.starts_with(crate::cloud::PREFIX))
            .all(|(key, value)| have.get(key) == Some(value))
}

/// Whether a machine has the requested properties.
pub(super) fn fits(
    machine: &documents::Machine,
    size: &str,
    partition: &str,
    fields: &Fields,
) -> Result<()> {
    if !size.is_empty() && machine.size() != size {
        return Err(Error::invalid(
            fields.size,
            format!(
                "machine {} is of size {}, not {size}",
                machine.id,
                machine.size()
            ),
        ));
    }
    if !partition.is_empty() && machine.partition() != partition {
        return Err(Error::invalid(
            fields.partition,
            format!(
                "machine {} is in partition {}, not in {partition}",
                machine.id,
                machine.partition()
            ),
        ));
    }
    Ok(())
}

pub(super) fn claimed(id: &str) -> Error {
    Error::new(
        Reason::HostClaimed,
        format!("machine {id} is allocated to somebody else; it was left alone"),
    )
    .with_resource("host", id)
}

pub(super) fn locked(machine: &documents::Machine) -> Error {
    Error::new(
        Reason::Protected,
        format!(
            "machine {} is locked ({}) and cannot be freed; unlock it with metalctl machine unlock",
            machine.id, machine.state.description
        ),
    )
}

pub(super) fn networks(private: &str, others: &[String]) -> Vec<AllocateNetwork> {
    std::iter::once(private)
        .chain(others.iter().map(String::as_str))
        .map(|id| AllocateNetwork {
            networkid: id.to_owned(),
            autoacquire: true,
        })
        .collect()
}

pub(super) fn warning(id: Option<String>, message: &str) -> Warning {
    Warning {
        message: format!("metal-stack's answer about this machine cannot be read: {message}"),
        id,
        ..Warning::default()
    }
}

/// Maps the refusal of an allocation. The API rolls back partial allocations, so an error in its own format guarantees
/// that nothing exists; the outcome of any other error is unknown.
fn refusal(error: &Error, partition: &str, fields: &Fields) -> Error {
    let known = [
        Reason::Invalid,
        Reason::NotFound,
        Reason::Conflict,
        Reason::Exhausted,
    ];
    if !known.contains(&error.reason()) {
        return error.clone();
    }
    let words = error.message();
    let says = |part: &str| words.contains(part);
    let wrong = |field: &str| Error::invalid(field, words);
    if says("no machine available") {
        return Error::new(Reason::NoCapacity, words).with_metadata("failure_domain", partition);
    }
    if says("quota") {
        return Error::new(Reason::QuotaExceeded, words);
    }
    if says("no ips left") {
        return Error::new(Reason::NoCapacity, words);
    }
    if says("already allocated") || says("machine is locked") {
        return Error::new(Reason::HostClaimed, words);
    }
    if says("no machine found with uuid") {
        return Error::new(Reason::HostNotFound, words);
    }
    if says("size:") && says("not found") {
        return Error::new(Reason::NodeClassNotFound, words).with_violation(fields.size, words);
    }
    if says("partition:") && says("not found") {
        return wrong(fields.partition);
    }
    if says("no image") || says("given image") || says("image is not") {
        return wrong(fields.image);
    }
    if says("SSH key") {
        return wrong(fields.keys);
    }
    if says("unable to gather networks") || says("network ids") {
        return wrong(fields.network);
    }
    error.clone()
}

/// Phase, readiness and reason of a machine.
fn phase(
    machine: &documents::Machine,
    allocation: &documents::Allocation,
) -> (NodePhase, Option<bool>, String) {
    let events = &machine.events.log;
    let last = events.first();
    let phoned = events.iter().any(|event| event.event == "Phoned Home");
    let doing = last.map_or_else(String::new, |event| {
        format!(" ({}: {})", event.event, event.message)
    });
    if machine.events.crash_loop && !allocation.succeeded {
        let text = format!("the installation crashes again and again{doing}");
        return (NodePhase::Failed, Some(false), text);
    }
    if !allocation.succeeded {
        return (NodePhase::Pending, None, format!("being installed{doing}"));
    }
    let power = machine
        .ipmi
        .as_ref()
        .map_or("", |ipmi| ipmi.powerstate.as_str());
    if power.eq_ignore_ascii_case("off") {
        let text = "powered off; metalctl machine power on starts it".to_owned();
        return (NodePhase::Stopped, Some(false), text);
    }
    let starts = ["Installing", "Booting New Kernel"];
    if !phoned && last.is_some_and(|event| starts.contains(&event.event.as_str())) {
        let text = format!("installed, and has not phoned home yet{doing}");
        return (NodePhase::Pending, None, text);
    }
    if machine.events.crash_loop {
        return (
            NodePhase::Running,
            Some(false),
            format!("crashes again and again{doing}"),
        );
    }
    if machine.liveliness == "Dead" {
        let text = format!("metal-stack has not heard of it for a while{doing}, power {power}");
        return (NodePhase::Running, Some(false), text);
    }
    (NodePhase::Running, None, String::new())
}

fn addresses(allocation: &documents::Allocation) -> Vec<Address> {
    let address = |kind: AddressType, value: &str| Address {
        r#type: kind.into(),
        value: value.to_owned(),
        interface: String::new(),
    };
    let of_networks = allocation
        .networks
        .iter()
        .filter(|network| !network.underlay)
        .flat_map(|network| {
            let kind = if network.private {
                AddressType::InternalIp
            } else {
                AddressType::ExternalIp
            };
            network.ips.iter().map(move |ip| (kind, ip))
        });
    let mut all: Vec<Address> = of_networks.map(|(kind, ip)| address(kind, ip)).collect();
    // Private addresses first, independently of the API's order.
    all.sort_by_key(|address| address.r#type);
    if !allocation.hostname.is_empty() {
        all.push(address(AddressType::Hostname, &allocation.hostname));
        all.push(address(AddressType::InternalDns, &allocation.hostname));
    }
    all
}
