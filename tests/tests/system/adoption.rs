//! Existing nodes without a record: of other orchestrators, of a lost store, of a backend whose uid changed. None is
//! lost and none is created twice, whatever crashes meanwhile.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use drover_simulation as sim;

use std::{sync::Arc, time::Duration};

use drover_core::Reason;
use drover_proto::orchestrator::v1 as pb;
use drover_store::Store;
use sim::{
    Crash, Disk, LONG, Site, World, immortal,
    restored::{ids, restored},
    runtime, settings,
};

fn count(plan: &pb::Plan, kind: pb::ActionKind) -> usize {
    let actions = plan.actions.iter().filter(|action| action.kind() == kind);
    actions.map(|action| action.count as usize).sum()
}

async fn visible(world: &mut World) {
    world
        .until("the platform is seen", async |world| {
            world.platform("sim").await.status.unwrap().phase() == pb::PlatformPhase::Ready
        })
        .await;
}

/// An orchestrator that has created the nodes of `same` and is gone for good.
async fn abandoned(groups: &[(&str, u32)]) -> World {
    let mut one = World::new(settings(), immortal()).await;
    one.apply("same", groups).await;
    one.converge().await;
    one.orchestrator.take().unwrap().kill().await;
    one
}

async fn successor(one: &World, crash: Arc<Crash>) -> World {
    let mut two = World::over(Disk::new(), one.sites.clone(), one.site.clone(), crash).await;
    visible(&mut two).await;
    two
}

#[test]
fn nodes_of_another_orchestrator_are_taken_over_and_kept() {
    runtime().block_on(async {
        let one = abandoned(&[("db", 1), ("web", 3)]).await;
        let before = one.site.all();
        let living = ids(&one.site);
        let mut two = successor(&one, immortal()).await;
        let refused = two.try_apply("same", &[("db", 1), ("web", 3)]).await;
        assert_eq!(refused.unwrap_err().reason(), Reason::ClusterExists);

        let wanted = [("db", 1), ("web", 3)];
        let planned = two.adopt("same", &wanted, true).await.unwrap();
        let plan = planned.plan.unwrap();
        assert_eq!(count(&plan, pb::ActionKind::Adopt), 4, "{plan:#?}");
        assert_eq!(count(&plan, pb::ActionKind::Provision), 0);
        assert_eq!(count(&plan, pb::ActionKind::Deprovision), 0);
        assert!(two.cluster("same").await.is_none(), "it was only asked");

        two.adopt("same", &wanted, false).await.unwrap();
        two.check().await;
        assert_eq!(ids(&one.site), living, "all are kept, none is made");
        let after = two.site.all();
        for node in &before {
            let now = after.iter().find(|n| n.node_id == node.node_id).unwrap();
            assert_eq!((&now.name, &now.group), (&node.name, &node.group));
            let owner = |node: &drover_proto::platform::v1::Node| {
                node.slot.clone().unwrap_or_default().owner
            };
            assert_ne!(owner(now), owner(node));
        }
        assert!(two.condition("same", "ForeignNodes").await.is_none());
        // They behave like any other nodes.
        two.scale("same", "web", 1).await;
        two.check().await;
        two.delete("same").await;
        two.until("all is gone", async |two| two.site.all().is_empty())
            .await;
    });
}

#[test]
fn what_is_more_than_wanted_is_said_before_it_goes() {
    runtime().block_on(async {
        let one = abandoned(&[("web", 5)]).await;
        let mut two = successor(&one, immortal()).await;
        let planned = two.adopt("same", &[("web", 3)], true).await.unwrap();
        let plan = planned.plan.unwrap();
        assert_eq!(count(&plan, pb::ActionKind::Adopt), 5, "{plan:#?}");
        assert_eq!(count(&plan, pb::ActionKind::Deprovision), 2, "{plan:#?}");
        let said = planned.warnings.join("; ");
        assert!(said.contains("2 nodes more than wanted"), "{said}");
        let before = ids(&one.site);
        two.adopt("same", &[("web", 3)], false).await.unwrap();
        two.check().await;
        assert!(ids(&one.site).is_subset(&before), "none was made");
    });
}

#[test]
fn an_adoption_that_dies_anywhere_is_continued() {
    let run = |at: usize| {
        let crash = Crash::at([at]);
        let told = crash.clone();
        runtime().block_on(async move {
            let one = abandoned(&[("web", 3)]).await;
            let before = ids(&one.site);
            let mut two = successor(&one, crash).await;
            two.adopt("same", &[("web", 4)], false).await.unwrap();
            two.check().await;
            let after = ids(&one.site);
            assert!(before.is_subset(&after), "hit {at}: {before:?} {after:?}");
            assert_eq!(after.len(), 4, "hit {at}");
        });
        let died = told.died();
        println!("hit {at}: {died:?}");
        died.into_iter().next()
    };
    let points: Vec<_> = (1..).map_while(run).map(|(_, point)| point).collect();
    for point in ["BeforeAdopt", "AfterAdopt", "AfterCommit"] {
        let reached = points.iter().any(|p| format!("{p:?}") == point);
        assert!(reached, "{point} is among {points:?}");
    }
}

#[test]
fn nodes_that_a_restored_store_does_not_know_are_taken_in_and_counted_above() {
    runtime().block_on(async {
        let later = async |world: &mut World| world.scale("one", "web", 5).await;
        let (mut world, living) = restored(later, immortal()).await;
        world
            .until("it is behind", async |world| {
                world.condition("one", "StoreBehind").await.is_some()
            })
            .await;
        let said = world.condition("one", "StoreBehind").await.unwrap();
        assert!(said.contains("drover apply --adopt"), "{said}");
        world.pass(LONG).await;
        assert_eq!(ids(&world.site), living, "all of them live, none is made");

        let plan = world.adopt("one", &[("web", 5)], true).await.unwrap();
        let plan = plan.plan.unwrap();
        assert_eq!(count(&plan, pb::ActionKind::Adopt), 2, "{plan:#?}");
        assert_eq!(count(&plan, pb::ActionKind::Deprovision), 0, "{plan:#?}");
        world.adopt("one", &[("web", 5)], false).await.unwrap();
        world.check().await;
        assert_eq!(ids(&world.site), living);
        assert!(world.condition("one", "StoreBehind").await.is_none());
        // New sequence numbers continue above those of the lost store.
        let most = world.site.all().iter().map(|n| n.sequence).max().unwrap();
        world.scale("one", "web", 6).await;
        world.check().await;
        let newest = world.site.all().iter().map(|n| n.sequence).max().unwrap();
        assert!(newest > most, "{newest} after {most}");
        assert!(living.is_subset(&ids(&world.site)));
    });
}

#[test]
fn a_restored_store_that_dies_while_it_takes_nodes_in_loses_none() {
    let run = |at: usize| {
        let crash = Crash::at([at]);
        let told = crash.clone();
        runtime().block_on(async move {
            let later = async |world: &mut World| {
                // A node that is recorded in the backup has been replaced by another one.
                world.kill(
                    "one",
                    1,
                    drover_platform_cloud::drivers::simulated::Death::Failed,
                );
                world.converge().await;
                world.scale("one", "web", 5).await;
            };
            let (mut world, living) = restored(later, crash).await;
            visible(&mut world).await;
            world.adopt("one", &[("web", 5)], false).await.unwrap();
            world.check().await;
            assert_eq!(ids(&world.site), living, "hit {at}");
        });
        told.died().into_iter().next()
    };
    let points = (1..).map_while(run).count();
    assert!(points >= 6, "{points} points only");
}

#[test]
fn a_group_that_an_older_spec_lacks_is_not_deleted_by_adopting() {
    runtime().block_on(async {
        let later = async |world: &mut World| world.apply("one", &[("web", 3), ("db", 2)]).await;
        let (mut world, living) = restored(later, immortal()).await;
        world
            .until("it is behind", async |world| {
                world.condition("one", "StoreBehind").await.is_some()
            })
            .await;
        let refused = world.adopt("one", &[("web", 3)], false).await.unwrap_err();
        assert_eq!(refused.reason(), Reason::GroupHasNodes, "{refused}");
        let wanted = [("web", 3), ("db", 2)];
        world.adopt("one", &wanted, false).await.unwrap();
        world.check().await;
        assert_eq!(ids(&world.site), living);
    });
}

#[test]
fn a_cluster_that_a_restored_store_never_knew_is_taken_over() {
    runtime().block_on(async {
        let later = async |world: &mut World| world.apply("two", &[("db", 2)]).await;
        let (mut world, living) = restored(later, immortal()).await;
        world
            .until("it is discovered", async |world| {
                let request = pb::ListDiscoveredClustersRequest::default();
                let client = world.client();
                let list = client
                    .list_discovered_clusters(request, Duration::from_secs(10))
                    .await;
                let clusters = list.unwrap().clusters;
                clusters
                    .iter()
                    .any(|one| (one.cluster_id.as_str(), one.node_count) == ("two", 2))
            })
            .await;
        world
            .wanted
            .insert("one".to_owned(), [("web".to_owned(), 3)].into());
        world.adopt("two", &[("db", 2)], false).await.unwrap();
        world.check().await;
        assert_eq!(ids(&world.site), living);
        let request = pb::ListDiscoveredClustersRequest::default();
        let list = world
            .client()
            .list_discovered_clusters(request, Duration::from_secs(10))
            .await;
        assert!(list.unwrap().clusters.is_empty(), "it has a record now");
    });
}

/// An orchestrator with a cluster `same`, and another orchestrator on the same platform.
pub(crate) async fn two_of_a_name() -> (World, World) {
    let mut one = World::new(settings(), immortal()).await;
    one.apply("same", &[("web", 2)]).await;
    one.converge().await;
    let two = World::over(Disk::new(), one.sites.clone(), one.site.clone(), immortal()).await;
    (one, two)
}

/// Waits until the second orchestrator reports the nodes of the first as foreign.
pub(crate) async fn named_foreign(two: &mut World) {
    two.until("the foreign nodes are named", async |two| {
        two.condition("same", "ForeignNodes").await.is_some()
    })
    .await;
}

#[test]
fn foreign_nodes_stop_holding_a_cluster_back_when_they_are_gone() {
    runtime().block_on(async {
        let (mut one, mut two) = two_of_a_name().await;
        // The apply precedes the first contact with the platform, so the foreign nodes are only found later.
        one.site.stop();
        two.restart().await;
        two.apply("same", &[("web", 1)]).await;
        one.site.start();
        named_foreign(&mut two).await;
        let said = two.condition("same", "ForeignNodes").await.unwrap();
        assert!(said.contains("drover apply --adopt"), "{said}");
        one.delete("same").await;
        one.until("they are gone", async |one| {
            one.cluster("same").await.is_none()
        })
        .await;
        two.check().await;
        assert!(two.condition("same", "ForeignNodes").await.is_none());
    });
}

#[test]
fn orphans_are_taken_in_where_the_cluster_wants_that() {
    runtime().block_on(async {
        let later = async |world: &mut World| world.scale("one", "web", 4).await;
        let (mut world, living) = restored(later, immortal()).await;
        world
            .until("it is behind", async |world| {
                world.condition("one", "StoreBehind").await.is_some()
            })
            .await;
        world
            .try_apply_with("one", &[("web", 4)], &|spec| {
                spec.orphan_policy = pb::OrphanPolicy::Adopt.into();
            })
            .await
            .unwrap();
        world.pass(LONG).await;
        assert_eq!(ids(&world.site), living, "held until a person confirms");
        assert!(world.condition("one", "StoreBehind").await.is_some());
        world.orchestrator.take().unwrap().kill().await;
        world.disk.bury().await;
        let store = Store::open(world.disk.clone()).await.unwrap();
        store.confirm_restore().await.unwrap();
        store.close().await.unwrap();
        world.restart().await;
        world.check().await;
        let after = ids(&world.site);
        assert_eq!(after.len(), 4);
        assert!(
            living.intersection(&after).count() >= 3,
            "what the copy knew is there: {living:?} {after:?}"
        );
    });
}

#[test]
fn a_backend_that_was_replaced_is_given_up_and_the_new_one_is_used() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world.apply("one", &[("web", 3)]).await;
        world.converge().await;
        let (old, other) = (world.site.clone(), Site::new(settings()));
        let before = ids(&old);
        old.stop();
        world.sites.put("http://sim", &other);
        world
            .until("it is refused", async |world| {
                world.platform("sim").await.status.unwrap().phase() == pb::PlatformPhase::Refused
            })
            .await;
        let said = world.platform("sim").await.status.unwrap().message;
        assert!(said.contains("drover rebind sim"), "{said}");
        assert!(said.contains("drover abandon"), "{said}");
        let uid = said.split_once("than before (").unwrap().1;
        let uid = uid.split_once(" instead").unwrap().0.to_owned();
        let request = pb::AbandonPlatformRequest {
            cluster: "one".to_owned(),
            platform: "sim".to_owned(),
            platform_uid: None,
            delete_nodes: false,
        };
        let wait = Duration::from_secs(10);
        let early = world
            .call(async |client| client.abandon_platform(request.clone(), wait).await)
            .await;
        assert_eq!(early.unwrap_err().reason(), Reason::PlatformReachable);
        world.pass(Duration::from_secs(600)).await;
        let given = world
            .call(async |client| client.abandon_platform(request.clone(), wait).await)
            .await
            .unwrap();
        assert_eq!(given.nodes.len(), 3);
        world.rebind("sim", &uid).await;
        world.site = other;
        world.check().await;
        assert_eq!(ids(&old), before, "what was given up is left alone");
    });
}

#[test]
fn what_an_empty_backend_that_is_bound_again_lacks_is_replaced_once_the_loss_is_confirmed() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world.apply("one", &[("web", 6)]).await;
        world.converge().await;
        let other = Site::new(settings());
        world.site.stop();
        world.sites.put("http://sim", &other);
        world
            .until("it is refused", async |world| {
                world.platform("sim").await.status.unwrap().phase() == pb::PlatformPhase::Refused
            })
            .await;
        let said = world.platform("sim").await.status.unwrap().message;
        let uid = said.split_once("than before (").unwrap().1;
        let uid = uid.split_once(" instead").unwrap().0.to_owned();
        world.rebind("sim", &uid).await;
        world
            .until("the loss is noticed", async |world| {
                world.platform("sim").await.status.unwrap().vanished_count == 6
            })
            .await;
        world.pass(LONG).await;
        assert!(other.all().is_empty(), "nothing is made before that");
        let request = pb::ConfirmNodeLossRequest {
            platform: "sim".to_owned(),
            vanished_count: 6,
        };
        let wait = Duration::from_secs(10);
        world
            .call(async |client| client.confirm_node_loss(request.clone(), wait).await)
            .await
            .unwrap();
        world.site = other;
        world.check().await;
        assert_eq!(world.site.all().len(), 6);
    });
}

#[test]
fn a_backend_with_another_uid_is_unknown_until_it_is_bound_again() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world.apply("one", &[("web", 3)]).await;
        world.converge().await;
        let before = ids(&world.site);
        let old = world.platform("sim").await.status.unwrap().uid;
        world.site.backend.set_uid("the-new-one");
        world.site.stop();
        world.site.start();
        world
            .until("it is refused", async |world| {
                world.platform("sim").await.status.unwrap().phase() == pb::PlatformPhase::Refused
            })
            .await;
        world.pass(LONG).await;
        assert_eq!(ids(&world.site), before);
        world.rebind("sim", "the-new-one").await;
        world.scale("one", "web", 4).await;
        world.check().await;
        assert!(before.is_subset(&ids(&world.site)), "all are kept");
        for node in world.records("one").await {
            assert_eq!(node.platform_uid, "the-new-one");
        }
        let used = world
            .cluster("one")
            .await
            .unwrap()
            .status
            .unwrap()
            .platforms;
        assert!(used.iter().all(|one| one.platform_uid != old), "{used:?}");
        world.restart().await;
        world.check().await;
        world.delete("one").await;
        world
            .until("all is gone", async |world| world.site.all().is_empty())
            .await;
    });
}

/// A node that becomes visible just when its cluster is being confirmed absent on all platforms.
#[test]
fn what_shows_up_in_the_moment_in_which_a_cluster_ends_is_removed_too() {
    for after in (0..24).map(|nth| Duration::from_millis(nth * 100)) {
        runtime().block_on(async {
            let mut world = World::new(settings(), immortal()).await;
            world.apply("one", &[("web", 0)]).await;
            world.converge().await;
            // Nodes created from now on are not shown, and are considered lost once complete reads lack them.
            world.site.backend.freeze_visibility(true);
            world.scale("one", "web", 1).await;
            world
                .until("it is given up", async |world| {
                    world.condition("one", "Failed").await.is_some()
                })
                .await;
            let made = ids(&world.site);
            assert!(!made.is_empty());
            let slow = Duration::from_millis(500);
            world.disk.delay(slow, slow);
            world.delete("one").await;
            world.pass(after).await;
            world.site.backend.freeze_visibility(false);
            world
                .until("the cluster is gone", async |world| {
                    world.cluster("one").await.is_none()
                })
                .await;
            world.disk.delay(Duration::ZERO, Duration::ZERO);
            world
                .until(
                    &format!("{made:?} go, shown after {after:?}"),
                    async |world| world.site.all().is_empty(),
                )
                .await;
        });
    }
}
