//! Reconciles a cluster: plan, make the step durable, apply it in memory, then call platforms.

use std::{sync::Arc, time::Duration};

use drover_cluster::Cluster;
use drover_core::{Error, Millis, Reason, Result, Urgency};
use drover_executor::{Hooks, Point};
use drover_store::{Clock, Lane};
use drover_telemetry::Span;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, SemaphorePermit},
};

use crate::{
    calls::{Dispatcher, urgency_of},
    commit::Committer,
    queue::{Queue, WorkItem},
    records::Records,
    tasks::Tasks,
    trace::PassTrace,
    waiter::Waiters,
};

mod finish;
mod prepare;

pub(crate) use finish::Finisher;
use prepare::Prepared;
pub(crate) use prepare::Preparer;

/// Delay after the store rejected a step: long enough to let it recover, short enough to continue soon.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// A cluster rests for this multiple of its planning time. A large cluster that changes all the time thus takes at most
/// one part in `REST + 1` of a processor, and each plan covers many changes at once.
const REST: u32 = 19;
/// Rests shorter than this are skipped.
const MIN_REST: Duration = Duration::from_millis(1);
/// Maximum rest.
const MAX_REST: Duration = Duration::from_millis(100);
/// Maximum number of plans in one pass, so that other clusters get their turn.
const MAX_ROUNDS: usize = 64;

/// Takes clusters from the queue, one pass each.
pub(crate) struct Reconciler {
    pub(crate) queue: Queue,
    pub(crate) tasks: Tasks,
    pub(crate) records: Arc<Records>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) preparer: Preparer,
    pub(crate) committer: Arc<Committer>,
    pub(crate) finisher: Finisher,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) clock: Arc<Clock>,
    pub(crate) hooks: Hooks,
    pub(crate) turns: Turns,
}

/// Turns of bulk passes at planning. Tasks run in the order in which they are ready: without turns all bulk passes would
/// stand before each step of an answer to a caller, and of an urgent pass. What is committed is applied at once, since
/// others wait for memory to follow.
#[derive(Debug)]
pub(crate) struct Turns(Semaphore);

impl Turns {
    /// For this runtime: one of its threads is left to others.
    pub(crate) fn new() -> Self {
        let threads = Handle::current().metrics().num_workers();
        Self(Semaphore::new(threads.saturating_sub(1).max(1)))
    }

    /// Lasts until it is dropped, which is to be before anything is waited for. Urgent passes need none.
    async fn take(&self, urgency: Urgency) -> Option<SemaphorePermit<'_>> {
        match urgency {
            Urgency::Urgent => None,
            Urgency::Bulk => self.0.acquire().await.ok(),
        }
    }
}

enum Round {
    Done,
    Again,
}

impl Reconciler {
    /// Plans the clusters that the queue yields, until the orchestrator stops.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            while let Some(item) = self.queue.pop(self.clock.now()) {
                let uid = item.cluster;
                let Some(cluster) = self.records.clusters().get(uid) else {
                    self.queue.done(uid);
                    continue;
                };
                let worker = self.clone();
                self.tasks.spawn(async move {
                    let rest = (worker.pass(&cluster, item).await * REST).min(MAX_REST);
                    if rest < MIN_REST {
                        return worker.queue.done(uid);
                    }
                    worker.queue.rest(uid);
                    tokio::time::sleep(rest).await;
                    worker.queue.rested(uid);
                });
            }
            let timer = self.queue.next_timer().map(|at| self.clock.instant(at));
            let due = async {
                match timer {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.tasks.stop().cancelled() => return,
                () = self.queue.changed() => {}
                () = due => {}
            }
        }
    }

    /// Plans a cluster that the queue yielded. Returns the time spent on planning, without waiting.
    pub(crate) async fn pass(&self, cluster: &Arc<Cluster>, item: WorkItem) -> Duration {
        let urgency = item.urgency;
        let mut trace = PassTrace::begin(cluster, item);
        let broken = self.rounds(cluster, urgency, &mut trace).await.err();
        let planned = trace.end(broken.as_ref());
        if let Some(waiter) = self.waiters.of(cluster.uid()) {
            waiter.planned(broken);
        }
        planned
    }

    async fn rounds(
        &self,
        cluster: &Arc<Cluster>,
        urgency: Urgency,
        trace: &mut PassTrace,
    ) -> Result<()> {
        for _ in 0..MAX_ROUNDS {
            match self.round(cluster, urgency, trace).await {
                Ok(Round::Done) => {
                    cluster.lock().stored();
                    return Ok(());
                }
                Ok(Round::Again) => {}
                Err(error)
                    if error.reason() == Reason::Fenced && self.tasks.stop().is_cancelled() =>
                {
                    // It has handed over, and whoever leads now plans it.
                    return Err(error);
                }
                Err(error) if error.reason() == Reason::Fenced => {
                    tracing::error!(cluster = %cluster.name(), "this process lost its clusters to another and stops");
                    self.tasks.stop().cancel();
                    return Err(error);
                }
                Err(error) => {
                    // Nothing was called. The same plan is made again once the store may have recovered.
                    tracing::warn!(cluster = %cluster.name(), %error, "a step could not be stored");
                    // Shown on the cluster, and kept in memory only.
                    cluster.lock().not_stored(error.clone(), self.clock.now());
                    self.queue.wake(
                        cluster.uid(),
                        Some(self.clock.now() + drover_core::millis(STORE_RETRY)),
                    );
                    if urgency == Urgency::Urgent {
                        let (queue, uid) = (self.queue.clone(), cluster.uid());
                        self.tasks.spawn_until_stop(async move {
                            tokio::time::sleep(STORE_RETRY).await;
                            queue.push(uid, Urgency::Urgent);
                        });
                    }
                    return Err(error);
                }
            }
        }
        self.queue.push(cluster.uid(), Urgency::Bulk);
        Ok(())
    }

    async fn round(
        &self,
        cluster: &Arc<Cluster>,
        urgency: Urgency,
        trace: &mut PassTrace,
    ) -> Result<Round> {
        let turn = self.turns.take(urgency).await;
        self.queue.goes_on(cluster.uid());
        let now = self.clock.now();
        let began = tokio::time::Instant::now();
        let prepared = self.preparer.prepare(cluster, now);
        trace.has_planned(began.elapsed());
        drop(turn);
        let Some(prepared) = prepared? else {
            return Ok(Round::Done);
        };
        let span = trace.does(&prepared.plan);
        span.scope(self.carry_out(cluster, urgency, prepared, now))
            .await
    }

    /// Makes a plan durable and starts its calls.
    async fn carry_out(
        &self,
        cluster: &Arc<Cluster>,
        urgency: Urgency,
        prepared: Prepared,
        now: Millis,
    ) -> Result<Round> {
        let Prepared {
            plan,
            step,
            bodies,
            head,
            expect_head,
            desired,
            waiter,
        } = prepared;
        if plan.finished && plan.ops.is_empty() {
            let finished = self
                .finisher
                .finish(cluster, head, expect_head, desired, now)
                .await?;
            return Ok(if finished { Round::Done } else { Round::Again });
        }
        if let Some(step) = step {
            self.hooks.reach(Point::BeforeCommit).await;
            let most = plan.calls.iter();
            let most = most.map(|call| urgency_of(&plan, call, urgency));
            let lane = match most.fold(urgency, Urgency::max) {
                Urgency::Urgent => Lane::Urgent,
                Urgency::Bulk => Lane::Bulk,
            };
            let commit = Span::internal("store commit");
            let committed = self.records.step(step, lane).await;
            drop(commit);
            let done = match committed {
                Ok(done) => done,
                // The user changed the desired state meanwhile: plan again from the new one.
                Err(error) if is_conflict(&error, "desired") => {
                    self.committer.reload_desired(cluster).await?;
                    return Ok(Round::Again);
                }
                Err(error) => {
                    return self
                        .committer
                        .refused(cluster, error)
                        .await
                        .map(|()| Round::Again);
                }
            };
            self.hooks.reach(Point::AfterCommit).await;
            self.committer.apply(cluster, &plan, bodies, done, now);
        }
        if let Some((waiter, planned)) = waiter {
            waiter.plan(planned);
        }
        for call in &plan.calls {
            let urgency = urgency_of(&plan, call, urgency);
            self.dispatcher.start(cluster, call, urgency);
        }
        if plan.again || plan.finished {
            return Ok(Round::Again);
        }
        self.queue.wake(cluster.uid(), plan.wake);
        Ok(Round::Done)
    }
}

fn is_conflict(error: &Error, what: &str) -> bool {
    error.reason() == Reason::Conflict
        && error
            .metadata()
            .get("changed")
            .is_some_and(|changed| changed == what)
}

#[cfg(test)]
mod tests;
