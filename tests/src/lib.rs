//! Common parts of the benchmarks.

pub mod process;
