//! Hosts on which nobody answers, and breakers: what a standby may take over from, and what a person is told.

#![allow(
    clippy::unwrap_used,
    reason = "what must be there fails the test if it is not"
)]

use crate::{
    standby::{asked, gone, ready, run, step},
    world::{
        World,
        build::{at_version, fencing, on_delete, stored},
        removals,
    },
};

use drover_core::{
    Phase,
    node::{LostHost, ProbeResult, RemovalReason, Role},
    spec::{Amount, Health, Probe},
    storage::{Policy, Retention},
};
use drover_planner::{Call, Condition, ConditionKey, ConditionKind};

const SINCE: &str = "Ready is Unknown since 2026-01-01T00:00:00Z";
const WAY_OUT: &str = "when the machine is off, `kubectl delete node worker-1`";

fn host(name: &str) -> LostHost {
    LostHost {
        name: name.into(),
        gone: false,
        message: SINCE.into(),
        way_out: WAY_OUT.into(),
    }
}

/// A node whose host is lost: it is not ready any more, and nobody there answers.
fn loses_host(world: &mut World, slot: u64, host: LostHost) {
    let seen = &mut world.state.node_mut(slot).unwrap().seen;
    seen.ready = Some(false);
    seen.host.lost = Some(Box::new(host));
}

/// A node that is not ready for so long that it is sick.
fn sick(world: &mut World, slots: &[u64]) {
    for slot in slots {
        world.state.node_mut(*slot).unwrap().seen.ready = Some(false);
    }
    run(world);
    world.now += 60_000;
}

fn holds(world: &World, kind: ConditionKind) -> Option<Condition> {
    let key = ConditionKey {
        group: "db".into(),
        kind,
    };
    world.state.conditions.get(&key).cloned()
}

fn lost(world: &World) -> Option<(String, String)> {
    let condition = holds(world, ConditionKind::HostLost)?;
    Some((condition.reason.to_string(), condition.message.to_string()))
}

#[test]
fn an_active_node_on_a_silent_host_is_named_with_the_commands_until_it_is_proven_dead() {
    let mut world = ready(1, 1);
    loses_host(&mut world, 1, host("worker-1"));
    run(&mut world);
    assert_eq!(lost(&world), None, "it may come back before it is sick");
    world.now += 60_000;
    let (removed, turned) = run(&mut world);
    assert_eq!((removed, turned), (vec![(1, RemovalReason::Sick)], vec![]));
    let said = format!(
        "db-0 is on worker-1, which does not answer ({SINCE}), and may still run: until it is proven dead no standby takes over and nothing is made instead; {WAY_OUT}"
    );
    let expected = Some(("Unreachable".to_owned(), said));
    assert_eq!(lost(&world), expected);
    // Its removal was accepted, and nobody carries it out.
    world.state.node_mut(1).unwrap().seen.phase = Phase::Deprovisioning;
    world.now += 3_600_000;
    assert_eq!(run(&mut world).1, []);
    assert_eq!(lost(&world), expected);
    // The backend says that it has ended.
    world.state.node_mut(1).unwrap().seen.phase = Phase::Failed;
    assert_eq!(run(&mut world).1, [(2, Role::Promoting)]);
    assert_eq!(lost(&world), None);
}

/// As `ready`, of a group whose promotions keep the former active node out.
fn ready_and_fencing(standby: u32) -> World {
    let mut world = ready(1, standby);
    world.groups = world.groups.drain(..).map(fencing).collect();
    world
}

fn hand_on_storage(world: &mut World) {
    let kept = Policy {
        replaced: Retention::Retain,
        ..Policy::default()
    };
    world.groups = world.groups.drain(..).map(|it| stored(it, kept)).collect();
}

/// Ordinals and roles of those that stay.
fn staying(world: &World) -> Vec<(u32, Role)> {
    let nodes = world.state.nodes.iter();
    let nodes = nodes.filter(|node| node.removal.is_none());
    nodes.map(|node| (node.ordinal, node.role)).collect()
}

#[test]
fn where_promotions_fence_a_silent_host_is_not_waited_for() {
    let mut world = ready_and_fencing(2);
    loses_host(&mut world, 1, host("worker-1"));
    sick(&mut world, &[]);
    let (removed, turned) = run(&mut world);
    assert_eq!(removed, [(1, RemovalReason::Sick)]);
    assert_eq!(turned[0], (2, Role::Promoting));
    let (_, message) = lost(&world).unwrap();
    let said = "until it is proven dead it is kept out, and others take its place";
    assert!(message.contains(said), "{message}");
    // Its storage may be in use: another ordinal, which begins as a standby.
    let three = [(1, Role::Promoting), (2, Role::Standby), (3, Role::Standby)];
    assert_eq!(staying(&world), three);
    world.now += 3_600_000;
    run(&mut world);
    assert_eq!(staying(&world), three, "one is made in its place, once");
    // The machine comes back, and what was there is ended.
    gone(&mut world, 1);
    assert_eq!(run(&mut world).0, []);
    assert_eq!(staying(&world), three);
    assert_eq!(lost(&world), None);
}

#[test]
fn where_promotions_fence_one_that_hangs_is_replaced_by_a_standby_before_it_has_ended() {
    let mut world = ready_and_fencing(1);
    sick(&mut world, &[1]);
    let (removed, turned) = run(&mut world);
    assert_eq!(removed, [(1, RemovalReason::Sick)]);
    assert_eq!(turned[0], (2, Role::Promoting));
    // It has an end that will be known, and its place is free then.
    assert_eq!(staying(&world), [(1, Role::Promoting)]);
    gone(&mut world, 1);
    run(&mut world);
    assert_eq!(staying(&world), [(1, Role::Promoting), (0, Role::Standby)]);
}

/// The active node is ended by somebody else, as by an eviction.
fn evicted(world: &mut World) {
    world.state.node_mut(1).unwrap().seen.phase = Phase::Deprovisioning;
}

#[test]
fn where_promotions_fence_one_that_somebody_else_ends_is_replaced_by_a_standby_at_once() {
    let mut world = ready_and_fencing(1);
    evicted(&mut world);
    let planned = step(&mut world);
    assert_eq!(removals(&planned), [(1, RemovalReason::Sick)]);
    assert!(planned.calls.contains(&Call::RoleChange { slot: 2 }));
    assert_eq!(staying(&world), [(1, Role::Promoting)]);
    gone(&mut world, 1);
    run(&mut world);
    assert_eq!(staying(&world), [(1, Role::Promoting), (0, Role::Standby)]);
}

/// An active node that fails its probes, and a standby that has failed this number of them.
fn fails_probes(mut world: World, of_standby: u8) -> World {
    world.groups[0].health = Some(Box::new(Health {
        probe: Probe::Tcp { port: None },
        ..Health::default()
    }));
    let answered = |bad: u8| ProbeResult {
        good: u8::from(bad == 0),
        bad,
        answered: true,
        ..ProbeResult::default()
    };
    for slot in [1, 2] {
        world.state.node_mut(slot).unwrap().probe = answered(0);
    }
    run(&mut world);
    world.state.node_mut(1).unwrap().probe = answered(3);
    world.state.node_mut(2).unwrap().probe = answered(of_standby);
    world
}

#[test]
fn where_promotions_fence_a_standby_that_answers_its_probe_takes_over_from_one_that_does_not_at_once()
 {
    let mut world = fails_probes(ready_and_fencing(1), 0);
    let planned = step(&mut world);
    assert_eq!(removals(&planned), [(1, RemovalReason::Sick)]);
    assert!(planned.calls.contains(&Call::RoleChange { slot: 2 }));
}

#[test]
fn elsewhere_one_that_fails_its_probes_stays_until_others_were_probed_as_well() {
    let do_not_fence = fails_probes(ready(1, 1), 0);
    let both_fail = fails_probes(ready_and_fencing(1), 1);
    for mut world in [do_not_fence, both_fail] {
        assert_eq!(run(&mut world), (vec![], vec![]));
        world.now += 3_600_000;
        assert_eq!(run(&mut world).0, [(1, RemovalReason::Sick)]);
    }
}

#[test]
fn one_that_somebody_else_ends_is_left_to_end_where_no_standby_keeps_it_out() {
    let mut world = ready(1, 1);
    evicted(&mut world);
    assert_eq!(run(&mut world), (vec![], vec![]), "promotions do not fence");
    gone(&mut world, 1);
    assert_eq!(run(&mut world).1, [(2, Role::Promoting)]);

    let mut world = ready_and_fencing(1);
    world.state.node_mut(2).unwrap().seen.ready = Some(false);
    evicted(&mut world);
    assert_eq!(run(&mut world), (vec![], vec![]), "no standby is ready");
    world.state.node_mut(2).unwrap().seen.ready = Some(true);
    assert_eq!(run(&mut world).1, [(2, Role::Promoting)]);

    let mut world = ready_and_fencing(1);
    world.groups[0].remediation.enabled = false;
    evicted(&mut world);
    assert_eq!(run(&mut world), (vec![], vec![]), "nobody is replaced");
}

#[test]
fn where_nobody_else_has_the_data_nothing_takes_the_place_of_those_that_may_live() {
    let mut world = ready_and_fencing(1);
    world.groups[0].remediation.max_unhealthy = Amount::Percent(100);
    for slot in [1, 2] {
        loses_host(&mut world, slot, host("worker-1"));
    }
    sick(&mut world, &[]);
    let mut began = Vec::new();
    for _ in 0..10 {
        began.extend(asked(&step(&mut world)));
        world.now += 1;
    }
    assert_eq!(began, []);
    assert_eq!(staying(&world), []);
}

#[test]
fn a_standby_of_before_the_hook_fenced_waits_for_the_proof() {
    let mut world = ready_and_fencing(1);
    loses_host(&mut world, 1, host("worker-1"));
    hand_on_storage(&mut world);
    // The spec is another one by now, and no node is renewed.
    world.groups[0].update = on_delete();
    world.groups = world
        .groups
        .drain(..)
        .map(|it| at_version(it, "2"))
        .collect();
    sick(&mut world, &[]);
    assert_eq!(run(&mut world).1, []);
    world.now += 3_600_000;
    assert_eq!(run(&mut world).1, []);
    gone(&mut world, 1);
    assert_eq!(run(&mut world).1, [(2, Role::Promoting)]);
}

#[test]
fn where_storage_is_handed_on_a_standby_takes_over_and_the_place_stays_free() {
    let mut world = ready_and_fencing(2);
    hand_on_storage(&mut world);
    loses_host(&mut world, 1, host("worker-1"));
    sick(&mut world, &[]);
    let turned = run(&mut world).1;
    assert_eq!(turned[0], (2, Role::Promoting));
    world.now += 3_600_000;
    run(&mut world);
    assert_eq!(staying(&world), [(1, Role::Promoting), (2, Role::Standby)]);
    let (_, message) = lost(&world).unwrap();
    let said = "until it is proven dead a standby takes over, and nothing is made instead";
    assert!(message.contains(said), "{message}");
}

#[test]
fn one_that_is_updated_acts_until_its_platform_ends_it_where_promotions_fence() {
    let mut world = ready_and_fencing(1);
    world.groups = world
        .groups
        .drain(..)
        .map(|it| at_version(it, "2"))
        .collect();
    for _ in 0..20 {
        let (removed, turned) = run(&mut world);
        if removed.iter().any(|(slot, _)| *slot == 1) {
            assert_eq!(turned, [], "its removal has only been asked for");
            evicted(&mut world);
            assert_eq!(run(&mut world).1.len(), 1);
            return;
        }
        world.now += 60_000;
        for slot in removed.iter().map(|(slot, _)| *slot) {
            gone(&mut world, slot);
        }
    }
    unreachable!("the active node is never updated");
}

#[test]
fn a_host_that_was_given_up_is_waited_for_in_other_words() {
    let mut world = ready(1, 1);
    let given_up = LostHost {
        gone: true,
        message: "its Node object is gone".into(),
        way_out: "".into(),
        ..host("worker-1")
    };
    loses_host(&mut world, 1, given_up);
    sick(&mut world, &[]);
    run(&mut world);
    let (reason, message) = lost(&world).unwrap();
    assert_eq!(reason, "Gone");
    let said = "db-0 is on worker-1, which is given up (its Node object is gone), and may";
    assert!(message.starts_with(said), "{message}");
    // That alone proves nothing.
    assert_eq!(run(&mut world).1, []);
    gone(&mut world, 1);
    assert_eq!(run(&mut world).1, [(2, Role::Promoting)]);
    assert_eq!(lost(&world), None);
}

#[test]
fn the_nodes_of_a_host_are_named_together_and_without_a_standby_none_is_spoken_of() {
    let mut world = ready(10, 0);
    for slot in [1, 2] {
        loses_host(&mut world, slot, host("worker-1"));
    }
    loses_host(&mut world, 3, host("worker-2"));
    sick(&mut world, &[]);
    run(&mut world);
    let (_, message) = lost(&world).unwrap();
    for said in [
        "db-0, db-1 are on worker-1, which does not answer",
        "db-2 is on worker-2, which does not answer",
        "until they are proven dead nothing is made instead",
    ] {
        assert!(message.contains(said), "{message}");
    }
    assert!(!message.contains("standby"), "{message}");
}

#[test]
fn a_node_that_still_serves_on_a_silent_host_is_left_alone() {
    let mut world = ready(1, 1);
    loses_host(&mut world, 1, host("worker-1"));
    world.state.node_mut(1).unwrap().seen.ready = Some(true);
    world.now += 3_600_000;
    assert_eq!(run(&mut world), (vec![], vec![]));
    assert_eq!(lost(&world), None);
}

#[test]
fn a_cluster_that_is_deleted_says_what_its_last_nodes_wait_for() {
    let mut world = ready(1, 1);
    loses_host(&mut world, 1, host("worker-1"));
    world.delete();
    let blocked = |world: &World| {
        let key = ConditionKey {
            group: "".into(),
            kind: ConditionKind::DeletionBlocked,
        };
        let condition = world.state.conditions.get(&key)?;
        Some((condition.reason.to_string(), condition.message.to_string()))
    };
    run(&mut world);
    let said = format!(
        "db-0 is on worker-1, which does not answer ({SINCE}), and may still run: until it is proven dead the deletion waits; {WAY_OUT}"
    );
    assert_eq!(blocked(&world), Some(("HostLost".to_owned(), said)));
    gone(&mut world, 1);
    run(&mut world);
    assert_eq!(blocked(&world), None);
}

#[test]
fn a_sick_active_node_is_handed_over_while_the_breaker_of_its_group_holds_the_others() {
    let mut world = ready(1, 5);
    sick(&mut world, &[1, 2, 3, 4]);
    let (removed, turned) = run(&mut world);
    assert!(holds(&world, ConditionKind::RemediationBlocked).is_some());
    assert_eq!(removed, [(1, RemovalReason::Sick)]);
    assert_eq!(turned, [], "it may still be active");
    gone(&mut world, 1);
    let (removed, turned) = run(&mut world);
    assert_eq!(turned, [(5, Role::Promoting)]);
    assert_eq!(removed, [], "the sick standbys stay");
}

#[test]
fn a_sick_active_node_is_handed_over_while_the_breaker_of_its_platform_is_open() {
    let mut world = ready(1, 9);
    world.views.get_mut("a").unwrap().sick = 1_000;
    sick(&mut world, &[1, 2]);
    let (removed, _) = run(&mut world);
    assert!(holds(&world, ConditionKind::RemediationBlocked).is_some());
    assert_eq!(removed, [(1, RemovalReason::Sick)]);
    gone(&mut world, 1);
    let (_, turned) = run(&mut world);
    assert_eq!(turned, [(3, Role::Promoting)]);
}

#[test]
fn a_breaker_lets_no_more_go_than_standbys_are_ready() {
    let mut world = ready(3, 1);
    sick(&mut world, &[1, 2, 3]);
    let (removed, _) = run(&mut world);
    assert_eq!(removed.len(), 1, "{removed:?}");
    world.now += 3_600_000;
    let (removed, turned) = run(&mut world);
    assert_eq!((removed, turned), (vec![], vec![]), "its heir is taken");

    // Without one that is ready the breaker holds everybody.
    let mut world = ready(1, 1);
    sick(&mut world, &[1, 2]);
    assert_eq!(run(&mut world), (vec![], vec![]));
    assert!(holds(&world, ConditionKind::RemediationBlocked).is_some());
}
