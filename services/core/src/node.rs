//! Node records: what was requested, and what platforms and probes report, in a compact form.

use uuid::Uuid;

use crate::{
    name::{self, Sym},
    storage::Retention,
};

/// Milliseconds since the Unix epoch, from the clock that the caller passes in.
pub type Millis = u64;

/// A slot, identified by (request, index) and created at most once.
///
/// The fields above `seen` are durable; the fields from `seen` on are known to this process only.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Slot number in the cluster, starting at 1, never reused.
    pub slot: u64,
    /// The Provision request that asks for it.
    pub request: Uuid,
    /// Index within that request.
    pub index: u32,
    /// Ordinal within its group.
    pub ordinal: u32,
    /// Sequence of the request.
    pub sequence: u64,
    /// Path of its group.
    pub group: Sym,
    /// Name of its platform.
    pub platform: Sym,
    /// Uid of the backend on which it runs.
    pub platform_uid: Sym,
    /// Node class. Empty for the platform's default.
    pub class: Sym,
    /// Named machine that it is bound to. Empty for any.
    pub host: Sym,
    /// Store version. Empty if none.
    pub version: Sym,
    /// Hash of the fields that define it.
    pub spec_hash: Sym,
    /// Hash of the labels that its host has for its group. Empty if there are none, [`CHANGING`] if they are not
    /// known: as of an adopted node, and from the intent to change them until the platform has confirmed the change.
    pub labels_hash: Sym,
    /// Digest of the template under which it was requested, or from which the platform reported that it was created.
    /// Empty if not known.
    pub template: Sym,
    /// Number of attempts so far to create a node in this position, including this one.
    pub attempts: u32,
    /// When the intent was recorded.
    pub create_time: Millis,
    /// Current state.
    pub state: NodeState,
    /// When it entered that state.
    pub state_time: Millis,
    /// Reason of the state, one word.
    pub reason: Sym,
    /// Human-readable explanation of the state.
    pub message: Box<str>,
    /// Whether a user requested its replacement.
    pub marked: bool,
    /// Whether it was Ready for the group's `stable_after`.
    pub stable: bool,
    /// Intended role in its group.
    pub role: Role,
    /// Whether it was requested with storage.
    pub storage: bool,
    /// The platform's id of the node.
    pub node_id: Option<Box<str>>,
    /// For adopted nodes: the id that the node was created with and that its agent reports, if it differs from the id
    /// of the slot.
    pub given_id: Option<Box<str>>,
    /// Removal intent; irrevocable.
    pub removal: Option<Removal>,
    /// From when on no call can create it any more: the deadline of the last attempt. 0 while its request is open.
    pub settled: Millis,
    /// Until when the backend may still create it. 0 while its request is open.
    pub maybe_until: Millis,
    /// Where it was last reached, for addons while its platform does not show it. `None` if no addon has it as a target.
    pub reached: Option<Box<Reached>>,
    /// Previous owner, until the platform has assigned this slot to the node. `None` once it has.
    pub adoption: Option<Box<Former>>,

    /// State as reported by the platform.
    pub seen: Seen,
    /// State as reported by the probe.
    pub probe: ProbeResult,
    /// The pending call for this node: its removal, or before that its pre-stop hook.
    pub call: Call,
    /// Pending role change. `None` if none is pending and none has failed since the node got its role.
    pub role_change: Option<Box<RoleChange>>,
    /// Pending change of the labels of its host. `None` if none is pending.
    pub relabel: Option<Box<Relabel>>,
    /// Result of the hook, until the owner has processed it.
    pub hook: Option<Box<HookResult>>,
}

/// Stands for labels of a host that are not known: they are once the platform has confirmed a change.
pub const CHANGING: &str = "?";

/// Progress of this process with a change of the labels of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relabel {
    /// Whether a call is in flight, how many attempts failed, and when the next one may start.
    pub call: Call,
    /// Hash of the labels that the platform has confirmed.
    pub done: Option<Sym>,
    /// Human-readable cause of the last failure.
    pub message: Box<str>,
}

/// Role of a node in its group. It is not covered by the spec hash, so that a role change replaces nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Serves the workload.
    #[default]
    Active,
    /// Being promoted: the intent is durable, but the platform and the node may not know it yet.
    Promoting,
    /// Returning to standby after a refused promotion: the platform may still report it as active.
    Demoting,
    /// Available for promotion.
    Standby,
}

impl Role {
    /// Whether the node serves the workload of its group, or may already or still do so.
    #[must_use]
    pub fn may_act(self) -> bool {
        self != Self::Standby
    }
}

/// Progress of this process with a role change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleChange {
    /// Whether a call is in flight, how many attempts failed, and when the next one may start.
    pub call: Call,
    /// Platform and node have both accepted the role.
    pub done: bool,
    /// A failed attempt may nevertheless have made the node active: its outcome is unknown, or an earlier process made
    /// it.
    pub doubt: bool,
    /// All attempts prove that the node did not become active: the platform refused, or the hook failed.
    pub refused: bool,
    /// Human-readable cause of the last failure.
    pub message: Box<str>,
}

impl RoleChange {
    /// Records a failed attempt. `refused` means that it had no effect at all.
    pub fn failed(&mut self, refused: bool, why: &str) {
        self.doubt |= !refused;
        self.refused = !self.doubt;
        self.call.failures = self.call.failures.saturating_add(1);
        self.message = why.into();
    }
}

/// Result of a hook in a node; the error is human-readable.
pub type HookResult = Result<(), Box<str>>;

/// The slot that a node has until it is adopted, as its platform reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Former {
    /// Owner. Empty if it has no slot at all.
    pub owner: Box<str>,
    /// Request that created it.
    pub request: Box<str>,
    /// Index within that request.
    pub index: Option<u32>,
}

/// Intent to remove a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Why it is removed.
    pub reason: RemovalReason,
    /// When the removal was decided.
    pub since: Millis,
    /// Whether its storage is retained. Irrelevant for nodes without storage.
    pub retain: bool,
    /// Until when to wait for the pre-stop hook. 0 if there is nothing to wait for.
    pub drain: Millis,
}

/// Why a node is removed, in the order in which the disruption budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RemovalReason {
    /// Requested by a user, or its group or cluster is deleted.
    User,
    /// The backend reports it dead.
    Dead,
    /// Its probes fail, or it did not start in time.
    Sick,
    /// It no longer matches its group.
    Outdated,
    /// It has reached its group's maximum lifetime.
    Lifetime,
    /// The group has more nodes than desired.
    Surplus,
    /// It is ours but has no record.
    Orphan,
}

impl RemovalReason {
    /// The reason as it appears in events, calls and records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "User",
            Self::Dead => "Dead",
            Self::Sick => "Sick",
            Self::Outdated => "Outdated",
            Self::Lifetime => "Lifetime",
            Self::Surplus => "Surplus",
            Self::Orphan => "Orphan",
        }
    }
}

/// State of a node: first the states of a trouble-free lifecycle in order, then the others. There is no `Unknown` in
/// the record; it is derived from the observations when the state is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeState {
    /// The intent is durable; the platform may or may not know about it.
    Requested,
    /// The platform has accepted it.
    Provisioning,
    /// Running, but not healthy yet.
    Starting,
    /// Running and healthy.
    Ready,
    /// About to be removed.
    Draining,
    /// The platform was asked to remove it.
    Deprovisioning,
    /// Running, but its probes fail.
    Unhealthy,
    /// It could not be created, or it died.
    Failed,
}

/// Lifecycle phase of a node as reported by the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not observed yet by this process.
    #[default]
    Unseen,
    /// Accepted or partially created.
    Pending,
    /// Running.
    Running,
    /// Exists but is not running, without having been asked to stop.
    Stopped,
    /// Being removed.
    Deprovisioning,
    /// Died, or will never run.
    Failed,
    /// Gone for good according to the backend: proof of absence.
    Terminated,
    /// Known to exist, but not readable.
    Unknown,
}

/// A node as reported by its platform.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The platform's id, as long as the record does not have it. Empty if not reported or already recorded.
    pub node_id: Box<str>,
    /// Lifecycle phase.
    pub phase: Phase,
    /// The backend's own readiness. `None` if the backend has no such concept.
    pub ready: Option<bool>,
    /// When it was last reported. 0 if never, in this process.
    pub last: Millis,
    /// Start of the most recent complete read that lacked it, both in the list and by id. 0 if there is none.
    pub missing_from: Millis,
    /// Whether its agent did not respond at the time of that read.
    pub silent: bool,
    /// The backend itself reported it gone.
    pub gone: bool,
    /// A watch reported that it is no longer listed, which proves nothing.
    pub unlisted: bool,
    /// Only responses to calls have reported it so far, no list or watch that would notice when it disappears.
    pub unproven: bool,
    /// It counts as one of the nodes that vanished from its platform, until it is reported again.
    pub vanished: bool,
    /// Failure domain. Empty if not known.
    pub failure_domain: Sym,
    /// Named ports as (name, `host:port`).
    pub endpoints: Box<[(Sym, Box<str>)]>,
    /// Address for probes. Empty if it cannot be probed.
    pub agent_address: Box<str>,
    /// Provider id shared across tools. Empty if not known.
    pub provider_id: Box<str>,
    /// Explanation of the phase, in the backend's words.
    pub message: Box<str>,
    /// All its addresses.
    pub addresses: Box<[SeenAddress]>,
    /// The claimed host.
    pub host_id: Option<Box<str>>,
    /// The machine that a created node is on, while nobody there answers for it. `None` if one does, or if the platform
    /// does not tell.
    pub lost_host: Option<Box<LostHost>>,
}

/// A machine on which nobody answers for a node. It proves nothing about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostHost {
    /// Name at the backend.
    pub name: Box<str>,
    /// Whether the backend, or a person, has given it up: the backend removes what was there.
    pub gone: bool,
    /// Why it counts as lost and since when, in the backend's words.
    pub message: Box<str>,
    /// What a person does so that the backend proves the node dead. Empty for nothing.
    pub way_out: Box<str>,
}

/// Where a node is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// All its addresses.
    pub addresses: Box<[SeenAddress]>,
    /// Named ports as (name, `host:port`).
    pub endpoints: Box<[(Sym, Box<str>)]>,
}

/// One address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenAddress {
    /// Kind of the address, a value of `common.v1.AddressType`.
    pub kind: i32,
    /// IP address or DNS name.
    pub value: Box<str>,
    /// Network interface. Empty if not known.
    pub interface: Sym,
}

/// Results of the network probes of a node since this process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResult {
    /// Consecutive successful probes, at most 255.
    pub good: u8,
    /// Consecutive failed probes, at most 255.
    pub bad: u8,
    /// Whether any probe was ever answered.
    pub answered: bool,
    /// Cause of the last failure.
    pub message: Box<str>,
}

/// A call for a node that is in flight or waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Whether the call is in flight.
    pub in_flight: bool,
    /// Consecutive failed attempts.
    pub failures: u8,
    /// Earliest time of the next attempt.
    pub next: Millis,
}

/// A Provision request, from its intent until it is closed.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Idempotency key.
    pub id: Uuid,
    /// Sequence number in the cluster, starting at 1.
    pub sequence: u64,
    /// Path of its group.
    pub group: Sym,
    /// Name of its platform.
    pub platform: Sym,
    /// Uid of the backend.
    pub platform_uid: Sym,
    /// Node class.
    pub class: Sym,
    /// Hash of the fields that define its nodes.
    pub spec_hash: Sym,
    /// When it was first sent.
    pub first_sent: Millis,
    /// Deadline of the last attempt.
    pub deadline: Millis,
    /// Number of attempts whose intent was recorded.
    pub attempts: u32,
    /// Number of attempts that are known to have created nothing.
    pub made_nothing: u32,

    /// Whether this process has ever sent it.
    pub sent: bool,
    /// The call in flight, and when the next one may start.
    pub call: Call,
    /// Result of the last call, until the owner has processed it.
    pub answer: Option<Answer>,
    /// Digest of the template from which its nodes were created, as reported by the platform. `None` if not reported.
    pub rendered: Option<Sym>,
}

/// The result of a Provision call.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// When the call ended.
    pub at: Millis,
    /// Whether the record already reflects it.
    pub taken: bool,
    /// The outcome of each index of the request, or the error of the whole call.
    pub outcome: Result<Vec<Outcome>, crate::Error>,
}

/// The outcome of one index of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It exists under this id.
    Made(Box<str>),
    /// It does not exist and never will.
    Failed(crate::Error),
    /// The platform cannot tell.
    Unknown(crate::Error),
}

impl Node {
    /// Restores the conservative assumption about a pending role change after a restart: an earlier process may have
    /// made the node active.
    pub fn resume_turn(&mut self) {
        let doubt = || RoleChange {
            doubt: true,
            ..RoleChange::default()
        };
        self.role_change = (self.role == Role::Promoting).then(|| Box::new(doubt()));
    }

    /// The name of the node (`data-hot-1`).
    #[must_use]
    pub fn name(&self) -> String {
        name::node_name(&self.group, self.ordinal)
    }

    /// The id of the node (`data-hot-1-x7k2p`), derived from the uid of its cluster.
    #[must_use]
    pub fn id(&self, owner: Uuid) -> String {
        if let Some(given) = &self.given_id {
            return given.to_string();
        }
        name::node_id(&self.group, self.ordinal, owner, self.request, self.index)
    }

    /// Keeps the id with which the node was created. `id` is empty if not known.
    pub fn keep_id(&mut self, id: &str, owner: Uuid) {
        if !id.is_empty() && id != self.id(owner) {
            self.given_id = Some(id.into());
        }
    }

    /// Whether the backend has proven that it does not run any more.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state == NodeState::Failed
            || self
                .removal
                .is_some_and(|r| r.reason == RemovalReason::Dead)
    }

    /// Whether its storage is retained or deleted. `None` if it has no storage or is not being removed.
    #[must_use]
    pub fn fate_of_storage(&self) -> Option<Retention> {
        let removal = self.removal.filter(|_| self.storage)?;
        Some(Retention::of(removal.retain))
    }

    /// Whether its platform still has to assign this slot to it. Until then its state is unknown and nothing is done to
    /// it.
    #[must_use]
    pub fn is_adopting(&self) -> bool {
        self.adoption.is_some()
    }

    /// Whether the platform is known to have accepted it.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.node_id.is_some()
    }
}
