//! State shared by all parts of the orchestrator.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Bound,
    sync::Arc,
};

use drover_client::{Channel, Identity};
use drover_core::{Error, Millis, Result, Sym, spec::Group};
use drover_planner::PlatformView;
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use drover_store::{ClusterRow, DigestKey, Revision, Shards, Store};
use parking_lot::{Mutex, RwLock};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    changes::Changes,
    clock::Clock,
    cluster::{Cluster, ClusterState},
    codec::Interner,
    gauges::Gauges,
    limits::Limits,
    platform::Platform,
    probes::{
        Probes,
        reach::{Gate, Reach},
    },
    queue::{Queue, Urgency},
    secrets::Secrets,
    tombstones::Tombstones,
};

/// Creates a channel to a platform from its registration.
pub type Connector =
    Arc<dyn Fn(&pb::PlatformSpec, Option<Identity>) -> Result<Channel> + Send + Sync>;

/// The state of the orchestrator.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    pub(crate) shards: Shards,
    pub(crate) interner: Interner,
    pub(crate) queue: Queue,
    pub(crate) clusters: RwLock<HashMap<Uuid, Arc<Cluster>>>,
    pub(crate) names: RwLock<BTreeMap<Arc<str>, Uuid>>,
    pub(crate) platforms: RwLock<BTreeMap<Sym, Arc<Registered>>>,
    /// Held while registrations are changed.
    pub(crate) registering: tokio::sync::Mutex<()>,
    pub(crate) tombstones: Tombstones,
    /// Infrastructure remnants of deleted clusters.
    pub(crate) leaks: crate::infrastructure::Leaks,
    pub(crate) changes: Arc<Changes>,
    pub(crate) probes: Probes,
    pub(crate) reach: Reach,
    pub(crate) limits: Limits,
    pub(crate) secrets: Secrets,
    /// Key of the digests that are shown.
    pub(crate) digests: Arc<DigestKey>,
    pub(crate) gauges: Gauges,
    pub(crate) tasks: TaskTracker,
    /// Requests a graceful end of tasks.
    pub(crate) stop: CancellationToken,
    /// Aborts tasks immediately.
    pub(crate) kill: CancellationToken,
    pub(crate) connector: Connector,
    /// Revision of the latest change that is visible in memory.
    pub(crate) written: Mutex<Revision>,
    pub(crate) hooks: crate::hooks::Hooks,
}

/// A platform and its watch task.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) platform: Platform,
    pub(crate) stop: CancellationToken,
    /// Wakes the watch task to reconnect immediately.
    pub(crate) retry: tokio::sync::Notify,
    /// Revision of the stored registration.
    pub(crate) revision: Mutex<Revision>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("store", &self.store.id())
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    pub(crate) fn cluster(&self, uid: Uuid) -> Option<Arc<Cluster>> {
        self.clusters.read().get(&uid).cloned()
    }

    pub(crate) fn find(&self, name: &str) -> Result<Arc<Cluster>> {
        let uid = self.names.read().get(name).copied();
        uid.and_then(|uid| self.cluster(uid))
            .ok_or_else(|| Error::not_found("cluster", name))
    }

    /// Decodes a cluster from the store.
    pub(crate) fn read(&self, row: ClusterRow) -> Result<Cluster> {
        let first = self.shards.of(row.uid).first_sequence();
        Cluster::load(row, first, &self.interner, &self.digests)
    }

    pub(crate) fn add(&self, cluster: Cluster) -> Arc<Cluster> {
        // An existing entry is kept, because others hold references to it.
        let cluster = self
            .clusters
            .write()
            .entry(cluster.uid)
            .or_insert_with(|| Arc::new(cluster))
            .clone();
        self.names.write().insert(cluster.name.clone(), cluster.uid);
        self.gauges.changed(cluster.uid);
        cluster
    }

    /// Forgets a cluster whose record was deleted.
    pub(crate) fn drop_cluster(&self, cluster: &Cluster) {
        self.clusters.write().remove(&cluster.uid);
        self.gauges.changed(cluster.uid);
        let mut names = self.names.write();
        if names.get(&cluster.name) == Some(&cluster.uid) {
            names.remove(&cluster.name);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Cluster>> {
        self.clusters.read().values().cloned().collect()
    }

    /// All clusters, by name.
    pub(crate) fn by_name(&self) -> Vec<Arc<Cluster>> {
        let names = self.names.read();
        let clusters = self.clusters.read();
        names
            .values()
            .filter_map(|uid| clusters.get(uid).cloned())
            .collect()
    }

    /// At most `most` clusters after this name, in order of their names, and the name to continue after. `None` if
    /// these are the last.
    pub(crate) fn after(
        &self,
        name: Option<&str>,
        most: usize,
    ) -> (Vec<Arc<Cluster>>, Option<Arc<str>>) {
        let begin = name.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.names.read();
        let next: Vec<_> = names
            .range::<str, _>((begin, Bound::Unbounded))
            .take(most)
            .collect();
        let last = next.last().filter(|_| next.len() == most);
        let last = last.map(|(name, _)| Arc::clone(name));
        let clusters = self.clusters.read();
        let found = next
            .into_iter()
            .filter_map(|(_, uid)| clusters.get(uid).cloned());
        (found.collect(), last)
    }

    pub(crate) fn platform(&self, name: &str) -> Option<Arc<Registered>> {
        self.platforms.read().get(name).cloned()
    }

    /// Platforms by the uid of the backend that they are bound to.
    pub(crate) fn bound(&self) -> BTreeMap<String, Sym> {
        let platforms = self.platforms.read();
        let bound = platforms.iter();
        bound
            .map(|(name, it)| (it.platform.registration().uid, name.clone()))
            .collect()
    }

    /// The restrictions for probes of a platform's nodes.
    pub(crate) fn gate(&self, platform: &str) -> Gate<'_> {
        let registered = self.platform(platform);
        Gate {
            reach: &self.reach,
            local: registered.is_some_and(|it| it.platform.is_local()),
        }
    }

    pub(crate) fn require_platform(&self, name: &str) -> Result<Arc<Registered>> {
        self.platform(name)
            .ok_or_else(|| Error::not_found("platform", name))
    }

    /// The platforms that a cluster names or ever used, in the planner's view.
    pub(crate) fn views(&self, inner: &ClusterState) -> BTreeMap<Sym, PlatformView> {
        let now = self.now();
        let platforms = self.platforms.read();
        let mut views = BTreeMap::new();
        let wanted = inner
            .spec
            .groups
            .iter()
            .flat_map(|group| group.choices.iter().map(|choice| &choice.platform));
        let used = inner.state.used.iter().map(|(platform, _)| platform);
        let shown = inner.state.orphans.keys().map(|(platform, _)| platform);
        let below = inner.spec.infrastructure.iter().map(|one| &one.platform);
        for name in wanted.chain(used).chain(shown).chain(below) {
            if !views.contains_key(name)
                && let Some(registered) = platforms.get(name)
            {
                views.insert(name.clone(), registered.platform.view(now));
            }
        }
        views
    }

    /// Handshakes of the platforms that the groups may use.
    pub(crate) fn handshakes(&self, groups: &[Group]) -> BTreeMap<Sym, Arc<wire::Platform>> {
        let platforms = self.platforms.read();
        let choices = groups.iter().flat_map(|group| &group.choices);
        let handshake = |name: &Sym| platforms.get(name)?.platform.handshake();
        choices
            .filter_map(|choice| Some((choice.platform.clone(), handshake(&choice.platform)?)))
            .collect()
    }

    /// Schedules every cluster that names or uses a platform.
    pub(crate) fn wake_users(&self, platform: &str, urgency: Urgency) {
        for cluster in self.users(platform) {
            // Without a trace: the platform's state concerns all of them, whichever call noticed it first.
            self.queue.push_for(cluster.uid, urgency, None);
            self.gauges.changed(cluster.uid);
        }
    }

    /// Clusters that have nodes or resources on a platform, or may have.
    pub(crate) fn users(&self, platform: &str) -> Vec<Arc<Cluster>> {
        let uses = |cluster: &Arc<Cluster>| {
            let inner = cluster.inner.lock();
            inner.state.used.iter().any(|(name, _)| **name == *platform)
                || inner
                    .spec
                    .groups
                    .iter()
                    .any(|g| g.choices.iter().any(|c| *c.platform == *platform))
                || inner
                    .spec
                    .infrastructure
                    .iter()
                    .any(|one| *one.platform == *platform)
        };
        self.all().into_iter().filter(uses).collect()
    }

    /// The fence of calls for a cluster.
    pub(crate) fn fence(&self, cluster: Uuid) -> wire::Fence {
        let owned = self.shards.of(cluster);
        wire::Fence {
            store_id: self.store.id().to_string(),
            shard: u32::from(owned.shard()),
            epoch: owned.epoch(),
        }
    }

    /// Starts a task that the shutdown waits for, and aborts at the end of the grace period.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let kill = self.kill.clone();
        self.tasks.spawn(async move {
            kill.run_until_cancelled_owned(task).await;
        });
    }

    /// Notes a change of a cluster that is visible to readers.
    pub(crate) fn changed(&self, cluster: &Cluster, inner: &mut ClusterState) {
        inner.version += 1;
        self.changes.cluster(cluster.uid);
        self.gauges.changed(cluster.uid);
    }

    pub(crate) fn wrote(&self, revision: Revision) {
        let mut written = self.written.lock();
        *written = (*written).max(revision);
    }

    /// The revision that every read from memory reflects at least.
    pub(crate) fn revision(&self) -> Revision {
        *self.written.lock()
    }

    /// Waits until memory reflects a revision.
    pub(crate) async fn reach(&self, revision: Option<Revision>) -> Result<()> {
        match revision {
            // Writes of this replica are in memory before their revision is returned.
            Some(revision) if revision > *self.written.lock() => {
                self.store.wait_revision(revision).await
            }
            _ => Ok(()),
        }
    }
}
