//! What a backend implements. Requests have been checked: they have a namespace that the server serves wherever one
//! object is meant, limits and enum values are valid, and one name is written in one way. Page tokens are the backend's
//! own. A write is sent once and never repeated, unless its precondition makes that harmless. A stream that is dropped
//! leaves no call open below it.

use async_trait::async_trait;
use drover_core::Result;
use drover_proto::{
    common::v1::{Chunk, ProcessOutput},
    kubernetes::v1 as api,
};
use futures::stream::BoxStream;

/// Answers that come one after the other. The last one of a failed call is the error.
pub type Answers<T> = BoxStream<'static, Result<T>>;

/// What is sent to a command while it runs, as in `ExecRequest`, without its first message.
pub type Input = BoxStream<'static, Result<api::exec_request::Input>>;

/// Machines that pods run on.
#[async_trait]
pub trait Nodes: Send + Sync + 'static {
    /// The node of a name.
    async fn get(&self, name: &str) -> Result<api::Node>;

    /// Nodes in order of name.
    async fn list(&self, request: api::ListNodesRequest) -> Result<api::ListNodesResponse>;

    /// Until all nodes have the condition: one list, one watch.
    async fn wait(&self, request: api::WaitNodesRequest) -> Result<Answers<api::WaitProgress>>;

    /// Keeps new pods off the node, or no longer.
    async fn set_unschedulable(&self, name: &str, unschedulable: bool) -> Result<api::Node>;

    /// Cordons, then evicts within the disruption budgets.
    async fn drain(&self, request: api::DrainNodeRequest) -> Result<Answers<api::WaitProgress>>;
}

/// Pods, and what runs in them.
#[async_trait]
pub trait Pods: Send + Sync + 'static {
    /// Creates the pod.
    async fn create(&self, pod: api::Pod) -> Result<api::Pod>;

    /// The pod of a name.
    async fn get(&self, namespace: &str, name: &str) -> Result<api::Pod>;

    /// Pods in order of namespace and name.
    async fn list(&self, request: api::ListPodsRequest) -> Result<api::ListPodsResponse>;

    /// Whether there was such a pod.
    async fn delete(&self, request: api::DeletePodRequest) -> Result<bool>;

    /// Until every pod meets one of the conditions: one list, one watch.
    async fn wait(&self, request: api::WaitPodsRequest) -> Result<Answers<api::WaitProgress>>;

    /// Runs a command. The last answer is the exit code.
    async fn exec(&self, start: api::ExecStart, input: Input) -> Result<Answers<ProcessOutput>>;

    /// A file, in pieces.
    async fn read_file(
        &self,
        request: api::ReadFileRequest,
    ) -> Result<Answers<api::ReadFileResponse>>;

    /// The log of a container, in pieces.
    async fn logs(&self, request: api::StreamLogsRequest) -> Result<Answers<Chunk>>;
}

/// Services.
#[async_trait]
pub trait Services: Send + Sync + 'static {
    /// Creates the service.
    async fn create(&self, service: api::Service) -> Result<api::Service>;

    /// The service of a name.
    async fn get(&self, namespace: &str, name: &str) -> Result<api::Service>;

    /// Services in order of namespace and name.
    async fn list(&self, request: api::ListServicesRequest) -> Result<api::ListServicesResponse>;

    /// Whether there was such a service.
    async fn delete(&self, namespace: &str, name: &str) -> Result<bool>;
}

/// Ways into the cluster, as whole objects.
#[async_trait]
pub trait Ingresses: Send + Sync + 'static {
    /// Creates the ingress.
    async fn create(
        &self,
        ingress: api::Ingress,
        backend: api::IngressBackend,
    ) -> Result<api::Ingress>;

    /// The ingress of a name, with all rules.
    async fn get(&self, request: api::GetIngressRequest) -> Result<api::Ingress>;

    /// Ingresses in order of namespace and name.
    async fn list(&self, request: api::ListIngressesRequest) -> Result<api::ListIngressesResponse>;

    /// Whether there was such an ingress.
    async fn delete(&self, request: api::DeleteIngressRequest) -> Result<bool>;
}

/// The paths of one host of an ingress. A change is done whole or not at all, and none is lost, whoever else writes.
#[async_trait]
pub trait IngressRules: Send + Sync + 'static {
    /// The rule of a host.
    async fn get(&self, request: api::GetRuleRequest) -> Result<api::IngressRule>;

    /// Adds or replaces paths.
    async fn upsert(&self, request: api::UpsertPathsRequest) -> Result<api::IngressRule>;

    /// Removes paths.
    async fn remove(&self, request: api::RemovePathsRequest) -> Result<api::IngressRule>;
}

/// Network policies.
#[async_trait]
pub trait NetworkPolicies: Send + Sync + 'static {
    /// Creates the policy.
    async fn create(&self, policy: api::NetworkPolicy) -> Result<api::NetworkPolicy>;

    /// The policy of a name.
    async fn get(&self, namespace: &str, name: &str) -> Result<api::NetworkPolicy>;

    /// Policies in order of namespace and name.
    async fn list(
        &self,
        request: api::ListNetworkPoliciesRequest,
    ) -> Result<api::ListNetworkPoliciesResponse>;

    /// Whether there was such a policy.
    async fn delete(&self, namespace: &str, name: &str) -> Result<bool>;

    /// Names of the policies that were deleted, in order.
    async fn delete_selected(
        &self,
        request: api::DeleteNetworkPoliciesRequest,
    ) -> Result<Vec<String>>;
}

/// Configurations (config maps).
#[async_trait]
pub trait Configurations: Send + Sync + 'static {
    /// Creates the configuration.
    async fn create(&self, configuration: api::Configuration) -> Result<api::Configuration>;

    /// The configuration of a name.
    async fn get(&self, namespace: &str, name: &str) -> Result<api::Configuration>;

    /// Configurations in order of namespace and name.
    async fn list(
        &self,
        request: api::ListConfigurationsRequest,
    ) -> Result<api::ListConfigurationsResponse>;

    /// Replaces labels, annotations and content; with a revision only that one.
    async fn update(&self, configuration: api::Configuration) -> Result<api::Configuration>;

    /// Whether there was such a configuration.
    async fn delete(&self, namespace: &str, name: &str) -> Result<bool>;
}
