//! How long nodes wait for their addons before they go.

use drover_core::{
    Error,
    error::Reason,
    resource::{Asked, ResourcePhase},
    spec::Group,
};
use drover_planner::{Call, Plan};

use super::{
    answer, asked, key, ready, seen, show, step, targets,
    world::{
        self, World,
        addons::addon,
        build::{group, pre_stop, sym},
    },
};
use std::time::Duration;

fn gone(planned: &Plan) -> bool {
    let mut calls = planned.calls.iter();
    calls.any(|call| matches!(call, Call::Deprovision { .. }))
}

fn goes(world: &mut World, slot: u64) -> bool {
    step(world);
    gone(&step(world))
        || world
            .state
            .node(slot)
            .is_none_or(|node| node.in_flight.call.in_flight)
}

/// The slot of the node that is to go.
fn leaving(world: &World) -> u64 {
    let mut nodes = world
        .state
        .nodes
        .iter()
        .filter(|node| node.removal.is_some());
    nodes.next().unwrap().slot
}

#[test]
fn a_node_waits_until_its_addons_have_confirmed_that_it_drains_and_at_most_its_grace() {
    let mut world = ready(group("data", 2, &["a"]));
    let slot = world.state.nodes[1].slot;
    world.want(vec![group("data", 1, &["a"])]);
    let planned = step(&mut world);
    assert_eq!(asked(&planned), [Asked::Ensure], "sent with the same step");
    assert!(targets(&world).contains(&(slot, true)) && !gone(&planned));
    let pending = seen(ResourcePhase::Pending);
    answer(&mut world, Asked::Ensure, Ok(pending));
    assert!(
        !gone(&step(&mut world)),
        "its connections are not taken over yet"
    );
    let mut late = clone_of(&world);
    world.now += 2_000;
    assert_eq!(asked(&step(&mut world)), [Asked::Ensure]);
    answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Ready)));
    step(&mut world);
    assert!(gone(&step(&mut world)) || world.state.node(slot).unwrap().in_flight.call.in_flight);
    // Without a confirmation it goes when its grace is over.
    late.set_reachable(&sym("b"), false);
    late.now += 29_000;
    assert!(!gone(&step(&mut late)));
    late.now += 1_100;
    show(&mut late);
    step(&mut late);
    assert!(gone(&step(&mut late)) || late.state.node(slot).unwrap().in_flight.call.in_flight);
}

/// The world as it is, for another end.
fn clone_of(world: &World) -> World {
    let mut other = World::new(1, &["a", "b"]);
    other.run_for(Duration::from_secs(10));
    other.now = world.now;
    other.groups.clone_from(&world.groups);
    other.want_addons(world.addons.clone());
    other.state = world.state.clone();
    other
}

#[test]
fn the_hook_of_a_node_runs_after_its_addons_let_go_and_has_its_time_besides() {
    let drains = |planned: &Plan| {
        let mut calls = planned.calls.iter();
        calls.any(|call| matches!(call, Call::Drain { .. }))
    };
    // 30 s are the grace and the default of a hook.
    for timeout in [10, 30] {
        let hooked = |size| Group {
            lifecycle: Some(pre_stop(timeout)),
            ..group("data", size, &["a"])
        };
        let mut world = ready(hooked(2));
        world.want(vec![hooked(1)]);
        assert!(!drains(&step(&mut world)));
        let mut late = clone_of(&world);
        answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Ready)));
        assert!(drains(&step(&mut world)), "right after the confirmation");
        late.now += 29_000;
        show(&mut late);
        assert!(!drains(&step(&mut late)));
        late.now += 1_000;
        assert!(drains(&step(&mut late)), "when the grace is over");
        let slot = leaving(&late);
        late.now += timeout * 1_000 - 100;
        show(&mut late);
        assert!(!goes(&mut late, slot), "a hook of {timeout} s has its time");
        late.now += 100;
        assert!(goes(&mut late, slot), "and the drain ends");
    }
}

#[test]
fn a_node_that_was_announced_is_waited_for_although_nothing_was_confirmed() {
    let mut world = ready(group("data", 2, &["a"]));
    let old = targets(&world);
    let pending =
        |world: &mut World| answer(world, Asked::Ensure, Ok(seen(ResourcePhase::Pending)));
    world.want(vec![group("data", 3, &["a"])]);
    let planned = step(&mut world);
    world.answer_all(&planned);
    step(&mut world);
    show(&mut world);
    assert_eq!(asked(&step(&mut world)), [Asked::Ensure]);
    assert_eq!(targets(&world).len(), 3);
    pending(&mut world);
    step(&mut world);
    world.want(vec![group("data", 2, &["a"])]);
    assert_eq!(asked(&step(&mut world)), [Asked::Ensure]);
    let slot = leaving(&world);
    assert!(old.iter().all(|(own, _)| *own != slot), "it is the new one");
    for _ in 0..3 {
        pending(&mut world);
        world.now += 9_000;
        show(&mut world);
        assert!(!goes(&mut world, slot), "it may have connections");
    }
    let mut confirmed = clone_of(&world);
    answer(
        &mut confirmed,
        Asked::Ensure,
        Ok(seen(ResourcePhase::Ready)),
    );
    assert!(goes(&mut confirmed, slot));
    pending(&mut world);
    world.now += 3_100;
    show(&mut world);
    assert!(goes(&mut world, slot), "its grace is over");
}

#[test]
fn a_node_does_not_wait_for_an_addon_that_serves_other_groups() {
    let wanted = |size| vec![group("web", 1, &["a"]), group("data", size, &["a"])];
    let mut world = world::steps::still(wanted(2));
    world.want_addons(vec![addon("lb", "b", &["web"])]);
    for _ in 0..2 {
        let planned = step(&mut world);
        world.answer_all(&planned);
    }
    show(&mut world);
    assert_eq!(asked(&step(&mut world)), [Asked::Ensure]);
    let refused = Error::new(Reason::Invalid, "no port is free");
    answer(&mut world, Asked::Ensure, Err(refused));
    step(&mut world);
    assert!(
        world.state.resources[&key("lb", "b")]
            .in_flight
            .served
            .is_none()
    );
    world.want(wanted(1));
    step(&mut world);
    let slot = leaving(&world);
    assert!(goes(&mut world, slot));
}
