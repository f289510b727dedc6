//! The Compute Engine driver, through Google's own client, against the emulator: conformance, every mutating call with
//! every fault, and error messages for users.
#![cfg(feature = "gcp")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod bench;
mod conformance;
mod faults;
mod fields;
mod guest;
mod lists;
mod maintenance;
mod wrong;
mod zones;
