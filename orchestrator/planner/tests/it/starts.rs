//! What a process says before it has looked: it begins with records, and knows nothing of what runs.

#![allow(
    clippy::expect_used,
    reason = "what must be there fails the test if it is not"
)]

use std::time::Duration;

use drover_core::{Millis, Phase, node::Seen};
use drover_planner::{ConditionKey, ConditionKind};

use crate::{
    scenarios::{removed, settled},
    world::{World, build::sym},
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Since when a cluster is Ready.
fn ready_since(world: &World) -> Option<Millis> {
    let key = ConditionKey {
        group: sym(""),
        kind: ConditionKind::Ready,
    };
    Some(world.state.conditions.get(&key)?.since)
}

#[test]
fn a_process_that_begins_takes_nothing_back_before_it_has_looked() {
    let mut world = settled(3);
    let before = ready_since(&world).expect("it is ready");
    world.run_for(HOUR);
    world.restart();
    assert!(world.plan().ops.is_empty(), "{:?}", world.plan().ops);
    // Nor when its platform has shown a part of what is there.
    let now = world.now;
    let seen = &mut world.state.nodes[0].seen;
    (seen.phase, seen.ready, seen.last) = (Phase::Running, Some(true), now);
    assert!(world.plan().ops.is_empty(), "{:?}", world.plan().ops);
    for contradicts in [
        |seen: &mut Seen| seen.phase = Phase::Failed,
        |seen: &mut Seen| seen.ready = Some(false),
        |seen: &mut Seen| seen.unlisted = true,
    ] {
        let before = world.state.nodes[0].seen.clone();
        contradicts(&mut world.state.nodes[0].seen);
        assert!(!world.plan().ops.is_empty(), "it is not ready");
        world.state.nodes[0].seen = before;
    }
    world.settle();
    world.assert_converged();
    assert_eq!(ready_since(&world), Some(before), "it was so all the time");
}

#[test]
fn who_died_while_nobody_looked_makes_it_degraded_as_soon_as_it_is_seen() {
    let mut world = settled(3);
    let (platform, id) = world.ids()[0].clone();
    world.kill(&platform, &id);
    world.restart();
    let began = world.now;
    while ready_since(&world).is_some() {
        world.run_one();
    }
    assert!(world.now < began + 60_000, "once its platform has answered");
    world.settle();
    world.assert_converged();
}

#[test]
fn a_platform_that_stays_away_after_a_start_is_not_believed_for_ever() {
    let mut world = settled(3);
    world.set_reachable(&sym("a"), false);
    world.restart();
    let began = world.now;
    world.run_for(MINUTE - Duration::from_millis(1));
    assert!(ready_since(&world).is_some());
    world.run_for(Duration::from_secs(1));
    assert!(ready_since(&world).is_none());
    assert!(world.now >= began + 60_000);
    assert_eq!(removed(&world), 0, "nor is it taken for empty");
}
