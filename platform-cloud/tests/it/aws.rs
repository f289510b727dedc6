//! The EC2 driver against the emulator and against moto, an independent EC2 implementation.
#![cfg(feature = "aws")]
mod account;
mod bench;
mod conformance;
mod driver;
mod endpoint;
mod faults;
mod infrastructure;
mod launch_templates;
mod limits;
mod status;
mod wrong;
