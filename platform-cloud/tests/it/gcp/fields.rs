//! Reads of machines ask for the fields that the driver reads and no others: metadata alone, with the user data, may be
//! 512 KiB of each machine at each poll.

use std::collections::BTreeSet;

use drover_proto::{
    common::v1::AddressType,
    platform::v1::{Node, NodeChange, NodePhase},
};
use drover_testing::platform::caller::user_data;
use serde_json::{Value, json};

use super::bench::{Bench, until};

async fn until_node(bench: &Bench, id: &str, what: &str, is: impl Fn(&Node) -> bool) -> Node {
    until(what, || async {
        let nodes = bench.discover(&bench.cluster).await.ok()?;
        nodes
            .into_iter()
            .find(|node| node.node_id == id && is(node))
    })
    .await
}

/// Makes a node of which Compute Engine tells everything that a node can show.
async fn told_of(bench: &Bench, properties: &Value) -> Node {
    let nodes = bench.made_by(&bench.request_with(1, properties)).await;
    let id = &nodes[0].node_id;
    let interfaces = json!([{
        "ipv6Address": "fd20::1",
        "accessConfigs": [{ "publicPtrDomainName": "db.example.com." }],
        "ipv6AccessConfigs": [{ "externalIpv6": "2600:1900::1" }],
    }]);
    assert!(bench.gce.set_field(id, "hostname", json!("db.example.com")));
    assert!(bench.gce.set_field(id, "networkInterfaces", interfaces));
    until_node(bench, id, "its addresses are shown", |node| {
        node.phase() == NodePhase::Running && !node.addresses.is_empty()
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_read_of_machines_leaves_out_what_is_not_read() {
    let bench = Bench::new().await;
    let mut request = bench.request(2);
    request.bootstrap = Some(user_data("#!/bin/sh\necho secret\n"));
    let nodes = bench.made_by(&request).await;
    let change = NodeChange {
        set_labels: [("tier".to_owned(), "1".to_owned())].into(),
        ..NodeChange::default()
    };
    bench
        .update(&bench.change(&nodes[0], change))
        .await
        .unwrap();
    bench.discover("").await.unwrap();
    bench.assert_nothing_leaked("own nodes").await;
    let mut read = BTreeSet::new();
    for request in bench.gce.control().requests() {
        let operation = request.operation;
        if !matches!(operation.as_str(), "instances.list" | "instances.get") {
            continue;
        }
        let mask = request.parameters.iter().find(|(key, _)| key == "fields");
        let Some((_, mask)) = mask else {
            panic!("{operation} asks for all fields");
        };
        for large in ["metadata", "disks", "*"] {
            assert!(!mask.contains(large), "{operation}: {mask}");
        }
        read.insert(operation);
    }
    assert_eq!(read.len(), 2, "{read:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_shows_all_that_compute_engine_says_of_it() {
    let bench = Bench::new().await;
    let node = told_of(&bench, &json!({ "instanceType": "e2-micro" })).await;
    assert!(node.provider_id.starts_with("gce://drover-emulated/"));
    assert!(node.failure_domain.starts_with("europe-west3-"));
    assert_eq!(node.node_class, "e2-micro");
    assert!(node.create_time.is_some());
    assert!(node.slot.is_some());
    let has = |kind: AddressType, value: &str| {
        let mut addresses = node.addresses.iter();
        addresses.any(|address| address.r#type() == kind && address.value == value)
    };
    assert!(has(AddressType::Hostname, "db.example.com"));
    assert!(has(AddressType::InternalIp, "fd20::1"));
    assert!(has(AddressType::ExternalIp, "2600:1900::1"));
    assert!(has(AddressType::ExternalDns, "db.example.com."));
    let of_nic0 = node
        .addresses
        .iter()
        .filter(|address| address.interface == "nic0");
    assert_eq!(of_nic0.count(), 5, "{:?}", node.addresses);
    let (id, words) = (&node.node_id, "it is being looked after");
    assert!(bench.gce.set_field(id, "statusMessage", json!(words)));
    until_node(&bench, id, "its message is shown", |node| {
        node.message == words
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spot_machine_that_was_stopped_says_so() {
    let bench = Bench::new().await;
    let node = told_of(&bench, &json!({ "capacityType": "spot" })).await;
    assert!(bench.gce.stop_by_hand(&node.node_id));
    until_node(&bench, &node.node_id, "it says why", |node| {
        node.message.contains("spot machine")
    })
    .await;
}
