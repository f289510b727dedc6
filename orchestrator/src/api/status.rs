//! Clusters, nodes and plans as they are answered.

use std::collections::BTreeMap;

use drover_convert::{
    node::{Around, to_node},
    value::{to_timestamp, to_timestamp_opt},
};
use drover_core::{
    Millis, Node, NodeState, Sym,
    error::cut,
    node::RemovalReason,
    spec::{Group, UpdateStrategy},
};
use drover_planner::{Call, ConditionKind, Note, Op, Plan, State};
use drover_proto::{common::v1 as common, orchestrator::v1 as pb};

use crate::{
    cluster::{Cluster, Inner, stored_spec},
    shared::Shared,
};

/// Most actions and notes in an answered plan, each.
const MAX_PLAN: usize = 1_000;

/// What can be seen now.
#[derive(Debug)]
pub(crate) struct Visible {
    now: Millis,
    /// Uid of the backend of each visible platform.
    uids: BTreeMap<Sym, String>,
}

pub(crate) fn visible(shared: &Shared) -> Visible {
    let now = shared.now();
    let platforms = shared.platforms.read();
    let uids = platforms
        .iter()
        .filter(|(_, p)| p.platform.is_visible(now))
        .map(|(name, p)| (name.clone(), p.platform.registration().uid))
        .collect();
    Visible { now, uids }
}

impl Visible {
    fn sees(&self, platform: &Sym, uid: &Sym) -> bool {
        self.uids.get(platform).is_some_and(|seen| **seen == **uid)
    }
}

fn sees(visible: &Visible, node: &Node) -> bool {
    visible.sees(&node.platform, &node.platform_uid)
}

fn outdated(groups: &[Group], node: &Node) -> bool {
    let group = groups.iter().find(|group| group.path == node.group);
    group.is_none_or(|group| !group.makes(node))
}

pub(super) fn node(cluster: &Cluster, inner: &Inner, visible: &Visible, node: &Node) -> pb::Node {
    let around = Around {
        uid: cluster.uid,
        cluster: &cluster.name,
        visible: sees(visible, node),
        outdated: outdated(&inner.spec.groups, node),
    };
    to_node(node, &around)
}

/// A cluster; its spec only if asked for.
pub(super) fn cluster(
    cluster: &Cluster,
    inner: &Inner,
    visible: &Visible,
    full: bool,
) -> pb::Cluster {
    let desired = &inner.desired.value;
    let time = |ms: i64| to_timestamp(u64::try_from(ms).unwrap_or(0));
    pb::Cluster {
        name: cluster.name.to_string(),
        uid: cluster.uid.to_string(),
        labels: desired.labels.clone(),
        spec: if full {
            stored_spec(&desired.spec).ok()
        } else {
            None
        },
        generation: desired.generation,
        status: Some(status(cluster, inner, visible)),
        create_time: Some(time(desired.create_time_ms)),
        delete_time: desired.delete_time_ms.map(time),
    }
}

fn status(cluster: &Cluster, inner: &Inner, visible: &Visible) -> pb::ClusterStatus {
    let groups: Vec<pb::GroupStatus> = inner
        .spec
        .groups
        .iter()
        .map(|group| group_status(inner, visible, group))
        .collect();
    let pause = inner.desired.value.paused.as_ref().map(|pause| pb::Pause {
        reason: pause.reason.clone(),
        pause_time: Some(to_timestamp(u64::try_from(pause.time_ms).unwrap_or(0))),
    });
    pb::ClusterStatus {
        phase: phase(inner, &groups).into(),
        observed_generation: inner.state.observed_generation,
        conditions: conditions(inner, &groups),
        groups,
        infrastructure: crate::infrastructure::show::status(cluster, inner),
        addons: Vec::new(),
        pause,
        last_event_sequence: inner.head.value.last_seq(),
        platforms: platforms(inner, visible),
    }
}

fn is_ready(state: &State, groups: &[pb::GroupStatus]) -> bool {
    state.observed_generation == state.generation
        && holds(state, "", ConditionKind::Ready).is_some()
        && groups.iter().all(|group| group.ready >= group.size)
}

fn phase(inner: &Inner, groups: &[pb::GroupStatus]) -> pb::ClusterPhase {
    let state = &inner.state;
    if state.deleting {
        pb::ClusterPhase::Deleting
    } else if is_ready(state, groups) {
        pb::ClusterPhase::Ready
    } else if state.conditions.keys().any(|key| is_trouble(key.kind)) {
        pb::ClusterPhase::Blocked
    } else if state.nodes.iter().any(is_replaced)
        || groups.iter().any(|group| group.unknown > 0)
        || state
            .backoffs
            .values()
            .any(|back_off| back_off.failures > 1)
    {
        pb::ClusterPhase::Degraded
    } else {
        pb::ClusterPhase::Progressing
    }
}

/// Phase, nodes wanted and nodes ready, for metrics.
pub(crate) fn figures(inner: &Inner, visible: &Visible) -> (pb::ClusterPhase, u32, u32) {
    let groups = inner.spec.groups.iter();
    let groups: Vec<_> = groups
        .map(|group| group_status(inner, visible, group))
        .collect();
    let phase = phase(inner, &groups);
    let wanted = match phase {
        pb::ClusterPhase::Deleting => 0,
        _ => groups.iter().map(|group| group.size).sum(),
    };
    (phase, wanted, groups.iter().map(|group| group.ready).sum())
}

fn is_trouble(kind: ConditionKind) -> bool {
    match kind {
        ConditionKind::StoreBehind
        | ConditionKind::ForeignNodes
        | ConditionKind::DeletionBlocked
        | ConditionKind::Rejected
        | ConditionKind::PlatformUnavailable
        | ConditionKind::NoCapacity
        | ConditionKind::RemediationBlocked
        | ConditionKind::ProbeUnreachable
        | ConditionKind::UpdateBlocked
        | ConditionKind::Failed
        | ConditionKind::InfrastructureFailed
        | ConditionKind::Paused => true,
        ConditionKind::Ready
        | ConditionKind::Deleting
        | ConditionKind::InfrastructureReady
        | ConditionKind::WaitingForInfrastructure => false,
    }
}

fn holds<'a>(
    state: &'a State,
    group: &str,
    kind: ConditionKind,
) -> Option<&'a drover_planner::Condition> {
    state
        .conditions
        .iter()
        .find(|(key, _)| *key.group == *group && key.kind == kind)
        .map(|(_, condition)| condition)
}

fn condition(
    kind: &str,
    status: bool,
    reason: &str,
    message: String,
    since: u64,
) -> common::Condition {
    common::Condition {
        r#type: kind.to_owned(),
        status: Some(status),
        reason: reason.to_owned(),
        message: cut(message),
        last_transition_time: to_timestamp_opt(since),
    }
}

/// Conditions of the cluster: those that are recorded, and those that follow from the record.
fn conditions(inner: &Inner, groups: &[pb::GroupStatus]) -> Vec<common::Condition> {
    let state = &inner.state;
    let ready = is_ready(state, groups);
    let (have, want) = groups
        .iter()
        .fold((0, 0), |(h, w), group| (h + group.ready, w + group.size));
    let count = format!("{have} of {want} ready");
    let since = |kind| holds(state, "", kind).map_or(0, |condition| condition.since);
    let words = |kind| {
        holds(state, "", kind).map_or(String::new(), |condition| condition.message.to_string())
    };
    let reason = if ready {
        "AsWanted"
    } else {
        why_not_ready(inner)
    };
    let lasting = |kind: &str, status: bool, wanted: bool, word: &str| {
        condition(
            kind,
            status,
            if status == wanted { "AsWanted" } else { word },
            String::new(),
            0,
        )
    };
    let shrinks = state.nodes.iter().any(|n| {
        n.removal
            .is_some_and(|r| r.reason == RemovalReason::Surplus)
    });
    let mut list = vec![
        condition(
            "Ready",
            ready,
            reason,
            count.clone(),
            since(ConditionKind::Ready),
        ),
        condition(
            "NodesReady",
            have >= want,
            if have >= want { "AsWanted" } else { reason },
            count,
            since(ConditionKind::Ready),
        ),
        lasting(
            "UpToDate",
            !groups.iter().any(|g| g.updated < g.present),
            true,
            "Update",
        ),
        lasting(
            "ScalingUp",
            groups.iter().any(|g| g.present < g.size),
            false,
            "ScaleUp",
        ),
        lasting("ScalingDown", shrinks, false, "ScaleDown"),
        lasting(
            "Remediating",
            state.nodes.iter().any(is_replaced),
            false,
            "Replace",
        ),
    ];
    if let Some((status, reason, message, since)) = crate::infrastructure::show::condition(inner) {
        list.insert(
            1,
            condition("InfrastructureReady", status, &reason, message, since),
        );
    }
    for kind in [
        ConditionKind::Paused,
        ConditionKind::Deleting,
        ConditionKind::StoreBehind,
        ConditionKind::ForeignNodes,
        ConditionKind::DeletionBlocked,
    ] {
        if let Some(held) = holds(state, "", kind) {
            list.push(condition(
                kind.as_str(),
                true,
                &held.reason,
                words(kind),
                held.since,
            ));
        }
    }
    let failed = state
        .conditions
        .iter()
        .find(|(key, _)| key.kind == ConditionKind::Failed);
    if let Some((key, held)) = failed {
        let message = format!("{}: {}", key.group, held.message);
        list.push(condition("Failed", true, &held.reason, message, held.since));
    }
    list
}

fn is_replaced(node: &Node) -> bool {
    matches!(
        node.removal.map(|removal| removal.reason),
        Some(RemovalReason::Dead | RemovalReason::Sick)
    ) || matches!(node.state, NodeState::Unhealthy | NodeState::Failed)
}

fn why_not_ready(inner: &Inner) -> &'static str {
    let state = &inner.state;
    if let Some(key) = state.conditions.keys().find(|key| is_trouble(key.kind)) {
        return key.kind.as_str();
    }
    if state.nodes.iter().any(is_replaced) {
        "Replace"
    } else if crate::infrastructure::show::condition(inner).is_some_and(|(ready, ..)| !ready) {
        "Infrastructure"
    } else {
        "ScaleUp"
    }
}

fn group_status(inner: &Inner, visible: &Visible, group: &Group) -> pb::GroupStatus {
    let mut status = pb::GroupStatus {
        path: group.path.to_string(),
        size: group.size.unwrap_or(1),
        ..pb::GroupStatus::default()
    };
    for node in inner
        .state
        .nodes
        .iter()
        .filter(|node| node.group == group.path)
    {
        let seen = sees(visible, node);
        let current = group.makes(node);
        status.present += 1;
        status.ready += u32::from(seen && node.state == NodeState::Ready && node.removal.is_none());
        status.updated += u32::from(current);
        let serves = seen && node.state == NodeState::Ready && node.removal.is_none();
        status.updated_ready += u32::from(current && serves && !node.marked);
        let rolls = group.update.strategy == UpdateStrategy::Rolling;
        let dead = node.is_dead() || node.removal.is_some();
        status.renewing += u32::from(!dead && (node.marked || !current && rolls));
        status.unknown += u32::from(!seen);
    }
    let back_offs = inner
        .state
        .backoffs
        .iter()
        .filter(|(key, _)| key.group == group.path);
    status.wait_until_time = back_offs
        .map(|(_, b)| b.next)
        .filter(|next| *next > visible.now)
        .max()
        .and_then(to_timestamp_opt);
    if let Some(rollout) = inner.state.rollouts.get(&group.path) {
        status.update_start_time = to_timestamp_opt(rollout.started);
        status.update_progress_time = to_timestamp_opt(rollout.progress);
    }
    let ready = holds(&inner.state, &group.path, ConditionKind::Ready).is_some()
        && status.ready >= status.size;
    status.conditions.push(condition(
        "Ready",
        ready,
        if ready { "AsWanted" } else { "ScaleUp" },
        format!("{} of {} ready", status.ready, status.size),
        holds(&inner.state, &group.path, ConditionKind::Ready)
            .map_or(0, |condition| condition.since),
    ));
    for (key, held) in inner
        .state
        .conditions
        .iter()
        .filter(|(key, _)| key.group == group.path)
    {
        if key.kind != ConditionKind::Ready {
            let message = held.message.to_string();
            status.conditions.push(condition(
                key.kind.as_str(),
                true,
                &held.reason,
                message,
                held.since,
            ));
        }
    }
    status
}

fn platforms(inner: &Inner, visible: &Visible) -> Vec<pb::ClusterPlatform> {
    let count = |name: &Sym, uid: &Sym| {
        inner
            .state
            .nodes
            .iter()
            .filter(|node| node.platform == *name && node.platform_uid == *uid)
            .count()
    };
    let used = inner
        .state
        .used
        .iter()
        .map(|(name, uid)| pb::ClusterPlatform {
            platform: name.to_string(),
            platform_uid: uid.to_string(),
            node_count: u32::try_from(count(name, uid)).unwrap_or(u32::MAX),
            visible: visible.sees(name, uid),
        });
    used.collect()
}

/// Names of the steps of one plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    generation: u64,
    revision: u64,
    number: u32,
}

impl Steps {
    /// `revision` is that of the head that the plan is made from: it changes with every step that is durable.
    pub(crate) fn new(generation: u64, revision: u64) -> Self {
        Self {
            generation,
            revision,
            number: 0,
        }
    }

    /// The name of the next one.
    pub(crate) fn next(&mut self) -> String {
        self.number += 1;
        format!("{}.{}.{}", self.generation, self.revision, self.number)
    }
}

/// A plan as it is answered. `state` is the record that it was made from, `revision` that of its head.
pub(crate) fn plan(
    plan: &Plan,
    state: &State,
    revision: u64,
    generation: u64,
    now: u64,
) -> pb::Plan {
    let mut actions: Vec<pb::Action> = plan.ops.iter().filter_map(|op| action(op, state)).collect();
    for call in &plan.calls {
        let again = |op: &Op| matches!((op, call), (Op::Attempt { request, .. }, Call::Provision { request: r, .. }) if request == r);
        if plan.ops.iter().any(again)
            && let Call::Provision { request, .. } = call
            && let Some(request) = state.requests.get(request)
        {
            actions.push(pb::Action {
                kind: pb::ActionKind::Provision.into(),
                group: request.group.to_string(),
                platform: request.platform.to_string(),
                count: 1,
                reason: "ScaleUp".to_owned(),
                message: "asks again under the same request: what became of it is not known"
                    .to_owned(),
                ..pb::Action::default()
            });
        }
    }
    let mut steps = Steps::new(generation, revision);
    for action in &mut actions {
        action.step = steps.next();
    }
    let mut report: Vec<pb::PlanNote> = plan.report.iter().map(|one| note(one, state)).collect();
    let omitted = actions.len().saturating_sub(MAX_PLAN) + report.len().saturating_sub(MAX_PLAN);
    actions.truncate(MAX_PLAN);
    report.truncate(MAX_PLAN);
    pb::Plan {
        generation,
        plan_time: Some(to_timestamp(now)),
        actions,
        report,
        // Whoever knows earlier specs adds them.
        renewals: Vec::new(),
        omitted: u32::try_from(omitted).unwrap_or(u32::MAX),
    }
}

fn action(op: &Op, state: &State) -> Option<pb::Action> {
    let about = |slot: u64, kind: pb::ActionKind, reason: &str, message: &str| {
        let node = state.node(slot)?;
        Some(pb::Action {
            kind: kind.into(),
            group: node.group.to_string(),
            node: Some(node.id(state.uid)),
            node_name: Some(node.name()),
            platform: node.platform.to_string(),
            count: 1,
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..pb::Action::default()
        })
    };
    match op {
        Op::Request {
            request,
            nodes,
            reason,
            ..
        } => {
            let names: Vec<String> = nodes.iter().take(10).map(Node::name).collect();
            let single = match nodes.as_slice() {
                [node] => Some((node.id(state.uid), node.name())),
                _ => None,
            };
            Some(pb::Action {
                kind: pb::ActionKind::Provision.into(),
                group: request.group.to_string(),
                node: single.as_ref().map(|(id, _)| id.clone()),
                node_name: single.map(|(_, name)| name),
                platform: request.platform.to_string(),
                count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
                reason: (*reason).to_owned(),
                message: names.join(", "),
                ..pb::Action::default()
            })
        }
        Op::Remove { slot, reason } => {
            let word = match reason.as_str() {
                "Surplus" => "ScaleDown",
                // Nobody marked it: its group or cluster goes, and nothing comes in its place.
                "User" if state.node(*slot).is_some_and(|node| !node.marked) => "Delete",
                word => word,
            };
            about(*slot, pb::ActionKind::Deprovision, word, "")
        }
        Op::Forget {
            slot,
            reason,
            message,
            ..
        } => about(*slot, pb::ActionKind::Forget, reason, message),
        Op::Close { request, .. } => {
            let request = state.requests.get(request)?;
            Some(pb::Action {
                kind: pb::ActionKind::CloseRequest.into(),
                group: request.group.to_string(),
                platform: request.platform.to_string(),
                count: 1,
                reason: "Delete".to_owned(),
                message: format!("request {} is never sent again", request.id),
                ..pb::Action::default()
            })
        }
        Op::TakeOrphan { node } => Some(pb::Action {
            kind: pb::ActionKind::Deprovision.into(),
            group: node.group.to_string(),
            node: Some(node.id(state.uid)),
            node_name: Some(node.name()),
            platform: node.platform.to_string(),
            count: 1,
            reason: "Orphan".to_owned(),
            message: node.message.to_string(),
            ..pb::Action::default()
        }),
        Op::Infrastructure { key, to, change } => {
            crate::infrastructure::show::action(key, to.as_deref(), *change)
        }
        Op::Enter { .. }
        | Op::Learn { .. }
        | Op::Attempt { .. }
        | Op::MadeNothing { .. }
        | Op::BackOff { .. }
        | Op::Condition { .. }
        | Op::Restamp { .. }
        | Op::Rollout { .. }
        | Op::Observed { .. } => None,
    }
}

fn note(from: &Note, state: &State) -> pb::PlanNote {
    let activity = if from.acting {
        pb::PlanActivity::Acting
    } else {
        pb::PlanActivity::Waiting
    };
    pb::PlanNote {
        group: from.group.to_string(),
        node: from
            .slot
            .and_then(|slot| state.node(slot))
            .map(|node| node.id(state.uid)),
        activity: activity.into(),
        reason: from.reason.to_owned(),
        message: cut(from.message.clone()),
        wait_until_time: from.until.and_then(to_timestamp_opt),
        step: None,
    }
}
