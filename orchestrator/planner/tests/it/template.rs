//! Changed templates: a node of an earlier one is outdated, as far as both are known.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what must be there fails the test if it is not"
)]

use crate::world;

use drover_core::{
    Phase,
    error::{Error, Reason},
    node::{Outcome, RemovalReason},
    spec::Group,
};
use drover_planner::{Call, Op, Plan, apply};
use world::{
    World,
    build::{group, of_template, on_delete, rolling, sym},
    removals,
    steps::still,
};

/// Three nodes of template t1, Ready for an hour.
fn world(change: impl Fn(&mut Group)) -> World {
    let mut first = of_template(group("data", 3, &["a"]), "t1");
    first.update = rolling(1, 0);
    change(&mut first);
    let mut world = still(vec![first]);
    while !step(&mut world, None).is_empty() {
        world.now += 1;
    }
    world.now += 3_600_000;
    world
}

/// Changes the template of the platforms. `None` if it is not known.
fn template(world: &mut World, digest: Option<&str>) {
    let group = &mut world.groups[0];
    match digest {
        Some(digest) => *group = of_template(group.clone(), digest),
        None => group.choices.iter_mut().for_each(|one| one.template = None),
    }
}

/// One plan, with everything that it requests done immediately. `rendered`: the template that the platform reports to
/// have used.
fn step(world: &mut World, rendered: Option<&str>) -> Plan {
    let planned = world.step();
    world.answer_all(&planned);
    for call in &planned.calls {
        if let Call::Provision { request, .. } = call {
            world
                .state
                .requests
                .get_mut(request)
                .unwrap()
                .in_flight
                .rendered = rendered.map(sym);
        }
    }
    for node in &mut world.state.nodes {
        node.seen.gone = node.removal.is_some();
    }
    world.show_all();
    planned
}

/// Steps until nothing is left to do. Returns the removals, in order.
fn run(world: &mut World, rendered: Option<&str>) -> Vec<(u64, RemovalReason)> {
    let mut removed = Vec::new();
    for _ in 0..100 {
        let planned = step(world, rendered);
        removed.extend(removals(&planned));
        world.now += 1_000;
        if planned.is_empty() {
            return removed;
        }
    }
    panic!("goes on for ever: {:?}", world.state.nodes);
}

fn templates(world: &World) -> Vec<&str> {
    world
        .state
        .nodes
        .iter()
        .map(|node| &*node.template)
        .collect()
}

fn outdated(slots: &[u64]) -> Vec<(u64, RemovalReason)> {
    let one = |slot: &u64| (*slot, RemovalReason::Outdated);
    slots.iter().map(one).collect()
}

#[test]
fn nodes_of_an_earlier_template_are_rolled_one_by_one() {
    let mut world = world(|_| {});
    assert_eq!(templates(&world), ["t1"; 3]);
    assert_eq!(run(&mut world, None), []);
    template(&mut world, Some("t2"));
    let planned = step(&mut world, None);
    assert_eq!(planned.renewals[0].order, [3, 2, 1]);
    assert_eq!(removals(&planned), [], "its successor comes first");
    let rollout = world.state.rollouts.get(&sym("data")).unwrap().clone();
    assert_eq!((&*rollout.target, rollout.left), ("v1-a/t2", 3));
    assert!(
        world.state.nodes[0].template == sym("t1")
            && rollout.changes_template(&world.state.nodes[0])
    );
    assert_eq!(run(&mut world, None), outdated(&[3, 2, 1]));
    assert_eq!(templates(&world), ["t2"; 3]);
    assert!(world.state.rollouts.is_empty());
}

#[test]
fn going_back_is_free() {
    let mut world = world(|_| {});
    template(&mut world, Some("t2"));
    while !templates(&world).contains(&"t2") {
        step(&mut world, None);
    }
    template(&mut world, Some("t1"));
    let removed = run(&mut world, None);
    assert_eq!(
        removed.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(),
        [4]
    );
    assert_eq!(templates(&world), ["t1"; 3]);
    assert!(world.state.rollouts.is_empty());
}

#[test]
fn what_is_not_known_replaces_nothing() {
    let mut world = world(|_| {});
    // Its platform has not been reached since the start.
    template(&mut world, None);
    assert_eq!(run(&mut world, None), []);
    // Adopted, or created before templates had digests.
    world.state.nodes[1].template = sym("");
    template(&mut world, Some("t2"));
    assert_eq!(run(&mut world, None), outdated(&[3, 1]));
    assert_eq!(templates(&world), ["", "t2", "t2"]);
}

#[test]
fn an_update_goes_on_after_a_start_in_which_its_platform_is_not_there_at_first() {
    let mut world = world(|_| {});
    template(&mut world, Some("t2"));
    step(&mut world, None);
    let before = world.state.rollouts.get(&sym("data")).unwrap().clone();
    world.now += 60_000;
    template(&mut world, None);
    let visible = |world: &mut World, visible| {
        let view = world.views.get_mut(&sym("a")).unwrap();
        (view.visible, view.callable) = (visible, visible);
    };
    visible(&mut world, false);
    assert_eq!(run(&mut world, None), []);
    visible(&mut world, true);
    template(&mut world, Some("t2"));
    let mut removed = removals(&step(&mut world, None));
    let after = world.state.rollouts.get(&sym("data")).unwrap();
    assert_eq!(
        (&before.target, before.started),
        (&after.target, after.started)
    );
    removed.extend(run(&mut world, None));
    assert_eq!(removed, outdated(&[3, 2, 1]));
    assert_eq!(templates(&world), ["t2"; 3]);
}

#[test]
fn the_word_of_the_platform_goes_before_what_was_expected() {
    let mut world = world(|_| {});
    template(&mut world, Some("t2"));
    // The platform already has a newer one that was not reported yet.
    while !templates(&world).contains(&"t3") {
        step(&mut world, Some("t3"));
    }
    let newest = world.state.nodes.last().unwrap().slot;
    template(&mut world, Some("t3"));
    let removed = run(&mut world, Some("t3"));
    assert!(
        removed.iter().all(|(slot, _)| *slot != newest),
        "{removed:?}"
    );
    assert_eq!(templates(&world), ["t3"; 3]);
    // It does not report which one it used: nothing is concluded from that.
    template(&mut world, Some("t4"));
    run(&mut world, Some(""));
    assert_eq!(templates(&world), [""; 3]);
}

#[test]
fn a_node_is_not_judged_by_its_template_while_its_request_is_open() {
    let mut world = world(|_| {});
    template(&mut world, Some("t2"));
    let planned = world.plan();
    apply(&mut world.state, &planned.ops, world.now);
    world.counter += 10;
    let Some(Op::Request { request, .. }) = planned
        .ops
        .iter()
        .find(|op| matches!(op, Op::Request { .. }))
    else {
        panic!("{planned:?}");
    };
    let id = request.id;
    let now = world.now;
    let node = world.state.nodes.last_mut().unwrap();
    node.seen.node_id = "i-4".into();
    (node.seen.phase, node.seen.ready, node.seen.last) = (Phase::Running, Some(true), now);
    let slot = node.slot;
    template(&mut world, Some("t3"));
    for _ in 0..5 {
        let planned = world.plan();
        assert!(
            removals(&planned).iter().all(|(gone, _)| *gone != slot),
            "{planned:?}"
        );
        apply(&mut world.state, &planned.ops, world.now);
    }
    world.answer(id, Ok(vec![Outcome::Made("i-4".into())]));
    world
        .state
        .requests
        .get_mut(&id)
        .unwrap()
        .in_flight
        .rendered = Some(sym("t3"));
    let removed = run(&mut world, Some("t3"));
    assert!(removed.iter().all(|(gone, _)| *gone != slot), "{removed:?}");
    assert_eq!(templates(&world), ["t3"; 3]);
}

#[test]
fn on_delete_and_pause_hold_for_templates_too() {
    let mut held = world(|group| group.update = on_delete());
    template(&mut held, Some("t2"));
    assert_eq!(run(&mut held, None), []);
    held.state.nodes[1].seen.phase = Phase::Failed;
    assert_eq!(run(&mut held, None), [(2, RemovalReason::Dead)]);
    assert_eq!(templates(&held), ["t1", "t1", "t2"]);

    let mut paused = world(|_| {});
    paused.state.paused = true;
    template(&mut paused, Some("t2"));
    assert_eq!(run(&mut paused, None), []);
    paused.state.paused = false;
    assert_eq!(run(&mut paused, None).len(), 3);
}

#[test]
fn failures_of_a_template_do_not_hold_back_the_next_one() {
    let mut world = world(|_| {});
    template(&mut world, Some("t2"));
    for _ in 0..5 {
        let planned = world.plan();
        apply(&mut world.state, &planned.ops, world.now);
        world.counter += 10;
        let refused = || Error::new(Reason::Precondition, "template web.yaml, line 3: undefined");
        for call in &planned.calls {
            if let Call::Provision { request, .. } = call {
                world.answer(*request, Err(refused()));
            }
        }
    }
    let back_off = world.state.backoffs.values().next().unwrap().clone();
    assert_eq!(&*back_off.template, "t2");
    assert_eq!(removals(&world.plan()), []);
    template(&mut world, Some("t3"));
    let removed = run(&mut world, None);
    assert_eq!(removed, outdated(&[3, 2, 1]));
    assert!(
        world.state.backoffs.is_empty(),
        "{:?}",
        world.state.backoffs
    );
}

#[test]
fn the_limit_of_a_choice_leaves_room_for_successors_of_another_template() {
    let mut world = world(|group| {
        group.choices.push(world::build::choice("b", "v1"));
        group.choices[0].max = Some(3);
        group.choices[1].template = group.choices[0].template.clone();
    });
    template(&mut world, Some("t2"));
    run(&mut world, None);
    let platforms: Vec<&str> = world.state.nodes.iter().map(|n| &*n.platform).collect();
    assert_eq!(platforms, ["a"; 3], "as after a change of the spec");
}
