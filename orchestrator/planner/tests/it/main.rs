//! Decisions of the planner, rule by rule and over random worlds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod addons;
mod adopt;
mod chaos;
mod explore;
mod grow;
mod impaired;
mod infrastructure;
mod labels;
mod lost_hosts;
mod maintenance;
mod order;
mod outlook;
mod placement;
mod rollout;
mod rules;
mod scenarios;
mod sole;
mod standby;
mod starts;
mod storage;
mod template;
mod world;
