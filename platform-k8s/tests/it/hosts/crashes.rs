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
/// Annotation of the first host of a request that is not whole.
const MARK: &str = "drover.dev/unfinished-request";

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

/// Name of the host that a node is.
fn host_of(node: &Node) -> &str {
    node.host_id.as_deref().unwrap().split_once('/').unwrap().1
}

/// What the first host of a request says as long as it is not whole.
async fn mark(place: &Place, name: &str) -> Value {
    place.object(name).await["metadata"]["annotations"][MARK].clone()
}

async fn set_mark(place: &Place, name: &str, to: &Value) {
    let annotations = serde_json::json!({MARK: to});
    place
        .merge(
            name,
            serde_json::json!({"metadata": {"annotations": annotations}}),
        )
        .await;
}

fn all_run(nodes: &[Node]) -> bool {
    nodes.iter().all(|node| node.phase() == NodePhase::Running)
}

/// Half a request: one of three hosts is claimed. Its first node.
async fn half(place: &Place, request: &ProvisionRequest) -> Node {
    let second = points("patch", HOSTS, 2).swap_remove(2);
    assert_eq!(second.arrived, 1, "{}", second.what);
    claim_dies(place, request, &second).await;
    let mut half = place.nodes().await;
    assert_eq!(half.len(), 1, "{half:?}");
    half.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_is_left_on_a_request_that_is_whole_holds_no_host_back_and_goes() {
    let place = place().await;
    let request = place.request(("blue", Uuid::new_v4()), 0..3, &[RACK]);
    let first = half(&place, &request).await;
    let name = host_of(&first);
    let left = mark(&place, name).await;
    assert!(left.is_string(), "it is marked: {left}");
    let nodes = until("the same request again", || async {
        let answer = place.answer(&request).await.ok()?;
        (answer.nodes.len() == 3).then_some(answer.nodes)
    })
    .await;
    assert!(all_run(&nodes), "{nodes:?}");
    // A platform that knows of no marks completes a request, and leaves it.
    set_mark(&place, name, &left).await;
    for other in [&place, &place.another().await] {
        let shown = other.nodes().await;
        assert!(shown.len() == 3 && all_run(&shown), "{shown:?}");
    }
    until("it is taken off", || async {
        mark(&place, name).await.is_null().then_some(())
    })
    .await;

    // One of the three has gone since, and nobody can tell that by the mark alone.
    let gone = nodes.iter().find(|node| node.node_id != first.node_id);
    place.remove(gone.unwrap()).await.unwrap();
    let (slots, _) = left.as_str().unwrap().split_once(' ').unwrap();
    set_mark(
        &place,
        name,
        &format!("{slots} 2020-01-01T00:00:00Z").into(),
    )
    .await;
    for other in [&place, &place.another().await] {
        let shown = other.nodes().await;
        assert!(shown.len() == 2 && all_run(&shown), "{shown:?}");
    }
    until("it is taken off", || async {
        mark(&place, name).await.is_null().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_request_serves_once_its_owner_removes_a_node_of_it() {
    let place = place().await;
    let request = place.request(("blue", Uuid::new_v4()), 0..3, &[RACK]);
    let third = points("patch", HOSTS, 3).swap_remove(4);
    assert_eq!(third.arrived, 2, "{}", third.what);
    claim_dies(&place, &request, &third).await;
    let nodes = place.nodes().await;
    let pending = |node: &Node| node.phase() == NodePhase::Pending;
    assert!(nodes.len() == 2 && nodes.iter().all(pending), "{nodes:?}");
    let mut marked = BTreeMap::new();
    for node in &nodes {
        let is = mark(&place, host_of(node)).await.is_string();
        marked.insert(is, node);
    }
    // With or without the first one, which has the mark.
    let (first, second) = (marked[&true], marked[&false]);
    place.remove(second).await.unwrap();
    let shown = place.nodes().await;
    assert!(shown.len() == 1 && all_run(&shown), "{shown:?}");
    assert_eq!(shown[0].host_id, first.host_id);
    assert!(mark(&place, host_of(first)).await.is_null());
    let shown = place.another().await.nodes().await;
    assert!(all_run(&shown), "and after a restart: {shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_request_that_nobody_repeats_serves_before_long() {
    let place = place().await;
    let request = place.request(("blue", Uuid::new_v4()), 0..3, &[RACK]);
    let first = half(&place, &request).await;
    let (name, phase) = (host_of(&first), first.phase());
    assert_eq!(phase, NodePhase::Pending);
    let left = mark(&place, name).await;
    let (slots, begun) = left.as_str().unwrap().split_once(' ').unwrap();
    let begun: jiff::Timestamp = begun.parse().unwrap();
    // As if it had been claimed earlier.
    let earlier = begun - jiff::SignedDuration::from_secs(115);
    set_mark(&place, name, &format!("{slots} {earlier}").into()).await;
    let other = place.another().await;
    let kept = until("it serves", || async {
        let mut nodes = other.nodes().await;
        all_run(&nodes).then(|| nodes.remove(0))
    })
    .await;
    assert_eq!(kept.host_id, first.host_id);
    // Repeated later, it gets what is missing, and what serves is never given back.
    place
        .provision(&place.request(("red", Uuid::new_v4()), 0..3, &[]))
        .await
        .unwrap();
    let answer = other.answer(&request).await.unwrap();
    assert_eq!(
        (answer.nodes.len(), answer.failures.len()),
        (1, 2),
        "{answer:?}"
    );
    assert_eq!(answer.nodes[0].host_id, first.host_id);
    assert!(all_run(&answer.nodes));
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
