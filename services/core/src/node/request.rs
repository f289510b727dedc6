//! Provision requests.

use uuid::Uuid;

use super::{Call, Millis};
use crate::name::Sym;

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

    /// What this process has asked.
    pub in_flight: RequestInFlight,
}

impl Request {
    /// Goes on from what was known of the request `before` its record was read again.
    pub fn continue_from(&mut self, before: Self) {
        self.in_flight = before.in_flight;
        // A response that is already recorded, or that is not of the last attempt, must not be taken in again.
        if (self.attempts, self.made_nothing) != (before.attempts, before.made_nothing) {
            self.in_flight.answer = None;
            self.in_flight.rendered = None;
        }
    }
}

/// What this process knows of a request besides its record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestInFlight {
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
