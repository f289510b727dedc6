//! The backend against a real API server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod bench;
mod conformance;
mod differential;
mod drain;
mod faults;
mod ingress;
mod inside;
mod kubelet;
mod objects;
mod restarts;
mod wait;
