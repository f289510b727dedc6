//! End-to-end tests on Kubernetes: the real orchestrator, the real platform, and a real API server with kwok nodes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::embedded;

use std::{collections::BTreeMap, path::Path, time::Duration};

use drover_platform_cloud::{DriverSettings, drivers::local};
use drover_platform_k8s::Settings;
use drover_proto::{
    common::v1::{LabelOperator, LabelRequirement, LabelSelector},
    orchestrator::v1 as pb,
};
use drover_testing::kubernetes::{Options, Raw, Rig, until};
use embedded::{World, group_on};
use serde_json::{Value, json};

const CALL: Duration = Duration::from_secs(60);

const TEMPLATE: &str = "\
apiVersion: v1
kind: Service
metadata: {name: {{ node.id }}}
spec: {clusterIP: None, selector: {drover.dev/node: {{ node.id }}}, ports: [{port: 7000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: {{ node.id }}}
spec:
  automountServiceAccountToken: false
  containers: [{name: main, image: 'example.invalid/main:1', ports: [{name: client, containerPort: 7000}]}]
";

fn rig() -> &'static Rig {
    Rig::shared(Options::kwok(3))
}

/// A platform over one namespace whose nodes are ready when their pods are.
fn on_kubernetes(rig: &Rig, namespace: &str, directory: &Path) -> Settings {
    let catalogue = directory.join("catalogue");
    std::fs::create_dir_all(&catalogue).unwrap();
    std::fs::write(catalogue.join("node.yaml"), TEMPLATE).unwrap();
    std::fs::write(
        catalogue.join("index.yaml"),
        "default: {template: node.yaml}\n",
    )
    .unwrap();
    Settings {
        kubeconfig: Some(rig.kubeconfig().to_owned()),
        namespaces: vec![namespace.to_owned()],
        templates: Some(catalogue),
        ..Settings::default()
    }
}

fn group(name: &str, size: u32, platforms: &[&str]) -> pb::GroupSpec {
    pb::GroupSpec {
        name: name.to_owned(),
        size: Some(size),
        platforms: platforms
            .iter()
            .map(|name| pb::PlatformChoice {
                name: (*name).to_owned(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

fn by_platform(nodes: &[pb::Node]) -> BTreeMap<&str, usize> {
    let mut count = BTreeMap::new();
    for node in nodes {
        *count.entry(node.platform.as_str()).or_default() += 1;
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_cluster_has_pods_and_processes() {
    let rig = rig();
    let namespace = rig.namespace().await;
    let mut world = World::new().await;
    let directory = world.directory.path().to_owned();
    world
        .add("k8s", on_kubernetes(rig, &namespace.name, &directory))
        .await;
    let mut local = local::Settings::new(directory.join("local")).unwrap();
    // The launcher of the processes, which cargo builds next to the tests.
    let own = std::env::current_exe().unwrap();
    local.launcher = own
        .ancestors()
        .nth(2)
        .unwrap()
        .join("drover-platform-cloud");
    world.add("local", DriverSettings::Local(local)).await;
    let spec = pb::ClusterSpec {
        groups: vec![
            group("pods", 3, &["k8s"]),
            group("processes", 2, &["local"]),
        ],
        ..Default::default()
    };
    world.apply("mixed", spec.clone()).await;
    world.ready("mixed", 5).await;
    let nodes = world.nodes("mixed").await;
    assert_eq!(by_platform(&nodes), [("k8s", 3), ("local", 2)].into());
    assert_eq!(namespace.list("pods").await.len(), 3);
    // Both servers are killed, and a pod dies.
    world.kill_orchestrator().await;
    world.kill_platform("k8s").await;
    let victim = nodes.iter().find(|node| node.platform == "k8s").unwrap();
    namespace.delete("pods", &victim.id).await;
    world
        .until("the pod is replaced", async |world| {
            let now = world.nodes("mixed").await;
            let ready = |node: &&pb::Node| node.state() == pb::NodeState::Ready;
            now.iter().filter(ready).count() == 5 && now.iter().all(|node| node.id != victim.id)
        })
        .await;
    let kept = |nodes: &[pb::Node]| -> Vec<String> {
        let others = nodes.iter().filter(|node| node.id != victim.id);
        let mut ids: Vec<_> = others.map(|node| node.id.clone()).collect();
        ids.sort();
        ids
    };
    let now = world.nodes("mixed").await;
    let before = kept(&nodes);
    assert!(
        before
            .iter()
            .all(|id| now.iter().any(|node| node.id == *id))
    );
    world.delete("mixed").await;
    world.gone("mixed").await;
    namespace.until_empty("after the cluster").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_quota_does_not_let_in_goes_to_the_next_platform() {
    let rig = rig();
    let namespace = rig.namespace().await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}},
    });
    namespace.create("resourcequotas", &quota).await.unwrap();
    until("the quota counts", || async {
        let quota = namespace.get("resourcequotas", "few").await.ok()?;
        quota["status"]["hard"]["pods"].is_string().then_some(())
    })
    .await;
    let mut world = World::new().await;
    let directory = world.directory.path().to_owned();
    world
        .add("k8s", on_kubernetes(rig, &namespace.name, &directory))
        .await;
    let simulated = DriverSettings::Simulated(Box::default());
    world.add("simulated", simulated).await;
    let mut spec = group_on("k8s", 5);
    spec.platforms.push(pb::PlatformChoice {
        name: "simulated".to_owned(),
        ..Default::default()
    });
    world.apply("spilled", spec).await;
    world.ready("spilled", 5).await;
    let nodes = world.nodes("spilled").await;
    assert_eq!(by_platform(&nodes), [("k8s", 2), ("simulated", 3)].into());
    // Nodes rejected by the quota do not leave services behind.
    assert_eq!(namespace.list("services").await.len(), 2);
    world.delete("spilled").await;
    world.gone("spilled").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_scheduled_goes_to_the_next_platform() {
    let rig = rig();
    let namespace = rig.namespace().await;
    let mut world = World::new().await;
    let directory = world.directory.path().to_owned();
    let mut settings = on_kubernetes(rig, &namespace.name, &directory);
    settings.unschedulable_timeout_seconds = 1.0;
    world.add("k8s", settings).await;
    let simulated = DriverSettings::Simulated(Box::default());
    world.add("simulated", simulated).await;
    let mut spec = group_on("k8s", 3);
    // No node of the rig has that much CPU.
    spec.properties = json!({"resources": {"requests": {"cpu": "1000"}}})
        .as_object()
        .map(drover_convert::value::to_struct);
    spec.platforms[0].properties = spec.properties.take();
    spec.platforms.push(pb::PlatformChoice {
        name: "simulated".to_owned(),
        ..Default::default()
    });
    world.apply("unplaced", spec).await;
    world
        .until("all nodes are on the other platform", async |world| {
            let nodes = world.nodes("unplaced").await;
            let ready = |node: &pb::Node| {
                node.platform == "simulated" && node.state() == pb::NodeState::Ready
            };
            nodes.len() == 3 && nodes.iter().all(ready)
        })
        .await;
    world.delete("unplaced").await;
    world.gone("unplaced").await;
    namespace.until_empty("after the cluster").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_others_are_adopted_and_are_nodes_as_any_others() {
    let rig = rig();
    let namespace = rig.namespace().await;
    for name in ["old-a", "old-b"] {
        let labels = json!({"labels": {"drover.dev/cluster": "legacy", "app": "old"}});
        namespace.pod(name, labels).await;
    }
    let mut world = World::new().await;
    let directory = world.directory.path().to_owned();
    world
        .add("k8s", on_kubernetes(rig, &namespace.name, &directory))
        .await;
    let spec = |size| pb::ClusterSpec {
        groups: vec![group("web", size, &["k8s"])],
        ..Default::default()
    };
    let apply = async |world: &World, validate_only: bool| {
        let request = pb::ApplyClusterRequest {
            cluster: Some(pb::Cluster {
                name: "legacy".to_owned(),
                spec: Some(spec(3)),
                ..Default::default()
            }),
            adopt: true,
            validate_only,
            ..Default::default()
        };
        world.client().apply_cluster(request, CALL).await
    };
    world
        .until("the pods are seen, and would be adopted", async |world| {
            let answer = apply(world, true).await.unwrap();
            let actions = answer.plan.unwrap().actions.into_iter();
            let adopts = actions.filter(|action| action.kind() == pb::ActionKind::Adopt);
            adopts.map(|action| action.count).sum::<u32>() == 2
        })
        .await;
    apply(&world, false).await.unwrap();
    // Even if both servers crash meanwhile, no replacement is created for an adopted pod.
    world.kill_orchestrator().await;
    world.kill_platform("k8s").await;
    world.ready("legacy", 3).await;
    let nodes = world.nodes("legacy").await;
    for name in ["old-a", "old-b"] {
        let node = nodes
            .iter()
            .find(|node| node.platform_node_id.as_deref() == Some(name));
        assert!(
            node.is_some_and(|it| it.name.starts_with("web-")),
            "{nodes:?}"
        );
        let pod = namespace.get("pods", name).await.unwrap();
        assert_eq!(pod["metadata"]["labels"]["drover.dev/group"], "web");
    }
    assert_eq!(namespace.list("pods").await.len(), 3);
    // A dead adopted pod is replaced by one from the template; the others continue.
    namespace.delete("pods", "old-a").await;
    world
        .until("the pod is replaced", async |world| {
            let nodes = world.nodes("legacy").await;
            let ready = |node: &&pb::Node| node.state() == pb::NodeState::Ready;
            nodes.iter().filter(ready).count() == 3
                && nodes
                    .iter()
                    .all(|node| node.platform_node_id.as_deref() != Some("old-a"))
        })
        .await;
    let pods = namespace.list("pods").await;
    assert!(pods.iter().any(|pod| pod["metadata"]["name"] == "old-b"));
    world.delete("legacy").await;
    world.gone("legacy").await;
    namespace.until_empty("after the cluster").await;
    world.end().await;
}

/// Makes a host for the pods that select it by this label.
async fn host(raw: &Raw, name: &str, label: &str) {
    let size = json!({"cpu": "32", "memory": "64Gi", "pods": "110"});
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "labels": {"only": label, "kubernetes.io/hostname": name},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [{"key": "only", "effect": "NoSchedule"}]},
        "status": {"allocatable": size, "capacity": size},
    });
    raw.create("/api/v1/nodes", &node).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_drained_without_force_and_its_pods_are_replaced_on_another() {
    let rig = rig();
    let namespace = rig.namespace().await;
    // Hosts of its own, because a drain keeps pods of other tests away, too.
    let hosts = ["a", "b"].map(|it| format!("drained-{it}-{}", namespace.name));
    for name in &hosts {
        host(&namespace.raw, name, &namespace.name).await;
    }
    let mut world = World::new().await;
    let directory = world.directory.path().to_owned();
    world
        .add("k8s", on_kubernetes(rig, &namespace.name, &directory))
        .await;
    let mut spec = group_on("k8s", 2);
    spec.properties = json!({
        "nodeSelector": {"only": namespace.name},
        "tolerations": [{"key": "only", "operator": "Exists"}],
    })
    .as_object()
    .map(drover_convert::value::to_struct);
    spec.platforms[0].properties = spec.properties.take();
    world.apply("moved", spec).await;
    world.ready("moved", 2).await;
    let places = async || -> Vec<String> {
        let pods = namespace.list("pods").await;
        let host = |pod: &Value| {
            pod["spec"]["nodeName"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        pods.iter().map(host).collect()
    };
    let drained = places().await.remove(0);
    rig.kubectl(&["drain", &drained, "--ignore-daemonsets"])
        .await;
    world
        .until("all nodes are on the other host", async |world| {
            let ready = |node: &pb::Node| node.state() == pb::NodeState::Ready;
            let (nodes, places) = (world.nodes("moved").await, places().await);
            let moved = |it: &String| hosts.contains(it) && *it != drained;
            nodes.len() == 2
                && nodes.iter().all(ready)
                && places.len() == 2
                && places.iter().all(moved)
        })
        .await;
    world.delete("moved").await;
    world.gone("moved").await;
    namespace.until_empty("after the cluster").await;
    for name in &hosts {
        let path = format!("/api/v1/nodes/{name}");
        namespace.raw.delete(&path).await.unwrap();
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_where_the_labels_of_their_machines_say() {
    let rig = rig();
    let namespace = rig.namespace().await;
    let mut world = World::new().await;
    let directory = world.directory.path().to_owned();
    world
        .add("k8s", on_kubernetes(rig, &namespace.name, &directory))
        .await;
    let placed = |labels: LabelSelector| {
        let mut group = group("web", 2, &["k8s"]);
        group.placement = Some(pb::Placement {
            selector: Some(labels),
            ..Default::default()
        });
        pb::ClusterSpec {
            groups: vec![group],
            ..Default::default()
        }
    };
    let selector = LabelSelector {
        match_labels: [(
            "topology.kubernetes.io/zone".to_owned(),
            "zone-b".to_owned(),
        )]
        .into(),
        match_expressions: vec![LabelRequirement {
            key: "type".to_owned(),
            operator: LabelOperator::Exists.into(),
            values: Vec::new(),
        }],
    };
    world.apply("chosen", placed(selector)).await;
    world.ready("chosen", 2).await;
    let nodes = world.nodes("chosen").await;
    let zones: Vec<&str> = nodes.iter().map(|it| it.failure_domain.as_str()).collect();
    assert_eq!(zones, ["zone-b"; 2]);
    world.delete("chosen").await;
    world.gone("chosen").await;
    // If no machine matches, the scheduler's message is reported.
    let nowhere = LabelSelector {
        match_labels: [("disk".to_owned(), "of-glass".to_owned())].into(),
        ..LabelSelector::default()
    };
    world.apply("nowhere", placed(nowhere)).await;
    world
        .until("it is said why", async |world| {
            let nodes = world.nodes("nowhere").await;
            nodes.len() == 2 && nodes.iter().all(|it| it.message.contains("didn't match"))
        })
        .await;
    world.delete("nowhere").await;
    world.gone("nowhere").await;
    namespace.until_empty("after the cluster").await;
    world.end().await;
}
