//! All hosts, as their watch shows them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use drover_platform::driver::{Changes, Found};
use drover_proto::platform::v1::{Node, RemovalEvidence};
use kube::ResourceExt as _;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{
    host::{self, BareMetalHost},
    life::Life,
    secrets::Networks,
    view::{Beside, Reader},
};

/// All hosts. What is said of a node is said by the host that it is.
pub(super) struct Cache {
    pub(super) reader: Reader,
    state: Mutex<State>,
    /// Scopes whose hosts are all known as of now, by namespace; empty for all.
    current: watch::Sender<BTreeMap<String, bool>>,
}

#[derive(Default)]
struct State {
    hosts: BTreeMap<String, Known>,
    /// Hosts by cluster and node id.
    nodes: HashMap<(String, String), String>,
    changes: Option<Changes>,
}

/// A host, and what is known of it.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) host: Arc<BareMetalHost>,
    pub(super) beside: Beside,
    pub(super) node: Option<Found>,
}

impl Cache {
    pub(super) fn new(reader: Reader, scopes: impl IntoIterator<Item = String>) -> Self {
        let scopes = scopes.into_iter().map(|scope| (scope, false));
        Self {
            reader,
            state: Mutex::default(),
            current: watch::Sender::new(scopes.collect()),
        }
    }

    /// Waits until all hosts are known.
    pub(super) async fn ready(&self) {
        let mut current = self.current.subscribe();
        // Cannot fail, because the sender lives in `self`.
        let _ = current.wait_for(|all| all.values().all(|it| *it)).await;
    }

    pub(super) fn is_current(&self) -> bool {
        self.current.borrow().values().all(|it| *it)
    }

    pub(super) fn set_current(&self, scope: &str, is: bool) {
        self.current.send_if_modified(|all| {
            let before = all.insert(scope.to_owned(), is);
            before != Some(is)
        });
    }

    pub(super) fn connect(&self, changes: Changes) {
        let mut state = self.state.lock();
        for (cluster, node) in state.nodes.keys() {
            changes.changed(cluster, node);
        }
        state.changes = Some(changes);
    }

    pub(super) fn all(&self) -> Vec<Known> {
        self.state.lock().hosts.values().cloned().collect()
    }

    pub(super) fn get(&self, id: &str) -> Option<Known> {
        self.state.lock().hosts.get(id).cloned()
    }

    pub(super) fn node(&self, cluster_id: &str, node_id: &str) -> Option<Node> {
        let state = self.state.lock();
        let id = state
            .nodes
            .get(&(cluster_id.to_owned(), node_id.to_owned()))?;
        let found = state.hosts.get(id)?.node.as_ref()?;
        Some(found.node.clone())
    }

    /// Nodes that are known and fit.
    pub(super) fn found(&self, fits: impl Fn(&Node) -> bool) -> Vec<Found> {
        let state = self.state.lock();
        let nodes = state.hosts.values().filter_map(|known| known.node.as_ref());
        nodes.filter(|found| fits(&found.node)).cloned().collect()
    }

    /// Takes in a host as the API server showed it, unless what is known is newer.
    pub(super) fn changed(&self, host: BareMetalHost) {
        let id = host::id(&host);
        let mut state = self.state.lock();
        let mut beside = Beside::default();
        if let Some(known) = state.hosts.get(&id)
            && known.host.uid() == host.uid()
        {
            if is_older(&host, &known.host) {
                return;
            }
            beside.off_since = known.beside.off_since;
            // Another secret is another network.
            if host::network_secret(&known.host) == host::network_secret(&host) {
                beside.networks.clone_from(&known.beside.networks);
            }
        }
        beside.off_since = match Life::is_power_lost(&host) {
            true => Some(beside.off_since.unwrap_or_else(Instant::now)),
            false => None,
        };
        self.put(&mut state, id, Arc::new(host), beside);
    }

    fn put(&self, state: &mut State, id: String, host: Arc<BareMetalHost>, beside: Beside) {
        let node = self.reader.node(&host, &beside).map(|(found, _)| found);
        let known = Known { host, beside, node };
        let place = |found: &Found| (found.node.cluster_id.clone(), found.node.node_id.clone());
        let after = known.node.as_ref().map(place);
        let before = state.hosts.insert(id.clone(), known);
        let before = before.and_then(|known| known.node.as_ref().map(place));
        if before != after
            && let Some(before) = before
        {
            state.lose(&before, &id, RemovalEvidence::Confirmed);
        }
        if let Some((cluster, node)) = after {
            state.nodes.insert((cluster.clone(), node.clone()), id);
            if let Some(changes) = &state.changes {
                changes.changed(&cluster, &node);
            }
        }
    }

    /// Forgets a host that the API server says is gone.
    pub(super) fn removed(&self, id: &str, uid: Option<&str>) {
        let mut state = self.state.lock();
        let known = state.hosts.get(id);
        // Another host of this name may be known already.
        if known.is_some_and(|known| uid.is_none() || known.host.uid().as_deref() == uid) {
            state.forget(id, RemovalEvidence::Confirmed);
        }
    }

    /// Forgets the hosts of a namespace (or of all) that a complete list lacks.
    pub(super) fn keep(&self, scope: &str, listed: &BTreeSet<String>) {
        let mut state = self.state.lock();
        let inside = |id: &String| {
            let namespace = id.split_once('/').map_or("", |(namespace, _)| namespace);
            scope.is_empty() || namespace == scope
        };
        let gone: Vec<String> = state
            .hosts
            .keys()
            .filter(|id| inside(id) && !listed.contains(*id))
            .cloned()
            .collect();
        for id in gone {
            state.forget(&id, RemovalEvidence::NotListed);
        }
    }

    /// Takes in what the secrets of a host said.
    pub(super) fn set_networks(&self, id: &str, host: &BareMetalHost, networks: Arc<Networks>) {
        let mut state = self.state.lock();
        let Some(known) = state.hosts.get(id).cloned() else {
            return;
        };
        if known.host.uid() != host.uid() || known.beside.networks.as_ref() == Some(&networks) {
            return;
        }
        let beside = Beside {
            networks: Some(networks),
            ..known.beside
        };
        self.put(&mut state, id.to_owned(), known.host, beside);
    }

    /// Nodes whose secrets were not read yet.
    pub(super) fn without_networks(&self) -> Vec<Known> {
        let state = self.state.lock();
        let unread = |known: &&Known| known.node.is_some() && known.beside.networks.is_none();
        state.hosts.values().filter(unread).cloned().collect()
    }

    /// Says of hosts that have been off for too long that they are, each time once, for ever.
    pub(super) async fn watch_power(&self) {
        let timeout = self.reader.power_timeout();
        // More often than anybody would notice, and rarely enough to cost nothing.
        let pause = (timeout / 10).clamp(Duration::from_millis(100), Duration::from_secs(10));
        loop {
            tokio::time::sleep(pause).await;
            let mut state = self.state.lock();
            let due = |known: &Known| {
                let since = known.beside.off_since?;
                let shown = known.node.as_ref()?.node.message.clone();
                let life = self.reader.life(&known.host, &known.beside);
                (since.elapsed() >= timeout && !shown.starts_with(life.message()))
                    .then(|| (Arc::clone(&known.host), known.beside.clone()))
            };
            let due: Vec<_> = state.hosts.values().filter_map(due).collect();
            for (host, beside) in due {
                let id = host::id(&host);
                self.put(&mut state, id, host, beside);
            }
        }
    }
}

impl State {
    fn forget(&mut self, id: &str, evidence: RemovalEvidence) {
        let Some(known) = self.hosts.remove(id) else {
            return;
        };
        if let Some(found) = known.node {
            let place = (found.node.cluster_id, found.node.node_id);
            self.lose(&place, id, evidence);
        }
    }

    /// Forgets a node, unless another host is it by now.
    fn lose(&mut self, place: &(String, String), id: &str, evidence: RemovalEvidence) {
        if self.nodes.get(place).is_some_and(|other| other == id) {
            self.nodes.remove(place);
            if let Some(changes) = &self.changes {
                changes.removed(&place.0, &place.1, evidence);
            }
        }
    }
}

/// Whether one state of an object is older than another. Resource versions are numbers that only grow, in every store that
/// Kubernetes has (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).
fn is_older(one: &BareMetalHost, other: &BareMetalHost) -> bool {
    let version = |host: &BareMetalHost| host.resource_version()?.parse::<u64>().ok();
    matches!((version(one), version(other)), (Some(one), Some(other)) if one < other)
}
