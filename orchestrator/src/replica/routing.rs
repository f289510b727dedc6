//! Who answers the calls that arrive at this replica: it itself while it leads, otherwise the one that does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use drover_client::{Channel, ClientSettings, Target, connect};
use drover_core::{Error, Reason, Result};
use drover_server::{
    Readiness, Service, Shutdown,
    access::{self, Voucher},
};
use drover_store::{Me, ReplicaRow, Store, backend::LeaseId};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout, timeout_at},
};

use super::{fitness::Fitness, forward::Routed, list};
use crate::{Settings, VERSION, gauges, services::Services};

/// Keep-alive of connections between replicas: a leader whose machine is lost is given up as fast as its lease ends.
const PING: Duration = Duration::from_secs(1);
/// How often it is looked whether a leader is in touch with the store again, which changes nothing else.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long the keys of other replicas are believed once read: less than a lease.
const KEYS_HOLD: Duration = Duration::from_secs(1);
/// They are read at most this often, whoever asks, and for so long.
const KEYS_READ: Duration = Duration::from_millis(200);
const KEYS_WITHIN: Duration = Duration::from_secs(1);
/// How long a call waits that comes from the replica which is known to lead: it has handed over the lead, and may know of that
/// before this one does.
const HESITATES: Duration = Duration::from_secs(1);
/// Connections for streams.
const STREAM_CONNECTIONS: usize = 8;
/// Bytes of an answer that are on their way: as many as servers take of a request.
const STREAM_WINDOW: u32 = 256 << 10;
/// Calls that wait for a leader. Further ones are refused, so that those that need none are still answered.
const MAX_WAITING: usize = 768;

/// Another replica that leads.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) name: String,
    pub(super) address: String,
    /// Public key of its process.
    pub(super) key: Bytes,
    lease: Option<LeaseId>,
    /// `None` if it cannot be called, or would not believe who the caller is: one of a version that does not forward.
    connections: Option<Connections>,
}

/// Connections to a leader. Streams have others than calls, which must not wait for them, and share several, as each takes
/// a limited number.
#[derive(Clone, Debug)]
struct Connections {
    calls: Channel,
    streams: Arc<[Channel]>,
    next: Arc<AtomicUsize>,
}

impl Remote {
    /// A connection for a call, or for a stream.
    pub(super) fn channel(&self, is_stream: bool) -> Option<Channel> {
        let Connections {
            calls,
            streams,
            next,
        } = self.connections.as_ref()?;
        if !is_stream {
            return Some(calls.clone());
        }
        let at = next.fetch_add(1, Ordering::Relaxed) % streams.len().max(1);
        streams.get(at).cloned()
    }
}

/// Who leads, as far as this replica knows.
#[derive(Clone, Debug)]
pub(super) enum Leader {
    Unknown,
    Another(Arc<Remote>),
    This(Arc<Services>),
}

impl Leader {
    /// Name and lease of another replica that leads.
    fn lease(&self) -> Option<(&str, Option<LeaseId>)> {
        match self {
            Self::Another(remote) => Some((&remote.name, remote.lease)),
            Self::Unknown | Self::This(_) => None,
        }
    }
}

/// Where the calls that arrive at a replica go. It outlives the turns in which the replica leads or stands by, so that
/// neither connections nor calls end with one.
#[derive(Clone, Debug)]
pub struct Routing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    me: String,
    voucher: Voucher,
    /// How other replicas are called.
    tls: ClientSettings,
    /// The store of this turn. `None` between turns.
    store: Mutex<Option<Arc<Store>>>,
    leader: watch::Sender<Leader>,
    /// Epoch of the newest lead that is known of.
    newest: AtomicU64,
    /// Epoch of the last one that this replica has given away.
    given: AtomicU64,
    readiness: watch::Sender<Readiness>,
    fitness: Fitness,
    keys: Mutex<Keys>,
    reading_keys: tokio::sync::Mutex<()>,
    waiting: Semaphore,
}

/// The public keys of the replicas, by name.
#[derive(Debug, Default)]
struct Keys {
    read: Option<Instant>,
    /// When they were read, or could not be.
    tried: Option<Instant>,
    of: Vec<(String, Bytes)>,
}

impl Routing {
    /// The calls of a replica that has not joined the others yet.
    ///
    /// # Errors
    /// The replica's name or address is invalid.
    pub fn of(settings: &Settings) -> Result<Self> {
        Ok(Self(Arc::new(Inner {
            me: settings.replica.me()?.name,
            voucher: Voucher::generate()?,
            tls: settings.platform_tls.client(),
            store: Mutex::default(),
            leader: watch::Sender::new(Leader::Unknown),
            newest: AtomicU64::new(0),
            given: AtomicU64::new(0),
            readiness: watch::Sender::new(Readiness::NotReady(NOBODY.to_owned())),
            fitness: Fitness::default(),
            keys: Mutex::default(),
            reading_keys: tokio::sync::Mutex::default(),
            waiting: Semaphore::new(MAX_WAITING),
        })))
    }

    /// The services of this replica, whichever replica answers their calls.
    #[must_use]
    pub fn service(&self) -> Service {
        let this = self.clone();
        Service::new("drover-orchestrator", VERSION)
            .add(Routed::new(self, |here| here.clusters.clone()))
            .add(Routed::new(self, |here| here.platforms.clone()))
            .add(Routed::new(self, |here| here.secrets.clone()))
            .add(list::of(self))
            .replicas(Arc::new(self.clone()))
            .readiness(self.0.readiness.subscribe())
            .metrics(move |out| match this.leader() {
                Leader::This(services) => services.gauges.write(out),
                Leader::Unknown | Leader::Another(_) => gauges::leads(out, false),
            })
    }

    fn leader(&self) -> Leader {
        self.0.leader.borrow().clone()
    }

    /// Who this replica is, with the key of its vouchers.
    pub(super) fn introduce(&self, me: Me) -> Me {
        Me {
            key: Bytes::copy_from_slice(self.0.voucher.public_key()),
            ..me
        }
    }

    /// A turn begins, with this store.
    pub(super) fn joined(&self, store: Arc<Store>) {
        *self.0.store.lock() = Some(store);
    }

    /// A turn is over.
    pub(super) fn left(&self) {
        *self.0.store.lock() = None;
        self.0.fitness.left();
        self.set(Leader::Unknown);
    }

    /// Another replica leads, or nobody is known to. Nothing while this one leads, or between turns. Whoever looks may be late:
    /// of a lead that was before a known one is said nothing.
    pub(super) fn found(&self, leader: Option<&ReplicaRow>) {
        if let Some(leader) = leader
            && leader.epoch < self.0.newest.fetch_max(leader.epoch, Ordering::AcqRel)
        {
            return;
        }
        let leader = leader.filter(|leader| !leader.is_this);
        let next = match (self.leader(), leader) {
            (Leader::Another(known), Some(leader))
                if known.lease == leader.lease && known.name == leader.name =>
            {
                return;
            }
            (_, Some(leader)) => Leader::Another(Arc::new(self.remote(leader))),
            (_, None) => Leader::Unknown,
        };
        // This replica may lead by now, or the turn be over.
        self.change(next, |known| {
            !matches!(known, Leader::This(_)) && self.0.store.lock().is_some()
        });
    }

    /// This replica has handed the lead to another one.
    pub(super) fn gave(&self, next: &ReplicaRow) {
        self.0.given.store(next.epoch, Ordering::Release);
        self.found(Some(next));
    }

    /// Calls wait until somebody else leads.
    pub(super) fn resigns(&self) {
        self.set(Leader::Unknown);
    }

    /// Calls wait until this replica leads.
    pub(super) fn begins(&self, epoch: u64) {
        self.0.newest.fetch_max(epoch, Ordering::AcqRel);
        self.set(Leader::Unknown);
    }

    /// This replica leads.
    pub(super) fn leads(&self, services: &Arc<Services>) {
        self.set(Leader::This(services.clone()));
    }

    fn set(&self, leader: Leader) {
        self.change(leader, |_| true);
    }

    fn change(&self, leader: Leader, may: impl FnOnce(&Leader) -> bool) {
        self.0.leader.send_if_modified(|known| {
            if !may(known) {
                return false;
            }
            self.ready(match &leader {
                Leader::Unknown => Readiness::NotReady(NOBODY.to_owned()),
                Leader::Another(leader) if leader.connections.is_none() => {
                    Readiness::NotReady(format!("{} leads, at {}", leader.name, leader.address))
                }
                Leader::Another(_) | Leader::This(_) => Readiness::Ready,
            });
            *known = leader;
            true
        });
    }

    /// Whether this replica is in touch with the store, as long as it leads.
    pub(super) fn touched(&self, services: &Arc<Services>, now: Readiness) {
        let leader = self.0.leader.borrow();
        if matches!(&*leader, Leader::This(leads) if Arc::ptr_eq(leads, services)) {
            self.ready(now);
        }
    }

    /// Whether calls can be answered here, wherever they go.
    fn ready(&self, now: Readiness) {
        self.0.readiness.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
    }

    fn remote(&self, leader: &ReplicaRow) -> Remote {
        Remote {
            name: leader.name.clone(),
            address: leader.address.clone(),
            key: leader.key.clone(),
            lease: leader.lease,
            connections: self.connections(leader),
        }
    }

    fn connections(&self, leader: &ReplicaRow) -> Option<Connections> {
        if leader.key.is_empty() {
            return None;
        }
        let mut target: Target = leader.address.parse().ok()?;
        if target.is_encrypted() {
            let unusable = |error: &Error| tracing::warn!(%error, "calls cannot be forwarded");
            target = target
                .with_tls(self.0.tls.clone())
                .inspect_err(unusable)
                .ok()?;
        }
        target.keep_alive_interval = PING;
        target.keep_alive_timeout = PING;
        target.connect_timeout = PING;
        target.stream_window = Some(STREAM_WINDOW);
        let calls = connect(&target).to_orchestrator();
        let stream = |_| connect(&target).to_orchestrator();
        Some(Connections {
            calls,
            streams: (0..STREAM_CONNECTIONS).map(stream).collect(),
            next: Arc::default(),
        })
    }

    pub(super) fn store(&self) -> Result<Arc<Store>> {
        let store = self.0.store.lock().clone();
        store.ok_or_else(|| Error::unavailable("this replica joins the others"))
    }

    pub(super) fn fitness(&self) -> &Fitness {
        &self.0.fitness
    }

    pub(super) fn name(&self) -> &str {
        &self.0.me
    }

    pub(super) fn voucher(&self) -> &Voucher {
        &self.0.voucher
    }

    /// This replica's part that answers calls, if it leads and is in touch with the store.
    pub(super) fn present(&self) -> Option<Arc<Services>> {
        match &*self.0.leader.borrow() {
            Leader::This(services) if services.store.in_touch().is_ok() => Some(services.clone()),
            Leader::Unknown | Leader::Another(_) | Leader::This(_) => None,
        }
    }

    /// Waits for whoever answers calls.
    ///
    /// # Errors
    /// Nobody does until then, or this process stops.
    pub(super) async fn answerer(&self, until: Instant, stop: &Shutdown) -> Result<Leader> {
        let mut leader = self.0.leader.subscribe();
        let mut waits = None;
        loop {
            let now = leader.borrow_and_update().clone();
            match &now {
                Leader::This(services) if services.store.in_touch().is_err() => {}
                Leader::This(_) | Leader::Another(_) => return Ok(now),
                Leader::Unknown => {}
            }
            drop(now);
            if waits.is_none() {
                waits = Some(self.0.waiting.try_acquire().map_err(|_| self.nobody())?);
            }
            let look = Instant::now() + LOOK_AGAIN;
            if look >= until || stop.is_cancelled() {
                return Err(self.nobody());
            }
            let _ = timeout_at(look, leader.changed()).await;
        }
    }

    /// Waits until this replica answers calls, for one that another replica has forwarded, which looks itself for the next
    /// leader if that is not this one.
    ///
    /// # Errors
    /// Another one leads, nobody does until then, or this process stops.
    pub(super) async fn own_lead(
        &self,
        via: &str,
        until: Instant,
        stop: &Shutdown,
    ) -> Result<Leader> {
        let mut leader = self.0.leader.subscribe();
        let other =
            leader.wait_for(|now| !matches!(now, Leader::Another(leads) if leads.name == via));
        let newest = self.0.newest.load(Ordering::Acquire);
        // Whoever has given it away knows better than anybody.
        let hesitates = if newest == self.0.given.load(Ordering::Acquire) {
            Instant::now()
        } else {
            until.min(Instant::now() + HESITATES)
        };
        tokio::select! {
            () = stop.cancelled() => return Err(self.nobody()),
            other = timeout_at(hesitates, other) => {
                other.map_err(|_| self.nobody())?.ok();
            }
        }
        match self.answerer(until, stop).await? {
            Leader::Another(_) => Err(self.nobody()),
            leader => Ok(leader),
        }
    }

    /// Waits until another may lead than this one.
    pub(super) async fn changed(&self, from: &Leader, until: Instant) {
        let mut leader = self.0.leader.subscribe();
        let changed = leader.wait_for(|now| now.lease() != from.lease());
        let _ = timeout_at(until, changed).await;
    }

    /// Whether another one leads than this one.
    pub(super) fn has_changed(&self, from: &Leader) -> bool {
        let now = self.0.leader.borrow();
        !matches!(*now, Leader::Unknown) && now.lease() != from.lease()
    }

    /// `NOT_LEADER`, with the address of the one that leads, if that is known.
    pub(super) fn nobody(&self) -> Error {
        match &*self.0.leader.borrow() {
            Leader::Another(leader) => Error::new(
                Reason::NotLeader,
                format!("{} leads, at {}", leader.name, leader.address),
            )
            .with_metadata("leader", &leader.address),
            Leader::Unknown | Leader::This(_) => Error::new(Reason::NotLeader, NOBODY),
        }
    }
}

const NOBODY: &str = "no replica is known to lead";

impl access::Replicas for Routing {
    fn this(&self) -> String {
        self.0.me.clone()
    }

    fn key(&self) -> &[u8] {
        self.0.voucher.public_key()
    }

    fn publishes<'a>(&'a self, name: &'a str, key: &'a [u8]) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            if self.has_key(name, key) {
                return Ok(true);
            }
            let _reading = self.0.reading_keys.lock().await;
            // Another call may have read them meanwhile.
            let tried = self.0.keys.lock().tried;
            if self.has_key(name, key) || tried.is_some_and(|at| at.elapsed() < KEYS_READ) {
                return Ok(self.has_key(name, key));
            }
            let store = self.store()?;
            let read = timeout(KEYS_WITHIN, store.replicas()).await;
            let mut keys = self.0.keys.lock();
            keys.tried = Some(Instant::now());
            let replicas = read.map_err(|_| Error::unavailable("the store does not answer"))??;
            keys.read = keys.tried;
            keys.of = replicas.into_iter().map(|it| (it.name, it.key)).collect();
            drop(keys);
            Ok(self.has_key(name, key))
        })
    }
}

impl Routing {
    fn has_key(&self, name: &str, key: &[u8]) -> bool {
        let keys = self.0.keys.lock();
        let is_fresh = keys.read.is_some_and(|read| read.elapsed() < KEYS_HOLD);
        let is = |(of, known): &(String, Bytes)| of == name && known == key;
        is_fresh && !key.is_empty() && keys.of.iter().any(is)
    }
}

#[cfg(test)]
mod tests;
