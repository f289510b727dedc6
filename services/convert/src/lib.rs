//! Conversion between protos and the domain, and between errors and gRPC statuses. All such conversions are in this
//! crate.

pub mod addon;
pub mod chunk;
pub mod error;
pub mod infrastructure;
pub mod lifecycle;
pub mod node;
pub mod secrecy;
pub mod selector;
pub mod spec;
pub mod template;
pub mod value;
