//! The conformance suite over a real kubelet, and over `remote` in front of it.

use drover_server::Service;
use drover_testing::resources::Need;

use super::{IMAGE, bench};
use crate::{
    bench::Bench,
    conformance::{behind_remote, over_the_api_server},
};

async fn passes(bench: &Bench, service: Service) {
    // There is one node, and all share it. The kinds of ingresses have nothing to do with nodes: kwok's suffice for them.
    let lacks = [Need::Nodes, Need::HttpRoute, Need::VirtualService];
    crate::conformance::passes(service, &bench.namespace.name, &lacks, |subject| {
        subject.image = IMAGE.to_owned();
    })
    .await;
    bench.namespace.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_kubelet_passes_the_conformance_suite() {
    let Some(bench) = bench().await else { return };
    passes(&bench, over_the_api_server(&bench).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_in_front_of_a_real_kubelet_passes_the_conformance_suite() {
    let Some(bench) = bench().await else { return };
    let behind = over_the_api_server(&bench).await;
    let (running, front) = behind_remote(behind, &bench.namespace.name).await;
    passes(&bench, front).await;
    running.shutdown().await;
}
