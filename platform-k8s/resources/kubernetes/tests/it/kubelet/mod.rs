//! A real kubelet with kube-proxy: containers run, and services lead to them.

mod conformance;
mod network;

use drover_testing::kubernetes::{Options, Rig, without_kubelet};

use crate::bench::Bench;

/// An image with a shell and the usual small programs.
pub(crate) const IMAGE: &str = "busybox:test";

/// `None` if this machine cannot run a kubelet.
pub(crate) async fn bench() -> Option<Bench> {
    if without_kubelet() {
        return None;
    }
    let rig = Rig::shared(Options::kubelet());
    let alone = rig.alone().await;
    rig.image(&["busybox"]).await;
    drop(alone);
    Some(Bench::on(rig).await)
}
