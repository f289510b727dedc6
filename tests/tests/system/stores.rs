//! The stores with shipped templates, with their real servers, as processes of this machine: acknowledged writes
//! survive the death of any node.
//!
//! `STORES_ROUNDS=10` kills this number of primaries instead of a few, and limits each failover to 10 s, for an
//! otherwise idle machine.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::real;
mod alone;
mod certificates;
mod chaos;
pub(crate) mod clients;
mod disk;
mod etcd;
mod fence;
mod impaired;
mod network;
mod passwords;
mod pgbench;
mod postgresql;
mod promotions;
mod quorum;
mod redis;
mod settings;
mod sole;
mod tls;
mod writers;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Output},
    sync::{Arc, Mutex},
    time::Duration,
};

use clients::Writer;
use drover_proto::{orchestrator::v1 as pb, platform::v1::NodeRole};
use prost_types::{Struct, Value, value::Kind};
use real::{World, insist, kill_9};
use tokio::time::Instant;

/// Maximum time from the death of a primary until its client receives the next acknowledgement, where nothing else runs:
/// with `STORES_ROUNDS`.
const FAILOVER: Duration = Duration::from_secs(10);
/// Maximum time for nodes with data to become ready on a busy machine.
const UP: Duration = Duration::from_secs(180);
/// Writes between two deaths.
const WRITES: usize = 20;

fn rounds(few: usize) -> usize {
    std::env::var("STORES_ROUNDS").map_or(few, |rounds| rounds.parse().unwrap())
}

fn installed(program: &str, package: &str) {
    let there = run("sh", &["-c", &format!("command -v {program}")]);
    assert!(
        there.status.success(),
        "{program} is not installed: apt-get install {package}, and run this test again"
    );
}

fn text(value: &str) -> Value {
    Value {
        kind: Some(Kind::StringValue(value.to_owned())),
    }
}

fn object(fields: &[(&str, Value)]) -> Struct {
    let fields = fields
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    Struct {
        fields: fields.collect(),
    }
}

fn nested(fields: &[(&str, Value)]) -> Value {
    Value {
        kind: Some(Kind::StructValue(object(fields))),
    }
}

/// A cluster with a group `db` of some store.
fn store(
    software: &str,
    version: &str,
    size: u32,
    standby: u32,
    attributes: Struct,
) -> pb::Cluster {
    let group = pb::GroupSpec {
        name: "db".to_owned(),
        size: Some(size),
        standby: (standby > 0).then_some(standby),
        ..Default::default()
    };
    let spec = pb::ClusterSpec {
        store: Some(pb::StoreSpec {
            software: software.to_owned(),
            version: version.to_owned(),
        }),
        platforms: vec![pb::PlatformChoice {
            name: "local".to_owned(),
            ..Default::default()
        }],
        groups: vec![group],
        attributes: Some(attributes),
        ..Default::default()
    };
    pb::Cluster {
        name: software.to_owned(),
        spec: Some(spec),
        ..Default::default()
    }
}

async fn apply(world: &World, cluster: &pb::Cluster) {
    insist(async || {
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster.clone()),
            ..Default::default()
        };
        let client = world.client();
        let call = client.apply_cluster(request, Duration::from_secs(5));
        call.await.map(drop)
    })
    .await;
}

/// A world whose nodes may run as another user.
async fn world() -> World {
    let world = World::new().await;
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(world.directory.path(), open).unwrap();
    world
}

async fn up(world: &World, cluster: &str, nodes: usize) {
    world
        .until_within(UP, "all nodes are ready", async |world| {
            world.is_ready(cluster, nodes).await
        })
        .await;
}

/// Ports of a cluster's nodes for its clients; the last known ones while the orchestrator is unavailable.
type Ports = Arc<Mutex<Vec<u16>>>;

async fn find(world: &World, cluster: &str, ports: &Ports) -> Vec<pb::Node> {
    let nodes = world.records(cluster).await.unwrap_or_default();
    let found = nodes.iter().filter_map(|node| node.endpoints.get("client"));
    let found: Vec<u16> = found
        .map(|endpoint| endpoint.rsplit(':').next().unwrap().parse().unwrap())
        .collect();
    if !found.is_empty() {
        *ports.lock().unwrap() = found;
    }
    nodes
}

/// Pid of the server of a node.
fn server(node: &pb::Node) -> u32 {
    let pid = node.provider_id.rsplit('/').next().unwrap();
    pid.parse().unwrap_or_else(|_| panic!("no pid: {node:?}"))
}

fn active(nodes: &[pb::Node]) -> Option<&pb::Node> {
    nodes
        .iter()
        .find(|node| node.role() == NodeRole::Active && node.state() == pb::NodeState::Ready)
}

fn run(program: &str, arguments: &[&str]) -> Output {
    run_within(8, program, arguments)
}

fn run_within(seconds: u32, program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg(seconds.to_string());
    command.arg(program).args(arguments);
    command.env("ETCDCTL_API", "3").env("LC_ALL", "C");
    command.output().unwrap()
}

fn said(output: &Output) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

/// Kills the active node, and every second time also the orchestrator, while a client writes.
async fn kill_the_active_one(
    world: &mut World,
    cluster: &str,
    ports: &Ports,
    writer: &Writer,
    nodes: usize,
    few: usize,
) {
    let alone = std::env::var_os("STORES_ROUNDS").is_some();
    for round in 1..=rounds(few) {
        writer.writes(world, cluster, ports).await;
        let records = find(world, cluster, ports).await;
        let primary = active(&records).expect("one is active").clone();
        let killed = Instant::now();
        kill_9(server(&primary));
        if round % 2 == 0 {
            world.orchestrator.kill();
            world.orchestrator.start().await;
        }
        world
            .until_within(UP, "writes are acknowledged again", async |world| {
                find(world, cluster, ports).await;
                writer.since(killed).is_some()
            })
            .await;
        let took = writer.since(killed).unwrap();
        println!("{cluster}: death {round} of a primary, written again after {took:?}");
        assert!(!alone || took < FAILOVER, "it took {took:?}");
        // Repeated deaths would delay the next replacement by an increasing backoff.
        insist(async || world.reset_back_off(cluster).await).await;
        up(world, cluster, nodes).await;
        let records = find(world, cluster, ports).await;
        let now = active(&records).expect("one is active");
        assert_ne!(now.id, primary.id, "another one was promoted");
    }
}

/// Applies a change and waits until every node is replaced.
async fn renew(world: &World, cluster: &pb::Cluster, ports: &Ports, nodes: usize) {
    let before = world.records(&cluster.name).await.unwrap();
    apply(world, cluster).await;
    world
        .until_within(UP, "every node is new", async |world| {
            let now = find(world, &cluster.name, ports).await;
            let is_new = |node: &pb::Node| before.iter().all(|old| old.id != node.id);
            world.is_ready(&cluster.name, nodes).await && now.iter().all(is_new)
        })
        .await;
}
