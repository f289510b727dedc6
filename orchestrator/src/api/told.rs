//! Events that record the author of changes that do not increment the generation.

use std::sync::Arc;

use drover_cluster::{Cluster, events::sign};
use drover_core::Reason;
use drover_planner::Plan;
use drover_proto::orchestrator::v1 as pb;
use drover_store::NewEvent;

use super::Api;

/// Maximum number of retries after a conflict with a reconcile pass.
const MAX_TURNS: usize = 16;

impl Api {
    /// Records the author of a change as an event, if known. The change itself is durable already: if the event cannot
    /// be stored, only the event is lost, and the audit log still has the author.
    pub(super) async fn tell(
        &self,
        cluster: &Arc<Cluster>,
        reason: &str,
        words: String,
        of: impl FnOnce(&mut NewEvent),
    ) {
        if self.record.author().is_empty() {
            return;
        }
        let now = self.shared.clock.now();
        let mut event = NewEvent {
            time_ms: i64::try_from(now).unwrap_or(i64::MAX),
            severity: pb::EventSeverity::Info.into(),
            reason: reason.to_owned(),
            message: words,
            count: 1,
            ..NewEvent::default()
        };
        of(&mut event);
        sign(&mut event, self.record.author());
        for _ in 0..MAX_TURNS {
            let mut step = cluster.lock().encode_step(&[], &[], now);
            (step.uid, step.expect_desired) = (cluster.uid(), None);
            step.events = vec![event.clone()];
            let plan = Plan::default();
            let committer = &self.shared.committer;
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
