//! A platform to embed or to serve.

use std::sync::Arc;

use drover_core::Result;
use drover_proto::platform::v1::{
    infrastructure_service_server::InfrastructureServiceServer,
    node_access_service_server::NodeAccessServiceServer,
    platform_service_server::PlatformServiceServer, storage_service_server::StorageServiceServer,
};
use drover_server::{ServerSettings, Service as Server, Shutdown};
use tonic::service::Routes;

use crate::{
    clock::Clock,
    driver::Driver,
    platform::Platform,
    policy::Policy,
    replicante::{Door, ReplicanteSettings},
    service::Service,
    templates::Templates,
};

/// A platform: its driver, and everything above it. Nodes outlive it where the driver lets them.
pub struct PlatformServer {
    name: &'static str,
    platform: Arc<Platform>,
    routes: Routes,
    replicante: Arc<Door>,
}

impl PlatformServer {
    /// A platform over a driver, served by the binary of this name. Nothing listens; see [`PlatformServer::routes`] and
    /// [`PlatformServer::service`].
    ///
    /// # Errors
    /// `Internal` if the descriptors of the services are damaged.
    pub fn new(
        name: &'static str,
        driver: Arc<dyn Driver>,
        templates: Templates,
        clock: Clock,
    ) -> Result<Self> {
        let platform = Platform::new(driver, templates, clock);
        let shutdown: Shutdown = platform.shutdown.clone();
        let routes = service(name, &platform).into_routes(&ServerSettings::default(), shutdown)?;
        Ok(Self {
            name,
            replicante: Door::new(Arc::clone(&platform), ReplicanteSettings::default()),
            platform,
            routes,
        })
    }

    /// With other settings of the Replicante Platform API than the defaults.
    #[must_use]
    pub fn with_replicante(mut self, settings: ReplicanteSettings) -> Self {
        self.replicante = Door::new(Arc::clone(&self.platform), settings);
        self
    }

    /// With a policy over what callers may set. The first one counts.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> Self {
        self.platform.policy.get_or_init(|| policy);
        self
    }

    /// The services for the same process, with deadlines and bounds, for `drover_client::in_process`.
    #[must_use]
    pub fn routes(&self) -> Routes {
        self.routes.clone()
    }

    /// The services for the network, for `drover_server::serve`, with the Replicante Platform API beside them.
    #[must_use]
    pub fn service(&self) -> Server {
        self.replicante.serve(service(self.name, &self.platform))
    }

    /// Ends watches, waits for calls that change something (at most 10 s), and ends the driver. Nodes live on.
    pub async fn shutdown(&self) {
        self.platform.shutdown().await;
    }
}

impl Drop for PlatformServer {
    /// Ends watches and background work, also without a [`PlatformServer::shutdown`].
    fn drop(&mut self) {
        self.platform.shutdown.cancel();
    }
}

fn service(name: &'static str, platform: &Arc<Platform>) -> Server {
    let service = Service(Arc::clone(platform));
    Server::new(name, env!("CARGO_PKG_VERSION"))
        .add(PlatformServiceServer::new(service.clone()))
        .add(NodeAccessServiceServer::new(service.clone()))
        .add(StorageServiceServer::new(service.clone()))
        .add(InfrastructureServiceServer::new(service))
}
