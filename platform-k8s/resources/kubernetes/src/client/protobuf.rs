//! What every answer of the API server in protobuf has in common: an envelope, and failures. Field numbers are those of
//! `generated.proto` in `k8s.io/apimachinery` (`meta/v1`, `runtime`). Ours, as kube and k8s-openapi read JSON only.

use bytes::{Buf as _, Bytes};
use kube::core::{
    Status,
    response::{StatusCause, StatusDetails},
};
use prost::{DecodeError, Message};

/// Prefix of every encoded object.
const MAGIC: &[u8] = b"k8s\0";

/// Whether this is an object in protobuf. No JSON starts with the same bytes.
#[must_use]
pub fn is_protobuf(body: &[u8]) -> bool {
    body.starts_with(MAGIC)
}

/// Decodes one object.
///
/// # Errors
/// The body is no object in protobuf.
pub fn object<M: Message + Default>(mut body: Bytes) -> Result<M, DecodeError> {
    if is_protobuf(&body) {
        body.advance(MAGIC.len());
    }
    M::decode(Unknown::decode(body)?.raw)
}

/// Decodes a failure. An empty one if it is none.
#[must_use]
pub fn status(body: Bytes) -> Status {
    object::<WireStatus>(body).unwrap_or_default().into()
}

/// `runtime.Unknown`: an encoded object and its type.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

/// `meta/v1` Status.
#[derive(Clone, PartialEq, Message)]
struct WireStatus {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<WireDetails>,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct WireDetails {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(message, repeated, tag = "4")]
    causes: Vec<WireCause>,
    #[prost(int32, tag = "5")]
    retry_after_seconds: i32,
}

#[derive(Clone, PartialEq, Message)]
struct WireCause {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(string, tag = "3")]
    field: String,
}

impl From<WireStatus> for Status {
    fn from(from: WireStatus) -> Self {
        Self {
            code: u16::try_from(from.code).unwrap_or_default(),
            message: from.message,
            reason: from.reason,
            details: from.details.map(|details| StatusDetails {
                name: details.name,
                group: String::new(),
                kind: details.kind,
                uid: String::new(),
                causes: details.causes.into_iter().map(Into::into).collect(),
                retry_after_seconds: u32::try_from(details.retry_after_seconds).unwrap_or_default(),
            }),
            ..Self::default()
        }
    }
}

impl From<WireCause> for StatusCause {
    fn from(from: WireCause) -> Self {
        Self {
            reason: from.reason,
            message: from.message,
            field: from.field,
        }
    }
}
