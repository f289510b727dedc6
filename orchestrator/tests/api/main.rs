//! The services of the orchestrator, called as users call them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

mod abandon;
mod access;
mod apply;
mod changes;
mod events;
mod fuzz;
mod placement;
mod reads;
mod registry;
mod replicante;
mod restart;
mod rollout;
mod scope;
mod support;
mod unsupported;
mod user_data;
mod watch;
