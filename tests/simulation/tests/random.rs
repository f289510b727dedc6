//! Whole systems under a random operator and random faults.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on fails"
)]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use drover_simulation::random::{self, Summary};
use parking_lot::Mutex;

/// The same ones in each run; `simulate` runs others, and as many as one likes.
const SEEDS: u64 = 40;
const STEPS: usize = 200;

fn first() -> u64 {
    let given = std::env::var("DROVER_SEED").ok();
    given.and_then(|seed| seed.parse().ok()).unwrap_or(0)
}

/// Runs seeds, two at a time.
fn simulate(first: u64, seeds: u64) -> Summary {
    println!("DROVER_SEED={first} ({seeds} seeds from there)");
    let (next, sum) = (AtomicU64::new(first), Mutex::new(Summary::default()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    match random::run(seed, STEPS) {
                        Ok(summary) => sum.lock().add(&summary),
                        Err(failure) => panic!("{failure}"),
                    }
                }
            });
        }
    });
    sum.into_inner()
}

#[test]
fn nobody_is_lost_and_nothing_is_made_twice_whatever_an_operator_does_and_whatever_breaks() {
    let sum = simulate(first(), SEEDS);
    assert_eq!(sum.steps, SEEDS * STEPS as u64);
    // Where every call is refused, nothing is tried.
    let granted = sum.done.values().filter(|(done, _)| *done > 0).count();
    assert!(granted > 25, "{:?}", sum.done);
    assert!(sum.made > sum.steps / 20, "{} nodes were made", sum.made);
}
