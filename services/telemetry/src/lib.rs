//! Tracing: context propagation, spans, and their export to a collector.
//!
//! ```text
//! Span::server / client / internal ── scope(..) ── the parent of everything that runs within (task-local)
//!        └─ drop ── bounded queue ── export: OTLP over gRPC, in batches, never blocking
//! ```
//!
//! Without an exporter no spans are recorded. Contexts are propagated anyway, so that all servers audit and log the
//! same trace id for the same request.

pub mod context;
pub mod export;
mod otlp;
pub mod rpc;
pub mod settings;
pub mod span;

pub use context::{Context, current};
pub use export::Exporter;
pub use settings::{Settings, TelemetryError};
pub use span::{Kind, Span};
