//! What calls have done and the API may not show yet.

use std::{collections::HashMap, time::Duration};

use drover_proto::platform::v1::NodePhase;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::{Machine, tags};

/// How long a failure domain that had no room is tried last.
const FULL_FOR: Duration = Duration::from_secs(30);

/// How long a reading of where a cluster's machines are serves for placing more of them, beside what was made and removed
/// here since. Requests of one cluster come in bursts, and each would read all that those before it have made.
pub(super) const SEATS_FOR: Duration = Duration::from_secs(5);

/// What calls have done and the API may not show yet.
#[derive(Default)]
pub(super) struct Known {
    /// Machines made a short while ago and not listed since, by id.
    pub(super) made: HashMap<String, (Machine, Instant)>,
    /// Machines whose removal was accepted, by id.
    pub(super) removed: HashMap<String, Instant>,
    /// Where the living machines of a cluster are, since when that was read, by cluster.
    pub(super) seats: HashMap<String, (Vec<Seat>, Instant)>,
    /// Failure domains without room, by node class and domain.
    pub(super) full: HashMap<(String, String), Instant>,
    /// Machines that were on their way to another phase when they were last seen, by id.
    pub(super) moving: HashMap<String, Machine>,
    /// Whether something was removed since the last complete reading.
    pub(super) removing: bool,
    /// Creations under way.
    pub(super) creating: usize,
}

/// Where a machine is.
#[derive(Clone)]
pub(super) struct Seat {
    pub(super) id: String,
    pub(super) group: String,
    pub(super) failure_domain: String,
}

/// A creation under way. Until it ends the backend is not read more often than usual: that would only slow it down.
pub(super) struct Creating<'a>(&'a Mutex<Known>);

impl<'a> Creating<'a> {
    pub(super) fn begin(known: &'a Mutex<Known>) -> Self {
        known.lock().creating += 1;
        Self(known)
    }
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.0.lock().creating -= 1;
    }
}

/// Where a living machine of a cluster is. `None`: it is dead, or not ours.
pub(super) fn seat(machine: &Machine) -> Option<Seat> {
    let dead = matches!(
        machine.phase,
        NodePhase::Deprovisioning | NodePhase::Terminated | NodePhase::Failed
    );
    let identity = tags::decode(&machine.tags, machine.launch_index, &machine.name);
    identity.filter(|_| !dead).map(|identity| Seat {
        id: machine.id.clone(),
        group: identity.group,
        failure_domain: machine.failure_domain.clone(),
    })
}

impl Known {
    pub(super) fn forget(&mut self, now: Instant, visibility: Duration) {
        self.made.retain(|_, (_, since)| *since + visibility > now);
        self.removed.retain(|_, since| *since + visibility > now);
        self.seats.retain(|_, (_, since)| *since + SEATS_FOR > now);
        self.full.retain(|_, since| *since + FULL_FOR > now);
    }
}
