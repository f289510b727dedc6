//! Changes of the desired state of clusters, and who made them.

use std::sync::Arc;

use drover_cluster::{Cluster, Resolved, events::sign};
use drover_core::{Reason, Result, Urgency};
use drover_executor::{Hooks, Point};
use drover_planner::Plan;
use drover_probes::Probes;
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Along, Clock, Desired, NewEvent, Store, Versioned};
use tokio::sync::OwnedMutexGuard;

use super::{
    access::{Access, per_call},
    revisions::Revisions,
};
use crate::{
    commit::Committer, doubt, locks::Locks, planning::Planner, queue::Queue, records::Records,
    tasks::Tasks,
};

/// Maximum number of retries after a conflict with a reconcile pass.
const MAX_TURNS: usize = 16;

/// Makes changes durable, one at a time for each cluster.
#[derive(Clone)]
pub(crate) struct Editor {
    pub(crate) access: Access,
    pub(crate) changing: Arc<Locks>,
    pub(crate) store: Arc<Store>,
    pub(crate) revisions: Revisions,
    pub(crate) records: Arc<Records>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) planner: Planner,
    pub(crate) probes: Arc<Probes>,
    pub(crate) queue: Queue,
    pub(crate) tasks: Tasks,
    pub(crate) clock: Arc<Clock>,
    pub(crate) hooks: Hooks,
}

per_call!(Editor: access);

impl Editor {
    /// Held while the desired state of a cluster is changed, so that concurrent edits do not keep conflicting.
    pub(super) async fn lock(&self, cluster: &Cluster) -> OwnedMutexGuard<()> {
        self.changing.lock(cluster.uid()).await
    }

    /// Makes a changed desired state durable, then applies it in memory.
    pub(super) async fn store(
        &self,
        cluster: &Arc<Cluster>,
        desired: Versioned<Desired>,
        spec: Option<Arc<Resolved>>,
    ) -> Result<u64> {
        let former = self.revisions.replaced(cluster, &desired.value).await?;
        let along = Along {
            former,
            ..Along::default()
        };
        self.store_with(cluster, desired, spec, along).await
    }

    /// Like [`Self::store`], with all that is stored and deleted along with it.
    pub(super) async fn store_with(
        &self,
        cluster: &Arc<Cluster>,
        desired: Versioned<Desired>,
        spec: Option<Arc<Resolved>>,
        along: Along,
    ) -> Result<u64> {
        let before = cluster.lock().desired().value.clone();
        self.access.record.generation(desired.value.generation);
        if before == desired.value {
            return Ok(self.records.revision());
        }
        let mut desired = desired;
        let author = || self.access.record.author().to_owned();
        if before.generation != desired.value.generation {
            desired.value.author = author();
        }
        if before.paused != desired.value.paused {
            desired.value.pause_author = author();
        }
        self.hooks.reach(Point::BeforeApply).await;
        let value = desired.value.clone();
        let stored = self
            .store
            .update_desired_with(cluster.uid(), desired.revision, value, along)
            .await;
        let revision = match stored {
            Ok(revision) => revision,
            Err(error) => {
                // The change may be durable all the same, or a concurrent one is: memory must show the stored state.
                let read = self.committer.reload_desired(cluster).await;
                if error.reason() == Reason::Unavailable || read.is_err() {
                    self.tasks
                        .spawn_until_stop(self.clone().settle(cluster.clone()));
                }
                return Err(error);
            }
        };
        self.hooks.reach(Point::AfterApply).await;
        let mut inner = cluster.lock();
        let changed = spec.is_some();
        let desired = Versioned {
            value: desired.value,
            revision,
        };
        inner.desire(desired, spec);
        if changed {
            self.probes.track_all(&mut inner);
        }
        // Readers and the next apply must not take the groups for such without templates until the next pass.
        let suggestions = self.planner.suggestions(&inner);
        inner.follow_suggestions(suggestions);
        self.records.changed(cluster, &mut inner);
        self.records.wrote(revision);
        drop(inner);
        self.queue.push(cluster.uid(), Urgency::Bulk);
        Ok(revision)
    }

    /// Has memory show what became of a change of unknown outcome, as soon as the store says so.
    async fn settle(self, cluster: Arc<Cluster>) {
        loop {
            // An edit finds out what became of it by what it has written, so nothing is written in between.
            let change = self.lock(&cluster).await;
            let settled = self.committer.settle_desired(&cluster).await;
            drop(change);
            let Err(error) = settled else {
                return self.queue.push(cluster.uid(), Urgency::Bulk);
            };
            if !doubt::may_end("cluster", cluster.name(), &error).await {
                return;
            }
        }
    }

    /// Records the author of a change as an event, if known. The change itself is durable already: if the event cannot
    /// be stored, only the event is lost, and the audit log still has the author.
    pub(super) async fn tell(
        &self,
        cluster: &Arc<Cluster>,
        reason: &str,
        words: String,
        of: impl FnOnce(&mut NewEvent),
    ) {
        if !self.access.record.author().is_empty() {
            self.tell_always(cluster, reason, words, of).await;
        }
    }

    /// Like [`Self::tell`], also if nobody knows who made the change.
    pub(super) async fn tell_always(
        &self,
        cluster: &Arc<Cluster>,
        reason: &str,
        words: String,
        of: impl FnOnce(&mut NewEvent),
    ) {
        let now = self.clock.now();
        let mut event = NewEvent {
            time_ms: i64::try_from(now).unwrap_or(i64::MAX),
            severity: pb::EventSeverity::Info.into(),
            reason: reason.to_owned(),
            message: words,
            count: 1,
            ..NewEvent::default()
        };
        of(&mut event);
        sign(&mut event, self.access.record.author());
        for _ in 0..MAX_TURNS {
            let mut step = cluster.lock().encode_step(&[], &[], now);
            (step.uid, step.expect_desired) = (cluster.uid(), None);
            step.events = vec![event.clone()];
            let plan = Plan::default();
            let committer = &self.committer;
            match committer
                .commit(cluster, step, &plan, Vec::new(), now)
                .await
            {
                Ok(()) => return,
                Err(error) if error.reason() == Reason::Conflict => {
                    tokio::time::sleep(super::SHORT_WAIT).await;
                }
                Err(error) => {
                    tracing::warn!(cluster = %cluster.name(), reason, %error, "an event could not be stored");
                    return;
                }
            }
        }
        tracing::warn!(cluster = %cluster.name(), reason, "an event was not stored: the cluster changes too fast");
    }

    /// Like [`Self::tell`], for a node.
    pub(super) async fn tell_of_node(
        &self,
        cluster: &Arc<Cluster>,
        slot: u64,
        reason: &str,
        words: &str,
    ) {
        let found = {
            let inner = cluster.lock();
            let node = inner.state().node(slot);
            node.map(|node| (node.id(cluster.uid()), node.name(), node.group.to_string()))
        };
        let Some((id, name, group)) = found else {
            return;
        };
        self.tell(cluster, reason, format!("{name} {words}"), |event| {
            (event.node, event.group) = (Some(id), Some(group));
        })
        .await;
    }
}
