//! Services.

use drover_core::Result;
use drover_proto::kubernetes::v1 as api;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use super::{
    all, each, known, metadata, named, object_meta, port, port_number, port_ref, port_ref_of,
    protocol, protocol_of, some,
};

pub(crate) fn to_service(from: api::Service) -> Result<Service> {
    let spec = from.spec.unwrap_or_default();
    let type_ = match known("service.spec.type", spec.r#type)? {
        api::ServiceType::Unspecified => None,
        api::ServiceType::ClusterIp => Some("ClusterIP"),
        api::ServiceType::NodePort => Some("NodePort"),
        api::ServiceType::LoadBalancer => Some("LoadBalancer"),
        api::ServiceType::ExternalName => Some("ExternalName"),
    };
    Ok(Service {
        metadata: object_meta(from.metadata),
        spec: Some(ServiceSpec {
            type_: type_.map(str::to_owned),
            selector: some(spec.selector),
            ports: some(each("service.spec.ports", spec.ports, to_port)?),
            cluster_ip: some(spec.cluster_ip),
            external_name: some(spec.external_name),
            publish_not_ready_addresses: spec.publish_not_ready_addresses.then_some(true),
            ..ServiceSpec::default()
        }),
        status: None,
    })
}

pub(crate) fn service(from: Service) -> api::Service {
    let status = from.status.unwrap_or_default();
    let balancer = status.load_balancer.unwrap_or_default();
    let addresses = balancer.ingress.unwrap_or_default().into_iter();
    api::Service {
        metadata: Some(metadata(&from.metadata)),
        spec: from.spec.map(spec),
        load_balancer_addresses: addresses.filter_map(|it| it.ip.or(it.hostname)).collect(),
    }
}

fn spec(from: ServiceSpec) -> api::ServiceSpec {
    let types = [
        ("ClusterIP", api::ServiceType::ClusterIp),
        ("NodePort", api::ServiceType::NodePort),
        ("LoadBalancer", api::ServiceType::LoadBalancer),
        ("ExternalName", api::ServiceType::ExternalName),
    ];
    let type_ = named(&types, from.type_.as_deref());
    api::ServiceSpec {
        r#type: type_.unwrap_or_default().into(),
        selector: from.selector.unwrap_or_default(),
        ports: all(from.ports, service_port),
        cluster_ip: from.cluster_ip.unwrap_or_default(),
        external_name: from.external_name.unwrap_or_default(),
        publish_not_ready_addresses: from.publish_not_ready_addresses.unwrap_or_default(),
    }
}

fn to_port(field: &str, from: api::ServicePort) -> Result<ServicePort> {
    let target = from.target_port;
    let target = target.map(|it| port_ref(&format!("{field}.target_port"), Some(it)));
    let node_port = match from.node_port {
        0 => None,
        number => Some(port(&format!("{field}.node_port"), number)?),
    };
    Ok(ServicePort {
        name: some(from.name),
        port: port(&format!("{field}.port"), from.port)?,
        target_port: target.transpose()?,
        node_port,
        protocol: protocol(&format!("{field}.protocol"), from.protocol)?,
        app_protocol: some(from.app_protocol),
    })
}

fn service_port(from: ServicePort) -> api::ServicePort {
    api::ServicePort {
        name: from.name.unwrap_or_default(),
        port: port_number(from.port),
        target_port: from.target_port.map(port_ref_of),
        node_port: port_number(from.node_port.unwrap_or_default()),
        protocol: protocol_of(from.protocol.as_deref()),
        app_protocol: from.app_protocol.unwrap_or_default(),
    }
}
