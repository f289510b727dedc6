//! The platform server against a real API server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod addons;
mod adoption;
mod backend;
mod bench;
mod conformance;
mod deprovision;
mod direct;
mod discovery;
mod doomed;
mod drains;
mod encoding;
mod faults;
mod group_secrets;
mod grow;
mod hosts;
mod labels;
mod limits;
mod lost_hosts;
mod outages;
mod owners;
mod process;
mod provision;
mod rbac;
mod replicante;
mod rig;
mod secrecy;
mod storage;
mod story;
mod templates;
mod update;
mod watch;
mod writers;
mod wrong;
