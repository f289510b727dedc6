//! What a cluster is: names, ids, specs, node records, observations, validation and errors.
//!
//! Pure: no I/O, no clock, no async runtime, no gRPC.

pub mod error;

pub use error::{Class, Error, Reason, Result};
