//! What a plan says of later passes is what they do.

use crate::world;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use drover_core::{
    spec::{Group, Management},
    storage::{Policy, Retention},
};
use drover_planner::{Op, Plan};
use world::{
    World,
    build::{at_version, group, rolling, stored, sym},
};

const KEEP_WHEN_SCALED: Policy = Policy {
    replaced: Retention::Delete,
    scaled: Retention::Retain,
    deleted: Retention::Delete,
};

fn ordered(path: &str, size: u32) -> Group {
    Group {
        management: Some(Management::OrderedReady),
        ..group(path, size, &["a"])
    }
}

fn world(groups: Vec<Group>) -> World {
    let mut world = World::new(1, &["a"]);
    world.run_for(Duration::from_secs(10));
    world.want(groups);
    world
}

fn settled(groups: Vec<Group>) -> World {
    let mut world = world(groups);
    while !pass(&mut world).is_empty() {}
    world.now += 3_600_000;
    world
}

/// One pass, after which all that was asked for is there, and all that was to go is gone.
fn pass(world: &mut World) -> Plan {
    let planned = world.step();
    world.answer_all(&planned);
    world.show_all();
    for node in &mut world.state.nodes {
        node.seen.gone |= node.removal.is_some();
    }
    world.now += 1_000;
    planned
}

fn created(planned: &Plan) -> usize {
    let asked = planned.ops.iter().map(|op| match op {
        Op::Request { nodes, .. } => nodes.len(),
        _ => 0,
    });
    asked.sum()
}

/// Whether the storage of each removed node is retained.
fn removed(planned: &Plan) -> BTreeMap<u64, bool> {
    let removals = planned.ops.iter().filter_map(|op| match op {
        Op::Remove { slot, retain, .. } => Some((*slot, *retain)),
        _ => None,
    });
    removals.collect()
}

fn announced(planned: &Plan) -> BTreeMap<u64, bool> {
    let later = planned.outlook.iter().flat_map(|outlook| &outlook.removals);
    later
        .map(|removal| (removal.slot, removal.retain))
        .chain(removed(planned))
        .collect()
}

/// All removals until nothing is left to do.
fn removed_in_the_end(world: &mut World) -> BTreeMap<u64, bool> {
    let mut all = BTreeMap::new();
    for _ in 0..100 {
        let planned = pass(world);
        all.extend(removed(&planned));
        if planned.is_empty() || planned.finished {
            return all;
        }
    }
    panic!("never settles: {:?}", world.plan());
}

#[test]
fn nodes_that_wait_for_others_are_counted_from_the_first_plan_on() {
    let app = Group {
        depends_on: vec!["db".into()],
        ..group("app", 4, &["a"])
    };
    let mut world = world(vec![ordered("db", 8), app]);
    let mut made = 0;
    for _ in 0..100 {
        let planned = pass(&mut world);
        made += created(&planned);
        let later: u32 = planned.outlook.iter().map(|it| it.creations).sum();
        assert_eq!(made + later as usize, 12, "{planned:?}");
        if later == 0 {
            return;
        }
    }
    panic!("never complete: {:?}", world.plan());
}

#[test]
fn a_deletion_announces_every_node_and_what_becomes_of_its_storage() {
    let app = Group {
        depends_on: vec!["db".into()],
        ..group("app", 1, &["a"])
    };
    let db = stored(group("db", 2, &["a"]), KEEP_WHEN_SCALED);
    let mut world = settled(vec![db, app]);
    let with_storage: BTreeSet<u64> = (world.state.nodes.iter())
        .filter(|node| node.storage)
        .map(|node| node.slot)
        .collect();
    assert_eq!(with_storage.len(), 2);
    world.delete();
    let first = world.plan();
    assert!(removed(&first).len() < 3, "the group with storage waits");
    let announced = announced(&first);
    assert_eq!(announced.len(), 3, "{first:?}");
    assert!(announced.values().all(|retain| !retain));
    assert_eq!(removed_in_the_end(&mut world), announced);
}

#[test]
fn a_group_that_shrinks_one_by_one_announces_who_goes_with_which_data() {
    let mut world = settled(vec![stored(ordered("db", 6), KEEP_WHEN_SCALED)]);
    let smaller = Group {
        size: Some(2),
        ..world.groups[0].clone()
    };
    world.want(vec![smaller]);
    let first = world.plan();
    assert_eq!(removed(&first).len(), 1, "one at a time");
    let announced = announced(&first);
    assert_eq!(announced.len(), 4, "{first:?}");
    assert!(announced.values().all(|retain| *retain));
    assert_eq!(removed_in_the_end(&mut world), announced);
}

#[test]
fn successors_of_nodes_that_go_are_not_counted_as_further_nodes() {
    let mut world = settled(vec![ordered("db", 3)]);
    let slot = world.state.nodes[1].slot;
    world.mark(slot);
    for _ in 0..100 {
        let planned = pass(&mut world);
        assert!(planned.outlook.is_empty(), "{planned:?}");
        if planned.is_empty() {
            return;
        }
    }
    panic!("never settles: {:?}", world.plan());
}

#[test]
fn a_paused_cluster_announces_what_follows_when_it_goes_on() {
    let mut world = settled(vec![ordered("db", 3)]);
    world.pause(true);
    let larger = Group {
        size: Some(5),
        ..world.groups[0].clone()
    };
    world.want(vec![larger]);
    assert_eq!(world.plan().outlook[0].creations, 2);
    let smaller = Group {
        size: Some(1),
        ..world.groups[0].clone()
    };
    world.want(vec![smaller]);
    let paused = world.plan();
    assert!(removed(&paused).is_empty());
    assert_eq!(announced(&paused).len(), 2);
}

#[test]
fn a_group_that_shrinks_while_nothing_of_it_is_seen_announces_as_many_as_go() {
    let handed_on = Policy {
        replaced: Retention::Retain,
        scaled: Retention::Delete,
        deleted: Retention::Delete,
    };
    let lost_when_scaled = Policy {
        replaced: Retention::Delete,
        ..handed_on
    };
    for (policy, losing, keeping) in [
        (handed_on, 4, 0),
        (lost_when_scaled, 4, 0),
        (KEEP_WHEN_SCALED, 0, 4),
    ] {
        for db in [group("db", 5, &["a"]), ordered("db", 5)] {
            let mut world = settled(vec![stored(db, policy)]);
            world.set_reachable(&sym("a"), false);
            let smaller = Group {
                size: Some(1),
                ..world.groups[0].clone()
            };
            world.want(vec![smaller]);
            let blind = world.plan();
            assert!(removed(&blind).is_empty(), "{blind:?}");
            let [outlook] = &blind.outlook[..] else {
                panic!("{policy:?}: {blind:?}");
            };
            let unnamed = outlook.unnamed;
            assert_eq!(outlook.removals.len() + unnamed.nodes as usize, 4);
            assert_eq!(
                (unnamed.losing, unnamed.keeping),
                (losing, keeping),
                "{policy:?}"
            );
        }
    }
}

#[test]
fn nodes_whose_replacement_waits_are_announced_all_the_same() {
    let app = Group {
        depends_on: vec!["db".into()],
        ..group("app", 2, &["a"])
    };
    let renewed = |world: &World| -> BTreeMap<String, usize> {
        let renewals = world.plan().renewals.into_iter();
        renewals
            .map(|it| (it.group.to_string(), it.order.len()))
            .collect()
    };
    let both = BTreeMap::from([("app".to_owned(), 2), ("db".to_owned(), 3)]);
    for paused in [false, true] {
        let mut world = settled(vec![ordered("db", 3), app.clone()]);
        assert!(renewed(&world).is_empty());
        world.pause(paused);
        let groups = world.groups.clone().into_iter().map(|group| Group {
            update: rolling(1, 0),
            ..at_version(group, "v2")
        });
        world.want(groups.collect());
        assert_eq!(renewed(&world), both, "paused: {paused}");
    }
}
