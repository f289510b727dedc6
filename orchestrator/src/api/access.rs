//! What of the clusters a caller sees and may change. What is outside is not there; changing it is forbidden.

use std::{collections::BTreeMap, sync::Arc};

use drover_core::{Error, Reason, Result};
use drover_proto::orchestrator::v1 as pb;
use drover_server::{CallRecord, Caller};
use tonic::Request;

use super::Api;
use crate::cluster::{Cluster, ClusterState};

impl Api {
    /// The same, for who sent a request.
    pub(super) fn of<T>(&self, request: &Request<T>) -> Self {
        Self {
            shared: self.shared.clone(),
            caller: Caller::of(request),
            record: CallRecord::of(request),
        }
    }

    /// Whether the caller sees a cluster.
    pub(super) fn sees(&self, cluster: &Cluster, inner: &ClusterState) -> bool {
        self.caller
            .sees(&cluster.name, Some(&inner.desired.value.labels))
    }

    /// Whether the caller sees whatever has this name, living or gone.
    pub(super) fn sees_name(&self, name: &str) -> bool {
        match self.shared.find(name) {
            Ok(cluster) => self.sees(&cluster, &cluster.inner.lock()),
            // Labels are forgotten with the cluster.
            Err(_) => self.caller.sees(name, None),
        }
    }

    /// Labels of what bears this name and owner: those of a living cluster, if it is its own. An earlier one of the name
    /// may have had others.
    pub(super) fn labels_of(&self, name: &str, owner: &str) -> Option<BTreeMap<String, String>> {
        let cluster = self.shared.find(name).ok()?;
        let own = cluster.uid.to_string() == owner;
        own.then(|| cluster.inner.lock().desired.value.labels.clone())
    }

    /// A cluster to look at. Errors: `NotFound`, also if the caller does not see it.
    pub(super) fn find(&self, name: &str) -> Result<Arc<Cluster>> {
        self.caller.about("cluster", name);
        let cluster = self.shared.find(name)?;
        let seen = self.sees(&cluster, &cluster.inner.lock());
        if seen {
            Ok(cluster)
        } else {
            // As if it were not there, to the letter.
            Err(Error::not_found("cluster", name))
        }
    }

    /// A cluster to change. Errors: `PermissionDenied`, whether it is there or not; `NotFound`.
    pub(super) fn find_to_change(&self, name: &str) -> Result<Arc<Cluster>> {
        self.caller.about("cluster", name);
        let found = self.shared.find(name);
        let labels = found
            .as_ref()
            .ok()
            .map(|cluster| cluster.inner.lock().desired.value.labels.clone());
        self.may_change(name, labels.as_ref())?;
        found
    }

    /// Whether the caller may change the cluster of a document, as it is and as it would be.
    pub(super) fn may_change_as(
        &self,
        document: &pb::Cluster,
        cluster: Option<&Arc<Cluster>>,
    ) -> bool {
        let labels = cluster.map(|cluster| cluster.inner.lock().desired.value.labels.clone());
        let changes = |labels| self.caller.changes(&document.name, Some(labels));
        changes(&document.labels) && labels.as_ref().is_none_or(changes)
    }

    /// Whether the caller may take over what bears this name and is not ours. Errors: `PermissionDenied`.
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

    /// Whether the caller may change a cluster with these labels. Errors: `PermissionDenied`.
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
