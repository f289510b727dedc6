//! The driver of metal-stack against the emulator: conformance, infrastructure killed after every call, every fault at
//! every call that changes something, the defects of the provider for Cluster API, and all of it against the published
//! specification.
#![cfg(feature = "metal")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod bench;
mod conformance;
mod defects;
mod faults;
mod infrastructure;
mod machines;
mod wrong;
