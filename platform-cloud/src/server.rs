//! A platform to embed or to serve.

mod clouds;

use std::{ops::Deref, path::PathBuf, sync::Arc};

use drover_core::Result;
use drover_platform::{clock::Clock, driver::Driver, policy::Policy, templates::Templates};
use drover_replicante::{ReplicanteApi, ReplicanteSettings};
use drover_server::Service;
use drover_templates::Catalogue;
use futures::future::BoxFuture;

pub use self::clouds::CloudBackend;
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
    /// A cloud.
    Cloud(Arc<dyn CloudBackend>),
}

impl<B: CloudBackend + 'static> From<B> for DriverSettings {
    fn from(backend: B) -> Self {
        Self::Cloud(Arc::new(backend))
    }
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
    // A future that is not boxed is compiled anew by every crate that awaits it.
    pub fn open(settings: Settings) -> BoxFuture<'static, Result<Self>> {
        Box::pin(Self::begin(settings))
    }

    async fn begin(settings: Settings) -> Result<Self> {
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
            DriverSettings::Cloud(cloud) => {
                let (driver, templates) = cloud.open(directory).await?;
                (driver, templates, None)
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
