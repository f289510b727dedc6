//! The EC2 driver against the emulator and against moto, an independent EC2.
#![cfg(feature = "aws")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

#[path = "aws/bench.rs"]
mod bench;
#[path = "aws/conformance.rs"]
mod conformance;
#[path = "aws/driver.rs"]
mod driver;
#[path = "aws/faults.rs"]
mod faults;
#[path = "aws/infrastructure.rs"]
mod infrastructure;
#[path = "aws/wrong.rs"]
mod wrong;
