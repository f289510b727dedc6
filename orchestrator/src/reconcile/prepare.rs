//! Plans a cluster, and encodes the step that makes the plan durable.

use std::sync::Arc;

use bytes::Bytes;
use drover_cluster::{Cluster, ClusterState, events, request};
use drover_core::{Millis, Result};
use drover_planner::{Op, Plan};
use drover_platforms::Platforms;
use drover_probes::Probes;
use drover_secrets::Vault;
use drover_store::{Head, Revision, Step};
use uuid::Uuid;

use crate::{
    planning::Planner,
    queue::Queue,
    records::Records,
    status,
    waiter::{Planned, ReconcileWaiter, Waiters},
};

/// A plan and the step that makes it durable.
pub(super) struct Prepared {
    pub(super) plan: Plan,
    pub(super) step: Option<Step>,
    pub(super) bodies: Vec<(Uuid, Bytes)>,
    pub(super) head: Head,
    pub(super) expect_head: Revision,
    pub(super) desired: Revision,
    /// The caller that waits for the result.
    pub(super) waiter: Option<(Arc<ReconcileWaiter>, Planned)>,
}

/// Prepares what a pass carries out.
pub(crate) struct Preparer {
    pub(crate) planner: Planner,
    pub(crate) records: Arc<Records>,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) probes: Arc<Probes>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) queue: Queue,
}

impl Preparer {
    /// Plans the cluster. `None` if there is nothing to do.
    pub(super) fn prepare(&self, cluster: &Cluster, now: Millis) -> Result<Option<Prepared>> {
        let mut inner = cluster.lock();
        if inner.is_finished() {
            return Ok(None);
        }
        let waiter = self.waiters.of(cluster.uid());
        let explain = waiter.is_some();
        let suggestions = self.planner.suggestions(&inner);
        inner.follow_suggestions(suggestions.clone());
        let plan = self.planner.plan(&inner, &suggestions, now, explain);
        self.platforms.calmed(inner.take_calmed());
        if inner.take_template_news() {
            self.records.changed(cluster, &mut inner);
        }
        if inner.take_health_news() {
            self.probes.track_all(&mut inner);
        }
        let waiter = waiter.map(|waiter| {
            let shown = status::plan_of(&plan, &inner, now);
            (waiter, Planned::new(&plan, inner.state(), shown))
        });
        if plan.is_empty() {
            drop(inner);
            if let Some((waiter, planned)) = waiter {
                waiter.plan(planned);
            }
            self.queue.wake(cluster.uid(), plan.wake);
            return Ok(None);
        }
        let head = inner.head().value.clone();
        let (expect_head, desired) = (inner.head().revision, inner.desired().revision);
        let (step, bodies) = if plan.ops.is_empty() {
            inner.mark_called(&plan.calls);
            (None, Vec::new())
        } else {
            let bodies = self.bodies(&inner, &plan);
            let mut step = encode(&inner, &plan, &bodies, now);
            step.uid = cluster.uid();
            (Some(step), bodies)
        };
        Ok(Some(Prepared {
            plan,
            step,
            bodies,
            head,
            expect_head,
            desired,
            waiter,
        }))
    }

    /// The requests of a plan, as they are stored and sent.
    fn bodies(&self, inner: &ClusterState, plan: &Plan) -> Vec<(Uuid, Bytes)> {
        let mut bodies = Vec::new();
        for op in &plan.ops {
            if let Op::Request {
                request,
                nodes,
                group,
                choice,
                ..
            } = op
            {
                let body = request::build(inner, request, nodes, *group, *choice);
                let body = request::encode(&body, &inner.spec().groups[*group], |of| {
                    self.vault.version(of)
                });
                bodies.push((request.id, body));
            }
        }
        bodies
    }
}

/// The step of a plan, with the events that tell of it.
fn encode(inner: &ClusterState, plan: &Plan, bodies: &[(Uuid, Bytes)], now: Millis) -> Step {
    let mut step = inner.encode_step(&plan.ops, bodies, now);
    let names = events::Steps::new(inner.state().generation, inner.head().revision);
    step.events = events::of(
        &plan.ops,
        inner.state(),
        events::Authors {
            generation: &inner.desired().value.author,
            pause: &inner.desired().value.pause_author,
        },
        names,
        now,
    );
    step
}
