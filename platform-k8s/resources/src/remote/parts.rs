//! Everything but pods.

use async_trait::async_trait;
use drover_core::Result;
use drover_proto::kubernetes::v1 as api;

use super::{Remote, answer::given};
use crate::parts::{
    Answers, Configurations, IngressRules, Ingresses, NetworkPolicies, Nodes, Services,
};

#[async_trait]
impl Nodes for Remote {
    async fn get(&self, name: &str) -> Result<api::Node> {
        let name = name.to_owned();
        let request = api::GetNodeRequest { name };
        given(self.message(self.nodes().get_node(request).await)?.node)
    }

    async fn list(&self, request: api::ListNodesRequest) -> Result<api::ListNodesResponse> {
        self.message(self.nodes().list_nodes(request).await)
    }

    async fn wait(&self, request: api::WaitNodesRequest) -> Result<Answers<api::WaitProgress>> {
        let stream = self.nodes().wait_nodes(request).await;
        self.answers(stream, |answer| answer.progress)
    }

    async fn set_unschedulable(&self, name: &str, unschedulable: bool) -> Result<api::Node> {
        let name = name.to_owned();
        let node = if unschedulable {
            let request = api::CordonNodeRequest { name };
            self.message(self.nodes().cordon_node(request).await)?.node
        } else {
            let request = api::UncordonNodeRequest { name };
            self.message(self.nodes().uncordon_node(request).await)?
                .node
        };
        given(node)
    }

    async fn drain(&self, request: api::DrainNodeRequest) -> Result<Answers<api::WaitProgress>> {
        let stream = self.nodes().drain_node(request).await;
        self.answers(stream, |answer| answer.progress)
    }
}

#[async_trait]
impl Services for Remote {
    async fn create(&self, service: api::Service) -> Result<api::Service> {
        let service = Some(service);
        let request = api::CreateServiceRequest { service };
        given(
            self.message(self.services().create_service(request).await)?
                .service,
        )
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::Service> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::GetServiceRequest { namespace, name };
        given(
            self.message(self.services().get_service(request).await)?
                .service,
        )
    }

    async fn list(&self, request: api::ListServicesRequest) -> Result<api::ListServicesResponse> {
        self.message(self.services().list_services(request).await)
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::DeleteServiceRequest { namespace, name };
        Ok(self
            .message(self.services().delete_service(request).await)?
            .existed)
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
        given(
            self.message(self.ingresses().create_ingress(request).await)?
                .ingress,
        )
    }

    async fn get(&self, request: api::GetIngressRequest) -> Result<api::Ingress> {
        given(
            self.message(self.ingresses().get_ingress(request).await)?
                .ingress,
        )
    }

    async fn list(&self, request: api::ListIngressesRequest) -> Result<api::ListIngressesResponse> {
        self.message(self.ingresses().list_ingresses(request).await)
    }

    async fn delete(&self, request: api::DeleteIngressRequest) -> Result<bool> {
        Ok(self
            .message(self.ingresses().delete_ingress(request).await)?
            .existed)
    }
}

#[async_trait]
impl IngressRules for Remote {
    async fn get(&self, request: api::GetRuleRequest) -> Result<api::IngressRule> {
        given(self.message(self.ingresses().get_rule(request).await)?.rule)
    }

    async fn upsert(&self, request: api::UpsertPathsRequest) -> Result<api::IngressRule> {
        given(
            self.message(self.ingresses().upsert_paths(request).await)?
                .rule,
        )
    }

    async fn remove(&self, request: api::RemovePathsRequest) -> Result<api::IngressRule> {
        given(
            self.message(self.ingresses().remove_paths(request).await)?
                .rule,
        )
    }
}

#[async_trait]
impl NetworkPolicies for Remote {
    async fn create(&self, policy: api::NetworkPolicy) -> Result<api::NetworkPolicy> {
        let network_policy = Some(policy);
        let request = api::CreateNetworkPolicyRequest { network_policy };
        given(
            self.message(self.policies().create_network_policy(request).await)?
                .network_policy,
        )
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::NetworkPolicy> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::GetNetworkPolicyRequest { namespace, name };
        given(
            self.message(self.policies().get_network_policy(request).await)?
                .network_policy,
        )
    }

    async fn list(
        &self,
        request: api::ListNetworkPoliciesRequest,
    ) -> Result<api::ListNetworkPoliciesResponse> {
        self.message(self.policies().list_network_policies(request).await)
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::DeleteNetworkPolicyRequest { namespace, name };
        Ok(self
            .message(self.policies().delete_network_policy(request).await)?
            .existed)
    }

    async fn delete_selected(
        &self,
        request: api::DeleteNetworkPoliciesRequest,
    ) -> Result<Vec<String>> {
        Ok(self
            .message(self.policies().delete_network_policies(request).await)?
            .names)
    }
}

#[async_trait]
impl Configurations for Remote {
    async fn create(&self, configuration: api::Configuration) -> Result<api::Configuration> {
        let configuration = Some(configuration);
        let request = api::CreateConfigurationRequest { configuration };
        given(
            self.message(self.configurations().create_configuration(request).await)?
                .configuration,
        )
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::Configuration> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::GetConfigurationRequest { namespace, name };
        given(
            self.message(self.configurations().get_configuration(request).await)?
                .configuration,
        )
    }

    async fn list(
        &self,
        request: api::ListConfigurationsRequest,
    ) -> Result<api::ListConfigurationsResponse> {
        self.message(self.configurations().list_configurations(request).await)
    }

    async fn update(&self, configuration: api::Configuration) -> Result<api::Configuration> {
        let configuration = Some(configuration);
        let request = api::UpdateConfigurationRequest { configuration };
        given(
            self.message(self.configurations().update_configuration(request).await)?
                .configuration,
        )
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::DeleteConfigurationRequest { namespace, name };
        Ok(self
            .message(self.configurations().delete_configuration(request).await)?
            .existed)
    }
}
