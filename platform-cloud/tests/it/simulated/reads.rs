//! Contents and cost of lists and watches.

use std::time::Duration;

use drover_convert::error::from_status;
use drover_core::Reason;
use drover_platform::{clock::Clock, templates::Templates};
use drover_platform_cloud::{
    PlatformServer,
    drivers::simulated::{Death, Simulated, SimulatedSettings},
};
use drover_proto::platform::v1::{
    DiscoverRequest, Node, NodePhase, WatchNodesRequest, watch_nodes_response::Event,
};
use futures::future::join_all;
use tokio::time::Instant;

use super::world::World;

#[tokio::test(start_paused = true)]
async fn an_unreachable_backend_is_an_error_and_does_not_look_fresh() {
    let world = World::new(SimulatedSettings::default()).await;
    let request = world.request("a", 0, 2);
    let nodes = world.provision(&request).await.unwrap().nodes;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let watch = WatchNodesRequest {
        heartbeat_interval: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        ..WatchNodesRequest::default()
    };
    let mut watch = world
        .client()
        .watch_nodes(watch)
        .await
        .unwrap()
        .into_inner();
    while !matches!(
        watch.message().await.unwrap().unwrap().event,
        Some(Event::SnapshotComplete(_))
    ) {}
    world.simulated().pause_backend(true);
    world.simulated().kill(&nodes[0].node_id, Death::Vanished);
    let error = world
        .discover(DiscoverRequest::default())
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable, "never a short list");
    assert_eq!(
        world
            .provision(&world.request("b", 0, 1))
            .await
            .unwrap_err()
            .reason(),
        Reason::Unavailable
    );
    let mut beats = Vec::new();
    while beats.len() < 3 {
        match watch.message().await.unwrap().unwrap().event {
            Some(Event::Heartbeat(mark)) => beats.push(mark.observe_time.unwrap()),
            other => panic!("nothing is seen of an unreachable backend: {other:?}"),
        }
    }
    assert_eq!(
        beats[0], beats[2],
        "a live stream does not make old data look fresh"
    );
    world.simulated().pause_backend(false);
    let removed = loop {
        match watch.message().await.unwrap().unwrap().event {
            Some(Event::Removals(removals)) => break removals.nodes,
            Some(Event::Heartbeat(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(removed[0].node_id, nodes[0].node_id);
}

#[tokio::test(start_paused = true)]
async fn frozen_visibility_shows_the_past() {
    let world = World::new(SimulatedSettings::default()).await;
    world.simulated().freeze_visibility(true);
    let request = world.request("a", 0, 2);
    assert_eq!(world.provision(&request).await.unwrap().nodes.len(), 2);
    assert_eq!(
        world.discover(DiscoverRequest::default()).await.unwrap(),
        vec![]
    );
    assert_eq!(
        world.provision(&request).await.unwrap().nodes.len(),
        2,
        "a repeat still finds them"
    );
    world.simulated().freeze_visibility(false);
    assert_eq!(
        world
            .discover(DiscoverRequest::default())
            .await
            .unwrap()
            .len(),
        2
    );
    assert_eq!(world.simulated().doubles(), vec![]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_starts_while_the_past_is_shown_watches_the_nodes_that_it_lists() {
    let driver = Simulated::open(SimulatedSettings::default(), Clock::start()).unwrap();
    let backend = driver.handle();
    let start = || PlatformServer::with_driver(driver.clone(), Templates::Anything).unwrap();
    let before = World::of(start()).await;
    let made = before.provision(&before.request("a", 0, 1)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    backend.freeze_visibility(true);
    assert!(backend.kill(&made.nodes[0].node_id, Death::Vanished));
    drop(before);
    let world = World::of(start()).await;
    let listed = world.discover(DiscoverRequest::default()).await.unwrap();
    assert_eq!(listed.len(), 1, "the past");
    let mut watch = world
        .client()
        .watch_nodes(WatchNodesRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut shown = Vec::new();
    let removed = loop {
        match watch.message().await.unwrap().unwrap().event {
            Some(Event::Upserts(upserts)) => shown.extend(upserts.nodes),
            Some(Event::SnapshotComplete(_)) => {
                assert_eq!(shown, listed);
                backend.freeze_visibility(false);
            }
            Some(Event::Removals(removals)) => break removals.nodes,
            _ => {}
        }
    };
    assert_eq!(removed[0].node_id, listed[0].node_id);
}

#[tokio::test(start_paused = true)]
async fn dead_nodes_are_listed_as_they_died() {
    let world = World::new(SimulatedSettings::default()).await;
    let request = world.request("a", 0, 3);
    let nodes = world.provision(&request).await.unwrap().nodes;
    for (node, how) in nodes
        .iter()
        .zip([Death::Failed, Death::Terminated, Death::Vanished])
    {
        assert!(world.simulated().kill(&node.node_id, how));
    }
    let listed = world.discover(DiscoverRequest::default()).await.unwrap();
    let phases: Vec<_> = listed.iter().map(Node::phase).collect();
    assert_eq!(phases, vec![NodePhase::Failed, NodePhase::Terminated]);
    assert!(
        !world.simulated().kill("sim-ffffffff", Death::Failed),
        "there is no such node"
    );
}

#[tokio::test(start_paused = true)]
async fn reads_that_wait_share_the_next_one() {
    let settings = SimulatedSettings {
        latency: Duration::from_secs(1),
        ..SimulatedSettings::default()
    };
    let world = World::new(settings).await;
    let begin = Instant::now();
    let reads = (0..100).map(|at| {
        let world = &world;
        async move {
            tokio::time::sleep(Duration::from_millis(at)).await;
            world.discover(DiscoverRequest::default()).await.unwrap();
        }
    });
    join_all(reads).await;
    assert_eq!(
        begin.elapsed().as_secs(),
        2,
        "one read for the first, one for all who came during it"
    );
}

#[tokio::test(start_paused = true)]
async fn page_tokens_expire_and_pages_end_at_a_mebibyte() {
    let world = World::new(SimulatedSettings::default()).await;
    for batch in 0..10 {
        let mut request = world.request("a", 100 * batch, 100);
        let long = |at: usize| (format!("k{at}"), "v".repeat(63));
        request.cluster.as_mut().unwrap().labels = (0..60).map(long).collect();
        world.provision(&request).await.unwrap();
    }
    let first = DiscoverRequest {
        page_size: 1000,
        ..DiscoverRequest::default()
    };
    let page = world
        .client()
        .discover(first.clone())
        .await
        .unwrap()
        .into_inner();
    assert!(
        (1..1000).contains(&page.nodes.len()),
        "the page is cut: {}",
        page.nodes.len()
    );
    let next = DiscoverRequest {
        page_token: page.next_page_token,
        ..first
    };
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(
        !world.discover(next.clone()).await.unwrap().is_empty(),
        "a page can be asked for again"
    );
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(
        world.discover(next).await.unwrap_err().reason(),
        Reason::PageTokenExpired
    );
}

/// In real time: 100,000 nodes through one watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_shows_all_of_many_nodes() {
    const CLUSTERS: u32 = 2_000;
    const SIZE: u32 = 10;
    let world = std::sync::Arc::new(
        World::new(SimulatedSettings {
            ledger: false,
            ..SimulatedSettings::default()
        })
        .await,
    );
    let mut watch = world
        .client()
        .watch_nodes(WatchNodesRequest::default())
        .await
        .unwrap()
        .into_inner();
    let begin = Instant::now();
    let maker = tokio::spawn({
        let world = std::sync::Arc::clone(&world);
        async move {
            for cluster in 0..CLUSTERS {
                let request = world.request(&format!("c{cluster}"), 0, SIZE);
                world.provision(&request).await.unwrap();
            }
        }
    });
    let mut ready = std::collections::HashSet::new();
    let mut messages = 0;
    while ready.len() < (CLUSTERS * SIZE) as usize {
        let message = tokio::time::timeout(Duration::from_secs(60), watch.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        messages += 1;
        if let Some(Event::Upserts(upserts)) = message.event {
            assert!(upserts.nodes.len() <= 256);
            ready.extend(
                upserts
                    .nodes
                    .into_iter()
                    .filter(|node| node.ready == Some(true))
                    .map(|node| node.node_id),
            );
        }
    }
    maker.await.unwrap();
    println!(
        "{} nodes in {:?}, {messages} messages",
        ready.len(),
        begin.elapsed()
    );
    world.server.shutdown().await;
    let end = loop {
        match watch.message().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert_eq!(
        from_status(&end.unwrap_err()).reason(),
        Reason::Unavailable,
        "a shutdown ends the watch"
    );
}
