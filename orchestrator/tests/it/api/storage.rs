//! Storage from the document to the backend: plans, events and retention.

use drover_core::Reason;
use drover_proto::orchestrator::v1::{self as pb, StorageRetention, plan_cluster_request::Subject};

use crate::api::support::{World, changed, document, invalid, refused, until};

fn stored(name: &str, size: u32, storage: pb::StorageSpec) -> pb::Cluster {
    changed(document(name, &[("db", size)]), |spec| {
        spec.groups[0].storage = Some(storage);
    })
}

async fn plan(world: &World, subject: Subject) -> pb::Plan {
    let request = pb::PlanClusterRequest {
        subject: Some(subject),
        ..Default::default()
    };
    let answer = world.clusters().plan_cluster(request).await.unwrap();
    answer.into_inner().plan.unwrap()
}

/// What happens to the storage of each node that a plan removes.
fn fates(plan: &pb::Plan) -> Vec<(String, StorageRetention)> {
    let removals = plan
        .actions
        .iter()
        .filter(|action| action.kind() == pb::ActionKind::Deprovision);
    let mut fates: Vec<_> = removals
        .map(|action| (action.node_name.clone().unwrap(), action.storage()))
        .collect();
    fates.sort_by(|a, b| a.0.cmp(&b.0));
    fates
}

fn scale(size: u32) -> pb::ScaleGroupRequest {
    pb::ScaleGroupRequest {
        cluster: "orders".into(),
        group: "db".into(),
        size: Some(size),
        ..Default::default()
    }
}

fn delete() -> Subject {
    Subject::Delete(pb::DeleteClusterRequest {
        name: "orders".into(),
        ..Default::default()
    })
}

async fn kept(world: &World) -> Vec<pb::KeptStorage> {
    let request = pb::ListStorageRequest::default();
    let answer = world.platforms().list_storage(request).await.unwrap();
    answer.into_inner().storage
}

#[tokio::test]
async fn plans_and_events_say_what_becomes_of_data() {
    let world = World::new().await;
    let storage = pb::StorageSpec {
        size: "5Gi".into(),
        when_scaled: StorageRetention::Delete.into(),
        ..Default::default()
    };
    world
        .apply(stored("orders", 3, storage.clone()))
        .await
        .unwrap();
    world.ready("orders").await;
    let fewer = plan(&world, Subject::Scale(scale(2))).await;
    assert_eq!(
        fates(&fewer),
        [("db-2".to_owned(), StorageRetention::Delete)]
    );
    let gone = fates(&plan(&world, delete()).await);
    assert_eq!(gone.len(), 3);
    assert!(
        gone.iter()
            .all(|(_, fate)| *fate == StorageRetention::Retain)
    );
    // An update hands the storage on, one node after the other.
    let newer = changed(stored("orders", 3, storage), |spec| {
        spec.groups[0].role = Some("other".into());
    });
    let answer = world
        .clusters()
        .apply_cluster(pb::ApplyClusterRequest {
            cluster: Some(newer),
            validate_only: true,
            ..Default::default()
        })
        .await
        .unwrap();
    let renewal = answer.into_inner().plan.unwrap().renewals.remove(0);
    assert_eq!((renewal.max_surge, renewal.max_unavailable), (0, 1));
    assert!(
        renewal
            .nodes
            .iter()
            .all(|node| node.storage() == StorageRetention::Retain)
    );

    world.clusters().scale_group(scale(2)).await.unwrap();
    let told = async || {
        let events = world.events("orders").await;
        events
            .into_iter()
            .find(|event| event.reason == "NodeDeprovisioning")
    };
    let event = until("the removal is told", told).await;
    assert!(event.message.ends_with("· data DELETED"), "{event:?}");
    until("db-2 is gone", async || {
        (world.nodes("orders").await.len() == 2).then_some(())
    })
    .await;
    assert_eq!(kept(&world).await, vec![], "it went with its node");
    world.stop().await;
}

#[tokio::test]
async fn kept_storage_grows_and_neither_shrinks_nor_changes_its_class() {
    let world = World::new().await;
    let storage = |size: &str, class: &str| pb::StorageSpec {
        size: size.into(),
        class: class.into(),
        ..Default::default()
    };
    let apply = async |storage: pb::StorageSpec| world.apply(stored("orders", 1, storage)).await;
    apply(storage("5Gi", "fast")).await.unwrap();
    world.ready("orders").await;
    for (wanted, field, way) in [
        (storage("4Gi", "fast"), "size", "leave it at 5Gi or more"),
        (storage("5Gi", "slow"), "class", "stays in class \"fast\""),
        (storage("5Gi", ""), "class", "stays in class \"fast\""),
    ] {
        let field = format!("spec.groups[0].storage.{field}");
        let status = invalid(apply(wanted).await, &field);
        assert!(status.message().contains(way), "{}", status.message());
    }
    let ids = async || -> Vec<String> {
        let nodes = world.nodes("orders").await;
        nodes.into_iter().map(|node| node.id).collect()
    };
    let before = ids().await;
    let tried = pb::ApplyClusterRequest {
        cluster: Some(stored("orders", 1, storage("6Gi", "fast"))),
        validate_only: true,
        ..Default::default()
    };
    let planned = world.clusters().apply_cluster(tried).await.unwrap();
    let totals = planned.into_inner().plan.unwrap().totals.unwrap();
    let expected = pb::PlanTotals {
        grow_count: 1,
        ..Default::default()
    };
    assert_eq!(totals, expected, "nothing is made, replaced or removed");
    apply(storage("6Gi", "fast")).await.unwrap();
    world.ready("orders").await;
    assert_eq!(ids().await, before, "it grows under its node");
    let status = invalid(
        apply(storage("5Gi", "fast")).await,
        "spec.groups[0].storage.size",
    );
    assert!(status.message().contains("leave it at 6Gi or more"));
    // On another platform it is not handed on.
    world.register("other", "http://other").await.unwrap();
    let elsewhere = changed(stored("orders", 1, storage("1Gi", "slow")), |spec| {
        spec.platforms[0].name = "other".into();
    });
    let request = pb::ApplyClusterRequest {
        cluster: Some(elsewhere),
        validate_only: true,
        ..Default::default()
    };
    world.clusters().apply_cluster(request).await.unwrap();
    // What is not handed on may be anything.
    let given_up = pb::StorageSpec {
        when_replaced: StorageRetention::Delete.into(),
        ..storage("1Gi", "slow")
    };
    apply(given_up).await.unwrap();
    world.stop().await;
}

#[tokio::test]
async fn what_a_deleted_cluster_keeps_is_nobodys_and_can_be_deleted() {
    let world = World::new().await;
    let document = || stored("orders", 2, pb::StorageSpec::default());
    world.apply(document()).await.unwrap();
    world.ready("orders").await;
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    let left = kept(&world).await;
    assert_eq!(left.len(), 2);
    assert!(left.iter().all(|one| one.claim() == pb::StorageClaim::None));

    // A new cluster of that name is another owner: there is a warning, and it gets storage of its own.
    let again = world.apply(document()).await.unwrap();
    assert!(
        again
            .warnings
            .iter()
            .any(|it| it.contains("an earlier cluster orders")),
        "{:?}",
        again.warnings
    );
    world.ready("orders").await;
    assert_eq!(kept(&world).await, left);

    let meant = |one: &pb::KeptStorage| {
        let storage = one.storage.clone().unwrap();
        pb::DeleteStorageRequest {
            platform: one.platform.clone(),
            id: storage.id,
            owner: storage.owner,
            cluster: storage.cluster_id,
            group: storage.group,
            ordinal: Some(storage.ordinal),
        }
    };
    let mut platforms = world.platforms();
    let other = pb::DeleteStorageRequest {
        ordinal: Some(7),
        ..meant(&left[0])
    };
    refused(
        platforms.delete_storage(other).await,
        Reason::NodeNotInCluster,
    );
    let nobody = pb::DeleteStorageRequest {
        cluster: String::new(),
        ..meant(&left[0])
    };
    invalid(platforms.delete_storage(nobody).await, "cluster");
    for one in &left {
        for _ in 0..2 {
            let answer = platforms.delete_storage(meant(one)).await.unwrap();
            assert!(answer.into_inner().gone);
        }
    }
    assert_eq!(kept(&world).await, vec![]);
    world.stop().await;
}
