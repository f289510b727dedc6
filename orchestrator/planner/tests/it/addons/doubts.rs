//! What addons are told while something is in doubt, and what is shown of them then.

use std::time::Duration;

use drover_core::{Error, error::Reason, resource::Asked};
use drover_planner::{ConditionKind, DRIFT_INTERVAL};

use super::{
    asked, changes, holds, ready, ready_targets, settled, step,
    world::{
        World,
        addons::addon,
        build::{group, sym},
    },
};
use drover_planner::ResourceChange;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_store_that_is_behind_sets_no_addon_back_and_removes_none() {
    let mut world = World::new(1, &["a"]);
    world.run_for(Duration::from_secs(10));
    let served = |world: &mut World| world.addon("lb", "a").targets.len();
    world.want_addons(vec![addon("lb", "a", &["data"])]);
    world.want(vec![group("data", 3, &["a"])]);
    world.run_for(Duration::from_secs(120));
    let old = world.durable.clone();
    world.want(vec![group("data", 6, &["a"])]);
    world.run_for(Duration::from_secs(120));
    assert_eq!(served(&mut world), 6);
    world.durable = old;
    world.durable.generation = world.state.generation;
    world.restart();
    let ensures = world.addon("lb", "a").ensures;
    world.run_for(HOUR);
    assert!(holds(&world, ConditionKind::StoreBehind).is_some());
    assert_eq!(served(&mut world), 6, "nothing of it is forgotten");
    // Nor is it removed, which a later spec may not want.
    world.want_addons(Vec::new());
    world.run_for(HOUR);
    let now = world.now;
    assert_eq!(world.addon("lb", "a").present(now), ["proxy"]);
    assert_eq!(world.addon("lb", "a").ensures, ensures);
    world.want_addons(vec![addon("lb", "a", &["data"])]);
    world.order_adoption();
    while world.now < now + 600_000 {
        world.run_one();
        assert_eq!(served(&mut world), 6, "nor while the others are taken in");
    }
    assert!(holds(&world, ConditionKind::StoreBehind).is_none());
    assert_eq!(served(&mut world), 6);
    assert!(holds(&world, ConditionKind::AddonsReady).is_some());
    assert!(world.addon("lb", "a").ensures > ensures);
}

#[test]
fn foreign_nodes_keep_no_addon_from_following_but_new_specs_wait() {
    let mut world = ready(group("data", 1, &["a"]));
    let other = drover_planner::Foreign::default();
    world
        .state
        .foreign
        .insert((sym("a"), "other".into()), other);
    world.state.nodes[0].seen.endpoints[0].1 = "10.0.0.9:80".into();
    let mut changed = addon("lb", "b", &["data"]);
    changed.wanted = super::wanted("b", "proxy,more");
    let same = std::mem::replace(&mut world.addons, vec![changed]);
    assert!(asked(&step(&mut world)).is_empty(), "another spec waits");
    world.addons = same;
    let planned = step(&mut world);
    assert_eq!(changes(&planned), [ResourceChange::Follow]);
    assert_eq!(asked(&planned), [Asked::Ensure]);
}

#[test]
fn a_platform_that_hides_nodes_after_a_start_is_named_but_not_at_once() {
    let mut world = settled(2);
    let failed = |world: &World| holds(world, ConditionKind::AddonsFailed);
    world.restart();
    for _ in 0..30 {
        world.run_one();
        assert_eq!(failed(&world), None, "no alarm at a start");
    }
    world.set_reachable(&sym("a"), false);
    world.restart();
    world.run_for(Duration::from_secs(30));
    assert_eq!(failed(&world), None);
    world.run_for(Duration::from_secs(60));
    let why =
        "PlatformUnavailable: lb on b: keeps the targets that it has: a does not show its nodes";
    assert_eq!(failed(&world).as_deref(), Some(why));
    world.restart();
    world.run_for(Duration::from_secs(10));
    assert_eq!(
        failed(&world).as_deref(),
        Some(why),
        "nor does a start end it"
    );
    world.set_reachable(&sym("a"), true);
    world.run_for(Duration::from_secs(60));
    assert_eq!(failed(&world), None);
    assert!(holds(&world, ConditionKind::AddonsReady).is_some());
    assert_eq!(ready_targets(&mut world), 2);
}

#[test]
fn what_other_platforms_show_is_sent_while_one_hides_its_nodes_after_a_start() {
    let mut world = World::new(1, &["a", "b", "c"]);
    world.run_for(Duration::from_secs(10));
    world.want_addons(vec![addon("lb", "b", &["data", "more"])]);
    let more = |size| vec![group("data", 2, &["a"]), group("more", size, &["c"])];
    world.want(more(2));
    world.run_for(Duration::from_secs(120));
    let addresses = |world: &mut World| -> Vec<String> {
        let targets = world.addon("lb", "b").targets.clone();
        let served = targets.iter().filter(|one| !one.draining);
        served
            .map(|one| one.addresses[0].value.to_string())
            .collect()
    };
    let before = addresses(&mut world);
    assert_eq!(before.len(), 4);
    world.set_reachable(&sym("a"), false);
    world.restart();
    world.want(more(1));
    world.run_for(Duration::from_secs(50));
    assert_eq!(ready_targets(&mut world), 4, "it may be shown in a moment");
    world.run_for(Duration::from_secs(60));
    let now = addresses(&mut world);
    assert_eq!(now.len(), 3);
    assert!(
        now.iter().all(|one| before.contains(one)),
        "where they were"
    );
    let hidden = world
        .state
        .nodes
        .iter()
        .filter(|node| *node.platform == *"a");
    for node in hidden {
        assert!(
            now.contains(&node.node_id.as_ref().unwrap().to_string()),
            "{now:?}"
        );
    }
    let failed = holds(&world, ConditionKind::AddonsFailed).unwrap();
    assert!(failed.ends_with("a does not show its nodes"), "{failed}");
    world.set_reachable(&sym("a"), true);
    world.run_for(Duration::from_secs(60));
    assert_eq!(ready_targets(&mut world), 3);
    assert!(holds(&world, ConditionKind::AddonsReady).is_some());
    assert!(holds(&world, ConditionKind::AddonsFailed).is_none());
}

#[test]
fn an_addon_that_is_refused_or_cannot_be_removed_is_not_shown_as_ready() {
    let mut world = settled(1);
    world.addon("lb", "b").refuses = Some(Error::new(Reason::Invalid, "too old"));
    world.run_for(Duration::from_millis(DRIFT_INTERVAL * 2));
    let failed = |world: &World| holds(world, ConditionKind::AddonsFailed);
    let is_ready = |world: &World| holds(world, ConditionKind::Ready).is_some();
    assert_eq!(failed(&world).unwrap(), "Rejected: lb on b: too old");
    assert!(holds(&world, ConditionKind::AddonsReady).is_none() && !is_ready(&world));
    world.addon("lb", "b").refuses = None;
    world.run_for(Duration::from_millis(DRIFT_INTERVAL * 2));
    assert!(failed(&world).is_none() && is_ready(&world));
    world.set_reachable(&sym("b"), false);
    world.want_addons(Vec::new());
    world.run_for(Duration::from_secs(120));
    assert!(
        failed(&world)
            .unwrap()
            .starts_with("PlatformUnavailable: lb on b")
    );
    assert!(!is_ready(&world), "it is still there");
    world.set_reachable(&sym("b"), true);
    world.run_for(Duration::from_secs(120));
    assert!(failed(&world).is_none() && is_ready(&world));
}
