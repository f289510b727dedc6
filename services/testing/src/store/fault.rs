//! A backend that fails on demand.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_core::{Error, Result};
use drover_store::{
    Backend, Lane, Revision,
    backend::{CommitError, Info, Lease, LeaseId, Range, Scan, Txn},
    history::Watch,
};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

/// A fault of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reported as unavailable; nothing is written.
    Refused,
    /// Reported as full; nothing is written.
    Full,
    /// The response is lost; nothing is written.
    LostRequest,
    /// The response is lost; the transaction is written.
    LostAnswer,
    /// The process crashes before the write: nothing works until [`FaultBackend::restart`].
    CrashBefore,
    /// The process crashes after the write: nothing works until [`FaultBackend::restart`].
    CrashAfter,
}

/// Faults that are injected at random.
const RANDOM: [Fault; 4] = [
    Fault::Refused,
    Fault::Full,
    Fault::LostRequest,
    Fault::LostAnswer,
];

/// Adds faults to any backend.
#[derive(Debug)]
pub struct FaultBackend {
    inner: Arc<dyn Backend>,
    plan: Mutex<Plan>,
    crashed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Plan {
    commits: u64,
    faults: BTreeMap<u64, Fault>,
    random: Option<(fastrand::Rng, f64)>,
}

impl Plan {
    fn next(&mut self) -> Option<Fault> {
        self.commits += 1;
        if let Some(fault) = self.faults.remove(&self.commits) {
            return Some(fault);
        }
        let (rng, share) = self.random.as_mut()?;
        (rng.f64() < *share).then(|| RANDOM[rng.usize(..RANDOM.len())])
    }
}

impl FaultBackend {
    /// Creates a backend without faults.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self {
            inner,
            plan: Mutex::default(),
            crashed: watch::Sender::new(false),
        }
    }

    /// Injects a fault into the `nth` commit from now on; 1 is the next.
    pub fn inject(&self, nth: u64, fault: Fault) {
        let mut plan = self.plan.lock();
        let at = plan.commits + nth;
        plan.faults.insert(at, fault);
    }

    /// Makes a share of all commits fail, with all faults except crashes.
    pub fn inject_randomly(&self, seed: u64, share: f64) {
        self.plan.lock().random = Some((fastrand::Rng::with_seed(seed), share));
    }

    /// Removes all faults, including a crash.
    pub fn restart(&self) {
        let mut plan = self.plan.lock();
        let commits = plan.commits;
        *plan = Plan {
            commits,
            ..Plan::default()
        };
        self.crashed.send_replace(false);
    }

    /// Number of commits so far, including failed ones.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.plan.lock().commits
    }

    /// Whether an injected crash has happened.
    #[must_use]
    pub fn crashed(&self) -> bool {
        *self.crashed.borrow()
    }

    /// Waits for an injected crash.
    pub async fn wait_crash(&self) {
        // The sender is ours, so it cannot be dropped first.
        let _ = self.crashed.subscribe().wait_for(|crashed| *crashed).await;
    }

    fn crash(&self) {
        self.crashed.send_replace(true);
    }

    fn alive(&self) -> Result<()> {
        if self.crashed() {
            Err(Error::unavailable("the process has crashed"))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl Backend for FaultBackend {
    fn info(&self) -> Info {
        self.inner.info()
    }

    async fn commit(&self, txn: Txn, lane: Lane) -> Result<Revision, CommitError> {
        self.alive().map_err(|_| CommitError::Unknown)?;
        let fault = self.plan.lock().next();
        match fault {
            None => self.inner.commit(txn, lane).await,
            Some(Fault::Refused) => Err(CommitError::Unavailable("refused by a test".into())),
            Some(Fault::Full) => Err(CommitError::StorageFull),
            Some(Fault::LostRequest) => Err(CommitError::Unknown),
            Some(Fault::LostAnswer) => {
                // A refusal may be lost as well.
                let _ = self.inner.commit(txn, lane).await;
                Err(CommitError::Unknown)
            }
            Some(Fault::CrashBefore) => {
                self.crash();
                Err(CommitError::Unknown)
            }
            Some(Fault::CrashAfter) => {
                let _ = self.inner.commit(txn, lane).await;
                self.crash();
                Err(CommitError::Unknown)
            }
        }
    }

    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        self.alive()?;
        self.inner.scan(range, page).await
    }

    async fn watch(&self, after: Revision) -> Result<Watch> {
        self.alive()?;
        self.inner.watch(after).await
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease> {
        self.alive()?;
        self.inner.lease(ttl).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<Instant> {
        self.alive()?;
        self.inner.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.alive()?;
        self.inner.revoke(lease).await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.alive()?;
        self.inner.compact(revision).await
    }

    async fn backup(&self, to: &std::path::Path) -> Result<()> {
        self.alive()?;
        self.inner.backup(to).await
    }
}
