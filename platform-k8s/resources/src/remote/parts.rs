//! Everything but pods.

use async_trait::async_trait;
use drover_convert::error::from_status;
use drover_core::{Error, Result};
use drover_proto::kubernetes::v1 as api;
use futures::StreamExt;
use tonic::{Response, Status, Streaming};

use super::Remote;
use crate::parts::{
    Answers, Configurations, IngressRules, Ingresses, NetworkPolicies, Nodes, Services,
};

/// The message of an answer.
pub(super) fn message<T>(answer: Result<Response<T>, Status>) -> Result<T> {
    answer
        .map(Response::into_inner)
        .map_err(|status| from_status(&status))
}

/// A field of an answer that is always set.
pub(super) fn given<T>(field: Option<T>) -> Result<T> {
    field.ok_or_else(|| Error::internal("the other server sent an answer without its object"))
}

/// A stream of answers.
pub(super) fn answers<A, T>(
    stream: Result<Response<Streaming<A>>, Status>,
    take: fn(A) -> Option<T>,
) -> Result<Answers<T>>
where
    A: Send + 'static,
    T: Send + 'static,
{
    let stream = message(stream)?;
    let answers = stream.map(move |item| match item {
        Ok(item) => given(take(item)),
        Err(status) => Err(from_status(&status)),
    });
    Ok(answers.boxed())
}

#[async_trait]
impl Nodes for Remote {
    async fn get(&self, name: &str) -> Result<api::Node> {
        let name = name.to_owned();
        let request = api::GetNodeRequest { name };
        given(message(self.nodes().get_node(request).await)?.node)
    }

    async fn list(&self, request: api::ListNodesRequest) -> Result<api::ListNodesResponse> {
        message(self.nodes().list_nodes(request).await)
    }

    async fn wait(&self, request: api::WaitNodesRequest) -> Result<Answers<api::WaitProgress>> {
        let stream = self.nodes().wait_nodes(request).await;
        answers(stream, |answer| answer.progress)
    }

    async fn set_unschedulable(&self, name: &str, unschedulable: bool) -> Result<api::Node> {
        let name = name.to_owned();
        let node = if unschedulable {
            let request = api::CordonNodeRequest { name };
            message(self.nodes().cordon_node(request).await)?.node
        } else {
            let request = api::UncordonNodeRequest { name };
            message(self.nodes().uncordon_node(request).await)?.node
        };
        given(node)
    }

    async fn drain(&self, request: api::DrainNodeRequest) -> Result<Answers<api::WaitProgress>> {
        let stream = self.nodes().drain_node(request).await;
        answers(stream, |answer| answer.progress)
    }
}

#[async_trait]
impl Services for Remote {
    async fn create(&self, service: api::Service) -> Result<api::Service> {
        let service = Some(service);
        let request = api::CreateServiceRequest { service };
        given(message(self.services().create_service(request).await)?.service)
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::Service> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::GetServiceRequest { namespace, name };
        given(message(self.services().get_service(request).await)?.service)
    }

    async fn list(&self, request: api::ListServicesRequest) -> Result<api::ListServicesResponse> {
        message(self.services().list_services(request).await)
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::DeleteServiceRequest { namespace, name };
        Ok(message(self.services().delete_service(request).await)?.existed)
    }
}

#[async_trait]
impl Ingresses for Remote {
    async fn create(
        &self,
        ingress: api::Ingress,
        backend: api::IngressBackend,
    ) -> Result<api::Ingress> {
        let request = api::CreateIngressRequest {
            ingress: Some(ingress),
            backend: backend as i32,
        };
        given(message(self.ingresses().create_ingress(request).await)?.ingress)
    }

    async fn get(&self, request: api::GetIngressRequest) -> Result<api::Ingress> {
        given(message(self.ingresses().get_ingress(request).await)?.ingress)
    }

    async fn list(&self, request: api::ListIngressesRequest) -> Result<api::ListIngressesResponse> {
        message(self.ingresses().list_ingresses(request).await)
    }

    async fn delete(&self, request: api::DeleteIngressRequest) -> Result<bool> {
        Ok(message(self.ingresses().delete_ingress(request).await)?.existed)
    }
}

#[async_trait]
impl IngressRules for Remote {
    async fn get(&self, request: api::GetRuleRequest) -> Result<api::IngressRule> {
        given(message(self.ingresses().get_rule(request).await)?.rule)
    }

    async fn upsert(&self, request: api::UpsertPathsRequest) -> Result<api::IngressRule> {
        given(message(self.ingresses().upsert_paths(request).await)?.rule)
    }

    async fn remove(&self, request: api::RemovePathsRequest) -> Result<api::IngressRule> {
        given(message(self.ingresses().remove_paths(request).await)?.rule)
    }
}

#[async_trait]
impl NetworkPolicies for Remote {
    async fn create(&self, policy: api::NetworkPolicy) -> Result<api::NetworkPolicy> {
        let network_policy = Some(policy);
        let request = api::CreateNetworkPolicyRequest { network_policy };
        given(message(self.policies().create_network_policy(request).await)?.network_policy)
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::NetworkPolicy> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::GetNetworkPolicyRequest { namespace, name };
        given(message(self.policies().get_network_policy(request).await)?.network_policy)
    }

    async fn list(
        &self,
        request: api::ListNetworkPoliciesRequest,
    ) -> Result<api::ListNetworkPoliciesResponse> {
        message(self.policies().list_network_policies(request).await)
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::DeleteNetworkPolicyRequest { namespace, name };
        Ok(message(self.policies().delete_network_policy(request).await)?.existed)
    }

    async fn delete_selected(
        &self,
        request: api::DeleteNetworkPoliciesRequest,
    ) -> Result<Vec<String>> {
        Ok(message(self.policies().delete_network_policies(request).await)?.names)
    }
}

#[async_trait]
impl Configurations for Remote {
    async fn create(&self, configuration: api::Configuration) -> Result<api::Configuration> {
        let configuration = Some(configuration);
        let request = api::CreateConfigurationRequest { configuration };
        given(message(self.configurations().create_configuration(request).await)?.configuration)
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::Configuration> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::GetConfigurationRequest { namespace, name };
        given(message(self.configurations().get_configuration(request).await)?.configuration)
    }

    async fn list(
        &self,
        request: api::ListConfigurationsRequest,
    ) -> Result<api::ListConfigurationsResponse> {
        message(self.configurations().list_configurations(request).await)
    }

    async fn update(&self, configuration: api::Configuration) -> Result<api::Configuration> {
        let configuration = Some(configuration);
        let request = api::UpdateConfigurationRequest { configuration };
        given(message(self.configurations().update_configuration(request).await)?.configuration)
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::DeleteConfigurationRequest { namespace, name };
        Ok(message(self.configurations().delete_configuration(request).await)?.existed)
    }
}
