//! The machine of one orchestrator: its ways to the store and to platforms, which can be cut and slow.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use drover_core::{Error, Result};
use drover_platform_cloud::PlatformServer;
use drover_store::{
    Backend, Lane, Revision,
    backend::{CommitError, Info, Lease, LeaseId, Range, Scan, Txn},
    history::Watch,
};
use futures::{FutureExt, future::BoxFuture, stream};
use http::Response;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tonic::Status;
use tower::{Layer, Service};

use crate::Disk;

/// Whether a process reaches the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Open,
    /// What is sent arrives when the way is open again, and so do answers.
    Silent,
    /// Errors tell that the store is not there.
    Refused,
}

/// The store as one process reaches it.
#[derive(Debug)]
pub struct Host {
    disk: Arc<Disk>,
    way: watch::Sender<Way>,
    /// With how long each lasts.
    leases: Mutex<Vec<(LeaseId, Duration)>>,
    late: Late,
}

/// How late requests arrive, and how many have.
#[derive(Debug, Default)]
struct Late {
    most: Mutex<Duration>,
    arrived: AtomicU64,
}

impl Host {
    pub fn new(disk: Arc<Disk>) -> Arc<Self> {
        Arc::new(Self {
            disk,
            way: watch::Sender::new(Way::Open),
            leases: Mutex::default(),
            late: Late::default(),
        })
    }

    pub fn set_way(&self, way: Way) {
        self.way.send_replace(way);
    }

    /// Sets the longest delay of what it sends to platforms.
    pub fn be_late(&self, most: Duration) {
        *self.late.most.lock() = most;
    }

    /// Delays requests to this server.
    pub fn lateness(self: &Arc<Self>, server: &Arc<PlatformServer>) -> Lateness {
        Lateness {
            host: self.clone(),
            server: Arc::downgrade(server),
        }
    }

    /// Number of requests that arrived late.
    pub fn late_requests(&self) -> u64 {
        self.late.arrived.load(Ordering::Relaxed)
    }

    /// Ends the leases of a dead process, as a file lock ends with its process.
    pub async fn bury(&self) {
        let leases = std::mem::take(&mut *self.leases.lock());
        for (lease, _) in leases {
            self.disk.faults().revoke(lease).await.unwrap();
        }
    }

    /// Waits until something comes through.
    async fn passes(&self) -> Result<()> {
        let mut way = self.way.subscribe();
        match way.wait_for(|way| *way != Way::Silent).await.as_deref() {
            Ok(Way::Refused) => Err(Error::unavailable("the store is not reached")),
            _ => Ok(()),
        }
    }

    /// Asks the store, and waits for its answer.
    async fn reaches<T>(&self, asked: impl Future<Output = Result<T>>) -> Result<T> {
        self.passes().await?;
        let answer = asked.await;
        self.passes().await?;
        answer
    }
}

#[async_trait]
impl Backend for Host {
    fn info(&self) -> Info {
        self.disk.info()
    }

    async fn commit(&self, txn: Txn, lane: Lane) -> Result<Revision, CommitError> {
        let gone = |error: Error| CommitError::Unavailable(error.message().to_owned());
        self.passes().await.map_err(gone)?;
        let made = self.disk.commit(txn, lane).await;
        self.passes().await.map_err(|_| CommitError::Unknown)?;
        made
    }

    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        self.reaches(self.disk.scan(range, page)).await
    }

    async fn watch(&self, after: Revision) -> Result<Watch> {
        let inner = self.reaches(self.disk.watch(after)).await?;
        let way = self.way.subscribe();
        Ok(Watch::new(stream::unfold(
            (inner, way),
            |(mut inner, mut way)| async move {
                let batch = inner.next().await;
                // A connection that says nothing does not end either.
                let _ = way.wait_for(|way| *way == Way::Open).await;
                Some((batch, (inner, way)))
            },
        )))
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease> {
        // Not that of the disk, which would end with another process.
        let lease = self.reaches(self.disk.faults().lease(ttl)).await?;
        self.leases.lock().push((lease.id, ttl));
        Ok(lease)
    }

    async fn renew(&self, lease: LeaseId) -> Result<Instant> {
        let began = Instant::now();
        let deadline = self.reaches(self.disk.renew(lease)).await?;
        let leases = self.leases.lock();
        let ttl = leases.iter().find(|(id, _)| *id == lease);
        Ok(ttl.map_or(deadline, |(_, ttl)| deadline.min(began + *ttl)))
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.reaches(self.disk.revoke(lease)).await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.reaches(self.disk.compact(revision)).await
    }
}

/// Has requests to a server arrive late, each by another time, so that they overtake each other.
#[derive(Clone, Debug)]
pub struct Lateness {
    host: Arc<Host>,
    server: Weak<PlatformServer>,
}

impl<S> Layer<S> for Lateness {
    type Service = Delayed<S>;

    fn layer(&self, inner: S) -> Delayed<S> {
        Delayed {
            inner,
            lateness: self.clone(),
        }
    }
}

/// The server as requests reach it that may be late.
#[derive(Clone, Debug)]
pub struct Delayed<S> {
    inner: S,
    lateness: Lateness,
}

impl<R, S, B> Service<R> for Delayed<S>
where
    R: Send + 'static,
    S: Service<R, Response = Response<B>, Error: Send, Future: Send> + Clone + Send + 'static,
    B: Default + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let Lateness { host, server } = self.lateness.clone();
        let most = host.late.most.lock().as_millis();
        if most == 0 {
            return self.inner.call(request).boxed();
        }
        let late = Duration::from_millis(fastrand::u64(..=u64::try_from(most).unwrap()));
        // The one that is ready makes the call.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let stopped = || Ok(Status::unavailable("the server has stopped").into_http());
        // It arrives also if whoever sent it has died meanwhile.
        let call = tokio::spawn(async move {
            sleep(late).await;
            if server.strong_count() == 0 {
                return stopped();
            }
            host.late.arrived.fetch_add(1, Ordering::Relaxed);
            inner.call(request).await
        });
        async move { call.await.unwrap_or_else(|_| stopped()) }.boxed()
    }
}
