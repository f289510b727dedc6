//! The services of a group: for its active nodes, and for all of them.

use std::collections::BTreeMap;

use drover_core::{Error, Result};
use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde_json::Value;

use super::shared::{GroupLabels, Place};
use crate::{
    client::{Api, Meta as _},
    group::{Member, uid},
    labels::{self, LabelKeys},
    watch::NodeCache,
};

/// The services that the pods of a cluster request, by namespace and name.
#[derive(Default)]
pub(super) struct Services(BTreeMap<(String, String), DesiredService>);

/// Which nodes of its group a service leads to, once they are ready. In order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leads {
    ToActive,
    ToAll,
}

/// Desired state of a service.
pub(super) struct DesiredService {
    namespace: String,
    name: String,
    of: GroupLabels,
    leads: Leads,
    /// Whether an active node lacks the label that says that it is, or is to be promoted.
    by_role: bool,
    ports: BTreeMap<String, u16>,
}

impl Services {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a pod of a group that requests a service. `ports` is `None` until the pod has an address.
    pub(super) fn add(
        &mut self,
        (name, leads): (&str, Leads),
        of: GroupLabels,
        member: &Member,
        ports: Option<&BTreeMap<String, u16>>,
        by_role: bool,
    ) {
        let key = (member.namespace.to_string(), name.to_owned());
        let new = || DesiredService {
            namespace: member.namespace.to_string(),
            name: name.to_owned(),
            of: of.clone(),
            leads,
            by_role: false,
            ports: BTreeMap::new(),
        };
        let wanted = self.0.entry(key).or_insert_with(new);
        // To whom one writes goes before from whom one reads.
        if leads < wanted.leads {
            *wanted = new();
        }
        // Another group of the cluster does not get the same name.
        if wanted.of == of && wanted.leads == leads {
            wanted.ports.extend(ports.cloned().unwrap_or_default());
            wanted.by_role |= by_role;
        }
    }

    /// The services that can be created.
    pub(super) fn wanted(self) -> impl Iterator<Item = DesiredService> {
        let all = self.0.into_values();
        all.filter(|wanted| !wanted.ports.is_empty())
    }
}

impl DesiredService {
    pub(super) fn place(&self) -> Place {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        ("services".to_owned(), namespace, name)
    }

    pub(super) fn digest(&self) -> u128 {
        uid(&format!(
            "service {:?} {} {:?} {:?}",
            self.leads, self.by_role, self.of, self.ports
        ))
    }

    /// Creates or updates the service.
    ///
    /// # Errors
    /// `Precondition` if the service of this name does not belong to its group; otherwise as in [`crate::errors`].
    pub(super) async fn make(&self, api: &Api, keys: &LabelKeys, cache: &NodeCache) -> Result<()> {
        let kind = api.kind_of("v1", "Service").await?;
        let (namespace, name) = (&self.namespace, &self.name);
        let there = api.get_meta(&kind, namespace, name).await?;
        let mut service = self.service(keys);
        let Some(there) = there else {
            let body = written(&service)?;
            return api.create(&kind, namespace, &body).await.map(drop);
        };
        self.of.check(&kind, &there, keys, cache)?;
        // The service may be replaced or changed meanwhile.
        service.metadata.uid = Some(there.uid().to_owned());
        service.metadata.resource_version = Some(there.version().to_owned());
        let mut body = written(&service)?;
        if self.leads == Leads::ToActive && self.by_role {
            // A merge keeps what is not named.
            body["spec"]["selector"][labels::ACTIVE] = Value::Null;
        }
        api.patch(&kind, namespace, name, &body).await.map(drop)
    }

    pub(super) fn service(&self, keys: &LabelKeys) -> Service {
        let mut selector = self.of.selector(keys);
        if self.leads == Leads::ToActive {
            selector.insert(labels::ROLE.to_owned(), "active".to_owned());
            if !self.by_role {
                selector.insert(labels::ACTIVE.to_owned(), "true".to_owned());
            }
        }
        let ports = self.ports.iter().map(|(name, port)| ServicePort {
            name: Some(name.clone()),
            port: i32::from(*port),
            target_port: Some(IntOrString::String(name.clone())),
            ..ServicePort::default()
        });
        Service {
            metadata: self.of.metadata(&self.namespace, &self.name, keys),
            spec: Some(ServiceSpec {
                selector: Some(selector),
                ports: Some(ports.collect()),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }
}

fn written(service: &Service) -> Result<Value> {
    serde_json::to_value(service)
        .map_err(|_| Error::internal("the service of a group cannot be written as JSON"))
}
