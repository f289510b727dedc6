//! The desired state of a cluster, and the effective settings of each group after inheritance.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde_json::{Map, Value};

use crate::{
    addon::AddonSpec,
    error::{Error, Violation},
    infrastructure::InfrastructureSpec,
    name::{self, Sym},
    storage::Storage,
};

mod group;
mod hash;
mod minima;
mod order;
mod probe_address;
mod probe_tls;
mod resolve;
mod selector;

pub use group::{Choice, Group, Template};
pub use hash::{HOST_LABELS, digest};
pub use order::{DEFAULT_HOOK_TIMEOUT, Hook, Lifecycle, Management, SoleWriter};
pub use probe_tls::{CA_CERT, ProbeTls, TLS_CERT, TLS_KEY, Trust};
pub use selector::{Operator, Requirement, Selector};

/// Free-form values.
pub type Object = Map<String, Value>;

/// Maximum number of groups in a cluster, across all levels.
pub const MAX_GROUPS: usize = 256;
/// Maximum nesting depth of groups.
pub const MAX_DEPTH: usize = 8;
/// Maximum size of an encoded spec: two of them plus the records of one step fit into a single store transaction.
pub const MAX_SPEC: usize = 128 * 1024;
/// Maximum size of a secret that templates can read, in bytes.
pub const MAX_TEMPLATE_SECRET: usize = 64 * 1024;
/// Maximum number of platforms of a group: each is resolved and hashed for every group that inherits it.
pub const MAX_CHOICES: usize = 32;
/// Maximum number of nodes in a cluster.
pub const MAX_NODES: u32 = 10_000;
/// Maximum threshold of a health policy, because a record counts probes up to this value.
pub const MAX_THRESHOLD: u32 = u8::MAX as u32;
/// Maximum number of impairments that a probe may find, because a record has a bit for each.
pub const MAX_IMPAIRMENTS: usize = u16::BITS as usize;

/// The desired state of a cluster: the outermost group, and the settings that only a cluster has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterSpec {
    /// Software that the nodes run. Empty for the default entry of each platform's catalogue.
    pub software: String,
    /// Software version. Empty to leave it to the template.
    pub version: String,
    /// Settings that all groups inherit.
    pub settings: Settings,
    /// Infrastructure that nodes need; at most one entry per platform.
    pub infrastructure: Vec<InfrastructureSpec>,
    /// Groups, in order.
    pub groups: Vec<GroupSpec>,
    /// Addons; names are unique.
    pub addons: Vec<AddonSpec>,
    /// How orphans are handled.
    pub orphans: OrphanPolicy,
    /// How long an orphan must be observed before it is deleted. Default 2 min.
    pub orphan_grace: Option<Duration>,
}

/// A group of nodes, with a size, or a group of groups; never both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupSpec {
    /// Name, unique among its siblings.
    pub name: String,
    /// Number of active nodes. `None` in a group of nodes: 1 initially, then left unchanged.
    pub size: Option<u32>,
    /// Number of additional standby nodes. `None` means 0.
    pub standby: Option<u32>,
    /// Nested groups.
    pub groups: Vec<GroupSpec>,
    /// Paths of groups that are created and rolled before it, and deleted after it.
    pub depends_on: Vec<String>,
    /// Store version. `None` to inherit that of the outer group.
    pub version: Option<String>,
    /// The group's own settings; the rest is inherited.
    pub settings: Settings,
}

/// Settings that any group can have and pass on to nested groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Platforms in order of preference. Empty to inherit.
    pub platforms: Vec<PlatformChoice>,
    /// Node class.
    pub node_class: Option<String>,
    /// Role, an arbitrary word for templates.
    pub role: Option<String>,
    /// Values for templates and matchers; merged key by key, `null` deletes a key.
    pub attributes: Object,
    /// Values for the platform; merged key by key, `null` deletes a key.
    pub properties: Object,
    /// Where nodes may be placed.
    pub placement: Option<Placement>,
    /// User data for new nodes.
    pub bootstrap: Option<Bootstrap>,
    /// Keys of secrets by the names that templates use for them; merged by name.
    pub secrets: BTreeMap<String, SecretRef>,
    /// Storage of each node.
    pub storage: Option<Storage>,
    /// Order in which nodes are created and removed.
    pub management: Option<Management>,
    /// Lifecycle hooks that run inside nodes.
    pub lifecycle: Option<Lifecycle>,
    /// When a node counts as healthy.
    pub health: Option<Health>,
    /// How unhealthy nodes are handled.
    pub remediation: Option<Remediation>,
    /// How changes are rolled out to existing nodes.
    pub update: Option<Update>,
    /// Maximum number of nodes of a group that are created or removed concurrently, per platform.
    pub max_in_flight: Option<u32>,
    /// Time that a node gets to stop gracefully.
    pub grace: Option<Duration>,
    /// Age at which a node is replaced.
    pub expire_after: Option<Duration>,
    /// Which nodes are removed first, all else being equal.
    pub removal_order: Option<RemovalOrder>,
    /// Refuses operations that would delete nodes permanently.
    pub protection: Option<bool>,
    /// Time from accepted to running, after which a node is considered unhealthy.
    pub provision_timeout: Option<Duration>,
    /// Time that a node must be Ready before the backoff of its group is reset.
    pub stable_after: Option<Duration>,
}

/// A platform of a group, with the settings that differ there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlatformChoice {
    /// Name of a registered platform.
    pub name: String,
    /// Node class on this platform. `None` for that of the group.
    pub node_class: Option<String>,
    /// Maximum number of nodes of the group from this choice.
    pub max: Option<u32>,
    /// Merged over the properties of the group.
    pub properties: Object,
    /// Version requirement for the platform server. Empty for any.
    pub version_requirement: String,
}

/// Placement constraints, which the platform enforces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Allowed failure domains. Empty for any.
    pub failure_domains: Vec<String>,
    /// Spread over topology keys.
    pub spread: Vec<Spread>,
    /// Labels that the machine must have. `None` for any machine.
    pub selector: Option<Box<Selector>>,
    /// Named machines, by the platform's ids; only in a group of nodes. Empty for any machine.
    pub hosts: Vec<Sym>,
}

/// Reference to user data for new nodes. Only the store has the data itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// Source of the data.
    pub source: UserDataSource,
    /// Whether the data, which must then be text, is rendered with the template context of each node.
    pub render: bool,
    /// Identifier of inline data outside the store: a keyed digest from which the data cannot be guessed, and which
    /// differs between clusters for the same data. Empty if not computed yet.
    pub known_as: String,
    /// Identifier from an earlier version, in which the digest was the same in all clusters. Kept because nodes carry
    /// hashes of it.
    pub formerly_known_as: String,
}

/// Location of user data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserDataSource {
    /// Stored with the cluster under its SHA-256: 64 lower-case hexadecimal digits.
    Sha256(String),
    /// In a secret that is read when a node is created.
    Secret(SecretRef),
}

/// One key of a secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretRef {
    /// Name of the secret.
    pub name: String,
    /// Key within it.
    pub key: String,
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.key)
    }
}

/// Even distribution across the values of a topology key.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// Label whose value names the domain (zone, rack).
    pub topology_key: String,
    /// Maximum difference between the fullest and the emptiest domain.
    pub max_skew: u32,
    /// Whether nodes that would violate it are not created.
    pub required: bool,
    /// Maximum number of nodes in one domain.
    pub max_per_domain: Option<u32>,
    /// Counts the nodes of the whole cluster instead of the group.
    pub over_cluster: bool,
}

/// When a node is considered healthy.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// How health is determined.
    pub probe: Probe,
    /// Interval between two probes of a node.
    pub interval: Duration,
    /// Timeout of a probe.
    pub timeout: Duration,
    /// Consecutive failures after which a node is Unhealthy, at most [`MAX_THRESHOLD`].
    pub failure_threshold: u32,
    /// Consecutive successes after which a node is Ready, at most [`MAX_THRESHOLD`].
    pub success_threshold: u32,
    /// Time from running to Ready, after which a node is considered unhealthy.
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

/// How the health of a node is probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Only the platform's phase and readiness.
    Phase,
    /// `grpc.health.v1`.
    Grpc {
        /// Port. `None` for that of the agent address.
        port: Option<Port>,
        /// Service name. Empty for the whole server.
        service: String,
        /// TLS settings. `None` for plaintext.
        tls: Option<ProbeTls>,
    },
    /// HTTP GET; status 200 to 399 is healthy.
    Http {
        /// Port. `None` for that of the agent address.
        port: Option<Port>,
        /// Path.
        path: String,
        /// TLS settings. `None` for plaintext.
        tls: Option<ProbeTls>,
    },
    /// A TCP connection.
    Tcp {
        /// Port. `None` for that of the agent address.
        port: Option<Port>,
    },
    /// A command inside the node, run through its platform; exit code 0 is healthy.
    Exec {
        /// Command and arguments, without a shell.
        command: Vec<String>,
        /// What it may find that a node lacks which serves nevertheless, at most [`MAX_IMPAIRMENTS`].
        impairments: Vec<Impairment>,
    },
}

/// Something that a node lacks, though it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impairment {
    /// One word in CamelCase.
    pub reason: Sym,
    /// Explanation for people. Empty for none.
    pub message: Box<str>,
}

impl Impairment {
    /// What it is, for people.
    #[must_use]
    pub fn words(&self) -> &str {
        if self.message.is_empty() {
            &self.reason
        } else {
            &self.message
        }
    }

    /// Maximum length of a message, in characters.
    pub const MAX_MESSAGE: usize = 256;

    /// Validates a list of them.
    ///
    /// # Errors
    ///
    /// `Invalid` with the invalid field; `at` is that of the list.
    pub fn check(at: &str, all: &[Self]) -> crate::Result<()> {
        if all.len() > MAX_IMPAIRMENTS {
            return Err(Error::invalid(
                at,
                format!("at most {MAX_IMPAIRMENTS} are possible"),
            ));
        }
        for (index, one) in all.iter().enumerate() {
            name::check_reason(&one.reason)
                .map_err(|why| Error::invalid(format!("{at}[{index}].reason"), why))?;
            if all[..index].iter().any(|other| other.reason == one.reason) {
                return Err(Error::invalid(
                    format!("{at}[{index}].reason"),
                    format!("{} is declared twice", one.reason),
                ));
            }
            if one.message.chars().count() > Self::MAX_MESSAGE
                || one.message.contains(char::is_control)
            {
                return Err(Error::invalid(
                    format!("{at}[{index}].message"),
                    format!(
                        "expected a line of at most {} characters",
                        Self::MAX_MESSAGE
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl Probe {
    /// What it may find that a node lacks which serves nevertheless.
    #[must_use]
    pub fn impairments(&self) -> &[Impairment] {
        match self {
            Self::Exec { impairments, .. } => impairments,
            Self::Phase | Self::Grpc { .. } | Self::Http { .. } | Self::Tcp { .. } => &[],
        }
    }

    /// Those of its impairments whose bits are set.
    pub fn impaired(&self, bits: u16) -> impl Iterator<Item = &Impairment> {
        let all = self.impairments().iter().enumerate();
        all.filter(move |(at, _)| bits & 1 << at != 0)
            .map(|(_, one)| one)
    }
}

/// A port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// The name that the template gives it.
    Name(String),
    /// The port number.
    Number(u16),
}

/// An absolute number of nodes, or a percentage of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Number of nodes.
    Count(u32),
    /// Percentage of the group's size, 0 to 100.
    Percent(u32),
}

/// How unhealthy nodes are handled. Dead nodes are always replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remediation {
    /// Whether unhealthy nodes are replaced.
    pub enabled: bool,
    /// Number of unhealthy nodes in the group above which no unhealthy node is replaced; at least 1 node.
    pub max_unhealthy: Amount,
    /// Attempts to create a node before the group is Failed and retries at the slow cadence.
    pub max_retries: u32,
    /// Whether the replacement is created before the unhealthy node is removed. Not possible on named machines or with
    /// retained storage.
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
    /// The number of nodes for a group of this size, rounded down.
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

    /// The number of nodes for a group of this size, rounded up.
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

/// How changes are rolled out to existing nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// Whether the rollout is automatic.
    pub strategy: UpdateStrategy,
    /// Nodes above the size during an update; a percentage rounds up. `None` means 1. Always 0 where nodes are replaced
    /// delete-first.
    pub max_surge: Option<Amount>,
    /// Nodes below the size during an update; a percentage rounds down. `None` means 0, or 1 where nodes are replaced
    /// delete-first.
    pub max_unavailable: Option<Amount>,
    /// Time that a new node must be Ready before it counts as available.
    pub min_ready: Duration,
    /// Time without progress after which an update is reported as blocked.
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
    /// A few at a time, within the budget.
    #[default]
    Rolling,
    /// Only when a node is removed for another reason.
    OnDelete,
}

/// How many nodes of a group may be replaced concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Nodes allowed above the size.
    pub surge: u32,
    /// Nodes allowed to be missing.
    pub unavailable: u32,
}

/// Which nodes are removed first, all else being equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemovalOrder {
    /// The newest.
    #[default]
    Newest,
    /// The oldest.
    Oldest,
}

/// How orphans are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrphanPolicy {
    /// Deprovisioned after the grace period.
    #[default]
    Delete,
    /// Only reported.
    Ignore,
    /// Adopted as a node of its group after the grace period.
    Adopt,
}

impl ClusterSpec {
    /// Returns the groups of nodes, in order, with inheritance applied.
    ///
    /// # Errors
    ///
    /// All invalid fields with their paths.
    pub fn resolve(&self) -> Result<Vec<Group>, Error> {
        resolve::resolve(self)
    }

    /// What must not be in a new spec, although one that is stored may have it.
    #[must_use]
    pub fn check_new(&self) -> Vec<Violation> {
        minima::check(self)
    }
}

/// Validates the labels of a cluster.
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

/// Merges objects key by key; `null` deletes a key, other values replace it.
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
