//! The driver of Compute Engine, through Google's own client, against the emulator: conformance, every fault at every
//! call that changes something, and what users see when something is wrong.
#![cfg(feature = "gcp")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "gcp/bench.rs"]
mod bench;
#[path = "gcp/conformance.rs"]
mod conformance;
#[path = "gcp/faults.rs"]
mod faults;
#[path = "gcp/lists.rs"]
mod lists;
#[path = "gcp/wrong.rs"]
mod wrong;
