//! The gRPC services for users and other services.

mod abandon;
mod access;
mod addon_secrets;
mod adopt;
mod apply;
mod check;
mod clusters;
mod digests;
mod events;
mod nodes;
mod paging;
mod places;
mod platforms;
mod probe_tls;
mod refusal;
mod rollout;
mod secrets;
mod service;
pub(crate) mod status;
mod storage;
mod suggest;
mod told;
mod user_data;
mod watch;

use std::{sync::Arc, time::Duration};

use drover_proto::orchestrator::v1::{
    cluster_service_server::ClusterServiceServer,
    platform_registry_service_server::PlatformRegistryServiceServer,
    replica_service_server::ReplicaServiceServer, secret_service_server::SecretServiceServer,
};
use drover_server::{CallRecord, Caller, MAX_MESSAGE_BYTES};

use crate::{replica::Replicas, shared::Shared};

/// Poll interval while waiting for an imminent change.
const SHORT_WAIT: Duration = Duration::from_millis(2);

/// Implementation of the services.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    shared: Arc<Shared>,
    /// The caller. Each call has its own; the initial one is unrestricted.
    caller: Caller,
    /// Audit record of the call.
    record: CallRecord,
}

pub(crate) fn routes(shared: &Arc<Shared>) -> tonic::service::Routes {
    let (clusters, platforms, secrets) = servers(shared);
    tonic::service::Routes::new(clusters)
        .add_service(platforms)
        .add_service(secrets)
        .add_service(ReplicaServiceServer::new(Replicas(shared.store.clone())))
}

pub(crate) fn service(shared: &Arc<Shared>) -> drover_server::Service {
    let (clusters, platforms, secrets) = servers(shared);
    drover_server::Service::new("drover-orchestrator", crate::VERSION)
        .add(clusters)
        .add(platforms)
        .add(secrets)
        .add(ReplicaServiceServer::new(Replicas(shared.store.clone())))
        .readiness(shared.readiness.subscribe())
        .metrics(crate::gauges::collector(shared))
}

fn servers(
    shared: &Arc<Shared>,
) -> (
    ClusterServiceServer<Api>,
    PlatformRegistryServiceServer<Api>,
    SecretServiceServer<Api>,
) {
    let api = Api {
        shared: shared.clone(),
        caller: Caller::default(),
        record: CallRecord::default(),
    };
    (
        ClusterServiceServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES),
        PlatformRegistryServiceServer::new(api.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES),
        SecretServiceServer::new(api).max_decoding_message_size(MAX_MESSAGE_BYTES),
    )
}
