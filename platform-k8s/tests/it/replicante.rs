//! A Replicante client of this platform: the same documents as on every platform, with pods as nodes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::bench;

use std::net::SocketAddr;

use bench::{Bench, rig, settings};
use drover_platform_k8s::PlatformServer;
use drover_server::{Running, ServerSettings, Shutdown};
use drover_testing::kubernetes::until;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A plain HTTP/1.1 request.
async fn call(address: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

async fn served(server: &PlatformServer) -> Running {
    let settings = ServerSettings::on_port(0);
    let listener = drover_server::listen(&settings).await.unwrap();
    drover_server::spawn(server.service(), listener, &settings, Shutdown::new()).unwrap()
}

fn provision(count: u32) -> Value {
    json!({
        "cluster": {
            "cluster_id": "orders", "store": "rich", "store_version": "1.0",
            "nodes": {"data": {"desired_count": count, "node_class": ""}},
        },
        "provision": {"count": count, "node_group_id": "data"},
    })
}

fn nodes(answer: &Value) -> Vec<Value> {
    let clusters = answer["clusters"].as_array().unwrap().iter();
    let all = clusters.flat_map(|cluster| cluster["nodes"].as_array().unwrap().clone());
    all.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replicante_client_makes_finds_and_removes_pods() {
    let bench = Bench::with(|_| {}).await;
    let mut settings = settings(&bench.namespace.name);
    settings.kubeconfig = Some(rig().kubeconfig().to_owned());
    settings.labels.cluster = "example.com/cluster".to_owned();
    settings.labels.node = "example.com/node".to_owned();
    let server = PlatformServer::open(settings).await.unwrap();
    let running = served(&server).await;
    let address = running.address();

    let (status, made) = call(address, "POST", "/provision", &provision(2)).await;
    assert_eq!((status, &made["count"]), (200, &json!(2)), "{made}");
    let ids = made["node_ids"].as_array().unwrap();
    // A foreign pod of the same cluster is a node, with the address in its annotations.
    let foreign = json!({
        "labels": {"example.com/cluster": "orders"},
        "annotations": {"k8s.replicante.io/agent-address": "https://agent.example/x/"},
    });
    bench.namespace.pod("by-hand", foreign).await;
    let found = until("all of them are found", || async {
        let (status, answer) = call(address, "GET", "/discover", &Value::Null).await;
        assert_eq!(status, 200, "{answer}");
        let nodes = nodes(&answer);
        (nodes.len() == 3).then_some(nodes)
    })
    .await;
    for id in ids {
        assert!(found.iter().any(|node| node["node_id"] == *id), "{found:?}");
        let pod = bench.namespace.list("pods").await;
        assert!(
            pod.iter()
                .any(|pod| pod["metadata"]["labels"]["example.com/node"] == *id),
            "the keys of the labels are those of the settings"
        );
    }
    let by_hand = found
        .iter()
        .find(|node| node["node_id"] == "by-hand")
        .unwrap();
    assert_eq!(by_hand["agent_address"], "https://agent.example/x/");

    // The API removes only nodes that were created through it.
    let remove = |id: &Value| json!({"cluster_id": "orders", "node_id": id});
    let (status, refused) = call(address, "POST", "/deprovision", &remove(&json!("by-hand"))).await;
    assert_eq!(
        (status, &refused["error"]),
        (403, &json!(true)),
        "{refused}"
    );
    for id in ids {
        let (status, _) = call(address, "POST", "/deprovision", &remove(id)).await;
        assert_eq!(status, 204);
    }
    bench.namespace.delete("pods", "by-hand").await;
    bench.namespace.until_empty("after the last node").await;
    let mut unknown = provision(1);
    unknown["provision"]["node_group_id"] = "dat".into();
    let (status, refused) = call(address, "POST", "/provision", &unknown).await;
    assert_eq!(status, 422, "{refused}");
    running.shutdown().await;
    server.shutdown().await;
}
