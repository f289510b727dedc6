//! Services.

use std::collections::BTreeSet;

use drover_core::Result;
use drover_proto::kubernetes::v1::{self as api, ServiceType};

use super::{Check, syntax};
use crate::served::Served;

/// The cluster IP of a headless service.
const HEADLESS: &str = "None";

/// A service to create.
pub(crate) fn create_service(
    request: api::CreateServiceRequest,
    served: &Served,
) -> Result<api::Service> {
    let mut check = Check::default();
    let mut service = request.service.unwrap_or_default();
    service.load_balancer_addresses.clear();
    let metadata = &mut service.metadata;
    check.metadata(
        "service.metadata",
        metadata,
        syntax::label_1035,
        served,
        false,
    );
    match &mut service.spec {
        None => check.wrong("service.spec", "is required"),
        Some(spec) => check.service("service.spec", spec),
    }
    check.finish()?;
    Ok(service)
}

impl Check {
    fn service(&mut self, field: &str, spec: &mut api::ServiceSpec) {
        self.known::<ServiceType>(format!("{field}.type"), spec.r#type);
        if spec.r#type == ServiceType::Unspecified as i32 {
            spec.r#type = ServiceType::ClusterIp as i32;
        }
        self.labels(&format!("{field}.selector"), &spec.selector);
        let (external, headless) = (
            spec.r#type() == ServiceType::ExternalName,
            spec.cluster_ip == HEADLESS,
        );
        let ip = format!("{field}.cluster_ip");
        if external && !spec.cluster_ip.is_empty() {
            self.wrong(&ip, "must be empty with EXTERNAL_NAME");
        } else if headless && spec.r#type() != ServiceType::ClusterIp {
            self.wrong(&ip, "None is only for the type CLUSTER_IP");
        } else if !headless && !spec.cluster_ip.is_empty() {
            self.said(&ip, syntax::ip(&spec.cluster_ip).map(drop));
        }
        let name = format!("{field}.external_name");
        if external {
            self.required(name, &spec.external_name, syntax::dns_name);
        } else if !spec.external_name.is_empty() {
            self.wrong(name, "is only for the type EXTERNAL_NAME");
        }
        if spec.ports.is_empty() && !external && !headless {
            self.wrong(
                format!("{field}.ports"),
                "is required: at least one, except with EXTERNAL_NAME or without a cluster IP",
            );
        }
        self.service_ports(field, spec);
    }

    fn service_ports(&mut self, field: &str, spec: &mut api::ServiceSpec) {
        let node_ports = match spec.r#type() {
            ServiceType::NodePort | ServiceType::LoadBalancer => true,
            ServiceType::Unspecified | ServiceType::ClusterIp | ServiceType::ExternalName => false,
        };
        let several = spec.ports.len() > 1;
        let (mut names, mut numbers, mut on_nodes) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (at, port) in spec.ports.iter_mut().enumerate() {
            let field = format!("{field}.ports[{at}]");
            let name = format!("{field}.name");
            if !port.name.is_empty() {
                self.said(&name, syntax::label(&port.name));
                self.unique(&mut names, name, port.name.clone());
            } else if several {
                self.wrong(name, "is required if there are several ports");
            }
            self.known::<api::Protocol>(format!("{field}.protocol"), port.protocol);
            if port.protocol == api::Protocol::Unspecified as i32 {
                port.protocol = api::Protocol::Tcp as i32;
            }
            let number = format!("{field}.port");
            self.said(&number, syntax::port(port.port));
            self.unique(&mut numbers, number, (port.protocol, port.port));
            if let Some(target) = &port.target_port {
                let target_port = format!("{field}.target_port");
                self.port_ref(&target_port, Some(target), syntax::port_name);
            }
            if port.node_port != 0 {
                let node_port = format!("{field}.node_port");
                self.said(&node_port, syntax::port(port.node_port));
                if !node_ports {
                    self.wrong(
                        &node_port,
                        "is only for the types NODE_PORT and LOAD_BALANCER",
                    );
                }
                let key = (port.protocol, port.node_port);
                self.unique(&mut on_nodes, node_port, key);
            }
            let protocol = format!("{field}.app_protocol");
            self.optional(protocol, &port.app_protocol, syntax::qualified);
        }
    }
}
