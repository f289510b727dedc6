//! Pods whose controller is their namespace, so that drains evict them without force.

use drover_core::{Reason, Result};
use drover_proto::platform::v1::{Node, NodeChange, update_node_request::Update};
use drover_testing::{
    kubernetes::{Fault, Namespace, On, until},
    platform::requests,
};
use serde_json::{Value, json};
use uuid::Uuid;

use drover_proto::platform::v1::Storage;

use crate::{
    bench::Bench,
    direct::{Direct, SET, made},
};

/// The reference of a namespace, as the pods in it have it.
async fn home(namespace: &Namespace) -> Value {
    let path = format!("/api/v1/namespaces/{}", namespace.name);
    let read = namespace.raw.get(&path).await.unwrap();
    json!({
        "apiVersion": "v1", "kind": "Namespace", "name": namespace.name,
        "uid": read["metadata"]["uid"], "controller": true,
    })
}

async fn owners(namespace: &Namespace, pod: &str) -> Value {
    let pod = namespace.get("pods", pod).await.unwrap();
    pod["metadata"]["ownerReferences"].clone()
}

/// A template of a pod with these owners.
fn pod(owners: &Value) -> String {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "{{ platform.name }}", "ownerReferences": owners},
        "spec": {"containers": [{"name": "main", "image": "example.invalid/main:1"}]},
    });
    pod.to_string()
}

async fn change(bench: &Bench, node: &Node, label: &str) {
    let change = NodeChange {
        set_labels: [("changed".to_owned(), label.to_owned())].into(),
        ..NodeChange::default()
    };
    let uid = bench.platform().await.uid;
    let request = requests::update(&uid, bench.fence(), node, Update::Change(change));
    bench.update(&request).await.unwrap();
}

async fn adopt(bench: &Bench, node: &Node, heir: Uuid) -> Result<Node> {
    let uid = bench.platform().await.uid;
    let request = requests::adoption(&uid, bench.fence(), node, (&node.cluster_id, heir));
    bench.update(&request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_under_its_namespace_and_the_garbage_collector_leaves_it() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("pod", 1).await;
    let before = bench
        .namespace
        .get("pods", &nodes[0].node_id)
        .await
        .unwrap();
    let home = home(&bench.namespace).await;
    assert_eq!(before["metadata"]["ownerReferences"], json!([home]));
    // What names a namespace of this name that is gone is collected, whether it was made before the collector saw that or
    // after.
    let mut gone = home.clone();
    gone["uid"] = Uuid::new_v4().to_string().into();
    for name in ["one", "two"] {
        let metadata = json!({"ownerReferences": [gone]});
        bench.namespace.pod(name, metadata).await;
        until("the other pod is collected", || async {
            bench.namespace.get("pods", name).await.err().map(drop)
        })
        .await;
    }
    let after = bench
        .namespace
        .get("pods", &nodes[0].node_id)
        .await
        .unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["deletionTimestamp"], Value::Null);
    bench.clean("as any other node").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_may_name_another_controller_and_other_owners() {
    let bench = Direct::start().await;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}});
    let owner = bench.namespace.create("configmaps", &owner).await.unwrap();
    let home = home(&bench.namespace).await;
    for controls in [true, false] {
        let mut own = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
        });
        if controls {
            own["controller"] = true.into();
        }
        let node = bench.one(&pod(&json!([own]))).await;
        let expected = if controls {
            json!([own])
        } else {
            json!([own, home])
        };
        assert_eq!(owners(&bench.namespace, &node.node_id).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_claim_would_go_with_it_is_not_evicted_without_force() {
    let bench = Direct::start().await;
    let home = home(&bench.namespace).await;
    let node = made(bench.make(&bench.request(1), SET).await).remove(0);
    assert_eq!(owners(&bench.namespace, &node.node_id).await, Value::Null);
    let mut kept = bench.request(1);
    kept.storage = Some(Storage {
        size_bytes: Some(1 << 30),
        class: String::new(),
    });
    let node = made(bench.make(&kept, SET).await).remove(0);
    assert_eq!(owners(&bench.namespace, &node.node_id).await, json!([home]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_workload_makes_has_that_as_its_controller_alone() {
    let bench = Bench::start().await;
    bench.make("stateful", 1).await;
    let pod = until("the pod is there", || async {
        bench.namespace.list("pods").await.into_iter().next()
    })
    .await;
    let owners = pod["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(owners.len(), 1);
    assert_eq!(owners[0]["kind"], "StatefulSet");
    let set = bench.namespace.list("statefulsets.apps").await.remove(0);
    assert_eq!(set["metadata"]["ownerReferences"], Value::Null);
    bench.clean("a workload").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_is_completed_with_it_unless_another_controller_has_the_pod_by_now() {
    let bench = Direct::start().await;
    let home = home(&bench.namespace).await;
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}});
    let other = bench.namespace.create("configmaps", &other).await.unwrap();
    let other = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other["metadata"]["uid"], "controller": true,
    });
    let template = pod(&json!(null));
    for (there, expected) in [
        (json!(null), json!([home])),
        (json!([home]), json!([home])),
        (json!([other]), json!([other])),
    ] {
        let request = bench.request(1);
        let node = made(bench.make(&request, &template).await).remove(0);
        assert_eq!(owners(&bench.namespace, &node.node_id).await, json!([home]));
        let patch = json!({"metadata": {"ownerReferences": there}});
        let id = &node.node_id;
        bench.namespace.merge("pods", id, &patch).await.unwrap();
        made(bench.make(&request, &template).await);
        assert_eq!(owners(&bench.namespace, id).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_an_earlier_version_gets_it_with_the_next_change_and_keeps_its_other_owners() {
    let bench = Bench::start().await;
    let home = home(&bench.namespace).await;
    let (_, nodes) = bench.make("pod", 1).await;
    let id = &nodes[0].node_id;
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}});
    let other = bench.namespace.create("configmaps", &other).await.unwrap();
    let other = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other["metadata"]["uid"],
        "blockOwnerDeletion": true,
    });
    for (round, before) in [("1", json!(null)), ("2", json!([other]))] {
        let patch = json!({"metadata": {"ownerReferences": before}});
        bench.namespace.merge("pods", id, &patch).await.unwrap();
        change(&bench, &nodes[0], round).await;
        let now = owners(&bench.namespace, id).await;
        let now = now.as_array().unwrap();
        assert!(now.contains(&home), "{now:?}");
        for one in before.as_array().into_iter().flatten() {
            assert!(now.contains(one), "{now:?}");
        }
        assert_eq!(now.len(), before.as_array().map_or(0, Vec::len) + 1);
    }
    // That it cannot be given is no reason to refuse the change.
    let patch = json!({"metadata": {"ownerReferences": null}});
    bench.namespace.merge("pods", id, &patch).await.unwrap();
    bench
        .proxy()
        .fail(On::call("patch", "pods").nth(2), Fault::internal());
    change(&bench, &nodes[0], "3").await;
    assert_eq!(bench.proxy().faults_left(), 0);
    assert_eq!(owners(&bench.namespace, id).await, Value::Null);
    bench.namespace.delete("configmaps", "other").await;
    bench.clean("an earlier version").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_under_its_namespace_is_adopted_and_so_is_a_pod_of_others_which_gets_it() {
    let bench = Bench::start().await;
    let home = home(&bench.namespace).await;
    let (_, mut nodes) = bench.make("pod", 1).await;
    let labels = json!({"labels": {"drover.dev/cluster": bench.cluster}});
    bench.namespace.pod("stray", labels).await;
    nodes.push(until("the other pod is seen", || bench.node("stray")).await);
    for node in &nodes {
        let pod = bench.namespace.get("pods", &node.node_id).await.unwrap();
        let heir = Uuid::new_v4();
        let adopted = adopt(&bench, node, heir).await.unwrap();
        assert_eq!(adopted.slot.as_ref().unwrap().owner, heir.to_string());
        let late = adopt(&bench, node, Uuid::new_v4()).await;
        assert_eq!(late.unwrap_err().reason(), Reason::NodeNotInCluster);
        let now = bench.namespace.get("pods", &node.node_id).await.unwrap();
        assert_eq!(now["metadata"]["ownerReferences"], json!([home]));
        assert_eq!(now["metadata"]["uid"], pod["metadata"]["uid"]);
        bench.remove(&adopted, "an adopted node").await;
    }
    bench.namespace.until_empty("adopted nodes").await;
}
