//! Typed clients: deadlines, retries by error class, watches that resume.
//!
//! - [`Channel`]: one cheap, cloneable way to a server, over the network or in the same process.
//! - [`platform::PlatformClient`]: one platform, one attempt per call; the caller decides about retries.
//! - [`orchestrator::OrchestratorClient`]: the orchestrator as people use it: retries and resumed watches inside.

mod alive;
mod bearer;
mod call;
mod channel;
mod dial;
pub mod health;
mod infrastructure;
mod observe;
pub mod orchestrator;
mod pages;
pub mod platform;
pub mod retry;
mod role;
pub mod watch;

pub use bearer::Bearer;
pub use call::{is_unreachable, to_error};
pub use channel::{Channel, Target, TransportError, connect, in_process};
pub use drover_tls::{
    Authorities, ClientSettings, Identity, check_authorities,
    client::server_name as check_server_name,
};
pub use orchestrator::OrchestratorClient;
pub use platform::PlatformClient;

/// Says in words what is measured of calls to platforms, for `/metrics`. Call it once a recorder is installed.
pub fn describe_metrics() {
    metrics::describe_counter!(
        "drover_platform_calls_total",
        "Calls to platforms that ended, by platform, method and gRPC code."
    );
    metrics::describe_histogram!(
        "drover_platform_call_duration_seconds",
        "How long calls to platforms took, streams apart."
    );
}

/// Largest message that is accepted, in bytes; the contract allows no larger one.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
