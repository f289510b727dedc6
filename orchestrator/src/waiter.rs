//! The result of a reconcile pass, for the caller that requested it.

use std::{collections::HashMap, ops::Deref, sync::Arc};

use drover_cluster::{CallEnd, Subject};
use drover_core::{Error, node::Role};
use drover_planner::{Op, Plan, State};
use drover_proto::orchestrator::v1 as pb;
use parking_lot::Mutex;
use tokio::sync::Notify;
use uuid::Uuid;

/// Follows one pass and its calls.
#[derive(Debug, Default)]
pub(crate) struct ReconcileWaiter {
    seen: Mutex<Seen>,
    changed: Notify,
}

/// The progress so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// `None` until the pass has planned.
    pub(crate) plan: Option<pb::Plan>,
    /// The result of each action.
    pub(crate) results: Vec<Outcome>,
    /// Why the plan could not be made durable.
    pub(crate) broken: Option<Error>,
    planned: bool,
}

/// The result of an action.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    Failed(Error),
    /// The call for this subject has not returned yet.
    Open(Subject),
}

/// A plan with the results of its actions.
#[derive(Debug)]
pub(crate) struct Planned {
    shown: pb::Plan,
    results: Vec<Outcome>,
}

impl Planned {
    /// `shown` is the plan in the response; both were made from `state`.
    pub(crate) fn new(plan: &Plan, state: &State, shown: pb::Plan) -> Self {
        let new = plan.ops.iter().filter_map(|op| match op {
            Op::Request { request, .. } => Some(Outcome::Open(Subject::Request(request.id))),
            Op::Remove { slot, .. }
                if state.node(*slot).is_some_and(|node| node.node_id.is_some()) =>
            {
                Some(Outcome::Open(Subject::Slot(*slot)))
            }
            Op::RoleChange { slot, role } if *role == Role::Promoting => {
                Some(Outcome::Open(Subject::Slot(*slot)))
            }
            Op::TakeOrphan { node } if node.removal.is_none() && !node.is_adopting() => {
                Some(Outcome::Done)
            }
            Op::TakeOrphan { node } => Some(Outcome::Open(Subject::Slot(node.slot))),
            Op::Resource {
                to: Some(record),
                change,
                ..
            } if change.is_action() => Some(Outcome::Open(Subject::Resource(record.sequence))),
            Op::Remove { .. } | Op::RecordDropped { .. } | Op::Close { .. } => Some(Outcome::Done),
            _ => None,
        });
        // Requests that are resent are listed after new ones.
        let again = plan.ops.iter().filter_map(|op| match op {
            Op::Attempt { request, .. } => Some(Outcome::Open(Subject::Request(*request))),
            _ => None,
        });
        Self {
            shown,
            results: new.chain(again).collect(),
        }
    }
}

impl ReconcileWaiter {
    /// Adds a plan that is carried out in this pass.
    pub(crate) fn plan(&self, planned: Planned) {
        let mut seen = self.seen.lock();
        if seen.planned {
            return;
        }
        seen.results.extend(planned.results);
        match &mut seen.plan {
            None => seen.plan = Some(planned.shown),
            Some(before) => {
                before.actions.extend(planned.shown.actions);
                before.omitted += planned.shown.omitted;
            }
        }
    }

    /// Marks the end of the pass; its calls may still be in flight.
    pub(crate) fn planned(&self, broken: Option<Error>) {
        let mut seen = self.seen.lock();
        if seen.plan.is_some() || broken.is_some() {
            seen.planned = true;
            seen.broken = broken;
        }
        drop(seen);
        self.changed.notify_one();
    }

    /// Records the result of a call.
    pub(crate) fn answered(&self, about: Subject, error: Option<&Error>) {
        for result in &mut self.seen.lock().results {
            if matches!(result, Outcome::Open(open) if *open == about) {
                *result = error.map_or(Outcome::Done, |error| Outcome::Failed(error.clone()));
            }
        }
        self.changed.notify_one();
    }

    /// Waits until all calls have returned.
    pub(crate) async fn ended(&self) {
        loop {
            {
                let seen = self.seen.lock();
                if seen.planned
                    && !seen
                        .results
                        .iter()
                        .any(|result| matches!(result, Outcome::Open(_)))
                {
                    return;
                }
            }
            self.changed.notified().await;
        }
    }

    pub(crate) fn take(&self) -> Seen {
        std::mem::take(&mut *self.seen.lock())
    }
}

/// Callers that requested a pass and wait for its result, by cluster.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<HashMap<Uuid, Arc<ReconcileWaiter>>>);

/// A caller that waits. Dropped, it waits no longer.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    cluster: Uuid,
    waiter: Arc<ReconcileWaiter>,
}

impl Deref for Waiting<'_> {
    type Target = ReconcileWaiter;

    fn deref(&self) -> &ReconcileWaiter {
        &self.waiter
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiters.0.lock().remove(&self.cluster);
    }
}

impl Waiters {
    /// Begins to wait for the next pass of a cluster. One caller waits at a time.
    pub(crate) fn add(&self, cluster: Uuid) -> Waiting<'_> {
        let waiter = Arc::new(ReconcileWaiter::default());
        self.0.lock().insert(cluster, waiter.clone());
        Waiting {
            waiters: self,
            cluster,
            waiter,
        }
    }

    pub(crate) fn of(&self, cluster: Uuid) -> Option<Arc<ReconcileWaiter>> {
        self.0.lock().get(&cluster).cloned()
    }

    /// Records how a call of a cluster ended.
    pub(crate) fn call_ended(&self, cluster: Uuid, end: &CallEnd) {
        if let Some(waiter) = self.of(cluster)
            && let Some((subject, error)) = end.result()
        {
            waiter.answered(subject, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_cluster::fixture;
    use drover_core::{NodeState, Reason, node::RemovalReason};

    use super::*;

    #[tokio::test]
    async fn whoever_asked_for_the_pass_hears_how_its_calls_ended() {
        let cluster = Uuid::from_u128(1);
        let mut state = State::default();
        state.nodes.push(fixture::node(7, NodeState::Ready));
        let remove = Op::Remove {
            slot: 7,
            reason: RemovalReason::Surplus,
            retain: false,
        };
        let plan = Plan {
            ops: vec![remove],
            ..Plan::default()
        };
        let waiters = Waiters::default();
        let waiter = waiters.add(cluster);
        waiter.plan(Planned::new(&plan, &state, pb::Plan::default()));
        waiter.planned(None);
        let end = CallEnd::Deprovision {
            slot: 7,
            grace: None,
            answer: Err(Error::new(Reason::Unavailable, "no")),
        };
        waiters.call_ended(cluster, &end);
        waiter.ended().await;
        let seen = waiter.take();
        assert!(matches!(&seen.results[..], [Outcome::Failed(error)] if error.message() == "no"));
        drop(waiter);
        assert!(waiters.of(cluster).is_none(), "nobody waits any more");
    }
}
