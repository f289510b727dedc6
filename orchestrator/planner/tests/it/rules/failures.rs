//! Consequences of failures, sickness and death.

use drover_core::{
    Error, Millis, NodeState, Phase,
    error::Reason,
    node::{Outcome, RemovalReason},
    spec::{Amount, Health, Port, Probe},
};
use drover_planner::{BackOff, BackOffKey, BackOffKind, CHANGED_SECRET};
use uuid::Uuid;

use crate::rules::{
    node, only_request, ready, requests, step_up, still, waits_for,
    world::{
        World,
        build::{choice, group, sym},
        removals,
    },
};

#[test]
fn the_first_failure_is_retried_at_once_then_later_and_later() {
    let mut spec = group("data", 1, &["a"]);
    spec.remediation.max_retries = 5;
    let mut world = still(vec![spec]);
    let mut waits: Vec<Millis> = Vec::new();
    for _ in 0..6 {
        let id = only_request_after_wait(&mut world, &mut waits);
        let broken = Outcome::Failed(Error::internal("broken"));
        world.answer(id, Ok(vec![broken]));
    }
    assert_eq!(waits, [0, 0, 2_000, 4_000, 8_000, 600_000]);
}

#[test]
fn what_was_asked_for_with_an_old_content_of_a_secret_is_asked_for_anew_at_once() {
    let mut world = still(vec![group("data", 1, &["a"])]);
    let mut waits: Vec<Millis> = Vec::new();
    for _ in 0..2 {
        let id = only_request_after_wait(&mut world, &mut waits);
        let changed = Error::new(Reason::DigestNotStored, "secret door was changed");
        world.answer(id, Err(changed.with_metadata(CHANGED_SECRET, "door")));
    }
    assert_eq!(waits, [0, 0]);
    let id = only_request_after_wait(&mut world, &mut waits);
    let missing = Error::new(Reason::DigestNotStored, "no such user data");
    world.answer(id, Err(missing));
    only_request_after_wait(&mut world, &mut waits);
    assert_eq!(waits.last(), Some(&600_000), "that is as it was");
}

fn only_request_after_wait(world: &mut World, waits: &mut Vec<Millis>) -> Uuid {
    let begun = world.now;
    loop {
        let planned = world.step();
        if !requests(&planned).is_empty() {
            waits.push(world.now - begun);
            return only_request(world);
        }
        let next = planned.wake.unwrap();
        if next == world.now + 1 {
            // Only because something was written: no time passes for that.
            let planned = world.step();
            assert!(waits_for(&planned, "BackOff"));
            world.now = planned.wake.unwrap();
        } else {
            world.now = next;
        }
    }
}

#[test]
fn what_dies_together_counts_once() {
    let mut world = ready(6);
    for slot in 1..=6 {
        node(&mut world, slot).seen.phase = Phase::Failed;
        world.now += 10;
        world.step();
    }
    let failures: Vec<u32> = world.state.backoffs.values().map(|b| b.failures).collect();
    assert_eq!(failures, [1]);
}

#[test]
fn sick_nodes_stay_when_remediation_is_switched_off_and_dead_ones_do_not() {
    let mut world = ready(4);
    let mut spec = group("data", 4, &["a"]);
    spec.remediation.enabled = false;
    world.want(vec![spec]);
    node(&mut world, 1).seen.ready = Some(false);
    node(&mut world, 2).seen.phase = Phase::Failed;
    world.step();
    world.now += 3_600_000;
    let planned = world.step();
    assert!(waits_for(&planned, "RemediationBlocked"));
    let going = world.state.nodes.iter().filter(|n| n.removal.is_some());
    assert_eq!(going.map(|n| n.slot).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_short_loss_of_readiness_replaces_nothing() {
    let mut world = ready(3);
    node(&mut world, 1).seen.ready = Some(false);
    world.step();
    world.now += 29_999;
    assert!(removals(&world.step()).is_empty());
    world.now += 1;
    assert_eq!(removals(&world.step()), [(1, RemovalReason::Sick)]);
}

#[test]
fn a_suggested_probe_judges_only_nodes_that_show_where_to_probe_them() {
    let mut world = ready(1);
    let port = Some(Port::Name("client".to_owned()));
    world.health_defaults = vec![Some(Health {
        probe: Probe::Tcp { port },
        ..Health::default()
    })];
    node(&mut world, 1).probe.bad = u8::MAX;
    for _ in 0..3 {
        assert!(removals(&world.step()).is_empty());
        world.now += 3_600_000;
    }
    for phase in [Phase::Stopped, Phase::Running] {
        node(&mut world, 1).seen.phase = phase;
        assert!(removals(&world.step()).is_empty());
    }
    assert_eq!(node(&mut world, 1).state, NodeState::Ready);
    node(&mut world, 1).seen.endpoints = Box::new([(sym("client"), "10.0.0.1:6379".into())]);
    world.step();
    world.now += 3_600_000;
    assert_eq!(removals(&world.step()), [(1, RemovalReason::Sick)]);
}

#[test]
fn what_an_earlier_process_found_sick_is_looked_at_anew() {
    let mut world = ready(3);
    node(&mut world, 1).seen.ready = Some(false);
    world.step();
    world.durable = world.state.clone();
    world.now += 3_600_000;
    world.restart();
    for view in world.views.values_mut() {
        (view.visible, view.callable, view.visible_since) = (true, true, world.now);
    }
    let now = world.now;
    for node in &mut world.state.nodes {
        (node.seen.phase, node.seen.last) = (Phase::Running, now);
    }
    node(&mut world, 1).seen.ready = Some(false);
    assert!(removals(&world.step()).is_empty());
    world.now += 30_000;
    assert_eq!(removals(&world.step()).len(), 1);
}

#[test]
fn who_is_dead_stays_dead() {
    let mut world = ready(1);
    let mut spec = group("data", 1, &["a"]);
    spec.remediation.max_unhealthy = Amount::Count(1);
    world.want(vec![spec]);
    node(&mut world, 1).seen.phase = Phase::Failed;
    world.state.paused = true;
    world.step();
    node(&mut world, 1).seen.phase = Phase::Running;
    world.state.paused = false;
    let planned = world.step();
    assert_eq!(removals(&planned), [(1, RemovalReason::Dead)]);
    assert_eq!(requests(&planned), [("a", 1)]);
}

#[test]
fn a_rejection_ends_as_soon_as_the_platform_accepts() {
    let mut world = still(vec![group("data", 1, &["a"])]);
    world.step();
    let id = only_request(&world);
    world.answer(id, Err(Error::new(Reason::Invalid, "no")));
    let planned = world.step();
    assert!(waits_for(&planned, "BackOff"), "{planned:?}");
    let kinds: Vec<_> = world.state.backoffs.values().map(|b| b.kind).collect();
    assert_eq!(kinds, [BackOffKind::Rejected]);
    world.views.get_mut("a").unwrap().etag = "2".into();
    assert_eq!(requests(&step_up(&mut world)).len(), 1, "it has changed");
    world.step();
    assert!(world.state.backoffs.is_empty());
}

#[test]
fn back_offs_of_what_is_wanted_no_more_do_not_pile_up() {
    let mut world = ready(1);
    for version in ["v2", "v3", "v4"] {
        node(&mut world, 1).origin_mut().spec_hash = sym(version);
        let key = BackOffKey::of(&sym("data"), &sym(version), &sym("a"));
        let old = BackOff {
            kind: BackOffKind::Failure,
            failures: 2,
            last: world.now,
            next: world.now,
            etag: sym("1"),
            template: sym(""),
            message: "died".into(),
        };
        world.state.backoffs.insert(key, old);
    }
    let mut next = group("data", 1, &["a"]);
    next.choices = vec![choice("a", "v4")];
    node(&mut world, 1).origin_mut().spec_hash = next.choices[0].spec_hash.clone();
    world.want(vec![next]);
    world.step();
    assert!(
        world.state.backoffs.is_empty(),
        "{:?}",
        world.state.backoffs
    );
}
