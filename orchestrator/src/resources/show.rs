//! Infrastructure and addons in API responses and events.

use drover_cluster::{Cluster, ClusterState};
use drover_core::addon::WantedAddon;
use drover_core::resource::{Resource, ResourceKey, ResourceRecord};
use drover_core::words;
use drover_planner::{ConditionKind, Op, ResourceChange, State};
use drover_proto::{
    orchestrator::v1::{self as pb, EventSeverity},
    platform::v1 as wire,
};
use drover_store::NewEvent;
use serde_json::{Value, json};

use drover_cluster::resources::{named, parts};

/// Maximum number of resources of an abandoned backend that get an event of their own.
const MAX_TOLD: usize = 64;

/// An operation on a resource as an action of a plan. `None` if it is none.
pub(crate) fn action(
    key: &ResourceKey,
    to: Option<&ResourceRecord>,
    change: ResourceChange,
) -> Option<pb::Action> {
    let record = to.filter(|_| change.is_action())?;
    let what = parts(key, &record.body);
    let (kind, reason, message) = match (key.is_addon(), record.releasing) {
        (false, true) => (
            pb::ActionKind::ReleaseInfrastructure,
            "Delete",
            record.named(),
        ),
        (false, false) => (pb::ActionKind::EnsureInfrastructure, "Infrastructure", what),
        (true, true) => (pb::ActionKind::RemoveAddon, "Delete", what),
        (true, false) if change == ResourceChange::Follow => {
            let message = format!(
                "{what}, {}",
                words::count(record.in_flight.targets.len(), "target")
            );
            (pb::ActionKind::EnsureAddon, "Targets", message)
        }
        (true, false) => (pb::ActionKind::EnsureAddon, "Addon", what),
    };
    Some(pb::Action {
        kind: kind.into(),
        platform: key.platform.to_string(),
        count: 1,
        reason: reason.to_owned(),
        message,
        ..pb::Action::default()
    })
}

/// The record of a desired addon. After a change of backend there may be two; the other one is on its way out.
fn of_addon<'s>(
    state: &'s State,
    addon: &WantedAddon,
) -> Option<(&'s ResourceKey, &'s ResourceRecord)> {
    let of_it = || {
        state.resources.iter().filter(|(key, _)| {
            key.addon_name() == Some(&addon.name) && key.platform == addon.wanted.platform
        })
    };
    let stays = of_it().find(|(_, record)| !record.releasing);
    stays.or_else(|| of_it().next())
}

/// Addons of a cluster: in the order of the spec, then those that are being removed.
pub(crate) fn addons(cluster: &Cluster, inner: &ClusterState) -> Vec<wire::AddonState> {
    let owner = cluster.uid().to_string();
    let wanted: &[WantedAddon] = if inner.state().deleting {
        &[]
    } else {
        &inner.spec().addons
    };
    let records = inner.state().resources.iter();
    let records: Vec<_> = records.filter(|(key, _)| key.is_addon()).collect();
    let state = |name: &str, record: &ResourceRecord| {
        drover_convert::addon::to_status(cluster.name(), &owner, name, record)
    };
    let mut list: Vec<wire::AddonState> = wanted
        .iter()
        .map(|addon| {
            let record = of_addon(inner.state(), addon);
            let missing = || ResourceRecord {
                body: addon.wanted.body.clone(),
                ..ResourceRecord::default()
            };
            record.map_or_else(
                || state(&addon.name, &missing()),
                |(_, record)| state(&addon.name, record),
            )
        })
        .collect();
    let shown: Vec<&ResourceKey> = wanted
        .iter()
        .filter_map(|addon| Some(of_addon(inner.state(), addon)?.0))
        .collect();
    let rest = records.iter().filter(|(key, _)| !shown.contains(key));
    list.extend(rest.filter_map(|(key, record)| Some(state(key.addon_name()?, record))));
    list
}

/// Infrastructure status of a cluster: in the order of the spec, then remnants of earlier specs.
pub(crate) fn status(cluster: &Cluster, inner: &ClusterState) -> Vec<pb::InfrastructureStatus> {
    let owner = cluster.uid().to_string();
    let place = |key: &ResourceKey| {
        let mut wanted = inner.spec().infrastructure.iter();
        wanted
            .position(|wanted| wanted.platform == key.platform)
            .unwrap_or(usize::MAX)
    };
    let records = inner.state().resources.iter();
    let mut records: Vec<_> = records.filter(|(key, _)| !key.is_addon()).collect();
    records.sort_by_key(|(key, _)| place(key));
    let mut list: Vec<pb::InfrastructureStatus> = records
        .into_iter()
        .map(|(key, record)| {
            drover_convert::infrastructure::to_status(cluster.name(), &owner, &key.platform, record)
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
                &ResourceRecord::default(),
            );
            list.insert(at.min(list.len()), missing);
        }
    }
    list
}

/// A condition of the cluster: whether it holds, the reason and message if not, and since when.
type Held = (bool, String, String, u64);

/// Whether the infrastructure is as desired. `None` if none is desired.
pub(crate) fn condition(inner: &ClusterState) -> Option<Held> {
    if inner.spec().infrastructure.is_empty() {
        return None;
    }
    let failed = [
        ConditionKind::InfrastructureFailed,
        ConditionKind::WaitingForInfrastructure,
    ];
    held(
        inner,
        ConditionKind::InfrastructureReady,
        &failed,
        "Infrastructure",
    )
}

/// Whether the addons are as desired. `None` if none is desired and none is left.
pub(crate) fn addons_condition(inner: &ClusterState) -> Option<Held> {
    let mut recorded = inner.state().resources.keys();
    if inner.spec().addons.is_empty() && !recorded.any(ResourceKey::is_addon) {
        return None;
    }
    let failed = [ConditionKind::AddonsFailed];
    // One that is known to serve may still be refused what it is told.
    let fails = inner.state().conditions.iter();
    let mut fails = fails.filter(|(key, _)| key.kind == ConditionKind::AddonsFailed);
    if let Some((_, why)) = fails.next().filter(|_| !inner.state().deleting) {
        let (reason, message) = (why.reason.to_string(), why.message.to_string());
        return Some((false, reason, message, why.since));
    }
    let (ready, reason, message, since) =
        held(inner, ConditionKind::AddonsReady, &failed, "Addons")?;
    let message = if ready || !message.is_empty() {
        message
    } else {
        missing(inner)
    };
    Some((ready, reason, message, since))
}

/// Names the addons that are not ready, for people.
fn missing(inner: &ClusterState) -> String {
    let state = inner.state();
    let words = inner
        .spec()
        .addons
        .iter()
        .filter_map(|addon| match of_addon(state, addon) {
            None => Some(format!("{}: waits for its first target", addon.name)),
            Some((_, record)) if record.is_ready() => None,
            Some((_, record)) => {
                let seen = drover_convert::addon::to_status("", "", &addon.name, record);
                Some(if seen.message.is_empty() {
                    format!("{}: is being made", addon.name)
                } else {
                    format!("{}: {}", addon.name, seen.message)
                })
            }
        });
    let goes = state.resources.keys().filter_map(|key| {
        let mut wanted = inner.spec().addons.iter();
        let stays = wanted.any(|addon| of_addon(state, addon).is_some_and(|(own, _)| own == key));
        let name = key.addon_name().filter(|_| !stays)?;
        Some(format!("{name} on {}: is being removed", key.platform))
    });
    let words: Vec<String> = words.chain(goes).collect();
    if words.is_empty() {
        "their targets have not been seen yet".to_owned()
    } else {
        words.join("; ")
    }
}

fn held(
    inner: &ClusterState,
    ready: ConditionKind,
    failed: &[ConditionKind],
    otherwise: &str,
) -> Option<Held> {
    let state = &inner.state();
    if state.deleting {
        return None;
    }
    let holds = |kind: ConditionKind| {
        state
            .conditions
            .iter()
            .find(|(key, _)| key.kind == kind)
            .map(|(_, condition)| condition)
    };
    if let Some(ready) = holds(ready) {
        return Some((true, "AsWanted".to_owned(), String::new(), ready.since));
    }
    let why = failed.iter().find_map(|kind| holds(*kind));
    Some(why.map_or_else(
        || (false, otherwise.to_owned(), String::new(), 0),
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
pub(crate) fn abandon(key: &ResourceKey, record: &ResourceRecord, now: u64) -> (Op, Vec<NewEvent>) {
    let event = |message: String| NewEvent {
        time_ms: i64::try_from(now).unwrap_or(i64::MAX),
        severity: EventSeverity::Warning.into(),
        reason: if key.is_addon() {
            "AddonAbandoned".to_owned()
        } else {
            "InfrastructureAbandoned".to_owned()
        },
        message,
        platform: Some(key.platform.to_string()),
        count: 1,
        ..NewEvent::default()
    };
    let (platform, uid) = (&key.platform, &key.uid);
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
            parts(key, &record.body)
        )));
    }
    let op = Op::Resource {
        key: key.clone(),
        to: None,
        change: ResourceChange::Abandon,
    };
    (op, events)
}

/// A stored record as JSON.
pub(crate) fn json(key: &ResourceKey, record: &ResourceRecord) -> Value {
    let resources = record.resources.iter().map(|one| {
        json!({
            "kind": *one.kind, "name": one.name, "id": one.id, "phase": format!("{:?}", one.phase),
            "message": one.message, "sequence": one.sequence,
        })
    });
    json!({
        "platform": *key.platform, "platformUid": *key.uid, "sequence": record.sequence, "specHash": *record.spec_hash,
        "asks": parts(key, &record.body), "releasing": record.releasing, "phase": format!("{:?}", record.phase),
        "resources": resources.collect::<Vec<_>>(), "deadlineMs": record.deadline,
        "unsettledMs": record.unsettled, "failures": record.failures, "nextMs": record.next,
        "reason": *record.reason, "message": record.message,
    })
}
