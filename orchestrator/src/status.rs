//! Clusters and nodes in API responses.

use drover_cluster::{Cluster, ClusterState, template};
use drover_convert::{
    node::{Around, to_node},
    value::{to_timestamp, to_timestamp_opt},
};
use drover_core::{
    Millis, Node, NodeState, Sym,
    error::cut,
    name::node_name,
    node::Role,
    resource::ResourceKey,
    spec::{Group, UpdateStrategy},
    words,
};
use drover_planner::{ConditionKind, State};
use drover_proto::{common::v1 as common, orchestrator::v1 as pb};

mod outlook;
mod plan;
mod spec;
mod visible;
mod waits;

pub(crate) use plan::{plan, plan_of};
pub(crate) use spec::{shown, shown_spec, sources};
pub(crate) use visible::{Viewer, Visible};
use waits::Wait;

/// Maximum number of unready nodes named per group.
const MAX_NAMED: usize = 5;

fn sees(visible: &Visible, node: &Node) -> bool {
    visible.sees(&node.platform, &node.platform_uid)
}

fn outdated(inner: &ClusterState, node: &Node) -> bool {
    let known = inner.wanted();
    let groups = known.as_ref().map_or(&inner.spec().groups, |groups| groups);
    let group = groups.iter().find(|group| group.path == node.group);
    group.is_none_or(|group| !template::is_current(inner.state(), group, node))
}

pub(crate) fn node(
    cluster: &Cluster,
    inner: &ClusterState,
    visible: &Visible,
    node: &Node,
) -> pb::Node {
    let around = Around {
        uid: cluster.uid(),
        cluster: cluster.name(),
        visible: sees(visible, node),
        outdated: outdated(inner, node),
        under_repair: inner.state().repairs.contains(&node.slot),
    };
    to_node(node, &around)
}

/// A cluster in a response. Contains the spec only if requested.
pub(crate) fn cluster(
    cluster: &Cluster,
    inner: &ClusterState,
    visible: &Visible,
    full: bool,
) -> pb::Cluster {
    let desired = &inner.desired().value;
    let time = |ms: i64| to_timestamp(u64::try_from(ms).unwrap_or(0));
    pb::Cluster {
        name: cluster.name().to_string(),
        uid: cluster.uid().to_string(),
        labels: desired.labels.clone(),
        spec: if full {
            shown_spec(&desired.spec, &visible.digests.of_cluster(cluster.uid()))
        } else {
            None
        },
        generation: desired.generation,
        status: Some(status(cluster, inner, visible)),
        create_time: Some(time(desired.create_time_ms)),
        delete_time: desired.delete_time_ms.map(time),
        author: desired.author.clone(),
    }
}

fn status(cluster: &Cluster, inner: &ClusterState, visible: &Visible) -> pb::ClusterStatus {
    let groups = group_statuses(inner, visible);
    let pause = inner
        .desired()
        .value
        .paused
        .as_ref()
        .map(|pause| pb::Pause {
            reason: pause.reason.clone(),
            author: inner.desired().value.pause_author.clone(),
            pause_time: Some(to_timestamp(u64::try_from(pause.time_ms).unwrap_or(0))),
        });
    pb::ClusterStatus {
        phase: phase(inner, &groups).into(),
        observed_generation: inner.state().observed_generation,
        conditions: conditions(inner, &groups),
        groups,
        infrastructure: crate::resources::show::status(cluster, inner),
        addons: crate::resources::show::addons(cluster, inner),
        pause,
        last_event_sequence: inner.head().value.last_seq(),
        platforms: platforms(inner, visible),
    }
}

fn is_ready(state: &State, groups: &[pb::GroupStatus]) -> bool {
    state.observed_generation == state.generation
        && !is_ahead(state)
        && holds(state, "", ConditionKind::Ready).is_some()
        && groups.iter().all(has_all)
}

/// Whether the conditions are those of a plan from before the last request to replace nodes, or to resume.
fn is_ahead(state: &State) -> bool {
    let resumed = !state.paused && holds(state, "", ConditionKind::Paused).is_some();
    resumed || state.nodes.iter().any(|node| node.marked)
}

/// Whether a group has its desired number of ready nodes, both active and standby.
fn has_all(group: &pb::GroupStatus) -> bool {
    group.ready >= group.size && group.standby_ready >= group.standby
}

fn phase(inner: &ClusterState, groups: &[pb::GroupStatus]) -> pb::ClusterPhase {
    let state = &inner.state();
    if state.deleting {
        pb::ClusterPhase::Deleting
    } else if inner.unstored().is_some() {
        pb::ClusterPhase::Blocked
    } else if is_ready(state, groups) {
        pb::ClusterPhase::Ready
    } else if state.conditions.keys().any(|key| is_trouble(key.kind)) {
        pb::ClusterPhase::Blocked
    } else if state.nodes.iter().any(waits::is_replaced)
        || groups.iter().any(|group| group.unknown > 0)
        || holds(state, "", ConditionKind::AddonsFailed).is_some()
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

/// Phase, desired nodes and ready nodes, for metrics.
pub(crate) fn figures(inner: &ClusterState, visible: &Visible) -> (pb::ClusterPhase, u32, u32) {
    let groups = group_statuses(inner, visible);
    let phase = phase(inner, &groups);
    let wanted = match phase {
        pb::ClusterPhase::Deleting => 0,
        _ => groups.iter().map(|g| g.size + g.standby).sum(),
    };
    let ready = groups.iter().map(|g| g.ready + g.standby_ready).sum();
    (phase, wanted, ready)
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
        | ConditionKind::PromotionFailed
        | ConditionKind::HostLost
        | ConditionKind::Orphans
        | ConditionKind::Failed
        | ConditionKind::InfrastructureFailed
        | ConditionKind::Paused => true,
        ConditionKind::Ready
        | ConditionKind::Deleting
        | ConditionKind::InfrastructureReady
        | ConditionKind::WaitingForInfrastructure
        // Nodes run as before until then.
        | ConditionKind::MaintenanceScheduled
        // They serve.
        | ConditionKind::Impaired
        // Nodes go on without their addons.
        | ConditionKind::AddonsReady
        | ConditionKind::AddonsFailed => false,
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

/// Conditions of the cluster: recorded ones and derived ones.
fn conditions(inner: &ClusterState, groups: &[pb::GroupStatus]) -> Vec<common::Condition> {
    let state = &inner.state();
    let ready = inner.unstored().is_none() && is_ready(state, groups);
    let (have, want) = groups.iter().fold((0, 0), |(h, w), group| {
        let have = h + group.ready + group.standby_ready;
        (have, w + group.size + group.standby)
    });
    let count = format!("{have} of {want} ready");
    let since = |kind| holds(state, "", kind).map_or(0, |condition| condition.since);
    let words = |kind| {
        holds(state, "", kind).map_or(String::new(), |condition| condition.message.to_string())
    };
    let as_wanted = ("AsWanted", since(ConditionKind::Ready));
    let (reason, began) = if ready {
        as_wanted
    } else {
        waits::of_cluster(inner, groups)
    };
    let (nodes_reason, nodes_began) = if have >= want {
        as_wanted
    } else {
        (reason, began)
    };
    let lasting = |kind: &str, status: bool, trouble: Option<Wait>| {
        let (reason, since) = trouble.unwrap_or(("AsWanted", 0));
        condition(kind, status, reason, String::new(), since)
    };
    let outdated = groups.iter().any(|group| group.updated < group.present);
    let updates = || waits::update(state, |_| true).unwrap_or(("Update", 0));
    let lacks = groups.iter().any(waits::lacks);
    let shrinks = waits::shrinking(state, |_| true);
    let remediates = state.nodes.iter().any(waits::is_replaced);
    let mut list = vec![
        condition("Ready", ready, reason, count.clone(), began),
        condition("NodesReady", have >= want, nodes_reason, count, nodes_began),
        common::Condition {
            message: cut(old_templates(inner)),
            ..lasting("UpToDate", !outdated, outdated.then(updates))
        },
        lasting(
            "ScalingUp",
            lacks,
            lacks.then(|| waits::lack(inner, groups)),
        ),
        lasting("ScalingDown", shrinks.is_some(), shrinks),
        lasting(
            "Remediating",
            remediates,
            remediates.then(|| waits::remediation(state)),
        ),
    ];
    for (kind, held) in [
        (
            "AddonsReady",
            crate::resources::show::addons_condition(inner),
        ),
        (
            "InfrastructureReady",
            crate::resources::show::condition(inner),
        ),
    ] {
        if let Some((status, reason, message, since)) = held {
            list.insert(1, condition(kind, status, &reason, message, since));
        }
    }
    if let Some((reason, message, since)) = draining(state) {
        list.push(condition("Draining", true, reason, message, since));
    }
    for kind in [
        ConditionKind::Paused,
        ConditionKind::Deleting,
        ConditionKind::StoreBehind,
        ConditionKind::ForeignNodes,
        ConditionKind::DeletionBlocked,
        ConditionKind::Orphans,
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
    if let Some((error, since)) = &inner.unstored() {
        let word = format!("{:?}", error.reason());
        list.push(condition(
            "StoreUnavailable",
            true,
            &word,
            error.message().to_owned(),
            *since,
        ));
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

/// Nodes that run their pre-stop hook, and nodes that are removed although it failed: reason, message, since.
fn draining(state: &State) -> Option<(&'static str, String, Millis)> {
    let (mut reason, mut since) = ("PreStop", Millis::MAX);
    let mut words = Vec::new();
    for node in &state.nodes {
        let Some(removal) = node.removal else {
            continue;
        };
        if removal.drain > 0 {
            let addons = state.resources.keys().any(ResourceKey::is_addon);
            let why = if addons && !node.in_flight.call.in_flight {
                "its addons let go of it"
            } else {
                "its preStop hook runs"
            };
            words.push(format!("{}: {why}", node.name()));
        } else if node.message.starts_with("preStop: ") {
            reason = "PreStopFailed";
            words.push(format!(
                "{}: {}; its removal goes on",
                node.name(),
                node.message
            ));
        } else {
            continue;
        }
        since = since.min(removal.since);
    }
    (!words.is_empty()).then(|| (reason, words.join("; "), since))
}

/// Describes the templates that changed while nodes made from the old version still exist.
fn old_templates(inner: &ClusterState) -> String {
    let known = inner.wanted();
    known.map_or_else(String::new, |groups| {
        template::changed(inner.state(), &groups)
    })
}

/// Describes the visible nodes of a group that are unready or no longer listed, and the causes, for a message.
fn unready(inner: &ClusterState, visible: &Visible, group: &Group) -> String {
    let unready = inner.state().nodes.iter().filter(|node| {
        let own = node.group == group.path && node.removal.is_none();
        let unready = node.state != NodeState::Ready || node.seen.unlisted;
        own && unready && sees(visible, node)
    });
    let named = unready.take(MAX_NAMED).map(|node| {
        if node.state == NodeState::Ready {
            return format!("{} is not listed by {}", node.name(), node.platform);
        }
        let words = match words::because(&node.reason, &node.message) {
            words if words.is_empty() => words,
            words => format!(" ({words})"),
        };
        format!("{} is {:?}{words}", node.name(), node.state)
    });
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        String::new()
    } else {
        format!("; {}", named.join(", "))
    }
}

/// Why nodes of a group are not visible: the platform of the first of them, and its problem.
fn unseen(inner: &ClusterState, visible: &Visible, group: &Group) -> Option<String> {
    let mut own = inner
        .state()
        .nodes
        .iter()
        .filter(|node| node.group == group.path);
    let name = &own.find(|node| !sees(visible, node))?.platform;
    let trouble = if visible.uids.contains_key(name) {
        "shows another backend than the one that they are on"
    } else {
        let trouble = visible.troubles.get(name);
        trouble.map_or("is not registered", |trouble| &**trouble)
    };
    Some(format!("{name} {trouble}"))
}

fn group_statuses(inner: &ClusterState, visible: &Visible) -> Vec<pb::GroupStatus> {
    let known = inner.wanted();
    let groups = known.as_ref().map_or(&inner.spec().groups, |groups| groups);
    groups
        .iter()
        .map(|group| group_status(inner, visible, group))
        .collect()
}

fn group_status(inner: &ClusterState, visible: &Visible, group: &Group) -> pb::GroupStatus {
    let mut marked = false;
    let mut status = pb::GroupStatus {
        path: group.path.to_string(),
        size: group.size.unwrap_or(1),
        standby: group.standby,
        ..pb::GroupStatus::default()
    };
    for node in inner
        .state()
        .nodes
        .iter()
        .filter(|node| node.group == group.path)
    {
        let seen = sees(visible, node);
        let current = template::is_current(inner.state(), group, node);
        status.present += 1;
        status.updated += u32::from(current);
        marked |= node.marked;
        let serves = seen && node.state == NodeState::Ready && node.removal.is_none();
        match node.role {
            Role::Active => status.ready += u32::from(serves),
            Role::Standby => status.standby_ready += u32::from(serves),
            // In transition, counted as neither.
            Role::Promoting | Role::Demoting => {}
        }
        status.updated_ready += u32::from(current && serves && !node.marked);
        let rolls = group.update.strategy == UpdateStrategy::Rolling;
        let dead = node.is_dead() || node.removal.is_some();
        let grows = node.in_flight.changes.growth.is_some();
        status.renewing += u32::from(!dead && (node.marked || !current && (rolls || grows)));
        status.unknown += u32::from(!seen);
    }
    let back_offs = inner
        .state()
        .backoffs
        .iter()
        .filter(|(key, _)| key.group == group.path);
    status.wait_until_time = back_offs
        .map(|(_, b)| b.next)
        .filter(|next| *next > visible.now)
        .max()
        .and_then(to_timestamp_opt);
    if let Some(rollout) = inner.state().rollouts.get(&group.path) {
        status.update_start_time = to_timestamp_opt(rollout.started);
        status.update_progress_time = to_timestamp_opt(rollout.progress);
    }
    let held = holds(inner.state(), &group.path, ConditionKind::Ready);
    let ready = held.is_some() && !marked && has_all(&status);
    let (reason, since) = match held {
        Some(held) if ready => ("AsWanted", held.since),
        _ => waits::of_group(inner, &status),
    };
    let mut words = format!("{} of {} ready", status.ready, status.size);
    if group.standby > 0 {
        let standby = format!(", {} of {} standby", status.standby_ready, status.standby);
        words.push_str(&standby);
    }
    if let Some(sole) = inner.state().sole.get(&group.path)
        && group.standby > 0
    {
        let name = node_name(&group.path, sole.ordinal);
        let alone = format!("; {name} may acknowledge alone until its standbys have everything");
        words.push_str(&alone);
    }
    words.push_str(&unready(inner, visible, group));
    status
        .conditions
        .push(condition("Ready", ready, reason, words, since));
    for (key, held) in inner
        .state()
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
    let kind = ConditionKind::PlatformUnavailable;
    let held = holds(inner.state(), &group.path, kind).is_some();
    if let Some(words) = unseen(inner, visible, group).filter(|_| !held) {
        let unseen = condition(kind.as_str(), true, kind.as_str(), words, 0);
        status.conditions.push(unseen);
    }
    status
}

fn platforms(inner: &ClusterState, visible: &Visible) -> Vec<pb::ClusterPlatform> {
    let count = |name: &Sym, uid: &Sym| {
        inner
            .state()
            .nodes
            .iter()
            .filter(|node| node.platform == *name && node.platform_uid == *uid)
            .count()
    };
    let used = inner
        .state()
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
