//! What there is of addons.

use std::{collections::BTreeSet, sync::Arc};

use drover_core::Result;
use drover_platform::addons::Owner;
use futures::future::try_join_all;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::Job,
    core::v1::{Pod, Service},
};
use kube::{
    api::{DeleteParams, Preconditions, PropagationPolicy},
    core::ObjectMeta,
};
use serde::de::DeserializeOwned;

use super::{
    Backend,
    apply::is_due,
    context::Address,
    mark::{self, Mark},
    workloads::Workload,
};
use crate::{
    client::{Deletion, Kind, ListQuery, Meta as _, Object, Shape},
    delete::Item,
    labels,
};

/// Which addon: its owner is empty if it is foreign.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) cluster_id: String,
    pub(super) owner: String,
    pub(super) name: String,
}

impl Slot {
    pub(super) fn of(owner: &Owner, name: &str) -> Self {
        Self {
            cluster_id: owner.cluster_id.clone(),
            owner: owner.owner.clone(),
            name: name.to_owned(),
        }
    }

    pub(super) fn selector(&self) -> String {
        mark::selector(&self.cluster_id, &self.name)
    }

    fn of_mark(mark: &Mark) -> Self {
        Self {
            cluster_id: mark.cluster_id.clone(),
            owner: mark.owner.clone(),
            name: mark.name.clone(),
        }
    }

    /// The addon of an object. Labels that contradict its identity make it foreign.
    fn of_meta(meta: &ObjectMeta) -> Self {
        let label = |key: &str| meta.labels().get(key).cloned().unwrap_or_default();
        let (cluster, name) = (label(labels::ADDON_CLUSTER), label(labels::ADDON));
        match Mark::of(meta) {
            Some(mark)
                if labels::value(&mark.cluster_id) == cluster
                    && labels::value(&mark.name) == name =>
            {
                Self::of_mark(&mark)
            }
            _ => Self {
                cluster_id: cluster,
                owner: String::new(),
                name,
            },
        }
    }

    /// Whether a pod, which has no identity, or what keeps it has the labels of this addon.
    pub(super) fn has(&self, meta: &ObjectMeta) -> bool {
        let label = |key: &str| meta.labels().get(key).map_or("", String::as_str);
        label(labels::ADDON) == labels::value(&self.name)
            && label(labels::ADDON_CLUSTER) == labels::value(&self.cluster_id)
            && label(labels::OWNER) == labels::value(&self.owner)
    }
}

/// Objects of addons.
#[derive(Clone, Default)]
pub(super) struct Things {
    /// All but pods, and but those that a controller keeps.
    pub(super) items: Vec<Item>,
    /// Those of them that run pods, or are pods.
    pub(super) workloads: Vec<Workload>,
    pub(super) services: Vec<Service>,
    pub(super) pods: Vec<Pod>,
}

impl Things {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.pods.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Item> {
        self.items.iter()
    }

    /// Whether an object that was listed, or read by its name, is of this addon.
    pub(super) fn is_of(&self, item: &Item, owner: &Owner, name: &str) -> bool {
        Mark::of(&item.meta).is_some_and(|mark| mark.is_of(owner, name))
    }

    pub(super) fn find(&self, kind: &Kind, name: &str) -> Option<&Item> {
        let mut items = self.items.iter();
        items.find(|item| {
            item.kind.resource.group == kind.resource.group
                && item.kind.resource.kind == kind.resource.kind
                && item.meta.name() == name
        })
    }

    /// How an address is given to the service that is there.
    pub(super) fn address(&self, address: &str) -> Address {
        let external = self
            .services
            .iter()
            .filter_map(|service| service.spec.as_ref());
        let mut external = external
            .filter_map(|spec| spec.external_ips.as_ref())
            .flatten();
        if !address.is_empty() && external.any(|it| it == address) {
            Address::External
        } else {
            Address::Cluster
        }
    }

    /// The certificate that was issued and is not yet due: what it was made from, and when it is due.
    pub(super) fn certificate(&self) -> Option<(String, String)> {
        self.items.iter().find_map(|item| {
            let annotations = item.meta.annotations();
            let due = annotations.get(labels::RENEW_AFTER)?;
            let once = annotations.get(labels::ONCE)?;
            (!is_due(&item.meta)).then(|| (once.clone(), due.clone()))
        })
    }

    /// Whether workloads count pods as ready that were not when they were read: the lists are not of one time, and where
    /// an addon is reached depends on its pods.
    pub(super) fn pods_are_older(&self) -> bool {
        let counted: i32 = self.workloads.iter().map(|it| it.available).sum();
        let ready = self.pods.iter().filter(|pod| super::state::is_ready(pod));
        i32::try_from(ready.count()).is_ok_and(|ready| ready < counted)
    }

    /// The addons among these.
    pub(super) fn slots(&self) -> BTreeSet<Slot> {
        self.items
            .iter()
            .map(|item| Slot::of_meta(&item.meta))
            .collect()
    }

    /// Only those of one addon.
    pub(super) fn of(&self, slot: &Slot) -> Self {
        self.only(slot, |meta| Slot::of_meta(meta) == *slot)
    }

    fn only(&self, slot: &Slot, of: impl Fn(&ObjectMeta) -> bool) -> Self {
        Self {
            items: kept(&self.items, |it| of(&it.meta)),
            workloads: kept(&self.workloads, |it| of(&it.meta)),
            services: kept(&self.services, |it| of(&it.metadata)),
            pods: kept(&self.pods, |pod| slot.has(&pod.metadata)),
        }
    }
}

fn kept<T: Clone>(all: &[T], fits: impl Fn(&T) -> bool) -> Vec<T> {
    all.iter().filter(|it| fits(it)).cloned().collect()
}

/// A kind with the part of it that is read whole.
enum Page {
    Metadata(Vec<Object>),
    Workloads(Vec<Workload>),
    Services(Vec<Service>),
}

impl Backend {
    /// Reads everything with these labels: one list of each kind.
    pub(super) async fn read(&self, labels: &str) -> Result<Things> {
        self.read_with(labels, labels).await
    }

    /// Reads everything of an addon, whatever its labels say: people change them. Pods have nothing else.
    pub(super) async fn read_all(&self, slot: &Slot) -> Result<Things> {
        let there = self.read(&slot.selector()).await?.of(slot);
        // As long as these go, the others can wait: the list of all objects is large.
        if !there.workloads.is_empty() {
            return Ok(there);
        }
        let there = self.read_with("", &slot.selector()).await?;
        let is_of = |mark: Mark| Slot::of_mark(&mark) == *slot;
        Ok(there.only(slot, |meta| Mark::of(meta).is_some_and(is_of)))
    }

    /// Reads objects with these labels, and pods with those.
    pub(super) async fn read_with(&self, labels: &str, pods: &str) -> Result<Things> {
        let lists = self
            .kinds
            .iter()
            .map(|kind| async move { Ok((kind, self.page(kind, labels).await?)) });
        // What was made last is read last: pods of a Deployment that was made meanwhile are no leftovers.
        let lists = try_join_all(lists);
        let (lists, pods) = futures::try_join!(lists, self.whole(&self.pods, pods))?;
        let mut things = Things {
            pods,
            ..Things::default()
        };
        let is_own = |meta: &ObjectMeta| meta.controller().is_none();
        for (kind, page) in lists {
            let metas: Vec<ObjectMeta> = match page {
                Page::Metadata(objects) => objects.into_iter().map(|it| it.metadata).collect(),
                Page::Workloads(all) => {
                    let metas = all.iter().map(|it| it.meta.clone()).collect();
                    let own = all.into_iter().filter(|it| is_own(&it.meta));
                    things.workloads.extend(own);
                    metas
                }
                Page::Services(all) => {
                    let metas = all.iter().map(|it| it.metadata.clone()).collect();
                    things.services.extend(all);
                    metas
                }
            };
            things
                .items
                .extend(metas.into_iter().filter(is_own).map(|meta| Item {
                    kind: Arc::clone(kind),
                    meta,
                }));
        }
        Ok(things)
    }

    /// The objects of a kind, as far as they are read.
    async fn page(&self, kind: &Kind, labels: &str) -> Result<Page> {
        let resource = &kind.resource;
        Ok(match (resource.group.as_str(), resource.plural.as_str()) {
            ("apps", "deployments") => self.workloads::<Deployment>(kind, labels).await?,
            ("apps", "statefulsets") => self.workloads::<StatefulSet>(kind, labels).await?,
            ("apps", "daemonsets") => self.workloads::<DaemonSet>(kind, labels).await?,
            ("apps", "replicasets") => self.workloads::<ReplicaSet>(kind, labels).await?,
            ("batch", "jobs") => self.workloads::<Job>(kind, labels).await?,
            ("", "pods") => self.workloads::<Pod>(kind, labels).await?,
            ("", "services") => Page::Services(self.whole(kind, labels).await?),
            _ => {
                let query = self.query(kind, labels, Shape::Metadata);
                Page::Metadata(self.api.list_all(&query).await?)
            }
        })
    }

    async fn workloads<T: DeserializeOwned + Clone + Into<Workload>>(
        &self,
        kind: &Kind,
        labels: &str,
    ) -> Result<Page> {
        let all: Vec<T> = self.whole(kind, labels).await?;
        Ok(Page::Workloads(all.into_iter().map(Into::into).collect()))
    }

    async fn whole<T: DeserializeOwned + Clone>(
        &self,
        kind: &Kind,
        labels: &str,
    ) -> Result<Vec<T>> {
        let query = self.query(kind, labels, Shape::Full);
        self.api.list_json_of(&query).await
    }

    fn query<'a>(&'a self, kind: &'a Kind, labels: &'a str, shape: Shape) -> ListQuery<'a> {
        ListQuery {
            kind,
            namespace: &self.namespace,
            labels,
            fields: "",
            shape,
        }
    }

    /// Deletes objects, each if it is still the one that was read. A workload stays until its pods are gone.
    pub(super) async fn delete(&self, items: impl Iterator<Item = &Item>) -> Result<()> {
        let mut deleted = Ok(());
        for item in items.filter(|item| !item.meta.is_deleting()) {
            let runs = item.kind.resource.group == "apps";
            let options = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(item.meta.uid().to_owned()),
                    ..Preconditions::default()
                }),
                propagation_policy: Some(if runs {
                    PropagationPolicy::Foreground
                } else {
                    PropagationPolicy::Background
                }),
                ..DeleteParams::default()
            };
            let name = item.meta.name();
            let gone = self.api.delete(&item.kind, &self.namespace, name, &options);
            match gone.await {
                Ok(Deletion::Accepted | Deletion::Gone) => {}
                Err(error) => deleted = deleted.and(Err(error)),
            }
        }
        deleted
    }
}

impl Item {
    /// Kind and name in messages (`service/blue-lb-1a2b3c4d`).
    pub(crate) fn label(&self) -> String {
        self.kind.object(self.meta.name())
    }
}
