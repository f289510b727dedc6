//! A standby that takes over without what only the last active node has: whatever does not need that is refused.

use std::time::Duration;

use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::orchestrator::v1 as pb;

use crate::api::support::{World, changed, document, refused};

fn fail_over(cluster: &str, group: &str, accept_loss: bool) -> pb::FailOverGroupRequest {
    pb::FailOverGroupRequest {
        cluster: cluster.to_owned(),
        group: group.to_owned(),
        accept_loss,
    }
}

#[tokio::test]
async fn a_group_whose_writes_are_all_at_its_standbys_has_nothing_to_give_up() {
    let world = World::new().await;
    let mut clusters = world.clusters();
    for accept_loss in [false, true] {
        let request = fail_over("orders", "db", accept_loss);
        refused(clusters.fail_over_group(request).await, Reason::NotFound);
    }
    let nested = changed(document("orders", &[("db", 1)]), |spec| {
        let inner = pb::GroupSpec {
            name: "hot".to_owned(),
            size: Some(1),
            ..Default::default()
        };
        spec.groups.push(pb::GroupSpec {
            name: "data".to_owned(),
            groups: vec![inner],
            ..Default::default()
        });
    });
    world.apply(nested).await.unwrap();
    world.ready("orders").await;
    // A group of groups has no node of its own.
    for group in ["", "nope", "data", "data/cold", "db/"] {
        let request = fail_over("orders", group, true);
        let status = refused(clusters.fail_over_group(request).await, Reason::NotFound);
        let error = drover_convert::error::from_status(&status);
        let name = format!("orders/{group}");
        assert_eq!(error.resource(), Some(("group", name.as_str())));
    }
    let before = world.nodes("orders").await;
    for group in ["db", "data/hot"] {
        for accept_loss in [false, true] {
            let request = fail_over("orders", group, accept_loss);
            let answer = clusters.fail_over_group(request).await;
            let status = refused(answer, Reason::Precondition);
            assert_eq!(
                status.message(),
                format!("no node of orders/{group} is recorded to have acknowledged alone")
            );
        }
    }
    let ids =
        |nodes: &[pb::Node]| -> Vec<String> { nodes.iter().map(|node| node.id.clone()).collect() };
    assert_eq!(ids(&world.nodes("orders").await), ids(&before));
    let told = world.events("orders").await;
    assert!(told.iter().all(|event| event.reason != "LossAccepted"));
    world.stop().await;
}

#[tokio::test]
async fn nothing_takes_over_in_a_cluster_that_is_being_deleted() {
    let world = World::with(SimulatedSettings {
        stop_delay: Duration::from_secs(1),
        ..SimulatedSettings::default()
    })
    .await;
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    world.delete("orders").await.unwrap();
    let request = fail_over("orders", "db", true);
    let answer = world.clusters().fail_over_group(request).await;
    refused(answer, Reason::ClusterDeleting);
    world.gone("orders").await;
    world.stop().await;
}
