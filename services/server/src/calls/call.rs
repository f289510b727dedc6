//! Information about the current call for handlers.

use std::sync::Arc;

use drover_telemetry::Context as TraceContext;
use tokio::time::Instant;

use crate::{CallRecord, Shutdown, access::Forwarded};

/// Information about a call besides its message. An extension of the request.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// Deadline of the call. `None` for a stream without one.
    pub deadline: Option<Instant>,
    /// Cancelled when the server stops. Streams should end then; shortly afterwards they are terminated.
    pub shutdown: Shutdown,
    /// Trace id of the caller (W3C `traceparent`), or a new one.
    pub trace_id: TraceId,
}

/// How a call has arrived at a server with [replicas](crate::Service::replicas), for those who may forward it. An extension
/// of the request.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Who calls.
    pub caller: Forwarded,
    /// Name of the replica that has forwarded it.
    pub via: Option<String>,
    /// Whether the request is a single message, and no stream.
    pub one_message: bool,
    /// Whether it changes nothing.
    pub is_read: bool,
}

/// A trace id: 16 bytes, displayed as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

impl From<TraceContext> for TraceId {
    fn from(context: TraceContext) -> Self {
        Self(context.trace_id())
    }
}

impl std::fmt::Display for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The deadline of a request.
#[must_use]
pub fn deadline<T>(request: &tonic::Request<T>) -> Option<Instant> {
    request
        .extensions()
        .get::<CallContext>()
        .and_then(|context| context.deadline)
}

/// The caller of a request, or its address if no authentication was required; empty if the request did not pass through
/// a server of this crate.
#[must_use]
pub fn caller_name<T>(request: &tonic::Request<T>) -> Arc<str> {
    request
        .extensions()
        .get::<CallRecord>()
        .map(|call| Arc::clone(call.payer()))
        .unwrap_or_default()
}

/// Cancelled when the server stops; never for a request that did not pass through a server of this crate.
#[must_use]
pub fn shutdown<T>(request: &tonic::Request<T>) -> Shutdown {
    request
        .extensions()
        .get::<CallContext>()
        .map(|context| context.shutdown.clone())
        .unwrap_or_default()
}

/// The trace id of a request.
#[must_use]
pub fn trace_id<T>(request: &tonic::Request<T>) -> Option<TraceId> {
    request
        .extensions()
        .get::<CallContext>()
        .map(|context| context.trace_id)
}
