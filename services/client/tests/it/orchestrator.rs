//! The orchestrator client: retries, and watches that survive server restarts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::fake;

use std::{net::SocketAddr, time::Duration};

use drover_client::{
    Target, connect, is_unreachable,
    orchestrator::OrchestratorClient,
    watch::{EventUpdate, Update, Watch},
};
use drover_core::{Error, Reason};
use drover_proto::orchestrator::v1::{GetClusterRequest, WatchClustersRequest, WatchNodesRequest};
use drover_server::{Running, ServerSettings, Shutdown};
use fake::Fake;
use futures::StreamExt;

/// Far longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(20);

async fn serve(fake: &Fake, address: Option<SocketAddr>) -> Running {
    let mut settings = ServerSettings::default();
    settings.listen = address.unwrap_or(settings.listen);
    let listener = drover_server::listen(&settings).await.unwrap();
    let service = drover_server::Service::new("fake", "0.0.0").add(fake.server());
    drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap()
}

async fn start(fake: &Fake) -> (Running, OrchestratorClient) {
    let running = serve(fake, None).await;
    let target: Target = format!("http://{}", running.address()).parse().unwrap();
    (running, OrchestratorClient::new(connect(&target)))
}

async fn next<T>(watch: &mut Watch<T>) -> T {
    tokio::time::timeout(PATIENCE, watch.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap()
}

/// Returns the next event. Sets `reconnected` if the watch reconnected before it.
async fn event(watch: &mut Watch<EventUpdate>, reconnected: &mut bool) -> u64 {
    loop {
        match next(watch).await {
            EventUpdate::Event(event) => return event.sequence,
            EventUpdate::Reconnecting(_) => *reconnected = true,
            EventUpdate::Closed(_) => panic!("closed"),
        }
    }
}

#[tokio::test]
async fn a_watch_of_events_goes_on_without_gap_over_a_restart() {
    let fake = Fake::default();
    fake.add_events(3);
    let (server, client) = start(&fake).await;
    let mut watch = client
        .watch_events("orders", Some(1), PATIENCE)
        .await
        .unwrap();
    let mut reconnected = false;
    assert_eq!(event(&mut watch, &mut reconnected).await, 2);
    assert_eq!(event(&mut watch, &mut reconnected).await, 3);
    assert!(!reconnected);

    let address = server.address();
    server.shutdown().await;
    fake.add_events(2);
    let server = serve(&fake, Some(address)).await;
    assert_eq!(event(&mut watch, &mut reconnected).await, 4);
    assert_eq!(event(&mut watch, &mut reconnected).await, 5);
    assert!(reconnected);
    let asked = fake.last_watch();
    assert_eq!(
        (asked.after_sequence, asked.cluster_uid.as_str()),
        (Some(3), "uid-1")
    );

    fake.add_events(1);
    assert_eq!(event(&mut watch, &mut reconnected).await, 6);
    fake.close();
    assert!(matches!(next(&mut watch).await, EventUpdate::Closed(_)));
    assert!(watch.next().await.is_none());
    server.shutdown().await;
}

#[tokio::test]
async fn from_now_on_is_a_position_that_a_restart_keeps() {
    let fake = Fake::default();
    fake.add_events(3);
    let (server, client) = start(&fake).await;
    let mut watch = client.watch_events("orders", None, PATIENCE).await.unwrap();
    let address = server.address();
    server.shutdown().await;
    // Nothing was received yet, and this event happens while there is no connection.
    fake.add_events(1);
    let _server = serve(&fake, Some(address)).await;
    let mut reconnected = false;
    assert_eq!(event(&mut watch, &mut reconnected).await, 4);
}

#[tokio::test]
async fn trimmed_events_end_a_watch_instead_of_being_left_out() {
    let fake = Fake::default();
    fake.add_events(3);
    let (server, client) = start(&fake).await;
    let mut watch = client
        .watch_events("orders", Some(0), PATIENCE)
        .await
        .unwrap();
    let mut reconnected = false;
    for sequence in 1..=3 {
        assert_eq!(event(&mut watch, &mut reconnected).await, sequence);
    }
    let address = server.address();
    server.shutdown().await;
    fake.add_events(5);
    fake.trim(6);
    let _server = serve(&fake, Some(address)).await;
    loop {
        match tokio::time::timeout(PATIENCE, watch.next()).await.unwrap() {
            Some(Ok(EventUpdate::Reconnecting(_))) => {}
            Some(Err(error)) => break assert_eq!(error.reason(), Reason::EventsTrimmed),
            other => panic!("{other:?}"),
        }
    }
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn what_vanished_during_a_restart_is_reported_as_removed() {
    let fake = Fake::default();
    fake.put("a");
    fake.put("b");
    fake.put("c");
    let (server, client) = start(&fake).await;
    let mut clusters = client
        .watch_clusters(WatchClustersRequest::default(), PATIENCE)
        .await
        .unwrap();
    let mut nodes = client
        .watch_nodes(WatchNodesRequest::default(), PATIENCE)
        .await
        .unwrap();
    let Update::Upserts(first) = next(&mut clusters).await else {
        panic!("no snapshot")
    };
    assert_eq!(
        first
            .iter()
            .map(|cluster| cluster.name.as_str())
            .collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    let Update::Synced { revision } = next(&mut clusters).await else {
        panic!("not synced")
    };
    let Update::Upserts(first) = next(&mut nodes).await else {
        panic!("no snapshot")
    };
    assert_eq!(first.len(), 3);
    assert!(matches!(next(&mut nodes).await, Update::Synced { .. }));
    fake.remove("c");
    assert_eq!(
        next(&mut clusters).await,
        Update::Removals(vec!["c".to_owned()])
    );
    assert_eq!(
        next(&mut nodes).await,
        Update::Removals(vec!["c/c-0".to_owned()])
    );

    let address = server.address();
    server.shutdown().await;
    fake.remove("a");
    fake.put("d");
    let _server = serve(&fake, Some(address)).await;
    let mut upserts = Vec::new();
    let mut removals = Vec::new();
    loop {
        match next(&mut clusters).await {
            Update::Reconnecting(error) => assert_eq!(error.reason(), Reason::Unavailable),
            Update::Upserts(clusters) => {
                upserts.extend(clusters.into_iter().map(|cluster| cluster.name));
            }
            Update::Removals(names) => removals.extend(names),
            Update::Synced { revision: later } => break assert!(later > revision),
        }
    }
    assert_eq!(
        (upserts, removals),
        (vec!["b".to_owned(), "d".to_owned()], vec!["a".to_owned()])
    );
    assert_eq!(
        fake.last_min_revision(),
        Some(revision),
        "a new snapshot must not show the past"
    );
    loop {
        match next(&mut nodes).await {
            Update::Removals(names) => break assert_eq!(names, ["a/a-0"]),
            Update::Reconnecting(_) | Update::Upserts(_) => {}
            Update::Synced { .. } => panic!("synced without saying what has gone"),
        }
    }
}

#[tokio::test]
async fn transient_failures_are_tried_again_and_others_are_not() {
    let fake = Fake::default();
    fake.put("a");
    let (_server, client) = start(&fake).await;
    let get = || {
        client.get_cluster(
            GetClusterRequest {
                name: "a".to_owned(),
                ..Default::default()
            },
            PATIENCE,
        )
    };
    fake.fail([
        Error::new(Reason::NotLeader, "not mine"),
        Error::new(Reason::Overloaded, "busy").with_retry_after(Duration::from_millis(10)),
    ]);
    assert_eq!(get().await.unwrap().cluster.unwrap().name, "a");
    fake.fail([Error::not_found("cluster", "a")]);
    assert_eq!(get().await.unwrap_err().reason(), Reason::NotFound);
    assert_eq!(get().await.unwrap().cluster.unwrap().name, "a");
}

#[tokio::test]
async fn an_orchestrator_that_is_not_there_is_said_to_be_unreachable_soon() {
    let fake = Fake::default();
    let (server, client) = start(&fake).await;
    server.shutdown().await;
    let start = tokio::time::Instant::now();
    let error = client
        .get_cluster(GetClusterRequest::default(), PATIENCE)
        .await
        .unwrap_err();
    assert!(is_unreachable(&error), "{error:?}");
    let error = client
        .watch_events("orders", Some(0), PATIENCE)
        .await
        .unwrap_err();
    assert!(is_unreachable(&error), "{error:?}");
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}
