//! The gRPC services for users and other services.

mod abandon;
mod access;
mod addon_secrets;
mod adopt;
mod apply;
mod check;
mod clusters;
mod create;
mod digests;
mod editor;
mod events;
mod failover;
mod forecast;
mod nodes;
mod paging;
mod passes;
mod places;
mod plan;
mod platforms;
mod probe_tls;
mod reads;
mod refusal;
mod revisions;
mod rollout;
mod secrets;
mod service;
mod storage;
mod suggest;
mod user_data;
mod watch;

use std::time::Duration;

use drover_proto::orchestrator::v1::{
    cluster_service_server::ClusterServiceServer,
    platform_registry_service_server::PlatformRegistryServiceServer,
    secret_service_server::SecretServiceServer,
};
use drover_server::MAX_MESSAGE_BYTES;

pub(crate) use self::{
    abandon::Abandonment, access::Access, apply::Applier, check::Validator, clusters::Edits,
    create::Creator, editor::Editor, events::Events, forecast::Forecaster, nodes::NodeStreams,
    passes::Passes, plan::Plans, platforms::PlatformCalls, reads::Reads, revisions::Revisions,
    secrets::SecretCalls, service::Guard, storage::Storage, watch::Watches,
};

/// Poll interval while waiting for an imminent change.
const SHORT_WAIT: Duration = Duration::from_millis(2);

/// The service of clusters, by what answers its calls.
pub(crate) struct ClusterApi {
    pub(crate) guard: Guard,
    pub(crate) access: Access,
    pub(crate) reads: Reads,
    pub(crate) watches: Watches,
    pub(crate) events: Events,
    pub(crate) nodes: NodeStreams,
    pub(crate) applier: Applier,
    pub(crate) edits: Edits,
    pub(crate) plans: Plans,
    pub(crate) passes: Passes,
    pub(crate) abandonment: Abandonment,
}

impl ClusterApi {
    pub(crate) fn into_service(self) -> ClusterServiceServer<Self> {
        ClusterServiceServer::new(self).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}

/// The service of platforms.
pub(crate) struct PlatformApi {
    pub(crate) guard: Guard,
    pub(crate) access: Access,
    pub(crate) calls: PlatformCalls,
    pub(crate) storage: Storage,
}

impl PlatformApi {
    pub(crate) fn into_service(self) -> PlatformRegistryServiceServer<Self> {
        PlatformRegistryServiceServer::new(self).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}

/// The service of secrets.
pub(crate) struct SecretApi {
    pub(crate) guard: Guard,
    pub(crate) access: Access,
    pub(crate) calls: SecretCalls,
}

impl SecretApi {
    pub(crate) fn into_service(self) -> SecretServiceServer<Self> {
        SecretServiceServer::new(self).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}
