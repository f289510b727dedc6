//! Rolling updates on a simulated platform: validation, progress, undo.

use std::collections::BTreeSet;

use drover_core::Reason;
use drover_proto::orchestrator::v1::{self as pb, plan_cluster_request::Subject};

use crate::api::support::{World, changed, document, refused, until};

fn at_class(size: u32, class: &str, backup: &str) -> pb::Cluster {
    let class = class.to_owned();
    let attributes = prost_types::Struct {
        fields: [(
            "backup".to_owned(),
            prost_types::Value {
                kind: Some(prost_types::value::Kind::StringValue(backup.to_owned())),
            },
        )]
        .into(),
    };
    changed(document("orders", &[("db", size)]), move |spec| {
        spec.groups[0].node_class = Some(class);
        spec.groups[0].attributes = Some(attributes);
    })
}

fn ids(nodes: &[pb::Node]) -> BTreeSet<String> {
    nodes.iter().map(|node| node.id.clone()).collect()
}

async fn plan(world: &World, subject: Subject) -> pb::PlanClusterResponse {
    let request = pb::PlanClusterRequest {
        subject: Some(subject),
        min_revision: None,
    };
    let answer = world.clusters().plan_cluster(request).await;
    answer.unwrap().into_inner()
}

async fn revisions(world: &World) -> Vec<pb::ClusterRevision> {
    let request = pb::ListRevisionsRequest {
        cluster: "orders".into(),
        min_revision: None,
    };
    let answer = world.clusters().list_revisions(request).await;
    answer.unwrap().into_inner().revisions
}

fn undo_to(generation: Option<u64>) -> pb::UndoClusterRequest {
    pb::UndoClusterRequest {
        name: "orders".into(),
        to_generation: generation,
        ..Default::default()
    }
}

#[tokio::test]
async fn a_change_of_what_makes_nodes_replaces_them_and_says_how_far_it_is() {
    let world = World::new().await;
    world.apply(at_class(3, "small", "daily")).await.unwrap();
    world.ready("orders").await;
    let before = world.nodes("orders").await;

    let answer = world.apply(at_class(3, "small", "weekly")).await.unwrap();
    let [renewal] = &answer.plan.as_ref().unwrap().renewals[..] else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (renewal.size, renewal.max_surge, renewal.max_unavailable),
        (3, 1, 0)
    );
    assert_eq!(renewal.node_count, 3);
    for node in &renewal.nodes {
        assert_eq!(node.causes, ["attributes.backup"], "{node:?}");
        assert_eq!(node.reason, "Outdated");
    }
    assert!(renewal.longest_duration.unwrap().seconds > 0);

    let cluster = world.ready("orders").await;
    let after = world.nodes("orders").await;
    assert!(ids(&before).is_disjoint(&ids(&after)), "all are new");
    assert!(after.iter().all(|node| !node.outdated));
    let group = &cluster.status.as_ref().unwrap().groups[0];
    assert_eq!(
        (group.updated, group.updated_ready, group.renewing),
        (3, 3, 0)
    );
    assert_eq!(group.update_start_time, None);
    assert_eq!(world.site.backend().len(), 3);

    let events = world.events("orders").await;
    let said = |reason: &str| events.iter().filter(|event| event.reason == reason).count();
    assert_eq!((said("UpdateStarted"), said("UpdateFinished")), (1, 1));
    let gone = events
        .iter()
        .filter(|event| event.reason == "NodeDeprovisioning");
    for event in gone {
        assert!(event.message.contains("Outdated"), "{event:?}");
    }
    world.stop().await;
}

#[tokio::test]
async fn earlier_specs_are_kept_and_the_way_back_keeps_sizes() {
    let world = World::new().await;
    world.apply(at_class(1, "small", "a")).await.unwrap();
    world.apply(at_class(1, "small", "b")).await.unwrap();
    world.apply(at_class(2, "small", "b")).await.unwrap();
    world.apply(at_class(2, "large", "b")).await.unwrap();
    let kept = revisions(&world).await;
    let numbers: Vec<u64> = kept.iter().map(|revision| revision.generation).collect();
    assert_eq!(numbers, [4, 3, 1], "a size makes no revision");
    assert_eq!(kept[0].changes, ["db: nodeClass"]);
    assert_eq!(kept[1].changes, ["db: attributes.backup"]);

    let preview = plan(&world, Subject::Undo(undo_to(Some(1)))).await;
    let group = &preview
        .cluster
        .as_ref()
        .unwrap()
        .spec
        .as_ref()
        .unwrap()
        .groups[0];
    assert_eq!(
        (group.size, group.node_class.as_deref()),
        (Some(2), Some("small"))
    );
    assert_eq!(revisions(&world).await.len(), 3, "nothing was changed");

    let mut clusters = world.clusters();
    let back = clusters
        .undo_cluster(undo_to(None))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(back.from_generation, 3);
    let cluster = back.cluster.unwrap();
    assert_eq!(cluster.generation, 5);
    let group = &cluster.spec.as_ref().unwrap().groups[0];
    assert_eq!(
        (group.size, group.node_class.as_deref()),
        (Some(2), Some("small"))
    );
    refused(
        clusters.undo_cluster(undo_to(Some(77))).await,
        Reason::NotFound,
    );
    for at in 0..15 {
        world
            .apply(at_class(2, "small", &format!("c{at}")))
            .await
            .unwrap();
    }
    let kept = revisions(&world).await;
    assert_eq!(kept.len(), 11, "the present one and ten before it");
    assert_eq!(kept[0].generation, 20);
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    world.stop().await;
}

#[tokio::test]
async fn who_goes_back_before_a_group_was_added_names_it_to_delete_its_nodes() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    let both = document("orders", &[("db", 1), ("web", 2)]);
    world.apply(both).await.unwrap();
    world.ready("orders").await;

    let mut clusters = world.clusters();
    let status = refused(
        clusters.undo_cluster(undo_to(None)).await,
        Reason::GroupHasNodes,
    );
    assert!(status.message().contains("web"), "{status:?}");
    assert_eq!(world.nodes("orders").await.len(), 3);

    let named = pb::UndoClusterRequest {
        remove_groups: vec!["web".into()],
        ..undo_to(None)
    };
    let preview = plan(&world, Subject::Undo(named.clone())).await;
    let removed = preview.plan.unwrap().actions.into_iter();
    let removed = removed.filter(|action| action.kind() == pb::ActionKind::Deprovision);
    assert_eq!(removed.count(), 2);
    clusters.undo_cluster(named).await.unwrap();
    until("the group is gone", async || {
        let nodes = world.nodes("orders").await;
        (nodes.len() == 1 && nodes[0].group == "db").then_some(())
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn a_restart_replaces_all_that_is_there_and_nothing_that_comes_later() {
    let world = World::new().await;
    world
        .apply(document("orders", &[("db", 2), ("web", 1)]))
        .await
        .unwrap();
    world.ready("orders").await;
    let before = world.nodes("orders").await;
    let restart = |group: &str| pb::RestartGroupRequest {
        cluster: "orders".into(),
        group: Some(group.into()),
    };
    let preview = plan(&world, Subject::Restart(restart("db"))).await;
    let renewals = preview.plan.unwrap().renewals;
    assert_eq!((renewals.len(), renewals[0].node_count), (1, 2));
    assert!(renewals[0].nodes.iter().all(|node| node.reason == "User"));
    assert_eq!(ids(&world.nodes("orders").await), ids(&before));

    let mut clusters = world.clusters();
    let answer = clusters
        .restart_group(restart("db"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.node_count, 2);
    let status = answer.cluster.unwrap().status.unwrap();
    assert_ne!(
        status.phase(),
        pb::ClusterPhase::Ready,
        "nothing is replaced yet"
    );
    let db = status.groups.iter().find(|group| group.path == "db");
    for conditions in [&status.conditions, &db.unwrap().conditions] {
        let ready = conditions.iter().find(|one| one.r#type == "Ready").unwrap();
        assert_eq!(
            (ready.status, ready.reason.as_str()),
            (Some(false), "Update")
        );
    }
    let old: BTreeSet<String> = before
        .iter()
        .filter(|node| node.group == "db")
        .map(|node| node.id.clone())
        .collect();
    until("the old ones are gone and all is ready", async || {
        let now = world.nodes("orders").await;
        let status = world.get("orders").await.ok()?.status?;
        let ready = status.groups.iter().all(|group| {
            group.ready == group.size && group.present == group.size && group.renewing == 0
        });
        (ready && ids(&now).is_disjoint(&old)).then_some(())
    })
    .await;
    let now = world.nodes("orders").await;
    let web = |nodes: &[pb::Node]| -> Vec<String> {
        let web = nodes.iter().filter(|node| node.group == "web");
        web.map(|node| node.id.clone()).collect()
    };
    assert_eq!(web(&now), web(&before), "the other group is as it was");
    assert!(now.iter().all(|node| !node.marked));
    let status = refused(
        clusters.restart_group(restart("nope")).await,
        Reason::NotFound,
    );
    let error = drover_convert::error::from_status(&status);
    assert_eq!(error.resource(), Some(("group", "orders/nope")));
    world.stop().await;
}

#[tokio::test]
async fn a_plan_of_a_scale_and_of_a_deletion_changes_nothing() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 3)])).await.unwrap();
    world.ready("orders").await;
    let scale = pb::ScaleGroupRequest {
        cluster: "orders".into(),
        group: "db".into(),
        size: Some(1),
        ..Default::default()
    };
    let answer = plan(&world, Subject::Scale(scale)).await;
    let removed = |plan: &pb::Plan| {
        let actions = plan.actions.iter();
        actions
            .filter(|action| action.kind() == pb::ActionKind::Deprovision)
            .count()
    };
    assert_eq!(removed(&answer.plan.unwrap()), 2);
    let size = answer.cluster.unwrap().spec.unwrap().groups[0].size;
    assert_eq!(size, Some(1));
    let delete = pb::DeleteClusterRequest {
        name: "orders".into(),
        expected_generation: None,
    };
    let answer = plan(&world, Subject::Delete(delete)).await;
    assert_eq!(removed(&answer.plan.unwrap()), 3);
    assert!(answer.cluster.unwrap().delete_time.is_some());
    let now = world.get("orders").await.unwrap();
    assert_eq!((now.generation, now.delete_time), (1, None));
    assert_eq!(world.site.backend().len(), 3);
    world.stop().await;
}

#[tokio::test]
async fn on_delete_keeps_outdated_nodes_until_they_go_for_another_reason() {
    let world = World::new().await;
    let on_delete = |cluster| {
        changed(cluster, |spec| {
            spec.update = Some(pb::UpdatePolicy {
                strategy: pb::UpdateStrategy::OnDelete.into(),
                ..Default::default()
            });
        })
    };
    world
        .apply(on_delete(at_class(2, "small", "a")))
        .await
        .unwrap();
    world.ready("orders").await;
    let before = ids(&world.nodes("orders").await);
    world
        .apply(on_delete(at_class(2, "small", "b")))
        .await
        .unwrap();
    world.ready("orders").await;
    assert_eq!(ids(&world.nodes("orders").await), before);
    let group = &world.get("orders").await.unwrap().status.unwrap().groups[0];
    assert_eq!((group.updated, group.renewing), (0, 0));
    // With a different spec, the replacement proceeds on its own.
    world.apply(at_class(2, "small", "b")).await.unwrap();
    world.ready("orders").await;
    assert!(ids(&world.nodes("orders").await).is_disjoint(&before));
    world.stop().await;
}
