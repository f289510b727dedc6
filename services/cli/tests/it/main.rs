//! Tests of the command line, started as by a user.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod again;
mod audit;
mod completion;
mod connect;
mod dev;
mod emulate;
mod first_use;
mod hints;
mod home;
mod hosts;
mod secure;
mod socket;
mod terminal;
mod wrong_inputs;
mod yaml;
