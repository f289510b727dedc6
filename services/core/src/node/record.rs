//! What is recorded of a node.

use std::{ops::Deref, sync::Arc};

use uuid::Uuid;

use super::{Millis, SeenAddress};
use crate::{
    name::{self, Sym},
    rare::{Empty, Rare},
    storage::Retention,
};

/// The request that asks for a node, and what its nodes have in common. It is kept once for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The Provision request.
    pub request: Uuid,
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
    /// Store version. Empty if none.
    pub version: Sym,
    /// Hash of the fields that define it.
    pub spec_hash: Sym,
    /// Size in bytes of the storage that this hash is over. `None` if not known, or the platform's default.
    pub storage_size: Option<u64>,
    /// Whether its nodes were requested with storage.
    pub storage: bool,
}

/// A slot, identified by (request, index) and created at most once. All of it but `marked` is durable.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What it has in common with the other nodes of its request.
    pub origin: Arc<Origin>,
    /// Slot number in the cluster, starting at 1, never reused.
    pub slot: u64,
    /// Index within that request.
    pub index: u32,
    /// Ordinal within its group.
    pub ordinal: u32,
    /// Named machine that it is bound to. Empty for any.
    pub host: Sym,
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
    /// The platform's id of the node.
    pub node_id: Option<Box<str>>,
    /// Removal intent; irrevocable.
    pub removal: Option<Removal>,
    /// From when on no call can create it any more: the deadline of the last attempt. 0 while its request is open.
    pub settled: Millis,
    /// Until when the backend may still create it. 0 while its request is open.
    pub maybe_until: Millis,
    /// Where it was last reached, for addons while its platform does not show it. `None` if no addon has it as a target.
    pub reached: Option<Box<Reached>>,
    /// What only a node has that was not created in this slot.
    pub adopted: Rare<Adopted>,
}

/// What is recorded of a node that was not created in its slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// The id that the node was created with and that its agent reports, if it differs from the id of the slot.
    pub given_id: Option<Box<str>>,
    /// Previous owner, until the platform has assigned this slot to the node. `None` once it has.
    pub former: Option<Former>,
}

impl Empty for Adopted {
    const EMPTY: &'static Self = &Self {
        given_id: None,
        former: None,
    };
}

impl Deref for Record {
    type Target = Origin;

    fn deref(&self) -> &Origin {
        &self.origin
    }
}

/// Stands for labels of a host that are not known: they are once the platform has confirmed a change.
pub const CHANGING: &str = "?";

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
    /// Its backend has announced maintenance that stops it.
    Maintenance,
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
            Self::Maintenance => "Maintenance",
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

/// Where a node is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// All its addresses.
    pub addresses: Box<[SeenAddress]>,
    /// Named ports as (name, `host:port`).
    pub endpoints: Box<[(Sym, Box<str>)]>,
}

impl Record {
    /// What it has in common with the other nodes of its request, to be changed for this one alone.
    pub fn origin_mut(&mut self) -> &mut Origin {
        Arc::make_mut(&mut self.origin)
    }

    /// The name of the node (`data-hot-1`).
    #[must_use]
    pub fn name(&self) -> String {
        name::node_name(&self.group, self.ordinal)
    }

    /// The id of the node (`data-hot-1-x7k2p`), derived from the uid of its cluster.
    #[must_use]
    pub fn id(&self, owner: Uuid) -> String {
        if let Some(given) = &self.adopted.given_id {
            return given.to_string();
        }
        name::node_id(&self.group, self.ordinal, owner, self.request, self.index)
    }

    /// Keeps the id with which the node was created. `id` is empty if not known.
    pub fn keep_id(&mut self, id: &str, owner: Uuid) {
        if !id.is_empty() && id != self.id(owner) {
            self.adopted.given_id = Some(id.into());
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
        self.adopted.former.is_some()
    }

    /// Whether the platform is known to have accepted it.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.node_id.is_some()
    }
}
