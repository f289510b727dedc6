//! Whole lifecycles with crashes and faults: whatever goes wrong, nothing is left behind.

use drover_planner::ConditionKind;

use crate::infrastructure::{
    ALL, condition, fresh,
    world::{
        self, Crash,
        infrastructure::{SiteFaults, wanted},
    },
};

/// Runs a lifecycle with crashes at the given passes. Returns the number of passes.
fn life(seed: u64, crashes: &[(usize, Crash)], faults: SiteFaults, hurry: Option<usize>) -> usize {
    let mut world = fresh(seed, vec![wanted("a", ALL), wanted("b", "network")], 2);
    for platform in ["a", "b"] {
        world.site(platform).faults = faults;
    }
    let begun = world.passes;
    let mut deleted = false;
    let end = world.now + 24 * 3_600_000;
    while !world.finished {
        let pass = world.passes - begun;
        if !deleted && hurry.is_some_and(|at| pass >= at) {
            deleted = true;
            world.want_below(Vec::new());
            world.delete();
        }
        world.crash = crashes
            .iter()
            .find(|(at, _)| *at == pass)
            .map(|(_, crash)| *crash);
        world.run_one();
        assert!(
            world.now < end,
            "seed {seed}: not ended after a day: {:?}",
            world.plan()
        );
        if !deleted && condition(&world, "", ConditionKind::Ready).is_some() {
            deleted = true;
            world.want_below(Vec::new());
            world.delete();
        }
    }
    let passes = world.passes - begun;
    world.drain();
    let now = world.now;
    for platform in ["a", "b"] {
        let left = world.site(platform).present(now);
        assert!(
            left.is_empty(),
            "seed {seed}, crashes {crashes:?}: leaked {left:?} on {platform}"
        );
        assert!(
            world.platforms[platform]
                .things
                .values()
                .all(world::backend::Thing::is_dead)
        );
    }
    passes
}

#[test]
fn it_dies_at_every_pass_of_a_life_and_leaves_nothing() {
    let mut points = 0;
    for crash in [Crash::BeforeCommit, Crash::BeforeCalls, Crash::AfterCalls] {
        for faults in [
            SiteFaults::default(),
            SiteFaults {
                lost: 2,
                ..SiteFaults::default()
            },
        ] {
            let mut at = 0;
            while life(1, &[(at, crash)], faults, None) > at {
                at += 1;
                points += 1;
                assert!(at < 2_000, "the life does not end");
            }
        }
    }
    println!("{points} points, 0 leaked");
    assert!(points > 150, "{points}");
}

#[test]
fn it_is_deleted_at_every_pass_of_its_making_and_leaves_nothing() {
    for hurry in 0..60 {
        for crash in [Crash::BeforeCommit, Crash::BeforeCalls, Crash::AfterCalls] {
            let faults = SiteFaults {
                lost: 3,
                failed: 4,
                half: 3,
            };
            let near = (hurry.max(1) - 1, crash);
            life(
                hurry as u64,
                &[near, (hurry + 3, crash)],
                faults,
                Some(hurry),
            );
        }
    }
}

#[test]
fn nothing_is_left_whatever_goes_wrong() {
    let first = std::env::var("DROVER_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seeds = first.map_or(0..300, |first: u64| first..first + 1);
    for seed in seeds {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let faults = SiteFaults {
            lost: random.u32(0..6),
            failed: random.u32(0..6).max(2) - 2,
            half: random.u32(0..4),
        };
        let faults = SiteFaults {
            failed: if faults.failed == 1 { 2 } else { faults.failed },
            lost: if faults.lost == 1 { 2 } else { faults.lost },
            half: if faults.half == 1 { 2 } else { faults.half },
        };
        let all = [Crash::BeforeCommit, Crash::BeforeCalls, Crash::AfterCalls];
        let crashes: Vec<(usize, Crash)> = (0..random.usize(0..12))
            .map(|_| (random.usize(0..80), all[random.usize(..3)]))
            .collect();
        let hurry = random.bool().then(|| random.usize(0..80));
        life(seed, &crashes, faults, hurry);
    }
}
