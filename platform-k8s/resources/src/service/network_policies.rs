//! Network policies.

use drover_proto::kubernetes::v1::{
    self as api, network_policy_service_server::NetworkPolicyService,
};
use drover_server::access::Permission;
use tonic::{Request, Response, Status};

use super::{Resources, answer, list::pages};
use crate::check;

#[tonic::async_trait]
impl NetworkPolicyService for Resources {
    async fn create_network_policy(
        &self,
        request: Request<api::CreateNetworkPolicyRequest>,
    ) -> Result<Response<api::CreateNetworkPolicyResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let network_policy = check::create_network_policy(request.into_inner(), self.served())?;
            let metadata = network_policy.metadata.clone().unwrap_or_default();
            call.inside("network-policy", &metadata.namespace, &metadata.name)?;
            let network_policy = self
                .cluster()
                .network_policies()?
                .create(network_policy)
                .await?;
            Ok(api::CreateNetworkPolicyResponse {
                network_policy: Some(network_policy),
            })
        };
        answer(done.await)
    }

    async fn get_network_policy(
        &self,
        request: Request<api::GetNetworkPolicyRequest>,
    ) -> Result<Response<api::GetNetworkPolicyResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let request = check::named(request.into_inner(), self.served())?;
            call.inside("network-policy", &request.namespace, &request.name)?;
            let network_policies = self.cluster().network_policies()?;
            let network_policy = network_policies
                .get(&request.namespace, &request.name)
                .await?;
            Ok(api::GetNetworkPolicyResponse {
                network_policy: Some(network_policy),
            })
        };
        answer(done.await)
    }

    async fn list_network_policies(
        &self,
        request: Request<api::ListNetworkPoliciesRequest>,
    ) -> Result<Response<api::ListNetworkPoliciesResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let network_policies = self.cluster().network_policies()?;
            pages(&call, request.into_inner(), |request| {
                network_policies.list(request)
            })
            .await
        };
        answer(done.await)
    }

    async fn delete_network_policy(
        &self,
        request: Request<api::DeleteNetworkPolicyRequest>,
    ) -> Result<Response<api::DeleteNetworkPolicyResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let request = check::named(request.into_inner(), self.served())?;
            call.inside("network-policy", &request.namespace, &request.name)?;
            let network_policies = self.cluster().network_policies()?;
            let existed = network_policies
                .delete(&request.namespace, &request.name)
                .await?;
            Ok(api::DeleteNetworkPolicyResponse { existed })
        };
        answer(done.await)
    }

    async fn delete_network_policies(
        &self,
        request: Request<api::DeleteNetworkPoliciesRequest>,
    ) -> Result<Response<api::DeleteNetworkPoliciesResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let request = check::delete_network_policies(request.into_inner(), self.served())?;
            call.inside("network-policy", &request.namespace, "*")?;
            let policies = self.cluster().network_policies()?;
            let names = policies.delete_selected(request).await?;
            Ok(api::DeleteNetworkPoliciesResponse { names })
        };
        answer(done.await)
    }
}
