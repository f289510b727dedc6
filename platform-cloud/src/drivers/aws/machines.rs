//! Converts EC2 instances to machines.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_ec2::{
    primitives::DateTime,
    types::{Instance, InstanceStateName, Tag},
};
use drover_core::{Error, Result};
use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::NodePhase,
};
use futures::future;
use prost_types::Timestamp;

use super::{NAME, api::Api, catalogue::filter, status::Checks};
use crate::cloud::{Filter, Machine, PREFIX, each_once};

/// Page size: the maximum of EC2.
const PAGE: i32 = 1000;

/// Maximum number of ids that `DescribeInstanceStatus` accepts.
const NAMED: usize = 100;
/// Maximum number of values of a filter
/// (<https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html>).
pub(super) const FILTER_VALUES: usize = 200;

/// Every instance that matches the filter, without terminated foreign ones.
pub(super) async fn list(api: &Api, which: &Filter) -> Result<Vec<Machine>> {
    let mut filters = Vec::new();
    match which {
        Filter::All => {}
        Filter::Cluster(cluster) => filters.push(filter(&tag("cluster"), [escape(cluster)])),
        Filter::Request(request_id) => {
            filters.push(filter(&tag("request"), [escape(request_id)]));
        }
        Filter::Id(id) => filters.push(filter("instance-id", [escape(id)])),
    }
    described(api, filters).await
}

async fn described(api: &Api, filters: Vec<aws_sdk_ec2::types::Filter>) -> Result<Vec<Machine>> {
    let filters = (!filters.is_empty()).then_some(filters);
    let mut machines = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let page = api
            .send("DescribeInstances", |ec2| {
                ec2.describe_instances()
                    .set_filters(filters.clone())
                    .max_results(PAGE)
                    .set_next_token(token.clone())
                    .send()
            })
            .await?;
        let instances = page
            .reservations()
            .iter()
            .flat_map(aws_sdk_ec2::types::Reservation::instances);
        machines.extend(instances.filter_map(|instance| machine(api, instance)));
        match page.next_token.filter(|next| !next.is_empty()) {
            // A repeated token would loop forever.
            Some(next) if token.as_ref() == Some(&next) => {
                return Err(Error::unavailable(
                    "DescribeInstances: the API repeats a page; the list is not complete",
                ));
            }
            Some(next) => token = Some(next),
            None => return Ok(each_once(machines, |machine| Some(machine.id.clone()))),
        }
    }
}

/// The instances with these ids, without those that EC2 does not know: unlike ids, a filter may name some of these.
pub(super) async fn by_ids(
    api: &Api,
    ids: Vec<String>,
) -> HashMap<String, Result<Option<Machine>>> {
    let is_id = |id: &&String| is_instance_id(id);
    let asked: Vec<&String> = ids.iter().filter(is_id).collect();
    let found = if asked.is_empty() {
        Ok(Vec::new())
    } else {
        described(api, vec![filter("instance-id", asked)]).await
    };
    let of = |id: &str| match &found {
        Ok(machines) => Ok(machines.iter().find(|machine| machine.id == id).cloned()),
        Err(error) => Err(error.clone()),
    };
    ids.iter().map(|id| (id.clone(), of(id))).collect()
}

/// The current phases of these machines. `DescribeInstanceStatus` returns about a tenth of the data of a full list.
/// Instances that EC2 does not know are left out.
pub(super) async fn look(api: &Api, machines: &[Machine]) -> Result<Vec<Machine>> {
    let answers = machines.chunks(NAMED).map(|some| phases(api, some));
    let answers = future::try_join_all(answers).await?;
    let seen = machines.chunks(NAMED).zip(answers);
    Ok(seen
        .flat_map(|(some, phases)| {
            some.iter().filter_map(move |machine| {
                let (phase, checks) = phases.get(&machine.id)?;
                let mut machine = machine.clone();
                if machine.phase != *phase {
                    machine.phase = *phase;
                    machine.message.clear();
                    machine.maintenance = None;
                }
                checks.show(&mut machine);
                Some(machine)
            })
        })
        .collect())
}

async fn phases(api: &Api, machines: &[Machine]) -> Result<HashMap<String, (NodePhase, Checks)>> {
    let ids: Vec<String> = machines.iter().map(|machine| machine.id.clone()).collect();
    let answer = api
        .send("DescribeInstanceStatus", |ec2| {
            ec2.describe_instance_status()
                .include_all_instances(true)
                .set_instance_ids(Some(ids.clone()))
                .send()
        })
        .await?;
    let statuses = answer.instance_statuses.unwrap_or_default();
    Ok(statuses
        .into_iter()
        .filter_map(|status| {
            let checks = Checks::of(&status);
            let state = status.instance_state.and_then(|state| state.name);
            Some((status.instance_id?, (phase(state.as_ref()), checks)))
        })
        .collect())
}

/// Whether this is syntactically an instance id. EC2 rejects the whole call for a single malformed one.
pub(super) fn is_instance_id(id: &str) -> bool {
    id.strip_prefix("i-")
        .is_some_and(|hex| !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn tag(name: &str) -> String {
    format!("tag:{PREFIX}{name}")
}

/// Escapes a filter value so that `*` and `?` are literal.
pub(super) fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '*' | '?' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Converts an instance. `None` if it is foreign and terminated, or may be: terminated instances lose their tags one by one
/// (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/terminating-instances.html>).
pub(super) fn machine(api: &Api, instance: &Instance) -> Option<Machine> {
    let id = instance.instance_id()?.to_owned();
    let (tags, name) = tags(instance.tags());
    let state = instance.state().and_then(|state| state.name());
    let phase = phase(state);
    if phase == NodePhase::Terminated && !has_identity(&tags) {
        return None;
    }
    let zone = instance
        .placement()
        .and_then(|placement| placement.availability_zone())
        .unwrap_or_default()
        .to_owned();
    let place = if zone.is_empty() {
        api.region()
    } else {
        zone.clone()
    };
    Some(Machine {
        provider_id: format!("aws:///{place}/{id}"),
        id,
        name,
        tags,
        launch_index: instance
            .ami_launch_index()
            .and_then(|index| u32::try_from(index).ok()),
        phase,
        ready: None,
        message: message(instance, phase),
        maintenance: None,
        failure_domain: zone,
        node_class: instance
            .instance_type()
            .map(|class| class.as_str().to_owned())
            .unwrap_or_default(),
        host_id: None,
        addresses: addresses(instance),
        create_time: instance.launch_time().map(timestamp),
        location: String::new(),
    })
}

pub(super) fn timestamp(time: &DateTime) -> Timestamp {
    Timestamp {
        seconds: time.secs(),
        nanos: i32::try_from(time.subsec_nanos()).unwrap_or_default(),
    }
}

/// Whether none of the tags is missing that say whose an instance is and what for.
fn has_identity(tags: &BTreeMap<String, String>) -> bool {
    let needed = [
        "owner",
        "cluster",
        "group",
        "request",
        "sequence",
        "spec-hash",
        "slots",
    ];
    needed
        .iter()
        .all(|name| tags.contains_key(&format!("{PREFIX}{name}")))
}

/// The tags of an instance without those that are not node labels, and its name.
fn tags(tags: &[Tag]) -> (BTreeMap<String, String>, String) {
    let mut named = String::new();
    let mut kept = BTreeMap::new();
    let mut own: Vec<&str> = Vec::new();
    for tag in tags {
        let (Some(key), value) = (tag.key(), tag.value().unwrap_or_default()) else {
            continue;
        };
        if key == NAME {
            value.clone_into(&mut named);
        } else if key == super::EXTRA {
            own.extend(value.split(','));
        } else if !key.starts_with("aws:") {
            kept.insert(key.to_owned(), value.to_owned());
        }
    }
    kept.retain(|key, _| !own.contains(&key.as_str()));
    (kept, named)
}

fn phase(state: Option<&InstanceStateName>) -> NodePhase {
    match state {
        Some(InstanceStateName::Pending) => NodePhase::Pending,
        Some(InstanceStateName::Running) => NodePhase::Running,
        Some(InstanceStateName::Stopping | InstanceStateName::Stopped) => NodePhase::Stopped,
        Some(InstanceStateName::ShuttingDown) => NodePhase::Deprovisioning,
        Some(InstanceStateName::Terminated) => NodePhase::Terminated,
        _ => NodePhase::Unknown,
    }
}

/// EC2's reason why an instance does not run.
fn message(instance: &Instance, phase: NodePhase) -> String {
    if matches!(phase, NodePhase::Running | NodePhase::Pending) {
        return String::new();
    }
    let reason = instance
        .state_reason()
        .and_then(|reason| reason.message())
        .filter(|message| !message.is_empty())
        .or(instance.state_transition_reason())
        .unwrap_or_default();
    drover_core::error::cut(reason.to_owned())
}

fn addresses(instance: &Instance) -> Vec<Address> {
    let mut addresses: Vec<Address> = Vec::new();
    let mut add = |kind: AddressType, value: Option<&str>, interface: &str| {
        if let Some(value) = value.filter(|value| !value.is_empty())
            && !addresses
                .iter()
                .any(|known| known.value == value && known.r#type() == kind)
        {
            addresses.push(Address {
                r#type: kind.into(),
                value: value.to_owned(),
                interface: interface.to_owned(),
            });
        }
    };
    let mut interfaces: Vec<_> = instance.network_interfaces().iter().collect();
    interfaces.sort_by_key(|interface| {
        interface
            .attachment()
            .and_then(aws_sdk_ec2::types::InstanceNetworkInterfaceAttachment::device_index)
    });
    let first = interfaces
        .first()
        .and_then(|interface| interface.network_interface_id())
        .unwrap_or_default();
    add(
        AddressType::InternalIp,
        instance.private_ip_address(),
        first,
    );
    add(AddressType::ExternalIp, instance.public_ip_address(), first);
    add(AddressType::InternalDns, instance.private_dns_name(), first);
    add(AddressType::ExternalDns, instance.public_dns_name(), first);
    for interface in interfaces {
        let id = interface.network_interface_id().unwrap_or_default();
        for private in interface.private_ip_addresses() {
            add(AddressType::InternalIp, private.private_ip_address(), id);
            let public = private.association().and_then(|a| a.public_ip());
            add(AddressType::ExternalIp, public, id);
        }
        for v6 in interface.ipv6_addresses() {
            add(AddressType::ExternalIp, v6.ipv6_address(), id);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(key: &str, value: &str) -> Tag {
        Tag::builder().key(key).value(value).build()
    }

    #[test]
    fn tags_that_are_not_labels_are_left_out() {
        let (kept, name) = tags(&[
            tag("Name", "orders-data"),
            tag("aws:autoscaling:groupName", "x"),
            tag("drover.dev/cluster", "orders"),
            tag("drover.dev/extra-tags", "cost-centre,team"),
            tag("cost-centre", "42"),
            tag("team", "a"),
            tag("label", "b"),
        ]);
        assert_eq!(name, "orders-data");
        let keys: Vec<&str> = kept.keys().map(String::as_str).collect();
        assert_eq!(keys, ["drover.dev/cluster", "label"]);
    }

    #[test]
    fn every_state_has_its_phase() {
        for (state, expected) in [
            ("pending", NodePhase::Pending),
            ("running", NodePhase::Running),
            ("shutting-down", NodePhase::Deprovisioning),
            ("terminated", NodePhase::Terminated),
            ("stopping", NodePhase::Stopped),
            ("stopped", NodePhase::Stopped),
            ("rebooting-soon", NodePhase::Unknown),
        ] {
            assert_eq!(phase(Some(&InstanceStateName::from(state))), expected);
        }
        assert_eq!(phase(None), NodePhase::Unknown);
    }

    #[test]
    fn only_ids_of_instances_are_asked_for() {
        assert!(is_instance_id("i-0123456789abcdef0"));
        for id in ["", "i-", "vm-1", "i-xyz", "db-1"] {
            assert!(!is_instance_id(id), "{id}");
        }
    }

    #[test]
    fn wildcards_in_values_are_taken_literally() {
        assert_eq!(escape("a*b?c\\d"), "a\\*b\\?c\\\\d");
    }
}
