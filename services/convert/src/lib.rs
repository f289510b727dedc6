//! Between the protos and the domain, and between errors and gRPC statuses: the only place where either happens.

pub mod error;
pub mod infrastructure;
pub mod lifecycle;
pub mod node;
pub mod secrecy;
pub mod spec;
pub mod value;
