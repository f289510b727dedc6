//! Nodes with storage that all die: who gets the storage of the active one is active again.

use std::time::Duration;

use drover_core::{
    Error,
    node::{Outcome, Role},
    spec::Management,
    storage::{Policy, Retention},
};
use drover_planner::{Op, Orphan};

use super::{ACTIVE, STANDBY, answer, asked, db, dies, gone, step};
use crate::world::{World, build::stored};

/// One active and one standby node whose storage is retained; `active` is the slot of the active one.
fn keeping(active: u64) -> World {
    let keep = Policy {
        replaced: Retention::Retain,
        scaled: Retention::Retain,
        deleted: Retention::Retain,
    };
    let mut world = World::new(1, &["a"]);
    world.run_for(Duration::from_secs(10));
    world.want(vec![stored(db(1, 1), keep)]);
    while !step(&mut world).is_empty() {
        world.now += 1;
    }
    for node in &mut world.state.nodes {
        node.role = if node.slot == active { ACTIVE } else { STANDBY };
    }
    world.now += 3_600_000;
    step(&mut world);
    world
}

/// Ordinal and role of everything that is requested until nothing more is planned. Standby nodes do not become ready:
/// there is no active node to follow.
fn successors(world: &mut World) -> Vec<(u32, Role)> {
    let mut all = Vec::new();
    for _ in 0..50 {
        let planned = step(world);
        for node in &mut world.state.nodes {
            node.seen.ready = Some(node.role == ACTIVE);
        }
        for op in &planned.ops {
            if let Op::Request { nodes, .. } = op {
                all.extend(nodes.iter().map(|node| (node.ordinal, node.role)));
            }
        }
        if planned.is_empty() {
            return all;
        }
        world.now += 1;
    }
    unreachable!("it goes round in circles")
}

#[test]
fn when_all_die_who_gets_the_storage_of_the_active_one_is_active_again() {
    for (active, other) in [(1, 2), (2, 1)] {
        let places = [(active as u32 - 1, ACTIVE), (other as u32 - 1, STANDBY)];
        // Proven gone in any order, or at the same time.
        for order in [vec![active, other], vec![other, active]] {
            let mut world = keeping(active);
            dies(&mut world, 1);
            dies(&mut world, 2);
            assert_eq!(successors(&mut world), [], "their storage is not free yet");
            let mut all = Vec::new();
            for slot in order {
                gone(&mut world, slot);
                all.extend(successors(&mut world));
            }
            all.sort_by_key(|(_, role)| *role == STANDBY);
            assert_eq!(all, places, "active was {active}");
        }
        let mut world = keeping(active);
        dies(&mut world, 1);
        dies(&mut world, 2);
        successors(&mut world);
        gone(&mut world, 1);
        gone(&mut world, 2);
        let mut all = successors(&mut world);
        all.sort_by_key(|(_, role)| *role == STANDBY);
        assert_eq!(all, places, "active was {active}, gone at once");
    }
}

/// The first node dies, the second one acts, and dies as well before the first is proven gone.
#[test]
fn who_acted_last_is_active_again_and_not_who_was_before() {
    let mut world = keeping(1);
    dies(&mut world, 1);
    step(&mut world);
    answer(&mut world, 2, Ok(()));
    successors(&mut world);
    dies(&mut world, 2);
    successors(&mut world);
    gone(&mut world, 2);
    assert_eq!(successors(&mut world), [(1, ACTIVE)]);
    gone(&mut world, 1);
    assert_eq!(successors(&mut world), [(0, STANDBY)]);
}

#[test]
fn what_is_swept_meanwhile_is_not_taken_for_who_acts() {
    let mut world = bereft(2);
    let late = Orphan {
        request: uuid::Uuid::from_u128(5),
        sequence: 1,
        group: "db".into(),
        ordinal: 1,
        platform_uid: world.views["a"].uid.clone(),
        since: world.now - 3_600_000,
        last: world.now,
        ..Orphan::default()
    };
    let key = ("a".into(), "late".into());
    world.state.orphans.insert(key, late);
    assert_eq!(successors(&mut world), []);
    let slot = world.state.nodes[0].slot;
    gone(&mut world, slot);
    assert_eq!(successors(&mut world), []);
    assert!(world.state.nodes.is_empty(), "it is swept");
    world.views.get_mut("a").unwrap().callable = true;
    assert_eq!(successors(&mut world), [(1, ACTIVE), (0, STANDBY)]);
}

/// All nodes have died and are proven gone; none was replaced yet.
fn bereft(active: u64) -> World {
    let mut world = keeping(active);
    dies(&mut world, 1);
    dies(&mut world, 2);
    successors(&mut world);
    world.views.get_mut("a").unwrap().callable = false;
    gone(&mut world, 1);
    gone(&mut world, 2);
    assert_eq!(successors(&mut world), [], "nobody can be asked");
    assert!(world.state.nodes.is_empty(), "and nobody is recorded");
    world
}

#[test]
fn who_was_active_is_known_when_nodes_can_be_made_long_after_their_records_ended() {
    for active in [1, 2] {
        let own = (active as u32 - 1, ACTIVE);
        let other = (2 - active as u32, STANDBY);

        let mut world = bereft(active);
        world.views.get_mut("a").unwrap().callable = true;
        assert_eq!(successors(&mut world), [own, other]);
        assert!(world.state.vacated.is_empty(), "it acts again");

        // One by one, each when the one before it is Ready, and standby nodes only after another node acts.
        let mut world = bereft(active);
        let mut group = world.groups[0].clone();
        group.management = Some(Management::OrderedReady);
        world.want(vec![group]);
        world.views.get_mut("a").unwrap().callable = true;
        assert_eq!(successors(&mut world), [own, other], "in order");
    }
}

#[test]
fn a_place_that_was_left_counts_until_who_is_asked_for_in_it_lives() {
    let mut world = bereft(2);
    let view = world.views.get_mut("a").unwrap();
    (view.callable, view.limits.max_batch) = (true, 1);
    let planned = world.step();
    assert_eq!(asked(&planned), [ACTIVE]);
    let request = world.state.requests.keys().next().copied().unwrap();
    let refused = Outcome::Failed(Error::internal("broken"));
    world.answer(request, Ok(vec![refused]));
    world.now += 3_600_000;
    assert_eq!(successors(&mut world), [(1, ACTIVE), (0, STANDBY)]);
}

#[test]
fn storage_that_nobody_keeps_is_not_waited_for() {
    let mut world = keeping(2);
    let mut delete = db(1, 1);
    delete = stored(
        delete,
        Policy {
            replaced: Retention::Delete,
            scaled: Retention::Delete,
            deleted: Retention::Delete,
        },
    );
    world.want(vec![delete]);
    dies(&mut world, 1);
    dies(&mut world, 2);
    let asked = successors(&mut world);
    let roles: Vec<Role> = asked.into_iter().map(|(_, role)| role).collect();
    assert_eq!(roles, [ACTIVE, STANDBY]);
}
