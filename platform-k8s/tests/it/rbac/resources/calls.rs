//! All calls, as the rows say.

use std::sync::atomic::{AtomicU32, Ordering};

use drover_client::{Channel, to_error};
use drover_core::Result;
use drover_proto::kubernetes::v1::{
    self as api,
    IngressBackend::{HttpRoute, Ingress, Unspecified, VirtualService},
    configuration_service_client::ConfigurationServiceClient,
    exec_request,
    network_policy_service_client::NetworkPolicyServiceClient,
    node_service_client::NodeServiceClient,
    pod_service_client::PodServiceClient,
    service_service_client::ServiceServiceClient,
};
use drover_testing::kubernetes::{FaultProxy, Namespace, until};
use serde_json::json;
use tonic::{Response, Status, Streaming};

use super::{
    ingresses::ingress,
    rows::{Row, UPSTREAMS},
};

/// Who calls, and what the calls are about.
pub(super) struct Caller {
    pub(super) channel: Channel,
    pub(super) namespace: Namespace,
    /// Where Gloo's upstreams are.
    pub(super) gloo: Namespace,
    /// A node of its own.
    pub(super) node: String,
    names: AtomicU32,
}

pub(super) async fn done<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T> {
    let answer = call.await.map_err(|status| to_error(&status))?;
    Ok(answer.into_inner())
}

/// To its end.
async fn all<T>(call: impl Future<Output = Result<Response<Streaming<T>>, Status>>) -> Result<()> {
    to_the_end(done(call).await?).await
}

/// The statuses of watches that were answered.
pub(super) fn watches(proxy: &FaultProxy, kind: &str) -> Vec<u16> {
    let calls = proxy.calls().into_iter();
    let watches = calls.filter(|call| call.verb == "watch" && call.resource == kind);
    watches.filter_map(|call| call.status).collect()
}

/// A wait for what never comes: it is well if the API server lets it watch.
async fn until_watched<T>(
    answers: Streaming<T>,
    proxy: &FaultProxy,
    kind: &str,
    before: usize,
) -> Result<()> {
    let watched = until("it is watched for", || async {
        let status = watches(proxy, kind).get(before).copied();
        status.filter(|status| *status == 200)
    });
    // The call only goes on while its answers are read.
    tokio::select! {
        _ = watched => Ok(()),
        outcome = to_the_end(answers) => outcome,
    }
}

async fn to_the_end<T>(mut answers: Streaming<T>) -> Result<()> {
    while let Some(_answer) = answers
        .message()
        .await
        .map_err(|status| to_error(&status))?
    {}
    Ok(())
}

impl Caller {
    pub(super) async fn new(channel: Channel, namespace: Namespace, gloo: Namespace) -> Self {
        let node = format!("drained-{}", namespace.name);
        let size = json!({"cpu": "32", "memory": "64Gi", "pods": "110"});
        let object = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": node, "annotations": {"kwok.x-k8s.io/node": "fake"}},
            // Pods come to it only by its name.
            "spec": {"taints": [{"key": "drover.dev/test", "effect": "NoSchedule"}]},
            "status": {"allocatable": size, "capacity": size},
        });
        let nodes = "/api/v1/nodes";
        namespace.raw.create(nodes, &object).await.unwrap();
        Self {
            channel,
            namespace,
            gloo,
            node,
            names: AtomicU32::new(0),
        }
    }

    pub(super) fn fresh(&self) -> String {
        format!("new-{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn space(&self) -> String {
        self.namespace.name.clone()
    }

    pub(super) fn metadata(&self, name: &str) -> Option<api::Metadata> {
        Some(api::Metadata {
            namespace: self.space(),
            name: name.to_owned(),
            labels: [("app".to_owned(), "test".to_owned())].into(),
            ..api::Metadata::default()
        })
    }

    /// What most calls are about.
    pub(super) async fn prepare(&self) {
        self.create_pod("pod", "").await.unwrap();
        self.create_service("web").await.unwrap();
        self.create_policy("policy").await.unwrap();
        self.create_configuration("configuration").await.unwrap();
        for backend in [Ingress, HttpRoute, VirtualService] {
            self.create_ingress(&ingress(backend), backend)
                .await
                .unwrap();
        }
        self.upstream("web").await;
        until("the node is ready and the pod runs", || async {
            let node = format!("/api/v1/nodes/{}", self.node);
            let node = self.namespace.raw.get(&node).await.unwrap();
            let mut conditions = node["status"]["conditions"].as_array()?.iter();
            let pod = self.namespace.get("pods", "pod").await.unwrap();
            (conditions.any(|it| it["type"] == "Ready" && it["status"] == "True")
                && pod["status"]["phase"] == "Running")
                .then_some(())
        })
        .await;
    }

    /// An upstream for a service, under a name that Gloo's discovery would not give it.
    pub(super) async fn upstream(&self, service: &str) {
        let object = json!({
            "apiVersion": "gloo.solo.io/v1", "kind": "Upstream",
            "metadata": {"name": format!("by-hand-{service}")},
            "spec": {"kube": {
                "serviceName": service, "serviceNamespace": self.namespace.name, "servicePort": 80,
            }},
        });
        self.gloo.create(UPSTREAMS, &object).await.unwrap();
    }

    pub(super) async fn run(&self, row: &Row, proxy: &FaultProxy) -> Result<()> {
        let kind = row.name;
        if row.waits {
            match kind {
                "WaitNodes" => self.wait_for_a_node(proxy).await,
                "WaitPods" => self.wait_for_a_pod(proxy).await,
                "GetIngress" => self.get_what_is_not_there(row.backend).await,
                "UpsertPaths" => self.upsert_and_wait(row.backend, proxy).await,
                other => panic!("{other}"),
            }
        } else if row.backend != Unspecified {
            self.ingresses(kind, row.backend).await
        } else if kind.contains("Node") {
            self.nodes(kind).await
        } else if kind.contains("Service") {
            self.services(kind).await
        } else if kind.contains("NetworkPolic") {
            self.policies(kind).await
        } else if kind.contains("Configuration") {
            self.configurations(kind).await
        } else {
            self.pods(kind).await
        }
    }

    async fn wait_for_a_node(&self, proxy: &FaultProxy) -> Result<()> {
        let mut client = NodeServiceClient::new(self.channel.clone());
        let request = api::WaitNodesRequest {
            names: vec!["never-made".to_owned()],
            ..api::WaitNodesRequest::default()
        };
        let before = watches(proxy, "nodes").len();
        let answers = done(client.wait_nodes(request)).await?;
        until_watched(answers, proxy, "nodes", before).await
    }

    async fn wait_for_a_pod(&self, proxy: &FaultProxy) -> Result<()> {
        let mut client = PodServiceClient::new(self.channel.clone());
        let request = api::WaitPodsRequest {
            namespace: self.space(),
            names: vec!["never-made".to_owned()],
            ..api::WaitPodsRequest::default()
        };
        let before = watches(proxy, "pods").len();
        let answers = done(client.wait_pods(request)).await?;
        until_watched(answers, proxy, "pods", before).await
    }

    async fn nodes(&self, call: &str) -> Result<()> {
        let mut client = NodeServiceClient::new(self.channel.clone());
        let name = self.node.clone();
        match call {
            "GetNode" => done(client.get_node(api::GetNodeRequest { name }))
                .await
                .map(drop),
            "ListNodes" => done(client.list_nodes(api::ListNodesRequest::default()))
                .await
                .map(drop),
            "WaitNodes" => {
                let request = api::WaitNodesRequest {
                    names: vec![name],
                    ..api::WaitNodesRequest::default()
                };
                all(client.wait_nodes(request)).await
            }
            "CordonNode" => done(client.cordon_node(api::CordonNodeRequest { name }))
                .await
                .map(drop),
            "UncordonNode" => done(client.uncordon_node(api::UncordonNodeRequest { name }))
                .await
                .map(drop),
            "DrainNode" => {
                self.create_pod(&self.fresh(), &name).await?;
                let request = api::DrainNodeRequest {
                    name,
                    force: true,
                    grace_period: Some(prost_types::Duration::default()),
                    ..api::DrainNodeRequest::default()
                };
                all(client.drain_node(request)).await
            }
            other => panic!("{other}"),
        }
    }

    async fn create_pod(&self, name: &str, node: &str) -> Result<()> {
        let spec = api::PodSpec {
            containers: vec![api::Container {
                name: "main".to_owned(),
                image: "example.invalid/main:1".to_owned(),
                ..api::Container::default()
            }],
            node: node.to_owned(),
            ..api::PodSpec::default()
        };
        let pod = Some(api::Pod {
            metadata: self.metadata(name),
            spec: Some(spec),
            status: None,
        });
        let mut client = PodServiceClient::new(self.channel.clone());
        done(client.create_pod(api::CreatePodRequest { pod }))
            .await
            .map(drop)
    }

    async fn pods(&self, call: &str) -> Result<()> {
        let mut client = PodServiceClient::new(self.channel.clone());
        let (namespace, pod) = (self.space(), "pod".to_owned());
        match call {
            "CreatePod" => self.create_pod(&self.fresh(), "").await,
            "GetPod" => {
                let request = api::GetPodRequest {
                    namespace,
                    name: pod,
                };
                done(client.get_pod(request)).await.map(drop)
            }
            "ListPods" => {
                let request = api::ListPodsRequest {
                    namespace,
                    ..api::ListPodsRequest::default()
                };
                done(client.list_pods(request)).await.map(drop)
            }
            "WaitPods" => {
                let request = api::WaitPodsRequest {
                    namespace,
                    names: vec![pod],
                    ..api::WaitPodsRequest::default()
                };
                all(client.wait_pods(request)).await
            }
            "DeletePod" => {
                let name = self.fresh();
                self.create_pod(&name, "").await?;
                let request = api::DeletePodRequest {
                    namespace,
                    name,
                    ..api::DeletePodRequest::default()
                };
                done(client.delete_pod(request)).await.map(drop)
            }
            other => self.inside(other).await,
        }
    }

    /// Calls that enter a pod. kwok runs their commands on this machine.
    async fn inside(&self, call: &str) -> Result<()> {
        let mut client = PodServiceClient::new(self.channel.clone());
        let (namespace, pod) = (self.space(), "pod".to_owned());
        match call {
            "Exec" => {
                let start = api::ExecStart {
                    namespace,
                    pod,
                    command: vec!["true".to_owned()],
                    ..api::ExecStart::default()
                };
                let input = Some(exec_request::Input::Start(start));
                let input = futures::stream::iter([api::ExecRequest { input }]);
                all(client.exec(input)).await
            }
            "RunScript" => {
                let request = api::RunScriptRequest {
                    namespace,
                    pod,
                    script: "true".to_owned(),
                    // kwok does not tell a command that its input has ended.
                    interpreter: vec!["true".to_owned()],
                    ..api::RunScriptRequest::default()
                };
                all(client.run_script(request)).await
            }
            "ReadFile" => {
                let request = api::ReadFileRequest {
                    namespace,
                    pod,
                    path: "/etc/passwd".to_owned(),
                    ..api::ReadFileRequest::default()
                };
                all(client.read_file(request)).await
            }
            "StreamLogs" => {
                let request = api::StreamLogsRequest {
                    namespace,
                    pod,
                    ..api::StreamLogsRequest::default()
                };
                all(client.stream_logs(request)).await
            }
            other => panic!("{other}"),
        }
    }

    async fn create_service(&self, name: &str) -> Result<()> {
        let spec = api::ServiceSpec {
            ports: vec![api::ServicePort {
                port: 80,
                ..api::ServicePort::default()
            }],
            ..api::ServiceSpec::default()
        };
        let service = Some(api::Service {
            metadata: self.metadata(name),
            spec: Some(spec),
            ..api::Service::default()
        });
        let mut client = ServiceServiceClient::new(self.channel.clone());
        done(client.create_service(api::CreateServiceRequest { service }))
            .await
            .map(drop)
    }

    async fn services(&self, call: &str) -> Result<()> {
        let mut client = ServiceServiceClient::new(self.channel.clone());
        let namespace = self.space();
        match call {
            "CreateService" => self.create_service(&self.fresh()).await,
            "GetService" => {
                let name = "web".to_owned();
                done(client.get_service(api::GetServiceRequest { namespace, name }))
                    .await
                    .map(drop)
            }
            "ListServices" => {
                let request = api::ListServicesRequest {
                    namespace,
                    ..api::ListServicesRequest::default()
                };
                done(client.list_services(request)).await.map(drop)
            }
            "DeleteService" => {
                let name = self.fresh();
                self.create_service(&name).await?;
                done(client.delete_service(api::DeleteServiceRequest { namespace, name }))
                    .await
                    .map(drop)
            }
            other => panic!("{other}"),
        }
    }

    async fn create_policy(&self, name: &str) -> Result<()> {
        let network_policy = Some(api::NetworkPolicy {
            metadata: self.metadata(name),
            spec: Some(api::NetworkPolicySpec::default()),
        });
        let mut client = NetworkPolicyServiceClient::new(self.channel.clone());
        done(client.create_network_policy(api::CreateNetworkPolicyRequest { network_policy }))
            .await
            .map(drop)
    }

    async fn policies(&self, call: &str) -> Result<()> {
        let mut client = NetworkPolicyServiceClient::new(self.channel.clone());
        let namespace = self.space();
        match call {
            "CreateNetworkPolicy" => self.create_policy(&self.fresh()).await,
            "GetNetworkPolicy" => {
                self.create_policy("policy").await.ok();
                let name = "policy".to_owned();
                done(client.get_network_policy(api::GetNetworkPolicyRequest { namespace, name }))
                    .await
                    .map(drop)
            }
            "ListNetworkPolicies" => {
                let request = api::ListNetworkPoliciesRequest {
                    namespace,
                    ..api::ListNetworkPoliciesRequest::default()
                };
                done(client.list_network_policies(request)).await.map(drop)
            }
            "DeleteNetworkPolicy" => {
                let name = self.fresh();
                self.create_policy(&name).await?;
                let request = api::DeleteNetworkPolicyRequest { namespace, name };
                done(client.delete_network_policy(request)).await.map(drop)
            }
            "DeleteNetworkPolicies" => {
                self.create_policy(&self.fresh()).await?;
                let selector = self.metadata("").map(|it| it.labels).unwrap();
                let request = api::DeleteNetworkPoliciesRequest {
                    namespace,
                    selector: Some(drover_proto::common::v1::LabelSelector {
                        match_labels: selector,
                        match_expressions: Vec::new(),
                    }),
                };
                done(client.delete_network_policies(request))
                    .await
                    .map(drop)
            }
            other => panic!("{other}"),
        }
    }

    async fn create_configuration(&self, name: &str) -> Result<()> {
        let configuration = Some(api::Configuration {
            metadata: self.metadata(name),
            ..api::Configuration::default()
        });
        let mut client = ConfigurationServiceClient::new(self.channel.clone());
        done(client.create_configuration(api::CreateConfigurationRequest { configuration }))
            .await
            .map(drop)
    }

    async fn configurations(&self, call: &str) -> Result<()> {
        let mut client = ConfigurationServiceClient::new(self.channel.clone());
        let (namespace, name) = (self.space(), "configuration".to_owned());
        match call {
            "CreateConfiguration" => self.create_configuration(&self.fresh()).await,
            "GetConfiguration" => {
                done(client.get_configuration(api::GetConfigurationRequest { namespace, name }))
                    .await
                    .map(drop)
            }
            "ListConfigurations" => {
                let request = api::ListConfigurationsRequest {
                    namespace,
                    ..api::ListConfigurationsRequest::default()
                };
                done(client.list_configurations(request)).await.map(drop)
            }
            "UpdateConfiguration" => {
                // Without a change there would be nothing to write.
                let configuration = Some(api::Configuration {
                    metadata: self.metadata(&name),
                    data: [("key".to_owned(), self.fresh())].into(),
                    ..api::Configuration::default()
                });
                let request = api::UpdateConfigurationRequest { configuration };
                done(client.update_configuration(request)).await.map(drop)
            }
            "DeleteConfiguration" => {
                let name = self.fresh();
                self.create_configuration(&name).await?;
                let request = api::DeleteConfigurationRequest { namespace, name };
                done(client.delete_configuration(request)).await.map(drop)
            }
            other => panic!("{other}"),
        }
    }
}
