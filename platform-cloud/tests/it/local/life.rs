//! Readiness, death and deletion of nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use drover_core::Reason;
use drover_platform::driver::{Change, Deletion, Driver, Target};
use drover_proto::platform::v1::{DeprovisionState, Node, NodePhase, NodeRole, RemovalEvidence};
use drover_testing::processes::lives;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use crate::local_support::{World, kill, made, phase, pid, processes_of, request, target, until};

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_ready_soon_answers_on_loopback_and_shows_all_that_was_asked() {
    let world = World::new();
    let begin = Instant::now();
    let nodes = world.start(&request("redis", "r1", 3)).await;
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
    let ports = nodes
        .iter()
        .map(|node| node.endpoints["client"].clone())
        .collect::<BTreeSet<_>>();
    assert_eq!(ports.len(), 3, "{ports:?}");
    for node in &nodes {
        let address = &node.endpoints["client"];
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(b"PING\r\n").await.unwrap();
        let mut answer = [0; 7];
        connection.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"+PONG\r\n");
        assert_eq!(node.agent_address, Some(format!("tcp://{address}")));
        assert!(
            node.provider_id.starts_with("local://"),
            "{}",
            node.provider_id
        );
        assert!(lives(pid(node)));
    }
    let node = &nodes[1];
    assert_eq!(
        (
            node.cluster_id.as_str(),
            node.group.as_str(),
            node.name.as_str()
        ),
        ("orders", "db", "db-1")
    );
    assert_eq!(
        (node.id.as_str(), node.ordinal, node.role()),
        ("db-1-r1", Some(1), NodeRole::Active)
    );
    assert!(node.node_id.starts_with("db-1-r1-"), "{}", node.node_id);
    let slot = node.slot.clone().unwrap();
    assert_eq!(
        (slot.owner.as_str(), slot.request_id.as_str(), slot.index),
        ("owner-1", "r1", Some(1))
    );
    assert_eq!(
        (
            node.store_id.as_str(),
            node.sequence,
            node.spec_hash.as_str()
        ),
        ("store-1", 7, "hash")
    );
    assert_eq!(phase(node), NodePhase::Running);
    assert!(node.create_time.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_ready_when_it_says_so_and_hears_who_comes_changes_and_goes() {
    let world = World::new();
    let first = made(world.create(&request("social", "r1", 1)).await.remove(0));
    let running = |node: &Node| phase(node) == NodePhase::Running;
    let first = world.wait(&first.node_id, "running", running).await;
    assert_eq!(first.ready, Some(false), "it has not said so");
    fs::write(world.node_directory(&first).join("data/go"), "").unwrap();
    let first = world.ready(&first.node_id).await;

    let list = world.node_directory(&first).join("peers.json");
    let peers = || -> Vec<(String, String)> {
        let peers: serde_json::Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
        let text = |peer: &serde_json::Value, key: &str| peer[key].as_str().unwrap().to_owned();
        let port = |peer: &serde_json::Value| peer["ports"]["client"].as_u64().unwrap();
        peers
            .as_array()
            .unwrap()
            .iter()
            .inspect(|peer| assert!(port(peer) > 0 && peer["host"] == "127.0.0.1"))
            .map(|peer| (text(peer, "id"), text(peer, "role")))
            .collect()
    };
    let own = (first.id.clone(), "active".to_owned());
    assert_eq!(peers(), std::slice::from_ref(&own));

    let second = made(world.create(&request("social", "r2", 1)).await.remove(0));
    let other = |role: &str| (second.id.clone(), role.to_owned());
    until("the first hears of the second", async || {
        peers() == [own.clone(), other("active")]
    })
    .await;
    let change = Change::Edit {
        role: Some(NodeRole::Standby),
        set_labels: BTreeMap::new(),
        remove_labels: Vec::new(),
        host_labels: None,
        storage_size: None,
        spec_hash: String::new(),
        promoting: false,
    };
    let target = target(&second);
    world.driver.update(&target, &change).await.unwrap();
    until("and of its role", async || {
        peers() == [own.clone(), other("standby")]
    })
    .await;

    // Changes during the platform's downtime are reported once it is back.
    let second = world.wait(&second.node_id, "running", running).await;
    let world = {
        let directory = world.stopped().await;
        kill(pid(&second), "KILL");
        World::over(directory, |_| {})
    };
    until("and of its death", async || peers() == [own.clone()]).await;
    drop(world);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_is_failed_within_moments_leaves_no_zombie_and_is_not_started_again() {
    let world = World::new();
    // One of three, since other load on the machine may delay one of them.
    let mut round = 1;
    let (node, failed) = loop {
        let request = request("family", &format!("r{round}"), 1);
        let node = world.start(&request).await.remove(0);
        until("the children are there", async || {
            processes_of(&world.state()).len() == 3
        })
        .await;
        let begin = Instant::now();
        kill(pid(&node), "KILL");
        let failed = world
            .wait(&node.node_id, "failed", |node| {
                phase(node) == NodePhase::Failed
            })
            .await;
        let took = begin.elapsed();
        if took < Duration::from_secs(5) {
            break (node, failed);
        }
        assert!(round < 3, "the last took {took:?}");
        world.remove(&failed).await;
        round += 1;
    };
    assert_eq!(failed.ready, Some(false));
    let failed = world
        .wait(&node.node_id, "explained", |node| {
            node.message.contains("signal 9")
        })
        .await;
    assert!(
        failed.message.contains(&pid(&node).to_string()),
        "{}",
        failed.message
    );
    until("what it started is gone too", async || {
        processes_of(&world.state()).is_empty()
    })
    .await;
    until("it was reaped", async || {
        !fs::exists(format!("/proc/{}", pid(&node))).unwrap()
    })
    .await;
    assert!(
        world
            .recorder
            .0
            .lock()
            .iter()
            .any(|(id, removed)| *id == node.node_id && removed.is_none())
    );
    world.remove(&failed).await;
    assert!(!world.node_directory(&node).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_by_itself_is_failed_with_its_exit_code_also_after_a_restart() {
    let world = World::new();
    let node = made(world.create(&request("brief", "r1", 1)).await.remove(0));
    let failed = world
        .wait(&node.node_id, "failed", |node| {
            phase(node) == NodePhase::Failed
        })
        .await;
    assert!(failed.message.contains("code 3"), "{failed:?}");
    until("it is written down", async || {
        world.node_directory(&node).join("exit.json").exists()
    })
    .await;
    let world = world.restarted().await;
    let failed = world
        .wait(&node.node_id, "explained", |node| {
            node.message.contains("code 3")
        })
        .await;
    assert_eq!(phase(&failed), NodePhase::Failed);
    assert!(processes_of(&world.state()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn deprovision_asks_first_and_leaves_nothing_behind() {
    let world = World::new();
    let nodes = world.start(&request("redis", "r1", 2)).await;
    let deleted = world.delete(&nodes[0], Deletion::default()).await;
    assert_eq!(deleted.state, DeprovisionState::Deprovisioning);
    if let Some(node) = world.node(&nodes[0].node_id).await {
        assert_eq!(phase(&node), NodePhase::Deprovisioning);
    }
    world.gone(&nodes[0].node_id).await;
    assert!(!lives(pid(&nodes[0])) && !world.node_directory(&nodes[0]).exists());
    let confirmed = (nodes[0].node_id.clone(), Some(RemovalEvidence::Confirmed));
    until("the removal is told", async || {
        world.recorder.0.lock().contains(&confirmed)
    })
    .await;
    assert!(lives(pid(&nodes[1])));
    assert_eq!(
        world.delete(&nodes[0], Deletion::default()).await.state,
        DeprovisionState::Gone
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_ignores_the_signal_is_killed_with_its_children_at_the_deadline() {
    let world = World::new();
    let node = world.start(&request("stubborn", "r1", 1)).await.remove(0);
    let log = world.node_directory(&node).join("log");
    until("it ignores the signal", async || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("ready"))
    })
    .await;
    let begin = Instant::now();
    let grace_period = Some(Duration::from_millis(300));
    world
        .delete(
            &node,
            Deletion {
                grace_period,
                ..Deletion::default()
            },
        )
        .await;
    world.gone(&node.node_id).await;
    assert!(
        begin.elapsed() >= Duration::from_millis(290),
        "{:?}",
        begin.elapsed()
    );
    assert!(processes_of(&world.state()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_deprovision_can_hurry_and_cannot_delay() {
    let world = World::new();
    let node = world.start(&request("stubborn", "r1", 1)).await.remove(0);
    let log = world.node_directory(&node).join("log");
    until("it ignores the signal", async || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("ready"))
    })
    .await;
    let grace = |seconds| Deletion {
        grace_period: Some(Duration::from_secs(seconds)),
        ..Deletion::default()
    };
    world.delete(&node, grace(3600)).await;
    world.delete(&node, grace(0)).await;
    world.delete(&node, grace(3600)).await;
    world.gone(&node.node_id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_another_slot_or_cluster_is_left_alone() {
    let world = World::new();
    let node = world.start(&request("sleeper", "r1", 1)).await.remove(0);
    let right = target(&node);
    let mut slot = right.slot.clone().unwrap();
    slot.request_id = "other".to_owned();
    let other_slot = Target {
        slot: Some(slot),
        ..right.clone()
    };
    let other_cluster = Target {
        cluster_id: "other".to_owned(),
        ..right
    };
    for (target, reason) in [
        (other_slot, Reason::SlotMismatch),
        (other_cluster, Reason::NodeNotInCluster),
    ] {
        let error = world
            .driver
            .delete(&target, &Deletion::default())
            .await
            .unwrap_err();
        assert_eq!(error.reason(), reason);
    }
    assert_eq!(
        phase(&world.node(&node.node_id).await.unwrap()),
        NodePhase::Running
    );
}
