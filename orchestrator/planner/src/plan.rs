//! Input and output of the planner.

mod outlook;

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{
    Millis, Node, NodeState, Sym,
    addon::WantedAddon,
    node::{Reached, RemovalReason, Request, Role},
    resource::{Asked, ResourceKey, ResourceRecord, Wanted},
    spec::{Budget, Group, OrphanPolicy},
};
use uuid::Uuid;

use crate::{
    BackOff, BackOffKey, Condition, ConditionKey, Leaving, PlatformView, ResourceChange, Rollout,
    Sole, State,
};

pub use outlook::{Outlook, Removal, Unnamed};

/// Everything that a plan depends on.
pub struct Input<'a> {
    /// Current time.
    pub now: Millis,
    /// When this process started to observe. Observations of earlier processes do not count towards any deadline that
    /// ends in a deletion.
    pub process_start: Millis,
    /// The desired groups. Empty if the cluster is being deleted.
    pub groups: &'a [Group],
    /// The desired infrastructure; ignored if the cluster is being deleted.
    pub infrastructure: &'a [Wanted],
    /// The desired addons; ignored if the cluster is being deleted.
    pub addons: &'a [WantedAddon],
    /// Hashes of the present versions of the secrets that addons name, by position in `addons`.
    pub addon_secrets: &'a [Sym],
    /// Health policies from the templates, by position in `groups`; used by groups that have none of their own.
    pub health_defaults: &'a [Option<drover_core::spec::Health>],
    /// Groups that are no longer wanted, with the order and hooks for the removal of their nodes.
    pub leaving: &'a [Leaving],
    /// How orphans are treated.
    pub orphans: OrphanPolicy,
    /// How long an orphan must have been observed before it is acted on.
    pub orphan_grace: Millis,
    /// Whether a restored store still waits for a person to confirm before orphans are swept.
    pub orphan_hold: bool,
    /// The record, with what was observed.
    pub state: &'a State,
    /// Platforms by the name under which they are registered.
    pub platforms: &'a BTreeMap<Sym, PlatformView>,
    /// Sizes of requests in the store.
    pub sizes: &'a dyn Sizes,
    /// Whether to fill [`Plan::report`], [`Plan::renewals`] and [`Plan::outlook`].
    pub explain: bool,
}

/// Sizes of requests in the store, in bytes. A plan stops before it exceeds what one step of the store can hold.
pub trait Sizes {
    /// Upper bound for a new request of a group by one of its choices, both by position in the input.
    fn request(&self, group: usize, choice: usize) -> usize;
    /// Size of an open request.
    fn open(&self, request: &Uuid) -> usize;
}

/// Disables the size limit.
impl Sizes for () {
    fn request(&self, _: usize, _: usize) -> usize {
        0
    }

    fn open(&self, _: &Uuid) -> usize {
        0
    }
}

/// Result of a planning pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Operations on the record, in order; they must be durable before any call is made.
    pub ops: Vec<Op>,
    /// Calls to make once the operations are durable.
    pub calls: Vec<Call>,
    /// When to plan again even if nothing happens. `None` to wait for an event.
    pub wake: Option<Millis>,
    /// Whether more work follows right after this plan.
    pub again: bool,
    /// Whether a deleted cluster is proven absent everywhere, so that its record can be removed.
    pub finished: bool,
    /// What every group and node is doing, or why it waits. Only if [`Input::explain`] is set.
    pub report: Vec<Note>,
    /// Pending replacements, per group. Only if [`Input::explain`] is set.
    pub renewals: Vec<Renewal>,
    /// What is left for later passes, by group, where anything is. Only if [`Input::explain`] is set.
    pub outlook: Vec<Outlook>,
}

impl Plan {
    /// Whether there is nothing to do now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.calls.is_empty() && !self.finished
    }
}

/// An operation on the record.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Sets the state of a node.
    StateChanged {
        /// Slot of the node.
        slot: u64,
        /// The new state.
        state: NodeState,
        /// Cause as a single word.
        reason: &'static str,
        /// Cause for people.
        message: Box<str>,
        /// Whether it has been Ready for as long as its group requires to count as stable.
        stable: bool,
    },
    /// Records the platform's id of a node.
    NodeIdAssigned {
        /// Slot of the node.
        slot: u64,
        /// The platform's id.
        node_id: Box<str>,
    },
    /// Requests nodes: the intent, and the first attempt.
    Request {
        /// The new request.
        request: Box<Request>,
        /// Records of its nodes, in the order of their indexes.
        nodes: Vec<Node>,
        /// Position of the group in the input.
        group: usize,
        /// Position of the choice in the group.
        choice: usize,
        /// Cause as a single word: ScaleUp, Replace or Update.
        reason: &'static str,
    },
    /// Records another attempt to send an open request.
    Attempt {
        /// Id of the request.
        request: Uuid,
        /// Deadline of the attempt.
        deadline: Millis,
    },
    /// Records that the last attempt of a request is known to have created nothing.
    MadeNothing {
        /// Id of the request.
        request: Uuid,
    },
    /// Closes a request, which is never sent again.
    Close {
        /// Id of the request.
        request: Uuid,
        /// Until when the backend may still create its nodes.
        maybe_until: Millis,
        /// From when on no call can create them.
        settled: Millis,
    },
    /// Records the intent to remove a node; irrevocable.
    Remove {
        /// Slot of the node.
        slot: u64,
        /// Cause of the removal.
        reason: RemovalReason,
        /// Whether its storage is retained.
        retain: bool,
    },
    /// Starts or ends the drain that precedes the removal of a node.
    Drain {
        /// Slot of the node.
        slot: u64,
        /// Until when the removal waits for the drain. 0 if the drain is over.
        until: Millis,
        /// Why the drain failed, for people.
        failed: Option<Box<str>>,
    },
    /// Drops the record of a node that is proven absent.
    RecordDropped {
        /// Slot of the node.
        slot: u64,
        /// Cause as a single word.
        reason: &'static str,
        /// What happened, for people.
        message: Box<str>,
        /// Whether the node went without its removal being requested.
        lost: bool,
    },
    /// Creates a record for a node without one, to remove it or to keep it in its group.
    TakeOrphan {
        /// The record. With a removal, the node is to be removed; with an adoption, its platform has to be told first.
        node: Box<Node>,
    },
    /// Completes an adoption: the node has the slot for which it was adopted.
    Own {
        /// Slot of the node.
        slot: u64,
    },
    /// Records that an order to adopt was carried out.
    Adopted {
        /// Number of the order.
        order: u64,
    },
    /// Changes or clears a back-off.
    BackOff {
        /// The back-off.
        key: BackOffKey,
        /// Its new state. `None` to clear it.
        to: Option<BackOff>,
    },
    /// Sets, rewords or ends a condition.
    Condition {
        /// The condition.
        key: ConditionKey,
        /// Its new state. `None` if it no longer holds.
        to: Option<Condition>,
    },
    /// Replaces the spec hash of a node by that of the present formula; only the formula has changed.
    Restamp {
        /// Slot of the node.
        slot: u64,
        /// Hash by the present formula.
        spec_hash: Sym,
        /// Size in bytes of the storage that this hash is over.
        storage_size: Option<u64>,
        /// Hash of the labels that its host has, as far as is known.
        labels_hash: Sym,
    },
    /// The storage of a node has grown to what its group wants.
    Grown {
        /// Slot of the node.
        slot: u64,
        /// Hash of what it is made of now.
        spec_hash: Sym,
        /// Size in bytes.
        storage_size: u64,
    },
    /// Records which template the platform rendered for a node, as it is not the expected one.
    Template {
        /// Slot of the node.
        slot: u64,
        /// Digest of the template. Empty if not known.
        digest: Sym,
    },
    /// Changes the role of a node; [`Role::Promoting`] and [`Role::Demoting`] are intents.
    RoleChange {
        /// Slot of the node.
        slot: u64,
        /// The new role.
        role: Role,
    },
    /// Records where a node is reached, since addons are told of it.
    Reached {
        /// Slot of the node.
        slot: u64,
        /// Its addresses and ports.
        to: Box<Reached>,
    },
    /// Records which labels the host of a node has for its group.
    HostLabels {
        /// Slot of the node.
        slot: u64,
        /// Hash of the labels that its platform has confirmed. `CHANGING` is the intent to change them.
        hash: Sym,
    },
    /// Starts, advances or ends the rollout of a group.
    Rollout {
        /// Path of the group.
        group: Sym,
        /// Its progress. `None` if no node is left to be replaced.
        to: Option<Rollout>,
    },
    /// Records the most nodes that a group with ordering constraints has had at a time.
    PeakSizeChanged {
        /// Path of the group.
        group: Sym,
        /// Number of nodes. `None` if it no longer matters.
        to: Option<u32>,
    },
    /// Records the places that active nodes have vacated, until their storage is taken over or other nodes act.
    Vacated {
        /// Path of the group.
        group: Sym,
        /// Ordinals whose storage holds the most recent writes. Empty if they no longer matter.
        to: BTreeSet<u32>,
    },
    /// Records which active node may acknowledge alone, before it is allowed to, or that nothing is one's alone any more.
    Sole {
        /// Path of the group.
        group: Sym,
        /// The node. `None` if there is none any more.
        to: Option<Sole>,
        /// Whether it may have the permission already: of the node of before, or of an earlier record.
        doubt: bool,
    },
    /// Changes or removes the record of infrastructure or of an addon.
    Resource {
        /// Which one.
        key: ResourceKey,
        /// Its new state. `None` to remove the record.
        to: Option<Box<ResourceRecord>>,
        /// Kind of the change.
        change: ResourceChange,
    },
    /// Moves records to the new uid of a backend that is known to be the same one.
    Rebind {
        /// Name of the platform.
        platform: Sym,
        /// Previous uid.
        from: Sym,
        /// New uid.
        to: Sym,
        /// Slots whose records are moved.
        slots: Vec<u64>,
        /// Open requests that are moved.
        requests: Vec<Uuid>,
        /// Whether nothing is left under the old uid.
        last: bool,
    },
    /// Abandons a backend, with everything that was last observed on it.
    Abandon {
        /// Name of the platform.
        platform: Sym,
        /// Uid of the backend.
        uid: Sym,
        /// Whether what it may still show is left alone. Set by the first of several steps, because what a step drops
        /// has no record from then on.
        keep: bool,
        /// Whether nothing of it is left.
        last: bool,
    },
    /// Allows what an abandoned backend shows to be swept after all.
    Sweep {
        /// Uid of the backend.
        uid: Sym,
        /// Name of the platform that shows it now. `None` if none does.
        shown_by: Option<Sym>,
    },
    /// Sets the observed generation.
    Observed {
        /// The generation that the record now reflects.
        generation: u64,
    },
}

/// A call to a platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Sends a request.
    Provision {
        /// Id of the request.
        request: Uuid,
        /// Deadline of the call.
        deadline: Millis,
    },
    /// Requests the removal of a node.
    Deprovision {
        /// Slot of the node.
        slot: u64,
    },
    /// Makes a node take the role that its record intends.
    RoleChange {
        /// Slot of the node.
        slot: u64,
    },
    /// Has the host of a node get the labels that its group wants.
    Relabel {
        /// Slot of the node.
        slot: u64,
    },
    /// Has the storage of a node grow to the size that its group wants.
    Grow {
        /// Slot of the node.
        slot: u64,
    },
    /// Allows an active node to acknowledge alone, or takes the permission back.
    Sole {
        /// Slot of the node.
        slot: u64,
        /// Whether it is allowed.
        allow: bool,
    },
    /// Runs the pre-stop hook inside a node before its removal.
    Drain {
        /// Slot of the node.
        slot: u64,
        /// Deadline of the hook.
        until: Millis,
    },
    /// Reads a platform completely, to find out whether slots are absent.
    Confirm {
        /// Name of the platform.
        platform: Sym,
    },
    /// Asks a platform to assign a foreign node to its slot here.
    Adopt {
        /// Slot of the node.
        slot: u64,
    },
    /// Creates, releases or reads infrastructure or an addon.
    Resource {
        /// Which one.
        key: ResourceKey,
        /// The operation.
        asked: Asked,
    },
}

/// Explains what a group or node is doing, or why it waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Path of the group. Empty for the whole cluster.
    pub group: Sym,
    /// Slot of the node. `None` for the whole group.
    pub slot: Option<u64>,
    /// Whether the plan acts on it; otherwise it waits.
    pub acting: bool,
    /// Cause as a single word.
    pub reason: &'static str,
    /// Cause for people.
    pub message: String,
    /// Until when it waits. `None` if not known.
    pub until: Option<Millis>,
}

/// The nodes of a group that are to be replaced, with their budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Path of the group.
    pub group: Sym,
    /// Max surge and max unavailable.
    pub budget: Budget,
    /// Desired number of nodes.
    pub size: u32,
    /// Slots in the order of their replacement, if nothing changes.
    pub order: Vec<u64>,
    /// Upper bound of the duration if nothing fails, in ms.
    pub at_most: Millis,
}
