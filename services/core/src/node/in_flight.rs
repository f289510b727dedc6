//! Calls for nodes that are in flight or wait for their next attempt, known to this process only.

use super::{Millis, Record, Role};
use crate::name::Sym;

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
    /// Pending role change. `None` if none is pending and none has failed since the node got its role.
    pub role_change: Option<Box<RoleChange>>,
    /// Pending change of the labels of its host. `None` if none is pending.
    pub relabel: Option<Box<Relabel>>,
    /// Result of the hook, until the owner has processed it.
    pub hook: Option<Box<HookResult>>,
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
        Self {
            role_change: (record.role == Role::Promoting).then(|| Box::new(doubt())),
            ..Self::default()
        }
    }

    /// What is left of it now that the record is `after`: a change to another role or to other labels is not the one that is
    /// wanted, and each stage of a removal or adoption begins without a call.
    #[must_use]
    pub fn follow(mut self, before: &Record, after: &Record) -> Self {
        self.role_change = self.role_change.filter(|_| before.role == after.role);
        self.relabel = (self.relabel).filter(|_| before.labels_hash == after.labels_hash);
        if before.removal != after.removal || before.is_adopting() != after.is_adopting() {
            self.call = Call::default();
            self.hook = None;
        }
        self
    }
}

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
