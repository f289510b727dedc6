//! All hosts, as their watch shows them.

mod requests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use drover_platform::{
    driver::{Changes, Found},
    inventory::metal3::RACK,
};
use drover_proto::platform::v1::{FailureDomain, Node, RemovalEvidence};
use kube::ResourceExt as _;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

pub(super) use self::requests::Begun;
use self::requests::Unfinished;
use crate::labels::{FORMER, FormerSlot};

use super::{
    claim,
    host::{self, BareMetalHost},
    life::Life,
    secrets::Networks,
    view::{Beside, Reader},
};

/// How long addresses are believed: they are read again, though nobody may watch secrets.
const NETWORKS_LAST: Duration = Duration::from_secs(600);
/// How long it is believed that a host has none, as its secret could not be read.
const PROBLEMS_LAST: Duration = Duration::from_secs(5);
/// How long it is remembered that a host is gone. An answer that was under way meanwhile may still show it.
const GONE_LASTS: Duration = Duration::from_secs(600);

/// All hosts. What is said of a node is said by the host that it is.
pub(super) struct Cache {
    pub(super) reader: Reader,
    state: Mutex<State>,
    /// Scopes whose hosts are all known as of now, by namespace; empty for all.
    current: watch::Sender<BTreeMap<String, bool>>,
}

#[derive(Default)]
struct State {
    hosts: BTreeMap<String, Arc<Known>>,
    /// Hosts by cluster and node id.
    nodes: HashMap<(String, String), String>,
    changes: Option<Changes>,
    /// Hosts by failure domain.
    racks: BTreeMap<String, usize>,
    /// The racks as failure domains, since they were asked for and as long as they are the same.
    domains: Option<Arc<[FailureDomain]>>,
    /// Uids of hosts that are gone, and since when.
    gone: HashMap<String, Instant>,
    /// Hosts that are being claimed.
    claiming: HashSet<String>,
    /// Requests of which not all slots may have hosts yet.
    unfinished: HashMap<String, Unfinished>,
    /// Requests whose claims are being made, or given back.
    working: HashSet<String>,
    /// Claims of which it is not known whether they were made, by request and index.
    open: HashMap<(String, u32), Arc<BareMetalHost>>,
}

/// A host, and what is known of it.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) host: Arc<BareMetalHost>,
    pub(super) beside: Beside,
    pub(super) node: Option<Found>,
    /// By which it is selected and spread. Those of its networks are missing until its secret is read.
    pub(super) labels: BTreeMap<String, String>,
    pub(super) rack: String,
    /// When it was taken in.
    seen: Instant,
}

/// Where the state of a host comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// An answer or an event about this host.
    Host,
    /// A list that was begun then.
    List(Instant),
}

/// Hosts that nobody else claims meanwhile.
pub(super) struct Reserved<'a> {
    cache: &'a Cache,
    ids: Vec<String>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.state.lock();
        for id in &self.ids {
            state.claiming.remove(id);
        }
    }
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

    pub(super) fn all(&self) -> Vec<Arc<Known>> {
        self.state.lock().hosts.values().cloned().collect()
    }

    /// Whether a host has a label.
    pub(super) fn has_label(&self, key: &str) -> bool {
        let state = self.state.lock();
        let mut hosts = state.hosts.values();
        hosts.any(|known| known.labels.contains_key(key))
    }

    /// Hosts that are being claimed.
    pub(super) fn reserved(&self) -> HashSet<String> {
        self.state.lock().claiming.clone()
    }

    /// Keeps these hosts for a claim. `None` if another claim has one of them.
    pub(super) fn reserve(&self, ids: Vec<String>) -> Option<Reserved<'_>> {
        let mut state = self.state.lock();
        if ids.iter().any(|id| state.claiming.contains(id)) {
            return None;
        }
        state.claiming.extend(ids.iter().cloned());
        drop(state);
        Some(Reserved { cache: self, ids })
    }

    /// Notes that a claim may have been made, or no more.
    pub(super) fn set_open(&self, slot: (String, u32), host: Option<Arc<BareMetalHost>>) {
        let mut state = self.state.lock();
        match host {
            Some(host) => state.open.insert(slot, host),
            None => state.open.remove(&slot),
        };
    }

    /// The host that a slot may have.
    pub(super) fn open(&self, slot: &(String, u32)) -> Option<Arc<BareMetalHost>> {
        self.state.lock().open.get(slot).cloned()
    }

    /// The racks.
    pub(super) fn failure_domains(&self) -> Arc<[FailureDomain]> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let domain = |name: &String| FailureDomain {
            labels: BTreeMap::from([(RACK.to_owned(), name.clone())]),
            name: name.clone(),
            control_plane: true,
        };
        let made = || state.racks.keys().map(domain).collect();
        Arc::clone(state.domains.get_or_insert_with(made))
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Known>> {
        self.state.lock().hosts.get(id).cloned()
    }

    /// Whether a host is known as it is here.
    pub(super) fn knows(&self, host: &BareMetalHost) -> bool {
        let state = self.state.lock();
        let known = state.hosts.get(&host::id(host));
        known.is_some_and(|known| {
            known.host.uid() == host.uid()
                && known.host.resource_version() == host.resource_version()
        })
    }

    pub(super) fn node(&self, cluster_id: &str, node_id: &str) -> Option<Node> {
        let state = self.state.lock();
        let id = state
            .nodes
            .get(&(cluster_id.to_owned(), node_id.to_owned()))?;
        let mut found = state.hosts.get(id)?.node.clone()?;
        state.hold_back(&mut found.node);
        Some(found.node)
    }

    /// Nodes that are known and fit.
    pub(super) fn found(&self, fits: impl Fn(&Node) -> bool) -> Vec<Found> {
        let state = self.state.lock();
        let nodes = state.hosts.values().filter_map(|known| known.node.as_ref());
        let mut found: Vec<Found> = nodes.filter(|found| fits(&found.node)).cloned().collect();
        for one in &mut found {
            state.hold_back(&mut one.node);
        }
        found
    }

    /// Takes in a host as the API server showed it, unless what is known is newer.
    pub(super) fn changed(&self, host: BareMetalHost, source: Source) {
        let id = host::id(&host);
        let mut state = self.state.lock();
        if host.uid().is_some_and(|uid| state.gone.contains_key(&uid)) {
            return;
        }
        let mut beside = Beside::default();
        if let Some(known) = state.hosts.get(&id) {
            let is_same = known.host.uid() == host.uid();
            // Versions go back when etcd is restored; a list then shows what is.
            let listed_after = matches!(source, Source::List(begun) if known.seen < begun);
            if is_older(&host, &known.host) && !listed_after {
                return;
            }
            if is_same {
                beside.off_since = known.beside.off_since;
                // Another secret is another network.
                if host::network_secret(&known.host) == host::network_secret(&host) {
                    beside.networks.clone_from(&known.beside.networks);
                    beside.networks_read = known.beside.networks_read;
                }
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
        let known = Arc::new(Known {
            labels: self.reader.labels(&host, beside.networks.as_deref()),
            rack: self.reader.rack(&host),
            host,
            beside,
            node,
            seen: Instant::now(),
        });
        let after = known.place();
        state.count(&known.rack, true);
        let request = known.request().map(str::to_owned);
        let marked = known.unfinished();
        let mark = claim::unfinished(&known.host);
        let before = state.hosts.insert(id.clone(), known);
        let was = before.as_ref().and_then(|before| before.unfinished());
        if was != marked {
            state.begin(&id, marked, mark);
            state.finish(&id, was);
        }
        if let Some(request) = request {
            state.finish_whole(&request);
        }
        if let Some(before) = before {
            state.count(&before.rack, false);
            if let Some(place) = before.place().filter(|place| Some(place) != after.as_ref()) {
                state.lose(&place, &id, RemovalEvidence::Confirmed);
            }
        }
        if let Some((cluster, node)) = after {
            if let Some(changes) = &state.changes {
                changes.changed(&cluster, &node);
            }
            state.nodes.insert((cluster, node), id);
        }
    }

    /// Forgets a host of which the API server says that it is gone, by the uid that it had.
    pub(super) fn removed(&self, id: &str, uid: Option<String>) {
        let mut state = self.state.lock();
        state.gone.retain(|_, since| since.elapsed() < GONE_LASTS);
        state
            .gone
            .extend(uid.iter().map(|uid| (uid.clone(), Instant::now())));
        // Another host of this name may be known already.
        if state
            .hosts
            .get(id)
            .is_some_and(|known| known.host.uid() == uid)
        {
            state.forget(id, RemovalEvidence::Confirmed);
        }
    }

    /// Forgets the hosts of a namespace (or of all) that a complete list lacks, and that were known when it began.
    pub(super) fn keep(&self, scope: &str, listed: &BTreeSet<String>, begun: Instant) {
        let mut state = self.state.lock();
        let inside = |id: &String| {
            let namespace = id.split_once('/').map_or("", |(namespace, _)| namespace);
            scope.is_empty() || namespace == scope
        };
        let gone: Vec<String> = state
            .hosts
            .iter()
            .filter(|(id, known)| inside(id) && !listed.contains(*id) && known.seen < begun)
            .map(|(id, _)| id.clone())
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
        let is_same = known.host.uid() == host.uid()
            && host::network_secret(&known.host) == host::network_secret(host);
        if !is_same {
            return;
        }
        if known.beside.networks.as_ref() == Some(&networks) {
            if let Some(known) = state.hosts.get_mut(id) {
                Arc::make_mut(known).beside.networks_read = Some(Instant::now());
            }
            return;
        }
        let beside = Beside {
            networks: Some(networks),
            networks_read: Some(Instant::now()),
            ..known.beside.clone()
        };
        self.put(&mut state, id.to_owned(), Arc::clone(&known.host), beside);
    }

    /// Nodes whose secrets were not read yet, or too long ago.
    pub(super) fn without_networks(&self) -> Vec<Arc<Known>> {
        let state = self.state.lock();
        let is_due = |known: &&Arc<Known>| {
            let networks = known.beside.networks.as_ref();
            let lasts = match networks.is_some_and(|it| it.problem.is_empty()) {
                true => NETWORKS_LAST,
                false => PROBLEMS_LAST,
            };
            let read = known.beside.networks_read;
            known.node.is_some() && read.is_none_or(|read| read.elapsed() >= lasts)
        };
        state.hosts.values().filter(is_due).cloned().collect()
    }

    /// Indexes of slots of a request that were made, and whose nodes have other owners now.
    pub(super) fn given_away(&self, owner: &str, request: &str) -> BTreeSet<u32> {
        let state = self.state.lock();
        let former = state.hosts.values().filter_map(|known| {
            let json = known.host.annotations().get(FORMER)?;
            serde_json::from_str::<Vec<FormerSlot>>(json).ok()
        });
        let of = |slot: &FormerSlot| slot.owner == owner && slot.request == request;
        former.flatten().filter(of).map(|slot| slot.index).collect()
    }

    /// Says of hosts that have been off for too long that they are, each time once, for ever.
    pub(super) async fn watch_power(&self) {
        let timeout = self.reader.power_timeout();
        // More often than anybody would notice, and rarely enough to cost nothing.
        let pause = (timeout / 10).clamp(Duration::from_millis(100), Duration::from_secs(10));
        loop {
            tokio::time::sleep(pause).await;
            let mut state = self.state.lock();
            let due = |known: &Arc<Known>| {
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

impl Known {
    /// Cluster and node id, if it is a node.
    fn place(&self) -> Option<(String, String)> {
        let node = &self.node.as_ref()?.node;
        Some((node.cluster_id.clone(), node.node_id.clone()))
    }
}

impl State {
    fn count(&mut self, rack: &str, one_more: bool) {
        if rack.is_empty() {
            return;
        }
        let count = self.racks.entry(rack.to_owned()).or_default();
        let before = *count;
        *count = if one_more { before + 1 } else { before - 1 };
        let now = *count;
        if now == 0 {
            self.racks.remove(rack);
        }
        if before == 0 || now == 0 {
            self.domains = None;
        }
    }

    fn forget(&mut self, id: &str, evidence: RemovalEvidence) {
        let Some(known) = self.hosts.remove(id) else {
            return;
        };
        self.count(&known.rack, false);
        self.finish(id, known.unfinished());
        if let Some(place) = known.place() {
            self.lose(&place, id, evidence);
        }
    }

    /// Forgets that a host is a node, unless another host is the same one.
    fn lose(&mut self, place: &(String, String), id: &str, evidence: RemovalEvidence) {
        if self.nodes.get(place).is_none_or(|other| other != id) {
            return;
        }
        let mut others = self.hosts.iter().filter(|(other, _)| *other != id);
        let twin = others.find(|(_, known)| known.place().as_ref() == Some(place));
        if let Some(twin) = twin.map(|(twin, _)| twin.clone()) {
            self.nodes.insert(place.clone(), twin);
            if let Some(changes) = &self.changes {
                changes.changed(&place.0, &place.1);
            }
            return;
        }
        self.nodes.remove(place);
        if let Some(changes) = &self.changes {
            changes.removed(&place.0, &place.1, evidence);
        }
    }
}

/// Whether one state of an object is older than another. Resource versions are numbers that only grow, in every store that
/// Kubernetes has (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).
fn is_older(one: &BareMetalHost, other: &BareMetalHost) -> bool {
    let version = |host: &BareMetalHost| host.resource_version()?.parse::<u64>().ok();
    matches!((version(one), version(other)), (Some(one), Some(other)) if one < other)
}
