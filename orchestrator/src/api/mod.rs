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
mod storage;
mod suggest;
mod told;
mod user_data;
mod watch;

use std::{sync::Arc, time::Duration};

use drover_proto::orchestrator::v1::{
    cluster_service_server::ClusterServiceServer,
    platform_registry_service_server::PlatformRegistryServiceServer,
    secret_service_server::SecretServiceServer,
};
use drover_server::{CallRecord, Caller, MAX_MESSAGE_BYTES};

use crate::shared::Shared;

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

pub(crate) fn cluster_service(shared: &Arc<Shared>) -> ClusterServiceServer<Api> {
    ClusterServiceServer::new(Api::of_all(shared)).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

pub(crate) fn platform_service(shared: &Arc<Shared>) -> PlatformRegistryServiceServer<Api> {
    PlatformRegistryServiceServer::new(Api::of_all(shared))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
}

pub(crate) fn secret_service(shared: &Arc<Shared>) -> SecretServiceServer<Api> {
    SecretServiceServer::new(Api::of_all(shared)).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

impl Api {
    fn of_all(shared: &Arc<Shared>) -> Self {
        Self {
            shared: shared.clone(),
            caller: Caller::default(),
            record: CallRecord::default(),
        }
    }
}
