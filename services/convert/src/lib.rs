//! Between the protos and the domain, and between errors and gRPC statuses: the only place where either happens.

pub mod error;
