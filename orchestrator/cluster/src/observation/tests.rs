use drover_core::{
    NodeState,
    node::{Former, Role},
};
use drover_proto::platform::v1 as wire;

use super::*;
use crate::fixture;

const NOW: Millis = 100_000;
const SLOT: u64 = 7;
/// The request and the index of the node of [`SLOT`], as the fixture has them.
const REQUEST: Uuid = Uuid::from_u128(3);

/// A cluster with one node, on the platform `p` with the uid `u`.
fn state() -> ClusterState {
    let mut state = fixture::cluster_state();
    state
        .state
        .nodes
        .push(fixture::node(SLOT, NodeState::Starting));
    state.first_slots.insert(REQUEST, SLOT);
    state
}

fn shown(state: &ClusterState, phase: wire::NodePhase) -> wire::Node {
    wire::Node {
        node_id: "i-1".to_owned(),
        phase: phase.into(),
        slot: Some(wire::SlotKey {
            owner: state.state.uid.to_string(),
            request_id: REQUEST.to_string(),
            index: Some(0),
        }),
        ..wire::Node::default()
    }
}

/// Shown by a watch of this platform, right now.
fn watch(state: &mut ClusterState, (platform, uid): (&str, &str), node: wire::Node) -> Observed {
    observe(state, (platform, uid), node, (NOW, NOW), true)
}

fn observe(
    state: &mut ClusterState,
    (platform, uid): (&str, &str),
    node: wire::Node,
    (as_of, now): (Millis, Millis),
    listed: bool,
) -> Observed {
    let platform: Sym = platform.into();
    let seen = Observation {
        source: Source {
            platform: &platform,
            uid,
        },
        node: &Heard::of(node, None),
        as_of,
        now,
        listed,
    };
    state.observe(seen, &Interner::default())
}

const ITS_OWN: (&str, &str) = ("p", "u");

#[test]
fn a_node_that_begins_to_run_is_probed_and_one_that_somebody_else_ends_or_that_dies_is_urgent() {
    let mut state = state();
    let running = shown(&state, wire::NodePhase::Running);
    let observed = watch(&mut state, ITS_OWN, running.clone());
    assert_eq!(observed.urgency, Some(Urgency::Bulk));
    let group = "db".into();
    assert_eq!(observed.effects, [Effect::Probe { group, slot: SLOT }]);
    // The same again is no news.
    assert_eq!(watch(&mut state, ITS_OWN, running), Observed::default());
    for phase in [wire::NodePhase::Deprovisioning, wire::NodePhase::Failed] {
        let shown = shown(&state, phase);
        let observed = watch(&mut state, ITS_OWN, shown);
        assert_eq!(observed.urgency, Some(Urgency::Urgent), "{phase:?}");
    }
}

#[test]
fn nodes_of_other_owners_are_ignored() {
    let mut state = state();
    let mut node = shown(&state, wire::NodePhase::Running);
    node.slot.as_mut().unwrap().owner = Uuid::from_u128(99).to_string();
    let before = state.state.clone();
    assert_eq!(watch(&mut state, ITS_OWN, node), Observed::default());
    assert_eq!(state.state, before);
}

#[test]
fn a_platform_is_not_believed_about_nodes_that_are_recorded_elsewhere() {
    for source in [("other", "u"), ("p", "another-backend")] {
        let mut state = state();
        let before = state.state.clone();
        let dead = shown(&state, wire::NodePhase::Failed);
        let observed = watch(&mut state, source, dead);
        let recorded = "p".into();
        assert_eq!(observed, Observed::only(Effect::Claimed { recorded }));
        let gone = shown(&state, wire::NodePhase::Terminated);
        let observed = watch(&mut state, source, gone);
        assert_eq!(observed, Observed::only(Effect::ClaimEnded));
        assert_eq!(state.state, before);
    }
}

#[test]
fn an_open_request_is_answered_by_its_own_platform_only() {
    let mut state = fixture::cluster_state();
    state
        .state
        .requests
        .insert(REQUEST, fixture::request(REQUEST));
    let node = shown(&state, wire::NodePhase::Running);
    let observed = watch(&mut state, ("other", "u"), node);
    let recorded = "p".into();
    assert_eq!(observed, Observed::only(Effect::Claimed { recorded }));
    assert!(state.state.orphans.is_empty());
}

#[test]
fn a_node_that_nothing_records_is_an_orphan_until_it_is_gone() {
    let mut state = fixture::cluster_state();
    let running = shown(&state, wire::NodePhase::Running);
    let observed = watch(&mut state, ITS_OWN, running.clone());
    assert_eq!(observed.urgency, Some(Urgency::Bulk));
    assert_eq!(observed.effects, [Effect::Stranger]);
    let key = ("p".into(), "i-1".into());
    assert_eq!(state.state.orphans[&key].since, NOW);
    // Its grace period goes on, also when the backend shows another uid.
    let later = observe(&mut state, ("p", "u2"), running, (NOW + 9, NOW + 9), true);
    assert_eq!(later, Observed::default());
    let orphan = &state.state.orphans[&key];
    assert_eq!((orphan.since, orphan.last), (NOW, NOW + 9));
    assert_eq!(&*orphan.platform_uid, "u2");
}

#[test]
fn a_dead_node_that_nothing_records_is_no_orphan() {
    let mut state = fixture::cluster_state();
    let gone = shown(&state, wire::NodePhase::Terminated);
    assert_eq!(watch(&mut state, ITS_OWN, gone), Observed::default());
    assert!(state.state.orphans.is_empty());
}

#[test]
fn a_node_that_is_being_adopted_is_no_orphan() {
    let mut state = state();
    let record = &mut state.state.nodes[0];
    record.adopted.former = Some(Former::default());
    assert!(record.is_adopting());
    let mut node = shown(&state, wire::NodePhase::Running);
    node.slot.as_mut().unwrap().request_id = Uuid::from_u128(50).to_string();
    assert_eq!(watch(&mut state, ITS_OWN, node), Observed::default());
    assert!(state.state.orphans.is_empty());
}

#[test]
fn an_answer_does_not_overwrite_what_a_watch_has_shown_since_it_was_asked_for() {
    let mut state = state();
    let failed = shown(&state, wire::NodePhase::Failed);
    watch(&mut state, ITS_OWN, failed);
    let running = shown(&state, wire::NodePhase::Running);
    let asked = NOW - 1_000;
    let observed = observe(&mut state, ITS_OWN, running, (asked, NOW + 10), false);
    assert_eq!(observed, Observed::default());
    assert_eq!(state.state.nodes[0].seen.phase, Phase::Failed);
}

#[test]
fn evidence_of_absence_falls_only_to_a_list_of_now() {
    let mut state = state();
    let running = shown(&state, wire::NodePhase::Running);
    watch(&mut state, ITS_OWN, running.clone());
    state.state.nodes[0].seen.gone = true;
    // An answer that was asked for before proves nothing.
    observe(
        &mut state,
        ITS_OWN,
        running.clone(),
        (NOW + 1, NOW + 2),
        false,
    );
    assert!(state.state.nodes[0].seen.gone);
    let observed = observe(&mut state, ITS_OWN, running, (NOW + 3, NOW + 3), true);
    assert!(!state.state.nodes[0].seen.gone);
    assert_eq!(observed.urgency, Some(Urgency::Bulk));
}

#[test]
fn a_node_that_had_vanished_is_returned_to_its_platform() {
    let mut state = state();
    state.state.nodes[0].seen.vanished = true;
    let running = shown(&state, wire::NodePhase::Running);
    let observed = watch(&mut state, ITS_OWN, running);
    assert_eq!(observed.effects[0], Effect::Returned);
    assert!(!state.state.nodes[0].seen.vanished);
}

#[test]
fn what_only_an_answer_has_shown_is_unproven_until_it_is_listed() {
    let mut state = state();
    let running = shown(&state, wire::NodePhase::Running);
    observe(&mut state, ITS_OWN, running.clone(), (NOW, NOW), false);
    assert!(state.state.nodes[0].seen.unproven);
    observe(&mut state, ITS_OWN, running, (NOW + 1, NOW + 1), true);
    assert!(!state.state.nodes[0].seen.unproven);
}

#[test]
fn the_id_of_a_node_is_learnt_from_whoever_shows_it_first() {
    let mut state = state();
    state.state.nodes[0].node_id = None;
    state.state.nodes[0].role = Role::Standby;
    let node = shown(&state, wire::NodePhase::Pending);
    watch(&mut state, ITS_OWN, node);
    assert_eq!(&*state.state.nodes[0].seen.node_id, "i-1");
}

#[test]
fn another_address_of_a_node_behind_an_addon_is_urgent() {
    let at = |state: &ClusterState, address: &str| wire::Node {
        addresses: vec![drover_proto::common::v1::Address {
            value: address.to_owned(),
            ..Default::default()
        }],
        ..shown(state, wire::NodePhase::Running)
    };
    for (addons, urgency) in [(1, Urgency::Urgent), (0, Urgency::Bulk)] {
        let mut state = state();
        let spec = std::sync::Arc::get_mut(&mut state.spec).unwrap();
        spec.addons = (0..addons)
            .map(|_| drover_core::addon::WantedAddon {
                name: "lb".into(),
                wanted: drover_core::resource::Wanted::new("p", b""),
                targets: vec!["db".into()],
                secrets: Vec::new(),
                ports: Vec::new(),
            })
            .collect();
        let first = at(&state, "10.0.0.1");
        let observed = watch(&mut state, ITS_OWN, first);
        assert_eq!(
            observed.urgency,
            Some(Urgency::Bulk),
            "it is not served yet"
        );
        let second = at(&state, "10.0.0.2");
        let observed = watch(&mut state, ITS_OWN, second);
        assert_eq!(observed.urgency, Some(urgency));
    }
}

/// A pause after a refusal ends early only if its platform reports something else.
#[test]
fn a_foreign_node_that_is_reported_as_before_is_not_asked_for_any_sooner() {
    let mut state = state();
    let platform: Sym = "p".into();
    let key = (platform.clone(), "i-1".into());
    let source = Source {
        platform: &platform,
        uid: "u",
    };
    let of = |owner: &str| wire::Node {
        node_id: "i-1".to_owned(),
        slot: Some(wire::SlotKey {
            owner: owner.to_owned(),
            ..wire::SlotKey::default()
        }),
        ..wire::Node::default()
    };
    let interner = Interner::default();
    assert!(state.observe_foreign(source, &of("one"), NOW, &interner));
    state.state.foreign.get_mut(&key).unwrap().call.next = NOW + 10;
    for (owner, next) in [("one", NOW + 10), ("other", 0)] {
        assert!(!state.observe_foreign(source, &of(owner), NOW, &interner));
        assert_eq!(state.state.foreign[&key].call.next, next, "{owner}");
    }
}
