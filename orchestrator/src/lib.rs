//! The orchestrator: a control plane that keeps clusters in their declared state, on any registered platforms.
//!
//! `api` takes in the desired state, `intake` what platforms show (`drover-platforms`), and `drover-probes` the health of
//! nodes. All of this is told to the cluster (`drover-cluster`) and to the queue. `reconcile` takes a cluster from the
//! queue, plans it (`drover-planner`), makes the plan durable (`drover-store`) and has its calls made
//! (`drover-executor`), of which `calls` tells the cluster how they ended. `wiring` builds all of these, each with what it
//! uses.

mod api;
mod calls;
mod changes;
mod commit;
mod doubt;
mod expiry;
mod fenced;
mod gauges;
mod intake;
mod limits;
mod load;
mod locks;
mod observer;
mod planning;
mod queue;
mod readiness;
mod rebind;
mod reconcile;
mod records;
mod registry;
mod replica;
mod resources;
mod safety;
mod secrets;
mod services;
mod show;
mod space;
mod status;
mod tasks;
mod tombstones;
mod trace;
mod waiter;
mod watchdog;
mod wiring;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drover_core::Result;
use drover_probes::Reach;
use drover_store::{Clock, Keyring, Me, Shards, Store};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::{
    limits::Limits, load::Ahead, queue::Queue, readiness::ReadinessReporter, records::Records,
    services::Services, space::Space, tasks::Tasks, wiring::Wiring,
};

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

    /// The same with the store in a directory.
    fn begin_in(self, directory: &Path, me: Me) -> BoxFuture<'_, Result<Orchestrator>> {
        Box::pin(async move {
            let store = Store::open_directory_as(directory, me).await?;
            self.begin(Arc::new(store)).await
        })
    }

    /// Takes the clusters of the store, and starts to reconcile them.
    // A future that is not boxed is compiled anew by every crate that awaits it.
    fn begin(self, store: Arc<Store>) -> BoxFuture<'static, Result<Orchestrator>> {
        Box::pin(async move {
            let shards = store.take_all().await?;
            self.begin_with(store, shards, None).await
        })
    }

    async fn begin_with(
        self,
        store: Arc<Store>,
        shards: Shards,
        ahead: Option<Ahead>,
    ) -> Result<Orchestrator> {
        if let Some(file) = &self.keys
            && let Some(keys) = store.agreed(Keyring::read(file)?).await?
        {
            let changed = store.unlock(keys).await?;
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
pub struct Orchestrator {
    store: Arc<Store>,
    records: Arc<Records>,
    queue: Queue,
    tasks: Tasks,
    readiness: ReadinessReporter,
    space: Arc<Space>,
    clock: Arc<Clock>,
    services: Arc<Services>,
}

impl std::fmt::Debug for Orchestrator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orchestrator")
            .field("store", &self.store.id())
            .finish_non_exhaustive()
    }
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
        preparation.begin_in(&settings.data_dir, me).await
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
        let contents = load::contents(&store, &shards, ahead).await?;
        let (wiring, followed) = Wiring::new(store, shards, contents, connector, reach, hooks);
        let registry = Arc::new(wiring.registry());
        let secrets = Arc::new(wiring.secrets());
        gauges::describe();
        if let Err(error) = wiring.follow(followed, &registry, &secrets).await {
            // What has begun already ends with it.
            wiring.tasks.kill().await;
            return Err(error);
        }
        wiring.spawn();
        let services = Arc::new(wiring.services(&registry, &secrets, limits));
        let Wiring {
            store,
            records,
            queue,
            tasks,
            readiness,
            space,
            clock,
            ..
        } = wiring;
        Ok(Self {
            store,
            records,
            queue,
            tasks,
            readiness,
            space,
            clock,
            services,
        })
    }

    /// The gRPC routes of the orchestrator's services.
    #[must_use]
    pub fn routes(&self) -> tonic::service::Routes {
        let services = &self.services;
        tonic::service::Routes::new(services.clusters.clone())
            .add_service(services.platforms.clone())
            .add_service(services.secrets.clone())
            .add_service(replica::alone(&self.store))
    }

    /// The same services as a server, with health, reflection and the common middleware.
    #[must_use]
    pub fn service(&self) -> drover_server::Service {
        let services = self.services.clone();
        drover_server::Service::new("drover-orchestrator", VERSION)
            .add(services.clusters.clone())
            .add(services.platforms.clone())
            .add(services.secrets.clone())
            .add(replica::alone(&self.store))
            .readiness(self.readiness.subscribe())
            .metrics(move |out| services.gauges.write(out))
    }

    /// Cancelled when the orchestrator must stop because another process owns its clusters now.
    #[must_use]
    pub fn stopped(&self) -> CancellationToken {
        self.tasks.stop().clone()
    }

    /// Number of clusters that wait to be planned.
    #[must_use]
    pub fn queue_depth(&self) -> usize {
        self.queue.depth()
    }

    /// Stops gracefully, waiting at most 10 s for work in progress. Unfinished work continues after the next start.
    pub fn shutdown(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let store = self.store.clone();
            self.settle().await;
            // The next replica need not wait for the end of the lease.
            if !store.info().exclusive
                && let Err(error) = store.resign().await
            {
                tracing::debug!(%error, "the lease ends by itself");
            }
        })
    }

    /// The same for one of several replicas, which leaves them afterwards.
    pub fn settle(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.tasks.pause(STOP_GRACE).await;
            if !self.tasks.is_empty() {
                tracing::debug!(
                    "cutting off work that takes too long; it goes on after the next start"
                );
            }
            self.kill().await;
        })
    }

    /// Stops immediately, as in a crash.
    pub async fn kill(self) {
        self.tasks.kill().await;
    }
}
