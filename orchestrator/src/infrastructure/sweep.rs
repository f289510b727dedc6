//! Sweeps leaked infrastructure: remnants of deleted clusters are released; foreign resources are only counted, never
//! touched.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drover_core::{Millis, Reason, Result, Sym, Urgency};
use drover_executor::{Envelope, Kind};
use drover_platforms::Registered;
use drover_proto::platform::v1 as wire;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::shared::Shared;

/// Interval between complete reads of the platforms' resources.
const INTERVAL: Duration = Duration::from_secs(60);
/// Time for which remnants of a deleted cluster must be visible before they are released.
const GRACE: Millis = 120_000;
/// Deadline of a complete read.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Deadline of a release.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval for platforms on which no infrastructure was requested since this process started.
const IDLE_INTERVAL: Millis = 3_600_000;

/// Remnants of deleted clusters, by platform and owner, and since when this process has seen them.
#[derive(Debug, Default)]
pub(crate) struct Leaks {
    left: Mutex<BTreeMap<(Sym, Uuid), Millis>>,
    /// Platforms on which infrastructure was requested since this process started.
    used: Mutex<BTreeSet<Sym>>,
}

impl Leaks {
    /// Deleted clusters with remnants.
    pub(crate) fn owners(&self) -> Vec<Uuid> {
        self.left.lock().keys().map(|(_, owner)| *owner).collect()
    }

    /// A deleted cluster with remnants on a platform.
    pub(crate) fn user(&self, platform: &str) -> Option<Uuid> {
        let leaks = self.left.lock();
        leaks
            .keys()
            .find(|(name, _)| **name == *platform)
            .map(|(_, owner)| *owner)
    }

    /// Called when a platform is unregistered.
    pub(crate) fn forget(&self, platform: &str) {
        self.left.lock().retain(|(name, _), _| **name != *platform);
    }

    /// Marks that infrastructure is requested on a platform, so that remnants may exist there one day.
    pub(crate) fn used(&self, platform: &Sym) {
        self.used.lock().insert(platform.clone());
    }

    /// Whether a platform last read at `last` is due for another read.
    fn is_worth(&self, platform: &Sym, last: Millis, now: Millis) -> bool {
        last + IDLE_INTERVAL <= now
            || self.used.lock().contains(platform)
            || self.user(platform).is_some()
    }

    /// Takes in the owners that have remnants on a platform now. Returns those that have been visible for long enough.
    fn seen(&self, platform: &Sym, owners: &BTreeSet<Uuid>, now: Millis) -> Vec<Uuid> {
        let mut leaks = self.left.lock();
        leaks.retain(|(name, owner), _| name != platform || owners.contains(owner));
        let mut due = Vec::new();
        for owner in owners {
            let since = *leaks.entry((platform.clone(), *owner)).or_insert(now);
            if since + GRACE <= now {
                due.push(*owner);
            }
        }
        due
    }
}

/// Reads all platforms periodically, until the orchestrator stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut turn = tokio::time::interval(INTERVAL);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut looked: BTreeMap<Sym, Millis> = BTreeMap::new();
    loop {
        tokio::select! {
            () = shared.stop.cancelled() => return,
            _ = turn.tick() => {}
        }
        let platforms: Vec<Arc<Registered>> = shared.platforms.read().values().cloned().collect();
        for registered in platforms {
            let name = &registered.platform.name;
            let now = shared.now();
            if let Some(last) = looked.get(name)
                && !shared.leaks.is_worth(name, *last, now)
            {
                continue;
            }
            let look = look(&shared, &registered);
            tokio::select! {
                () = shared.stop.cancelled() => return,
                outcome = look => match outcome {
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
}

/// Returns whether the platform was read.
async fn look(shared: &Arc<Shared>, registered: &Arc<Registered>) -> Result<bool> {
    let platform = &registered.platform;
    let now = shared.now();
    if !platform.has(wire::Capability::Infrastructure)
        || !platform.is_visible(now)
        || !platform.view(now).callable
    {
        return Ok(false);
    }
    let uid = platform.identity().0;
    let envelope = Envelope {
        executor: &shared.executor,
        kind: Kind::Read,
        platform: &platform.name,
        uid: &uid,
        // A list covers all owners and carries no fence.
        owner: Uuid::nil(),
        urgency: Urgency::Bulk,
    };
    let listed = envelope.send(async |open| {
        let message = wire::ListInfrastructureRequest {
            expected_platform_uid: uid.clone(),
            expected_instance_id: open.instance.clone(),
            ..wire::ListInfrastructureRequest::default()
        };
        open.call(async |client| client.list_infrastructure(message, LIST_TIMEOUT).await)
            .await
    });
    let listed = listed.await;
    let sorted = sort(shared, &platform.name, &listed?);
    if platform.set_foreign_resources(sorted.foreign) && sorted.foreign > 0 {
        tracing::warn!(platform = %platform.name, resources = sorted.foreign, "infrastructure of others is there; left alone");
    }
    let due = shared
        .leaks
        .seen(&platform.name, &sorted.left, shared.now());
    if shared.store.restored_hold() {
        return Ok(true);
    }
    for owner in due {
        release(shared, registered, owner).await?;
    }
    Ok(true)
}

/// Resources of a platform by ownership.
struct Sorted {
    /// Deleted clusters with remnants.
    left: BTreeSet<Uuid>,
    /// Number of resources of unknown owners.
    foreign: u32,
}

fn sort(shared: &Shared, platform: &Sym, resources: &[wire::Resource]) -> Sorted {
    let mut sorted = Sorted {
        left: BTreeSet::new(),
        foreign: 0,
    };
    let mut newer = BTreeSet::new();
    for one in resources {
        if one.phase() == wire::ResourcePhase::Gone {
            continue;
        }
        let owner = Uuid::parse_str(&one.owner).ok();
        if owner.is_some_and(|owner| shared.clusters.get(owner).is_some()) {
            continue;
        }
        let known = owner.and_then(|owner| Some((owner, shared.tombstones.name(owner)?)));
        let Some((owner, name)) = known else {
            sorted.foreign = sorted.foreign.saturating_add(1);
            continue;
        };
        if !shared.tombstones.gave_out(owner, one.sequence) {
            tracing::error!(
                %platform, cluster = %name, sequence = one.sequence, kind = %one.kind, resource = %one.name,
                "a deleted cluster has infrastructure of a request that this store never gave out; left alone"
            );
            sorted.foreign = sorted.foreign.saturating_add(1);
            newer.insert(owner);
        } else {
            sorted.left.insert(owner);
        }
    }
    // A release would free everything of the owner.
    sorted.left.retain(|owner| !newer.contains(owner));
    sorted
}

/// Releases the remnants of a deleted cluster. The tombstone is the durable intent; the owner identifies what is freed.
async fn release(shared: &Arc<Shared>, registered: &Arc<Registered>, owner: Uuid) -> Result<()> {
    let Some(name) = shared.tombstones.name(owner) else {
        return Ok(());
    };
    let platform = &registered.platform.name;
    let uid = registered.platform.identity().0;
    let envelope = Envelope {
        executor: &shared.executor,
        kind: Kind::Release,
        platform,
        uid: &uid,
        owner,
        urgency: Urgency::Bulk,
    };
    let answer = envelope.send(async |open| {
        let message = wire::ReleaseInfrastructureRequest {
            expected_platform_uid: uid.clone(),
            expected_instance_id: open.instance.clone(),
            fence: Some(open.fence.clone()),
            cluster_id: name.clone(),
            owner: owner.to_string(),
        };
        tracing::info!(%platform, cluster = %name, %owner, "releasing infrastructure that is left of a deleted cluster");
        open.call(async |client| client.release_infrastructure(message, RELEASE_TIMEOUT).await)
            .await
    });
    let answer = answer.await;
    if let Err(error) = answer {
        // A platform that is busy for one owner is busy for all of them, and other platforms wait.
        if error.reason() == Reason::NotSent {
            return Err(error);
        }
        tracing::debug!(%platform, cluster = %name, %error, "it could not be released");
    }
    Ok(())
}
