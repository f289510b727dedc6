//! Nodes whose role and labels change while they run, on a real API server: pods agree with the object that stands for
//! their node, whenever they are created.

use crate::bench;

use bench::Bench;
use drover_core::{Class, Result};
use drover_proto::platform::v1::{Node, NodeChange, NodeRole, update_node_request::Update};
use drover_testing::{
    kubernetes::{Fault, On, refusal, until},
    platform::requests,
};
use serde_json::Value;

/// Stores whose pods are recreated by a controller: from a template that an update of a node must not change, and from
/// one that it may.
const MADE_ANEW: [&str; 2] = ["deployed", "stateful"];

async fn change(bench: &Bench, node: &Node, change: NodeChange) -> Result<Node> {
    let uid = bench.platform().await.uid;
    let request = requests::update(&uid, bench.fence(), node, Update::Change(change));
    bench.update(&request).await
}

/// A change to standby that adds one label and removes one.
fn demoted() -> NodeChange {
    NodeChange {
        role: NodeRole::Standby.into(),
        set_labels: [("tier".to_owned(), "hot".to_owned())].into(),
        remove_labels: vec!["team".to_owned()],
        ..NodeChange::default()
    }
}

/// Labels of the node's pods that are not being deleted: role, tier, team.
async fn pods(bench: &Bench, node: &Node) -> Vec<(String, [Value; 3])> {
    let mut pods = bench.namespace.list("pods").await;
    pods.retain(|pod| {
        let metadata = &pod["metadata"];
        metadata["labels"]["drover.dev/node"] == *node.node_id
            && metadata["deletionTimestamp"].is_null()
    });
    let labels = |pod: &Value| {
        let metadata = &pod["metadata"];
        let label = |key: &str| metadata["labels"][key].clone();
        let ours = |key: &str| label(&format!("drover.dev/label.{key}"));
        let name = metadata["name"].as_str().unwrap().to_owned();
        let uid = metadata["uid"].as_str().unwrap();
        let found = [label("drover.dev/role"), ours("tier"), ours("team")];
        (format!("{name} {uid}"), found)
    };
    pods.iter().map(labels).collect()
}

/// Waits until the node has one pod, with the demoted role and labels. Returns its name.
async fn until_followed(bench: &Bench, node: &Node, what: &str) -> String {
    until(what, || async {
        let pods = pods(bench, node).await;
        let [(pod, labels)] = &pods[..] else {
            return None;
        };
        let followed = *labels == ["standby".into(), "hot".into(), Value::Null];
        followed.then(|| pod.clone())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_made_anew_has_the_role_of_its_node() {
    for store in MADE_ANEW {
        let bench = Bench::start().await;
        let (_, nodes) = bench.make(store, 1).await;
        change(&bench, &nodes[0], demoted()).await.unwrap();
        let before = until_followed(&bench, &nodes[0], "the pod is demoted").await;
        let name = before.split(' ').next().unwrap();
        bench.namespace.delete("pods", name).await;
        until("another pod is there", || async {
            let pods = pods(&bench, &nodes[0]).await;
            pods.iter().any(|(pod, _)| *pod != before).then_some(())
        })
        .await;
        until_followed(
            &bench,
            &nodes[0],
            "the other pod has the role and the labels",
        )
        .await;
        let node = bench.node(&nodes[0].node_id).await.unwrap();
        assert_eq!(node.role(), NodeRole::Standby, "{store}");
        assert_eq!(node.labels.get("tier").map(String::as_str), Some("hot"));
        bench.clean(store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_before_the_first_pod_is_not_lost() {
    for store in MADE_ANEW {
        let bench = Bench::start().await;
        for _ in 0..5 {
            // The pod may be created before or after the change.
            let (_, nodes) = bench.make(store, 1).await;
            change(&bench, &nodes[0], demoted()).await.unwrap();
            until_followed(&bench, &nodes[0], store).await;
            let labels = NodeChange {
                set_labels: [("tier".to_owned(), "cold".to_owned())].into(),
                ..NodeChange::default()
            };
            let node = change(&bench, &nodes[0], labels).await.unwrap();
            assert_eq!(node.role(), NodeRole::Standby, "{store}: it stays");
            bench.clean(store).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_has_begun_does_not_say_that_nothing_happened() {
    for (code, reason, words) in [
        (422, "Invalid", "metadata.uid: field is immutable"),
        (
            403,
            "Forbidden",
            "admission webhook \"w\" denied the request",
        ),
    ] {
        let bench = Bench::start().await;
        let (_, nodes) = bench.make("deployed", 1).await;
        bench.until_running().await;
        let (status, body) = refusal(code, reason, words);
        let patches = On::call("patch", "pods").always();
        bench.proxy().fail(patches, Fault::Refuse(status, body));
        let error = change(&bench, &nodes[0], demoted()).await.unwrap_err();
        assert_eq!(error.class(), Class::Unknown, "{error}");
        bench.proxy().heal();
        change(&bench, &nodes[0], demoted()).await.unwrap();
        until_followed(&bench, &nodes[0], words).await;
        bench.clean(words).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_a_change_it_can_be_repeated() {
    for fault in [Fault::internal(), Fault::internal_after(), Fault::DieBefore] {
        let bench = Bench::start().await;
        for n in 1..20 {
            let (_, nodes) = bench.make("deployed", 1).await;
            bench.until_running().await;
            bench.proxy().fail(On::change().nth(n), fault.clone());
            let outcome = change(&bench, &nodes[0], demoted()).await;
            let met = bench.proxy().faults_left() == 0;
            let what = format!("{}, change {n}: {outcome:?}", fault.name());
            bench.recover(&fault).await;
            change(&bench, &nodes[0], demoted()).await.expect(&what);
            until_followed(&bench, &nodes[0], &what).await;
            bench.clean(&what).await;
            if !met {
                assert!(n > 2, "what stands for it and its pod: {what}");
                break;
            }
        }
    }
}
