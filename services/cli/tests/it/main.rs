//! Tests of the command line, started as by a user.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod audit;
mod dev;
mod emulate;
mod first_use;
mod home;
mod hosts;
mod secure;
mod socket;
mod terminal;
mod wrong_inputs;
