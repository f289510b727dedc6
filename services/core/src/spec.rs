//! What a user wants of a cluster, and what it means for each group once everything is inherited.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde_json::{Map, Value};

use crate::{
    error::{Error, Violation},
    infrastructure::InfrastructureSpec,
    name::{self, Sym},
    storage::Storage,
};

mod group;
mod hash;
mod order;
mod probe_tls;
mod resolve;
mod selector;

pub use group::{Choice, Group, Template};
pub use hash::digest;
pub use order::{DEFAULT_HOOK_TIMEOUT, Hook, Lifecycle, Management};
pub use probe_tls::{CA_CERT, ProbeTls, TLS_CERT, TLS_KEY, Trust};
pub use selector::{Operator, Requirement, Selector};

/// Free-form values.
pub type Object = Map<String, Value>;

/// Most groups of a cluster, over all levels.
pub const MAX_GROUPS: usize = 256;
/// Deepest nesting of groups.
pub const MAX_DEPTH: usize = 8;
/// Largest spec, encoded: two of them and a step's records fit into one transaction of the store.
pub const MAX_SPEC: usize = 128 * 1024;
/// Most bytes of a secret that templates see.
pub const MAX_TEMPLATE_SECRET: usize = 64 * 1024;
/// Most platforms of a group: each is resolved and hashed for every group that inherits it.
pub const MAX_CHOICES: usize = 32;
/// Most nodes of a cluster.
pub const MAX_NODES: u32 = 10_000;
/// Highest threshold of a health policy: a record counts probes up to here.
pub const MAX_THRESHOLD: u32 = u8::MAX as u32;

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
    /// Standby nodes besides. Absent: 0.
    pub standby: Option<u32>,
    /// Groups inside.
    pub groups: Vec<GroupSpec>,
    /// Paths of groups that are made and rolled before it, and deleted after it.
    pub depends_on: Vec<String>,
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
    /// Keys of secrets by the names that templates have for them; merged name by name.
    pub secrets: BTreeMap<String, SecretRef>,
    /// Storage of each node.
    pub storage: Option<Storage>,
    /// In which order nodes are made and removed.
    pub management: Option<Management>,
    /// What is run inside nodes.
    pub lifecycle: Option<Lifecycle>,
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
    /// Age at which a node is replaced.
    pub expire_after: Option<Duration>,
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
    /// Labels that the machine must have. Absent: any machine.
    pub selector: Option<Selector>,
    /// Named machines, by the platform's ids of them; in a group of nodes only. Empty: any machine.
    pub hosts: Vec<Sym>,
}

/// User data for new nodes, by reference: the data itself is with the store alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// Which data.
    pub source: UserDataSource,
    /// Rendered with the template context of each node; the data is text.
    pub render: bool,
    /// What inline data is known by outside of the store: a digest that nobody can guess it by, and that no other cluster
    /// has for the same data. Empty: nothing was made of it yet.
    pub known_as: String,
    /// The same in clusters of which all have one digest for the same data: nodes carry hashes of it.
    pub formerly_known_as: String,
}

/// Where user data is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserDataSource {
    /// With the cluster, under its SHA-256: 64 lower-case hexadecimal digits.
    Sha256(String),
    /// In a secret, read when a node is made.
    Secret(SecretRef),
}

/// One key of a secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretRef {
    /// Name of the secret.
    pub name: String,
    /// Key in it.
    pub key: String,
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.key)
    }
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
    /// Failed probes in a row that make a node Unhealthy, at most [`MAX_THRESHOLD`].
    pub failure_threshold: u32,
    /// Good probes in a row that make it Ready, at most [`MAX_THRESHOLD`].
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
        /// How TLS is spoken. Absent: it is not.
        tls: Option<ProbeTls>,
    },
    /// HTTP GET; 200 to 399 is good.
    Http {
        /// Port. Absent: that of the agent address.
        port: Option<Port>,
        /// Path.
        path: String,
        /// How TLS is spoken. Absent: it is not.
        tls: Option<ProbeTls>,
    },
    /// A TCP connection.
    Tcp {
        /// Port. Absent: that of the agent address.
        port: Option<Port>,
    },
    /// A command inside the node, through its platform; exit code 0 is good.
    Exec {
        /// Command and arguments, without a shell.
        command: Vec<String>,
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
    /// Whether the new node is made before the sick one goes. Not on named machines or kept storage.
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
    /// Nodes above the size while updating; a percentage rounds up. Absent: 1. Where nodes are replaced
    /// delete-first there are none.
    pub max_surge: Option<Amount>,
    /// Nodes below the size while updating; a percentage rounds down. Absent: 0, where nodes are replaced
    /// delete-first 1.
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
    /// Taken in as a node of its group after the grace.
    Adopt,
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
