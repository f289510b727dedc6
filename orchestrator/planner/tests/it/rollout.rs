//! Rolling updates: which nodes are replaced when, and what blocks that.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what must be there fails the test if it is not"
)]

use crate::world;

use std::time::Duration;

use drover_core::{
    Millis, NodeState, Phase,
    error::Reason,
    node::{Answer, ProbeResult, RemovalReason},
    spec::{Amount, Group, Health, Probe, Update},
};
use drover_planner::{ConditionKey, ConditionKind, Op, Plan};
use world::{
    World,
    build::{at_version, choice, group, on_delete, rolling, shortage, sym},
    removals,
    steps::still,
};

/// Outcome of the next requests at the platform.
#[derive(Clone, Copy, PartialEq)]
enum Made {
    /// Nodes that run and are ready immediately.
    Ready,
    /// Nodes that run and never become ready.
    Broken,
    /// Nothing, as far as is known so far.
    Nothing,
}

/// Four nodes of v1, all Ready for a while, with these update settings from now on.
fn world(update: Update) -> World {
    let mut v1 = group("data", 4, &["a"]);
    v1.update = update;
    let mut world = still(vec![v1]);
    while !step(&mut world, Made::Ready).is_empty() {
        world.now += 1;
    }
    world.now += 3_600_000;
    world
}

fn want(world: &mut World, version: &str) {
    let group = at_version(world.groups[0].clone(), version);
    world.want(vec![group]);
}

/// Plans, makes the plan durable, and has the platform carry it out; removed nodes are gone immediately.
fn step(world: &mut World, made: Made) -> Plan {
    let planned = world.step();
    if made != Made::Nothing {
        world.answer_all(&planned);
    }
    let now = world.now;
    for node in &mut world.state.nodes {
        if node.seen.phase == Phase::Unseen && made != Made::Nothing {
            node.seen.phase = Phase::Running;
            node.seen.ready = Some(made == Made::Ready);
        }
        if node.seen.phase != Phase::Unseen {
            node.seen.last = now;
        }
    }
    planned
}

/// Nodes whose removal was requested are gone.
fn bury(world: &mut World) {
    for node in &mut world.state.nodes {
        if node.removal.is_some() {
            node.seen.gone = true;
        }
    }
}

/// Steps, a second each, until nothing is left to do. Returns the causes of all removals, in order.
fn run(world: &mut World, made: Made) -> Vec<(u64, RemovalReason)> {
    let mut removed = Vec::new();
    for _ in 0..100 {
        let planned = step(world, made);
        assert!(alive(world) <= ceiling(world), "{:?}", world.state.nodes);
        removed.extend(removals(&planned));
        bury(world);
        world.now += 1_000;
        if planned.is_empty() {
            return removed;
        }
    }
    panic!("goes on for ever");
}

fn ceiling(world: &World) -> usize {
    let group = &world.groups[0];
    (group.size.unwrap() + group.budget().surge) as usize
}

fn alive(world: &World) -> usize {
    world.state.nodes.iter().filter(|n| !n.is_dead()).count()
}

fn requested(planned: &Plan) -> usize {
    let ops = planned.ops.iter();
    ops.map(|op| match op {
        Op::Request { nodes, .. } => nodes.len(),
        _ => 0,
    })
    .sum()
}

fn of_version(world: &World, version: &str) -> usize {
    let hash = choice("a", version).spec_hash;
    let nodes = world.state.nodes.iter();
    nodes.filter(|n| n.spec_hash == hash).count()
}

fn blocked(world: &World) -> Option<(String, String)> {
    let key = ConditionKey {
        group: sym("data"),
        kind: ConditionKind::UpdateBlocked,
    };
    let held = world.state.conditions.get(&key)?;
    Some((held.reason.to_string(), held.message.to_string()))
}

fn percent(surge: u32, unavailable: u32) -> Update {
    Update {
        max_surge: Some(Amount::Percent(surge)),
        max_unavailable: Some(Amount::Percent(unavailable)),
        ..Update::default()
    }
}

#[test]
fn the_default_makes_one_more_first_and_takes_one_away_when_it_is_ready() {
    let mut world = world(Update::default());
    want(&mut world, "v2");
    let planned = step(&mut world, Made::Nothing);
    assert_eq!((requested(&planned), removals(&planned)), (1, vec![]));
    let planned = step(&mut world, Made::Ready);
    assert_eq!((requested(&planned), removals(&planned)), (0, vec![]));
    let removed = run(&mut world, Made::Ready);
    let outdated: Vec<_> = [4, 3, 2, 1]
        .map(|slot| (slot, RemovalReason::Outdated))
        .into();
    assert_eq!(removed, outdated, "newest first, one after the other");
    assert_eq!((alive(&world), of_version(&world, "v2")), (4, 4));
    assert!(world.state.rollouts.is_empty());
}

#[test]
fn percentages_round_up_for_the_surge_and_down_for_what_may_be_missing() {
    for (update, budget) in [
        (percent(25, 25), (1, 1)),
        (percent(30, 30), (2, 1)),
        (percent(1, 49), (1, 1)),
        (percent(0, 99), (0, 3)),
        (percent(100, 100), (4, 4)),
        (rolling(7, 9), (7, 9)),
    ] {
        let mut group = group("data", 4, &["a"]);
        group.update = update;
        let got = group.budget();
        assert_eq!((got.surge, got.unavailable), budget, "{update:?}");
    }
    let mut world = world(percent(30, 30));
    want(&mut world, "v2");
    let planned = step(&mut world, Made::Nothing);
    assert_eq!((requested(&planned), removals(&planned).len()), (2, 1));
}

#[test]
fn without_a_surge_an_old_one_goes_first_and_its_place_is_taken() {
    let mut world = world(rolling(0, 1));
    want(&mut world, "v2");
    let planned = step(&mut world, Made::Ready);
    assert_eq!((requested(&planned), removals(&planned).len()), (0, 1));
    bury(&mut world);
    let ordinal = 3;
    let planned = step(&mut world, Made::Ready);
    assert_eq!((requested(&planned), removals(&planned).len()), (1, 0));
    let new = world.state.nodes.last().unwrap();
    assert_eq!(new.ordinal, ordinal, "it keeps the ordinal");
    run(&mut world, Made::Ready);
    assert_eq!(of_version(&world, "v2"), 4);
}

/// Lets the time pass as if the update had not advanced, but no node were late.
fn wait(world: &mut World, span: Millis) {
    world.now += span;
    for node in &mut world.state.nodes {
        node.state_time = world.now;
        node.seen.last = world.now;
    }
}

#[test]
fn an_update_that_leaves_no_old_node_and_makes_none_ready_is_blocked_as_well() {
    let mut world = world(rolling(0, 4));
    want(&mut world, "v2");
    run(&mut world, Made::Broken);
    assert_eq!(of_version(&world, "v2"), 4, "no old one is left");
    assert_eq!(blocked(&world), None);
    wait(&mut world, 600_000);
    step(&mut world, Made::Broken);
    let (reason, message) = blocked(&world).unwrap();
    assert_eq!(reason, "ProgressDeadline");
    assert!(message.starts_with("4 of 4 are not updated"), "{message}");
}

#[test]
fn a_node_that_has_to_be_ready_for_longer_than_the_deadline_does_not_block_its_update() {
    let mut world = world(Update {
        min_ready: Duration::from_secs(900),
        ..rolling(1, 0)
    });
    want(&mut world, "v2");
    run(&mut world, Made::Ready);
    world.now += 600_000;
    step(&mut world, Made::Ready);
    assert_eq!(blocked(&world), None, "it has been Ready for 10 minutes");
    while of_version(&world, "v2") < 4 {
        assert_eq!(blocked(&world), None);
        world.now += 300_000;
        run(&mut world, Made::Ready);
    }
}

/// Which nodes are alive is known again after the first probes of the new process.
#[test]
fn after_a_restart_an_update_waits_until_this_process_has_heard_of_the_nodes() {
    let mut world = world(rolling(0, 1));
    let mut group = at_version(world.groups[0].clone(), "v2");
    group.health = Some(Box::new(Health {
        probe: Probe::Tcp { port: None },
        ..Health::default()
    }));
    world.want(vec![group]);
    assert_eq!(run(&mut world, Made::Ready), [], "none was asked");
    let answers = |world: &mut World, slot: u64| {
        let node = world.state.node_mut(slot).unwrap();
        (node.probe.good, node.probe.answered) = (1, true);
    };
    for slot in [1, 2, 3] {
        answers(&mut world, slot);
    }
    let removed = run(&mut world, Made::Ready);
    assert_eq!(removed, [(4, RemovalReason::Outdated)], "who may be dead");

    // Once more, in the middle: the probes wake it, not the clock.
    let new = world.state.nodes.last().unwrap().slot;
    answers(&mut world, new);
    step(&mut world, Made::Nothing);
    assert_eq!(world.state.node(new).unwrap().state, NodeState::Ready);
    for node in &mut world.state.nodes {
        node.probe = ProbeResult::default();
    }
    run(&mut world, Made::Nothing);
    let planned = step(&mut world, Made::Nothing);
    let soon = world.now + 1_000;
    assert!(planned.wake.is_none_or(|at| at > soon), "{planned:?}");
}

#[test]
fn new_nodes_that_do_not_become_ready_stop_the_update_and_it_says_so() {
    let mut world = world(rolling(1, 1));
    want(&mut world, "v2");
    run(&mut world, Made::Broken);
    let ready = |w: &World| {
        let nodes = w.state.nodes.iter();
        nodes.filter(|n| n.state == NodeState::Ready).count()
    };
    assert_eq!(ready(&world), 3, "one may be missing, and no more");
    assert_eq!(of_version(&world, "v2"), 2);
    assert_eq!(blocked(&world), None);
    world.now += 600_000;
    for node in &mut world.state.nodes {
        // Not late yet: only the update is.
        node.state_time = world.now;
        node.seen.last = world.now;
    }
    step(&mut world, Made::Broken);
    let (reason, message) = blocked(&world).unwrap();
    assert_eq!(reason, "ProgressDeadline");
    assert!(message.contains("does not become ready"), "{message}");
    for node in &mut world.state.nodes {
        node.seen.ready = Some(true);
    }
    run(&mut world, Made::Ready);
    assert_eq!((blocked(&world), of_version(&world, "v2")), (None, 4));
}

#[test]
fn a_newer_spec_takes_over_and_what_is_broken_goes_first() {
    let mut world = world(rolling(1, 1));
    want(&mut world, "v2");
    run(&mut world, Made::Broken);
    want(&mut world, "v3");
    let planned = step(&mut world, Made::Ready);
    let broken: Vec<u64> = removals(&planned).iter().map(|(slot, _)| *slot).collect();
    assert_eq!(broken, [6, 5], "they cost no availability: {planned:?}");
    bury(&mut world);
    run(&mut world, Made::Ready);
    assert_eq!((alive(&world), of_version(&world, "v3")), (4, 4));
}

#[test]
fn going_back_is_free() {
    let mut world = world(rolling(1, 0));
    want(&mut world, "v2");
    step(&mut world, Made::Ready);
    for _ in 0..3 {
        step(&mut world, Made::Ready);
    }
    bury(&mut world);
    let old: Vec<u64> = world.state.nodes.iter().map(|n| n.slot).take(3).collect();
    assert!(of_version(&world, "v1") >= 3);
    want(&mut world, "v1");
    run(&mut world, Made::Ready);
    assert_eq!((alive(&world), of_version(&world, "v1")), (4, 4));
    let kept: Vec<u64> = world.state.nodes.iter().map(|n| n.slot).take(3).collect();
    assert_eq!(old, kept, "who matches already stays");
}

#[test]
fn on_delete_replaces_nothing_by_itself() {
    let mut world = world(on_delete());
    want(&mut world, "v2");
    assert_eq!(run(&mut world, Made::Ready), []);
    assert_eq!(of_version(&world, "v1"), 4);
    world.state.nodes[1].seen.phase = Phase::Failed;
    assert_eq!(run(&mut world, Made::Ready), [(2, RemovalReason::Dead)]);
    assert_eq!(of_version(&world, "v2"), 1, "who comes is of the new spec");
}

#[test]
fn a_node_is_available_only_after_min_ready() {
    let update = Update {
        min_ready: Duration::from_secs(30),
        ..rolling(1, 0)
    };
    let mut world = world(update);
    want(&mut world, "v2");
    step(&mut world, Made::Ready);
    step(&mut world, Made::Ready);
    let planned = step(&mut world, Made::Ready);
    assert_eq!(removals(&planned), []);
    assert_eq!(planned.wake, Some(world.now + 30_000));
    world.now += 29_999;
    assert_eq!(removals(&step(&mut world, Made::Ready)), []);
    world.now += 1;
    assert_eq!(removals(&step(&mut world, Made::Ready)).len(), 1);
}

#[test]
fn an_outdated_node_that_is_not_available_goes_first_and_costs_nothing() {
    let mut world = world(rolling(1, 0));
    world.state.nodes[1].state = NodeState::Unhealthy;
    world.state.nodes[1].seen.ready = Some(false);
    world.groups[0].remediation.enabled = false;
    want(&mut world, "v2");
    let planned = step(&mut world, Made::Ready);
    assert_eq!(removals(&planned), [(2, RemovalReason::Outdated)]);
    run(&mut world, Made::Ready);
    assert_eq!(of_version(&world, "v2"), 4);
}

#[test]
fn when_probes_are_cut_off_an_update_takes_no_more_than_its_budget() {
    let mut world = world(rolling(1, 0));
    for node in &mut world.state.nodes {
        node.state = NodeState::Unhealthy;
        node.seen.ready = Some(false);
    }
    want(&mut world, "v2");
    let removed = run(&mut world, Made::Broken);
    assert_eq!(removed.len(), 1, "{removed:?}");
    assert_eq!(of_version(&world, "v1"), 3);
}

#[test]
fn the_dead_are_replaced_before_anything_else_and_share_the_budget() {
    let mut world = world(rolling(1, 0));
    want(&mut world, "v2");
    world.state.nodes[0].seen.phase = Phase::Failed;
    let planned = step(&mut world, Made::Broken);
    assert_eq!(removals(&planned), [(1, RemovalReason::Dead)]);
    assert_eq!(requested(&planned), 2, "one in its place, one more");
    // Three old nodes are Ready. None of them goes before there are four others.
    assert_eq!(removals(&step(&mut world, Made::Broken)), []);
    bury(&mut world);
    for node in &mut world.state.nodes {
        node.seen.ready = Some(true);
    }
    run(&mut world, Made::Ready);
    assert_eq!((alive(&world), of_version(&world, "v2")), (4, 4));
}

#[test]
fn what_cannot_be_seen_counts_as_missing_and_is_not_touched() {
    let mut world = world(rolling(0, 1));
    want(&mut world, "v2");
    world.state.nodes[2].seen.unlisted = true;
    let removed = run(&mut world, Made::Ready);
    assert_eq!(removed, [], "one is missing as it is");
}

#[test]
fn a_surge_without_capacity_blocks_and_with_max_unavailable_it_goes_on() {
    for (unavailable, done) in [(0, 0), (1, 1)] {
        let mut world = world(rolling(1, unavailable));
        let until = world.now + 3_600_000;
        world.views.get_mut("a").unwrap().no_capacity = vec![shortage(until)];
        want(&mut world, "v2");
        let planned = step(&mut world, Made::Ready);
        assert_eq!(removals(&planned).len(), done);
        let expected = (unavailable == 0).then(|| "NoCapacity".to_owned());
        assert_eq!(blocked(&world).map(|(reason, _)| reason), expected);
    }
}

#[test]
fn a_platform_that_refuses_the_new_spec_blocks_the_update_and_the_old_nodes_stay() {
    let mut world = world(rolling(1, 0));
    want(&mut world, "v2");
    step(&mut world, Made::Nothing);
    let id = *world.state.requests.keys().next().unwrap();
    let at = world.now;
    let refused = drover_core::Error::new(Reason::Invalid, "no such image");
    let request = world.state.requests.get_mut(&id).unwrap();
    request.in_flight.call.in_flight = false;
    request.in_flight.answer = Some(Answer {
        at,
        taken: false,
        outcome: Err(refused),
    });
    assert_eq!(run(&mut world, Made::Nothing), []);
    let (reason, message) = blocked(&world).unwrap();
    assert_eq!(reason, "Rejected");
    assert!(message.contains("no such image"), "{message}");
    want(&mut world, "v1");
    assert_eq!(run(&mut world, Made::Ready), []);
    assert_eq!((blocked(&world), of_version(&world, "v1")), (None, 4));
}

#[test]
fn named_machines_are_replaced_one_after_the_other_has_gone() {
    let mut world = world(Update::default());
    let mut spec = world.groups[0].clone();
    spec.placement.hosts = ["m1", "m2", "m3", "m4"].map(Into::into).into();
    for (node, host) in world.state.nodes.iter_mut().zip(&spec.placement.hosts) {
        node.host = host.clone();
    }
    assert_eq!((spec.budget().surge, spec.budget().unavailable), (0, 1));
    world.want(vec![at_version(spec, "v2")]);
    let planned = step(&mut world, Made::Ready);
    assert_eq!(removals(&planned), [(4, RemovalReason::Outdated)]);
    assert_eq!(requested(&planned), 0, "its machine is not free yet");
    run(&mut world, Made::Ready);
    assert_eq!((alive(&world), of_version(&world, "v2")), (4, 4));
}

#[test]
fn scaling_in_the_middle_of_an_update_keeps_floor_and_ceiling() {
    for size in [2, 7] {
        let mut world = world(rolling(1, 0));
        want(&mut world, "v2");
        for _ in 0..4 {
            step(&mut world, Made::Ready);
        }
        let mut spec: Group = world.groups[0].clone();
        spec.size = Some(size);
        world.want(vec![spec]);
        let over = alive(&world);
        for _ in 0..60 {
            step(&mut world, Made::Ready);
            bury(&mut world);
            assert!(alive(&world) <= over.max(size as usize + 1));
            world.now += 1_000;
        }
        assert_eq!(alive(&world), size as usize);
        assert_eq!(of_version(&world, "v2"), size as usize);
    }
}

#[test]
fn marked_nodes_keep_to_the_budget_of_their_group() {
    let mut world = world(rolling(0, 2));
    for node in &mut world.state.nodes {
        node.marked = true;
    }
    let planned = step(&mut world, Made::Ready);
    let gone = removals(&planned);
    assert_eq!(gone, [(4, RemovalReason::User), (3, RemovalReason::User)]);
    run(&mut world, Made::Ready);
    assert!(world.state.nodes.iter().all(|node| node.slot > 4));
}

#[test]
fn another_formula_of_the_hash_restamps_and_replaces_nothing() {
    let mut world = world(rolling(1, 0));
    let mut spec = world.groups[0].clone();
    let old = spec.choices[0].spec_hash.clone();
    spec.choices[0].former_hashes = vec![old];
    spec.choices[0].spec_hash = sym("h9-new");
    world.want(vec![spec]);
    assert_eq!(run(&mut world, Made::Ready), []);
    let new = |node: &drover_core::Node| *node.spec_hash == *"h9-new";
    assert!(world.state.nodes.iter().all(new));
    // A hash that this version cannot compute says nothing about its node.
    world.state.nodes[0].origin_mut().spec_hash = sym("h77-unheard-of");
    assert_eq!(run(&mut world, Made::Ready), []);
    assert_eq!(&*world.state.nodes[0].spec_hash, "h77-unheard-of");
}

#[test]
fn a_sick_node_goes_when_its_successor_is_ready_if_that_is_asked_for() {
    let mut world = world(Update::default());
    world.groups[0].remediation.create_first = true;
    let since: Millis = world.now - 3_600_000;
    world.state.nodes[1].state = NodeState::Unhealthy;
    world.state.nodes[1].reason = sym("ProbeFailed");
    world.state.nodes[1].state_time = since;
    world.state.nodes[1].seen.ready = Some(false);
    let planned = step(&mut world, Made::Ready);
    assert_eq!((requested(&planned), removals(&planned)), (1, vec![]));
    let removed = run(&mut world, Made::Ready);
    assert_eq!(removed, [(2, RemovalReason::Sick)]);
    assert_eq!(alive(&world), 4);
}

#[test]
fn a_plan_says_who_goes_in_which_order_and_how_long_it_takes_at_most() {
    let mut world = world(rolling(1, 1));
    want(&mut world, "v2");
    let planned = world.plan();
    let [renewal] = &planned.renewals[..] else {
        panic!("{planned:?}");
    };
    assert_eq!(renewal.order, [4, 3, 2, 1]);
    assert_eq!((renewal.budget.surge, renewal.budget.unavailable), (1, 1));
    // Two rounds of 15 min to run, 10 min to become Ready, and 30 s to stop.
    assert_eq!(renewal.at_most, 2 * (900 + 600 + 30) * 1_000);
}
