//! The parts over the rig, in a namespace of their own and behind their own proxy.

use std::time::Duration;

use drover_core::Result;
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::{Answers, Pods as _};
use drover_resources_kubernetes::{
    KubernetesConfigurations, KubernetesNetworkPolicies, KubernetesNodes, KubernetesPods,
    KubernetesServices,
    client::{ApiClient, ClientSettings},
};
use drover_testing::kubernetes::{FaultProxy, Namespace, Options, PATIENCE, Raw, Rig};
use futures::StreamExt as _;
use serde_json::{Value, json};

pub(crate) struct Bench {
    pub(crate) namespace: Namespace,
    pub(crate) proxy: FaultProxy,
    pub(crate) nodes: KubernetesNodes,
    pub(crate) pods: KubernetesPods,
    pub(crate) services: KubernetesServices,
    pub(crate) policies: KubernetesNetworkPolicies,
    pub(crate) configurations: KubernetesConfigurations,
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::on(Rig::shared(Options::kwok(3))).await
    }

    pub(crate) async fn on(rig: &Rig) -> Self {
        let namespace = rig.namespace().await;
        let proxy = FaultProxy::start(rig).await;
        let client = client(&proxy).await;
        Self {
            namespace,
            proxy,
            nodes: KubernetesNodes::new(client.clone()),
            pods: KubernetesPods::new(client.clone()),
            services: KubernetesServices::new(client.clone()),
            policies: KubernetesNetworkPolicies::new(client.clone()),
            configurations: KubernetesConfigurations::new(client),
        }
    }

    pub(crate) fn metadata(&self, name: &str) -> Option<api::Metadata> {
        Some(api::Metadata {
            namespace: self.namespace.name.clone(),
            name: name.to_owned(),
            labels: [("app".to_owned(), "test".to_owned())].into(),
            ..api::Metadata::default()
        })
    }

    /// A pod of an image that no node has, which kwok runs all the same.
    pub(crate) fn pod(&self, name: &str) -> api::Pod {
        api::Pod {
            metadata: self.metadata(name),
            spec: Some(api::PodSpec {
                containers: vec![api::Container {
                    name: "main".to_owned(),
                    image: "example.invalid/main:1".to_owned(),
                    ..api::Container::default()
                }],
                ..api::PodSpec::default()
            }),
            status: None,
        }
    }

    /// A pod that no node takes.
    pub(crate) fn unplaced(&self, name: &str) -> api::Pod {
        let mut pod = self.pod(name);
        let spec = pod.spec.as_mut().unwrap();
        spec.node_selector = [("no".to_owned(), "where".to_owned())].into();
        pod
    }

    pub(crate) fn wait(&self, names: &[&str]) -> api::WaitPodsRequest {
        api::WaitPodsRequest {
            namespace: self.namespace.name.clone(),
            names: names.iter().map(|&name| name.to_owned()).collect(),
            ..api::WaitPodsRequest::default()
        }
    }

    /// Creates a pod and waits until it is ready.
    pub(crate) async fn ready(&self, pod: api::Pod) -> api::Pod {
        let name = pod.metadata.as_ref().unwrap().name.clone();
        self.pods.create(pod).await.unwrap();
        let progress = self.pods.wait(self.wait(&[&name])).await.unwrap();
        done(progress).await.unwrap();
        self.pods.get(&self.namespace.name, &name).await.unwrap()
    }
}

/// Creates a node of kwok for tests that cordon and drain it. Pods come to it only by its name.
pub(crate) async fn node(raw: &Raw, name: &str, labels: &Value) {
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [{"key": "drover.dev/test", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "32", "memory": "64Gi", "pods": "110"},
            "capacity": {"cpu": "32", "memory": "64Gi", "pods": "110"},
        },
    });
    node["metadata"]["labels"]["kubernetes.io/hostname"] = name.into();
    raw.create("/api/v1/nodes", &node).await.unwrap();
}

/// A client whose calls pass through this proxy.
pub(crate) async fn client(proxy: &FaultProxy) -> ApiClient {
    let settings = ClientSettings {
        kubeconfig: Some(proxy.kubeconfig()),
        call_timeout: Duration::from_secs(5),
        ..ClientSettings::default()
    };
    ApiClient::open(&settings).await.unwrap()
}

/// The next answer, within the time that tests have.
pub(crate) async fn next<T>(answers: &mut Answers<T>) -> Option<Result<T>> {
    let next = tokio::time::timeout(PATIENCE, answers.next());
    next.await.expect("an answer in time")
}

/// All answers of a wait until it is done.
pub(crate) async fn done(
    mut progress: Answers<api::WaitProgress>,
) -> Result<Vec<api::WaitProgress>> {
    let mut told = Vec::new();
    while let Some(step) = next(&mut progress).await {
        told.push(step?);
    }
    assert!(told.last().is_some_and(|last| last.done), "{told:?}");
    Ok(told)
}

pub(crate) fn reasons(progress: &api::WaitProgress) -> Vec<(&str, &str)> {
    let pending = progress.pending.iter();
    pending
        .map(|it| (it.name.as_str(), it.reason.as_str()))
        .collect()
}
