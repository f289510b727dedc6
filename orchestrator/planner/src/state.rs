//! The record of one cluster.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{
    Millis, Node, Sym,
    infrastructure::Infrastructure,
    node::{Call, Former, Request, Role, Seen},
    storage::Policy,
};
use uuid::Uuid;

use crate::{Skipped, SmallMap, infrastructure::BackendKey};

/// What is recorded of a cluster, and what this process observes of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Uid of the cluster record: the owner on platforms.
    pub uid: Uuid,
    /// Generation of the spec.
    pub generation: u64,
    /// Generation that the record is about.
    pub observed_generation: u64,
    /// Whether its deletion was asked for.
    pub deleting: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// Number of the next slot.
    pub next_slot: u64,
    /// Sequence of the next request.
    pub next_sequence: u64,
    /// Sequences below it that were never given out.
    pub skipped: Skipped,
    /// Nodes, by slot.
    pub nodes: Vec<Node>,
    /// Slots of nodes on which somebody works: they are not replaced for being sick.
    pub repairs: BTreeSet<u64>,
    /// Slots of nodes that were named when their group was made smaller: whatever becomes of them, and why, what scaling
    /// keeps of their storage is kept.
    pub scaled_away: BTreeSet<u64>,
    /// Open requests.
    pub requests: SmallMap<Uuid, Request>,
    /// Infrastructure, by backend.
    pub infrastructure: SmallMap<BackendKey, Infrastructure>,
    /// Back-offs.
    pub backoffs: SmallMap<BackOffKey, BackOff>,
    /// Renewals under way, by path of the group.
    pub rollouts: SmallMap<Sym, Rollout>,
    /// What groups with storage say of it, or said last: what their nodes are removed by when the spec names them no
    /// more.
    pub storage: SmallMap<Sym, Policy>,
    /// Most nodes that groups have had at a time whose nodes come in an order, by path of the group.
    pub grown: SmallMap<Sym, u32>,
    /// Ordinals that active nodes have left and nobody has taken since: in their storage is what was written last. By path
    /// of the group.
    pub vacated: SmallMap<Sym, BTreeSet<u32>>,
    /// Conditions that hold.
    pub conditions: SmallMap<ConditionKey, Condition>,
    /// Every backend that it ever used: name of the platform, uid.
    pub used: BTreeSet<(Sym, Sym)>,
    /// Backends that were given up. What they show of the cluster all the same is left alone.
    pub abandoned: BTreeSet<(Sym, Sym)>,
    /// Number of the last order to adopt what is shown of it and has no record. 0: there was none.
    pub adopt: u64,
    /// Number of the last such order that was carried out.
    pub adopted: u64,

    /// Things of ours without a record, by platform and the platform's id. Observed.
    pub orphans: BTreeMap<(Sym, Box<str>), Orphan>,
    /// Nodes of this cluster id under another owner or under none, by platform and the platform's id. Observed.
    pub foreign: BTreeMap<(Sym, Box<str>), Foreign>,
    /// Complete reads, by platform. Observed.
    pub confirms: SmallMap<Sym, Call>,
}

impl State {
    /// Whether what platforms show of the cluster and has no record is to be taken in, because its user said so.
    #[must_use]
    pub fn adopts(&self) -> bool {
        self.adopt > self.adopted && !self.deleting
    }

    /// Whether a backend was given up, under whichever name of a platform, and is left alone.
    #[must_use]
    pub fn is_abandoned(&self, uid: &str) -> bool {
        self.abandoned.iter().any(|(_, own)| **own == *uid)
    }

    /// Whether a backend may be one that was given up: it is, or something was, and nothing of the cluster was ever made under
    /// this uid.
    #[must_use]
    pub fn may_be_abandoned(&self, uid: &str) -> bool {
        let made_there = || self.used.iter().any(|(_, own)| **own == *uid);
        self.is_abandoned(uid) || (!self.abandoned.is_empty() && !made_there())
    }

    /// The position of a slot in `nodes`.
    #[must_use]
    pub fn at(&self, slot: u64) -> Option<usize> {
        self.nodes
            .binary_search_by_key(&slot, |node| node.slot)
            .ok()
    }

    /// The node of a slot.
    #[must_use]
    pub fn node(&self, slot: u64) -> Option<&Node> {
        self.at(slot).map(|at| &self.nodes[at])
    }

    /// The node of a slot.
    pub fn node_mut(&mut self, slot: u64) -> Option<&mut Node> {
        self.at(slot).map(|at| &mut self.nodes[at])
    }
}

/// What a back-off is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackOffKey {
    /// Path of the group.
    pub group: Sym,
    /// Hash of what makes its nodes.
    pub spec_hash: Sym,
    /// Name of the platform.
    pub platform: Sym,
    /// What of it.
    pub subject: Subject,
}

impl BackOffKey {
    /// Of making nodes in a group by one choice.
    #[must_use]
    pub fn of(group: &Sym, spec_hash: &Sym, platform: &Sym) -> Self {
        Self {
            group: group.clone(),
            spec_hash: spec_hash.clone(),
            platform: platform.clone(),
            subject: Subject::Nodes,
        }
    }

    /// The same choice, and another subject of it.
    #[must_use]
    pub fn about(mut self, subject: Subject) -> Self {
        self.subject = subject;
        self
    }
}

/// What a back-off of a choice holds back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// All nodes.
    Nodes,
    /// All nodes, for want of capacity: meanwhile the group goes on with its next choice.
    Capacity,
    /// Those on one named machine.
    Host(Sym),
}

/// Why and until when nothing is tried.
#[derive(Clone, Debug, PartialEq)]
pub struct BackOff {
    /// What kind of failure it was.
    pub kind: BackOffKind,
    /// Failures in a row.
    pub failures: u32,
    /// When the last one was.
    pub last: Millis,
    /// Not before then.
    pub next: Millis,
    /// Etag of the platform then; a rejection is tried again when it changes.
    pub etag: Sym,
    /// Digest of the platform's template then; with another one nothing is known of what it makes. Empty: not known.
    pub template: Sym,
    /// Why, for people.
    pub message: Box<str>,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackOffKind {
    /// Nodes could not be made, or did not live long.
    Failure,
    /// The platform says that it cannot work as written.
    Rejected,
    /// The backend refuses the platform's credentials.
    Credentials,
    /// The platform has none of it now.
    NoCapacity,
}

/// The renewal of nodes of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Hash of what its first choice makes, and of what template: another one supersedes it.
    pub target: Sym,
    /// When it began.
    pub started: Millis,
    /// When it came on last.
    pub progress: Millis,
    /// Most nodes that were as wanted and available since then.
    pub ready: u32,
    /// Nodes that are still to be renewed.
    pub left: u32,
    /// Nodes that the group was to have when that was looked at last. 0: not known.
    pub size: u32,
    /// Nodes that are to go without a successor, because the group got smaller. Beyond these, who is too many stands
    /// beside one that it replaces.
    pub surplus: u32,
}

/// Which condition: of the cluster (empty group) or of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConditionKey {
    /// Path of the group. Empty: of the cluster.
    pub group: Sym,
    /// Its type.
    pub kind: ConditionKind,
}

/// Types of conditions that are recorded. Others follow from the record when somebody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "ClusterStatus and GroupStatus in the protos document each"
)]
pub enum ConditionKind {
    Ready,
    StoreBehind,
    ForeignNodes,
    DeletionBlocked,
    Rejected,
    PlatformUnavailable,
    NoCapacity,
    RemediationBlocked,
    ProbeUnreachable,
    Failed,
    Paused,
    Deleting,
    InfrastructureReady,
    InfrastructureFailed,
    WaitingForInfrastructure,
    UpdateBlocked,
    PromotionFailed,
    Orphans,
}

impl ConditionKind {
    /// Its name, as it travels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::StoreBehind => "StoreBehind",
            Self::ForeignNodes => "ForeignNodes",
            Self::DeletionBlocked => "DeletionBlocked",
            Self::Rejected => "Rejected",
            Self::PlatformUnavailable => "PlatformUnavailable",
            Self::NoCapacity => "NoCapacity",
            Self::RemediationBlocked => "RemediationBlocked",
            Self::ProbeUnreachable => "ProbeUnreachable",
            Self::Failed => "Failed",
            Self::Paused => "Paused",
            Self::Deleting => "Deleting",
            Self::InfrastructureReady => "InfrastructureReady",
            Self::InfrastructureFailed => "InfrastructureFailed",
            Self::WaitingForInfrastructure => "WaitingForInfrastructure",
            Self::UpdateBlocked => "UpdateBlocked",
            Self::PromotionFailed => "PromotionFailed",
            Self::Orphans => "Orphans",
        }
    }
}

/// A lasting state that holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Why, one word.
    pub reason: Sym,
    /// Why, for people.
    pub message: Box<str>,
    /// Since when.
    pub since: Millis,
}

/// A node of this cluster id that is not ours.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Foreign {
    /// Its id, which it keeps. Empty: not recorded.
    pub id: Box<str>,
    /// Its slot under its owner.
    pub former: Former,
    /// Path of its group. Empty: not recorded.
    pub group: Sym,
    /// Ordinal in its group.
    pub ordinal: Option<u32>,
    /// Its role, as its platform shows it.
    pub role: Role,
    /// Node class. Empty: not known.
    pub class: Sym,
    /// Store version. Empty: not known.
    pub version: Sym,
    /// Machine that it is. Empty: not known.
    pub host: Sym,
    /// Uid of the backend.
    pub platform_uid: Sym,
    /// When it was last shown.
    pub last: Millis,
}

/// A thing of ours without a record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Orphan {
    /// Its id. Empty: not recorded.
    pub id: Box<str>,
    /// Request that made it.
    pub request: Uuid,
    /// Index within it.
    pub index: u32,
    /// Sequence of the request. 0: not recorded.
    pub sequence: u64,
    /// Path of its group.
    pub group: Sym,
    /// Ordinal in its group.
    pub ordinal: u32,
    /// Its role, as its platform shows it.
    pub role: Role,
    /// Uid of the backend.
    pub platform_uid: Sym,
    /// Since when this process sees it.
    pub since: Millis,
    /// When it was last shown by a list or a watch.
    pub last: Millis,
    /// Hash of what made it. Empty: not recorded.
    pub spec_hash: Sym,
    /// Node class. Empty: not known.
    pub class: Sym,
    /// Store version. Empty: not known.
    pub version: Sym,
    /// What its platform shows.
    pub seen: Box<Seen>,
}
