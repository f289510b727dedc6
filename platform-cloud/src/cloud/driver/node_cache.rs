//! Cache of nodes with the effects of recent calls, which the API may not show yet (eventual consistency).

use std::{collections::HashMap, time::Duration};

use drover_proto::platform::v1::NodePhase;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::{Machine, tags};
use super::{asked::Asked, silent::Domains};

/// How long a failure domain without capacity is tried last.
const FULL_FOR: Duration = Duration::from_secs(30);

/// How long the cached placements of a cluster are used to place more of its nodes, combined with the creations and
/// deletions since. Requests of one cluster come in bursts; without the cache, each would list everything that the
/// previous ones have created.
pub(super) const PLACEMENTS_TTL: Duration = Duration::from_secs(5);

/// Nodes affected by recent calls, and other state that is too expensive to read for every call.
pub(super) struct NodeCache {
    /// Created machines that have not been listed with their tags since, by id, and when they were last known to exist.
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
    /// What each failure domain held when it last answered.
    pub(super) domains: Domains,
    pub(super) asked: Asked,
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

/// Gives a machine that shows no identity the tags that it was created with.
pub(super) fn lend(made: &Machine, machine: &mut Machine) {
    if machine.identity().is_some() {
        return;
    }
    for (key, value) in &made.tags {
        let tag = machine.tags.entry(key.clone());
        tag.or_insert_with(|| value.clone());
    }
    machine.launch_index = machine.launch_index.or(made.launch_index);
}

impl NodeCache {
    /// An empty cache. `settles_after`: how long lists may lack what a call has made.
    pub(super) fn new(settles_after: Duration, longest_call: Duration) -> Self {
        Self {
            made: HashMap::new(),
            removed: HashMap::new(),
            placements: HashMap::new(),
            full: HashMap::new(),
            moving: HashMap::new(),
            removing: false,
            creating: 0,
            domains: Domains::new(settles_after),
            asked: Asked::new(settles_after, longest_call),
        }
    }

    /// Gives a listed machine the tags that it was created with, for as long as the API does not show them: some APIs
    /// set tags only after the machine exists, and without them it would be foreign.
    pub(super) fn recognise(&mut self, machine: &mut Machine, now: Instant) {
        let Some((made, since)) = self.made.get_mut(&machine.id) else {
            return;
        };
        let shown = machine.identity().is_some();
        if shown || made.identity().is_none() {
            self.made.remove(&machine.id);
            return;
        }
        *since = now;
        lend(made, machine);
    }

    pub(super) fn forget(&mut self, now: Instant, visibility: Duration) {
        self.made.retain(|_, (_, since)| *since + visibility > now);
        self.removed.retain(|_, since| *since + visibility > now);
        self.placements
            .retain(|_, (_, since)| *since + PLACEMENTS_TTL > now);
        self.full.retain(|_, since| *since + FULL_FOR > now);
    }
}

#[cfg(test)]
mod tests {
    use drover_platform::identity::Identity;

    use super::super::super::TagLimits;
    use super::*;

    const VISIBILITY: Duration = Duration::from_secs(60);

    fn made() -> Machine {
        let identity = Identity {
            owner: "o".to_owned(),
            cluster_id: "c".to_owned(),
            group: "g".to_owned(),
            request_id: "r".to_owned(),
            id: "g-0-x".to_owned(),
            name: "g-0".to_owned(),
            ..Identity::default()
        };
        Machine {
            id: "1".to_owned(),
            tags: tags::encode(&[identity], TagLimits::default()).unwrap(),
            ..Machine::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_created_machine_is_ours_until_the_api_shows_its_tags_however_long_that_takes() {
        let mut cache = NodeCache::new(VISIBILITY, VISIBILITY);
        let made = made();
        cache
            .made
            .insert(made.id.clone(), (made.clone(), Instant::now()));
        let bare = Machine {
            id: made.id.clone(),
            ..Machine::default()
        };
        for _ in 0..5 {
            tokio::time::sleep(VISIBILITY / 2).await;
            let now = Instant::now();
            cache.forget(now, VISIBILITY);
            let mut listed = bare.clone();
            cache.recognise(&mut listed, now);
            assert_eq!(listed.identity(), made.identity());
        }
        let mut tagged = made.clone();
        cache.recognise(&mut tagged, Instant::now());
        assert_eq!(tagged, made);
        let mut stripped = bare.clone();
        cache.recognise(&mut stripped, Instant::now());
        assert_eq!(stripped, bare, "whoever takes its tags away disowns it");
    }
}
