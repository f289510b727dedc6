//! Beliefs about a platform that reports wrong data, was swapped, is eventually consistent, or is unavailable: no
//! living node is ever deleted because of them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use drover_simulation as sim;
mod deletion;
mod many;
mod records;
mod watched;

use std::{collections::BTreeSet, time::Duration};

use drover_core::Reason;
use drover_platform::identity::Identity;
use drover_platform_cloud::drivers::simulated::{Death, Fault, Operation, SimulatedSettings};
use drover_proto::{orchestrator::v1 as pb, platform::v1::Storage};
use drover_testing::platform::caller::Caller;
use sim::{Disk, LONG, Site, Sites, World, document, immortal, runtime, settings};

fn ids(site: &Site, cluster: &str) -> BTreeSet<String> {
    site.nodes(cluster)
        .into_iter()
        .map(|node| node.node_id)
        .collect()
}

#[test]
fn a_lost_answer_of_ten_with_deaths_and_a_scale_in_between_makes_each_slot_once() {
    for seed in drover_testing::seed::seeds(20) {
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

fn all(world: &World) -> BTreeSet<String> {
    world
        .site
        .all()
        .into_iter()
        .map(|node| node.node_id)
        .collect()
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
        // Two backends with the same uid: the server is pointed to an empty one and back.
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

#[test]
fn a_change_whose_caller_goes_away_is_made_whole_or_not_at_all() {
    // The store delays a commit before it is applied or before its result is returned; the caller does not wait for it.
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
        // Three attempts, then one every ten minutes.
        assert!(made <= 6 * hours + 6, "{made} nodes were made");
        assert!(made >= 5 * hours, "it never gives up: {made} nodes");
        world.assert_no_doubles();
    });
}

#[test]
fn a_late_node_of_a_deleted_cluster_does_not_take_the_kept_data_with_it() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        let keep = |spec: &mut pb::ClusterSpec| {
            spec.groups[0].storage = Some(pb::StorageSpec {
                size: "1Gi".to_owned(),
                ..Default::default()
            });
        };
        let groups = [("db", 1)];
        world.try_apply_with("one", &groups, &keep).await.unwrap();
        world
            .until("the node is made", async |world| {
                world.site.nodes("one").len() == 1
            })
            .await;
        let node = world.site.nodes("one").remove(0);
        let slot = node.slot.unwrap();
        world.delete("one").await;
        world
            .until("the cluster is gone", async |world| {
                world.cluster("one").await.is_none()
            })
            .await;
        let backend = world.site.backend.clone();
        let volume = || {
            let all = backend.storage().into_iter();
            let all: Vec<_> = all.map(|(kept, node)| (kept.id, node)).collect();
            assert_eq!(all.len(), 1, "{all:?}");
            all.into_iter().next().unwrap()
        };
        let (kept, nobody) = volume();
        assert_eq!(nobody, None);

        // A call that was abandoned long ago is executed after all.
        let mut caller = Caller::new(world.site.routes()).await;
        caller.cluster = "one".to_owned();
        caller.owner = slot.owner.parse().unwrap();
        let mut late = caller.request(1);
        late.storage = Some(Storage {
            size_bytes: Some(1 << 30),
            ..Default::default()
        });
        caller.provision(&late).await.unwrap();
        assert_eq!(volume().0, kept, "it takes over what was kept");
        world
            .until("the late node is gone", async |world| {
                world.site.nodes("one").is_empty()
            })
            .await;
        assert_eq!(volume(), (kept, None));
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
