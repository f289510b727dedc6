//! A store that lives as long as the process.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use drover_core::Result;
use drover_store::{
    Backend, Bytes, Lane, Revision,
    backend::{CommitError, Entry, Expect, Info, LIMITS, Lease, LeaseId, Op, Range, Scan, Txn},
    history::{Batch, Change, History, Watch, WatchEnd},
    keys::Key,
};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

/// An in-memory backend that several replicas may share, so that leases have to be renewed.
#[derive(Debug)]
pub struct MemoryBackend {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    history: Arc<History>,
}

#[derive(Debug, Default)]
struct State {
    revision: Revision,
    entries: BTreeMap<Key, Stored>,
    last_lease: u64,
    leases: HashMap<LeaseId, Held>,
}

#[derive(Clone, Debug)]
struct Stored {
    value: Bytes,
    revision: Revision,
    lease: Option<LeaseId>,
}

#[derive(Debug)]
struct Held {
    ttl: Duration,
    deadline: Instant,
    expiry: AbortHandle,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.expiry.abort();
    }
}

impl MemoryBackend {
    /// Creates an empty backend.
    #[must_use]
    pub fn new() -> Self {
        let shared = Shared {
            state: Mutex::default(),
            history: History::new(0),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Shared {
    fn commit(&self, txn: Txn) -> Result<Revision, CommitError> {
        let mut state = self.state.lock();
        if let Some(fence) = &txn.fence
            && state.revision_of(&fence.key) != Some(fence.made_at)
        {
            return Err(CommitError::Fenced);
        }
        for (key, expect) in &txn.expect {
            let expected = match expect {
                Expect::Absent => None,
                Expect::Revision(revision) => Some(*revision),
            };
            if state.revision_of(key) != expected {
                return Err(CommitError::Conflict(key.clone()));
            }
        }
        let ended = |op: &Op| matches!(op, Op::PutLeased { lease, .. } if !state.leases.contains_key(lease));
        if txn.ops.iter().any(ended) {
            return Err(CommitError::Fenced);
        }
        Ok(self.apply(&mut state, txn.ops))
    }

    fn apply(&self, state: &mut State, ops: Vec<Op>) -> Revision {
        state.revision += 1;
        let revision = state.revision;
        let mut changes = Vec::new();
        for op in ops {
            let (key, value, lease) = match op {
                Op::Put { key, value } => (key, Some(value), None),
                Op::PutLeased { key, value, lease } => (key, Some(value), Some(lease)),
                Op::Delete { key } => (key, None, None),
                Op::DeleteBelow { from, below } => {
                    state.entries.retain(|key, _| *key < from || *key >= below);
                    continue;
                }
            };
            match &value {
                Some(value) => {
                    state.entries.insert(
                        key.clone(),
                        Stored {
                            value: value.clone(),
                            revision,
                            lease,
                        },
                    );
                }
                None => {
                    state.entries.remove(&key);
                }
            }
            if !key.is_log() {
                changes.push(Change { key, value });
            }
        }
        self.history.publish([Batch { revision, changes }]);
        revision
    }

    fn end(&self, lease: LeaseId) {
        let mut state = self.state.lock();
        state.leases.remove(&lease);
        let keys = state
            .entries
            .iter()
            .filter(|(_, stored)| stored.lease == Some(lease));
        let ops: Vec<Op> = keys
            .map(|(key, _)| Op::Delete { key: key.clone() })
            .collect();
        if !ops.is_empty() {
            self.apply(&mut state, ops);
        }
    }
}

impl State {
    fn revision_of(&self, key: &Key) -> Option<Revision> {
        self.entries.get(key).map(|stored| stored.revision)
    }
}

async fn expire(shared: Weak<Shared>, lease: LeaseId, mut deadline: Instant) {
    loop {
        sleep_until(deadline).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let held = shared
            .state
            .lock()
            .leases
            .get(&lease)
            .map(|held| held.deadline);
        match held {
            Some(later) if later > Instant::now() => deadline = later,
            Some(_) => return shared.end(lease),
            None => return,
        }
    }
}

/// Pages read ahead of the caller.
const AHEAD: usize = 2;

#[async_trait]
impl Backend for MemoryBackend {
    fn info(&self) -> Info {
        Info {
            kind: "memory",
            exclusive: false,
            limits: LIMITS,
        }
    }

    async fn commit(&self, txn: Txn, _: Lane) -> Result<Revision, CommitError> {
        txn.check(&LIMITS)?;
        self.shared.commit(txn)
    }

    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        let (revision, entries) = {
            let state = self.shared.state.lock();
            let below = range
                .below
                .as_ref()
                .map_or(Bound::Unbounded, Bound::Excluded);
            let bounds = (Bound::Included(&range.from), below);
            let empty = range
                .below
                .as_ref()
                .is_some_and(|below| *below <= range.from);
            let limit = if empty {
                0
            } else {
                range.limit.unwrap_or(usize::MAX)
            };
            let entry = |(key, stored): (&Key, &Stored)| Entry {
                key: key.clone(),
                value: stored.value.clone(),
                revision: stored.revision,
            };
            let entries = match limit {
                0 => Vec::new(),
                limit => state
                    .entries
                    .range::<Key, _>(bounds)
                    .take(limit)
                    .map(entry)
                    .collect::<Vec<_>>(),
            };
            (state.revision, entries)
        };
        let (pages, receiver) = mpsc::channel(AHEAD);
        // Ends with the last page, or when the caller drops the scan.
        tokio::spawn(async move {
            for page in entries.chunks(page.max(1)) {
                if pages.send(Ok(page.to_vec())).await.is_err() {
                    return;
                }
            }
        });
        Ok(Scan::new(revision, receiver))
    }

    async fn watch(&self, after: Revision) -> Result<Watch> {
        Ok(self.shared.history.watch(after))
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease> {
        let mut state = self.shared.state.lock();
        state.last_lease += 1;
        let (id, deadline) = (LeaseId(state.last_lease), Instant::now() + ttl);
        let expiry =
            tokio::spawn(expire(Arc::downgrade(&self.shared), id, deadline)).abort_handle();
        state.leases.insert(
            id,
            Held {
                ttl,
                deadline,
                expiry,
            },
        );
        Ok(Lease { id, deadline })
    }

    async fn renew(&self, lease: LeaseId) -> Result<Instant> {
        let mut state = self.shared.state.lock();
        let held = state.leases.get_mut(&lease).ok_or(CommitError::Fenced)?;
        held.deadline = Instant::now() + held.ttl;
        Ok(held.deadline)
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.shared.end(lease);
        Ok(())
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.shared.history.compact(revision);
        Ok(())
    }
}

impl Drop for MemoryBackend {
    fn drop(&mut self) {
        self.shared.history.end(WatchEnd::Closed);
    }
}
