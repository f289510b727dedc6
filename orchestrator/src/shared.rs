//! What all parts of the orchestrator share.

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

/// How a channel to a platform is made from its registration.
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
    /// Held by whoever changes registrations.
    pub(crate) registering: tokio::sync::Mutex<()>,
    pub(crate) tombstones: Tombstones,
    /// Infrastructure that is left of deleted clusters.
    pub(crate) leaks: crate::infrastructure::Leaks,
    pub(crate) changes: Arc<Changes>,
    pub(crate) probes: Probes,
    pub(crate) reach: Reach,
    pub(crate) limits: Limits,
    pub(crate) secrets: Secrets,
    /// Of digests that are shown.
    pub(crate) digests: Arc<DigestKey>,
    pub(crate) gauges: Gauges,
    pub(crate) tasks: TaskTracker,
    /// Asks tasks to end.
    pub(crate) stop: CancellationToken,
    /// Ends them wherever they are.
    pub(crate) kill: CancellationToken,
    pub(crate) connector: Connector,
    /// Revision of the newest change that memory shows.
    pub(crate) written: Mutex<Revision>,
    pub(crate) hooks: crate::hooks::Hooks,
}

/// A platform and the task that follows it.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) platform: Platform,
    pub(crate) stop: CancellationToken,
    /// Wakes the task that follows it, to connect again now.
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

    /// A cluster as the store has it.
    pub(crate) fn read(&self, row: ClusterRow) -> Result<Cluster> {
        let first = self.shards.of(row.uid).first_sequence();
        Cluster::load(row, first, &self.interner, &self.digests)
    }

    pub(crate) fn add(&self, cluster: Cluster) -> Arc<Cluster> {
        // One that is there stays: others hold it.
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

    /// Forgets a cluster whose record is gone.
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

    /// The next clusters by name after this one, at most so many, and the name to go on after. None: these are the last.
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

    /// Where nodes of a platform may be probed.
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

    /// The platforms that a cluster names or ever used, as planners see them.
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

    /// What the platforms that groups may be on say of themselves.
    pub(crate) fn handshakes(&self, groups: &[Group]) -> BTreeMap<Sym, Arc<wire::Platform>> {
        let platforms = self.platforms.read();
        let choices = groups.iter().flat_map(|group| &group.choices);
        let handshake = |name: &Sym| platforms.get(name)?.platform.handshake();
        choices
            .filter_map(|choice| Some((choice.platform.clone(), handshake(&choice.platform)?)))
            .collect()
    }

    /// Plans every cluster that names or uses a platform.
    pub(crate) fn wake_users(&self, platform: &str, urgency: Urgency) {
        for cluster in self.users(platform) {
            // What the platform does concerns all of them, whoever happened to notice it first.
            self.queue.push_for(cluster.uid, urgency, None);
            self.gauges.changed(cluster.uid);
        }
    }

    /// Clusters that have something on a platform, or may.
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

    /// Whom a call is on behalf of.
    pub(crate) fn fence(&self, cluster: Uuid) -> wire::Fence {
        let owned = self.shards.of(cluster);
        wire::Fence {
            store_id: self.store.id().to_string(),
            shard: u32::from(owned.shard()),
            epoch: owned.epoch(),
        }
    }

    /// Starts a task that the shutdown waits for, and in the end cuts off.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let kill = self.kill.clone();
        self.tasks.spawn(async move {
            kill.run_until_cancelled_owned(task).await;
        });
    }

    /// A reader may see something new of a cluster.
    pub(crate) fn changed(&self, cluster: &Cluster, inner: &mut ClusterState) {
        inner.version += 1;
        self.changes.cluster(cluster.uid);
        self.gauges.changed(cluster.uid);
    }

    pub(crate) fn wrote(&self, revision: Revision) {
        let mut written = self.written.lock();
        *written = (*written).max(revision);
    }

    /// Revision that every answer from memory shows at least.
    pub(crate) fn revision(&self) -> Revision {
        *self.written.lock()
    }

    /// Waits until memory shows a revision.
    pub(crate) async fn reach(&self, revision: Option<Revision>) -> Result<()> {
        match revision {
            // Whatever this replica wrote is in memory before its revision is answered.
            Some(revision) if revision > *self.written.lock() => {
                self.store.wait_revision(revision).await
            }
            _ => Ok(()),
        }
    }
}
