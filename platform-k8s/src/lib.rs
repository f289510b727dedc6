//! The platform on Kubernetes: a node is a pod, made with whatever else its template says, found by its labels.
//!
//! ```text
//! driver ─┬─ create, delete ── objects (render, stamp, order)          what is made and removed
//!         ├─ discover ── pod, address, phase                           what is there
//!         ├─ watch ── one stream a kind, grouped into nodes            what changes
//!         ├─ access                                                    logs, exec
//!         └─ labels                                                    whose an object is
//! client ─── the one way to the API server: turns, timeouts, pauses, credentials, errors
//! ```

pub mod access;
pub mod address;
pub mod client;
pub mod create;
pub mod delete;
pub mod discover;
pub mod driver;
pub mod errors;
mod group;
pub mod labels;
pub mod objects;
pub mod phase;
pub mod pod;
mod server;
pub mod settings;
pub mod watch;

pub use server::PlatformServer;
pub use settings::Settings;
