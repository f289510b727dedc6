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
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::mirror::{Mirror, Unread};
use crate::{
    backend::{
        Backend, CommitError, Fence, Info, Lane, Lease, LeaseId, Range, Revision, Scan, Txn,
    },
    history::Watch,
    keys::Name,
};

/// One process at a time keeps all clusters in memory. What a former one still wrote of them, for its own callers, would
/// be unknown to the one that has loaded them since: so each transaction has a fence, not only those of an owner.
#[derive(Debug)]
pub(super) struct Led {
    inner: Arc<dyn Backend>,
    claim: OnceLock<Fence>,
    /// Newest revision that this process has written.
    written: AtomicU64,
    /// The clusters, until they are loaded.
    mirror: Mutex<Option<Mirror>>,
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
            mirror: Mutex::default(),
        }
    }

    /// Keeps the clusters in memory until they are loaded, which then reads nothing.
    pub(super) fn read_ahead(&self) {
        *self.mirror.lock() = Some(Mirror::start(&self.inner));
    }

    /// The revision that was read ahead. 0 if none was (yet).
    pub(super) fn ahead(&self) -> Revision {
        self.mirror.lock().as_ref().map_or(0, Mirror::revision)
    }

    /// What was read ahead and is to be read.
    pub(super) fn unread(&self, most: usize) -> Result<Option<Unread>> {
        let mirror = self.mirror.lock();
        mirror
            .as_ref()
            .map(|mirror| mirror.unread(most))
            .transpose()
    }

    /// Whether nearly all of that copy, the present one, was read: fewer clusters than `most` are unread.
    pub(super) fn is_read(&self, copy: u64, most: usize) -> bool {
        let mirror = self.mirror.lock();
        mirror
            .as_ref()
            .is_some_and(|mirror| mirror.is_read(copy, most))
    }

    pub(super) fn was_read(&self, copy: u64, clusters: impl Iterator<Item = (Uuid, Revision)>) {
        if let Some(mirror) = &*self.mirror.lock() {
            mirror.was_read(copy, clusters);
        }
    }

    async fn scan_ahead(&self) -> Result<Option<Scan>> {
        let Some(mirror) = self.true_mirror().await? else {
            return Ok(None);
        };
        Ok(mirror.into_scan(self.written.load(Ordering::Acquire)).await)
    }

    /// What of that copy was read ahead and not read. Only for whoever leads, and once.
    pub(super) async fn unread_since(&self, copy: u64) -> Result<Option<Unread>> {
        let Some(mirror) = self.true_mirror().await? else {
            return Ok(None);
        };
        let least = self.written.load(Ordering::Acquire);
        match mirror.into_unread(copy, least).await? {
            Ok(unread) => Ok(Some(unread)),
            Err(mirror) => {
                *self.mirror.lock() = Some(mirror);
                Ok(None)
            }
        }
    }

    /// Takes the mirror, unless it is of an etcd that was put back to an earlier state since, which has not got what was
    /// read from it.
    async fn true_mirror(&self) -> Result<Option<Mirror>> {
        let Some(mirror) = self.mirror.lock().take() else {
            return Ok(None);
        };
        // It may see what is written after that answer.
        let at = mirror.revision();
        let newest = self.scan_now(Range::one(&Name::Meta.into()), 1).await?;
        Ok(Some(mirror).filter(|_| at <= newest.revision()))
    }

    /// A member of etcd that stood still can answer of the past before 3.4.42, 3.5.28 and 3.6.9, though it is asked for the
    /// present. Whoever has just taken the lead would not know of what the one before wrote last.
    async fn scan_now(&self, range: Range, page: usize) -> Result<Scan> {
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

    /// Answers of before this revision are of the past.
    pub(super) fn wrote(&self, revision: Revision) {
        if !self.inner.info().exclusive {
            self.written.fetch_max(revision, Ordering::AcqRel);
        }
    }

    /// Adds this fence to every transaction that has none. Nothing else can write to an exclusive backend.
    pub(super) fn lead(&self, claim: Fence) {
        self.wrote(claim.made_at);
        if !self.inner.info().exclusive {
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

    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        let leads = self.claim.get().is_some();
        if leads
            && Mirror::has(&range)
            && let Some(scan) = self.scan_ahead().await?
        {
            return Ok(scan);
        }
        self.scan_now(range, page).await
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
