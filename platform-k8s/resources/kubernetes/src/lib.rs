//! The resources of one Kubernetes over its API server.

pub mod client;
mod convert;
pub mod errors;
pub mod ingress;
