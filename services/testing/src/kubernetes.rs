//! Kubernetes for tests: a real API server, a proxy in front of it that fails on demand, and raw access to both. Built
//! with the feature `kubernetes`.
//!
//! ```text
//! let rig = Rig::shared(Options::kwok(3));        // once per run of nextest, or per process
//! let namespace = rig.namespace().await;          // one per test
//! let proxy = FaultProxy::start(rig).await;       // plain HTTP for the client; see proxy.kubeconfig()
//! proxy.fail(On::call("create", "pods").nth(2), Fault::LoseAnswer);
//! ```
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests that cannot go on fail, and what is not said here the tests say"
)]

pub mod body;
pub mod call;
pub mod definitions;
pub mod manifests;
pub mod namespace;
pub mod proxy;
pub mod raw;
pub mod rig;

pub use self::{
    call::{Call, Fault, On, refusal},
    namespace::{Namespace, Thing},
    proxy::{FaultProxy, Speaks, Watches},
    raw::{Raw, Refused},
    rig::{Options, Rig, SecondNode, without_kubelet},
};
pub use crate::wait::{PATIENCE, until};
