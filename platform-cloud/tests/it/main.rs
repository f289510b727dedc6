//! Tests of the platform server: its drivers against emulators and processes, and the guarantees that all of them
//! share.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod aws;
mod binary;
mod changes;
mod conformance;
mod defects;
mod digitalocean;
mod gcp;
mod local;
mod local_conformance;
mod local_crash;
mod local_support;
mod metal;
mod replicante;
mod simulated;
mod texts;
