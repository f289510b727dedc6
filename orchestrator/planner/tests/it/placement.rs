//! Placement of nodes, and which go when fewer are wanted: named hosts, spread, spill-over.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "what must be there fails the test if it is not"
)]

use crate::world;

use std::sync::Arc;

use drover_core::{
    Error, Millis, Node, NodeState, Phase, Sym,
    error::Reason,
    node::{Outcome, RemovalReason},
    spec::{Group, Spread},
};
use drover_planner::{
    BackOffKey, Call, ConditionKey, ConditionKind, Domains, Op, Plan, Shortage, Subject,
};
use world::{
    World,
    build::{choice, group, sym},
    removals,
    steps::still,
};

/// Answers the requests of a plan, with an error for the nodes for which `fails` returns one.
fn answer(world: &mut World, planned: &Plan, fails: &dyn Fn(&Node) -> Option<Error>) {
    for call in &planned.calls {
        let Call::Provision { request, .. } = call else {
            continue;
        };
        let nodes = world.state.nodes.iter().filter(|n| n.request == *request);
        let outcomes = nodes.map(|n| match fails(n) {
            Some(error) => Outcome::Failed(error),
            None => Outcome::Made(n.slot.to_string().into()),
        });
        let outcome = Ok(outcomes.collect());
        world.answer(*request, outcome);
    }
    let now = world.now;
    for node in &mut world.state.nodes {
        if node.seen.phase == Phase::Unseen {
            (node.seen.phase, node.seen.last) = (Phase::Running, now);
        }
    }
}

/// Answers all requests until nothing is left to do.
fn settle(world: &mut World, fails: &dyn Fn(&Node) -> Option<Error>) {
    for _ in 0..50 {
        let planned = world.step();
        if planned.is_empty() {
            return;
        }
        answer(world, &planned, fails);
        world.now += 1;
    }
    panic!("does not settle: {:?}", world.plan());
}

fn well(_: &Node) -> Option<Error> {
    None
}

fn hosts(world: &World) -> Vec<String> {
    let living = world.state.nodes.iter().filter(|n| n.removal.is_none());
    living.map(|n| n.host.to_string()).collect()
}

fn asked(planned: &Plan) -> Vec<(String, Vec<String>)> {
    let ops = planned.ops.iter();
    ops.filter_map(|op| match op {
        Op::Request { request, nodes, .. } => Some((
            request.spec_hash.to_string(),
            nodes.iter().map(|n| n.host.to_string()).collect(),
        )),
        _ => None,
    })
    .collect()
}

fn by_hash(planned: &Plan) -> Vec<(String, usize)> {
    let asked = asked(planned).into_iter();
    asked.map(|(hash, nodes)| (hash, nodes.len())).collect()
}

fn condition(world: &World, kind: ConditionKind) -> Option<String> {
    let key = ConditionKey {
        group: sym("data"),
        kind,
    };
    world
        .state
        .conditions
        .get(&key)
        .map(|c| c.message.to_string())
}

fn gone(world: &mut World, slot: u64) {
    world.state.node_mut(slot).unwrap().seen.gone = true;
}

fn on_machines(size: u32, machines: &[&str]) -> Group {
    let mut spec = group("data", size, &["a"]);
    spec.placement.hosts = machines.iter().map(|m| sym(m)).collect();
    spec
}

#[test]
fn named_machines_are_taken_in_their_order_and_the_last_is_freed_first() {
    let mut world = still(vec![on_machines(2, &["m1", "m2", "m3"])]);
    settle(&mut world, &well);
    assert_eq!(hosts(&world), ["m1", "m2"]);
    world.want(vec![on_machines(3, &["m1", "m2", "m3"])]);
    settle(&mut world, &well);
    assert_eq!(hosts(&world), ["m1", "m2", "m3"]);
    world.want(vec![on_machines(1, &["m1", "m2", "m3"])]);
    let planned = world.step();
    let gone: Vec<u64> = removals(&planned)
        .into_iter()
        .map(|(slot, _)| slot)
        .collect();
    assert_eq!(gone, [3, 2], "from the end of the list");
    assert_eq!(hosts(&world), ["m1"]);
}

#[test]
fn a_machine_is_used_again_only_after_its_node_is_proven_absent() {
    let mut world = still(vec![on_machines(2, &["m1", "m2"])]);
    settle(&mut world, &well);
    world.state.node_mut(1).unwrap().seen.phase = Phase::Failed;
    let planned = world.step();
    assert_eq!(removals(&planned), [(1, RemovalReason::Dead)]);
    world.now += 1;
    let planned = world.step();
    assert!(asked(&planned).is_empty(), "{planned:?}");
    assert!(planned.report.iter().any(|n| n.reason == "Host"));
    gone(&mut world, 1);
    let planned = world.step();
    assert_eq!(asked(&planned)[0].1, ["m1"]);
}

#[test]
fn what_is_replaced_by_its_user_leaves_its_machine_first() {
    let mut world = still(vec![on_machines(2, &["m1", "m2", "m3"])]);
    settle(&mut world, &well);
    for slot in [1, 2] {
        world.state.node_mut(slot).unwrap().marked = true;
    }
    let planned = world.step();
    assert_eq!(
        removals(&planned),
        [(2, RemovalReason::User)],
        "one at a time"
    );
    assert!(asked(&planned).is_empty(), "never more than wanted");
    gone(&mut world, 2);
    let planned = world.step();
    assert_eq!(asked(&planned)[0].1, ["m2"], "in its place");
    world.now += 1;
    assert_eq!(removals(&world.plan()), [], "not before it is Ready");
    answer(&mut world, &planned, &well);
    let planned = world.step();
    assert_eq!(removals(&planned), [(1, RemovalReason::User)]);
}

#[test]
fn a_machine_of_somebody_else_does_not_sink_the_others() {
    let claimed = |node: &Node| {
        (*node.host == *"m2").then(|| Error::new(Reason::HostClaimed, "belongs to bob"))
    };
    let mut world = still(vec![on_machines(3, &["m1", "m2", "m3", "m4"])]);
    settle(&mut world, &claimed);
    assert_eq!(
        hosts(&world),
        ["m1", "m3", "m4"],
        "the next free one instead"
    );
    let said = condition(&world, ConditionKind::Rejected).unwrap();
    assert!(said.contains("m2: belongs to bob"), "{said}");
    assert!(condition(&world, ConditionKind::Ready).is_some());

    let mut world = still(vec![on_machines(3, &["m1", "m2", "m3"])]);
    settle(&mut world, &claimed);
    assert_eq!(hosts(&world), ["m1", "m3"], "no other is left to take");
    assert!(condition(&world, ConditionKind::Ready).is_none());
    let next = world.plan().wake.unwrap();
    assert!(next > world.now, "it is asked for again");
    world.now = next;
    settle(&mut world, &well);
    assert_eq!(hosts(&world).len(), 3);
    assert_eq!(condition(&world, ConditionKind::Rejected), None);
}

#[test]
fn an_error_of_the_whole_call_counts_for_the_machine_that_it_names() {
    let mut world = still(vec![on_machines(2, &["m1", "m2", "m3"])]);
    let planned = world.step();
    let Some(Call::Provision { request, .. }) = planned.calls.first() else {
        panic!("nothing is asked for")
    };
    let error = Error::new(Reason::HostNotFound, "no such machine").with_resource("host", "m1");
    world.answer(*request, Err(error));
    let planned = world.step();
    assert_eq!(asked(&planned)[0].1, ["m2", "m3"]);
}

#[test]
fn a_machine_that_moves_between_groups_is_waited_for() {
    let mut other = on_machines(1, &["m1"]);
    other.path = sym("other");
    let mut world = still(vec![on_machines(1, &["m1"])]);
    settle(&mut world, &well);
    world.want(vec![other]);
    let planned = world.step();
    assert_eq!(removals(&planned), [(1, RemovalReason::User)]);
    assert!(asked(&planned).is_empty());
    gone(&mut world, 1);
    assert_eq!(asked(&world.step())[0].1, ["m1"]);
}

fn zones(world: &mut World, names: &[&str]) {
    let labels = |name: &&str| (sym(name), [(sym("zone"), sym(name))].into());
    let domains: Domains = names.iter().map(labels).collect();
    world.views.get_mut("a").unwrap().domains = Arc::new(domains);
}

fn spread(size: u32) -> Group {
    let mut spec = group("data", size, &["a"]);
    spec.placement.spread.push(Spread {
        topology_key: "zone".into(),
        max_skew: 1,
        required: true,
        max_per_domain: None,
        over_cluster: false,
    });
    spec
}

fn place(world: &mut World, zones: &[&str]) {
    for (node, zone) in world.state.nodes.iter_mut().zip(zones) {
        node.seen.failure_domain = sym(zone);
    }
}

fn left(world: &World) -> Vec<&str> {
    let living = world.state.nodes.iter().filter(|n| n.removal.is_none());
    let mut left: Vec<&str> = living.map(|n| &*n.seen.failure_domain).collect();
    left.sort_unstable();
    left
}

#[test]
fn a_scale_down_takes_from_the_fullest_domain() {
    let mut world = still(vec![spread(6)]);
    zones(&mut world, &["x", "y", "z"]);
    settle(&mut world, &well);
    // By age alone both nodes of z would go.
    place(&mut world, &["x", "x", "y", "y", "z", "z"]);
    world.want(vec![spread(3)]);
    world.step();
    assert_eq!(left(&world), ["x", "y", "z"]);
}

#[test]
fn a_scale_down_takes_the_sick_before_it_thinks_of_spread_and_never_grows() {
    let mut world = still(vec![spread(4)]);
    zones(&mut world, &["x", "y"]);
    settle(&mut world, &well);
    place(&mut world, &["x", "y", "y", "y"]);
    let node = world.state.node_mut(1).unwrap();
    (node.state, node.seen.ready) = (NodeState::Unhealthy, Some(false));
    world.want(vec![spread(3)]);
    let planned = world.step();
    assert_eq!(removals(&planned), [(1, RemovalReason::Surplus)]);
    assert!(asked(&planned).is_empty());
    gone(&mut world, 1);
    settle(&mut world, &well);
    assert_eq!(world.state.nodes.len(), 3);
}

#[test]
fn a_satisfied_group_without_any_room_stays_ready() {
    let mut world = still(vec![spread(2)]);
    zones(&mut world, &["x"]);
    settle(&mut world, &well);
    let until = world.now + 1_000_000;
    world.views.get_mut("a").unwrap().no_capacity = vec![Shortage {
        pool: sym(""),
        domain: sym(""),
        until,
    }];
    world.want(vec![spread(2)]);
    settle(&mut world, &well);
    assert!(condition(&world, ConditionKind::Ready).is_some());
    assert_eq!(condition(&world, ConditionKind::NoCapacity), None);
}

/// Two on spot capacity, the rest on demand, both of one platform and class.
fn spot_first(size: u32) -> Group {
    let mut spec = group("data", size, &[]);
    let mut spot = choice("a", "spot");
    (spot.class, spot.pool, spot.max) = (sym("m6i"), sym("m6i#spot"), Some(2));
    let mut demand = choice("a", "demand");
    (demand.class, demand.pool) = (sym("m6i"), sym("m6i#demand"));
    spec.choices = vec![spot, demand];
    spec
}

fn no_spot(node: &Node) -> Option<Error> {
    (*node.spec_hash == *"spot-a").then(|| Error::new(Reason::NoCapacity, "no spot left"))
}

fn of(world: &World, hash: &str) -> usize {
    let nodes = world.state.nodes.iter();
    nodes
        .filter(|n| *n.spec_hash == *hash && !n.is_dead())
        .count()
}

#[test]
fn spot_that_is_out_spills_over_to_the_same_class_on_demand() {
    let mut world = still(vec![spot_first(3)]);
    let planned = world.step();
    let expected = [("spot-a".to_owned(), 2), ("demand-a".to_owned(), 1)];
    assert_eq!(by_hash(&planned), expected);
    answer(&mut world, &planned, &no_spot);
    world.now += 1;
    let planned = world.step();
    assert_eq!(by_hash(&planned), [("demand-a".to_owned(), 2)]);
    let skipped = planned
        .report
        .iter()
        .find(|n| n.reason == "NoCapacity")
        .unwrap();
    assert_eq!(skipped.until, Some(world.now + 5_000), "{skipped:?}");
    assert!(skipped.message.contains("a (m6i)"), "{skipped:?}");
    answer(&mut world, &planned, &well);
    world.now += 1;
    settle(&mut world, &well);
    assert!(condition(&world, ConditionKind::Ready).is_some());
    world.now += 1_000_000;
    settle(&mut world, &well);
    assert_eq!(of(&world, "demand-a"), 3, "nobody is moved back");
}

#[test]
fn a_back_off_for_want_of_capacity_outlives_the_process_and_doubles() {
    let mut world = still(vec![spot_first(1)]);
    let planned = world.step();
    answer(&mut world, &planned, &no_spot);
    world.now += 1;
    world.step();
    let hash = sym("spot-a");
    let key = BackOffKey::of(&sym("data"), &hash, &sym("a")).about(Subject::Capacity);
    let wait = |world: &World| -> Millis {
        let back_off = &world.state.backoffs[&key];
        back_off.next - back_off.last
    };
    assert_eq!(wait(&world), 5_000);
    world.now += 5_001;
    world.want(vec![spot_first(2)]);
    let planned = world.step();
    assert_eq!(by_hash(&planned), [("spot-a".to_owned(), 1)], "tried again");
    answer(&mut world, &planned, &no_spot);
    world.now += 1;
    world.step();
    assert_eq!(wait(&world), 10_000);
}

#[test]
fn a_dead_spot_node_is_replaced_by_the_order_of_preference_again() {
    let mut world = still(vec![spot_first(3)]);
    settle(&mut world, &well);
    assert_eq!((of(&world, "spot-a"), of(&world, "demand-a")), (2, 1));
    world.state.node_mut(1).unwrap().seen.phase = Phase::Terminated;
    let planned = world.step();
    assert_eq!(by_hash(&planned), [("spot-a".to_owned(), 1)]);
    answer(&mut world, &planned, &no_spot);
    world.now += 1;
    settle(&mut world, &well);
    assert_eq!((of(&world, "spot-a"), of(&world, "demand-a")), (1, 2));
}

#[test]
fn only_a_final_word_spills_over() {
    let mut world = still(vec![spot_first(1)]);
    let planned = world.step();
    let Some(Call::Provision { request, .. }) = planned.calls.first() else {
        panic!("nothing is asked for")
    };
    world.answer(*request, Err(Error::unavailable("no answer")));
    world.now += 10;
    let hash = sym("demand-a");
    for _ in 0..5 {
        let planned = world.step();
        assert!(by_hash(&planned).iter().all(|(asked, _)| **asked != *hash));
        world.now += 1;
    }
}

#[test]
fn a_domain_that_is_out_holds_back_only_who_needs_it() {
    let in_zones = |zones: &[&str]| {
        let mut spec = group("data", 1, &["a", "b"]);
        spec.placement.failure_domains = zones.iter().map(|z| (*z).to_owned()).collect();
        spec
    };
    let first = |zones: &[&str]| {
        let mut world = still(vec![in_zones(zones)]);
        self::zones(&mut world, &["x", "y"]);
        let until = world.now + 60_000;
        let out = Shortage {
            pool: Sym::default(),
            domain: sym("x"),
            until,
        };
        world.views.get_mut("a").unwrap().no_capacity = vec![out];
        by_hash(&world.step())[0].0.clone()
    };
    assert_eq!(first(&["x"]), "v1-b");
    assert_eq!(first(&["x", "y"]), "v1-a");
    assert_eq!(first(&[]), "v1-a");
}
