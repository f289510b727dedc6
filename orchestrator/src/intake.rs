//! What platforms show, taken into memory: which cluster, which slot, and who is to be planned for it.

use std::{collections::BTreeMap, sync::Arc};

use drover_core::{Millis, Phase, Result, Sym, node::Former};
use drover_planner::{Foreign as ForeignNode, Orphan};
use drover_proto::platform::v1 as wire;
use uuid::Uuid;

use crate::{
    cluster::{Cluster, ClusterState},
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
            urgency = urgency.max(apply_observation(
                shared,
                cluster,
                &mut inner,
                source,
                node,
                (now, now),
                true,
            ));
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

/// Who shows a node: the name of a platform, and the uid of the backend that it speaks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) platform: &'a Sym,
    pub(crate) uid: &'a str,
}

impl Source<'_> {
    /// Whether what it says of a node is heard: what is recorded elsewhere is none of its business.
    fn speaks_for(&self, platform: &Sym, uid: &str) -> bool {
        self.platform == platform && *self.uid == *uid
    }
}

fn owner(node: &wire::Node) -> Option<Uuid> {
    Uuid::parse_str(&node.slot.as_ref()?.owner).ok()
}

/// Takes in one node that says to be of this cluster. Answers how soon the cluster is to be planned for it.
///
/// `(as_of, now)`: an answer shows how things were at some time since it was asked for; what a watch has shown since
/// then is newer and stands. `listed`: by a list or a watch, which will also tell when it is gone.
pub(crate) fn apply_observation(
    shared: &Shared,
    cluster: &Cluster,
    inner: &mut ClusterState,
    source: Source<'_>,
    node: &Heard,
    (as_of, now): (Millis, Millis),
    listed: bool,
) -> Option<Urgency> {
    let platform = source.platform;
    let (owner, request, index) = drover_convert::node::slot(node)?;
    if owner != cluster.uid {
        return None;
    }
    let Some(at) = inner
        .slot_at(request, index)
        .or_else(|| taken_in(inner, request, index))
    else {
        let asked = inner.state.requests.get(&request);
        if let Some(asked) = asked.filter(|it| !source.speaks_for(&it.platform, &it.platform_uid)) {
            claim(shared, cluster, platform, node, &asked.platform, now);
            return None;
        }
        return orphan(shared, inner, source, node, request, index, now);
    };
    let record = &inner.state.nodes[at];
    if !source.speaks_for(&record.platform, &record.platform_uid) {
        claim(shared, cluster, platform, node, &record.platform, now);
        return None;
    }
    let id = node.node_id.as_str();
    if !inner.state.orphans.is_empty() || !inner.state.foreign.is_empty() {
        let key = (platform.clone(), id.into());
        inner.state.orphans.remove(&key);
        inner.state.foreign.remove(&key);
    }
    let record = &mut inner.state.nodes[at];
    if record.seen.vanished {
        record.seen.vanished = false;
        if let Some(registered) = shared.platform(platform) {
            registered.platform.returned();
        }
    }
    let was = record.seen.phase;
    let newer = as_of < now && record.seen.last >= as_of && was != Phase::Unseen;
    // Whoever said that it is gone meant the one before it, or was wrong: it is listed again.
    let back = record.seen.gone
        && listed
        && as_of == now
        && drover_convert::node::phase(node.phase) != Phase::Terminated;
    record.seen.gone &= !back;
    record.seen.unproven = !listed && (record.seen.unproven || record.seen.last == 0);
    let mut changed = if newer {
        // A doubt that came after the question is not answered by it.
        let doubted =
            record.seen.last == as_of && (record.seen.unlisted || record.seen.missing_from > 0);
        if doubted {
            (record.seen.unlisted, record.seen.missing_from) = (false, 0);
        }
        doubted
    } else {
        drover_convert::node::observe(&mut record.seen, node, now, &mut |text| {
            shared.interner.get(text)
        })
    };
    changed |= back;
    if record.node_id.is_none() && *record.seen.node_id != *node.node_id {
        record.seen.node_id = node.node_id.as_str().into();
        changed = true;
    }
    if !changed {
        return None;
    }
    let (group, slot, seen) = (record.group.clone(), record.slot, record.seen.phase);
    if seen == Phase::Running && was != Phase::Running {
        shared
            .probes
            .track(shared, cluster.uid, inner, &group, slot);
    }
    let death = matches!(seen, Phase::Failed | Phase::Terminated | Phase::Stopped);
    Some(if death {
        Urgency::Urgent
    } else {
        Urgency::Bulk
    })
}

/// A platform shows a node that is recorded on another one: whoever knows the ids of a node could make it say so.
fn claim(
    shared: &Shared,
    cluster: &Cluster,
    platform: &Sym,
    node: &wire::Node,
    recorded: &Sym,
    now: Millis,
) {
    let Some(registered) = shared.platform(platform) else {
        return;
    };
    let (name, id) = (&*cluster.name, node.node_id.as_str());
    if drover_convert::node::phase(node.phase) == Phase::Terminated {
        registered.platform.drop_claim(name, id);
    } else if registered.platform.claim(name, id, recorded, now) {
        tracing::error!(%platform, cluster = name, node_id = id, %recorded, "a platform shows a node that is recorded on another one; it is not believed");
    }
}

/// The position of an orphan that was taken in.
fn taken_in(inner: &ClusterState, request: Uuid, index: u32) -> Option<usize> {
    inner
        .state
        .nodes
        .iter()
        .position(|node| node.request == request && node.index == index)
}

fn orphan(
    shared: &Shared,
    inner: &mut ClusterState,
    source: Source<'_>,
    node: &wire::Node,
    request: Uuid,
    index: u32,
    now: Millis,
) -> Option<Urgency> {
    let Source { platform, uid } = source;
    if drover_convert::node::phase(node.phase) == Phase::Terminated {
        return None;
    }
    let key: (Sym, Box<str>) = (platform.clone(), node.node_id.as_str().into());
    let mut intern = |text: &str| shared.interner.get(text);
    if let Some(known) = inner.state.orphans.get_mut(&key) {
        known.last = now;
        // The same backend may have got another uid.
        if *known.platform_uid != *uid {
            known.platform_uid = shared.interner.get(uid);
        }
        drover_convert::node::observe(&mut known.seen, node, now, &mut intern);
        return None;
    }
    let pending = inner.state.nodes.iter().any(|record| {
        record.is_adopting()
            && record.platform == *platform
            && record.node_id.as_deref() == Some(&node.node_id)
    });
    if pending {
        // It gets another slot of this cluster.
        return None;
    }
    let mut seen = Box::default();
    drover_convert::node::observe(&mut seen, node, now, &mut intern);
    let orphan = Orphan {
        id: node.id.as_str().into(),
        request,
        index,
        sequence: node.sequence,
        group: shared.interner.get(&node.group),
        ordinal: node.ordinal.unwrap_or(0),
        role: drover_convert::node::role(node),
        platform_uid: shared.interner.get(uid),
        since: now,
        last: now,
        spec_hash: shared.interner.get(&node.spec_hash),
        class: shared.interner.get(&node.node_class),
        version: shared.interner.get(&node.version),
        seen,
    };
    inner.state.orphans.insert(key, orphan);
    if let Some(registered) = shared.platform(platform) {
        registered.platform.stranger();
    }
    Some(Urgency::Bulk)
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
