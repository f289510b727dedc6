//! Minima that a new spec must keep. A stored one may be from before they were raised, and is used as it is.

use std::time::Duration;

use super::{ClusterSpec, GroupSpec, Settings};
use crate::error::Violation;

/// Minimum lifetime of a node: a younger one may not have been ready yet.
const MIN_EXPIRE_AFTER: Duration = Duration::from_secs(60);
/// Minimum interval between probes: more often, they would cost more than the nodes.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// What is above 0, where nothing less can be resolved, and still too small.
pub(super) fn check(spec: &ClusterSpec) -> Vec<Violation> {
    let mut wrong = Vec::new();
    settings("spec", &spec.settings, &mut wrong);
    groups("spec.groups", &spec.groups, &mut wrong);
    wrong
}

fn groups(at: &str, of: &[GroupSpec], wrong: &mut Vec<Violation>) {
    for (index, group) in of.iter().enumerate() {
        let at = format!("{at}[{index}]");
        settings(&at, &group.settings, wrong);
        groups(&format!("{at}.groups"), &group.groups, wrong);
    }
}

fn settings(at: &str, of: &Settings, wrong: &mut Vec<Violation>) {
    if of
        .expire_after
        .is_some_and(|age| !age.is_zero() && age < MIN_EXPIRE_AFTER)
    {
        wrong.push(too_young(at));
    }
    let interval = of.health.as_ref().map(|health| health.interval);
    if interval.is_some_and(|it| !it.is_zero() && it < MIN_INTERVAL) {
        wrong.push(Violation {
            field: format!("{at}.health.interval"),
            description: format!("expected at least {}ms", MIN_INTERVAL.as_millis()),
        });
    }
}

/// Refuses the lifetime of nodes in these settings.
pub(super) fn too_young(at: &str) -> Violation {
    let least = MIN_EXPIRE_AFTER.as_secs();
    Violation {
        field: format!("{at}.expire_after"),
        description: format!(
            "nodes would be replaced without end; expected at least {least}s, or leave it out"
        ),
    }
}
