//! Events of infrastructure.

use drover_core::infrastructure::{Infrastructure, Resource, ResourcePhase};
use drover_planner::{BackendKey, InfrastructureChange, State};
use drover_proto::orchestrator::v1::EventSeverity;

use super::parts;

/// Severity, reason and message of an event.
type Told = (EventSeverity, &'static str, String);

/// The event of an operation, given the record before it.
pub fn told(
    state: &State,
    key: &BackendKey,
    to: Option<&Infrastructure>,
    change: InfrastructureChange,
) -> Vec<Told> {
    use EventSeverity::{Info, Warning};
    let before = state.infrastructure.get(key);
    let platform = &key.0;
    let known = |list: Option<&Infrastructure>, one: &Resource| {
        list.is_some_and(|record| {
            record
                .resources
                .iter()
                .any(|own| (&own.kind, &own.name, own.phase) == (&one.kind, &one.name, one.phase))
        })
    };
    let became = |phase: ResourcePhase| -> Vec<&Resource> {
        to.iter()
            .flat_map(|record| &record.resources)
            .filter(|one| one.phase == phase && !known(before, one))
            .collect()
    };
    let mut list = Vec::new();
    let ready = became(ResourcePhase::Ready);
    if !ready.is_empty() && to.is_some_and(|record| !record.releasing) {
        let message = format!("{} on {platform}", named(&ready, false));
        list.push((Info, "InfrastructureReady", message));
    }
    let failed = became(ResourcePhase::Failed);
    if !failed.is_empty() {
        let message = format!("{} on {platform}", named(&failed, true));
        list.push((Warning, "InfrastructureFailed", message));
    }
    let left = |one: &&Resource| {
        one.phase != ResourcePhase::Gone
            && !to.is_some_and(|record| {
                record.resources.iter().any(|own| {
                    (&own.kind, &own.name) == (&one.kind, &one.name)
                        && own.phase != ResourcePhase::Gone
                })
            })
    };
    let gone: Vec<&Resource> = before
        .iter()
        .flat_map(|record| &record.resources)
        .filter(left)
        .collect();
    let released = before.is_some_and(|record| record.releasing);
    match change {
        InfrastructureChange::Ask => {
            let body = to.map_or_else(String::new, |record| parts(&record.body));
            let lost = before.filter(|record| record.doubt > 0);
            if let Some(lost) = lost {
                let message = format!("of {} on {platform} something is gone", lost.named());
                list.push((Warning, "InfrastructureFailed", message));
            }
            let message = format!("asked {platform} for {body}");
            list.push((Info, "InfrastructureRequested", message));
        }
        InfrastructureChange::Release => {
            let message = format!("{platform} is asked to release it");
            list.push((Info, "InfrastructureReleasing", message));
        }
        InfrastructureChange::Gone => {
            let what = if gone.is_empty() {
                "nothing is left".to_owned()
            } else {
                named(&gone, false)
            };
            list.push((
                Info,
                "InfrastructureReleased",
                format!("{what} on {platform}"),
            ));
        }
        InfrastructureChange::Learn | InfrastructureChange::Again => {
            if released && !gone.is_empty() {
                let message = format!("{} on {platform}", named(&gone, false));
                list.push((Info, "InfrastructureReleased", message));
            }
        }
        InfrastructureChange::Abandon => {}
    }
    list
}

/// Names resources, with their ids and, if asked for, with the reasons of their phases.
pub fn named(resources: &[&Resource], why: bool) -> String {
    let words: Vec<String> = resources
        .iter()
        .map(|one| {
            let id = if one.id.is_empty() {
                String::new()
            } else {
                format!(" ({})", one.id)
            };
            let why = if why && !one.message.is_empty() {
                format!(": {}", one.message)
            } else {
                String::new()
            };
            format!("{} {}{id}{why}", one.kind, one.name)
        })
        .collect();
    words.join(", ")
}
