//! Nodes as real processes: what dies is replaced, and what is ready answers.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod real;

use std::time::{Duration, SystemTime};

use drover_proto::orchestrator::v1 as pb;
use real::{World, kill_9};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Time from the death of a process until the node in its place is Ready.
const HEALED_WITHIN: Duration = Duration::from_secs(2);

fn time(stamp: Option<prost_types::Timestamp>) -> SystemTime {
    stamp.unwrap().try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_is_replaced_by_a_ready_one_in_less_than_two_seconds() {
    let world = World::new().await;
    world.apply("hello", "", 3).await.unwrap();
    world.ready("hello", 3).await;
    let before: Vec<String> = world
        .records("hello")
        .await
        .unwrap()
        .into_iter()
        .map(|node| node.id)
        .collect();
    let (pid, _) = world.processes().into_iter().next().unwrap();
    let killed = SystemTime::now();
    kill_9(pid);
    world
        .until("three nodes are ready, one of them new", async |world| {
            let Ok(records) = world.records("hello").await else {
                return false;
            };
            world.is_ready("hello", 3).await
                && records.iter().any(|node| !before.contains(&node.id))
        })
        .await;
    let records = world.records("hello").await.unwrap();
    let new: Vec<&pb::Node> = records
        .iter()
        .filter(|node| !before.contains(&node.id))
        .collect();
    assert_eq!(new.len(), 1, "one died, one is new");
    let ready = time(new[0].state_time);
    let took = ready
        .duration_since(killed)
        .expect("it was made after the death");
    println!("killed to Ready: {took:?}");
    assert!(took < HEALED_WITHIN, "it took {took:?}");
    assert_eq!(world.processes().len(), 3);
    let events = world.events("hello").await;
    let death = events
        .iter()
        .find(|event| event.reason == "PlatformFailed" || event.reason == "NodeFailed");
    let death = death.unwrap_or_else(|| panic!("no event of the death: {events:?}"));
    assert!(
        time(death.event_time) >= killed - Duration::from_millis(1),
        "the death is told after it happened"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_redis_nodes_answer_ping() {
    let installed = std::process::Command::new("redis-server")
        .arg("--version")
        .output();
    assert!(
        installed.is_ok_and(|output| output.status.success()),
        "redis-server is not on PATH; install it (Debian: apt-get install redis-server) and run this test again"
    );
    let world = World::new().await;
    world.apply("cache", "redis", 3).await.unwrap();
    world.ready("cache", 3).await;
    for node in world.records("cache").await.unwrap() {
        let endpoint = node
            .endpoints
            .get("client")
            .unwrap_or_else(|| panic!("no client endpoint: {node:?}"));
        let mut stream = tokio::net::TcpStream::connect(endpoint).await.unwrap();
        stream.write_all(b"PING\r\n").await.unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"+PONG\r\n", "{} at {endpoint}", node.id);
    }
    world.delete("cache").await.unwrap();
    world
        .until("it is gone", async |world| {
            matches!(world.cluster("cache").await, Ok(None))
        })
        .await;
    assert_eq!(world.processes().len(), 0);
}
