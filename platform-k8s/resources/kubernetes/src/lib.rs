//! The resources of one Kubernetes over its API server.
//!
//! ```text
//! pods, nodes, services, … ─┬─ objects ── convert              one object, pages of them
//!                           ├─ wait, drain                     one list and one watch each
//!                           └─ exec, files, logs ── place      what runs in a container
//! ingress                                                      three kinds of objects behind one
//! client, errors                                               the only way to the API server
//! ```

pub mod client;
mod configurations;
mod convert;
mod drain;
pub mod errors;
mod exec;
mod files;
pub mod ingress;
mod logs;
mod network_policies;
mod nodes;
mod objects;
mod place;
mod pods;
mod services;
mod wait;

pub use configurations::KubernetesConfigurations;
pub use exec::{exit_code, not_run};
pub use network_policies::KubernetesNetworkPolicies;
pub use nodes::KubernetesNodes;
pub use pods::KubernetesPods;
pub use services::KubernetesServices;
