use drover_core::{
    NodeState,
    spec::{ClusterSpec, GroupSpec, PlatformChoice, Settings},
};

use super::*;
use crate::{Resolved, fixture};

const SLOT: u64 = 7;

/// A cluster with one ready node of the group `db`, which says nothing of its health.
fn state() -> ClusterState {
    let mut state = fixture::cluster_state();
    let spec = ClusterSpec {
        settings: Settings {
            platforms: vec![PlatformChoice {
                name: "p".to_owned(),
                ..PlatformChoice::default()
            }],
            ..Settings::default()
        },
        groups: vec![GroupSpec {
            name: "db".to_owned(),
            ..GroupSpec::default()
        }],
        ..ClusterSpec::default()
    };
    let empty = &state.spec;
    state.spec = Arc::new(Resolved {
        groups: spec.resolve().unwrap(),
        software: empty.software.clone(),
        version: empty.version.clone(),
        attributes: empty.attributes.clone(),
        infrastructure: Vec::new(),
        addons: Vec::new(),
        orphans: empty.orphans,
        orphan_grace: empty.orphan_grace,
        secrets: empty.secrets.clone(),
        addon_secrets: empty.addon_secrets.clone(),
    });
    let node = fixture::node(SLOT, NodeState::Ready);
    state.state.nodes.push(node);
    state
}

/// Suggestions of this probe, from the platform as it was at this etag.
fn suggest(etag: &str, probe: Probe) -> Suggestions {
    let health = Health {
        probe,
        ..Health::default()
    };
    Suggestions {
        made_of: (0, vec![etag.into()]),
        health: [Some(health)].into(),
        groups: None,
    }
}

fn http() -> Probe {
    Probe::Http {
        port: None,
        path: "/".to_owned(),
        tls: None,
    }
}

#[test]
fn results_of_a_probe_that_is_not_made_any_more_are_forgotten() {
    let mut state = state();
    state.follow_suggestions(suggest("a", Probe::Phase));
    state.state.node_mut(SLOT).unwrap().probe.bad = 2;
    // Another etag with the same probe changes nothing.
    state.follow_suggestions(suggest("b", Probe::Phase));
    assert_eq!(state.state.node(SLOT).unwrap().probe.bad, 2);
    state.follow_suggestions(suggest("c", http()));
    assert_eq!(state.state.node(SLOT).unwrap().probe.bad, 0);
    // The platform counted the node as troubled.
    assert_eq!(state.calmed, [Sym::from("p")]);
}

#[test]
fn nodes_are_probed_anew_once_after_the_suggested_health_has_changed() {
    let mut state = state();
    state.follow_suggestions(suggest("a", Probe::Phase));
    assert!(
        !state.take_health_news(),
        "nobody was probed otherwise before"
    );
    state.follow_suggestions(suggest("b", http()));
    assert!(state.take_health_news());
    assert!(!state.take_health_news());
}

#[test]
fn the_same_suggestions_are_made_only_once() {
    let mut state = state();
    state.follow_suggestions(suggest("a", Probe::Phase));
    state.state.node_mut(SLOT).unwrap().probe.bad = 2;
    // Made of the same, so it is not even looked at.
    state.follow_suggestions(suggest("a", http()));
    assert_eq!(state.state.node(SLOT).unwrap().probe.bad, 2);
}

#[test]
fn without_a_template_nothing_is_suggested() {
    let suggestions = state().suggestions(&BTreeMap::new());
    assert!(suggestions.health.is_empty() && suggestions.groups.is_none());
}
