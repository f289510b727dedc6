//! What benchmarks share.

pub mod process;
