//! How calls to platforms end, as far as the cluster is concerned: their marks are taken off, results are left for the next
//! plan, and failed calls wait for their next attempt.

use std::time::Duration;

use drover_core::{
    Class, Error, Millis, Node, Reason, Result, Sym, back_off, millis,
    node::{Answer, Call, InPlace, Outcome, Role},
    resource::{Asked, Observed, ResourceAnswer, ResourceKey},
};
use uuid::Uuid;

use crate::ClusterState;

/// An accepted removal is asked for again after its grace period and this much more.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two complete reads that look for the same absence.
const CONFIRM_PAUSE: Millis = 2_000;
/// First wait after a failed call; it doubles.
const RETRY_FIRST: Millis = 500;
/// Longest wait after a failed call.
const RETRY_MOST: Millis = 60_000;
/// Wait before a change of labels is repeated that the platform refused as stale.
const STALE_RETRY: Millis = 100;
/// First wait after a failed role change; it doubles. Clients of the service are waiting.
const ROLE_RETRY_FIRST: Millis = 250;
/// Longest wait after a failed role change.
const ROLE_RETRY_MOST: Millis = 30_000;

/// The end of a call.
#[derive(Debug)]
pub enum CallEnd {
    /// A provision request was sent.
    Provision {
        /// The request.
        request: Uuid,
        /// One outcome per node of the request, in the order of their indexes.
        outcome: Result<Vec<Outcome>>,
        /// Digest of the template that the platform rendered, if it is not the expected one.
        rendered: Option<Sym>,
    },
    /// A platform was asked to remove a node.
    Deprovision {
        /// Slot of the node.
        slot: u64,
        /// Time that the node has to stop by itself.
        grace: Option<Duration>,
        /// Whether it accepted.
        answer: Result<()>,
    },
    /// The hook of a node that is being drained. Without a hook, it succeeded.
    PreStop {
        /// Slot of the node.
        slot: u64,
        /// How the hook ended.
        ran: Result<()>,
    },
    /// A node was told to take another role.
    RoleChange {
        /// Slot of the node.
        slot: u64,
        /// The role that the node was told to take. Its record may intend another one by now.
        role: Role,
        /// Whether it has taken the role.
        answer: Result<(), RoleChangeFailure>,
    },
    /// A platform was asked to change the labels of a node's host.
    Relabel {
        /// Slot of the node.
        slot: u64,
        /// Hash of the labels that the host has now.
        answer: Result<Sym>,
    },
    /// A platform was asked to enlarge the storage of a node.
    Grow {
        /// Slot of the node.
        slot: u64,
        /// Hash of what the node is made of now.
        answer: Result<Sym>,
    },
    /// An active node was allowed to acknowledge alone, or the permission was taken back.
    Sole {
        /// Slot of the node.
        slot: u64,
        /// Which of them.
        allow: bool,
        /// Whether it says that it is so.
        answer: Result<(), RoleChangeFailure>,
    },
    /// A platform was asked to hand a node over.
    Adopt {
        /// Slot that it gets.
        slot: u64,
        /// Whether it was handed over.
        answer: Result<()>,
    },
    /// A complete read of a platform.
    Confirm {
        /// The platform that was read.
        platform: Sym,
        /// Whether it could be read.
        answer: Result<()>,
    },
    /// Infrastructure or an addon was asked for, released or read.
    Resource {
        /// Which one.
        key: ResourceKey,
        /// Sequence of the record when the call was begun.
        sequence: u64,
        /// What it was asked for.
        asked: Asked,
        /// When the call was begun.
        began: Millis,
        /// What it showed.
        answer: Result<Observed>,
    },
}

/// The subject of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A provision request.
    Request(Uuid),
    /// The node in this slot.
    Slot(u64),
    /// Infrastructure or an addon, by the sequence of its request.
    Resource(u64),
}

impl CallEnd {
    /// What the call was about, and how it failed, if it did. `None` for calls that no caller waits for.
    #[must_use]
    pub fn result(&self) -> Option<(Subject, Option<&Error>)> {
        Some(match self {
            Self::Provision {
                request, outcome, ..
            } => (Subject::Request(*request), not_made(outcome)),
            Self::Deprovision { slot, answer, .. } | Self::Adopt { slot, answer } => {
                (Subject::Slot(*slot), answer.as_ref().err())
            }
            Self::RoleChange { slot, answer, .. } => {
                let failure = answer.as_ref().err();
                (Subject::Slot(*slot), failure.map(|failure| &failure.error))
            }
            Self::Resource {
                sequence,
                asked: Asked::Ensure | Asked::Release,
                answer,
                ..
            } => (Subject::Resource(*sequence), answer.as_ref().err()),
            Self::PreStop { .. }
            | Self::Relabel { .. }
            | Self::Grow { .. }
            | Self::Sole { .. }
            | Self::Confirm { .. }
            | Self::Resource { .. } => return None,
        })
    }
}

/// Why a role change failed.
#[derive(Debug)]
pub struct RoleChangeFailure {
    /// What the platform or the hook said.
    pub error: Error,
    /// Nothing of it happened, for certain.
    pub refused: bool,
}

impl From<Error> for RoleChangeFailure {
    fn from(error: Error) -> Self {
        let never_ran = matches!(
            error.class(),
            Class::Cannot | Class::Credentials | Class::Stale
        );
        Self {
            refused: never_ran || error.reason() == Reason::Overloaded,
            error,
        }
    }
}

impl ClusterState {
    /// Takes in the end of a call. Returns `false` if its record is gone and nothing is left to be planned for it.
    pub fn call_ended(&mut self, end: CallEnd, now: Millis) -> bool {
        self.take_end(end, now).is_some()
    }

    fn take_end(&mut self, end: CallEnd, now: Millis) -> Option<()> {
        match end {
            CallEnd::Provision {
                request,
                outcome,
                rendered,
            } => {
                let request = self.state.requests.get_mut(&request)?;
                request.in_flight.call.in_flight = false;
                request.in_flight.answer = Some(Answer {
                    at: now,
                    taken: false,
                    outcome,
                });
                request.in_flight.rendered = rendered;
            }
            CallEnd::Deprovision {
                slot,
                grace,
                answer,
            } => removal_ended(self.state.node_mut(slot)?, grace, answer, now),
            CallEnd::PreStop { slot, ran } => hook_ended(self.state.node_mut(slot)?, ran, now),
            CallEnd::RoleChange { slot, role, answer } => {
                role_change_ended(self.state.node_mut(slot)?, role, answer, now);
            }
            CallEnd::Relabel { slot, answer } => {
                let node = self.state.node_mut(slot)?;
                change_ended(
                    node.in_flight.changes.relabel.get_or_insert_default(),
                    answer,
                    now,
                );
            }
            CallEnd::Grow { slot, answer } => {
                let node = self.state.node_mut(slot)?;
                change_ended(
                    node.in_flight.changes.growth.get_or_insert_default(),
                    answer,
                    now,
                );
            }
            CallEnd::Sole {
                slot,
                allow,
                answer,
            } => sole_ended(self.state.node_mut(slot)?, allow, answer, now),
            CallEnd::Adopt { slot, answer } => {
                let refusal = answer
                    .as_ref()
                    .err()
                    .filter(|error| is_taken(error))
                    .cloned();
                let node = self.state.node_mut(slot)?;
                adoption_ended(node, answer, now);
                let id = node.node_id.clone().unwrap_or_default();
                let key = (node.platform.clone(), id);
                // Its record goes, and what its platform reports of it may be of the past for a while.
                if let Some(error) = refusal
                    && let Some(foreign) = self.state.foreign.get_mut(&key)
                {
                    retry_later(&mut foreign.call, &error, now);
                }
            }
            CallEnd::Confirm { platform, answer } => {
                let call = self.state.confirms.or_default(platform);
                match answer {
                    Ok(()) => *call = idle_until(now + CONFIRM_PAUSE),
                    Err(error) => retry_later(call, &error, now),
                }
            }
            CallEnd::Resource {
                key,
                asked,
                began,
                answer,
                ..
            } => {
                let record = self.state.resources.get_mut(&key)?;
                match (asked, answer) {
                    // The record stays as it was read last.
                    (Asked::Read, Err(error)) => {
                        retry_later(&mut record.in_flight.call, &error, now);
                    }
                    (asked, outcome) => {
                        record.in_flight.call = Call::default();
                        record.in_flight.answer = Some(ResourceAnswer {
                            asked,
                            began,
                            at: now,
                            outcome,
                        });
                    }
                }
            }
        }
        Some(())
    }
}

fn removal_ended(node: &mut Node, grace: Option<Duration>, answer: Result<()>, now: Millis) {
    match answer {
        Ok(()) => {
            let patience = REMOVAL_PATIENCE + grace.unwrap_or_default();
            node.in_flight.call = idle_until(now + millis(patience));
        }
        Err(error) => {
            explain(node, &error);
            retry_later(&mut node.in_flight.call, &error, now);
        }
    }
}

fn hook_ended(node: &mut Node, ran: Result<()>, now: Millis) {
    node.in_flight.call.in_flight = false;
    match ran {
        Err(error) if may_run_again(&error) => retry_later(&mut node.in_flight.call, &error, now),
        // A template may suggest a hook to a platform that cannot run any. A hook of the user was refused at apply.
        Err(error) if error.reason() == Reason::CapabilityMissing => {
            node.in_flight.changes.hook = Some(Box::new(Ok(())));
        }
        ran => {
            node.in_flight.changes.hook =
                Some(Box::new(ran.map_err(|error| error.message().into())));
        }
    }
}

fn role_change_ended(
    node: &mut Node,
    role: Role,
    answer: Result<(), RoleChangeFailure>,
    now: Millis,
) {
    let intended = node.role;
    let change = node.in_flight.changes.role_change.get_or_insert_default();
    change.call.in_flight = false;
    match answer {
        Ok(()) => change.done = intended == role,
        Err(RoleChangeFailure { error, refused }) => {
            let most = back_off(ROLE_RETRY_FIRST, ROLE_RETRY_MOST, change.call.failures);
            change.call.next = now + fastrand::u64(most / 2..=most);
            change.failed(refused, error.message());
        }
    }
}

fn sole_ended(node: &mut Node, allow: bool, answer: Result<(), RoleChangeFailure>, now: Millis) {
    let Some(change) =
        (node.in_flight.changes.sole.as_deref_mut()).filter(|change| change.allow == allow)
    else {
        return;
    };
    change.call.in_flight = false;
    match answer {
        Ok(()) => change.succeeded(now),
        Err(RoleChangeFailure { error, refused }) => {
            let most = back_off(ROLE_RETRY_FIRST, ROLE_RETRY_MOST, change.call.failures);
            change.call.next = now + fastrand::u64(most / 2..=most);
            change.failed(refused, error.message());
        }
    }
}

fn change_ended(change: &mut InPlace, answer: Result<Sym>, now: Millis) {
    match answer {
        Ok(hash) => {
            *change = InPlace {
                done: Some(hash),
                ..InPlace::default()
            };
        }
        // The call is repeated with a newer fence or instance.
        Err(error) if error.class() == Class::Stale => change.call = idle_until(now + STALE_RETRY),
        Err(error) => {
            change.message = error.message().into();
            retry_later(&mut change.call, &error, now);
        }
    }
}

fn adoption_ended(node: &mut Node, answer: Result<()>, now: Millis) {
    match answer {
        Ok(()) => node.in_flight.call = Call::default(),
        Err(error) => {
            explain(node, &error);
            node.seen.gone |= is_taken(&error);
            retry_later(&mut node.in_flight.call, &error, now);
        }
    }
}

/// It belongs to somebody else by now. The platform compares before it hands a node over, so it never becomes ours.
fn is_taken(error: &Error) -> bool {
    [Reason::SlotMismatch, Reason::NodeNotInCluster].contains(&error.reason())
}

/// Shows why a call failed at its node, unless it is only repeated with a newer fence or instance.
fn explain(node: &mut Node, error: &Error) {
    if error.class() != Class::Stale {
        node.seen.message = error.message().into();
    }
}

/// Why one of the nodes of a request was not made.
fn not_made(outcome: &Result<Vec<Outcome>>) -> Option<&Error> {
    match outcome {
        Err(error) => Some(error),
        Ok(outcomes) => outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Failed(error) | Outcome::Unknown(error) => Some(error),
            Outcome::Made(_) => None,
        }),
    }
}

/// Whether a hook that ended like this may be run again: it was not begun, or nobody can say.
fn may_run_again(error: &Error) -> bool {
    matches!(
        error.reason(),
        Reason::NotSent
            | Reason::Unavailable
            | Reason::PlatformRestarted
            | Reason::RateLimited
            | Reason::Fenced
            | Reason::Overloaded
    )
}

fn idle_until(next: Millis) -> Call {
    Call {
        in_flight: false,
        failures: 0,
        next,
    }
}

/// Ends an attempt that failed. The next one waits for as long as the platform asks for, or else a little longer each time.
fn retry_later(call: &mut Call, error: &Error, now: Millis) {
    let most = back_off(RETRY_FIRST, RETRY_MOST, call.failures);
    let wait = error
        .retry_after()
        .map_or_else(|| fastrand::u64(most / 2..=most), millis);
    call.in_flight = false;
    call.failures = call.failures.saturating_add(1);
    call.next = now + wait.min(RETRY_MOST);
}

#[cfg(test)]
mod tests;
