//! Rows of a benchmark's table.
#![allow(clippy::print_stdout, reason = "the table is what a benchmark is for")]

use std::time::Duration;

/// Prints a row.
pub fn row(what: &str, measured: impl std::fmt::Display, target: &str) {
    println!("| {what} | {measured} | {target} |");
}

/// The value below which this share of all lies, in percent.
#[must_use]
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// A time in ms.
#[must_use]
pub fn ms(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1000.0)
}
