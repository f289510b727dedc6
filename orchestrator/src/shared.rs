//! State shared by all parts of the orchestrator.

use std::{fmt, sync::Arc};

use drover_cluster::{Cluster, ClusterState, Clusters, Fresh, Interner};
use drover_core::{Millis, Result, Urgency};
use drover_executor::{Executor, Hooks};
use drover_platforms::{Platforms, Registered};
use drover_probes::Probes;
use drover_secrets::Vault;
use drover_store::{Clock, ClusterRow, DigestKey, Revision, Shards, Store};
use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    changes::Changes, gauges::Gauges, limits::Limits, locks::Locks, queue::Queue,
    tombstones::Tombstones, waiter::Waiters,
};

/// The state of the orchestrator.
pub(crate) struct Shared {
    pub(crate) clock: Arc<Clock>,
    pub(crate) store: Arc<Store>,
    pub(crate) shards: Shards,
    pub(crate) interner: Arc<Interner>,
    pub(crate) queue: Queue,
    pub(crate) clusters: Arc<Clusters>,
    /// Held while the desired state of a cluster is changed, so that concurrent edits do not keep conflicting.
    pub(crate) changing: Locks,
    /// Held by a caller that requested a pass and waits for its end.
    pub(crate) reconciling: Locks,
    pub(crate) waiters: Waiters,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) tombstones: Tombstones,
    /// Infrastructure remnants of deleted clusters.
    pub(crate) leaks: crate::resources::Leaks,
    pub(crate) changes: Arc<Changes>,
    pub(crate) probes: Arc<Probes>,
    pub(crate) executor: Executor,
    pub(crate) limits: Limits,
    pub(crate) vault: Arc<Vault>,
    /// Write-locked while a secret is changed, read-locked while something that refers to a secret is stored.
    pub(crate) secrets_changing: tokio::sync::RwLock<()>,
    /// Key of the digests that are shown.
    pub(crate) digests: Arc<DigestKey>,
    pub(crate) gauges: Gauges,
    pub(crate) tasks: TaskTracker,
    /// Requests a graceful end of tasks.
    pub(crate) stop: CancellationToken,
    /// Aborts tasks immediately.
    pub(crate) kill: CancellationToken,
    /// Revision of the latest change that is visible in memory.
    pub(crate) written: Mutex<Revision>,
    /// Whether the store is in touch.
    pub(crate) readiness: tokio::sync::watch::Sender<drover_server::Readiness>,
    pub(crate) space: crate::space::Space,
    pub(crate) hooks: Hooks,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("store", &self.store.id())
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Decodes a cluster from the store.
    pub(crate) fn read(&self, row: ClusterRow) -> Result<Cluster> {
        let first = self.shards.of(row.uid).first_sequence();
        Cluster::load(row, first, &self.interner, &self.digests)
    }

    /// Decodes what a cluster in memory is replaced by.
    pub(crate) fn read_again(&self, row: ClusterRow) -> Result<Fresh> {
        let first = self.shards.of(row.uid).first_sequence();
        Fresh::load(row, first, &self.interner, &self.digests)
    }

    pub(crate) fn add(&self, cluster: Cluster) -> Arc<Cluster> {
        let cluster = self.clusters.add(cluster);
        self.gauges.changed(cluster.uid());
        cluster
    }

    /// Forgets a cluster whose record was deleted.
    pub(crate) fn drop_cluster(&self, cluster: &Cluster) {
        self.clusters.remove(cluster);
        self.gauges.changed(cluster.uid());
    }

    pub(crate) fn platform(&self, name: &str) -> Option<Arc<Registered>> {
        self.platforms.get(name)
    }

    /// Schedules every cluster that names or uses a platform, first those of which it has shown something before it could
    /// be believed.
    pub(crate) fn wake_users(&self, platform: &str, urgency: Urgency) {
        if let Some(registered) = self.platform(platform) {
            self.wake_held(&registered);
        }
        for cluster in self.clusters.users(platform) {
            // Without a trace: the platform's state concerns all of them, whichever call noticed it first.
            self.queue.push_for(cluster.uid(), urgency, None);
            self.gauges.changed(cluster.uid());
        }
    }

    /// Schedules the clusters of which a platform has shown something before it was visible, if it is now.
    pub(crate) fn wake_held(&self, registered: &Registered) {
        if registered.platform.is_visible(self.now()) {
            for (cluster, urgency) in registered.take_held() {
                self.queue.push_for(cluster, urgency, None);
            }
        }
    }

    /// Waits until streams must end: the process stops, or what it shows may be of the past.
    pub(crate) fn not_to_be_believed(&self) -> impl Future<Output = ()> + Send + use<> {
        let (stop, mut readiness) = (self.stop.clone(), self.readiness.subscribe());
        async move {
            let out_of_touch = readiness.wait_for(|now| *now != drover_server::Readiness::Ready);
            tokio::select! {
                () = stop.cancelled() => {}
                _ = out_of_touch => {}
            }
        }
    }

    /// Starts a task that the shutdown waits for, and aborts at the end of the grace period.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let kill = self.kill.clone();
        self.tasks.spawn(async move {
            kill.run_until_cancelled_owned(task).await;
        });
    }

    /// Notes a change of a cluster that is visible to readers.
    pub(crate) fn changed(&self, cluster: &Cluster, inner: &mut ClusterState) {
        inner.touch();
        self.changes.cluster(cluster.uid());
        self.gauges.changed(cluster.uid());
    }

    pub(crate) fn wrote(&self, revision: Revision) {
        let mut written = self.written.lock();
        *written = (*written).max(revision);
    }

    /// The revision that every read from memory reflects at least.
    pub(crate) fn revision(&self) -> Revision {
        *self.written.lock()
    }

    /// Waits until memory reflects a revision.
    pub(crate) async fn reach(&self, revision: Option<Revision>) -> Result<()> {
        match revision {
            // Writes of this replica are in memory before their revision is returned.
            Some(revision) if revision > *self.written.lock() => {
                self.store.wait_revision(revision).await
            }
            _ => Ok(()),
        }
    }
}
