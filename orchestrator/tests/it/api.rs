//! The services of the orchestrator, called like a user would.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use drover_testing::certs;

mod abandon;
mod access;
mod addons;
mod apply;
mod audited;
mod certificates;
mod changes;
mod claims;
mod events;
mod failover;
mod grants;
mod health;
mod labels;
mod late;
mod placement;
mod purposes;
mod reads;
mod registry;
mod replicante;
mod restart;
mod rollout;
mod scope;
mod secrecy;
mod secrets;
mod storage;
mod support;
mod template;
mod totals;
mod unsupported;
mod user_data;
mod watch;
