//! The platform is killed with `kill -9` before and after each of its calls to the API server, while it claims, releases
//! and takes over hosts. Another one finds no half request, no host with two owners and none that is lost.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::Reason;
use drover_proto::platform::v1::{
    HostLabels, HostState, Node, NodeAdoption, NodeChange, NodePhase, NodeRole, ProvisionRequest,
    Slot, SlotKey, update_node_request::Update,
};
use drover_testing::kubernetes::{Options, Rig, until};
use serde_json::Value;
use uuid::Uuid;

use super::{Place, host, place::HOSTS};
use crate::doomed::{Doomed, Point, points};

const RACK: &str = "rack";

/// Labels and annotations of every host.
async fn written(place: &Place) -> BTreeMap<String, (Value, Value)> {
    let mut all = BTreeMap::new();
    for name in ["h0", "h1", "h2", "h3"] {
        let object = place.object(name).await;
        let metadata = &object["metadata"];
        let both = (metadata["labels"].clone(), metadata["annotations"].clone());
        all.insert(name.to_owned(), both);
    }
    all
}

/// Lets a platform process work at these hosts until it dies at a point.
async fn dies(place: &Place, point: &Point, work: impl AsyncFnOnce(&Place)) {
    let rig = Rig::shared(Options::default());
    let doomed = Doomed::start(rig, &place.namespace.name, &["--driver", "hosts"]).await;
    let through = place.by_way_of(doomed.channel());
    doomed.dies(point, work(&through)).await;
}

/// A claim that dies at a point.
async fn claim_dies(place: &Place, request: &ProvisionRequest, point: &Point) {
    dies(place, point, async |place| {
        let _ = place.answer(request).await;
    })
    .await;
}

async fn place() -> Place {
    let hosts = (0..4).map(|at| host(&format!("h{at}"), &[(RACK, &format!("r{at}"))]));
    Place::with(&hosts.collect::<Vec<_>>()).await
}

async fn free(place: &Place, count: usize) {
    until("the inventory shows who is free", || async {
        let hosts = place.hosts().await;
        let free = hosts.iter().filter(|host| host.state() == HostState::Free);
        (free.count() == count).then_some(())
    })
    .await;
}

/// The calls of a claim of three hosts: each of them, and that the request is whole.
fn points_of_a_claim() -> Vec<Point> {
    points("patch", HOSTS, 4)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_dies_anywhere_is_completed_once_by_the_next_platform() {
    let place = place().await;
    let before = written(&place).await;
    for point in points_of_a_claim() {
        let what = &point.what;
        let request = place.request(("blue", Uuid::new_v4()), 0..3, &[RACK]);
        claim_dies(&place, &request, &point).await;
        let nodes = until(&format!("{what}: the same request again"), || async {
            let answer = place.answer(&request).await.ok()?;
            (answer.nodes.len() == 3).then_some(answer.nodes)
        })
        .await;
        let ids: BTreeSet<&String> = nodes.iter().map(|node| &node.node_id).collect();
        let racks: BTreeSet<&String> = nodes.iter().map(|node| &node.failure_domain).collect();
        assert_eq!((ids.len(), racks.len()), (3, 3), "{what}");
        let whole = nodes.iter().all(|node| node.phase() == NodePhase::Running);
        assert!(whole, "{what}: a request that is whole serves: {nodes:?}");
        free(&place, 1).await;
        for node in &nodes {
            place.remove(node).await.unwrap();
        }
        assert_eq!(written(&place).await, before, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_nobody_repeats_is_released_by_its_owner() {
    let place = place().await;
    let before = written(&place).await;
    for point in points_of_a_claim() {
        let what = &point.what;
        let request = place.request(("blue", Uuid::new_v4()), 0..3, &[RACK]);
        claim_dies(&place, &request, &point).await;
        // What was claimed is shown with its owner, which is all that is needed to release it.
        for node in place.nodes().await {
            assert_eq!(node.cluster_id, "blue", "{what}");
            place.remove(&node).await.unwrap();
        }
        assert_eq!(written(&place).await, before, "{what}");
        free(&place, 4).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_request_that_can_no_longer_be_whole_is_released_by_its_repetition() {
    let place = place().await;
    for point in points("patch", HOSTS, 3) {
        let what = &point.what;
        let before = written(&place).await;
        let request = place.request(("blue", Uuid::new_v4()), 0..3, &[RACK]);
        claim_dies(&place, &request, &point).await;
        let half = place.nodes().await;
        let claimed = point.arrived;
        assert_eq!(half.len(), claimed, "{what}");
        if claimed < 3 {
            let starts = |node: &Node| node.phase() == NodePhase::Pending;
            assert!(
                half.iter().all(starts),
                "{what}: it serves not yet: {half:?}"
            );
        }
        let other = place.request(("red", Uuid::new_v4()), 0..(4 - claimed as u32), &[RACK]);
        let others = place.provision(&other).await.unwrap();
        let again = until(&format!("{what}: the same request again"), || async {
            place.answer(&request).await.map_or_else(
                |error| (error.reason() == Reason::NoCapacity).then(Vec::new),
                |answer| answer.unknown.is_empty().then_some(answer.nodes),
            )
        })
        .await;
        let expected = if claimed == 3 { 3 } else { 0 };
        assert_eq!(again.len(), expected, "{what}: all of them or none");
        let left = place.nodes().await;
        let blue = left.iter().filter(|node| node.cluster_id == "blue");
        assert_eq!(blue.count(), expected, "{what}: nothing else is left of it");
        for node in again.iter().chain(&others) {
            place.remove(node).await.unwrap();
        }
        assert_eq!(written(&place).await, before, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_half_a_request_that_somebody_uses_already_is_kept() {
    let place = place().await;
    let request = place.request(("blue", Uuid::new_v4()), 0..3, &[RACK]);
    let second = points("patch", HOSTS, 2).pop().unwrap();
    claim_dies(&place, &request, &second).await;
    let half = place.nodes().await;
    let used = half[0].host_id.as_deref().unwrap();
    let used = used.split_once('/').unwrap().1;
    let consumer = serde_json::json!({"kind": "Metal3Machine", "namespace": "t", "name": "m1"});
    place
        .merge(used, serde_json::json!({"spec": {"consumerRef": consumer}}))
        .await;
    let other = place.request(("red", Uuid::new_v4()), 0..2, &[RACK]);
    place.provision(&other).await.unwrap();
    let answer = until("the same request again", || async {
        place.answer(&request).await.ok()
    })
    .await;
    assert_eq!(
        (answer.nodes.len(), answer.failures.len()),
        (2, 1),
        "{answer:?}"
    );
    let serves = |node: &Node| node.phase() == NodePhase::Running;
    assert!(answer.nodes.iter().all(serves), "{answer:?}");
    let ids = |nodes: &[Node]| -> BTreeSet<String> {
        nodes.iter().map(|node| node.node_id.clone()).collect()
    };
    assert_eq!(ids(&answer.nodes), ids(&half));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_dies_anywhere_is_completed_by_the_next_platform() {
    let place = place().await;
    let before = written(&place).await;
    for point in points("patch", HOSTS, 2)
        .into_iter()
        .chain(points("get", HOSTS, 2))
    {
        let what = &point.what;
        let request = place.request(("blue", Uuid::new_v4()), 0..2, &[RACK]);
        let nodes = place.provision(&request).await.unwrap();
        dies(&place, &point, async |place| {
            for node in &nodes {
                let _ = place.remove(node).await;
            }
        })
        .await;
        for node in &nodes {
            until(&format!("{what}: the release again"), || async {
                place.remove(node).await.ok()
            })
            .await;
        }
        assert_eq!(written(&place).await, before, "{what}");
        free(&place, 4).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_labels_of_hosts_that_dies_anywhere_is_completed_by_the_next_platform() {
    let place = place().await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let node = place.provision(&request).await.unwrap().remove(0);
    let change = |tenant: &str| {
        Update::Change(NodeChange {
            host_labels: Some(HostLabels {
                labels: [("tenant".to_owned(), tenant.to_owned())].into(),
            }),
            ..NodeChange::default()
        })
    };
    for (at, point) in points("get", HOSTS, 1)
        .into_iter()
        .chain(points("patch", HOSTS, 1))
        .enumerate()
    {
        let tenant = format!("t{at}");
        dies(&place, &point, async |place| {
            let _ = place.update(&node, change(&tenant)).await;
        })
        .await;
        until(&format!("{}: again", point.what), || async {
            place.update(&node, change(&tenant)).await.ok()
        })
        .await;
        let name = node.host_id.as_deref().unwrap().split_once('/').unwrap().1;
        let labels = &written(&place).await[name].0;
        assert_eq!(labels["tenant"], tenant, "{}", point.what);
    }
    place.remove(&node).await.unwrap();
    free(&place, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_that_dies_anywhere_is_completed_by_the_next_platform() {
    let place = place().await;
    for point in points("patch", HOSTS, 1) {
        let what = &point.what;
        let foreign = serde_json::json!({
            "sip.airshipit.org/cluster-namespace": "tenants",
            "sip.airshipit.org/cluster-name": "blue",
            "sip.airshipit.org/node-type": "ControlPlane",
        });
        place
            .merge("h0", serde_json::json!({"metadata": {"labels": foreign}}))
            .await;
        let found = until("it is a foreign node", || async {
            place.nodes().await.into_iter().next()
        })
        .await;
        let owner = Uuid::new_v4();
        let update = Update::Adoption(NodeAdoption {
            cluster_id: "tenants.blue".to_owned(),
            key: Some(SlotKey {
                owner: owner.to_string(),
                request_id: Uuid::new_v4().to_string(),
                index: Some(0),
            }),
            slot: Some(Slot {
                index: Some(0),
                id: "control-plane-0-x7k2p".to_owned(),
                name: "control-plane-0".to_owned(),
                ordinal: Some(0),
                role: NodeRole::Standby.into(),
                host_id: None,
            }),
            sequence: 7,
            group: "control-plane".to_owned(),
            spec_hash: "h1-x".to_owned(),
        });
        dies(&place, &point, async |place| {
            let _ = place.update(&found, update.clone()).await;
        })
        .await;
        let node = until(&format!("{what}: again"), || async {
            let _ = place.update(&found, update.clone()).await;
            let ours = |slot: &SlotKey| slot.owner == owner.to_string();
            let mut nodes = place.nodes().await.into_iter();
            nodes.find(|node| node.slot.as_ref().is_some_and(ours))
        })
        .await;
        assert_eq!(
            (node.node_id.as_str(), node.role()),
            (found.node_id.as_str(), NodeRole::Standby)
        );
        assert_eq!(place.nodes().await.len(), 1, "{what}");
        place.remove(&node).await.unwrap();
        free(&place, 4).await;
    }
}
