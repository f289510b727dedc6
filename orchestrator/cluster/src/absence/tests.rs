use drover_core::{
    NodeState, Phase,
    node::{Former, Removal, RemovalReason},
};

use super::*;
use crate::fixture;

const NOW: Millis = 100_000;
const SLOT: u64 = 7;
const NAME: &str = "orders";

/// A cluster with one running node, on the platform `p` with the uid `u`, as the fixture has it.
fn state() -> ClusterState {
    let mut state = fixture::cluster_state();
    let mut node = fixture::node(SLOT, NodeState::Ready);
    node.seen.phase = Phase::Running;
    node.seen.last = NOW - 1_000;
    state.state.nodes.push(node);
    state
}

fn node(state: &ClusterState) -> &Node {
    state.state.node(SLOT).unwrap()
}

fn on<T>(uid: &str, act: impl FnOnce(Source<'_>) -> T) -> T {
    let platform: Sym = "p".into();
    act(Source {
        platform: &platform,
        uid,
    })
}

fn removal(evidence: wire::RemovalEvidence) -> wire::NodeRemoved {
    wire::NodeRemoved {
        node_id: "i-1".to_owned(),
        evidence: evidence.into(),
        ..wire::NodeRemoved::default()
    }
}

#[test]
fn a_confirmed_removal_proves_absence() {
    let mut state = state();
    let removed = removal(wire::RemovalEvidence::Confirmed);
    let result = on("u", |source| state.removed(source, &removed, NOW));
    assert_eq!(result, Removed::Recorded { vanished: false });
    assert!(node(&state).seen.gone && !node(&state).seen.vanished);
}

#[test]
fn an_unconfirmed_removal_only_raises_a_doubt() {
    let mut state = state();
    let removed = removal(wire::RemovalEvidence::NotListed);
    let result = on("u", |source| state.removed(source, &removed, NOW));
    assert_eq!(result, Removed::Recorded { vanished: true });
    let seen = &node(&state).seen;
    assert!(seen.unlisted && seen.vanished && !seen.gone);
    assert_eq!(seen.last, NOW, "the delay of the list counts from now");
}

#[test]
fn a_node_that_was_to_go_does_not_vanish() {
    let mut state = state();
    state.state.node_mut(SLOT).unwrap().removal = Some(Removal {
        reason: RemovalReason::Surplus,
        since: 1,
        retain: false,
        drain: 0,
    });
    let removed = removal(wire::RemovalEvidence::NotListed);
    let result = on("u", |source| state.removed(source, &removed, NOW));
    assert_eq!(result, Removed::Recorded { vanished: false });
}

#[test]
fn another_backend_and_another_slot_remove_nothing() {
    let mut state = state();
    let removed = removal(wire::RemovalEvidence::Confirmed);
    let result = on("another", |source| state.removed(source, &removed, NOW));
    assert_eq!(result, Removed::Nothing);
    // The id was reused.
    let other = wire::NodeRemoved {
        slot: Some(wire::SlotKey {
            request_id: Uuid::from_u128(99).to_string(),
            index: Some(0),
            owner: state.state.uid.to_string(),
        }),
        ..removed
    };
    let result = on("u", |source| state.removed(source, &other, NOW));
    assert_eq!(result, Removed::Nothing);
    assert!(!node(&state).seen.gone);
}

#[test]
fn a_removal_of_the_slot_from_before_an_adoption_raises_a_doubt() {
    let mut state = state();
    let removed = wire::NodeRemoved {
        slot: Some(wire::SlotKey {
            owner: "o".to_owned(),
            request_id: "r".to_owned(),
            index: Some(3),
        }),
        ..removal(wire::RemovalEvidence::Confirmed)
    };
    let result = on("u", |source| state.removed(source, &removed, NOW));
    assert_eq!(result, Removed::Recorded { vanished: true });
    assert!(node(&state).seen.unlisted && !node(&state).seen.gone);
}

#[test]
fn a_snapshot_that_lacks_a_node_makes_it_vanish_once() {
    let mut state = state();
    let end = on("u", |source| state.snapshot_ended(source, NOW, 0));
    assert_eq!(
        end,
        SnapshotEnd {
            concerned: true,
            vanished: 1
        }
    );
    assert!(node(&state).seen.unlisted && !node(&state).seen.gone);
    let end = on("u", |source| state.snapshot_ended(source, NOW + 1, 0));
    assert_eq!(end.vanished, 0, "it has been counted");
}

#[test]
fn a_snapshot_says_nothing_of_nodes_that_were_seen_since_it_began() {
    let mut state = state();
    let began = NOW - 1_000;
    let end = on("u", |source| state.snapshot_ended(source, began, 0));
    assert_eq!(end.vanished, 0);
    assert!(!node(&state).seen.unlisted);
}

#[test]
fn a_new_node_may_be_listed_late() {
    let mut state = state();
    let record = state.state.node_mut(SLOT).unwrap();
    record.seen.last = 0;
    record.settled = NOW - 5_000;
    let end = on("u", |source| state.snapshot_ended(source, NOW, 10_000));
    assert_eq!(end.vanished, 0);
    assert!(node(&state).seen.unlisted, "but it is not listed");
    state.state.node_mut(SLOT).unwrap().seen.unlisted = false;
    let end = on("u", |source| state.snapshot_ended(source, NOW, 1_000));
    assert_eq!(end.vanished, 1);
}

#[test]
fn a_cluster_without_anything_on_a_platform_is_not_concerned() {
    let mut state = fixture::cluster_state();
    let end = on("u", |source| state.snapshot_ended(source, NOW, 0));
    assert_eq!(end, SnapshotEnd::default());
}

/// Whether a complete read that shows these ids says that the node is missing.
fn is_missing(state: &mut ClusterState, ids: &[&str], warnings: &[wire::Warning]) -> bool {
    let alive = HashSet::new();
    on("u", |source| {
        let read = CompleteRead {
            source,
            as_of: NOW,
            own: HashSet::new(),
            ids: ids.iter().copied().collect(),
            warnings,
            alive: &alive,
        };
        state.read_completely(&read, NAME);
    });
    node(state).seen.missing_from == NOW
}

#[test]
fn a_complete_read_without_the_node_is_evidence_unless_a_warning_explains_it() {
    assert!(is_missing(&mut state(), &[], &[]));
    let warning = |cluster: Option<&str>, id: Option<&str>| wire::Warning {
        cluster_id: cluster.map(str::to_owned),
        id: id.map(str::to_owned),
        ..wire::Warning::default()
    };
    for (warning, explains) in [
        (warning(None, None), true),
        (warning(Some(NAME), None), true),
        (warning(None, Some("i-1")), true),
        (warning(Some("another"), None), false),
        (warning(Some(NAME), Some("i-2")), false),
    ] {
        let missing = is_missing(&mut state(), &[], std::slice::from_ref(&warning));
        assert_eq!(missing, !explains, "{warning:?}");
    }
}

#[test]
fn a_node_that_is_being_adopted_and_still_there_is_not_missing() {
    let mut state = state();
    state.state.node_mut(SLOT).unwrap().adopted.former = Some(Former::default());
    assert!(!is_missing(&mut state, &["i-1"], &[]));
    assert!(is_missing(&mut state, &[], &[]));
}

#[test]
fn an_agent_that_answers_is_remembered_with_the_doubt() {
    let mut state = state();
    let id = node(&state).id(state.state.uid);
    let alive = HashSet::from([id]);
    on("u", |source| {
        let read = CompleteRead {
            source,
            as_of: NOW,
            own: HashSet::new(),
            ids: HashSet::new(),
            warnings: &[],
            alive: &alive,
        };
        state.read_completely(&read, NAME);
    });
    let seen = &node(&state).seen;
    assert_eq!((seen.missing_from, seen.silent), (NOW, false));
}

#[test]
fn what_a_list_shows_without_a_record_or_of_an_unknown_request_is_an_orphan_until_it_is_not_listed()
{
    let mut state = state();
    state.state.next_sequence = 5;
    let (known, lost) = (
        ResourceKey::addon("known", "p", "u"),
        ResourceKey::addon("lost", "p", "u"),
    );
    let below = ResourceKey::infrastructure("p", "u");
    state
        .state
        .resources
        .insert(known.clone(), Default::default());
    let mut list = |listed: &[(&ResourceKey, u64)], now| {
        let listed = listed
            .iter()
            .map(|(key, sequence)| ((*key).clone(), Some(*sequence)));
        let listed = listed.collect();
        let changed = on("u", |source| {
            state.resources_listed(source, true, &listed, now)
        });
        let orphans = state.state.resource_orphans.iter();
        let orphans: Vec<_> = orphans.map(|(key, one)| (key.clone(), one.since)).collect();
        (changed, orphans)
    };
    assert_eq!(list(&[(&known, 4)], NOW), (false, vec![]));
    let both = list(&[(&known, 4), (&lost, 3)], NOW);
    assert_eq!(both, (true, vec![(lost.clone(), NOW)]));
    let later = list(&[(&known, 4), (&lost, 3)], NOW + 60_000);
    assert_eq!(
        later,
        (false, vec![(lost.clone(), NOW)]),
        "since it was first seen"
    );
    let behind = list(&[(&known, 9)], NOW);
    assert_eq!(
        behind,
        (true, vec![(known, NOW)]),
        "this store never gave it out"
    );
    assert_eq!(list(&[], NOW), (true, vec![]));
    // A list of addons says nothing about infrastructure.
    let listed = [(below.clone(), None)].into();
    on("u", |source| {
        state.resources_listed(source, false, &listed, NOW)
    });
    on("u", |source| {
        state.resources_listed(source, true, &BTreeMap::new(), NOW)
    });
    assert!(state.state.resource_orphans.contains_key(&below));
}
