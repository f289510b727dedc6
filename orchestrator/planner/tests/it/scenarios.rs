//! What must hold in the situations that have hurt others.

#![allow(
    clippy::unwrap_used,
    reason = "what must be there fails the test if it is not"
)]

use crate::world;

use std::time::Duration;

use drover_core::{
    Error, NodeState, Phase,
    error::Reason,
    spec::{Health, Probe},
};
use drover_planner::{Call, ConditionKey, ConditionKind, Foreign, Op, Orphan};
use uuid::Uuid;
use world::{
    Crash, Event, World,
    backend::Faults,
    build::{self, choice, group, sym},
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn settled(size: u32) -> World {
    let mut world = World::new(1, &["a", "b"]);
    world.want(vec![group("data", size, &["a"])]);
    world.settle();
    world.assert_converged();
    world
}

fn holds(world: &World, group: &str, kind: ConditionKind) -> bool {
    let group = sym(group);
    let key = ConditionKey { group, kind };
    world.state.conditions.contains_key(&key)
}

fn removed(world: &World) -> usize {
    let nodes = world.state.nodes.iter();
    nodes.filter(|node| node.removal.is_some()).count()
}

#[test]
fn nodes_that_die_young_for_a_day_are_asked_for_at_the_slow_cadence() {
    let mut world = World::new(2, &["a"]);
    world.lifetime = Some(20_000);
    world.want(vec![group("data", 3, &["a"])]);
    world.run_for(24 * HOUR);
    // Three generations at once, after 0 and 2 seconds, then one every ten minutes.
    let generations = 3 + 24 * 6;
    assert!(world.requested.len() <= 3 * generations);
    assert!(world.requested.len() >= generations - 24, "never a stop");
    assert!(holds(&world, "data", ConditionKind::Failed));
    world.lifetime = None;
    world.settle();
    world.assert_converged();
    assert!(!holds(&world, "data", ConditionKind::Failed));
    assert!(world.state.backoffs.is_empty());
}

#[test]
fn a_death_after_a_stable_run_is_replaced_at_once_every_time() {
    let mut world = settled(3);
    for _ in 0..5 {
        world.run_for(HOUR);
        world.now += 3_600_000;
        let requests = world.requested.len();
        let (platform, id) = world.ids().remove(0);
        let thing = world.platforms.get_mut(&platform).unwrap();
        thing.things.get_mut(&id).unwrap().phase = Phase::Failed;
        world.at(0, Event::Phase(platform.clone(), id.clone(), Phase::Failed));
        let key = world.state.nodes.iter_mut();
        for node in key {
            if node.node_id.as_deref() == Some(&*id) {
                node.seen.phase = Phase::Failed;
            }
        }
        let planned = world.pass();
        let asked = planned
            .ops
            .iter()
            .any(|op| matches!(op, Op::Request { .. }));
        assert!(asked, "{planned:?}");
        world.settle();
        world.assert_converged();
        assert_eq!(world.requested.len(), requests + 1);
    }
}

#[test]
fn too_many_sick_nodes_of_a_group_are_not_replaced_and_heal_after_a_reboot() {
    let mut world = settled(3);
    for (platform, id) in world.ids() {
        world.set_ready(&platform, &id, false);
    }
    world.run_for(HOUR);
    assert_eq!(removed(&world), 0);
    assert_eq!(world.state.nodes.len(), 3);
    assert!(holds(&world, "data", ConditionKind::RemediationBlocked));
    for (platform, id) in world.ids() {
        world.set_ready(&platform, &id, true);
    }
    world.settle();
    world.assert_converged();
    assert!(!holds(&world, "data", ConditionKind::RemediationBlocked));
}

#[test]
fn too_many_sick_nodes_of_a_platform_are_not_replaced() {
    let mut world = settled(10);
    world.views.get_mut("a").unwrap().sick = 21;
    let (platform, id) = world.ids().remove(0);
    world.set_ready(&platform, &id, false);
    world.run_for(HOUR);
    assert_eq!(removed(&world), 0);
    assert!(holds(&world, "data", ConditionKind::RemediationBlocked));
    world.views.get_mut("a").unwrap().sick = 20;
    world.settle();
    world.assert_converged();
}

#[test]
fn nothing_is_deleted_or_replaced_while_a_platform_cannot_be_seen() {
    let mut world = settled(5);
    let requests = world.requested.len();
    let ids = world.ids();
    world.set_reachable(&sym("a"), false);
    world.kill(&ids[0].0, &ids[0].1);
    world.want(vec![group("data", 2, &["a"])]);
    world.run_for(HOUR);
    assert_eq!(removed(&world), 0);
    assert_eq!(world.requested.len(), requests);
    world.set_reachable(&sym("a"), true);
    world.settle();
    world.assert_converged();
}

#[test]
fn a_thousand_clusters_cut_off_from_their_probes_lose_nothing() {
    for seed in 0..1_000 {
        let mut world = World::new(seed, &["a"]);
        let mut one = group("data", 1, &["a"]);
        one.health = Some(Health {
            probe: Probe::Tcp { port: None },
            ..Health::default()
        });
        world.want(vec![one]);
        world.run_for(Duration::from_secs(20));
        let reached = seed % 2 == 0;
        if reached {
            // It was Ready once, and then the orchestrator's network broke.
            world.state.nodes[0].probe.good = 1;
            world.state.nodes[0].probe.answered = true;
            world.run_for(MINUTE);
            assert_eq!(world.state.nodes[0].state, NodeState::Ready);
        }
        world.views.get_mut("a").unwrap().sick = 1_000;
        world.views.get_mut("a").unwrap().total = 1_000;
        world.state.nodes[0].probe.good = 0;
        world.state.nodes[0].probe.bad = 200;
        world.run_for(HOUR);
        assert_eq!(removed(&world), 0, "seed {seed}");
        assert_eq!(world.requested.len(), 1);
        let kind = if reached {
            ConditionKind::RemediationBlocked
        } else {
            ConditionKind::ProbeUnreachable
        };
        assert!(holds(&world, "data", kind), "{:?}", world.state.conditions);
    }
}

#[test]
fn a_lost_answer_of_ten_with_deaths_and_a_scale_in_between_doubles_and_loses_nothing() {
    for seed in 0..100 {
        let mut world = World::new(seed, &["a"]);
        world.want(vec![group("data", 10, &["a"])]);
        world.run_for(Duration::from_secs(3));
        let a = sym("a");
        // The answer never comes: the process dies with the call under way.
        world.crash = Some([Crash::AfterCalls, Crash::BeforeCalls][seed as usize % 2]);
        world.pass();
        world.run_for(Duration::from_secs(seed % 15));
        for (platform, id) in world.ids().into_iter().take(3) {
            world.kill(&platform, &id);
        }
        world.want(vec![group("data", 7 + (seed % 5) as u32, &["a"])]);
        world.run_for(Duration::from_secs(seed % 7));
        // The first call arrives a second time, as late as it may.
        let things: Vec<_> = world.platforms[&a].things.values().cloned().collect();
        world.at(30_000, Event::Make(a.clone(), things));
        world.settle();
        world.assert_converged();
    }
}

#[test]
fn a_store_that_is_behind_freezes_the_cluster() {
    let mut world = settled(3);
    let (platform, id) = world.ids().remove(0);
    world
        .state
        .orphans
        .insert((sym("a"), "newer".into()), orphan(&world, 99));
    world.set_ready(&platform, &id, false);
    world.want(vec![group("data", 6, &["a"])]);
    let requests = world.requested.len();
    world.run_for(HOUR);
    assert!(holds(&world, "", ConditionKind::StoreBehind));
    assert_eq!((world.requested.len(), removed(&world)), (requests, 0));
    let report = world.plan().report;
    assert!(report.iter().any(|note| note.reason == "StoreBehind"));
    world.want(vec![group("data", 1, &["a"])]);
    world.run_for(HOUR);
    assert_eq!(removed(&world), 0, "nor is it scaled down");
}

#[test]
fn nodes_of_another_owner_under_the_same_name_stop_creations_only() {
    let mut world = settled(3);
    world
        .state
        .foreign
        .insert((sym("a"), "x-1".into()), Foreign::default());
    world.want(vec![group("data", 4, &["a"])]);
    world.run_for(HOUR);
    assert!(holds(&world, "", ConditionKind::ForeignNodes));
    assert_eq!(world.state.nodes.len(), 3);
    let report = world.plan().report;
    assert!(report.iter().any(|note| note.reason == "ForeignNodes"));
    world.want(vec![group("data", 2, &["a"])]);
    world.run_for(HOUR);
    assert_eq!(world.state.nodes.len(), 2);
    world.state.foreign.clear();
    world.settle();
    world.assert_converged();
}

fn orphan(world: &World, sequence: u64) -> Orphan {
    Orphan {
        request: Uuid::from_u128(5),
        index: 0,
        sequence,
        group: "data".into(),
        ordinal: 9,
        platform_uid: "uid-of-a".into(),
        since: world.now,
        ..Orphan::default()
    }
}

#[test]
fn an_orphan_is_swept_after_its_grace_and_not_while_orphans_are_held() {
    let mut world = settled(2);
    world.orphan_hold = true;
    let mut left = world.living("data")[0].clone();
    (left.id, left.request, left.ordinal) = ("left-over".into(), Uuid::from_u128(5), 9);
    let a = world.platforms.get_mut("a").unwrap();
    a.things.insert(left.id.clone(), left);
    let id = ("a".into(), "left-over".into());
    world.state.orphans.insert(id.clone(), orphan(&world, 1));
    world.run_for(HOUR);
    assert!(world.state.orphans.contains_key(&id));
    world.state.orphans.get_mut(&id).unwrap().since = world.now;
    world.orphan_hold = false;
    world.run_for(Duration::from_secs(119));
    assert!(world.platforms["a"].asked.is_empty(), "within its grace");
    world.run_for(Duration::from_secs(2));
    assert!(world.platforms["a"].asked.contains("left-over"));
    world.settle();
    world.assert_converged();
}

#[test]
fn a_deletion_waits_for_a_platform_that_is_away_and_says_so() {
    let mut world = settled(3);
    world.set_reachable(&sym("a"), false);
    world.delete();
    world.run_for(HOUR);
    assert!(!world.finished);
    assert!(holds(&world, "", ConditionKind::DeletionBlocked));
    world.set_reachable(&sym("a"), true);
    world.settle();
    assert!(world.finished);
    assert_eq!(world.leftovers(), 0);
}

#[test]
fn a_broken_version_does_not_replace_what_runs() {
    let mut world = settled(3);
    let mut next = group("data", 4, &["a"]);
    next.choices = vec![choice("a", "v2")];
    let refused = Error::new(Reason::Invalid, "no such image");
    world.platforms.get_mut("a").unwrap().refuses = Some(refused);
    world.want(vec![next.clone()]);
    world.run_for(HOUR);
    assert!(holds(&world, "data", ConditionKind::Rejected));
    assert_eq!(world.living("data").len(), 3);
    assert!(world.requested.len() < 10);
    world.platforms.get_mut("a").unwrap().refuses = None;
    world.settle();
    world.assert_converged();
    assert!(!holds(&world, "data", ConditionKind::Rejected));
}

#[test]
#[expect(
    clippy::disallowed_types,
    reason = "real time is what is measured here"
)]
fn ten_thousand_nodes_in_256_groups_are_planned_in_time_linear_in_their_number() {
    let mut world = World::new(3, &["a"]);
    world.run_for(MINUTE);
    let template = {
        let mut small = settled(1);
        small.state.nodes.remove(0)
    };
    let groups: Vec<_> = (0..256)
        .map(|at| group(&format!("g{at}"), 39, &["a"]))
        .collect();
    for (at, spec) in groups.iter().enumerate() {
        for ordinal in 0..39_u32 {
            let mut node = template.clone();
            node.slot = 1 + at as u64 * 39 + u64::from(ordinal);
            (node.group, node.ordinal) = (spec.path.clone(), ordinal);
            node.node_id = Some(node.slot.to_string().into());
            world.state.nodes.push(node);
        }
    }
    world.want(groups);
    world.state.next_slot = 20_000;
    for _ in 0..3 {
        let planned = world.plan_at(world.now, false);
        drover_planner::apply(&mut world.state, &planned.ops, world.now);
    }
    let begun = std::time::Instant::now();
    let planned = world.plan_at(world.now, false);
    let took = begun.elapsed();
    assert!(planned.is_empty(), "{planned:?}");
    // A quadratic one takes seconds without optimisation.
    assert!(took < Duration::from_millis(500), "{took:?}");
}

#[test]
fn a_complete_read_is_asked_for_only_when_something_may_be_absent() {
    let mut world = settled(3);
    let planned = world.plan_at(world.now + 3_600_000, false);
    assert!(planned.calls.is_empty());
    let (platform, id) = world.ids().remove(0);
    world.flicker(&platform, &id);
    world.run_for(Duration::from_millis(build::HIDDEN + 5_000));
    assert_eq!(world.living("data").len(), 3);
    world.settle();
    world.assert_converged();
    let confirms = |call: &Call| matches!(call, Call::Confirm { .. });
    assert!(!world.plan().calls.iter().any(confirms));
}

#[test]
fn the_breaker_is_not_evaded_by_one_after_the_other() {
    let mut world = settled(10);
    world.set_faults(Faults {
        deprovision: 100,
        ..Faults::default()
    });
    let ids = world.ids();
    for (platform, id) in &ids[..4] {
        world.set_ready(platform, id, false);
    }
    let span = Duration::from_millis(30_050);
    world.run_for(span);
    let going = removed(&world);
    assert!(going > 0);
    for (platform, id) in &ids[4..8] {
        world.set_ready(platform, id, false);
    }
    for _ in 0..40 {
        world.pass();
        world.now += 1_000;
        assert!(removed(&world) <= 4, "while the first ones are there");
    }
}

#[test]
fn a_request_of_unknown_outcome_is_not_sent_again_while_nothing_may_be_made() {
    let mut world = World::new(4, &["a"]);
    world.platforms.get_mut("a").unwrap().refuses = Some(Error::unavailable("broken"));
    world.want(vec![group("data", 2, &["a"])]);
    world.run_for(Duration::from_secs(3));
    world
        .state
        .foreign
        .insert((sym("a"), "x-1".into()), Foreign::default());
    world.platforms.get_mut("a").unwrap().refuses = None;
    world.run_for(HOUR);
    assert_eq!(world.leftovers(), 0);
    world.state.foreign.clear();
    world.settle();
    world.assert_converged();
}
