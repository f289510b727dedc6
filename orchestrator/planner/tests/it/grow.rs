//! Storage that grows: a larger size reaches the storage of existing nodes and replaces none of them.

use std::time::Duration;

use drover_core::{spec::Group, storage::Retention};
use drover_planner::{Call, ConditionKey, ConditionKind, Op};

use crate::world::{
    World,
    backend::Faults,
    build::{at_version, group, rolling, sym},
    growth::sized,
};

const GI: u64 = 1 << 30;

fn spec(version: &str, size: u64) -> Group {
    let group = Group {
        standby: 1,
        update: rolling(0, 1),
        ..group("data", 2, &["a"])
    };
    sized(at_version(group, version), size)
}

/// Three nodes with a gibibyte of storage each, Ready for a while.
fn settled(seed: u64) -> World {
    let mut world = World::new(seed, &["a"]);
    world.run_for(Duration::from_secs(10));
    world.want(vec![spec("v1", GI)]);
    world.settle();
    world.assert_converged();
    world
}

fn slots(world: &World) -> Vec<u64> {
    world.state.nodes.iter().map(|node| node.slot).collect()
}

fn has(world: &World, kind: ConditionKind) -> bool {
    let key = ConditionKey {
        group: sym("data"),
        kind,
    };
    world.state.conditions.contains_key(&key)
}

#[test]
fn a_larger_size_reaches_every_node_and_replaces_none() {
    let mut world = settled(1);
    let before = slots(&world);
    for size in [2 * GI, 5 * GI] {
        world.want(vec![spec("v1", size)]);
        world.settle();
        assert_eq!(world.sizes_of("data"), [Some(size); 3]);
        assert_eq!(slots(&world), before);
        world.assert_converged();
    }
}

#[test]
fn another_version_replaces_the_nodes_whether_their_storage_grows_or_not() {
    for size in [GI, 2 * GI] {
        let mut world = settled(1);
        let before = slots(&world);
        world.want(vec![spec("v2", size)]);
        world.settle();
        world.assert_converged();
        assert!(slots(&world).iter().all(|slot| !before.contains(slot)));
        assert_eq!(world.sizes_of("data"), [Some(size); 3]);
    }
}

#[test]
fn a_node_that_is_renewed_while_its_storage_is_to_grow_has_the_larger_one() {
    let mut world = settled(1);
    world.set_faults(Faults {
        role_change: 100,
        ..Faults::default()
    });
    world.want(vec![spec("v1", 2 * GI)]);
    world.run_for(Duration::from_secs(30));
    world.set_faults(Faults::default());
    world.want(vec![spec("v2", 3 * GI)]);
    world.settle();
    world.assert_converged();
    assert_eq!(world.sizes_of("data"), [Some(3 * GI); 3]);
}

#[test]
fn the_group_is_not_ready_until_its_storage_has_grown_and_says_why_it_has_not() {
    let mut world = settled(1);
    world.platforms.get_mut("a").unwrap().faults.role_change = 100;
    world.want(vec![spec("v1", 2 * GI)]);
    world.run_for(Duration::from_secs(120));
    assert!(!has(&world, ConditionKind::Ready));
    assert!(has(&world, ConditionKind::UpdateBlocked));
    world.set_faults(Faults::default());
    world.settle();
    assert!(has(&world, ConditionKind::Ready) && !has(&world, ConditionKind::UpdateBlocked));
    assert_eq!(world.sizes_of("data"), [Some(2 * GI); 3]);
}

#[test]
fn a_process_that_ends_before_it_knows_asks_again() {
    let mut world = settled(1);
    let before = slots(&world);
    world.want(vec![spec("v1", 2 * GI)]);
    let planned = world.step();
    let asks = planned.calls.iter();
    assert_eq!(asks.filter(|it| matches!(it, Call::Grow { .. })).count(), 3);
    world.durable = world.state.clone();
    world.restart();
    world.settle();
    assert_eq!(world.sizes_of("data"), [Some(2 * GI); 3]);
    assert_eq!(slots(&world), before);
    world.assert_converged();
}

#[test]
fn what_did_not_grow_can_be_taken_back() {
    let mut world = settled(1);
    let before = slots(&world);
    world.platforms.get_mut("a").unwrap().faults.role_change = 1000;
    world.want(vec![spec("v1", 2 * GI)]);
    world.run_for(Duration::from_secs(120));
    world.want(vec![spec("v1", GI)]);
    world.set_faults(Faults::default());
    world.settle();
    assert!(has(&world, ConditionKind::Ready) && !has(&world, ConditionKind::UpdateBlocked));
    assert_eq!(slots(&world), before);
}

#[test]
fn a_platform_that_cannot_has_its_nodes_replaced_and_one_that_was_not_reached_yet_has_not() {
    let mut world = settled(1);
    let before = slots(&world);
    world.views.get_mut("a").unwrap().grows = None;
    world.views.get_mut("a").unwrap().callable = false;
    world.want(vec![spec("v1", 2 * GI)]);
    for _ in 0..50 {
        let planned = world.step();
        assert!(planned.calls.is_empty(), "{planned:?}");
    }
    assert_eq!(slots(&world), before);
    let view = world.views.get_mut("a").unwrap();
    (view.grows, view.callable) = (Some(false), true);
    world.settle();
    world.assert_converged();
    assert!(slots(&world).iter().all(|slot| !before.contains(slot)));
}

#[test]
fn sizes_that_were_not_recorded_are_while_they_are_known() {
    let mut world = settled(1);
    let before = slots(&world);
    for node in &mut world.durable.nodes {
        node.origin_mut().storage_size = None;
    }
    world.restart();
    world.settle();
    world.want(vec![spec("v1", 2 * GI)]);
    world.settle();
    assert_eq!(world.sizes_of("data"), [Some(2 * GI); 3]);
    assert_eq!(slots(&world), before);
}

#[test]
fn a_node_whose_storage_grows_counts_for_its_platform() {
    let spec = |count, size| {
        let mut group = group("data", count, &["a", "b"]);
        group.choices[0].max = Some(2);
        let mut group = sized(group, size);
        if let Some(storage) = &mut group.storage {
            storage.policy.replaced = Retention::Delete;
        }
        group
    };
    let mut world = World::new(1, &["a", "b"]);
    world.run_for(Duration::from_secs(10));
    world.want(vec![spec(2, GI)]);
    world.settle();
    world.set_faults(Faults {
        role_change: 100,
        ..Faults::default()
    });
    world.want(vec![spec(4, 2 * GI)]);
    world.run_for(Duration::from_secs(120));
    let on_a = |world: &World| {
        let nodes = world.state.nodes.iter();
        nodes.filter(|node| *node.platform == *"a").count()
    };
    assert_eq!((on_a(&world), world.state.nodes.len()), (2, 4));
    world.set_faults(Faults::default());
    world.settle();
    assert_eq!((on_a(&world), world.state.nodes.len()), (2, 4));
    assert_eq!(world.sizes_of("data"), [Some(2 * GI); 4]);
}

#[test]
fn storage_grows_whatever_breaks() {
    for seed in 0..40 {
        let mut world = settled(seed);
        let before = slots(&world);
        world.platforms.get_mut("a").unwrap().faults.role_change = 50;
        world.want(vec![spec("v1", 2 * GI)]);
        world.run_for(Duration::from_secs(seed));
        world.want(vec![spec("v1", 3 * GI)]);
        world.run_for(Duration::from_secs(5));
        world.restart();
        world.set_faults(Faults::default());
        world.settle();
        assert_eq!(world.sizes_of("data"), [Some(3 * GI); 3], "seed {seed}");
        assert_eq!(slots(&world), before, "seed {seed}");
        let again = |op: &Op| matches!(op, Op::Restamp { .. } | Op::Grown { .. });
        assert!(!world.plan().ops.iter().any(again));
    }
}
