//! A platform to embed or to serve.

use std::{path::PathBuf, sync::Arc};

use drover_core::Result;
use drover_proto::platform::v1::{
    infrastructure_service_server::InfrastructureServiceServer,
    node_access_service_server::NodeAccessServiceServer,
    platform_service_server::PlatformServiceServer,
};
use drover_server::{ServerSettings, Service as Server, Shutdown};
use drover_templates::Catalogue;
use tonic::service::Routes;

use crate::{
    clock::Clock,
    driver::Driver,
    drivers::{
        local::{self, LocalDriver},
        simulated::{Simulated, SimulatedHandle, SimulatedSettings},
    },
    platform::Platform,
    service::Service,
    templates::Templates,
};

/// Which backend a platform has, and where its templates come from.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The backend.
    pub driver: DriverSettings,
    /// Directory of a template catalogue, before the built-in one. `None`: only the built-in one, which for simulated
    /// nodes and clouds accepts every store and version and leaves everything to the properties.
    pub templates: Option<PathBuf>,
}

/// A backend.
#[derive(Clone, Debug)]
pub enum DriverSettings {
    /// Processes of this machine.
    Local(local::Settings),
    /// Nodes in memory.
    Simulated(Box<SimulatedSettings>),
    /// Instances of EC2.
    #[cfg(feature = "aws")]
    Aws(Box<crate::drivers::aws::Settings>),
    /// Instances of Compute Engine.
    #[cfg(feature = "gcp")]
    Gcp(Box<crate::drivers::gcp::Settings>),
    /// Droplets of DigitalOcean.
    #[cfg(feature = "digitalocean")]
    DigitalOcean(Box<crate::drivers::digitalocean::Settings>),
    /// Machines of a metal-stack.
    #[cfg(feature = "metal")]
    Metal(Box<crate::drivers::metal::Settings>),
}

impl From<SimulatedSettings> for Settings {
    fn from(settings: SimulatedSettings) -> Self {
        Self {
            driver: DriverSettings::Simulated(Box::new(settings)),
            templates: None,
        }
    }
}

impl From<local::Settings> for Settings {
    fn from(settings: local::Settings) -> Self {
        Self {
            driver: DriverSettings::Local(settings),
            templates: None,
        }
    }
}

/// A platform: its driver, and everything above it. Nodes outlive it where the driver lets them.
pub struct PlatformServer {
    platform: Arc<Platform>,
    simulated: Option<SimulatedHandle>,
    routes: Routes,
}

impl PlatformServer {
    /// Opens the backend. Nothing listens; see [`PlatformServer::routes`] and [`PlatformServer::service`].
    ///
    /// # Errors
    /// `Invalid` for wrong settings or templates; `Precondition` if the state or a directory cannot be used.
    pub async fn open(settings: Settings) -> Result<Self> {
        let clock = Clock::start();
        let directory = settings.templates.as_deref();
        let (driver, templates, simulated): Opened = match settings.driver {
            DriverSettings::Local(local) => {
                let templates =
                    Templates::Catalogue(Arc::new(Catalogue::open(local::CATALOGUE, directory)?));
                let driver = LocalDriver::open(local)?;
                (Arc::new(driver), templates, None)
            }
            DriverSettings::Simulated(simulated) => {
                let templates = match directory {
                    Some(_) => Templates::Catalogue(Arc::new(Catalogue::open(&[], directory)?)),
                    None => Templates::Anything,
                };
                let driver = Simulated::open(*simulated, clock)?;
                let handle = driver.handle();
                (driver, templates, Some(handle))
            }
            #[cfg(feature = "aws")]
            DriverSettings::Aws(aws) => {
                let common = aws.common.clone();
                cloud(crate::drivers::aws::open(*aws).await?, common, directory)?
            }
            #[cfg(feature = "gcp")]
            DriverSettings::Gcp(gcp) => {
                let common = gcp.common.clone();
                cloud(crate::drivers::gcp::open(*gcp).await?, common, directory)?
            }
            #[cfg(feature = "digitalocean")]
            DriverSettings::DigitalOcean(digitalocean) => {
                let common = digitalocean.common.clone();
                let opened = crate::drivers::digitalocean::open(*digitalocean).await?;
                cloud(opened, common, directory)?
            }
            #[cfg(feature = "metal")]
            DriverSettings::Metal(metal) => {
                let common = metal.common.clone();
                cloud(
                    crate::drivers::metal::open(*metal).await?,
                    common,
                    directory,
                )?
            }
        };
        Self::over(driver, templates, clock, simulated)
    }

    /// A platform over any driver.
    ///
    /// # Errors
    /// `Internal` if the descriptors of the services are damaged.
    pub fn with_driver(driver: Arc<dyn Driver>, templates: Templates) -> Result<Self> {
        Self::over(driver, templates, Clock::start(), None)
    }

    fn over(
        driver: Arc<dyn Driver>,
        templates: Templates,
        clock: Clock,
        simulated: Option<SimulatedHandle>,
    ) -> Result<Self> {
        let platform = Platform::new(driver, templates, clock);
        let shutdown: Shutdown = platform.shutdown.clone();
        let routes = service(&platform).into_routes(&ServerSettings::default(), shutdown)?;
        Ok(Self {
            platform,
            simulated,
            routes,
        })
    }

    /// The services for the same process, with deadlines and bounds, for `drover_client::in_process`.
    #[must_use]
    pub fn routes(&self) -> Routes {
        self.routes.clone()
    }

    /// The services for the network, for `drover_server::serve`.
    #[must_use]
    pub fn service(&self) -> Server {
        service(&self.platform)
    }

    /// Controls of the simulated backend, if it is one.
    #[must_use]
    pub fn simulated(&self) -> Option<&SimulatedHandle> {
        self.simulated.as_ref()
    }

    /// Ends watches, waits for calls that change something (at most 10 s), and ends the driver. Nodes live on.
    pub async fn shutdown(&self) {
        self.platform.shutdown().await;
    }
}

type Opened = (Arc<dyn Driver>, Templates, Option<SimulatedHandle>);

/// A cloud with its templates: a directory, or one that leaves everything to the properties.
#[cfg(any(
    feature = "aws",
    feature = "gcp",
    feature = "digitalocean",
    feature = "metal"
))]
fn cloud<C: crate::cloud::Cloud>(
    cloud: Arc<C>,
    settings: crate::cloud::CloudSettings,
    templates: Option<&std::path::Path>,
) -> Result<Opened> {
    let templates = match templates {
        Some(_) => Templates::Catalogue(Arc::new(Catalogue::open(&[], templates)?)),
        None => Templates::Anything,
    };
    let driver = crate::cloud::CloudDriver::new(cloud, settings)?;
    Ok((Arc::new(driver), templates, None))
}

impl Drop for PlatformServer {
    /// Ends watches and background work, also without a [`PlatformServer::shutdown`].
    fn drop(&mut self) {
        self.platform.shutdown.cancel();
    }
}

fn service(platform: &Arc<Platform>) -> Server {
    let service = Service(Arc::clone(platform));
    Server::new("drover-platform-cloud", env!("CARGO_PKG_VERSION"))
        .add(PlatformServiceServer::new(service.clone()))
        .add(NodeAccessServiceServer::new(service.clone()))
        .add(InfrastructureServiceServer::new(service))
}
