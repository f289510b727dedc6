//! Access to clusters: what a caller may see and change. Clusters outside of the caller's scope appear not to exist;
//! changing them is forbidden.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drover_cluster::{Cluster, ClusterState, Clusters};
use drover_core::{Error, Reason, Result, Sym, spec::SecretRef};
use drover_platforms::{Platforms, Registered};
use drover_proto::orchestrator::v1 as pb;
use drover_server::{CallRecord, Caller};
use tonic::Request;

use super::places::denied;

/// What a caller may see and change.
#[derive(Clone)]
pub(crate) struct Access {
    clusters: Arc<Clusters>,
    platforms: Arc<Platforms>,
    pub(super) caller: Caller,
    /// Audit record of the call.
    pub(super) record: CallRecord,
}

/// Something that answers calls, each with a copy that knows its caller.
pub(super) trait PerCall: Clone {
    fn set_access(&mut self, access: &Access);

    /// The copy for the caller of a request.
    fn of<T>(&self, own: &Access, request: &Request<T>) -> Self {
        let mut copy = self.clone();
        copy.set_access(&Access {
            caller: Caller::of(request),
            record: CallRecord::of(request),
            ..own.clone()
        });
        copy
    }
}

impl PerCall for Access {
    fn set_access(&mut self, access: &Access) {
        self.clone_from(access);
    }
}

/// Implements [`PerCall`] by the parts that check the caller.
macro_rules! per_call {
    ($type:ty: $($part:ident),+) => {
        impl super::access::PerCall for $type {
            fn set_access(&mut self, access: &super::access::Access) {
                $(super::access::PerCall::set_access(&mut self.$part, access);)+
            }
        }
    };
}
pub(super) use per_call;

impl Access {
    /// Of nobody: whoever is not told who calls refuses.
    pub(crate) fn closed(clusters: Arc<Clusters>, platforms: Arc<Platforms>) -> Self {
        Self {
            clusters,
            platforms,
            caller: Caller::nobody(),
            record: CallRecord::default(),
        }
    }

    pub(super) fn sees(&self, cluster: &Cluster, inner: &ClusterState) -> bool {
        self.caller
            .sees(cluster.name(), Some(&inner.desired().value.labels))
    }

    /// Whether the caller sees clusters of this name, existing or deleted.
    pub(super) fn sees_name(&self, name: &str) -> bool {
        match self.clusters.find(name) {
            Ok(cluster) => self.sees(&cluster, &cluster.lock()),
            // The labels of a deleted cluster are not kept.
            Err(_) => self.caller.sees(name, None),
        }
    }

    /// Labels of the objects with this cluster name and owner: those of the existing cluster if it is their owner. An
    /// earlier cluster of that name may have had different labels.
    pub(super) fn labels_of(&self, name: &str, owner: &str) -> Option<BTreeMap<String, String>> {
        let cluster = self.clusters.find(name).ok()?;
        let own = cluster.uid().to_string() == owner;
        own.then(|| cluster.lock().desired().value.labels.clone())
    }

    /// Finds a cluster for reading. Returns `NotFound` also if the caller must not see it.
    pub(super) fn find(&self, name: &str) -> Result<Arc<Cluster>> {
        self.caller.about("cluster", name);
        let cluster = self.clusters.find(name)?;
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
        let found = self.clusters.find(name);
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

    /// All platforms, by name. Copied, so that reading clusters and registering platforms do not block each other.
    pub(super) fn registered(&self) -> Vec<(Sym, Arc<Registered>)> {
        let platforms = self.platforms.read();
        platforms
            .iter()
            .map(|(name, registered)| (name.clone(), registered.clone()))
            .collect()
    }

    /// Finds a platform for reading. Returns `NotFound` also if no grant of the caller names it.
    pub(super) fn find_platform(&self, name: &str) -> Result<Arc<Registered>> {
        if !self.caller.sees_platform(name) {
            return Err(Error::not_found("platform", name));
        }
        self.platforms.require(name)
    }

    /// Checks whether the caller may change what a cluster has on a platform; otherwise `PermissionDenied`.
    pub(super) fn may_change_on(
        &self,
        platform: &str,
        cluster: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Result<()> {
        if self.caller.changes_on(platform, cluster, labels) {
            return Ok(());
        }
        let why = format!("platform {platform:?} is outside of what the caller may use");
        denied(cluster, BTreeSet::from([("platform".to_owned(), why)]))
    }

    /// Whether the caller may add a reference to a secret: only in a cluster that it may change (`changes`), and only
    /// to a secret whose name is within the pattern of clusters that it may change. Dry runs are no exception, because
    /// they show what the secret results in.
    pub(super) fn may_name(&self, of: &SecretRef, changes: bool) -> Result<()> {
        if changes && self.caller.changes(&of.name, None) {
            return Ok(());
        }
        let message = format!("secret {:?} is outside of what the caller may use", of.name);
        Err(Error::new(Reason::PermissionDenied, message).with_resource("secret", &of.name))
    }
}
