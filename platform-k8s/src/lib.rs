//! The platform on Kubernetes: a node is a pod, made with whatever else its template says, found by its labels.
//!
//! ```text
//! driver ─┬─ create, delete ── objects (render, stamp, order)          what is made and removed
//!         ├─ discover ── pod, address, phase                           what is there
//!         ├─ watch ── one stream a kind, grouped into nodes            what changes
//!         ├─ access                                                    logs, exec
//!         ├─ update                                                    role and labels of what is there
//!         ├─ adopt                                                     another owner of what is there
//!         ├─ peers                                                     what pods hear of one another
//!         └─ labels, selected                                          whose an object is, and what selects by labels
//! client ─── the one way to the API server: turns, timeouts, pauses, credentials, errors
//! ```

pub mod access;
pub mod address;
mod adopt;
pub mod client;
pub mod create;
pub mod delete;
pub mod discover;
pub mod driver;
pub mod errors;
mod group;
pub mod labels;
pub mod objects;
mod peers;
pub mod phase;
pub mod pod;
mod selected;
mod server;
pub mod settings;
pub mod storage;
mod update;
pub mod watch;

pub use server::PlatformServer;
pub use settings::Settings;
