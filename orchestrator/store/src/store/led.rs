//! A backend through which a process writes only as long as it has the lead.

use std::{
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use drover_core::{Error, Result};
use tokio::time::{Instant, sleep};

use crate::{
    backend::{
        Backend, CommitError, Fence, Info, Lane, Lease, LeaseId, Range, Revision, Scan, Txn,
    },
    history::Watch,
};

/// One process at a time keeps all clusters in memory. What a former one still wrote of them, for its own callers, would
/// be unknown to the one that has loaded them since: so each transaction has a fence, not only those of an owner.
#[derive(Debug)]
pub(super) struct Led {
    inner: Arc<dyn Backend>,
    claim: OnceLock<Fence>,
    /// Newest revision that this process has written.
    written: AtomicU64,
}

/// Attempts to read what is not older than what was written.
const READS: u32 = 10;
const READ_AGAIN: Duration = Duration::from_millis(20);

impl Led {
    pub(super) fn new(inner: Arc<dyn Backend>) -> Self {
        Self {
            inner,
            claim: OnceLock::new(),
            written: AtomicU64::new(0),
        }
    }

    /// Adds this fence to every transaction that has none. Nothing else can write to an exclusive backend.
    pub(super) fn lead(&self, claim: Fence) {
        if !self.inner.info().exclusive {
            self.written.fetch_max(claim.made_at, Ordering::AcqRel);
            let _ = self.claim.set(claim);
        }
    }
}

#[async_trait]
impl Backend for Led {
    fn info(&self) -> Info {
        self.inner.info()
    }

    async fn commit(&self, mut txn: Txn, lane: Lane) -> Result<Revision, CommitError> {
        if txn.fence.is_none() {
            txn.fence = self.claim.get().cloned();
        }
        let revision = self.inner.commit(txn, lane).await?;
        self.written.fetch_max(revision, Ordering::AcqRel);
        Ok(revision)
    }

    /// A member of etcd that stood still can answer of the past before 3.4.42, 3.5.28 and 3.6.9, though it is asked for the
    /// present. Whoever has just taken the lead would not know of what the one before wrote last.
    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        let written = self.written.load(Ordering::Acquire);
        for _ in 0..READS {
            let scan = self.inner.scan(range.clone(), page).await?;
            if scan.revision() >= written {
                return Ok(scan);
            }
            sleep(READ_AGAIN).await;
        }
        Err(Error::unavailable(
            "a member of etcd answers of the past; is one of them cut off from the others?",
        ))
    }

    async fn watch(&self, after: Revision) -> Result<Watch> {
        self.inner.watch(after).await
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease> {
        self.inner.lease(ttl).await
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

    async fn backup(&self, to: &Path) -> Result<()> {
        self.inner.backup(to).await
    }
}
