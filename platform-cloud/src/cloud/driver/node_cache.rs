//! Cache of nodes with the effects of recent calls, which the API may not show yet (eventual consistency).

use std::{collections::HashMap, time::Duration};

use drover_proto::platform::v1::NodePhase;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::{Machine, tags};

/// How long a failure domain without capacity is tried last.
const FULL_FOR: Duration = Duration::from_secs(30);

/// How long the cached placements of a cluster are used to place more of its nodes, combined with the creations and
/// deletions since. Requests of one cluster come in bursts; without the cache, each would list everything that the
/// previous ones have created.
pub(super) const PLACEMENTS_TTL: Duration = Duration::from_secs(5);

/// Nodes affected by recent calls, and other state that is too expensive to read for every call.
#[derive(Default)]
pub(super) struct NodeCache {
    /// Recently created machines that have not been listed since, by id.
    pub(super) made: HashMap<String, (Machine, Instant)>,
    /// Machines whose deletion was accepted, by id.
    pub(super) removed: HashMap<String, Instant>,
    /// Placements of the live machines of a cluster and when they were read, by cluster.
    pub(super) placements: HashMap<String, (Vec<NodePlacement>, Instant)>,
    /// Failure domains without capacity, by node class and domain.
    pub(super) full: HashMap<(String, String), Instant>,
    /// Machines that were in transition to another phase when last seen, by id.
    pub(super) moving: HashMap<String, Machine>,
    /// Whether something was deleted since the last complete list.
    pub(super) removing: bool,
    /// Number of creations in progress.
    pub(super) creating: usize,
}

#[derive(Clone)]
pub(super) struct NodePlacement {
    pub(super) id: String,
    pub(super) group: String,
    pub(super) failure_domain: String,
}

/// A creation in progress. While one exists, the backend is not polled faster than usual, as that would only slow the
/// creation down.
pub(super) struct Creating<'a>(&'a Mutex<NodeCache>);

impl<'a> Creating<'a> {
    pub(super) fn begin(cache: &'a Mutex<NodeCache>) -> Self {
        cache.lock().creating += 1;
        Self(cache)
    }
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.0.lock().creating -= 1;
    }
}

/// The placement of a live machine. `None` if it is dead or not ours.
pub(super) fn placement_of(machine: &Machine) -> Option<NodePlacement> {
    let dead = matches!(
        machine.phase,
        NodePhase::Deprovisioning | NodePhase::Terminated | NodePhase::Failed
    );
    let identity = tags::decode(&machine.tags, machine.launch_index, &machine.name);
    identity.filter(|_| !dead).map(|identity| NodePlacement {
        id: machine.id.clone(),
        group: identity.group,
        failure_domain: machine.failure_domain.clone(),
    })
}

impl NodeCache {
    pub(super) fn forget(&mut self, now: Instant, visibility: Duration) {
        self.made.retain(|_, (_, since)| *since + visibility > now);
        self.removed.retain(|_, since| *since + visibility > now);
        self.placements
            .retain(|_, (_, since)| *since + PLACEMENTS_TTL > now);
        self.full.retain(|_, since| *since + FULL_FOR > now);
    }
}
