//! The services of this process while it keeps the clusters.

use std::{fmt, sync::Arc};

use drover_proto::orchestrator::v1::{
    cluster_service_server::ClusterServiceServer,
    platform_registry_service_server::PlatformRegistryServiceServer,
    secret_service_server::SecretServiceServer,
};
use drover_store::Store;

use crate::{
    api::{ClusterApi, PlatformApi, SecretApi},
    gauges::Gauges,
};

/// What answers calls here.
pub(crate) struct Services {
    pub(crate) clusters: ClusterServiceServer<ClusterApi>,
    pub(crate) platforms: PlatformRegistryServiceServer<PlatformApi>,
    pub(crate) secrets: SecretServiceServer<SecretApi>,
    pub(crate) gauges: Gauges,
    pub(crate) store: Arc<Store>,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}
