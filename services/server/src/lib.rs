//! The common parts of all servers: startup, configuration, telemetry and shutdown.
//!
//! ```text
//! main ── settings (defaults < file < environment < flags) ── telemetry (logs, metrics)
//!   └─ your closure: Service::new(..).add(FooServiceServer::new(..)) ── serve(service, settings, stop)
//!        one port ─┬─ application/grpc ─ calls (deadline, limits, panics, metrics, span) ─ your services,
//!                  │                                                    grpc.health.v1, reflection
//!                  └─ anything else ──── /healthz, /readyz, /metrics, your HTTP routes
//! ```

pub mod access;
pub mod audit;
mod binary;
mod calls;
mod connection_limiter;
mod cork;
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
pub use calls::{Arrival, CallContext, caller_name, deadline, shutdown, trace_id};
pub use quota::{Rates, Share, Shares};
pub use serve::{Listener, Place, Running, StartError, listen, listen_on_socket, serve, spawn};
pub use service::{Readiness, Service};
pub use settings::{ServerArgs, ServerSettings};
pub use socket::SocketError;

/// Token by which handlers notice that the server stops and end early.
pub use tokio_util::sync::CancellationToken as Shutdown;

/// Maximum message size in bytes, as defined by the API contract. It is tonic's default limit for decoding; larger
/// messages are rejected with `OUT_OF_RANGE`. Handlers stay below it in responses by paging.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
