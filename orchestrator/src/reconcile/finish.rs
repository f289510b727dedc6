//! The end of a cluster of which nothing is left anywhere.

use std::sync::Arc;

use drover_cluster::Cluster;
use drover_core::{Millis, Result};
use drover_executor::{Hooks, Point};
use drover_store::{Clock, Head, Revision, Store};
use prost::Message;

use crate::{
    commit::{Committer, remembered},
    queue::Queue,
    records::Records,
    tombstones::Tombstones,
};

/// Replaces the record of a deleted cluster by its tombstone.
pub(crate) struct Finisher {
    pub(crate) store: Arc<Store>,
    pub(crate) records: Arc<Records>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) queue: Queue,
    pub(crate) clock: Arc<Clock>,
    pub(crate) hooks: Hooks,
}

impl Finisher {
    /// Returns `false` if the cluster is to be planned again: something else was stored meanwhile.
    pub(super) async fn finish(
        &self,
        cluster: &Cluster,
        head: Head,
        expect_head: Revision,
        expect_desired: Revision,
        now: Millis,
    ) -> Result<bool> {
        let (used, next_sequence) = remembered(&cluster.lock());
        // The user data is no longer needed. Dropped before the record, so that no secret data is left without a cluster.
        self.store.drop_user_data(cluster.uid()).await?;
        self.store.drop_revisions(cluster.uid()).await?;
        self.hooks.reach(Point::BeforeFinish).await;
        let time = i64::try_from(now).unwrap_or(i64::MAX);
        let event = drover_store::NewEvent {
            time_ms: time,
            severity: drover_proto::orchestrator::v1::EventSeverity::Info.into(),
            reason: "ClusterDeleted".to_owned(),
            message: "is proven absent everywhere".to_owned(),
            count: 1,
            ..drover_store::NewEvent::default()
        };
        let finish = drover_store::Finish {
            uid: cluster.uid(),
            name: cluster.name().to_string(),
            expect_head,
            expect_desired,
            head,
            events: vec![event],
            delete_time_ms: time,
            platforms: used.encode_to_vec().into(),
        };
        match self.records.finish(finish).await {
            Ok(done) => {
                self.hooks.reach(Point::AfterFinish).await;
                let mut inner = cluster.lock();
                inner.finish();
                let tombstones = &self.tombstones;
                tombstones.add(cluster.uid(), cluster.name(), next_sequence, now, used);
                tombstones.inherit(inner.state(), self.clock.now());
                self.records.remove(cluster);
                self.records.changed(cluster, &mut inner);
                self.records.wrote(done.revision);
                drop(inner);
                self.queue.wake(cluster.uid(), None);
                Ok(true)
            }
            Err(error) => self.committer.refused(cluster, error).await.map(|()| false),
        }
    }
}
