//! Events of infrastructure and addons.

use drover_core::resource::{Resource, ResourceKey, ResourcePhase, ResourceRecord};
use drover_planner::{ResourceChange, State};
use drover_proto::orchestrator::v1::EventSeverity;

use super::parts;

/// Severity, reason and message of an event.
type Told = (EventSeverity, &'static str, String);

/// The event of an operation, given the record before it.
pub fn told(
    state: &State,
    key: &ResourceKey,
    to: Option<&ResourceRecord>,
    change: ResourceChange,
) -> Vec<Told> {
    use EventSeverity::{Info, Warning};
    let before = state.resources.get(key);
    if change == ResourceChange::TakeIn {
        let what = key.addon_name();
        let what = what.map_or("infrastructure".to_owned(), |name| format!("addon {name}"));
        let message = format!("{what} on {} is ours and had no record", key.platform);
        return vec![(Warning, "OrphanSeen", message)];
    }
    if let Some(name) = key.addon_name() {
        return told_of_addon(name, key, before, to, change);
    }
    let platform = &key.platform;
    let known = |list: Option<&ResourceRecord>, one: &Resource| {
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
        ResourceChange::Ask => {
            let body = to.map_or_else(String::new, |record| parts(key, &record.body));
            let lost = before.filter(|record| record.doubt > 0);
            if let Some(lost) = lost {
                let message = format!("of {} on {platform} something is gone", lost.named());
                list.push((Warning, "InfrastructureFailed", message));
            }
            let message = format!("asked {platform} for {body}");
            list.push((Info, "InfrastructureRequested", message));
        }
        ResourceChange::Release => {
            let message = format!("{platform} is asked to release it");
            list.push((Info, "InfrastructureReleasing", message));
        }
        ResourceChange::Gone => {
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
        ResourceChange::Learn | ResourceChange::Again | ResourceChange::Follow => {
            if released && !gone.is_empty() {
                let message = format!("{} on {platform}", named(&gone, false));
                list.push((Info, "InfrastructureReleased", message));
            }
        }
        ResourceChange::Abandon | ResourceChange::TakeIn => {}
    }
    list
}

/// The event of an operation on an addon: that it became ready, stopped being so for another reason than that it follows
/// its targets, has a problem, or is gone.
fn told_of_addon(
    name: &str,
    key: &ResourceKey,
    before: Option<&ResourceRecord>,
    to: Option<&ResourceRecord>,
    change: ResourceChange,
) -> Vec<Told> {
    use EventSeverity::{Info, Warning};
    let platform = &key.platform;
    let Some(to) = to else {
        let gone = (Info, "AddonRemoved", format!("{name} on {platform}"));
        return match change {
            ResourceChange::Gone => vec![gone],
            _ => Vec::new(),
        };
    };
    let was_ready = before.is_some_and(ResourceRecord::is_ready);
    let followed = before.is_some_and(|before| before.in_flight.follows);
    let had_trouble = before.is_some_and(|before| !before.reason.is_empty());
    let why = || {
        let message = (!to.message.is_empty()).then(|| to.message.to_string());
        message.unwrap_or_else(|| "it was ready and is not any more".to_owned())
    };
    let troubled = !to.reason.is_empty() && !had_trouble;
    let left_ready = was_ready && change == ResourceChange::Learn && !to.is_ready();
    if troubled || left_ready && !to.releasing {
        let message = format!("{name} on {platform}: {}", why());
        return vec![(Warning, "AddonFailed", message)];
    }
    if to.is_ready() && !was_ready && (!followed || had_trouble) {
        let message = format!("{} on {platform}", parts(key, &to.body));
        return vec![(Info, "AddonReady", message)];
    }
    Vec::new()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn record(phase: ResourcePhase) -> ResourceRecord {
        ResourceRecord {
            phase,
            ..ResourceRecord::default()
        }
    }

    /// Reasons of the events of a change of an addon from one record to another.
    fn reasons(
        before: Option<ResourceRecord>,
        to: Option<ResourceRecord>,
        change: ResourceChange,
    ) -> Vec<(&'static str, String)> {
        let key = ResourceKey::addon("front", "p", "u");
        let mut state = State::default();
        if let Some(before) = before {
            state.resources.insert(key.clone(), before);
        }
        let told = told(&state, &key, to.as_ref(), change).into_iter();
        told.map(|(_, reason, message)| (reason, message)).collect()
    }

    #[test]
    fn an_addon_is_told_of_when_it_becomes_ready_when_it_fails_and_when_it_is_gone() {
        use ResourceChange::{Abandon, Again, Ask, Follow, Gone, Learn};
        use ResourcePhase::{Failed, Pending, Ready};
        let only = |told: Vec<(&'static str, String)>| {
            assert_eq!(told.len(), 1, "{told:?}");
            told.into_iter().next().unwrap()
        };
        let first = reasons(None, Some(record(Pending)), Ask);
        assert!(first.is_empty(), "{first:?}");
        let ready = reasons(Some(record(Pending)), Some(record(Ready)), Learn);
        assert_eq!(only(ready).0, "AddonReady");
        let same = reasons(Some(record(Ready)), Some(record(Ready)), Again);
        assert!(same.is_empty(), "{same:?}");
        let failed = ResourceRecord {
            reason: "Failed".into(),
            message: "port 443 is taken".into(),
            ..record(Failed)
        };
        let told = only(reasons(Some(record(Ready)), Some(failed.clone()), Learn));
        assert_eq!(told.0, "AddonFailed");
        assert_eq!(told.1, "front on p: port 443 is taken");
        let still = reasons(Some(failed.clone()), Some(failed.clone()), Learn);
        assert!(still.is_empty(), "told once: {still:?}");
        let again = reasons(Some(failed), Some(record(Ready)), Learn);
        assert_eq!(only(again).0, "AddonReady");
        let drifted = reasons(Some(record(Ready)), Some(record(Pending)), Learn);
        assert_eq!(only(drifted).0, "AddonFailed");
        let gone = reasons(Some(record(Ready)), None, Gone);
        assert_eq!(only(gone).0, "AddonRemoved");
        assert!(reasons(Some(record(Ready)), None, Abandon).is_empty());
        // A change of its targets is not worth an event each time.
        let mut follows = record(Pending);
        follows.in_flight.follows = true;
        assert!(reasons(Some(record(Ready)), Some(follows.clone()), Follow).is_empty());
        assert!(reasons(Some(follows), Some(record(Ready)), Learn).is_empty());
    }
}
