//! A platform that can be embedded or served.

use std::sync::Arc;

use drover_core::Result;
use drover_proto::platform::v1::{
    addon_service_server::AddonServiceServer,
    infrastructure_service_server::InfrastructureServiceServer,
    inventory_service_server::InventoryServiceServer,
    node_access_service_server::NodeAccessServiceServer,
    platform_service_server::PlatformServiceServer, storage_service_server::StorageServiceServer,
};
use drover_server::{ServerSettings, Service as Server, Shutdown};
use futures::future::BoxFuture;
use tonic::service::Routes;

use crate::{
    clock::Clock, driver::Driver, platform::Platform, policy::Policy, service::Service,
    templates::Templates,
};

/// A platform: its driver and everything above it. Nodes outlive it where the driver permits.
pub struct PlatformServer {
    name: &'static str,
    platform: Arc<Platform>,
    routes: Routes,
}

impl PlatformServer {
    /// Creates a platform over a driver, to be served by the binary of this name. It does not listen; see
    /// [`PlatformServer::routes`] and [`PlatformServer::service`].
    ///
    /// # Errors
    ///
    /// `Internal` if the service descriptors are corrupt.
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
            platform,
            routes,
        })
    }

    /// Sets the policy that restricts callers. Only the first call has an effect.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> Self {
        self.platform.policy.get_or_init(|| policy);
        self
    }

    /// What the services share, for other interfaces over the same platform.
    #[must_use]
    pub fn platform(&self) -> &Arc<Platform> {
        &self.platform
    }

    /// The services for use within the process, with deadlines and limits, for `drover_client::in_process`.
    #[must_use]
    pub fn routes(&self) -> Routes {
        self.routes.clone()
    }

    /// The services for the network, for `drover_server::serve`.
    #[must_use]
    pub fn service(&self) -> Server {
        service(self.name, &self.platform)
    }

    /// Ends watches, waits for mutating calls (at most 10 s), and shuts down the driver. Nodes keep running.
    pub fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.platform.shutdown())
    }
}

impl Drop for PlatformServer {
    /// Ends watches and background tasks even without a [`PlatformServer::shutdown`].
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
        .add(InfrastructureServiceServer::new(service.clone()))
        .add(InventoryServiceServer::new(service.clone()))
        .add(AddonServiceServer::new(service))
}
