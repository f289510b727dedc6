//! Stateful emulators of the cloud APIs that the drivers use, with the delays, limits and faults of the real ones.
//!
//! An API is a type that implements [`Api`]: it identifies a request, executes it, and formats its errors. The rest is
//! common: the server, fault injection and the request log ([`Control`]), throttling, the clock, and out-of-band
//! changes ([`Emulator`]).

mod admin;
pub mod base64;
pub mod control;
pub mod digitalocean;
pub mod ec2;
mod emulator;
pub mod gce;
pub mod metal;
pub mod prism;
pub mod server;
pub mod world;

pub use control::{ANY, Control, Fault, Request};
pub use server::{Answer, Api, Call, Emulator, Refusal};
pub use world::{Clock, Hand, Ledger, Machine, Made, Settings};
