//! The fake, and the services over it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod access;
mod cluster;
mod conformance;
mod remote;
mod roles;
mod service;
