//! Updates of the cache by the watches.

use super::*;
use crate::machine::Known;

impl NodeCache {
    pub(in crate::watch) fn watch(&self, kind: Option<u16>, name: &Kind, namespace: &str) -> u16 {
        let mut state = self.state.lock();
        let name = if namespace.is_empty() {
            name.to_string()
        } else {
            format!("{name} of namespace {namespace:?}")
        };
        state.watches.push(Watch {
            kind,
            name,
            generation: 0,
            heard: None,
            complete: false,
            error: None,
        });
        u16::try_from(state.watches.len() - 1).unwrap_or(u16::MAX)
    }

    /// A list begins: objects that it does not contain are gone when it ends.
    pub(in crate::watch) fn list_begins(&self, watch: u16) {
        if let Some(watch) = self.state.lock().watches.get_mut(usize::from(watch)) {
            watch.generation = watch.generation.wrapping_add(1);
        }
    }

    pub(in crate::watch) fn list_ends(&self, watch: u16) {
        let mut state = self.state.lock();
        let Some(generation) = state
            .watches
            .get(usize::from(watch))
            .map(|it| it.generation)
        else {
            return;
        };
        let gone: Vec<u128> = state
            .objects
            .iter()
            .filter(|(_, it)| it.watch == watch && it.generation != generation)
            .map(|(uid, _)| *uid)
            .collect();
        for uid in gone {
            // No list contains a pod without its label.
            let lost = state
                .objects
                .get(&uid)
                .is_some_and(|it| state.is_lost(&it.key, uid));
            if !lost {
                self.remove(&mut state, uid, RemovalEvidence::NotListed);
            }
        }
        state.groups.tidy();
        if let Some(watch) = state.watches.get_mut(usize::from(watch)) {
            watch.complete = true;
            watch.error = None;
        }
        drop(state);
        let list = (watch, self.list_number(watch));
        for cluster in self.peer_notifier.forget_unlisted(list) {
            self.notify_of(&cluster);
        }
        self.progress.send_modify(|count| *count += 1);
    }

    pub(in crate::watch) fn put(&self, watch: u16, seen: Seen) {
        let mut state = self.state.lock();
        self.insert(&mut state, watch, seen, false);
    }

    /// The API server reports that an object is gone, or it no longer belongs to any cluster.
    pub(in crate::watch) fn gone(&self, uid: u128, evidence: RemovalEvidence) {
        let mut state = self.state.lock();
        self.remove(&mut state, uid, evidence);
    }

    /// A pod has lost its label in this version (0 if unknown), but still exists. Returns whether it was known.
    pub(in crate::watch) fn lose(&self, uid: u128, version: u64) -> bool {
        let mut state = self.state.lock();
        let Some(indexed) = state.objects.get_mut(&uid) else {
            return false;
        };
        indexed.version = indexed.version.max(version);
        let key = Arc::clone(&indexed.key);
        state.groups.edit(&key, uid, |pod| pod.lost = true);
        state.tell(&key.cluster, &key.node);
        true
    }

    pub(in crate::watch) fn is_lost(&self, uid: u128) -> bool {
        let state = self.state.lock();
        state
            .objects
            .get(&uid)
            .is_some_and(|it| state.is_lost(&it.key, uid))
    }

    /// A watch has shown signs of life: an event, a bookmark, or that it was opened.
    pub(in crate::watch) fn heard(&self, watch: u16) {
        if let Some(watch) = self.state.lock().watches.get_mut(usize::from(watch)) {
            watch.heard = Some(Instant::now());
            watch.error = None;
        }
    }

    /// A watch is not running.
    pub(in crate::watch) fn failed(&self, watch: u16, error: Error) {
        if let Some(watch) = self.state.lock().watches.get_mut(usize::from(watch)) {
            watch.heard = None;
            watch.error = Some(error);
        }
        self.progress.send_modify(|count| *count += 1);
    }

    /// Sets what is known of a Kubernetes node. `None` if it is gone.
    pub(in crate::watch) fn host(&self, name: &str, known: Option<Known>) {
        let mut state = self.state.lock();
        if state.hosts.get(name) == known.as_ref() {
            return;
        }
        match known {
            Some(known) => {
                state.hosts.insert(name.into(), known);
            }
            None => {
                state.hosts.remove(name);
            }
        }
        state.tell_on(|host| host == name);
    }

    /// All Kubernetes nodes are known: any other one that a pod is on is gone.
    pub(in crate::watch) fn hosts_are_listed(&self, watch: u16) {
        self.list_ends(watch);
        self.heard(watch);
        let state = self.state.lock();
        state.tell_on(|host| !state.hosts.contains_key(host));
    }

    /// Names of the Kubernetes nodes that are known.
    pub(in crate::watch) fn hosts(&self) -> Vec<Arc<str>> {
        self.state.lock().hosts.keys().cloned().collect()
    }

    /// `changed`: as the API server has answered it to a change of this server.
    pub(super) fn insert(&self, state: &mut CacheState, watch: u16, seen: Seen, changed: bool) {
        let uid = seen.member.uid;
        let generation = state
            .watches
            .get(usize::from(watch))
            .map_or(0, |it| it.generation);
        let version = seen.version;
        if let Some(before) = state.objects.get_mut(&uid) {
            // The watch may still tell what was before a change, or may have told what came after it. A new list decides by
            // itself: versions begin anew when etcd is restored.
            let of_both = changed || before.changed;
            if of_both
                && before.generation == generation
                && version != 0
                && version < before.version
            {
                before.watch = if changed { before.watch } else { watch };
                return;
            }
            if *before.key.cluster != *seen.cluster || *before.key.node != *seen.node {
                // Its labels have changed: it belongs to another node now.
                self.take(state, uid, RemovalEvidence::NotListed);
            }
        }
        let before = state.shown(&self.kinds, &seen.cluster, &seen.node);
        let unschedulable = seen.member.pod.as_ref().is_some_and(|it| it.unschedulable);
        let (is_pod, listens) = (seen.member.pod.is_some(), seen.listens());
        let key = state.groups.insert(seen);
        if listens {
            state.listeners.insert(Arc::clone(&key.cluster));
        }
        let listened = is_pod && state.listeners.contains(&key.cluster);
        if listened || state.groups.has_stray(&key) {
            self.peer_notifier.notify(&key.cluster);
        }
        if unschedulable {
            if state.unscheduled.waits(uid, &key) {
                self.unscheduled.notify_one();
            }
        } else {
            state.unscheduled.forget(uid);
        }
        let indexed = Indexed {
            key: Arc::clone(&key),
            watch,
            generation,
            version,
            changed,
        };
        state.objects.insert(uid, indexed);
        let after = state.shown(&self.kinds, &key.cluster, &key.node);
        state.compare(
            &key,
            before.as_ref(),
            after.as_ref(),
            RemovalEvidence::NotListed,
        );
    }

    fn remove(&self, state: &mut CacheState, uid: u128, evidence: RemovalEvidence) {
        if !self.take(state, uid, evidence) {
            return;
        }
        if state.deleted.len() == MAX_DELETED {
            state.deleted.pop_front();
        }
        state.deleted.push_back(uid);
    }

    /// Takes an object from its node. Returns whether it was known.
    fn take(&self, state: &mut CacheState, uid: u128, evidence: RemovalEvidence) -> bool {
        let Some(indexed) = state.objects.remove(&uid) else {
            return false;
        };
        state.unscheduled.forget(uid);
        let key = indexed.key;
        let before = state.shown(&self.kinds, &key.cluster, &key.node);
        state.groups.remove(&key, uid);
        if state.listeners.contains(&key.cluster) || self.peer_notifier.has_shared(&key.cluster) {
            self.peer_notifier.notify(&key.cluster);
        }
        let after = state.shown(&self.kinds, &key.cluster, &key.node);
        state.compare(&key, before.as_ref(), after.as_ref(), evidence);
        true
    }
}
