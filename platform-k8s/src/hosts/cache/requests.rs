//! Requests as the hosts say of them: which hosts each has, and whether it may lack others.

use std::{collections::BTreeMap, sync::Arc};

use drover_proto::platform::v1::{Node, NodePhase};
use tokio::time::Instant;

use super::{
    super::{
        claim,
        host::BareMetalHost,
        unfinished::{UNFINISHED_LASTS, Unfinished as Mark},
    },
    Cache, Known, State,
};

/// A request of which not all slots may have hosts yet.
pub(super) struct Unfinished {
    /// The host that says so.
    host: String,
    /// Number of slots.
    slots: usize,
    /// Until when it is believed that it is repeated.
    until: Instant,
}

/// The hosts that a request had when work on it began. It is not taken for one that nobody repeats until this is dropped.
pub(in crate::hosts) struct Begun<'a> {
    cache: &'a Cache,
    request: String,
    /// By the index of their slots.
    pub(in crate::hosts) hosts: BTreeMap<u32, Arc<BareMetalHost>>,
    /// Whether it was known to lack others, so that they may be given back.
    pub(in crate::hosts) is_unfinished: bool,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.state.lock();
        state.working.remove(&self.request);
        if let Some(it) = state.unfinished.get_mut(&self.request) {
            it.until = Instant::now() + UNFINISHED_LASTS;
        }
    }
}

impl Cache {
    /// Shows a node as one that does not run yet as long as its request is not whole: until then it may be taken back.
    pub(in crate::hosts) fn hold_back(&self, node: &mut Node) {
        self.state.lock().hold_back(node);
    }

    /// Whether a request was begun, and not all of its slots may have hosts.
    pub(in crate::hosts) fn is_unfinished(&self, request: &str) -> bool {
        self.state.lock().unfinished.contains_key(request)
    }

    /// Notes that work on a request begins, and answers what it has.
    pub(in crate::hosts) fn begun(&self, request: &str) -> Begun<'_> {
        let mut state = self.state.lock();
        state.working.insert(request.to_owned());
        Begun {
            cache: self,
            request: request.to_owned(),
            hosts: state.hosts_of(request),
            is_unfinished: state.unfinished.contains_key(request),
        }
    }

    /// The host that says that a request is unfinished, if it is.
    pub(in crate::hosts) fn first_of(&self, request: &str) -> Option<Arc<Known>> {
        let state = self.state.lock();
        let unfinished = state.unfinished.get(request)?;
        state.hosts.get(&unfinished.host).cloned()
    }

    /// Forgets requests that nobody repeats, and answers hosts that say of a request that it is unfinished though it is
    /// over, or has all its hosts.
    pub(in crate::hosts) fn over(&self) -> Vec<Arc<Known>> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let state = &mut *state;
        let is_due = |(request, it): &(&String, &Unfinished)| {
            it.until <= now && !state.working.contains(*request)
        };
        let due = state.unfinished.iter().filter(is_due);
        let due: Vec<String> = due.map(|(request, _)| request.clone()).collect();
        for request in due {
            state.unfinished.remove(&request);
            state.tell(&request);
        }
        let is_left = |known: &&Arc<Known>| {
            let request = known
                .request()
                .filter(|_| claim::is_unfinished(&known.host));
            request.is_some_and(|request| {
                !state.unfinished.contains_key(request) && !state.working.contains(request)
            })
        };
        state.hosts.values().filter(is_left).cloned().collect()
    }
}

impl Known {
    /// The request of its slot.
    pub(super) fn request(&self) -> Option<&str> {
        let slot = self.node.as_ref()?.node.slot.as_ref()?;
        Some(&slot.request_id)
    }

    /// The request of which it says that not all of its slots may have hosts.
    pub(super) fn unfinished(&self) -> Option<String> {
        let request = self.request()?;
        claim::is_unfinished(&self.host).then(|| request.to_owned())
    }
}

impl State {
    pub(super) fn hold_back(&self, node: &mut Node) {
        let slot = node.slot.as_ref();
        if node.phase() != NodePhase::Running
            || !slot.is_some_and(|slot| self.unfinished.contains_key(&slot.request_id))
        {
            return;
        }
        node.set_phase(NodePhase::Pending);
        node.ready = Some(false);
        if node.message.is_empty() {
            "other hosts of its request are not claimed yet".clone_into(&mut node.message);
        }
    }

    /// Notes that this host is the first one of a request, if it is believed.
    pub(super) fn begin(&mut self, id: &str, request: Option<String>, mark: Option<Mark>) {
        let believed = mark.and_then(|mark| Some((mark.slots, mark.lasts()?)));
        if let (Some(request), Some((slots, lasts))) = (request, believed) {
            self.tell(&request);
            let unfinished = Unfinished {
                host: id.to_owned(),
                slots,
                until: Instant::now() + lasts,
            };
            self.unfinished.insert(request, unfinished);
        }
    }

    /// Notes that a request is whole once as many hosts as it has slots are of it, whatever is written on the first. It
    /// stays so when they become fewer.
    pub(super) fn finish_whole(&mut self, request: &str) {
        let Some(slots) = self.unfinished.get(request).map(|it| it.slots) else {
            return;
        };
        if self.hosts_of(request).len() >= slots {
            self.unfinished.remove(request);
            self.tell(request);
        }
    }

    /// The hosts of a request, by the index of their slots.
    pub(super) fn hosts_of(&self, request: &str) -> BTreeMap<u32, Arc<BareMetalHost>> {
        let of = self.hosts.values().filter_map(|known| {
            let slot = known.node.as_ref()?.node.slot.as_ref()?;
            (slot.request_id == request).then(|| Some((slot.index?, Arc::clone(&known.host))))?
        });
        of.collect()
    }

    /// Notes that this host no longer says that a request is not whole.
    pub(super) fn finish(&mut self, id: &str, request: Option<String>) {
        let Some(request) = request else { return };
        if self
            .unfinished
            .get(&request)
            .is_some_and(|it| it.host == id)
        {
            self.unfinished.remove(&request);
            self.tell(&request);
        }
    }

    /// Says of all nodes of a request that they have changed.
    pub(super) fn tell(&self, request: &str) {
        let Some(changes) = &self.changes else { return };
        let nodes = self.hosts.values().filter_map(|known| known.node.as_ref());
        for found in nodes {
            let slot = found.node.slot.as_ref();
            if slot.is_some_and(|slot| slot.request_id == request) {
                changes.changed(&found.node.cluster_id, &found.node.node_id);
            }
        }
    }
}
