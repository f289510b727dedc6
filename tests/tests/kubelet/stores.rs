//! Stores with replicas in pods, with their real servers: whoever dies, what was acknowledged is there.

use std::{
    cell::Cell,
    collections::BTreeSet,
    fs,
    process::{Command, Output},
    time::Duration,
};

use drover_platform_k8s::Settings;
use drover_proto::{orchestrator::v1 as pb, platform::v1::NodeRole};
use drover_testing::kubernetes::{Namespace, without_kubelet};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{embedded::World, namespace, pod_of, redis, rig};

/// From the death of an active node until another one serves: more than on a machine that does nothing else.
const FAILOVER: Duration = Duration::from_secs(30);
/// The password of postgres, as user data.
const PASSWORD: &str = "not: a \\ secret";

struct Bench {
    world: World,
    namespace: Namespace,
    cluster: &'static str,
}

impl Bench {
    /// A cluster of a store on a platform over a namespace of its own; its group is `db`.
    async fn start(cluster: &'static str, spec: pb::ClusterSpec) -> Self {
        let namespace = namespace(rig()).await;
        let mut world = World::new().await;
        let settings = Settings {
            kubeconfig: Some(rig().kubeconfig().to_owned()),
            namespaces: vec![namespace.name.clone()],
            ..Settings::default()
        };
        world.add("k8s", settings).await;
        world.apply(cluster, spec).await;
        Self {
            world,
            namespace,
            cluster,
        }
    }

    async fn ready(&self, nodes: usize) {
        self.world.ready(self.cluster, nodes).await;
    }

    async fn nodes(&self) -> Vec<pb::Node> {
        self.world.nodes(self.cluster).await
    }

    async fn one(&self, role: NodeRole) -> pb::Node {
        let nodes = self.nodes().await;
        let found = nodes.iter().find(|node| node.role() == role);
        found.unwrap_or_else(|| panic!("no {role:?}")).clone()
    }

    /// Where the service of the group leads.
    async fn service(&self) -> BTreeSet<String> {
        let name = format!("{}-db", self.cluster);
        let slices = self.namespace.list("endpointslices.discovery.k8s.io").await;
        let of_service = slices
            .iter()
            .filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == *name);
        let endpoints = of_service.flat_map(|slice| slice["endpoints"].as_array());
        endpoints
            .flatten()
            .filter(|endpoint| endpoint["conditions"]["ready"] == true)
            .flat_map(|endpoint| endpoint["addresses"].as_array())
            .flatten()
            .map(|address| address.as_str().unwrap().to_owned())
            .collect()
    }

    /// Until the service leads to the active node and nobody else.
    async fn led(&self) {
        self.world
            .until("the service leads to the active node", async |_| {
                let host = host(&self.one(NodeRole::Active).await);
                self.service().await == BTreeSet::from([host])
            })
            .await;
    }

    /// Until another node than this one is active, and a question to it is answered.
    async fn taken_over(&self, from: &pb::Node, served: impl AsyncFn(&pb::Node) -> bool) {
        let began = Instant::now();
        self.world
            .until("another node is active and serves", async |_| {
                let nodes = self.nodes().await;
                let active = nodes.iter().find(|node| node.role() == NodeRole::Active);
                match active.filter(|node| node.id != from.id) {
                    Some(node) if !host(node).is_empty() => served(node).await,
                    _ => false,
                }
            })
            .await;
        let took = began.elapsed();
        println!("{}: another one serves after {took:?}", self.cluster);
        assert!(took < FAILOVER, "it took {took:?}");
    }

    /// Until a node of this name is there again, as a standby.
    async fn back(&self, from: &pb::Node) {
        self.world
            .until("the old name comes back as a standby", async |_| {
                let nodes = self.nodes().await;
                nodes.iter().any(|node| {
                    node.name == from.name
                        && node.id != from.id
                        && node.role() == NodeRole::Standby
                        && node.state() == pb::NodeState::Ready
                })
            })
            .await;
        // Whoever dies again soon is made again ever more slowly, unless somebody says that it is fine.
        self.world.reset_back_off(self.cluster).await;
    }

    async fn kill_9(&self, node: &pb::Node, program: &str) {
        let pod = pod_of(&self.namespace, &node.id).await;
        kill_9(&self.namespace.get("pods", &pod).await.unwrap(), program);
    }

    async fn delete_pod(&self, node: &pb::Node) {
        let pod = pod_of(&self.namespace, &node.id).await;
        self.namespace.delete("pods", &pod).await;
    }

    /// Deletes the cluster, of which nothing may be left.
    async fn end(self) {
        self.world.delete(self.cluster).await;
        self.world.gone(self.cluster).await;
        self.namespace.until_empty("after the cluster").await;
        self.world.end().await;
    }
}

fn spec(software: &str, size: u32, standby: u32, attributes: Value) -> pb::ClusterSpec {
    let mut all = json!({"image_pull_policy": "Never"});
    all.as_object_mut()
        .unwrap()
        .extend(attributes.as_object().unwrap().clone());
    pb::ClusterSpec {
        store: Some(pb::StoreSpec {
            software: software.to_owned(),
            ..Default::default()
        }),
        platforms: vec![pb::PlatformChoice {
            name: "k8s".to_owned(),
            ..Default::default()
        }],
        groups: vec![pb::GroupSpec {
            name: "db".to_owned(),
            size: Some(size),
            standby: (standby > 0).then_some(standby),
            ..Default::default()
        }],
        attributes: all.as_object().map(drover_convert::value::to_struct),
        ..Default::default()
    }
}

fn endpoint(node: &pb::Node) -> String {
    node.endpoints.get("client").cloned().unwrap_or_default()
}

fn host(node: &pb::Node) -> String {
    let endpoint = endpoint(node);
    let host = endpoint.rsplit_once(':').map(|(host, _)| host.to_owned());
    host.unwrap_or_default()
}

/// Kills the server in a pod: that of its processes whose parent is none of them.
fn kill_9(pod: &Value, program: &str) {
    let own = format!("pod{}", pod["metadata"]["uid"].as_str().unwrap());
    let is_server = |pid: &str| {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == program && groups.contains(&own)
    };
    let parent = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("PPid:"));
        line.map_or(String::new(), |line| line[5..].trim().to_owned())
    };
    let mut servers = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|pid| is_server(pid) && !is_server(&parent(pid)));
    let server = servers
        .next()
        .unwrap_or_else(|| panic!("no {program} in {own}"));
    let killed = Command::new("kill").args(["-9", &server]).status().unwrap();
    assert!(killed.success());
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("20").arg(program).args(arguments);
    command.env("ETCDCTL_API", "3").env("LC_ALL", "C");
    command.env("PGPASSWORD", PASSWORD);
    command.output().unwrap()
}

fn said(output: &Output) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_replica_in_a_pod_takes_over_with_everything() {
    if without_kubelet() {
        return;
    }
    rig().image(&["redis"]).await;
    let bench = Bench::start("cache", spec("redis", 1, 1, json!({"image": "redis:test"}))).await;
    bench.ready(2).await;
    bench.led().await;
    let primary = bench.one(NodeRole::Active).await;
    // One connection: a wait is for the writes of its own.
    bench
        .world
        .until("a replica has what is written", async |_| {
            let write = ["SET before 1", "WAIT 1 1000"];
            let answers = redis(&endpoint(&primary), &write).await;
            answers.is_ok_and(|answers| answers == ["+OK", ":1"])
        })
        .await;
    bench.kill_9(&primary, "redis-server").await;
    bench
        .taken_over(&primary, async |node| {
            let answers = redis(&endpoint(node), &["SET after 1"]).await;
            answers.is_ok_and(|answers| answers == ["+OK"])
        })
        .await;
    bench.back(&primary).await;
    bench.ready(2).await;
    bench.led().await;
    let primary = bench.one(NodeRole::Active).await;
    let has = ["EXISTS before", "EXISTS after"];
    let answers = redis(&endpoint(&primary), &has).await.unwrap();
    assert_eq!(answers, [":1", ":1"], "at {}", primary.id);
    let standby = bench.one(NodeRole::Standby).await;
    bench
        .world
        .until("the new standby has it, too", async |_| {
            let answers = redis(&endpoint(&standby), &has).await;
            answers.is_ok_and(|answers| answers == [":1", ":1"])
        })
        .await;
    bench.end().await;
}

fn psql(nodes: &[&pb::Node], writable: bool, statement: &str) -> Option<String> {
    let hosts: Vec<_> = nodes.iter().map(|node| host(node)).collect();
    let session = if writable { "read-write" } else { "any" };
    let to = format!(
        "host={} port=5432 user=postgres dbname=postgres connect_timeout=2 target_session_attrs={session}",
        hosts.join(",")
    );
    said(&run("psql", &["-XAtqw", "-d", &to, "-c", statement]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_of_postgresql_in_a_pod_is_promoted_and_no_row_is_lost() {
    if without_kubelet() {
        return;
    }
    rig().image(&["postgresql"]).await;
    let mut spec = spec(
        "postgresql",
        1,
        1,
        json!({
            "image": "postgres:test", "synchronous": 1,
            "settings": {"shared_buffers": "16MB", "max_connections": "30"},
        }),
    );
    spec.bootstrap = Some(pb::BootstrapSource {
        source: Some(pb::bootstrap_source::Source::Text(PASSWORD.to_owned())),
        ..Default::default()
    });
    let bench = Bench::start("orders", spec).await;
    bench.ready(2).await;
    bench.led().await;
    let mut rows = 0;
    let table = "create table numbers (number bigint primary key)";
    let primary = bench.one(NodeRole::Active).await;
    psql(&[&primary], true, table).expect("a table");
    for round in 0..2 {
        let primary = bench.one(NodeRole::Active).await;
        for _ in 0..20 {
            let row = format!("insert into numbers values ({rows})");
            psql(&[&primary], true, &row).expect("a row is acknowledged");
            rows += 1;
        }
        if round == 0 {
            bench.kill_9(&primary, "postgres").await;
        } else {
            bench.delete_pod(&primary).await;
        }
        let count = "select count(*) from numbers";
        bench
            .taken_over(&primary, async |node| {
                let answer = psql(&[node], true, count);
                assert!(
                    answer.as_ref().is_none_or(|it| *it == rows.to_string()),
                    "{answer:?} of {rows}"
                );
                answer.is_some()
            })
            .await;
        bench.back(&primary).await;
        bench.ready(2).await;
        bench.led().await;
        let standby = bench.one(NodeRole::Standby).await;
        bench
            .world
            .until("the new standby has every row", async |_| {
                psql(&[&standby], false, count) == Some(rows.to_string())
            })
            .await;
    }
    let nodes = bench.nodes().await;
    let wrong = Command::new("psql")
        .args([
            "-XAtqw",
            "-h",
            &host(&nodes[0]),
            "-U",
            "postgres",
            "-c",
            "select 1",
        ])
        .env("PGPASSWORD", "wrong")
        .output()
        .unwrap();
    assert!(!wrong.status.success(), "a wrong password lets nobody in");
    bench.end().await;
}

fn etcd(nodes: &[pb::Node], command: &[&str]) -> Option<String> {
    let endpoints: Vec<_> = nodes
        .iter()
        .map(|node| format!("http://{}", endpoint(node)))
        .collect();
    let endpoints = format!("--endpoints={}", endpoints.join(","));
    let mut arguments = vec![&*endpoints, "--dial-timeout=1s", "--command-timeout=3s"];
    arguments.extend(command);
    said(&run("etcdctl", &arguments))
}

/// Ids of the nodes that are members and vote.
fn voters(nodes: &[pb::Node]) -> BTreeSet<String> {
    let members = etcd(nodes, &["member", "list"]).unwrap_or_default();
    let members = members
        .lines()
        .map(|line| line.split(", ").collect::<Vec<_>>());
    members
        .filter(|member| member.get(1) == Some(&"started") && member.last() == Some(&"false"))
        .map(|member| member[2].to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_member_in_a_pod_that_is_deleted_is_replaced_and_the_quorum_stays() {
    if without_kubelet() {
        return;
    }
    for image in ["etcd", "busybox"] {
        rig().image(&[image]).await;
    }
    let attributes = json!({
        "image": "etcd:test", "tools_image": "busybox:test",
        // The disk of a test machine is no subject of this test.
        "flags": {"unsafe-no-fsync": "true"},
    });
    let bench = Bench::start("coordination", spec("etcd", 3, 0, attributes)).await;
    bench.ready(3).await;
    let are_members = async || {
        bench
            .world
            .until("every node is a member, and nobody else", async |_| {
                let nodes = bench.nodes().await;
                let ids: BTreeSet<String> = nodes.iter().map(|node| node.id.clone()).collect();
                ids.len() == 3 && voters(&nodes) == ids
            })
            .await;
    };
    are_members().await;
    let nodes = bench.nodes().await;
    assert!(etcd(&nodes, &["put", "number/0", "x"]).is_some());
    let victim = nodes.iter().find(|node| node.ordinal == 1).unwrap().clone();
    let others: Vec<_> = nodes
        .iter()
        .filter(|node| node.id != victim.id)
        .cloned()
        .collect();
    bench.delete_pod(&victim).await;
    let written = Cell::new(0);
    bench
        .world
        .until("another node is in its place", async |_| {
            let key = format!("number/{}", written.get() + 1);
            let began = Instant::now();
            // A new leader may have to be elected.
            while etcd(&others, &["put", &key, "x"]).is_none() {
                assert!(began.elapsed() < FAILOVER, "the quorum is gone");
            }
            written.set(written.get() + 1);
            let nodes = bench.nodes().await;
            let is_new = |node: &pb::Node| node.name == victim.name && node.id != victim.id;
            nodes
                .iter()
                .any(|node| is_new(node) && node.state() == pb::NodeState::Ready)
        })
        .await;
    bench.ready(3).await;
    are_members().await;
    let nodes = bench.nodes().await;
    for node in nodes {
        let keys = etcd(&[node], &["get", "number/", "--prefix", "--keys-only"]).unwrap();
        let keys = keys.lines().filter(|line| !line.is_empty()).count();
        assert_eq!(keys, written.get() + 1);
    }
    let written = written.get();
    println!("coordination: {written} writes while a member was replaced");
    bench.end().await;
}
