//! Typed clients: deadlines, retries by error class, watches that resume.
//!
//! - [`Channel`]: a cheap, cloneable connection to a server, over the network or within the process, or to several servers
//!   of which one leads.
//! - [`platform::PlatformClient`]: a platform, with one attempt per call; the caller decides about retries.
//! - [`orchestrator::OrchestratorClient`]: the orchestrator as used by people, with built-in retries and resumed
//!   watches.
//! - [`kubernetes::KubernetesClient`]: the resources of one Kubernetes, with reads that are retried and waits that resume.

mod addons;
mod alive;
mod bearer;
mod call;
mod channel;
mod dial;
pub mod health;
mod infrastructure;
pub mod kubernetes;
mod observe;
pub mod orchestrator;
mod pages;
pub mod platform;
pub mod retry;
mod role;
mod several;
mod turn;
pub mod watch;

pub use addons::Addons;
pub use bearer::Bearer;
pub use call::{is_unreachable, to_error};
pub use channel::{Channel, Target, TransportError, connect, connect_any, in_process};
pub use drover_tls::{
    Authorities, ClientSettings, Identity, check_authorities,
    client::server_name as check_server_name,
};
pub use kubernetes::KubernetesClient;
pub use orchestrator::OrchestratorClient;
pub use platform::PlatformClient;

/// Registers the descriptions of the platform call metrics for `/metrics`. Call it after installing a recorder.
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

/// Maximum size of an accepted message in bytes, as defined by the API contract.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
