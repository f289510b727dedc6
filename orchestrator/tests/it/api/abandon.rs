use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::orchestrator::v1 as pb;

use crate::api::support::{Site, World, changed, document, invalid, refused, until};

fn abandon(platform: &str, uid: Option<&str>) -> pb::AbandonPlatformRequest {
    pb::AbandonPlatformRequest {
        cluster: "orders".into(),
        platform: platform.into(),
        platform_uid: uid.map(ToOwned::to_owned),
        delete_nodes: false,
    }
}

/// Abandons the platform as soon as it has been unreachable for long enough.
async fn abandoned(
    world: &World,
    request: pb::AbandonPlatformRequest,
) -> pb::AbandonPlatformResponse {
    until("it may be abandoned", async || {
        let answer = world.clusters().abandon_platform(request.clone()).await;
        match answer {
            Ok(answer) => Some(answer.into_inner()),
            Err(status) => {
                let status = refused::<()>(Err(status), Reason::PlatformReachable);
                assert!(
                    status.message().contains("can be abandoned in"),
                    "{status:?}"
                );
                None
            }
        }
    })
    .await
}

/// A cluster with a group on a platform that is lost for good, and one on a reachable platform.
async fn stranded(nodes: u32) -> World {
    let world = World::new().await;
    let gone = Site::new(SimulatedSettings {
        name: "gone".into(),
        ..SimulatedSettings::default()
    })
    .await;
    world.sites.put("http://gone", gone.channel());
    world.register("gone", "http://gone").await.unwrap();
    let both = changed(document("orders", &[("db", 2), ("lost", nodes)]), |spec| {
        spec.groups[1].platforms = vec![pb::PlatformChoice {
            name: "gone".into(),
            ..Default::default()
        }];
    });
    world.apply(both).await.unwrap();
    world.ready("orders").await;
    refused(
        world
            .clusters()
            .abandon_platform(abandon("gone", None))
            .await,
        Reason::PlatformReachable,
    );
    gone.server.shutdown().await;
    world.sites.put(
        "http://gone",
        drover_client::in_process(tonic::service::Routes::default()),
    );
    until("it is not visible", async || {
        (world.platform("gone").await.phase() != pb::PlatformPhase::Ready).then_some(())
    })
    .await;
    world
}

#[tokio::test]
async fn records_on_a_backend_that_never_answers_are_dropped_and_every_node_is_named() {
    let world = stranded(120).await;
    // The nodes are no longer desired, but nothing can be done about them.
    let mut smaller = pb::ApplyClusterRequest {
        cluster: Some(document("orders", &[("db", 2)])),
        ..Default::default()
    };
    smaller.remove_groups = vec!["lost".into()];
    world.clusters().apply_cluster(smaller).await.unwrap();
    let ids: Vec<String> = world
        .nodes("orders")
        .await
        .into_iter()
        .filter(|n| n.group == "lost")
        .map(|n| n.id)
        .collect();
    assert_eq!(ids.len(), 120);

    let mut clusters = world.clusters();
    refused(
        clusters.abandon_platform(abandon("nothing", None)).await,
        Reason::NotFound,
    );
    refused(
        clusters
            .abandon_platform(abandon("gone", Some("other")))
            .await,
        Reason::NotFound,
    );
    refused(
        clusters.abandon_platform(abandon("sim", None)).await,
        Reason::PlatformReachable,
    );
    let answer = abandoned(&world, abandon("gone", None)).await;
    let mut dropped = answer.nodes.clone();
    dropped.sort();
    let mut expected = ids.clone();
    expected.sort();
    assert_eq!(dropped, expected);
    let status = answer.cluster.unwrap().status.unwrap();
    assert!(
        status.platforms.iter().all(|used| used.platform == "sim"),
        "{:?}",
        status.platforms
    );

    world.ready("orders").await;
    assert_eq!(world.nodes("orders").await.len(), 2);
    let events = world.events("orders").await;
    let mut named: Vec<&str> = events
        .iter()
        .filter(|e| e.reason == "NodeAbandoned")
        .filter_map(|e| e.node.as_deref())
        .collect();
    named.sort_unstable();
    assert_eq!(named, expected);
    assert!(
        events
            .iter()
            .zip(events.iter().skip(1))
            .all(|(a, b)| a.sequence + 1 == b.sequence)
    );
    // Nothing needs the platform any more.
    world
        .platforms()
        .unregister_platform(pb::UnregisterPlatformRequest {
            name: "gone".into(),
        })
        .await
        .unwrap();
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    world.stop().await;
}

#[tokio::test]
async fn a_deletion_that_a_dead_backend_holds_up_ends_when_it_is_abandoned() {
    let world = stranded(3).await;
    world.delete("orders").await.unwrap();
    until("only what cannot be removed is left", async || {
        (world.nodes("orders").await.len() == 3).then_some(())
    })
    .await;
    let uid = world.nodes("orders").await[0].platform_uid.clone();
    let answer = abandoned(&world, abandon("gone", Some(&uid))).await;
    assert_eq!(answer.nodes.len(), 3);
    world.gone("orders").await;
    world.stop().await;
}

#[tokio::test]
async fn what_a_cluster_does_not_use_is_nothing_to_abandon() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 0)])).await.unwrap();
    let answer = world
        .clusters()
        .abandon_platform(abandon("sim", None))
        .await
        .unwrap()
        .into_inner();
    assert!(answer.nodes.is_empty());
    let wrong = pb::AbandonPlatformRequest {
        platform: String::new(),
        ..abandon("", None)
    };
    refused(
        world.clusters().abandon_platform(wrong).await,
        Reason::NotFound,
    );
    invalid(world.apply(document("", &[])).await, "cluster.name");
    world.stop().await;
}
