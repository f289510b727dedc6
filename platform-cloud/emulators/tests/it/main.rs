//! Tests of the emulators through SDKs and clients.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod common;
mod ec2_calls;
mod ec2_instances;
mod ec2_network;
mod faults;
