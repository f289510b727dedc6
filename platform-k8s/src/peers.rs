//! Data of pods about each other: the nodes of their cluster in an annotation, which a volume exposes as a file, and
//! the services, the disruption budget and the Secrets of a group. Only for pods whose template asks for it. In addition,
//! pods that a workload has recreated get the current role and labels of their node.
//!
//! Nothing is persisted: the desired state follows from the watches, and only differences are written. What belongs to a
//! group goes when it has had no node for a while.

mod budget;
mod certificates;
mod secrets;
mod service;
mod shared;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use drover_core::{Result, back_off_for};
use drover_proto::platform::v1::{Node, NodeRole};
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tracing::warn;

use crate::{
    annotated::{self, MAX_LIST, Untold, known_gone},
    client::{Api, Kind},
    delete::Place,
    discover,
    group::{Group, uid},
    labels,
    settings::Settings,
    update,
    watch::NodeCache,
};

use budget::Budgets;
use secrets::{Hand, Secrets};
use service::{Leads, Services};
use shared::{AllShared, Patience, Place as SharedPlace};

pub(crate) use shared::{GroupLabels, ListOf, Shared};

/// Interval of the updates, which combines those of nodes that appear together. A promotion waits for it.
const ROUND: Duration = Duration::from_millis(20);
/// Initial and maximum backoff after a failure.
const WAITS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// How long the objects of a group stay without any node: longer than it takes to replace the only one.
const EMPTY: Duration = Duration::from_secs(30);

/// Collects the clusters whose peers have changed, and wakes the task that updates their pods.
#[derive(Default)]
pub(crate) struct PeerNotifier {
    clusters: Mutex<BTreeSet<Arc<str>>>,
    wake: Notify,
    /// Objects of groups that are up to date, with a digest of their desired state.
    current: Mutex<HashMap<SharedPlace, u128>>,
    /// Objects of groups that are there.
    shared: AllShared,
}

impl PeerNotifier {
    pub(crate) fn notify(&self, cluster: &str) {
        self.clusters.lock().insert(cluster.into());
        self.wake.notify_one();
    }

    /// An object of a group is there. Returns whether it is another one than before.
    pub(crate) fn found(&self, shared: Shared, version: &str, list: ListOf) -> bool {
        let (cluster, place) = (shared.cluster().to_owned(), shared.place());
        let is_new = self.shared.add(shared, version, list);
        if is_new {
            if shared::is_secret(&place) {
                self.current.lock().remove(&place);
            }
            self.notify(&cluster);
        }
        is_new
    }

    /// Forgets what the last list of a watch did not have. Returns the labels of its clusters.
    pub(crate) fn forget_unlisted(&self, list: ListOf) -> BTreeSet<String> {
        let gone = self.shared.take_unlisted(list);
        let mut current = self.current.lock();
        let forget = |shared: &Shared| {
            current.remove(&shared.place());
            shared.cluster().to_owned()
        };
        gone.iter().map(forget).collect()
    }

    /// Whether anything is there that belongs to a group of this cluster.
    pub(crate) fn has_shared(&self, cluster: &str) -> bool {
        self.shared.has(cluster)
    }

    /// Forgets an object of a group that is gone. Another one may have its name, of another kind.
    pub(crate) fn forget(&self, kind: &Kind, meta: &ObjectMeta) {
        if shared::is_kind(kind) {
            let place = shared::place(kind, meta);
            self.shared.remove_at(&place);
            self.current.lock().remove(&place);
        }
    }

    pub(crate) fn forget_shared(&self, shared: &Shared) {
        self.shared.remove(shared);
    }

    /// Takes objects for up to date before they are written. What is heard of them meanwhile counts more.
    fn expect(&self, places: &[SharedPlace], digest: u128) {
        let mut current = self.current.lock();
        current.extend(places.iter().map(|place| (place.clone(), digest)));
    }

    /// They are not.
    fn doubt(&self, places: &[SharedPlace]) {
        let mut current = self.current.lock();
        for place in places {
            current.remove(place);
        }
    }

    fn is_current(&self, place: &SharedPlace, digest: u128) -> bool {
        self.current.lock().get(place) == Some(&digest)
    }

    fn take(&self) -> BTreeSet<Arc<str>> {
        mem::take(&mut *self.clusters.lock())
    }
}

/// A node as its peers see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Peer {
    group: String,
    ordinal: u32,
    name: String,
    id: String,
    role: &'static str,
    host: String,
    ports: BTreeMap<String, u16>,
}

/// A pod that asks for its peers.
struct Listener {
    owner: String,
    namespace: Arc<str>,
    name: Box<str>,
    knows: u128,
}

/// Names of the nodes that an owner has in a group. One that goes and the one in its place, which has its name, are one.
type Sizes = BTreeMap<(String, String), BTreeSet<String>>;

/// The peer data for the pods of one cluster.
#[derive(Default)]
pub(crate) struct PeerUpdate {
    /// By owner of the nodes: clusters of the same name must not learn about each other.
    peers: BTreeMap<String, Vec<Peer>>,
    listeners: Vec<Listener>,
    services: Services,
    budgets: Budgets,
    secrets: Secrets,
    sizes: Sizes,
    /// Pods that differ from the workload of their node, and that workload.
    strays: Vec<(Place, Place)>,
}

impl PeerUpdate {
    /// Whether the pods of the cluster need nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.listeners.is_empty()
            && self.services.is_empty()
            && self.budgets.is_empty()
            && self.secrets.is_empty()
            && self.strays.is_empty()
    }

    /// Adds a pod that has to follow the workload of its node.
    pub(crate) fn stray(&mut self, stray: Option<(Place, Place)>) {
        self.strays.extend(stray);
    }

    /// Adds the objects of a node, and the node that they form.
    pub(crate) fn add(&mut self, group: &Group, node: Option<Node>) {
        if let Some((slot, node)) = node.as_ref().and_then(|it| Some((it.slot.as_ref()?, it))) {
            let names = self.sizes.entry((slot.owner.clone(), node.group.clone()));
            let name = Some(&node.name).filter(|name| !name.is_empty());
            names
                .or_default()
                .insert(name.unwrap_or(&node.node_id).clone());
        }
        let Some((node, (member, pod))) = node.zip(group.pod()).filter(|(_, (_, pod))| pod.ours)
        else {
            return;
        };
        let owner = node.slot.as_ref().map(|slot| slot.owner.clone());
        let owner = owner.unwrap_or_default();
        let peer = if pod.ended { None } else { peer(&node) };
        if let Some(told) = &pod.told {
            let services = [
                (Leads::ToActive, &told.service),
                (Leads::ToAll, &told.read_service),
            ];
            for (leads, name) in services {
                let Some(name) = name else { continue };
                let ports = peer.as_ref().map(|peer| &peer.ports);
                let of = GroupLabels::of(&owner, &node.cluster_id, &node.group);
                // Until it ends, one that an earlier version has promoted is found by its role only.
                let by_role = !told.says_active && !pod.ended && node.role() == NodeRole::Active;
                self.services.add((name, leads), of, member, ports, by_role);
            }
            if let Some(asked) = &told.secrets {
                let of = GroupLabels::of(&owner, &node.cluster_id, &node.group);
                let made =
                    UNIX_EPOCH + Duration::from_secs(u64::try_from(pod.created).unwrap_or(0));
                let host = peer.as_ref().map(|peer| peer.host.as_str());
                self.secrets.add(asked, of, member, (host, made));
            }
            if let Some(spare) = told.budget {
                self.budgets.add(spare, &owner, &node, member);
            }
            // A pod without an address does not run yet; its first list has to contain itself.
            let listener = || Listener {
                owner: owner.clone(),
                namespace: Arc::clone(&member.namespace),
                name: member.name.clone(),
                knows: told.peers,
            };
            self.listeners.extend(peer.as_ref().map(|_| listener()));
        }
        self.peers.entry(owner).or_default().extend(peer);
    }

    /// The pods whose list is out of date.
    fn untold(&mut self) -> Vec<Untold> {
        let mut lists = BTreeMap::new();
        for (owner, peers) in &mut self.peers {
            peers.sort();
            // Serialising strings and numbers cannot fail.
            let list = serde_json::to_string(&peers).unwrap_or_default();
            if list.len() > MAX_LIST {
                let (cluster_owner, bytes) = (owner, list.len());
                warn!(
                    cluster_owner,
                    bytes, "too many nodes to tell them of one another"
                );
                continue;
            }
            lists.insert(owner.clone(), (uid(&list), Arc::<str>::from(list)));
        }
        let untold = |listener: Listener| {
            let (digest, list) = lists.get(&listener.owner)?;
            (*digest != listener.knows).then(|| Untold {
                namespace: listener.namespace,
                name: listener.name,
                list: Arc::clone(list),
            })
        };
        let listeners = mem::take(&mut self.listeners);
        listeners.into_iter().filter_map(untold).collect()
    }
}

/// The peer entry of a node. `None` if it has no address yet.
fn peer(node: &Node) -> Option<Peer> {
    // Addresses with an interface are those of the Kubernetes node.
    let mut addresses = node.addresses.iter();
    let host = addresses.find(|address| address.interface.is_empty())?;
    let port = |(name, endpoint): (&String, &String)| {
        Some((name.clone(), endpoint.rsplit_once(':')?.1.parse().ok()?))
    };
    Some(Peer {
        group: node.group.clone(),
        ordinal: node.ordinal.unwrap_or_default(),
        name: node.name.clone(),
        // An adopted node keeps the id that it was created with.
        id: node.node_id.clone(),
        role: match node.role() {
            NodeRole::Standby => "standby",
            NodeRole::Active | NodeRole::Unspecified => "active",
        },
        host: host.value.clone(),
        ports: node.endpoints.iter().filter_map(port).collect(),
    })
}

/// Keeps the pods up to date until it is dropped.
pub(crate) async fn keep(api: Api, cache: Arc<NodeCache>, settings: Arc<Settings>) {
    let Some(pods) = cache.kinds().iter().find(|kind| discover::is_pod(kind)) else {
        return;
    };
    let teller = Teller {
        api,
        pods: Arc::clone(pods),
        smaller: Patience::new(settings.smaller_budget_after),
        empty: Patience::new(settings.unschedulable_timeout().min(EMPTY)),
        settings,
        cache: Arc::clone(&cache),
        renewals: Mutex::default(),
    };
    let mut again = BTreeSet::new();
    let mut later: BTreeMap<Arc<str>, Instant> = BTreeMap::new();
    let (mut failures, mut next) = (0_u32, Instant::now());
    // A node that learns of too few peers would take itself for the first.
    while cache.ready().await.is_err() {
        sleep(WAITS.0).await;
    }
    loop {
        tokio::select! {
            () = cache.peer_notifier().wake.notified() => {}
            () = sleep_until(next), if !again.is_empty() => {}
            () = due(&later) => {}
        }
        let mut clusters = cache.peer_notifier().take();
        let now = Instant::now();
        clusters.extend(later.extract_if(.., |_, at| *at <= now).map(|(it, _)| it));
        if next <= Instant::now() {
            clusters.append(&mut again);
        }
        let before = again.len();
        for cluster in clusters {
            let told = teller.tell(&cluster).await;
            if let Err(error) = &told.result {
                // The error message may quote the data that were sent.
                let reason = drover_convert::error::reason_name(error.reason());
                warn!(%cluster, reason, "nodes cannot be told of one another");
            }
            if told.result.is_err() || told.is_unfinished {
                again.insert(Arc::clone(&cluster));
            }
            later.extend(told.later.map(|at| (cluster, at)));
        }
        if again.len() > before {
            next = Instant::now() + back_off_for(WAITS.0, WAITS.1, failures);
            failures = failures.saturating_add(1);
        } else if again.is_empty() {
            failures = 0;
        }
        sleep(ROUND).await;
    }
}

/// Waits for the first of these times.
async fn due(later: &BTreeMap<Arc<str>, Instant>) {
    match later.values().min() {
        Some(at) => sleep_until(*at).await,
        None => std::future::pending().await,
    }
}

/// What came of the writes for one cluster.
struct Outcome {
    /// The first error with pods.
    result: Result<()>,
    /// Whether an object of a group could not be written or deleted.
    is_unfinished: bool,
    /// When there is more to write.
    later: Option<Instant>,
}

impl Outcome {
    fn and(&mut self, written: Result<()>) {
        if self.result.is_ok() {
            self.result = written;
        }
    }

    /// Adds what came of an object of a group. Errors name it, and repeat nothing of it.
    fn and_shared(&mut self, cluster: &str, written: Result<Option<Instant>>) {
        match written {
            Ok(at) => self.later = [self.later, at].into_iter().flatten().min(),
            Err(error) => {
                let error = error.message();
                warn!(
                    cluster,
                    error,
                    "a service, the disruption budget or a Secret of a group is not up to date"
                );
                self.is_unfinished = true;
            }
        }
    }
}

struct Teller {
    api: Api,
    pods: Arc<Kind>,
    /// With budgets of groups that have fewer nodes.
    smaller: Patience,
    /// With objects of groups that have none.
    empty: Patience,
    settings: Arc<Settings>,
    cache: Arc<NodeCache>,
    /// When the certificates of groups that are up to date have to be looked at again, by the digest of their group.
    renewals: Mutex<HashMap<u128, Instant>>,
}

impl Teller {
    /// Writes all differences.
    async fn tell(&self, cluster: &str) -> Outcome {
        let mut peer_update = self.cache.peer_update(cluster);
        let mut outcome = Outcome {
            result: Ok(()),
            is_unfinished: false,
            later: None,
        };
        // First: pods wait for what they mount, and hear of another certificate when they are told of another node.
        let secrets = mem::take(&mut peer_update.secrets);
        self.secure(cluster, secrets, &mut outcome).await;
        let untold = peer_update.untold();
        outcome.result = annotated::tell(&self.api, &self.pods, labels::PEERS, &untold).await;
        for (pod, leader) in &peer_update.strays {
            let followed = update::follow(&self.api, &self.settings, pod, leader).await;
            outcome.and(known_gone(followed));
        }
        let PeerUpdate {
            services,
            budgets,
            sizes,
            ..
        } = peer_update;
        self.serve(cluster, services, &mut outcome).await;
        self.limit(cluster, budgets, &sizes, &mut outcome).await;
        for shared in self.cache.peer_notifier().shared.of_cluster(cluster) {
            if shared.is_counted(cluster, &sizes) {
                self.empty.forget(&shared.place());
                continue;
            }
            let keys = &self.settings.labels;
            let tidied = shared.tidy(&self.api, keys, &self.cache, &self.empty);
            outcome.and_shared(cluster, tidied.await);
        }
        outcome
    }

    /// Writes the Secrets of groups.
    async fn secure(&self, cluster: &str, secrets: Secrets, outcome: &mut Outcome) {
        let hand = Hand {
            api: &self.api,
            keys: &self.settings.labels,
            cache: &self.cache,
        };
        let notifier = self.cache.peer_notifier();
        for wanted in secrets.wanted() {
            let (places, digest) = (wanted.places(), wanted.digest());
            let known = self.renewals.lock().get(&digest).copied();
            let is_due = known.is_some_and(|at| at <= Instant::now());
            let mut all = places.iter();
            if !places.is_empty() && !is_due && all.all(|it| notifier.is_current(it, digest)) {
                outcome.and_shared(cluster, Ok(known));
                continue;
            }
            notifier.expect(&places, digest);
            let made = wanted.make(hand).await;
            match made {
                Ok(again) => {
                    let mut renewals = self.renewals.lock();
                    renewals.remove(&digest);
                    renewals.extend(again.map(|at| (digest, at)));
                }
                Err(_) => notifier.doubt(&places),
            }
            outcome.and_shared(cluster, made);
        }
    }

    /// Writes the services of groups.
    async fn serve(&self, cluster: &str, services: Services, outcome: &mut Outcome) {
        let (api, keys, cache) = (&self.api, &self.settings.labels, &self.cache);
        let notifier = cache.peer_notifier();
        for wanted in services.wanted() {
            let (place, digest) = (wanted.place(), wanted.digest());
            if !notifier.is_current(&place, digest) {
                let place = [place];
                notifier.expect(&place, digest);
                let made = wanted.make(api, keys, cache).await;
                if made.is_err() {
                    notifier.doubt(&place);
                }
                outcome.and_shared(cluster, made.map(|()| None));
            }
        }
    }

    /// Writes the disruption budgets of groups.
    async fn limit(&self, cluster: &str, budgets: Budgets, sizes: &Sizes, outcome: &mut Outcome) {
        let (api, keys, cache) = (&self.api, &self.settings.labels, &self.cache);
        let notifier = cache.peer_notifier();
        for wanted in budgets.wanted(sizes) {
            let (place, digest) = (wanted.place(), wanted.digest());
            if notifier.is_current(&place, digest) {
                self.smaller.forget(&place);
                continue;
            }
            let place = [place];
            notifier.expect(&place, digest);
            let made = wanted.make(api, keys, cache, &self.smaller).await;
            if !matches!(made, Ok(None)) {
                notifier.doubt(&place);
            }
            outcome.and_shared(cluster, made);
        }
    }
}

#[cfg(test)]
mod tests;
