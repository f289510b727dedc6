//! Reproducible random input.

#![allow(
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail when they cannot go on, and say which one they were"
)]

use std::ops::Range;

const VARIABLE: &str = "DROVER_SEED";

fn given() -> Option<u64> {
    let text = std::env::var(VARIABLE).ok()?;
    let seed = text.parse();
    Some(seed.unwrap_or_else(|_| panic!("{VARIABLE}: expected a whole number, not {text:?}")))
}

/// The seed of a test: `DROVER_SEED`, or a new one each time. It is printed.
///
/// # Panics
///
/// If the variable is not a number.
#[must_use]
pub fn seed() -> u64 {
    let seed = given().unwrap_or_else(|| fastrand::u64(..));
    println!("{VARIABLE}={seed} repeats it");
    seed
}

/// Seeds of a test that uses the same ones each time: `count` from `DROVER_SEED` on, or from 0.
///
/// # Panics
///
/// If the variable is not a number.
#[must_use]
pub fn seeds(count: u64) -> Range<u64> {
    let first = given().unwrap_or_default();
    println!("{VARIABLE}={first} repeats it");
    first..first + count
}
