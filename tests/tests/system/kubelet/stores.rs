//! Replicated stores in pods, with their real servers: acknowledged writes survive the death of any node.

use std::{cell::Cell, collections::BTreeSet, process::Command};

use drover_proto::{orchestrator::v1 as pb, platform::v1::NodeRole};
use drover_testing::{
    kubernetes::without_kubelet,
    wait::{PATIENCE, until},
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    bench::{
        Bench, PASSWORD, PAUSE, clients, endpoint, etcd_at, host, password, spec, sql, voters,
    },
    clients::{Writer, none_lost},
    redis, rig,
};

/// Acknowledged writes before and after a node goes.
const WRITES: usize = 20;

/// Responses of redis to a client that authenticates first.
async fn asked(node: &pb::Node, commands: &[&str]) -> std::io::Result<Vec<String>> {
    let password = format!("AUTH \"{}\"", PASSWORD.replace('\\', "\\\\"));
    let all = [&[&*password], commands].concat();
    let mut answers = redis(&endpoint(node), &all).await?;
    match answers.remove(0) {
        ok if ok == "+OK" => Ok(answers),
        refused => Err(std::io::Error::other(refused)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_replica_in_a_pod_takes_over_with_everything_and_lets_nobody_in_without_the_password()
 {
    if without_kubelet() {
        return;
    }
    rig().image(&["redis"]).await;
    let mut spec = spec("redis", 1, 1, json!({"image": "redis:test"}));
    spec.bootstrap = Some(password());
    let bench = Bench::start("cache", spec).await;
    bench.ready(2).await;
    bench.led().await;
    for node in bench.nodes().await {
        let answers = redis(&endpoint(&node), &["PING"]).await.unwrap();
        assert_eq!(answers, ["-NOAUTH Authentication required."]);
    }
    let primary = bench.one(NodeRole::Active).await;
    // On one connection, because WAIT covers only writes of its own connection.
    bench
        .world
        .until("a replica has what is written", async |_| {
            let answers = asked(&primary, &["SET before 1", "WAIT 1 1000"]).await;
            answers.is_ok_and(|answers| answers == ["+OK", ":1"])
        })
        .await;
    bench.kill_9(&primary, "redis-server").await;
    bench
        .taken_over(&primary, async |node| {
            let answers = asked(node, &["SET after 1"]).await;
            answers.is_ok_and(|answers| answers == ["+OK"])
        })
        .await;
    bench.back(&primary).await;
    bench.ready(2).await;
    bench.led().await;
    let primary = bench.one(NodeRole::Active).await;
    let has = ["EXISTS before", "EXISTS after"];
    let answers = asked(&primary, &has).await.unwrap();
    assert_eq!(answers, [":1", ":1"], "at {}", primary.id);
    let standby = bench.one(NodeRole::Standby).await;
    bench
        .world
        .until("the new standby has it, too", async |_| {
            let answers = asked(&standby, &has).await;
            answers.is_ok_and(|answers| answers == [":1", ":1"])
        })
        .await;
    bench.end().await;
}

fn psql(nodes: &[&pb::Node], writable: bool, statement: &str) -> Option<String> {
    let hosts: Vec<_> = nodes.iter().map(|node| host(node)).collect();
    sql(&hosts, writable, statement)
}

/// Waits until another node is active than this one and serves, this one has a successor, and everything is as it was.
async fn is_succeeded(bench: &Bench, primary: &pb::Node, served: impl AsyncFn(&pb::Node) -> bool) {
    bench.taken_over(primary, served).await;
    bench.back(primary).await;
    bench.ready(2).await;
    bench.led().await;
}

/// Evicts the active node while a client writes by the service of the group, each row on a connection of its own.
async fn evicted_while_a_client_writes(bench: &Bench) {
    let service = [bench.service_address().await];
    let writer = Writer::writes(move |number| {
        let row = format!("insert into numbers values ({number})");
        sql(&service, true, &row).is_some()
    });
    writer.until_written(bench, WRITES).await;
    let primary = bench.one(NodeRole::Active).await;
    bench.evict(&primary).await;
    is_succeeded(bench, &primary, async |node| {
        psql(&[node], true, "select 1").is_some()
    })
    .await;
    writer.until_written(bench, WRITES).await;
    let pause = writer.longest_pause();
    let acknowledged = writer.finish();
    let last = acknowledged.last().unwrap().number;
    let has_last = format!("select count(*) from numbers where number = {last}");
    for node in bench.nodes().await {
        // A standby acknowledges a row slightly before it replays it.
        bench
            .world
            .until("it has the last row", async |_| {
                psql(&[&node], false, &has_last).as_deref() == Some("1")
            })
            .await;
        let numbers = psql(&[&node], false, "select number from numbers").unwrap();
        none_lost(&acknowledged, &numbers, &node.name);
    }
    eprintln!(
        "{}: the active node was evicted, {} rows acknowledged, 0 lost, longest pause {pause:?}",
        bench.cluster,
        acknowledged.len()
    );
}

/// The host of the active node falls silent; Kubernetes does not say so.
async fn taken_over_from_a_silent_host(bench: &Bench) {
    let primary = bench.one(NodeRole::Active).await;
    psql(&[&primary], true, "insert into numbers values (0)").expect("the last row");
    let silence = bench.silence(&primary, "postgres").await;
    let has_it = "select count(*) from numbers where number = 0";
    bench
        .taken_over(&primary, async |node| {
            psql(&[node], true, has_it).as_deref() == Some("1")
        })
        .await;
    let request = pb::ListEventsRequest {
        cluster: bench.cluster.to_owned(),
        page_size: 1000,
        ..Default::default()
    };
    let client = bench.world.client();
    let told = client.list_events(request, PATIENCE).await.unwrap().events;
    let why = format!("{} does not answer", endpoint(&primary));
    assert!(
        told.iter().any(|event| event.message.contains(&why)),
        "{told:?}"
    );
    drop(silence);
    bench.back(&primary).await;
    bench.ready(2).await;
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
    spec.bootstrap = Some(password());
    let bench = Bench::start("orders", spec).await;
    bench.ready(2).await;
    bench.led().await;
    let table = "create table numbers (number bigint primary key)";
    let primary = bench.one(NodeRole::Active).await;
    psql(&[&primary], true, table).expect("a table");

    evicted_while_a_client_writes(&bench).await;

    // Somebody makes Kubernetes forget the pod before its server has ended.
    let primary = bench.one(NodeRole::Active).await;
    let count = "select count(*) from numbers";
    let before = psql(&[&primary], true, count).expect("its rows are counted");
    let mut rows: u64 = before.parse().unwrap();
    for _ in 0..WRITES {
        rows += 1;
        let row = format!("insert into numbers values (-{rows})");
        psql(&[&primary], true, &row).expect("a row is acknowledged");
    }
    bench.delete_pod(&primary).await;
    is_succeeded(&bench, &primary, async |node| {
        let answer = psql(&[node], true, count);
        assert!(
            answer.as_ref().is_none_or(|it| *it == rows.to_string()),
            "{answer:?} of {rows}"
        );
        answer.is_some()
    })
    .await;
    let standby = bench.one(NodeRole::Standby).await;
    bench
        .world
        .until("the new standby has every row", async |_| {
            psql(&[&standby], false, count) == Some(rows.to_string())
        })
        .await;

    taken_over_from_a_silent_host(&bench).await;

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
    etcd_at(&clients(nodes), command)
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
        // Disk performance of the test machine is not under test.
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
                ids.len() == 3 && voters(&clients(&nodes)) == ids
            })
            .await;
    };
    are_members().await;
    let nodes = bench.nodes().await;
    until("the first key is written", async || {
        etcd(&nodes, &["put", "number/0", "x"])
    })
    .await;
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
            // A new leader may have to be elected first.
            while etcd(&others, &["put", &key, "x"]).is_none() {
                assert!(began.elapsed() < PAUSE, "the quorum is gone");
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
    let all = ["get", "number/", "--prefix", "--keys-only"];
    for node in nodes {
        let node = [node];
        let keys = until("it lists the keys", async || etcd(&node, &all)).await;
        let keys = keys.lines().filter(|line| !line.is_empty()).count();
        assert_eq!(keys, written.get() + 1);
    }
    let written = written.get();
    println!("coordination: {written} writes while a member was replaced");
    bench.end().await;
}
