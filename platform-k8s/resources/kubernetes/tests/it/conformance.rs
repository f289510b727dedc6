//! The conformance suite over an API server whose nodes are kwok's: pods become ready, and nothing runs in them.

use std::sync::Arc;

use drover_resources::{Cluster, Parts, Resources, Served};
use drover_resources_kubernetes::ingress::{IngressBackends, Options as IngressOptions};
use drover_server::{ServerSettings, Service, Shutdown};
use drover_testing::{
    kubernetes::{FaultProxy, Options, Rig},
    resources::{Need, Subject, conformance},
};

use crate::bench::Bench;

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_with_kwok_nodes_passes_the_conformance_suite() {
    let rig = Rig::shared(Options::kwok(3));
    let bench = Bench::on(rig).await;
    let namespace = bench.namespace.name.clone();
    let options = IngressOptions {
        namespaces: vec![namespace.clone()],
        ..IngressOptions::default()
    };
    let proxy = FaultProxy::start(rig).await;
    let ingresses = Arc::new(IngressBackends::new(
        crate::bench::client(&proxy).await,
        options,
    ));
    let cluster = Cluster::custom(Parts {
        nodes: Some(Arc::new(bench.nodes)),
        pods: Some(Arc::new(bench.pods)),
        services: Some(Arc::new(bench.services)),
        ingresses: Some(ingresses.clone()),
        ingress_rules: Some(ingresses),
        network_policies: Some(Arc::new(bench.policies)),
        configurations: Some(Arc::new(bench.configurations)),
    });
    let served = Served {
        default_namespace: namespace.clone(),
        namespaces: vec![namespace.clone()],
        ..Served::default()
    };
    let resources = Resources::new(cluster, served).unwrap();
    let service = resources.add_to(Service::new("kubernetes", "0"));
    let routes = service
        .into_routes(&ServerSettings::default(), Shutdown::new())
        .unwrap();
    let mut subject = Subject::new(namespace, move || drover_client::in_process(routes.clone()));
    // The rig is shared: its nodes belong to all, and its kinds of ingresses may be installed by others at any time.
    subject.lacks = [
        Need::Containers,
        Need::Nodes,
        Need::HttpRoute,
        Need::VirtualService,
    ]
    .into();
    let checks = conformance(&subject).await;
    assert!(checks >= 90, "{checks}");
}
