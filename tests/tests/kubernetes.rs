//! Whole clusters on Kubernetes: the real orchestrator, the real platform, a real API server with nodes of kwok.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod embedded;
#[path = "../../platform-k8s/tests/support/mod.rs"]
mod support;

use std::{collections::BTreeMap, path::Path};

use drover_platform_cloud::{DriverSettings, drivers::local};
use drover_platform_k8s::Settings;
use drover_proto::orchestrator::v1 as pb;
use embedded::{World, group_on};
use serde_json::json;
use support::{Options, Rig, until};

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

/// A platform of one namespace whose nodes are ready when their pods are.
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
    // What starts the processes: cargo builds it beside the tests.
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
    // Both servers die, and so does a pod.
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
    // Not even a service of those that the quota kept out.
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
    // No node of the rig has as much.
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
