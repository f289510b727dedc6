//! Failures of the API server as domain errors, see [`drover_resources_kubernetes::errors`]; here also those in protobuf.

use bytes::Bytes;
use drover_core::Error;
use http::{HeaderMap, StatusCode};

use crate::client;

pub use drover_resources_kubernetes::errors::*;

/// The error for a response without success.
#[must_use]
pub fn status(call: &Call, code: StatusCode, headers: &HeaderMap, body: &Bytes) -> Error {
    if !client::is_protobuf(body) {
        return drover_resources_kubernetes::errors::status(call, code, headers, body);
    }
    let status = client::read_protobuf::<client::WireStatus>(body.clone()).unwrap_or_default();
    refused(call, code, headers, status.into())
}

/// Like [`unreadable`], for protobuf.
#[must_use]
pub fn unreadable_protobuf(call: &Call, error: &prost::DecodeError) -> Error {
    Error::unavailable(format!("{call}: the answer cannot be read ({error})"))
}
