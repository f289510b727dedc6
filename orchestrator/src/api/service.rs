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

/// Implements calls, each in one of three ways: [`Api::as_read`], [`Api::as_begun`] or [`Api::as_change`].
macro_rules! calls {
    ($way:ident: $($method:ident($request:ty) -> $answer:ty = $call:ident;)*) => {
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
                    let call = async move { api.$call(request).await };
                    self.$way(call).await.map(Response::new).map_err(refusal)
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

    calls! {
        as_change:
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
        as_read:
        plan_cluster(pb::PlanClusterRequest) -> pb::PlanClusterResponse = plan;
        get_cluster(pb::GetClusterRequest) -> pb::GetClusterResponse = get;
        list_clusters(pb::ListClustersRequest) -> pb::ListClustersResponse = list;
        list_revisions(pb::ListRevisionsRequest) -> pb::ListRevisionsResponse = revisions;
        get_node(pb::GetNodeRequest) -> pb::GetNodeResponse = node;
        list_nodes(pb::ListNodesRequest) -> pb::ListNodesResponse = nodes;
        list_events(pb::ListEventsRequest) -> pb::ListEventsResponse = list_events;
    }

    calls! {
        as_begun:
        watch_clusters(pb::WatchClustersRequest) -> Self::WatchClustersStream = watch_clusters;
        stream_node_logs(pb::StreamNodeLogsRequest) -> Self::StreamNodeLogsStream = logs;
        exec_node(Streaming<pb::ExecNodeRequest>) -> Self::ExecNodeStream = exec;
        watch_nodes(pb::WatchNodesRequest) -> Self::WatchNodesStream = watch_nodes;
        watch_events(pb::WatchEventsRequest) -> Self::WatchEventsStream = watch_events;
    }
}

impl PlatformRegistryService for Api {
    calls! {
        as_change:
        register_platform(pb::RegisterPlatformRequest) -> pb::RegisterPlatformResponse = register;
        delete_storage(pb::DeleteStorageRequest) -> pb::DeleteStorageResponse = delete_storage;
        unregister_platform(pb::UnregisterPlatformRequest) -> pb::UnregisterPlatformResponse = unregister;
    }

    calls! {
        as_read:
        get_platform(pb::GetPlatformRequest) -> pb::GetPlatformResponse = get_platform;
        list_platforms(pb::ListPlatformsRequest) -> pb::ListPlatformsResponse = list_platforms;
        list_hosts(pb::ListHostsRequest) -> pb::ListHostsResponse = list_hosts;
        list_storage(pb::ListStorageRequest) -> pb::ListStorageResponse = list_storage;
        list_discovered_clusters(pb::ListDiscoveredClustersRequest) -> pb::ListDiscoveredClustersResponse = list_discovered;
    }

    calls! {
        as_begun:
        confirm_node_loss(pb::ConfirmNodeLossRequest) -> pb::ConfirmNodeLossResponse = confirm_node_loss;
    }
}

impl SecretService for Api {
    calls! {
        as_change:
        apply_secret(pb::ApplySecretRequest) -> pb::ApplySecretResponse = apply_secret;
        delete_secret(pb::DeleteSecretRequest) -> pb::DeleteSecretResponse = delete_secret;
    }

    calls! {
        as_read:
        list_secrets(pb::ListSecretsRequest) -> pb::ListSecretsResponse = list_secrets;
    }
}

impl Api {
    /// Answers from memory.
    async fn as_read<T>(&self, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let answer = self.as_begun(call).await;
        // It may have waited, and another replica lead by now.
        self.shared.store.in_touch()?;
        answer
    }

    /// Begins a stream, which ends by itself when another replica leads, or does what is not taken back.
    async fn as_begun<T>(&self, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.shared.store.in_touch()?;
        call.await
    }

    /// Changes what is stored.
    async fn as_change<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.shared.store.in_touch()?;
        self.carry_through(call).await
    }

    /// Completes a change even if the caller disconnects meanwhile, since memory must show what is durable.
    async fn carry_through<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        // Boxed, because some of these futures are large, and every wrapper would move them.
        let change = Box::pin(change);
        let change = drover_telemetry::context::scope(drover_telemetry::current(), change);
        let done = self.shared.tasks.complete(change.in_current_span());
        done.await.unwrap_or_else(|| {
            Err(Error::unavailable(
                "the orchestrator stops; ask again what became of the change",
            ))
        })
    }

    async fn unregister(
        &self,
        request: pb::UnregisterPlatformRequest,
    ) -> Result<pb::UnregisterPlatformResponse> {
        self.caller.about("platform", &request.name);
        let revision = self.shared.registry.unregister(&request.name).await?;
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
