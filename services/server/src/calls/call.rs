//! What a handler can ask of its call.

use std::sync::Arc;

use drover_telemetry::Context as TraceContext;
use tokio::time::Instant;

use crate::{CallRecord, Shutdown};

/// What a handler can know about its call, beside the message: in the extensions of the request.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// When the answer is of no use any more. Absent: a stream without one.
    pub deadline: Option<Instant>,
    /// Cancelled when the server stops. Streams end then; shortly afterwards they are ended.
    pub shutdown: Shutdown,
    /// Trace of the caller (W3C `traceparent`), or a new one.
    pub trace_id: TraceId,
}

/// 16 bytes, shown as 32 hexadecimal digits.
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

/// When the answer to this request is of no use any more.
#[must_use]
pub fn deadline<T>(request: &tonic::Request<T>) -> Option<Instant> {
    request
        .extensions()
        .get::<CallContext>()
        .and_then(|context| context.deadline)
}

/// Who sent a request, or from where, if nobody had to say who calls; nobody, if it did not come through a server of this crate.
#[must_use]
pub fn caller_name<T>(request: &tonic::Request<T>) -> Arc<str> {
    request
        .extensions()
        .get::<CallRecord>()
        .map(|call| Arc::clone(call.payer()))
        .unwrap_or_default()
}

/// Cancelled when the server stops; never for a request that did not come through a server of this crate.
#[must_use]
pub fn shutdown<T>(request: &tonic::Request<T>) -> Shutdown {
    request
        .extensions()
        .get::<CallContext>()
        .map(|context| context.shutdown.clone())
        .unwrap_or_default()
}

/// Trace that this request belongs to.
#[must_use]
pub fn trace_id<T>(request: &tonic::Request<T>) -> Option<TraceId> {
    request
        .extensions()
        .get::<CallContext>()
        .map(|context| context.trace_id)
}
