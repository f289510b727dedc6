//! The resources of one Kubernetes. A backend implements the seven interfaces of [`parts`]; a [`Cluster`] holds one of
//! each, from the same backend or from different ones, and is served as the services of `drover.kubernetes.v1`.

pub mod cluster;
pub mod parts;

pub use cluster::{Cluster, Parts};
