//! Adoption of nodes without a record: foreign ones at the request of their user, our own ones when the store is a copy
//! that is older than they are.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use crate::world;

use std::collections::BTreeSet;

use drover_core::{
    Phase,
    node::Role,
    spec::{Group, Health, OrphanPolicy, Probe},
    storage::{Policy, Retention},
};
use drover_planner::{Call, ConditionKey, ConditionKind, Op, Skipped};
use uuid::Uuid;
use world::{
    Crash, World,
    backend::{Faults, Thing},
    build::{at_version, group, rolling, stored, sym},
    removals,
};

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

fn holds(world: &World, kind: ConditionKind) -> bool {
    let key = ConditionKey {
        group: "".into(),
        kind,
    };
    world.state.conditions.contains_key(&key)
}

/// Creates nodes of another owner with the same cluster id.
fn settle_others(world: &mut World, group: &str, count: u32) {
    for ordinal in 0..count {
        let thing = Thing {
            id: format!("other-{group}-{ordinal}"),
            owner: Uuid::from_u128(99),
            request: Uuid::from_u128(77),
            index: ordinal,
            ordinal,
            sequence: 5,
            other_cluster: false,
            spec_hash: "h1-theirs".into(),
            group: group.into(),
            storage: false,
            size: None,
            host: "".into(),
            phase: Phase::Running,
            ready: true,
            acts: true,
            labels: "".into(),
            maintenance: None,
            hidden_until: 0,
        };
        let backend = world.platforms.get_mut("a").unwrap();
        backend.things.insert(thing.id.clone(), thing);
    }
}

fn ids(world: &World) -> BTreeSet<String> {
    world.ids().into_iter().map(|(_, id)| id).collect()
}

#[test]
fn foreign_nodes_become_slots_of_their_groups_wherever_the_process_dies() {
    let crashes = [Crash::BeforeCommit, Crash::BeforeCalls, Crash::AfterCalls];
    for seed in 0..60 {
        println!("seed {seed}");
        let mut world = World::new(seed, &["a"]);
        settle_others(&mut world, "data", 3);
        let before = ids(&world);
        world.set_faults(Faults {
            adopt: 50,
            ..Faults::default()
        });
        world.want(vec![group("data", 4, &["a"])]);
        world.order_adoption();
        for round in 0..12 {
            world.run_one();
            if (seed + round) % 4 == 0 {
                world.crash = Some(crashes[(seed as usize + round as usize / 4) % 3]);
            }
        }
        world.set_faults(Faults::default());
        world.settle();
        world.assert_converged();
        assert!(before.is_subset(&ids(&world)), "{before:?}");
        assert!(!world.state.adopts(), "the order is carried out");
        assert!(!holds(&world, ConditionKind::ForeignNodes));
    }
}

#[test]
fn the_storage_of_an_adopted_node_is_kept_as_its_group_says() {
    for (kept, storage) in [(Retention::Retain, true), (Retention::Delete, false)] {
        let mut world = World::new(1, &["a"]);
        settle_others(&mut world, "data", 2);
        let policy = Policy {
            scaled: kept,
            ..Policy::default()
        };
        world.want(vec![stored(group("data", 2, &["a"]), policy)]);
        world.order_adoption();
        world.settle();
        world.assert_converged();
        assert!(world.state.nodes.iter().all(|node| node.storage));
        world.want(vec![stored(group("data", 1, &["a"]), policy)]);
        let plan = world.plan();
        let removed: Vec<bool> = plan
            .ops
            .iter()
            .filter_map(|op| match op {
                Op::Remove { retain, .. } => Some(*retain),
                _ => None,
            })
            .collect();
        assert_eq!(removed, [storage]);
    }
}

#[test]
fn a_node_keeps_the_ordinal_that_it_says_and_strangers_fill_what_lacks() {
    let mut world = World::new(1, &["a"]);
    settle_others(&mut world, "data", 2);
    settle_others(&mut world, "elsewhere", 1);
    world.want(vec![group("data", 2, &["a"]), group("more", 1, &["a"])]);
    world.order_adoption();
    world.settle();
    world.assert_converged();
    for node in &world.state.nodes {
        let expected = match node.node_id.as_deref().unwrap() {
            "other-data-0" => ("data", 0),
            "other-data-1" => ("data", 1),
            _ => ("more", 0),
        };
        assert_eq!((&*node.group, node.ordinal), expected);
    }
}

#[test]
fn of_nodes_without_an_owner_the_first_are_active_and_the_others_stand_by() {
    for (found, wanted, standby, active) in [(3, 2, 1, 2), (3, 1, 2, 1), (3, 3, 0, 3), (2, 2, 2, 2)]
    {
        let mut world = World::new(1, &["a"]);
        settle_others(&mut world, "data", found);
        for thing in world.platforms.get_mut("a").unwrap().things.values_mut() {
            thing.owner = Uuid::nil();
        }
        let before = ids(&world);
        let mut wants = group("data", wanted, &["a"]);
        wants.standby = standby;
        world.want(vec![wants]);
        world.order_adoption();
        world.settle();
        world.assert_converged();
        assert!(before.is_subset(&ids(&world)), "{found} {wanted} {standby}");
        let acting: Vec<&str> = (world.state.nodes.iter())
            .filter(|node| node.role == Role::Active)
            .filter_map(|node| node.node_id.as_deref())
            .collect();
        let first = (0..active).map(|at| format!("other-data-{at}"));
        assert_eq!(
            acting,
            first.collect::<Vec<_>>(),
            "{found} {wanted} {standby}"
        );
    }
}

#[test]
fn of_nodes_without_an_owner_those_go_that_are_more_than_wanted() {
    let mut world = World::new(1, &["a"]);
    settle_others(&mut world, "data", 4);
    for thing in world.platforms.get_mut("a").unwrap().things.values_mut() {
        thing.owner = Uuid::nil();
    }
    let before = ids(&world);
    let mut wants = group("data", 1, &["a"]);
    wants.standby = 1;
    world.want(vec![wants]);
    world.order_adoption();
    world.settle();
    world.assert_converged();
    let left = ids(&world);
    assert!(left.is_subset(&before), "none was made: {left:?}");
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.contains("other-data-0"), "{left:?}");
}

#[test]
fn nothing_is_made_while_nodes_are_taken_over_and_nothing_without_being_told() {
    let mut world = World::new(1, &["a"]);
    settle_others(&mut world, "data", 2);
    world.want(vec![group("data", 3, &["a"])]);
    world.run_for(HOUR);
    assert!(holds(&world, ConditionKind::ForeignNodes));
    assert!(world.state.nodes.is_empty() && world.requested.is_empty());
    world.set_faults(Faults {
        adopt: 101,
        ..Faults::default()
    });
    world.order_adoption();
    world.run_for(HOUR / 60);
    assert!(world.requested.is_empty(), "nobody knows what lacks");
    world.set_faults(Faults::default());
    world.settle();
    world.assert_converged();
    assert_eq!(world.requested.len(), 1);
}

#[test]
fn an_adoption_that_waits_for_a_platform_says_so_of_each_group_that_waits_with_it() {
    let mut world = World::new(1, &["a", "b"]);
    world.set_reachable(&"b".into(), false);
    world.want(vec![
        group("data", 1, &["a", "b"]),
        group("more", 1, &["a"]),
    ]);
    world.order_adoption();
    world.run_for(HOUR);
    assert!(
        world.requested.is_empty(),
        "b may show what is to be taken in"
    );
    let says = |world: &World, path: &str| {
        let key = ConditionKey {
            group: path.into(),
            kind: ConditionKind::PlatformUnavailable,
        };
        let condition = world.state.conditions.get(&key);
        condition.map(|condition| condition.message.to_string())
    };
    for path in ["data", "more"] {
        let said = says(&world, path).unwrap_or_default();
        assert!(said.contains("b has to be seen"), "{path}: {said:?}");
    }
    world.set_reachable(&"b".into(), true);
    world.settle();
    world.assert_converged();
    assert_eq!(says(&world, "data"), None);
    assert_eq!(says(&world, "more"), None);
}

#[test]
fn a_platform_that_cannot_hand_nodes_over_is_left_alone() {
    let mut world = World::new(1, &["a"]);
    world.views.get_mut("a").unwrap().adopts = false;
    settle_others(&mut world, "data", 2);
    world.want(vec![group("data", 2, &["a"])]);
    world.order_adoption();
    world.run_for(HOUR);
    assert!(world.state.nodes.is_empty());
    assert!(holds(&world, ConditionKind::ForeignNodes));
    let report = world.plan().report;
    let said = report
        .iter()
        .any(|note| note.message.contains("another owner"));
    assert!(said || !world.state.adopts(), "{report:?}");
}

/// A cluster that is to adopt the one node that its platform shows.
fn with_one_to_adopt() -> World {
    let mut world = World::new(1, &["a"]);
    settle_others(&mut world, "data", 1);
    world.want(vec![group("data", 1, &["a"])]);
    world.order_adoption();
    while world.state.foreign.is_empty() {
        world.run_one();
    }
    world
}

#[test]
fn what_somebody_else_took_meanwhile_is_not_ours() {
    let mut world = with_one_to_adopt();
    let planned = world.plan();
    assert!(matches!(planned.calls.as_slice(), [Call::Adopt { .. }]));
    let backend = world.platforms.get_mut("a").unwrap();
    for thing in backend.things.values_mut() {
        thing.owner = Uuid::from_u128(98);
    }
    world.run_one();
    world.run_for(HOUR);
    let backend = &world.platforms["a"];
    assert!(backend.asked.is_empty(), "nothing was removed");
}

#[test]
fn what_its_platform_has_refused_is_asked_for_again_after_a_pause() {
    let mut world = with_one_to_adopt();
    let until = world.now + 1_000;
    for foreign in world.state.foreign.values_mut() {
        foreign.call.next = until;
    }
    let plan = world.plan();
    let (taken, over) = (
        |op: &Op| matches!(op, Op::TakeOrphan { .. }),
        |op: &Op| matches!(op, Op::Adopted { .. }),
    );
    let carried_out = plan.ops.iter().any(|op| taken(op) || over(op));
    assert!(plan.calls.is_empty() && !carried_out, "{plan:?}");
    assert!(plan.wake.is_some_and(|at| at <= until), "the order stays");
    for foreign in world.state.foreign.values_mut() {
        foreign.call.next = world.now;
    }
    assert!(matches!(
        world.plan().calls.as_slice(),
        [Call::Adopt { .. }]
    ));
}

#[test]
fn a_cluster_that_is_deleted_leaves_what_it_has_not_yet_taken_over() {
    let mut world = World::new(1, &["a"]);
    settle_others(&mut world, "data", 2);
    world.set_faults(Faults {
        adopt: 101,
        ..Faults::default()
    });
    world.want(vec![group("data", 2, &["a"])]);
    world.order_adoption();
    while world.state.nodes.is_empty() {
        world.run_one();
    }
    world.delete();
    world.settle();
    assert!(world.finished);
    assert_eq!(ids(&world).len(), 2);
    assert!(world.platforms["a"].asked.is_empty());
}

/// A store that is older than the newest nodes of its cluster.
fn behind(seed: u64) -> (World, BTreeSet<String>) {
    behind_with(seed, |size| group("data", size, &["a"]))
}

/// The same with another kind of group.
fn behind_with(seed: u64, wanted: impl Fn(u32) -> Group) -> (World, BTreeSet<String>) {
    let mut world = World::new(seed, &["a"]);
    world.want(vec![wanted(3)]);
    world.settle();
    let old = world.durable.clone();
    world.want(vec![wanted(6)]);
    world.settle();
    let living = ids(&world);
    world.durable = old;
    world.durable.generation = world.state.generation;
    world.restart();
    (world, living)
}

#[test]
fn an_older_store_takes_in_what_it_does_not_know_and_counts_above() {
    for seed in 0..20 {
        println!("seed {seed}");
        let (mut world, living) = behind(seed);
        world.run_for(HOUR);
        assert!(holds(&world, ConditionKind::StoreBehind));
        assert_eq!(ids(&world), living);
        world.order_adoption();
        if seed % 2 == 0 {
            world.crash = Some(Crash::BeforeCalls);
        }
        world.settle();
        world.assert_converged();
        assert_eq!(ids(&world), living, "none went and none came");
        let things = world.platforms["a"].things.values();
        let most = things.map(|thing| thing.sequence).max().unwrap();
        assert!(world.state.next_sequence > most);
    }
}

#[test]
fn an_older_store_that_has_made_more_than_the_lost_one_deletes_nothing_of_that() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut world = World::new(seed, &["a", "b"]);
        let on_b = |size| {
            let mut group = group("side", size, &["b"]);
            group.max_in_flight = Some(1);
            group
        };
        let wanted = |a, b| vec![group("data", a, &["a"]), on_b(b)];
        world.want(wanted(1, 1));
        world.settle();
        let old = world.durable.clone();
        world.restart();
        world.want(wanted(1, 4));
        world.settle();
        let living: BTreeSet<String> = world.platforms["b"].things.keys().cloned().collect();
        assert_eq!(living.len(), 4);
        world.durable = old;
        world.durable.generation = world.state.generation;
        world.set_reachable(&"b".into(), false);
        for size in 2..8 {
            world.restart();
            world.want(wanted(size, 1));
            world.run_for(HOUR);
        }
        assert_eq!(world.living("data").len(), 7, "what can be made is made");
        world.set_reachable(&"b".into(), true);
        world.run_for(HOUR);
        assert!(holds(&world, ConditionKind::StoreBehind));
        let now: BTreeSet<String> = world.platforms["b"].things.keys().cloned().collect();
        assert_eq!(now, living);
        assert!(world.platforms["b"].asked.is_empty());
        world.order_adoption();
        world.want(wanted(7, 4));
        world.settle();
        world.assert_converged();
        assert!(world.platforms["b"].things.keys().eq(&living));
    }
}

#[test]
fn two_of_our_own_in_one_place_get_places_of_their_own() {
    let (mut world, living) = behind(3);
    // The lost store had replaced a node that the copy knows, and the copy did not see it go.
    let backend = world.platforms.get_mut("a").unwrap();
    let newest = backend
        .things
        .values_mut()
        .max_by_key(|t| t.ordinal)
        .unwrap();
    newest.ordinal = 0;
    world.order_adoption();
    world.settle();
    world.assert_converged();
    assert_eq!(ids(&world), living);
    let ordinals: BTreeSet<u32> = world.state.nodes.iter().map(|node| node.ordinal).collect();
    assert_eq!(ordinals.len(), 6);
}

#[test]
fn an_orphan_is_kept_where_the_cluster_wants_that_and_not_while_orphans_are_held() {
    let (mut world, living) = behind(5);
    // It was restored, and a person confirmed that.
    for state in [&mut world.state, &mut world.durable] {
        state.skipped = Skipped::default();
        state.next_sequence += 100;
    }
    world.orphans = OrphanPolicy::Adopt;
    world.orphan_hold = true;
    world.want(vec![group("data", 3, &["a"])]);
    world.run_for(HOUR);
    assert_eq!(ids(&world), living);
    assert_eq!(world.state.nodes.len(), 3, "held");
    world.want(vec![group("data", 6, &["a"])]);
    world.run_for(HOUR);
    assert_eq!(ids(&world), living, "nothing is made in their place");
    world.orphan_hold = false;
    world.settle();
    world.assert_converged();
    assert_eq!(ids(&world), living);
}

#[test]
fn what_is_taken_in_on_named_machines_stays() {
    let wanted = |size| {
        let mut group = group("data", size, &["a"]);
        group.update = rolling(0, 1);
        group.placement.hosts = (0..6).map(|host| format!("m{host}").into()).collect();
        group
    };
    let (mut world, living) = behind_with(1, wanted);
    world.run_for(HOUR);
    world.order_adoption();
    world.settle();
    world.assert_converged();
    assert_eq!(ids(&world), living, "none went and none came");
}

#[test]
fn what_was_taken_in_is_updated_within_the_budget_and_after_its_first_probes() {
    let wanted = |size| {
        let mut group = group("data", size, &["a"]);
        group.update = rolling(0, 1);
        group
    };
    let (mut world, _) = behind_with(1, wanted);
    world.run_for(HOUR);
    let mut next = at_version(wanted(6), "v2");
    next.health = Some(Box::new(Health {
        probe: Probe::Tcp { port: None },
        ..Health::default()
    }));
    world.want(vec![next]);
    world.order_adoption();
    let pass = |world: &mut World| {
        let mut all = 0;
        for _ in 0..20 {
            let removed = removals(&world.pass());
            assert!(removed.len() <= 1, "{removed:?}");
            all += removed.len();
            world.now += 1;
        }
        all
    };
    assert_eq!(pass(&mut world), 0, "nobody knows who of them serves");
    for node in &mut world.state.nodes {
        (node.probe.good, node.probe.answered) = (1, true);
    }
    assert!(pass(&mut world) > 0, "it is renewed");
}

#[test]
fn nothing_is_made_in_place_of_what_a_platform_that_cannot_be_seen_yet_may_show() {
    for seed in 0..30 {
        println!("seed {seed}");
        let mut world = World::new(seed, &["a", "b"]);
        settle_others(&mut world, "data", 3);
        let before = ids(&world);
        world.set_reachable(&sym("a"), false);
        world.want(vec![group("data", 3, &["b", "a"])]);
        world.order_adoption();
        world.run_for(HOUR);
        assert!(world.requested.is_empty(), "made while a cannot be seen");
        assert!(world.state.adopts(), "the order is still open");
        world.set_reachable(&sym("a"), true);
        world.settle();
        world.assert_converged();
        assert!(!world.state.adopts(), "the order is carried out");
        assert_eq!(
            ids(&world),
            before,
            "those that were there are those that stay"
        );
    }
}
