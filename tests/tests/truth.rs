//! What is believed of a platform that lies, is another, shows late, or is away: no living node is ever deleted for it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod sim;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use drover_core::{Error, Reason};
use drover_platform::identity::Identity;
use drover_platform_cloud::drivers::simulated::{Death, Fault, Operation, SimulatedSettings};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Store, import};
use futures::StreamExt;
use sim::{Crash, Disk, Site, Sites, World, document, runtime};

/// Virtual time in which a wrong belief would have shown: beyond every grace and every deadline.
const LONG: Duration = Duration::from_secs(20 * 60);

fn settings() -> SimulatedSettings {
    SimulatedSettings {
        seed: Some(1),
        ..SimulatedSettings::default()
    }
}

fn immortal() -> Arc<Crash> {
    Crash::at([])
}

fn ids(site: &Site, cluster: &str) -> BTreeSet<String> {
    site.nodes(cluster)
        .into_iter()
        .map(|node| node.node_id)
        .collect()
}

#[test]
fn a_lost_answer_of_ten_with_deaths_and_a_scale_in_between_makes_each_slot_once() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let visibility_delay = Duration::from_secs(60 * (seed % 2));
        let settings = SimulatedSettings {
            seed: Some(seed),
            visibility_delay,
            ..settings()
        };
        runtime().block_on(async {
            let mut world = World::new(settings, immortal()).await;
            let backend = world.site.backend.clone();
            backend.fail_next(Operation::Create, Fault::LoseAnswer);
            world.apply("one", &[("web", 10)]).await;
            world
                .until("the nodes are made", async |world| {
                    world.site.nodes("one").len() >= 10
                })
                .await;
            for how in [Death::Failed, Death::Vanished] {
                world
                    .pass(Duration::from_millis(random.u64(0..3_000)))
                    .await;
                world.kill("one", random.usize(1..3), how);
                backend.fail_next(Operation::Create, Fault::LoseAnswer);
                world
                    .pass(Duration::from_millis(random.u64(0..3_000)))
                    .await;
                world.scale("one", "web", random.u32(6..14)).await;
            }
            world.check().await;
        });
    }
}

#[test]
fn a_create_that_is_done_after_its_answer_was_given_up_is_not_made_again() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world
            .site
            .backend
            .fail_next(Operation::Create, Fault::Stall(Duration::from_secs(9)));
        world.apply("one", &[("web", 5)]).await;
        world.pass(Duration::from_secs(1)).await;
        world.restart().await;
        world.check().await;
        assert_eq!(
            world.site.backend.ledger().len(),
            5,
            "five were wanted and nothing died"
        );
    });
}

#[test]
fn two_orchestrators_with_one_cluster_name_leave_each_others_nodes_alone() {
    runtime().block_on(async {
        let mut one = World::new(settings(), immortal()).await;
        one.apply("same", &[("web", 3)]).await;
        one.converge().await;
        let before = ids(&one.site, "same");

        let mut two =
            World::over(Disk::new(), one.sites.clone(), one.site.clone(), immortal()).await;
        two.until("the platform is seen", async |two| {
            two.platform("sim").await.status.unwrap().phase() == pb::PlatformPhase::Ready
        })
        .await;
        let refused = two.try_apply("same", &[("web", 2)]).await.unwrap_err();
        assert_eq!(refused.reason(), Reason::ClusterExists, "{refused}");

        // Applied before the platform could be seen, it is found out later.
        one.site.stop();
        two.restart().await;
        two.try_apply("same", &[("web", 2)]).await.unwrap();
        one.site.start();
        two.until("the foreign nodes are named", async |two| {
            two.condition("same", "ForeignNodes").await.is_some()
        })
        .await;
        two.pass(LONG).await;
        assert_eq!(
            ids(&one.site, "same"),
            before,
            "nothing of the other is deleted, nothing is made beside it"
        );
        two.delete("same").await;
        two.until("the second is gone", async |two| {
            two.cluster("same").await.is_none()
        })
        .await;
        two.pass(LONG).await;
        assert_eq!(ids(&one.site, "same"), before);
        one.check().await;
        assert_eq!(ids(&one.site, "same"), before, "the first lost nothing");
    });
}

#[test]
fn a_fresh_store_deletes_nothing_of_what_it_does_not_know() {
    runtime().block_on(async {
        let mut one = World::new(settings(), immortal()).await;
        one.apply("old", &[("web", 4)]).await;
        one.converge().await;
        let before = ids(&one.site, "old");
        one.orchestrator.take().unwrap().kill().await;
        let mut fresh =
            World::over(Disk::new(), one.sites.clone(), one.site.clone(), immortal()).await;
        fresh.try_apply("new", &[("web", 2)]).await.unwrap();
        fresh.pass(LONG).await;
        assert_eq!(ids(&one.site, "old"), before);
        assert_eq!(fresh.site.nodes("new").len(), 2);
    });
}

/// A world whose store is a copy of the store as it was before `later`; the copy is held as after a restore, or not.
async fn restored(later: impl AsyncFn(&mut World)) -> (World, BTreeSet<String>) {
    let mut world = World::new(settings(), immortal()).await;
    world.apply("one", &[("web", 3)]).await;
    world.converge().await;
    let mut copy = Vec::new();
    let reader = Store::open(world.disk.clone()).await.unwrap();
    reader.export(&mut copy).await.unwrap();
    drop(reader);
    later(&mut world).await;
    world.converge().await;
    let living: BTreeSet<String> = world
        .site
        .all()
        .into_iter()
        .map(|node| node.node_id)
        .collect();
    world.orchestrator.take().unwrap().kill().await;
    let disk = Disk::new();
    import(&*disk, &mut copy.as_slice()).await.unwrap();
    let restored = World::over(disk, world.sites.clone(), world.site.clone(), immortal()).await;
    (restored, living)
}

fn all(world: &World) -> BTreeSet<String> {
    world
        .site
        .all()
        .into_iter()
        .map(|node| node.node_id)
        .collect()
}

#[test]
fn a_store_restored_from_an_older_backup_deletes_no_living_node() {
    runtime().block_on(async {
        let (mut world, living) = restored(async |world| {
            world.scale("one", "web", 5).await;
            world.apply("two", &[("web", 3)]).await;
        })
        .await;
        world
            .until("it is said that the store is behind", async |world| {
                world.condition("one", "StoreBehind").await.is_some()
            })
            .await;
        world.pass(LONG).await;
        assert_eq!(all(&world), living, "all of them live, none is made");
        // Its orphans are held also in another life of the process.
        world.restart().await;
        world.pass(LONG).await;
        assert_eq!(all(&world), living);
    });
}

#[test]
fn a_store_restored_from_before_a_replacement_deletes_no_living_node() {
    runtime().block_on(async {
        let (mut world, living) = restored(async |world| {
            world.kill("one", 1, Death::Failed);
            world.converge().await;
        })
        .await;
        world.pass(LONG).await;
        let after = all(&world);
        assert!(living.is_subset(&after), "{living:?} lived, {after:?} live");
    });
}

#[test]
fn a_platform_that_is_another_backend_is_refused_and_nothing_is_touched() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world.apply("one", &[("web", 3)]).await;
        world.converge().await;
        let before = all(&world);
        let site = world.site.clone();
        let other = Site::new(settings());
        site.stop();
        world.sites.put("http://sim", &other);
        world
            .until("it is refused", async |world| {
                world.platform("sim").await.status.unwrap().phase() == pb::PlatformPhase::Refused
            })
            .await;
        world.scale("one", "web", 5).await;
        world.pass(LONG).await;
        assert!(other.all().is_empty(), "nothing is made on another backend");
        assert_eq!(all(&world), before, "nothing is deleted on the old one");
        site.start();
        world.sites.put("http://sim", &site);
        world.check().await;
        assert!(
            before.is_subset(&all(&world)),
            "the old ones are still there"
        );
    });
}

#[test]
fn a_backend_is_registered_under_one_name_only() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world
            .until("the first is ready", async |world| {
                world.platform("sim").await.status.unwrap().phase() == pb::PlatformPhase::Ready
            })
            .await;
        world.sites.put("http://again", &world.site.clone());
        match world.register("again", "http://again").await {
            Err(error) => assert_eq!(error.reason(), Reason::PlatformUidTaken, "{error}"),
            Ok(_) => {
                world
                    .until("the second is refused", async |world| {
                        world.platform("again").await.status.unwrap().phase()
                            == pb::PlatformPhase::Refused
                    })
                    .await;
                let message = world.platform("again").await.status.unwrap().message;
                assert!(message.contains("sim"), "it names the other: {message}");
            }
        }
        world.apply("one", &[("web", 2)]).await;
        world.check().await;
    });
}

#[test]
fn a_wiped_backend_is_believed_only_when_a_person_confirms_it() {
    runtime().block_on(async {
        let settings = SimulatedSettings {
            uid: Some("the-same".to_owned()),
            ..settings()
        };
        let mut world = World::new(settings.clone(), immortal()).await;
        world.apply("one", &[("web", 6)]).await;
        world.converge().await;
        world.site.stop();
        world.site = Site::new(settings);
        world.sites.put("http://sim", &world.site);
        world
            .until("the loss is noticed", async |world| {
                world.platform("sim").await.status.unwrap().vanished_count == 6
            })
            .await;
        world.pass(LONG).await;
        assert!(
            world.site.all().is_empty(),
            "nothing is made before somebody confirms"
        );
        let request = pb::ConfirmNodeLossRequest {
            platform: "sim".to_owned(),
            vanished_count: 6,
        };
        world
            .call(async |client| {
                client
                    .confirm_node_loss(request.clone(), Duration::from_secs(10))
                    .await
            })
            .await
            .unwrap();
        world.check().await;
    });
}

#[test]
fn what_vanished_and_is_shown_again_is_believed_again() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world.site.backend.freeze_visibility(true);
        let empty_picture = world.site.clone();
        world.apply("one", &[("web", 6)]).await;
        world.pass(Duration::from_secs(5)).await;
        empty_picture.backend.freeze_visibility(false);
        world.converge().await;
        let before = all(&world);
        // Two backends of one uid: the server is pointed at an empty one and back.
        let blank = Site::new(SimulatedSettings {
            uid: Some(world.platform("sim").await.status.unwrap().uid),
            ..settings()
        });
        let site = world.site.clone();
        site.stop();
        world.sites.put("http://sim", &blank);
        world
            .until("the loss is noticed", async |world| {
                world.platform("sim").await.status.unwrap().vanished_count == 6
            })
            .await;
        blank.stop();
        site.start();
        world.sites.put("http://sim", &site);
        world.check().await;
        assert_eq!(all(&world), before, "nothing was replaced");
        assert!(blank.all().is_empty());
    });
}

/// Brings a cluster into a state, takes the platform away, deletes the cluster, and gives the platform back.
fn deleted_from(state: &str, by_server: bool, script: impl AsyncFn(&mut World)) {
    println!(
        "deleted from: {state}, platform {}",
        if by_server {
            "server down"
        } else {
            "backend away"
        }
    );
    runtime().block_on(async {
        let slow = SimulatedSettings {
            stop_delay: Duration::from_secs(3),
            ..settings()
        };
        let mut world = World::new(slow, immortal()).await;
        world
            .until("the platform is ready", async |world| {
                world.platform("sim").await.status.unwrap().phase() == pb::PlatformPhase::Ready
            })
            .await;
        script(&mut world).await;
        let away = |world: &World, away: bool| match (by_server, away) {
            (true, true) => world.site.stop(),
            (true, false) => world.site.start(),
            (false, away) => world.site.backend.pause_backend(away),
        };
        away(&world, true);
        world.pass(Duration::from_secs(20)).await;
        world.delete("one").await;
        world.pass(Duration::from_secs(60)).await;
        if world.cluster("one").await.is_some() {
            world
                .until("it is said what blocks the deletion", async |world| {
                    world
                        .condition("one", "DeletionBlocked")
                        .await
                        .is_some_and(|why| why.contains("sim"))
                })
                .await;
        } else {
            assert!(
                world.site.all().is_empty(),
                "it is finished although nodes are there"
            );
        }
        let refused = world.try_apply("one", &[("web", 1)]).await;
        if let Err(error) = refused {
            assert_eq!(error.reason(), Reason::ClusterDeleting, "{error}");
        } else {
            world.delete("one").await;
        }
        away(&world, false);
        world.check().await;
        assert!(world.cluster("one").await.is_none());
        world.apply("one", &[("web", 1)]).await;
        world.check().await;
    });
}

#[test]
fn a_deletion_ends_from_every_half_made_state_once_its_platform_is_back() {
    for by_server in [true, false] {
        deleted_from("ready", by_server, async |world| {
            world.apply("one", &[("web", 4)]).await;
            world.converge().await;
        });
        deleted_from("asked for", by_server, async |world| {
            world
                .site
                .backend
                .fail_next(Operation::Create, Fault::Stall(Duration::from_secs(5)));
            world.apply("one", &[("web", 4)]).await;
            world.pass(Duration::from_secs(1)).await;
        });
        deleted_from("made, and nobody was told", by_server, async |world| {
            world
                .site
                .backend
                .fail_next(Operation::Create, Fault::LoseAnswer);
            world.apply("one", &[("web", 4)]).await;
        });
        deleted_from("booting", by_server, async |world| {
            world.apply("one", &[("web", 4)]).await;
            world.pass(Duration::from_millis(20)).await;
        });
        deleted_from("half dead", by_server, async |world| {
            world.apply("one", &[("web", 4)]).await;
            world.converge().await;
            world.kill("one", 1, Death::Failed);
            world.kill("one", 1, Death::Vanished);
        });
        deleted_from("being scaled down", by_server, async |world| {
            world.apply("one", &[("web", 4)]).await;
            world.converge().await;
            world.scale("one", "web", 1).await;
            world.pass(Duration::from_millis(200)).await;
        });
        deleted_from("refused by the backend", by_server, async |world| {
            for _ in 0..3 {
                let error = Error::new(Reason::NoCapacity, "there is nothing left");
                world
                    .site
                    .backend
                    .fail_next(Operation::Create, Fault::Refuse(error));
            }
            world.apply("one", &[("web", 4)]).await;
            world.pass(Duration::from_secs(1)).await;
        });
    }
}

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

#[test]
fn a_change_whose_caller_goes_away_is_made_whole_or_not_at_all() {
    // The store takes its time before a change is made, or before it says so; the caller does not wait for it.
    let slow = Duration::from_secs(2);
    for (before, after) in [(slow, Duration::ZERO), (Duration::ZERO, slow)] {
        runtime().block_on(async {
            let mut world = World::new(settings(), immortal()).await;
            let patience = Duration::from_millis(500);
            let away =
                async |world: &mut World, call: std::pin::Pin<Box<dyn Future<Output = bool>>>| {
                    world.disk.delay(before, after);
                    let answered = tokio::time::timeout(patience, call).await.unwrap_or(false);
                    world.disk.delay(Duration::ZERO, Duration::ZERO);
                    assert!(
                        !answered,
                        "the caller was to go away before it was answered"
                    );
                    world.pass(Duration::from_secs(10)).await;
                };
            let client = world.client();
            let request = pb::ApplyClusterRequest {
                cluster: Some(document("one", "sim", &[("web", 3)])),
                ..Default::default()
            };
            away(
                &mut world,
                Box::pin(async move { client.apply_cluster(request, patience).await.is_ok() }),
            )
            .await;
            if world.cluster("one").await.is_some() {
                world
                    .wanted
                    .insert("one".to_owned(), [("web".to_owned(), 3)].into());
                world.converge().await;
            }
            world.apply("one", &[("web", 3)]).await;
            world.converge().await;

            let client = world.client();
            let request = pb::ScaleGroupRequest {
                cluster: "one".to_owned(),
                group: "web".to_owned(),
                size: Some(5),
                ..Default::default()
            };
            away(
                &mut world,
                Box::pin(async move { client.scale_group(request, patience).await.is_ok() }),
            )
            .await;
            let size = world.cluster("one").await.unwrap().spec.unwrap().groups[0]
                .size
                .unwrap();
            world
                .wanted
                .get_mut("one")
                .unwrap()
                .insert("web".to_owned(), size);
            world.converge().await;
            world.scale("one", "web", 4).await;
            world.converge().await;

            let client = world.client();
            let request = pb::DeleteClusterRequest {
                name: "one".to_owned(),
                ..Default::default()
            };
            away(
                &mut world,
                Box::pin(async move { client.delete_cluster(request, patience).await.is_ok() }),
            )
            .await;
            if world
                .cluster("one")
                .await
                .is_some_and(|cluster| cluster.delete_time.is_none())
            {
                world.converge().await;
                world.delete("one").await;
            }
            world.wanted.clear();
            world.check().await;
        });
    }
}

#[test]
fn a_node_that_dies_again_and_again_is_made_no_more_often_than_the_back_off_allows() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world.apply("one", &[("web", 1)]).await;
        let hours = 6;
        let end = tokio::time::Instant::now() + Duration::from_secs(hours * 3600);
        while tokio::time::Instant::now() < end {
            world.converge().await;
            world.pass(Duration::from_secs(20)).await;
            world.kill("one", 1, Death::Failed);
            world.pass(Duration::from_secs(1)).await;
        }
        world.converge().await;
        let made = world.site.backend.ledger().len() as u64;
        println!("{made} nodes in {hours} hours");
        // Three attempts, then one in ten minutes.
        assert!(made <= 6 * hours + 6, "{made} nodes were made");
        assert!(made >= 5 * hours, "it never gives up: {made} nodes");
        world.assert_no_doubles();
    });
}

#[test]
fn sites_are_told_apart_by_their_endpoints() {
    runtime().block_on(async {
        let sites = Sites::default();
        let (left, right) = (Site::new(settings()), Site::new(settings()));
        sites.put("http://sim", &left);
        sites.put("http://other", &right);
        let mut world = World::over(Disk::new(), sites, left.clone(), immortal()).await;
        world.register("other", "http://other").await.unwrap();
        let request = pb::ApplyClusterRequest {
            cluster: Some(document("two", "other", &[("web", 2)])),
            ..Default::default()
        };
        world
            .call(async |client| {
                client
                    .apply_cluster(request.clone(), Duration::from_secs(60))
                    .await
            })
            .await
            .unwrap();
        world
            .until("two nodes are on the other", async |_| {
                right.nodes("two").len() == 2
            })
            .await;
        assert!(left.all().is_empty());
    });
}

#[test]
fn the_checks_of_these_tests_see_what_is_lost_and_what_is_doubled() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world.apply("one", &[("web", 2)]).await;
        world.converge().await;
        let slot = world.site.backend.ledger().into_values().next().unwrap();
        let twin = Identity {
            cluster_id: "one".to_owned(),
            owner: slot.owner,
            request_id: slot.request_id,
            index: slot.index,
            group: "web".to_owned(),
            ..Identity::default()
        };
        world.site.backend.create_as(twin).unwrap();
        assert_eq!(world.site.backend.doubles().len(), 1, "a twin is a double");
        assert!(world.difference().await.is_some(), "a twin is one too many");
        world.site.backend.freeze_visibility(true);
        world.kill("one", 3, Death::Vanished);
        assert!(
            world.difference().await.is_some(),
            "what is gone is missing"
        );
    });
}
