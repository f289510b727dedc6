//! The orchestrator as seen by its callers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod abuse;
mod api;
mod replicas;
mod start;
mod store_command;
mod tls;
