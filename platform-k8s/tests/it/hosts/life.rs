//! What the state of a host means for the node on it, and for whoever wants to claim it.

use drover_proto::platform::v1::{
    HostLabels, HostState, Node, NodeChange, NodePhase, NodeRole, RemovalEvidence,
    update_node_request::Update,
};
use drover_testing::kubernetes::until;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Place, host};

async fn until_node(place: &Place, what: &str, fits: impl Fn(&Node) -> bool) -> Node {
    until(what, || async {
        let nodes = place.nodes().await;
        nodes.into_iter().find(|node| fits(node))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn states_of_metal3_are_phases_of_nodes_and_of_the_inventory() {
    let place = Place::with(&[host("node", &[]), host("other", &[])]).await;
    let mut request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    request.slots[0].host_id = Some(format!("{}/node", place.namespace.name));
    place.provision(&request).await.unwrap();
    let state = |state: &str| json!({"operationalStatus": "OK", "provisioning": {"state": state}});
    let error = json!({"operationalStatus": "error", "errorMessage": "no power", "provisioning": {"state": "available"}});
    for (status, phase, ready, inventory, message) in [
        (
            state("available"),
            NodePhase::Running,
            None,
            HostState::Free,
            "",
        ),
        (
            state("externally provisioned"),
            NodePhase::Running,
            None,
            HostState::Free,
            "",
        ),
        (
            state("provisioned"),
            NodePhase::Running,
            None,
            HostState::Free,
            "",
        ),
        (
            state("inspecting"),
            NodePhase::Running,
            None,
            HostState::Unavailable,
            "inspecting",
        ),
        (
            state("deprovisioning"),
            NodePhase::Running,
            None,
            HostState::Unavailable,
            "deprovisioning",
        ),
        (
            error,
            NodePhase::Running,
            Some(false),
            HostState::Unavailable,
            "no power",
        ),
        (
            state("deleting"),
            NodePhase::Failed,
            Some(false),
            HostState::Unavailable,
            "deleting",
        ),
    ] {
        let what = status.to_string();
        for name in ["node", "other"] {
            place.status(name, status.clone()).await;
        }
        let node = until_node(&place, &what, |node| {
            node.phase() == phase && node.message.contains(message)
        })
        .await;
        assert_eq!(node.ready, ready, "{what}");
        let other = place
            .until_host("other", |host| host.state() == inventory)
            .await;
        assert!(other.message.contains(message), "{what}: {}", other.message);
        let own = place
            .until_host("node", |host| host.state() == HostState::Claimed)
            .await;
        assert_eq!(own.cluster_id, "blue");
        let clear = json!({"operationalStatus": "OK", "errorMessage": null, "provisioning": {"state": "ready"}});
        for name in ["node", "other"] {
            place.status(name, clear.clone()).await;
        }
        place
            .until_host("other", |host| host.state() == HostState::Free)
            .await;
    }
    place
        .merge("node", json!({"spec": {"online": false}}))
        .await;
    until_node(&place, "a host that is to be off", |node| {
        node.phase() == NodePhase::Stopped
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_removed_by_hand_neither_free_a_host_nor_lose_its_node() {
    let place = Place::with(&[host("h1", &[])]).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let node = place.provision(&request).await.unwrap().remove(0);
    let mut removal = place.removal_of(&node).await;
    for key in [
        "drover.dev/cluster",
        "drover.dev/node",
        "drover.dev/request",
    ] {
        place
            .merge("h1", json!({"metadata": {"labels": {key: null}}}))
            .await;
    }
    place
        .merge("h1", json!({"metadata": {"labels": {"seen": "yes"}}}))
        .await;
    let seen = |host: &drover_proto::platform::v1::Host| host.labels.contains_key("seen");
    let shown = place.until_host("h1", seen).await;
    assert_eq!(shown.state(), HostState::Claimed);
    assert_eq!(place.nodes().await[0].node_id, node.node_id);
    assert_eq!(
        place.provision(&request).await.unwrap().len(),
        1,
        "no second host"
    );
    let other = place.request(("red", Uuid::new_v4()), 0..1, &[]);
    super::place::refused(place.provision(&other).await);
    let told = futures::poll!(std::pin::Pin::new(&mut removal));
    assert!(told.is_pending(), "nobody was told that the node is gone");
    place.remove(&node).await.unwrap();
    place
        .until_host("h1", |host| host.state() == HostState::Free)
        .await;
}

/// Changes the labels by which a host is found, and waits until that is seen.
async fn relabel(place: &Place, name: &str, value: &Value) {
    for key in ["drover.dev/cluster", "drover.dev/node"] {
        place
            .merge(name, json!({"metadata": {"labels": {key: value}}}))
            .await;
    }
    until_node(place, "the label is said to be wrong", |node| {
        node.message.contains("its label drover.dev/")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_labels_were_changed_by_hand_is_promoted_and_has_them_again() {
    let place = Place::with(&[host("h1", &[])]).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let node = place.provision(&request).await.unwrap().remove(0);
    for (by_hand, role, said) in [
        (Value::Null, NodeRole::Standby, "standby"),
        (json!("red"), NodeRole::Active, "active"),
    ] {
        relabel(&place, "h1", &by_hand).await;
        let change = Update::Change(NodeChange {
            role: role.into(),
            host_labels: Some(HostLabels {
                labels: [("tenant".to_owned(), said.to_owned())].into(),
            }),
            ..NodeChange::default()
        });
        place.update(&node, change).await.unwrap();
        let labels = place.object("h1").await["metadata"]["labels"].clone();
        assert_eq!(labels["drover.dev/role"], said);
        assert_eq!(labels["tenant"], said);
        assert_eq!(labels["drover.dev/cluster"], "blue");
        assert_eq!(labels["drover.dev/node"], node.node_id);
        let now = until_node(&place, "nothing is wrong", |node| node.message.is_empty()).await;
        assert_eq!((now.role(), now.slot), (role, node.slot.clone()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_its_labels_remembers_its_former_owner_when_another_takes_it_over() {
    let place = Place::with(&[host("h1", &[])]).await;
    let former = Uuid::new_v4();
    let request = place.request(("blue", former), 0..1, &[]);
    let node = place.provision(&request).await.unwrap().remove(0);
    relabel(&place, "h1", &Value::Null).await;
    place
        .take_over(&node, Uuid::new_v4(), &request.slots[0])
        .await;
    let object = place.object("h1").await;
    let slots = object["metadata"]["annotations"]["drover.dev/former"].as_str();
    let slots: Value = serde_json::from_str(slots.unwrap()).unwrap();
    assert_eq!(slots[0]["owner"], former.to_string());
    assert_eq!(slots[0]["request"], request.request_id);
    assert_eq!(object["metadata"]["labels"]["drover.dev/cluster"], "blue");
    // Else its former owner would get another host.
    let error = super::place::refused(place.provision(&request).await);
    assert!(
        error.message().contains("belongs to another owner now"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_a_spec_keeps_nobody_from_the_others() {
    let place = Place::with(&[host("h1", &[])]).await;
    let path = place.path("").trim_end_matches('/').to_owned();
    let bare = json!({
        "apiVersion": "metal3.io/v1alpha1",
        "kind": "BareMetalHost",
        "metadata": {"name": "bare"},
    });
    place.namespace.raw.create(&path, &bare).await.unwrap();
    let shown = place.until_host("bare", |_| true).await;
    assert_eq!(shown.state(), HostState::Unavailable, "it is to be off");
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    assert_eq!(
        super::place::names(&place.provision(&request).await.unwrap()),
        ["h1"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_with_a_copy_of_the_labels_of_another_is_not_its_node() {
    let place = Place::with(&[host("h1", &[])]).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    place.provision(&request).await.unwrap();
    let mut copy = place.object("h1").await;
    place.namespace.raw.delete(&place.path("h1")).await.unwrap();
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
    ] {
        copy["metadata"].as_object_mut().unwrap().remove(field);
    }
    let path = place.path("").trim_end_matches('/').to_owned();
    place.namespace.raw.create(&path, &copy).await.unwrap();
    let shown = place
        .until_host("h1", |host| host.state() == HostState::Unavailable)
        .await;
    assert!(
        shown.message.contains("of another host"),
        "{}",
        shown.message
    );
    assert!(place.nodes().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_gone_is_proof_and_one_that_comes_again_is_another() {
    let place = Place::with(&[host("h1", &[])]).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let node = place.provision(&request).await.unwrap().remove(0);
    let removed = place.removal_of(&node).await;
    place.namespace.raw.delete(&place.path("h1")).await.unwrap();
    assert_eq!(removed.await, RemovalEvidence::Confirmed);
    assert!(place.nodes().await.is_empty());
    let path = place.path("").trim_end_matches('/').to_owned();
    place
        .namespace
        .raw
        .create(&path, &host("h1", &[]))
        .await
        .unwrap();
    let again = place
        .until_host("h1", |host| host.state() == HostState::Free)
        .await;
    assert_eq!(again.owner, "");
}
