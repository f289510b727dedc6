//! The orchestrator: a control plane that keeps clusters in their declared state, on any registered platforms.
//!
//! `api` takes in the desired state, `platform_watch` and `intake` what platforms show, and `probes` the health of
//! nodes. All of this updates memory (`cluster`) and the queue. `reconcile` takes a cluster from the queue, plans it
//! (`drover-planner`), makes the plan durable (`drover-store`) and carries it out (`executor`).

mod api;
mod carry;
mod changes;
mod clock;
mod cluster;
mod codec;
mod connect;
mod events;
mod executor;
#[cfg(test)]
mod fixture;
mod gauges;
mod heard;
mod hooks;
mod infrastructure;
mod intake;
mod limits;
mod node_counts;
mod order;
mod platform;
mod platform_watch;
mod probes;
mod queue;
mod rebind;
mod reconcile;
mod registry;
mod request;
mod secrets;
mod shared;
mod show;
mod step;
mod template;
mod tombstones;
mod trace;
mod waiter;

use std::{path::PathBuf, sync::Arc, time::Duration};

use drover_core::Result;
use drover_store::{Keyring, Store};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use connect::PlatformTlsSettings;
pub use hooks::{Hooks, Point};
pub use limits::LimitSettings;
pub use probes::reach::ProbeSettings;
pub use shared::Connector;
pub use show::show;

use crate::{limits::Limits, probes::reach::Reach, shared::Shared};

/// Version of this server.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Time granted to work in progress when the orchestrator stops.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Settings of the orchestrator, beside those of every server.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Directory of the store. Default `drover-data` in the working directory.
    pub data_dir: PathBuf,
    /// How platforms with `https` endpoints are called.
    pub platform_tls: PlatformTlsSettings,
    /// How secrets are kept.
    pub secrets: SecretsSettings,
    /// Where nodes may be probed.
    pub probes: ProbeSettings,
    /// What one caller may take.
    pub limits: LimitSettings,
}

/// How secrets are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct SecretsSettings {
    /// File with the keys that secrets and user data are encrypted with in the store: 32 bytes in base64 a line
    /// (`openssl rand -base64 32`), mode 0600. The first key encrypts, all decrypt; at the start what another one
    /// encrypted is encrypted anew. Default: none; then no secret can be stored, and user data is stored as it is.
    pub key_file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("drover-data"),
            platform_tls: PlatformTlsSettings::default(),
            secrets: SecretsSettings::default(),
            probes: ProbeSettings::default(),
            limits: LimitSettings::default(),
        }
    }
}

/// Generates a key, in the format of a line of the file `secrets.key_file`.
///
/// # Errors
/// The system's random number generator failed.
pub fn new_key() -> Result<String> {
    Keyring::generate()
}

/// A running orchestrator.
#[derive(Debug)]
pub struct Orchestrator {
    shared: Arc<Shared>,
}

impl Orchestrator {
    /// Opens the store and starts to reconcile its clusters.
    ///
    /// # Errors
    /// The store is locked by another process, damaged, or of a newer version; a file of `platform_tls` or `secrets`, a
    /// range of `probes`, or a value of `limits` is invalid; the store is encrypted with other keys.
    pub async fn open(settings: &Settings) -> Result<Self> {
        Self::open_through(settings, |connector| connector).await
    }

    /// Like [`Self::open`], with a connector that may override how some platforms are reached; it is given the default
    /// connector.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub async fn open_through(
        settings: &Settings,
        way: impl FnOnce(Connector) -> Connector,
    ) -> Result<Self> {
        let connector = way(connect::connector(settings.platform_tls.clone())?);
        let bounds = (Reach::of(&settings.probes)?, Limits::of(&settings.limits)?);
        let keys = settings.secrets.key_file.as_ref();
        let keys = keys.map(Keyring::read).transpose()?;
        let store = Store::open_directory(&settings.data_dir).await?;
        if let Some(keys) = keys {
            let file = keys.file().display().to_string();
            let changed = store.unlock(keys).await?;
            if changed > 0 {
                tracing::info!(
                    file,
                    changed,
                    "secrets and user data were encrypted with the first key"
                );
            }
        }
        Self::begin(store, connector, Hooks::default(), bounds).await
    }

    /// Starts to reconcile the clusters of a store, with a custom connector to platforms.
    ///
    /// # Errors
    /// The store is owned by another process, cannot be read, or is encrypted and was opened without its keys.
    pub async fn start(store: Store, connector: Connector, hooks: Hooks) -> Result<Self> {
        let limits = Limits::of(&LimitSettings::default())?;
        Self::begin(store, connector, hooks, (Reach::default(), limits)).await
    }

    async fn begin(
        store: Store,
        connector: Connector,
        hooks: Hooks,
        (reach, limits): (Reach, Limits),
    ) -> Result<Self> {
        let shards = store.take_all().await?;
        store.require_keys()?;
        let digests = Arc::new(store.digest_key().await?);
        let shared = Arc::new(Shared {
            clock: clock::Clock::new(hooks.wall()),
            store,
            shards,
            interner: codec::Interner::default(),
            queue: queue::Queue::default(),
            clusters: RwLock::default(),
            names: RwLock::default(),
            platforms: RwLock::default(),
            registering: tokio::sync::Mutex::default(),
            tombstones: tombstones::Tombstones::default(),
            leaks: infrastructure::Leaks::default(),
            changes: Arc::default(),
            probes: probes::Probes::default(),
            reach,
            limits,
            secrets: secrets::Secrets::default(),
            digests,
            gauges: gauges::Gauges::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            connector,
            written: Mutex::new(0),
            hooks,
        });
        gauges::describe();
        secrets::load(&shared).await?;
        load(&shared).await?;
        registry::load(&shared).await?;
        secrets::keep_purposes(&shared).await?;
        for cluster in shared.all() {
            shared.queue.push(cluster.uid, queue::Urgency::Bulk);
        }
        shared.spawn(reconcile::run(shared.clone()));
        shared.spawn(probes::run(shared.clone()));
        shared.spawn(tombstones::run(shared.clone()));
        shared.spawn(tombstones::remove_late(shared.clone()));
        shared.spawn(infrastructure::sweep::run(shared.clone()));
        Ok(Self { shared })
    }

    /// The gRPC routes of the orchestrator's services.
    #[must_use]
    pub fn routes(&self) -> tonic::service::Routes {
        api::routes(&self.shared)
    }

    /// The same services as a server, with health, reflection and the common middleware.
    #[must_use]
    pub fn service(&self) -> drover_server::Service {
        api::service(&self.shared)
    }

    /// Cancelled when the orchestrator must stop because another process owns its clusters now.
    #[must_use]
    pub fn stopped(&self) -> CancellationToken {
        self.shared.stop.clone()
    }

    /// Number of clusters that wait to be planned.
    #[must_use]
    pub fn queue_depth(&self) -> usize {
        self.shared.queue.depth()
    }

    /// Stops gracefully, waiting at most 10 s for work in progress. Unfinished work continues after the next start.
    pub async fn shutdown(self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        if tokio::time::timeout(STOP_GRACE, self.shared.tasks.wait())
            .await
            .is_err()
        {
            tracing::debug!(
                "cutting off work that takes too long; it goes on after the next start"
            );
        }
        self.kill().await;
    }

    /// Stops immediately, as in a crash.
    pub async fn kill(self) {
        self.shared.stop.cancel();
        self.shared.kill.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

async fn load(shared: &Arc<Shared>) -> Result<()> {
    let mut loader = shared.store.load().await?;
    let mut latest = 0;
    while let Some(row) = loader.next().await? {
        let cluster = shared.read(row)?;
        latest = latest.max(clock::latest(&cluster.inner.lock().state));
        shared.add(cluster);
    }
    let behind = shared.clock.not_before(latest);
    if behind > 0 {
        tracing::warn!(
            behind_ms = behind,
            "the clock of this machine is behind what the store has recorded; time goes on from there"
        );
    }
    for (uid, tombstone) in shared.store.tombstones().await? {
        shared.tombstones.load(uid, &tombstone.value);
    }
    let revision = shared.store.revision();
    shared.wrote(revision);
    Ok(())
}
