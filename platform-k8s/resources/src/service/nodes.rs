//! Nodes.

use drover_core::Result;
use drover_proto::kubernetes::v1::{self as api, node_service_server::NodeService};
use drover_server::access::Permission;
use futures::stream::BoxStream;
use tonic::{Request, Response, Status};

use super::{Call, Resources, answer, list::pages};
use crate::check;

#[tonic::async_trait]
impl NodeService for Resources {
    async fn get_node(
        &self,
        request: Request<api::GetNodeRequest>,
    ) -> Result<Response<api::GetNodeResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let name = request.into_inner().name;
            check::node_name(&name)?;
            call.about("kubernetes-node", &name)?;
            let node = self.cluster().nodes()?.get(&name).await?;
            Ok(api::GetNodeResponse { node: Some(node) })
        };
        answer(done.await)
    }

    async fn list_nodes(
        &self,
        request: Request<api::ListNodesRequest>,
    ) -> Result<Response<api::ListNodesResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let nodes = self.cluster().nodes()?;
            pages(&call, request.into_inner(), |request| nodes.list(request)).await
        };
        answer(done.await)
    }

    async fn cordon_node(
        &self,
        request: Request<api::CordonNodeRequest>,
    ) -> Result<Response<api::CordonNodeResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let name = request.into_inner().name;
            let node = set_unschedulable(&call, &name, true).await?;
            Ok(api::CordonNodeResponse { node: Some(node) })
        };
        answer(done.await)
    }

    async fn uncordon_node(
        &self,
        request: Request<api::UncordonNodeRequest>,
    ) -> Result<Response<api::UncordonNodeResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let name = request.into_inner().name;
            let node = set_unschedulable(&call, &name, false).await?;
            Ok(api::UncordonNodeResponse { node: Some(node) })
        };
        answer(done.await)
    }

    type WaitNodesStream = BoxStream<'static, Result<api::WaitNodesResponse, Status>>;

    async fn wait_nodes(
        &self,
        request: Request<api::WaitNodesRequest>,
    ) -> Result<Response<Self::WaitNodesStream>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let request = check::wait_nodes(request.into_inner())?;
            call.about("kubernetes-node", "*")?;
            let permit = call.wait_permit()?;
            let progress = self.cluster().nodes()?.wait(request).await?;
            Ok(
                call.stream(progress, permit, |progress| api::WaitNodesResponse {
                    progress: Some(progress),
                }),
            )
        };
        answer(done.await)
    }

    type DrainNodeStream = BoxStream<'static, Result<api::DrainNodeResponse, Status>>;

    async fn drain_node(
        &self,
        request: Request<api::DrainNodeRequest>,
    ) -> Result<Response<Self::DrainNodeStream>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let request = request.into_inner();
            check::drain(&request)?;
            call.about("kubernetes-node", &request.name)?;
            let permit = call.wait_permit()?;
            let progress = self.cluster().nodes()?.drain(request).await?;
            Ok(
                call.stream(progress, permit, |progress| api::DrainNodeResponse {
                    progress: Some(progress),
                }),
            )
        };
        answer(done.await)
    }
}

async fn set_unschedulable(call: &Call, name: &str, unschedulable: bool) -> Result<api::Node> {
    check::node_name(name)?;
    call.about("kubernetes-node", name)?;
    let nodes = call.resources.cluster().nodes()?;
    nodes.set_unschedulable(name, unschedulable).await
}
