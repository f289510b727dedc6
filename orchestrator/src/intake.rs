//! What platforms show, taken into memory: which cluster, which slot, and who is to be planned for it.

use std::{collections::BTreeMap, sync::Arc};

use drover_core::{Millis, Phase, Result, Sym, node::Former};
use drover_planner::Foreign as ForeignNode;
use drover_proto::platform::v1 as wire;
use uuid::Uuid;

use crate::{
    cluster::{Cluster, ClusterState, Effect, Observation, Observed, Source},
    heard::Heard,
    queue::Urgency,
    shared::{Registered, Shared},
};

/// What a platform shows that is none of ours: clusters, their nodes by the platform's id, and whose those are.
pub(crate) type Foreign = BTreeMap<String, BTreeMap<String, String>>;

/// Takes in nodes that are there, or changed.
///
/// # Errors
/// It shows more that nobody recorded than can be kept.
pub(crate) fn upserts(
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
        // Nodes of one cluster come together: one lock for all of them.
        let owner = owner(&nodes[at]);
        let same = nodes[at..]
            .iter()
            .take_while(|node| self::owner(node) == owner)
            .count();
        let own = &nodes[at..at + same];
        at += same;
        let cluster = owner.and_then(|owner| shared.cluster(owner));
        // Who has just ended has a tombstone by now.
        let inner = cluster.as_ref().map(|cluster| cluster.inner.lock());
        let inner = inner.filter(|inner| !inner.finished);
        let (Some(cluster), Some(mut inner)) = (&cluster, inner) else {
            for node in own {
                stray(shared, registered, node, owner, foreign, now);
            }
            registered.platform.refuse_flood()?;
            continue;
        };
        for node in own {
            // It may have been adopted.
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
            shared.queue.push(cluster.uid, urgency);
        }
        registered.platform.refuse_flood()?;
    }
    Ok(())
}

fn owner(node: &wire::Node) -> Option<Uuid> {
    Uuid::parse_str(&node.slot.as_ref()?.owner).ok()
}

/// Takes in one node that a platform shows as one of this cluster, with what follows from it elsewhere. Returns how soon the
/// cluster is to be planned for it.
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
            shared
                .probes
                .track(shared, cluster.uid, state, group, *slot);
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
                    .drop_claim(&cluster.name, &seen.node.node_id);
            }
            Effect::Claimed { recorded } => {
                let (name, id) = (&*cluster.name, seen.node.node_id.as_str());
                if registered.platform.claim(name, id, &recorded, seen.now) {
                    tracing::error!(%platform, cluster = name, node_id = id, %recorded, "a platform shows a node that is recorded on another one; it is not believed");
                }
            }
        }
    }
    urgency
}

/// A node of no cluster that we keep.
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
    if let Ok(cluster) = shared.find(&node.cluster_id) {
        let uid = registered.platform.identity().0;
        let mut inner = cluster.inner.lock();
        let new = foreign_node(
            shared,
            &mut inner,
            &registered.platform.name,
            &uid,
            node,
            now,
        );
        drop(inner);
        if new {
            shared.queue.push(cluster.uid, Urgency::Bulk);
        }
    }
}

/// Takes in a node of the cluster's id that is not its own. Answers whether it is new.
pub(crate) fn foreign_node(
    shared: &Shared,
    inner: &mut ClusterState,
    platform: &Sym,
    uid: &str,
    node: &wire::Node,
    now: Millis,
) -> bool {
    let key = (platform.clone(), node.node_id.as_str().into());
    if drover_convert::node::phase(node.phase) == Phase::Terminated {
        return inner.state.foreign.remove(&key).is_some();
    }
    let slot = node.slot.clone().unwrap_or_default();
    let foreign = ForeignNode {
        id: node.id.as_str().into(),
        former: Former {
            owner: slot.owner.into(),
            request: slot.request_id.into(),
            index: slot.index,
        },
        group: shared.interner.get(&node.group),
        ordinal: node.ordinal,
        role: drover_convert::node::role(node),
        class: shared.interner.get(&node.node_class),
        version: shared.interner.get(&node.version),
        host: shared
            .interner
            .get(node.host_id.as_deref().unwrap_or_default()),
        platform_uid: shared.interner.get(uid),
        last: now,
    };
    inner.state.foreign.insert(key, foreign).is_none()
}

/// Takes in nodes that are no longer seen.
pub(crate) fn removals(shared: &Shared, registered: &Registered, nodes: &[wire::NodeRemoved]) {
    let platform = &registered.platform.name;
    let uid = registered.platform.uid();
    let mut vanished = 0;
    for removed in nodes {
        let confirmed = removed.evidence == i32::from(wire::RemovalEvidence::Confirmed);
        shared.tombstones.gone(platform, &removed.node_id);
        registered
            .platform
            .remove_foreign(&removed.cluster_id, &removed.node_id);
        registered
            .platform
            .drop_claim(&removed.cluster_id, &removed.node_id);
        let Ok(cluster) = shared.find(&removed.cluster_id) else {
            continue;
        };
        let mut inner = cluster.inner.lock();
        let key = (platform.clone(), removed.node_id.as_str().into());
        inner.state.orphans.remove(&key);
        if inner.state.foreign.remove(&key).is_some() {
            shared.changed(&cluster, &mut inner);
            shared.queue.push(cluster.uid, Urgency::Bulk);
        }
        let node = inner.state.nodes.iter_mut().find(|node| {
            let id = node.node_id.as_deref().unwrap_or(&node.seen.node_id);
            node.platform == *platform && node.platform_uid == uid && *id == *removed.node_id
        });
        // Its id may be another node's by now.
        let node = node.filter(|node| is_of(node, removed.slot.as_ref()));
        let Some(node) = node else { continue };
        if confirmed {
            node.seen.gone = true;
        } else {
            node.seen.unlisted = true;
            // It was listed until now: the delay of the backend's list counts from here.
            node.seen.last = shared.now();
            node.seen.vanished = node.removal.is_none();
            vanished += usize::from(node.seen.vanished);
        }
        shared.changed(&cluster, &mut inner);
        drop(inner);
        shared.queue.push(cluster.uid, Urgency::Urgent);
    }
    if vanished > 0 && registered.platform.vanished(vanished, shared.now()) {
        tracing::error!(%platform, "too many nodes vanished at once; nothing there is touched until that is confirmed");
        shared.wake_users(platform, Urgency::Bulk);
    }
}

/// Whether the slot that a platform says a node had is that of a record. Who does not say is believed.
fn is_of(node: &drover_core::Node, slot: Option<&wire::SlotKey>) -> bool {
    slot.is_none_or(|slot| {
        Uuid::parse_str(&slot.request_id) == Ok(node.request) && slot.index == Some(node.index)
    })
}

/// A watch begins: the grace of orphans begins anew, since nobody watched meanwhile. They stay known until its snapshot
/// is complete, as what they hold back must not be free in between.
pub(crate) fn begin(shared: &Shared, registered: &Registered) {
    let now = shared.now();
    for cluster in shared.all() {
        for ((platform, _), orphan) in &mut cluster.inner.lock().state.orphans {
            if *platform == registered.platform.name {
                orphan.since = now;
            }
        }
    }
}

/// A snapshot that began at `began` is complete: what it lacks is no longer listed, which proves nothing.
pub(crate) fn snapshot(
    shared: &Shared,
    registered: &Arc<Registered>,
    began: Millis,
    foreign: Foreign,
) {
    let platform = &registered.platform.name;
    let uid = registered.platform.identity().0;
    let delay = registered.platform.view(began).limits.visibility_delay;
    let mut vanished = 0;
    for cluster in shared.all() {
        let mut inner = cluster.inner.lock();
        let mut uses = inner
            .spec
            .groups
            .iter()
            .any(|g| g.choices.iter().any(|c| c.platform == *platform));
        for node in &mut inner.state.nodes {
            if node.platform != *platform || *node.platform_uid != *uid {
                continue;
            }
            uses = true;
            if node.seen.last < began
                && !node.is_adopting()
                && (node.seen.last > 0 || node.node_id.is_some())
                && !node.seen.unlisted
            {
                node.seen.unlisted = true;
                if node.seen.last > 0 {
                    node.seen.last = began;
                }
                // What is new may be listed late; it has not vanished.
                let listed =
                    node.seen.last > 0 || (node.settled > 0 && node.settled + delay < began);
                node.seen.vanished = listed && node.removal.is_none();
                vanished += usize::from(node.seen.vanished);
            }
        }
        let before = inner.state.foreign.len() + inner.state.orphans.len();
        let shown = |name: &Sym, last: Millis| name != platform || last >= began;
        (inner.state.foreign).retain(|(name, _), one| shown(name, one.last));
        (inner.state.orphans).retain(|(name, _), one| shown(name, one.last));
        uses |= before > 0;
        if uses {
            shared.changed(&cluster, &mut inner);
            drop(inner);
            shared.queue.push(cluster.uid, Urgency::Bulk);
        }
    }
    registered.platform.set_foreign(foreign, began);
    if vanished > 0 && registered.platform.vanished(vanished, shared.now()) {
        tracing::error!(%platform, "too many nodes vanished at once; nothing there is touched until that is confirmed");
    }
}
