//! The generated service traits: each call is delegated to its implementation, and errors are mapped in one place.

use std::sync::Arc;

use drover_core::{Error, Reason, Result};
use drover_proto::orchestrator::v1::{
    self as pb, cluster_service_server::ClusterService,
    platform_registry_service_server::PlatformRegistryService,
    secret_service_server::SecretService,
};
use drover_store::Store;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use super::{
    ClusterApi, PlatformApi, SecretApi, access::PerCall, nodes::Answers, refusal::refusal,
};
use crate::tasks::Tasks;

/// How often a change is made whose cluster is another one in the store than in memory.
const MAX_EDITS: usize = 4;

/// A call as its way takes it: once, or as often as it is to be made.
macro_rules! made {
    (as_edit, $part:ident.$call:ident($request:ident)) => {
        move || {
            let (part, request) = ($part.clone(), $request.clone());
            async move { part.$call(request).await }
        }
    };
    ($way:ident, $part:ident.$call:ident($request:ident)) => {
        async move { $part.$call($request).await }
    };
}

/// Implements calls, each in one of four ways: [`Guard::as_read`], [`Guard::as_begun`], [`Guard::as_change`] or
/// [`Guard::as_edit`], which may make it again.
macro_rules! calls {
    ($way:ident: $($method:ident($request:ty) -> $answer:ty = $part:ident.$call:ident;)*) => {
        $(
            fn $method<'a: 'b, 'b>(
                &'a self,
                request: Request<$request>,
            ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<$answer>, Status>> + Send + 'b>>
            where
                Self: 'b,
            {
                Box::pin(async move {
                    let part = self.$part.of(&self.access, &request);
                    let request = request.into_inner();
                    let call = made!($way, part.$call(request));
                    self.guard.$way(call).await.map(Response::new).map_err(refusal)
                })
            }
        )*
    };
}

impl ClusterService for ClusterApi {
    type WatchClustersStream = Answers<pb::WatchClustersResponse>;
    type StreamNodeLogsStream = Answers<pb::StreamNodeLogsResponse>;
    type ExecNodeStream = Answers<pb::ExecNodeResponse>;
    type WatchNodesStream = Answers<pb::WatchNodesResponse>;
    type WatchEventsStream = Answers<pb::WatchEventsResponse>;

    // Those of which a second one changes nothing more.
    calls! {
        as_edit:
        apply_cluster(pb::ApplyClusterRequest) -> pb::ApplyClusterResponse = applier.apply;
        delete_cluster(pb::DeleteClusterRequest) -> pb::DeleteClusterResponse = edits.delete;
        pause_cluster(pb::PauseClusterRequest) -> pb::PauseClusterResponse = edits.pause;
        resume_cluster(pb::ResumeClusterRequest) -> pb::ResumeClusterResponse = edits.resume;
        set_node_repair(pb::SetNodeRepairRequest) -> pb::SetNodeRepairResponse = edits.set_repair;
    }

    calls! {
        as_change:
        reconcile_cluster(pb::ReconcileClusterRequest) -> pb::ReconcileClusterResponse = passes.reconcile;
        scale_group(pb::ScaleGroupRequest) -> pb::ScaleGroupResponse = edits.scale;
        replace_node(pb::ReplaceNodeRequest) -> pb::ReplaceNodeResponse = edits.replace;
        fail_over_group(pb::FailOverGroupRequest) -> pb::FailOverGroupResponse = edits.fail_over;
        restart_group(pb::RestartGroupRequest) -> pb::RestartGroupResponse = edits.restart;
        undo_cluster(pb::UndoClusterRequest) -> pb::UndoClusterResponse = applier.undo;
        abandon_platform(pb::AbandonPlatformRequest) -> pb::AbandonPlatformResponse = abandonment.abandon;
    }

    calls! {
        as_read:
        plan_cluster(pb::PlanClusterRequest) -> pb::PlanClusterResponse = plans.plan;
        get_cluster(pb::GetClusterRequest) -> pb::GetClusterResponse = reads.get;
        list_clusters(pb::ListClustersRequest) -> pb::ListClustersResponse = reads.list;
        list_revisions(pb::ListRevisionsRequest) -> pb::ListRevisionsResponse = reads.revisions;
        get_node(pb::GetNodeRequest) -> pb::GetNodeResponse = reads.node;
        list_nodes(pb::ListNodesRequest) -> pb::ListNodesResponse = reads.nodes;
        list_events(pb::ListEventsRequest) -> pb::ListEventsResponse = events.list_events;
    }

    calls! {
        as_begun:
        watch_clusters(pb::WatchClustersRequest) -> Self::WatchClustersStream = watches.watch_clusters;
        stream_node_logs(pb::StreamNodeLogsRequest) -> Self::StreamNodeLogsStream = nodes.logs;
        exec_node(Streaming<pb::ExecNodeRequest>) -> Self::ExecNodeStream = nodes.exec;
        watch_nodes(pb::WatchNodesRequest) -> Self::WatchNodesStream = watches.watch_nodes;
        watch_events(pb::WatchEventsRequest) -> Self::WatchEventsStream = events.watch_events;
    }
}

impl PlatformRegistryService for PlatformApi {
    calls! {
        as_change:
        register_platform(pb::RegisterPlatformRequest) -> pb::RegisterPlatformResponse = calls.register;
        delete_storage(pb::DeleteStorageRequest) -> pb::DeleteStorageResponse = storage.delete_storage;
        unregister_platform(pb::UnregisterPlatformRequest) -> pb::UnregisterPlatformResponse = calls.unregister;
    }

    calls! {
        as_read:
        get_platform(pb::GetPlatformRequest) -> pb::GetPlatformResponse = calls.get_platform;
        list_platforms(pb::ListPlatformsRequest) -> pb::ListPlatformsResponse = calls.list_platforms;
        list_hosts(pb::ListHostsRequest) -> pb::ListHostsResponse = calls.list_hosts;
        list_storage(pb::ListStorageRequest) -> pb::ListStorageResponse = storage.list_storage;
        list_discovered_clusters(pb::ListDiscoveredClustersRequest) -> pb::ListDiscoveredClustersResponse = calls.list_discovered;
    }

    calls! {
        as_begun:
        confirm_node_loss(pb::ConfirmNodeLossRequest) -> pb::ConfirmNodeLossResponse = calls.confirm_node_loss;
    }
}

impl SecretService for SecretApi {
    calls! {
        as_change:
        apply_secret(pb::ApplySecretRequest) -> pb::ApplySecretResponse = calls.apply_secret;
        delete_secret(pb::DeleteSecretRequest) -> pb::DeleteSecretResponse = calls.delete_secret;
    }

    calls! {
        as_read:
        list_secrets(pb::ListSecretsRequest) -> pb::ListSecretsResponse = calls.list_secrets;
    }
}

/// Lets calls begin while this process leads, and changes end.
pub(crate) struct Guard {
    pub(crate) store: Arc<Store>,
    pub(crate) tasks: Tasks,
}

impl Guard {
    /// Answers from memory.
    async fn as_read<T>(&self, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let answer = self.as_begun(call).await;
        // It may have waited, and another replica lead by now.
        self.store.in_touch()?;
        answer
    }

    /// Begins a stream, which ends by itself when another replica leads, or does what is not taken back.
    async fn as_begun<T>(&self, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.store.in_touch()?;
        call.await
    }

    /// Changes what is stored.
    async fn as_change<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.store.in_touch()?;
        self.carry_through(call).await
    }

    /// Changes what is stored of a cluster: again, by what it is then, if memory did not know of a change before it whose
    /// answer was lost.
    async fn as_edit<T, F>(&self, call: impl Fn() -> F + Send + Sync + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let edit = async move {
            for _ in 1..MAX_EDITS {
                match call().await {
                    Err(error) if error.reason() == Reason::RevisionMismatch => {}
                    answer => return answer,
                }
            }
            call().await
        };
        self.as_change(edit).await
    }

    /// Completes a change even if the caller disconnects meanwhile, since memory must show what is durable.
    async fn carry_through<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        // Boxed, because some of these futures are large, and every wrapper would move them.
        let change = Box::pin(change);
        let change = drover_telemetry::context::scope(drover_telemetry::current(), change);
        let done = self.tasks.complete(change.in_current_span());
        done.await.unwrap_or_else(|| {
            Err(Error::unavailable(
                "the orchestrator stops; ask again what became of the change",
            ))
        })
    }
}
