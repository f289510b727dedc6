//! Work queue of clusters to plan: deduplicated, urgent ones first, and at most one worker per cluster.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use drover_core::{Millis, Urgency};
use drover_telemetry::{Context, current};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use uuid::Uuid;

/// Maximum concurrent bulk passes: enough to fill a batch of the store.
const BULK_RUNNING: usize = 64;
/// Maximum concurrent passes for node failures and take-overs.
const URGENT_RUNNING: usize = 256;

/// Places for which memory is kept while the queue is empty.
const KEPT: usize = 64;

/// Far longer than the lock is held.
const LOCKED: Duration = Duration::from_secs(10);

/// Maximum number of additional traces to which a pass is linked, beside the one that it belongs to.
const MAX_OTHERS: usize = 4;

/// Traces of the callers that requested a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The most recent one.
    pub(crate) by: Context,
    /// Earlier ones, of other traces.
    pub(crate) others: Vec<Context>,
}

impl Asked {
    fn add(asked: &mut Option<Self>, by: Context) {
        let mut others = match asked.take() {
            None => Vec::new(),
            Some(mut before) => {
                if before.by.trace_id() != by.trace_id() && before.others.len() < MAX_OTHERS {
                    before.others.push(before.by);
                }
                before.others
            }
        };
        others.retain(|other| other.trace_id() != by.trace_id());
        *asked = Some(Self { by, others });
    }
}

/// A cluster to plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkItem {
    pub(crate) cluster: Uuid,
    pub(crate) urgency: Urgency,
    /// When it was enqueued.
    pub(crate) since: Instant,
    /// `None` if the pass was triggered by an observation or a timer.
    pub(crate) asked: Option<Asked>,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Queued(Urgency, Instant),
    Running {
        lane: Urgency,
        again: Option<Urgency>,
        since: Instant,
    },
    /// Planned a moment ago; not planned in bulk again until the rest is over.
    Resting {
        again: bool,
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
    /// The requesting traces, for clusters with a place in the queue.
    asked: HashMap<Uuid, Asked>,
}

/// The queue. A trigger carries nothing but its trace: the worker reads the current state of the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<Notify>,
}

impl Queue {
    /// Requests a pass. An urgent trigger promotes a cluster that waits in bulk; a cluster that is being planned is
    /// planned again.
    pub(crate) fn push(&self, cluster: Uuid, urgency: Urgency) {
        self.push_for(cluster, urgency, current());
    }

    /// Like [`Self::push`], as part of a trace, if any.
    pub(crate) fn push_for(&self, cluster: Uuid, urgency: Urgency, by: Option<Context>) {
        {
            let mut inner = self.inner.lock();
            if let Some(by) = by {
                let mut asked = inner.asked.remove(&cluster);
                Asked::add(&mut asked, by);
                inner.asked.extend(asked.map(|asked| (cluster, asked)));
            }
            match inner.places.get(&cluster).copied() {
                None => inner.enqueue(cluster, urgency),
                Some(Place::Queued(Urgency::Bulk, _) | Place::Resting { .. })
                    if urgency == Urgency::Urgent =>
                {
                    inner.enqueue(cluster, urgency);
                }
                Some(Place::Queued(..)) => return,
                Some(Place::Resting { .. }) => {
                    inner.places.insert(cluster, Place::Resting { again: true });
                    return;
                }
                Some(Place::Running { lane, again, since }) => {
                    let again = again.max(Some(urgency));
                    let running = Place::Running { lane, again, since };
                    inner.places.insert(cluster, running);
                    return;
                }
            }
        }
        self.changed.notify_one();
    }

    /// Schedules a pass at a time, replacing any earlier schedule. `None` cancels it.
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

    /// The next cluster to plan, if any, and if the concurrency limits permit.
    pub(crate) fn pop(&self, now: Millis) -> Option<WorkItem> {
        let mut inner = self.inner.lock();
        while let Some(&(at, cluster)) = inner.timers.first() {
            if at > now {
                break;
            }
            inner.timers.pop_first();
            inner.wakes.remove(&cluster);
            match inner.places.get(&cluster).copied() {
                None => inner.enqueue(cluster, Urgency::Bulk),
                Some(Place::Queued(..)) => {}
                Some(Place::Resting { .. }) => {
                    inner.places.insert(cluster, Place::Resting { again: true });
                }
                Some(Place::Running { lane, again, since }) => {
                    let again = again.max(Some(Urgency::Bulk));
                    let running = Place::Running { lane, again, since };
                    inner.places.insert(cluster, running);
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
                // A promoted cluster still has a stale entry in the bulk queue.
                if let Some(Place::Queued(at, since)) = inner.places.get(&cluster).copied()
                    && at == lane
                {
                    let running = Place::Running {
                        lane,
                        again: None,
                        since: Instant::now(),
                    };
                    inner.places.insert(cluster, running);
                    inner.running[lane as usize] += 1;
                    return Some(WorkItem {
                        cluster,
                        urgency: lane,
                        since,
                        asked: inner.asked.remove(&cluster),
                    });
                }
            }
        }
        None
    }

    /// Called when a worker gets on with a cluster.
    pub(crate) fn goes_on(&self, cluster: Uuid) {
        let mut inner = self.inner.lock();
        if let Some(Place::Running { since, .. }) = inner.places.get_mut(&cluster) {
            *since = Instant::now();
        }
    }

    /// Called when a worker has finished a cluster.
    pub(crate) fn done(&self, cluster: Uuid) {
        let mut inner = self.inner.lock();
        if let Some(Place::Running { lane, again, .. }) = inner.places.remove(&cluster) {
            inner.running[lane as usize] -= 1;
            if let Some(urgency) = again {
                inner.enqueue(cluster, urgency);
            }
        }
        inner.shrink();
        drop(inner);
        self.changed.notify_one();
    }

    /// Called when a worker has finished a cluster for which bulk triggers are to be coalesced until [`Self::rested`].
    pub(crate) fn rest(&self, cluster: Uuid) {
        let mut inner = self.inner.lock();
        if let Some(Place::Running { lane, again, .. }) = inner.places.remove(&cluster) {
            inner.running[lane as usize] -= 1;
            if again == Some(Urgency::Urgent) {
                inner.enqueue(cluster, Urgency::Urgent);
            } else {
                let again = again.is_some();
                inner.places.insert(cluster, Place::Resting { again });
            }
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Ends the rest of a cluster.
    pub(crate) fn rested(&self, cluster: Uuid) {
        let mut inner = self.inner.lock();
        let Some(Place::Resting { again }) = inner.places.get(&cluster).copied() else {
            return;
        };
        inner.places.remove(&cluster);
        if again {
            inner.enqueue(cluster, Urgency::Bulk);
            drop(inner);
            self.changed.notify_one();
        } else {
            inner.shrink();
        }
    }

    /// When the next timer is due.
    pub(crate) fn next_timer(&self) -> Option<Millis> {
        self.inner.lock().timers.first().map(|(at, _)| *at)
    }

    /// Waits for a push, an earlier timer, or a worker that finishes.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Number of clusters that wait for a worker.
    pub(crate) fn depth(&self) -> usize {
        let inner = self.inner.lock();
        inner
            .places
            .values()
            .filter(|place| matches!(place, Place::Queued(..) | Place::Resting { again: true }))
            .count()
    }

    /// Why nothing moves: a pass that does not end, or clusters that nobody takes though somebody could.
    pub(crate) fn stuck(&self, longest: Duration) -> Option<String> {
        let Some(inner) = self.inner.try_lock_for(LOCKED) else {
            return Some("the lock of the queue is not given back".to_owned());
        };
        inner
            .places
            .iter()
            .find_map(|(cluster, place)| match place {
                Place::Running { since, .. } if since.elapsed() > longest => {
                    Some(format!("the pass of cluster {cluster} does not end"))
                }
                Place::Queued(lane, since)
                    if since.elapsed() > longest && inner.running[*lane as usize] == 0 =>
                {
                    Some(format!("nobody takes cluster {cluster}"))
                }
                Place::Running { .. } | Place::Queued(..) | Place::Resting { .. } => None,
            })
    }

    /// Queue depth and the age of the oldest entry, for urgent and for bulk passes.
    pub(crate) fn waiting(&self) -> [(Urgency, usize, Duration); 2] {
        let inner = self.inner.lock();
        [Urgency::Urgent, Urgency::Bulk].map(|lane| {
            let waiting = inner.places.values().filter_map(|place| match place {
                Place::Queued(at, since) if *at == lane => Some(since.elapsed()),
                _ => None,
            });
            let (count, oldest) = waiting.fold((0, Duration::ZERO), |(count, oldest), age| {
                (count + 1, oldest.max(age))
            });
            (lane, count, oldest)
        })
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
        // A promoted cluster has been waiting since it was first enqueued.
        let since = match self.places.get(&cluster) {
            Some(Place::Queued(_, since)) => *since,
            _ => Instant::now(),
        };
        self.places.insert(cluster, Place::Queued(urgency, since));
        self.lane(urgency).push_back(cluster);
    }

    /// Frees the memory of many clusters, such as all after a start, once none has a place any more.
    fn shrink(&mut self) {
        if self.places.is_empty() {
            self.places.shrink_to(KEPT);
            self.urgent.shrink_to(KEPT);
            self.bulk.shrink_to(KEPT);
            self.asked.shrink_to(KEPT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn pop(queue: &Queue, now: Millis) -> Option<(Uuid, Urgency)> {
        let item = queue.pop(now)?;
        Some((item.cluster, item.urgency))
    }

    #[test]
    fn a_cluster_waits_once_and_an_urgent_trigger_promotes_it() {
        let queue = Queue::default();
        queue.push(id(1), Urgency::Bulk);
        queue.push(id(2), Urgency::Bulk);
        queue.push(id(2), Urgency::Urgent);
        queue.push(id(2), Urgency::Bulk);
        assert_eq!(pop(&queue, 0), Some((id(2), Urgency::Urgent)));
        assert_eq!(pop(&queue, 0), Some((id(1), Urgency::Bulk)));
        assert_eq!(pop(&queue, 0), None);
    }

    #[test]
    fn a_trigger_during_a_pass_asks_for_another_and_never_for_two_at_once() {
        let queue = Queue::default();
        queue.push(id(1), Urgency::Bulk);
        assert!(pop(&queue, 0).is_some());
        queue.push(id(1), Urgency::Bulk);
        queue.push(id(1), Urgency::Urgent);
        assert_eq!(pop(&queue, 0), None);
        queue.done(id(1));
        assert_eq!(pop(&queue, 0), Some((id(1), Urgency::Urgent)));
        queue.done(id(1));
        assert_eq!(pop(&queue, 0), None);
    }

    #[test]
    fn triggers_are_collected_while_a_cluster_rests_and_urgent_ones_end_its_rest() {
        let queue = Queue::default();
        queue.push(id(1), Urgency::Bulk);
        assert!(pop(&queue, 0).is_some());
        queue.push(id(1), Urgency::Bulk);
        queue.rest(id(1));
        queue.push(id(1), Urgency::Bulk);
        queue.wake(id(1), Some(5));
        assert_eq!(pop(&queue, 10), None);
        assert_eq!(queue.depth(), 1);
        queue.rested(id(1));
        assert_eq!(pop(&queue, 10), Some((id(1), Urgency::Bulk)));
        queue.rest(id(1));
        queue.push(id(1), Urgency::Urgent);
        assert_eq!(pop(&queue, 10), Some((id(1), Urgency::Urgent)));
        queue.rested(id(1));
        queue.push(id(1), Urgency::Urgent);
        queue.rest(id(1));
        assert_eq!(pop(&queue, 10), Some((id(1), Urgency::Urgent)));
        queue.rest(id(1));
        queue.rested(id(1));
        assert_eq!(pop(&queue, 10), None);
        assert!(queue.inner.lock().places.is_empty());
    }

    #[test]
    fn only_the_newest_timer_of_a_cluster_counts() {
        let queue = Queue::default();
        queue.wake(id(1), Some(10));
        queue.wake(id(1), Some(50));
        assert_eq!(pop(&queue, 20), None);
        assert_eq!(pop(&queue, 50), Some((id(1), Urgency::Bulk)));
        queue.wake(id(2), Some(60));
        queue.wake(id(2), None);
        assert_eq!(pop(&queue, 100), None);
    }

    #[test]
    fn bulk_passes_are_limited_and_urgent_ones_go_on() {
        let queue = Queue::default();
        for n in 0..100 {
            queue.push(id(n), Urgency::Bulk);
        }
        let running = std::iter::from_fn(|| pop(&queue, 0)).count();
        assert_eq!(running, BULK_RUNNING);
        queue.push(id(1000), Urgency::Urgent);
        assert_eq!(pop(&queue, 0), Some((id(1000), Urgency::Urgent)));
        assert_eq!(queue.depth(), 100 - BULK_RUNNING);
    }

    #[test]
    fn an_empty_queue_does_not_keep_the_memory_of_a_full_one() {
        let queue = Queue::default();
        for n in 0..10_000 {
            queue.push(id(n), Urgency::Bulk);
        }
        while let Some((cluster, _)) = pop(&queue, 0) {
            queue.done(cluster);
        }
        let inner = queue.inner.lock();
        assert!(inner.places.capacity() < 1_000 && inner.bulk.capacity() < 1_000);
    }

    #[test]
    fn who_asks_is_remembered_until_the_turn_comes_and_the_newest_counts() {
        let (first, second) = (Context::root(None), Context::root(None));
        let queue = Queue::default();
        queue.push_for(id(1), Urgency::Bulk, Some(first));
        queue.push(id(1), Urgency::Bulk);
        queue.push_for(id(1), Urgency::Urgent, Some(second));
        let asked = queue.pop(0).unwrap().asked;
        let expected = Asked {
            by: second,
            others: vec![first],
        };
        assert_eq!(asked, Some(expected));
        // Pushed while the cluster is being planned, so it belongs to the next pass.
        queue.push_for(id(1), Urgency::Bulk, Some(first));
        queue.done(id(1));
        assert_eq!(queue.pop(0).unwrap().asked.unwrap().by, first);
        queue.done(id(1));
        queue.push(id(1), Urgency::Bulk);
        assert_eq!(queue.pop(0).unwrap().asked, None);
        assert!(queue.inner.lock().asked.is_empty());
    }

    #[test]
    fn those_who_ask_are_remembered_up_to_a_bound() {
        let queue = Queue::default();
        for _ in 0..100 {
            queue.push_for(id(1), Urgency::Bulk, Some(Context::root(None)));
        }
        assert_eq!(
            queue.pop(0).unwrap().asked.unwrap().others.len(),
            MAX_OTHERS
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_has_waited_since_it_was_put_in() {
        let queue = Queue::default();
        queue.push(id(1), Urgency::Bulk);
        tokio::time::advance(Duration::from_secs(3)).await;
        queue.push(id(1), Urgency::Urgent);
        queue.push(id(2), Urgency::Bulk);
        let second = Duration::from_secs(1);
        assert_eq!(
            queue.waiting().map(|(_, count, oldest)| (count, oldest)),
            [(1, 3 * second), (1, Duration::ZERO)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_stuck_if_a_pass_does_not_end_or_nobody_takes_what_waits() {
        const LONGEST: Duration = Duration::from_secs(60);
        let queue = Queue::default();
        let later = async || tokio::time::advance(LONGEST * 2 / 3).await;
        later().await;
        assert_eq!(queue.stuck(LONGEST), None, "there is nothing to do");
        queue.push(id(1), Urgency::Bulk);
        later().await;
        assert_eq!(queue.stuck(LONGEST), None);
        later().await;
        assert!(queue.stuck(LONGEST).unwrap().contains("nobody takes"));
        assert!(pop(&queue, 0).is_some());
        for _ in 0..3 {
            later().await;
            // Asked for again meanwhile: that is the same pass.
            queue.push(id(1), Urgency::Urgent);
            assert_eq!(queue.stuck(LONGEST), None);
            queue.goes_on(id(1));
        }
        later().await;
        later().await;
        assert!(queue.stuck(LONGEST).unwrap().contains("does not end"));
        queue.done(id(1));
        assert_eq!(queue.stuck(LONGEST), None);
        assert!(pop(&queue, 0).is_some());
        queue.rest(id(1));
        later().await;
        later().await;
        assert_eq!(queue.stuck(LONGEST), None, "it rests");
    }

    /// A store that is slow keeps all workers of a lane busy, and others wait for them.
    #[tokio::test(start_paused = true)]
    async fn it_is_not_stuck_while_others_are_planned() {
        const LONGEST: Duration = Duration::from_secs(60);
        let queue = Queue::default();
        queue.push(id(0), Urgency::Bulk);
        queue.push(id(1), Urgency::Bulk);
        for _ in 0..10 {
            let (running, _) = pop(&queue, 0).unwrap();
            tokio::time::advance(LONGEST / 2).await;
            assert_eq!(queue.stuck(LONGEST), None);
            queue.push(running, Urgency::Bulk);
            queue.done(running);
        }
    }
}
