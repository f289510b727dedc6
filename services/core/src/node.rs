//! Nodes: what is recorded of them, what platforms and probes show, and what is in flight, in a compact form.

use std::ops::{Deref, DerefMut};

mod in_flight;
mod record;
mod request;
mod seen;

pub use in_flight::{Call, Changes, HookResult, InFlight, InPlace, RoleChange, SoleChange};
pub use record::{
    Adopted, CHANGING, Former, NodeState, Origin, Reached, Record, Removal, RemovalReason, Role,
};
pub use request::{Answer, Outcome, Request, RequestInFlight};
pub use seen::{
    LostHost, Maintenance, MaintenanceKind, Phase, ProbeResult, Seen, SeenAddress, SeenHost,
};

/// Milliseconds since the Unix epoch, from the clock that the caller passes in.
pub type Millis = u64;

/// A node. Everything but its record, and the address of its agent, is known to this process only.
///
/// It can be read and changed like its record, because most who deal with nodes deal with records.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is recorded of it.
    pub record: Record,
    /// What its platform shows of it.
    pub seen: Seen,
    /// What probes have shown of it.
    pub probe: ProbeResult,
    /// What is asked of it.
    pub in_flight: InFlight,
}

impl Node {
    /// A node of which nothing has been seen and nothing asked.
    #[must_use]
    pub fn new(record: Record) -> Self {
        Self {
            record,
            seen: Seen::default(),
            probe: ProbeResult::default(),
            in_flight: InFlight::default(),
        }
    }

    /// Goes on from what was known of the node `before` its record was read again.
    pub fn continue_from(&mut self, before: Self) {
        self.in_flight = before.in_flight.follow(&before.record, &self.record);
        self.probe = before.probe;
        self.seen = before.seen;
        if self.record.node_id.is_some() {
            self.seen.node_id = Box::default();
        }
    }
}

impl Deref for Node {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Record {
        &mut self.record
    }
}
