//! The Replicante Platform API over the real server on loopback, called as its clients call it: with literal documents
//! over HTTP.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

#[path = "replicante/behaviour.rs"]
mod behaviour;
#[path = "replicante/client.rs"]
mod client;
#[path = "replicante/documents.rs"]
mod documents;
#[path = "replicante/faults.rs"]
mod faults;
mod local_support;
#[path = "replicante/processes.rs"]
mod processes;
