//! Services.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

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

/// Takes a node port that was asked for.
fn take(used: &mut BTreeSet<u32>, port: u32, field: impl Fn() -> String) -> Result<u32> {
    let (first, last) = NODE_PORTS;
    if !(first..=last).contains(&port) {
        let why = format!("is not in the range of node ports, {first} to {last}");
        return Err(Error::invalid(field(), why));
    }
    if !used.insert(port) {
        return Err(taken(field(), &format!("the port {port}")));
    }
    Ok(port)
}

fn take_any(used: &mut BTreeSet<u32>, begin: u32) -> Result<u32> {
    let (first, last) = NODE_PORTS;
    let mut ports = from(begin, last - first + 1).map(|number| first + number);
    let free = ports.find(|port| used.insert(*port));
    free.ok_or_else(|| full("a nodePort"))
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

    /// As `initNodePorts` of the API server: ports of one number share a node port, the first that is asked for by any of them.
    fn allocate_ports(&mut self, spec: &mut api::ServiceSpec) -> Result<()> {
        let begin = self.below(NODE_PORTS.1 - NODE_PORTS.0 + 1);
        let specs = self
            .services
            .all()
            .filter_map(|service| service.spec.as_ref());
        let ports = specs.flat_map(|spec| &spec.ports);
        let mut used: BTreeSet<u32> = ports.map(|port| port.node_port).collect();
        let mut shared: BTreeMap<u32, u32> = BTreeMap::new();
        for at in 0..spec.ports.len() {
            let (number, asked) = (spec.ports[at].port, spec.ports[at].node_port);
            let field = || format!("service.spec.ports[{at}].node_port");
            spec.ports[at].node_port = match shared.get(&number) {
                Some(&given) if asked == 0 || asked == given => given,
                Some(_) => take(&mut used, asked, field)?,
                None => {
                    let same = spec.ports.iter().filter(|port| port.port == number);
                    let asked = same.map(|port| port.node_port).find(|port| *port != 0);
                    let given = match asked {
                        Some(asked) => take(&mut used, asked, field)?,
                        None => take_any(&mut used, begin)?,
                    };
                    shared.insert(number, given);
                    given
                }
            };
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
    use drover_proto::kubernetes::v1::ServicePort;

    use super::*;

    fn create(store: &mut Store, name: &str, ports: Vec<ServicePort>) -> Result<Vec<u32>> {
        let service = store.create_service(api::Service {
            metadata: Some(api::Metadata {
                namespace: "n".to_owned(),
                name: name.to_owned(),
                ..api::Metadata::default()
            }),
            spec: Some(api::ServiceSpec {
                r#type: ServiceType::NodePort as i32,
                ports,
                ..api::ServiceSpec::default()
            }),
            ..api::Service::default()
        });
        let ports = service?.spec.unwrap_or_default().ports;
        Ok(ports.iter().map(|port| port.node_port).collect())
    }

    fn port(port: u32, node_port: u32) -> ServicePort {
        ServicePort {
            port,
            node_port,
            ..ServicePort::default()
        }
    }

    #[test]
    fn node_ports_are_given_out_until_all_are_used_and_then_refused() {
        let mut store = Store::new(1);
        let (first, last) = NODE_PORTS;
        let ports = (1..=last - first + 1).map(|number| port(number, 0));
        let all = create(&mut store, "all", ports.collect()).unwrap();
        let all: BTreeSet<u32> = all.into_iter().collect();
        assert!(all.into_iter().eq(first..=last));
        let error = create(&mut store, "more", vec![port(80, 0)]).unwrap_err();
        assert_eq!(error.reason(), Reason::Unavailable, "{error}");
    }

    /// Over TCP and UDP, for example.
    #[test]
    fn ports_of_one_number_share_a_node_port_and_its_refusal_is_of_the_first() {
        let mut store = Store::new(1);
        let ports = vec![port(53, 0), port(80, 0), port(53, 30_053)];
        let given = create(&mut store, "dns", ports).unwrap();
        assert_eq!((given[0], given[2]), (30_053, 30_053));
        assert_ne!(given[1], 30_053);
        let field = |error: Error| error.fields()[0].field.clone();
        for wrong in [80, 30_053] {
            let ports = vec![port(22, 0), port(53, 0), port(53, wrong)];
            let error = create(&mut store, "other", ports).unwrap_err();
            assert_eq!(field(error), "service.spec.ports[1].node_port");
        }
    }
}
