//! Roles: which nodes are active, which are standby, and when they take over.

#![allow(
    clippy::unwrap_used,
    reason = "what must be there fails the test if it is not"
)]

mod storage;

use crate::world;

use std::time::Duration;

use drover_core::{
    Millis, NodeState, Phase,
    node::{RemovalReason, Role},
    spec::Group,
};
use drover_planner::{Call, ConditionKey, ConditionKind, Op, Plan};
use world::{
    World,
    build::{at_version, group, rolling},
    removals,
};

fn db(size: u32, standby: u32) -> Group {
    let mut group = group("db", size, &["a"]);
    group.standby = standby;
    group.update = rolling(1, 0);
    group
}

/// Plans, and makes the plan durable. Requests are answered, and new nodes run and are ready; nothing else happens.
pub(crate) fn step(world: &mut World) -> Plan {
    let planned = world.step();
    world.answer_all(&planned);
    for call in &planned.calls {
        match call {
            Call::RoleChange { slot } => {
                let node = world.state.node_mut(*slot).unwrap();
                node.in_flight
                    .changes
                    .role_change
                    .get_or_insert_default()
                    .call
                    .in_flight = true;
            }
            Call::Deprovision { slot } => {
                world.node_call(*slot).in_flight = true;
            }
            Call::Sole { slot, allow } => world.begin_sole(*slot, *allow),
            Call::Provision { .. }
            | Call::Relabel { .. }
            | Call::Grow { .. }
            | Call::Drain { .. }
            | Call::Adopt { .. }
            | Call::Confirm { .. }
            | Call::Resource { .. } => {}
        }
    }
    world.show_all();
    planned
}

/// A group of these numbers of active and standby nodes, all Ready for an hour.
pub(crate) fn ready(size: u32, standby: u32) -> World {
    let mut world = World::new(1, &["a"]);
    world.run_for(Duration::from_secs(10));
    world.want(vec![db(size, standby)]);
    while !step(&mut world).is_empty() {
        world.now += 1;
    }
    world.now += 3_600_000;
    step(&mut world);
    world
}

/// What happened, in order, each with its slot.
pub(crate) type Slots<T> = Vec<(u64, T)>;

/// Plans until nothing more is planned. Returns the removals and the role changes.
pub(crate) fn run(world: &mut World) -> (Slots<RemovalReason>, Slots<Role>) {
    let (mut removed, mut turned) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        let planned = step(world);
        removed.extend(removals(&planned));
        turned.extend(turns(&planned));
        if planned.is_empty() {
            return (removed, turned);
        }
        world.now += 1;
    }
    unreachable!("it goes round in circles")
}

fn turns(planned: &Plan) -> Vec<(u64, Role)> {
    let ops = planned.ops.iter();
    ops.filter_map(|op| match op {
        Op::RoleChange { slot, role } => Some((*slot, *role)),
        _ => None,
    })
    .collect()
}

pub(crate) fn asked(planned: &Plan) -> Vec<Role> {
    let ops = planned.ops.iter();
    ops.flat_map(|op| match op {
        Op::Request { nodes, .. } => nodes.iter().map(|node| node.role).collect(),
        _ => Vec::new(),
    })
    .collect()
}

fn roles(world: &World) -> Vec<(u64, Role)> {
    let nodes = world.state.nodes.iter();
    nodes.map(|node| (node.slot, node.role)).collect()
}

fn dies(world: &mut World, slot: u64) {
    world.state.node_mut(slot).unwrap().seen.phase = Phase::Failed;
}

pub(crate) fn gone(world: &mut World, slot: u64) {
    world.state.node_mut(slot).unwrap().seen.gone = true;
}

/// Answers a role change: with success, or with `Err(true)` if it was certainly refused, `Err(false)` if its outcome is
/// not known.
fn answer(world: &mut World, slot: u64, outcome: Result<(), bool>) {
    let now = world.now;
    let role_change = world
        .state
        .node_mut(slot)
        .unwrap()
        .in_flight
        .changes
        .role_change
        .as_mut()
        .unwrap();
    assert!(role_change.call.in_flight, "nothing is under way");
    role_change.call.in_flight = false;
    role_change.done = outcome.is_ok();
    if let Err(refused) = outcome {
        role_change.call.next = now + 1_000;
        role_change.failed(refused, "says no");
    }
}

fn failed(world: &World) -> Option<String> {
    let key = ConditionKey {
        group: "db".into(),
        kind: ConditionKind::PromotionFailed,
    };
    let condition = world.state.conditions.get(&key)?;
    Some(condition.message.to_string())
}

const ACTIVE: Role = Role::Active;
const STANDBY: Role = Role::Standby;

#[test]
fn the_first_nodes_are_the_active_ones() {
    let world = ready(2, 1);
    assert_eq!(roles(&world), [(1, ACTIVE), (2, ACTIVE), (3, STANDBY)]);
    let ordinals: Vec<u32> = world.state.nodes.iter().map(|n| n.ordinal).collect();
    assert_eq!(ordinals, [0, 1, 2]);
}

#[test]
fn the_death_of_an_active_node_promotes_a_standby_in_the_same_plan() {
    let mut world = ready(1, 1);
    dies(&mut world, 1);
    let planned = step(&mut world);
    assert_eq!(turns(&planned), [(2, Role::Promoting)]);
    assert!(planned.calls.contains(&Call::RoleChange { slot: 2 }));
    assert_eq!(removals(&planned), [(1, RemovalReason::Dead)]);
    assert_eq!(asked(&planned), [STANDBY], "who comes next stands by");
    run(&mut world);
    assert_eq!(world.state.node(2).unwrap().role, Role::Promoting);
    let ready = ConditionKey {
        group: "db".into(),
        kind: ConditionKind::Ready,
    };
    gone(&mut world, 1);
    run(&mut world);
    assert!(world.state.conditions.get(&ready).is_none(), "not yet");
    answer(&mut world, 2, Ok(()));
    let (_, turned) = run(&mut world);
    assert_eq!(turned, [(2, ACTIVE)]);
    assert!(world.state.conditions.get(&ready).is_some());
    assert_eq!(roles(&world), [(2, ACTIVE), (3, STANDBY)]);
}

#[test]
fn what_cannot_be_seen_is_not_replaced_by_a_standby() {
    let mut world = ready(1, 1);
    for node in &mut world.state.nodes {
        node.seen.unlisted = node.slot == 1;
    }
    assert_eq!(turns(&step(&mut world)), []);
    world.state.node_mut(1).unwrap().seen.unlisted = false;
    let view = world.views.get_mut("a").unwrap();
    (view.visible, view.callable) = (false, false);
    dies(&mut world, 1);
    assert_eq!(turns(&step(&mut world)), []);
}

#[test]
fn a_standby_that_cannot_be_seen_is_not_promoted() {
    let mut world = ready(1, 1);
    dies(&mut world, 1);
    world.state.node_mut(2).unwrap().seen.unlisted = true;
    let planned = step(&mut world);
    assert_eq!(turns(&planned), []);
    assert_eq!(asked(&planned), [STANDBY], "the other may still take over");
    let said = "1 active nodes are missing: db-1 is not Ready";
    assert_eq!(failed(&world).as_deref(), Some(said));
    world.state.node_mut(2).unwrap().seen.unlisted = false;
    let planned = step(&mut world);
    assert_eq!(turns(&planned), [(2, Role::Promoting)]);
    assert_eq!(failed(&world), None);
}

#[test]
fn a_sick_active_node_is_gone_before_a_standby_takes_over() {
    let mut world = ready(1, 1);
    world.state.node_mut(1).unwrap().seen.ready = Some(false);
    run(&mut world);
    world.now += 60_000;
    let (removed, turned) = run(&mut world);
    assert_eq!(removed, [(1, RemovalReason::Sick)]);
    assert_eq!(turned, [], "the sick one may still be active");
    gone(&mut world, 1);
    let planned = step(&mut world);
    assert_eq!(turns(&planned), [(2, Role::Promoting)]);
}

#[test]
fn without_a_standby_that_ran_the_new_node_is_active() {
    let mut world = ready(1, 1);
    let node = world.state.node_mut(2).unwrap();
    (node.state, node.state_time) = (NodeState::Starting, world.now);
    node.seen.ready = Some(false);
    dies(&mut world, 1);
    let planned = step(&mut world);
    assert_eq!(turns(&planned), []);
    assert_eq!(asked(&planned), [ACTIVE]);
    world.state.node_mut(2).unwrap().seen.ready = Some(true);
    let (_, turned) = run(&mut world);
    assert_eq!(turned, [], "who is asked for is active, made or not");
}

#[test]
fn a_larger_size_promotes_a_standby_and_makes_a_new_one() {
    let mut world = ready(1, 1);
    world.want(vec![db(2, 1)]);
    let planned = step(&mut world);
    assert_eq!(turns(&planned), [(2, Role::Promoting)]);
    assert_eq!(asked(&planned), [STANDBY]);
    let mut world = ready(1, 1);
    world.want(vec![db(4, 1)]);
    let planned = step(&mut world);
    assert_eq!(turns(&planned), [(2, Role::Promoting)]);
    assert_eq!(asked(&planned), [ACTIVE, ACTIVE, STANDBY]);
}

#[test]
fn scaling_down_takes_standby_nodes_first_and_of_each_role_only_what_is_too_much() {
    let mut world = ready(2, 2);
    world.want(vec![db(2, 1)]);
    assert_eq!(run(&mut world), (vec![(4, RemovalReason::Surplus)], vec![]));
    let mut world = ready(2, 2);
    world.want(vec![db(1, 2)]);
    assert_eq!(run(&mut world), (vec![(2, RemovalReason::Surplus)], vec![]));
    let mut world = ready(2, 2);
    world.want(vec![db(1, 0)]);
    let removed: Vec<u64> = run(&mut world).0.iter().map(|one| one.0).collect();
    assert_eq!(removed, [4, 3, 2]);
    let mut world = ready(2, 1);
    world.want(vec![db(1, 2)]);
    let (removed, _) = run(&mut world);
    assert_eq!(removed, [(2, RemovalReason::Surplus)]);
    gone(&mut world, 2);
    run(&mut world);
    assert_eq!(roles(&world), [(1, ACTIVE), (3, STANDBY), (4, STANDBY)]);
}

#[test]
fn a_refused_promotion_goes_to_another_standby_after_the_first_is_standby_again() {
    let mut world = ready(1, 2);
    dies(&mut world, 1);
    run(&mut world);
    gone(&mut world, 1);
    run(&mut world);
    for attempt in 1..=3 {
        answer(&mut world, 2, Err(true));
        let planned = step(&mut world);
        assert_eq!(failed(&world).unwrap(), "db-1: says no", "{attempt}");
        if attempt < 3 {
            assert!(
                !planned.calls.contains(&Call::RoleChange { slot: 2 }),
                "waits"
            );
            world.now += 1_000;
            let planned = step(&mut world);
            assert!(planned.calls.contains(&Call::RoleChange { slot: 2 }));
        } else {
            assert_eq!(turns(&planned), [(2, Role::Demoting)]);
        }
    }
    assert_eq!(run(&mut world).1, [], "it may still be active");
    answer(&mut world, 2, Ok(()));
    let (_, turned) = run(&mut world);
    assert_eq!(turned, [(2, STANDBY), (3, Role::Promoting)]);
    answer(&mut world, 3, Ok(()));
    run(&mut world);
    assert_eq!(world.state.node(3).unwrap().role, ACTIVE);
    assert_eq!(failed(&world), None);
}

#[test]
fn a_promotion_of_unknown_outcome_goes_to_nobody_else() {
    let mut world = ready(1, 2);
    dies(&mut world, 1);
    run(&mut world);
    // One unknown outcome is enough: what is refused later may have happened before.
    for (attempt, refused) in [true, false, true, true, true, true]
        .into_iter()
        .enumerate()
    {
        answer(&mut world, 2, Err(refused));
        run(&mut world);
        world.now += 1_000;
        let (_, turned) = run(&mut world);
        assert_eq!(turned, [], "{attempt}");
    }
    assert!(failed(&world).unwrap().contains("is not known"));
    // The way out: it is replaced, and then the other one takes over.
    world.mark(2);
    let (removed, _) = run(&mut world);
    assert_eq!(removed, [(2, RemovalReason::User)]);
    gone(&mut world, 2);
    let (_, turned) = run(&mut world);
    assert_eq!(turned, [(3, Role::Promoting)]);
}

#[test]
fn a_promotion_that_an_earlier_process_may_have_made_goes_to_nobody_else() {
    let mut world = ready(1, 2);
    dies(&mut world, 1);
    run(&mut world);
    // The process ends while its call is in flight; the next call is refused again and again.
    let node = world.state.node_mut(2).unwrap();
    assert_eq!(node.role, Role::Promoting);
    node.in_flight = drover_core::node::InFlight::unknown(&node.record);
    run(&mut world);
    for attempt in 0..6 {
        answer(&mut world, 2, Err(true));
        run(&mut world);
        world.now += 1_000;
        let (_, turned) = run(&mut world);
        assert_eq!(turned, [], "{attempt}");
    }
    assert!(failed(&world).unwrap().contains("is not known"));
    // It is still retried, and may still become active.
    answer(&mut world, 2, Ok(()));
    let (_, turned) = run(&mut world);
    assert_eq!(turned, [(2, ACTIVE)]);
}

#[test]
fn a_promotion_that_is_not_wanted_any_more_is_not_tried_again() {
    let mut world = ready(1, 1);
    world.want(vec![db(2, 1)]);
    let (_, turned) = run(&mut world);
    assert_eq!(turned, [(2, Role::Promoting)]);
    answer(&mut world, 2, Err(true));
    world.want(vec![db(1, 1)]);
    let mut removed = Vec::new();
    for _ in 0..20 {
        world.now += 1_000;
        let planned = step(&mut world);
        let again = planned.calls.contains(&Call::RoleChange { slot: 2 });
        assert!(!again, "it would be a second active one");
        removed.extend(removals(&planned));
    }
    assert_eq!(removed, [(2, RemovalReason::Surplus)]);
}

#[test]
fn an_update_renews_standby_nodes_first_and_an_active_one_when_one_of_them_can_take_over() {
    let mut world = ready(1, 1);
    world.want(vec![at_version(db(1, 1), "v2")]);
    let mut order = Vec::new();
    let mut spans: Vec<(Millis, usize)> = Vec::new();
    for _ in 0..100 {
        let planned = step(&mut world);
        for (slot, reason) in removals(&planned) {
            assert_eq!(reason, RemovalReason::Outdated);
            order.push(slot);
        }
        let acting = world.state.nodes.iter().filter(|n| n.role.may_act());
        let acting = acting.count();
        assert!(acting <= 1, "{:?}", roles(&world));
        spans.push((world.now, acting));
        for at in 0..world.state.nodes.len() {
            let node = &mut world.state.nodes[at];
            node.seen.gone |= node.removal.is_some();
            if let Some(role_change) = node
                .in_flight
                .changes
                .role_change
                .as_mut()
                .filter(|role_change| role_change.call.in_flight)
            {
                role_change.call.in_flight = false;
                role_change.done = true;
            }
        }
        world.now += 1;
        if planned.is_empty() {
            break;
        }
    }
    assert_eq!(order, [2, 1], "the standby, then the active one");
    let roles: Vec<Role> = roles(&world).into_iter().map(|one| one.1).collect();
    assert_eq!(roles, [ACTIVE, STANDBY]);
    let group = at_version(db(1, 1), "v2");
    assert!(world.state.nodes.iter().all(|node| group.makes(node)));
}

#[test]
fn an_active_node_stays_while_no_renewed_standby_is_ready() {
    let mut world = ready(1, 1);
    world.want(vec![at_version(db(1, 1), "v2")]);
    let planned = step(&mut world);
    assert_eq!(asked(&planned), [STANDBY], "the surge stands by");
    let new = world.state.nodes.last().unwrap().slot;
    world.state.node_mut(new).unwrap().seen.ready = Some(false);
    let (removed, turned) = run(&mut world);
    assert_eq!((removed, turned), (vec![], vec![]));
}
