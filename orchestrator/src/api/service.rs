//! The generated service traits: each call is delegated to its implementation, and errors are mapped in one place.

use drover_core::{Error, Result};
use drover_proto::orchestrator::v1::{
    self as pb, cluster_service_server::ClusterService,
    platform_registry_service_server::PlatformRegistryService,
    secret_service_server::SecretService,
};
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use super::{Api, nodes::Answers, refusal::refusal};

macro_rules! calls {
    ($($method:ident($request:ty) -> $answer:ty = $call:ident;)*) => {
        $(
            fn $method<'a: 'b, 'b>(
                &'a self,
                request: Request<$request>,
            ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<$answer>, Status>> + Send + 'b>>
            where
                Self: 'b,
            {
                Box::pin(async move {
                    let api = self.of(&request);
                    self.shared.store.in_touch().map_err(refusal)?;
                    let answer = api.$call(request.into_inner()).await;
                    // It may have waited, and another replica lead by now.
                    self.shared.store.in_touch().map_err(refusal)?;
                    answer.map(Response::new).map_err(refusal)
                })
            }
        )*
    };
}

/// Calls whose answer is a stream, which ends by itself when another replica leads, and those that act at once.
macro_rules! begun {
    ($($method:ident($request:ty) -> $answer:ty = $call:ident;)*) => {
        $(
            fn $method<'a: 'b, 'b>(
                &'a self,
                request: Request<$request>,
            ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<$answer>, Status>> + Send + 'b>>
            where
                Self: 'b,
            {
                Box::pin(async move {
                    let api = self.of(&request);
                    self.shared.store.in_touch().map_err(refusal)?;
                    api.$call(request.into_inner()).await.map(Response::new).map_err(refusal)
                })
            }
        )*
    };
}

/// Calls that change state.
macro_rules! changes {
    ($($method:ident($request:ty) -> $answer:ty = $call:ident;)*) => {
        $(
            fn $method<'a: 'b, 'b>(
                &'a self,
                request: Request<$request>,
            ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<$answer>, Status>> + Send + 'b>>
            where
                Self: 'b,
            {
                Box::pin(async move {
                    let (api, request) = (self.of(&request), request.into_inner());
                    self.shared.store.in_touch().map_err(refusal)?;
                    let change = async move { api.$call(request).await };
                    self.carry_through(change).await.map(Response::new).map_err(refusal)
                })
            }
        )*
    };
}

impl ClusterService for Api {
    type WatchClustersStream = Answers<pb::WatchClustersResponse>;
    type StreamNodeLogsStream = Answers<pb::StreamNodeLogsResponse>;
    type ExecNodeStream = Answers<pb::ExecNodeResponse>;
    type WatchNodesStream = Answers<pb::WatchNodesResponse>;
    type WatchEventsStream = Answers<pb::WatchEventsResponse>;

    changes! {
        apply_cluster(pb::ApplyClusterRequest) -> pb::ApplyClusterResponse = apply;
        delete_cluster(pb::DeleteClusterRequest) -> pb::DeleteClusterResponse = delete;
        reconcile_cluster(pb::ReconcileClusterRequest) -> pb::ReconcileClusterResponse = reconcile;
        pause_cluster(pb::PauseClusterRequest) -> pb::PauseClusterResponse = pause;
        resume_cluster(pb::ResumeClusterRequest) -> pb::ResumeClusterResponse = resume;
        scale_group(pb::ScaleGroupRequest) -> pb::ScaleGroupResponse = scale;
        replace_node(pb::ReplaceNodeRequest) -> pb::ReplaceNodeResponse = replace;
        set_node_repair(pb::SetNodeRepairRequest) -> pb::SetNodeRepairResponse = set_repair;
        restart_group(pb::RestartGroupRequest) -> pb::RestartGroupResponse = restart;
        undo_cluster(pb::UndoClusterRequest) -> pb::UndoClusterResponse = undo;
        abandon_platform(pb::AbandonPlatformRequest) -> pb::AbandonPlatformResponse = abandon;
    }

    calls! {
        plan_cluster(pb::PlanClusterRequest) -> pb::PlanClusterResponse = plan;
        get_cluster(pb::GetClusterRequest) -> pb::GetClusterResponse = get;
        list_clusters(pb::ListClustersRequest) -> pb::ListClustersResponse = list;
        list_revisions(pb::ListRevisionsRequest) -> pb::ListRevisionsResponse = revisions;
        get_node(pb::GetNodeRequest) -> pb::GetNodeResponse = node;
        list_nodes(pb::ListNodesRequest) -> pb::ListNodesResponse = nodes;
        list_events(pb::ListEventsRequest) -> pb::ListEventsResponse = list_events;
    }

    begun! {
        watch_clusters(pb::WatchClustersRequest) -> Self::WatchClustersStream = watch_clusters;
        stream_node_logs(pb::StreamNodeLogsRequest) -> Self::StreamNodeLogsStream = logs;
        exec_node(Streaming<pb::ExecNodeRequest>) -> Self::ExecNodeStream = exec;
        watch_nodes(pb::WatchNodesRequest) -> Self::WatchNodesStream = watch_nodes;
        watch_events(pb::WatchEventsRequest) -> Self::WatchEventsStream = watch_events;
    }
}

impl PlatformRegistryService for Api {
    changes! {
        register_platform(pb::RegisterPlatformRequest) -> pb::RegisterPlatformResponse = register;
        delete_storage(pb::DeleteStorageRequest) -> pb::DeleteStorageResponse = delete_storage;
        unregister_platform(pb::UnregisterPlatformRequest) -> pb::UnregisterPlatformResponse = unregister;
    }

    calls! {
        get_platform(pb::GetPlatformRequest) -> pb::GetPlatformResponse = get_platform;
        list_platforms(pb::ListPlatformsRequest) -> pb::ListPlatformsResponse = list_platforms;
        list_hosts(pb::ListHostsRequest) -> pb::ListHostsResponse = list_hosts;
        list_storage(pb::ListStorageRequest) -> pb::ListStorageResponse = list_storage;
        list_discovered_clusters(pb::ListDiscoveredClustersRequest) -> pb::ListDiscoveredClustersResponse = list_discovered;
    }

    begun! {
        confirm_node_loss(pb::ConfirmNodeLossRequest) -> pb::ConfirmNodeLossResponse = confirm_node_loss;
    }
}

impl SecretService for Api {
    changes! {
        apply_secret(pb::ApplySecretRequest) -> pb::ApplySecretResponse = apply_secret;
        delete_secret(pb::DeleteSecretRequest) -> pb::DeleteSecretResponse = delete_secret;
    }

    calls! {
        list_secrets(pb::ListSecretsRequest) -> pb::ListSecretsResponse = list_secrets;
    }
}

impl Api {
    /// Completes a change even if the caller disconnects meanwhile, since memory must show what is durable.
    async fn carry_through<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        // Boxed, because some of these futures are large, and every wrapper would move them.
        let change = self
            .shared
            .kill
            .clone()
            .run_until_cancelled_owned(Box::pin(change));
        let change = drover_telemetry::context::scope(drover_telemetry::current(), change);
        match self.shared.tasks.spawn(change.in_current_span()).await {
            Ok(Some(answer)) => answer,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Ok(None) | Err(_) => Err(Error::unavailable(
                "the orchestrator stops; ask again what became of the change",
            )),
        }
    }

    async fn unregister(
        &self,
        request: pb::UnregisterPlatformRequest,
    ) -> Result<pb::UnregisterPlatformResponse> {
        self.caller.about("platform", &request.name);
        let revision = crate::registry::unregister(&self.shared, &request.name).await?;
        Ok(pb::UnregisterPlatformResponse { revision })
    }

    #[expect(clippy::unused_async, reason = "the shape of every call")]
    async fn confirm_node_loss(
        &self,
        request: pb::ConfirmNodeLossRequest,
    ) -> Result<pb::ConfirmNodeLossResponse> {
        self.confirm_loss(&request)
    }

    #[expect(clippy::unused_async, reason = "the shape of every call")]
    async fn list_discovered(
        &self,
        request: pb::ListDiscoveredClustersRequest,
    ) -> Result<pb::ListDiscoveredClustersResponse> {
        self.discovered(request)
    }
}
