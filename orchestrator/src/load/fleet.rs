//! The clusters that were loaded, and what is to be known of all of them.

use std::sync::Arc;

use drover_cluster::{Cluster, Clusters, Interner, NodeCounts};
use drover_core::{Millis, Result};
use drover_store::{ClusterRow, DigestKey};
use uuid::Uuid;

/// A cluster, and what its nodes say, which is looked at by the thread that has decoded them.
pub(super) struct Loaded {
    cluster: Cluster,
    counts: NodeCounts,
    latest: Millis,
}

impl Loaded {
    /// Decodes a cluster, whose requests are numbered from at least `first`.
    pub(super) fn of(
        row: ClusterRow,
        first: u64,
        interner: &Interner,
        digests: &DigestKey,
    ) -> Result<Self> {
        Cluster::load(row, first, interner, digests).map(Self::from)
    }
}

impl From<Cluster> for Loaded {
    fn from(cluster: Cluster) -> Self {
        let (counts, latest) = {
            let state = cluster.lock();
            (state.counts(), state.latest_time())
        };
        Self {
            cluster,
            counts,
            latest,
        }
    }
}

/// All clusters, with their numbers of nodes.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) counts: NodeCounts,
    /// The latest time that they have named.
    pub(crate) latest: Millis,
}

impl Fleet {
    /// Adds a cluster, or puts it in the place of its former state.
    pub(super) fn put(&mut self, loaded: Loaded) {
        self.remove(loaded.cluster.uid());
        self.counts.change(&loaded.counts);
        self.latest = self.latest.max(loaded.latest);
        self.clusters.add(loaded.cluster);
    }

    pub(super) fn remove(&mut self, uid: Uuid) {
        if let Some(former) = self.clusters.get(uid) {
            let gone = former.lock().counts().until(NodeCounts::default());
            self.counts.change(&gone);
            self.clusters.remove(&former);
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_cluster::fixture;
    use drover_core::NodeState;

    use super::*;

    fn loaded(number: u128, nodes: &[NodeState]) -> Loaded {
        let cluster = fixture::cluster(Uuid::from_u128(number), &format!("c{number}"));
        for (slot, state) in (1..).zip(nodes) {
            fixture::record(&cluster, fixture::node(slot, *state));
        }
        cluster.into()
    }

    #[test]
    fn the_numbers_are_those_of_the_clusters_that_are_there_whatever_they_were_before() {
        let mut fleet = Fleet::default();
        let is = |fleet: &Fleet, total, sick| {
            let mut counted = NodeCounts::default();
            for cluster in fleet.clusters.all() {
                counted.change(&cluster.lock().counts());
            }
            assert_eq!(counted.on("p"), fleet.counts.on("p"));
            assert_eq!(fleet.counts.on("p"), (total, sick));
        };
        fleet.put(loaded(1, &[NodeState::Ready, NodeState::Unhealthy]));
        fleet.put(loaded(2, &[NodeState::Ready]));
        is(&fleet, 3, 1);
        fleet.put(loaded(1, &[NodeState::Ready, NodeState::Ready]));
        is(&fleet, 3, 0);
        let known = fleet.clusters.find("c1").unwrap();
        assert_eq!(
            known.lock().counts().on("p"),
            (2, 0),
            "the latest state counts"
        );
        fleet.remove(Uuid::from_u128(2));
        fleet.remove(Uuid::from_u128(3));
        is(&fleet, 2, 0);
    }

    #[test]
    fn no_time_that_was_named_is_forgotten() {
        let mut fleet = Fleet::default();
        fleet.put(loaded(1, &[NodeState::Ready]));
        let latest = fleet.clusters.find("c1").unwrap().lock().latest_time();
        assert!(latest > 0 && fleet.latest == latest);
        fleet.put(loaded(1, &[]));
        assert_eq!(fleet.latest, latest);
    }
}
