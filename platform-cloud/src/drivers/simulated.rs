//! Nodes in memory, with the delays, limits and failures of a real backend on demand. One process can simulate hundreds
//! of thousands of nodes. Time is only taken from tokio's clock, so that everything runs in virtual time when it is
//! paused.

mod addons;
mod driver;
mod faults;
mod handle;
mod infrastructure;
mod journal;
mod metal3;
mod placement;
mod settings;
mod state_file;
mod timers;
mod volumes;
mod world;

use std::sync::Arc;

use drover_core::{Error, Reason, Result};
use drover_templates::Catalogue;
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};

pub use addons::AddonLedger;
pub use faults::{Death, Fault, Operation};
pub use handle::{LedgerEntry, SimulatedHandle};
pub use settings::{
    AddonSettings, AddonWord, ClassSettings, DomainSettings, ErrorRate, ErrorRates, HostSettings,
    SimulatedSettings,
};

use addons::AddonStore;
use drover_platform::clock::Clock;
use infrastructure::Estate;
use world::World;

/// The simulated backend and its driver.
pub struct Simulated {
    settings: SimulatedSettings,
    uid: parking_lot::Mutex<String>,
    schema: Option<Arc<serde_json::Value>>,
    world: Mutex<World>,
    estate: Mutex<Estate>,
    addons: Mutex<AddonStore>,
    /// Templates of addons. `None`: any name is a template, which renders nothing.
    addon_templates: Option<Arc<Catalogue>>,
    /// Notified when an earlier timer was set, and when nodes changed.
    changed: watch::Sender<()>,
    timers: Mutex<Option<JoinHandle<()>>>,
}

impl Simulated {
    /// Opens the backend: empty, or restored from the state file. Must be called inside a tokio runtime. Every name is a
    /// template of an addon.
    ///
    /// # Errors
    /// `Invalid` for contradictory settings; `Precondition` if the state file cannot be read.
    pub fn open(settings: SimulatedSettings, clock: Clock) -> Result<Arc<Self>> {
        Self::with_addon_templates(settings, clock, None)
    }

    /// Opens the backend as [`Simulated::open`] does, with a catalogue of templates of addons if there is one.
    ///
    /// # Errors
    /// Those of [`Simulated::open`].
    pub fn with_addon_templates(
        settings: SimulatedSettings,
        clock: Clock,
        addon_templates: Option<Arc<Catalogue>>,
    ) -> Result<Arc<Self>> {
        settings.check()?;
        let (journal, past) = match &settings.state_file {
            None => (None, journal::Past::default()),
            Some(path) => {
                let (journal, past) = journal::open(path).map_err(|error| {
                    Error::new(
                        Reason::Precondition,
                        format!("state file {}: {error}", path.display()),
                    )
                })?;
                (Some(journal), past)
            }
        };
        let part = |extension: &str| {
            let file = settings.state_file.as_ref();
            file.map(|file| file.with_extension(extension))
        };
        let unreadable = |part: &str, error: std::io::Error| {
            Error::new(Reason::Precondition, format!("state of {part}: {error}"))
        };
        let estate = Estate::open(part("infrastructure"))
            .map_err(|error| unreadable("the infrastructure", error))?;
        let addons =
            AddonStore::open(part("addons")).map_err(|error| unreadable("the addons", error))?;
        let uid = match (&settings.uid, past.uid.clone()) {
            (Some(uid), _) => uid.clone(),
            (None, Some(uid)) => format!("simulated:{}:{uid}", settings.name),
            (None, None) => format!("simulated:{}:{}", settings.name, uuid::Uuid::new_v4()),
        };
        let world = World::new(&settings, clock, journal, past);
        let simulated = Arc::new(Self {
            schema: settings.schema().map(Arc::new),
            settings,
            uid: parking_lot::Mutex::new(uid),
            world: Mutex::new(world),
            estate: Mutex::new(estate),
            addons: Mutex::new(addons),
            addon_templates,
            changed: watch::Sender::new(()),
            timers: Mutex::new(None),
        });
        let timers = timers::spawn(&simulated);
        *simulated.timers.lock() = Some(timers);
        Ok(simulated)
    }

    /// Controls for tests.
    #[must_use]
    pub fn handle(self: &Arc<Self>) -> SimulatedHandle {
        SimulatedHandle::new(Arc::clone(self))
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        if let Some(timers) = self.timers.get_mut().take() {
            timers.abort();
        }
    }
}
