//! Configurations.

use drover_proto::kubernetes::v1::{
    self as api, configuration_service_server::ConfigurationService,
};
use drover_server::access::Permission;
use tonic::{Request, Response, Status};

use super::{Resources, answer, list::pages};
use crate::check;

#[tonic::async_trait]
impl ConfigurationService for Resources {
    async fn create_configuration(
        &self,
        request: Request<api::CreateConfigurationRequest>,
    ) -> Result<Response<api::CreateConfigurationResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let configuration = check::create_configuration(request.into_inner(), self.served())?;
            let metadata = configuration.metadata.clone().unwrap_or_default();
            call.inside("configuration", &metadata.namespace, &metadata.name)?;
            let configuration = self
                .cluster()
                .configurations()?
                .create(configuration)
                .await?;
            Ok(api::CreateConfigurationResponse {
                configuration: Some(configuration),
            })
        };
        answer(done.await)
    }

    async fn get_configuration(
        &self,
        request: Request<api::GetConfigurationRequest>,
    ) -> Result<Response<api::GetConfigurationResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let request = check::named(request.into_inner(), self.served())?;
            call.inside("configuration", &request.namespace, &request.name)?;
            let configurations = self.cluster().configurations()?;
            let configuration = configurations
                .get(&request.namespace, &request.name)
                .await?;
            Ok(api::GetConfigurationResponse {
                configuration: Some(configuration),
            })
        };
        answer(done.await)
    }

    async fn list_configurations(
        &self,
        request: Request<api::ListConfigurationsRequest>,
    ) -> Result<Response<api::ListConfigurationsResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let configurations = self.cluster().configurations()?;
            pages(&call, request.into_inner(), |request| {
                configurations.list(request)
            })
            .await
        };
        answer(done.await)
    }

    async fn delete_configuration(
        &self,
        request: Request<api::DeleteConfigurationRequest>,
    ) -> Result<Response<api::DeleteConfigurationResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let request = check::named(request.into_inner(), self.served())?;
            call.inside("configuration", &request.namespace, &request.name)?;
            let configurations = self.cluster().configurations()?;
            let existed = configurations
                .delete(&request.namespace, &request.name)
                .await?;
            Ok(api::DeleteConfigurationResponse { existed })
        };
        answer(done.await)
    }

    async fn update_configuration(
        &self,
        request: Request<api::UpdateConfigurationRequest>,
    ) -> Result<Response<api::UpdateConfigurationResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let configuration = check::update_configuration(request.into_inner(), self.served())?;
            let metadata = configuration.metadata.clone().unwrap_or_default();
            call.inside("configuration", &metadata.namespace, &metadata.name)?;
            let configurations = self.cluster().configurations()?;
            let configuration = configurations.update(configuration).await?;
            Ok(api::UpdateConfigurationResponse {
                configuration: Some(configuration),
            })
        };
        answer(done.await)
    }
}
