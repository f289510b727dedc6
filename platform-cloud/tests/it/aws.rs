//! The EC2 driver against the emulator and against moto, an independent EC2 implementation.
#![cfg(feature = "aws")]
mod bench;
mod conformance;
mod driver;
mod faults;
mod infrastructure;
mod wrong;
