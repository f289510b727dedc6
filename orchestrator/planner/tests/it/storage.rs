//! Storage: when it is retained, which node takes it over, and that two nodes never share it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what must be there fails the test if it is not"
)]

use crate::world;

use std::time::Duration;

use drover_core::{
    Node, NodeState, Phase,
    node::RemovalReason,
    spec::{Group, Management},
    storage::{Policy, Retention},
};
use drover_planner::{Op, Orphan, Plan};
use world::{
    World,
    build::{at_version, group, rolling, stored},
};

const KEEP: Policy = Policy {
    replaced: Retention::Retain,
    scaled: Retention::Retain,
    deleted: Retention::Retain,
};

/// Three nodes of v1 with storage, all Ready for a while.
fn world(policy: Policy) -> World {
    let mut world = World::new(1, &["a"]);
    world.run_for(Duration::from_secs(10));
    world.want(vec![wanted(3, policy)]);
    run(&mut world);
    world.now += 3_600_000;
    world
}

fn wanted(size: u32, policy: Policy) -> Group {
    let mut group = stored(group("db", size, &["a"]), policy);
    group.update = drover_core::spec::Update::default();
    group
}

fn step(world: &mut World) -> Plan {
    let planned = world.step();
    world.answer_all(&planned);
    world.show_all();
    planned
}

/// Nodes whose removal was requested are gone.
fn bury(world: &mut World) {
    for node in &mut world.state.nodes {
        node.seen.gone |= node.removal.is_some();
    }
}

/// Steps, a second each, until nothing is left to do. Returns all removals, and all requested ordinals.
fn run(world: &mut World) -> (Vec<Removed>, Vec<u32>) {
    let (mut removed, mut asked) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let before = world.state.clone();
        let planned = step(world);
        let at = |slot| before.node(slot).unwrap().ordinal;
        for op in &planned.ops {
            match op {
                Op::Remove {
                    slot,
                    reason,
                    retain,
                } => removed.push((at(*slot), *reason, *retain)),
                Op::Request { nodes, .. } => {
                    asked.extend(nodes.iter().map(|n| n.ordinal));
                    for node in nodes {
                        let held = before.nodes.iter().find(|n| n.ordinal == node.ordinal);
                        let gone = |old: &Node| {
                            planned.ops.iter().any(
                                |op| matches!(op, Op::RecordDropped { slot, .. } if *slot == old.slot),
                            )
                        };
                        assert!(held.is_none_or(gone), "{held:?} has the storage still");
                    }
                }
                _ => {}
            }
        }
        bury(world);
        world.now += 1_000;
        if planned.is_empty() || planned.finished {
            return (removed, asked);
        }
    }
    panic!("never settles: {:?}", world.plan());
}

type Removed = (u32, RemovalReason, bool);

fn ordinals(world: &World) -> Vec<u32> {
    let mut all: Vec<u32> = world.state.nodes.iter().map(|n| n.ordinal).collect();
    all.sort_unstable();
    all
}

fn slot_of(world: &World, ordinal: u32) -> u64 {
    let mut nodes = world.state.nodes.iter();
    nodes.find(|n| n.ordinal == ordinal).unwrap().slot
}

#[test]
fn an_update_hands_storage_on_one_node_after_the_other() {
    let mut world = world(KEEP);
    let next = at_version(world.groups[0].clone(), "v2");
    world.want(vec![next]);
    let (removed, asked) = run(&mut world);
    assert_eq!(removed.len(), 3);
    assert!(
        removed
            .iter()
            .all(|(_, reason, retain)| *reason == RemovalReason::Outdated && *retain)
    );
    let order: Vec<u32> = removed.iter().map(|(ordinal, ..)| *ordinal).collect();
    assert_eq!(asked, order, "each gets the storage of the one before");
    assert_eq!(ordinals(&world), [0, 1, 2]);
}

#[test]
fn a_dead_node_is_followed_by_one_of_its_ordinal_once_it_is_gone() {
    let mut world = world(KEEP);
    let dead = slot_of(&world, 1);
    world.state.node_mut(dead).unwrap().seen.phase = Phase::Failed;
    // However long it is not proven absent, no other node gets its storage, and no other ordinal is filled instead.
    for _ in 0..20 {
        let planned = step(&mut world);
        let asks = |op: &Op| matches!(op, Op::Request { .. });
        assert!(!planned.ops.iter().any(asks), "{planned:?}");
        world.now += 10_000;
    }
    let node = world.state.node(dead).unwrap();
    assert_eq!(node.removal.unwrap().reason, RemovalReason::Dead);
    assert!(node.removal.unwrap().retain);
    let planned = world.plan();
    assert!(
        planned
            .report
            .iter()
            .any(|note| note.reason == "Storage" && note.slot == Some(dead)),
        "{:?}",
        planned.report
    );
    bury(&mut world);
    assert_eq!(run(&mut world).1, [1]);
}

#[test]
fn why_a_node_goes_decides_over_its_data() {
    let policy = Policy {
        replaced: Retention::Retain,
        scaled: Retention::Delete,
        deleted: Retention::Retain,
    };
    let mut sick = world(policy);
    let slot = slot_of(&sick, 0);
    sick.state.node_mut(slot).unwrap().state = NodeState::Unhealthy;
    sick.state.node_mut(slot).unwrap().seen.ready = Some(false);
    let (removed, asked) = run(&mut sick);
    assert_eq!(removed, [(0, RemovalReason::Sick, true)]);
    assert_eq!(asked, [0]);

    let mut marked = world(policy);
    let slot = slot_of(&marked, 2);
    marked.mark(slot);
    assert_eq!(
        run(&mut marked),
        (vec![(2, RemovalReason::User, true)], vec![2])
    );

    let mut scaled = world(policy);
    scaled.want(vec![wanted(1, policy)]);
    let (removed, asked) = run(&mut scaled);
    assert_eq!(
        removed,
        [
            (2, RemovalReason::Surplus, false),
            (1, RemovalReason::Surplus, false)
        ]
    );
    assert!(asked.is_empty());

    let mut group_gone = world(policy);
    group_gone.want(Vec::new());
    let (removed, _) = run(&mut group_gone);
    assert_eq!(removed.len(), 3);
    assert!(removed.iter().all(|(_, _, retain)| *retain));

    let mut deleted = world(Policy {
        deleted: Retention::Delete,
        ..KEEP
    });
    deleted.delete();
    let (removed, _) = run(&mut deleted);
    assert_eq!(removed.len(), 3);
    assert!(removed.iter().all(|(_, _, retain)| !*retain));
}

#[test]
fn a_later_spec_changes_nothing_of_a_removal_under_way() {
    let mut world = world(KEEP);
    world.want(vec![wanted(2, KEEP)]);
    step(&mut world);
    let leaving = |world: &World| {
        let mut nodes = world.state.nodes.iter();
        nodes.find_map(|n| n.removal.map(|r| (n.ordinal, r.retain)))
    };
    assert_eq!(leaving(&world), Some((2, true)));
    let delete = Policy {
        replaced: Retention::Delete,
        scaled: Retention::Delete,
        deleted: Retention::Delete,
    };
    world.want(vec![wanted(2, delete)]);
    step(&mut world);
    world.delete();
    step(&mut world);
    assert_eq!(leaving(&world).map(|(_, retain)| retain), Some(false));
    let slot = slot_of(&world, 2);
    assert!(world.state.node(slot).unwrap().removal.unwrap().retain);
}

#[test]
fn who_scales_down_and_up_gets_the_same_places() {
    let mut world = world(KEEP);
    // The youngest node has the lowest ordinal; it stays nevertheless.
    let first = slot_of(&world, 0);
    world.mark(first);
    run(&mut world);
    world.want(vec![wanted(1, KEEP)]);
    let (removed, _) = run(&mut world);
    let gone: Vec<u32> = removed.iter().map(|(ordinal, ..)| *ordinal).collect();
    assert_eq!(gone, [2, 1]);
    assert!(removed.iter().all(|(_, _, retain)| *retain));
    world.want(vec![wanted(3, KEEP)]);
    let (_, mut asked) = run(&mut world);
    asked.sort_unstable();
    assert_eq!(asked, [1, 2]);
}

#[test]
fn whoever_is_beyond_the_size_makes_room_for_a_place_below_it() {
    let mut world = world(KEEP);
    // Ordinal 1 is on its way out while the group shrinks to two.
    let middle = slot_of(&world, 1);
    world.mark(middle);
    step(&mut world);
    assert!(world.state.node(middle).unwrap().removal.is_some());
    world.want(vec![wanted(2, KEEP)]);
    run(&mut world);
    assert_eq!(ordinals(&world), [0, 1]);
}

#[test]
fn who_only_makes_room_leaves_its_data_whatever_becomes_of_that_of_surplus_nodes() {
    const GONE: Policy = Policy {
        replaced: Retention::Delete,
        scaled: Retention::Delete,
        deleted: Retention::Delete,
    };
    let mut world = world(GONE);
    let mut next = at_version(world.groups[0].clone(), "v2");
    world.want(vec![next.clone()]);
    run(&mut world);
    let before = ordinals(&world);
    assert_ne!(before, [0, 1, 2], "its successors stood beside them");
    // From now on data is retained when a node is replaced: nothing that exists may be lost for that.
    next.storage.as_mut().unwrap().policy.replaced = Retention::Retain;
    world.want(vec![next]);
    let (removed, _) = run(&mut world);
    assert!(
        !removed.is_empty() && removed.iter().all(|(_, _, retain)| *retain),
        "{removed:?}"
    );
    assert_eq!(ordinals(&world), [0, 1, 2]);
}

#[test]
fn storage_that_goes_with_its_node_allows_a_successor_beside_it() {
    let mut world = world(Policy {
        replaced: Retention::Delete,
        ..KEEP
    });
    let mut next = at_version(world.groups[0].clone(), "v2");
    next.update = rolling(1, 0);
    world.want(vec![next]);
    let planned = step(&mut world);
    let asked = planned.ops.iter().find_map(|op| match op {
        Op::Request { nodes, .. } => Some(nodes[0].ordinal),
        _ => None,
    });
    assert_eq!(asked, Some(3), "it has storage of its own");
    let (removed, _) = run(&mut world);
    assert_eq!(removed.len(), 3);
    assert!(removed.iter().all(|(_, _, retain)| !*retain));
}

#[test]
fn nobody_takes_the_place_of_a_dead_node_whose_storage_is_to_be_deleted() {
    let mut world = world(Policy {
        replaced: Retention::Delete,
        ..KEEP
    });
    let dead = slot_of(&world, 0);
    world.state.node_mut(dead).unwrap().seen.phase = Phase::Failed;
    let mut asked = Vec::new();
    for _ in 0..5 {
        for op in &step(&mut world).ops {
            if let Op::Request { nodes, .. } = op {
                asked.extend(nodes.iter().map(|n| n.ordinal));
            }
        }
        world.now += 1_000;
    }
    assert_eq!(asked, [3]);
}

#[test]
fn an_orphan_of_a_group_with_storage_leaves_it_behind() {
    for (policy, kept) in [
        (KEEP, true),
        (
            Policy {
                replaced: Retention::Delete,
                scaled: Retention::Delete,
                deleted: Retention::Delete,
            },
            false,
        ),
    ] {
        let mut world = world(policy);
        let orphan = Orphan {
            request: uuid::Uuid::from_u128(5),
            index: 0,
            sequence: 1,
            group: "db".into(),
            ordinal: 7,
            platform_uid: world.views["a"].uid.clone(),
            since: world.now - 3_600_000,
            last: world.now,
            ..Orphan::default()
        };
        let key = ("a".into(), "stray".into());
        world.state.orphans.insert(key, orphan);
        let planned = world.plan();
        let taken = planned.ops.iter().find_map(|op| match op {
            Op::TakeOrphan { node } => Some(node),
            _ => None,
        });
        let taken = taken.unwrap();
        assert!(taken.storage);
        assert_eq!(taken.removal.unwrap().retain, kept);
    }
}

#[test]
fn who_is_named_when_a_group_gets_smaller_is_scaled_away_and_not_replaced() {
    let policy = Policy {
        replaced: Retention::Delete,
        ..KEEP
    };
    let mut world = world(policy);
    let named = slot_of(&world, 1);
    world.mark(named);
    world.want(vec![wanted(2, policy)]);
    let (removed, asked) = run(&mut world);
    assert_eq!(removed, [(1, RemovalReason::Surplus, true)]);
    assert!(asked.is_empty());
}

#[test]
fn who_is_scaled_away_leaves_its_storage_whatever_it_goes_for_in_the_end() {
    // The group is large again before its turn comes, so another node is created in its place.
    let mut larger = world(SCALED_IS_KEPT);
    let named = slot_of(&larger, 0);
    larger.scale_away(named);
    let (removed, _) = run(&mut larger);
    assert_eq!(removed, [(0, RemovalReason::User, true)]);

    // It dies before its turn.
    let mut dead = world(SCALED_IS_KEPT);
    let named = slot_of(&dead, 0);
    dead.scale_away(named);
    dead.state.node_mut(named).unwrap().seen.phase = Phase::Failed;
    let (removed, _) = run(&mut dead);
    assert_eq!(removed, [(0, RemovalReason::Dead, true)]);

    // If the storage of nodes that are scaled away is not retained, neither is this.
    let mut deleted = world(SCALED_IS_DELETED);
    let named = slot_of(&deleted, 0);
    deleted.scale_away(named);
    let (removed, _) = run(&mut deleted);
    assert_eq!(removed, [(0, RemovalReason::User, false)]);
}

#[test]
fn who_is_scaled_away_leaves_what_was_said_last_also_when_nothing_is_said_of_storage_any_more() {
    let mut world = world(SCALED_IS_KEPT);
    let named = slot_of(&world, 1);
    world.scale_away(named);
    let mut bare = wanted(3, SCALED_IS_KEPT);
    bare.storage = None;
    world.want(vec![bare]);
    let (removed, _) = run(&mut world);
    assert_eq!(removed, [(1, RemovalReason::User, true)]);
}

#[test]
fn who_is_too_many_where_nothing_is_said_of_storage_any_more_leaves_what_is_replaced() {
    let policy = Policy {
        scaled: Retention::Delete,
        ..KEEP
    };
    let mut world = world(policy);
    // Replacements exist beside nodes that have storage: a surplus node may be one that was replaced.
    let mut bare = wanted(2, policy);
    bare.storage = None;
    world.want(vec![bare]);
    let (removed, _) = run(&mut world);
    assert_eq!(removed, [(2, RemovalReason::Surplus, true)]);
}

#[test]
fn whom_nobody_sees_when_its_group_is_changed_and_gets_smaller_is_scaled_away_all_the_same() {
    for size in [0, 1, 2] {
        let mut world = world(SCALED_IS_KEPT);
        world.views.get_mut("a").unwrap().visible = false;
        let update = world.groups[0].update;
        let mut next = at_version(wanted(size, SCALED_IS_KEPT), "v2");
        next.update = update;
        world.want(vec![next]);
        world.step();
        world.views.get_mut("a").unwrap().visible = true;
        let (removed, _) = run(&mut world);
        let kept = removed.iter().filter(|(.., retain)| *retain).count();
        assert_eq!(kept, 3 - size as usize, "{size}: {removed:?}");
    }
}

#[test]
fn those_who_are_named_are_scaled_away_also_where_one_goes_at_a_time() {
    let policy = Policy {
        replaced: Retention::Delete,
        ..KEEP
    };
    let mut world = World::new(1, &["a"]);
    world.run_for(Duration::from_secs(10));
    let ordered = |size| Group {
        management: Some(Management::OrderedReady),
        ..wanted(size, policy)
    };
    world.want(vec![ordered(3)]);
    run(&mut world);
    world.now += 3_600_000;
    for ordinal in [1, 2] {
        let named = slot_of(&world, ordinal);
        world.mark(named);
    }
    world.want(vec![ordered(1)]);
    let (removed, asked) = run(&mut world);
    let scaled = |ordinal| (ordinal, RemovalReason::Surplus, true);
    assert_eq!(removed, [scaled(2), scaled(1)]);
    assert!(asked.is_empty());
}

/// The policy depends on which node was scaled away, not on the cause that the plan gives.
const SCALED_IS_KEPT: Policy = Policy {
    replaced: Retention::Delete,
    ..KEEP
};
const SCALED_IS_DELETED: Policy = Policy {
    replaced: Retention::Delete,
    scaled: Retention::Delete,
    deleted: Retention::Retain,
};

fn set_ready(world: &mut World, ordinal: u32, ready: bool) {
    let slot = slot_of(world, ordinal);
    world.state.node_mut(slot).unwrap().seen.ready = Some(ready);
}

/// Scales the group down; once nothing more happens, the nodes in `ready` become ready. Returns the removed nodes with
/// whether their storage was retained, and the number of requested nodes.
fn scaled_down(
    mut world: World,
    size: u32,
    policy: Policy,
    ready: &[u32],
) -> (Vec<(u32, bool)>, usize) {
    let update = world.groups[0].update;
    let choices = world.groups[0].choices.clone();
    let mut smaller = wanted(size, policy);
    (smaller.update, smaller.choices) = (update, choices);
    world.want(vec![smaller]);
    let (mut removed, mut asked) = run(&mut world);
    for &ordinal in ready {
        if world.state.nodes.iter().any(|node| node.ordinal == ordinal) {
            set_ready(&mut world, ordinal, true);
        }
    }
    let (later, more) = run(&mut world);
    removed.extend(later);
    asked.extend(more);
    let removed = removed
        .into_iter()
        .map(|(ordinal, _, kept)| (ordinal, kept));
    (removed.collect(), asked.len())
}

#[test]
fn who_is_named_is_scaled_away_also_while_another_one_is_not_ready() {
    for (policy, kept) in [(SCALED_IS_KEPT, true), (SCALED_IS_DELETED, false)] {
        let mut world = world(policy);
        let named = slot_of(&world, 1);
        world.mark(named);
        set_ready(&mut world, 2, false);
        world.step();
        assert_eq!(scaled_down(world, 2, policy, &[2]), (vec![(1, kept)], 0));
    }
}

#[test]
fn whom_a_smaller_group_has_too_many_is_scaled_away_at_any_moment_of_an_update() {
    for surge in [0, 1] {
        for steps in 0..12 {
            for policy in [SCALED_IS_KEPT, SCALED_IS_DELETED] {
                let mut world = world(policy);
                let mut next = at_version(world.groups[0].clone(), "v2");
                next.update = rolling(surge, 1 - surge);
                world.want(vec![next]);
                let mut before = Vec::new();
                for _ in 0..steps {
                    let nodes = world.state.clone();
                    let planned = step(&mut world);
                    before.extend(planned.ops.iter().filter_map(|op| match op {
                        Op::Remove { slot, retain, .. } => {
                            Some((nodes.node(*slot).unwrap().ordinal, *retain))
                        }
                        _ => None,
                    }));
                    bury(&mut world);
                    world.now += 1_000;
                }
                // Nodes that already leave without a replacement leave none to be scaled away.
                let nodes = world.state.nodes.iter();
                let too_many = nodes.filter(|node| node.removal.is_none()).count() > 2;
                let (removed, _) = scaled_down(world, 2, policy, &[]);
                before.extend(removed);
                let kept = before.iter().filter(|(_, kept)| *kept).count();
                let told = format!("surge {surge}, {steps} steps: {before:?}");
                if policy.scaled == Retention::Retain {
                    // While it is not known whose replacement exists, it is better to retain one too many.
                    assert!(kept >= usize::from(too_many) && kept <= 2, "{told}");
                } else {
                    assert_eq!(kept, 0, "{told}");
                }
            }
        }
    }
}

#[test]
fn a_sick_or_dead_node_that_is_scaled_away_keeps_what_scaling_keeps() {
    for dead in [false, true] {
        for surge in [0, 1] {
            let mut world = world(SCALED_IS_KEPT);
            world.groups[0].update = rolling(surge, 1 - surge);
            let named = slot_of(&world, 1);
            world.mark(named);
            let node = world.state.node_mut(named).unwrap();
            if dead {
                node.seen.phase = Phase::Failed;
            } else {
                node.seen.ready = Some(false);
                node.state = NodeState::Unhealthy;
                node.state_time = 1;
            }
            let (removed, asked) = scaled_down(world, 2, SCALED_IS_KEPT, &[]);
            assert_eq!(
                (removed, asked),
                (vec![(1, true)], 0),
                "dead: {dead}, surge {surge}"
            );
        }
    }
}
