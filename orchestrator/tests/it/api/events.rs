use std::time::Duration;

use drover_core::Reason;
use drover_proto::orchestrator::v1::{self as pb, watch_events_response::Item};
use tokio::time::timeout;
use tonic::Streaming;

use crate::api::support::{World, document, invalid, metadata, refused, until};

type Events = Streaming<pb::WatchEventsResponse>;

async fn watch(world: &World, after: Option<u64>) -> Result<Events, tonic::Status> {
    let request = pb::WatchEventsRequest {
        cluster: "orders".into(),
        after_sequence: after,
        ..Default::default()
    };
    world
        .clusters()
        .watch_events(request)
        .await
        .map(tonic::Response::into_inner)
}

async fn item(events: &mut Events) -> Option<Item> {
    timeout(Duration::from_secs(30), events.message())
        .await
        .expect("a message")
        .unwrap()
        .map(|m| m.item.unwrap())
}

/// All events until the log is closed.
async fn to_the_end(mut events: Events) -> Vec<pb::Event> {
    let mut all = Vec::new();
    assert!(matches!(item(&mut events).await, Some(Item::Started(_))));
    loop {
        match item(&mut events).await.expect("closed comes first") {
            Item::Event(event) => all.push(event),
            Item::Heartbeat(_) => {}
            Item::Started(_) => panic!("sent once"),
            Item::Closed(_) => break,
        }
    }
    assert!(
        item(&mut events).await.is_none(),
        "closed is the last message"
    );
    all
}

fn assert_dense(events: &[pb::Event], from: u64) {
    let numbers: Vec<u64> = events.iter().map(|event| event.sequence).collect();
    let expected: Vec<u64> = (from..from + numbers.len() as u64).collect();
    assert_eq!(numbers, expected);
}

#[tokio::test]
async fn a_log_is_numbered_without_gaps_from_creation_to_deletion() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 3)])).await.unwrap();
    let early = tokio::spawn(to_the_end(watch(&world, Some(0)).await.unwrap()));
    world.ready("orders").await;
    let so_far = world.events("orders").await;
    assert_dense(&so_far, 1);
    let middle = so_far[so_far.len() / 2].sequence;
    let resumed = tokio::spawn(to_the_end(watch(&world, Some(middle)).await.unwrap()));
    let later = tokio::spawn(to_the_end(watch(&world, None).await.unwrap()));
    let cluster = world.get("orders").await.unwrap();
    world.delete("orders").await.unwrap();
    world.gone("orders").await;

    let all = early.await.unwrap();
    assert_dense(&all, 1);
    assert_dense(&resumed.await.unwrap(), middle + 1);
    let later = later.await.unwrap();
    assert_dense(&later, later[0].sequence);
    assert!(
        later
            .iter()
            .all(|event| event.sequence > so_far[0].sequence)
    );
    for (word, times) in [
        ("ClusterCreated", 1),
        ("NodeReady", 3),
        ("ClusterReady", 1),
        ("NodeGone", 3),
    ] {
        assert_eq!(
            all.iter().filter(|event| event.reason == word).count(),
            times,
            "{word} in {all:?}"
        );
    }
    assert_eq!(all.last().unwrap().reason, "ClusterDeleted");
    assert!(all.iter().all(|event| event.cluster_uid == cluster.uid
        && event.cluster == "orders"
        && event.count > 0));

    // The log of a deleted cluster still exists, and ends.
    assert_eq!(to_the_end(watch(&world, Some(0)).await.unwrap()).await, all);
    assert_eq!(world.events("orders").await, all);
    assert!(
        to_the_end(watch(&world, None).await.unwrap())
            .await
            .is_empty()
    );
    // A new cluster of this name has a log of its own that starts at 1.
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    assert_dense(&world.events("orders").await, 1);
    let list = |uid: &str| pb::ListEventsRequest {
        cluster: "orders".into(),
        cluster_uid: uid.into(),
        ..Default::default()
    };
    refused(
        world.clusters().list_events(list(&cluster.uid)).await,
        Reason::NotFound,
    );
    invalid(world.clusters().list_events(list("x")).await, "cluster_uid");
    world.stop().await;
}

#[tokio::test]
async fn numbers_that_are_trimmed_or_were_never_given_out_are_told_apart() {
    let world = World::new().await;
    world
        .apply(document("orders", &[("db", 500)]))
        .await
        .unwrap();
    world.ready("orders").await;
    world.apply(document("orders", &[("db", 0)])).await.unwrap();
    let list = |after_sequence, page_size| pb::ListEventsRequest {
        cluster: "orders".into(),
        after_sequence,
        page_size,
        ..Default::default()
    };
    let mut clusters = world.clusters();
    let first = until("the oldest events go", async || {
        // Requested beforehand, because later events may trim earlier ones.
        let status = world.get("orders").await.unwrap().status.unwrap();
        let ready = status.phase() == pb::ClusterPhase::Ready;
        let idle = ready && world.nodes("orders").await.is_empty();
        let answer = world
            .clusters()
            .list_events(list(0, 1))
            .await
            .unwrap()
            .into_inner();
        (answer.oldest_sequence > 1 && idle).then_some(answer)
    })
    .await;
    let oldest = first.oldest_sequence;
    assert_eq!(first.events[0].sequence, oldest);
    let status = refused(
        clusters.list_events(list(1, 0)).await,
        Reason::EventsTrimmed,
    );
    assert_eq!(
        metadata(&status, "oldest_sequence"),
        Some(oldest.to_string())
    );
    let status = refused(
        watch(&world, Some(1)).await.map(drop),
        Reason::EventsTrimmed,
    );
    assert_eq!(
        metadata(&status, "oldest_sequence"),
        Some(oldest.to_string())
    );
    refused(
        watch(&world, Some(1_000_000)).await.map(drop),
        Reason::StoreRestored,
    );
    refused(
        watch(&world, Some(u64::MAX)).await.map(drop),
        Reason::StoreRestored,
    );
    refused(
        clusters.list_events(list(u64::MAX, 0)).await,
        Reason::StoreRestored,
    );

    // All pages together make up the log.
    let mut request = list(0, 77);
    let mut events = Vec::new();
    loop {
        let answer = clusters
            .list_events(request.clone())
            .await
            .unwrap()
            .into_inner();
        events.extend(answer.events);
        if answer.next_page_token.is_empty() {
            break;
        }
        request.page_token = answer.next_page_token;
    }
    assert_dense(&events, oldest);
    let mut watched = watch(&world, Some(0)).await.unwrap();
    item(&mut watched).await;
    for event in &events {
        assert_eq!(item(&mut watched).await, Some(Item::Event(event.clone())));
    }
    world.stop().await;
}

#[tokio::test]
async fn a_quiet_watch_shows_signs_of_life() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 0)])).await.unwrap();
    world.ready("orders").await;
    let request = pb::WatchEventsRequest {
        cluster: "orders".into(),
        heartbeat_interval: Some(prost_types::Duration {
            seconds: 0,
            nanos: 1,
        }),
        ..Default::default()
    };
    let mut events = world
        .clusters()
        .watch_events(request)
        .await
        .unwrap()
        .into_inner();
    let Some(Item::Started(started)) = item(&mut events).await else {
        panic!("the first message says how")
    };
    assert_eq!(
        started.heartbeat_interval,
        Some(prost_types::Duration {
            seconds: 1,
            nanos: 0
        })
    );
    let Some(Item::Heartbeat(mark)) = item(&mut events).await else {
        panic!("nothing happens")
    };
    assert!(mark.revision > 0);
    world.stop().await;
}
