//! Stores for tests: one in memory, one that fails on demand, and the suite that every backend passes.

pub mod conformance;
mod fault;
mod memory;

pub use fault::{Fault, FaultBackend};
pub use memory::MemoryBackend;
