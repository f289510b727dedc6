//! Ordering of the nodes of a group and of groups, and the hooks that run inside nodes before their removal.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what must be there fails the test if it is not"
)]

use crate::world;

use std::{collections::BTreeSet, time::Duration};

use drover_core::{
    Millis, Node, NodeState, Phase,
    node::RemovalReason,
    spec::{Group, Management},
};
use drover_planner::{ConditionKind, Op, Plan};
use world::{
    Crash, World,
    backend::Faults,
    build::{at_version, group, pre_stop, rolling},
};

fn ordered(path: &str, size: u32) -> Group {
    let mut group = group(path, size, &["a"]);
    group.management = Some(Management::OrderedReady);
    group
}

fn world(groups: Vec<Group>) -> World {
    let mut world = World::new(1, &["a", "b"]);
    world.run_for(Duration::from_secs(10));
    world.want(groups);
    world
}

/// Groups in their desired state, and old enough that none of their nodes counts as new.
fn ready(groups: Vec<Group>) -> World {
    let mut world = world(groups);
    world.settle();
    world.now += 3_600_000;
    world
}

/// Runs until nothing is left to happen, and inspects the world after every pass.
fn watch(world: &mut World, mut look: impl FnMut(&World)) {
    for _ in 0..20_000 {
        if world.finished || world.is_quiet() {
            return;
        }
        world.run_one();
        look(world);
    }
    panic!("never quiet: {:?}", world.plan());
}

fn of<'a>(world: &'a World, path: &'a str) -> impl Iterator<Item = &'a Node> {
    world.state.nodes.iter().filter(move |n| *n.group == *path)
}

fn ordinals(world: &World, path: &str) -> BTreeSet<u32> {
    of(world, path).map(|node| node.ordinal).collect()
}

fn requested(planned: &Plan) -> Vec<(String, u32)> {
    let ops = planned.ops.iter().filter_map(|op| match op {
        Op::Request { nodes, .. } => Some(nodes),
        _ => None,
    });
    let nodes = ops.flatten();
    nodes.map(|n| (n.group.to_string(), n.ordinal)).collect()
}

fn says(planned: &Plan, reason: &str, words: &str) {
    let mut report = planned.report.iter();
    let found = report.any(|note| note.reason == reason && note.message.contains(words));
    assert!(found, "{reason} {words}: {:?}", planned.report);
}

/// Changes the node of an ordinal, in the record and in the store.
fn change(world: &mut World, path: &str, ordinal: u32, what: impl Fn(&mut Node)) {
    for state in [&mut world.state, &mut world.durable] {
        let mut nodes = state.nodes.iter_mut();
        let own = nodes.find(|n| *n.group == *path && n.ordinal == ordinal);
        what(own.unwrap());
    }
}

fn kill(world: &mut World, path: &str, ordinal: u32) {
    let node = of(world, path).find(|n| n.ordinal == ordinal).unwrap();
    let (platform, id) = (node.platform.clone(), node.node_id.clone().unwrap());
    world.kill(&platform, &id);
}

fn sicken(world: &mut World, path: &str, ordinal: u32) {
    let node = of(world, path).find(|n| n.ordinal == ordinal).unwrap();
    let (platform, id) = (node.platform.clone(), node.node_id.clone().unwrap());
    world.set_ready(&platform, &id, false);
    world.run_for(Duration::from_secs(1));
}

#[test]
fn ordered_nodes_come_one_by_one_and_go_the_other_way() {
    let mut world = world(vec![ordered("data", 4)]);
    let mut came = Vec::new();
    watch(&mut world, |world| {
        let not_ready = of(world, "data").filter(|n| n.state != NodeState::Ready);
        assert!(not_ready.count() <= 1, "{:?}", world.state.nodes);
        for node in of(world, "data") {
            if !came.contains(&node.ordinal) {
                came.push(node.ordinal);
            }
        }
    });
    assert_eq!(came, [0, 1, 2, 3]);
    world.want(vec![ordered("data", 1)]);
    let mut left = vec![ordinals(&world, "data")];
    watch(&mut world, |world| {
        let going = of(world, "data").filter(|n| n.removal.is_some());
        assert!(going.count() <= 1, "{:?}", world.state.nodes);
        let now = ordinals(world, "data");
        if left.last() != Some(&now) {
            left.push(now);
        }
    });
    let sizes: Vec<usize> = left.iter().map(BTreeSet::len).collect();
    assert_eq!((sizes, left[3].clone()), (vec![4, 3, 2, 1], [0].into()));
}

#[test]
fn a_parallel_group_does_not_wait() {
    let world = world(vec![group("data", 4, &["a"])]);
    assert_eq!(requested(&world.plan()).len(), 4);
}

#[test]
fn the_next_one_waits_until_all_below_are_ready_and_says_so() {
    let mut world = world(vec![ordered("data", 2)]);
    world.pass();
    let planned = world.plan();
    assert!(requested(&planned).is_empty());
    says(&planned, "Ordered", "number 1 waits until data-0 is Ready");
}

#[test]
fn a_plan_says_how_many_come_after_the_first() {
    let world = world(vec![ordered("data", 3)]);
    let planned = world.plan();
    assert_eq!(requested(&planned).len(), 1);
    says(&planned, "Ordered", "2 more after it, one at a time");
}

#[test]
fn the_dead_are_replaced_by_ordinal_and_free_ordinals_are_used_again() {
    let mut world = ready(vec![ordered("data", 3)]);
    kill(&mut world, "data", 2);
    kill(&mut world, "data", 0);
    let mut came = Vec::new();
    let before: BTreeSet<u64> = of(&world, "data").map(|node| node.slot).collect();
    watch(&mut world, |world| {
        for node in of(world, "data").filter(|n| !before.contains(&n.slot)) {
            if !came.contains(&node.ordinal) {
                came.push(node.ordinal);
                let mut others = of(world, "data").filter(|n| n.slot != node.slot && !n.is_dead());
                assert!(others.all(|n| n.state == NodeState::Ready));
            }
        }
    });
    assert_eq!(
        (came, ordinals(&world, "data")),
        (vec![0, 2], [0, 1, 2].into())
    );
}

#[test]
fn a_sick_low_ordinal_holds_up_what_is_new_and_not_what_heals() {
    let mut spec = ordered("data", 3);
    spec.remediation.enabled = false;
    let mut world = ready(vec![spec.clone()]);
    sicken(&mut world, "data", 0);
    kill(&mut world, "data", 2);
    let mut healed = false;
    world.run_for(Duration::from_secs(600));
    healed |= of(&world, "data").any(|n| n.ordinal == 2 && n.state == NodeState::Ready);
    assert!(healed, "{:?}", world.state.nodes);
    assert!(of(&world, "data").any(|n| n.state == NodeState::Unhealthy));
    spec.size = Some(4);
    world.want(vec![spec]);
    world.run_for(Duration::from_secs(600));
    assert_eq!(ordinals(&world, "data").len(), 3);
    says(
        &world.plan(),
        "Ordered",
        "number 3 waits until data-0 is Ready",
    );
}

#[test]
fn sick_nodes_are_replaced_one_at_a_time() {
    let mut spec = ordered("data", 3);
    spec.remediation.max_unhealthy = drover_core::spec::Amount::Count(3);
    let mut world = ready(vec![spec]);
    for ordinal in [2, 0] {
        sicken(&mut world, "data", ordinal);
    }
    watch(&mut world, |world| {
        let going = of(world, "data").filter(|n| n.removal.is_some() && !n.is_dead());
        assert!(going.count() <= 1, "{:?}", world.state.nodes);
    });
    world.assert_converged();
}

#[test]
fn an_update_goes_from_the_highest_ordinal_down_and_keeps_the_ordinals() {
    for (surge, unavailable) in [(0, 1), (1, 0), (2, 2)] {
        let mut spec = ordered("data", 3);
        spec.update = rolling(surge, unavailable);
        let mut world = ready(vec![spec.clone()]);
        world.want(vec![at_version(spec, "v2")]);
        let mut gone = Vec::new();
        watch(&mut world, |world| {
            let going: Vec<&Node> = of(world, "data").filter(|n| n.removal.is_some()).collect();
            assert!(going.len() <= 1, "{going:?}");
            for node in going.iter().filter(|n| n.spec_hash.starts_with("v1")) {
                if gone.last() != Some(&node.ordinal) {
                    gone.push(node.ordinal);
                }
            }
        });
        assert_eq!(gone, [2, 1, 0], "surge {surge}");
        assert_eq!(ordinals(&world, "data"), [0, 1, 2].into(), "surge {surge}");
        world.assert_converged();
    }
}

fn two(version: &str) -> Vec<Group> {
    let mut app = group("app", 2, &["b"]);
    app.depends_on = vec!["db".into()];
    app.update = rolling(1, 0);
    let mut db = group("db", 2, &["a"]);
    db.update = rolling(1, 0);
    // The dependent group is listed first: the dependency decides, not the position in the file.
    [app, db].map(|group| at_version(group, version)).into()
}

#[test]
fn a_group_is_made_and_updated_after_those_that_it_depends_on_and_goes_before_them() {
    let mut world = world(two("v1"));
    says(&world.plan(), "DependsOn", "waits for group db");
    watch(&mut world, |world| {
        let ready = of(world, "db").filter(|n| n.state == NodeState::Ready);
        assert!(ready.count() == 2 || of(world, "app").count() == 0);
    });
    world.assert_converged();
    world.want(two("v2"));
    says(
        &world.plan(),
        "DependsOn",
        "is updated when group db is as wanted",
    );
    watch(&mut world, |world| {
        let mut db = of(world, "db").filter(|n| n.removal.is_none());
        let done = db.all(|n| n.spec_hash.starts_with("v2") && n.state == NodeState::Ready);
        let mut app = of(world, "app");
        assert!(done || app.all(|n| n.removal.is_none() && n.spec_hash.starts_with("v1")));
    });
    world.assert_converged();
    world.delete();
    watch(&mut world, |world| {
        let going = of(world, "db").any(|n| n.removal.is_some());
        assert!(!going || of(world, "app").count() == 0);
    });
    assert!(world.finished);
}

#[test]
fn what_was_there_once_is_healed_whatever_it_depends_on() {
    let mut world = ready(two("v1"));
    let capacity = |world: &mut World, many| {
        let a = world.platforms.get_mut("a").unwrap();
        a.capacity = many;
    };
    capacity(&mut world, 0);
    kill(&mut world, "db", 0);
    kill(&mut world, "app", 1);
    world.run_for(Duration::from_secs(300));
    let ready = of(&world, "app").filter(|n| n.state == NodeState::Ready);
    assert_eq!(ready.count(), 2, "{:?}", world.state.nodes);
    let mut wanted = two("v1");
    wanted[0].size = Some(3);
    world.want(wanted);
    world.run_for(Duration::from_secs(300));
    assert_eq!(of(&world, "app").count(), 2, "a new one waits");
    capacity(&mut world, usize::MAX);
    world.settle();
    world.assert_converged();
}

#[test]
fn groups_that_are_taken_out_together_go_in_their_order() {
    let mut world = ready(two("v1"));
    world.want(vec![group("other", 1, &["a"])]);
    watch(&mut world, |world| {
        let going = of(world, "db").any(|n| n.removal.is_some());
        assert!(!going || of(world, "app").count() == 0);
    });
    world.assert_converged();
}

#[test]
fn an_ordered_group_goes_from_the_highest_ordinal_when_its_cluster_is_deleted() {
    let mut world = ready(vec![ordered("data", 3)]);
    world.delete();
    let mut gone = Vec::new();
    watch(&mut world, |world| {
        let mut going = of(world, "data").filter(|n| n.removal.is_some());
        if let Some(node) = going.next()
            && gone.last() != Some(&node.ordinal)
        {
            gone.push(node.ordinal);
        }
        assert!(going.next().is_none());
    });
    assert_eq!((gone, world.finished), (vec![2, 1, 0], true));
}

#[test]
fn a_deletion_does_not_wait_for_a_higher_ordinal_that_cannot_be_seen() {
    let mut spec = ordered("data", 2);
    spec.choices = group("data", 2, &["a", "b"]).choices;
    spec.choices[0].max = Some(1);
    let mut world = ready(vec![spec]);
    world.set_reachable(&"b".into(), false);
    world.delete();
    world.run_for(Duration::from_secs(600));
    let left: Vec<&str> = of(&world, "data").map(|n| &*n.platform).collect();
    assert_eq!(left, ["b"]);
    world.set_reachable(&"b".into(), true);
    world.settle();
    assert!(world.finished);
}

const AGE: Millis = 1_000_000;

#[test]
fn nodes_are_renewed_at_their_age_give_or_take_a_tenth_within_the_budget() {
    let mut spec = group("data", 8, &["a"]);
    spec.expire_after = Some(Duration::from_millis(AGE));
    let mut world = world(vec![spec.clone()]);
    world.run_for(Duration::from_secs(120));
    let born: Vec<(u64, Millis)> = of(&world, "data")
        .map(|n| (n.slot, n.create_time))
        .collect();
    assert_eq!(born.len(), 8);
    let mut ages = BTreeSet::new();
    let end = world.now + 3 * AGE;
    while world.now < end {
        world.run_one();
        for node in of(&world, "data") {
            let Some(removal) = node.removal else {
                continue;
            };
            assert_eq!(removal.reason, RemovalReason::Lifetime);
            if born.iter().any(|(slot, _)| *slot == node.slot) {
                ages.insert(removal.since - node.create_time);
            }
        }
        let ready = of(&world, "data").filter(|n| n.state == NodeState::Ready);
        assert!(ready.count() >= 8, "surge first");
    }
    let (first, last) = (*ages.first().unwrap(), *ages.last().unwrap());
    assert!(first >= AGE * 9 / 10 && ages.len() > 4, "{ages:?}");
    // One after the other, each for as long as it takes.
    assert!(last <= AGE * 11 / 10 + 8 * 200_000, "{ages:?}");
    assert!(of(&world, "data").all(|n| born.iter().all(|(slot, _)| *slot != n.slot)));
}

#[test]
fn who_never_expires_is_left_alone() {
    let world = ready(vec![group("data", 2, &["a"])]);
    let later = world.plan_at(world.now + 1_000_000_000, false);
    assert!(later.is_empty() && later.wake.is_none(), "{later:?}");
}

fn drained(seconds: u64, size: u32) -> Group {
    let mut spec = group("data", size, &["a"]);
    spec.lifecycle = Some(pre_stop(seconds));
    spec
}

/// Ends of drains, by slot, with the error if one failed.
fn ends(planned: &Plan) -> Vec<(u64, Option<String>)> {
    let ops = planned.ops.iter().filter_map(|op| match op {
        Op::Drain {
            slot,
            until: 0,
            failed,
        } => Some((*slot, failed.as_ref().map(ToString::to_string))),
        _ => None,
    });
    ops.collect()
}

#[test]
fn a_node_goes_when_its_hook_has_ended() {
    let mut world = ready(vec![drained(20, 2)]);
    world.want(vec![drained(20, 1)]);
    let planned = world.pass();
    let slot = planned.ops.iter().find_map(|op| match op {
        Op::Remove { slot, .. } => Some(*slot),
        _ => None,
    });
    let node = world.state.node(slot.unwrap()).unwrap();
    assert_eq!(node.state, NodeState::Draining);
    assert_eq!(node.removal.unwrap().drain, world.now + 20_000);
    world.settle();
    assert_eq!(world.drained, [slot.unwrap()]);
    world.assert_converged();
}

#[test]
fn a_hook_that_fails_or_hangs_is_told_and_ends_with_its_time() {
    for seed in 0..20 {
        let mut world = World::new(seed, &["a", "b"]);
        world.run_for(Duration::from_secs(10));
        world.want(vec![drained(20, 4)]);
        world.settle();
        world.set_faults(Faults {
            deprovision: 100,
            ..Faults::default()
        });
        let began = world.now;
        world.delete();
        let mut failed = 0;
        for _ in 0..2_000 {
            let planned = world.plan();
            failed += ends(&planned)
                .iter()
                .filter(|(_, why)| why.is_some())
                .count();
            if of(&world, "data").all(|n| n.state == NodeState::Deprovisioning) {
                break;
            }
            world.run_one();
        }
        assert_eq!(failed, 4, "seed {seed}");
        assert!(
            world.now <= began + 20_010,
            "seed {seed}: {}",
            world.now - began
        );
        let said = of(&world, "data").all(|n| n.message.starts_with("preStop: "));
        assert!(said, "seed {seed}");
        world.set_faults(Faults::default());
        world.settle();
        assert!(world.finished, "seed {seed}");
    }
}

#[test]
fn a_drain_outlives_the_process_and_keeps_its_time() {
    for crash in [Crash::BeforeCommit, Crash::BeforeCalls, Crash::AfterCalls] {
        let mut world = ready(vec![drained(20, 2)]);
        world.want(vec![drained(20, 1)]);
        let began = world.now;
        // Again and again, so that no hook ever ends.
        for _ in 0..6 {
            world.crash = Some(crash);
            world.pass();
            world.crash = Some(Crash::AfterCalls);
            world.pass();
            world.now += 5_000;
        }
        world.settle();
        world.assert_converged();
        let ended = world.state.nodes.len();
        assert!(ended == 1 && world.now < began + 600_000, "{crash:?}");
    }
}

#[test]
fn nothing_is_run_in_the_dead_nor_without_grace() {
    let mut world = ready(vec![drained(20, 2)]);
    kill(&mut world, "data", 0);
    world.settle();
    world.assert_converged();
    assert!(world.drained.is_empty());
    let mut hurried = drained(20, 1);
    hurried.grace = Duration::ZERO;
    world.want(vec![hurried]);
    world.settle();
    world.assert_converged();
    assert!(world.drained.is_empty());
}

#[test]
fn a_node_that_dies_while_its_hook_runs_goes_at_once() {
    let mut world = ready(vec![drained(3_000, 2)]);
    world.groups[0].grace = Duration::from_secs(3_000);
    let mut smaller = world.groups.clone();
    smaller[0].size = Some(1);
    world.want(smaller);
    world.pass();
    world.pass();
    let slot = of(&world, "data")
        .find(|n| n.removal.is_some())
        .unwrap()
        .slot;
    change(&mut world, "data", 1, |node| {
        node.seen.phase = Phase::Failed;
    });
    assert_eq!(world.state.node(slot).unwrap().ordinal, 1);
    let ended = ends(&world.plan());
    assert_eq!(ended, [(slot, Some("the node ended".to_owned()))]);
}

#[test]
fn an_ordered_deletion_keeps_its_order_over_a_restart_and_an_outage() {
    for outage in [false, true] {
        let mut world = ready(vec![ordered("data", 4)]);
        world.delete();
        world.pass();
        if outage {
            world.set_reachable(&"a".into(), false);
            world.pass();
            world.set_reachable(&"a".into(), true);
        } else {
            world.restart();
        }
        watch(&mut world, |world| {
            let going = of(world, "data").filter(|node| node.removal.is_some());
            assert!(going.count() <= 1, "{:?}", world.state.nodes);
        });
        assert!(world.finished);
    }
}

#[test]
fn a_group_that_nobody_wants_and_nobody_can_reach_is_named() {
    let blocked = |world: &World| {
        let mut held = world.state.conditions.iter();
        let held = held.find(|(key, _)| key.kind == ConditionKind::DeletionBlocked);
        held.map(|(_, condition)| condition.message.to_string())
    };
    let gone = group("gone", 1, &["b"]);
    let mut world = ready(vec![group("keep", 1, &["a"]), gone]);
    world.set_reachable(&"b".into(), false);
    world.want(vec![group("keep", 1, &["a"])]);
    world.run_for(Duration::from_secs(120));
    let message = blocked(&world).unwrap();
    assert!(message.starts_with("1 node on b, which"), "{message}");
    world.set_reachable(&"b".into(), true);
    world.settle();
    world.assert_converged();
    assert_eq!(blocked(&world), None);
}
