//! Maintenance that backends have announced: which nodes are replaced ahead of it, when, and what a person is told.

#![allow(
    clippy::unwrap_used,
    reason = "what must be there fails the test if it is not"
)]

use std::time::Duration;

use drover_core::{
    Millis,
    node::{Maintenance, MaintenanceKind, RemovalReason, Role},
    spec::{Group, Update},
    storage::{Policy, Retention},
};
use drover_planner::{ConditionKey, ConditionKind};

use crate::{
    scenarios::settled,
    standby::{gone, ready, run, step},
    world::{
        World,
        build::{group, on_delete, rolling, stored},
    },
};

const HOUR: Millis = 3_600_000;
const DAY: Millis = 24 * HOUR;

fn announce(world: &mut World, slot: u64, kind: MaintenanceKind, start: Millis) {
    let maintenance = Maintenance {
        kind,
        start,
        end: 0,
        message: "a reboot, or worse".into(),
    };
    let seen = &mut world.state.node_mut(slot).unwrap().seen;
    seen.host.maintenance = Some(Box::new(maintenance));
}

fn said(world: &World) -> Option<(String, String)> {
    let key = ConditionKey {
        group: world.groups[0].path.clone(),
        kind: ConditionKind::MaintenanceScheduled,
    };
    let condition = world.state.conditions.get(&key)?;
    Some((condition.reason.to_string(), condition.message.to_string()))
}

fn shown(reason: &str, message: &str) -> Option<(String, String)> {
    Some((reason.to_owned(), message.to_owned()))
}

/// A group of three that is older than a day.
fn of_age() -> World {
    let mut world = ready(3, 0);
    world.now += DAY;
    run(&mut world);
    world
}

#[test]
fn a_node_that_maintenance_stops_is_replaced_before_by_a_successor_that_is_ready_first() {
    let mut world = of_age();
    let start = world.now + 14 * DAY;
    announce(&mut world, 2, MaintenanceKind::Stop, start);
    let planned = step(&mut world);
    assert_eq!(crate::world::removals(&planned), []);
    let words = "db-1: a reboot, or worse; it is to be replaced before";
    assert_eq!(said(&world), shown("Stop", words));
    let mut removed = Vec::new();
    while removed.is_empty() {
        let serving =
            world.state.nodes.iter().filter(|node| {
                node.state == drover_core::NodeState::Ready && node.removal.is_none()
            });
        assert!(serving.count() >= 3);
        removed = crate::world::removals(&step(&mut world));
        world.now += 1;
    }
    assert_eq!(removed, [(2, RemovalReason::Maintenance)]);
    gone(&mut world, 2);
    run(&mut world);
    assert!(world.state.nodes.iter().all(|node| node.slot != 2));
    assert_eq!(world.state.nodes.len(), 3);
    assert_eq!(said(&world), None);
}

/// What becomes of a node that maintenance stops, in a group that differs by this.
fn kept(differs: impl FnOnce(&mut World)) -> String {
    let mut world = of_age();
    differs(&mut world);
    announce(&mut world, 1, MaintenanceKind::Stop, 0);
    assert_eq!(run(&mut world).0, []);
    world.now += 30 * DAY;
    assert_eq!(run(&mut world).0, []);
    let (_, message) = said(&world).unwrap();
    message.rsplit_once("; ").unwrap().1.to_owned()
}

#[test]
fn what_people_have_kept_for_themselves_to_move_stays() {
    let on_delete = kept(|world| world.groups[0].update = on_delete());
    assert!(on_delete.contains("OnDelete"), "{on_delete}");
    let unhealed = kept(|world| world.groups[0].remediation.enabled = false);
    assert!(unhealed.contains("remediation"), "{unhealed}");
    let paused = kept(|world| world.state.paused = true);
    assert!(paused.contains("paused"), "{paused}");
    let repaired = kept(|world| {
        world.state.repairs.insert(1);
    });
    assert!(repaired.contains("repair"), "{repaired}");
    let bound = kept(|world| world.state.node_mut(1).unwrap().host = "rack-7".into());
    assert!(bound.contains("bound"), "{bound}");
}

/// A group of one, for which maintenance is announced that stops it.
fn only_node(spec: Group) -> World {
    let mut world = World::new(1, &["a", "b"]);
    world.want(vec![spec]);
    world.settle();
    let (platform, id) = world.ids()[0].clone();
    world.announce(&platform, &id, Some(MaintenanceKind::Stop));
    world.run_for(Duration::from_secs(600));
    assert_eq!(world.ids().len(), 1);
    world
}

#[test]
fn the_only_node_of_a_group_is_not_deleted_with_its_data_unless_these_are_handed_on() {
    let mut spec = group("data", 1, &["a"]);
    spec.update = Update::default();
    let stays = "data-0: ; it stays as nothing else has its data, until somebody replaces it";
    assert_eq!(said(&only_node(spec.clone())), shown("Stop", stays));
    let kept = Policy {
        replaced: Retention::Retain,
        ..Policy::default()
    };
    assert_eq!(
        said(&only_node(stored(spec, kept))),
        None,
        "another one has its place"
    );
}

#[test]
fn what_a_node_survives_or_what_nobody_understands_is_shown_and_not_acted_on() {
    let mut world = of_age();
    let tomorrow = world.now + DAY;
    announce(&mut world, 1, MaintenanceKind::Restart, tomorrow);
    assert_eq!(run(&mut world).0, []);
    let restart = "db-0: a reboot, or worse; it stays, or comes back by itself";
    assert_eq!(said(&world), shown("Restart", restart));
    announce(&mut world, 3, MaintenanceKind::Unknown, 0);
    assert_eq!(run(&mut world).0, []);
    let both = format!("{restart}. db-2: a reboot, or worse; nothing is done ahead of it");
    assert_eq!(said(&world), shown("Restart", &both));
    for slot in [1, 3] {
        world.state.node_mut(slot).unwrap().seen.host.maintenance = None;
    }
    run(&mut world);
    assert_eq!(said(&world), None);
}

#[test]
fn where_every_machine_has_a_date_a_young_node_stays_until_a_day_before_its_own() {
    let mut world = ready(3, 0);
    let start = world.now + DAY + 3 * HOUR;
    announce(&mut world, 2, MaintenanceKind::Stop, start);
    assert_eq!(run(&mut world).0, []);
    let planned = world.plan();
    assert!(planned.wake.is_some_and(|wake| wake <= start - DAY));
    world.now = start - DAY - 1;
    assert_eq!(run(&mut world).0, []);
    world.now = start - DAY;
    assert_eq!(run(&mut world).0, [(2, RemovalReason::Maintenance)]);
}

#[test]
fn one_that_was_made_when_the_date_was_near_is_not_made_again_and_again() {
    let mut world = ready(3, 0);
    let born = world.state.node(2).unwrap().create_time;
    for start in [1, born, born + HOUR, born + DAY] {
        announce(&mut world, 2, MaintenanceKind::Stop, start);
        assert_eq!(run(&mut world).0, [], "{start}");
    }
    world.now = born + DAY;
    assert_eq!(run(&mut world).0, [(2, RemovalReason::Maintenance)]);
}

#[test]
fn one_without_a_date_is_replaced_once_it_is_a_day_old() {
    let mut world = ready(3, 0);
    let born = world.state.node(2).unwrap().create_time;
    announce(&mut world, 2, MaintenanceKind::Stop, 0);
    world.now = born + DAY - 1_000;
    assert_eq!(run(&mut world).0, []);
    world.now = born + DAY;
    assert_eq!(run(&mut world).0, [(2, RemovalReason::Maintenance)]);
}

#[test]
fn several_go_within_the_budget_of_the_group() {
    let mut world = of_age();
    world.groups[0].update = rolling(0, 1);
    for slot in 1..=3 {
        announce(&mut world, slot, MaintenanceKind::Stop, 0);
    }
    for _ in 0..3 {
        let removed = run(&mut world).0;
        let [(slot, RemovalReason::Maintenance)] = removed[..] else {
            unreachable!("one at a time, not {removed:?}")
        };
        gone(&mut world, slot);
    }
    assert_eq!(run(&mut world).0, []);
}

#[test]
fn an_active_node_hands_over_before_it_goes() {
    let mut world = ready(1, 1);
    world.now += DAY;
    run(&mut world);
    announce(&mut world, 1, MaintenanceKind::Stop, 0);
    assert_eq!(run(&mut world).0, [(1, RemovalReason::Maintenance)]);
    gone(&mut world, 1);
    assert_eq!(run(&mut world), (vec![], vec![(2, Role::Promoting)]));
    let active = world.state.nodes.iter().filter(|node| node.role.may_act());
    assert_eq!(active.count(), 1);
}

#[test]
fn a_start_that_has_seen_nothing_yet_takes_nothing_back() {
    let mut world = settled(3);
    let (platform, id) = world.ids()[0].clone();
    world.announce(&platform, &id, Some(MaintenanceKind::Restart));
    world.run_for(Duration::from_secs(60));
    let before = said(&world);
    assert!(before.is_some());
    world.restart();
    assert!(world.plan().ops.is_empty(), "{:?}", world.plan().ops);
    world.settle();
    assert_eq!(said(&world), before);
    world.announce(&platform, &id, None);
    world.run_for(Duration::from_secs(60));
    assert_eq!(said(&world), None);
}
