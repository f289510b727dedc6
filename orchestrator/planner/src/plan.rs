//! What a plan depends on, and what it says.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{
    Millis, Node, NodeState, Sym,
    infrastructure::{Asked, Infrastructure, Wanted},
    node::{RemovalReason, Request, Role},
    spec::{Budget, Group, OrphanPolicy},
};
use uuid::Uuid;

use crate::{
    BackOff, BackOffKey, BackendKey, Condition, ConditionKey, InfrastructureChange, Leaving,
    PlatformView, Rollout, State,
};

/// Everything that a plan depends on.
pub struct Input<'a> {
    /// The time.
    pub now: Millis,
    /// When this process began to observe. What an earlier one saw counts for no deadline that ends in a deletion.
    pub process_start: Millis,
    /// The groups wanted. Empty when the cluster is being deleted.
    pub groups: &'a [Group],
    /// The infrastructure wanted; of no account when the cluster is being deleted.
    pub infrastructure: &'a [Wanted],
    /// Defaults for the health of groups that say nothing, by position in `groups`; from their templates.
    pub health_defaults: &'a [Option<drover_core::spec::Health>],
    /// Groups that are wanted no more and whose nodes go in an order.
    pub leaving: &'a [Leaving],
    /// What becomes of orphans.
    pub orphans: OrphanPolicy,
    /// How long an orphan is seen first.
    pub orphan_grace: Millis,
    /// Whether a restored store still waits for a person to confirm before orphans are swept.
    pub orphan_hold: bool,
    /// The record and what was observed of it.
    pub state: &'a State,
    /// The platforms, by the name under which they are registered.
    pub platforms: &'a BTreeMap<Sym, PlatformView>,
    /// What requests take in the store.
    pub sizes: &'a dyn Sizes,
    /// Whether the report is wanted.
    pub explain: bool,
}

/// What requests take in the store, in bytes. A plan that would be more than one step of the store can hold stops before.
pub trait Sizes {
    /// One that is made for a group by a choice, both by position in the input. An upper bound.
    fn request(&self, group: usize, choice: usize) -> usize;
    /// One that is open.
    fn open(&self, request: &Uuid) -> usize;
}

/// Of no account.
impl Sizes for () {
    fn request(&self, _: usize, _: usize) -> usize {
        0
    }

    fn open(&self, _: &Uuid) -> usize {
        0
    }
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Operations on the record, in order; durable before any call is made.
    pub ops: Vec<Op>,
    /// Calls to make once the operations are durable.
    pub calls: Vec<Call>,
    /// When to plan again even if nothing happens. Absent: not before something happens.
    pub wake: Option<Millis>,
    /// There is more to do right after this plan.
    pub again: bool,
    /// A deleted cluster is proven absent everywhere; its record can go.
    pub finished: bool,
    /// What every group and node is doing, or why it waits; only if asked for.
    pub report: Vec<Note>,
    /// Groups of which nodes are to be renewed; only if asked for.
    pub renewals: Vec<Renewal>,
}

impl Plan {
    /// Whether nothing is to be done now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.calls.is_empty() && !self.finished
    }
}

/// One operation on the record.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A node is in another state.
    StateChanged {
        /// Its slot.
        slot: u64,
        /// The state.
        state: NodeState,
        /// Why, one word.
        reason: &'static str,
        /// Why, for people.
        message: Box<str>,
        /// Whether it has been Ready for as long as its group calls stable.
        stable: bool,
    },
    /// The platform has said under which id it has a node.
    NodeIdAssigned {
        /// Its slot.
        slot: u64,
        /// The id.
        node_id: Box<str>,
    },
    /// Nodes are asked for: the intent, and the first attempt.
    Request {
        /// The request.
        request: Box<Request>,
        /// Its nodes, in the order of their indexes.
        nodes: Vec<Node>,
        /// Position of its group in the input.
        group: usize,
        /// Position of the choice in the group.
        choice: usize,
        /// Why, one word: ScaleUp, Replace or Update.
        reason: &'static str,
    },
    /// An open request is sent again.
    Attempt {
        /// The request.
        request: Uuid,
        /// Deadline of the attempt.
        deadline: Millis,
    },
    /// The last attempt of a request is known to have made nothing.
    MadeNothing {
        /// The request.
        request: Uuid,
    },
    /// A request is closed: it is never sent again.
    Close {
        /// The request.
        request: Uuid,
        /// Until when the backend may still make its nodes.
        maybe_until: Millis,
        /// From when on no call can make them.
        settled: Millis,
    },
    /// A node is to be removed; irrevocable.
    Remove {
        /// Its slot.
        slot: u64,
        /// Why.
        reason: RemovalReason,
        /// Whether its storage is kept.
        retain: bool,
    },
    /// A node that is to be removed is drained first, or has been.
    Drain {
        /// Its slot.
        slot: u64,
        /// Until when its removal waits. 0: the drain is over.
        until: Millis,
        /// What went wrong with it, for people.
        failed: Option<Box<str>>,
    },
    /// A node is proven absent; its record goes.
    RecordDropped {
        /// Its slot.
        slot: u64,
        /// Why it went, one word.
        reason: &'static str,
        /// What happened, for people.
        message: Box<str>,
        /// Whether nobody had asked for that.
        lost: bool,
    },
    /// A thing without a record gets one: in order to be removed, or to be kept as a node of its group.
    TakeOrphan {
        /// The record. With its removal: it is to go. With an adoption: its platform has to be told first.
        node: Box<Node>,
    },
    /// A node has the slot for which it was adopted.
    Own {
        /// Its slot.
        slot: u64,
    },
    /// An order to adopt was carried out.
    Adopted {
        /// Its number.
        order: u64,
    },
    /// A back-off changes, or ends.
    BackOff {
        /// Of what.
        key: BackOffKey,
        /// What it is from now on.
        to: Option<BackOff>,
    },
    /// A condition begins, changes its words or ends.
    Condition {
        /// Which one.
        key: ConditionKey,
        /// What it says from now on. Absent: it does not hold.
        to: Option<Condition>,
    },
    /// A node gets the present hash of what made it: only the formula has changed.
    Restamp {
        /// Its slot.
        slot: u64,
        /// The hash.
        spec_hash: Sym,
    },
    /// The platform has said which template it made a node from, and it is not the one that was expected.
    Template {
        /// Its slot.
        slot: u64,
        /// Digest of the template. Empty: not known.
        digest: Sym,
    },
    /// A node is to have another role, or has it: [`Role::Promoting`] and [`Role::Demoting`] are intents.
    RoleChange {
        /// Its slot.
        slot: u64,
        /// The role.
        role: Role,
    },
    /// The renewal of nodes of a group begins, comes on or ends.
    Rollout {
        /// Path of the group.
        group: Sym,
        /// How far it is from now on. Absent: nothing is left to be renewed.
        to: Option<Rollout>,
    },
    /// A group whose nodes come in an order has had so many of them at a time.
    PeakSizeChanged {
        /// Path of the group.
        group: Sym,
        /// How many. Absent: of no account any more.
        to: Option<u32>,
    },
    /// Active nodes have left their storage behind, or it has been taken over, or somebody else acts by now.
    Vacated {
        /// Path of the group.
        group: Sym,
        /// Ordinals whose storage has what was written last. Empty: of no account any more.
        to: BTreeSet<u32>,
    },
    /// The record of infrastructure changes, or ends.
    Infrastructure {
        /// Which backend it is on.
        key: BackendKey,
        /// What it is from now on. Absent: its record goes.
        to: Option<Box<Infrastructure>>,
        /// What that is.
        change: InfrastructureChange,
    },
    /// A backend shows another uid and is the same one: records that say to be on it say the new uid.
    Rebind {
        /// Name of the platform.
        platform: Sym,
        /// Uid before.
        from: Sym,
        /// Uid from now on.
        to: Sym,
        /// Slots that it is about.
        slots: Vec<u64>,
        /// Open requests that it is about.
        requests: Vec<Uuid>,
        /// Whether nothing is left under the old uid.
        last: bool,
    },
    /// A backend is given up, with what it was last seen to have.
    Abandon {
        /// Name of the platform.
        platform: Sym,
        /// Uid of the backend.
        uid: Sym,
        /// Whether what it may show after all is left alone. Said by the first of several steps: what one of them drops
        /// is without a record from then on.
        keep: bool,
        /// Whether nothing of it is left.
        last: bool,
    },
    /// What a backend shows after it was given up is swept after all.
    Sweep {
        /// Uid of the backend.
        uid: Sym,
        /// Name of the platform that shows it now. Absent: none does.
        shown_by: Option<Sym>,
    },
    /// The record is about this generation from now on.
    Observed {
        /// The generation.
        generation: u64,
    },
}

/// One call to a platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Sends a request.
    Provision {
        /// The request.
        request: Uuid,
        /// Deadline.
        deadline: Millis,
    },
    /// Asks for the removal of a node.
    Deprovision {
        /// Its slot.
        slot: u64,
    },
    /// Has a node take the role that its record intends.
    RoleChange {
        /// Its slot.
        slot: u64,
    },
    /// Runs the hook inside a node before its removal.
    Drain {
        /// Its slot.
        slot: u64,
        /// Until when.
        until: Millis,
    },
    /// Reads a platform completely, to find out whether slots are absent.
    Confirm {
        /// The platform.
        platform: Sym,
    },
    /// Asks a platform to give a foreign node its slot here.
    Adopt {
        /// The slot.
        slot: u64,
    },
    /// Asks about infrastructure: that it be made or freed, or what there is of it.
    Infrastructure {
        /// The platform.
        platform: Sym,
        /// Uid of the backend.
        uid: Sym,
        /// What is asked.
        asked: Asked,
    },
}

/// What a group or node is doing, or why it waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Path of the group. Empty: about the whole cluster.
    pub group: Sym,
    /// Slot. Absent: about the whole group.
    pub slot: Option<u64>,
    /// Whether an action of the plan is about it; otherwise it waits.
    pub acting: bool,
    /// Why, one word.
    pub reason: &'static str,
    /// Why, for people.
    pub message: String,
    /// Until when it waits.
    pub until: Option<Millis>,
}

/// Nodes of a group that are to be renewed, and within which budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Path of the group.
    pub group: Sym,
    /// How many at a time.
    pub budget: Budget,
    /// Nodes wanted.
    pub size: u32,
    /// Slots, in the order in which they go if nothing changes.
    pub order: Vec<u64>,
    /// How long it takes at most if nothing fails.
    pub at_most: Millis,
}
