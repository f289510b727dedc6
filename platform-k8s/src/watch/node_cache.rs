//! The cache of all nodes, which the watches keep up to date.

mod heard;
mod state;

use std::{sync::Arc, time::Duration};

use drover_core::Error;
use drover_platform::driver::{Changes, Found, Listing};
use drover_proto::platform::v1::RemovalEvidence;
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use state::{CacheState, Indexed, Watch};

use super::unscheduled::Likeness;
use crate::{
    client::{Kind, Meta as _, Object},
    delete::Place,
    discover::{Lost, Reader, Seen},
    group::{Group, Groups, Member, UnderWay},
    labels::{self, LabelKeys},
    peers::{GroupLabels, PeerNotifier, PeerUpdate, Shared},
    pod::Pod,
    settings::Settings,
};

/// Maximum number of uids of deleted objects that are remembered, so that a late response to a creation does not bring
/// one back.
const MAX_DELETED: usize = 4096;

/// The cache of all nodes.
pub struct NodeCache {
    kinds: Vec<Arc<Kind>>,
    reader: Reader,
    /// Maximum silence of a watch that is still trusted.
    silence: Duration,
    state: Mutex<CacheState>,
    /// Signals that a watch has become complete, or has failed.
    progress: watch::Sender<u64>,
    /// Signals that a pod is unschedulable.
    unscheduled: Notify,
    /// Signals clusters whose nodes need an update about their peers.
    peer_notifier: PeerNotifier,
}

impl NodeCache {
    pub(super) fn new(kinds: Vec<Arc<Kind>>, settings: &Settings) -> Self {
        Self {
            kinds,
            reader: Reader::new(settings),
            silence: settings.watch_timeout(),
            state: Mutex::default(),
            progress: watch::Sender::new(0),
            unscheduled: Notify::new(),
            peer_notifier: PeerNotifier::default(),
        }
    }

    /// The kinds that are read, in the order of the settings.
    #[must_use]
    pub fn kinds(&self) -> &[Arc<Kind>] {
        &self.kinds
    }

    /// Adds a pod that was just created, before its watch reports it.
    pub fn made_pod(&self, pod: &Pod) {
        let Some(at) = self
            .kinds
            .iter()
            .position(|kind| crate::discover::is_pod(kind))
        else {
            return;
        };
        let index = u16::try_from(at).unwrap_or(u16::MAX);
        if let Some(seen) = self.reader.pod(index, pod) {
            self.made(index, seen);
        }
    }

    /// Adds any other object that was just created, before its watch reports it.
    pub fn made_object(&self, kind: &Kind, object: &Object) {
        let Some(at) = self.kinds.iter().position(|known| **known == *kind) else {
            return;
        };
        let index = u16::try_from(at).unwrap_or(u16::MAX);
        if let Some(seen) = self.reader.part(index, object) {
            self.made(index, seen);
        }
    }

    /// Updates a pod after a change, before its watch reports it.
    pub fn changed_pod(&self, pod: &Pod) {
        let at = self.kinds.iter().position(|it| crate::discover::is_pod(it));
        let index = at.and_then(|at| u16::try_from(at).ok());
        if let Some((index, seen)) = index.and_then(|it| Some((it, self.reader.pod(it, pod)?))) {
            self.changed(index, seen);
        }
    }

    /// Updates any other object after a change, before its watch reports it.
    pub fn changed_object(&self, kind: &Kind, object: &Object) {
        let at = self.kinds.iter().position(|known| **known == *kind);
        let index = at.and_then(|at| u16::try_from(at).ok());
        if let Some((index, seen)) = index.and_then(|it| Some((it, self.reader.part(it, object)?)))
        {
            self.changed(index, seen);
        }
    }

    fn changed(&self, kind: u16, seen: Seen) {
        let mut state = self.state.lock();
        let uid = seen.member.uid;
        if state.deleted.contains(&uid) {
            return;
        }
        let before = state.objects.get(&uid).map(|it| it.watch);
        let of_kind = || {
            let at = state.watches.iter().position(|it| it.kind == Some(kind));
            at.and_then(|at| u16::try_from(at).ok())
        };
        if let Some(watch) = before.or_else(of_kind) {
            self.insert(&mut state, watch, seen, true);
        }
    }

    fn made(&self, kind: u16, seen: Seen) {
        let mut state = self.state.lock();
        let uid = seen.member.uid;
        // The state from the watch is newer.
        if state.objects.contains_key(&uid) || state.deleted.contains(&uid) {
            return;
        }
        let watch = state
            .watches
            .iter()
            .position(|watch| watch.kind == Some(kind));
        if let Some(watch) = watch {
            let watch = u16::try_from(watch).unwrap_or(u16::MAX);
            self.insert(&mut state, watch, seen, true);
        }
    }

    /// Marks the objects of a node as being created until the guard is dropped: meanwhile, missing objects are not a
    /// failure.
    #[must_use]
    pub fn creating(self: &Arc<Self>, cluster_id: &str, node_id: &str) -> UnderWayGuard {
        self.begin(cluster_id, node_id, true)
    }

    /// Marks the objects of a node as being deleted until the guard is dropped.
    #[must_use]
    pub fn removing(self: &Arc<Self>, cluster_id: &str, node_id: &str) -> UnderWayGuard {
        self.begin(cluster_id, node_id, false)
    }

    fn begin(self: &Arc<Self>, cluster: &str, node: &str, creating: bool) -> UnderWayGuard {
        let guard = UnderWayGuard {
            cache: Arc::clone(self),
            key: (cluster.into(), node.into()),
            creating,
        };
        self.count(&guard.key, creating, true);
        guard
    }

    fn count(&self, key: &(Box<str>, Box<str>), creating: bool, up: bool) {
        let mut state = self.state.lock();
        let entry = state.under_way.entry(key.clone()).or_default();
        let count = if creating { &mut entry.0 } else { &mut entry.1 };
        *count = if up {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
        if *entry == (0, 0) {
            state.under_way.remove(key);
        }
        if state
            .groups
            .get(&key.0, &key.1)
            .is_some_and(|group| group.node(&self.kinds, UnderWay::default()).is_some())
        {
            state.tell(&key.0, &key.1);
        }
    }

    /// Waits until all existing objects are known, or a watch cannot start.
    ///
    /// # Errors
    /// The error of a watch that cannot start, unless nodes can be known without it.
    pub async fn ready(&self) -> drover_core::Result<()> {
        let mut progress = self.progress.subscribe();
        loop {
            progress.mark_unchanged();
            {
                let state = self.state.lock();
                let failed = state
                    .watches
                    .iter()
                    .find_map(|watch| watch.error.as_ref().filter(|_| !self.may_miss(watch)));
                if let Some(error) = failed {
                    return Err(error.clone());
                }
                if state
                    .watches
                    .iter()
                    .all(|watch| watch.complete || self.may_miss(watch))
                {
                    return Ok(());
                }
            }
            if progress.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// The kinds that the credentials may not watch, as warnings for the operator.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let state = self.state.lock();
        let refused = state.watches.iter().filter(|watch| self.may_miss(watch));
        refused
            .filter_map(|watch| {
                let error = watch.error.as_ref()?;
                Some(match watch.kind {
                    Some(_) => format!(
                        "{} are not seen, what remains of them is not noticed: {}",
                        watch.name,
                        error.message()
                    ),
                    None => format!(
                        "failure domains are not known, and a lost host is not noticed: {}",
                        error.message()
                    ),
                })
            })
            .collect()
    }

    /// Names of all failure domains, sorted.
    #[must_use]
    pub fn failure_domains(&self) -> Vec<String> {
        let state = self.state.lock();
        let zones = state.hosts.values().filter_map(|it| it.zone.as_deref());
        let mut names: Vec<String> = zones.map(ToOwned::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether this watch is forbidden and nodes can be known without it.
    fn may_miss(&self, watch: &Watch) -> bool {
        let refused = watch
            .error
            .as_ref()
            .is_some_and(crate::errors::is_forbidden);
        let is_pod = watch
            .kind
            .and_then(|kind| self.kinds.get(usize::from(kind)))
            .is_some_and(|kind| crate::discover::is_pod(kind));
        refused && !is_pod
    }

    pub(super) fn tell(&self, changes: Changes) {
        let mut state = self.state.lock();
        for (key, group) in state.groups.iter() {
            if group.node(&self.kinds, UnderWay::default()).is_some() {
                changes.changed(&key.cluster, &key.node);
            }
        }
        state.changes = Some(changes);
    }

    pub(super) fn read(&self, cluster: &str, node: &str) -> Option<Found> {
        let state = self.state.lock();
        let group = state.groups.get(cluster, node)?;
        let under_way = state.under_way(cluster, node);
        let found = group.node(&self.kinds, under_way)?;
        Some(state.placed(found, group))
    }

    pub(super) fn current(&self) -> bool {
        let state = self.state.lock();
        let now = Instant::now();
        // The watch of Kubernetes nodes only adds to what pods tell.
        let mut watches = state.watches.iter().filter(|watch| watch.kind.is_some());
        watches.all(|watch| {
            let heard = watch.heard.is_some_and(|heard| now < heard + self.silence);
            self.may_miss(watch) || (watch.complete && heard)
        })
    }

    /// Locations of the objects of a node. Empty if it is unknown, or if the cache is not current.
    pub(crate) fn places(&self, cluster: &str, node: &str) -> Vec<Place> {
        if !self.current() {
            return Vec::new();
        }
        let state = self.state.lock();
        let members = state.groups.get(cluster, node).map(Group::members);
        let members = members.unwrap_or_default().iter();
        members.filter_map(|member| self.place(member)).collect()
    }

    fn place(&self, member: &Member) -> Option<Place> {
        Some(Place {
            kind: Arc::clone(self.kinds.get(usize::from(member.kind))?),
            namespace: member.namespace.to_string(),
            name: member.name.to_string(),
        })
    }

    /// The nodes that a request has created completely. `None` if the cache is not current.
    pub(crate) fn of_request(&self, request_id: &str) -> Option<Vec<Found>> {
        if !self.current() {
            return None;
        }
        let request = crate::group::uid(request_id);
        let state = self.state.lock();
        let groups = state.groups.iter();
        let whole = groups.filter(|(_, group)| group.is_of(request) && group.is_whole());
        let found = whole.filter_map(|(key, group)| {
            let under_way = state.under_way(&key.cluster, &key.node);
            Some(state.placed(group.node(&self.kinds, under_way)?, group))
        });
        Some(found.collect())
    }

    /// Converts the objects of a list to nodes.
    pub(crate) fn listing(&self, groups: &Groups, whole: bool) -> Listing {
        let state = self.state.lock();
        let mut listing = Listing::default();
        for (key, group) in groups.iter() {
            let under_way = state.under_way(&key.cluster, &key.node);
            if (!whole || group.is_whole())
                && let Some(found) = group.node(&self.kinds, under_way)
            {
                listing.nodes.push(state.placed(found, group));
            }
            let warnings = group
                .members()
                .iter()
                .filter_map(|it| it.warning.as_deref());
            listing.warnings.extend(warnings.cloned());
        }
        listing.nodes.sort_by(|a, b| {
            (&a.node.cluster_id, &a.node.node_id).cmp(&(&b.node.cluster_id, &b.node.node_id))
        });
        listing
            .warnings
            .sort_by(|a, b| a.provider_id.cmp(&b.provider_id));
        listing
    }

    /// The pods whose cluster label was removed.
    pub(crate) fn lost(&self) -> Vec<Lost> {
        let state = self.state.lock();
        let mut lost = Vec::new();
        for (key, group) in state.groups.iter() {
            for (member, part) in group.pods().filter(|(_, part)| part.lost) {
                let Some(kind) = self.kinds.get(usize::from(member.kind)) else {
                    continue;
                };
                lost.push(Lost {
                    kind: Arc::clone(kind),
                    index: member.kind,
                    cluster: key.cluster.to_string(),
                    node: key.node.to_string(),
                    namespace: member.namespace.to_string(),
                    name: member.name.to_string(),
                    uid: member.uid,
                    part: part.clone(),
                });
            }
        }
        lost
    }

    /// The scheduler's message about pods like these, if one of them was unschedulable recently.
    pub(crate) fn full(&self, likeness: &Likeness) -> Option<String> {
        let state = self.state.lock();
        state.unscheduled.full(likeness).map(str::to_owned)
    }

    /// Gives up pods that are unschedulable for too long. Runs until it is dropped.
    pub(super) async fn give_up_unscheduled(&self, patience: Duration) {
        loop {
            let next = self.state.lock().unscheduled.next(patience);
            match next {
                None => self.unscheduled.notified().await,
                Some(next) => tokio::select! {
                    () = tokio::time::sleep_until(next) => self.give_up(patience),
                    () = self.unscheduled.notified() => {}
                },
            }
        }
    }

    fn give_up(&self, patience: Duration) {
        let mut state = self.state.lock();
        for (_, key) in state.unscheduled.expire(patience) {
            let shown = state
                .groups
                .get(&key.cluster, &key.node)
                .and_then(|group| group.node(&self.kinds, UnderWay::default()));
            if let Some(found) = shown.filter(|found| found.node.slot.is_some()) {
                let node = found.node;
                let likeness = (node.node_class, node.spec_hash);
                state.unscheduled.is_full(likeness, node.message);
            }
            state.tell(&key.cluster, &key.node);
        }
    }

    /// The nodes with this id. `None` if none is known, or if the cache is not current.
    pub(crate) fn by_node_id(&self, node_id: &str) -> Option<Vec<Found>> {
        if !self.current() {
            return None;
        }
        let state = self.state.lock();
        let groups = state.groups.iter().filter(|(key, _)| *key.node == *node_id);
        let found: Vec<Found> = groups
            .filter_map(|(key, group)| {
                let under_way = state.under_way(&key.cluster, &key.node);
                Some(state.placed(group.node(&self.kinds, under_way)?, group))
            })
            .collect();
        (!found.is_empty()).then_some(found)
    }

    pub(crate) fn peer_notifier(&self) -> &PeerNotifier {
        &self.peer_notifier
    }

    /// The peer data that the nodes of a cluster lack. A cluster whose nodes ask for none is forgotten.
    pub(crate) fn peer_update(&self, cluster: &str) -> PeerUpdate {
        let mut state = self.state.lock();
        let mut update = PeerUpdate::default();
        for (key, group) in state.groups.iter() {
            if *key.cluster == *cluster {
                let found = group.node(&self.kinds, UnderWay::default());
                update.add(group, found.map(|found| found.node));
                let stray = group.stray();
                update.stray(
                    stray.and_then(|(pod, leader)| Some((self.place(pod)?, self.place(leader)?))),
                );
            }
        }
        if update.is_empty() {
            state.listeners.remove(cluster);
        }
        update
    }

    /// An object that belongs to a group, not to a node, is there.
    pub(super) fn of_group(&self, (watch, kind): (u16, u16), meta: &ObjectMeta, keys: &LabelKeys) {
        let kind = self.kinds.get(usize::from(kind));
        let Some(shared) = kind.and_then(|kind| Shared::read(kind, meta, keys)) else {
            return;
        };
        let cluster = shared.cluster().to_owned();
        let list = (watch, self.list_number(watch));
        if self.peer_notifier.found(shared, meta.version(), list) {
            self.notify_of(&cluster);
        }
    }

    /// Whether a group has nodes, by the values of its labels.
    pub(crate) fn has_nodes_of(&self, wanted: &GroupLabels) -> bool {
        let state = self.state.lock();
        let mut groups = state.groups.iter();
        groups.any(|(key, group)| {
            labels::value(&key.cluster) == wanted.cluster
                && group
                    .node(&self.kinds, UnderWay::default())
                    .is_some_and(|found| wanted.is_of(&found.node))
        })
    }

    /// An object that belongs to a group, not to a node, is gone.
    pub(super) fn gone_of_group(&self, kind: u16, cluster: &str, meta: &ObjectMeta) {
        if let Some(kind) = self.kinds.get(usize::from(kind)) {
            self.peer_notifier.forget(kind, meta);
        }
        self.notify_of(cluster);
    }

    /// The number of the last list of a watch.
    fn list_number(&self, watch: u16) -> u32 {
        let state = self.state.lock();
        let watch = state.watches.get(usize::from(watch));
        watch.map_or(0, |it| it.generation)
    }

    /// Notifies of the cluster with this label, which may be an encoded id.
    fn notify_of(&self, cluster: &str) {
        let state = self.state.lock();
        for known in &state.listeners {
            if labels::value(known) == cluster {
                self.peer_notifier.notify(known);
            }
        }
    }
}

/// Marks an operation on a node as being under way until it is dropped.
pub struct UnderWayGuard {
    cache: Arc<NodeCache>,
    key: (Box<str>, Box<str>),
    creating: bool,
}

impl Drop for UnderWayGuard {
    fn drop(&mut self) {
        self.cache.count(&self.key, self.creating, false);
    }
}

#[cfg(test)]
mod tests;
