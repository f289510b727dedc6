//! Abandoned nodes and rebound platforms: nodes that are to be left alone are never deleted, and nothing waits forever.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{sync::Arc, time::Duration};

use drover_core::Result;
use drover_platform_cloud::drivers::simulated::Death;
use drover_proto::orchestrator::v1 as pb;
use drover_simulation as sim;
use drover_testing::store::Fault;
use sim::{LONG, Site, World, immortal, restored::ids, runtime, settings};

use crate::adoption::{named_foreign, two_of_a_name};

const CALL: Duration = Duration::from_secs(10);

async fn phase(world: &mut World, platform: &str, phase: pb::PlatformPhase) {
    world
        .until(&format!("{platform} is {phase:?}"), async |world| {
            world.platform(platform).await.status.unwrap().phase() == phase
        })
        .await;
}

async fn abandon(
    world: &mut World,
    platform: &str,
    delete_nodes: bool,
) -> Result<pb::AbandonPlatformResponse> {
    abandon_in(world, "one", platform, delete_nodes).await
}

async fn abandon_in(
    world: &mut World,
    cluster: &str,
    platform: &str,
    delete_nodes: bool,
) -> Result<pb::AbandonPlatformResponse> {
    abandon_as(
        world,
        pb::AbandonPlatformRequest {
            cluster: cluster.to_owned(),
            platform: platform.to_owned(),
            platform_uid: None,
            delete_nodes,
        },
    )
    .await
}

async fn abandon_as(
    world: &mut World,
    request: pb::AbandonPlatformRequest,
) -> Result<pb::AbandonPlatformResponse> {
    world
        .call(async |client| client.abandon_platform(request.clone(), CALL).await)
        .await
}

/// Lets the next commit succeed and those after it fail until the faults are removed: passes commit, too, and a call that
/// outlived the faults would be carried out.
fn interrupt(world: &World) {
    for nth in 2..10_000 {
        world.disk.faults().inject(nth, Fault::Refused);
    }
}

async fn unregister(world: &mut World, platform: &str) {
    let name = platform.to_owned();
    let request = pb::UnregisterPlatformRequest { name };
    world
        .call(async |client| client.unregister_platform(request.clone(), CALL).await)
        .await
        .unwrap();
}

/// Moves the cluster's nodes to another platform.
async fn moves_to(world: &mut World, platform: &str) {
    let there = |spec: &mut pb::ClusterSpec| platform.clone_into(&mut spec.platforms[0].name);
    world
        .try_apply_with("one", &[("web", 3)], &there)
        .await
        .unwrap();
    world
        .until(&format!("three are ready on {platform}"), async |world| {
            let nodes = world.records("one").await;
            let ready = |node: &&pb::Node| {
                node.state() == pb::NodeState::Ready && node.platform == platform
            };
            nodes.iter().filter(ready).count() == 3
        })
        .await;
}

/// A cluster of three nodes that were abandoned after their platform went away. It has three others in their place.
async fn given_up() -> (World, Arc<Site>) {
    let mut world = World::new(settings(), immortal()).await;
    world.apply("one", &[("web", 3)]).await;
    world.converge().await;
    let (old, other) = (world.site.clone(), Site::new(settings()));
    world.sites.put("http://other", &other);
    world.register("other", "http://other").await.unwrap();
    old.stop();
    world.pass(Duration::from_secs(600)).await;
    let given = abandon(&mut world, "sim", false).await.unwrap();
    assert_eq!(given.nodes.len(), 3);
    moves_to(&mut world, "other").await;
    (world, old)
}

/// The platform of the abandoned nodes comes back under another name, and under another uid if there is one: the nodes
/// are left alone until somebody asks for their deletion.
fn stays_under_another_name(uid: Option<&str>) {
    runtime().block_on(async {
        let (mut world, old) = given_up().await;
        let before = ids(&old);
        unregister(&mut world, "sim").await;
        world.sites.put("http://old", &old);
        if let Some(uid) = uid {
            old.backend.set_uid(uid);
        }
        old.start();
        world.register("old", "http://old").await.unwrap();
        phase(&mut world, "old", pb::PlatformPhase::Ready).await;
        world.pass(LONG).await;
        assert_eq!(ids(&old), before);
        let said = world.condition("one", "Orphans").await.unwrap();
        assert!(said.contains("drover abandon --delete-nodes"), "{said}");
        // The remedy that the condition names.
        abandon(&mut world, "old", true).await.unwrap();
        world
            .until("they are gone", async |_| old.all().is_empty())
            .await;
    });
}

#[test]
fn what_was_given_up_is_left_alone_when_its_platform_has_another_name() {
    stays_under_another_name(None);
}

#[test]
fn what_was_given_up_is_left_alone_when_its_platform_has_another_uid() {
    runtime().block_on(async {
        let (mut world, old) = given_up().await;
        let before = ids(&old);
        old.backend.set_uid("the-new-one");
        old.start();
        phase(&mut world, "sim", pb::PlatformPhase::Refused).await;
        world.rebind("sim", "the-new-one").await;
        phase(&mut world, "sim", pb::PlatformPhase::Ready).await;
        world.pass(LONG).await;
        assert_eq!(ids(&old), before);
    });
}

#[test]
fn what_was_given_up_is_left_alone_when_its_platform_has_another_name_and_another_uid() {
    stays_under_another_name(Some("the-new-one"));
}

#[test]
fn of_two_that_were_given_up_under_one_name_the_one_whose_uid_is_named_is_swept() {
    runtime().block_on(async {
        let (mut world, first) = given_up().await;
        unregister(&mut world, "sim").await;
        let second = Site::new(settings());
        world.sites.put("http://second", &second);
        world.register("sim", "http://second").await.unwrap();
        moves_to(&mut world, "sim").await;
        let uid = |of: &pb::Platform| of.status.clone().unwrap().uid;
        let second_uid = uid(&world.platform("sim").await);
        second.stop();
        world.pass(Duration::from_secs(600)).await;
        let given = abandon(&mut world, "sim", false).await.unwrap();
        assert_eq!(given.nodes.len(), 3);
        moves_to(&mut world, "other").await;
        unregister(&mut world, "sim").await;
        // Both come back under names that were never abandoned.
        for (name, site) in [("a", &first), ("b", &second)] {
            let endpoint = format!("http://{name}");
            world.sites.put(&endpoint, site);
            site.start();
            world.register(name, &endpoint).await.unwrap();
            phase(&mut world, name, pb::PlatformPhase::Ready).await;
        }
        world.pass(LONG).await;
        let before = (ids(&first), ids(&second));
        assert_eq!((before.0.len(), before.1.len()), (3, 3), "left alone");
        let first_uid = uid(&world.platform("a").await);
        assert_ne!(first_uid, second_uid);
        let request = pb::AbandonPlatformRequest {
            cluster: "one".to_owned(),
            platform: "sim".to_owned(),
            platform_uid: Some(first_uid),
            delete_nodes: true,
        };
        abandon_as(&mut world, request).await.unwrap();
        world
            .until("those of the first are gone", async |_| {
                first.all().is_empty()
            })
            .await;
        world.pass(LONG).await;
        assert_eq!(ids(&second), before.1, "nobody asked for these");
    });
}

#[test]
fn a_platform_that_was_only_used_once_can_be_given_up_and_used_again() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world.apply("one", &[("web", 3)]).await;
        world.converge().await;
        let (old, other) = (world.site.clone(), Site::new(settings()));
        world.sites.put("http://other", &other);
        world.register("other", "http://other").await.unwrap();
        moves_to(&mut world, "other").await;
        world
            .until("nothing is left on sim", async |_| old.all().is_empty())
            .await;
        old.stop();
        world.pass(Duration::from_secs(600)).await;
        let given = abandon(&mut world, "sim", false).await.unwrap();
        assert_eq!(given.nodes, Vec::<String>::new());
        old.start();
        phase(&mut world, "sim", pb::PlatformPhase::Ready).await;
        moves_to(&mut world, "sim").await;
        world
            .until("nothing is left on other", async |_| other.all().is_empty())
            .await;
        world.pass(LONG).await;
        assert_eq!(ids(&old).len(), 3, "its nodes are its own again");
        // They can be removed like any others.
        world.scale("one", "web", 1).await;
        world
            .until("one is left", async |_| old.all().len() == 1)
            .await;
    });
}

#[test]
fn nodes_of_an_abandonment_that_was_interrupted_are_left_alone() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world.apply("one", &[("web", 100)]).await;
        world.converge().await;
        let before = ids(&world.site);
        world.site.stop();
        world.pass(Duration::from_secs(600)).await;
        // There are too many of them for one step.
        interrupt(&world);
        abandon(&mut world, "sim", false).await.unwrap_err();
        world.disk.faults().restart();
        let left = world.records("one").await.len();
        assert!((1..100).contains(&left), "{left} are left");
        world.site.start();
        phase(&mut world, "sim", pb::PlatformPhase::Ready).await;
        world.pass(LONG).await;
        let after = ids(&world.site);
        let lost = before.difference(&after).count();
        assert_eq!(lost, 0, "they were to be left alone");
    });
}

#[test]
fn a_move_to_another_uid_that_was_interrupted_can_be_taken_back() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        for name in ["one", "two", "three"] {
            world.apply(name, &[("web", 2)]).await;
        }
        world.converge().await;
        let before = ids(&world.site);
        let uid = world.platform("sim").await.status.unwrap().uid;
        let shown_as = async |world: &mut World, uid: &str| {
            world.site.backend.set_uid(uid);
            world.site.stop();
            world.site.start();
        };
        shown_as(&mut world, "the-new-one").await;
        phase(&mut world, "sim", pb::PlatformPhase::Refused).await;
        interrupt(&world);
        let request = pb::RegisterPlatformRequest {
            platform: Some(pb::Platform {
                name: "sim".to_owned(),
                spec: world.platform("sim").await.spec,
                ..Default::default()
            }),
            rebind_uid: Some("the-new-one".to_owned()),
            ..Default::default()
        };
        world
            .call(async |client| client.register_platform(request.clone(), CALL).await)
            .await
            .unwrap_err();
        world.disk.faults().restart();
        shown_as(&mut world, &uid).await;
        phase(&mut world, "sim", pb::PlatformPhase::Ready).await;
        // Some records are still under the other uid.
        let mut said = Vec::new();
        for name in ["one", "two", "three"] {
            let refused = abandon_in(&mut world, name, "sim", false)
                .await
                .unwrap_err();
            said.push(refused.message().to_owned());
        }
        let way_out = format!("drover rebind sim {uid}");
        assert!(said.iter().any(|said| said.contains(&way_out)), "{said:?}");
        // Failures of nodes with moved records are still noticed.
        let mut kept = before;
        for name in ["one", "two", "three"] {
            let victim = world.site.nodes(name).remove(0).node_id;
            assert!(world.site.backend.kill(&victim, Death::Failed));
            kept.remove(&victim);
        }
        world.pass(LONG).await;
        world.rebind("sim", &uid).await;
        for name in ["one", "two", "three"] {
            world.scale(name, "web", 3).await;
        }
        world.check().await;
        assert!(kept.is_subset(&ids(&world.site)), "all others are kept");
        world
            .until("nobody claims anything", async |world| {
                let status = world.platform("sim").await.status.unwrap();
                let claims = |it: &drover_proto::common::v1::Condition| {
                    it.r#type == "ForeignClaims" && it.status == Some(true)
                };
                !status.conditions.iter().any(claims)
            })
            .await;
    });
}

#[test]
fn foreign_nodes_of_a_platform_that_is_unregistered_hold_nobody_back() {
    runtime().block_on(async {
        let (one, mut two) = two_of_a_name().await;
        let mine = Site::new(settings());
        two.sites.put("http://mine", &mine);
        two.register("mine", "http://mine").await.unwrap();
        // The apply precedes the first contact with the platform, so the foreign nodes are only found later.
        one.site.stop();
        two.restart().await;
        let here = |spec: &mut pb::ClusterSpec| spec.platforms[0].name = "mine".to_owned();
        two.try_apply_with("same", &[("web", 1)], &here)
            .await
            .unwrap();
        two.site = mine;
        two.converge().await;
        one.site.start();
        named_foreign(&mut two).await;
        unregister(&mut two, "sim").await;
        two.kill("same", 1, Death::Failed);
        two.check().await;
        assert_eq!(two.condition("same", "ForeignNodes").await, None);
        assert_eq!(ids(&one.site).len(), 2, "and they are still there");
    });
}
