//! Nodes as real processes: what dies is replaced, and what is ready answers.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod real;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use drover_client::{PlatformClient, connect};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{DiscoverRequest, Node, NodePhase},
};
use real::{World, insist, kill_9};
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

/// Time between two looks at the platform: 20 Hz.
const LOOK: Duration = Duration::from_millis(50);
/// How long a death may take until the orchestrator knows of it.
const NEWS: Duration = Duration::from_secs(2);

/// Nodes of `rolled` that are up, as the platform shows them in this moment, and how many live.
async fn look(platform: &PlatformClient) -> Option<(BTreeSet<String>, BTreeMap<String, String>)> {
    let request = DiscoverRequest {
        cluster_id: "rolled".to_owned(),
        ..Default::default()
    };
    let found = platform.discover_all(request, Duration::from_secs(2)).await;
    let nodes: Vec<Node> = found.ok()?.nodes;
    let lives = |node: &&Node| !matches!(node.phase(), NodePhase::Failed | NodePhase::Terminated);
    let up = |node: &&Node| node.phase() == NodePhase::Running && node.ready == Some(true);
    let shown = |node: &Node| (node.node_id.clone(), format!("{:?}", node.phase()));
    let living = nodes.iter().filter(lives).map(shown).collect();
    let up = nodes.iter().filter(up).map(|node| node.node_id.clone());
    Some((up.collect(), living))
}

/// What is wrong between two looks. A list is not of one moment: what is in both lived in between, what is up in neither
/// was not.
async fn violation(
    platform: &PlatformClient,
    killed: &Mutex<BTreeMap<String, SystemTime>>,
) -> Option<String> {
    let (mut up, mut living) = look(platform).await?;
    let wrong = |up: &BTreeSet<String>, living: &BTreeMap<String, String>| {
        let killed = killed.lock().unwrap().clone();
        let recent = |at: &&SystemTime| at.elapsed().is_ok_and(|gone| gone < NEWS);
        let recent = killed.values().filter(recent).count();
        // Dead, whatever is still tidied up after it.
        let living: Vec<_> = living
            .iter()
            .filter(|(node, _)| !killed.contains_key(*node))
            .collect();
        (living.len() > 6 || up.len() + recent < 4)
            .then(|| format!("{} up, {recent} just killed, of {living:?}", up.len()))
    };
    wrong(&up, &living)?;
    let again = look(platform).await?;
    up.extend(again.0);
    living.retain(|node, _| again.1.contains_key(node));
    wrong(&up, &living)
}

async fn roll(world: &World, wave: usize) -> drover_core::Result<()> {
    let count = |count| {
        let amount = Some(pb::count_or_percent::Amount::Count(count));
        Some(pb::CountOrPercent { amount })
    };
    let text = prost_types::value::Kind::StringValue(format!("wave {wave}"));
    let spec = pb::ClusterSpec {
        platforms: vec![pb::PlatformChoice {
            name: "local".to_owned(),
            ..Default::default()
        }],
        groups: vec![pb::GroupSpec {
            name: "web".to_owned(),
            size: Some(5),
            ..Default::default()
        }],
        attributes: Some(prost_types::Struct {
            fields: [("wave".to_owned(), prost_types::Value { kind: Some(text) })].into(),
        }),
        update: Some(pb::UpdatePolicy {
            max_surge: count(1),
            max_unavailable: count(1),
            ..Default::default()
        }),
        termination_grace_period: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        ..Default::default()
    };
    let request = pb::ApplyClusterRequest {
        cluster: Some(pb::Cluster {
            name: "rolled".to_owned(),
            spec: Some(spec),
            ..Default::default()
        }),
        ..Default::default()
    };
    let client = world.client();
    client
        .apply_cluster(request, Duration::from_secs(5))
        .await
        .map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_keep_floor_and_ceiling_while_nodes_and_the_orchestrator_are_killed() {
    let mut world = World::new().await;
    roll(&world, 0).await.unwrap();
    world.ready("rolled", 5).await;
    let killed: Arc<Mutex<BTreeMap<String, SystemTime>>> = Arc::default();
    let violations: Arc<Mutex<Vec<String>>> = Arc::default();
    let platform = PlatformClient::new(connect(&world.platform.endpoint().parse().unwrap()));
    let (deaths, found) = (killed.clone(), violations.clone());
    let sampler = tokio::spawn(async move {
        loop {
            if let Some(violation) = violation(&platform, &deaths).await {
                found.lock().unwrap().push(violation);
            }
            tokio::time::sleep(LOOK).await;
        }
    });
    for wave in 1..=10 {
        let before: BTreeSet<String> = world
            .records("rolled")
            .await
            .unwrap()
            .into_iter()
            .map(|node| node.id)
            .collect();
        insist(async || roll(&world, wave).await).await;
        world
            .until("the update is under way", async |world| {
                let records = world.records("rolled").await.unwrap_or_default();
                records.iter().any(|node| !before.contains(&node.id))
            })
            .await;
        if wave % 3 == 1 {
            let (pid, node) = world.processes().into_iter().next().unwrap();
            killed.lock().unwrap().insert(node, SystemTime::now());
            kill_9(pid);
        }
        if wave % 3 == 2 {
            world.orchestrator.kill();
            world.orchestrator.start().await;
        }
        world
            .until("all five are new", async |world| {
                let records = world.records("rolled").await.unwrap_or_default();
                world.is_ready("rolled", 5).await
                    && records.len() == 5
                    && records.iter().all(|node| !before.contains(&node.id))
            })
            .await;
    }
    sampler.abort();
    let violations = violations.lock().unwrap().clone();
    assert!(violations.is_empty(), "{violations:#?}");
    assert_eq!(world.processes().len(), 5);
    println!("10 updates of 5 real nodes, 4 nodes and 3 orchestrators killed, 0 violations");
}
