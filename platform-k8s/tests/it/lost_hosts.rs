//! Pods on machines that no longer answer: what is known of them, and when they count as ended.

use crate::bench;

use bench::Bench;
use drover_proto::platform::v1::{DeprovisionState, NodeHost, NodeHostState, NodePhase};
use drover_testing::kubernetes::{
    manifests::{Places, built},
    until,
};
use serde_json::{Value, json};

const FINALIZER: &str = "drover.dev/tests";

async fn hold(bench: &Bench, pod: &str, finalizers: Value) {
    let patch = json!({"metadata": {"finalizers": finalizers}});
    bench.namespace.merge("pods", pod, &patch).await.unwrap();
}

async fn until_phase(bench: &Bench, id: &str, phase: NodePhase) {
    until(&format!("{id} is {phase:?}"), || async {
        let node = bench.node(id).await?;
        (node.phase() == phase).then_some(())
    })
    .await;
}

async fn set_status(bench: &Bench, pod: &str, status: Value) {
    let path = format!("{}/{pod}/status", bench.namespace.path("pods"));
    let patch = json!({"status": status});
    bench.namespace.raw.merge(&path, &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pod_that_has_ended_counts_as_ended_whoever_still_holds_it() {
    let bench = Bench::start().await;
    for phase in ["Failed", "Succeeded"] {
        let (_, nodes) = bench.make("pod", 1).await;
        bench.until_running().await;
        let id = nodes[0].node_id.clone();
        hold(&bench, &id, json!([FINALIZER])).await;
        let answer = bench.deprovision(&nodes[0]).await.unwrap();
        assert_eq!(answer.state(), DeprovisionState::Deprovisioning);
        until_phase(&bench, &id, NodePhase::Deprovisioning).await;
        set_status(&bench, &id, json!({"phase": phase})).await;
        until_phase(&bench, &id, NodePhase::Failed).await;
        let message = bench.node(&id).await.unwrap().message;
        assert!(message.contains(FINALIZER), "{message}");
        // It is still there, and its name and claims are not free.
        let answer = bench.deprovision(&nodes[0]).await.unwrap();
        assert_eq!(answer.state(), DeprovisionState::Deprovisioning);
        hold(&bench, &id, Value::Null).await;
        bench.remove(&nodes[0], phase).await;
    }
    bench.namespace.until_empty("ended pods").await;
}

#[test]
fn the_pod_of_the_platform_leaves_a_lost_host_long_before_others_do() {
    for folder in ["base", "all-namespaces", "hosts"] {
        let places = Places {
            system: "drover-system",
            nodes: "drover-nodes",
        };
        let all = built(folder, places);
        let deployment = all.iter().find(|it| it["kind"] == "Deployment").unwrap();
        let tolerations = &deployment["spec"]["template"]["spec"]["tolerations"];
        for taint in ["unreachable", "not-ready"] {
            let key = format!("node.kubernetes.io/{taint}");
            let mut tolerated = tolerations.as_array().unwrap().iter();
            let own = tolerated.find(|it| it["key"] == *key && it["effect"] == "NoExecute");
            let seconds = own.unwrap()["tolerationSeconds"].as_u64().unwrap();
            assert!(seconds <= 30, "{folder} {key}");
        }
    }
}

/// A machine of the test's own, on which nothing runs but what is put there by name.
struct Machine<'a> {
    bench: &'a Bench,
    name: String,
}

impl<'a> Machine<'a> {
    async fn add(bench: &'a Bench) -> Self {
        let name = format!("machine-{}", bench.namespace.name);
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"taints": [{"key": FINALIZER, "effect": "NoSchedule"}]},
        });
        let raw = &bench.namespace.raw;
        raw.create("/api/v1/nodes", &node).await.unwrap();
        let machine = Self { bench, name };
        machine.is_ready("True").await;
        machine
    }

    fn path(&self) -> String {
        format!("/api/v1/nodes/{}", self.name)
    }

    /// As a kubelet says it, or for a silent one the control plane.
    async fn is_ready(&self, status: &str) {
        let condition = json!({
            "type": "Ready", "status": status, "reason": "Tested", "message": "as the test says.",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = json!({"status": {"conditions": [condition]}});
        let path = format!("{}/status", self.path());
        self.bench
            .namespace
            .raw
            .merge(&path, &status)
            .await
            .unwrap();
    }

    async fn is_out_of_service(&self) {
        let taints = json!([
            {"key": FINALIZER, "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"},
        ]);
        let patch = json!({"spec": {"taints": taints}});
        let raw = &self.bench.namespace.raw;
        raw.merge(&self.path(), &patch).await.unwrap();
    }

    async fn remove(&self) {
        self.bench.namespace.raw.delete(&self.path()).await.unwrap();
    }

    /// A pod there, which is a node and which a finalizer holds.
    async fn pod(&self, name: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "labels": {"drover.dev/cluster": self.bench.cluster},
                "finalizers": [FINALIZER],
            },
            "spec": {
                "nodeName": self.name, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "example.invalid/main:1"}],
            },
        });
        let namespace = &self.bench.namespace;
        namespace.create("pods", &pod).await.unwrap();
        set_status(self.bench, name, json!({"phase": "Running"})).await;
        until_phase(self.bench, name, NodePhase::Running).await;
    }

    async fn until_shown(&self, pod: &str, state: NodeHostState) -> NodeHost {
        let what = format!("{} is {state:?}", self.name);
        let host = until(&what, || async {
            let host = self.bench.node(pod).await?.host?;
            (host.state() == state).then_some(host)
        })
        .await;
        assert_eq!(host.name, self.name);
        host
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_on_a_silent_machine_has_ended_only_when_somebody_gave_the_machine_up() {
    let bench = Bench::start().await;
    let machine = Machine::add(&bench).await;
    machine.pod("db-0").await;
    machine.until_shown("db-0", NodeHostState::Ready).await;
    machine.is_ready("Unknown").await;
    let host = machine
        .until_shown("db-0", NodeHostState::Unreachable)
        .await;
    let since = "Ready is Unknown since 2026-01-01T00:00:00Z (Tested: as the test says)";
    assert_eq!(host.message, since);
    let taint = format!(
        "`kubectl taint node {} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`",
        machine.name
    );
    assert!(host.way_out.contains(&taint), "{host:?}");
    bench.namespace.delete("pods", "db-0").await;
    until_phase(&bench, "db-0", NodePhase::Deprovisioning).await;
    machine.is_out_of_service().await;
    machine.until_shown("db-0", NodeHostState::Gone).await;
    // By the word of Kubernetes, which forgets the pod then; here a finalizer holds it.
    until_phase(&bench, "db-0", NodePhase::Failed).await;
    hold(&bench, "db-0", Value::Null).await;
    machine.remove().await;
    bench
        .namespace
        .until_empty("a machine out of service")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_machine_was_deleted_has_ended_by_the_word_of_kubernetes() {
    let bench = Bench::start().await;
    let machine = Machine::add(&bench).await;
    machine.pod("db-0").await;
    machine.until_shown("db-0", NodeHostState::Ready).await;
    machine.remove().await;
    let host = machine.until_shown("db-0", NodeHostState::Gone).await;
    assert_eq!(host.message, "its Node object is gone");
    // A platform that begins after that knows it, too.
    bench.reborn().await;
    machine.until_shown("db-0", NodeHostState::Gone).await;
    until_phase(&bench, "db-0", NodePhase::Failed).await;
    hold(&bench, "db-0", Value::Null).await;
    bench.namespace.until_empty("a machine that is gone").await;
}
