//! Sole writers: an active node that acknowledges nothing without standbys may go on alone while it lacks them. That is
//! recorded for as long as it may, and until then nobody else becomes active.

mod doubts;
mod lives;

use drover_core::{
    Phase,
    node::Role,
    spec::{Amount, Group, Remediation},
    storage::Policy,
};
use drover_planner::{Call, ConditionKey, ConditionKind, Op, Plan};

use crate::{
    standby::{asked, gone, step},
    world::{
        World,
        build::{at_version, group, rolling, stored, sym},
        removals,
        sole::{needing, sole_writer, strict},
        steps::still,
    },
};

/// What plans do about sole writers and promotions, each with its slot.
#[derive(Debug, PartialEq, Eq)]
enum Did {
    Recorded(u64),
    Forgot,
    Allow(u64),
    Revoke(u64),
    Promote(u64),
}

use Did::{Allow, Forgot, Promote, Recorded, Revoke};

/// What a plan does, in order: what it records is durable before its calls.
fn did(planned: &Plan) -> Vec<Did> {
    let ops = planned.ops.iter().filter_map(|op| match op {
        Op::Sole { to, .. } => Some(to.map_or(Forgot, |sole| Recorded(sole.slot))),
        Op::RoleChange {
            slot,
            role: Role::Promoting,
        } => Some(Promote(*slot)),
        _ => None,
    });
    let calls = planned.calls.iter().filter_map(|call| match call {
        Call::Sole { slot, allow: true } => Some(Allow(*slot)),
        Call::Sole { slot, allow: false } => Some(Revoke(*slot)),
        _ => None,
    });
    ops.chain(calls).collect()
}

/// Plans until nothing more is planned.
fn run(world: &mut World) -> Vec<Did> {
    let mut all = Vec::new();
    for _ in 0..50 {
        let planned = step(world);
        all.extend(did(&planned));
        if planned.is_empty() {
            return all;
        }
        world.now += 1;
    }
    unreachable!("it goes round in circles: {all:?}")
}

/// The same when the time is over for which a failed call waits.
fn later(world: &mut World) -> Vec<Did> {
    world.now += 1_000;
    run(world)
}

/// A store with an active node and standbys, of which it needs one. Sick nodes stay.
fn db(standby: u32) -> Group {
    let mut group = group("db", 1, &["a"]);
    group.standby = standby;
    group.update = rolling(1, 0);
    group.remediation.enabled = false;
    sole_writer(group)
}

/// A store whose nodes are Ready for an hour. Node 1 is the active one.
fn ready(group: Group) -> World {
    let mut world = still(vec![group]);
    run(&mut world);
    if recorded(&world).is_some() {
        world.answer_sole(1, Ok(()));
        run(&mut world);
    }
    world.now += 3_600_000;
    assert_eq!(run(&mut world), []);
    world
}

/// A store whose standby is not Ready, and whose active node goes on alone.
fn alone(group: Group) -> World {
    let mut world = ready(group);
    set_ready(&mut world, 2, false);
    assert_eq!(run(&mut world), [Recorded(1), Allow(1)]);
    world.answer_sole(1, Ok(()));
    assert_eq!(run(&mut world), []);
    world
}

fn set_ready(world: &mut World, slot: u64, ready: bool) {
    world.state.node_mut(slot).unwrap().seen.ready = Some(ready);
}

fn dies(world: &mut World, slot: u64) {
    world.state.node_mut(slot).unwrap().seen.phase = Phase::Failed;
}

fn recorded(world: &World) -> Option<u64> {
    world.state.sole.get("db").map(|sole| sole.slot)
}

/// Why nobody takes over, as a word.
fn trouble(world: &World) -> Option<&str> {
    let key = ConditionKey {
        group: sym("db"),
        kind: ConditionKind::PromotionFailed,
    };
    let condition = world.state.conditions.get(&key)?;
    Some(&condition.reason)
}

/// Slots, ordinals and roles of all nodes.
fn nodes(world: &World) -> Vec<(u64, u32, Role)> {
    let nodes = world.state.nodes.iter();
    nodes
        .map(|node| (node.slot, node.ordinal, node.role))
        .collect()
}

#[test]
fn the_permission_is_recorded_before_it_is_given_and_until_it_is_taken_back() {
    let mut world = ready(db(1));
    dies(&mut world, 2);
    let planned = step(&mut world);
    assert_eq!(asked(&planned), [Role::Standby], "node 3, in its place");
    assert_eq!(did(&planned), [Recorded(1), Allow(1)]);
    set_ready(&mut world, 3, false);
    assert_eq!(run(&mut world), []);
    world.answer_sole(1, Ok(()));
    assert_eq!(later(&mut world), [], "nobody is Ready yet");
    set_ready(&mut world, 3, true);
    assert_eq!(run(&mut world), [Revoke(1)]);
    assert_eq!(recorded(&world), Some(1), "it still has it");
    world.answer_sole(1, Err(true));
    assert_eq!(run(&mut world), []);
    assert_eq!(recorded(&world), Some(1), "it does not give it back");
    assert_eq!(later(&mut world), [Revoke(1)]);
    world.answer_sole(1, Ok(()));
    assert_eq!(run(&mut world), [Forgot]);
    assert_eq!(later(&mut world), []);
}

#[test]
fn it_goes_on_alone_when_fewer_standbys_are_ready_than_it_needs() {
    let mut world = ready(db(2));
    set_ready(&mut world, 3, false);
    assert_eq!(run(&mut world), [], "one is enough");
    set_ready(&mut world, 2, false);
    assert_eq!(run(&mut world), [Recorded(1), Allow(1)]);
    world.answer_sole(1, Ok(()));
    set_ready(&mut world, 3, true);
    assert_eq!(run(&mut world), [Revoke(1)]);

    let mut world = ready(needing(db(2), 2));
    set_ready(&mut world, 3, false);
    assert_eq!(run(&mut world), [Recorded(1), Allow(1)], "it needs both");
}

#[test]
fn one_that_is_evicted_gives_its_permission_back_while_it_still_serves() {
    let mut world = alone(db(1));
    world.state.node_mut(1).unwrap().seen.phase = Phase::Deprovisioning;
    assert_eq!(
        run(&mut world),
        [],
        "it is the only one that has everything"
    );
    set_ready(&mut world, 2, true);
    assert_eq!(run(&mut world), [Revoke(1)]);
    world.answer_sole(1, Err(true));
    assert_eq!(later(&mut world), [Revoke(1)]);
    world.answer_sole(1, Ok(()));
    assert_eq!(run(&mut world), [Forgot]);
    set_ready(&mut world, 2, false);
    assert_eq!(later(&mut world), [], "one that ends gets none");
    set_ready(&mut world, 2, true);
    gone(&mut world, 1);
    assert_eq!(run(&mut world), [Promote(2)]);
}

#[test]
fn nobody_takes_over_from_who_may_have_acknowledged_alone() {
    let mut world = alone(db(1));
    assert_eq!(trouble(&world), None, "it acts");
    set_ready(&mut world, 2, true);
    dies(&mut world, 1);
    let planned = step(&mut world);
    assert_eq!(did(&planned), []);
    assert_eq!(asked(&planned), [Role::Standby]);
    assert_eq!(run(&mut world), []);
    assert_eq!(trouble(&world), Some("SoleWriter"));
    gone(&mut world, 1);
    assert_eq!(run(&mut world), []);
    world.now += 3_600_000;
    assert_eq!(run(&mut world), [], "however long it takes");
    assert_eq!(trouble(&world), Some("SoleWriter"));
    assert_eq!(recorded(&world), Some(1));
    let others = [(2, 1, Role::Standby), (3, 0, Role::Standby)];
    assert_eq!(nodes(&world), others);
}

#[test]
fn a_standby_takes_over_once_the_loss_is_accepted() {
    // Before and after it is proven gone.
    for proven in [false, true] {
        let mut world = alone(db(1));
        set_ready(&mut world, 2, true);
        dies(&mut world, 1);
        run(&mut world);
        if proven {
            gone(&mut world, 1);
            run(&mut world);
        }
        world.accept_loss(2);
        assert_eq!(run(&mut world), [], "of another node");
        world.accept_loss(1);
        assert_eq!(run(&mut world), [Forgot, Promote(2)]);
        assert_eq!(trouble(&world), None);
    }
}

#[test]
fn a_loss_is_accepted_only_when_it_is_one() {
    let mut world = alone(db(1));
    world.accept_loss(1);
    assert_eq!(run(&mut world), [], "it lives, and has everything");
    assert_eq!(recorded(&world), Some(1));
    set_ready(&mut world, 2, true);
    dies(&mut world, 1);
    assert_eq!(run(&mut world), [Forgot, Promote(2)]);
}

#[test]
fn who_has_no_permission_is_followed_by_a_standby() {
    let mut world = ready(db(1));
    dies(&mut world, 1);
    assert_eq!(run(&mut world), [Promote(2)]);
    assert_eq!(trouble(&world), None);

    let mut world = alone(db(1));
    set_ready(&mut world, 2, true);
    assert_eq!(run(&mut world), [Revoke(1)]);
    world.answer_sole(1, Ok(()));
    assert_eq!(run(&mut world), [Forgot]);
    dies(&mut world, 1);
    assert_eq!(run(&mut world), [Promote(2)], "nor when it had one before");
}

#[test]
fn a_permission_that_is_refused_is_not_recorded_and_asked_for_again_later() {
    let mut world = ready(db(1));
    set_ready(&mut world, 2, false);
    assert_eq!(run(&mut world), [Recorded(1), Allow(1)]);
    for attempt in 1..4 {
        world.answer_sole(1, Err(true));
        assert_eq!(run(&mut world), [Forgot], "{attempt}");
        assert_eq!(later(&mut world), [Recorded(1), Allow(1)], "{attempt}");
    }
    world.answer_sole(1, Err(true));
    assert_eq!(run(&mut world), [Forgot]);
    set_ready(&mut world, 2, true);
    dies(&mut world, 1);
    assert_eq!(run(&mut world), [Promote(2)], "it had none");
}

#[test]
fn who_gets_the_storage_of_the_sole_writer_is_active_and_recorded_in_its_place() {
    for enough in [true, false] {
        let mut world = alone(stored(db(1), Policy::default()));
        set_ready(&mut world, 2, enough);
        dies(&mut world, 1);
        assert_eq!(run(&mut world), []);
        assert_eq!(trouble(&world), Some("SoleWriter"));
        gone(&mut world, 1);
        let planned = step(&mut world);
        assert_eq!(asked(&planned), [Role::Active]);
        let mut done = did(&planned);
        done.extend(run(&mut world));
        if enough {
            assert_eq!(done, [Recorded(3), Revoke(3)]);
        } else {
            assert_eq!(done, [Recorded(3), Allow(3)]);
            // It may have the permission with its storage, whatever it says of another one.
            world.answer_sole(3, Err(true));
            assert_eq!(run(&mut world), []);
            assert_eq!(recorded(&world), Some(3));
            set_ready(&mut world, 2, true);
            assert_eq!(later(&mut world), [Revoke(3)]);
        }
        assert_eq!(trouble(&world), None, "it acts");
        world.answer_sole(3, Ok(()));
        assert_eq!(run(&mut world), [Forgot]);
        let now = [(2, 1, Role::Standby), (3, 0, Role::Active)];
        assert_eq!(nodes(&world), now);
    }
}

#[test]
fn who_begins_with_storage_is_recorded_until_it_has_no_permission_for_certain() {
    let keeping = |group| still(vec![stored(group, Policy::default())]);
    let mut world = keeping(db(1));
    assert_eq!(run(&mut world), [Recorded(1), Revoke(1)]);
    world.answer_sole(1, Ok(()));
    assert_eq!(run(&mut world), [Forgot]);

    let mut world = keeping(strict(db(1)));
    assert_eq!(run(&mut world), [], "nobody ever has one");
}

/// Carries out what is planned until nothing more is, but changes permissions only if `permits`. Returns who goes, in
/// order.
fn carry_out(world: &mut World, permits: bool) -> Vec<u64> {
    let mut order = Vec::new();
    for _ in 0..100 {
        let now = world.now;
        for node in &mut world.state.nodes {
            node.seen.gone |= node.removal.is_some();
            let turns = node.in_flight.changes.role_change.as_mut();
            if let Some(change) = turns.filter(|change| change.call.in_flight) {
                (change.call.in_flight, change.done) = (false, true);
            }
            let sole = node.in_flight.changes.sole.as_mut();
            if let Some(change) = sole.filter(|change| permits && change.call.in_flight) {
                change.succeeded(now);
            }
        }
        let planned = step(world);
        for (slot, _) in removals(&planned) {
            assert_ne!(recorded(world), Some(slot), "it has what nobody else has");
            order.push(slot);
        }
        if planned.is_empty() {
            return order;
        }
        world.now += 1;
    }
    unreachable!("it goes round in circles: {order:?}")
}

#[test]
fn an_update_renews_standbys_and_the_active_node_when_it_does_not_go_on_alone_any_more() {
    let mut world = alone(db(1));
    set_ready(&mut world, 2, true);
    assert_eq!(run(&mut world), [Revoke(1)]);
    let new = at_version(db(1), "v2");
    world.want(vec![new.clone()]);
    assert_eq!(carry_out(&mut world, false), [2]);
    let made = world.state.nodes.iter().filter(|node| new.makes(node));
    assert_eq!(made.count(), 2, "it could be relieved");
    assert_eq!(recorded(&world), Some(1));
    world.answer_sole(1, Ok(()));
    assert_eq!(carry_out(&mut world, true), [1]);
    assert!(world.state.nodes.iter().all(|node| new.makes(node)));
    let roles: Vec<Role> = nodes(&world).into_iter().map(|one| one.2).collect();
    assert_eq!(roles, [Role::Active, Role::Standby]);
    assert_eq!(recorded(&world), None);
}

#[test]
fn a_sick_sole_writer_stays_unless_what_it_has_outlives_it() {
    for (group, goes) in [(db(1), false), (stored(db(1), Policy::default()), true)] {
        let remediation = Remediation {
            max_unhealthy: Amount::Percent(100),
            ..Remediation::default()
        };
        let mut world = alone(Group {
            remediation,
            ..group
        });
        set_ready(&mut world, 1, false);
        for _ in 0..10 {
            world.now += 60_000;
            step(&mut world);
        }
        let node = world.state.node(1).unwrap();
        assert_eq!(node.removal.is_some(), goes, "{node:?}");
    }
}

#[test]
fn a_permission_is_given_again_and_a_failure_of_that_takes_nothing_back() {
    let mut world = alone(db(1));
    world.now += 60_000;
    assert_eq!(run(&mut world), [Allow(1)]);
    world.answer_sole(1, Err(true));
    run(&mut world);
    assert_eq!(recorded(&world), Some(1));
    dies(&mut world, 1);
    set_ready(&mut world, 2, true);
    let done = run(&mut world);
    assert!(!done.contains(&Promote(2)), "{done:?}");
}

#[test]
fn a_group_that_is_taken_out_and_put_back_is_recorded_still() {
    let mut world = alone(db(1));
    let groups = std::mem::take(&mut world.groups);
    world.state.paused = true;
    run(&mut world);
    assert_eq!(recorded(&world), Some(1));
    world.groups = groups;
    world.state.paused = false;
    run(&mut world);
    assert_eq!(recorded(&world), Some(1));
}

#[test]
fn a_strict_store_never_goes_on_alone_and_one_that_becomes_strict_ends_it() {
    let mut world = ready(strict(db(1)));
    set_ready(&mut world, 2, false);
    assert_eq!(run(&mut world), []);
    assert_eq!(later(&mut world), []);

    let mut world = alone(db(1));
    world.want(vec![strict(db(1))]);
    assert_eq!(run(&mut world), []);
    assert_eq!(recorded(&world), Some(1), "it still may");
    set_ready(&mut world, 2, true);
    assert_eq!(run(&mut world), [Revoke(1)]);
    world.answer_sole(1, Ok(()));
    assert_eq!(run(&mut world), [Forgot]);
    set_ready(&mut world, 2, false);
    assert_eq!(later(&mut world), []);
}
