//! Hosts of pods: all of them are drained, one after the other, and one loses its power.

use std::{collections::BTreeMap, process::Command};

use drover_proto::{orchestrator::v1 as pb, platform::v1::NodeRole};
use drover_testing::kubernetes::{SecondNode, without_kubelet};
use serde_json::json;

use super::{
    bench::{Bench, host, password, spec, sql},
    clients::{Known, Writer, Written, none_lost},
    rig,
};

const FIRST: &str = "real-0";
const SECOND: &str = SecondNode::NAME;
/// Acknowledged writes between two phases of the test.
const WRITES: usize = 20;

/// Host of each pod that has one, by its node's id.
async fn hosts(bench: &Bench) -> BTreeMap<String, String> {
    let mut hosts = BTreeMap::new();
    for pod in bench.namespace.list("pods").await {
        let id = pod["metadata"]["labels"]["drover.dev/node"].as_str();
        if let (Some(id), Some(host)) = (id, pod["spec"]["nodeName"].as_str()) {
            hosts.insert(id.to_owned(), host.to_owned());
        }
    }
    hosts
}

async fn is_on(bench: &Bench, node: &pb::Node, host: &str) -> bool {
    hosts(bench).await.get(&node.id).map(String::as_str) == Some(host)
}

/// A host that takes no pods until this is dropped: those of other tests wait for it.
struct Cordoned<'a>(&'a str);

impl<'a> Cordoned<'a> {
    async fn new(host: &'a str) -> Self {
        let cordoned = Self(host);
        rig().kubectl(&["cordon", host]).await;
        cordoned
    }
}

impl Drop for Cordoned<'_> {
    fn drop(&mut self) {
        let settings = rig().kubeconfig();
        let mut kubectl = Command::new(settings.with_file_name("kubectl"));
        let kubectl = kubectl.args(["uncordon", self.0]);
        let _ = kubectl.env("KUBECONFIG", settings).output();
    }
}

/// Does to a host what `kubectl drain` does, and lets pods on it again.
async fn drain(bench: &Bench, host: &str) {
    let cordoned = Cordoned::new(host).await;
    for node in bench.nodes().await {
        if is_on(bench, &node, host).await {
            bench.evict(&node).await;
        }
    }
    bench
        .world
        .until(&format!("all nodes have left {host}"), async |_| {
            let nodes = bench.nodes().await;
            let hosts = hosts(bench).await;
            let elsewhere = |node: &pb::Node| hosts.get(&node.id).is_some_and(|it| it != host);
            nodes.len() == 2 && nodes.iter().all(elsewhere)
        })
        .await;
    drop(cordoned);
    bench.ready(2).await;
    bench.led().await;
    // Hosts that are drained within minutes look like nodes that do not live long.
    bench.world.reset_back_off(bench.cluster).await;
}

/// Has the active node on the second host, and the other one on the first.
async fn active_on_the_second(bench: &Bench) {
    let cordoned = Cordoned::new(SECOND).await;
    let standby = bench.one(NodeRole::Standby).await;
    bench.evict(&standby).await;
    bench.back(&standby).await;
    drop(cordoned);
    bench.ready(2).await;
    let (active, standby) = (
        bench.one(NodeRole::Active).await,
        bench.one(NodeRole::Standby).await,
    );
    assert!(is_on(bench, &active, SECOND).await);
    assert!(is_on(bench, &standby, FIRST).await);
}

async fn every_node_has(bench: &Bench, acknowledged: &[Written]) {
    let last = acknowledged.last().unwrap().number;
    let has_last = format!("select count(*) from numbers where number = {last}");
    for node in bench.nodes().await {
        let own = |statement: &str| sql(&[host(&node)], false, statement);
        // A standby acknowledges a row slightly before it replays it.
        bench
            .world
            .until("it has the last row", async |_| {
                own(&has_last).as_deref() == Some("1")
            })
            .await;
        let numbers = own("select number from numbers").unwrap();
        none_lost(acknowledged, &numbers, &node.name);
    }
}

/// What people are told of a lost host.
async fn host_lost(bench: &Bench) -> Option<String> {
    let cluster = bench.world.cluster(bench.cluster).await.unwrap().unwrap();
    let groups = cluster.status.unwrap_or_default().groups;
    let mut told = groups.into_iter().flat_map(|group| group.conditions);
    let told = told.find(|it| it.r#type == "HostLost" && it.status == Some(true));
    told.map(|it| it.message)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_hosts_are_drained_and_one_loses_its_power_and_no_row_is_lost() {
    if without_kubelet() {
        return;
    }
    rig().image(&["postgresql"]).await;
    let second = rig().second_node().await;
    let attributes = json!({
        "image": "postgres:test", "synchronous": 1,
        "settings": {"shared_buffers": "16MB", "max_connections": "30"},
    });
    let mut spec = spec("postgresql", 1, 1, attributes);
    spec.bootstrap = Some(password());
    let bench = Bench::start_tolerating("ledgers", spec, SecondNode::TAINT).await;
    bench.ready(2).await;
    bench.led().await;
    let known = Known::of(&bench);
    let table = "create table numbers (number bigint primary key)";
    let primary = bench.one(NodeRole::Active).await;
    sql(&[host(&primary)], true, table).expect("a table");
    let writer = Writer::writes(move |number| {
        let row = format!("insert into numbers values ({number})");
        sql(&known.hosts(), true, &row).is_some()
    });
    writer.until_written(&bench, WRITES).await;

    for host in [SECOND, FIRST] {
        drain(&bench, host).await;
        writer.until_written(&bench, WRITES).await;
    }
    let drained = writer.longest_pause();

    active_on_the_second(&bench).await;
    writer.until_written(&bench, WRITES).await;
    let dead = bench.one(NodeRole::Active).await;
    second.dies().await;
    bench
        .taken_over(&dead, async |node| {
            sql(&[host(node)], true, "select 1").is_some()
        })
        .await;
    writer.until_written(&bench, WRITES).await;
    // Kubernetes takes most of a minute to notice. Whether the server has ended is not known: it is told, and somebody else
    // is made beside it.
    bench
        .world
        .until("the lost host is named", async |_| {
            host_lost(&bench)
                .await
                .is_some_and(|it| it.contains(SECOND))
        })
        .await;
    bench
        .world
        .until("another standby is made elsewhere", async |_| {
            let nodes = bench.nodes().await;
            nodes.iter().any(|node| {
                node.role() == NodeRole::Standby && node.state() == pb::NodeState::Ready
            })
        })
        .await;
    writer.until_written(&bench, WRITES).await;

    // Somebody says that the machine is off.
    let off = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    rig().kubectl(&["taint", "node", SECOND, off]).await;
    bench
        .world
        .until("nothing of the lost host is left", async |_| {
            let nodes = bench.nodes().await;
            nodes.len() == 2 && nodes.iter().all(|node| node.id != dead.id)
        })
        .await;
    bench.ready(2).await;
    bench.led().await;
    assert_eq!(host_lost(&bench).await, None);
    writer.until_written(&bench, WRITES).await;
    let pause = writer.longest_pause();
    let acknowledged = writer.finish();
    every_node_has(&bench, &acknowledged).await;
    println!(
        "ledgers: {} rows acknowledged, 0 lost; longest pause {drained:?} by drains, {pause:?} in all",
        acknowledged.len()
    );
    bench.end().await;
    drop(second);
}
