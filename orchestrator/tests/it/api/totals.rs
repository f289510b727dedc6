//! Plans tell all steps, not only those of now, and what becomes of all data.

use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::{
    orchestrator::v1::{self as pb, PlanTotals, StorageRetention, plan_cluster_request::Subject},
    platform::v1::ManagementPolicy,
};

use crate::api::support::{World, changed, document};

/// A group whose nodes come one after the other and lose their data when the cluster is deleted, and one that needs it.
fn shop() -> pb::Cluster {
    changed(document("shop", &[("db", 3), ("app", 2)]), |spec| {
        let [db, app] = &mut spec.groups[..] else {
            panic!("{spec:?}");
        };
        db.management_policy = ManagementPolicy::OrderedReady.into();
        db.storage = Some(pb::StorageSpec {
            size: "1Gi".into(),
            when_scaled: StorageRetention::Retain.into(),
            when_deleted: StorageRetention::Delete.into(),
            ..Default::default()
        });
        app.depends_on = vec!["db".into()];
    })
}

async fn planned(world: &World, subject: Subject) -> pb::Plan {
    let request = pb::PlanClusterRequest {
        subject: Some(subject),
        ..Default::default()
    };
    let answer = world.clusters().plan_cluster(request).await.unwrap();
    answer.into_inner().plan.unwrap()
}

#[tokio::test]
async fn a_plan_tells_all_steps_and_what_becomes_of_all_data() {
    let world = World::new().await;
    let created = planned(&world, Subject::Cluster(shop())).await;
    let totals = PlanTotals {
        create_count: 5,
        create_now_count: 1,
        ..Default::default()
    };
    assert_eq!(created.totals, Some(totals));
    let later: Vec<(&str, u32)> = (created.outlooks.iter())
        .map(|outlook| (&*outlook.group, outlook.create_count))
        .collect();
    assert_eq!(later, [("db", 2), ("app", 2)]);

    world.apply(shop()).await.unwrap();
    world.ready("shop").await;
    let scale = pb::ScaleGroupRequest {
        cluster: "shop".into(),
        group: "db".into(),
        size: Some(1),
        ..Default::default()
    };
    let fewer = planned(&world, Subject::Scale(scale)).await;
    let totals = PlanTotals {
        delete_count: 2,
        delete_now_count: 1,
        storage_kept_count: 2,
        ..Default::default()
    };
    assert_eq!(fewer.totals, Some(totals));
    assert_eq!(fewer.outlooks[0].removals[0].node_name, "db-1");

    let delete = pb::DeleteClusterRequest {
        name: "shop".into(),
        ..Default::default()
    };
    let gone = planned(&world, Subject::Delete(delete)).await;
    let totals = PlanTotals {
        delete_count: 5,
        delete_now_count: 2,
        storage_deleted_count: 3,
        ..Default::default()
    };
    assert_eq!(gone.totals, Some(totals));
    let later = &gone.outlooks[0];
    assert_eq!((&*later.group, later.removal_count), ("db", 3));
    assert!(
        (later.removals.iter()).all(|removal| removal.storage() == StorageRetention::Delete),
        "{later:?}"
    );
    world.stop().await;
}

/// Only `db`, of this size, with this fate of the data of nodes that are scaled away.
fn databases(size: u32, when_scaled: StorageRetention) -> pb::Cluster {
    changed(shop(), |spec| {
        spec.groups.truncate(1);
        spec.groups[0].size = Some(size);
        spec.store = Some(pb::StoreSpec {
            software: "redis".into(),
            version: "7".into(),
        });
        let storage = spec.groups[0].storage.as_mut().unwrap();
        storage.when_scaled = when_scaled.into();
    })
}

#[tokio::test]
async fn a_node_that_goes_and_would_have_been_replaced_is_counted_once() {
    let world = World::new().await;
    let before = databases(5, StorageRetention::Delete);
    world.apply(before).await.unwrap();
    world.ready("shop").await;
    let after = changed(databases(3, StorageRetention::Delete), |spec| {
        spec.store.as_mut().unwrap().version = "8".into();
    });
    let totals = planned(&world, Subject::Cluster(after)).await.totals;
    let totals = totals.unwrap();
    assert!(totals.delete_count > 0, "{totals:?}");
    assert_eq!(totals.delete_count + totals.replace_count, 5);
    let stored = totals.storage_deleted_count + totals.storage_kept_count;
    assert_eq!(stored, 5, "{totals:?}");

    let pause = pb::PauseClusterRequest {
        name: "shop".into(),
        ..Default::default()
    };
    world.clusters().pause_cluster(pause).await.unwrap();
    let replace = pb::ReplaceNodeRequest {
        cluster: "shop".into(),
        id: "db-1".into(),
    };
    world.clusters().replace_node(replace).await.unwrap();
    let delete = pb::DeleteClusterRequest {
        name: "shop".into(),
        ..Default::default()
    };
    let gone = planned(&world, Subject::Delete(delete)).await;
    let totals = gone.totals.unwrap();
    assert_eq!(
        (totals.delete_count, totals.replace_count),
        (5, 0),
        "{gone:?}"
    );
    world.stop().await;
}

#[tokio::test]
async fn what_a_change_deletes_is_told_while_its_platform_is_away() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    world.register("sim", "http://sim").await.unwrap();
    let before = databases(3, StorageRetention::Delete);
    world.apply(before).await.unwrap();
    world.ready("shop").await;
    world.sites.remove("http://sim");
    world.restart(directory.path()).await;
    let scale = pb::ScaleGroupRequest {
        cluster: "shop".into(),
        group: "db".into(),
        size: Some(1),
        ..Default::default()
    };
    let fewer = planned(&world, Subject::Scale(scale)).await;
    let totals = PlanTotals {
        delete_count: 2,
        storage_deleted_count: 2,
        ..Default::default()
    };
    assert_eq!(fewer.totals, Some(totals), "{fewer:?}");
    assert_eq!(fewer.outlooks[0].removal_count, 2);
    world.stop().await;
}
