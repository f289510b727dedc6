//! The operator's model: the desired state, the faults injected so far, and the nodes that may be removed because of
//! them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drover_proto::orchestrator::v1 as pb;
use tokio::time::Instant;

use super::specs;
use crate::{Site, Sites};

/// How long after a change of the spec nodes may still be created from the previous spec.
const OLD_REQUESTS: Duration = Duration::from_secs(20 * 60);

/// A node by the index of its platform and its id there.
pub(super) type NodeKey = (usize, String);

/// A platform as configured by the operator.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) endpoint: String,
    pub(super) uid: String,
    pub(super) real: Arc<Site>,
    /// Whether an impostor without nodes has taken its place and claims its identity.
    pub(super) impostor: bool,
    pub(super) down: bool,
    pub(super) registered: bool,
    /// Destroyed for good: it never responds again.
    pub(super) lost: bool,
    /// While commands fail in all nodes of the platform: the cluster with the most nodes there that are probed by
    /// commands.
    pub(super) deaf: Option<String>,
    /// Whether its uid was ever changed.
    pub(super) renamed: bool,
}

/// A node that was Ready and was not subject to a fault since.
#[derive(Clone, Debug)]
pub(super) struct Tracked {
    pub(super) cluster: String,
    pub(super) group: String,
    /// When the node was first seen.
    pub(super) since: Instant,
    /// Whether no fault has given a reason to replace the node.
    pub(super) sound: bool,
    /// Whether the node existed before its cluster: it must not be deleted before it is adopted and scaled away.
    pub(super) found: bool,
}

/// A volume that must outlive its node.
pub(super) struct Kept {
    pub(super) group: String,
    /// The node that the volume belonged to.
    pub(super) node: String,
    pub(super) why: String,
}

/// The operator's model of a cluster.
#[derive(Default)]
pub(super) struct ClusterModel {
    pub(super) uid: String,
    pub(super) spec: pb::ClusterSpec,
    pub(super) deleted: bool,
    pub(super) paused: bool,
    /// Since when the cluster no longer exists in the orchestrator.
    pub(super) gone_since: Option<Instant>,
    /// The restored store does not know the cluster: its nodes must not be deleted.
    pub(super) forgotten: bool,
    /// Abandoned platforms: resources of the cluster may remain there.
    pub(super) abandoned: BTreeSet<usize>,
    /// Nodes of these groups that are older than this time may be replaced.
    pub(super) renewed: BTreeMap<String, Instant>,
    /// Number of sound nodes by group that may be removed because the group exceeds its size.
    pub(super) surplus: BTreeMap<String, u32>,
    /// Groups of which all nodes may be removed.
    pub(super) gone: BTreeSet<String>,
    /// Nodes that the operator named for removal.
    pub(super) named: BTreeSet<NodeKey>,
    /// How often the spec dropped infrastructure, which it may request again later.
    pub(super) released: u32,
    /// How often each addon may have been made, by its name: once for each spec that wanted it anew.
    pub(super) addons_asked: BTreeMap<String, u32>,
    /// Whether a deleted cluster had its name.
    pub(super) reuses_name: bool,
    /// Volumes that must exist.
    pub(super) kept: BTreeMap<(usize, String), Kept>,
}

impl ClusterModel {
    /// Sets the desired spec, and records which nodes may be removed for it.
    pub(super) fn wants(&mut self, spec: pb::ClusterSpec) {
        let now = Instant::now();
        if without_sizes(&self.spec) != without_sizes(&spec) {
            for group in self.spec.groups.iter().chain(&spec.groups) {
                self.renewed.insert(group.name.clone(), now);
            }
        }
        let mut below = self.spec.infrastructure.iter();
        self.released += u32::from(below.any(|old| !spec.infrastructure.contains(old)));
        for addon in &spec.addons {
            let place = |it: &pb::Addon| (it.name.clone(), it.platform.clone());
            if !self
                .spec
                .addons
                .iter()
                .any(|old| place(old) == place(addon))
            {
                *self.addons_asked.entry(addon.name.clone()).or_default() += 1;
            }
        }
        for old in &self.spec.groups {
            match spec.groups.iter().find(|group| group.name == old.name) {
                None => {
                    self.gone.insert(old.name.clone());
                }
                Some(new) => {
                    let less = total(old).saturating_sub(total(new));
                    if total(new) > total(old) {
                        // Retained volumes may be handed on, and then share the fate of their new node.
                        self.kept.retain(|_, kept| kept.group != old.name);
                    }
                    *self.surplus.entry(old.name.clone()).or_default() += less;
                    // Nodes that exist may switch between active and standby.
                    if old.standby.unwrap_or(0) != new.standby.unwrap_or(0) {
                        let any = total(old).max(total(new));
                        *self.surplus.entry(old.name.clone()).or_default() += any;
                    }
                }
            }
        }
        self.spec = spec;
    }

    /// Allows all nodes of a group, or of all groups, to be replaced.
    pub(super) fn renews(&mut self, group: Option<&str>) {
        for one in &self.spec.groups {
            if group.is_none_or(|group| group == one.name) {
                self.renewed.insert(one.name.clone(), Instant::now());
            }
        }
    }

    /// Whether a sound node may be removed. If the reason is the group's surplus, this uses up one of it.
    pub(super) fn may_go(&mut self, key: &NodeKey, node: &Tracked) -> bool {
        if self.forgotten {
            return false;
        }
        if self.deleted || self.gone.contains(&node.group) || self.named.contains(key) {
            return true;
        }
        let renewed = self.renewed.get(&node.group);
        if renewed.is_some_and(|at| node.since < *at + OLD_REQUESTS) {
            return true;
        }
        match self.surplus.get_mut(&node.group) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }
}

pub(super) fn total(group: &pb::GroupSpec) -> u32 {
    group.size.unwrap_or(1) + group.standby.unwrap_or(0)
}

/// The spec without sizes; a difference in the rest of it requires new nodes.
fn without_sizes(spec: &pb::ClusterSpec) -> pb::ClusterSpec {
    let mut spec = spec.clone();
    spec.addons.clear();
    for group in &mut spec.groups {
        group.size = None;
        group.standby = None;
    }
    spec.groups.sort_by(|a, b| a.name.cmp(&b.name));
    spec
}

/// Names of the secrets that clusters refer to.
pub(super) const SECRETS: [&str; 2] = ["boot-0", "boot-1"];

/// A current or former value of a secret.
pub(super) struct Value {
    pub(super) text: String,
    /// When the value is known to have been replaced.
    pub(super) replaced: Option<Instant>,
    /// Whether it is known to have been written.
    pub(super) granted: bool,
}

/// The platforms and secrets that clusters can be built from.
pub(super) struct Offers {
    pub(super) platforms: Vec<String>,
    pub(super) secrets: Vec<String>,
}

/// The complete model of the operator.
pub(super) struct Model {
    pub(super) sites: Vec<Place>,
    pub(super) clusters: BTreeMap<String, ClusterModel>,
    pub(super) nodes: BTreeMap<NodeKey, Tracked>,
    /// Nodes that a fault made unready and that still are.
    pub(super) unready: BTreeSet<NodeKey>,
    /// How often a node of a slot vanished without a trace, by request id and index.
    pub(super) vanished: BTreeMap<(String, u32), u32>,
    pub(super) next_name: usize,
    /// Secrets for nodes, with all values ever written.
    pub(super) secrets: BTreeMap<String, Vec<Value>>,
    /// Nodes whose bootstrap data was checked.
    pub(super) begun: BTreeSet<NodeKey>,
    /// How often the network of a cluster was deleted out of band.
    pub(super) networks_taken: BTreeMap<(usize, String), u32>,
    /// Whether platforms may be destroyed in this run.
    pub(super) burns: bool,
    /// Whether the store may be lost in this run.
    pub(super) restores: bool,
}

impl Model {
    pub(super) fn new(random: &mut fastrand::Rng, sites: &Sites) -> Self {
        let count = random.usize(1..=3);
        let sites = (0..count)
            .map(|at| {
                let name = if at == 0 {
                    "sim".to_owned()
                } else {
                    format!("sim-{at}")
                };
                let endpoint = format!("http://{name}");
                let real = Site::new(specs::platform(random, &name));
                sites.put(&endpoint, &real);
                Place {
                    uid: format!("simulated:{name}"),
                    name,
                    endpoint,
                    real,
                    impostor: false,
                    down: false,
                    registered: true,
                    lost: false,
                    deaf: None,
                    renamed: false,
                }
            })
            .collect();
        Self {
            sites,
            clusters: BTreeMap::new(),
            nodes: BTreeMap::new(),
            unready: BTreeSet::new(),
            vanished: BTreeMap::new(),
            next_name: 0,
            secrets: BTreeMap::new(),
            begun: BTreeSet::new(),
            networks_taken: BTreeMap::new(),
            burns: random.u8(..5) == 0,
            restores: random.u8(..5) == 0,
        }
    }

    /// The platforms and secrets currently available for clusters.
    pub(super) fn offers(&self) -> Offers {
        let there = self.sites.iter().filter(|site| !site.lost);
        Offers {
            platforms: there.map(|site| site.name.clone()).collect(),
            secrets: self.secrets.keys().cloned().collect(),
        }
    }

    /// Names of the clusters that are not deleted.
    pub(super) fn wanted(&self) -> Vec<String> {
        let wanted = self.clusters.iter().filter(|(_, cluster)| !cluster.deleted);
        wanted.map(|(name, _)| name.clone()).collect()
    }

    /// Records a fault of a node: it may be replaced from now on.
    pub(super) fn hurt(&mut self, key: &NodeKey) {
        if let Some(node) = self.nodes.get_mut(key) {
            node.sound = false;
        }
    }

    /// Allows one node more than a group's size to be removed.
    pub(super) fn one_too_many(&mut self, cluster: &str, group: &str) {
        if let Some(cluster) = self.clusters.get_mut(cluster) {
            *cluster.surplus.entry(group.to_owned()).or_default() += 1;
        }
    }
}
