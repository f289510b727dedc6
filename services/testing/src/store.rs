//! Stores for tests: an in-memory one, one that fails on demand, and the conformance suite of all backends.

pub mod conformance;
mod fault;
mod leases;
mod memory;

pub use fault::{Fault, FaultBackend};
pub use leases::LongLeases;
pub use memory::MemoryBackend;
