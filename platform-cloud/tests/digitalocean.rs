//! The driver of DigitalOcean against the emulator: conformance, every fault at every call that changes something, what
//! users see when something is wrong, and all of it against the published specification.
#![cfg(feature = "digitalocean")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "digitalocean/bench.rs"]
mod bench;
#[path = "digitalocean/conformance.rs"]
mod conformance;
#[path = "digitalocean/faults.rs"]
mod faults;
#[path = "digitalocean/launches.rs"]
mod launches;
#[path = "digitalocean/lists.rs"]
mod lists;
#[path = "digitalocean/wrong.rs"]
mod wrong;
