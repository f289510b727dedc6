//! Which cluster is planned next: each is there once, urgent ones go first, and one worker at a time has it.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use drover_core::Millis;
use parking_lot::Mutex;
use tokio::sync::Notify;
use uuid::Uuid;

/// Passes under way at once for clusters whose trigger can wait: enough to fill a batch of the store.
const BULK_RUNNING: usize = 64;
/// The same for deaths and take-overs.
const URGENT_RUNNING: usize = 256;

/// How soon a cluster is to be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    Bulk,
    Urgent,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Queued(Urgency),
    Running {
        lane: Urgency,
        again: Option<Urgency>,
    },
}

#[derive(Debug, Default)]
struct Inner {
    places: HashMap<Uuid, Place>,
    urgent: VecDeque<Uuid>,
    bulk: VecDeque<Uuid>,
    running: [usize; 2],
    timers: BTreeSet<(Millis, Uuid)>,
    wakes: HashMap<Uuid, Millis>,
}

/// The queue. A trigger carries no content: whoever takes a cluster reads everything anew.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<Notify>,
}

impl Queue {
    /// Asks for a pass. One that waits in bulk is promoted by an urgent trigger; one that is being planned is planned
    /// again.
    pub(crate) fn push(&self, cluster: Uuid, urgency: Urgency) {
        {
            let mut inner = self.inner.lock();
            match inner.places.get(&cluster).copied() {
                None => inner.enqueue(cluster, urgency),
                Some(Place::Queued(Urgency::Bulk)) if urgency == Urgency::Urgent => {
                    inner.enqueue(cluster, urgency);
                }
                Some(Place::Queued(_)) => return,
                Some(Place::Running { lane, again }) => {
                    let again = again.max(Some(urgency));
                    inner.places.insert(cluster, Place::Running { lane, again });
                    return;
                }
            }
        }
        self.changed.notify_one();
    }

    /// Asks for a pass at a time, instead of any time asked for before. None: at no time.
    pub(crate) fn wake(&self, cluster: Uuid, at: Option<Millis>) {
        let mut inner = self.inner.lock();
        if let Some(before) = inner.wakes.remove(&cluster) {
            if Some(before) == at {
                inner.wakes.insert(cluster, before);
                return;
            }
            inner.timers.remove(&(before, cluster));
        }
        if let Some(at) = at {
            let first = inner.timers.first().is_none_or(|(first, _)| at < *first);
            inner.timers.insert((at, cluster));
            inner.wakes.insert(cluster, at);
            if first {
                drop(inner);
                self.changed.notify_one();
            }
        }
    }

    /// The next cluster to plan, if there is one and a worker may have it.
    pub(crate) fn pop(&self, now: Millis) -> Option<(Uuid, Urgency)> {
        let mut inner = self.inner.lock();
        while let Some(&(at, cluster)) = inner.timers.first() {
            if at > now {
                break;
            }
            inner.timers.pop_first();
            inner.wakes.remove(&cluster);
            match inner.places.get(&cluster).copied() {
                None => inner.enqueue(cluster, Urgency::Bulk),
                Some(Place::Queued(_)) => {}
                Some(Place::Running { lane, again }) => {
                    let again = again.max(Some(Urgency::Bulk));
                    inner.places.insert(cluster, Place::Running { lane, again });
                }
            }
        }
        for (lane, limit) in [
            (Urgency::Urgent, URGENT_RUNNING),
            (Urgency::Bulk, BULK_RUNNING),
        ] {
            if inner.running[lane as usize] >= limit {
                continue;
            }
            while let Some(cluster) = inner.lane(lane).pop_front() {
                // A promoted cluster is still in the queue that it left.
                if matches!(inner.places.get(&cluster), Some(Place::Queued(at)) if *at == lane) {
                    inner
                        .places
                        .insert(cluster, Place::Running { lane, again: None });
                    inner.running[lane as usize] += 1;
                    return Some((cluster, lane));
                }
            }
        }
        None
    }

    /// A worker is done with a cluster.
    pub(crate) fn done(&self, cluster: Uuid) {
        let mut inner = self.inner.lock();
        if let Some(Place::Running { lane, again }) = inner.places.remove(&cluster) {
            inner.running[lane as usize] -= 1;
            if let Some(urgency) = again {
                inner.enqueue(cluster, urgency);
            }
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// When the next timer is due.
    pub(crate) fn next_timer(&self) -> Option<Millis> {
        self.inner.lock().timers.first().map(|(at, _)| *at)
    }

    /// Waits for a push, an earlier timer, or a worker that is done.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Clusters that wait for a worker.
    pub(crate) fn depth(&self) -> usize {
        let inner = self.inner.lock();
        inner
            .places
            .values()
            .filter(|place| matches!(place, Place::Queued(_)))
            .count()
    }
}

impl Inner {
    fn lane(&mut self, urgency: Urgency) -> &mut VecDeque<Uuid> {
        match urgency {
            Urgency::Urgent => &mut self.urgent,
            Urgency::Bulk => &mut self.bulk,
        }
    }

    fn enqueue(&mut self, cluster: Uuid, urgency: Urgency) {
        self.places.insert(cluster, Place::Queued(urgency));
        self.lane(urgency).push_back(cluster);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    #[test]
    fn a_cluster_waits_once_and_an_urgent_trigger_promotes_it() {
        let queue = Queue::default();
        queue.push(id(1), Urgency::Bulk);
        queue.push(id(2), Urgency::Bulk);
        queue.push(id(2), Urgency::Urgent);
        queue.push(id(2), Urgency::Bulk);
        assert_eq!(queue.pop(0), Some((id(2), Urgency::Urgent)));
        assert_eq!(queue.pop(0), Some((id(1), Urgency::Bulk)));
        assert_eq!(queue.pop(0), None);
    }

    #[test]
    fn a_trigger_during_a_pass_asks_for_another_and_never_for_two_at_once() {
        let queue = Queue::default();
        queue.push(id(1), Urgency::Bulk);
        assert!(queue.pop(0).is_some());
        queue.push(id(1), Urgency::Bulk);
        queue.push(id(1), Urgency::Urgent);
        assert_eq!(queue.pop(0), None);
        queue.done(id(1));
        assert_eq!(queue.pop(0), Some((id(1), Urgency::Urgent)));
        queue.done(id(1));
        assert_eq!(queue.pop(0), None);
    }

    #[test]
    fn only_the_newest_timer_of_a_cluster_counts() {
        let queue = Queue::default();
        queue.wake(id(1), Some(10));
        queue.wake(id(1), Some(50));
        assert_eq!(queue.pop(20), None);
        assert_eq!(queue.pop(50), Some((id(1), Urgency::Bulk)));
        queue.wake(id(2), Some(60));
        queue.wake(id(2), None);
        assert_eq!(queue.pop(100), None);
    }

    #[test]
    fn bulk_passes_are_limited_and_urgent_ones_go_on() {
        let queue = Queue::default();
        for n in 0..100 {
            queue.push(id(n), Urgency::Bulk);
        }
        let running = std::iter::from_fn(|| queue.pop(0)).count();
        assert_eq!(running, BULK_RUNNING);
        queue.push(id(1000), Urgency::Urgent);
        assert_eq!(queue.pop(0), Some((id(1000), Urgency::Urgent)));
        assert_eq!(queue.depth(), 100 - BULK_RUNNING);
    }
}
