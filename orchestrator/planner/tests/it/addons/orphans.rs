//! Addons and infrastructure of ours without a record: what a store lost is judged as nodes without a record are.

use std::time::Duration;

use drover_core::resource::Asked;
use drover_planner::{ConditionKind, Op, ResourceChange};

use super::{
    asked, holds, ready_targets, settled,
    world::{World, addons::key, build::sym, infrastructure::below, infrastructure::wanted},
};

const GRACE: Duration = Duration::from_secs(120);

/// A settled world with infrastructure, whose store has lost the records of it and of its load balancer, and another
/// process that reads that store.
fn forgotten() -> World {
    let mut world = settled(2);
    world.want_below(vec![wanted("a", "network")]);
    world.run_for(Duration::from_secs(60));
    for key in [key("lb", "b"), below("a")] {
        assert!(world.durable.resources.remove(&key).is_some());
    }
    world.restart();
    world
}

fn there(world: &mut World) -> [bool; 2] {
    let now = world.now;
    let lb = !world.addon("lb", "b").present(now).is_empty();
    [lb, !world.site("a").present(now).is_empty()]
}

#[test]
fn what_nobody_wants_is_released_after_its_grace_by_a_record_of_its_own() {
    let mut world = forgotten();
    world.want_addons(Vec::new());
    world.want_below(Vec::new());
    world.run_for(GRACE - Duration::from_secs(10));
    assert_eq!(there(&mut world), [true, true], "it has its grace");
    let mut taken = Vec::new();
    for _ in 0..200 {
        let planned = world.plan();
        taken.extend(planned.ops.iter().filter_map(|op| match op {
            Op::Resource {
                key,
                change: ResourceChange::TakeIn,
                ..
            } => Some(key.clone()),
            _ => None,
        }));
        for asked in asked(&planned) {
            assert_eq!(asked, Asked::Release);
        }
        if there(&mut world) == [false, true] {
            break;
        }
        world.run_one();
    }
    taken.sort();
    assert_eq!(taken, [below("a"), key("lb", "b")], "each once");
    assert_eq!(
        there(&mut world),
        [false, true],
        "infrastructure stays under nodes that use it"
    );
    assert_eq!(world.living("data").len(), 2);
    world.delete();
    world.settle();
    assert!(world.finished);
    assert_eq!(there(&mut world), [false, false]);
}

#[test]
fn what_is_wanted_gets_its_record_again_and_is_made_once() {
    let mut world = forgotten();
    world.run_for(Duration::from_secs(600));
    assert_eq!(world.addon("lb", "b").made, ["proxy"]);
    assert_eq!(world.site("a").made, ["network"]);
    assert!(world.addon_record("lb", "b").unwrap().is_ready());
    assert!(world.record("a").unwrap().is_ready());
    assert!(world.state.resource_orphans.is_empty());
    assert!(holds(&world, ConditionKind::Orphans).is_none());
}

#[test]
fn a_store_that_never_gave_it_out_is_behind_until_what_is_there_is_adopted() {
    let mut world = settled(2);
    let old = world.durable.clone();
    world.restart();
    world.run_for(Duration::from_secs(60));
    let more = super::addon("jump", "b", &["data"]);
    let both = vec![world.addons[0].clone(), more];
    world.want_addons(both.clone());
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.addon("jump", "b").made, ["proxy"]);
    let newest = world.state.next_sequence;
    // The copy of the store knows neither the addon nor that it is wanted.
    world.durable = old;
    let wanted = vec![world.addons[0].clone()];
    world.want_addons(wanted);
    world.restart();
    world.run_for(Duration::from_secs(3600));
    let behind = holds(&world, ConditionKind::StoreBehind).unwrap();
    assert!(behind.contains("b shows request number"), "{behind}");
    assert!(world.addon("jump", "b").releases == 0 && ready_targets(&mut world) == 2);
    // The spec is as old as the store, so that it does not name it says nothing.
    world.order_adoption();
    world.run_for(Duration::from_secs(3600));
    assert!(holds(&world, ConditionKind::StoreBehind).is_some());
    assert_eq!(world.addon("jump", "b").releases, 0);
    world.want_addons(both);
    world.order_adoption();
    world.run_for(Duration::from_secs(60));
    assert!(holds(&world, ConditionKind::StoreBehind).is_none());
    assert!(world.state.next_sequence >= newest, "it counts on above");
    assert!(world.addon_record("jump", "b").unwrap().is_ready());
    let wanted = vec![world.addons[0].clone()];
    world.want_addons(wanted);
    world.run_for(Duration::from_secs(60));
    let now = world.now;
    assert!(
        world.addon("jump", "b").present(now).is_empty(),
        "as the spec wants"
    );
    assert_eq!(ready_targets(&mut world), 2);
}

#[test]
fn after_a_restore_it_is_left_alone_until_a_person_confirms() {
    let mut world = forgotten();
    world.orphan_hold = true;
    world.want_addons(Vec::new());
    world.run_for(Duration::from_secs(3600));
    assert!(there(&mut world)[0]);
    let kept = holds(&world, ConditionKind::Orphans).unwrap();
    assert!(kept.contains("on b (addon lb)"), "{kept}");
    world.orphan_hold = false;
    world.run_for(Duration::from_secs(3600));
    assert!(!there(&mut world)[0]);
    assert!(holds(&world, ConditionKind::Orphans).is_none());
}

#[test]
fn a_deletion_includes_it_and_names_the_platform_that_hides_it() {
    let mut world = forgotten();
    world.run_for(Duration::from_secs(1));
    world.want_addons(Vec::new());
    world.run_for(Duration::from_secs(10));
    world.set_reachable(&sym("b"), false);
    world.delete();
    world.run_for(Duration::from_secs(3600));
    assert!(!world.finished);
    let blocked = holds(&world, ConditionKind::DeletionBlocked).unwrap();
    assert!(blocked.contains("without a record on b"), "{blocked}");
    world.set_reachable(&sym("b"), true);
    world.settle();
    assert!(world.finished);
    assert_eq!(there(&mut world), [false, false]);
}
