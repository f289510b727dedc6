//! ReconcileCluster: a pass that a caller waits for.

use std::{sync::Arc, time::Duration};

use drover_convert::error::to_rpc_status;
use drover_core::{Error, Reason, Result, Urgency};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Clock, Store};

use super::access::{Access, per_call};
use crate::{
    locks::Locks,
    queue::Queue,
    records::Records,
    status::Viewer,
    tasks::Tasks,
    waiter::{Outcome, Waiters},
};

/// Maximum time that a caller who requested a pass waits for the platforms' responses.
const RECONCILE_WAIT: Duration = Duration::from_secs(10);

/// Requests passes.
#[derive(Clone)]
pub(crate) struct Passes {
    pub(crate) access: Access,
    /// Held by a caller that requested a pass and waits for its end.
    pub(crate) reconciling: Arc<Locks>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) queue: Queue,
    pub(crate) tasks: Tasks,
    pub(crate) store: Arc<Store>,
    pub(crate) records: Arc<Records>,
    pub(crate) viewer: Viewer,
    pub(crate) clock: Arc<Clock>,
}

per_call!(Passes: access);

impl Passes {
    pub(super) async fn reconcile(
        &self,
        request: pb::ReconcileClusterRequest,
    ) -> Result<pb::ReconcileClusterResponse> {
        let cluster = self.access.find_to_change(&request.name)?;
        let _only = self.reconciling.lock(cluster.uid()).await;
        let waiter = {
            let mut inner = cluster.lock();
            if inner.state().paused {
                let message = format!("{} is paused; resume it first", cluster.name());
                let error = Error::new(Reason::ClusterPaused, message);
                return Err(error.with_metadata("cluster", cluster.name()));
            }
            inner.retry_now(request.reset_back_off, self.clock.now());
            self.waiters.add(cluster.uid())
        };
        self.queue.push(cluster.uid(), Urgency::Urgent);
        let ended = tokio::time::timeout(RECONCILE_WAIT, waiter.ended());
        let ended = self.tasks.stop().run_until_cancelled(ended).await;
        let is_stopped = ended.is_none();
        let has_ended = matches!(ended, Some(Ok(())));
        let seen = waiter.take();
        if let Some(error) = seen.broken {
            return Err(error);
        }
        let Some(plan) = seen.plan else {
            if is_stopped && !self.store.info().exclusive {
                return Err(Error::new(
                    Reason::NotLeader,
                    "another replica is about to lead",
                ));
            }
            let message = format!(
                "{} was not planned within {RECONCILE_WAIT:?}; it will be",
                cluster.name()
            );
            return Err(Error::unavailable(message));
        };
        let late = || {
            Error::new(
                Reason::DeadlineExceeded,
                "the platform has not answered yet; the call goes on",
            )
        };
        let results = plan
            .actions
            .iter()
            .zip(seen.results)
            .map(|(action, result)| {
                let error = match result {
                    Outcome::Done => None,
                    Outcome::Failed(error) => Some(error),
                    Outcome::Open(_) => (!has_ended).then(late),
                };
                pb::StepResult {
                    step: action.step.clone(),
                    error: error.as_ref().map(to_rpc_status),
                }
            });
        let results = results.collect();
        Ok(pb::ReconcileClusterResponse {
            results,
            plan: Some(plan),
            cluster: Some(self.viewer.shown(&cluster)),
            revision: self.records.revision(),
        })
    }
}
