//! The record of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{
    Millis, Node, Sym,
    node::{Call, Former, Request, Role, Seen, SoleChange},
    resource::{ResourceKey, ResourceRecord},
    storage::Policy,
};
use uuid::Uuid;

use crate::{Skipped, SmallMap, SmallSet};

/// An active node that may have acknowledged what nobody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sole {
    /// Slot of the node.
    pub slot: u64,
    /// Its ordinal: a node that gets its storage has its place.
    pub ordinal: u32,
}

/// What is recorded about a cluster, and what this process observes of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Uid of the cluster record, which platforms know as the owner.
    pub uid: Uuid,
    /// Generation of the spec.
    pub generation: u64,
    /// Observed generation: the one that the record reflects.
    pub observed_generation: u64,
    /// Whether its deletion was requested.
    pub deleting: bool,
    /// Whether all changes are paused.
    pub paused: bool,
    /// The next slot to assign.
    pub next_slot: u64,
    /// Sequence number of the next request.
    pub next_sequence: u64,
    /// Lower sequence numbers that were never assigned.
    pub skipped: Skipped,
    /// Nodes, sorted by slot.
    pub nodes: Vec<Node>,
    /// Slots of nodes that are being repaired by hand: they are not replaced for being sick.
    pub repairs: BTreeSet<u64>,
    /// Slots of nodes that were named when their group was scaled down: whenever and for whatever reason they go,
    /// storage that scaling retains is retained.
    pub scaled_away: BTreeSet<u64>,
    /// Slots of nodes of which a person has given up what they acknowledged alone.
    pub accepted_losses: BTreeSet<u64>,
    /// Open requests by id.
    pub requests: SmallMap<Uuid, Request>,
    /// Infrastructure and addons.
    pub resources: SmallMap<ResourceKey, ResourceRecord>,
    /// Present back-offs.
    pub backoffs: SmallMap<BackOffKey, BackOff>,
    /// Rollouts in progress, by path of the group.
    pub rollouts: SmallMap<Sym, Rollout>,
    /// Storage policies of groups, as specified now or last: they apply to the removal of nodes whose group is no
    /// longer in the spec.
    pub storage: SmallMap<Sym, Policy>,
    /// The most nodes at a time that groups with ordering constraints have had, by path of the group.
    pub grown: SmallMap<Sym, u32>,
    /// Ordinals that active nodes have vacated and no node has taken since: their storage holds the most recent writes.
    /// By path of the group.
    pub vacated: SmallMap<Sym, BTreeSet<u32>>,
    /// Active nodes that may have acknowledged what nobody else has, by path of the group.
    pub sole: SmallMap<Sym, Sole>,
    /// Conditions that hold.
    pub conditions: SmallMap<ConditionKey, Condition>,
    /// Every backend ever used: name of the platform, uid.
    pub used: SmallSet<(Sym, Sym)>,
    /// Abandoned backends. What they still show of the cluster is left alone.
    pub abandoned: SmallSet<(Sym, Sym)>,
    /// Number of the last order to adopt what platforms show of the cluster and has no record. 0 if there was none.
    pub adopt: u64,
    /// Number of the last such order that was carried out.
    pub adopted: u64,

    /// Our nodes without a record, by platform and the platform's id. Observed.
    pub orphans: BTreeMap<(Sym, Box<str>), Orphan>,
    /// Our infrastructure and addons without a record, or of requests that this record never gave out. Observed.
    pub resource_orphans: BTreeMap<ResourceKey, ResourceOrphan>,
    /// Nodes with this cluster id under another owner or none, by platform and the platform's id. Observed.
    pub foreign: BTreeMap<(Sym, Box<str>), Foreign>,
    /// Complete reads, by platform. Observed.
    pub confirms: SmallMap<Sym, Call>,
}

impl State {
    /// Whether to adopt what platforms show of the cluster and has no record, as requested by the user.
    #[must_use]
    pub fn adopts(&self) -> bool {
        self.adopt > self.adopted && !self.deleting
    }

    /// Whether a backend was abandoned and is left alone, under any name of a platform.
    #[must_use]
    pub fn is_abandoned(&self, uid: &str) -> bool {
        self.abandoned.iter().any(|(_, own)| **own == *uid)
    }

    /// Whether a backend may be an abandoned one: it is, or some backend was abandoned and nothing of the cluster was
    /// ever created under this uid.
    #[must_use]
    pub fn may_be_abandoned(&self, uid: &str) -> bool {
        let made_there = || self.used.iter().any(|(_, own)| **own == *uid);
        self.is_abandoned(uid) || (!self.abandoned.is_empty() && !made_there())
    }

    /// After a start: an earlier process may have allowed recorded sole writers to acknowledge alone.
    pub fn doubt_soles(&mut self) {
        let slots: Vec<u64> = self.sole.values().map(|sole| sole.slot).collect();
        for slot in slots {
            if let Some(node) = self.node_mut(slot) {
                node.in_flight.changes.sole = Some(Box::new(SoleChange::unknown()));
            }
        }
    }

    /// Position of a slot in `nodes`.
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

/// Identifies a back-off.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackOffKey {
    /// Path of the group.
    pub group: Sym,
    /// Hash of the spec of its nodes.
    pub spec_hash: Sym,
    /// Name of the platform.
    pub platform: Sym,
    /// What it holds back.
    pub subject: Subject,
}

impl BackOffKey {
    /// The back-off for creating nodes of a group by one choice.
    #[must_use]
    pub fn of(group: &Sym, spec_hash: &Sym, platform: &Sym) -> Self {
        Self {
            group: group.clone(),
            spec_hash: spec_hash.clone(),
            platform: platform.clone(),
            subject: Subject::Nodes,
        }
    }

    /// The same choice with another subject.
    #[must_use]
    pub fn about(mut self, subject: Subject) -> Self {
        self.subject = subject;
        self
    }
}

/// The part of a choice that a back-off holds back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// All nodes.
    Nodes,
    /// All nodes, for lack of capacity: meanwhile the group continues with its next choice.
    Capacity,
    /// Nodes on one named host.
    Host(Sym),
}

/// Suspends attempts after failures.
#[derive(Clone, Debug, PartialEq)]
pub struct BackOff {
    /// Kind of the last failure.
    pub kind: BackOffKind,
    /// Consecutive failures.
    pub failures: u32,
    /// Time of the last failure.
    pub last: Millis,
    /// Earliest time of the next attempt.
    pub next: Millis,
    /// Etag of the platform at that time; a rejected request is retried when it changes.
    pub etag: Sym,
    /// Digest of the platform's template at that time; the failure says nothing about nodes of another one. Empty if
    /// not known.
    pub template: Sym,
    /// Cause for people.
    pub message: Box<str>,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackOffKind {
    /// Nodes could not be created, or did not live long.
    Failure,
    /// The platform reports that the request cannot work as written.
    Rejected,
    /// The backend rejects the platform's credentials.
    Credentials,
    /// The platform has no capacity at present.
    NoCapacity,
}

/// Progress of a rollout of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Hash of the spec and template of the first choice: another target supersedes the rollout.
    pub target: Sym,
    /// Time of the start.
    pub started: Millis,
    /// Time of the last progress.
    pub progress: Millis,
    /// The most up-to-date and available nodes at a time since the start.
    pub ready: u32,
    /// Nodes that are still to be replaced.
    pub left: u32,
    /// Desired number of nodes when it was last looked at. 0 if not known.
    pub size: u32,
    /// Nodes that are to go without a replacement, because the group was scaled down. Any surplus beyond that exists
    /// beside a node that it replaces.
    pub surplus: u32,
}

/// Identifies a condition of the cluster or of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConditionKey {
    /// Path of the group. Empty for the cluster.
    pub group: Sym,
    /// Condition type.
    pub kind: ConditionKind,
}

/// Types of recorded conditions. Others are derived from the record on request.
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
    AddonsReady,
    AddonsFailed,
    HostLost,
    MaintenanceScheduled,
    Impaired,
}

impl ConditionKind {
    /// Name of the type in the API.
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
            Self::AddonsReady => "AddonsReady",
            Self::AddonsFailed => "AddonsFailed",
            Self::HostLost => "HostLost",
            Self::MaintenanceScheduled => "MaintenanceScheduled",
            Self::Impaired => "Impaired",
        }
    }
}

/// A condition that holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Cause as a single word.
    pub reason: Sym,
    /// Cause for people.
    pub message: Box<str>,
    /// Since when it holds.
    pub since: Millis,
}

/// A node with this cluster id that is not ours.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Foreign {
    /// Id of the node, which it keeps when adopted. Empty if not recorded.
    pub id: Box<str>,
    /// Its slot under its owner.
    pub former: Former,
    /// Path of its group. Empty if not recorded.
    pub group: Sym,
    /// Ordinal in its group. `None` if not recorded.
    pub ordinal: Option<u32>,
    /// Its role as reported by its platform.
    pub role: Role,
    /// Node class. Empty if not known.
    pub class: Sym,
    /// Store version. Empty if not known.
    pub version: Sym,
    /// Host of the node. Empty if not known.
    pub host: Sym,
    /// Uid of the backend.
    pub platform_uid: Sym,
    /// When it was last reported.
    pub last: Millis,
    /// How often its platform has said that it belongs to somebody else than it reports, and when it is asked again.
    pub call: Call,
}

/// Infrastructure or an addon of ours without a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceOrphan {
    /// Highest sequence number of a request that made a part of it. `None` if none is recorded.
    pub sequence: Option<u64>,
    /// Since when this process has observed it.
    pub since: Millis,
}

/// A node of ours without a record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Orphan {
    /// Id of the node. Empty if not recorded.
    pub id: Box<str>,
    /// Id of the request that created it.
    pub request: Uuid,
    /// Index within the request.
    pub index: u32,
    /// Sequence number of the request. 0 if not recorded.
    pub sequence: u64,
    /// Path of its group.
    pub group: Sym,
    /// Ordinal in its group.
    pub ordinal: u32,
    /// Its role as reported by its platform.
    pub role: Role,
    /// Uid of the backend.
    pub platform_uid: Sym,
    /// Since when this process has observed it.
    pub since: Millis,
    /// When a list or watch last reported it.
    pub last: Millis,
    /// Hash of the spec that it was created from. Empty if not recorded.
    pub spec_hash: Sym,
    /// Node class. Empty if not known.
    pub class: Sym,
    /// Store version. Empty if not known.
    pub version: Sym,
    /// Other observations of its platform.
    pub seen: Box<Seen>,
}
