//! Data of pods about each other: the nodes of their cluster in an annotation, which a volume exposes as a file, and
//! the service for the active nodes of a group. Only for pods whose template asks for it. In addition, pods that a
//! workload has recreated get the current role and labels of their node.
//!
//! Nothing is persisted: the desired state follows from the watches, and only differences are written. The service is
//! garbage collected with its owners, the pods of the group.

mod service;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
    time::Duration,
};

use drover_core::{Result, back_off_for};
use drover_proto::platform::v1::{Node, NodeRole};
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

use service::Services;

/// Interval of the updates, which combines those of nodes that appear together. A promotion waits for it.
const ROUND: Duration = Duration::from_millis(20);
/// Initial and maximum backoff after a failure.
const WAITS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Collects the clusters whose peers have changed, and wakes the task that updates their pods.
#[derive(Default)]
pub(crate) struct PeerNotifier {
    clusters: Mutex<BTreeSet<Arc<str>>>,
    wake: Notify,
    /// Services that are up to date: digest of their desired state by namespace and name.
    services: Mutex<HashMap<(String, String), u128>>,
}

impl PeerNotifier {
    pub(crate) fn notify(&self, cluster: &str) {
        self.clusters.lock().insert(cluster.into());
        self.wake.notify_one();
    }

    /// Forgets a service that has changed.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        self.services.lock().remove(&key);
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

/// The peer data for the pods of one cluster.
#[derive(Default)]
pub(crate) struct PeerUpdate {
    /// By owner of the nodes: clusters of the same name must not learn about each other.
    peers: BTreeMap<String, Vec<Peer>>,
    listeners: Vec<Listener>,
    services: Services,
    /// Pods that differ from the workload of their node, and that workload.
    strays: Vec<(Place, Place)>,
}

impl PeerUpdate {
    /// Whether the pods of the cluster need nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.services.is_empty() && self.strays.is_empty()
    }

    /// Adds a pod that has to follow the workload of its node.
    pub(crate) fn stray(&mut self, stray: Option<(Place, Place)>) {
        self.strays.extend(stray);
    }

    /// Adds the objects of a node, and the node that they form.
    pub(crate) fn add(&mut self, group: &Group, node: Option<Node>) {
        let Some((node, (member, pod))) = node.zip(group.pod()).filter(|(_, (_, pod))| pod.ours)
        else {
            return;
        };
        let owner = node.slot.as_ref().map(|slot| slot.owner.clone());
        let owner = owner.unwrap_or_default();
        let peer = if pod.ended { None } else { peer(&node) };
        if let Some(told) = &pod.told {
            if let Some(name) = &told.service {
                let ports = peer.as_ref().map(|peer| &peer.ports);
                self.services.add(name, &owner, &node, member, ports);
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
        settings,
        cache: Arc::clone(&cache),
    };
    let mut again = BTreeSet::new();
    let (mut failures, mut next) = (0_u32, Instant::now());
    // A node that learns of too few peers would take itself for the first.
    while cache.ready().await.is_err() {
        sleep(WAITS.0).await;
    }
    loop {
        tokio::select! {
            () = cache.peer_notifier().wake.notified() => {}
            () = sleep_until(next), if !again.is_empty() => {}
        }
        let mut clusters = cache.peer_notifier().take();
        if next <= Instant::now() {
            clusters.append(&mut again);
        }
        let before = again.len();
        for cluster in clusters {
            if let Err(error) = teller.tell(&cluster).await {
                // The error message may quote the data that were sent.
                let reason = drover_convert::error::reason_name(error.reason());
                warn!(%cluster, reason, "nodes cannot be told of one another");
                again.insert(cluster);
            }
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

struct Teller {
    api: Api,
    pods: Arc<Kind>,
    settings: Arc<Settings>,
    cache: Arc<NodeCache>,
}

impl Teller {
    /// Writes all differences. Returns the first error, after everything was tried.
    async fn tell(&self, cluster: &str) -> Result<()> {
        let mut peer_update = self.cache.peer_update(cluster);
        let untold = peer_update.untold();
        let mut result = annotated::tell(&self.api, &self.pods, labels::PEERS, &untold).await;
        for (pod, leader) in &peer_update.strays {
            let followed = update::follow(&self.api, &self.settings, pod, leader).await;
            result = result.and(known_gone(followed));
        }
        for wanted in peer_update.services.wanted() {
            let key = (wanted.namespace().to_owned(), wanted.name().to_owned());
            let digest = wanted.digest();
            if self.cache.peer_notifier().services.lock().get(&key) == Some(&digest) {
                continue;
            }
            match wanted.make(&self.api, &self.settings.labels).await {
                Ok(()) => {
                    self.cache
                        .peer_notifier()
                        .services
                        .lock()
                        .insert(key, digest);
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }
}

#[cfg(test)]
mod tests;
