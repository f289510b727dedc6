//! Brings memory up to what the store has: after a step, after a deletion, and after a write with an unknown outcome.

use std::sync::Arc;

use bytes::Bytes;
use drover_cluster::{Cluster, ClusterState, Resolved, Stepped, codec};
use drover_core::{Error, Millis, Reason, Result};
use drover_planner::Plan;
use drover_platforms::Platforms;
use drover_probes::Probes;
use drover_store::{Clock, Desired, DigestKey, Lane, Step, StepDone, Store, Versioned};
use uuid::Uuid;

use crate::{records::Records, tombstones::Tombstones};

/// Takes into memory what has become durable, with what follows from it for probes, platforms and readers.
pub(crate) struct Committer {
    pub(crate) store: Arc<Store>,
    pub(crate) records: Arc<Records>,
    pub(crate) digests: Arc<DigestKey>,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) probes: Arc<Probes>,
    pub(crate) clock: Arc<Clock>,
}

impl Committer {
    /// Makes a step durable that was encoded for this plan, and applies it to memory.
    ///
    /// # Errors
    /// Those of the store; `Conflict` if something else of the cluster was stored meanwhile.
    pub(crate) async fn commit(
        &self,
        cluster: &Cluster,
        step: Step,
        plan: &Plan,
        bodies: Vec<(Uuid, Bytes)>,
        now: Millis,
    ) -> Result<()> {
        let done = self.records.step(step, Lane::Bulk).await?;
        self.apply(cluster, plan, bodies, done, now);
        Ok(())
    }

    /// Applies a durable step to memory.
    pub(crate) fn apply(
        &self,
        cluster: &Cluster,
        plan: &Plan,
        bodies: Vec<(Uuid, Bytes)>,
        done: StepDone,
        now: Millis,
    ) {
        let revision = done.revision;
        let mut inner = cluster.lock();
        let Stepped {
            counts: change,
            probe,
            backed_off,
        } = inner.commit(plan, bodies, done, now);
        for platform in backed_off {
            let platform = platform.to_string();
            metrics::counter!("drover_back_offs_total", "platform" => platform).increment(1);
        }
        for one in probe {
            self.probes.track(&mut inner, &one.group, one.slot);
        }
        self.records.changed(cluster, &mut inner);
        self.records.wrote(revision);
        drop(inner);
        self.platforms.count(&change);
    }

    /// Reloads a cluster after a step that was not stored, or may not have been.
    ///
    /// # Errors
    /// That of the step, unless another plan may do better at once. A store that takes no steps may well answer reads: whoever
    /// repeats a step then without a pause does nothing else.
    pub(crate) async fn refused(&self, cluster: &Cluster, error: Error) -> Result<()> {
        match error.reason() {
            Reason::Conflict => self.reload(cluster).await,
            Reason::Unavailable => {
                let known = cluster.lock().head().revision;
                self.reload(cluster).await?;
                let now = cluster.lock();
                if now.is_finished() || now.head().revision > known {
                    // It was stored.
                    return Ok(());
                }
                Err(error)
            }
            _ => Err(error),
        }
    }

    /// Reloads a cluster from the store after a step with an unknown outcome.
    pub(crate) async fn reload(&self, cluster: &Cluster) -> Result<()> {
        let Some(fresh) = self.records.read_again(cluster.uid()).await? else {
            let mut inner = cluster.lock();
            let gone = inner.finish();
            // The cluster was deleted, but the response was lost. Nodes of it that show up late must be recognized all
            // the same.
            let (used, next_sequence) = remembered(&inner);
            let now = self.clock.now();
            (self.tombstones).add(cluster.uid(), cluster.name(), next_sequence, now, used);
            self.tombstones.inherit(inner.state(), now);
            self.records.remove(cluster);
            self.records.changed(cluster, &mut inner);
            drop(inner);
            self.platforms.count(&gone);
            return Ok(());
        };
        let mut inner = cluster.lock();
        let change = inner.replace(fresh);
        self.probes.track_all(&mut inner);
        self.records.changed(cluster, &mut inner);
        drop(inner);
        self.platforms.count(&change);
        Ok(())
    }

    /// Reloads the desired state from the store: a change with an unknown outcome was made, or is not in memory yet.
    pub(crate) async fn reload_desired(&self, cluster: &Cluster) -> Result<()> {
        let stored = self.store.desired(cluster.uid()).await?;
        self.take_desired(cluster, stored).await
    }

    /// The same for a change of which some server of the store may still make what it had not made when it was asked.
    pub(crate) async fn settle_desired(&self, cluster: &Cluster) -> Result<()> {
        // A store that takes no changes may well answer reads.
        self.reload_desired(cluster).await?;
        let stored = self.store.settled_desired(cluster.uid()).await?;
        self.take_desired(cluster, stored).await
    }

    async fn take_desired(
        &self,
        cluster: &Cluster,
        stored: Option<Versioned<Desired>>,
    ) -> Result<()> {
        let Some(desired) = stored else {
            return self.reload(cluster).await;
        };
        let digests = self.digests.of_cluster(cluster.uid());
        let spec = Arc::new(Resolved::from_stored(&desired.value.spec, &digests)?);
        let mut inner = cluster.lock();
        if desired.revision > inner.desired().revision {
            let revision = desired.revision;
            inner.desire(desired, Some(spec));
            self.probes.track_all(&mut inner);
            self.records.changed(cluster, &mut inner);
            self.records.wrote(revision);
        }
        Ok(())
    }
}

/// The backends and sequences that the tombstone keeps to recognize nodes that show up late, and the next sequence,
/// which no request of the cluster has used.
pub(crate) fn remembered(inner: &ClusterState) -> (codec::UsedList, u64) {
    let used = inner.state().used.iter();
    let used = used.map(|(platform, uid)| codec::Used {
        platform: platform.to_string(),
        uid: uid.to_string(),
    });
    let kept = codec::UsedList {
        used: used.collect(),
        generation: inner.desired().value.generation,
        skipped: inner.state().skipped.bounds(),
    };
    (kept, inner.state().next_sequence)
}
