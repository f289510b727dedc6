//! The rules by which a cluster is reconciled, one by one.

#![allow(
    clippy::unwrap_used,
    reason = "what must be there fails the test if it is not"
)]

use crate::world;
mod failures;

use drover_core::{
    Error, Node, NodeState, Phase,
    error::Reason,
    node::{Outcome, RemovalReason},
    spec::RemovalOrder,
};
use drover_planner::{Call, ConditionKey, ConditionKind, Op, Orphan, Plan};
use uuid::Uuid;
use world::{
    World,
    build::{CALL, CREATION, HIDDEN, choice, group, shortage, sym},
    removals,
    steps::still,
};

/// One plan, with every requested node created and observed as running.
fn step_up(world: &mut World) -> Plan {
    let planned = world.step();
    world.answer_all(&planned);
    let now = world.now;
    for node in &mut world.state.nodes {
        (node.seen.phase, node.seen.last) = (Phase::Running, now);
    }
    planned
}

fn ready(size: u32) -> World {
    let mut world = still(vec![group("data", size, &["a"])]);
    while !step_up(&mut world).is_empty() {
        world.now += 1;
    }
    world
}

fn only_request(world: &World) -> Uuid {
    assert_eq!(world.state.requests.len(), 1);
    *world.state.requests.keys().next().unwrap()
}

fn requests(planned: &Plan) -> Vec<(&str, usize)> {
    let ops = planned.ops.iter();
    ops.filter_map(|op| match op {
        Op::Request { request, nodes, .. } => Some((&*request.platform, nodes.len())),
        _ => None,
    })
    .collect()
}

fn forgets(planned: &Plan) -> usize {
    let ops = planned.ops.iter();
    ops.filter(|op| matches!(op, Op::RecordDropped { .. }))
        .count()
}

fn closes(planned: &Plan) -> usize {
    let ops = planned.ops.iter();
    ops.filter(|op| matches!(op, Op::Close { .. })).count()
}

fn waits_for(planned: &Plan, reason: &str) -> bool {
    planned
        .report
        .iter()
        .any(|n| !n.acting && n.reason == reason)
}

fn node(world: &mut World, slot: u64) -> &mut Node {
    world.state.node_mut(slot).unwrap()
}

fn lost() -> Error {
    Error::new(Reason::DeadlineExceeded, "lost")
}

#[test]
fn rule_1_every_call_has_its_intent_in_the_same_plan() {
    let mut world = still(vec![group("data", 3, &["a"])]);
    let planned = world.step();
    assert_eq!(requests(&planned), [("a", 3)]);
    assert!(matches!(planned.calls[..], [Call::Provision { .. }]));
    let slots: Vec<_> = world
        .state
        .nodes
        .iter()
        .map(|n| (n.slot, n.index, n.ordinal))
        .collect();
    assert_eq!(slots, [(1, 0, 0), (2, 1, 1), (3, 2, 2)]);
    assert_eq!((world.state.next_slot, world.state.next_sequence), (4, 2));
    assert!(world.step().is_empty(), "asked once");
}

#[test]
fn rule_2_the_first_removal_of_a_slot_closes_its_request() {
    let mut world = still(vec![group("data", 3, &["a"])]);
    world.step();
    world.want(vec![]);
    let planned = world.step();
    assert_eq!((closes(&planned), removals(&planned).len()), (1, 3));
    assert!(world.state.requests.is_empty());
    assert!(planned.calls.is_empty(), "there is no id to remove yet");
}

#[test]
fn rule_2_a_removal_closes_the_request_and_absence_waits_for_its_deadline() {
    let mut world = still(vec![group("data", 2, &["a"])]);
    world.step();
    let (begun, deadline) = (world.now, world.now + CALL);
    node(&mut world, 1).marked = true;
    node(&mut world, 1).seen.node_id = "x".into();
    node(&mut world, 1).seen.phase = Phase::Pending;
    node(&mut world, 1).seen.last = begun;
    let planned = world.step();
    assert_eq!((closes(&planned), removals(&planned).len()), (1, 1));
    let closed = node(&mut world, 1);
    assert_eq!(
        (closed.settled, closed.maybe_until),
        (deadline, deadline + CREATION)
    );
    world.now = deadline + HIDDEN;
    node(&mut world, 1).seen.missing_from = deadline + HIDDEN - 1;
    assert_eq!(forgets(&world.step()), 0);
    node(&mut world, 1).seen.missing_from = deadline + HIDDEN;
    assert_eq!(forgets(&world.step()), 1);
}

#[test]
fn rule_2_a_request_whose_spec_is_wanted_no_more_is_closed_and_not_altered() {
    let mut world = still(vec![group("data", 1, &["a"])]);
    world.step();
    let mut next = group("data", 1, &["a"]);
    next.choices = vec![choice("a", "v2")];
    world.want(vec![next]);
    let planned = world.step();
    assert_eq!(closes(&planned), 1);
    assert!(requests(&planned).is_empty(), "its slot still counts");
}

#[test]
fn rule_2_an_unknown_outcome_is_asked_again_after_the_replay_delay_until_it_is_forgotten() {
    let mut world = still(vec![group("data", 1, &["a"])]);
    world.step();
    let (id, first) = (only_request(&world), world.now);
    world.answer(id, Err(lost()));
    world.now = first + HIDDEN - 1;
    let planned = world.step();
    assert!(planned.calls.is_empty() && waits_for(&planned, "Absence"));
    world.now = planned.wake.unwrap();
    let planned = world.step();
    assert!(matches!(planned.calls[..], [Call::Provision { request, .. }] if request == id));
    world.now = first + 600_000;
    assert_eq!(closes(&world.step()), 1);
}

#[test]
fn rule_2_nothing_is_asked_again_when_fewer_are_wanted() {
    let mut world = still(vec![group("data", 3, &["a"])]);
    world.step();
    let id = only_request(&world);
    world.answer(id, Err(lost()));
    world.want(vec![group("data", 1, &["a"])]);
    world.now += 2 * HIDDEN;
    let planned = world.step();
    assert!(planned.calls.is_empty());
    assert_eq!(closes(&planned), 1);
}

#[test]
fn rule_2_a_shortfall_is_a_new_request() {
    let mut world = still(vec![group("data", 3, &["a"])]);
    world.step();
    let id = only_request(&world);
    let broken = || Outcome::Failed(Error::internal("broken"));
    world.answer(id, Ok(vec![Outcome::Made("x".into()), broken(), broken()]));
    let planned = world.step();
    assert_eq!((closes(&planned), forgets(&planned)), (1, 2));
    assert_eq!(requests(&planned), [("a", 2)]);
    assert_ne!(only_request(&world), id);
}

#[test]
fn rule_3_only_a_late_complete_read_and_a_silent_agent_prove_a_loss() {
    let mut world = ready(2);
    world.now += 1_000_000;
    let gone_since = world.now;
    let seen = &mut node(&mut world, 1).seen;
    (seen.unlisted, seen.last) = (true, gone_since);
    let planned = world.step();
    assert_eq!((forgets(&planned), requests(&planned).len()), (0, 0));
    assert!(planned.calls.is_empty() && waits_for(&planned, "Absence"));
    world.now = world.step().wake.unwrap();
    let confirm = Call::Confirm { platform: sym("a") };
    assert_eq!(world.step().calls, [confirm]);
    node(&mut world, 1).seen.missing_from = gone_since + HIDDEN - 1;
    node(&mut world, 1).seen.silent = true;
    assert_eq!(forgets(&world.step()), 0, "the read began too early");
    let now = world.now;
    node(&mut world, 1).seen.missing_from = now;
    node(&mut world, 1).seen.silent = false;
    assert_eq!(forgets(&world.step()), 0, "its agent answers");
    node(&mut world, 1).seen.silent = true;
    let planned = world.step();
    assert_eq!((forgets(&planned), requests(&planned)), (1, vec![("a", 1)]));
}

#[test]
fn rule_3_the_backends_own_word_is_proof() {
    let mut world = ready(2);
    node(&mut world, 1).seen.gone = true;
    node(&mut world, 2).seen.phase = Phase::Terminated;
    assert_eq!(forgets(&world.step()), 2);
}

#[test]
fn rule_3_what_was_never_seen_is_absent_only_after_all_it_may_take() {
    let mut world = still(vec![group("data", 1, &["a"])]);
    world.step();
    let deadline = world.now + CALL;
    world.want(vec![]);
    world.step();
    let planned = world.step();
    let due = deadline + CREATION + HIDDEN;
    assert_eq!(planned.wake, Some(due));
    node(&mut world, 1).seen.missing_from = due - 1;
    world.now = due;
    assert_eq!(forgets(&world.step()), 0);
    node(&mut world, 1).seen.missing_from = due;
    assert_eq!(forgets(&world.step()), 1);
}

#[test]
fn rule_4_the_unknown_is_present_for_creations_and_absent_for_removals() {
    let mut world = ready(3);
    let now = world.now;
    for slot in [1, 2] {
        node(&mut world, slot).seen.unlisted = true;
        node(&mut world, slot).seen.last = now;
    }
    assert!(requests(&world.step()).is_empty());
    world.want(vec![group("data", 1, &["a"])]);
    assert!(
        removals(&world.step()).is_empty(),
        "one is there for certain"
    );
    node(&mut world, 3).seen.phase = Phase::Unknown;
    assert!(removals(&world.step()).is_empty());
}

#[test]
fn rule_4_a_platform_under_another_uid_shows_nothing_of_ours() {
    let mut world = ready(2);
    world.views.get_mut("a").unwrap().uid = "another".into();
    node(&mut world, 1).seen.phase = Phase::Failed;
    let planned = world.step();
    assert!(removals(&planned).is_empty() && requests(&planned).is_empty());
}

#[test]
fn rule_5_the_next_platform_is_for_no_capacity_alone() {
    let mut world = still(vec![group("data", 25, &["a", "b"])]);
    assert_eq!(
        requests(&world.step()),
        [("a", 10)],
        "a small batch is no lack of room"
    );
    let mut world = still(vec![group("data", 2, &["a", "b"])]);
    world.views.get_mut("a").unwrap().callable = false;
    let planned = world.step();
    assert!(requests(&planned).is_empty() && waits_for(&planned, "PlatformUnavailable"));
    world.views.get_mut("a").unwrap().callable = true;
    let until = world.now + 60_000;
    world.views.get_mut("a").unwrap().no_capacity = vec![shortage(until)];
    assert_eq!(requests(&world.step()), [("b", 2)]);
}

#[test]
fn rule_5_a_choice_takes_its_maximum_and_the_next_one_the_rest() {
    let mut spec = group("data", 5, &["a", "b"]);
    spec.choices[0].max = Some(2);
    let mut world = still(vec![spec]);
    assert_eq!(requests(&world.step()), [("a", 2), ("b", 3)]);
    assert!(!world.plan().report.iter().any(|n| n.reason == "NoCapacity"));
}

#[test]
fn rule_5_no_capacity_anywhere_is_said() {
    let mut world = still(vec![group("data", 5, &["a", "b"])]);
    let until = world.now + 60_000;
    for view in world.views.values_mut() {
        view.no_capacity = vec![shortage(until)];
    }
    let planned = world.step();
    assert!(waits_for(&planned, "NoCapacity"));
    assert_eq!(
        planned.wake,
        Some(world.now + 1),
        "the condition was written"
    );
    assert_eq!(world.plan().wake, Some(until));
}

#[test]
fn rule_6_an_error_drops_slots_only_if_every_attempt_made_nothing() {
    let mut world = still(vec![group("data", 1, &["a"])]);
    world.step();
    let id = only_request(&world);
    world.answer(id, Err(Error::new(Reason::Invalid, "no")));
    assert_eq!(forgets(&world.plan()), 1);
    world.answer(id, Err(lost()));
    world.now += 2 * HIDDEN;
    world.step();
    world.answer(id, Err(Error::new(Reason::Invalid, "no")));
    let planned = world.step();
    assert_eq!((closes(&planned), forgets(&planned)), (1, 0));
}

#[test]
fn rule_8_a_deletion_sweeps_its_orphans_even_if_the_store_is_behind() {
    let mut world = ready(1);
    world.delete();
    let orphan = Orphan {
        request: Uuid::from_u128(5),
        index: 0,
        sequence: 99,
        group: "data".into(),
        ordinal: 9,
        platform_uid: "uid-of-a".into(),
        since: world.now - 120_000,
        ..Orphan::default()
    };
    world
        .state
        .orphans
        .insert((sym("a"), "newer".into()), orphan);
    let taken = |op: &Op| matches!(op, Op::TakeOrphan { .. });
    world.orphan_hold = true;
    assert!(!world.step().ops.iter().any(taken), "a person decides");
    world.orphan_hold = false;
    assert!(world.step().ops.iter().any(taken));
}

#[test]
fn rule_8_a_removal_that_keeps_failing_is_named() {
    let mut world = ready(1);
    world.delete();
    world.step();
    node(&mut world, 1).in_flight.call.failures = 3;
    world.step();
    let key = ConditionKey {
        group: sym(""),
        kind: ConditionKind::DeletionBlocked,
    };
    assert!(world.state.conditions.contains_key(&key));
}

#[test]
fn who_goes_first() {
    let scale_down = |change: fn(&mut World), order| {
        let mut world = ready(4);
        for slot in 1..=4 {
            node(&mut world, slot).create_time = 1_000 + slot;
        }
        change(&mut world);
        let mut spec = group("data", 3, &["a"]);
        spec.removal_order = order;
        spec.remediation.enabled = false;
        world.want(vec![spec]);
        let gone = removals(&world.step());
        assert_eq!(gone.len(), 1);
        gone[0].0
    };
    use RemovalOrder::{Newest, Oldest};
    assert_eq!(scale_down(|_| {}, Newest), 4);
    assert_eq!(scale_down(|_| {}, Oldest), 1);
    let outdated = |w: &mut World| node(w, 2).origin_mut().spec_hash = sym("old");
    assert_eq!(scale_down(outdated, Newest), 2);
    let young = |w: &mut World| {
        node(w, 2).origin_mut().spec_hash = sym("old");
        node(w, 3).state = NodeState::Provisioning;
        node(w, 3).seen.phase = Phase::Pending;
    };
    assert_eq!(scale_down(young, Newest), 3);
    let sick = |w: &mut World| {
        node(w, 3).state = NodeState::Provisioning;
        node(w, 3).seen.phase = Phase::Pending;
        node(w, 1).state = NodeState::Unhealthy;
        node(w, 1).seen.ready = Some(false);
    };
    assert_eq!(scale_down(sick, Newest), 1);
    let marked = |w: &mut World| {
        node(w, 1).state = NodeState::Unhealthy;
        node(w, 1).seen.ready = Some(false);
        node(w, 2).state = NodeState::Provisioning;
        node(w, 2).seen.phase = Phase::Pending;
        node(w, 2).marked = true;
    };
    assert_eq!(scale_down(marked, Newest), 2);
}

#[test]
fn a_marked_node_goes_when_its_successor_is_ready() {
    let mut world = ready(2);
    node(&mut world, 1).marked = true;
    let planned = step_up(&mut world);
    assert_eq!(
        (requests(&planned), removals(&planned)),
        (vec![("a", 1)], vec![])
    );
    assert!(waits_for(&planned, "Budget"));
    let planned = world.step();
    assert_eq!(removals(&planned), [(1, RemovalReason::User)]);
    assert!(requests(&planned).is_empty());
}

#[test]
fn max_in_flight_holds_for_making_and_removing() {
    let mut spec = group("data", 5, &["a"]);
    spec.max_in_flight = Some(2);
    let mut world = still(vec![spec.clone()]);
    let planned = world.step();
    assert_eq!(requests(&planned), [("a", 2)]);
    assert!(waits_for(&planned, "MaxInFlight"));
    assert!(waits_for(&world.step(), "MaxInFlight"));
    let mut world = ready(5);
    spec.size = Some(1);
    world.want(vec![spec]);
    let planned = world.step();
    assert_eq!(removals(&planned).len(), 2);
    assert!(waits_for(&planned, "MaxInFlight"));
    let no_capacity = |op: &Op| matches!(op, Op::Condition { to: Some(_), .. });
    assert!(!planned.ops.iter().any(no_capacity), "{planned:?}");
}

#[test]
fn a_paused_cluster_only_looks() {
    let mut world = ready(2);
    world.state.paused = true;
    node(&mut world, 1).seen.phase = Phase::Failed;
    world.want(vec![]);
    let planned = world.step();
    assert!(planned.calls.is_empty() && removals(&planned).is_empty());
    assert!(waits_for(&planned, "Paused"));
    assert_eq!(node(&mut world, 1).state, NodeState::Failed);
}
