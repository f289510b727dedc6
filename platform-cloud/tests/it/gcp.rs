//! The driver of Compute Engine, through Google's own client, against the emulator: conformance, every fault at every
//! call that changes something, and what users see when something is wrong.
#![cfg(feature = "gcp")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod bench;
mod conformance;
mod faults;
mod lists;
mod wrong;
