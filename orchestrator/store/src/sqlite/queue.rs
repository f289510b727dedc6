//! Transactions waiting for the writer, in two bounded lanes.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::{Condvar, Mutex};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, timeout},
};

use crate::backend::{CommitError, Lane, Revision, Txn};

/// A cluster has one transaction in flight, so this many deaths can wait without delaying any of them.
const URGENT_PLACES: usize = 256;
/// About 70 ms of work; more would only add latency.
const BULK_PLACES: usize = 1024;

/// Bulk transactions per batch while syncs are fast: an urgent one that arrives meanwhile waits about 3 ms.
const BULK_BATCH: usize = 48;
/// Bulk transactions per batch while syncs are slow, which small batches would waste.
const BULK_BATCH_SLOW: usize = 256;
/// Maximum size of a batch in bytes, so that its pages stay in the cache.
const BATCH_BYTES: usize = 1024 * 1024;

/// A transaction with its place in a lane and the channel for its result.
pub(super) struct Job {
    pub(super) txn: Txn,
    pub(super) bytes: usize,
    pub(super) answer: oneshot::Sender<Result<Revision, CommitError>>,
    pub(super) place: OwnedSemaphorePermit,
}

/// The next task of the writer.
pub(super) enum Work {
    Batch(Vec<Job>),
    /// Nothing waits; a lease may have ended, or the time to wait is over.
    Leases,
    Closed,
}

pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    urgent: Arc<Semaphore>,
    bulk: Arc<Semaphore>,
}

#[derive(Default)]
struct Waiting {
    urgent: VecDeque<Job>,
    bulk: VecDeque<Job>,
    woken: bool,
    closed: bool,
}

impl Waiting {
    /// Whether the bulk transactions are as many as a batch takes.
    fn fills(&self, most_bulk: usize) -> bool {
        let bytes = self.bulk.iter().map(|job| job.bytes).sum::<usize>();
        self.bulk.len() >= most_bulk || bytes >= BATCH_BYTES
    }

    fn show(&self) {
        for (lane, waiting) in [(Lane::Urgent, &self.urgent), (Lane::Bulk, &self.bulk)] {
            #[expect(clippy::cast_precision_loss, reason = "there are few places")]
            metrics::gauge!("drover_store_queue_depth", "lane" => lane.as_str())
                .set(waiting.len() as f64);
        }
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            changed: Condvar::new(),
            urgent: Arc::new(Semaphore::new(URGENT_PLACES)),
            bulk: Arc::new(Semaphore::new(BULK_PLACES)),
        }
    }
}

impl Queue {
    /// Waits for a place in the lane, at most as long as the transaction allows, and queues it.
    pub(super) async fn push(
        &self,
        lane: Lane,
        txn: Txn,
        job: impl FnOnce(Txn, OwnedSemaphorePermit) -> Job,
    ) -> Result<(), CommitError> {
        let places = match lane {
            Lane::Urgent => &self.urgent,
            Lane::Bulk => &self.bulk,
        };
        let place = Arc::clone(places).acquire_owned();
        let place = match txn.max_wait {
            Some(most) => timeout(most, place)
                .await
                .map_err(|_| CommitError::Overloaded)?,
            None => place.await,
        };
        let place = place.map_err(|_| closed())?;
        let job = job(txn, place);
        {
            let mut waiting = self.waiting.lock();
            if waiting.closed {
                return Err(closed());
            }
            match lane {
                Lane::Urgent => waiting.urgent.push_back(job),
                Lane::Bulk => waiting.bulk.push_back(job),
            }
            waiting.show();
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for work, at most until `until`. Returns all urgent transactions, then as many bulk ones as a batch takes.
    /// Until `gather`, bulk ones alone wait for more.
    pub(super) fn take(
        &self,
        until: Option<Instant>,
        gather: Option<Instant>,
        slow_sync: bool,
    ) -> Work {
        let mut waiting = self.waiting.lock();
        while waiting.urgent.is_empty() && waiting.bulk.is_empty() {
            if waiting.closed {
                return Work::Closed;
            }
            if std::mem::take(&mut waiting.woken) {
                return Work::Leases;
            }
            match until {
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() || self.changed.wait_for(&mut waiting, left).timed_out() {
                        return Work::Leases;
                    }
                }
                None => self.changed.wait(&mut waiting),
            }
        }
        let most_bulk = if slow_sync {
            BULK_BATCH_SLOW
        } else {
            BULK_BATCH
        };
        if let Some(gather) = gather {
            while waiting.urgent.is_empty() && !waiting.fills(most_bulk) && !waiting.closed {
                let left = gather.saturating_duration_since(Instant::now());
                if left.is_zero() || self.changed.wait_for(&mut waiting, left).timed_out() {
                    break;
                }
            }
        }
        let mut batch =
            Vec::with_capacity(waiting.urgent.len() + most_bulk.min(waiting.bulk.len()));
        let mut bytes = 0;
        let mut bulk = 0;
        while bytes < BATCH_BYTES {
            let job = if let Some(job) = waiting.urgent.pop_front() {
                job
            } else if bulk < most_bulk
                && let Some(job) = waiting.bulk.pop_front()
            {
                bulk += 1;
                job
            } else {
                break;
            };
            bytes += job.bytes;
            batch.push(job);
        }
        waiting.show();
        Work::Batch(batch)
    }

    /// Makes the writer check the leases.
    pub(super) fn wake(&self) {
        self.waiting.lock().woken = true;
        self.changed.notify_one();
    }

    /// Accepts no more transactions. Those that wait are still written.
    pub(super) fn close(&self) {
        self.urgent.close();
        self.bulk.close();
        self.waiting.lock().closed = true;
        self.changed.notify_one();
    }
}

fn closed() -> CommitError {
    CommitError::Unavailable("the store is closed".into())
}
