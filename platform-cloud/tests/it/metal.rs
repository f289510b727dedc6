//! The metal-stack driver against the emulator: conformance, infrastructure interrupted after every call, every
//! mutating call with every fault, the defects of the Cluster API provider, and all of it validated against the
//! published specification.
#![cfg(feature = "metal")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod bench;
mod conformance;
mod defects;
mod endpoint;
mod faults;
mod infrastructure;
mod machines;
mod namespaces;
mod stores;
mod wrong;
