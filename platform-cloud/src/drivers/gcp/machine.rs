//! Converts between Compute Engine instances and machines.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{NodeMaintenance, NodeMaintenanceKind, NodePhase},
};
use google_cloud_compute_v1::model::{
    AccessConfig, AttachedDisk, AttachedDiskInitializeParams, Instance, Metadata, NetworkInterface,
    Scheduling, ServiceAccount, Tags, UpcomingMaintenance, instance::Status, metadata::Items,
    upcoming_maintenance::MaintenanceStatus,
};
use prost_types::Timestamp;

use super::{
    Settings, labels, name,
    properties::{CapacityType, Properties},
    resolve, user_data,
};
use crate::cloud::{Launch, LaunchSlot, Machine};

/// Maximum size of a metadata value in bytes
/// (<https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations>).
pub(super) const MAX_USER_DATA: u32 = 256 << 10;
/// The fields of an instance that are read here, and the fingerprint that a change of labels needs. Others are not asked
/// for: metadata, with the user data, would be most of every list.
pub(super) const FIELDS: &[&str] = &[
    "creationTimestamp",
    "hostname",
    "id",
    "labelFingerprint",
    "labels",
    "machineType",
    "name",
    "networkInterfaces",
    "resourceStatus.upcomingMaintenance",
    "scheduling",
    "status",
    "statusMessage",
];
/// Maximum number of labels of a machine.
const MAX_LABELS: usize = 64;

/// Builds the body of an insert.
///
/// # Errors
/// `Invalid`, `NodeClassNotFound` or `Precondition` if the launch cannot be expressed.
pub(super) fn body(
    settings: &Settings,
    launch: &Launch,
    slot: &LaunchSlot,
    zone: &str,
) -> Result<Instance> {
    let properties = Properties::read(&launch.properties)?;
    let machine_type = resolve::machine_type(settings, &launch.node_class, &properties)?;
    let labels = labels::encode(&launch.tags);
    if labels.len() > MAX_LABELS {
        return Err(Error::new(
            Reason::Precondition,
            format!(
                "the machine would need {} labels and Compute Engine allows {MAX_LABELS}; the cluster has too many or too \
                 long labels",
                labels.len()
            ),
        ));
    }
    let disk_type = properties
        .disk_type
        .as_deref()
        .unwrap_or(&settings.disk_type);
    let mut disk = AttachedDiskInitializeParams::new()
        .set_source_image(resolve::image(settings, &properties)?)
        .set_disk_type(format!("zones/{zone}/diskTypes/{disk_type}"))
        .set_labels(labels.clone());
    if let Some(size) = properties.disk_size.or(settings.disk_size) {
        disk = disk.set_disk_size_gb(i64::from(size));
    }
    let mut tags = settings.network_tags.clone();
    tags.extend(properties.tags.clone().unwrap_or_default());
    tags.sort();
    tags.dedup();
    let mut instance = Instance::new()
        .set_name(name::of_slot(&slot.identity))
        .set_machine_type(format!("zones/{zone}/machineTypes/{machine_type}"))
        .set_labels(labels)
        .set_disks([AttachedDisk::new()
            .set_boot(true)
            .set_auto_delete(true)
            .set_initialize_params(disk)])
        .set_network_interfaces([interface(settings, &properties)])
        .set_metadata(metadata(settings, &properties, launch)?)
        .set_scheduling(scheduling(properties.capacity_type));
    if !tags.is_empty() {
        instance = instance.set_tags(Tags::new().set_items(tags));
    }
    if let Some(email) = properties
        .service_account
        .as_ref()
        .or(settings.service_account.as_ref())
    {
        let account = ServiceAccount::new()
            .set_email(email)
            .set_scopes(settings.scopes.clone());
        instance = instance.set_service_accounts([account]);
    }
    Ok(instance)
}

fn interface(settings: &Settings, properties: &Properties) -> NetworkInterface {
    let subnetwork = properties
        .subnetwork
        .as_ref()
        .or(settings.subnetwork.as_ref());
    let mut interface = NetworkInterface::new();
    // A subnetwork implies its network, which may belong to another project.
    if properties.network.is_some() || subnetwork.is_none() {
        let network = properties.network.as_deref().unwrap_or(&settings.network);
        interface = interface.set_network(resolve::link(settings, "networks", network));
    }
    if let Some(subnetwork) = subnetwork {
        interface = interface.set_subnetwork(resolve::link(settings, "subnetworks", subnetwork));
    }
    if properties
        .external_address
        .unwrap_or(settings.external_address)
    {
        interface = interface.set_access_configs([AccessConfig::new().set_name("External NAT")]);
    }
    interface
}

fn metadata(settings: &Settings, properties: &Properties, launch: &Launch) -> Result<Metadata> {
    let item = |key: &str, value: &str| Items::new().set_key(key).set_value(value);
    let mut items = Vec::new();
    if let Some(keys) = resolve::ssh_keys(settings, properties)? {
        items.push(item("ssh-keys", &keys));
    }
    if let Some(data) = &launch.user_data {
        if data.len() > MAX_USER_DATA as usize {
            return Err(Error::invalid(
                "bootstrap",
                format!(
                    "the user data is {} bytes large and Compute Engine takes {MAX_USER_DATA} at most. Let it fetch the rest",
                    data.len()
                ),
            ));
        }
        let text = std::str::from_utf8(data).map_err(|_| {
            Error::invalid(
                "bootstrap",
                "the user data is not UTF-8 text, and the metadata of Compute Engine holds text only",
            )
        })?;
        let image = resolve::image(settings, properties)?;
        let key = user_data::key(&image, &settings.project, text, properties.user_data_key)?;
        items.push(item(key.as_str(), text));
    }
    Ok(Metadata::new().set_items(items))
}

fn scheduling(capacity: CapacityType) -> Scheduling {
    let scheduling = Scheduling::new();
    match capacity {
        CapacityType::OnDemand => scheduling,
        CapacityType::Spot => scheduling
            .set_provisioning_model("SPOT")
            .set_instance_termination_action("STOP")
            .set_automatic_restart(false)
            .set_on_host_maintenance("TERMINATE"),
        CapacityType::Preemptible => scheduling
            .set_preemptible(true)
            .set_automatic_restart(false)
            .set_on_host_maintenance("TERMINATE"),
    }
}

/// The machine of a completed insert. Remaining fields are filled when it is read.
pub(super) fn made(
    settings: &Settings,
    launch: &Launch,
    body: &Instance,
    zone: &str,
    id: u64,
) -> Machine {
    let name = body.name.clone().unwrap_or_default();
    Machine {
        id: id.to_string(),
        provider_id: provider_id(settings, zone, &name),
        name,
        tags: launch.tags.clone(),
        phase: NodePhase::Pending,
        failure_domain: zone.to_owned(),
        node_class: last(body.machine_type.as_deref()),
        location: zone.to_owned(),
        ..Machine::default()
    }
}

/// Converts an instance. `None` if it has no id, since it cannot be addressed then.
pub(super) fn read(settings: &Settings, zone: &str, instance: &Instance) -> Option<Machine> {
    let id = instance.id.filter(|id| *id != 0)?;
    let name = instance.name.clone().unwrap_or_default();
    let (phase, ready) = phase(instance.status.as_ref());
    Some(Machine {
        id: id.to_string(),
        provider_id: provider_id(settings, zone, &name),
        tags: labels::decode(&instance.labels),
        phase,
        ready,
        message: message(instance),
        maintenance: maintenance(instance),
        failure_domain: zone.to_owned(),
        node_class: last(instance.machine_type.as_deref()),
        addresses: addresses(settings, zone, &name, instance),
        create_time: instance.creation_timestamp.as_deref().and_then(time),
        location: zone.to_owned(),
        name,
        ..Machine::default()
    })
}

fn provider_id(settings: &Settings, zone: &str, name: &str) -> String {
    format!("gce://{}/{zone}/{name}", settings.project)
}

fn phase(status: Option<&Status>) -> (NodePhase, Option<bool>) {
    let Some(status) = status else {
        return (NodePhase::Unknown, None);
    };
    match status {
        Status::Pending | Status::Provisioning | Status::Staging => (NodePhase::Pending, None),
        Status::Running => (NodePhase::Running, None),
        Status::Repairing => (NodePhase::Running, Some(false)),
        // Being deleted or being stopped; only the next state shows which.
        Status::Stopping | Status::PendingStop | Status::Deprovisioning => {
            (NodePhase::Deprovisioning, None)
        }
        // Compute Engine calls a stopped machine TERMINATED; it still exists.
        Status::Terminated | Status::Stopped | Status::Suspending | Status::Suspended => {
            (NodePhase::Stopped, None)
        }
        _ => (NodePhase::Unknown, None),
    }
}

fn message(instance: &Instance) -> String {
    let said = instance.status_message.clone().unwrap_or_default();
    let spot = instance.scheduling.as_ref().is_some_and(|scheduling| {
        scheduling.preemptible == Some(true)
            || scheduling
                .provisioning_model
                .as_ref()
                .and_then(|model| model.name())
                == Some("SPOT")
    });
    match instance.status.as_ref() {
        Some(Status::Terminated | Status::Stopped) if said.is_empty() && spot => {
            "stopped, perhaps by Google: it is a spot machine".to_owned()
        }
        Some(Status::Repairing) if said.is_empty() => "Google is repairing it".to_owned(),
        _ => said,
    }
}

/// What Google has announced for a running machine
/// (<https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event>).
fn maintenance(instance: &Instance) -> Option<NodeMaintenance> {
    if instance.status != Some(Status::Running) {
        return None;
    }
    let status = instance.resource_status.as_ref()?;
    let upcoming = status.upcoming_maintenance.as_ref()?;
    let time = |said: &Option<String>| said.as_ref()?.parse::<Timestamp>().ok();
    Some(NodeMaintenance {
        kind: if stays_stopped(instance) {
            NodeMaintenanceKind::Stop
        } else {
            NodeMaintenanceKind::Restart
        }
        .into(),
        start_time: time(&upcoming.window_start_time),
        end_time: time(&upcoming.window_end_time),
        message: announcement(upcoming),
    })
}

/// Whether a machine is stopped by maintenance and not started again
/// (<https://cloud.google.com/compute/docs/instances/host-maintenance-overview>): spot machines are.
fn stays_stopped(instance: &Instance) -> bool {
    instance.scheduling.as_ref().is_some_and(|scheduling| {
        scheduling.automatic_restart == Some(false)
            && scheduling
                .on_host_maintenance
                .as_ref()
                .and_then(|policy| policy.name())
                == Some("TERMINATE")
    })
}

fn announcement(upcoming: &UpcomingMaintenance) -> String {
    let is_ongoing = upcoming.maintenance_status == Some(MaintenanceStatus::Ongoing);
    let mut said = if is_ongoing {
        "Google maintains its host".to_owned()
    } else {
        "Google has scheduled maintenance".to_owned()
    };
    let begins = upcoming.window_start_time.as_ref();
    if let Some(begins) = begins.filter(|_| !is_ongoing) {
        said.push_str(&format!(" from {begins}"));
    }
    if let Some(ends) = &upcoming.window_end_time {
        let until = if is_ongoing { "until" } else { "to" };
        said.push_str(&format!(" {until} {ends}"));
    }
    said
}

fn addresses(settings: &Settings, zone: &str, name: &str, instance: &Instance) -> Vec<Address> {
    let mut addresses = Vec::new();
    let mut add = |kind: AddressType, value: Option<&String>, interface: &str| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            addresses.push(Address {
                r#type: kind.into(),
                value: value.clone(),
                interface: interface.to_owned(),
            });
        }
    };
    for interface in &instance.network_interfaces {
        let at = interface.name.as_deref().unwrap_or_default();
        add(AddressType::InternalIp, interface.network_ip.as_ref(), at);
        add(
            AddressType::InternalIp,
            interface.ipv_6_address.as_ref(),
            at,
        );
        for config in &interface.access_configs {
            add(AddressType::ExternalIp, config.nat_ip.as_ref(), at);
            add(
                AddressType::ExternalDns,
                config.public_ptr_domain_name.as_ref(),
                at,
            );
        }
        for config in &interface.ipv_6_access_configs {
            add(AddressType::ExternalIp, config.external_ipv_6.as_ref(), at);
        }
    }
    if !addresses.is_empty() {
        let project = match settings.project.split_once(':') {
            Some((domain, project)) => format!("{project}.{domain}"),
            None => settings.project.clone(),
        };
        let names = [
            (
                AddressType::InternalDns,
                format!("{name}.{zone}.c.{project}.internal"),
            ),
            (
                AddressType::Hostname,
                instance.hostname.clone().unwrap_or_else(|| name.to_owned()),
            ),
        ];
        addresses.extend(names.map(|(kind, value)| Address {
            r#type: kind.into(),
            value,
            interface: String::new(),
        }));
    }
    addresses
}

/// Parses `2026-11-21T03:04:05.123-08:00`.
fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// The last segment of a path.
pub(super) fn last(path: Option<&str>) -> String {
    path.and_then(|path| path.rsplit('/').next())
        .unwrap_or_default()
        .to_owned()
}

/// Whether a machine belongs to this launch.
pub(super) fn is_of(machine: &Machine, tags: &BTreeMap<String, String>) -> bool {
    let mut own = tags
        .iter()
        .filter(|(key, _)| key.starts_with(crate::cloud::PREFIX));
    own.all(|(key, value)| machine.tags.get(key) == Some(value))
}
