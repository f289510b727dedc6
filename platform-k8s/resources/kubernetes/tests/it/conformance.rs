//! The conformance suite over an API server whose nodes are kwok's: pods become ready, and nothing runs in them. And over
//! `remote` in front of it.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use drover_resources::{
    Cluster, Parts, Resources, Served,
    remote::{Remote, RemoteSettings},
};
use drover_resources_kubernetes::{
    KubernetesConfigurations, KubernetesNetworkPolicies, KubernetesNodes, KubernetesPods,
    KubernetesServices,
    ingress::{IngressBackends, Options as IngressOptions},
};
use drover_server::{Running, ServerSettings, Service, Shutdown};
use drover_testing::{
    kubernetes::{Namespace, Options, Raw, Rig, until},
    resources::{Need, Subject, conformance},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    bench::{Bench, client},
    ingress::kinds::Kind,
};

/// Fewest checks that count as the suite.
const CHECKS: usize = 120;

/// The services of a cluster, for one namespace.
fn service(cluster: Cluster, namespace: &str) -> Service {
    let served = Served {
        default_namespace: namespace.to_owned(),
        namespaces: vec![namespace.to_owned()],
        ..Served::default()
    };
    let resources = Resources::new(cluster, served).unwrap();
    resources.add_to(Service::new("kubernetes", "0"))
}

/// All seven parts over the API server, for the namespace of the bench.
pub(crate) async fn over_the_api_server(bench: &Bench) -> Service {
    let namespace = bench.namespace.name.clone();
    let client = client(&bench.proxy).await;
    let options = IngressOptions {
        namespaces: vec![namespace.clone()],
        ..IngressOptions::default()
    };
    let ingresses = Arc::new(IngressBackends::new(client.clone(), options));
    let cluster = Cluster::custom(Parts {
        nodes: Some(Arc::new(KubernetesNodes::new(client.clone()))),
        pods: Some(Arc::new(KubernetesPods::new(client.clone()))),
        services: Some(Arc::new(KubernetesServices::new(client.clone()))),
        ingresses: Some(ingresses.clone()),
        ingress_rules: Some(ingresses),
        network_policies: Some(Arc::new(KubernetesNetworkPolicies::new(client.clone()))),
        configurations: Some(Arc::new(KubernetesConfigurations::new(client))),
    });
    service(cluster, &namespace)
}

/// A server of these services, and `remote` in front of it.
pub(crate) async fn behind_remote(behind: Service, namespace: &str) -> (Running, Service) {
    let settings = ServerSettings::on_port(0);
    let listener = drover_server::listen(&settings).await.unwrap();
    let running = drover_server::spawn(behind, listener, &settings, Shutdown::new()).unwrap();
    let remote = Remote::new(&RemoteSettings {
        endpoint: format!("http://{}", running.address()),
        ..RemoteSettings::default()
    });
    let front = service(Cluster::custom(remote.unwrap().parts()), namespace);
    (running, front)
}

pub(crate) fn channel(service: Service) -> drover_client::Channel {
    let routes = service
        .into_routes(&ServerSettings::default(), Shutdown::new())
        .unwrap();
    drover_client::in_process(routes)
}

/// Runs the suite over a server.
pub(crate) async fn passes(
    service: Service,
    namespace: &str,
    lacks: &[Need],
    change: impl FnOnce(&mut Subject),
) {
    let channel = channel(service);
    let mut subject = Subject::new(namespace, move || channel.clone());
    subject.lacks = lacks.iter().copied().collect();
    change(&mut subject);
    let checks = conformance(&subject).await;
    println!("{checks} checks");
    assert!(checks >= CHECKS, "{checks}");
}

/// A namespace at an API server with kwok's nodes, with all kinds of ingresses, and nodes of its own.
struct Place {
    bench: Bench,
    discovery: JoinHandle<()>,
    nodes: Vec<String>,
}

impl Place {
    async fn new() -> Self {
        let rig = Rig::shared(Options::kwok(3));
        let bench = Bench::on(rig).await;
        let Namespace { name, raw } = &bench.namespace;
        for kind in [Kind::HttpRoute, Kind::VirtualService] {
            kind.install(raw).await;
        }
        let nodes = ["a", "b"].map(|node| format!("{node}-{name}"));
        for node in &nodes {
            crate::bench::node(raw, node, &json!({"suite": name})).await;
        }
        until("the nodes are ready", || async {
            let own = format!("/api/v1/nodes?labelSelector=suite={name}");
            let found = raw.get(&own).await.unwrap();
            let ready = |node: &&Value| {
                let conditions = node["status"]["conditions"]
                    .as_array()
                    .into_iter()
                    .flatten();
                conditions
                    .into_iter()
                    .any(|it| it["type"] == "Ready" && it["status"] == "True")
            };
            let items = found["items"].as_array().unwrap();
            (items.iter().filter(ready).count() == nodes.len()).then_some(())
        })
        .await;
        let discovery = tokio::spawn(discover(rig.kubeconfig(), name.clone()));
        Self {
            discovery,
            nodes: nodes.to_vec(),
            bench,
        }
    }

    async fn passes(self, service: Service) {
        let namespace = &self.bench.namespace;
        passes(service, &namespace.name, &[Need::Containers], |subject| {
            subject.nodes = [("suite".to_owned(), namespace.name.clone())].into();
        })
        .await;
        self.discovery.abort();
        for node in &self.nodes {
            let path = format!("/api/v1/nodes/{node}");
            namespace.raw.delete(&path).await.unwrap();
        }
        namespace.remove().await;
    }
}

/// What Gloo's discovery does: an Upstream for each port of each service.
async fn discover(kubeconfig: &Path, namespace: String) {
    let raw = Raw::open(kubeconfig).await;
    let mut known = BTreeSet::new();
    loop {
        let path = format!("/api/v1/namespaces/{namespace}/services");
        let services = raw.get(&path).await.unwrap();
        for service in services["items"].as_array().unwrap() {
            let name = service["metadata"]["name"].as_str().unwrap();
            for port in service["spec"]["ports"].as_array().into_iter().flatten() {
                let port = port["port"].as_u64().unwrap();
                let upstream = format!("{namespace}-{name}-{port}");
                if !known.insert(upstream.clone()) {
                    continue;
                }
                let object = json!({
                    "apiVersion": "gloo.solo.io/v1", "kind": "Upstream", "metadata": {"name": upstream},
                    "spec": {"kube": {
                        "serviceName": name, "serviceNamespace": namespace, "servicePort": port,
                    }},
                });
                let path = format!("/apis/gloo.solo.io/v1/namespaces/{namespace}/upstreams");
                raw.create(&path, &object).await.unwrap();
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_with_kwok_nodes_passes_the_conformance_suite() {
    let place = Place::new().await;
    let service = over_the_api_server(&place.bench).await;
    place.passes(service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_in_front_of_an_api_server_with_kwok_nodes_passes_the_conformance_suite() {
    let place = Place::new().await;
    let behind = over_the_api_server(&place.bench).await;
    let (running, front) = behind_remote(behind, &place.bench.namespace.name).await;
    place.passes(front).await;
    running.shutdown().await;
}
