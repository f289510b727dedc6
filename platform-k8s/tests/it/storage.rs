//! Claims that outlive their nodes, on a real API server.

use crate::direct;

use direct::{Direct, SET, STATEFUL, failed, made, target};
use drover_core::Reason;
use drover_platform::driver::Deletion;
use drover_platform_k8s::storage;
use drover_proto::platform::v1::{DeprovisionState, KeptStorage, Node, ProvisionRequest, Storage};
use drover_testing::kubernetes::until;
use serde_json::Value;

/// A request for the node of ordinal 0 with storage.
fn request(bench: &Direct) -> ProvisionRequest {
    ProvisionRequest {
        storage: Some(Storage {
            size_bytes: Some(2 << 30),
            class: String::new(),
        }),
        ..bench.request(1)
    }
}

async fn claim(bench: &Direct) -> Value {
    let mut claims = bench.namespace.list("persistentvolumeclaims").await;
    assert_eq!(claims.len(), 1, "{claims:?}");
    claims.remove(0)
}

async fn kept(bench: &Direct) -> Vec<KeptStorage> {
    storage::list(&bench.api, &bench.settings).await.unwrap()
}

/// Removes a node but keeps its storage, and waits until its other objects are gone.
async fn retire(bench: &Direct, node: &Node) -> Vec<String> {
    let options = Deletion {
        retain_storage: true,
        ..Deletion::default()
    };
    let first = bench.remover.delete(&target(node), &options, &[]).await;
    until("the node is gone", || async {
        let deleted = bench.remover.delete(&target(node), &options, &[]).await;
        (deleted.unwrap().state == DeprovisionState::Gone).then_some(())
    })
    .await;
    first.unwrap().retained_storage
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_that_follows_has_the_claim_of_the_one_before() {
    for template in [SET, STATEFUL] {
        let bench = Direct::start().await;
        let node = made(bench.make(&request(&bench), template).await).remove(0);
        let before = claim(&bench).await;
        assert_eq!(kept(&bench).await, vec![]);
        let retained = retire(&bench, &node).await;
        let listed = kept(&bench).await;
        assert_eq!(listed.len(), 1);
        assert_eq!(retained, [listed[0].id.as_str()]);
        assert_eq!((listed[0].group.as_str(), listed[0].ordinal), ("db", 0));
        assert_eq!(
            listed[0].storage.as_ref().unwrap().size_bytes,
            Some(2 << 30)
        );
        let alone = claim(&bench).await;
        assert_eq!(alone["metadata"]["uid"], before["metadata"]["uid"]);
        let labels = alone["metadata"]["labels"].as_object().unwrap();
        assert!(
            !labels.contains_key("drover.dev/node"),
            "it is not a node: {labels:?}"
        );
        assert!(!labels.contains_key("drover.dev/cluster"), "{labels:?}");

        let next = made(bench.make(&request(&bench), template).await).remove(0);
        let after = claim(&bench).await;
        assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
        assert_eq!(
            after["metadata"]["labels"]["drover.dev/node"],
            next.id.as_str()
        );
        assert_eq!(kept(&bench).await, vec![]);
        // Storage that is not kept is deleted with its node.
        bench.gone(&next).await;
        bench.namespace.until_empty("a node with its storage").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_has_one_node_and_is_deleted_only_as_it_is_meant() {
    let bench = Direct::start().await;
    let node = made(bench.make(&request(&bench), SET).await).remove(0);
    let error = failed(bench.make(&request(&bench), SET).await);
    assert_eq!(error.reason(), Reason::Precondition, "{error}");
    assert_eq!(
        claim(&bench).await["metadata"]["labels"]["drover.dev/node"],
        node.id.as_str()
    );

    retire(&bench, &node).await;
    let meant = kept(&bench).await.remove(0);
    let other = KeptStorage {
        ordinal: 1,
        ..meant.clone()
    };
    let delete =
        async |meant: &KeptStorage| storage::delete(&bench.api, &bench.settings, meant).await;
    let error = delete(&other).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NodeNotInCluster);
    let next = made(bench.make(&request(&bench), SET).await).remove(0);
    let error = delete(&meant).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    assert!(error.message().contains(&next.id), "{error}");

    retire(&bench, &next).await;
    until("the claim is gone", || async {
        (delete(&meant).await.unwrap() == DeprovisionState::Gone).then_some(())
    })
    .await;
    bench.namespace.until_empty("kept storage").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_completed_gives_kept_storage_back() {
    let bench = Direct::start().await;
    let node = made(bench.make(&request(&bench), SET).await).remove(0);
    retire(&bench, &node).await;
    let before = claim(&bench).await;
    // The claim is handed over before the pod is refused.
    let broken = SET.replace("image: \"example.invalid/main:1\"", "image: \"\"");
    failed(bench.make(&request(&bench), &broken).await);
    let after = claim(&bench).await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert!(after["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(kept(&bench).await.len(), 1);
    let next = made(bench.make(&request(&bench), SET).await).remove(0);
    bench.gone(&next).await;
}
