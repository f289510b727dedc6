//! Clients against servers that fail on demand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod bounds;
mod fake;
mod kubernetes;
mod orchestrator;
mod platform;
mod several;
