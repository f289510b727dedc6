//! Maintenance of a host that Google has announced.

use drover_proto::platform::v1::{Node, NodeMaintenanceKind, NodePhase};
use prost_types::Timestamp;
use serde_json::{Value, json};

use super::bench::{Bench, until};

async fn announce(bench: &Bench, node: &Node, maintenance: Value) {
    let status = json!({ "upcomingMaintenance": maintenance });
    assert!(bench.gce.set_field(&node.node_id, "resourceStatus", status));
}

/// Waits until this is announced for a node, or nothing.
async fn announced(bench: &Bench, node: &Node, words: Option<&str>) -> Node {
    until(words.unwrap_or("nothing"), || async {
        let nodes = bench.discover(&bench.cluster).await.ok()?;
        let seen = nodes.into_iter().find(|one| one.node_id == node.node_id)?;
        let said = seen.maintenance.as_ref().map(|said| &*said.message);
        (said == words).then_some(seen)
    })
    .await
}

fn at(time: &str) -> Option<Timestamp> {
    Some(time.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_maintenance_is_shown_with_its_date_until_it_is_over() {
    let bench = Bench::new().await;
    let node = bench.make(1).await.remove(0);
    let node = bench.until_phase(&node.node_id, NodePhase::Running).await;
    let mut maintenance = json!({
        "type": "SCHEDULED",
        "canReschedule": true,
        "windowStartTime": "2026-12-01T10:00:00Z",
        "windowEndTime": "2026-12-01T14:00:00Z",
        "latestWindowStartTime": "2026-12-07T10:00:00Z",
        "maintenanceStatus": "PENDING",
    });
    announce(&bench, &node, maintenance.clone()).await;
    let words =
        "Google has scheduled maintenance from 2026-12-01T10:00:00Z to 2026-12-01T14:00:00Z";
    let seen = announced(&bench, &node, Some(words)).await;
    assert_eq!(seen.phase(), NodePhase::Running);
    assert_ne!(seen.ready, Some(false), "it runs until then");
    let said = seen.maintenance.unwrap();
    assert_eq!(said.kind(), NodeMaintenanceKind::Restart);
    assert_eq!(said.start_time, at("2026-12-01T10:00:00Z"));
    assert_eq!(said.end_time, at("2026-12-01T14:00:00Z"));
    maintenance["maintenanceStatus"] = "ONGOING".into();
    announce(&bench, &node, maintenance).await;
    let words = "Google maintains its host until 2026-12-01T14:00:00Z";
    announced(&bench, &node, Some(words)).await;
    announce(&bench, &node, Value::Null).await;
    announced(&bench, &node, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maintenance_without_a_date_is_shown_all_the_same() {
    let bench = Bench::new().await;
    let node = bench.make(1).await.remove(0);
    announce(&bench, &node, json!({ "maintenanceStatus": "PENDING" })).await;
    announced(&bench, &node, Some("Google has scheduled maintenance")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maintenance_ends_a_machine_that_google_does_not_start_again() {
    let bench = Bench::new().await;
    let node = bench.make(1).await.remove(0);
    let scheduling = json!({ "automaticRestart": false, "onHostMaintenance": "TERMINATE" });
    assert!(bench.gce.set_field(&node.node_id, "scheduling", scheduling));
    announce(&bench, &node, json!({ "maintenanceStatus": "PENDING" })).await;
    let seen = announced(&bench, &node, Some("Google has scheduled maintenance")).await;
    assert_eq!(seen.maintenance.unwrap().kind(), NodeMaintenanceKind::Stop);
}
