//! What the operator knows: what is wanted, what was done to whom, and who may be removed for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drover_proto::orchestrator::v1 as pb;
use tokio::time::Instant;

use super::specs;
use crate::{Site, Sites};

/// How long after a change of the spec nodes may still be made from the spec before it.
const OLD_REQUESTS: Duration = Duration::from_secs(20 * 60);

/// A node by its platform and its id there.
pub(super) type NodeKey = (usize, String);

/// A platform as the operator has set it up.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) endpoint: String,
    pub(super) uid: String,
    pub(super) real: Arc<Site>,
    /// Stands in its place and says to be it, with no nodes: a platform that lies.
    pub(super) impostor: bool,
    pub(super) down: bool,
    pub(super) registered: bool,
    /// Burnt down: it never answers again.
    pub(super) lost: bool,
    /// Commands in its nodes fail, all of them; the cluster that has most of those that are probed so.
    pub(super) deaf: Option<String>,
    /// It had another uid for a while.
    pub(super) renamed: bool,
}

/// A node that was Ready, and who was never hurt since.
#[derive(Clone, Debug)]
pub(super) struct Tracked {
    pub(super) cluster: String,
    pub(super) group: String,
    /// When it was first seen.
    pub(super) since: Instant,
    /// Nothing that anybody did to it is a reason to replace it.
    pub(super) sound: bool,
    /// The operator found it there: nobody may delete it before it was taken over and scaled away.
    pub(super) found: bool,
}

/// Storage that stays although its node goes.
pub(super) struct Kept {
    pub(super) group: String,
    /// The node that had it.
    pub(super) node: String,
    pub(super) why: String,
}

/// One cluster.
#[derive(Default)]
pub(super) struct ClusterModel {
    pub(super) uid: String,
    pub(super) spec: pb::ClusterSpec,
    pub(super) deleted: bool,
    pub(super) paused: bool,
    /// Since when nobody knows it any more.
    pub(super) gone_since: Option<Instant>,
    /// The store that is there now has never heard of it: nobody may delete what it has.
    pub(super) forgotten: bool,
    /// Platforms that were given up: what it has there may stay.
    pub(super) abandoned: BTreeSet<usize>,
    /// Nodes of these groups that are older than that may be replaced.
    pub(super) renewed: BTreeMap<String, Instant>,
    /// How many sound nodes of a group may go because it has more than it wants.
    pub(super) surplus: BTreeMap<String, u32>,
    /// Groups all of whose nodes may go.
    pub(super) gone: BTreeSet<String>,
    /// Nodes that the operator named.
    pub(super) named: BTreeSet<NodeKey>,
    /// How often it wanted infrastructure no more, that it may want again.
    pub(super) released: u32,
    /// Volumes that have to be there.
    pub(super) kept: BTreeMap<(usize, String), Kept>,
}

impl ClusterModel {
    /// What is wanted is this from now on. Whoever may go for it is written down.
    pub(super) fn wants(&mut self, spec: pb::ClusterSpec) {
        let now = Instant::now();
        if without_sizes(&self.spec) != without_sizes(&spec) {
            for group in self.spec.groups.iter().chain(&spec.groups) {
                self.renewed.insert(group.name.clone(), now);
            }
        }
        let mut below = self.spec.infrastructure.iter();
        self.released += u32::from(below.any(|old| !spec.infrastructure.contains(old)));
        for old in &self.spec.groups {
            match spec.groups.iter().find(|group| group.name == old.name) {
                None => {
                    self.gone.insert(old.name.clone());
                }
                Some(new) => {
                    let less = total(old).saturating_sub(total(new));
                    if total(new) > total(old) {
                        // It may be handed on, and goes with whoever has it then.
                        self.kept.retain(|_, kept| kept.group != old.name);
                    }
                    *self.surplus.entry(old.name.clone()).or_default() += less;
                    // Who is active and who stands by changes among those that are there.
                    if old.standby.unwrap_or(0) != new.standby.unwrap_or(0) {
                        let any = total(old).max(total(new));
                        *self.surplus.entry(old.name.clone()).or_default() += any;
                    }
                }
            }
        }
        self.spec = spec;
    }

    /// Everybody in a group, or in all, may be replaced.
    pub(super) fn renews(&mut self, group: Option<&str>) {
        for one in &self.spec.groups {
            if group.is_none_or(|group| group == one.name) {
                self.renewed.insert(one.name.clone(), Instant::now());
            }
        }
    }

    /// Whether a sound node may be removed; if because there are too many, there is one less too many now.
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

/// What makes nodes other nodes.
fn without_sizes(spec: &pb::ClusterSpec) -> pb::ClusterSpec {
    let mut spec = spec.clone();
    for group in &mut spec.groups {
        group.size = None;
        group.standby = None;
    }
    spec.groups.sort_by(|a, b| a.name.cmp(&b.name));
    spec
}

/// Names of the secrets that clusters name.
pub(super) const SECRETS: [&str; 2] = ["boot-0", "boot-1"];

/// What a secret holds, or has held.
pub(super) struct Value {
    pub(super) text: String,
    /// When it is known that another one took its place.
    pub(super) replaced: Option<Instant>,
}

/// What clusters can be made of.
pub(super) struct Offers {
    pub(super) platforms: Vec<String>,
    pub(super) secrets: Vec<String>,
}

/// Everything that the operator knows.
pub(super) struct Model {
    pub(super) sites: Vec<Place>,
    pub(super) clusters: BTreeMap<String, ClusterModel>,
    pub(super) nodes: BTreeMap<NodeKey, Tracked>,
    /// Nodes that were made not ready, and are so.
    pub(super) unready: BTreeSet<NodeKey>,
    /// How often a node of a slot vanished without a trace, by request and index.
    pub(super) vanished: BTreeMap<(String, u32), u32>,
    pub(super) next_name: usize,
    /// Secrets for nodes, and all that was ever written of each.
    pub(super) secrets: BTreeMap<String, Vec<Value>>,
    /// Nodes whose beginning was looked at.
    pub(super) begun: BTreeSet<NodeKey>,
    /// How often the network of a cluster was taken away.
    pub(super) networks_taken: BTreeMap<(usize, String), u32>,
    /// Whether in this run platforms may burn down.
    pub(super) burns: bool,
    /// Whether in this run the store may be lost.
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

    /// What clusters can be made of now.
    pub(super) fn offers(&self) -> Offers {
        let there = self.sites.iter().filter(|site| !site.lost);
        Offers {
            platforms: there.map(|site| site.name.clone()).collect(),
            secrets: self.secrets.keys().cloned().collect(),
        }
    }

    /// Names of the clusters that are wanted.
    pub(super) fn wanted(&self) -> Vec<String> {
        let wanted = self.clusters.iter().filter(|(_, cluster)| !cluster.deleted);
        wanted.map(|(name, _)| name.clone()).collect()
    }

    /// A node was hurt: whatever becomes of it has a reason.
    pub(super) fn hurt(&mut self, key: &NodeKey) {
        if let Some(node) = self.nodes.get_mut(key) {
            node.sound = false;
        }
    }

    /// There may be one more in a group than it wants.
    pub(super) fn one_too_many(&mut self, cluster: &str, group: &str) {
        if let Some(cluster) = self.clusters.get_mut(cluster) {
            *cluster.surplus.entry(group.to_owned()).or_default() += 1;
        }
    }
}
