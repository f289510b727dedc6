//! The code generated from the `.proto` files beside this crate, and nothing else.
//!
//! The comments in those files are the reference of the API.
#![allow(missing_docs, clippy::all)]

mod redact;

include!(concat!(env!("OUT_DIR"), "/protos.rs"));

/// Messages and services of Drover, by package.
pub use drover::{agent, common, kubernetes, orchestrator, platform};

/// The serialized `google.protobuf.FileDescriptorSet` of all protos, comments included, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
