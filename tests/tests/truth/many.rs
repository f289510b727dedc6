//! A thousand at once.

use std::{collections::BTreeSet, time::Duration};

use drover_proto::orchestrator::v1 as pb;
use futures::StreamExt;

use crate::{
    all,
    sim::{LONG, World, document, immortal, runtime, settings},
};

#[test]
fn an_outage_of_a_platform_with_a_thousand_clusters_replaces_nothing() {
    const CLUSTERS: usize = 1_000;
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        let client = world.client();
        futures::stream::iter(0..CLUSTERS)
            .for_each_concurrent(32, |number| {
                let client = client.clone();
                async move {
                    let cluster = document(&format!("one-{number}"), "sim", &[("web", 1)]);
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
        drop(client);
        let ready = async |world: &mut World| {
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
        };
        world
            .until("all are ready", async |world| {
                ready(world).await == CLUSTERS
            })
            .await;
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
            world
                .until("all are ready again", async |world| {
                    ready(world).await == CLUSTERS
                })
                .await;
            world.pass(Duration::from_secs(180)).await;
            assert_eq!(all(&world), before, "nothing was replaced");
        }
        assert_eq!(
            world.site.backend.ledger().len(),
            CLUSTERS,
            "nothing was ever made in between"
        );
        world.restart().await;
        world
            .until("all are ready after a restart", async |world| {
                ready(world).await == CLUSTERS
            })
            .await;
        assert_eq!(all(&world), before, "nothing was replaced");
    });
}

#[test]
fn a_thousand_nodes_that_are_all_not_ready_are_left_alone_and_heal_when_some_are() {
    const NODES: u32 = 1_000;
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        for number in 0..10 {
            world
                .apply(&format!("one-{number}"), &[("web", NODES / 10)])
                .await;
        }
        world.converge().await;
        let before = all(&world);
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
        world.check().await;
        assert_no_fewer(&before, &all(&world), 1);
    });
}

/// At most so many of these are gone.
fn assert_no_fewer(before: &BTreeSet<String>, after: &BTreeSet<String>, gone: usize) {
    assert!(
        before.difference(after).count() <= gone,
        "{:?} are gone",
        before.difference(after)
    );
}
