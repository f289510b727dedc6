//! `GetPod`, `ListPods` and `CreatePod`.

use std::time::Duration;

use drover_client::KubernetesClient;
use drover_proto::kubernetes::v1 as api;
use drover_testing::kubernetes::{Namespace, Rig};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use super::{HEAD, milliseconds, row, server};
use crate::{CALL, CONNECTIONS, PATIENCE, create_pods, median, spec};

const LISTS: usize = 40;

/// A single reader, in turns with the plain client.
pub(crate) async fn reads(rig: &Rig, count: usize) {
    let namespace = rig.namespace().await;
    create_pods(rig, &namespace, count, |number| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("web-{number}"), "labels": {"app": "bench"}},
            "spec": spec(),
        })
    })
    .await;
    let server = server(rig.kubeconfig(), &namespace.name).await;
    let client = KubernetesClient::new(server.channel());
    let plain: Api<Pod> = Api::namespaced(rig.raw().await.client(), &namespace.name);

    let get = |name: String| api::GetPodRequest {
        namespace: namespace.name.clone(),
        name,
    };
    // Refused by the server itself: what the way to it and back costs.
    let refused = || api::GetPodRequest {
        namespace: "not-served".to_owned(),
        name: "web-0".to_owned(),
    };
    let (mut ours, mut theirs, mut way) = (Vec::new(), Vec::new(), Vec::new());
    // The first round opens connections.
    for (round, number) in (0..2).flat_map(|round| (0..count).map(move |it| (round, it))) {
        let name = format!("web-{number}");
        let began = Instant::now();
        plain.get(&name).await.unwrap();
        let between = Instant::now();
        client.get_pod(get(name), CALL).await.unwrap();
        let answered = Instant::now();
        client.get_pod(refused(), CALL).await.unwrap_err();
        if round > 0 {
            theirs.push(between - began);
            ours.push(answered - between);
            way.push(answered.elapsed());
        }
    }
    println!("{HEAD}");
    compare("GetPod, one after the other", ours, theirs);
    let way = milliseconds(median(way));
    row("the way to the server and back alone", &way, "", "", "");

    let list = api::ListPodsRequest {
        namespace: namespace.name.clone(),
        ..Default::default()
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=LISTS {
        let began = Instant::now();
        let pods = plain.list(&ListParams::default()).await.unwrap();
        assert_eq!(pods.items.len(), count);
        let between = Instant::now();
        let pods = client.list_pods(list.clone(), CALL).await.unwrap();
        assert_eq!(pods.len(), count);
        if round > 0 {
            theirs.push(between - began);
            ours.push(between.elapsed());
        }
    }
    compare(&format!("ListPods, {count} pods"), ours, theirs);
    println!();
    drop(server);
    namespace.remove().await;
}

fn compare(what: &str, ours: Vec<Duration>, theirs: Vec<Duration>) {
    let (ours, theirs) = (median(ours), median(theirs));
    let ratio = format!("{:.2}", ours / theirs);
    let (ours, theirs) = (milliseconds(ours), milliseconds(theirs));
    row(what, &ours, &theirs, &ratio, "at most 1.25");
}

/// The same pods by eight callers each.
pub(crate) async fn creation(rig: &Rig, count: usize, runs: usize) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for run in 0..runs {
        for side in 0..2 {
            let namespace = rig.namespace().await;
            match (run + side) % 2 {
                0 => theirs.push(plain(rig, &namespace, count).await),
                _ => ours.push(through_drover(rig, &namespace, count).await),
            }
            namespace.remove_wholly().await;
        }
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let rate = |seconds: f64| format!("{:.0} /s", count as f64 / seconds);
    println!("{HEAD}");
    let what = format!("CreatePod, {count} by {CONNECTIONS} callers");
    let ratio = format!("{:.2}", theirs / ours);
    row(&what, &rate(ours), &rate(theirs), &ratio, "at least 0.9");
    println!();
}

async fn plain(rig: &Rig, namespace: &Namespace, count: usize) -> Duration {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let pods: Api<Pod> = Api::namespaced(rig.raw().await.client(), &namespace.name);
        pods.list(&ListParams::default()).await.unwrap();
        clients.push(pods);
    }
    let pod = |number: usize| -> Pod {
        let pod = json!({
            "metadata": {"name": format!("web-{number}"), "labels": {"app": "bench"}},
            "spec": {
                "nodeSelector": {"no": "where"},
                "containers": [{"name": "main", "image": "example.invalid/main:1"}],
            },
        });
        serde_json::from_value(pod).unwrap()
    };
    let began = Instant::now();
    let all = clients.iter().enumerate().map(|(client, pods)| async move {
        for number in (client..count).step_by(CONNECTIONS) {
            let parameters = PostParams::default();
            pods.create(&parameters, &pod(number)).await.unwrap();
        }
    });
    join_all(all).await;
    began.elapsed()
}

async fn through_drover(rig: &Rig, namespace: &Namespace, count: usize) -> Duration {
    let server = server(rig.kubeconfig(), &namespace.name).await;
    let pod = |number: usize| api::Pod {
        metadata: Some(api::Metadata {
            namespace: namespace.name.clone(),
            name: format!("web-{number}"),
            labels: [("app".to_owned(), "bench".to_owned())].into(),
            ..Default::default()
        }),
        spec: Some(api::PodSpec {
            containers: vec![api::Container {
                name: "main".to_owned(),
                image: "example.invalid/main:1".to_owned(),
                ..Default::default()
            }],
            // Not scheduled, so that only creates are measured.
            node_selector: [("no".to_owned(), "where".to_owned())].into(),
            ..Default::default()
        }),
        status: None,
    };
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = KubernetesClient::new(server.channel());
        let list = api::ListPodsRequest {
            namespace: namespace.name.clone(),
            ..Default::default()
        };
        client.list_pods(list, CALL).await.unwrap();
        clients.push(client);
    }
    let began = Instant::now();
    let all = clients
        .iter()
        .enumerate()
        .map(|(client, drover)| async move {
            for number in (client..count).step_by(CONNECTIONS) {
                let request = api::CreatePodRequest {
                    pod: Some(pod(number)),
                };
                drover.create_pod(request, PATIENCE).await.unwrap();
            }
        });
    join_all(all).await;
    began.elapsed()
}
