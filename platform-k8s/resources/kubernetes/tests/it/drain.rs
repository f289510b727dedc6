//! Drains on a node of kwok, within real disruption budgets.

use std::time::Duration;

use drover_core::Reason;
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::Nodes as _;
use drover_testing::kubernetes::{Options, Rig, until};
use serde_json::{Value, json};

use crate::bench::{Bench, done, next};

/// A node of its own for a test that cordons it.
struct Node {
    bench: Bench,
    name: String,
}

impl Node {
    async fn start() -> Self {
        let bench = Bench::on(Rig::shared(Options::kwok(3))).await;
        let name = format!("drained-{}", bench.namespace.name);
        crate::bench::node(&bench.namespace.raw, &name, &json!({"type": "kwok"})).await;
        Self { bench, name }
    }

    async fn end(self) {
        let path = format!("/api/v1/nodes/{}", self.name);
        self.bench.namespace.raw.delete(&path).await.unwrap();
        self.bench.namespace.remove().await;
    }

    /// A pod on the node.
    async fn pod(&self, name: &str, owned: bool, volumes: Value) {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "drained"}},
            "spec": {
                "nodeName": self.name,
                "containers": [{"name": "main", "image": "example.invalid/main:1"}],
                "volumes": volumes,
            },
        });
        if owned {
            let owner =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
            let owner = self
                .bench
                .namespace
                .create("configmaps", &owner)
                .await
                .unwrap();
            pod["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "v1", "kind": "ConfigMap", "name": name,
                "uid": owner["metadata"]["uid"], "controller": true,
            }]);
        }
        self.bench.namespace.create("pods", &pod).await.unwrap();
        until("the pod runs", || async {
            let pod = self.bench.namespace.get("pods", name).await.unwrap();
            (pod["status"]["phase"] == "Running").then_some(())
        })
        .await;
    }

    fn request(&self) -> api::DrainNodeRequest {
        api::DrainNodeRequest {
            name: self.name.clone(),
            ..api::DrainNodeRequest::default()
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_evicted_if_one_pod_needs_force() {
    let node = Node::start().await;
    node.pod("owned", true, json!([])).await;
    node.pod("alone", false, json!([])).await;
    let Err(error) = node.bench.nodes.drain(node.request()).await else {
        panic!("not refused");
    };
    assert_eq!(error.reason(), Reason::Precondition);
    assert!(error.message().contains("alone") && !error.message().contains("owned"));
    assert_eq!(node.bench.namespace.list("pods").await.len(), 2);
    let left = node.bench.nodes.get(&node.name).await.unwrap();
    assert!(
        !left.unschedulable,
        "a drain that is refused changes nothing"
    );
    let mut request = node.request();
    request.force = true;
    request.grace_period = Some(prost_types::Duration::default());
    let told = done(node.bench.nodes.drain(request).await.unwrap()).await;
    let told = told.unwrap();
    assert_eq!((told[0].matched, told[0].met), (2, 0));
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_the_budget_and_names_it() {
    let node = Node::start().await;
    node.pod("a", true, json!([])).await;
    let budgets = format!(
        "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
        node.bench.namespace.name
    );
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "drained"}}},
    });
    let raw = &node.bench.namespace.raw;
    raw.create(&budgets, &budget).await.unwrap();
    until("the budget is known", || async {
        let budget = raw.get(&format!("{budgets}/keep")).await.unwrap();
        (budget["status"]["expectedPods"] == 1).then_some(())
    })
    .await;
    let mut drain = node.bench.nodes.drain(node.request()).await.unwrap();
    assert_eq!(next(&mut drain).await.unwrap().unwrap().matched, 1);
    let blocked = next(&mut drain).await.unwrap().unwrap();
    assert_eq!(blocked.pending[0].reason, "DisruptionBudget");
    assert!(blocked.pending[0].message.contains("keep"), "{blocked:?}");
    // Nobody else is kept from calling meanwhile. The budget asked for a pause of ten seconds.
    let call = node.bench.nodes.get(&node.name);
    let call = tokio::time::timeout(Duration::from_secs(8), call);
    call.await.expect("no pause").unwrap();
    raw.delete(&format!("{budgets}/keep")).await.unwrap();
    done(drain).await.unwrap();
    assert!(node.bench.namespace.list("pods").await.is_empty());
    node.end().await;
}
