//! The only thread that writes. While one batch is synced, the next one forms in the queue (group commit).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rusqlite::{
    Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, ffi, hooks::Wal,
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    CommitFault, Options, SyncFailure,
    queue::{Job, Queue, Work},
};
use crate::{
    backend::{CommitError, Expect, Lease, LeaseId, Op, Revision, Txn},
    history::{Batch, Change, History},
    keys::{Key, LEASED},
};

/// Duration of a sync above which larger batches are worth their latency.
const SLOW_SYNC: Duration = Duration::from_millis(2);

/// Transactions of a batch from which on others are likely to follow it at once.
const BUSY_BATCH: usize = 4;
/// Maximum time from the begin of such a batch until the next one, unless that is full or an urgent transaction comes: a sync
/// costs as much for one as for many.
const GATHER: Duration = Duration::from_millis(4);
/// The same as a multiple of what a sync takes.
const GATHER_SYNCS: u32 = 4;

/// Length of the write-ahead log in pages at which it is checkpointed: a longer log makes urgent commits wait longer.
const CHECKPOINT_PAGES: i32 = 1000;

/// Time without work after which the page cache is freed.
const IDLE: Duration = Duration::from_secs(1);

/// State of the database when it was opened.
pub(super) struct Started {
    pub(super) revision: Revision,
    epoch: u64,
    log_pages: Arc<AtomicI32>,
}

/// Prepares the database for use: durable commits, a new epoch, and no leases of the previous process.
pub(super) fn start(
    connection: &mut Connection,
    max_bytes: Option<u64>,
) -> rusqlite::Result<Started> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Truncates a WAL that one huge transaction has blown up, at the next checkpoint.
    connection.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)?;
    if let Some(bytes) = max_bytes {
        let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = i64::try_from(bytes).unwrap_or(i64::MAX) / page.max(1);
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    let txn = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut ended = 0;
    for kind in LEASED {
        let below = Key::from_bytes(kind.to_vec())
            .after_prefix()
            .map(Key::into_bytes);
        ended += txn.execute("DELETE FROM state WHERE k >= ?1 AND k < ?2", (kind, below))?;
    }
    let revision = meta(&txn, "revision")? + u64::from(ended > 0);
    let epoch = meta(&txn, "epoch")? + 1;
    set_meta(&txn, "revision", revision)?;
    set_meta(&txn, "epoch", epoch)?;
    txn.commit()?;
    // SQLite's automatic checkpoints would hide a failed sync, so the writer makes them.
    let log_pages = Arc::new(AtomicI32::new(0));
    let pages = Arc::clone(&log_pages);
    connection.wal_hook(Some(move |_: &mut Wal, count: i32| {
        pages.store(count, Ordering::Relaxed);
        Ok(())
    }))?;
    Ok(Started {
        revision,
        epoch,
        log_pages,
    })
}

fn meta(connection: &Connection, key: &str) -> rusqlite::Result<u64> {
    connection
        .prepare_cached("SELECT v FROM meta WHERE k = ?1")?
        .query_row([key], |row| row.get(0))
}

fn set_meta(connection: &Connection, key: &str, value: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE meta SET v = ?2 WHERE k = ?1")?
        .execute((key, value))
        .map(drop)
}

pub(super) struct Writer {
    connection: Connection,
    epoch: u64,
    revision: Revision,
    queue: Arc<Queue>,
    history: Arc<History>,
    leases: Arc<Mutex<Leases>>,
    on_failed_sync: SyncFailure,
    commit_fault: Option<CommitFault>,
    /// Pages in the write-ahead log.
    log_pages: Arc<AtomicI32>,
    /// Moving average of the duration of commits.
    sync: Duration,
    /// Set after a failed sync: the contents of the disk are not known any more.
    failed: bool,
}

impl Writer {
    pub(super) fn new(
        connection: Connection,
        started: Started,
        queue: Arc<Queue>,
        history: Arc<History>,
        leases: Arc<Mutex<Leases>>,
        options: &Options,
    ) -> Self {
        let abort = || -> SyncFailure {
            Arc::new(|message| {
                tracing::error!("{message}");
                std::process::abort();
            })
        };
        Self {
            connection,
            epoch: started.epoch,
            revision: started.revision,
            queue,
            history,
            leases,
            on_failed_sync: options.on_failed_sync.clone().unwrap_or_else(abort),
            commit_fault: options.commit_fault.clone(),
            log_pages: started.log_pages,
            sync: Duration::ZERO,
            failed: false,
        }
    }

    pub(super) fn run(mut self) {
        // When the page cache is freed. `None` if nothing was written since.
        let mut idle: Option<Instant> = None;
        let mut gather: Option<Instant> = None;
        loop {
            let until = self.leases.lock().first_end();
            let until = until.into_iter().chain(idle).min();
            let work = self.queue.take(until, gather, self.sync > SLOW_SYNC);
            let ended = self.leases.lock().take_ended(Instant::now());
            if !ended.is_empty() {
                self.end(ended);
                idle = Some(Instant::now() + IDLE);
            }
            match work {
                Work::Batch(jobs) => {
                    let most = (self.sync * GATHER_SYNCS).min(GATHER);
                    gather = (jobs.len() >= BUSY_BATCH).then(|| Instant::now() + most);
                    self.commit(jobs);
                    self.checkpoint();
                    idle = Some(Instant::now() + IDLE);
                }
                Work::Leases => {}
                Work::Closed => return,
            }
            if idle.is_some_and(|at| at <= Instant::now()) {
                idle = None;
                // What `PRAGMA shrink_memory` does. A failure costs memory only.
                let _ = self.connection.release_memory();
            }
        }
    }

    /// Removes the keys of leases that have ended; failed removals are retried.
    fn end(&mut self, ended: Vec<Ended>) {
        for lease in ended {
            let ops = lease
                .keys
                .iter()
                .map(|key| Op::Delete { key: key.clone() })
                .collect::<Vec<_>>();
            let removed = ops.is_empty() || {
                let txn = Txn {
                    ops,
                    ..Txn::default()
                };
                matches!(self.write(std::slice::from_ref(&txn)).as_deref(), Ok([Ok(revision)]) if {
                    self.publish([(txn, *revision)]);
                    true
                })
            };
            if !removed {
                self.leases.lock().retry(lease);
            } else if let Some(gone) = lease.gone {
                // The caller may be gone; the keys are removed nevertheless.
                let _ = gone.send(());
            }
        }
    }

    /// Checkpoints the log once it is long. Pages that cannot be moved now stay in the log, which is durable.
    fn checkpoint(&mut self) {
        if self.log_pages.load(Ordering::Relaxed) < CHECKPOINT_PAGES || self.failed {
            return;
        }
        let done = self
            .connection
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        self.log_pages.store(0, Ordering::Relaxed);
        if let Err(error) = done {
            let refusal = self.failure(&error);
            tracing::warn!(%refusal, "cannot checkpoint the store");
        }
    }

    fn commit(&mut self, jobs: Vec<Job>) {
        let mut txns = Vec::with_capacity(jobs.len());
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            drop(job.place);
            txns.push(job.txn);
            answers.push(job.answer);
        }
        let outcomes = match self.write(&txns) {
            Ok(outcomes) => outcomes,
            Err(error) => vec![Err(error); txns.len()],
        };
        let committed = txns
            .into_iter()
            .zip(&outcomes)
            .filter_map(|(txn, o)| Some((txn, *o.as_ref().ok()?)));
        self.publish(committed.collect::<Vec<_>>());
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            // The caller may be gone; its transaction is committed nevertheless.
            let _ = answer.send(outcome);
        }
    }

    fn publish(&self, committed: impl IntoIterator<Item = (Txn, Revision)>) {
        let mut leases = self.leases.lock();
        self.history
            .publish(committed.into_iter().map(|(txn, revision)| {
                let mut changes = Vec::with_capacity(txn.ops.len());
                for op in txn.ops {
                    let (key, value, lease) = match op {
                        Op::Put { key, value } => (key, Some(value), None),
                        Op::PutLeased { key, value, lease } => (key, Some(value), Some(lease)),
                        Op::Delete { key } => (key, None, None),
                        Op::DeleteBelow { .. } => continue,
                    };
                    if key.is_leased() {
                        leases.bind(&key, lease);
                    }
                    if !key.is_log() {
                        changes.push(Change { key, value });
                    }
                }
                Batch { revision, changes }
            }));
    }

    /// Writes a batch and syncs it. An error applies to each of its transactions.
    fn write(&mut self, txns: &[Txn]) -> Result<Vec<Result<Revision, CommitError>>, CommitError> {
        if self.failed {
            return Err(CommitError::Unavailable(
                "the store stopped after a failed sync; start it again".into(),
            ));
        }
        let Self {
            connection,
            leases,
            epoch,
            ..
        } = self;
        let mut revision = self.revision;
        let fault = self.commit_fault.as_ref();
        let result = (|| {
            let batch = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            if meta(&batch, "epoch")? != *epoch {
                return Ok((vec![Err(CommitError::Fenced); txns.len()], Duration::ZERO));
            }
            let mut outcomes = Vec::with_capacity(txns.len());
            let before = revision;
            for txn in txns {
                outcomes.push(match refusal(&batch, txn, &leases.lock())? {
                    Some(refusal) => Err(refusal),
                    None => {
                        revision += 1;
                        apply(&batch, txn, revision)?;
                        Ok(revision)
                    }
                });
            }
            if revision == before {
                return Ok((outcomes, Duration::ZERO));
            }
            set_meta(&batch, "revision", revision)?;
            if let Some(error) = fault.and_then(|fault| fault()) {
                return Err(error);
            }
            let begun = Instant::now();
            batch.commit()?;
            Ok((outcomes, begun.elapsed()))
        })();
        match result {
            Ok((outcomes, sync)) => {
                self.revision = revision;
                if !sync.is_zero() {
                    metrics::histogram!("drover_store_commit_duration_seconds")
                        .record(sync.as_secs_f64());
                    self.sync = (self.sync * 3 + sync) / 4;
                }
                Ok(outcomes)
            }
            Err(error) => Err(self.failure(&error)),
        }
    }

    fn failure(&mut self, error: &rusqlite::Error) -> CommitError {
        let failure = self.judge(error);
        let reason = match failure {
            CommitError::StorageFull => "storage_full",
            CommitError::Unknown => "sync",
            _ => "unavailable",
        };
        metrics::counter!("drover_store_failures_total", "reason" => reason).increment(1);
        failure
    }

    fn judge(&mut self, error: &rusqlite::Error) -> CommitError {
        let extended = error.sqlite_error().map(|e| e.extended_code);
        if matches!(
            extended,
            Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC)
        ) {
            self.failed = true;
            (self.on_failed_sync)(
                "the disk did not sync the store, so what is on it is not known any more; stopping",
            );
            return CommitError::Unknown;
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => CommitError::StorageFull,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                CommitError::Unavailable(format!(
                    "the database is damaged ({error}); stop the orchestrator and restore a backup"
                ))
            }
            _ => CommitError::Unavailable(format!("the store cannot be written: {error}")),
        }
    }
}

/// Why a transaction may not be written, checked before any of it is.
fn refusal(
    batch: &Transaction<'_>,
    txn: &Txn,
    leases: &Leases,
) -> rusqlite::Result<Option<CommitError>> {
    if let Some(fence) = &txn.fence
        && revision_of(batch, &fence.key)? != Some(fence.made_at)
    {
        return Ok(Some(CommitError::Fenced));
    }
    for (key, expect) in &txn.expect {
        let holds = match (revision_of(batch, key)?, expect) {
            (None, Expect::Absent) => true,
            (Some(is), Expect::Revision(expected)) => is == *expected,
            (None, Expect::Revision(_)) | (Some(_), Expect::Absent) => false,
        };
        if !holds {
            return Ok(Some(CommitError::Conflict(key.clone())));
        }
    }
    let ended = |op: &Op| matches!(op, Op::PutLeased { lease, .. } if !leases.holds(*lease));
    Ok(txn.ops.iter().any(ended).then_some(CommitError::Fenced))
}

fn revision_of(batch: &Transaction<'_>, key: &Key) -> rusqlite::Result<Option<Revision>> {
    let sql = if key.is_log() {
        "SELECT rev FROM log WHERE k = ?1"
    } else {
        "SELECT rev FROM state WHERE k = ?1"
    };
    batch
        .prepare_cached(sql)?
        .query_row([key.as_bytes()], |row| row.get(0))
        .optional()
}

fn apply(batch: &Transaction<'_>, txn: &Txn, revision: Revision) -> rusqlite::Result<()> {
    for op in &txn.ops {
        match op {
            Op::Put { key, value } | Op::PutLeased { key, value, .. } => {
                let sql = if key.is_log() {
                    "INSERT OR REPLACE INTO log (k, rev, v) VALUES (?1, ?2, ?3)"
                } else {
                    "INSERT OR REPLACE INTO state (k, rev, v) VALUES (?1, ?2, ?3)"
                };
                batch
                    .prepare_cached(sql)?
                    .execute((key.as_bytes(), revision, value.as_ref()))?;
            }
            Op::Delete { key } => {
                let sql = if key.is_log() {
                    "DELETE FROM log WHERE k = ?1"
                } else {
                    "DELETE FROM state WHERE k = ?1"
                };
                batch.prepare_cached(sql)?.execute([key.as_bytes()])?;
            }
            Op::DeleteBelow { from, below } => {
                batch
                    .prepare_cached("DELETE FROM log WHERE k >= ?1 AND k < ?2")?
                    .execute([from.as_bytes(), below.as_bytes()])?;
            }
        }
    }
    Ok(())
}

/// Leases of this process. Their keys are in the database, the leases themselves only in memory.
#[derive(Default)]
pub(super) struct Leases {
    last: u64,
    held: HashMap<LeaseId, Held>,
    ended: Vec<Ended>,
}

struct Held {
    ttl: Duration,
    deadline: Instant,
    keys: Vec<Key>,
}

struct Ended {
    keys: Vec<Key>,
    gone: Option<oneshot::Sender<()>>,
}

impl Leases {
    pub(super) fn grant(&mut self, ttl: Duration) -> Lease {
        self.last += 1;
        let (id, deadline) = (LeaseId(self.last), Instant::now() + ttl);
        self.held.insert(
            id,
            Held {
                ttl,
                deadline,
                keys: Vec::new(),
            },
        );
        Lease { id, deadline }
    }

    pub(super) fn renew(&mut self, lease: LeaseId) -> Option<Instant> {
        let now = Instant::now();
        let held = self
            .held
            .get_mut(&lease)
            .filter(|held| held.deadline > now)?;
        held.deadline = now + held.ttl;
        Some(held.deadline)
    }

    pub(super) fn end(&mut self, lease: LeaseId, gone: oneshot::Sender<()>) {
        let keys = self
            .held
            .remove(&lease)
            .map(|held| held.keys)
            .unwrap_or_default();
        self.ended.push(Ended {
            keys,
            gone: Some(gone),
        });
    }

    fn holds(&self, lease: LeaseId) -> bool {
        self.held
            .get(&lease)
            .is_some_and(|held| held.deadline > Instant::now())
    }

    fn bind(&mut self, key: &Key, lease: Option<LeaseId>) {
        for held in self.held.values_mut() {
            held.keys.retain(|k| k != key);
        }
        if let Some(lease) = lease {
            match self.held.get_mut(&lease) {
                Some(held) => held.keys.push(key.clone()),
                // The lease ended between the check and here: the key is removed immediately.
                None => self.ended.push(Ended {
                    keys: vec![key.clone()],
                    gone: None,
                }),
            }
        }
    }

    fn first_end(&self) -> Option<Instant> {
        if !self.ended.is_empty() {
            return Some(Instant::now() + RETRY_END);
        }
        self.held.values().map(|held| held.deadline).min()
    }

    fn take_ended(&mut self, now: Instant) -> Vec<Ended> {
        let mut ended = std::mem::take(&mut self.ended);
        let over: Vec<LeaseId> = self
            .held
            .iter()
            .filter(|(_, held)| held.deadline <= now)
            .map(|(id, _)| *id)
            .collect();
        ended.extend(
            over.iter()
                .filter_map(|id| self.held.remove(id))
                .map(|held| Ended {
                    keys: held.keys,
                    gone: None,
                }),
        );
        ended
    }

    fn retry(&mut self, ended: Ended) {
        self.ended.push(ended);
    }
}

/// Delay before the keys of an ended lease are removed again, if the store could not be written.
const RETRY_END: Duration = Duration::from_millis(50);
