//! What the tests here stand on: a real API server, a proxy in front of it that fails on demand, and raw access to both.
//!
//! ```text
//! let rig = Rig::shared(Options::kwok(3));        // once a process; its end is the end of the process
//! let namespace = rig.namespace().await;          // one of its own for each test
//! let proxy = FaultProxy::start(rig).await;       // plain HTTP towards us, proxy.kubeconfig() is its kubeconfig
//! proxy.fail(On::call("create", "pods").nth(2), Fault::LoseAnswer);
//! ```
#![allow(
    dead_code,
    unused_imports,
    reason = "every test binary uses its own part of it"
)]

pub(crate) mod body;
pub(crate) mod call;
pub(crate) mod manifests;
pub(crate) mod namespace;
pub(crate) mod proxy;
pub(crate) mod raw;
pub(crate) mod rig;

use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::{
    call::{Call, Fault, On, refusal},
    namespace::{Namespace, Thing},
    proxy::{FaultProxy, Speaks, Watches},
    raw::{Raw, Refused},
    rig::{Options, Rig, without_kubelet},
};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds, and fails with its name when it does not in time.
pub(crate) async fn until<T, F>(what: &str, mut condition: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
