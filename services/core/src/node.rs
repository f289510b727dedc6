//! Nodes: what was asked for, and what platforms and probes show of it, in one compact record.

use uuid::Uuid;

use crate::{
    name::{self, Sym},
    storage::Retention,
};

/// Milliseconds since the Unix epoch, by the clock that is passed in.
pub type Millis = u64;

/// One slot: (request, index), made at most once.
///
/// The upper part is durable; `seen`, `probe` and `call` are what this process knows.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Number in the cluster, from 1, never reused.
    pub slot: u64,
    /// Request that asks for it.
    pub request: Uuid,
    /// Index within that request.
    pub index: u32,
    /// Ordinal in its group.
    pub ordinal: u32,
    /// Sequence of the request.
    pub sequence: u64,
    /// Path of its group.
    pub group: Sym,
    /// Name of its platform.
    pub platform: Sym,
    /// Uid of the backend that it is on.
    pub platform_uid: Sym,
    /// Node class. Empty: the platform's default.
    pub class: Sym,
    /// Named machine that it is for. Empty: any.
    pub host: Sym,
    /// Store version. Empty: none.
    pub version: Sym,
    /// Hash of what makes it.
    pub spec_hash: Sym,
    /// Digest of the template that it was asked for under, or by its platform's word was made from. Empty: not known.
    pub template: Sym,
    /// Attempts to make a node in this place so far, this one included.
    pub attempts: u32,
    /// When its intent was recorded.
    pub create_time: Millis,
    /// State.
    pub state: NodeState,
    /// Since when.
    pub state_time: Millis,
    /// Why it is in this state, one word.
    pub reason: Sym,
    /// Why, for people.
    pub message: Box<str>,
    /// Whether its user asked to replace it.
    pub marked: bool,
    /// Whether it was Ready for as long as its group calls stable.
    pub stable: bool,
    /// What it is in its group, by intent.
    pub role: Role,
    /// Whether it was asked for with storage.
    pub storage: bool,
    /// The platform's own id of it.
    pub node_id: Option<Box<str>>,
    /// The id with which it was made and which its agent answers, if that is not the one of its slot: it was adopted.
    pub given_id: Option<Box<str>>,
    /// Intent to remove it; irrevocable.
    pub removal: Option<Removal>,
    /// From when on no call can make it any more: the deadline of the last attempt. 0: its request is open.
    pub settled: Millis,
    /// Until when the backend may still bring it into being. 0: its request is open.
    pub maybe_until: Millis,
    /// Whose it is until its platform has given it this slot. Absent: it has it.
    pub adoption: Option<Box<Former>>,

    /// What its platform shows.
    pub seen: Seen,
    /// What its probe shows.
    pub probe: ProbeResult,
    /// The call about it that is under way: its removal, or before that the hook in it.
    pub call: Call,
    /// The change of its role. Absent: none is under way, and none failed since it had the role.
    pub turn: Option<Box<Turn>>,
    /// How the hook in it ended, until the owner has taken it in.
    pub hook: Option<Box<HookResult>>,
}

/// What a node is in its group. Outside the spec hash: a change of it replaces nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Does the work.
    #[default]
    Active,
    /// To become active: the intent is durable; its platform and the node itself may or may not know of it.
    Promoting,
    /// To become standby again, after its promotion was refused: its platform may still show it as active.
    Demoting,
    /// Ready to be promoted.
    Standby,
}

impl Role {
    /// Whether the node does the work of its group, or may do so already or still.
    #[must_use]
    pub fn may_act(self) -> bool {
        self != Self::Standby
    }
}

/// How far this process is with the change of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Whether a call is under way, how often it failed, and when the next one may be.
    pub call: Call,
    /// Platform and node have taken the role.
    pub done: bool,
    /// Some attempt may have made the node active, though it failed: its outcome is unknown, or an earlier process
    /// made it.
    pub doubt: bool,
    /// Every attempt proves that the node did not become active: the platform refused, or the hook said no.
    pub refused: bool,
    /// Why the last one failed, for people.
    pub message: Box<str>,
}

impl Turn {
    /// Takes in that an attempt failed. `refused`: nothing of it happened.
    pub fn failed(&mut self, refused: bool, why: &str) {
        self.doubt |= !refused;
        self.refused = !self.doubt;
        self.call.failures = self.call.failures.saturating_add(1);
        self.message = why.into();
    }
}

/// How a hook in a node ended; why not well, for people.
pub type HookResult = Result<(), Box<str>>;

/// The slot that a node has until it is adopted, as its platform shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Former {
    /// Owner. Empty: it has no slot at all.
    pub owner: Box<str>,
    /// Request that made it.
    pub request: Box<str>,
    /// Index within that request.
    pub index: Option<u32>,
}

/// Intent to remove a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Why.
    pub reason: RemovalReason,
    /// Since when.
    pub since: Millis,
    /// Whether its storage is kept. Of no account for a node without storage.
    pub retain: bool,
    /// Until when it waits for the hook in the node. 0: it does not, or not any more.
    pub drain: Millis,
}

/// Why a node is removed, in the order in which a budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RemovalReason {
    /// Its user, its group's or its cluster's end.
    User,
    /// The backend says that it died.
    Dead,
    /// Its probes fail, or it did not start in time.
    Sick,
    /// It is not what its group wants any more.
    Outdated,
    /// It has lived for as long as its group lets it.
    Lifetime,
    /// More than wanted.
    Surplus,
    /// Of ours, and without a record.
    Orphan,
}

impl RemovalReason {
    /// The word in events, calls and records.
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

/// States of a node, in the order of a life without trouble, then the others. Unknown is no state of the record: it
/// follows from what is visible when somebody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeState {
    /// The intent is durable; the platform may or may not know of it.
    Requested,
    /// The platform has accepted it.
    Provisioning,
    /// It runs and is not healthy yet.
    Starting,
    /// It runs and is healthy.
    Ready,
    /// It will be removed.
    Draining,
    /// Its removal was asked of the platform.
    Deprovisioning,
    /// It runs, and its probes fail.
    Unhealthy,
    /// It could not be made, or it died.
    Failed,
}

/// How far a node is, as the backend sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not seen yet by this process.
    #[default]
    Unseen,
    /// Accepted or half-made.
    Pending,
    /// Running.
    Running,
    /// Exists, does not run and was not asked to go.
    Stopped,
    /// Being removed.
    Deprovisioning,
    /// Died or will never run.
    Failed,
    /// Ended for good, by the backend's own word: proof of absence.
    Terminated,
    /// Known to exist, but not readable.
    Unknown,
}

/// What a platform shows of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The platform's id of it, while the record does not have it. Empty: not shown, or recorded.
    pub node_id: Box<str>,
    /// Its phase.
    pub phase: Phase,
    /// The backend's own readiness. Absent: the backend has none.
    pub ready: Option<bool>,
    /// When it was last shown. 0: never, by this process.
    pub last: Millis,
    /// Beginning of the newest complete read that lacks it, by list and by id. 0: none.
    pub missing_from: Millis,
    /// Its agent did not answer when that read was made.
    pub silent: bool,
    /// The backend itself said that it is gone.
    pub gone: bool,
    /// A watch said that it is no longer listed, which proves nothing.
    pub unlisted: bool,
    /// Only answers to calls have shown it yet: no list or watch that would tell when it is gone.
    pub unproven: bool,
    /// It counts among the nodes that vanished from its platform, until it is shown again.
    pub vanished: bool,
    /// Failure domain. Empty: not known.
    pub failure_domain: Sym,
    /// Named ports: name, host:port.
    pub endpoints: Box<[(Sym, Box<str>)]>,
    /// Where it can be probed. Empty: nowhere.
    pub agent_address: Box<str>,
    /// Id across tools. Empty: not known.
    pub provider_id: Box<str>,
    /// Why it is in this phase, in the backend's words.
    pub message: Box<str>,
    /// All its addresses.
    pub addresses: Box<[SeenAddress]>,
    /// Claimed host.
    pub host_id: Option<Box<str>>,
}

/// One address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenAddress {
    /// What kind of address it is, as in `common.v1.AddressType`.
    pub kind: i32,
    /// IP address or name.
    pub value: Box<str>,
    /// Network interface. Empty: not known.
    pub interface: Sym,
}

/// What the network probes of a node have shown since this process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResult {
    /// Good probes in a row, at most 255.
    pub good: u8,
    /// Failed probes in a row, at most 255.
    pub bad: u8,
    /// Whether it ever answered.
    pub answered: bool,
    /// Why the last one failed.
    pub message: Box<str>,
}

/// A call about a node that is under way or waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Whether it is under way.
    pub in_flight: bool,
    /// Failed attempts in a row.
    pub failures: u8,
    /// Not before then.
    pub next: Millis,
}

/// One Provision request, from its intent until it is closed.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Idempotency key.
    pub id: Uuid,
    /// Number in the cluster, from 1.
    pub sequence: u64,
    /// Path of its group.
    pub group: Sym,
    /// Name of its platform.
    pub platform: Sym,
    /// Uid of the backend.
    pub platform_uid: Sym,
    /// Node class.
    pub class: Sym,
    /// Hash of what makes its nodes.
    pub spec_hash: Sym,
    /// When it was first sent.
    pub first_sent: Millis,
    /// Deadline of the last attempt.
    pub deadline: Millis,
    /// Attempts whose intent was recorded.
    pub attempts: u32,
    /// Attempts that are known to have made nothing.
    pub made_nothing: u32,

    /// Whether this process has ever sent it.
    pub sent: bool,
    /// Whether a call is under way, and when the next one may be.
    pub call: Call,
    /// What the last call answered, until the owner has taken it in.
    pub answer: Option<Answer>,
    /// Digest of the template that its nodes were made from, by the platform's word. Absent: it did not say.
    pub rendered: Option<Sym>,
}

/// What a Provision call answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// When.
    pub at: Millis,
    /// Whether the record shows it already.
    pub taken: bool,
    /// For each index of the request, or the error of the whole call.
    pub outcome: Result<Vec<Outcome>, crate::Error>,
}

/// What became of one index of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It exists under this id.
    Made(Box<str>),
    /// It does not exist and never will.
    Failed(crate::Error),
    /// The platform cannot say.
    Unknown(crate::Error),
}

impl Node {
    /// What a process that begins has to believe of the change of its role: an earlier one may have made it active.
    pub fn resume_turn(&mut self) {
        let doubt = || Turn {
            doubt: true,
            ..Turn::default()
        };
        self.turn = (self.role == Role::Promoting).then(|| Box::new(doubt()));
    }

    /// Its name (`data-hot-1`).
    #[must_use]
    pub fn name(&self) -> String {
        name::node_name(&self.group, self.ordinal)
    }

    /// Its id (`data-hot-1-x7k2p`), given the uid of its cluster.
    #[must_use]
    pub fn id(&self, owner: Uuid) -> String {
        if let Some(given) = &self.given_id {
            return given.to_string();
        }
        name::node_id(&self.group, self.ordinal, owner, self.request, self.index)
    }

    /// Has it keep the id with which it was made. Empty: not known.
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

    /// What becomes of its storage. None: it has none, or does not go.
    #[must_use]
    pub fn fate_of_storage(&self) -> Option<Retention> {
        let removal = self.removal.filter(|_| self.storage)?;
        Some(Retention::of(removal.retain))
    }

    /// Whether its platform still has to give it this slot: nothing is known of it yet, and nothing is done to it.
    #[must_use]
    pub fn is_adopting(&self) -> bool {
        self.adoption.is_some()
    }

    /// Whether it is known that the platform accepted it.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.node_id.is_some()
    }
}
