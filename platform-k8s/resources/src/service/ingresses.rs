//! Ingresses and their rules.

use drover_proto::kubernetes::v1::{self as api, ingress_service_server::IngressService};
use drover_server::access::Permission;
use tonic::{Request, Response, Status};

use super::{Resources, answer, list::pages};
use crate::check;

#[tonic::async_trait]
impl IngressService for Resources {
    async fn create_ingress(
        &self,
        request: Request<api::CreateIngressRequest>,
    ) -> Result<Response<api::CreateIngressResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let (ingress, backend) = check::create_ingress(request.into_inner(), self.served())?;
            let metadata = ingress.metadata.clone().unwrap_or_default();
            call.inside("ingress", &metadata.namespace, &metadata.name)?;
            self.served().pod_policy.check_ingress(&ingress)?;
            let ingresses = self.cluster().ingresses()?;
            let created = ingresses.create(ingress, backend).await;
            let ingress = created.map_err(|error| call.host_taken(error))?;
            Ok(api::CreateIngressResponse {
                ingress: Some(ingress),
            })
        };
        answer(done.await)
    }

    async fn get_ingress(
        &self,
        request: Request<api::GetIngressRequest>,
    ) -> Result<Response<api::GetIngressResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let request = check::named(request.into_inner(), self.served())?;
            call.inside("ingress", &request.namespace, &request.name)?;
            let ingress = self.cluster().ingresses()?.get(request).await?;
            Ok(api::GetIngressResponse {
                ingress: Some(ingress),
            })
        };
        answer(done.await)
    }

    async fn list_ingresses(
        &self,
        request: Request<api::ListIngressesRequest>,
    ) -> Result<Response<api::ListIngressesResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let ingresses = self.cluster().ingresses()?;
            pages(&call, request.into_inner(), |request| {
                ingresses.list(request)
            })
            .await
        };
        answer(done.await)
    }

    async fn delete_ingress(
        &self,
        request: Request<api::DeleteIngressRequest>,
    ) -> Result<Response<api::DeleteIngressResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let request = check::named(request.into_inner(), self.served())?;
            call.inside("ingress", &request.namespace, &request.name)?;
            let existed = self.cluster().ingresses()?.delete(request).await?;
            Ok(api::DeleteIngressResponse { existed })
        };
        answer(done.await)
    }

    async fn get_rule(
        &self,
        request: Request<api::GetRuleRequest>,
    ) -> Result<Response<api::GetRuleResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let request = check::get_rule(request.into_inner(), self.served())?;
            call.inside("ingress", &request.namespace, &request.ingress)?;
            let rule = self.cluster().ingress_rules()?.get(request).await?;
            Ok(api::GetRuleResponse { rule: Some(rule) })
        };
        answer(done.await)
    }

    async fn upsert_paths(
        &self,
        request: Request<api::UpsertPathsRequest>,
    ) -> Result<Response<api::UpsertPathsResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let request = check::upsert_paths(request.into_inner(), self.served())?;
            call.inside("ingress", &request.namespace, &request.ingress)?;
            let rules = self.cluster().ingress_rules()?;
            let _permit = request.wait.then(|| call.wait_permit()).transpose()?;
            let rule = call.until_stop(rules.upsert(request)).await;
            let rule = rule.map_err(|error| call.host_taken(error))?;
            Ok(api::UpsertPathsResponse { rule: Some(rule) })
        };
        answer(done.await)
    }

    async fn remove_paths(
        &self,
        request: Request<api::RemovePathsRequest>,
    ) -> Result<Response<api::RemovePathsResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let request = check::remove_paths(request.into_inner(), self.served())?;
            call.inside("ingress", &request.namespace, &request.ingress)?;
            let rule = self.cluster().ingress_rules()?.remove(request).await?;
            Ok(api::RemovePathsResponse { rule: Some(rule) })
        };
        answer(done.await)
    }
}
