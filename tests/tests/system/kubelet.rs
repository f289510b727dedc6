//! What only a real kubelet shows: stores in pods that answer, die, are reported and replaced.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod bench;
mod clients;
use crate::embedded;
mod rolling;
mod stores;

use drover_platform_k8s::Settings;
use drover_proto::{
    agent::v1::{GetInfoRequest, agent_service_client::AgentServiceClient},
    orchestrator::v1 as pb,
};
use drover_testing::kubernetes::{
    Namespace, Options, Rig,
    manifests::{NAME, apply, folder, placed},
    until, without_kubelet,
};
use embedded::{World, group_on};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

fn rig() -> &'static Rig {
    Rig::shared(Options::kubelet())
}

/// What redis answers at the host and port of an agent address, a line for each command.
async fn redis(agent_address: &str, commands: &[&str]) -> std::io::Result<Vec<String>> {
    let address = agent_address.rsplit('/').next().unwrap_or_default();
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    let mut answers = Vec::new();
    for command in commands {
        stream
            .write_all(format!("{command}\r\n").as_bytes())
            .await?;
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        answers.push(answer.trim().to_owned());
    }
    Ok(answers)
}

fn three(platform: &str) -> pb::ClusterSpec {
    let mut spec = group_on(platform, 3);
    spec.store = Some(pb::StoreSpec {
        software: "redis".to_owned(),
        version: "7.0".to_owned(),
    });
    let attributes = json!({"image": "redis:test", "image_pull_policy": "Never"});
    spec.attributes = attributes.as_object().map(drover_convert::value::to_struct);
    spec
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_in_pods_lives_dies_and_comes_back() {
    if without_kubelet() {
        return;
    }
    let rig = rig();
    rig.image(&["redis"]).await;
    let namespace = rig.namespace().await;
    let mut world = World::new().await;
    let settings = Settings {
        kubeconfig: Some(rig.kubeconfig().to_owned()),
        namespaces: vec![namespace.name.clone()],
        ..Settings::default()
    };
    world.add("k8s", settings).await;
    world.apply("cache", three("k8s")).await;
    world.ready("cache", 3).await;
    let nodes = world.nodes("cache").await;
    for node in &nodes {
        let address = node.agent_address.clone().unwrap_or_default();
        assert_eq!(
            redis(&address, &["PING"]).await.unwrap(),
            ["+PONG"],
            "{address}"
        );
    }

    // A pod deleted by hand is replaced.
    let victim = &nodes[0];
    namespace
        .delete("pods", &pod_of(&namespace, &victim.id).await)
        .await;
    world
        .until("the pod is replaced", async |world| {
            let now = world.nodes("cache").await;
            now.len() == 3
                && now
                    .iter()
                    .all(|node| node.id != victim.id && node.state() == pb::NodeState::Ready)
        })
        .await;

    // A container that dies is reported, with why, and the node is replaced.
    let crashed = &world.nodes("cache").await[0];
    let address = crashed.agent_address.clone().unwrap_or_default();
    let _ = redis(&address, &["SHUTDOWN NOSAVE"]).await;
    world
        .until("the death is reported", async |world| {
            let request = pb::ListEventsRequest {
                cluster: "cache".to_owned(),
                page_size: 500,
                ..Default::default()
            };
            let deadline = std::time::Duration::from_secs(10);
            let answer = world.client().list_events(request, deadline).await.unwrap();
            let said = |event: &pb::Event| {
                event.message.contains("all its containers have ended")
                    && format!("{event:?}").contains(&crashed.id)
            };
            answer.events.iter().any(said)
        })
        .await;
    world.ready("cache", 3).await;
    let now = world.nodes("cache").await;
    assert!(now.iter().all(|node| node.id != crashed.id), "{now:?}");

    world.delete("cache").await;
    world.gone("cache").await;
    namespace.until_empty("after the cluster").await;
    world.end().await;
}

/// A program that cargo builds beside the tests, as the content of an image.
fn program(name: &str) -> String {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join(name);
    format!("{}:/usr/bin/{name}", path.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_in_pods_are_asked_by_grpc() {
    if without_kubelet() {
        return;
    }
    let rig = rig();
    rig.image(&["drover:test", "--libs", &program("drover")])
        .await;
    let namespace = rig.namespace().await;
    let mut world = World::new().await;
    let settings = Settings {
        kubeconfig: Some(rig.kubeconfig().to_owned()),
        namespaces: vec![namespace.name.clone()],
        ..Settings::default()
    };
    world.add("k8s", settings).await;
    let mut spec = group_on("k8s", 2);
    let attributes = json!({"image": "drover:test", "image_pull_policy": "Never"});
    spec.attributes = attributes.as_object().map(drover_convert::value::to_struct);
    world.apply("agents", spec).await;
    world.ready("agents", 2).await;
    for node in world.nodes("agents").await {
        let address = node.agent_address.unwrap_or_default();
        let address = address.replace("grpc://", "http://");
        let channel = drover_client::connect(&address.parse().unwrap());
        let mut agent = AgentServiceClient::new(channel);
        let info = agent
            .get_info(GetInfoRequest {})
            .await
            .unwrap()
            .into_inner();
        assert_eq!(info.node_id, node.id);
    }
    world.delete("agents").await;
    world.gone("agents").await;
    namespace.until_empty("after the cluster").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_platform_runs_in_the_cluster_that_it_manages() {
    if without_kubelet() {
        return;
    }
    let rig = rig();
    let image = format!("{NAME}:0.1.0");
    rig.image(&[&image, "--libs", &program(NAME)]).await;
    let namespace = rig.namespace().await;
    let settings = std::fs::read_to_string(folder().join("base/platform.yaml")).unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME},
        "data": {"platform.yaml": settings},
    });
    namespace.create("configmaps", &config).await.unwrap();
    for file in ["service-account", "role", "service", "deployment"] {
        let mut objects = placed(&format!("base/{file}.yaml"), &namespace.name);
        for object in &mut objects {
            if object["kind"] == "Deployment" {
                object["spec"]["template"]["spec"]["containers"][0]["image"] = image.clone().into();
            }
        }
        apply(&namespace.raw, objects).await;
    }
    let address = until("its pod is ready", || async {
        let pods = namespace.list("pods").await;
        let status = pods.first()?.get("status")?;
        let ready = status["conditions"]
            .as_array()?
            .iter()
            .any(|it| it["type"] == "Ready" && it["status"] == "True");
        let address = status["podIP"].as_str()?.to_owned();
        ready.then_some(address)
    })
    .await;

    rig.image(&["redis"]).await;
    let world = World::new().await;
    world
        .register("k8s", &format!("http://{address}:7401"))
        .await;
    world.apply("cache", three("k8s")).await;
    world.ready("cache", 3).await;
    for node in world.nodes("cache").await {
        let address = node.agent_address.unwrap_or_default();
        assert_eq!(
            redis(&address, &["PING"]).await.unwrap(),
            ["+PONG"],
            "{address}"
        );
    }
    world.delete("cache").await;
    world.gone("cache").await;
    world.end().await;
}

async fn pod_of(namespace: &Namespace, node: &str) -> String {
    let pods = namespace.list("pods").await;
    let pod = pods
        .iter()
        .find(|pod| pod["metadata"]["labels"]["drover.dev/node"] == node);
    pod.expect("the node has a pod")["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned()
}
