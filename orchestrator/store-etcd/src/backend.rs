//! The backend.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_store::{
    Backend, Lane, Revision,
    backend::{CommitError, Info, LIMITS, Lease, LeaseId, Range, Scan, Txn},
    history::Watch,
};
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Code, Status};

use crate::{
    EtcdSettings,
    api::{CompactionRequest, StatusResponse, kv_client::KvClient},
    commit::Lanes,
    keys::Prefix,
    members::Members,
    scan::{READ, error, is_refused, signed},
    space::{cluster, different, identity},
    watch::Shared,
};

/// Releases of etcd before these are refused or warned about.
const OLDEST: Version = Version(3, 4, 23);

/// A store in etcd, for any number of processes.
pub struct EtcdBackend {
    pub(crate) inner: Arc<Inner>,
    _closed: DropGuard,
}

pub(crate) struct Inner {
    pub(crate) prefix: Prefix,
    pub(crate) commits: Members,
    pub(crate) watches: Members,
    pub(crate) leases: Members,
    pub(crate) lanes: Lanes,
    /// What is watched of etcd, as long as it is.
    pub(crate) shared: Mutex<Weak<Shared>>,
    pub(crate) closed: CancellationToken,
    endpoints: String,
}

impl EtcdBackend {
    /// Prepares a backend, without a connection. Requires a tokio runtime.
    ///
    /// # Errors
    /// A setting is invalid, or a certificate or the file of the password cannot be used.
    pub fn new(settings: &EtcdSettings) -> Result<Self> {
        let (targets, login) = (settings.targets()?, settings.login()?);
        if targets.is_empty() {
            return Err(Error::invalid("etcd.endpoints", "lists no member of etcd"));
        }
        let closed = CancellationToken::new();
        let inner = Inner {
            prefix: Prefix::new(&settings.prefix),
            // Not all at one member, where there are several.
            commits: Members::new(&targets, login.as_ref(), 0),
            watches: Members::new(&targets, login.as_ref(), 1),
            leases: Members::new(&targets, login.as_ref(), 2),
            lanes: Lanes::default(),
            shared: Mutex::default(),
            closed: closed.clone(),
            endpoints: settings.endpoints.join(", "),
        };
        Ok(Self {
            inner: Arc::new(inner),
            _closed: closed.drop_guard(),
        })
    }

    /// Prepares a backend, and checks that its members answer, are of one etcd, and not too old.
    ///
    /// # Errors
    /// A setting is invalid, etcd refuses the user, no member can be reached, or one belongs to another etcd.
    pub async fn open(settings: &EtcdSettings) -> Result<Self> {
        let backend = Self::new(settings)?;
        backend.check().await?;
        Ok(backend)
    }

    async fn check(&self) -> Result<()> {
        let all = self.inner.commits.all();
        let answers = all.map(|way| identity(way, self.inner.prefix.clock()));
        let answers = join_all(answers).await;
        let mut known: Option<StatusResponse> = None;
        for answer in answers.iter().flatten() {
            if let Some(known) = &known
                && cluster(known) != cluster(answer)
            {
                return Err(different(&self.inner.endpoints));
            }
            known = Some(answer.clone());
        }
        let Some(known) = known else {
            let failures: Vec<Status> = answers.into_iter().filter_map(Result::err).collect();
            if let Some(refused) = failures.iter().find(|status| is_refused(status)) {
                return Err(error(refused));
            }
            let why = failures.first().map_or("", Status::message);
            return Err(Error::unavailable(format!(
                "no member of etcd answers ({}): {why}",
                self.inner.endpoints
            )));
        };
        match Version::read(&known.version) {
            Some(version) if version < OLDEST => Err(Error::new(
                Reason::Precondition,
                format!(
                    "etcd {} is too old: at least {OLDEST} is needed",
                    known.version
                ),
            )),
            _ if known.version.is_empty() => {
                tracing::warn!(
                    endpoints = self.inner.endpoints,
                    "the store is in etcd, which tells its version and size to its role `root` only: it is not known here when \
                     it is nearly full"
                );
                Ok(())
            }
            _ => {
                tracing::info!(
                    version = known.version,
                    endpoints = self.inner.endpoints,
                    "the store is in etcd"
                );
                Ok(())
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(['.', '-']).map(|part| part.parse().ok());
        Some(Self(parts.next()??, parts.next()??, parts.next()??))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[async_trait]
impl Backend for EtcdBackend {
    fn info(&self) -> Info {
        Info {
            kind: "etcd",
            exclusive: false,
            limits: LIMITS,
        }
    }

    async fn commit(&self, txn: Txn, lane: Lane) -> Result<Revision, CommitError> {
        txn.check(&LIMITS)?;
        let place = self.inner.lanes.place(lane, txn.max_wait).await?;
        let inner = Arc::clone(&self.inner);
        // A task of its own: a caller that goes away does not take the transaction with it.
        let committing = tokio::spawn(async move {
            let outcome = inner.commit(&txn, lane).await;
            drop(place);
            outcome
        });
        committing.await.unwrap_or(Err(CommitError::Unknown))
    }

    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        Arc::clone(&self.inner).scan(range, page).await
    }

    async fn watch(&self, after: Revision) -> Result<Watch> {
        Ok(self.inner.watch(after))
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease> {
        self.inner.grant(ttl).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<Instant> {
        self.inner.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.inner.revoke(lease).await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        let request = CompactionRequest {
            revision: signed(revision),
            physical: false,
        };
        let compacted = self.inner.commits.repeated(READ, |connection| async move {
            KvClient::new(connection).compact(request).await
        });
        match compacted.await {
            Ok(_) => {}
            // Done already, by somebody else or by a repetition.
            Err(status) if status.code() == Code::OutOfRange => {}
            Err(status) => return Err(error(&status)),
        }
        if let Some(shared) = self.inner.shared.lock().upgrade() {
            shared.compact(revision);
        }
        Ok(())
    }
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdBackend({})", self.inner.endpoints)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inner({})", self.endpoints)
    }
}
