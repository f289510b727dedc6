//! The platform on Kubernetes: a node is a pod, created with the other objects of its template and found by its labels.
//!
//! ```text
//! driver ─┬─ create, delete ── objects (render, stamp, order)          creation and removal
//!         ├─ discover ── pod, address, phase                           listing
//!         ├─ watch ── one stream per kind, grouped into nodes          changes
//!         ├─ access                                                    logs, exec
//!         ├─ update                                                    role and labels of existing nodes
//!         ├─ adopt                                                     new owner of existing nodes
//!         ├─ owner                                                     controller of pods, for drains
//!         ├─ peers                                                     data of pods about each other
//!         └─ labels, selected                                          ownership of objects, selection by labels
//! hosts ──── another driver: nodes are hosts of metal3
//! addons ─── services around clusters, of both drivers
//! resources ── the services of drover.kubernetes.v1, beside the platform
//! client ─── the platform's calls of the API server, by the client of the resources: limits, credentials, errors
//! ```

pub mod access;
pub mod addons;
pub mod address;
mod adopt;
mod annotated;
mod backend;
pub mod client;
pub mod create;
pub mod delete;
pub mod discover;
pub mod driver;
pub mod errors;
mod group;
pub mod hosts;
mod issued;
pub mod labels;
pub mod machine;
pub mod objects;
mod owner;
mod peers;
pub mod phase;
pub mod pod;
pub mod resources;
mod selected;
mod server;
pub mod settings;
pub mod storage;
mod update;
pub mod watch;

pub use server::PlatformServer;
pub use settings::Settings;
