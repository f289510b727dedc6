//! How every server starts, is configured, reports and stops.
//!
//! ```text
//! main ── settings (defaults < file < environment < flags) ── telemetry (logs, metrics)
//!   └─ your closure: Service::new(..).add(FooServiceServer::new(..)) ── serve(service, settings, stop)
//!        one port ─┬─ application/grpc ─ calls (deadline, bounds, panics, metrics, span) ─ your services,
//!                  │                                                    grpc.health.v1, reflection
//!                  └─ anything else ──── /healthz, /readyz, /metrics, your HTTP routes
//! ```

pub mod access;
pub mod audit;
mod binary;
mod calls;
mod cork;
mod crowd;
mod descriptors;
mod encryption;
mod ending;
mod http;
mod net;
mod quota;
mod serve;
mod service;
pub mod settings;
mod socket;
pub mod telemetry;

pub use access::{Caller, Role};
pub use audit::{AuditError, CallRecord};
pub use binary::{Binary, run, shutdown_signal};
pub use calls::{CallContext, caller_name, deadline, shutdown, trace_id};
pub use quota::{Rates, Share, Shares};
pub use serve::{Listener, Place, Running, StartError, listen, listen_on_socket, serve, spawn};
pub use service::{Readiness, Service};
pub use settings::{ServerArgs, ServerSettings};
pub use socket::SocketError;

/// What a handler watches to end early when the server stops.
pub use tokio_util::sync::CancellationToken as Shutdown;

/// Largest message in bytes, as the contract says. tonic bounds what it decodes per generated service and its default is
/// the same; a larger one is refused with `OUT_OF_RANGE`. Handlers keep their answers below it by paging.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
