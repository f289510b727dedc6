//! Services.

use drover_proto::kubernetes::v1::{self as api, service_service_server::ServiceService};
use drover_server::access::Permission;
use tonic::{Request, Response, Status};

use super::{Resources, answer, list::pages};
use crate::check;

#[tonic::async_trait]
impl ServiceService for Resources {
    async fn create_service(
        &self,
        request: Request<api::CreateServiceRequest>,
    ) -> Result<Response<api::CreateServiceResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let service = check::create_service(request.into_inner(), self.served())?;
            let metadata = service.metadata.clone().unwrap_or_default();
            call.inside("service", &metadata.namespace, &metadata.name)?;
            let service = self.cluster().services()?.create(service).await?;
            Ok(api::CreateServiceResponse {
                service: Some(service),
            })
        };
        answer(done.await)
    }

    async fn get_service(
        &self,
        request: Request<api::GetServiceRequest>,
    ) -> Result<Response<api::GetServiceResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let request = check::named(request.into_inner(), self.served())?;
            call.inside("service", &request.namespace, &request.name)?;
            let services = self.cluster().services()?;
            let service = services.get(&request.namespace, &request.name).await?;
            Ok(api::GetServiceResponse {
                service: Some(service),
            })
        };
        answer(done.await)
    }

    async fn list_services(
        &self,
        request: Request<api::ListServicesRequest>,
    ) -> Result<Response<api::ListServicesResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let services = self.cluster().services()?;
            pages(&call, request.into_inner(), |request| {
                services.list(request)
            })
            .await
        };
        answer(done.await)
    }

    async fn delete_service(
        &self,
        request: Request<api::DeleteServiceRequest>,
    ) -> Result<Response<api::DeleteServiceResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let request = check::named(request.into_inner(), self.served())?;
            call.inside("service", &request.namespace, &request.name)?;
            let services = self.cluster().services()?;
            let existed = services.delete(&request.namespace, &request.name).await?;
            Ok(api::DeleteServiceResponse { existed })
        };
        answer(done.await)
    }
}
