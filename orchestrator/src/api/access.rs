//! Access to clusters: what a caller may see and change. Clusters outside of the caller's scope appear not to exist;
//! changing them is forbidden.

use std::{collections::BTreeMap, sync::Arc};

use drover_cluster::{Cluster, ClusterState};
use drover_core::{Error, Reason, Result};
use drover_proto::orchestrator::v1 as pb;
use drover_server::{CallRecord, Caller};
use tonic::Request;

use super::Api;

impl Api {
    /// The same API for the caller of a request.
    pub(super) fn of<T>(&self, request: &Request<T>) -> Self {
        Self {
            shared: self.shared.clone(),
            caller: Caller::of(request),
            record: CallRecord::of(request),
        }
    }

    pub(super) fn sees(&self, cluster: &Cluster, inner: &ClusterState) -> bool {
        self.caller
            .sees(cluster.name(), Some(&inner.desired().value.labels))
    }

    /// Whether the caller sees clusters of this name, existing or deleted.
    pub(super) fn sees_name(&self, name: &str) -> bool {
        match self.shared.clusters.find(name) {
            Ok(cluster) => self.sees(&cluster, &cluster.lock()),
            // The labels of a deleted cluster are not kept.
            Err(_) => self.caller.sees(name, None),
        }
    }

    /// Labels of the objects with this cluster name and owner: those of the existing cluster if it is their owner. An
    /// earlier cluster of that name may have had different labels.
    pub(super) fn labels_of(&self, name: &str, owner: &str) -> Option<BTreeMap<String, String>> {
        let cluster = self.shared.clusters.find(name).ok()?;
        let own = cluster.uid().to_string() == owner;
        own.then(|| cluster.lock().desired().value.labels.clone())
    }

    /// Finds a cluster for reading. Returns `NotFound` also if the caller must not see it.
    pub(super) fn find(&self, name: &str) -> Result<Arc<Cluster>> {
        self.caller.about("cluster", name);
        let cluster = self.shared.clusters.find(name)?;
        let seen = self.sees(&cluster, &cluster.lock());
        if seen {
            Ok(cluster)
        } else {
            // Exactly the same error as for a cluster that does not exist.
            Err(Error::not_found("cluster", name))
        }
    }

    /// Finds a cluster for changing. Returns `PermissionDenied` whether it exists or not, else `NotFound`.
    pub(super) fn find_to_change(&self, name: &str) -> Result<Arc<Cluster>> {
        self.caller.about("cluster", name);
        let found = self.shared.clusters.find(name);
        let labels = found
            .as_ref()
            .ok()
            .map(|cluster| cluster.lock().desired().value.labels.clone());
        self.may_change(name, labels.as_ref())?;
        found
    }

    /// Whether the caller may change the cluster of a document, with both its current and its new labels.
    pub(super) fn may_change_as(
        &self,
        document: &pb::Cluster,
        cluster: Option<&Arc<Cluster>>,
    ) -> bool {
        let labels = cluster.map(|cluster| cluster.lock().desired().value.labels.clone());
        let changes = |labels| self.caller.changes(&document.name, Some(labels));
        changes(&document.labels) && labels.as_ref().is_none_or(changes)
    }

    /// Checks whether the caller may adopt foreign nodes of this cluster name; otherwise `PermissionDenied`.
    pub(super) fn may_adopt(&self, name: &str) -> Result<()> {
        if self.caller.changes_anywhere(name) {
            return Ok(());
        }
        let message = format!(
            "nobody knows the labels of what is there of cluster {name:?}, nor as what it was made: to take it over needs \
             a role for clusters of that name, whatever their labels, platforms and properties"
        );
        Err(Error::new(Reason::PermissionDenied, message).with_resource("cluster", name))
    }

    /// Checks whether the caller may change a cluster with these labels; otherwise `PermissionDenied`.
    pub(super) fn may_change(
        &self,
        name: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Result<()> {
        if self.caller.changes(name, labels) {
            return Ok(());
        }
        let message = format!("cluster {name:?} is outside of what the caller may change");
        Err(Error::new(Reason::PermissionDenied, message).with_resource("cluster", name))
    }
}
