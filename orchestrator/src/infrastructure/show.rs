//! Infrastructure in API responses and events.

use drover_cluster::{Cluster, ClusterState};
use drover_core::infrastructure::{Infrastructure, Resource};
use drover_planner::{BackendKey, ConditionKind, InfrastructureChange, Op, State};
use drover_proto::orchestrator::v1::{self as pb, EventSeverity};
use drover_store::NewEvent;
use serde_json::{Value, json};

use drover_cluster::infrastructure::{named, parts};

/// Maximum number of resources of an abandoned backend that get an event of their own.
const MAX_TOLD: usize = 64;

/// An operation as an action of a plan. `None` if it is not about infrastructure.
pub(crate) fn action(
    key: &BackendKey,
    to: Option<&Infrastructure>,
    change: InfrastructureChange,
) -> Option<pb::Action> {
    let record = to.filter(|_| change.is_action())?;
    let (kind, reason, message) = if record.releasing {
        let message = record.named();
        (pb::ActionKind::ReleaseInfrastructure, "Delete", message)
    } else {
        let message = parts(&record.body);
        (
            pb::ActionKind::EnsureInfrastructure,
            "Infrastructure",
            message,
        )
    };
    Some(pb::Action {
        kind: kind.into(),
        platform: key.0.to_string(),
        count: 1,
        reason: reason.to_owned(),
        message,
        ..pb::Action::default()
    })
}

/// Infrastructure status of a cluster: in the order of the spec, then remnants of earlier specs.
pub(crate) fn status(cluster: &Cluster, inner: &ClusterState) -> Vec<pb::InfrastructureStatus> {
    let owner = cluster.uid().to_string();
    let place = |key: &BackendKey| {
        let mut wanted = inner.spec().infrastructure.iter();
        wanted
            .position(|wanted| wanted.platform == key.0)
            .unwrap_or(usize::MAX)
    };
    let mut records: Vec<_> = inner.state().infrastructure.iter().collect();
    records.sort_by_key(|(key, _)| place(key));
    let mut list: Vec<pb::InfrastructureStatus> = records
        .into_iter()
        .map(|(key, record)| {
            drover_convert::infrastructure::to_status(cluster.name(), &owner, &key.0, record)
        })
        .collect();
    if inner.state().deleting {
        return list;
    }
    for (at, wanted) in inner.spec().infrastructure.iter().enumerate() {
        if !list.iter().any(|one| *one.platform == *wanted.platform) {
            let missing = drover_convert::infrastructure::to_status(
                cluster.name(),
                &owner,
                &wanted.platform,
                &Infrastructure::default(),
            );
            list.insert(at.min(list.len()), missing);
        }
    }
    list
}

/// Whether the infrastructure is as desired, the reason and message if not, and since when. `None` if none is desired.
pub(crate) fn condition(inner: &ClusterState) -> Option<(bool, String, String, u64)> {
    let state = &inner.state();
    if state.deleting || inner.spec().infrastructure.is_empty() {
        return None;
    }
    let holds = |kind: ConditionKind| {
        state
            .conditions
            .iter()
            .find(|(key, _)| key.kind == kind)
            .map(|(_, condition)| condition)
    };
    if let Some(ready) = holds(ConditionKind::InfrastructureReady) {
        return Some((true, "AsWanted".to_owned(), String::new(), ready.since));
    }
    let why = holds(ConditionKind::InfrastructureFailed)
        .or_else(|| holds(ConditionKind::WaitingForInfrastructure));
    Some(why.map_or_else(
        || (false, "Infrastructure".to_owned(), String::new(), 0),
        |why| {
            (
                false,
                why.reason.to_string(),
                why.message.to_string(),
                why.since,
            )
        },
    ))
}

/// Drops the record of a backend that will never respond again, with events that name what may be left there.
pub(crate) fn abandon(state: &State, key: &BackendKey, now: u64) -> Option<(Op, Vec<NewEvent>)> {
    let record = state.infrastructure.get(key)?;
    let event = |message: String| NewEvent {
        time_ms: i64::try_from(now).unwrap_or(i64::MAX),
        severity: EventSeverity::Warning.into(),
        reason: "InfrastructureAbandoned".to_owned(),
        message,
        platform: Some(key.0.to_string()),
        count: 1,
        ..NewEvent::default()
    };
    let (platform, uid) = key;
    let mut events: Vec<NewEvent> = record
        .resources
        .iter()
        .take(MAX_TOLD)
        .map(|one| {
            event(format!(
                "the record of {} is dropped; it may still be on {platform} ({uid})",
                named(&[one], false)
            ))
        })
        .collect();
    if record.resources.len() > MAX_TOLD {
        let rest: Vec<&Resource> = record.resources[MAX_TOLD..].iter().collect();
        events.push(event(drover_core::error::cut(format!(
            "the records of {} are dropped",
            named(&rest, false)
        ))));
    }
    if events.is_empty() {
        events.push(event(format!(
            "its record is dropped; {platform} ({uid}) was asked for {} and never showed any of it",
            parts(&record.body)
        )));
    }
    let op = Op::Infrastructure {
        key: key.clone(),
        to: None,
        change: InfrastructureChange::Abandon,
    };
    Some((op, events))
}

/// A stored record as JSON.
pub(crate) fn json(key: &BackendKey, record: &Infrastructure) -> Value {
    let resources = record.resources.iter().map(|one| {
        json!({
            "kind": *one.kind, "name": one.name, "id": one.id, "phase": format!("{:?}", one.phase),
            "message": one.message, "sequence": one.sequence,
        })
    });
    json!({
        "platform": *key.0, "platformUid": *key.1, "sequence": record.sequence, "specHash": *record.spec_hash,
        "asks": parts(&record.body), "releasing": record.releasing, "phase": format!("{:?}", record.phase),
        "resources": resources.collect::<Vec<_>>(), "deadlineMs": record.deadline,
        "unsettledMs": record.unsettled, "failures": record.failures, "nextMs": record.next,
        "reason": *record.reason, "message": record.message,
    })
}
