//! Looks for leaked infrastructure and addons: clusters are told of theirs that have no record, remnants of deleted clusters
//! are released; foreign ones are only counted, never touched.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drover_client::PlatformClient;
use drover_cluster::{Clusters, Source};
use drover_core::{Millis, Reason, Result, Sym, Urgency, resource::ResourceKey};
use drover_executor::{Envelope, Executor, Kind};
use drover_platforms::{Platforms, Registered};
use drover_proto::platform::v1 as wire;
use drover_store::{Clock, Store};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::{queue::Queue, records::Records, tombstones::Tombstones};

/// Interval between complete reads of the platforms' resources.
const INTERVAL: Duration = Duration::from_secs(60);
/// Time for which remnants of a deleted cluster must be visible before they are released.
const GRACE: Millis = 120_000;
/// Deadline of a complete read.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Deadline of a release.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval for platforms on which nothing was requested since this process started.
const IDLE_INTERVAL: Millis = 3_600_000;

/// What is left of a deleted cluster: the owner, and the name of the addon. `None` for its infrastructure.
type Left = (Uuid, Option<String>);

/// Remnants of deleted clusters, by platform, and since when this process has seen them.
#[derive(Debug, Default)]
pub(crate) struct Leaks {
    left: Mutex<BTreeMap<(Sym, Left), Millis>>,
    /// Platforms on which infrastructure or addons were requested since this process started.
    used: Mutex<BTreeSet<Sym>>,
}

impl Leaks {
    /// Deleted clusters with remnants.
    pub(crate) fn owners(&self) -> Vec<Uuid> {
        let leaks = self.left.lock();
        leaks.keys().map(|(_, (owner, _))| *owner).collect()
    }

    /// A deleted cluster with remnants on a platform.
    pub(crate) fn user(&self, platform: &str) -> Option<Uuid> {
        let leaks = self.left.lock();
        leaks
            .keys()
            .find(|(name, _)| **name == *platform)
            .map(|(_, (owner, _))| *owner)
    }

    /// Called when a platform is unregistered.
    pub(crate) fn forget(&self, platform: &str) {
        self.left.lock().retain(|(name, _), _| **name != *platform);
    }

    /// Marks that infrastructure or an addon is requested on a platform, so that remnants may exist there one day.
    pub(crate) fn used(&self, platform: &Sym) {
        self.used.lock().insert(platform.clone());
    }

    /// Whether a platform last read at `last` is due for another read.
    fn is_worth(&self, platform: &Sym, last: Millis, now: Millis) -> bool {
        last + IDLE_INTERVAL <= now
            || self.used.lock().contains(platform)
            || self.user(platform).is_some()
    }

    /// Takes in what is left on a platform now. Returns what has been visible for long enough.
    fn seen(&self, platform: &Sym, left: &BTreeSet<Left>, now: Millis) -> Vec<Left> {
        let mut leaks = self.left.lock();
        leaks.retain(|(name, one), _| name != platform || left.contains(one));
        let mut due = Vec::new();
        for one in left {
            let since = *leaks.entry((platform.clone(), one.clone())).or_insert(now);
            if since + GRACE <= now {
                due.push(one.clone());
            }
        }
        due
    }
}

/// Looks for leaks on all platforms.
pub(crate) struct Sweep {
    pub(crate) records: Arc<Records>,
    pub(crate) queue: Queue,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) leaks: Arc<Leaks>,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Arc<Clock>,
}

impl Sweep {
    /// Reads all platforms periodically, until it is dropped.
    pub(crate) async fn run(self) {
        let mut turn = tokio::time::interval(INTERVAL);
        turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looked: BTreeMap<Sym, Millis> = BTreeMap::new();
        loop {
            turn.tick().await;
            let platforms: Vec<Arc<Registered>> = self.platforms.read().values().cloned().collect();
            for registered in platforms {
                let name = &registered.platform.name;
                let now = self.clock.now();
                if let Some(last) = looked.get(name)
                    && !self.leaks.is_worth(name, *last, now)
                {
                    continue;
                }
                match self.look(&registered).await {
                    Ok(true) => {
                        looked.insert(name.clone(), now);
                    }
                    Ok(false) => {}
                    Err(error) => {
                        tracing::debug!(platform = %name, %error, "infrastructure could not be looked at");
                    }
                }
            }
        }
    }

    /// Returns whether the platform was read.
    async fn look(&self, registered: &Arc<Registered>) -> Result<bool> {
        let platform = &registered.platform;
        let now = self.clock.now();
        let makes = [wire::Capability::Infrastructure, wire::Capability::Addons];
        let [infrastructure, addons] = makes.map(|capability| platform.has(capability));
        if !(infrastructure || addons) || !platform.is_visible(now) || !platform.view(now).callable
        {
            return Ok(false);
        }
        let mut sorted = Sorted::default();
        let mut unread = None;
        let uid = platform.identity().0;
        let mut take = |addons: bool, listed: Result<Vec<Owned>>| match listed {
            Ok(owned) => {
                let source = Source {
                    platform: &platform.name,
                    uid: &uid,
                };
                self.tell_owners(source, addons, &owned);
                sorted.take(
                    (self.records.clusters(), &self.tombstones),
                    &platform.name,
                    owned,
                );
            }
            // What is left of the other kind is released all the same.
            Err(error) => unread = Some(error),
        };
        if infrastructure {
            take(
                false,
                list_infrastructure(&self.executor, registered, &uid).await,
            );
        }
        if addons {
            take(true, list_addons(&self.executor, registered, &uid).await);
        }
        if unread.is_none() && platform.set_foreign_resources(sorted.foreign) && sorted.foreign > 0
        {
            tracing::warn!(platform = %platform.name, resources = sorted.foreign, "infrastructure or addons of others are there; left alone");
        }
        let due = (self.leaks).seen(&platform.name, &sorted.left, self.clock.now());
        if self.store.restored_hold() {
            return unread.map_or(Ok(true), Err);
        }
        for left in due {
            release(&self.executor, &self.tombstones, registered, left).await?;
        }
        unread.map_or(Ok(true), Err)
    }

    /// Tells clusters what a platform has of theirs: what has no record is for them to judge.
    fn tell_owners(&self, source: Source<'_>, addons: bool, owned: &[Owned]) {
        let mut by_owner: BTreeMap<Uuid, BTreeMap<ResourceKey, Option<u64>>> = BTreeMap::new();
        for one in owned {
            let Some(owner) = one.owner else { continue };
            let (platform, uid) = (source.platform.clone(), source.uid);
            let key = match &one.addon {
                None => ResourceKey::infrastructure(platform, uid),
                Some(name) => ResourceKey::addon(name.as_str(), platform, uid),
            };
            by_owner.entry(owner).or_default().insert(key, one.sequence);
        }
        for cluster in self.records.clusters().all() {
            let listed = by_owner.remove(&cluster.uid()).unwrap_or_default();
            let mut state = cluster.lock();
            if state.is_finished()
                || !state.resources_listed(source, addons, &listed, self.clock.now())
            {
                continue;
            }
            // It is looked at again before its hour is over.
            self.leaks.used(source.platform);
            self.records.changed(&cluster, &mut state);
            drop(state);
            self.queue.push(cluster.uid(), Urgency::Bulk);
        }
    }
}

/// Something that a platform shows, and to whom it belongs.
struct Owned {
    owner: Option<Uuid>,
    addon: Option<String>,
    /// Highest sequence of a request that made a part of it. `None` if none is recorded.
    sequence: Option<u64>,
}

fn envelope<'a>(
    executor: &'a Executor,
    kind: Kind,
    registered: &'a Registered,
    uid: &'a str,
    owner: Uuid,
) -> Envelope<'a> {
    Envelope {
        executor,
        kind,
        platform: &registered.platform.name,
        uid,
        owner,
        urgency: Urgency::Bulk,
        turn: None,
    }
}

async fn list_infrastructure(
    executor: &Executor,
    registered: &Registered,
    uid: &str,
) -> Result<Vec<Owned>> {
    // A list covers all owners and carries no fence.
    let envelope = envelope(executor, Kind::Read, registered, uid, Uuid::nil());
    let listed = envelope.send(async |open| {
        let message = wire::ListInfrastructureRequest {
            expected_platform_uid: uid.to_owned(),
            expected_instance_id: open.instance.clone(),
            ..wire::ListInfrastructureRequest::default()
        };
        open.call(async |client| client.list_infrastructure(message, LIST_TIMEOUT).await)
            .await
    });
    let listed = listed.await?;
    let there = listed
        .iter()
        .filter(|one| one.phase() != wire::ResourcePhase::Gone);
    let owned = there.map(|one| Owned {
        owner: Uuid::parse_str(&one.owner).ok(),
        addon: None,
        sequence: Some(one.sequence),
    });
    Ok(owned.collect())
}

async fn list_addons(
    executor: &Executor,
    registered: &Registered,
    uid: &str,
) -> Result<Vec<Owned>> {
    let envelope = envelope(executor, Kind::ReadAddons, registered, uid, Uuid::nil());
    let listed = envelope.send(async |open| {
        let message = wire::ListAddonsRequest {
            expected_platform_uid: uid.to_owned(),
            expected_instance_id: open.instance.clone(),
            ..wire::ListAddonsRequest::default()
        };
        open.call(async |client| client.list_addons(message, LIST_TIMEOUT).await)
            .await
    });
    let listed = listed.await?.addons;
    let there = listed
        .iter()
        .filter(|one| one.phase() != wire::ResourcePhase::Gone);
    let owned = there.map(|one| Owned {
        owner: Uuid::parse_str(&one.owner).ok(),
        addon: Some(one.name.clone()),
        sequence: one.resources.iter().map(|part| part.sequence).max(),
    });
    Ok(owned.collect())
}

/// What a platform shows, by ownership.
#[derive(Default)]
struct Sorted {
    /// Remnants of deleted clusters.
    left: BTreeSet<Left>,
    /// Number of resources and addons of unknown owners.
    foreign: u32,
}

impl Sorted {
    fn take(
        &mut self,
        (clusters, tombstones): (&Clusters, &Tombstones),
        platform: &Sym,
        all: Vec<Owned>,
    ) {
        let mut newer = BTreeSet::new();
        for one in all {
            let owner = one.owner;
            if owner.is_some_and(|owner| clusters.get(owner).is_some()) {
                continue;
            }
            let known = owner.and_then(|owner| Some((owner, tombstones.name(owner)?)));
            let Some((owner, name)) = known else {
                self.foreign = self.foreign.saturating_add(1);
                continue;
            };
            let left = (owner, one.addon);
            let gave_out = |sequence| tombstones.gave_out(owner, sequence);
            if one.sequence.is_none_or(gave_out) {
                self.left.insert(left);
            } else {
                tracing::error!(
                    %platform, cluster = %name, sequence = one.sequence, addon = left.1,
                    "a deleted cluster has infrastructure or an addon of a request that this store never gave out; left alone"
                );
                self.foreign = self.foreign.saturating_add(1);
                newer.insert(left);
            }
        }
        // A release would free everything of the owner, or of the addon.
        self.left.retain(|left| !newer.contains(left));
    }
}

/// Releases a remnant of a deleted cluster. The tombstone is the durable intent; the owner identifies what is freed.
async fn release(
    executor: &Executor,
    tombstones: &Tombstones,
    registered: &Registered,
    left: Left,
) -> Result<()> {
    let (owner, addon) = left;
    let Some(name) = tombstones.name(owner) else {
        return Ok(());
    };
    let platform = &registered.platform.name;
    let uid = registered.platform.identity().0;
    let kind = match addon {
        None => Kind::Release,
        Some(_) => Kind::RemoveAddon,
    };
    let envelope = envelope(executor, kind, registered, &uid, owner);
    tracing::info!(%platform, cluster = %name, %owner, addon, "releasing what is left of a deleted cluster");
    let answer = envelope.send(async |open| match addon {
        None => {
            let message = wire::ReleaseInfrastructureRequest {
                expected_platform_uid: uid.clone(),
                expected_instance_id: open.instance.clone(),
                fence: Some(open.fence.clone()),
                cluster_id: name.clone(),
                owner: owner.to_string(),
            };
            let call = async |client: PlatformClient| {
                client
                    .release_infrastructure(message, RELEASE_TIMEOUT)
                    .await
            };
            open.call(call).await.map(drop)
        }
        Some(addon) => {
            let message = wire::RemoveAddonRequest {
                expected_platform_uid: uid.clone(),
                expected_instance_id: open.instance.clone(),
                fence: Some(open.fence.clone()),
                cluster_id: name.clone(),
                owner: owner.to_string(),
                name: addon,
            };
            let call =
                async |client: PlatformClient| client.remove_addon(message, RELEASE_TIMEOUT).await;
            open.call(call).await.map(drop)
        }
    });
    if let Err(error) = answer.await {
        // A platform that is busy for one owner is busy for all of them, and other platforms wait.
        if error.reason() == Reason::NotSent {
            return Err(error);
        }
        tracing::debug!(%platform, cluster = %name, %error, "it could not be released");
    }
    Ok(())
}
