//! Services.

use std::{collections::BTreeSet, net::Ipv4Addr};

use async_trait::async_trait;
use drover_core::{Error, Result, error::Violation};
use drover_proto::kubernetes::v1::{self as api, PortRef, ServiceType, port_ref::Port};
use drover_resources::parts::Services;

use crate::{
    Shared,
    selector::selects,
    store::{Store, exists, key},
};

/// The range of cluster IPs, as its first two bytes.
const CLUSTER: (u8, u8) = (10, 96);
/// The range of node ports.
const NODE_PORTS: (u32, u32) = (30_000, 32_767);
const HEADLESS: &str = "None";
/// Cluster IPs that are given out by themselves.
const ADDRESSES: u32 = 65_000;

fn taken(field: String, what: &str) -> Error {
    Error::violations(vec![Violation {
        field,
        description: format!("{what} is already allocated"),
    }])
}

/// An API server answers this with 500.
fn full(what: &str) -> Error {
    Error::unavailable(format!("failed to allocate {what}: range is full"))
}

/// All numbers below `count`, beginning with one of them.
fn from(begin: u32, count: u32) -> impl Iterator<Item = u32> {
    (begin..count).chain(0..begin)
}

impl Store {
    fn create_service(&mut self, mut service: api::Service) -> Result<api::Service> {
        let key = key(&service);
        self.check_namespace(&key.0)?;
        let spec = service.spec.get_or_insert_default();
        let kind = spec.r#type();
        if kind != ServiceType::ExternalName {
            self.allocate_ip(spec)?;
        }
        for port in &mut spec.ports {
            if port.target_port.is_none() {
                port.target_port = Some(PortRef {
                    port: Some(Port::Number(port.port)),
                });
            }
        }
        if matches!(kind, ServiceType::NodePort | ServiceType::LoadBalancer) {
            self.allocate_ports(spec)?;
        }
        if self.services.get(&key).is_some() {
            return Err(exists::<api::Service>(&key));
        }
        self.stamp(&mut service);
        self.services.put(service.clone());
        Ok(service)
    }

    fn allocate_ip(&mut self, spec: &mut api::ServiceSpec) -> Result<()> {
        if spec.cluster_ip == HEADLESS {
            return Ok(());
        }
        let used: BTreeSet<String> = self
            .services
            .all()
            .filter_map(|service| service.spec.as_ref())
            .map(|spec| spec.cluster_ip.clone())
            .collect();
        let field = || "service.spec.cluster_ip".to_owned();
        if spec.cluster_ip.is_empty() {
            let begin = self.below(ADDRESSES);
            let free = from(begin, ADDRESSES).find_map(|number| {
                let [_, _, c, d] = (1 + number).to_be_bytes();
                let address = Ipv4Addr::new(CLUSTER.0, CLUSTER.1, c, d).to_string();
                (!used.contains(&address)).then_some(address)
            });
            spec.cluster_ip = free.ok_or_else(|| full("a serviceIP"))?;
            return Ok(());
        }
        if !spec
            .cluster_ip
            .starts_with(&format!("{}.{}.", CLUSTER.0, CLUSTER.1))
        {
            let why = "is not in the range of cluster IPs";
            return Err(Error::invalid(field(), why));
        }
        if used.contains(&spec.cluster_ip) {
            return Err(taken(field(), &spec.cluster_ip));
        }
        Ok(())
    }

    fn allocate_ports(&mut self, spec: &mut api::ServiceSpec) -> Result<()> {
        let (first, last) = NODE_PORTS;
        let specs = self
            .services
            .all()
            .filter_map(|service| service.spec.as_ref());
        let ports = specs.flat_map(|spec| &spec.ports);
        let mut used: BTreeSet<(i32, u32)> =
            ports.map(|port| (port.protocol, port.node_port)).collect();
        for (at, port) in spec.ports.iter_mut().enumerate() {
            let field = || format!("service.spec.ports[{at}].node_port");
            if port.node_port == 0 {
                let count = last - first + 1;
                let mut numbers = from(self.below(count), count).map(|number| first + number);
                let free = numbers.find(|number| !used.contains(&(port.protocol, *number)));
                port.node_port = free.ok_or_else(|| full("a nodePort"))?;
            } else if !(first..=last).contains(&port.node_port) {
                let why = format!("is not in the range of node ports, {first} to {last}");
                return Err(Error::invalid(field(), why));
            } else if used.contains(&(port.protocol, port.node_port)) {
                return Err(taken(field(), &format!("the port {}", port.node_port)));
            }
            used.insert((port.protocol, port.node_port));
        }
        Ok(())
    }

    /// The number of a port of a service. `None`: there is no such service or port.
    pub(crate) fn port_of(&self, namespace: &str, target: &api::ServiceTarget) -> Option<u32> {
        let key = (namespace.to_owned(), target.name.clone());
        let service = self.services.get(&key)?;
        let ports = &service.spec.as_ref()?.ports;
        let port = match target.port.as_ref()?.port.as_ref()? {
            Port::Number(number) => ports.iter().find(|port| port.port == *number),
            Port::Name(name) => ports.iter().find(|port| port.name == *name),
        };
        port.map(|port| port.port)
    }
}

#[async_trait]
impl Services for Shared {
    async fn create(&self, service: api::Service) -> Result<api::Service> {
        self.call("services.create", async {
            self.change(|store| store.create_service(service))
        })
        .await
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::Service> {
        let key = (namespace.to_owned(), name.to_owned());
        self.call("services.get", async {
            self.store.lock().services.find(&key).cloned()
        })
        .await
    }

    async fn list(&self, request: api::ListServicesRequest) -> Result<api::ListServicesResponse> {
        self.call("services.list", async {
            let mut store = self.store.lock();
            let revision = store.tick();
            let matches = |service: &api::Service| {
                let metadata = service.metadata.clone().unwrap_or_default();
                (request.namespace.is_empty() || metadata.namespace == request.namespace)
                    && selects(request.selector.as_ref(), &metadata.labels)
            };
            let place = (request.page_size, &*request.page_token);
            let (services, next_page_token) = store.services.page(place, revision, matches)?;
            Ok(api::ListServicesResponse {
                services,
                next_page_token,
            })
        })
        .await
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        let key = (namespace.to_owned(), name.to_owned());
        self.call("services.delete", async {
            Ok(self.change(|store| store.services.remove(&key)).is_some())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use drover_core::Reason;

    use super::*;

    #[test]
    fn node_ports_are_given_out_until_all_are_used_and_then_refused() {
        let mut store = Store::new(1);
        let mut service = |name: &str, ports: u32| {
            let port = api::ServicePort {
                port: 80,
                ..api::ServicePort::default()
            };
            store.create_service(api::Service {
                metadata: Some(api::Metadata {
                    namespace: "n".to_owned(),
                    name: name.to_owned(),
                    ..api::Metadata::default()
                }),
                spec: Some(api::ServiceSpec {
                    r#type: ServiceType::NodePort as i32,
                    ports: vec![port; usize::try_from(ports).unwrap()],
                    ..api::ServiceSpec::default()
                }),
                ..api::Service::default()
            })
        };
        let (first, last) = NODE_PORTS;
        let all = service("all", last - first + 1).unwrap();
        let ports: BTreeSet<u32> = all
            .spec
            .unwrap()
            .ports
            .iter()
            .map(|it| it.node_port)
            .collect();
        assert!(ports.into_iter().eq(first..=last));
        let error = service("more", 1).unwrap_err();
        assert_eq!(error.reason(), Reason::Unavailable, "{error}");
    }
}
