//! Paths of one host of one Ingress, by many writers at once: each change of the plain client is a read, a change and a
//! replacement, again whenever somebody else was quicker.

use std::time::Duration;

use drover_client::KubernetesClient;
use drover_proto::kubernetes::v1 as api;
use drover_testing::kubernetes::{FaultProxy, Namespace, Rig};
use futures::future::join_all;
use k8s_openapi::api::networking::v1::{HTTPIngressPath, Ingress};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{HEAD, row, server};
use crate::{PATIENCE, median};

const WRITERS: usize = 50;
const INGRESS: &str = "web";
const HOST: &str = "shop.example";

pub(crate) async fn upserts(rig: &Rig, count: usize, runs: usize) {
    let each = count / WRITERS;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut writes, mut attempts) = (0, 0);
    for run in 0..runs {
        for side in 0..2 {
            let namespace = rig.namespace().await;
            let proxy = FaultProxy::start(rig).await;
            prepare(&namespace).await;
            let took = match (run + side) % 2 {
                0 => plain(&proxy, &namespace, each).await,
                _ => through_drover(&proxy, &namespace, each).await,
            };
            assert_eq!(paths(&namespace).await, WRITERS * each);
            let calls = proxy.calls();
            let changes = calls
                .iter()
                .filter(|call| call.resource == "ingresses.networking.k8s.io" && call.changes());
            let changes = changes.count();
            if (run + side) % 2 == 0 {
                theirs.push(took);
                attempts = attempts.max(changes);
            } else {
                ours.push(took);
                writes = writes.max(changes);
            }
            namespace.remove_wholly().await;
        }
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let count = WRITERS * each;
    println!("{HEAD}");
    let what = format!("{count} UpsertPaths by {WRITERS} writers on one Ingress");
    let seconds = |it: f64| format!("{it:.2} s");
    let ratio = format!("{:.1} times as fast", theirs / ours);
    row(
        &what,
        &seconds(ours),
        &seconds(theirs),
        &ratio,
        "at least 5",
    );
    let goal = format!("at most {}", count / 5);
    let (writes, attempts) = (writes.to_string(), attempts.to_string());
    row(
        "the same: writes at the API server",
        &writes,
        &attempts,
        "",
        &goal,
    );
    println!();
}

/// A service, and an Ingress with the first path to it: no host has more than 1,000.
async fn prepare(namespace: &Namespace) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"ports": [{"port": 80}]},
    });
    namespace.create("services", &service).await.unwrap();
    let ingress = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": INGRESS},
        "spec": {"rules": [{"host": HOST, "http": {"paths": [path("/0/0")]}}]},
    });
    let made = namespace.create("ingresses.networking.k8s.io", &ingress);
    made.await.unwrap();
}

fn path(path: &str) -> Value {
    json!({
        "path": path, "pathType": "Prefix",
        "backend": {"service": {"name": "web", "port": {"number": 80}}},
    })
}

async fn paths(namespace: &Namespace) -> usize {
    let ingress = namespace.get("ingresses.networking.k8s.io", INGRESS).await;
    let paths = &ingress.unwrap()["spec"]["rules"][0]["http"]["paths"];
    paths.as_array().unwrap().len()
}

async fn plain(proxy: &FaultProxy, namespace: &Namespace, each: usize) -> Duration {
    let client = drover_testing::kubernetes::Raw::open(&proxy.kubeconfig()).await;
    let ingresses: Api<Ingress> = Api::namespaced(client.client(), &namespace.name);
    let began = Instant::now();
    let all = (0..WRITERS).map(|writer| {
        let ingresses = ingresses.clone();
        async move {
            for number in 0..each {
                upsert(&ingresses, &format!("/{writer}/{number}")).await;
            }
        }
    });
    join_all(all).await;
    began.elapsed()
}

async fn upsert(ingresses: &Api<Ingress>, name: &str) {
    let wanted: HTTPIngressPath = serde_json::from_value(path(name)).unwrap();
    loop {
        let mut ingress = ingresses.get(INGRESS).await.unwrap();
        let rules = ingress.spec.as_mut().unwrap().rules.as_mut().unwrap();
        let paths = &mut rules[0].http.as_mut().unwrap().paths;
        paths.retain(|path| path.path != wanted.path);
        paths.push(wanted.clone());
        let replaced = ingresses
            .replace(INGRESS, &PostParams::default(), &ingress)
            .await;
        match replaced {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn through_drover(proxy: &FaultProxy, namespace: &Namespace, each: usize) -> Duration {
    let server = server(&proxy.kubeconfig(), &namespace.name).await;
    let client = KubernetesClient::new(server.channel());
    let get = api::GetRuleRequest {
        namespace: namespace.name.clone(),
        ingress: INGRESS.to_owned(),
        host: HOST.to_owned(),
        ..Default::default()
    };
    client.get_rule(get, PATIENCE).await.unwrap();
    let began = Instant::now();
    let all = (0..WRITERS).map(|writer| {
        let (client, namespace) = (client.clone(), namespace.name.clone());
        async move {
            for number in 0..each {
                let path = api::IngressPath {
                    path: format!("/{writer}/{number}"),
                    r#type: api::PathType::Prefix.into(),
                    name: format!("path-{writer}-{number}"),
                    target: Some(api::ingress_path::Target::Service(api::ServiceTarget {
                        name: "web".to_owned(),
                        port: Some(api::PortRef {
                            port: Some(api::port_ref::Port::Number(80)),
                        }),
                    })),
                    opaque: false,
                };
                let request = api::UpsertPathsRequest {
                    namespace: namespace.clone(),
                    ingress: INGRESS.to_owned(),
                    host: HOST.to_owned(),
                    paths: vec![path],
                    ..Default::default()
                };
                client.upsert_paths(request, PATIENCE).await.unwrap();
            }
        }
    });
    join_all(all).await;
    began.elapsed()
}
