//! The resources of one Kubernetes. A backend implements the seven interfaces of [`parts`]; a [`Cluster`] holds one of
//! each, from the same backend or from different ones, and is served as the services of `drover.kubernetes.v1`.
//!
//! ```text
//! service ─── check (requests), pod_policy, page (tokens), text (chunks)      the gRPC services
//!    │
//! cluster ─── parts ─┬─ drover-resources-kubernetes                           an API server
//!                    ├─ drover-resources-fake                                 memory
//!                    └─ remote                                                another server of the same services
//! ```

mod check;
pub mod cluster;
mod page;
pub mod parts;
pub mod pod_policy;
pub mod remote;
mod served;
mod service;

pub use check::ingress::MAX_PATHS;
pub use cluster::{Cluster, Parts};
pub use drover_convert::chunk::bytes;
pub use pod_policy::{PodPolicies, PodPolicy};
pub use served::{MAX_STREAMS, MAX_WAITS, Served};
pub use service::Resources;
