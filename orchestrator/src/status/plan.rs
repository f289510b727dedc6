//! Plans in API responses.

use std::collections::BTreeSet;

use drover_cluster::{ClusterState, events::Steps};
use drover_convert::{
    spec::to_retention,
    value::{to_timestamp, to_timestamp_opt},
};
use drover_core::{error::cut, node::Role, spec::Group, storage::Retention};
use drover_planner::{Call, Note, Op, Plan, State};
use drover_proto::orchestrator::v1 as pb;

use super::outlook;

/// Maximum number of actions, and of notes, in a plan.
const MAX_PLAN: usize = 1_000;

/// Reasons of actions that replace a node.
const REPLACING: [&str; 9] = [
    "Dead",
    "Sick",
    "Outdated",
    "Lifetime",
    "Maintenance",
    "User",
    "Replace",
    "Update",
    "Standby",
];

/// The plan of a cluster as it is.
pub(crate) fn plan_of(plan: &Plan, cluster: &ClusterState, now: u64) -> pb::Plan {
    let (state, groups) = (cluster.state(), cluster.groups());
    let revision = cluster.head().revision;
    self::plan(plan, state, groups, revision, state.generation, now)
}

/// A plan in a response. `state` is the record that it is based on, `revision` that of its head, `groups` those that
/// are wanted.
pub(crate) fn plan(
    plan: &Plan,
    state: &State,
    groups: &[Group],
    revision: u64,
    generation: u64,
    now: u64,
) -> pb::Plan {
    let wanted: BTreeSet<&str> = match state.deleting {
        true => BTreeSet::new(),
        false => groups.iter().map(|group| &*group.path).collect(),
    };
    let actions = plan.ops.iter().filter_map(|op| action(op, state, &wanted));
    let mut actions: Vec<pb::Action> = actions.collect();
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
        action.step = steps.next_name();
        action.replaces = REPLACING.contains(&&*action.reason);
    }
    let mut report: Vec<pb::PlanNote> = plan.report.iter().map(|one| note(one, state)).collect();
    let totals = outlook::totals(plan, &actions, state);
    let omitted = actions.len().saturating_sub(MAX_PLAN) + report.len().saturating_sub(MAX_PLAN);
    actions.truncate(MAX_PLAN);
    report.truncate(MAX_PLAN);
    pb::Plan {
        generation,
        plan_time: Some(to_timestamp(now)),
        actions,
        report,
        // Filled in by callers that have the former specs.
        renewals: Vec::new(),
        outlooks: outlook::outlooks(plan, state),
        totals: Some(totals),
        omitted: u32::try_from(omitted).unwrap_or(u32::MAX),
    }
}

fn action(op: &Op, state: &State, wanted: &BTreeSet<&str>) -> Option<pb::Action> {
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
            let names: Vec<String> = nodes.iter().take(10).map(|node| node.name()).collect();
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
        Op::Remove {
            slot,
            reason,
            retain,
        } => {
            let word = match reason.as_str() {
                "Surplus" => "ScaleDown",
                // The group or the cluster is removed, so that not even a marked node is replaced.
                "User" if (state.node(*slot)).is_some_and(|it| !wanted.contains(&*it.group)) => {
                    "Delete"
                }
                word => word,
            };
            let storage = state.node(*slot).is_some_and(|node| node.storage);
            let fate = storage.then(|| Retention::of(*retain));
            about(*slot, pb::ActionKind::Deprovision, word, "").map(|action| pb::Action {
                storage: to_retention(fate).into(),
                ..action
            })
        }
        Op::RecordDropped {
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
        Op::RoleChange { slot, role } if *role == Role::Promoting => {
            about(*slot, pb::ActionKind::Promote, "Promote", "")
        }
        Op::TakeOrphan { node } => Some(pb::Action {
            kind: match node.removal {
                Some(_) => pb::ActionKind::Deprovision.into(),
                None => pb::ActionKind::Adopt.into(),
            },
            group: node.group.to_string(),
            node: Some(node.id(state.uid)),
            node_name: Some(node.name()),
            platform: node.platform.to_string(),
            count: 1,
            reason: match node.removal {
                Some(_) => "Orphan".to_owned(),
                None => "Adopt".to_owned(),
            },
            message: format!(
                "{} {}",
                node.node_id.as_deref().unwrap_or_default(),
                node.message
            ),
            storage: to_retention(node.fate_of_storage()).into(),
            ..pb::Action::default()
        }),
        Op::Resource { key, to, change } => {
            crate::resources::show::action(key, to.as_deref(), *change)
        }
        Op::StateChanged { .. }
        | Op::NodeIdAssigned { .. }
        | Op::Attempt { .. }
        | Op::MadeNothing { .. }
        | Op::BackOff { .. }
        | Op::Condition { .. }
        | Op::Restamp { .. }
        | Op::Grown { .. }
        | Op::Template { .. }
        | Op::RoleChange { .. }
        | Op::HostLabels { .. }
        | Op::Reached { .. }
        | Op::Rollout { .. }
        | Op::Drain { .. }
        | Op::PeakSizeChanged { .. }
        | Op::Vacated { .. }
        | Op::Sole { .. }
        | Op::Own { .. }
        | Op::Adopted { .. }
        | Op::Rebind { .. }
        | Op::Abandon { .. }
        | Op::Sweep { .. }
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
