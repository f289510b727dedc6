//! A platform to embed or to serve.

use std::{ops::Deref, path::PathBuf, sync::Arc};

use drover_core::Result;
use drover_platform::{clock::Clock, driver::Driver, policy::Policy, templates::Templates};
use drover_replicante::{ReplicanteApi, ReplicanteSettings};
use drover_server::Service;
use drover_templates::Catalogue;

use crate::drivers::{
    local::{self, LocalDriver},
    simulated::{Simulated, SimulatedHandle, SimulatedSettings},
};

const NAME: &str = "drover-platform-cloud";

/// The backend of a platform and the source of its templates.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The backend and its settings.
    pub driver: DriverSettings,
    /// Directory of a template catalogue that takes precedence over the built-in one. `None`: only the built-in one,
    /// which for simulated nodes accepts every store and version.
    pub templates: Option<PathBuf>,
}

/// A backend and its settings.
#[derive(Clone, Debug)]
pub enum DriverSettings {
    /// Processes of this machine.
    Local(local::Settings),
    /// Nodes in memory.
    Simulated(Box<SimulatedSettings>),
    /// EC2 instances.
    #[cfg(feature = "aws")]
    Aws(Box<crate::drivers::aws::Settings>),
    /// Compute Engine instances.
    #[cfg(feature = "gcp")]
    Gcp(Box<crate::drivers::gcp::Settings>),
    /// DigitalOcean droplets.
    #[cfg(feature = "digitalocean")]
    DigitalOcean(Box<crate::drivers::digitalocean::Settings>),
    /// metal-stack machines.
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

/// A platform: its driver with the common layer above it. Nodes outlive it if the driver supports that.
pub struct PlatformServer {
    served: drover_platform::PlatformServer,
    replicante: Arc<ReplicanteApi>,
    simulated: Option<SimulatedHandle>,
}

impl PlatformServer {
    /// Opens the backend. Does not listen; see [`PlatformServer::routes`] and [`PlatformServer::service`].
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
                let catalogue = match directory {
                    Some(_) => Some(Arc::new(Catalogue::open(&[], directory)?)),
                    None => None,
                };
                let driver = Simulated::with_addon_templates(*simulated, clock, catalogue.clone())?;
                let templates = catalogue.map_or(Templates::Anything, Templates::Catalogue);
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

    /// A platform with any driver.
    ///
    /// # Errors
    /// `Internal` if the descriptors of the services are invalid.
    pub fn with_driver(driver: Arc<dyn Driver>, templates: Templates) -> Result<Self> {
        Self::over(driver, templates, Clock::start(), None)
    }

    fn over(
        driver: Arc<dyn Driver>,
        templates: Templates,
        clock: Clock,
        simulated: Option<SimulatedHandle>,
    ) -> Result<Self> {
        let served = drover_platform::PlatformServer::new(NAME, driver, templates, clock)?;
        let platform = Arc::clone(served.platform());
        Ok(Self {
            replicante: ReplicanteApi::new(platform, ReplicanteSettings::default()),
            served,
            simulated,
        })
    }

    /// Replaces the default settings of the Replicante Platform API.
    #[must_use]
    pub fn with_replicante(mut self, settings: ReplicanteSettings) -> Self {
        self.replicante = ReplicanteApi::new(Arc::clone(self.served.platform()), settings);
        self
    }

    /// Restricts what callers may set.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.served = self.served.with_policy(policy);
        self
    }

    /// The services for the network, the Replicante Platform API among them.
    #[must_use]
    pub fn service(&self) -> Service {
        self.replicante.add_to(self.served.service())
    }

    /// Controls of the simulated backend, if it is one.
    #[must_use]
    pub fn simulated(&self) -> Option<&SimulatedHandle> {
        self.simulated.as_ref()
    }
}

impl Deref for PlatformServer {
    type Target = drover_platform::PlatformServer;

    fn deref(&self) -> &Self::Target {
        &self.served
    }
}

type Opened = (Arc<dyn Driver>, Templates, Option<SimulatedHandle>);

/// A cloud with its templates.
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
    let templates = crate::stores::templates(templates)?;
    let driver = crate::cloud::CloudDriver::new(cloud, settings)?;
    Ok((Arc::new(driver), templates, None))
}
