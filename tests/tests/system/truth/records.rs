//! Orchestrators with incomplete knowledge: another one, one with an empty store, one with an older backup.

use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::Death;
use drover_proto::orchestrator::v1 as pb;

use crate::truth::{
    all, ids,
    sim::{Disk, LONG, World, immortal, restored::restored, runtime, settings},
};

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

        // The apply precedes the first contact with the platform, so the foreign nodes are only found later.
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

#[test]
fn a_store_restored_from_an_older_backup_deletes_no_living_node() {
    runtime().block_on(async {
        let (mut world, living) = restored(
            async |world| {
                world.scale("one", "web", 5).await;
                world.apply("two", &[("web", 3)]).await;
            },
            immortal(),
        )
        .await;
        world
            .until("it is said that the store is behind", async |world| {
                world.condition("one", "StoreBehind").await.is_some()
            })
            .await;
        world.pass(LONG).await;
        assert_eq!(all(&world), living, "all of them live, none is made");
        // Its orphans are still held after a restart of the process.
        world.restart().await;
        world.pass(LONG).await;
        assert_eq!(all(&world), living);
    });
}

#[test]
fn a_store_restored_from_before_a_replacement_deletes_no_living_node() {
    runtime().block_on(async {
        let (mut world, living) = restored(
            async |world| {
                world.kill("one", 1, Death::Failed);
                world.converge().await;
            },
            immortal(),
        )
        .await;
        world.pass(LONG).await;
        let after = all(&world);
        assert!(living.is_subset(&after), "{living:?} lived, {after:?} live");
    });
}
