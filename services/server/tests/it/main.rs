//! Common functionality of all servers: limits, access, certificates, settings, telemetry.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod access;
mod audit_log;
mod binary;
mod calls;
mod common;
mod hosts;
mod limits;
mod revoked;
mod roles;
mod server;
mod settings;
mod telemetry;
mod tls;
