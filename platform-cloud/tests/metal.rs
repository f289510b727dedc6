//! The driver of metal-stack against the emulator: conformance, infrastructure killed after every call, every fault at
//! every call that changes something, the defects of the provider for Cluster API, and all of it against the published
//! specification.
#![cfg(feature = "metal")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "metal/bench.rs"]
mod bench;
#[path = "metal/conformance.rs"]
mod conformance;
#[path = "metal/defects.rs"]
mod defects;
#[path = "metal/faults.rs"]
mod faults;
#[path = "metal/infrastructure.rs"]
mod infrastructure;
#[path = "metal/machines.rs"]
mod machines;
#[path = "metal/wrong.rs"]
mod wrong;
