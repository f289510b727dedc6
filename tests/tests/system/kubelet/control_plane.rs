//! Three orchestrators in pods, as the documentation has them, over an etcd of this machine.

use std::{
    fs::File,
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use drover_client::{Authorities, ClientSettings, Identity, OrchestratorClient, Target, connect};
use drover_proto::orchestrator::v1 as pb;
use drover_testing::kubernetes::{
    Namespace,
    manifests::{NAME, ORCHESTRATOR, Places, folder},
    until, without_kubelet,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    bench::{processes, run},
    commands, follow, released, rig, three,
};
use crate::real::{binary, free_port};

const CALL: Duration = Duration::from_secs(30);
const PAGE: &str = "tasks/kubernetes.md";
const REPLICAS: usize = 3;
/// The cluster that they look after.
const CLUSTER: &str = "cache";
/// Members of etcd in the settings, which a reader replaces by his own.
const MEMBERS: &str = "https://etcd-1.example.com:2379, https://etcd-2.example.com:2379, \
                       https://etcd-3.example.com:2379";

#[test]
fn the_settings_in_the_manifests_are_settings_of_the_orchestrator() {
    for file in ["orchestrator.yaml", "single/orchestrator.yaml"] {
        let file = folder().join("orchestrator").join(file);
        let mut command = Command::new(binary(ORCHESTRATOR));
        command.env_clear();
        let printed = command.arg("--config").arg(&file).arg("--print-config");
        let printed = printed.output().unwrap();
        assert!(printed.status.success(), "{}: {printed:?}", file.display());
    }
}

/// An etcd at an address that pods reach, which lets in orchestrators alone.
struct Etcd {
    process: Child,
    url: String,
}

impl Etcd {
    /// Starts it with a certificate of the authority in `certs`.
    async fn start(directory: &Path, host: &str) -> Self {
        let mut init = Command::new(binary("drover"));
        let init = init.args(["certs", "init", "--etcd", host]);
        let made = init.current_dir(directory).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let port = free_port();
        let (url, peer) = (
            format!("https://{host}:{port}"),
            format!("http://127.0.0.1:{}", free_port()),
        );
        let log = File::create(directory.join("etcd.log")).unwrap();
        let process = Command::new("etcd")
            .current_dir(directory)
            .args(["--name", "etcd", "--data-dir", "etcd", "--logger", "zap"])
            .args([
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &format!("etcd={peer}")])
            .args(["--cert-file", &format!("certs/{host}.pem")])
            .args(["--key-file", &format!("certs/{host}.key")])
            .args(["--client-cert-auth", "--trusted-ca-file", "certs/ca.pem"])
            .args(["--client-cert-allowed-hostname", "orchestrator"])
            .arg("--enable-grpc-gateway=false")
            // Disk performance of the test machine is not under test.
            .arg("--unsafe-no-fsync")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("etcd is installed (Debian: etcd-server)");
        let mut etcd = Self { process, url };
        until("etcd listens", async || {
            let ended = etcd.process.try_wait().unwrap();
            assert!(ended.is_none(), "etcd ended with {ended:?}");
            TcpStream::connect((host, port)).ok()
        })
        .await;
        etcd
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn address(namespace: &Namespace, service: &str) -> String {
    let service = namespace.get("services", service).await.unwrap();
    service["spec"]["clusterIP"].as_str().unwrap().to_owned()
}

/// The names of the replicas in `/etc/hosts`, since the rig has no DNS: each leads to a service of its pod alone.
async fn names(system: &Namespace) -> Value {
    let mut names = Vec::new();
    for number in 0..REPLICAS {
        let pod = format!("{ORCHESTRATOR}-{number}");
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("{pod}-alone")},
            "spec": {
                "selector": {"statefulset.kubernetes.io/pod-name": pod},
                "publishNotReadyAddresses": true,
                "ports": [{"port": 7400}],
            },
        });
        let made = system.create("services", &service).await.unwrap();
        let name = format!("{pod}.{ORCHESTRATOR}-replicas.drover-system.svc");
        names.push(json!({"ip": made["spec"]["clusterIP"], "hostnames": [name]}));
    }
    names.into()
}

/// Calls the service of the orchestrators as the administrator.
async fn administrator(system: &Namespace, certs: &Path) -> OrchestratorClient {
    let host = address(system, ORCHESTRATOR).await;
    let mut target: Target = format!("https://{host}:7400").parse().unwrap();
    let shown = (certs.join("admin.pem"), certs.join("admin.key"));
    target.tls = ClientSettings {
        authorities: Authorities::File(certs.join("ca.pem")),
        certificate: Some(Identity::from(shown)),
        server_name: Some(format!("{ORCHESTRATOR}.drover-system.svc")),
        ..ClientSettings::default()
    };
    OrchestratorClient::new(connect(&target))
}

/// The replica that leads, once all are there.
async fn leader(client: &OrchestratorClient) -> pb::Replica {
    until("three replicas, of which one leads", async || {
        let request = pb::ListReplicasRequest {};
        let answer = client.list_replicas(request, CALL).await.ok()?;
        let leaders = answer.replicas.iter().filter(|replica| replica.leads);
        let leaders: Vec<_> = leaders.cloned().collect();
        let [leader] = &leaders[..] else {
            return None;
        };
        (answer.replicas.len() == REPLICAS).then(|| leader.clone())
    })
    .await
}

async fn ready(client: &OrchestratorClient, size: usize) {
    until(&format!("{size} nodes are ready"), async || {
        let request = pb::ListNodesRequest {
            cluster: Some(CLUSTER.to_owned()),
            ..Default::default()
        };
        let nodes = client.list_nodes(request, CALL).await.ok()?.nodes;
        let mut states = nodes.iter().map(pb::Node::state);
        let all = states.all(|state| state == pb::NodeState::Ready);
        (all && nodes.len() == size).then_some(())
    })
    .await;
}

async fn register(client: &OrchestratorClient, endpoint: &str) {
    let platform = pb::Platform {
        name: "k8s".to_owned(),
        spec: Some(pb::PlatformSpec {
            endpoint: endpoint.to_owned(),
            tls: Some(pb::PlatformTls {
                server_name: format!("{NAME}.drover-system.svc"),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let request = pb::RegisterPlatformRequest {
        platform: Some(platform),
        ..Default::default()
    };
    client.register_platform(request, CALL).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_orchestrator_in_the_cluster_dies_another_one_goes_on() {
    if without_kubelet() {
        return;
    }
    let rig = rig();
    for server in [NAME, ORCHESTRATOR] {
        released(server).await;
    }
    rig.image(&["redis"]).await;
    let (system, nodes) = (rig.namespace().await, rig.namespace().await);
    let places = Places {
        system: &system.name,
        nodes: &nodes.name,
    };
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let steps = commands(PAGE, "In the cluster");
    follow(&steps, &system.raw, places, at, |_| {}).await;
    let pods = system.list("pods").await;
    let host = pods[0]["status"]["hostIP"].as_str().unwrap();
    let etcd = Etcd::start(at, host).await;
    let names = names(&system).await;
    let edit = |object: &mut Value| {
        if object["kind"] == "ConfigMap" {
            let settings = &mut object["data"]["orchestrator.yaml"];
            let text = settings.as_str().unwrap();
            assert!(text.contains(MEMBERS), "{text}");
            *settings = text.replace(MEMBERS, &etcd.url).into();
        }
        if object["kind"] == "StatefulSet" {
            object["spec"]["template"]["spec"]["hostAliases"] = names.clone();
        }
    };
    let steps = commands(PAGE, "The orchestrator in the cluster");
    follow(&steps, &system.raw, places, at, edit).await;

    let client = administrator(&system, &at.join("certs")).await;
    let platform = address(&system, NAME).await;
    register(&client, &format!("https://{platform}:7401")).await;
    let request = pb::ApplyClusterRequest {
        cluster: Some(pb::Cluster {
            name: CLUSTER.to_owned(),
            spec: Some(three("k8s")),
            ..Default::default()
        }),
        ..Default::default()
    };
    client.apply_cluster(request, CALL).await.unwrap();
    ready(&client, 3).await;

    let first = leader(&client).await;
    let domain = format!("{ORCHESTRATOR}-replicas.drover-system.svc:7400");
    assert_eq!(first.address, format!("https://{}.{domain}", first.name));
    // As when its host loses power, and somebody says that it did.
    let pod = system.get("pods", &first.name).await.unwrap();
    for pid in processes(&pod) {
        let _ = run("kill", &["-9", &pid]);
    }
    system.delete("pods", &first.name).await;
    let began = Instant::now();
    let request = pb::ScaleGroupRequest {
        cluster: CLUSTER.to_owned(),
        group: "web".to_owned(),
        size: Some(4),
        ..Default::default()
    };
    client.scale_group(request, CALL).await.unwrap();
    println!("a change is accepted after {:?}", began.elapsed());
    let next = leader(&client).await;
    assert_ne!(next.name, first.name);
    assert!(next.epoch > first.epoch, "{next:?}");
    ready(&client, 4).await;
    // It is back as one that stands by.
    until("all replicas are ready", async || {
        let set = system.get("statefulsets.apps", ORCHESTRATOR).await.unwrap();
        (set["status"]["readyReplicas"] == REPLICAS).then_some(())
    })
    .await;

    let request = pb::DeleteClusterRequest {
        name: CLUSTER.to_owned(),
        ..Default::default()
    };
    client.delete_cluster(request, CALL).await.unwrap();
    until("no pod is left", async || {
        nodes.list("pods").await.is_empty().then_some(())
    })
    .await;
    // Before their etcd is gone, without which they would be started again and again.
    system.delete("statefulsets.apps", ORCHESTRATOR).await;
    until("no orchestrator is left", async || {
        let pods = system.list("pods").await;
        let is_one = |pod: &Value| {
            let name = pod["metadata"]["name"].as_str();
            name.is_some_and(|name| name.starts_with(ORCHESTRATOR))
        };
        (!pods.iter().any(is_one)).then_some(())
    })
    .await;
    system.remove().await;
}
