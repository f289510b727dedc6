//! Tests with a thousand nodes at once.

use std::{collections::BTreeSet, time::Duration};

use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{ExecProbe, HealthPolicy, health_policy::Probe},
};
use futures::StreamExt;
use tokio::time::{Instant, sleep_until};

use crate::truth::{
    all,
    sim::{LONG, World, document, immortal, runtime, settings},
};

/// Interval of health probes, where nodes have them.
const INTERVAL: Duration = Duration::from_secs(60);

/// Creates clusters with this number of nodes each. Clusters with health probes are created one after the other, so
/// that their probes are spread over time.
async fn fill(world: &World, clusters: usize, size: u32, health: Option<HealthPolicy>) {
    let (client, health) = (world.client(), &health);
    let began = Instant::now();
    let apart = match health {
        Some(_) => INTERVAL / clusters as u32,
        None => Duration::ZERO,
    };
    futures::stream::iter(0..clusters)
        .for_each_concurrent(32, |number| {
            let client = client.clone();
            async move {
                let mut cluster = document(&format!("one-{number}"), "sim", &[("web", size)]);
                cluster.spec.as_mut().unwrap().health.clone_from(health);
                sleep_until(began + apart * number as u32).await;
                let request = pb::ApplyClusterRequest {
                    cluster: Some(cluster),
                    ..Default::default()
                };
                client
                    .apply_cluster(request, Duration::from_secs(60))
                    .await
                    .unwrap();
            }
        })
        .await;
}

/// Number of ready clusters.
async fn ready(world: &mut World) -> usize {
    let (mut ready, mut request) = (
        0,
        pb::ListClustersRequest {
            page_size: 1_000,
            ..Default::default()
        },
    );
    loop {
        let answer = world
            .call(async |client| {
                client
                    .list_clusters(request.clone(), Duration::from_secs(60))
                    .await
            })
            .await
            .unwrap();
        let phases = answer
            .clusters
            .iter()
            .map(|cluster| cluster.status.as_ref().unwrap().phase());
        ready += phases
            .filter(|phase| *phase == pb::ClusterPhase::Ready)
            .count();
        if answer.next_page_token.is_empty() {
            return ready;
        }
        request.page_token = answer.next_page_token;
    }
}

async fn until_ready(world: &mut World, clusters: usize) {
    world
        .until("all are ready", async |world| {
            ready(world).await == clusters
        })
        .await;
}

#[test]
fn an_outage_of_a_platform_with_ten_thousand_clusters_replaces_nothing() {
    const CLUSTERS: usize = 10_000;
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        fill(&world, CLUSTERS, 1, None).await;
        until_ready(&mut world, CLUSTERS).await;
        let before = all(&world);
        assert_eq!(before.len(), CLUSTERS);
        for by_server in [true, false] {
            if by_server {
                world.site.stop();
            } else {
                world.site.backend.pause_backend(true);
            }
            world.pass(Duration::from_secs(30)).await;
            assert_eq!(
                ready(&mut world).await,
                0,
                "what cannot be seen is not called ready"
            );
            world.pass(LONG).await;
            if by_server {
                world.site.start();
            } else {
                world.site.backend.pause_backend(false);
            }
            until_ready(&mut world, CLUSTERS).await;
            world.pass(Duration::from_secs(180)).await;
            assert_eq!(all(&world), before, "nothing was replaced");
        }
        assert_eq!(
            world.site.backend.ledger().len(),
            CLUSTERS,
            "nothing was ever made in between"
        );
        world.restart().await;
        until_ready(&mut world, CLUSTERS).await;
        assert_eq!(all(&world), before, "nothing was replaced");
    });
}

/// In a large group, its own share of unhealthy nodes suspends replacement; for groups of one node, only the share over
/// all groups can.
#[test]
fn a_thousand_nodes_that_are_all_not_ready_are_left_alone_and_heal_when_some_are() {
    for (clusters, size) in [(10, 100), (1_000, 1)] {
        runtime().block_on(async {
            let mut world = World::new(settings(), immortal()).await;
            fill(&world, clusters, size, None).await;
            until_ready(&mut world, clusters).await;
            let before = all(&world);
            assert_eq!(before.len(), 1_000);
            for node in &before {
                assert!(world.site.backend.set_ready(node, false));
            }
            world.pass(LONG * 3).await;
            assert_eq!(
                all(&world),
                before,
                "so many at once are no sick nodes: nothing is deleted"
            );
            for node in before.iter().skip(1) {
                world.site.backend.set_ready(node, true);
            }
            until_ready(&mut world, clusters).await;
            assert_no_fewer(&before, &all(&world), 1);
            assert_eq!(all(&world).len(), 1_000);
        });
    }
}

/// Each node is found unhealthy by its own probe, while the platform reports all of them as running.
#[test]
fn a_thousand_nodes_whose_probes_all_fail_are_left_alone_and_are_ready_when_they_answer() {
    for (clusters, size) in [(10, 100), (1_000, 1)] {
        runtime().block_on(async {
            let mut world = World::new(settings(), immortal()).await;
            let probe = Probe::Exec(ExecProbe {
                command: vec!["true".to_owned()],
                ..ExecProbe::default()
            });
            let health = HealthPolicy {
                probe: Some(probe),
                interval: Some(INTERVAL.try_into().unwrap()),
                ..Default::default()
            };
            fill(&world, clusters, size, Some(health)).await;
            until_ready(&mut world, clusters).await;
            let before = all(&world);
            assert_eq!(before.len(), 1_000);
            world.site.backend.deafen(true);
            world
                .until("none is ready", async |world| ready(world).await == 0)
                .await;
            world.pass(LONG).await;
            assert_eq!(all(&world), before, "nothing is deleted");
            world.site.backend.deafen(false);
            until_ready(&mut world, clusters).await;
            world.pass(LONG).await;
            assert_eq!(all(&world), before, "nor when they answer again");
        });
    }
}

/// Asserts that at most `gone` of these are missing.
fn assert_no_fewer(before: &BTreeSet<String>, after: &BTreeSet<String>, gone: usize) {
    assert!(
        before.difference(after).count() <= gone,
        "{:?} are gone",
        before.difference(after)
    );
}
