//! A store that survives the processes that use it.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use drover_core::Result;
use drover_store::{
    Backend, Keyring, Lane, Revision,
    backend::{CommitError, Info, Lease, LeaseId, Op, Range, Scan, Txn},
    history::Watch,
};
use drover_testing::store::{FaultBackend, MemoryBackend};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// A store that survives the processes that use it; their leases end with them.
#[derive(Debug)]
pub struct Disk {
    inner: Arc<FaultBackend>,
    leases: Mutex<Vec<LeaseId>>,
    /// Line of a key file. `None` if the processes do not keep secrets.
    key: Option<String>,
    /// Delays of a commit: before it is applied, and before its result is returned.
    delay: Mutex<(Duration, Duration)>,
    /// Hash of all writes.
    asked: Mutex<DefaultHasher>,
}

impl Disk {
    pub fn new() -> Arc<Self> {
        Self::with(None)
    }

    /// Creates a store whose processes have a key for secrets.
    pub fn with_key() -> Arc<Self> {
        Self::with(Keyring::generate().ok())
    }

    /// Creates an empty store with the same key.
    pub fn another(&self) -> Arc<Self> {
        Self::with(self.key.clone())
    }

    fn with(key: Option<String>) -> Arc<Self> {
        Arc::new(Self {
            key,
            inner: Arc::new(FaultBackend::new(Arc::new(MemoryBackend::new()))),
            leases: Mutex::default(),
            delay: Mutex::default(),
            asked: Mutex::default(),
        })
    }

    /// Ends the leases of the dead process, as a file lock ends with its process.
    pub async fn bury(&self) {
        let leases = std::mem::take(&mut *self.leases.lock());
        for lease in leases {
            self.inner.revoke(lease).await.unwrap();
        }
    }

    pub(super) fn keyring(&self) -> Option<Keyring> {
        Keyring::parse(self.key.as_ref()?, "key").ok()
    }

    /// Fault injection for commits.
    pub fn faults(&self) -> &FaultBackend {
        &self.inner
    }

    /// Sets the delays of commits: before they are applied, and before their results are returned.
    pub fn delay(&self, before: Duration, after: Duration) {
        *self.delay.lock() = (before, after);
    }

    /// Digest of all writes so far: two runs with the same digest have done the same.
    pub fn digest(&self) -> u64 {
        self.asked.lock().finish()
    }

    fn note(&self, txn: &Txn) {
        let mut asked = self.asked.lock();
        for op in &txn.ops {
            match op {
                Op::Put { key, value } | Op::PutLeased { key, value, .. } => {
                    (key, value).hash(&mut *asked);
                }
                Op::Delete { key } => key.hash(&mut *asked),
                Op::DeleteBelow { from, below } => (from, below).hash(&mut *asked),
            }
        }
    }

    /// All keys as text.
    pub async fn keys(&self) -> Vec<String> {
        let all = self
            .inner
            .scan(Range::all(), 512)
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        all.iter().map(|entry| entry.key.to_string()).collect()
    }
}

#[async_trait]
impl Backend for Disk {
    fn info(&self) -> Info {
        self.inner.info()
    }

    async fn commit(&self, txn: Txn, lane: Lane) -> Result<Revision, CommitError> {
        self.note(&txn);
        let (before, after) = *self.delay.lock();
        if (before, after) == (Duration::ZERO, Duration::ZERO) {
            return self.inner.commit(txn, lane).await;
        }
        // As in a real store, a commit is applied once it has its place in the lane, even if its caller no longer
        // waits.
        let inner = self.inner.clone();
        let made = tokio::spawn(async move {
            sleep(before).await;
            let made = inner.commit(txn, lane).await;
            sleep(after).await;
            made
        });
        made.await.unwrap()
    }

    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        self.inner.scan(range, page).await
    }

    async fn watch(&self, after: Revision) -> Result<Watch> {
        self.inner.watch(after).await
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease> {
        let lease = self.inner.lease(ttl).await?;
        self.leases.lock().push(lease.id);
        Ok(lease)
    }

    async fn renew(&self, lease: LeaseId) -> Result<Instant> {
        self.inner.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.inner.revoke(lease).await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.inner.compact(revision).await
    }
}
