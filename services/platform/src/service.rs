//! `PlatformService` over a [`Platform`].

use std::{pin::Pin, sync::Arc};

use drover_convert::error::to_status;
use drover_core::Error;
use drover_proto::platform::v1::{
    DeprovisionRequest, DeprovisionResponse, DiscoverRequest, DiscoverResponse, FenceRequest,
    FenceResponse, GetPlatformRequest, GetPlatformResponse, ProvisionRequest, ProvisionResponse,
    UpdateNodeRequest, UpdateNodeResponse, WatchNodesRequest, WatchNodesResponse,
    platform_service_server::PlatformService,
};
use drover_server::Caller;
use futures::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::{check, platform::Platform};

pub(crate) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// `PlatformService` over a [`Platform`].
#[derive(Clone)]
pub(crate) struct Service(pub(crate) Arc<Platform>);

/// Converts a result to a gRPC response.
pub(crate) fn answer<T>(outcome: Result<T, Error>) -> Result<Response<T>, Status> {
    outcome
        .map(Response::new)
        .map_err(|error| to_status(&error))
}

#[tonic::async_trait]
impl PlatformService for Service {
    async fn get_platform(
        &self,
        _request: Request<GetPlatformRequest>,
    ) -> Result<Response<GetPlatformResponse>, Status> {
        answer(Ok(GetPlatformResponse {
            platform: Some(self.0.handshake()),
        }))
    }

    async fn discover(
        &self,
        request: Request<DiscoverRequest>,
    ) -> Result<Response<DiscoverResponse>, Status> {
        answer(self.0.discover(request.into_inner()).await)
    }

    type WatchNodesStream = Answers<WatchNodesResponse>;

    async fn watch_nodes(
        &self,
        request: Request<WatchNodesRequest>,
    ) -> Result<Response<Self::WatchNodesStream>, Status> {
        let stream = self.0.watch(request.into_inner()).await;
        answer(stream.map(|stream| {
            stream
                .map(|item| item.map_err(|error| to_status(&error)))
                .boxed() as Self::WatchNodesStream
        }))
    }

    async fn fence(
        &self,
        request: Request<FenceRequest>,
    ) -> Result<Response<FenceResponse>, Status> {
        let request = request.into_inner();
        let raise = async {
            self.0.meant(
                &request.expected_platform_uid,
                true,
                &request.expected_instance_id,
            )?;
            let fence = check::fence(request.fence.as_ref())?;
            self.0.fences.raise(&fence).await?;
            Ok(FenceResponse {})
        };
        answer(raise.await)
    }

    async fn provision(
        &self,
        request: Request<ProvisionRequest>,
    ) -> Result<Response<ProvisionResponse>, Status> {
        let cluster = request.get_ref().cluster.as_ref();
        let cluster = cluster.map_or("", |cluster| &cluster.id);
        Caller::of(&request).about("cluster", cluster);
        let deadline = drover_server::deadline(&request);
        let caller = drover_server::caller_name(&request);
        answer(
            self.0
                .provision(request.into_inner(), deadline, &caller)
                .await,
        )
    }

    async fn deprovision(
        &self,
        request: Request<DeprovisionRequest>,
    ) -> Result<Response<DeprovisionResponse>, Status> {
        let message = request.get_ref();
        let node = format!("{}/{}", message.cluster_id, message.node_id);
        Caller::of(&request).about("node", &node);
        answer(self.0.deprovision(request.into_inner()).await)
    }

    async fn update_node(
        &self,
        request: Request<UpdateNodeRequest>,
    ) -> Result<Response<UpdateNodeResponse>, Status> {
        let message = request.get_ref();
        let node = format!("{}/{}", message.expected_cluster_id, message.node_id);
        Caller::of(&request).about("node", &node);
        let node = self.0.update(request.into_inner()).await;
        answer(node.map(|node| UpdateNodeResponse { node: Some(node) }))
    }
}
