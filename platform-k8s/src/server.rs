//! The platform, to embed or to serve.

use std::{ops::Deref, sync::Arc};

use drover_core::Result;
use drover_platform::{clock::Clock, driver::Driver, templates::Templates};
use drover_replicante::ReplicanteApi;
use drover_resources_kubernetes::client::Clients;
use drover_server::Service;
use drover_templates::Catalogue;
use futures::future::BoxFuture;

use crate::{
    driver::KubernetesDriver,
    hosts::HostDriver,
    objects::CATALOGUE,
    settings::{DriverKind, Settings},
};

const NAME: &str = "drover-platform-k8s";

/// A platform: its driver, and the layers above it. Nodes outlive it.
pub struct PlatformServer {
    served: drover_platform::PlatformServer,
    replicante: Arc<ReplicanteApi>,
}

impl PlatformServer {
    /// Contacts the API server and reads all existing nodes. Does not listen; see
    /// [`drover_platform::PlatformServer::routes`] and [`drover_platform::PlatformServer::service`].
    ///
    /// # Errors
    /// `Invalid` for wrong settings or templates; `Precondition` or `CredentialsRefused` if the API
    /// server lacks or refuses something; `Unavailable` if it cannot be reached.
    pub async fn open(settings: Settings) -> Result<Self> {
        Self::open_with(settings, &Clients::default()).await
    }

    /// Like [`PlatformServer::open`], by clients that others may use too.
    ///
    /// # Errors
    /// See [`PlatformServer::open`].
    // A future that is not boxed is compiled anew by every crate that awaits it.
    pub fn open_with(settings: Settings, clients: &Clients) -> BoxFuture<'_, Result<Self>> {
        Box::pin(Self::begin(settings, clients))
    }

    async fn begin(settings: Settings, clients: &Clients) -> Result<Self> {
        let clock = Clock::start();
        let directory = settings.templates.clone();
        let replicante = settings.replicante.clone();
        let policy = settings.policy.common().read()?;
        let (driver, templates): (Arc<dyn Driver>, _) = match settings.driver {
            DriverKind::Pods => {
                let catalogue = Catalogue::open(CATALOGUE, directory.as_deref())?;
                let templates = Templates::Catalogue(Arc::new(catalogue));
                let driver = KubernetesDriver::open(settings, clients).await?;
                (Arc::new(driver), templates)
            }
            // Nothing is installed on hosts.
            DriverKind::Hosts => {
                let driver = HostDriver::open(settings, clients).await?;
                (Arc::new(driver), Templates::Anything)
            }
        };
        let served = drover_platform::PlatformServer::new(NAME, driver, templates, clock)?;
        Ok(Self {
            replicante: ReplicanteApi::new(Arc::clone(served.platform()), replicante),
            served: served.with_policy(policy),
        })
    }

    /// The services for the network, the Replicante Platform API among them.
    #[must_use]
    pub fn service(&self) -> Service {
        self.replicante.add_to(self.served.service())
    }
}

impl Deref for PlatformServer {
    type Target = drover_platform::PlatformServer;

    fn deref(&self) -> &Self::Target {
        &self.served
    }
}
