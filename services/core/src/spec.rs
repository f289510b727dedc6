//! What a user wants of a cluster, and what it means for each group once everything is inherited.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::{
    error::{Error, Violation},
    infrastructure::InfrastructureSpec,
    name::{self, Sym},
};

mod resolve;

/// Free-form values.
pub type Object = Map<String, Value>;

/// Most groups of a cluster, over all levels.
pub const MAX_GROUPS: usize = 256;
/// Deepest nesting of groups.
pub const MAX_DEPTH: usize = 8;
/// Largest spec, encoded: two of them and a step's records fit into one transaction of the store.
pub const MAX_SPEC: usize = 128 * 1024;
/// Most platforms of a group: each is resolved and hashed for every group that inherits it.
pub const MAX_CHOICES: usize = 32;
/// Most nodes of a cluster.
pub const MAX_NODES: u32 = 10_000;
/// A formula of what makes a node, and the version that its hashes begin with.
type Formula = (u8, fn(&mut Sha256, &ClusterSpec, &Group, &Choice));
/// The formulas that nodes may carry hashes of, oldest first; the last one is used for new nodes. One that covers other
/// fields is added at the end and the others stay, so that a changed formula never looks like a changed spec.
const FORMULAS: [Formula; 1] = [(1, cover)];

/// What is wanted of a cluster: the outermost group and what only a cluster has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterSpec {
    /// Software that the nodes run. Empty: the default entry of each platform's catalogue.
    pub software: String,
    /// Its version. Empty: left to the template.
    pub version: String,
    /// What all groups inherit.
    pub settings: Settings,
    /// What nodes need first; at most one entry a platform.
    pub infrastructure: Vec<InfrastructureSpec>,
    /// Groups, in order.
    pub groups: Vec<GroupSpec>,
    /// What becomes of orphans.
    pub orphans: OrphanPolicy,
    /// How long an orphan is seen before it is deleted. Default 2 min.
    pub orphan_grace: Option<Duration>,
    /// Fields that are set and whose behaviour this version lacks: path and name of the feature.
    pub unsupported: Vec<(String, &'static str)>,
}

/// A group of nodes (with a size) or of groups, never both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupSpec {
    /// Name, unique among its siblings.
    pub name: String,
    /// Active nodes. Absent in a group of nodes: 1 at first, later as it is.
    pub size: Option<u32>,
    /// Groups inside.
    pub groups: Vec<GroupSpec>,
    /// Store version. Absent: the outer group's.
    pub version: Option<String>,
    /// What it says itself; the rest is inherited.
    pub settings: Settings,
    /// Fields that are set and whose behaviour this version lacks: path below the group and name of the feature.
    pub unsupported: Vec<(String, &'static str)>,
}

/// What any group can say and hand down to the groups inside.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Platforms in order of preference. Empty: inherited.
    pub platforms: Vec<PlatformChoice>,
    /// Node class.
    pub node_class: Option<String>,
    /// Role, a free word for templates.
    pub role: Option<String>,
    /// For templates and matchers; merged key by key, null deletes.
    pub attributes: Object,
    /// For the platform; merged key by key, null deletes.
    pub properties: Object,
    /// Where nodes may be placed.
    pub placement: Option<Placement>,
    /// User data for new nodes.
    pub bootstrap: Option<Bootstrap>,
    /// When a node counts as healthy.
    pub health: Option<Health>,
    /// What becomes of sick nodes.
    pub remediation: Option<Remediation>,
    /// How changes reach existing nodes.
    pub update: Option<Update>,
    /// Most nodes of a group being made or removed at a time, on each platform.
    pub max_in_flight: Option<u32>,
    /// Time that a node gets to stop by itself.
    pub grace: Option<Duration>,
    /// Which nodes go first when all else is equal.
    pub removal_order: Option<RemovalOrder>,
    /// Refuses what would delete nodes for good.
    pub protection: Option<bool>,
    /// Time from accepted to running before a node is sick.
    pub provision_timeout: Option<Duration>,
    /// Time that a node must be Ready before the back-off of its group is reset.
    pub stable_after: Option<Duration>,
}

/// One platform of a group, with what differs there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlatformChoice {
    /// Name of a registered platform.
    pub name: String,
    /// Node class there. Absent: the group's.
    pub node_class: Option<String>,
    /// Most nodes of the group by this choice.
    pub max: Option<u32>,
    /// Merged over the group's.
    pub properties: Object,
    /// Requirement on the version of the platform server. Empty: any.
    pub version_requirement: String,
}

/// Where nodes may be placed. The platform does it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Failure domains that may be used. Empty: any.
    pub failure_domains: Vec<String>,
    /// Spread over topology keys.
    pub spread: Vec<Spread>,
    /// Named machines, by the platform's ids of them; in a group of nodes only. Empty: any machine.
    pub hosts: Vec<Sym>,
}

/// User data for new nodes, by reference: the data itself is with the store alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bootstrap {
    /// SHA-256 of the data, 64 lower-case hexadecimal digits.
    pub sha256: String,
    /// Rendered with the template context of each node; the data is text.
    pub render: bool,
}

/// SHA-256 of user data, as reads show it: 64 lower-case hexadecimal digits.
#[must_use]
pub fn digest(data: &[u8]) -> String {
    hex(&Sha256::digest(data))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Even distribution over the values of one topology key.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// Its value names the domain (zone, rack).
    pub topology_key: String,
    /// Most by which the fullest and the emptiest domain may differ.
    pub max_skew: u32,
    /// Whether a node that would break it is not made.
    pub required: bool,
    /// Most nodes in one domain.
    pub max_per_domain: Option<u32>,
    /// Counts the nodes of the whole cluster instead of those of the group.
    pub over_cluster: bool,
}

/// When a node counts as healthy.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// How it is asked.
    pub probe: Probe,
    /// Time between two probes of a node.
    pub interval: Duration,
    /// Time that a probe may take.
    pub timeout: Duration,
    /// Failed probes in a row that make a node Unhealthy.
    pub failure_threshold: u32,
    /// Good probes in a row that make it Ready.
    pub success_threshold: u32,
    /// Time from running to Ready before a node is sick.
    pub startup_timeout: Duration,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            probe: Probe::Phase,
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            failure_threshold: 3,
            success_threshold: 1,
            startup_timeout: Duration::from_secs(600),
        }
    }
}

/// How a node is asked for its health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Only the platform's phase and readiness.
    Phase,
    /// `grpc.health.v1`.
    Grpc {
        /// Port. Absent: that of the agent address.
        port: Option<Port>,
        /// Service name. Empty: the whole server.
        service: String,
    },
    /// HTTP GET; 200 to 399 is good.
    Http {
        /// Port. Absent: that of the agent address.
        port: Option<Port>,
        /// Path.
        path: String,
    },
    /// A TCP connection.
    Tcp {
        /// Port. Absent: that of the agent address.
        port: Option<Port>,
    },
}

/// A port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// By the name that its template gives it.
    Name(String),
    /// By number.
    Number(u16),
}

/// A number of nodes, or a share of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Number of nodes.
    Count(u32),
    /// Percent of the group's size, 0 to 100.
    Percent(u32),
}

/// What becomes of sick nodes. Dead nodes are always replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remediation {
    /// Whether sick nodes are replaced.
    pub enabled: bool,
    /// How many of the group may be sick before nothing sick in it is replaced; at least 1 node.
    pub max_unhealthy: Amount,
    /// Attempts to make a node before the group is Failed and goes on at the slow cadence.
    pub max_retries: u32,
    /// Whether the new node is made before the sick one goes. Not on named machines.
    pub create_first: bool,
}

impl Default for Remediation {
    fn default() -> Self {
        Self {
            enabled: true,
            max_unhealthy: Amount::Percent(40),
            max_retries: 3,
            create_first: false,
        }
    }
}

impl Amount {
    /// So many of a group of this size, the fraction of a node left out.
    #[must_use]
    pub fn down(self, size: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => {
                let share = u64::from(size) * u64::from(percent) / 100;
                u32::try_from(share).unwrap_or(u32::MAX)
            }
        }
    }

    /// So many of a group of this size, the fraction of a node counted as one.
    #[must_use]
    pub fn up(self, size: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => {
                let share = (u64::from(size) * u64::from(percent)).div_ceil(100);
                u32::try_from(share).unwrap_or(u32::MAX)
            }
        }
    }
}

/// How changes reach existing nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// Whether they do so by themselves.
    pub strategy: UpdateStrategy,
    /// Nodes above the size while updating; a percentage rounds up. Absent: 1. On named machines there are none.
    pub max_surge: Option<Amount>,
    /// Nodes below the size while updating; a percentage rounds down. Absent: 0, on named machines 1.
    pub max_unavailable: Option<Amount>,
    /// Time that a new node must be Ready before it counts as available.
    pub min_ready: Duration,
    /// Time without progress after which an update is said to be blocked.
    pub progress_deadline: Duration,
}

impl Default for Update {
    fn default() -> Self {
        Self {
            strategy: UpdateStrategy::Rolling,
            max_surge: None,
            max_unavailable: None,
            min_ready: Duration::ZERO,
            progress_deadline: Duration::from_secs(600),
        }
    }
}

/// How outdated nodes are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateStrategy {
    /// A few at a time.
    #[default]
    Rolling,
    /// Only when a node goes for another reason.
    OnDelete,
}

/// How many nodes of a group may be renewed at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// So many more than the size may be there.
    pub surge: u32,
    /// So many of the size may be missing.
    pub unavailable: u32,
}

/// Which nodes go first when all else is equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemovalOrder {
    /// The youngest.
    #[default]
    Newest,
    /// The oldest.
    Oldest,
}

/// What becomes of orphans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrphanPolicy {
    /// Deprovisioned after the grace.
    #[default]
    Delete,
    /// Reported.
    Ignore,
}

/// A group of nodes with everything inherited merged in.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Path (`data/hot`).
    pub path: Sym,
    /// Where it stands in the spec (`spec.groups[0].groups[1]`).
    pub field: String,
    /// Active nodes wanted. Absent: not said.
    pub size: Option<u32>,
    /// Where its nodes can be, in order of preference.
    pub choices: Vec<Choice>,
    /// Role.
    pub role: String,
    /// Store version of its nodes. Empty: none.
    pub version: Sym,
    /// For templates and matchers.
    pub attributes: Object,
    /// Where nodes may be placed.
    pub placement: Placement,
    /// User data for new nodes.
    pub bootstrap: Option<Bootstrap>,
    /// When a node counts as healthy. Absent: the template's default, else all defaults.
    pub health: Option<Health>,
    /// What becomes of sick nodes.
    pub remediation: Remediation,
    /// How changes reach existing nodes.
    pub update: Update,
    /// Most nodes being made or removed at a time, on each platform.
    pub max_in_flight: Option<u32>,
    /// Time that a node gets to stop by itself.
    pub grace: Duration,
    /// Which nodes go first when all else is equal.
    pub removal_order: RemovalOrder,
    /// Refuses what would delete nodes for good.
    pub protection: bool,
    /// Time from accepted to running before a node is sick. Absent: by the kind of platform.
    pub provision_timeout: Option<Duration>,
    /// Time that a node must be Ready before the back-off is reset.
    pub stable_after: Duration,
}

/// One platform of a resolved group.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Name of the platform.
    pub platform: Sym,
    /// Node class. Empty: the platform's default.
    pub class: Sym,
    /// Most nodes of the group by this choice.
    pub max: Option<u32>,
    /// For the platform, merged.
    pub properties: Object,
    /// Requirement on the version of the platform server. Empty: any.
    pub version_requirement: String,
    /// What capacity of the platform it takes: choices of the same class and properties, of whichever cluster, have the
    /// same one, and what is out for one is out for all of them.
    pub pool: Sym,
    /// Hash of what makes a node by this choice; nodes that carry another one are outdated.
    pub spec_hash: Sym,
    /// The same by the formulas of earlier versions, oldest first: nodes that carry one of these are as wanted, and get
    /// the present one.
    pub former_hashes: Vec<Sym>,
}

impl Group {
    /// Whether a node can be replaced only after it is gone: on a named machine there is room for one.
    #[must_use]
    pub fn delete_first(&self) -> bool {
        !self.placement.hosts.is_empty()
    }

    /// How many of its nodes may be renewed at a time.
    #[must_use]
    pub fn budget(&self) -> Budget {
        let size = self.size.unwrap_or(1);
        let update = match self.update.strategy {
            UpdateStrategy::Rolling => self.update,
            // What is replaced by name alone goes the gentle way.
            UpdateStrategy::OnDelete => Update::default(),
        };
        if self.delete_first() {
            let unavailable = update.max_unavailable.unwrap_or(Amount::Count(1));
            return Budget {
                surge: 0,
                unavailable: unavailable.down(size),
            };
        }
        let surge = update.max_surge.unwrap_or(Amount::Count(1));
        let unavailable = update.max_unavailable.unwrap_or(Amount::Count(0));
        Budget {
            surge: surge.up(size),
            unavailable: unavailable.down(size),
        }
    }

    /// Whether a node is as this group wants it, by what made it and by where it is.
    #[must_use]
    pub fn makes(&self, node: &crate::Node) -> bool {
        let hosts = &self.placement.hosts;
        (hosts.is_empty() || hosts.contains(&node.host))
            && self.choice_of(&node.spec_hash).is_some()
    }

    /// The first choice that makes nodes with this hash. A hash by a formula that this version does not know says
    /// nothing, and passes as the first choice's: what cannot be compared is never replaced for it.
    #[must_use]
    pub fn choice_of(&self, hash: &str) -> Option<&Choice> {
        let known = self.choices.iter().find(|choice| choice.is_hash(hash));
        known.or_else(|| self.choices.first().filter(|_| is_of_unknown_formula(hash)))
    }
}

impl Choice {
    /// Whether a hash is of what this choice makes, by the present formula or an earlier one.
    #[must_use]
    pub fn is_hash(&self, hash: &str) -> bool {
        *self.spec_hash == *hash || self.former_hashes.iter().any(|former| **former == *hash)
    }
}

/// Whether a hash was made by a version with another formula than the known ones: `h2-…` where only `h1-…` is known.
fn is_of_unknown_formula(hash: &str) -> bool {
    let version = hash
        .strip_prefix('h')
        .and_then(|rest| rest.split_once('-'))
        .and_then(|(version, _)| version.parse::<u32>().ok());
    version.is_some_and(|version| {
        FORMULAS
            .iter()
            .all(|(known, _)| u32::from(*known) != version)
    })
}

impl ClusterSpec {
    /// The groups of nodes, in order, with everything inherited.
    ///
    /// # Errors
    /// Every wrong field with its path.
    pub fn resolve(&self) -> Result<Vec<Group>, Error> {
        resolve::resolve(self)
    }
}

/// Checks the labels of a cluster.
pub fn check_labels(field: &str, labels: &BTreeMap<String, String>, wrong: &mut Vec<Violation>) {
    if labels.len() > name::MAX_LABELS {
        let description = format!(
            "has {} entries; at most {} are allowed",
            labels.len(),
            name::MAX_LABELS
        );
        wrong.push(Violation {
            field: field.to_owned(),
            description,
        });
    }
    for (key, value) in labels {
        if let Err(description) = name::check_label(key, value) {
            wrong.push(Violation {
                field: format!("{field}[{key:?}]"),
                description,
            });
        }
    }
}

/// Merges objects key by key; null deletes, other values replace.
#[must_use]
pub fn merge(outer: &Object, inner: &Object) -> Object {
    let mut merged = outer.clone();
    for (key, value) in inner {
        if value.is_null() {
            merged.remove(key);
        } else {
            merged.insert(key.clone(), value.clone());
        }
    }
    merged
}

/// Hash of the fields that make a node, over sorted keys, by every formula, oldest first: at most 63 characters each, fit
/// for a label.
fn spec_hashes(cluster: &ClusterSpec, group: &Group, choice: &Choice) -> Vec<Sym> {
    let by = |(version, formula): &Formula| {
        let mut hash = Sha256::new();
        hash.update([*version]);
        formula(&mut hash, cluster, group, choice);
        format!("h{version}-{}", hex(&hash.finalize()[..16])).into()
    };
    FORMULAS.iter().map(by).collect()
}

fn cover(hash: &mut Sha256, cluster: &ClusterSpec, group: &Group, choice: &Choice) {
    let fields: [&str; 5] = [
        &cluster.software,
        &group.version,
        &choice.platform,
        &choice.class,
        &group.role,
    ];
    for field in fields {
        hash.update((field.len() as u64).to_be_bytes());
        hash.update(field);
    }
    digest_object(hash, &group.attributes);
    digest_object(hash, &choice.properties);
    // Only where there is some, so that what was hashed before it existed keeps its hash.
    if let Some(bootstrap) = &group.bootstrap {
        hash.update(b"b");
        hash.update(&bootstrap.sha256);
        hash.update([u8::from(bootstrap.render)]);
    }
}

/// What capacity a choice takes: its class, and a hash of its properties if it has any (spot or on demand, zone).
fn pool(class: &str, properties: &Object) -> Sym {
    if properties.is_empty() {
        return name::sym(class);
    }
    let mut hash = Sha256::new();
    digest_object(&mut hash, properties);
    format!("{class}#{}", hex(&hash.finalize()[..8])).into()
}

fn digest_object(hash: &mut Sha256, object: &Object) {
    let mut keys: Vec<&String> = object.keys().collect();
    keys.sort();
    hash.update(b"{");
    for key in keys {
        hash.update((key.len() as u64).to_be_bytes());
        hash.update(key);
        digest_value(hash, &object[key]);
    }
    hash.update(b"}");
}

fn digest_value(hash: &mut Sha256, value: &Value) {
    match value {
        Value::Object(object) => digest_object(hash, object),
        Value::Array(values) => {
            hash.update(b"[");
            for value in values {
                digest_value(hash, value);
            }
            hash.update(b"]");
        }
        Value::String(text) => {
            hash.update(b"s");
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            hash.update(b"v");
            hash.update(value.to_string());
            hash.update(b";");
        }
    }
}
