//! The DigitalOcean driver against the emulator: conformance, every mutating call with every fault, error messages for
//! users, and all of it validated against the published specification.
#![cfg(feature = "digitalocean")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod bench;
mod conformance;
mod faults;
mod launches;
mod lists;
mod quota;
mod tags;
mod wrong;
