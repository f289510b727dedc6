//! The records of clusters: what the store has of them, decoded in memory, and who is told when that changes.

use std::{collections::HashSet, fmt, sync::Arc};

use drover_cluster::{Cluster, ClusterState, Clusters, Fresh, Interner};
use drover_core::Result;
use drover_store::{ClusterRow, DigestKey, Finish, Lane, Revision, Shards, Step, StepDone, Store};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::changes::{Changes, Follower};

/// The clusters in memory, in step with the store.
pub(crate) struct Records {
    store: Arc<Store>,
    shards: Shards,
    interner: Arc<Interner>,
    digests: Arc<DigestKey>,
    clusters: Arc<Clusters>,
    changes: Arc<Changes>,
    /// Clusters that changed since metrics were last counted.
    uncounted: Mutex<HashSet<Uuid>>,
    /// Revision of the latest change that is visible in memory.
    written: Mutex<Revision>,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records")
            .field("store", &self.store.id())
            .finish_non_exhaustive()
    }
}

impl Records {
    pub(crate) fn new(
        store: Arc<Store>,
        shards: Shards,
        interner: Arc<Interner>,
        digests: Arc<DigestKey>,
        clusters: Arc<Clusters>,
    ) -> Self {
        let all = clusters.all();
        let uncounted = all.iter().map(|cluster| cluster.uid()).collect();
        Self {
            store,
            shards,
            interner,
            digests,
            clusters,
            changes: Arc::default(),
            uncounted: Mutex::new(uncounted),
            written: Mutex::new(0),
        }
    }

    pub(crate) fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    /// The shards of the store that this process owns.
    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Decodes a cluster from the store.
    pub(crate) fn decode(&self, row: ClusterRow) -> Result<Cluster> {
        let first = self.shards.of(row.uid).first_sequence();
        Cluster::load(row, first, &self.interner, &self.digests)
    }

    /// Reads what a cluster in memory is replaced by. `None` if it has no record any more.
    pub(crate) async fn read_again(&self, uid: Uuid) -> Result<Option<Fresh>> {
        let Some(row) = self.store.load_cluster(uid).await? else {
            return Ok(None);
        };
        let first = self.shards.of(uid).first_sequence();
        Fresh::load(row, first, &self.interner, &self.digests).map(Some)
    }

    /// Makes a step durable. It is not in memory yet.
    pub(crate) async fn step(&self, step: Step, lane: Lane) -> Result<StepDone> {
        let owned = self.shards.of(step.uid);
        self.store.step(owned, step, lane).await
    }

    /// Makes the end of a cluster durable. It is not in memory yet.
    pub(crate) async fn finish(&self, finish: Finish) -> Result<StepDone> {
        let owned = self.shards.of(finish.uid);
        self.store.finish_cluster(owned, finish).await
    }

    pub(crate) fn add(&self, cluster: Cluster) -> Arc<Cluster> {
        let cluster = self.clusters.add(cluster);
        self.recount(cluster.uid());
        cluster
    }

    /// Forgets a cluster whose record was deleted.
    pub(crate) fn remove(&self, cluster: &Cluster) {
        self.clusters.remove(cluster);
        self.recount(cluster.uid());
    }

    /// Notes a change of a cluster that is visible to readers.
    pub(crate) fn changed(&self, cluster: &Cluster, state: &mut ClusterState) {
        state.touch();
        self.changes.cluster(cluster.uid());
        self.recount(cluster.uid());
    }

    /// Follows the changes from now on.
    pub(crate) fn follow(&self) -> Follower {
        self.changes.follow()
    }

    /// Has a cluster counted again for metrics.
    pub(crate) fn recount(&self, cluster: Uuid) {
        self.uncounted.lock().insert(cluster);
    }

    /// Clusters that are to be counted again for metrics.
    pub(crate) fn take_uncounted(&self) -> HashSet<Uuid> {
        std::mem::take(&mut *self.uncounted.lock())
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
            Some(revision) if revision > self.revision() => {
                self.store.wait_revision(revision).await
            }
            _ => Ok(()),
        }
    }
}
