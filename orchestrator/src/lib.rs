//! The orchestrator: a control plane that keeps clusters in their declared state, on any registered platforms.
//!
//! `api` takes in the desired state, `intake` what platforms show (`drover-platforms`), and `drover-probes` the health of
//! nodes. All of this is told to the cluster (`drover-cluster`) and to the queue. `reconcile` takes a cluster from the
//! queue, plans it (`drover-planner`), makes the plan durable (`drover-store`) and has its calls made
//! (`drover-executor`), of which `calls` tells the cluster how they ended.

mod api;
mod calls;
mod changes;
mod commit;
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
mod shared;
mod show;
mod space;
mod status;
mod tasks;
mod tombstones;
mod trace;
mod waiter;
mod watchdog;

use std::{path::PathBuf, sync::Arc, time::Duration};

use drover_cluster::Clusters;
use drover_core::{Result, Urgency};
use drover_executor::Executor;
use drover_platforms::Platforms;
use drover_probes::{Probes, Reach};
use drover_proto::orchestrator::v1::{
    cluster_service_server::ClusterServiceServer,
    platform_registry_service_server::PlatformRegistryServiceServer,
    secret_service_server::SecretServiceServer,
};
use drover_secrets::Vault;
use drover_store::{Clock, Keyring, Shards, Store};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::{
    api::Api,
    calls::Dispatcher,
    commit::Committer,
    gauges::Gauges,
    intake::Intake,
    limits::Limits,
    locks::Locks,
    observer::Observer,
    planning::Planner,
    queue::Queue,
    readiness::ReadinessReporter,
    rebind::Rebinder,
    reconcile::{Finisher, Preparer, Reconciler},
    records::Records,
    registry::Registry,
    replica::Ahead,
    resources::{Leaks, sweep::Sweep},
    safety::SafetySweep,
    secrets::Secrets,
    space::Space,
    status::Viewer,
    tasks::Tasks,
    tombstones::{Expiry, LateNodes, Tombstones},
    waiter::Waiters,
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

/// How long the first plans wait for platforms to show what they have, and how often it is looked.
const FIRST_LOOK: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

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
pub struct Orchestrator {
    store: Arc<Store>,
    records: Arc<Records>,
    queue: Queue,
    tasks: Tasks,
    readiness: ReadinessReporter,
    space: Arc<Space>,
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
        let records = Arc::new(Records::new(
            store.clone(),
            shards.clone(),
            interner.clone(),
            digests.clone(),
            clusters.clone(),
        ));
        let executor = Arc::new(Executor {
            clusters: clusters.clone(),
            platforms: platforms.clone(),
            probes: probes.clone(),
            vault: vault.clone(),
            interner: interner.clone(),
            clock: clock.clone(),
            hooks: hooks.clone(),
        });
        let tasks = Tasks::default();
        let queue = Queue::default();
        let tombstones = Arc::new(Tombstones::default());
        let leaks = Arc::new(Leaks::default());
        let waiters = Arc::new(Waiters::default());
        let space = Arc::new(Space::default());
        let readiness = ReadinessReporter::new(tasks.stop().clone());
        let observer = Observer {
            interner: interner.clone(),
            platforms: platforms.clone(),
            probes: probes.clone(),
        };
        let committer = Arc::new(Committer {
            store: store.clone(),
            records: records.clone(),
            digests: digests.clone(),
            tombstones: tombstones.clone(),
            platforms: platforms.clone(),
            probes: probes.clone(),
            clock: clock.clone(),
        });
        let planner = Planner {
            platforms: platforms.clone(),
            vault: vault.clone(),
            store: store.clone(),
            clock: clock.clone(),
        };
        let viewer = Viewer {
            platforms: platforms.clone(),
            digests: digests.clone(),
            clock: clock.clone(),
        };
        let intake = Arc::new(Intake {
            records: records.clone(),
            queue: queue.clone(),
            platforms: platforms.clone(),
            observer: observer.clone(),
            tombstones: tombstones.clone(),
            vault: vault.clone(),
            interner: interner.clone(),
            clock: clock.clone(),
        });
        let registry = Arc::new(Registry {
            store: store.clone(),
            records: records.clone(),
            platforms: platforms.clone(),
            intake,
            rebinder: Rebinder {
                records: records.clone(),
                committer: committer.clone(),
                interner: interner.clone(),
                queue: queue.clone(),
                clock: clock.clone(),
            },
            tombstones: tombstones.clone(),
            leaks: leaks.clone(),
            interner: interner.clone(),
            queue: queue.clone(),
            tasks: tasks.clone(),
            clock: clock.clone(),
        });
        let secrets = Secrets::new(vault.clone(), clusters.clone(), platforms.clone());
        gauges::describe();
        let loaded = async {
            load::clusters(&store, &records, &clock, ahead).await?;
            load::tombstones(&store, &tombstones).await?;
            records.wrote(store.revision());
            registry.load().await?;
            secrets.keep_purposes(&store, &records).await
        };
        if let Err(error) = loaded.await {
            // What has begun already ends with it.
            tasks.kill().await;
            return Err(error);
        }
        let reconciler = Reconciler {
            queue: queue.clone(),
            tasks: tasks.clone(),
            records: records.clone(),
            waiters: waiters.clone(),
            preparer: Preparer {
                planner: planner.clone(),
                records: records.clone(),
                platforms: platforms.clone(),
                probes: probes.clone(),
                vault: vault.clone(),
                waiters: waiters.clone(),
                queue: queue.clone(),
            },
            committer: committer.clone(),
            finisher: Finisher {
                store: store.clone(),
                records: records.clone(),
                committer: committer.clone(),
                tombstones: tombstones.clone(),
                queue: queue.clone(),
                clock: clock.clone(),
                hooks: hooks.clone(),
            },
            dispatcher: Dispatcher {
                executor: executor.clone(),
                tasks: tasks.clone(),
                leaks: leaks.clone(),
                waiters: waiters.clone(),
                observer,
                records: records.clone(),
                queue: queue.clone(),
            },
            clock: clock.clone(),
            hooks: hooks.clone(),
        };
        tasks.spawn_until_stop(plan_all(
            clusters.clone(),
            platforms.clone(),
            queue.clone(),
            clock.clone(),
        ));
        tasks.spawn(Arc::new(reconciler).run());
        let crossed = {
            let queue = queue.clone();
            move |cluster| queue.push(cluster, Urgency::Urgent)
        };
        let (stop, tracker) = (tasks.stop().clone(), tasks.tracker().clone());
        tasks.spawn(probes.clone().run(stop, tracker, crossed));
        let safety = SafetySweep {
            records: records.clone(),
            queue: queue.clone(),
            platforms: platforms.clone(),
            clock: clock.clone(),
            hooks: hooks.clone(),
        };
        tasks.spawn_until_stop(safety.run());
        let expiry = Expiry {
            tombstones: tombstones.clone(),
            leaks: leaks.clone(),
            store: store.clone(),
            shards,
            clock: clock.clone(),
        };
        tasks.spawn(expiry.run(tasks.stop().clone()));
        let late = LateNodes {
            tombstones: tombstones.clone(),
            platforms: platforms.clone(),
            executor: executor.clone(),
            store: store.clone(),
            clock: clock.clone(),
        };
        tasks.spawn_until_stop(late.run());
        let sweep = Sweep {
            records: records.clone(),
            queue: queue.clone(),
            tombstones: tombstones.clone(),
            leaks,
            platforms: platforms.clone(),
            executor,
            store: store.clone(),
            clock: clock.clone(),
        };
        tasks.spawn_until_stop(sweep.run());
        let gauges = Gauges::new(
            records.clone(),
            viewer.clone(),
            queue.clone(),
            space.clone(),
        );
        let shared = Arc::new(shared::Shared {
            clock,
            store: store.clone(),
            records: records.clone(),
            interner,
            queue: queue.clone(),
            clusters,
            changing: Locks::default(),
            reconciling: Locks::default(),
            waiters,
            platforms,
            tombstones,
            probes,
            limits,
            vault,
            secrets,
            digests,
            tasks: tasks.clone(),
            readiness: readiness.clone(),
            space: space.clone(),
            registry,
            committer,
            planner,
            viewer,
            hooks,
        });
        let services = Arc::new(Services {
            clusters: api::cluster_service(&shared),
            platforms: api::platform_service(&shared),
            secrets: api::secret_service(&shared),
            gauges,
            store: store.clone(),
        });
        Ok(Self {
            store,
            records,
            queue,
            tasks,
            readiness,
            space,
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
    pub async fn shutdown(self) {
        let store = self.store.clone();
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
        self.tasks.pause(STOP_GRACE).await;
        if !self.tasks.is_empty() {
            tracing::debug!(
                "cutting off work that takes too long; it goes on after the next start"
            );
        }
        self.kill().await;
    }

    /// Stops immediately, as in a crash.
    pub async fn kill(self) {
        self.tasks.kill().await;
    }
}

/// What answers calls here.
struct Services {
    clusters: ClusterServiceServer<Api>,
    platforms: PlatformRegistryServiceServer<Api>,
    secrets: SecretServiceServer<Api>,
    gauges: Gauges,
    store: Arc<Store>,
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}

/// Plans every cluster once. Without what platforms show a plan can only say that it does not know, and ten thousand of
/// them would hold up just that.
async fn plan_all(
    clusters: Arc<Clusters>,
    platforms: Arc<Platforms>,
    queue: Queue,
    clock: Arc<Clock>,
) {
    let looks = async {
        while platforms.are_hidden(clock.now()) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let _ = tokio::time::timeout(FIRST_LOOK, looks).await;
    for cluster in clusters.all() {
        queue.push(cluster.uid(), Urgency::Bulk);
    }
}
