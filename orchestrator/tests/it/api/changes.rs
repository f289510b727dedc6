//! Changes other than a new document: delete, pause, resume, scale, replace, reconcile.

use std::time::Duration;

use drover_core::{Error, Reason};
use drover_platform_cloud::drivers::simulated::{Fault, Operation, SimulatedSettings};
use drover_proto::orchestrator::v1 as pb;
use drover_store::Store;

use crate::api::support::{World, document, invalid, refused, until};

fn scale(size: Option<u32>) -> pb::ScaleGroupRequest {
    pb::ScaleGroupRequest {
        cluster: "orders".into(),
        group: "db".into(),
        size,
        ..Default::default()
    }
}

fn reconcile(reset_back_off: bool) -> pb::ReconcileClusterRequest {
    pb::ReconcileClusterRequest {
        name: "orders".into(),
        reset_back_off,
    }
}

fn pause(reason: &str) -> pb::PauseClusterRequest {
    pb::PauseClusterRequest {
        name: "orders".into(),
        reason: reason.into(),
    }
}

fn resume() -> pb::ResumeClusterRequest {
    pb::ResumeClusterRequest {
        name: "orders".into(),
    }
}

#[tokio::test]
async fn calls_about_a_cluster_that_is_not_there_say_so() {
    let world = World::new().await;
    let mut clusters = world.clusters();
    let name = || "orders".to_owned();
    refused(world.get("orders").await, Reason::NotFound);
    refused(world.delete("orders").await, Reason::NotFound);
    refused(clusters.scale_group(scale(Some(1))).await, Reason::NotFound);
    refused(clusters.pause_cluster(pause("")).await, Reason::NotFound);
    refused(clusters.resume_cluster(resume()).await, Reason::NotFound);
    refused(
        clusters.reconcile_cluster(reconcile(false)).await,
        Reason::NotFound,
    );
    let replace = pb::ReplaceNodeRequest {
        cluster: name(),
        id: "db-0".into(),
    };
    refused(clusters.replace_node(replace).await, Reason::NotFound);
    let abandon = pb::AbandonPlatformRequest {
        cluster: name(),
        platform: "sim".into(),
        platform_uid: None,
        delete_nodes: false,
    };
    refused(clusters.abandon_platform(abandon).await, Reason::NotFound);
    let get = pb::GetNodeRequest {
        cluster: name(),
        id: "db-0".into(),
        ..Default::default()
    };
    refused(clusters.get_node(get).await, Reason::NotFound);
    let list = pb::ListNodesRequest {
        cluster: Some(name()),
        ..Default::default()
    };
    refused(clusters.list_nodes(list).await, Reason::NotFound);
    let events = pb::ListEventsRequest {
        cluster: name(),
        ..Default::default()
    };
    let status = refused(clusters.list_events(events).await, Reason::NotFound);
    let error = drover_convert::error::from_status(&status);
    assert_eq!(error.resource(), Some(("cluster", "orders")));
    let watch = pb::WatchEventsRequest {
        cluster: name(),
        ..Default::default()
    };
    refused(
        clusters.watch_events(watch).await.map(drop),
        Reason::NotFound,
    );
    let watch = pb::WatchNodesRequest {
        cluster: Some(name()),
        ..Default::default()
    };
    refused(
        clusters.watch_nodes(watch).await.map(drop),
        Reason::NotFound,
    );
    let logs = pb::StreamNodeLogsRequest {
        cluster: name(),
        id: "db-0".into(),
        ..Default::default()
    };
    refused(
        clusters.stream_node_logs(logs).await.map(drop),
        Reason::NotFound,
    );
    world.stop().await;
}

#[tokio::test]
async fn a_name_of_any_length_is_answered_in_few_words() {
    let world = World::new().await;
    let status = refused(world.get(&"ä".repeat(500_000)).await, Reason::NotFound);
    assert!(status.message().len() < 4096 && status.details().len() < 8192);
    world.stop().await;
}

/// What the store did not answer in time can be made all the same, even after somebody has looked what became of it.
#[tokio::test]
async fn a_change_after_one_that_the_store_has_made_late_is_made_by_what_is_stored() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    let store = Store::open(world.backend.upgrade().unwrap()).await.unwrap();
    let uid = store.find_cluster("orders").await.unwrap().unwrap();
    let happens_late = async |mark: &str| {
        let mut late = store.desired(uid).await.unwrap().unwrap();
        late.value.generation += 1;
        late.value.labels.insert("late".into(), mark.into());
        let made = store.update_desired(uid, late.revision, late.value).await;
        made.unwrap();
    };
    let mut clusters = world.clusters();
    happens_late("pause").await;
    let paused = clusters.pause_cluster(pause("maintenance")).await.unwrap();
    let paused = paused.into_inner().cluster.unwrap();
    assert_eq!((paused.generation, &*paused.labels["late"]), (2, "pause"));
    happens_late("apply").await;
    let applied = world.apply(document("orders", &[("db", 2)])).await.unwrap();
    assert_eq!(applied.cluster.unwrap().generation, 4);
    happens_late("swap").await;
    let swap = pb::ApplyClusterRequest {
        cluster: Some(document("orders", &[("db", 1)])),
        expected_generation: Some(4),
        ..Default::default()
    };
    refused(
        clusters.apply_cluster(swap).await,
        Reason::GenerationMismatch,
    );
    world.stop().await;
}

#[tokio::test]
async fn deletion_can_be_repeated_and_names_its_generation() {
    let world = World::with(SimulatedSettings {
        stop_delay: Duration::from_secs(1),
        ..SimulatedSettings::default()
    })
    .await;
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    let delete = |generation| pb::DeleteClusterRequest {
        name: "orders".into(),
        expected_generation: Some(generation),
    };
    let mut clusters = world.clusters();
    refused(
        clusters.delete_cluster(delete(7)).await,
        Reason::GenerationMismatch,
    );
    let first = clusters
        .delete_cluster(delete(1))
        .await
        .unwrap()
        .into_inner()
        .cluster
        .unwrap();
    assert!(first.delete_time.is_some());
    assert_eq!(first.status.unwrap().phase(), pb::ClusterPhase::Deleting);
    let again = clusters
        .delete_cluster(delete(1))
        .await
        .unwrap()
        .into_inner()
        .cluster
        .unwrap();
    assert_eq!(
        (again.delete_time, again.generation),
        (first.delete_time, 2)
    );
    refused(
        clusters.delete_cluster(delete(0)).await,
        Reason::GenerationMismatch,
    );
    refused(
        clusters.scale_group(scale(Some(2))).await,
        Reason::ClusterDeleting,
    );
    let replace = pb::ReplaceNodeRequest {
        cluster: "orders".into(),
        id: "db-1".into(),
    };
    refused(
        clusters.replace_node(replace).await,
        Reason::ClusterDeleting,
    );
    world.gone("orders").await;
    assert!(world.site.backend().is_empty());
    world.stop().await;
}

#[tokio::test]
async fn scaling_edits_the_stored_spec() {
    let world = World::new().await;
    let mut nested = document("orders", &[("db", 1)]);
    let inner = pb::GroupSpec {
        name: "hot".into(),
        size: Some(1),
        ..Default::default()
    };
    let outer = pb::GroupSpec {
        name: "data".into(),
        groups: vec![inner],
        ..Default::default()
    };
    nested.spec.as_mut().unwrap().groups.push(outer);
    world.apply(nested).await.unwrap();
    let mut clusters = world.clusters();
    invalid(clusters.scale_group(scale(None)).await, "size");
    invalid(clusters.scale_group(scale(Some(10_001))).await, "size");
    invalid(clusters.scale_group(scale(Some(u32::MAX))).await, "size");
    let with = |group: &str| pb::ScaleGroupRequest {
        group: group.into(),
        ..scale(Some(2))
    };
    let status = refused(
        clusters.scale_group(with("nothing")).await,
        Reason::NotFound,
    );
    let error = drover_convert::error::from_status(&status);
    assert_eq!(error.resource(), Some(("group", "orders/nothing")));
    refused(clusters.scale_group(with("")).await, Reason::NotFound);
    refused(
        clusters.scale_group(with("data/cold")).await,
        Reason::NotFound,
    );
    invalid(clusters.scale_group(with("data")).await, "group");
    invalid(
        clusters
            .scale_group(pb::ScaleGroupRequest {
                standby: Some(20_000),
                ..scale(None)
            })
            .await,
        "standby",
    );
    let expected = pb::ScaleGroupRequest {
        expected_generation: Some(9),
        ..scale(Some(2))
    };
    refused(
        clusters.scale_group(expected).await,
        Reason::GenerationMismatch,
    );

    let same = clusters
        .scale_group(scale(Some(1)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(same.cluster.unwrap().generation, 1);
    let answer = clusters
        .scale_group(with("data/hot"))
        .await
        .unwrap()
        .into_inner();
    let cluster = answer.cluster.unwrap();
    assert_eq!(
        (
            cluster.generation,
            cluster.spec.unwrap().groups[1].groups[0].size
        ),
        (2, Some(2))
    );
    let without = pb::ScaleGroupRequest {
        standby: Some(0),
        ..scale(None)
    };
    assert_eq!(
        clusters
            .scale_group(without)
            .await
            .unwrap()
            .into_inner()
            .cluster
            .unwrap()
            .generation,
        2
    );
    clusters.scale_group(scale(Some(0))).await.unwrap();
    world.ready("orders").await;
    until("as scaled", async || {
        (world.nodes("orders").await.len() == 2).then_some(())
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn a_paused_cluster_is_left_alone_until_it_is_resumed() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    let mut clusters = world.clusters();
    invalid(
        clusters.pause_cluster(pause(&"x".repeat(4097))).await,
        "reason",
    );
    clusters.pause_cluster(pause("maintenance")).await.unwrap();
    let again = clusters
        .pause_cluster(pause("other"))
        .await
        .unwrap()
        .into_inner()
        .cluster
        .unwrap();
    assert_eq!(again.status.unwrap().pause.unwrap().reason, "maintenance");
    refused(
        clusters.reconcile_cluster(reconcile(false)).await,
        Reason::ClusterPaused,
    );
    clusters.scale_group(scale(Some(3))).await.unwrap();
    until("the pause is an event", async || {
        world
            .events("orders")
            .await
            .iter()
            .any(|event| event.reason == "Paused")
            .then_some(())
    })
    .await;
    assert_eq!(world.nodes("orders").await.len(), 1);
    clusters.resume_cluster(resume()).await.unwrap();
    clusters.resume_cluster(resume()).await.unwrap();
    let cluster = world.ready("orders").await;
    assert!(cluster.status.unwrap().pause.is_none());
    assert_eq!(world.nodes("orders").await.len(), 3);
    world.stop().await;
}

#[tokio::test]
async fn a_node_is_replaced_by_name_or_id() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 2)])).await.unwrap();
    world.ready("orders").await;
    let before = world.nodes("orders").await;
    let mut clusters = world.clusters();
    let replace = |id: &str| pb::ReplaceNodeRequest {
        cluster: "orders".into(),
        id: id.into(),
    };
    refused(
        clusters.replace_node(replace("db-77")).await,
        Reason::NotFound,
    );
    let marked = clusters
        .replace_node(replace(&before[0].name))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(marked.node.unwrap().id, before[0].id);
    assert!(marked.revision > 0);
    until("another node took its place", async || {
        let nodes = world.nodes("orders").await;
        let ready = nodes
            .iter()
            .filter(|node| node.state() == pb::NodeState::Ready)
            .count();
        (ready == 2 && nodes.iter().all(|node| node.id != before[0].id)).then_some(())
    })
    .await;
    assert!(
        world
            .nodes("orders")
            .await
            .iter()
            .any(|node| node.id == before[1].id)
    );
    world.stop().await;
}

#[tokio::test]
async fn reconciling_answers_what_was_done() {
    let world = World::new().await;
    let mut clusters = world.clusters();
    // The regular first pass may come before this one; in that case there is nothing left to do.
    world.apply(document("orders", &[("db", 0)])).await.unwrap();
    world.ready("orders").await;
    let idle = clusters
        .reconcile_cluster(reconcile(false))
        .await
        .unwrap()
        .into_inner();
    assert!(idle.plan.unwrap().actions.is_empty());
    assert!(idle.results.is_empty());

    // A paused cluster holds back what the pass would do.
    clusters.pause_cluster(pause("")).await.unwrap();
    clusters.scale_group(scale(Some(3))).await.unwrap();
    clusters.resume_cluster(resume()).await.unwrap();
    let done = clusters
        .reconcile_cluster(reconcile(false))
        .await
        .unwrap()
        .into_inner();
    let actions = done.plan.unwrap().actions;
    let steps: Vec<&str> = actions.iter().map(|action| action.step.as_str()).collect();
    assert_eq!(
        done.results
            .iter()
            .map(|result| result.step.as_str())
            .collect::<Vec<_>>(),
        steps
    );
    assert!(
        done.results.iter().all(|result| result.error.is_none()),
        "{:?}",
        done.results
    );
    world.ready("orders").await;
    for action in actions
        .iter()
        .filter(|action| action.kind() == pb::ActionKind::Provision)
    {
        let events = world.events("orders").await;
        assert!(
            events
                .iter()
                .any(|event| event.step.as_deref() == Some(&action.step)),
            "{action:?} in {events:?}"
        );
    }
    world.stop().await;
}

#[tokio::test]
async fn reconciling_tries_again_what_waits_and_tells_what_the_platform_says() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 0)])).await.unwrap();
    world.ready("orders").await;
    let refuse = || {
        let error = Error::new(Reason::QuotaExceeded, "no more than nothing");
        world
            .site
            .backend()
            .fail_next(Operation::Create, Fault::Refuse(error));
    };
    refuse();
    let mut clusters = world.clusters();
    clusters.scale_group(scale(Some(1))).await.unwrap();
    until("it was refused", async || {
        let events = world.events("orders").await;
        events
            .iter()
            .any(|event| event.message.contains("no more than nothing"))
            .then_some(())
    })
    .await;
    // All pending retries are made immediately on request.
    let answer = clusters
        .reconcile_cluster(reconcile(true))
        .await
        .unwrap()
        .into_inner();
    assert!(answer.plan.is_some());
    world.ready("orders").await;
    world.stop().await;
}

#[tokio::test]
async fn a_resumed_cluster_is_ready_only_once_it_has_been_planned() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    let mut clusters = world.clusters();
    clusters.pause_cluster(pause("")).await.unwrap();
    until("the pause is a condition", async || {
        let status = world.get("orders").await.ok()?.status?;
        let paused = status.conditions.iter().any(|one| one.r#type == "Paused");
        paused.then_some(())
    })
    .await;
    let answer = clusters.resume_cluster(resume()).await.unwrap();
    let status = answer.into_inner().cluster.unwrap().status.unwrap();
    assert_ne!(status.phase(), pb::ClusterPhase::Ready);
    world.ready("orders").await;
    world.stop().await;
}
