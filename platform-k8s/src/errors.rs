//! Failures of the API server as domain errors, see [`drover_resources_kubernetes::errors`].

use drover_core::Error;

pub use drover_resources_kubernetes::errors::*;

/// Like [`unreadable`], for protobuf.
#[must_use]
pub fn unreadable_protobuf(call: &Call, error: &prost::DecodeError) -> Error {
    Error::unavailable(format!("{call}: the answer cannot be read ({error})"))
}
