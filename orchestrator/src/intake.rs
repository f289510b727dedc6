//! Feeds what platforms show into memory: finds the cluster and the slot, and schedules the planning.

use std::sync::Arc;

use async_trait::async_trait;
use drover_cluster::{
    Cluster, ClusterState, Effect, Heard, Observation, Observed, Removed, Source,
};
use drover_core::{Millis, Phase, Result, Urgency};
use drover_platforms::{Foreign, Listener, Registered};
use drover_proto::platform::v1 as wire;
use drover_store::Revision;
use uuid::Uuid;

use crate::shared::Shared;

#[async_trait]
impl Listener for Shared {
    fn changed(&self, platform: &str, urgency: Urgency) {
        self.wake_users(platform, urgency);
    }

    fn wrote(&self, revision: Revision) {
        Shared::wrote(self, revision);
    }

    fn watch_begun(&self, registered: &Registered) {
        begin(self, registered);
    }

    async fn shown(
        &self,
        registered: &Registered,
        nodes: Vec<wire::Node>,
        foreign: &mut Foreign,
    ) -> Result<()> {
        let nodes = self.vault.hear(&self.clusters, nodes).await;
        upserts(self, registered, &nodes, foreign)
    }

    fn removed(&self, registered: &Registered, nodes: &[wire::NodeRemoved]) {
        removals(self, registered, nodes);
    }

    fn snapshot_complete(&self, registered: &Arc<Registered>, began: Millis, foreign: Foreign) {
        snapshot(self, registered, began, foreign);
    }
}

/// Takes in nodes that were added or changed.
///
/// # Errors
/// The platform shows more unrecorded nodes than can be kept.
fn upserts(
    shared: &Shared,
    registered: &Registered,
    nodes: &[Heard],
    foreign: &mut Foreign,
) -> Result<()> {
    let source = Source {
        platform: &registered.platform.name,
        uid: &registered.platform.uid(),
    };
    let now = shared.now();
    let mut at = 0;
    while at < nodes.len() {
        // Nodes of one cluster are adjacent, so that the lock is taken once for all of them.
        let owner = owner(&nodes[at]);
        let same = nodes[at..]
            .iter()
            .take_while(|node| self::owner(node) == owner)
            .count();
        let own = &nodes[at..at + same];
        at += same;
        let cluster = owner.and_then(|owner| shared.clusters.get(owner));
        // A cluster that has just been deleted has a tombstone by now.
        let inner = cluster.as_ref().map(|cluster| cluster.lock());
        let inner = inner.filter(|inner| !inner.is_finished());
        let (Some(cluster), Some(mut inner)) = (&cluster, inner) else {
            for node in own {
                stray(shared, registered, node, owner, foreign, now);
            }
            registered.platform.refuse_flood()?;
            continue;
        };
        for node in own {
            // The node may have been adopted since it was last shown as foreign.
            registered
                .platform
                .remove_foreign(&node.cluster_id, &node.node_id);
        }
        let mut urgency = None;
        for node in own {
            let seen = Observation {
                source,
                node,
                as_of: now,
                now,
                listed: true,
            };
            urgency = urgency.max(apply_observation(shared, cluster, &mut inner, seen));
        }
        if urgency.is_some() {
            shared.changed(cluster, &mut inner);
        }
        drop(inner);
        if let Some(urgency) = urgency {
            // While a snapshot comes in, ten thousand plans would say that they do not know yet.
            if registered.platform.is_visible(now) {
                shared.queue.push(cluster.uid(), urgency);
            } else {
                registered.hold(cluster.uid(), urgency);
            }
        }
        registered.platform.refuse_flood()?;
    }
    Ok(())
}

fn owner(node: &wire::Node) -> Option<Uuid> {
    Uuid::parse_str(&node.slot.as_ref()?.owner).ok()
}

/// Takes in a node that a platform shows as part of this cluster, and applies the effects on probes and platforms.
/// Returns how urgently the cluster must be planned.
pub(crate) fn apply_observation(
    shared: &Shared,
    cluster: &Cluster,
    state: &mut ClusterState,
    seen: Observation<'_>,
) -> Option<Urgency> {
    let platform = seen.source.platform;
    let Observed { urgency, effects } = state.observe(seen, &shared.interner);
    for effect in effects {
        if let Effect::Probe { group, slot } = &effect {
            shared.probes.track(state, group, *slot);
            continue;
        }
        let Some(registered) = shared.platform(platform) else {
            continue;
        };
        match effect {
            Effect::Probe { .. } => {}
            Effect::Returned => registered.platform.returned(),
            Effect::Stranger => registered.platform.stranger(),
            Effect::ClaimEnded => {
                registered
                    .platform
                    .drop_claim(cluster.name(), &seen.node.node_id);
            }
            Effect::Claimed { recorded } => {
                let (name, id) = (&**cluster.name(), seen.node.node_id.as_str());
                if registered.platform.claim(name, id, &recorded, seen.now) {
                    tracing::error!(%platform, cluster = name, node_id = id, %recorded, "a platform shows a node that is recorded on another one; it is not believed");
                }
            }
        }
    }
    urgency
}

/// Takes in a node that belongs to no cluster of this store.
fn stray(
    shared: &Shared,
    registered: &Registered,
    node: &wire::Node,
    owner: Option<Uuid>,
    foreign: &mut Foreign,
    now: Millis,
) {
    if let Some(owner) = owner
        && shared
            .tombstones
            .show(owner, &registered.platform, node, now)
    {
        registered.platform.stranger();
        return;
    }
    let owner = node
        .slot
        .as_ref()
        .map(|slot| slot.owner.clone())
        .unwrap_or_default();
    if drover_convert::node::phase(node.phase) == Phase::Terminated {
        registered
            .platform
            .remove_foreign(&node.cluster_id, &node.node_id);
    } else {
        let nodes = foreign.entry(node.cluster_id.clone()).or_default();
        nodes.insert(node.node_id.clone(), owner.clone());
        registered
            .platform
            .add_foreign(&node.cluster_id, &node.node_id, owner);
    }
    if let Ok(cluster) = shared.clusters.find(&node.cluster_id) {
        let uid = registered.platform.identity().0;
        let source = Source {
            platform: &registered.platform.name,
            uid: &uid,
        };
        let mut inner = cluster.lock();
        let new = inner.observe_foreign(source, node, now, &shared.interner);
        drop(inner);
        if new {
            shared.queue.push(cluster.uid(), Urgency::Bulk);
        }
    }
}

/// Takes in nodes that are no longer visible.
fn removals(shared: &Shared, registered: &Registered, nodes: &[wire::NodeRemoved]) {
    let platform = &registered.platform.name;
    let uid = registered.platform.uid();
    let mut vanished = 0;
    for removed in nodes {
        shared.tombstones.gone(platform, &removed.node_id);
        registered
            .platform
            .remove_foreign(&removed.cluster_id, &removed.node_id);
        registered
            .platform
            .drop_claim(&removed.cluster_id, &removed.node_id);
        let Ok(cluster) = shared.clusters.find(&removed.cluster_id) else {
            continue;
        };
        let mut inner = cluster.lock();
        let now = shared.now();
        let source = Source {
            platform,
            uid: &uid,
        };
        let urgency = match inner.removed(source, removed, now) {
            Removed::Nothing => continue,
            Removed::Foreign => Urgency::Bulk,
            Removed::Recorded { vanished: lost } => {
                vanished += usize::from(lost);
                Urgency::Urgent
            }
        };
        shared.changed(&cluster, &mut inner);
        drop(inner);
        shared.queue.push(cluster.uid(), urgency);
    }
    if vanished > 0 && registered.platform.vanished(vanished, shared.now()) {
        tracing::error!(%platform, "too many nodes vanished at once; nothing there is touched until that is confirmed");
        shared.wake_users(platform, Urgency::Bulk);
    }
}

/// Called when a watch begins.
fn begin(shared: &Shared, registered: &Registered) {
    let now = shared.now();
    for cluster in shared.clusters.all() {
        let mut state = cluster.lock();
        state.watch_begun(&registered.platform.name, now);
    }
}

/// Called when a snapshot that began at `began` is complete.
fn snapshot(shared: &Shared, registered: &Arc<Registered>, began: Millis, foreign: Foreign) {
    let platform = &registered.platform.name;
    let uid = registered.platform.identity().0;
    let delay = registered.platform.view(began).limits.visibility_delay;
    let source = Source {
        platform,
        uid: &uid,
    };
    let mut vanished = 0;
    for cluster in shared.clusters.all() {
        let mut inner = cluster.lock();
        let end = inner.snapshot_ended(source, began, delay);
        vanished += end.vanished;
        if end.concerned {
            shared.changed(&cluster, &mut inner);
            drop(inner);
            let lost = end.vanished > 0;
            let urgency = if lost { Urgency::Urgent } else { Urgency::Bulk };
            shared.queue.push(cluster.uid(), urgency);
        }
    }
    shared.wake_held(registered);
    registered.platform.set_foreign(foreign, began);
    if vanished > 0 && registered.platform.vanished(vanished, shared.now()) {
        tracing::error!(%platform, "too many nodes vanished at once; nothing there is touched until that is confirmed");
    }
}

#[cfg(test)]
mod tests;
