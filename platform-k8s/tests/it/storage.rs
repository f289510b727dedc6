//! Claims that outlive their nodes, on a real API server.

use crate::direct;

use direct::{Direct, SET, STATEFUL, failed, made, target};
use drover_core::Reason;
use drover_platform::driver::Deletion;
use drover_platform_k8s::storage;
use drover_proto::platform::v1::{DeprovisionState, KeptStorage, Node, ProvisionRequest, Storage};
use drover_testing::kubernetes::{Fault, Namespace, On, refusal, until};
use serde_json::{Value, json};

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

/// The only claim, which the controller of a StatefulSet makes after the answer.
pub(crate) async fn claim(namespace: &Namespace) -> Value {
    until("there is one claim", || async {
        let mut claims = namespace.list("persistentvolumeclaims").await;
        (claims.len() == 1).then(|| claims.remove(0))
    })
    .await
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
        let before = claim(&bench.namespace).await;
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
        let alone = claim(&bench.namespace).await;
        assert_eq!(alone["metadata"]["uid"], before["metadata"]["uid"]);
        let labels = alone["metadata"]["labels"].as_object().unwrap();
        assert!(
            !labels.contains_key("drover.dev/node"),
            "it is not a node: {labels:?}"
        );
        assert!(!labels.contains_key("drover.dev/cluster"), "{labels:?}");

        let next = made(bench.make(&request(&bench), template).await).remove(0);
        let after = claim(&bench.namespace).await;
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
        claim(&bench.namespace).await["metadata"]["labels"]["drover.dev/node"],
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
    let before = claim(&bench.namespace).await;
    // The claim is handed over before the pod is refused.
    let broken = SET.replace("image: \"example.invalid/main:1\"", "image: \"\"");
    failed(bench.make(&request(&bench), &broken).await);
    let after = claim(&bench.namespace).await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert!(after["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(kept(&bench).await.len(), 1);
    let next = made(bench.make(&request(&bench), SET).await).remove(0);
    bench.gone(&next).await;
}

/// A storage class with a volume of 1 GiB for one claim.
pub(crate) async fn class(namespace: &Namespace, grows: bool) -> String {
    let name = format!("{}-{grows}", namespace.name);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner", "allowVolumeExpansion": grows,
    });
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": name,
            "hostPath": {"path": "/nowhere"},
        },
    });
    let raw = &namespace.raw;
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    raw.create(classes, &class).await.unwrap();
    raw.create("/api/v1/persistentvolumes", &volume)
        .await
        .unwrap();
    name
}

/// A request for the node of ordinal 0 with so many GiB of a class.
fn sized(bench: &Direct, class: &str, gib: u64) -> ProvisionRequest {
    ProvisionRequest {
        storage: Some(Storage {
            size_bytes: Some(gib << 30),
            class: class.to_owned(),
        }),
        ..bench.request(1)
    }
}

/// Makes a node whose claim has its volume.
async fn bound(bench: &Direct, class: &str) -> Node {
    let node = made(bench.make(&sized(bench, class, 1), SET).await).remove(0);
    until("the claim has its volume", || async {
        (claim(&bench.namespace).await["status"]["phase"] == "Bound").then_some(())
    })
    .await;
    node
}

async fn asked(bench: &Direct) -> Value {
    claim(&bench.namespace).await["spec"]["resources"]["requests"]["storage"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_handed_on_grows_and_is_shown_as_large_as_it_is() {
    let bench = Direct::start().await;
    let class = class(&bench.namespace, true).await;
    let node = bound(&bench, &class).await;
    retire(&bench, &node).await;
    let larger = made(bench.make(&sized(&bench, &class, 5), SET).await).remove(0);
    assert_eq!(asked(&bench).await, "5Gi");
    retire(&bench, &larger).await;
    let sizes: Vec<_> = kept(&bench).await;
    let sizes: Vec<_> = sizes.iter().map(|it| it.storage.as_ref()).collect();
    assert_eq!(
        sizes[0].unwrap().size_bytes,
        Some(1 << 30),
        "nobody has expanded the volume yet"
    );
    let smaller = made(bench.make(&sized(&bench, &class, 2), SET).await).remove(0);
    assert_eq!(asked(&bench).await, "5Gi", "it never shrinks");
    bench.gone(&smaller).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_cannot_grow_says_so_and_stays_kept() {
    let bench = Direct::start().await;
    let class = class(&bench.namespace, false).await;
    let node = bound(&bench, &class).await;
    retire(&bench, &node).await;
    let error = failed(bench.make(&sized(&bench, &class, 5), SET).await);
    assert_eq!(error.reason(), Reason::Precondition, "{error}");
    for part in [
        "1Gi",
        "5Gi",
        "storage.size",
        "allowVolumeExpansion",
        "must support resize",
    ] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    assert_eq!(kept(&bench).await.len(), 1);
    let next = made(bench.make(&sized(&bench, &class, 1), SET).await).remove(0);
    bench.gone(&next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_may_not_be_handed_on_fails_its_slot_and_stays_kept() {
    let bench = Direct::start().await;
    let class = class(&bench.namespace, true).await;
    let node = bound(&bench, &class).await;
    retire(&bench, &node).await;
    for (words, reason) in [
        (
            "persistentvolumeclaims \"a\" is forbidden: exceeded quota: q, requested: requests.storage=4Gi",
            Reason::QuotaExceeded,
        ),
        (
            "persistentvolumeclaims \"a\" is forbidden: User \"u\" cannot patch resource \"persistentvolumeclaims\" in API group \"\"",
            Reason::CredentialsRefused,
        ),
    ] {
        let (code, body) = refusal(403, "Forbidden", words);
        let patches = On::call("patch", "persistentvolumeclaims").always();
        bench.proxy.fail(patches, Fault::Refuse(code, body));
        let error = failed(bench.make(&sized(&bench, &class, 5), SET).await);
        assert_eq!(error.reason(), reason, "{error}");
        assert_eq!(kept(&bench).await.len(), 1);
        bench.proxy.heal();
    }
    let next = made(bench.make(&sized(&bench, &class, 1), SET).await).remove(0);
    bench.gone(&next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_claim_without_a_volume_is_handed_on_as_it_is() {
    let bench = Direct::start().await;
    // No volume has this class.
    let class = format!("{}-none", bench.namespace.name);
    let node = made(bench.make(&sized(&bench, &class, 1), SET).await).remove(0);
    let before = claim(&bench.namespace).await;
    retire(&bench, &node).await;
    let next = made(bench.make(&sized(&bench, &class, 5), SET).await).remove(0);
    let after = claim(&bench.namespace).await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(asked(&bench).await, "1Gi");
    bench.gone(&next).await;
}
