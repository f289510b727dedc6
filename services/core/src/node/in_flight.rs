//! Calls for nodes that are in flight or wait for their next attempt, known to this process only.

use super::{Millis, Record, Role};
use crate::{
    name::Sym,
    rare::{Empty, Rare},
};

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

/// What this process has asked of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InFlight {
    /// The pending call for this node: its removal, or before that its pre-stop hook.
    pub call: Call,
    /// Changes of a node that stays, and the result of its hook.
    pub changes: Rare<Changes>,
}

/// What is asked of a node besides its removal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Pending role change. `None` if none is pending and none has failed since the node got its role.
    pub role_change: Option<Box<RoleChange>>,
    /// Pending change of the labels of its host. `None` if none is pending.
    pub relabel: Option<Box<InPlace>>,
    /// Pending growth of its storage. `None` if none is pending.
    pub growth: Option<Box<InPlace>>,
    /// Permission to acknowledge alone that is being given or taken back. `None` if this process knows of none.
    pub sole: Option<Box<SoleChange>>,
    /// Result of the hook, until the owner has processed it.
    pub hook: Option<Box<HookResult>>,
}

impl Empty for Changes {
    const EMPTY: &'static Self = &Self {
        role_change: None,
        relabel: None,
        growth: None,
        sole: None,
        hook: None,
    };
}

impl InFlight {
    /// What an earlier process may have begun without this one knowing how it ended: a node that is being promoted may be
    /// active already.
    #[must_use]
    pub fn unknown(record: &Record) -> Self {
        let doubt = || RoleChange {
            doubt: true,
            ..RoleChange::default()
        };
        let changes = Changes {
            role_change: (record.role == Role::Promoting).then(|| Box::new(doubt())),
            ..Changes::default()
        };
        Self {
            changes: changes.into(),
            ..Self::default()
        }
    }

    /// What is left of it now that the record is `after`: a change to another role, to other labels or of other storage is
    /// not the one that is wanted, and each stage of a removal or adoption begins without a call.
    #[must_use]
    pub fn follow(mut self, before: &Record, after: &Record) -> Self {
        let stage = before.removal != after.removal || before.is_adopting() != after.is_adopting();
        if stage {
            self.call = Call::default();
        }
        let was = self.changes.take();
        let changes = Changes {
            role_change: was.role_change.filter(|_| before.role == after.role),
            relabel: (was.relabel).filter(|_| before.labels_hash == after.labels_hash),
            growth: was.growth.filter(|_| before.spec_hash == after.spec_hash),
            sole: was.sole,
            hook: was.hook.filter(|_| !stage),
        };
        self.changes = changes.into();
        self
    }
}

/// Progress of this process with a change that a platform makes in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InPlace {
    /// Whether a call is in flight, how many attempts failed, and when the next one may start.
    pub call: Call,
    /// Hash of what the platform has confirmed.
    pub done: Option<Sym>,
    /// Human-readable cause of the last failure.
    pub message: Box<str>,
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

/// A permission that is still needed is given again after this time.
const PERMISSION_INTERVAL: Millis = 60_000;

/// Progress of this process with the permission to acknowledge alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoleChange {
    /// Whether it is given, or taken back.
    pub allow: bool,
    /// Whether a call is in flight, how many attempts failed, and when the next one may start.
    pub call: Call,
    /// The node has said that it is done.
    pub done: bool,
    /// An attempt may have had its effect nevertheless: its outcome is unknown.
    pub doubt: bool,
    /// All attempts prove that it had no effect.
    pub refused: bool,
    /// Human-readable cause of the last failure.
    pub message: Box<str>,
}

impl SoleChange {
    /// The permission may have been given already: by an earlier process, or to the node of before, whose data this one has.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            allow: true,
            doubt: true,
            ..Self::default()
        }
    }

    /// Before the first attempt to give the permission.
    #[must_use]
    pub fn first() -> Self {
        Self {
            allow: true,
            ..Self::default()
        }
    }

    /// Begins an attempt to give the permission or to take it back. After one that succeeded, or in the other direction, a
    /// failure does not prove what the node has.
    pub fn begin(&mut self, allow: bool) {
        if self.allow != allow || self.done {
            *self = Self {
                allow,
                ..Self::unknown()
            };
        }
        (self.call.in_flight, self.done) = (true, false);
    }

    /// The node has done it. A permission is given again after a while: a call of an earlier process may have ended it.
    pub fn succeeded(&mut self, now: Millis) {
        *self = Self {
            allow: self.allow,
            done: true,
            ..Self::default()
        };
        if self.allow {
            self.call.next = now + PERMISSION_INTERVAL;
        }
    }

    /// Records a failed attempt. `refused` means that it had no effect at all.
    pub fn failed(&mut self, refused: bool, why: &str) {
        self.doubt |= !refused;
        self.refused = !self.doubt;
        self.call.failures = self.call.failures.saturating_add(1);
        self.message = why.into();
    }

    /// The node has no permission. The next attempt to give it begins anew, but comes no sooner.
    pub fn ended(&mut self) {
        *self = Self {
            call: self.call,
            ..Self::first()
        };
    }
}

/// Result of a hook in a node; the error is human-readable.
pub type HookResult = Result<(), Box<str>>;
