//! Complete systems under a random operator and random faults.
#![allow(clippy::panic, reason = "a test that cannot go on fails")]

use std::path::Path;

use drover_simulation::runs::{self, Runs};

/// The same seeds in every run; use `simulate` for others, and for any number of them.
const SEEDS: u64 = 100;
const STEPS: usize = 200;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_simulate"))
}

#[test]
fn nobody_is_lost_and_nothing_is_made_twice_whatever_an_operator_does_and_whatever_breaks() {
    let first = drover_testing::seed::seeds(SEEDS).start;
    let report = Runs::new(program(), first, SEEDS, STEPS).run(|_, _| {});
    if let Some(failure) = report.failures.first() {
        panic!("{failure}");
    }
    let sum = report.sum;
    assert_eq!(sum.steps, SEEDS * STEPS as u64);
    // If every call were refused, nothing would be tested.
    let granted = sum.done.values().filter(|(done, _)| *done > 0).count();
    assert!(granted > 25, "{:?}", sum.done);
    assert!(sum.made > sum.steps / 20, "{} nodes were made", sum.made);
    // Nor would it be if nobody were overtaken while calls are on their way.
    let (late, _) = sum.done["a request of one that was overtaken arrives"];
    assert!(late > SEEDS, "{late} late requests");
}

/// Includes random choices of libraries, the order of hash maps, and the order in which tasks are polled.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_seed_does_the_same_again_step_for_step() {
    for seed in drover_testing::seed::seeds(4) {
        let [once, again] = [(); 2].map(|()| match runs::one(program(), seed, STEPS) {
            Ok(summary) => summary.trace,
            Err(failure) => panic!("{failure}"),
        });
        assert!(once.len() > STEPS, "{once:?}");
        for (one, other) in once.iter().zip(&again) {
            assert_eq!(one, other, "seed {seed}");
        }
        assert_eq!(once.len(), again.len(), "seed {seed}");
    }
}
