use std::{collections::BTreeMap, time::Duration};

use drover_proto::{common::v1::LabelSelector, orchestrator::v1 as pb};
use tokio::time::timeout;
use tonic::Streaming;

use crate::api::support::{World, document};

async fn next<T>(watch: &mut Streaming<T>) -> T {
    timeout(Duration::from_secs(30), watch.message())
        .await
        .expect("a message")
        .unwrap()
        .expect("no end")
}

/// Clusters as a watch shows them.
#[derive(Default)]
struct Shown {
    clusters: BTreeMap<String, pb::Cluster>,
    complete: bool,
    revision: u64,
}

impl Shown {
    async fn follow(
        &mut self,
        watch: &mut Streaming<pb::WatchClustersResponse>,
        until: impl Fn(&Self) -> bool,
    ) {
        use pb::watch_clusters_response::Event;
        while !until(self) {
            match next(watch).await.event.expect("an event") {
                Event::Started(_) => assert!(
                    self.clusters.is_empty() && !self.complete,
                    "sent first, and once"
                ),
                Event::Upserts(upserts) => {
                    assert!(upserts.clusters.len() <= 256);
                    self.clusters
                        .extend(upserts.clusters.into_iter().map(|c| (c.name.clone(), c)));
                }
                Event::Removals(removals) => {
                    for name in removals.names {
                        assert!(
                            self.clusters.remove(&name).is_some(),
                            "{name} was never shown"
                        );
                    }
                }
                Event::SnapshotComplete(mark) => {
                    assert!(!std::mem::replace(&mut self.complete, true), "sent once");
                    self.revision = mark.revision;
                }
                Event::Heartbeat(mark) => {
                    assert!(mark.revision >= self.revision && mark.send_time.is_some());
                    self.revision = mark.revision;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_watch_of_clusters_shows_what_is_there_then_what_changes_then_what_goes() {
    let world = World::new().await;
    for n in 0..300 {
        world
            .apply(document(&format!("c-{n:03}"), &[("db", 0)]))
            .await
            .unwrap();
    }
    let mut watch = world
        .clusters()
        .watch_clusters(pb::WatchClustersRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut shown = Shown::default();
    shown.follow(&mut watch, |shown| shown.complete).await;
    assert_eq!(shown.clusters.len(), 300);
    assert!(
        shown
            .clusters
            .values()
            .all(|cluster| cluster.spec.is_none())
    );

    world.apply(document("new", &[("db", 2)])).await.unwrap();
    shown
        .follow(&mut watch, |shown| {
            let status = shown
                .clusters
                .get("new")
                .and_then(|cluster| cluster.status.as_ref());
            status.is_some_and(|status| status.phase() == pb::ClusterPhase::Ready)
        })
        .await;
    world.delete("new").await.unwrap();
    shown
        .follow(&mut watch, |shown| !shown.clusters.contains_key("new"))
        .await;
    assert_eq!(shown.clusters.len(), 300);
    world.stop().await;
}

#[tokio::test]
async fn a_mark_promises_that_everything_up_to_it_was_sent() {
    let world = World::new().await;
    let request = pb::WatchClustersRequest {
        heartbeat_interval: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        view: pb::ClusterView::Full.into(),
        ..Default::default()
    };
    let mut watch = world
        .clusters()
        .watch_clusters(request)
        .await
        .unwrap()
        .into_inner();
    let mut shown = Shown::default();
    for size in 0..3 {
        let revision = world
            .apply(document("orders", &[("db", size)]))
            .await
            .unwrap()
            .revision;
        shown
            .follow(&mut watch, |shown| shown.revision >= revision)
            .await;
        assert_eq!(
            shown.clusters["orders"].spec.as_ref().unwrap().groups[0].size,
            Some(size)
        );
    }
    world.stop().await;
}

#[tokio::test]
async fn a_cluster_that_no_longer_has_the_labels_is_reported_as_removed() {
    let world = World::new().await;
    let labelled = |team: &str| {
        let mut cluster = document("orders", &[("db", 0)]);
        cluster.labels.insert("team".into(), team.into());
        cluster
    };
    world.apply(labelled("payments")).await.unwrap();
    world.apply(document("other", &[("db", 0)])).await.unwrap();
    let selector = LabelSelector {
        match_labels: [("team".into(), "payments".into())].into(),
        ..Default::default()
    };
    let request = pb::WatchClustersRequest {
        selector: Some(selector),
        ..Default::default()
    };
    let mut watch = world
        .clusters()
        .watch_clusters(request)
        .await
        .unwrap()
        .into_inner();
    let mut shown = Shown::default();
    shown.follow(&mut watch, |shown| shown.complete).await;
    assert_eq!(shown.clusters.keys().collect::<Vec<_>>(), ["orders"]);
    world.apply(labelled("search")).await.unwrap();
    shown
        .follow(&mut watch, |shown| shown.clusters.is_empty())
        .await;
    world.apply(labelled("payments")).await.unwrap();
    shown
        .follow(&mut watch, |shown| !shown.clusters.is_empty())
        .await;
    world.stop().await;
}

#[tokio::test]
async fn a_watch_of_nodes_shows_each_state_of_the_group_and_ends_with_its_removals() {
    use pb::watch_nodes_response::Event;
    let world = World::new().await;
    world
        .apply(document("orders", &[("db", 2), ("web", 1)]))
        .await
        .unwrap();
    let request = pb::WatchNodesRequest {
        cluster: Some("orders".into()),
        group: Some("db".into()),
        heartbeat_interval: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        ..Default::default()
    };
    let mut watch = world
        .clusters()
        .watch_nodes(request)
        .await
        .unwrap()
        .into_inner();
    let Some(Event::Started(started)) = next(&mut watch).await.event else {
        panic!("the first message says how")
    };
    assert_eq!(started.heartbeat_interval.unwrap().seconds, 1);
    let (mut nodes, mut heartbeat, mut deleted) = (BTreeMap::new(), false, false);
    loop {
        match next(&mut watch).await.event.unwrap() {
            Event::Upserts(upserts) => {
                for node in upserts.nodes {
                    assert_eq!(node.group, "db");
                    nodes.insert(format!("orders/{}", node.id), node.state());
                }
            }
            Event::Removals(removals) => {
                for name in removals.names {
                    assert!(nodes.remove(&name).is_some(), "{name} was never shown");
                }
            }
            Event::Heartbeat(_) => heartbeat = true,
            Event::SnapshotComplete(_) => {}
            Event::Started(_) => panic!("sent once"),
        }
        let ready = nodes.len() == 2 && nodes.values().all(|state| *state == pb::NodeState::Ready);
        if ready && heartbeat && !deleted {
            world.delete("orders").await.unwrap();
            deleted = true;
        }
        if deleted && nodes.is_empty() {
            break;
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn a_watch_of_a_large_cluster_shows_every_node_and_all_that_go() {
    use pb::watch_nodes_response::Event;
    const NODES: usize = 600;
    let world = World::new().await;
    world
        .apply(document("large", &[("db", 600)]))
        .await
        .unwrap();
    world.ready("large").await;
    let mut watch = world
        .clusters()
        .watch_nodes(pb::WatchNodesRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut shown = BTreeMap::new();
    loop {
        match next(&mut watch).await.event.expect("an event") {
            Event::Upserts(upserts) => {
                for node in upserts.nodes {
                    let name = format!("large/{}", node.id);
                    shown.insert(name, node);
                }
            }
            Event::SnapshotComplete(_) => break,
            Event::Removals(removals) => panic!("{removals:?}"),
            Event::Started(_) | Event::Heartbeat(_) => {}
        }
    }
    assert_eq!(shown.len(), NODES);
    world.delete("large").await.unwrap();
    while !shown.is_empty() {
        if let Event::Removals(removals) = next(&mut watch).await.event.expect("an event") {
            for name in removals.names {
                assert!(shown.remove(&name).is_some(), "{name}");
            }
        }
    }
    world.stop().await;
}
