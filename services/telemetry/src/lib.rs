//! Tracing: context propagation, spans, and their export to a collector.
//!
//! ```text
//! Span::server / client / internal ── scope(..) ── the parent of everything that runs within (task-local)
//!        └─ drop ── bounded queue ── export: OTLP over gRPC, in batches, never blocking
//! ```
//!
//! These are not the spans of `tracing`, and OpenTelemetry's SDK does not record them: those hold whatever any library
//! writes into its fields, messages of other servers among it, and what is exported must never repeat a secret; the SDK
//! neither leaves the sampling of a trace to a later process nor reports how many spans it or the collector dropped.
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
