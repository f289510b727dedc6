//! Nodes.

use drover_proto::{common::v1 as common, kubernetes::v1 as api};
use k8s_openapi::api::core::v1::{Node, NodeAddress, Taint};

use super::{all, condition, effect_of, metadata, named, quantities_of};

pub(crate) fn node(from: Node) -> api::Node {
    let spec = from.spec.unwrap_or_default();
    let status = from.status.unwrap_or_default();
    let conditions = all(status.conditions, |it| {
        let since = it.last_transition_time;
        condition(it.type_, &it.status, it.reason, it.message, since.as_ref())
    });
    let ready = conditions.iter().find(|it| it.r#type == "Ready");
    api::Node {
        metadata: Some(metadata(&from.metadata)),
        ready: ready.is_some_and(|it| it.status == Some(true)),
        unschedulable: spec.unschedulable.unwrap_or_default(),
        addresses: all(status.addresses, address),
        conditions,
        taints: all(spec.taints, taint),
        capacity: quantities_of(status.capacity),
        allocatable: quantities_of(status.allocatable),
        kubelet_version: status
            .node_info
            .map(|it| it.kubelet_version)
            .unwrap_or_default(),
        provider_id: spec.provider_id.unwrap_or_default(),
    }
}

fn address(from: NodeAddress) -> common::Address {
    let kinds = [
        ("InternalIP", common::AddressType::InternalIp),
        ("ExternalIP", common::AddressType::ExternalIp),
        ("InternalDNS", common::AddressType::InternalDns),
        ("ExternalDNS", common::AddressType::ExternalDns),
        ("Hostname", common::AddressType::Hostname),
    ];
    let kind = named(&kinds, Some(&from.type_));
    common::Address {
        r#type: kind.unwrap_or_default().into(),
        value: from.address,
        interface: String::new(),
    }
}

fn taint(from: Taint) -> api::Taint {
    api::Taint {
        key: from.key,
        value: from.value.unwrap_or_default(),
        effect: effect_of(Some(&from.effect)),
    }
}
