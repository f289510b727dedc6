mod refusals;

use std::time::Duration;

use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::orchestrator::v1::{self as pb, ApplyOutcome, plan_cluster_request::Subject};

use crate::api::support::{World, changed, document, invalid, metadata, refused};

fn apply(cluster: pb::Cluster) -> pb::ApplyClusterRequest {
    pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_document_is_created_then_unchanged_then_configured() {
    let world = World::new().await;
    let created = world.apply(document("orders", &[("db", 2)])).await.unwrap();
    assert_eq!(created.outcome(), ApplyOutcome::Created);
    let cluster = created.cluster.unwrap();
    assert_eq!((cluster.generation, cluster.uid.len()), (1, 36));
    let plan = created.plan.unwrap();
    assert_eq!(plan.generation, 1);
    assert_eq!(
        plan.actions.iter().map(|a| a.count).sum::<u32>(),
        2,
        "{plan:?}"
    );
    assert!(created.revision > 0);

    let same = world.apply(document("orders", &[("db", 2)])).await.unwrap();
    assert_eq!(same.outcome(), ApplyOutcome::Unchanged);
    assert_eq!(same.cluster.unwrap().generation, 1);

    let mut labelled = document("orders", &[("db", 2)]);
    labelled.labels.insert("team".into(), "payments".into());
    let configured = world.apply(labelled).await.unwrap();
    assert_eq!(configured.outcome(), ApplyOutcome::Configured);
    assert_eq!(configured.cluster.unwrap().generation, 2);
    assert!(configured.revision > created.revision);
    world.ready("orders").await;
    world.stop().await;
}

#[tokio::test]
async fn a_size_that_is_not_said_is_one_at_first_and_later_as_it_is() {
    let world = World::new().await;
    let silent = || {
        changed(document("orders", &[("db", 0)]), |spec| {
            spec.groups[0].size = None;
        })
    };
    let size =
        |answer: pb::ApplyClusterResponse| answer.cluster.unwrap().spec.unwrap().groups[0].size;
    assert_eq!(size(world.apply(silent()).await.unwrap()), Some(1));
    let scale = pb::ScaleGroupRequest {
        cluster: "orders".into(),
        group: "db".into(),
        size: Some(3),
        ..Default::default()
    };
    world.clusters().scale_group(scale).await.unwrap();
    let again = world.apply(silent()).await.unwrap();
    assert_eq!(again.outcome(), ApplyOutcome::Unchanged);
    assert_eq!(size(again), Some(3));
    world.stop().await;
}

#[tokio::test]
async fn validate_only_plans_and_stores_nothing() {
    let world = World::new().await;
    let request = pb::ApplyClusterRequest {
        validate_only: true,
        ..apply(document("orders", &[("db", 3)]))
    };
    let answer = world
        .clusters()
        .apply_cluster(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.outcome(), ApplyOutcome::Created);
    let plan = answer.plan.unwrap();
    assert_eq!(
        (
            plan.generation,
            plan.actions.iter().map(|a| a.count).sum::<u32>()
        ),
        (0, 3)
    );
    refused(world.get("orders").await, Reason::NotFound);

    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    let answer = world
        .clusters()
        .apply_cluster(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.outcome(), ApplyOutcome::Configured);
    let (cluster, plan) = (answer.cluster.unwrap(), answer.plan.unwrap());
    assert_eq!(
        (cluster.generation, cluster.spec.unwrap().groups[0].size),
        (2, Some(3))
    );
    assert_eq!(
        (
            plan.generation,
            plan.actions.iter().map(|a| a.count).sum::<u32>()
        ),
        (1, 2),
        "{plan:?}"
    );
    let stored = world.get("orders").await.unwrap();
    assert_eq!(
        (stored.generation, stored.spec.unwrap().groups[0].size),
        (1, Some(1))
    );
    assert_eq!(world.nodes("orders").await.len(), 1);
    world.stop().await;
}

#[tokio::test]
async fn expected_generation_is_compared() {
    let world = World::new().await;
    let with = |generation, size| pb::ApplyClusterRequest {
        expected_generation: Some(generation),
        ..apply(document("orders", &[("db", size)]))
    };
    let mut clusters = world.clusters();
    let status = refused(
        clusters.apply_cluster(with(4, 1)).await,
        Reason::GenerationMismatch,
    );
    assert_eq!(metadata(&status, "generation").as_deref(), Some("0"));
    clusters.apply_cluster(with(0, 1)).await.unwrap();
    let status = refused(
        clusters.apply_cluster(with(0, 1)).await,
        Reason::GenerationMismatch,
    );
    assert_eq!(metadata(&status, "generation").as_deref(), Some("1"));
    clusters.apply_cluster(with(1, 2)).await.unwrap();
    refused(
        clusters.apply_cluster(with(1, 3)).await,
        Reason::GenerationMismatch,
    );
    world.stop().await;
}

#[tokio::test]
async fn of_many_who_create_the_same_cluster_at_once_one_does_and_all_succeed() {
    let world = World::new().await;
    for round in 0..10 {
        let name = format!("c{round}");
        let answers =
            futures::future::join_all((0..8).map(|_| world.apply(document(&name, &[("db", 1)]))))
                .await;
        let outcomes: Vec<ApplyOutcome> = answers
            .into_iter()
            .map(|answer| answer.unwrap().outcome())
            .collect();
        assert_eq!(
            outcomes
                .iter()
                .filter(|o| **o == ApplyOutcome::Created)
                .count(),
            1,
            "{outcomes:?}"
        );
        assert_eq!(
            outcomes
                .iter()
                .filter(|o| **o == ApplyOutcome::Unchanged)
                .count(),
            7,
            "{outcomes:?}"
        );
    }
    world.stop().await;
}

#[tokio::test]
async fn concurrent_changes_follow_each_other_and_the_generation_counts_them() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 0)])).await.unwrap();
    let answers = futures::future::join_all(
        (1..=6).map(|size| world.apply(document("orders", &[("db", size)]))),
    )
    .await;
    let mut generations: Vec<u64> = answers
        .into_iter()
        .map(|a| a.unwrap().cluster.unwrap().generation)
        .collect();
    generations.sort_unstable();
    assert_eq!(generations, [2, 3, 4, 5, 6, 7]);
    world.stop().await;
}

#[tokio::test]
async fn a_caller_who_goes_away_leaves_no_change_behind_that_only_the_store_knows() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 0)])).await.unwrap();
    for turn in 0..40_u32 {
        let mut clusters = world.clusters();
        let name = if turn % 2 == 0 {
            "orders".to_owned()
        } else {
            format!("new-{turn}")
        };
        let call = clusters.apply_cluster(apply(document(&name, &[("db", turn % 3)])));
        // Cancelled at an arbitrary point.
        let _ = tokio::time::timeout(Duration::from_micros(u64::from(turn) * 20), call).await;
        world
            .apply(document(&name, &[("db", turn % 3 + 1)]))
            .await
            .unwrap();
        let stored = world.get(&name).await.unwrap().spec.unwrap();
        assert_eq!(stored.groups[0].size, Some(turn % 3 + 1), "{name}");
    }
    world.ready("orders").await;
    world.stop().await;
}

#[tokio::test]
async fn a_cluster_that_is_being_deleted_cannot_be_applied() {
    let world = World::with(SimulatedSettings {
        stop_delay: Duration::from_secs(2),
        ..SimulatedSettings::default()
    })
    .await;
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    world.delete("orders").await.unwrap();
    refused(
        world.apply(document("orders", &[("db", 1)])).await,
        Reason::ClusterDeleting,
    );
    world.gone("orders").await;
    let again = world.apply(document("orders", &[("db", 1)])).await.unwrap();
    assert_eq!(again.outcome(), ApplyOutcome::Created);
    assert!(
        again.cluster.unwrap().generation > 2,
        "a generation is never given out again"
    );
    world.stop().await;
}

#[tokio::test]
async fn a_group_with_nodes_goes_only_if_it_is_named() {
    let world = World::new().await;
    world
        .apply(document("orders", &[("db", 1), ("web", 1), ("idle", 0)]))
        .await
        .unwrap();
    world.ready("orders").await;
    let status = refused(
        world
            .apply(document("orders", &[("db", 1), ("idle", 0)]))
            .await,
        Reason::GroupHasNodes,
    );
    assert_eq!(metadata(&status, "group").as_deref(), Some("web"));
    let mut request = apply(document("orders", &[("db", 1)]));
    request.remove_groups = vec!["web".into(), "db".into()];
    invalid(
        world.clusters().apply_cluster(request.clone()).await,
        "remove_groups[1]",
    );
    request.remove_groups.pop();
    let answer = world
        .clusters()
        .apply_cluster(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.outcome(), ApplyOutcome::Configured);
    crate::api::support::until("web is gone", async || {
        world
            .nodes("orders")
            .await
            .iter()
            .all(|node| node.group == "db")
            .then_some(())
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn protection_keeps_groups_sizes_and_the_cluster() {
    let world = World::new().await;
    let protected = |groups: &[(&str, u32)]| {
        changed(document("orders", groups), |spec| {
            spec.deletion_protection = Some(true);
        })
    };
    world.apply(protected(&[("db", 2)])).await.unwrap();
    world.ready("orders").await;
    let status = refused(
        world.apply(protected(&[("db", 1)])).await,
        Reason::Protected,
    );
    assert_eq!(metadata(&status, "group").as_deref(), Some("db"));
    let said = "this lowers size from 2 to 1; first apply what is stored";
    assert!(status.message().contains(said), "{status}");
    // Removing the protection in the same request would make it ineffective.
    refused(
        world.apply(document("orders", &[("db", 1)])).await,
        Reason::Protected,
    );
    refused(
        world.apply(protected(&[("other", 1)])).await,
        Reason::Protected,
    );
    refused(world.delete("orders").await, Reason::Protected);
    let scale = pb::ScaleGroupRequest {
        cluster: "orders".into(),
        group: "db".into(),
        size: Some(1),
        ..Default::default()
    };
    refused(
        world.clusters().scale_group(scale.clone()).await,
        Reason::Protected,
    );
    world
        .clusters()
        .scale_group(pb::ScaleGroupRequest {
            size: Some(3),
            ..scale
        })
        .await
        .unwrap();

    world.apply(document("orders", &[("db", 3)])).await.unwrap();
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    world.stop().await;
}

#[tokio::test]
async fn a_plan_is_made_for_what_is_stored_and_for_a_document() {
    let world = World::new().await;
    let plan = |subject| pb::PlanClusterRequest {
        subject: Some(subject),
        ..Default::default()
    };
    let mut clusters = world.clusters();
    invalid(
        clusters
            .plan_cluster(pb::PlanClusterRequest::default())
            .await,
        "subject",
    );
    refused(
        clusters
            .plan_cluster(plan(Subject::Name("orders".into())))
            .await,
        Reason::NotFound,
    );
    let document_plan = clusters
        .plan_cluster(plan(Subject::Cluster(document("orders", &[("db", 2)]))))
        .await
        .unwrap();
    assert_eq!(document_plan.into_inner().plan.unwrap().actions.len(), 1);
    refused(world.get("orders").await, Reason::NotFound);
    invalid(
        clusters
            .plan_cluster(plan(Subject::Cluster(document("", &[]))))
            .await,
        "cluster.name",
    );

    world.apply(document("orders", &[("db", 2)])).await.unwrap();
    world.ready("orders").await;
    let idle = clusters
        .plan_cluster(plan(Subject::Name("orders".into())))
        .await
        .unwrap()
        .into_inner();
    assert!(idle.plan.unwrap().actions.is_empty());
    world.stop().await;
}

#[tokio::test]
async fn adopting_nothing_changes_nothing_and_on_delete_outdates() {
    let world = World::new().await;
    let request = pb::ApplyClusterRequest {
        adopt: true,
        ..apply(document("orders", &[("db", 1)]))
    };
    let answer = world.clusters().apply_cluster(request.clone()).await;
    assert_eq!(
        answer.unwrap().into_inner().outcome(),
        pb::ApplyOutcome::Created
    );
    world.ready("orders").await;
    let again = world.clusters().apply_cluster(request).await.unwrap();
    assert_eq!(again.into_inner().outcome(), pb::ApplyOutcome::Unchanged);
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    let newer = {
        changed(document("orders", &[("db", 1)]), |spec| {
            spec.groups[0].node_class = Some("large".into());
            spec.update = Some(pb::UpdatePolicy {
                strategy: pb::UpdateStrategy::OnDelete.into(),
                ..Default::default()
            });
        })
    };
    world.apply(newer).await.unwrap();
    let nodes = world.nodes("orders").await;
    assert!(nodes[0].outdated, "{nodes:?}");
    invalid(
        world
            .clusters()
            .apply_cluster(pb::ApplyClusterRequest::default())
            .await,
        "cluster",
    );
    world.stop().await;
}

#[tokio::test]
async fn whatever_a_spec_says_within_its_limit_its_nodes_are_made() {
    let attributes = |bytes: usize| {
        let kind = prost_types::value::Kind::StringValue("x".repeat(bytes));
        let text = prost_types::Value { kind: Some(kind) };
        prost_types::Struct {
            fields: [("a".to_owned(), text)].into(),
        }
    };
    // Many requests at once, and a single one of maximum size.
    for (groups, bytes) in [(22, 8 * 1024), (1, 126 * 1024)] {
        let world = World::new().await;
        let names: Vec<String> = (0..groups).map(|at| format!("group-{at}")).collect();
        let groups: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let large = changed(document("orders", &groups), |spec| {
            spec.attributes = Some(attributes(bytes));
        });
        world.apply(large).await.unwrap();
        world.ready("orders").await;
        assert_eq!(world.nodes("orders").await.len(), groups.len());
        world.stop().await;
    }
}
