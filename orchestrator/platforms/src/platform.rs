//! A registered platform: its known state, and the limits for calling it.

mod calls;
mod claims;
mod shown;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use drover_client::{PlatformClient, platform::MAX_ITEMS};
use drover_convert::value;
use drover_core::{Error, Millis, Reason, Result, Sym, words};
use drover_planner::Domains;
use drover_proto::platform::v1 as wire;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{Foreign, Registration};
pub use calls::BreakerChange;
pub use shown::PlatformHealth;

/// Maximum concurrent calls if the platform does not announce a limit.
const DEFAULT_CONCURRENCY: usize = 64;
/// One of this many calls is reserved for node failures and take-overs.
const URGENT_SHARE: usize = 8;
/// Window in which vanished nodes are counted together.
const LOSS_WINDOW: Millis = 60_000;

/// Lifecycle phase of a platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Ready,
    Unreachable,
    Refused,
}

/// A registered platform.
#[derive(Debug)]
pub struct Platform {
    /// Its name.
    pub name: Sym,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    registration: Registration,
    /// Uid and etag, in the shared form that plans and records use.
    uid: Sym,
    etag: Sym,
    client: Option<PlatformClient>,
    phase: Phase,
    /// Condition reason; only meaningful in [`Phase::Refused`].
    refusal: &'static str,
    message: String,
    handshake: Option<Arc<wire::Platform>>,
    /// Time of the last complete observation by our clock. 0 if there was none.
    fresh_at: Millis,
    /// Like `fresh_at`, but starts when this process begins to follow the platform, and survives doubt. Decides whether
    /// the platform is lost for good.
    looked_for: Millis,
    /// Time of the last complete observation by the platform's clock, to detect whether it advances.
    observe_time: Option<prost_types::Timestamp>,
    visible_since: Millis,
    /// Calls of our earlier processes have ended on the platform.
    fenced: bool,
    /// The uid and server instance for which fencing is known to hold: an instance remembers it as long as it runs.
    fenced_at: Option<(String, String)>,
    /// A snapshot was completed after everything that could cast doubt on it.
    snapshot: bool,
    /// Maximum age of an observation that still counts as fresh.
    patience: Millis,
    failures: u32,
    suspended_until: Millis,
    probing: bool,
    /// By pool and failure domain (empty: all domains): consecutive shortages, and the end of the backoff.
    capacity: BTreeMap<(Sym, Sym), (u32, Millis)>,
    domains: Arc<Domains>,
    normal: Arc<Semaphore>,
    urgent: Arc<Semaphore>,
    next_call: Millis,
    foreign: Foreign,
    /// Unrecorded nodes shown since the platform was connected.
    strangers: usize,
    claims: claims::Claims,
    vanished: VecDeque<Millis>,
    mass_loss: u32,
    warnings: Vec<wire::Warning>,
    /// Number of infrastructure resources of other owners.
    foreign_resources: u32,
    sick: u32,
    total: u32,
    /// Whether too many nodes are unhealthy.
    stormy: bool,
    /// When `stormy` was last cleared.
    calm_since: Millis,
}

impl Platform {
    /// A platform that has not answered yet.
    pub fn new(name: Sym, registration: Registration, now: Millis) -> Self {
        Self {
            name,
            inner: Mutex::new(Inner {
                uid: registration.uid.as_str().into(),
                etag: Sym::default(),
                registration,
                client: None,
                phase: Phase::Connecting,
                refusal: "",
                message: "has not answered yet".into(),
                handshake: None,
                fresh_at: 0,
                looked_for: now,
                observe_time: None,
                visible_since: 0,
                fenced: false,
                fenced_at: None,
                snapshot: false,
                patience: 15_000,
                failures: 0,
                suspended_until: 0,
                probing: false,
                capacity: BTreeMap::new(),
                domains: Arc::default(),
                normal: Arc::new(Semaphore::new(
                    DEFAULT_CONCURRENCY - DEFAULT_CONCURRENCY / URGENT_SHARE,
                )),
                urgent: Arc::new(Semaphore::new(DEFAULT_CONCURRENCY / URGENT_SHARE)),
                next_call: 0,
                foreign: Foreign::new(),
                strangers: 0,
                claims: claims::Claims::default(),
                vanished: VecDeque::new(),
                mass_loss: 0,
                warnings: Vec::new(),
                foreign_resources: 0,
                sick: 0,
                total: 0,
                stormy: false,
                calm_since: 0,
            }),
        }
    }

    /// The stored part of its registration.
    pub fn registration(&self) -> Registration {
        self.inner.lock().registration.clone()
    }

    /// Whether the platform runs on this machine.
    pub fn is_local(&self) -> bool {
        is_local(&self.inner.lock().registration.spec.endpoint)
    }

    /// Uid of the backend that the records refer to.
    pub fn uid(&self) -> Sym {
        self.inner.lock().uid.clone()
    }

    /// Follows a registration that was stored.
    pub fn set_registration(&self, registration: Registration) {
        let mut inner = self.inner.lock();
        if *inner.uid != *registration.uid {
            inner.uid = registration.uid.as_str().into();
        }
        inner.registration = registration;
    }

    /// What the platform answered last when it was asked who it is and what it offers.
    pub fn handshake(&self) -> Option<Arc<wire::Platform>> {
        self.inner.lock().handshake.clone()
    }

    /// The connection to call it by. `None` if there was none yet.
    pub fn client(&self) -> Option<PlatformClient> {
        self.inner.lock().client.clone()
    }

    /// Whether it offers this.
    pub fn has(&self, capability: wire::Capability) -> bool {
        self.handshake()
            .is_some_and(|handshake| has(&handshake, capability))
    }

    /// The uid of the backend and the instance of its server, both of which calls have to carry.
    pub fn identity(&self) -> (String, String) {
        let inner = self.inner.lock();
        let instance = inner
            .handshake
            .as_ref()
            .map(|h| h.instance_id.clone())
            .unwrap_or_default();
        (inner.registration.uid.clone(), instance)
    }

    /// Called after a successful handshake. Calls may follow; what exists on the platform is known with the first
    /// snapshot.
    pub fn connected(&self, client: PlatformClient, handshake: wire::Platform) {
        let mut inner = self.inner.lock();
        let limits = handshake.limits.unwrap_or_default();
        let most = limits
            .max_concurrent_calls
            .map_or(DEFAULT_CONCURRENCY, |n| (n as usize).clamp(1, 1024));
        let urgent = (most / URGENT_SHARE).max(1);
        inner.normal = Arc::new(Semaphore::new((most - urgent).max(1)));
        inner.urgent = Arc::new(Semaphore::new(urgent));
        inner.client = Some(client);
        inner.fenced = inner.is_fenced_at(&handshake);
        // Counted anew for each connection, since the count could otherwise never fall below the limit again. Foreign
        // nodes of the previous connection are kept only while they are few: a platform could show different ones on
        // each connection.
        inner.strangers = 0;
        if inner.foreign.values().map(BTreeMap::len).sum::<usize>() > MAX_ITEMS {
            inner.foreign.clear();
        }
        // The platform's clock may be a different one.
        inner.observe_time = None;
        inner.phase = Phase::Ready;
        inner.message.clear();
        inner.failures = 0;
        inner.suspended_until = 0;
        inner.capacity.clear();
        inner.patience = patience(&handshake);
        inner.etag = handshake.etag.as_str().into();
        inner.domains = domains(&handshake);
        inner.handshake = Some(Arc::new(handshake));
    }

    /// Called when the catalogue or other handshake data changed; the connection stays.
    ///
    /// # Errors
    /// It is another start of the server. Only the next connection takes that in, which sees to it that nobody else is
    /// believed there.
    pub fn refreshed(&self, handshake: wire::Platform) -> Result<()> {
        let mut inner = self.inner.lock();
        let before = inner.handshake.as_ref();
        if before.is_some_and(|before| before.instance_id != handshake.instance_id) {
            return Err(Error::unavailable("its server was started again"));
        }
        // A platform reads its backend less often when little is left of a quota of calls.
        inner.patience = patience(&handshake);
        inner.etag = handshake.etag.as_str().into();
        inner.domains = domains(&handshake);
        inner.handshake = Some(Arc::new(handshake));
        Ok(())
    }

    /// Called once calls of our earlier processes have ended on the platform.
    pub fn fenced(&self) {
        let mut inner = self.inner.lock();
        inner.fenced = true;
        let at = inner.handshake.as_ref();
        inner.fenced_at = at.map(|at| (at.uid.clone(), at.instance_id.clone()));
    }

    /// Whether calls of our earlier processes have ended, for the current instance of the platform's server.
    pub fn is_fenced(&self) -> bool {
        self.inner.lock().fenced
    }

    /// Called when the platform becomes unreachable or is refused. Returns whether this changed anything.
    pub fn lost(&self, error: &Error, message: &str) -> bool {
        let mut inner = self.inner.lock();
        let phase = match error.reason() {
            Reason::PlatformMismatch | Reason::PlatformUidTaken => Phase::Refused,
            _ => Phase::Unreachable,
        };
        inner.refusal = match error.reason() {
            Reason::PlatformUidTaken => "PLATFORM_UID_TAKEN",
            _ => "PLATFORM_MISMATCH",
        };
        let changed = inner.phase != phase || inner.snapshot;
        inner.phase = phase;
        message.clone_into(&mut inner.message);
        inner.snapshot = false;
        changed
    }

    /// Called when a complete snapshot was received.
    pub fn snapshot_complete(&self, now: Millis, observe_time: Option<prost_types::Timestamp>) {
        let mut inner = self.inner.lock();
        if !inner.visible(now) {
            inner.visible_since = now;
        }
        inner.snapshot = true;
        // A list with the observe time of the previous one is only as fresh as that one.
        if inner.shows_later(observe_time.as_ref()) {
            inner.fresh_at = now;
            inner.looked_for = now;
            inner.observe_time = observe_time;
        }
        inner.phase = Phase::Ready;
        inner.message.clear();
    }

    /// The earliest time at which a list can have been made that was requested at `began` and shows the backend as of
    /// `observe_time`. `None` if it is older than what was shown before, so that it proves nothing about the current
    /// state.
    pub fn as_of(
        &self,
        observe_time: Option<&prost_types::Timestamp>,
        began: Millis,
    ) -> Option<Millis> {
        let inner = self.inner.lock();
        if inner.shows_later(observe_time) {
            return Some(began);
        }
        // Same observe time, so as fresh as the observation that already had it.
        (inner.observe_time.as_ref() == observe_time).then_some(inner.fresh_at.min(began))
    }

    /// Takes in a heartbeat. Observations only count as fresh if the backend was read since the previous one.
    pub fn heartbeat(&self, now: Millis, observe_time: Option<prost_types::Timestamp>) {
        let mut inner = self.inner.lock();
        if observe_time.is_some() && inner.shows_later(observe_time.as_ref()) {
            if inner.snapshot && !inner.visible(now) {
                inner.visible_since = now;
            }
            inner.fresh_at = now;
            inner.looked_for = now;
            inner.observe_time = observe_time;
        }
    }

    /// For how long the platform has been unseen, and the minimum after which it may be given up: longer than it may
    /// take to show anything.
    pub fn unseen(&self, now: Millis) -> (Millis, Millis) {
        let limits = self.view(now).limits;
        let inner = self.inner.lock();
        let wait = inner.patience + limits.visibility_delay + limits.max_creation_time;
        (now.saturating_sub(inner.looked_for), wait)
    }

    /// Called after a clock jump: earlier observations no longer count.
    pub fn doubt(&self) {
        self.inner.lock().fresh_at = 0;
    }

    /// Whether what exists there is known.
    pub fn is_visible(&self, now: Millis) -> bool {
        self.inner.lock().visible(now)
    }

    /// Adjusts the numbers of recorded and of unhealthy nodes.
    pub fn count(&self, total: i64, sick: i64, now: Millis) {
        let mut inner = self.inner.lock();
        inner.total = u32::try_from((i64::from(inner.total) + total).max(0)).unwrap_or(u32::MAX);
        inner.sick = u32::try_from((i64::from(inner.sick) + sick).max(0)).unwrap_or(u32::MAX);
        let many = inner.sick > drover_planner::most_troubled(inner.total);
        if std::mem::replace(&mut inner.stormy, many) && !many {
            inner.calm_since = now;
        }
    }

    /// Counts nodes that vanished without proof. Returns `true` if too many did so within a minute: absence on this
    /// platform is not believed until a user confirms the loss.
    pub fn vanished(&self, count: usize, now: Millis) -> bool {
        let mut inner = self.inner.lock();
        for _ in 0..count {
            inner.vanished.push_back(now);
        }
        while inner
            .vanished
            .front()
            .is_some_and(|at| at + LOSS_WINDOW < now)
        {
            inner.vanished.pop_front();
        }
        if inner.vanished.len() > inner.most_vanished() {
            inner.mass_loss = u32::try_from(inner.vanished.len()).unwrap_or(u32::MAX);
            return true;
        }
        false
    }

    /// Called when a vanished node is visible again. Once few enough are missing, the platform is believed again.
    pub fn returned(&self) {
        let mut inner = self.inner.lock();
        inner.vanished.pop_back();
        if inner.mass_loss > 0 {
            inner.mass_loss -= 1;
            if inner.mass_loss as usize <= inner.most_vanished() {
                inner.mass_loss = 0;
            }
        }
    }

    /// Keeps the state of an earlier registration, after a change of the registration, of a secret that it names, or of
    /// the bound uid. Losses that were in doubt before remain in doubt.
    pub fn take_over(&self, before: &Self) {
        let before = before.inner.lock();
        let mut inner = self.inner.lock();
        inner.vanished.clone_from(&before.vanished);
        inner.mass_loss = before.mass_loss;
        inner.calm_since = before.calm_since;
    }

    /// Confirms that the vanished nodes are really gone.
    pub fn confirm_loss(&self, count: u32, now: Millis) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.mass_loss != count {
            let vanished = words::count(inner.mass_loss, "node");
            let message = format!("{vanished} vanished, not {count}");
            return Err(Error::new(Reason::LossChanged, message)
                .with_metadata("vanished_count", inner.mass_loss));
        }
        inner.mass_loss = 0;
        inner.vanished.clear();
        inner.visible_since = now;
        Ok(())
    }

    /// Number of nodes that vanished at once, if that is not confirmed.
    pub fn vanished_count(&self) -> u32 {
        self.inner.lock().mass_loss
    }

    /// Takes in the parts that it could not read.
    pub fn set_warnings(&self, warnings: Vec<wire::Warning>) {
        self.inner.lock().warnings = warnings;
    }

    /// Sets the number of foreign resources. Returns whether it changed.
    pub fn set_foreign_resources(&self, count: u32) -> bool {
        std::mem::replace(&mut self.inner.lock().foreign_resources, count) != count
    }

    /// Sets the foreign nodes from a complete list that was requested at `began`.
    pub fn set_foreign(&self, foreign: Foreign, began: Millis) {
        let mut inner = self.inner.lock();
        inner.strangers = foreign.values().map(BTreeMap::len).sum();
        inner.foreign = foreign;
        inner.claims.shown_since(began);
    }

    /// Records that the platform shows a node that is recorded on another platform. Returns whether it is the first
    /// claim.
    pub fn claim(&self, cluster: &str, node_id: &str, recorded: &Sym, now: Millis) -> bool {
        let mut inner = self.inner.lock();
        inner.claims.add(cluster, node_id, recorded, now)
    }

    /// Removes a claim that is no longer shown.
    pub fn drop_claim(&self, cluster: &str, node_id: &str) {
        self.inner.lock().claims.remove(cluster, node_id);
    }

    /// Counts a node that is not recorded anywhere.
    pub fn stranger(&self) {
        self.inner.lock().strangers += 1;
    }

    /// Refuses more unrecorded nodes than a complete list may contain, because they are kept in memory.
    ///
    /// # Errors
    /// `Internal`, with the limit.
    pub fn refuse_flood(&self) -> Result<()> {
        if self.inner.lock().strangers <= MAX_ITEMS {
            return Ok(());
        }
        let message = format!("it shows more than {MAX_ITEMS} nodes that are recorded nowhere");
        Err(Error::internal(message))
    }

    /// Foreign clusters: id, owner, number of nodes.
    pub fn foreign(&self) -> BTreeMap<String, BTreeMap<String, u32>> {
        let inner = self.inner.lock();
        let mut clusters: BTreeMap<String, BTreeMap<String, u32>> = BTreeMap::new();
        for (cluster, nodes) in &inner.foreign {
            let owners = clusters.entry(cluster.clone()).or_default();
            for owner in nodes.values() {
                *owners.entry(owner.clone()).or_default() += 1;
            }
        }
        clusters
    }

    /// An owner of the nodes that it shows for a cluster with this id.
    pub fn foreign_owner(&self, cluster: &str) -> Option<String> {
        let inner = self.inner.lock();
        inner.foreign.get(cluster)?.values().next().cloned()
    }

    /// Takes in a foreign node.
    pub fn add_foreign(&self, cluster: &str, node_id: &str, owner: String) {
        let mut inner = self.inner.lock();
        let nodes = inner.foreign.entry(cluster.to_owned()).or_default();
        let new = nodes.insert(node_id.to_owned(), owner).is_none();
        inner.strangers += usize::from(new);
    }

    /// Removes a foreign node that is gone or was adopted.
    pub fn remove_foreign(&self, cluster: &str, node_id: &str) {
        let mut inner = self.inner.lock();
        let Some(nodes) = inner.foreign.get_mut(cluster) else {
            return;
        };
        let known = nodes.remove(node_id).is_some();
        if nodes.is_empty() {
            inner.foreign.remove(cluster);
        }
        inner.strangers = inner.strangers.saturating_sub(usize::from(known));
    }

    /// When the backend was last known completely, by its own clock.
    pub fn observe_time(&self) -> Option<prost_types::Timestamp> {
        self.inner.lock().observe_time
    }
}

/// How long nodes are taken to be as they were last shown.
fn patience(handshake: &wire::Platform) -> Millis {
    let interval = handshake
        .limits
        .as_ref()
        .and_then(|limits| limits.min_poll_interval);
    let interval = interval
        .and_then(|interval| value::duration("", &interval).ok())
        .unwrap_or(Duration::from_secs(10));
    (3 * drover_core::millis(interval)).max(15_000)
}

/// Failure domains in the planner's representation. A domain without labels is a zone of its name.
fn domains(handshake: &wire::Platform) -> Arc<Domains> {
    let domains = handshake.failure_domains.iter().map(|domain| {
        let labels = domain.labels.iter();
        let mut labels: BTreeMap<Sym, Sym> = labels
            .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
            .collect();
        if labels.is_empty() {
            labels.insert("zone".into(), domain.name.as_str().into());
        }
        (domain.name.as_str().into(), labels)
    });
    Arc::new(domains.collect())
}

impl Inner {
    /// Maximum number of nodes that may vanish within a minute and be believed to be gone.
    fn most_vanished(&self) -> usize {
        drover_planner::most_troubled(self.total) as usize
    }

    fn is_fenced_at(&self, handshake: &wire::Platform) -> bool {
        let now = (&handshake.uid, &handshake.instance_id);
        let same =
            |(uid, instance): &(String, String)| !instance.is_empty() && (uid, instance) == now;
        self.fenced_at.as_ref().is_some_and(same)
    }

    /// Whether the backend was read later than for the previous observation. Platforms without observe times are
    /// trusted.
    fn shows_later(&self, observe_time: Option<&prost_types::Timestamp>) -> bool {
        match (&self.observe_time, observe_time) {
            (Some(before), Some(now)) => (now.seconds, now.nanos) > (before.seconds, before.nanos),
            _ => true,
        }
    }

    fn visible(&self, now: Millis) -> bool {
        self.snapshot
            && self.mass_loss == 0
            && self.phase == Phase::Ready
            && self.fresh_at > 0
            && now.saturating_sub(self.fresh_at) <= self.patience
    }
}

/// Whether a platform with this handshake offers something.
pub fn has(handshake: &wire::Platform, capability: wire::Capability) -> bool {
    handshake.capabilities.contains(&i32::from(capability))
}

/// Whether the endpoint of a platform is on this machine.
pub fn is_local(endpoint: &str) -> bool {
    let Ok(target) = endpoint.parse::<drover_client::Target>() else {
        return false;
    };
    let host = target.uri().host().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let ip = bare.parse::<IpAddr>();
    ip.map_or(bare.eq_ignore_ascii_case("localhost"), |ip| {
        ip.to_canonical().is_loopback()
    })
}
