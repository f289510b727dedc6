//! The driver of DigitalOcean against the emulator: conformance, every fault at every call that changes something, what
//! users see when something is wrong, and all of it against the published specification.
#![cfg(feature = "digitalocean")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod bench;
mod conformance;
mod faults;
mod launches;
mod lists;
mod wrong;
