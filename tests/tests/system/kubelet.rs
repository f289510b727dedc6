//! Tests that need a real kubelet: stores in pods that respond, die, are reported and replaced.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod bench;
mod clients;
mod control_plane;
mod hosts;
use crate::embedded;
mod rolling;
mod stores;
mod tls;

use std::{path::Path, time::Duration};

use drover_client::{Authorities, ClientSettings, Identity, Target};
use drover_orchestrator::PlatformTlsSettings;
use drover_platform_k8s::Settings;
use drover_proto::{
    agent::v1::{GetInfoRequest, agent_service_client::AgentServiceClient},
    orchestrator::v1 as pb,
    platform::v1::{GetPlatformRequest, platform_service_client::PlatformServiceClient},
};
use drover_testing::kubernetes::{
    Namespace, Options, Raw, Rig,
    manifests::{NAME, Places, apply, built},
    until, without_kubelet,
};
use embedded::{PATIENCE, World, group_on};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// Timeout for a response from a server in a pod.
const ANSWER: Duration = Duration::from_secs(30);

fn rig() -> &'static Rig {
    Rig::shared(Options::kubelet())
}

/// Responses of the redis at the host and port of an agent address, one line per command.
async fn redis(agent_address: &str, commands: &[&str]) -> std::io::Result<Vec<String>> {
    // A pod that is removed meanwhile would never respond.
    tokio::time::timeout(ANSWER, ask_redis(agent_address, commands)).await?
}

async fn ask_redis(agent_address: &str, commands: &[&str]) -> std::io::Result<Vec<String>> {
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
    let attributes = json!({"image": "redis:test", "image_pull_policy": "Never", "open": true});
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

    // A pod deleted out of band is replaced.
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

    // A container that dies is reported with the reason, and the node is replaced.
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
            let answer = world.client().list_events(request, PATIENCE).await.unwrap();
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

/// A program that cargo builds next to the tests, as the content of an image.
fn program(name: &str) -> String {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join(name);
    format!("{}:/usr/bin/{name}", path.display())
}

/// Makes the image of a server that the manifests name.
async fn released(server: &str) {
    let image = format!("{server}:0.1.0");
    rig().image(&[&image, "--libs", &program(server)]).await;
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

/// The commands of the first code block in a section of a page.
fn commands(page: &str, section: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once(&format!("\n## {section}\n")).unwrap();
    let (_, block) = section.split_once("\n```sh\n").unwrap();
    let (block, _) = block.split_once("\n```").unwrap();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    block.lines().map(words).collect()
}

/// Executes the commands of the page with the test's namespaces. kubectl commands are emulated through the API, and objects
/// changed before they are applied, as a reader edits them.
async fn follow(
    commands: &[Vec<String>],
    raw: &Raw,
    places: Places<'_>,
    at: &Path,
    edit: impl Fn(&mut Value),
) {
    for command in commands {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words[..] {
            ["drover", ..] => {
                let files = program("drover");
                let (path, _) = files.split_once(':').unwrap();
                let ran = std::process::Command::new(path)
                    .args(&words[1..])
                    .current_dir(at)
                    .output();
                let ran = ran.unwrap();
                assert!(ran.status.success(), "{command:?}: {ran:?}");
            }
            ["(umask", ..] => {
                let line = command.join(" ");
                let mut shell = std::process::Command::new("sh");
                let ran = shell.args(["-c", &line]).current_dir(at).output().unwrap();
                assert!(ran.status.success(), "{command:?}: {ran:?}");
            }
            ["kubectl", "apply", "-k", folder] => {
                let folder = folder.strip_prefix("deploy/kubernetes/").unwrap();
                let mut objects = built(folder, places);
                objects.iter_mut().for_each(&edit);
                apply(raw, objects).await;
            }
            [
                "kubectl",
                "create",
                "secret",
                "generic",
                name,
                "--namespace",
                "drover-system",
                ref files @ ..,
            ] => {
                let mut data = serde_json::Map::new();
                for file in files {
                    let (key, path) = file
                        .strip_prefix("--from-file=")
                        .unwrap()
                        .split_once('=')
                        .unwrap();
                    let content = std::fs::read_to_string(at.join(path)).unwrap();
                    data.insert(key.to_owned(), content.into());
                }
                let secret = json!({
                    "apiVersion": "v1", "kind": "Secret", "stringData": data,
                    "metadata": {"name": name, "namespace": places.system},
                });
                apply(raw, vec![secret]).await;
            }
            [
                "kubectl",
                "rollout",
                "status",
                kind,
                name,
                "--namespace",
                "drover-system",
            ] => {
                let path = format!("/apis/apps/v1/namespaces/{}/{kind}s/{name}", places.system);
                until(&format!("the {kind} {name} is available"), || async {
                    let workload = raw.get(&path).await.unwrap();
                    let wanted = &workload["spec"]["replicas"];
                    (workload["status"]["availableReplicas"] == *wanted).then_some(())
                })
                .await;
            }
            _ => panic!("a command that this test does not know: {command:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_platform_runs_in_the_cluster_that_it_manages() {
    if without_kubelet() {
        return;
    }
    let rig = rig();
    released(NAME).await;
    rig.image(&["redis"]).await;
    let (system, nodes) = (rig.namespace().await, rig.namespace().await);
    let places = Places {
        system: &system.name,
        nodes: &nodes.name,
    };
    let directory = tempfile::tempdir().unwrap();
    let steps = commands("tasks/kubernetes.md", "In the cluster");
    follow(&steps, &system.raw, places, directory.path(), |_| {}).await;
    let pods = system.list("pods").await;
    let address = pods[0]["status"]["podIP"].as_str().unwrap().to_owned();
    let endpoint = format!("https://{address}:7401");

    let certs = directory.path().join("certs");
    let tls = PlatformTlsSettings {
        ca: Some(certs.join("ca.pem")),
        cert: Some(certs.join("orchestrator.pem")),
        key: Some(certs.join("orchestrator.key")),
        ..PlatformTlsSettings::default()
    };
    let world = World::calling(tls).await;
    let name = format!("{NAME}.drover-system.svc");
    world.register_as("k8s", &endpoint, &name).await;
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
    assert_eq!(nodes.list("pods").await.len(), 3);
    assert_eq!(system.list("pods").await.len(), 1, "no node is here");

    // Clients without a certificate of the CA are rejected, and so is one with a platform's certificate, which is not
    // valid for a client.
    let platform = certs.join(format!("{name}.pem"));
    let key = certs.join(format!("{name}.key"));
    for shown in [None, Some((platform, key))] {
        let mut target: Target = endpoint.parse().unwrap();
        target.tls = ClientSettings {
            authorities: Authorities::File(certs.join("ca.pem")),
            certificate: shown.map(Identity::from),
            server_name: Some(name.clone()),
            ..ClientSettings::default()
        };
        let mut client = PlatformServiceClient::new(drover_client::connect(&target));
        let status = client
            .get_platform(GetPlatformRequest {})
            .await
            .unwrap_err();
        let refused = [tonic::Code::Unauthenticated, tonic::Code::Unavailable];
        assert!(refused.contains(&status.code()), "{status:?}");
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
