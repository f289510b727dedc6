//! Stores in worlds in which things happen by themselves: whatever breaks, nothing that was acknowledged is lost.

use std::time::Duration;

use drover_core::{
    spec::{Amount, Group, Remediation},
    storage::Policy,
};

use super::db;
use crate::{
    chaos::for_seeds,
    world::{
        Crash, World,
        backend::Faults,
        build::stored,
        sole::{needing, strict},
    },
};

/// A store in a world in which things happen by themselves, in its desired state.
fn settled(seed: u64, group: Group) -> World {
    let mut world = World::new(seed, &["a"]);
    world.want(vec![group]);
    settle(&mut world);
    world
}

/// Runs until nothing is left to happen. All nodes are Ready then, and nobody goes on alone.
fn settle(world: &mut World) {
    world.settle();
    world.assert_converged();
    assert!(world.state.sole.is_empty(), "{:?}", world.state.sole);
    assert!(!world.writes_alone("db"));
}

#[test]
fn a_store_goes_on_without_its_standby_only_if_that_is_allowed() {
    for (group, goes_on) in [(db(1), true), (strict(db(1)), false)] {
        let mut world = settled(1, group);
        world.platforms.get_mut("a").unwrap().capacity = 0;
        world.dies(2);
        world.run_for(Duration::from_secs(60));
        assert_eq!(world.writes_alone("db"), goes_on);
        world.platforms.get_mut("a").unwrap().capacity = usize::MAX;
        settle(&mut world);
    }
}

/// What the next test relies on: a loss is seen.
#[test]
#[should_panic(expected = "what db acknowledged is lost")]
fn without_its_record_what_was_acknowledged_alone_is_lost() {
    let mut world = settled(1, needing(db(2), 2));
    world.platforms.get_mut("a").unwrap().capacity = 0;
    world.dies(2);
    while !world.writes_alone("db") {
        world.run_one();
    }
    for state in [&mut world.state, &mut world.durable] {
        state.sole.remove("db");
    }
    world.dies(1);
    world.settle();
}

/// Something breaks, or the process ends.
fn disturb(world: &mut World, rng: &mut fastrand::Rng) {
    world.set_faults(Faults {
        provision: rng.u64(0..40),
        deprovision: rng.u64(0..60),
        role_change: rng.u64(0..60),
        ..Faults::default()
    });
    let ids = world.ids();
    match rng.u8(0..8) {
        0 => world.restart(),
        1 => world.crash = Some(Crash::BeforeCommit),
        2 => world.crash = Some(Crash::BeforeCalls),
        3 => world.crash = Some(Crash::AfterCalls),
        _ if ids.is_empty() => {}
        _ => {
            let (platform, id) = &ids[rng.usize(0..ids.len())];
            world.kill(platform, id);
        }
    }
}

/// If nobody acts because a sole writer is lost, a user does without what only it had.
fn accept(world: &mut World) {
    if let Some(slot) = world.lost_sole_writer("db") {
        world.accept_loss(slot);
    }
}

#[test]
fn nothing_that_was_acknowledged_is_lost_whatever_breaks() {
    for_seeds(40, |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let standby = rng.u32(1..=2);
        let mut group = needing(db(standby), rng.u32(1..=standby));
        group.remediation = Remediation {
            max_unhealthy: Amount::Percent(100),
            ..Remediation::default()
        };
        // Storage that is kept comes back; without it a lost sole writer is missed for good.
        let keeps = rng.bool();
        if keeps {
            group = stored(group, Policy::default());
        }
        let mut world = settled(seed, group);
        for _ in 0..rng.usize(4..16) {
            disturb(&mut world, &mut rng);
            let span = match rng.u8(0..4) {
                0 => rng.u64(0..10),
                1 => rng.u64(0..3_000),
                2 => rng.u64(0..30_000),
                _ => rng.u64(0..400_000),
            };
            world.run_for(Duration::from_millis(span));
            if !keeps && rng.bool() {
                accept(&mut world);
            }
        }
        world.set_faults(Faults::default());
        world.run_for(Duration::from_secs(2 * 3600));
        if !keeps {
            accept(&mut world);
        }
        settle(&mut world);
    });
}
