//! Leases that outlive a pause of the test.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_core::Result;
use drover_store::{
    Backend, Lane, Revision,
    backend::{CommitError, Info, Lease, LeaseId, Range, Scan, Txn},
    history::Watch,
};
use tokio::time::Instant;

/// Shortest lease.
const TTL: Duration = Duration::from_secs(60);

/// A backend whose leases last for a minute at least: for tests in which no replica is to lose one, also if nothing runs
/// for a few seconds.
#[derive(Debug)]
pub struct LongLeases(Arc<dyn Backend>);

impl LongLeases {
    /// Wraps a backend.
    #[must_use]
    pub fn over(backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Self(backend))
    }
}

#[async_trait]
impl Backend for LongLeases {
    fn info(&self) -> Info {
        self.0.info()
    }

    async fn commit(&self, txn: Txn, lane: Lane) -> Result<Revision, CommitError> {
        self.0.commit(txn, lane).await
    }

    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        self.0.scan(range, page).await
    }

    async fn watch(&self, after: Revision) -> Result<Watch> {
        self.0.watch(after).await
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease> {
        self.0.lease(ttl.max(TTL)).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<Instant> {
        self.0.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.0.revoke(lease).await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.0.compact(revision).await
    }

    async fn backup(&self, to: &std::path::Path) -> Result<()> {
        self.0.backup(to).await
    }
}
