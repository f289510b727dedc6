//! Client of the orchestrator for people and their tools.

use std::time::Duration;

use drover_core::Result;
use drover_proto::{
    common::v1::{Chunk, ProcessOutput},
    orchestrator::v1::{
        self as pb, cluster_service_client::ClusterServiceClient,
        platform_registry_service_client::PlatformRegistryServiceClient,
        replica_service_client::ReplicaServiceClient, secret_service_client::SecretServiceClient,
    },
};
use futures::{Stream, StreamExt, stream::BoxStream};
use tokio::time::Instant;

use crate::{
    Channel, MAX_MESSAGE_BYTES,
    call::{request, to_error, within},
    retry::{Policy, is_transient},
    role::Role,
};

/// Client of an orchestrator. Clones share the connection.
///
/// Unary calls are retried while the failure is transient, until their deadline (relative to now, for all attempts
/// together); all of them are idempotent. Watches reconnect, see [`watch`](crate::watch). If the orchestrator cannot be
/// reached at all, calls fail earlier ([`Policy::unreachable`]), with an error that
/// [`is_unreachable`](crate::is_unreachable) recognizes. Over several orchestrators
/// ([`connect_any`](crate::connect_any)), all of this goes on with the next one.
#[derive(Clone, Debug)]
pub struct OrchestratorClient {
    pub(crate) clusters: ClusterServiceClient<Channel>,
    platforms: PlatformRegistryServiceClient<Channel>,
    replicas: ReplicaServiceClient<Channel>,
    secrets: SecretServiceClient<Channel>,
    pub(crate) policy: Policy,
    several: bool,
}

macro_rules! calls {
    ($($client:ident { $($name:ident($request:ident) -> $response:ident;)* })*) => { $($(
        #[doc = concat!("`", stringify!($name), "`, as the protos document it.")]
        pub async fn $name(&self, message: pb::$request, deadline: Duration) -> Result<pb::$response> {
            self.policy
                .run(deadline, |attempt| {
                    let mut client = self.$client.clone();
                    let message = message.clone();
                    async move { within(attempt, client.$name(request(message, attempt))).await }
                })
                .await
        }
    )*)* };
}

impl OrchestratorClient {
    /// Creates a client over this channel. With TLS, a server whose certificate identifies it as something else
    /// (`spiffe://drover/platform/…`) is rejected before anything is sent to it.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        let channel = channel.to(Role::Orchestrator);
        Self {
            several: channel.is_several(),
            clusters: ClusterServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES),
            platforms: PlatformRegistryServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES),
            replicas: ReplicaServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES),
            secrets: SecretServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES),
            policy: Policy::default(),
        }
    }

    /// Sets the retry policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    calls! {
        clusters {
            apply_cluster(ApplyClusterRequest) -> ApplyClusterResponse;
            plan_cluster(PlanClusterRequest) -> PlanClusterResponse;
            get_cluster(GetClusterRequest) -> GetClusterResponse;
            list_clusters(ListClustersRequest) -> ListClustersResponse;
            delete_cluster(DeleteClusterRequest) -> DeleteClusterResponse;
            reconcile_cluster(ReconcileClusterRequest) -> ReconcileClusterResponse;
            pause_cluster(PauseClusterRequest) -> PauseClusterResponse;
            resume_cluster(ResumeClusterRequest) -> ResumeClusterResponse;
            scale_group(ScaleGroupRequest) -> ScaleGroupResponse;
            replace_node(ReplaceNodeRequest) -> ReplaceNodeResponse;
            fail_over_group(FailOverGroupRequest) -> FailOverGroupResponse;
            set_node_repair(SetNodeRepairRequest) -> SetNodeRepairResponse;
            restart_group(RestartGroupRequest) -> RestartGroupResponse;
            list_revisions(ListRevisionsRequest) -> ListRevisionsResponse;
            undo_cluster(UndoClusterRequest) -> UndoClusterResponse;
            abandon_platform(AbandonPlatformRequest) -> AbandonPlatformResponse;
            get_node(GetNodeRequest) -> GetNodeResponse;
            list_nodes(ListNodesRequest) -> ListNodesResponse;
            list_events(ListEventsRequest) -> ListEventsResponse;
        }

        platforms {
            register_platform(RegisterPlatformRequest) -> RegisterPlatformResponse;
            get_platform(GetPlatformRequest) -> GetPlatformResponse;
            list_platforms(ListPlatformsRequest) -> ListPlatformsResponse;
            unregister_platform(UnregisterPlatformRequest) -> UnregisterPlatformResponse;
            confirm_node_loss(ConfirmNodeLossRequest) -> ConfirmNodeLossResponse;
            list_hosts(ListHostsRequest) -> ListHostsResponse;
            list_storage(ListStorageRequest) -> ListStorageResponse;
            delete_storage(DeleteStorageRequest) -> DeleteStorageResponse;
            list_discovered_clusters(ListDiscoveredClustersRequest) -> ListDiscoveredClustersResponse;
        }

        replicas {
            list_replicas(ListReplicasRequest) -> ListReplicasResponse;
        }

        secrets {
            apply_secret(ApplySecretRequest) -> ApplySecretResponse;
            list_secrets(ListSecretsRequest) -> ListSecretsResponse;
            delete_secret(DeleteSecretRequest) -> DeleteSecretResponse;
        }
    }

    /// Finds the orchestrator that leads, before a call that is made only once. Returns what is left of the deadline.
    async fn find(&self, deadline: Duration) -> Result<Duration> {
        if !self.several {
            return Ok(deadline);
        }
        let start = Instant::now();
        let one = pb::ListClustersRequest {
            page_size: 1,
            ..Default::default()
        };
        match self.list_clusters(one, deadline).await {
            Err(error) if is_transient(&error) => Err(error),
            // Whatever else it answers, it leads.
            _ => Ok(deadline.saturating_sub(start.elapsed())),
        }
    }

    /// Reads the log of a node, with one attempt; `deadline` applies to opening the stream.
    pub async fn stream_node_logs(
        &self,
        message: pb::StreamNodeLogsRequest,
        deadline: Duration,
    ) -> Result<BoxStream<'static, Result<Chunk>>> {
        let deadline = self.find(deadline).await?;
        let mut client = self.clusters.clone();
        let inner = within(deadline, client.stream_node_logs(message)).await?;
        Ok(inner
            .filter_map(async |item| {
                item.map(|answer| answer.chunk)
                    .map_err(|status| to_error(&status))
                    .transpose()
            })
            .boxed())
    }

    /// Runs a command in a node, with one attempt; `deadline` applies to opening the stream. If the stream ends without
    /// an exit code, the outcome is unknown.
    pub async fn exec_node(
        &self,
        input: impl Stream<Item = pb::ExecNodeRequest> + Send + 'static,
        deadline: Duration,
    ) -> Result<BoxStream<'static, Result<ProcessOutput>>> {
        let deadline = self.find(deadline).await?;
        let mut client = self.clusters.clone();
        let inner = within(deadline, client.exec_node(input)).await?;
        Ok(inner
            .filter_map(async |item| {
                item.map(|answer| answer.output)
                    .map_err(|status| to_error(&status))
                    .transpose()
            })
            .boxed())
    }
}
