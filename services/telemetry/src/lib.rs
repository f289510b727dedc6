//! Traces: which of them a piece of work belongs to, what of it is a span, and how spans get to a collector.
//!
//! ```text
//! Span::server / client / internal ── scope(..) ── whatever runs in it has it as its parent (task-local)
//!        └─ dropped ── a bounded queue ── export: OTLP over gRPC, in batches. Nobody ever waits for it
//! ```
//!
//! Without an exporter no span is recorded. Contexts are passed on all the same, so that all servers audit and log one
//! trace id for one thing that somebody asked for.

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
