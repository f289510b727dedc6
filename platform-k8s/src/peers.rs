//! What pods hear of one another: the list of the nodes of their cluster in an annotation, which a volume shows them as a
//! file, and the service that leads to the active nodes of a group. Only for pods whose template asks for it. And what
//! every pod hears that was made anew by something that stands for its node: the role and the labels that it has now.
//!
//! Nothing is remembered: what should be follows from what the watches say, and what differs is written. The service goes
//! with its owners, which are the pods of the group.

mod service;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
    time::Duration,
};

use drover_core::{Reason, Result};
use drover_proto::platform::v1::{Node, NodeRole};
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tracing::warn;

use crate::{
    client::{Api, Kind},
    delete::Place,
    discover,
    group::{Group, uid},
    labels,
    settings::Settings,
    update,
    watch::Known,
};

use service::Services;

/// Time between two rounds: nodes that come together are told of together. A promotion waits for it.
const ROUND: Duration = Duration::from_millis(20);
/// Wait after the first failure, and the longest one.
const WAITS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Pods and services that are written at once.
const AT_ONCE: usize = 8;
/// Longest list in bytes: all annotations of an object have 256 KiB.
const MAX_LIST: usize = 200 * 1024;

/// Clusters of which something has changed.
#[derive(Default)]
pub(crate) struct News {
    clusters: Mutex<BTreeSet<Arc<str>>>,
    wake: Notify,
    /// The services that are as they should be: namespace, name, and a digest of what they should be.
    services: Mutex<HashMap<(String, String), u128>>,
}

impl News {
    pub(crate) fn of(&self, cluster: &str) {
        self.clusters.lock().insert(cluster.into());
        self.wake.notify_one();
    }

    /// A service is not what it was.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        self.services.lock().remove(&key);
    }

    fn take(&self) -> BTreeSet<Arc<str>> {
        mem::take(&mut *self.clusters.lock())
    }
}

/// A node as the others see it.
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

/// A pod that is told of the others.
struct Listener {
    owner: String,
    namespace: Arc<str>,
    name: Box<str>,
    knows: u128,
}

/// Everything about one cluster that its pods have to hear.
#[derive(Default)]
pub(crate) struct Telling {
    /// By the owner of the nodes: clusters of one name do not hear of each other.
    peers: BTreeMap<String, Vec<Peer>>,
    listeners: Vec<Listener>,
    services: Services,
    /// Pods that do not say what stands for their node, and that.
    strays: Vec<(Place, Place)>,
}

/// A list for a pod.
struct Untold {
    namespace: Arc<str>,
    name: Box<str>,
    list: Arc<str>,
}

impl Telling {
    /// Whether no pod of the cluster wants to hear anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.services.is_empty() && self.strays.is_empty()
    }

    /// Takes in a pod that is to follow what stands for its node.
    pub(crate) fn stray(&mut self, stray: Option<(Place, Place)>) {
        self.strays.extend(stray);
    }

    /// Takes in the objects of a node, and what they are together.
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
            // One without an address does not run yet, and is told of itself first.
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

    /// The pods whose list is not the one that they should have.
    fn untold(&mut self) -> Vec<Untold> {
        let mut lists = BTreeMap::new();
        for (owner, peers) in &mut self.peers {
            peers.sort();
            // Texts and numbers always become JSON.
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

/// `None`: it has no address yet.
fn peer(node: &Node) -> Option<Peer> {
    // With an interface it is the Kubernetes node's.
    let mut addresses = node.addresses.iter();
    let host = addresses.find(|address| address.interface.is_empty())?;
    let port = |(name, endpoint): (&String, &String)| {
        Some((name.clone(), endpoint.rsplit_once(':')?.1.parse().ok()?))
    };
    Some(Peer {
        group: node.group.clone(),
        ordinal: node.ordinal.unwrap_or_default(),
        name: node.name.clone(),
        // That of an adopted node is the one that it was made with.
        id: node.node_id.clone(),
        role: match node.role() {
            NodeRole::Standby => "standby",
            NodeRole::Active | NodeRole::Unspecified => "active",
        },
        host: host.value.clone(),
        ports: node.endpoints.iter().filter_map(port).collect(),
    })
}

/// Tells pods until it is dropped.
pub(crate) async fn keep(api: Api, known: Arc<Known>, settings: Arc<Settings>) {
    let Some(pods) = known.kinds().iter().find(|kind| discover::is_pod(kind)) else {
        return;
    };
    let teller = Teller {
        api,
        pods: Arc::clone(pods),
        settings,
        known: Arc::clone(&known),
    };
    let mut again = BTreeSet::new();
    let (mut wait, mut next) = (WAITS.0, Instant::now());
    // A node that hears of too few takes itself for the first.
    while known.ready().await.is_err() {
        sleep(WAITS.0).await;
    }
    loop {
        tokio::select! {
            () = known.news().wake.notified() => {}
            () = sleep_until(next), if !again.is_empty() => {}
        }
        let mut clusters = known.news().take();
        if next <= Instant::now() {
            clusters.append(&mut again);
        }
        let before = again.len();
        for cluster in clusters {
            if let Err(error) = teller.tell(&cluster).await {
                // Its text may repeat of the object what is told.
                let reason = drover_convert::error::reason_name(error.reason());
                warn!(%cluster, reason, "nodes cannot be told of one another");
                again.insert(cluster);
            }
        }
        if again.len() > before {
            next = Instant::now() + wait;
            wait = (wait * 2).min(WAITS.1);
        } else if again.is_empty() {
            wait = WAITS.0;
        }
        sleep(ROUND).await;
    }
}

struct Teller {
    api: Api,
    pods: Arc<Kind>,
    settings: Arc<Settings>,
    known: Arc<Known>,
}

impl Teller {
    /// Writes what is not as it should be. The first error, after everything was tried.
    async fn tell(&self, cluster: &str) -> Result<()> {
        let mut telling = self.known.untold(cluster);
        let untold = telling.untold();
        let writes: Vec<_> = untold.iter().map(|untold| self.write(untold)).collect();
        let lists = stream::iter(writes).buffer_unordered(AT_ONCE);
        let lists = lists.collect::<Vec<Result<()>>>().await;
        let mut result: Result<()> = lists.into_iter().collect();
        for (pod, leader) in &telling.strays {
            let followed = update::follow(&self.api, &self.settings, pod, leader).await;
            result = result.and(known_gone(followed));
        }
        for wanted in telling.services.wanted() {
            let key = (wanted.namespace().to_owned(), wanted.name().to_owned());
            let digest = wanted.digest();
            if self.known.news().services.lock().get(&key) == Some(&digest) {
                continue;
            }
            match wanted.make(&self.api, &self.settings.labels).await {
                Ok(()) => {
                    self.known.news().services.lock().insert(key, digest);
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    async fn write(&self, untold: &Untold) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {labels::PEERS: &*untold.list}}});
        let turn = self.api.turn().await;
        let (namespace, name) = (&untold.namespace, &untold.name);
        let written = self
            .api
            .patch(turn, &self.pods, namespace, name, &patch)
            .await;
        known_gone(written.map(drop))
    }
}

/// That something is gone meanwhile, or is another one of that name, is no error: the watch says so.
fn known_gone(written: Result<()>) -> Result<()> {
    written.or_else(|error| match error.reason() {
        Reason::NotFound | Reason::Conflict => Ok(()),
        _ => Err(error),
    })
}

#[cfg(test)]
mod tests;
