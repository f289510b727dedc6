//! The orchestrator: a control plane that keeps clusters in their declared state, on any registered platforms.
//!
//! `api` takes in the desired state, `intake` what platforms show (`drover-platforms`), and `drover-probes` the health of
//! nodes. All of this is told to the cluster (`drover-cluster`) and to the queue. `reconcile` takes a cluster from the
//! queue, plans it (`drover-planner`), makes the plan durable (`drover-store`) and has its calls made
//! (`drover-executor`), of which `calls` tells the cluster how they ended.

mod api;
mod calls;
mod changes;
mod gauges;
mod intake;
mod limits;
mod locks;
mod queue;
mod rebind;
mod reconcile;
mod registry;
mod replica;
mod resources;
mod secrets;
mod shared;
mod show;
mod space;
mod step;
mod tombstones;
mod trace;
mod waiter;
mod watchdog;

use std::{
    path::PathBuf,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use drover_cluster::{Cluster, Clusters};
use drover_core::{Error, Millis, Result, Urgency};
use drover_executor::Executor;
use drover_platforms::Platforms;
use drover_probes::{Probes, Reach};
use drover_secrets::Vault;
use drover_store::{Clock, ClusterRow, Keyring, Shards, Store};
use futures::{TryStreamExt, stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{limits::Limits, locks::Locks, replica::Ahead, shared::Shared, waiter::Waiters};

pub use drover_executor::{Hooks, Point};
pub use drover_platforms::{Connector, PlatformTlsSettings};
pub use drover_probes::ProbeSettings;
pub use drover_store_etcd::EtcdSettings;
pub use limits::LimitSettings;
pub use replica::{ReplicaSettings, Routing, Standby, host_name};
pub use show::show;

/// Version of this server.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Time granted to work in progress when the orchestrator stops.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// How long the first plans wait for platforms to show what they have, and how often it is looked.
const FIRST_LOOK: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Clusters that are decoded in one piece when the store is loaded.
const LOADED_TOGETHER: usize = 256;
/// Pieces that are decoded at the same time.
const MAX_DECODING: usize = 4;

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
    /// Where the store is if not in `data_dir`: an etcd, for several orchestrators of which one leads.
    pub etcd: EtcdSettings,
    /// What this orchestrator is called among those on the same etcd.
    pub replica: ReplicaSettings,
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
            etcd: EtcdSettings::default(),
            replica: ReplicaSettings::default(),
        }
    }
}

/// What an orchestrator needs besides its store.
#[derive(Clone)]
struct Preparation {
    connector: Connector,
    keys: Option<PathBuf>,
    reach: Reach,
    limits: LimitSettings,
    hooks: Hooks,
}

impl std::fmt::Debug for Preparation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preparation").finish_non_exhaustive()
    }
}

impl Preparation {
    fn of(settings: &Settings, way: impl FnOnce(Connector) -> Connector) -> Result<Self> {
        Limits::of(&settings.limits)?;
        let this = Self {
            connector: way(drover_platforms::connect::connector(
                settings.platform_tls.clone(),
            )?),
            keys: settings.secrets.key_file.clone(),
            reach: Reach::of(&settings.probes)?,
            limits: settings.limits.clone(),
            hooks: Hooks::default(),
        };
        // What cannot be used is said now, not with the lead.
        this.keyring()?;
        Ok(this)
    }

    /// The keys of secrets, as their file has them now.
    fn keyring(&self) -> Result<Option<Keyring>> {
        self.keys.as_ref().map(Keyring::read).transpose()
    }

    /// Takes the clusters of the store, and starts to reconcile them.
    async fn begin(self, store: Arc<Store>) -> Result<Orchestrator> {
        let shards = store.take_all().await?;
        self.begin_with(store, shards, None).await
    }

    async fn begin_with(
        self,
        store: Arc<Store>,
        shards: Shards,
        ahead: Option<Ahead>,
    ) -> Result<Orchestrator> {
        if let Some(file) = &self.keys {
            let changed = store.unlock(Keyring::read(file)?).await?;
            if changed > 0 {
                tracing::info!(
                    file = %file.display(),
                    changed,
                    "secrets and user data were encrypted with the first key"
                );
            }
        }
        Orchestrator::begin(store, shards, self, ahead).await
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
        let preparation = Preparation::of(settings, way)?;
        let me = settings.replica.me()?;
        let store = Store::open_directory_as(&settings.data_dir, me).await?;
        preparation.begin(Arc::new(store)).await
    }

    /// Starts to reconcile the clusters of a store, with a custom connector to platforms.
    ///
    /// # Errors
    /// The store is owned by another process, cannot be read, or is encrypted and was opened without its keys.
    pub async fn start(store: Store, connector: Connector, hooks: Hooks) -> Result<Self> {
        let preparation = Preparation {
            connector,
            keys: None,
            reach: Reach::default(),
            limits: LimitSettings::default(),
            hooks,
        };
        preparation.begin(Arc::new(store)).await
    }

    async fn begin(
        store: Arc<Store>,
        shards: Shards,
        preparation: Preparation,
        ahead: Option<Ahead>,
    ) -> Result<Self> {
        let Preparation {
            connector,
            keys: _,
            reach,
            limits,
            hooks,
        } = preparation;
        let limits = Limits::of(&limits)?;
        store.require_keys()?;
        let digests = Arc::new(store.digest_key().await?);
        let ahead = ahead.filter(|ahead| ahead.digests.is(&digests));
        let clock = Arc::new(Clock::new(hooks.wall()));
        let clusters = Arc::new(Clusters::default());
        let interner = ahead.as_ref().map(|ahead| ahead.interner.clone());
        let interner = interner.unwrap_or_default();
        let vault = Arc::new(Vault::load(store.clone(), digests.clone()).await?);
        let platforms = Arc::new(Platforms::new(
            connector,
            vault.clone(),
            store.clone(),
            shards.clone(),
            clock.clone(),
        ));
        let probes = Arc::new(Probes::new(
            clusters.clone(),
            platforms.clone(),
            vault.clone(),
            clock.clone(),
            reach,
        ));
        let shared = Arc::new(Shared {
            executor: Executor {
                clusters: clusters.clone(),
                platforms: platforms.clone(),
                probes: probes.clone(),
                vault: vault.clone(),
                interner: interner.clone(),
                clock: clock.clone(),
                hooks: hooks.clone(),
            },
            clock,
            store,
            shards,
            interner,
            queue: queue::Queue::default(),
            clusters,
            changing: Locks::default(),
            reconciling: Locks::default(),
            waiters: Waiters::default(),
            platforms,
            tombstones: tombstones::Tombstones::default(),
            leaks: resources::Leaks::default(),
            changes: Arc::default(),
            probes,
            limits,
            secrets_changing: tokio::sync::RwLock::default(),
            vault,
            digests,
            gauges: gauges::Gauges::default(),
            space: space::Space::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            written: Mutex::new(0),
            readiness: tokio::sync::watch::Sender::new(drover_server::Readiness::Ready),
            hooks,
        });
        let listener: Weak<Shared> = Arc::downgrade(&shared);
        shared.platforms.listen(listener);
        gauges::describe();
        let loaded = async {
            load(&shared, ahead).await?;
            registry::load(&shared).await?;
            secrets::keep_purposes(&shared).await
        };
        if let Err(error) = loaded.await {
            // What has begun already ends with it.
            Self { shared }.kill().await;
            return Err(error);
        }
        shared.spawn(plan_all(shared.clone()));
        shared.spawn(reconcile::run(shared.clone()));
        let queue = shared.queue.clone();
        let crossed = move |cluster| queue.push(cluster, Urgency::Urgent);
        let (probes, stop, tasks) = (&shared.probes, &shared.stop, &shared.tasks);
        shared.spawn(probes.clone().run(stop.clone(), tasks.clone(), crossed));
        shared.spawn(tombstones::run(shared.clone()));
        shared.spawn(tombstones::remove_late(shared.clone()));
        shared.spawn(resources::sweep::run(shared.clone()));
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

    /// Begins nothing more, and waits for so long for what is under way.
    async fn pause(&self, grace: Duration) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        let _ = tokio::time::timeout(grace, self.shared.tasks.wait()).await;
    }

    /// Stops gracefully, waiting at most 10 s for work in progress. Unfinished work continues after the next start.
    pub async fn shutdown(self) {
        let store = self.shared.store.clone();
        self.settle().await;
        // The next replica need not wait for the end of the lease.
        if !store.info().exclusive
            && let Err(error) = store.resign().await
        {
            tracing::debug!(%error, "the lease ends by itself");
        }
    }

    /// The same for one of several replicas, which leaves them afterwards.
    pub async fn settle(self) {
        self.pause(STOP_GRACE).await;
        if !self.shared.tasks.is_empty() {
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

/// Plans every cluster once. Without what platforms show a plan can only say that it does not know, and ten thousand of
/// them would hold up just that.
async fn plan_all(shared: Arc<Shared>) {
    let looks = async {
        while shared.platforms.are_hidden(shared.now()) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let looked = tokio::time::timeout(FIRST_LOOK, looks);
    if shared.stop.run_until_cancelled(looked).await.is_none() {
        return;
    }
    for cluster in shared.clusters.all() {
        shared.queue.push(cluster.uid(), Urgency::Bulk);
    }
}

async fn load(shared: &Arc<Shared>, ahead: Option<Ahead>) -> Result<()> {
    let decoded = match ahead {
        Some(ahead) => ahead.finish(&shared.store).await?,
        None => None,
    };
    let latest = match decoded {
        Some(clusters) => {
            for cluster in &clusters {
                cluster.count_from(shared.shards.of(cluster.uid()).first_sequence());
            }
            add(shared, clusters)
        }
        None => load_all(shared).await?,
    };
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

/// Returns the latest time that they name.
fn add(shared: &Shared, clusters: Vec<Cluster>) -> Millis {
    let mut latest = 0;
    for cluster in clusters {
        latest = latest.max(cluster.lock().latest_time());
        shared.add(cluster);
    }
    latest
}

async fn load_all(shared: &Arc<Shared>) -> Result<Millis> {
    let rows = stream::try_unfold(shared.store.load().await?, async |mut loader| {
        let rows = loader.next_some(LOADED_TOGETHER).await?;
        Ok((!rows.is_empty()).then_some((rows, loader)))
    });
    let pieces = rows.map_ok(|rows| decode(Arc::clone(shared), rows));
    let mut pieces = pin!(pieces.try_buffered(MAX_DECODING));
    let mut latest = 0;
    while let Some(clusters) = pieces.try_next().await? {
        latest = latest.max(add(shared, clusters));
    }
    Ok(latest)
}

/// Decodes clusters beside the task that reads them, which takes less time than this.
async fn decode(shared: Arc<Shared>, rows: Vec<ClusterRow>) -> Result<Vec<Cluster>> {
    let decoding = tokio::task::spawn_blocking(move || {
        let clusters = rows.into_iter().map(|row| shared.read(row));
        clusters.collect()
    });
    decoding
        .await
        .map_err(|_| Error::internal("loading was interrupted"))?
}
