//! All registered platforms.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock, Weak},
};

use drover_client::PlatformClient;
use drover_cluster::{ClusterState, NodeCounts};
use drover_core::{Error, Millis, Result, Sym, Urgency, spec::Group};
use drover_planner::PlatformView;
use drover_proto::platform::v1 as wire;
use drover_secrets::Vault;
use drover_store::{Clock, Revision, Shards, Store};
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::MutexGuard;
use uuid::Uuid;

use crate::{Connector, Listener, Platform, Registered, Registration};

/// All registered platforms, by name.
pub struct Platforms {
    registered: RwLock<BTreeMap<Sym, Arc<Registered>>>,
    registering: tokio::sync::Mutex<()>,
    pub(crate) connector: Connector,
    pub(crate) vault: Arc<Vault>,
    pub(crate) store: Arc<Store>,
    pub(crate) shards: Shards,
    clock: Arc<Clock>,
    listener: OnceLock<Weak<dyn Listener>>,
}

impl fmt::Debug for Platforms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.read().iter()).finish()
    }
}

impl Platforms {
    /// No platform yet.
    #[must_use]
    pub fn new(
        connector: Connector,
        vault: Arc<Vault>,
        store: Arc<Store>,
        shards: Shards,
        clock: Arc<Clock>,
    ) -> Self {
        Self {
            registered: RwLock::default(),
            registering: tokio::sync::Mutex::default(),
            connector,
            vault,
            store,
            shards,
            clock,
            listener: OnceLock::new(),
        }
    }

    /// Tells this one, from now on, what platforms show. Only the first one is told.
    pub fn listen(&self, listener: Weak<dyn Listener>) {
        // A second one would be told nothing of what was shown before.
        let _ = self.listener.set(listener);
    }

    pub(crate) fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.listener.get()?.upgrade()
    }

    /// Says that something has changed that concerns all clusters that name or use a platform.
    pub fn changed(&self, platform: &str, urgency: Urgency) {
        if let Some(listener) = self.listener() {
            listener.changed(platform, urgency);
        }
    }

    pub(crate) fn wrote(&self, revision: Revision) {
        if let Some(listener) = self.listener() {
            listener.wrote(revision);
        }
    }

    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// All of them, as long as the guard lives.
    pub fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Sym, Arc<Registered>>> {
        self.registered.read()
    }

    /// Whether what one of them has is not known (yet).
    #[must_use]
    pub fn are_hidden(&self, now: Millis) -> bool {
        let platforms = self.read();
        platforms.values().any(|it| !it.platform.is_visible(now))
    }

    /// Waits until registrations may be changed; nobody else changes one as long as the guard lives.
    pub async fn registering(&self) -> MutexGuard<'_, ()> {
        self.registering.lock().await
    }

    /// The platform with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Registered>> {
        self.read().get(name).cloned()
    }

    /// The platform with this name.
    ///
    /// # Errors
    /// `NotFound`, with the name.
    pub fn require(&self, name: &str) -> Result<Arc<Registered>> {
        self.get(name)
            .ok_or_else(|| Error::not_found("platform", name))
    }

    /// Adds a platform, or replaces it by one that goes on with what was known. Follow it with [`follow`](crate::follow).
    pub fn add(
        &self,
        name: Sym,
        registration: Registration,
        revision: Revision,
        (total, sick): (i64, i64),
    ) -> Arc<Registered> {
        let now = self.now();
        let platform = Platform::new(name.clone(), registration, now);
        platform.count(total, sick, now);
        if let Some(before) = self.get(&name) {
            platform.take_over(&before.platform);
        }
        let registered = Arc::new(Registered::new(platform, revision));
        self.registered.write().insert(name, registered.clone());
        registered
    }

    /// Forgets a platform whose registration was deleted.
    pub fn remove(&self, name: &str) {
        self.registered.write().remove(name);
    }

    /// Platforms by the uid of the backend that they are bound to.
    #[must_use]
    pub fn bound(&self) -> BTreeMap<String, Sym> {
        let platforms = self.read();
        let bound = platforms.iter();
        bound
            .map(|(name, it)| (it.platform.registration().uid, name.clone()))
            .collect()
    }

    /// The platforms that a cluster names or ever used, in the planner's view.
    #[must_use]
    pub fn views(&self, cluster: &ClusterState) -> BTreeMap<Sym, PlatformView> {
        let now = self.now();
        let platforms = self.read();
        let mut views = BTreeMap::new();
        let choices = cluster
            .spec()
            .groups
            .iter()
            .flat_map(|group| &group.choices);
        let wanted = choices.map(|choice| &choice.platform);
        let used = cluster.state().used.iter().map(|(platform, _)| platform);
        let shown = cluster.state().orphans.keys().map(|(platform, _)| platform);
        let spec = cluster.spec();
        let addons = spec.addons.iter().map(|addon| &addon.wanted);
        let below = spec.infrastructure.iter().chain(addons);
        let below = below.map(|one| &one.platform);
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
    #[must_use]
    pub fn handshakes(&self, groups: &[Group]) -> BTreeMap<Sym, Arc<wire::Platform>> {
        let platforms = self.read();
        let choices = groups.iter().flat_map(|group| &group.choices);
        let handshake = |name: &Sym| platforms.get(name)?.platform.handshake();
        choices
            .filter_map(|choice| Some((choice.platform.clone(), handshake(&choice.platform)?)))
            .collect()
    }

    /// Takes in by how much numbers of nodes have changed.
    pub fn count(&self, change: &NodeCounts) {
        for (platform, total, sick) in change.iter() {
            if let Some(registered) = self.get(platform) {
                registered.platform.count(total, sick, self.now());
            }
        }
    }

    /// Takes in the platforms of nodes whose failed probes were forgotten because their probes were replaced.
    pub fn calmed(&self, platforms: Vec<Sym>) {
        for platform in platforms {
            if let Some(registered) = self.get(&platform) {
                registered.platform.count(0, -1, self.now());
            }
        }
    }

    /// Whether a call for a cluster may be begun: this process owns it, as far as is known.
    #[must_use]
    pub fn may_act(&self, cluster: Uuid) -> bool {
        self.shards.of(cluster).holds()
    }

    /// The fence of calls for a cluster.
    #[must_use]
    pub fn fence(&self, cluster: Uuid) -> wire::Fence {
        let owned = self.shards.of(cluster);
        wire::Fence {
            store_id: self.store.id().to_string(),
            shard: u32::from(owned.shard()),
            epoch: owned.epoch(),
        }
    }

    /// Reads anew what a platform offers. Clusters that it refused before may be accepted now.
    ///
    /// # Errors
    /// Those of the call; `UNAVAILABLE` if the server was started again.
    pub async fn refresh(&self, registered: &Registered, client: &PlatformClient) -> Result<()> {
        let handshake = client.get_platform(crate::watch::HANDSHAKE_TIMEOUT).await?;
        registered.platform.refreshed(handshake)?;
        self.changed(&registered.platform.name, Urgency::Bulk);
        Ok(())
    }
}
