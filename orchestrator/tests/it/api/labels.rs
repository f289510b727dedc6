//! Labels of hosts, from the document to the hosts of nodes that exist.

use drover_platform_cloud::drivers::simulated::{HostSettings, SimulatedSettings};
use drover_proto::orchestrator::v1 as pb;
use serde_json::json;

use crate::api::support::{World, changed, document, invalid};

fn inventory() -> SimulatedSettings {
    let host = |id: &str| HostSettings {
        id: id.to_owned(),
        ..HostSettings::default()
    };
    SimulatedSettings {
        inventory: true,
        hosts: vec![host("m1"), host("m2")],
        ..SimulatedSettings::default()
    }
}

/// Groups of one node each, whose hosts are to have this label.
fn labelled(groups: &[(&str, (&str, &str))]) -> pb::Cluster {
    let names: Vec<(&str, u32)> = groups.iter().map(|(name, _)| (*name, 1)).collect();
    changed(document("orders", &names), |spec| {
        for (group, (_, (key, value))) in spec.groups.iter_mut().zip(groups) {
            let labels = json!({"hostLabels": {*key: value}});
            let labels = drover_convert::value::to_struct(labels.as_object().unwrap());
            group.properties = Some(labels);
        }
    })
}

#[tokio::test]
async fn labels_that_a_platform_refuses_are_refused_when_they_alone_are_applied() {
    let world = World::with(inventory()).await;
    let blue = world.apply(labelled(&[("db", ("tenant", "blue"))])).await;
    let before = blue.unwrap().cluster.unwrap().generation;
    world.ready("orders").await;
    let field = "spec.groups[0].properties.hostLabels[\"rack\"]";
    invalid(
        world.apply(labelled(&[("db", ("rack", "r9"))])).await,
        field,
    );
    // Two groups that differ in nothing else.
    let two = labelled(&[("db", ("tenant", "blue")), ("web", ("rack", "r9"))]);
    let field = "spec.groups[1].properties.hostLabels[\"rack\"]";
    invalid(world.apply(two).await, field);
    assert_eq!(world.get("orders").await.unwrap().generation, before);
    world
        .apply(labelled(&[("db", ("tenant", "red"))]))
        .await
        .unwrap();
    world.ready("orders").await;
    world.stop().await;
}
