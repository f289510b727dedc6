//! The fake, and the services over it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod conformance;
mod remote;
mod service;
