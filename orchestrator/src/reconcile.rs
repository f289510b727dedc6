//! Reconciles a cluster: plan, make the step durable, apply it in memory, then call platforms.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use drover_cluster::{Cluster, ClusterState, Resolved, Suggestions, codec, events, request};
use drover_core::{Millis, Reason, Result, Sym, Urgency, spec::Group};
use drover_executor::Point;
use drover_planner::{Input, Leaving, Op, Plan, PlatformView, Sizes, State};
use drover_store::{Desired, Head, Lane, Revision, Step};
use drover_telemetry::Span;
use prost::Message;
use uuid::Uuid;

use crate::{
    api::status,
    calls,
    queue::WorkItem,
    shared::Shared,
    step::take_over,
    trace::PassTrace,
    waiter::{Planned, ReconcileWaiter},
};

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

/// Plans the clusters that the queue yields, until the orchestrator stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    loop {
        while let Some(item) = shared.queue.pop(shared.now()) {
            let uid = item.cluster;
            let Some(cluster) = shared.clusters.get(uid) else {
                shared.queue.done(uid);
                continue;
            };
            let worker = shared.clone();
            shared.spawn(async move {
                let rest = (pass(&worker, &cluster, item).await * REST).min(MAX_REST);
                if rest < MIN_REST {
                    return worker.queue.done(uid);
                }
                worker.queue.rest(uid);
                tokio::time::sleep(rest).await;
                worker.queue.rested(uid);
            });
        }
        let timer = shared.queue.next_timer().map(|at| shared.clock.instant(at));
        let due = async {
            match timer {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = shared.queue.changed() => {}
            () = due => {}
        }
    }
}

/// Returns the time spent on planning, without waiting.
async fn pass(shared: &Arc<Shared>, cluster: &Arc<Cluster>, item: WorkItem) -> Duration {
    let urgency = item.urgency;
    let mut trace = PassTrace::begin(cluster, item);
    let broken = rounds(shared, cluster, urgency, &mut trace).await.err();
    let planned = trace.end(broken.as_ref());
    if let Some(waiter) = shared.waiters.of(cluster.uid()) {
        waiter.planned(broken);
    }
    planned
}

async fn rounds(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    urgency: Urgency,
    trace: &mut PassTrace,
) -> Result<()> {
    for _ in 0..MAX_ROUNDS {
        shared.queue.goes_on(cluster.uid());
        match round(shared, cluster, urgency, trace).await {
            Ok(Round::Done) => {
                cluster.lock().stored();
                return Ok(());
            }
            Ok(Round::Again) => {}
            Err(error) if error.reason() == Reason::Fenced => {
                tracing::error!(cluster = %cluster.name(), "this process lost its clusters to another and stops");
                shared.stop.cancel();
                return Err(error);
            }
            Err(error) => {
                // Nothing was called. The same plan is made again once the store may have recovered.
                tracing::warn!(cluster = %cluster.name(), %error, "a step could not be stored");
                not_stored(shared, cluster, &error);
                shared.queue.wake(
                    cluster.uid(),
                    Some(shared.now() + drover_core::millis(STORE_RETRY)),
                );
                return Err(error);
            }
        }
    }
    shared.queue.push(cluster.uid(), Urgency::Bulk);
    Ok(())
}

/// Shows on the cluster that a step could not be stored. This itself is kept in memory only.
fn not_stored(shared: &Shared, cluster: &Cluster, error: &drover_core::Error) {
    cluster.lock().not_stored(error.clone(), shared.now());
}

enum Round {
    Done,
    Again,
}

/// A plan and the step that makes it durable.
struct Prepared {
    plan: Plan,
    step: Option<Step>,
    bodies: Vec<(Uuid, Bytes)>,
    head: Head,
    expect_head: Revision,
    desired: Revision,
    /// The caller that waits for the result.
    waiter: Option<(Arc<ReconcileWaiter>, Planned)>,
}

async fn round(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    urgency: Urgency,
    trace: &mut PassTrace,
) -> Result<Round> {
    let now = shared.now();
    let began = tokio::time::Instant::now();
    let prepared = prepare(shared, cluster, now);
    trace.has_planned(began.elapsed());
    let Some(prepared) = prepared? else {
        return Ok(Round::Done);
    };
    let span = trace.does(&prepared.plan);
    span.scope(carry_out(shared, cluster, urgency, prepared, now))
        .await
}

/// Makes a plan durable and starts its calls.
async fn carry_out(
    shared: &Arc<Shared>,
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
        return finish(shared, cluster, head, expect_head, desired, now).await;
    }
    if let Some(step) = step {
        shared.hooks.reach(Point::BeforeCommit).await;
        let most = plan.calls.iter();
        let most = most.map(|call| calls::urgency_of(&plan, call, urgency));
        let lane = match most.fold(urgency, Urgency::max) {
            Urgency::Urgent => Lane::Urgent,
            Urgency::Bulk => Lane::Bulk,
        };
        let owned = shared.shards.of(cluster.uid());
        let commit = Span::internal("store commit");
        let committed = shared.store.step(owned, step, lane).await;
        drop(commit);
        let done = match committed {
            Ok(done) => done,
            // The user changed the desired state meanwhile: plan again from the new one.
            Err(error) if is_conflict(&error, "desired") => {
                refresh_desired(shared, cluster).await?;
                return Ok(Round::Again);
            }
            Err(error)
                if error.reason() == Reason::Conflict || error.reason() == Reason::Unavailable =>
            {
                reload(shared, cluster).await?;
                return Ok(Round::Again);
            }
            Err(error) => return Err(error),
        };
        shared.hooks.reach(Point::AfterCommit).await;
        take_over(shared, cluster, &plan, bodies, done, now);
    }
    if let Some((waiter, planned)) = waiter {
        waiter.plan(planned);
    }
    for call in &plan.calls {
        let urgency = calls::urgency_of(&plan, call, urgency);
        calls::start(shared, cluster, call, urgency);
    }
    if plan.again || plan.finished {
        return Ok(Round::Again);
    }
    shared.queue.wake(cluster.uid(), plan.wake);
    Ok(Round::Done)
}

fn is_conflict(error: &drover_core::Error, what: &str) -> bool {
    error.reason() == Reason::Conflict
        && error
            .metadata()
            .get("changed")
            .is_some_and(|changed| changed == what)
}

/// Plans a cluster from its current state.
pub(crate) fn plan(
    shared: &Shared,
    state: &ClusterState,
    suggestions: &Suggestions,
    now: Millis,
    explain: bool,
) -> Plan {
    let views = shared.platforms.views(state);
    plan_with(shared, state, suggestions, &views, now, explain)
}

/// Sizes of a cluster's requests in the store.
struct StoredSizes<'a>(&'a ClusterState);

impl Sizes for StoredSizes<'_> {
    fn request(&self, group: usize, choice: usize) -> usize {
        request::most_bytes(self.0, group, choice)
    }

    fn open(&self, request: &Uuid) -> usize {
        self.0.body(request).map_or(0, Bytes::len)
    }
}

fn plan_with(
    shared: &Shared,
    inner: &ClusterState,
    suggestions: &Suggestions,
    views: &BTreeMap<Sym, PlatformView>,
    now: Millis,
    explain: bool,
) -> Plan {
    let wanted = suggestions.groups.as_ref();
    let known: &[Group] = wanted.map_or(&inner.spec().groups, |groups| groups);
    let (groups, leaving): (&[Group], Arc<Vec<Leaving>>) = if inner.state().deleting {
        let all = known.iter().map(Leaving::of);
        let all = all.chain(inner.leaving().iter().cloned());
        (&[], Arc::new(all.collect()))
    } else {
        (known, inner.leaving().clone())
    };
    let addons = &inner.spec().addons;
    let addon_secrets: Vec<Sym> = (addons.iter())
        .map(|addon| shared.vault.addon_secrets_hash(&addon.secrets))
        .collect();
    let input = Input {
        now,
        process_start: shared.clock.start(),
        groups,
        infrastructure: &inner.spec().infrastructure,
        addons,
        addon_secrets: &addon_secrets,
        health_defaults: &suggestions.health,
        leaving: &leaving,
        orphans: inner.spec().orphans,
        orphan_grace: inner.spec().orphan_grace,
        orphan_hold: shared.store.restored_hold(),
        state: inner.state(),
        platforms: views,
        sizes: &StoredSizes(inner),
        explain,
    };
    drover_planner::plan(&input, &mut Uuid::now_v7)
}

fn prepare(shared: &Shared, cluster: &Cluster, now: Millis) -> Result<Option<Prepared>> {
    let mut inner = cluster.lock();
    if inner.is_finished() {
        return Ok(None);
    }
    let waiter = shared.waiters.of(cluster.uid());
    let explain = waiter.is_some();
    let suggestions = inner.suggestions(&shared.platforms.handshakes(&inner.spec().groups));
    inner.follow_suggestions(suggestions.clone());
    let plan = plan(shared, &inner, &suggestions, now, explain);
    shared.platforms.calmed(inner.take_calmed());
    if inner.take_template_news() {
        shared.changed(cluster, &mut inner);
    }
    if inner.take_health_news() {
        shared.probes.track_all(&mut inner);
    }
    let waiter = waiter.map(|waiter| {
        let shown = status::plan(
            &plan,
            inner.state(),
            inner.groups(),
            inner.head().revision,
            inner.state().generation,
            now,
        );
        (waiter, Planned::new(&plan, inner.state(), shown))
    });
    if plan.is_empty() {
        drop(inner);
        if let Some((waiter, planned)) = waiter {
            waiter.plan(planned);
        }
        shared.queue.wake(cluster.uid(), plan.wake);
        return Ok(None);
    }
    let head = inner.head().value.clone();
    let (expect_head, desired) = (inner.head().revision, inner.desired().revision);
    if plan.ops.is_empty() {
        inner.mark_called(&plan.calls);
        return Ok(Some(Prepared {
            plan,
            step: None,
            bodies: Vec::new(),
            head,
            expect_head,
            desired,
            waiter,
        }));
    }
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
            let body = request::build(&inner, request, nodes, *group, *choice);
            let body = request::encode(&body, &inner.spec().groups[*group], |of| {
                shared.vault.version(of)
            });
            bodies.push((request.id, body));
        }
    }
    let mut step = inner.encode_step(&plan.ops, &bodies, now);
    step.uid = cluster.uid();
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
    Ok(Some(Prepared {
        plan,
        step: Some(step),
        bodies,
        head,
        expect_head,
        desired,
        waiter,
    }))
}

/// Reloads a cluster from the store after a step with an unknown outcome.
async fn reload(shared: &Shared, cluster: &Cluster) -> Result<()> {
    let Some(row) = shared.store.load_cluster(cluster.uid()).await? else {
        let mut inner = cluster.lock();
        let gone = inner.finish();
        // The cluster was deleted, but the response was lost. Nodes of it that show up late must be recognized all the
        // same.
        let (used, next_sequence) = remembered(&inner);
        let now = shared.now();
        (shared.tombstones).add(cluster.uid(), cluster.name(), next_sequence, now, used);
        shared.tombstones.inherit(inner.state(), now);
        shared.drop_cluster(cluster);
        drop(inner);
        shared.platforms.count(&gone);
        return Ok(());
    };
    let fresh = shared.read_again(row)?;
    let mut inner = cluster.lock();
    let change = inner.replace(fresh);
    shared.probes.track_all(&mut inner);
    shared.changed(cluster, &mut inner);
    drop(inner);
    shared.platforms.count(&change);
    Ok(())
}

/// Reloads the desired state from the store: a change with an unknown outcome was made, or is not in memory yet.
pub(crate) async fn refresh_desired(shared: &Shared, cluster: &Cluster) -> Result<()> {
    let Some(desired) = shared.store.desired(cluster.uid()).await? else {
        return reload(shared, cluster).await;
    };
    let digests = shared.digests.of_cluster(cluster.uid());
    let spec = Arc::new(Resolved::from_stored(&desired.value.spec, &digests)?);
    let mut inner = cluster.lock();
    if desired.revision > inner.desired().revision {
        let revision = desired.revision;
        inner.desire(desired, Some(spec));
        shared.probes.track_all(&mut inner);
        shared.changed(cluster, &mut inner);
        shared.wrote(revision);
    }
    Ok(())
}

async fn finish(
    shared: &Shared,
    cluster: &Cluster,
    head: Head,
    expect_head: Revision,
    expect_desired: Revision,
    now: Millis,
) -> Result<Round> {
    let (used, next_sequence) = remembered(&cluster.lock());
    // The user data is no longer needed. Dropped before the record, so that no secret data is left without a cluster.
    shared.store.drop_user_data(cluster.uid()).await?;
    shared.store.drop_revisions(cluster.uid()).await?;
    shared.hooks.reach(Point::BeforeFinish).await;
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
    match shared
        .store
        .finish_cluster(shared.shards.of(cluster.uid()), finish)
        .await
    {
        Ok(done) => {
            shared.hooks.reach(Point::AfterFinish).await;
            let mut inner = cluster.lock();
            inner.finish();
            let tombstones = &shared.tombstones;
            tombstones.add(cluster.uid(), cluster.name(), next_sequence, now, used);
            tombstones.inherit(inner.state(), shared.now());
            shared.drop_cluster(cluster);
            shared.changed(cluster, &mut inner);
            shared.wrote(done.revision);
            drop(inner);
            shared.queue.wake(cluster.uid(), None);
            Ok(Round::Done)
        }
        Err(error)
            if error.reason() == Reason::Conflict || error.reason() == Reason::Unavailable =>
        {
            reload(shared, cluster).await?;
            Ok(Round::Again)
        }
        Err(error) => Err(error),
    }
}

/// Removes the marks of nodes that are gone from the desired state.
pub(crate) fn living_marks(desired: &mut Desired, state: &State) {
    let living = |id: &String| state.nodes.iter().any(|node| node.id(state.uid) == *id);
    desired.marks.retain(living);
    desired.scaled_away.retain(living);
}

/// The backends and sequences that the tombstone keeps to recognize nodes that show up late, and the next sequence,
/// which no request of the cluster has used.
fn remembered(inner: &ClusterState) -> (codec::UsedList, u64) {
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
