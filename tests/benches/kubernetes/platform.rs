//! Overhead of the platform: the same pods through orchestrator and platform, by plain creates over eight connections,
//! and by the ReplicaSet controller; how soon a replacement for a dead pod is requested; and the memory for 10,000 pods.

use std::{collections::HashMap, net::SocketAddr, path::Path, time::Duration};

use drover_client::{Channel, OrchestratorClient};
use drover_orchestrator::Orchestrator;
use drover_platform_k8s::{PlatformServer, Settings};
use drover_proto::orchestrator::v1 as pb;
use drover_server::{Running, ServerSettings, Shutdown};
use drover_testing::kubernetes::{Namespace, Rig};
use futures::{AsyncBufReadExt as _, StreamExt as _};
use http::Request;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use crate::{
    CALL, CONNECTIONS, PATIENCE, create_pods, median,
    server::{Memory, Server},
    spec,
};

/// No scheduler picks up these pods when only their creation is measured.
const TEMPLATE: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: {{ node.id }}}
spec:
  schedulerName: nobody
  automountServiceAccountToken: false
  containers: [{name: main, image: 'example.invalid/main:1', ports: [{name: client, containerPort: 7000}]}]
";

/// Events of the pods of a namespace, from a watch of the API server.
struct Pods(mpsc::Receiver<(Instant, &'static str, String)>);

impl Pods {
    async fn of(namespace: &Namespace) -> Self {
        let (tell, told) = mpsc::channel(100_000);
        let path = namespace.path("pods");
        let list = namespace.raw.get(&path).await.unwrap();
        let mut version = list["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .to_owned();
        let client = namespace.raw.client();
        let watch = async move |version: &str| {
            let request = Request::get(format!("{path}?watch=1&resourceVersion={version}"))
                .header(
                    "accept",
                    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
                )
                .body(Vec::new())
                .unwrap();
            client.request_stream(request).await.unwrap()
        };
        let first = watch(&version).await;
        tokio::spawn(async move {
            let mut next = Some(first);
            loop {
                // A server that has just started may end watches early.
                let stream = match next.take() {
                    Some(first) => first,
                    None => watch(&version).await,
                };
                let mut lines = std::pin::pin!(stream.lines());
                while let Some(Ok(line)) = lines.next().await {
                    let at = Instant::now();
                    let event: Value = serde_json::from_str(&line).unwrap();
                    let meta = &event["object"]["metadata"];
                    let kind = match event["type"].as_str() {
                        Some("ADDED") => "ADDED",
                        Some("DELETED") => "DELETED",
                        Some("ERROR") => panic!("the watch failed: {}", event["object"]),
                        _ => continue,
                    };
                    version = meta["resourceVersion"].as_str().unwrap().to_owned();
                    let name = meta["name"].as_str().unwrap();
                    if tell.send((at, kind, name.to_owned())).await.is_err() {
                        return;
                    }
                }
            }
        });
        Self(told)
    }

    /// Waits until this many pods are added.
    async fn added(&mut self, count: usize) {
        let all = async {
            for _ in 0..count {
                while self.next().await.1 != "ADDED" {}
            }
        };
        tokio::time::timeout(PATIENCE, all)
            .await
            .expect("the pods are not created");
    }

    async fn next(&mut self) -> (Instant, &'static str, String) {
        tokio::time::timeout(PATIENCE, self.0.recv())
            .await
            .expect("nothing happens")
            .expect("the watch goes on")
    }
}

/// Eight clients, each creating pods sequentially.
async fn raw(rig: &Rig, namespace: &Namespace, count: usize) -> Duration {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let raw = rig.raw().await;
        raw.get("/version").await.unwrap();
        clients.push(raw);
    }
    let mut pods = Pods::of(namespace).await;
    let path = namespace.path("pods");
    let began = Instant::now();
    let all = clients.iter().enumerate().map(|(client, raw)| {
        let path = path.as_str();
        async move {
            for number in (client..count).step_by(CONNECTIONS) {
                // As many labels as on a pod created by Drover, and a text of the same length.
                let labels: HashMap<String, String> = (0..6)
                    .map(|label| (format!("bench/{label}"), format!("{number:036}")))
                    .collect();
                let pod = json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {
                        "name": format!("raw-{number}"),
                        "labels": labels,
                        "annotations": {"bench/identity": "a".repeat(500)},
                    },
                    "spec": spec(),
                });
                raw.create(path, &pod).await.unwrap();
            }
        }
    });
    futures::future::join_all(all).await;
    pods.added(count).await;
    began.elapsed()
}

/// The ReplicaSet controller, which the rig allows 5,000 requests per second.
async fn replica_set(namespace: &Namespace, count: usize) -> Duration {
    let mut pods = Pods::of(namespace).await;
    let began = Instant::now();
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "set"},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": "set"}},
            "template": {"metadata": {"labels": {"app": "set"}}, "spec": spec()},
        },
    });
    namespace.create("replicasets.apps", &set).await.unwrap();
    pods.added(count).await;
    began.elapsed()
}

struct Drover {
    orchestrator: Orchestrator,
    api: Running,
    platform: PlatformServer,
    served: Running,
    client: OrchestratorClient,
    _data: tempfile::TempDir,
}

impl Drover {
    async fn start(rig: &Rig, namespace: &str, template: &str) -> Self {
        let data = tempfile::tempdir().unwrap();
        let settings = settings(rig, namespace, data.path(), template);
        let platform = PlatformServer::open(settings).await.unwrap();
        let served = serve(platform.service()).await;
        let orchestrator = Orchestrator::open(&drover_orchestrator::Settings {
            data_dir: data.path().join("store"),
            ..Default::default()
        })
        .await
        .unwrap();
        let api = serve(orchestrator.service()).await;
        let channel: Channel = drover_client::connect(&url(api.address()).parse().unwrap());
        let client = OrchestratorClient::new(channel);
        let registered = pb::RegisterPlatformRequest {
            platform: Some(pb::Platform {
                name: "k8s".to_owned(),
                spec: Some(pb::PlatformSpec {
                    endpoint: url(served.address()),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        client.register_platform(registered, CALL).await.unwrap();
        loop {
            let request = pb::GetPlatformRequest {
                name: "k8s".to_owned(),
                ..Default::default()
            };
            let platform = client.get_platform(request, CALL).await.unwrap().platform;
            let status = platform.and_then(|platform| platform.status);
            if status.is_some_and(|status| status.phase() == pb::PlatformPhase::Ready) {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        Self {
            orchestrator,
            api,
            platform,
            served,
            client,
            _data: data,
        }
    }

    async fn apply(&self, name: &str, count: usize) {
        let cluster = pb::Cluster {
            name: name.to_owned(),
            spec: Some(pb::ClusterSpec {
                platforms: vec![pb::PlatformChoice {
                    name: "k8s".to_owned(),
                    ..Default::default()
                }],
                groups: vec![pb::GroupSpec {
                    name: "web".to_owned(),
                    size: Some(u32::try_from(count).unwrap()),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster),
            ..Default::default()
        };
        self.client.apply_cluster(request, CALL).await.unwrap();
    }

    /// Waits until this many nodes are ready.
    async fn ready(&self, count: usize) {
        let began = Instant::now();
        loop {
            let request = pb::ListClustersRequest {
                page_size: 1000,
                ..Default::default()
            };
            let answer = self.client.list_clusters(request, CALL).await.unwrap();
            let statuses = answer.clusters.into_iter().filter_map(|it| it.status);
            let ready: u32 = statuses
                .flat_map(|status| status.groups)
                .map(|group| group.ready)
                .sum();
            if ready as usize == count {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{ready} of {count} are ready");
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(self) {
        self.api.shutdown().await;
        self.orchestrator.shutdown().await;
        self.platform.shutdown().await;
        self.served.shutdown().await;
    }
}

fn settings(rig: &Rig, namespace: &str, directory: &Path, template: &str) -> Settings {
    let catalogue = directory.join("catalogue");
    std::fs::create_dir_all(&catalogue).unwrap();
    std::fs::write(catalogue.join("pod.yaml"), template).unwrap();
    let index = "default: {template: pod.yaml}\n";
    std::fs::write(catalogue.join("index.yaml"), index).unwrap();
    Settings {
        kubeconfig: Some(rig.kubeconfig().to_owned()),
        namespaces: vec![namespace.to_owned()],
        templates: Some(catalogue),
        // As many as on the other side.
        max_concurrent_calls: CONNECTIONS,
        ..Settings::default()
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

async fn serve(service: drover_server::Service) -> Running {
    let settings = ServerSettings::on_port(0);
    let listener = drover_server::listen(&settings).await.unwrap();
    drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap()
}

/// CPU time so far in seconds: of this process, of the API server with etcd, and of the controllers.
fn spent() -> [f64; 3] {
    let own = std::process::id().to_string();
    let mut spent = [0.0; 3];
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let Some((head, tail)) = stat.rsplit_once(')') else {
            continue;
        };
        let (pid, comm) = head.split_once(" (").unwrap_or_default();
        let at = match comm {
            _ if pid == own => 0,
            "kube-apiserver" | "etcd" => 1,
            _ if comm.starts_with("kube-") => 2,
            _ => continue,
        };
        let ticks = tail.split_whitespace().skip(11).take(2);
        // Linux counts in units of 10 ms.
        spent[at] += ticks.filter_map(|it| it.parse::<f64>().ok()).sum::<f64>() / 100.0;
    }
    spent
}

pub(crate) async fn creation(rig: &Rig, count: usize, runs: usize) {
    let (mut ours, mut plain, mut controller) = (Vec::new(), Vec::new(), Vec::new());
    let mut processor = [[0.0; 3]; 3];
    for run in 0..runs {
        // Interleaved, so that no side has a quieter machine.
        for side in 0..3 {
            let namespace = rig.namespace().await;
            let before = spent();
            match (run + side) % 3 {
                0 => plain.push(raw(rig, &namespace, count).await),
                1 => controller.push(replica_set(&namespace, count).await),
                _ => {
                    let drover = Drover::start(rig, &namespace.name, TEMPLATE).await;
                    let mut pods = Pods::of(&namespace).await;
                    let began = Instant::now();
                    drover.apply("bench", count).await;
                    pods.added(count).await;
                    ours.push(began.elapsed());
                    drover.end().await;
                }
            }
            for (at, after) in spent().into_iter().enumerate() {
                processor[(run + side) % 3][at] += (after - before[at]) / runs as f64;
            }
            namespace.remove_wholly().await;
        }
    }
    let [ours, plain, controller] = [ours, plain, controller].map(median);
    println!(
        "| pods created, after apply | Drover | {CONNECTIONS} connections | ratio | ReplicaSet | ratio |"
    );
    println!("|---|---|---|---|---|---|");
    println!(
        "| {count} | {ours:.2} s | {plain:.2} s | {:.2} | {controller:.2} s | {:.2} |\n",
        ours / plain,
        ours / controller
    );
    println!("| processor time of | Drover | {CONNECTIONS} connections | ReplicaSet |");
    println!("|---|---|---|---|");
    let parts = [
        "the client (Drover: orchestrator and platform)",
        "API server and etcd",
        "controllers",
    ];
    for (part, name) in parts.iter().enumerate() {
        let [plain, controller, ours] = processor.map(|side| side[part]);
        println!("| {name} | {ours:.2} s | {plain:.2} s | {controller:.2} s |");
    }
    println!();
}

/// Time from the event of a pod's end to that of its replacement. Each pod dies in a cluster of its own, because
/// replacement backs off in a group whose nodes die repeatedly.
pub(crate) async fn replacement(rig: &Rig, deaths: usize) {
    let namespace = rig.namespace().await;
    let template = TEMPLATE.replace("  schedulerName: nobody\n", "");
    let drover = Drover::start(rig, &namespace.name, &template).await;
    let mut pods = Pods::of(&namespace).await;
    let mut victims = Vec::new();
    for number in 0..deaths {
        drover.apply(&format!("bench-{number}"), 1).await;
        victims.push(pods.next().await.2);
    }
    drover.ready(deaths).await;
    let mut took = Vec::new();
    for victim in victims {
        namespace.delete("pods", &victim).await;
        let mut died = None;
        loop {
            match pods.next().await {
                (at, "DELETED", name) if name == victim => died = Some(at),
                (at, "ADDED", _) => {
                    took.push(at.duration_since(died.expect("first it dies")));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        drover.ready(deaths).await;
    }
    took.sort_unstable();
    let at = |part: usize| took[(took.len() * part / 100).min(took.len() - 1)].as_secs_f64() * 1e3;
    println!(
        "| death of a pod to the next one, both as the API server tells | p50 | p99 | worst |"
    );
    println!("|---|---|---|---|");
    println!(
        "| {deaths} deaths | {:.1} ms | {:.1} ms | {:.1} ms |\n",
        at(50),
        at(99),
        at(100)
    );
    drover.end().await;
    namespace.remove_wholly().await;
}

/// Resident memory of the platform's process with these pods, half of them nodes.
pub(crate) async fn memory(rig: &Rig, pods: usize) {
    let namespace = rig.namespace().await;
    create_pods(rig, &namespace, pods, |number| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("web-{number}-x7k2p")},
            "spec": spec(),
        });
        if number % 2 == 0 {
            pod["metadata"]["labels"] = labels(number);
            pod["metadata"]["annotations"] = annotations(number);
        }
        pod
    })
    .await;
    let server = Server::start(rig.kubeconfig(), &namespace.name, "{}").await;
    // Opens a watch, as an orchestrator does.
    let mut client =
        drover_proto::platform::v1::platform_service_client::PlatformServiceClient::new(
            server.channel(),
        );
    let mut watch = client
        .watch_nodes(drover_proto::platform::v1::WatchNodesRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut seen = 0;
    while seen < pods / 2 {
        let message = watch.message().await.unwrap().unwrap();
        if let Some(drover_proto::platform::v1::watch_nodes_response::Event::Upserts(upserts)) =
            message.event
        {
            seen += upserts.nodes.len();
        }
    }
    let Memory { now, most } = server.memory();
    println!("| memory of drover-platform-k8s | now | most |");
    println!("|---|---|---|");
    println!(
        "| {} nodes among {pods} pods | {now:.0} MiB | {most:.0} MiB |\n",
        pods / 2
    );
    drop(server);
    namespace.remove().await;
}

fn labels(number: usize) -> Value {
    let uuid = format!("00000000-0000-4000-8000-{number:012}");
    json!({
        "app.kubernetes.io/managed-by": "drover",
        "drover.dev/cluster": format!("cluster-{}", number / 20),
        "drover.dev/node": format!("web-{number}-x7k2p"),
        "drover.dev/group": "web",
        "drover.dev/owner": uuid,
        "drover.dev/request": uuid,
    })
}

fn annotations(number: usize) -> Value {
    let uuid = format!("00000000-0000-4000-8000-{number:012}");
    let identity = json!({
        "owner": uuid, "cluster_id": format!("cluster-{}", number / 20), "group": "web", "request_id": uuid,
        "index": 0, "sequence": 1, "spec_hash": "a".repeat(64), "store_id": uuid,
        "id": format!("web-{number}-x7k2p"), "name": format!("web-{number}"), "ordinal": number,
        "role": 1, "version": "16", "node_class": "small", "labels": {"team": "payments"},
        "fingerprint": "b".repeat(64),
    });
    json!({"drover.dev/identity": identity.to_string(), "drover.dev/anchor": "true"})
}
