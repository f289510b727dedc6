//! Storage that grows under a living node, on a real API server.

use drover_core::{Reason, Result};
use drover_proto::platform::v1::{Node, NodeChange, Storage, update_node_request::Update};
use drover_testing::{
    kubernetes::{Fault, On, until},
    platform::requests,
};
use serde_json::Value;

use crate::{
    bench::Bench,
    storage::{claim, class},
};

/// A node whose claim has its volume of 1 GiB, of a class that can be expanded or not.
async fn bound(bench: &Bench, grows: bool) -> Node {
    let mut request = bench.request("stateful", 1).await;
    request.storage = Some(Storage {
        size_bytes: Some(1 << 30),
        class: class(&bench.namespace, grows).await,
    });
    let node = bench.provision(&request).await.unwrap().nodes.remove(0);
    until("the claim has its volume", || async {
        (claim(&bench.namespace).await["status"]["phase"] == "Bound").then_some(())
    })
    .await;
    node
}

async fn grow(bench: &Bench, node: &Node, gib: u64) -> Result<Node> {
    let change = NodeChange {
        storage_size_bytes: Some(gib << 30),
        spec_hash: format!("h1-{gib}"),
        ..NodeChange::default()
    };
    let uid = bench.platform().await.uid;
    let request = requests::update(&uid, bench.fence(), node, Update::Change(change));
    bench.update(&request).await
}

async fn asked(bench: &Bench) -> Value {
    claim(&bench.namespace).await["spec"]["resources"]["requests"]["storage"].clone()
}

/// Uids of pods and claims.
async fn uids(bench: &Bench) -> Vec<Value> {
    let mut uids = Vec::new();
    for kind in ["pods", "persistentvolumeclaims"] {
        let all = bench.namespace.list(kind).await;
        uids.extend(all.iter().map(|one| one["metadata"]["uid"].clone()));
    }
    uids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_grows_under_its_node_and_never_shrinks() {
    let bench = Bench::start().await;
    let node = bound(&bench, true).await;
    bench.until_running().await;
    let before = uids(&bench).await;
    for (wanted, has) in [(5, "5Gi"), (5, "5Gi"), (2, "5Gi"), (6, "6Gi")] {
        let after = grow(&bench, &node, wanted).await.unwrap();
        assert_eq!((&after.node_id, &after.slot), (&node.node_id, &node.slot));
        assert_eq!(after.spec_hash, format!("h1-{wanted}"));
        assert_eq!(asked(&bench).await, has);
    }
    assert_eq!(uids(&bench).await, before, "nothing was made anew");
    bench.clean("it grew").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_class_does_not_expand_says_so_and_stays_as_it_is() {
    let bench = Bench::start().await;
    let node = bound(&bench, false).await;
    let error = grow(&bench, &node, 5).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition, "{error}");
    for part in ["1Gi", "5Gi", "storage.size", "allowVolumeExpansion"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    assert_eq!(asked(&bench).await, "1Gi");
    bench.clean("it did not grow").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_is_asked_for_again() {
    for fault in [Fault::Disconnect, Fault::LoseAnswer] {
        let bench = Bench::start().await;
        let node = bound(&bench, true).await;
        let patches = On::call("patch", "persistentvolumeclaims");
        bench.proxy().fail(patches, fault);
        let outcome = grow(&bench, &node, 5).await;
        grow(&bench, &node, 5).await.unwrap();
        assert_eq!(asked(&bench).await, "5Gi", "after {outcome:?}");
        bench.clean("it grew").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_declared_storage_has_none_that_grows() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("stateful", 1).await;
    let error = grow(&bench, &nodes[0], 5).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition, "{error}");
    assert_eq!(asked(&bench).await, "1Gi", "what a template makes stays");
    bench.clean("stateful").await;
}
