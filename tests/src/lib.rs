//! Common parts of the benchmarks.

pub mod fleet;
pub mod process;
pub mod table;
