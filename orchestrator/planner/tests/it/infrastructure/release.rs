//! Infrastructure is released after the nodes, and its record goes only once it is gone.

use std::time::Duration;

use drover_core::{
    error::Reason,
    resource::{Asked, Observed, ResourcePhase},
};
use drover_planner::{ConditionKind, ResourceChange};

use crate::infrastructure::{
    ALL, answer, asked, asking, changes, condition, ready, refusal, seen, settled, step, wait_for,
    world::{
        World,
        build::{CREATION, HIDDEN, group, sym},
        infrastructure::wanted,
    },
};

#[test]
fn a_removed_entry_is_released_when_no_node_is_left_on_its_platform() {
    let mut world = settled(vec![wanted("a", ALL), wanted("b", "network")]);
    world.want_below(vec![]);
    world.run_for(Duration::from_secs(300));
    assert!(world.record("b").is_none(), "nothing stands on it");
    assert!(world.record("a").is_some_and(|record| !record.releasing));
    assert_eq!(world.site("a").releases, 0);
    world.want(vec![group("data", 0, &["a"])]);
    world.run_for(Duration::from_secs(600));
    assert!(world.state.resources.is_empty() && world.state.nodes.is_empty());
    let now = world.now;
    assert_eq!(world.site("a").present(now), [""; 0]);
    // Wanted again, it is created again.
    world.want_below(vec![wanted("a", "network")]);
    world.want(vec![group("data", 1, &["a"])]);
    world.run_for(Duration::from_secs(120));
    assert_eq!(world.state.nodes.len(), 1);
}

#[test]
fn a_deletion_frees_nodes_first_then_all_infrastructure_then_ends() {
    let mut world = settled(vec![wanted("a", ALL), wanted("b", "network")]);
    world.want_below(Vec::new());
    world.delete();
    world.settle();
    assert!(world.finished);
    world.drain();
    let now = world.now;
    for platform in ["a", "b"] {
        assert_eq!(world.site(platform).present(now), [""; 0]);
    }
}

#[test]
fn gone_is_believed_only_when_nothing_can_come_into_being_any_more() {
    let mut world = asking();
    let deadline = world.record("a").unwrap().deadline;
    answer(&mut world, Asked::Ensure, Err(refusal(Reason::Unavailable)));
    step(&mut world);
    world.delete();
    wait_for(&mut world, Asked::Release);
    assert!(world.now < deadline, "asked at once");
    answer(&mut world, Asked::Release, Ok(seen(ResourcePhase::Gone)));
    let planned = step(&mut world);
    assert_eq!(changes(&planned), [ResourceChange::Learn]);
    assert!(!world.plan().finished);
    wait_for(&mut world, Asked::Release);
    assert!(
        world.now >= deadline + CREATION + HIDDEN,
        "asked again when it proves something"
    );
    answer(&mut world, Asked::Release, Ok(seen(ResourcePhase::Gone)));
    assert_eq!(changes(&step(&mut world)), [ResourceChange::Gone]);
    assert!(step(&mut world).finished);
}

#[test]
fn a_deletion_waits_for_the_call_that_makes_it() {
    let mut world = asking();
    world.delete();
    assert_eq!(asked(&step(&mut world)), None, "one call at a time");
    answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Pending)));
    assert_eq!(wait_for(&mut world, Asked::Release), 0);
    assert!(world.record("a").unwrap().releasing);
}

#[test]
fn what_a_release_waits_for_is_named_once_it_takes_long() {
    let mut world = ready();
    world.state.nodes.clear();
    world.state.requests.clear();
    world.delete();
    let blocked = |world: &World| condition(world, "", ConditionKind::DeletionBlocked);
    let waits = || Observed {
        message: "waits for a finalizer".into(),
        ..seen(ResourcePhase::Releasing)
    };
    wait_for(&mut world, Asked::Release);
    answer(&mut world, Asked::Release, Ok(waits()));
    step(&mut world);
    assert_eq!(blocked(&world), None, "it has just begun");
    let long = world.now + 60_000;
    while world.now < long {
        wait_for(&mut world, Asked::Release);
        answer(&mut world, Asked::Release, Ok(waits()));
        step(&mut world);
    }
    let words = blocked(&world).unwrap();
    assert!(
        words.ends_with("which does not release it: waits for a finalizer"),
        "{words}"
    );
    wait_for(&mut world, Asked::Release);
    answer(
        &mut world,
        Asked::Release,
        Ok(seen(ResourcePhase::Releasing)),
    );
    step(&mut world);
    assert_eq!(blocked(&world), None, "it does not wait any more");
}

#[test]
fn what_keeps_a_deletion_from_ending_is_named() {
    let mut world = ready();
    world.state.nodes.clear();
    world.state.requests.clear();
    world.delete();
    let blocked = |world: &World| condition(world, "", ConditionKind::DeletionBlocked);
    world.set_reachable(&sym("a"), false);
    step(&mut world);
    let words = blocked(&world).unwrap();
    assert!(
        words.contains("infrastructure on a (network main), which cannot be reached"),
        "{words}"
    );
    assert!(!world.plan().finished);
    world.set_reachable(&sym("a"), true);
    let view = world.views.get_mut("a").unwrap();
    (view.visible, view.callable) = (true, true);
    assert_eq!(asked(&step(&mut world)), Some(Asked::Release));
    answer(
        &mut world,
        Asked::Release,
        Err(refusal(Reason::Precondition)),
    );
    step(&mut world);
    let words = blocked(&world).unwrap();
    assert!(
        words.ends_with("which does not release it: in its own words"),
        "{words}"
    );
    assert!(wait_for(&mut world, Asked::Release) <= 60_000, "it goes on");
    let view = world.views.get_mut("a").unwrap();
    view.uid = "another".into();
    answer(
        &mut world,
        Asked::Release,
        Err(refusal(Reason::PlatformMismatch)),
    );
    step(&mut world);
    let words = blocked(&world).unwrap();
    assert!(words.contains("shows another backend"), "{words}");
    world.now += 600_000;
    assert_eq!(
        asked(&step(&mut world)),
        None,
        "another backend is never called for it"
    );
    world.views.clear();
    step(&mut world);
    assert!(blocked(&world).unwrap().contains("is not registered"));
}
