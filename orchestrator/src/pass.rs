//! One pass over a cluster: plan, make it durable, take it over into memory, call.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use drover_core::{Millis, Node, NodeState, Reason, Result, Sym};
use drover_planner::{Call, Input, Op, Plan, PlatformView, State};
use drover_store::{Desired, Head, Lane, Revision, Step, StepDone};
use drover_telemetry::Span;
use prost::Message;
use uuid::Uuid;

use crate::{
    api::status,
    calls,
    cluster::{Cluster, Inner, Resolved},
    codec, events,
    hooks::Point,
    infrastructure,
    queue::{Turn, Urgency},
    request,
    shared::Shared,
    trace::PassTrace,
    witness::{Planned, Witness},
};

/// Wait after the store could not take a step: long enough to let it recover, short enough to go on soon.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// Plans in one pass before others get their turn.
const MAX_ROUNDS: usize = 64;

/// Plans clusters as the queue gives them, until the orchestrator stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    loop {
        while let Some(turn) = shared.queue.pop(shared.now()) {
            let uid = turn.cluster;
            let Some(cluster) = shared.cluster(uid) else {
                shared.queue.done(uid);
                continue;
            };
            let worker = shared.clone();
            shared.spawn(async move {
                pass(&worker, &cluster, turn).await;
                worker.queue.done(uid);
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

async fn pass(shared: &Arc<Shared>, cluster: &Arc<Cluster>, turn: Turn) {
    let urgency = turn.urgency;
    let mut trace = PassTrace::begin(cluster, turn);
    let broken = rounds(shared, cluster, urgency, &mut trace).await.err();
    trace.end(broken.as_ref());
    if let Some(witness) = &cluster.inner.lock().witness {
        witness.planned(broken);
    }
}

async fn rounds(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    urgency: Urgency,
    trace: &mut PassTrace,
) -> Result<()> {
    for _ in 0..MAX_ROUNDS {
        match round(shared, cluster, urgency, trace).await {
            Ok(Round::Done) => return Ok(()),
            Ok(Round::Again) => {}
            Err(error) if error.reason() == Reason::Fenced => {
                tracing::error!(cluster = %cluster.name, "this process lost its clusters to another and stops");
                shared.stop.cancel();
                return Err(error);
            }
            Err(error) => {
                // Nothing was done. The same plan is made again once the store may be able to keep it.
                tracing::warn!(cluster = %cluster.name, %error, "a step could not be stored");
                shared.queue.wake(
                    cluster.uid,
                    Some(shared.now() + crate::clock::millis(STORE_RETRY)),
                );
                return Err(error);
            }
        }
    }
    shared.queue.push(cluster.uid, Urgency::Bulk);
    Ok(())
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
    /// Who wants to know what becomes of it.
    witness: Option<(Arc<Witness>, Planned)>,
}

async fn round(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    urgency: Urgency,
    trace: &mut PassTrace,
) -> Result<Round> {
    let now = shared.now();
    let Some(prepared) = prepare(shared, cluster, now)? else {
        return Ok(Round::Done);
    };
    let span = trace.does(&prepared.plan);
    span.scope(carry_out(shared, cluster, urgency, prepared, now))
        .await
}

/// Makes a plan durable and has it carried out.
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
        witness,
    } = prepared;
    if plan.finished && plan.ops.is_empty() {
        return finish(shared, cluster, head, expect_head, desired, now).await;
    }
    if let Some(step) = step {
        shared.hooks.reach(Point::BeforeCommit).await;
        let lane = match urgency {
            Urgency::Urgent => Lane::Urgent,
            Urgency::Bulk => Lane::Bulk,
        };
        let owned = shared.shards.of(cluster.uid);
        let commit = Span::internal("store commit");
        let committed = shared.store.step(owned, step, lane).await;
        drop(commit);
        let done = match committed {
            Ok(done) => done,
            // The user was quicker: plan for what is wanted now.
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
    if let Some((witness, planned)) = witness {
        witness.plan(planned);
    }
    for call in &plan.calls {
        calls::start(shared, cluster, call, urgency);
    }
    if plan.again || plan.finished {
        return Ok(Round::Again);
    }
    shared.queue.wake(cluster.uid, plan.wake);
    Ok(Round::Done)
}

fn is_conflict(error: &drover_core::Error, what: &str) -> bool {
    error.reason() == Reason::Conflict
        && error
            .metadata()
            .get("changed")
            .is_some_and(|changed| changed == what)
}

/// Plans a cluster as it is now.
pub(crate) fn plan(shared: &Shared, inner: &mut Inner, now: Millis, explain: bool) -> Plan {
    let views = shared.views(inner);
    plan_with(shared, inner, &views, now, explain)
}

fn plan_with(
    shared: &Shared,
    inner: &mut Inner,
    views: &BTreeMap<Sym, PlatformView>,
    now: Millis,
    explain: bool,
) -> Plan {
    let defaults = if inner.spec.groups.iter().all(|group| group.health.is_some()) {
        Arc::new(Vec::new())
    } else {
        inner.health_defaults(&shared.handshakes())
    };
    let input = Input {
        now,
        process_start: shared.clock.start(),
        groups: inner.groups(),
        infrastructure: &inner.spec.infrastructure,
        health_defaults: &defaults,
        orphans: inner.spec.orphans,
        orphan_grace: inner.spec.orphan_grace,
        orphan_hold: shared.store.restored_hold(),
        state: &inner.state,
        platforms: views,
        explain,
    };
    drover_planner::plan(&input, &mut Uuid::now_v7)
}

fn prepare(shared: &Shared, cluster: &Cluster, now: Millis) -> Result<Option<Prepared>> {
    let mut inner = cluster.inner.lock();
    if inner.finished {
        return Ok(None);
    }
    let explain = inner.witness.is_some();
    let plan = plan(shared, &mut inner, now, explain);
    let witness = inner.witness.clone().map(|witness| {
        let shown = status::plan(
            &plan,
            &inner.state,
            inner.head.revision,
            inner.state.generation,
            now,
        );
        (witness, Planned::new(&plan, &inner.state, shown))
    });
    if plan.is_empty() {
        drop(inner);
        if let Some((witness, planned)) = witness {
            witness.plan(planned);
        }
        shared.queue.wake(cluster.uid, plan.wake);
        return Ok(None);
    }
    let head = inner.head.value.clone();
    let (expect_head, desired) = (inner.head.revision, inner.desired.revision);
    if plan.ops.is_empty() {
        mark_called(&mut inner, &plan.calls);
        return Ok(Some(Prepared {
            plan,
            step: None,
            bodies: Vec::new(),
            head,
            expect_head,
            desired,
            witness,
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
            let body = request::build(cluster, &inner, request, nodes, *group, *choice);
            let body = request::encode(&body, &inner.spec.groups[*group]);
            bodies.push((request.id, body));
        }
    }
    let mut step = encode_step(&inner, &plan.ops, &bodies, now);
    step.uid = cluster.uid;
    let names = status::Steps::new(inner.state.generation, inner.head.revision);
    step.events = events::of(
        &plan.ops,
        &inner.state,
        &inner.desired.value.author,
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
        witness,
    }))
}

/// The rows that operations change, made on a copy of what they touch.
pub(crate) fn encode_step(
    inner: &Inner,
    ops: &[Op],
    bodies: &[(Uuid, Bytes)],
    now: Millis,
) -> Step {
    let mut slots = BTreeSet::new();
    let mut requests = BTreeSet::new();
    for op in ops {
        match op {
            Op::Enter { slot, .. }
            | Op::Learn { slot, .. }
            | Op::Remove { slot, .. }
            | Op::Restamp { slot, .. }
            | Op::Forget { slot, .. } => {
                slots.insert(*slot);
            }
            Op::Close { request, .. } => {
                requests.insert(*request);
                slots.extend(
                    inner
                        .state
                        .nodes
                        .iter()
                        .filter(|n| n.request == *request)
                        .map(|n| n.slot),
                );
            }
            Op::Attempt { request, .. } | Op::MadeNothing { request } => {
                requests.insert(*request);
            }
            Op::Request { request, nodes, .. } => {
                requests.insert(request.id);
                slots.extend(nodes.iter().map(|node| node.slot));
            }
            Op::TakeOrphan { node } => {
                slots.insert(node.slot);
            }
            Op::BackOff { .. }
            | Op::Condition { .. }
            | Op::Rollout { .. }
            | Op::Observed { .. }
            | Op::Infrastructure { .. } => {}
        }
    }
    let below = infrastructure::codec::touched(ops);
    let state = &inner.state;
    let mut touched = State {
        uid: state.uid,
        observed_generation: state.observed_generation,
        next_slot: state.next_slot,
        next_sequence: state.next_sequence,
        nodes: slots
            .iter()
            .filter_map(|slot| state.node(*slot))
            .cloned()
            .collect(),
        requests: requests
            .iter()
            .filter_map(|id| Some((*id, state.requests.get(id)?.clone())))
            .collect(),
        backoffs: state.backoffs.clone(),
        conditions: state.conditions.clone(),
        rollouts: state.rollouts.clone(),
        used: state.used.clone(),
        ..State::default()
    };
    drover_planner::apply(&mut touched, ops, now);
    let body = |id: &Uuid| {
        bodies
            .iter()
            .find(|(own, _)| own == id)
            .map(|(_, body)| body)
            .or_else(|| inner.bodies.get(id))
            .cloned()
    };
    let mut head = inner.head.value.clone();
    head.next_slot = touched.next_slot;
    head.next_sequence = touched.next_sequence;
    head.observed_generation = touched.observed_generation;
    head.state = codec::encode_head(&touched);
    let mut step = Step {
        expect_head: inner.head.revision,
        expect_desired: Some(inner.desired.revision),
        head,
        put_nodes: touched
            .nodes
            .iter()
            .map(|node| (node.slot, codec::encode_node(node)))
            .collect(),
        delete_nodes: slots
            .into_iter()
            .filter(|slot| touched.at(*slot).is_none())
            .collect(),
        put_requests: touched
            .requests
            .values()
            .map(|r| {
                (
                    r.id.to_string(),
                    codec::encode_request(r, &body(&r.id).unwrap_or_default()),
                )
            })
            .collect(),
        delete_requests: requests
            .iter()
            .filter(|id| !touched.requests.contains_key(*id) && state.requests.contains_key(*id))
            .map(Uuid::to_string)
            .collect(),
        ..Step::default()
    };
    infrastructure::codec::fill(&mut step, &below, state, &touched);
    step
}

/// What is durable becomes what memory shows.
pub(crate) fn take_over(
    shared: &Shared,
    cluster: &Cluster,
    plan: &Plan,
    bodies: Vec<(Uuid, Bytes)>,
    done: StepDone,
    now: Millis,
) {
    let mut inner = cluster.inner.lock();
    let before = tally(&inner.state.nodes, &plan.ops);
    drover_planner::apply(&mut inner.state, &plan.ops, now);
    let after = tally(&inner.state.nodes, &plan.ops);
    inner.head = drover_store::Versioned {
        value: done.head,
        revision: done.revision,
    };
    inner.bodies.extend(bodies);
    for op in &plan.ops {
        match op {
            Op::BackOff { key, to: Some(_) } => {
                let platform = key.platform.to_string();
                metrics::counter!("drover_back_offs_total", "platform" => platform).increment(1);
            }
            Op::Close { request, .. } => {
                inner.bodies.remove(request);
            }
            Op::Request { request, nodes, .. } => {
                if let Some(first) = nodes.first() {
                    inner.first_slots.insert(request.id, first.slot);
                }
            }
            _ => {}
        }
    }
    if plan.ops.iter().any(|op| matches!(op, Op::Forget { .. })) {
        let living: BTreeSet<Uuid> = inner.state.nodes.iter().map(|node| node.request).collect();
        inner
            .first_slots
            .retain(|request, _| living.contains(request));
    }
    if inner.bodies.is_empty() {
        // Most clusters have none for most of their life.
        inner.bodies.shrink_to_fit();
    }
    mark_called(&mut inner, &plan.calls);
    shared.changed(cluster, &mut inner);
    shared.wrote(done.revision);
    drop(inner);
    count(shared, before, after);
}

/// Calls that are about to be made, so that no other pass makes them too.
fn mark_called(inner: &mut Inner, calls: &[Call]) {
    for call in calls {
        match call {
            Call::Provision { request, .. } => {
                if let Some(request) = inner.state.requests.get_mut(request) {
                    request.call.in_flight = true;
                }
            }
            Call::Deprovision { slot } => {
                if let Some(node) = inner.state.node_mut(*slot) {
                    node.call.in_flight = true;
                }
            }
            Call::Confirm { platform } => {
                inner.state.confirms.or_default(platform.clone()).in_flight = true;
            }
            Call::Infrastructure { platform, uid, .. } => {
                let key = (platform.clone(), uid.clone());
                if let Some(record) = inner.state.infrastructure.get_mut(&key) {
                    record.call.in_flight = true;
                }
            }
        }
    }
}

type Tally = BTreeMap<Sym, (i64, i64)>;

/// Nodes and sick nodes by platform, among those that operations touch.
fn tally(nodes: &[Node], ops: &[Op]) -> Tally {
    let mut tally = Tally::new();
    let mut add = |node: &Node| {
        let (total, sick) = tally.entry(node.platform.clone()).or_default();
        *total += 1;
        *sick += i64::from(node.state == NodeState::Unhealthy);
    };
    let find = |slot: u64| {
        nodes
            .binary_search_by_key(&slot, |node| node.slot)
            .ok()
            .map(|at| &nodes[at])
    };
    let mut seen = BTreeSet::new();
    for op in ops {
        let slots: Vec<u64> = match op {
            Op::Enter { slot, .. } | Op::Remove { slot, .. } | Op::Forget { slot, .. } => {
                vec![*slot]
            }
            Op::Request { nodes, .. } => nodes.iter().map(|node| node.slot).collect(),
            Op::TakeOrphan { node } => vec![node.slot],
            _ => Vec::new(),
        };
        for slot in slots {
            if seen.insert(slot)
                && let Some(node) = find(slot)
            {
                add(node);
            }
        }
    }
    tally
}

fn count(shared: &Shared, before: Tally, after: Tally) {
    let mut change = after;
    for (platform, (total, sick)) in before {
        let entry = change.entry(platform).or_default();
        entry.0 -= total;
        entry.1 -= sick;
    }
    for (platform, (total, sick)) in change {
        if (total, sick) != (0, 0)
            && let Some(registered) = shared.platform(&platform)
        {
            registered.platform.count(total, sick);
        }
    }
}

/// Reads a cluster anew after a step whose fate is not known.
async fn reload(shared: &Shared, cluster: &Cluster) -> Result<()> {
    let Some(row) = shared.store.load_cluster(cluster.uid).await? else {
        cluster.inner.lock().finished = true;
        shared.drop_cluster(cluster);
        return Ok(());
    };
    let fresh = Cluster::load(row, &shared.interner)?.inner.into_inner();
    let mut inner = cluster.inner.lock();
    let old = std::mem::replace(&mut inner.state, fresh.state);
    inner.head = fresh.head;
    inner.desired = fresh.desired;
    inner.spec = fresh.spec;
    inner.bodies = fresh.bodies;
    inner.first_slots = fresh.first_slots;
    inner.state.orphans = old.orphans;
    for (key, before) in old.infrastructure.iter() {
        if let Some(record) = inner.state.infrastructure.get_mut(key) {
            record.sent = before.sent;
            record.call = before.call;
        }
    }
    inner.state.foreign = old.foreign;
    for mut node in old.nodes {
        if let Some(new) = inner.state.node_mut(node.slot) {
            new.seen = std::mem::take(&mut node.seen);
            new.probe = std::mem::take(&mut node.probe);
        }
    }
    inner.follow_desired();
    shared.changed(cluster, &mut inner);
    Ok(())
}

/// Takes in what is wanted as the store has it: a change of unknown fate was made, or is not in memory yet.
pub(crate) async fn refresh_desired(shared: &Shared, cluster: &Cluster) -> Result<()> {
    let Some(desired) = shared.store.desired(cluster.uid).await? else {
        return reload(shared, cluster).await;
    };
    let spec = Arc::new(Resolved::from_stored(&desired.value.spec)?);
    let mut inner = cluster.inner.lock();
    if desired.revision > inner.desired.revision {
        let revision = desired.revision;
        (inner.desired, inner.spec) = (desired, spec);
        shared.probes.track_all(shared, cluster.uid, &mut inner);
        inner.follow_desired();
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
    let (used, next_sequence) = {
        let inner = cluster.inner.lock();
        let used = inner.state.used.iter();
        let used = used.map(|(platform, uid)| codec::Used {
            platform: platform.to_string(),
            uid: uid.to_string(),
        });
        let kept = codec::UsedList {
            used: used.collect(),
            generation: inner.desired.value.generation,
        };
        (kept, inner.state.next_sequence)
    };
    // Nothing is made for it any more. Before its record goes, so that no secret is left without one.
    shared.store.drop_user_data(cluster.uid).await?;
    shared.store.drop_revisions(cluster.uid).await?;
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
        uid: cluster.uid,
        name: cluster.name.to_string(),
        expect_head,
        expect_desired,
        head,
        events: vec![event],
        delete_time_ms: time,
        platforms: used.encode_to_vec().into(),
    };
    match shared
        .store
        .finish_cluster(shared.shards.of(cluster.uid), finish)
        .await
    {
        Ok(done) => {
            shared.hooks.reach(Point::AfterFinish).await;
            let mut inner = cluster.inner.lock();
            inner.finished = true;
            shared
                .tombstones
                .add(cluster.uid, &cluster.name, next_sequence, now, used);
            shared.drop_cluster(cluster);
            shared.changed(cluster, &mut inner);
            shared.wrote(done.revision);
            drop(inner);
            shared.queue.wake(cluster.uid, None);
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

/// A desired state with its marks cleaned of nodes that are gone.
pub(crate) fn living_marks(desired: &mut Desired, state: &State) {
    desired
        .marks
        .retain(|id| state.nodes.iter().any(|node| node.id(state.uid) == *id));
}
