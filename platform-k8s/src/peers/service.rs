//! The service for the active nodes of a group.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::Node;
use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use serde_json::Value;

use crate::{
    client::{Api, Meta as _},
    group::{Member, uid},
    labels::{self, LabelKeys},
};

/// The services that the pods of a cluster request, by namespace and name.
#[derive(Default)]
pub(super) struct Services(BTreeMap<(String, String), DesiredService>);

/// Desired state of a service.
#[derive(Default)]
pub(super) struct DesiredService {
    namespace: String,
    name: String,
    owner: String,
    cluster: String,
    group: String,
    ports: BTreeMap<String, u16>,
    /// Names and uids of the pods that own it.
    pods: BTreeMap<String, String>,
}

impl Services {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a pod that requests a service. `ports` is `None` until the pod has an address.
    pub(super) fn add(
        &mut self,
        name: &str,
        owner: &str,
        node: &Node,
        member: &Member,
        ports: Option<&BTreeMap<String, u16>>,
    ) {
        let key = (member.namespace.to_string(), name.to_owned());
        let wanted = self.0.entry(key).or_insert_with(|| DesiredService {
            namespace: member.namespace.to_string(),
            name: name.to_owned(),
            owner: owner.to_owned(),
            cluster: node.cluster_id.clone(),
            group: node.group.clone(),
            ..DesiredService::default()
        });
        // Another group of the cluster does not get the same name.
        if wanted.owner == owner && wanted.group == node.group {
            wanted.ports.extend(ports.cloned().unwrap_or_default());
            wanted
                .pods
                .insert(member.name.to_string(), text(member.uid));
        }
    }

    /// The services that can be created.
    pub(super) fn wanted(self) -> impl Iterator<Item = DesiredService> {
        let all = self.0.into_values();
        all.filter(|wanted| !wanted.ports.is_empty())
    }
}

impl DesiredService {
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn digest(&self) -> u128 {
        uid(&format!(
            "service {} {} {:?} {:?}",
            self.owner, self.group, self.ports, self.pods
        ))
    }

    /// Creates or updates the service.
    ///
    /// # Errors
    /// `Precondition` if the service of this name does not belong to its group; otherwise as in [`crate::errors`].
    pub(super) async fn make(&self, api: &Api, keys: &LabelKeys) -> Result<()> {
        let kind = api.kind_of("v1", "Service").await?;
        let (namespace, name) = (&self.namespace, &self.name);
        let there = api.get_meta(&kind, namespace, name).await?;
        let mut service = self.service(keys);
        let Some(there) = there else {
            let body = written(&service)?;
            return api.create(&kind, namespace, &body).await.map(drop);
        };
        if !self.is_it(&there, keys) {
            return Err(Error::new(
                Reason::Precondition,
                format!(
                    "service {name:?} in namespace {namespace:?} is somebody else's; none leads to the active nodes of group {:?}",
                    self.group
                ),
            ));
        }
        // The service may be replaced or changed meanwhile.
        service.metadata.uid = Some(there.uid().to_owned());
        service.metadata.resource_version = Some(there.version().to_owned());
        let body = written(&service)?;
        api.patch(&kind, namespace, name, &body).await.map(drop)
    }

    fn labels(&self, keys: &LabelKeys) -> BTreeMap<String, String> {
        let labels = [
            (keys.cluster.as_str(), labels::value(&self.cluster)),
            (labels::GROUP, labels::value(&self.group)),
            (labels::OWNER, labels::value(&self.owner)),
        ];
        labels.map(|(key, text)| (key.to_owned(), text)).into()
    }

    fn is_it(&self, meta: &ObjectMeta, keys: &LabelKeys) -> bool {
        let mut wanted = self.labels(keys).into_iter();
        let says_so = wanted.all(|(key, text)| meta.labels().get(&key) == Some(&text));
        // The service may have been created for a former owner of its pods, which were adopted since.
        let manager = meta.labels().get(labels::MANAGED_BY);
        let made_here = manager.is_some_and(|manager| manager == labels::MANAGER);
        let mut owners = meta.owners().iter();
        let goes_with_ours = owners.any(|of| self.pods.values().any(|own| *own == of.uid));
        (says_so || made_here && goes_with_ours) && !meta.labels().contains_key(&keys.node)
    }

    pub(super) fn service(&self, keys: &LabelKeys) -> Service {
        let mut selector = self.labels(keys);
        let mut labels = selector.clone();
        selector.insert(labels::ROLE.to_owned(), "active".to_owned());
        labels.insert(labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned());
        let ports = self.ports.iter().map(|(name, port)| ServicePort {
            name: Some(name.clone()),
            port: i32::from(*port),
            target_port: Some(IntOrString::String(name.clone())),
            ..ServicePort::default()
        });
        let owners = self.pods.iter().map(|(name, uid)| OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: name.clone(),
            uid: uid.clone(),
            ..OwnerReference::default()
        });
        Service {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                labels: Some(labels),
                owner_references: Some(owners.collect()),
                ..ObjectMeta::default()
            },
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

/// A uid in the notation of Kubernetes.
fn text(uid: u128) -> String {
    let digits = format!("{uid:032x}");
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    let parts = [
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32),
    ];
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_written_as_it_was_read() {
        let own = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
        assert_eq!(text(uid(own)), own);
    }
}
