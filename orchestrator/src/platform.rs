//! One registered platform: what is known of it, and how it may be called.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use drover_client::PlatformClient;
use drover_convert::value;
use drover_core::{Error, Millis, Reason, Result, Sym};
use drover_planner::{Domains, Limits, PlatformView, Shortage};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::queue::Urgency;

/// Calls under way at once, where the platform does not say.
const DEFAULT_CONCURRENCY: usize = 64;
/// One call in so many is kept free for deaths and take-overs.
const URGENT_SHARE: usize = 8;
/// Failures in a row after which a platform is left alone for a while.
const BREAKER_FAILURES: u32 = 5;
/// How long it is left alone at first; it doubles.
const BREAKER_FIRST: Millis = 1_000;
/// How long it is left alone at most.
const BREAKER_MOST: Millis = 30_000;
/// First wait after a platform had no capacity; it doubles.
const CAPACITY_FIRST: Millis = 5_000;
/// Longest wait after a platform had no capacity.
const CAPACITY_MOST: Millis = 300_000;
/// More shortages than that are not remembered once they are over.
const MAX_SHORTAGES: usize = 1_000;
/// Longest wait for a permit before a call is given up unsent.
const PERMIT_WAIT: Duration = Duration::from_secs(20);
/// Window in which vanished nodes are counted together.
const LOSS_WINDOW: Millis = 60_000;
/// Time from accepted to running before a node is sick.
const PROVISION_TIMEOUT: Millis = 15 * 60_000;
/// The same on machines that boot from firmware on.
const PROVISION_TIMEOUT_METAL: Millis = 60 * 60_000;

/// Where a platform is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting,
    Ready,
    Unreachable,
    Refused,
}

/// A registered platform.
#[derive(Debug)]
pub(crate) struct Platform {
    pub(crate) name: Sym,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    registration: Registration,
    /// Uid and etag as plans and records share them.
    uid: Sym,
    etag: Sym,
    client: Option<PlatformClient>,
    phase: Phase,
    /// Why it is refused, if it is.
    refusal: &'static str,
    message: String,
    handshake: Option<Arc<wire::Platform>>,
    /// The last complete observation, by our clock; 0: none.
    fresh_at: Millis,
    /// The same by the platform's clock, to see whether it advances.
    observe_time: Option<prost_types::Timestamp>,
    visible_since: Millis,
    /// Calls of earlier processes of ours have ended there.
    fenced: bool,
    /// A snapshot is complete and newer than any doubt.
    snapshot: bool,
    /// How old an observation may be.
    patience: Millis,
    failures: u32,
    suspended_until: Millis,
    probing: bool,
    /// By pool and failure domain (empty: all): how often in a row, and until when.
    capacity: BTreeMap<(Sym, Sym), (u32, Millis)>,
    domains: Arc<Domains>,
    normal: Arc<Semaphore>,
    urgent: Arc<Semaphore>,
    next_call: Millis,
    foreign: BTreeMap<String, BTreeMap<String, u32>>,
    vanished: VecDeque<Millis>,
    mass_loss: u32,
    warnings: Vec<wire::Warning>,
    /// Infrastructure of others that it shows.
    foreign_resources: u32,
    sick: u32,
    total: u32,
}

/// How a platform is, for metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlatformHealth {
    pub(crate) visible: bool,
    /// It is left alone for a while.
    pub(crate) suspended: bool,
    /// When its backend was last known whole, by our clock. None: never.
    pub(crate) fresh_at: Option<Millis>,
}

/// What is stored of a registration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Registration {
    pub(crate) spec: pb::PlatformSpec,
    pub(crate) generation: u64,
    /// Uid of the backend that records refer to. Empty: it has not answered yet.
    pub(crate) uid: String,
    pub(crate) create_time: Millis,
}

/// What to make of an answer, for whoever made the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The platform is used as before.
    Same,
    /// Too many calls failed in a row, or it works again: who waits for it is to be planned.
    Changed,
}

impl Platform {
    pub(crate) fn new(name: Sym, registration: Registration) -> Self {
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
                observe_time: None,
                visible_since: 0,
                fenced: false,
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
                foreign: BTreeMap::new(),
                vanished: VecDeque::new(),
                mass_loss: 0,
                warnings: Vec::new(),
                foreign_resources: 0,
                sick: 0,
                total: 0,
            }),
        }
    }

    pub(crate) fn registration(&self) -> Registration {
        self.inner.lock().registration.clone()
    }

    pub(crate) fn set_registration(&self, registration: Registration) {
        let mut inner = self.inner.lock();
        if *inner.uid != *registration.uid {
            inner.uid = registration.uid.as_str().into();
        }
        inner.registration = registration;
    }

    pub(crate) fn handshake(&self) -> Option<Arc<wire::Platform>> {
        self.inner.lock().handshake.clone()
    }

    pub(crate) fn client(&self) -> Option<PlatformClient> {
        self.inner.lock().client.clone()
    }

    pub(crate) fn has(&self, capability: wire::Capability) -> bool {
        self.handshake()
            .is_some_and(|handshake| has(&handshake, capability))
    }

    /// Uid of the backend and this start of its server, as calls have to name them.
    pub(crate) fn identity(&self) -> (String, String) {
        let inner = self.inner.lock();
        let instance = inner
            .handshake
            .as_ref()
            .map(|h| h.instance_id.clone())
            .unwrap_or_default();
        (inner.registration.uid.clone(), instance)
    }

    /// A handshake was made. Calls may follow; what exists there is known with the first snapshot.
    pub(crate) fn connected(&self, client: PlatformClient, handshake: wire::Platform) {
        let mut inner = self.inner.lock();
        let limits = handshake.limits.unwrap_or_default();
        let most = limits
            .max_concurrent_calls
            .map_or(DEFAULT_CONCURRENCY, |n| (n as usize).clamp(1, 1024));
        let urgent = (most / URGENT_SHARE).max(1);
        inner.normal = Arc::new(Semaphore::new((most - urgent).max(1)));
        inner.urgent = Arc::new(Semaphore::new(urgent));
        inner.client = Some(client);
        inner.fenced = false;
        inner.phase = Phase::Ready;
        inner.message.clear();
        inner.failures = 0;
        inner.suspended_until = 0;
        inner.capacity.clear();
        let poll = limits
            .min_poll_interval
            .and_then(|p| value::duration("", &p).ok())
            .unwrap_or(Duration::from_secs(10));
        inner.patience = (3 * crate::clock::millis(poll)).max(15_000);
        inner.etag = handshake.etag.as_str().into();
        inner.domains = domains(&handshake);
        inner.handshake = Some(Arc::new(handshake));
    }

    /// The catalogue or something else changed; the connection stays.
    pub(crate) fn refreshed(&self, handshake: wire::Platform) {
        let mut inner = self.inner.lock();
        inner.etag = handshake.etag.as_str().into();
        inner.domains = domains(&handshake);
        inner.handshake = Some(Arc::new(handshake));
    }

    /// Calls of earlier processes of ours have ended there.
    pub(crate) fn fenced(&self) {
        self.inner.lock().fenced = true;
    }

    /// It cannot be seen any more.
    pub(crate) fn lost(&self, error: &Error, message: &str) -> bool {
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

    /// Everything that exists there was just shown.
    pub(crate) fn snapshot_complete(
        &self,
        now: Millis,
        observe_time: Option<prost_types::Timestamp>,
    ) {
        let mut inner = self.inner.lock();
        if !inner.visible(now) {
            inner.visible_since = now;
        }
        inner.snapshot = true;
        inner.fresh_at = now;
        inner.observe_time = observe_time;
        inner.phase = Phase::Ready;
        inner.message.clear();
    }

    /// A sign of life. What was observed counts as fresh only if the backend was read since the one before.
    pub(crate) fn heartbeat(&self, now: Millis, observe_time: Option<prost_types::Timestamp>) {
        let mut inner = self.inner.lock();
        let advanced = match (&inner.observe_time, &observe_time) {
            (Some(before), Some(now)) => (now.seconds, now.nanos) > (before.seconds, before.nanos),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if advanced {
            if inner.snapshot && !inner.visible(now) {
                inner.visible_since = now;
            }
            inner.fresh_at = now;
            inner.observe_time = observe_time;
        }
    }

    /// A jump of the clock: nothing seen before it counts.
    pub(crate) fn doubt(&self) {
        self.inner.lock().fresh_at = 0;
    }

    pub(crate) fn is_visible(&self, now: Millis) -> bool {
        self.inner.lock().visible(now)
    }

    pub(crate) fn health(&self, now: Millis) -> PlatformHealth {
        let inner = self.inner.lock();
        PlatformHealth {
            visible: inner.visible(now),
            suspended: inner.suspended_until > now,
            fresh_at: Some(inner.fresh_at).filter(|at| *at > 0),
        }
    }

    /// What planners may know of it.
    pub(crate) fn view(&self, now: Millis) -> PlatformView {
        let inner = self.inner.lock();
        let limits = inner
            .handshake
            .as_ref()
            .and_then(|h| h.limits)
            .unwrap_or_default();
        let kind = inner.handshake.as_ref().map_or("", |h| h.kind.as_str());
        let visible = inner.visible(now);
        let suspended = inner.suspended_until > now || inner.probing;
        let trouble = match inner.phase {
            _ if inner.mass_loss > 0 => format!(
                "lost {} nodes at once; confirm the loss to go on",
                inner.mass_loss
            ),
            Phase::Ready if visible && suspended => {
                "fails too many calls and is left alone for a while".to_owned()
            }
            Phase::Ready if visible => String::new(),
            Phase::Ready => "has not shown its nodes for too long".to_owned(),
            Phase::Connecting | Phase::Unreachable | Phase::Refused => inner.message.clone(),
        };
        PlatformView {
            uid: inner.uid.clone(),
            visible,
            visible_since: inner.visible_since,
            callable: visible && !suspended,
            trouble: trouble.into(),
            etag: inner.etag.clone(),
            limits: planner_limits(&limits),
            provision_timeout: if kind == "metal" {
                PROVISION_TIMEOUT_METAL
            } else {
                PROVISION_TIMEOUT
            },
            no_capacity: inner
                .capacity
                .iter()
                .filter(|(_, (_, until))| *until > now)
                .map(|((pool, domain), (_, until))| Shortage {
                    pool: pool.clone(),
                    domain: domain.clone(),
                    until: *until,
                })
                .collect(),
            domains: Arc::clone(&inner.domains),
            sick: inner.sick,
            total: inner.total,
            fenced: inner.fenced,
        }
    }

    /// A node of it was recorded, dropped, found sick or well.
    pub(crate) fn count(&self, total: i64, sick: i64) {
        let mut inner = self.inner.lock();
        inner.total = u32::try_from((i64::from(inner.total) + total).max(0)).unwrap_or(u32::MAX);
        inner.sick = u32::try_from((i64::from(inner.sick) + sick).max(0)).unwrap_or(u32::MAX);
    }

    /// Nodes vanished without proof. Too many within a minute: nothing there is believed until somebody confirms it.
    pub(crate) fn vanished(&self, count: usize, now: Millis) -> bool {
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

    /// A vanished node is shown again. Once few enough are missing, what is shown is believed again.
    pub(crate) fn returned(&self) {
        let mut inner = self.inner.lock();
        inner.vanished.pop_back();
        if inner.mass_loss > 0 {
            inner.mass_loss -= 1;
            if inner.mass_loss as usize <= inner.most_vanished() {
                inner.mass_loss = 0;
            }
        }
    }

    /// A person says that the vanished nodes are really gone.
    pub(crate) fn confirm_loss(&self, count: u32, now: Millis) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.mass_loss != count {
            let message = format!("{} nodes vanished, not {count}", inner.mass_loss);
            return Err(Error::new(Reason::LossChanged, message)
                .with_metadata("vanished_count", inner.mass_loss));
        }
        inner.mass_loss = 0;
        inner.vanished.clear();
        inner.visible_since = now;
        Ok(())
    }

    pub(crate) fn vanished_count(&self) -> u32 {
        self.inner.lock().mass_loss
    }

    /// Waits for a turn to call. None: none came in time.
    pub(crate) async fn permit(
        &self,
        urgency: Urgency,
        now: impl Fn() -> Millis,
    ) -> Option<OwnedSemaphorePermit> {
        let (normal, urgent, pause) = {
            let mut inner = self.inner.lock();
            let rate = inner
                .handshake
                .as_ref()
                .and_then(|h| h.limits.as_ref())
                .and_then(|l| l.calls_per_second);
            let mut pause = 0;
            if let Some(rate) = rate.filter(|rate| *rate > 0.0) {
                let at = inner.next_call.max(now());
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a span in milliseconds"
                )]
                let gap = (1000.0 / rate).ceil() as Millis;
                inner.next_call = at + gap;
                pause = at.saturating_sub(now());
            }
            (inner.normal.clone(), inner.urgent.clone(), pause)
        };
        if pause > 0 {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        if urgency == Urgency::Urgent
            && let Ok(permit) = urgent.try_acquire_owned()
        {
            return Some(permit);
        }
        tokio::time::timeout(PERMIT_WAIT, normal.acquire_owned())
            .await
            .ok()?
            .ok()
    }

    /// Takes in how a call ended, for the circuit breaker.
    pub(crate) fn judge(&self, error: Option<&Error>, now: Millis) -> Verdict {
        let failed = error.is_some_and(|error| {
            matches!(
                error.reason(),
                Reason::Unavailable
                    | Reason::DeadlineExceeded
                    | Reason::Internal
                    | Reason::RateLimited
                    | Reason::Overloaded
            )
        });
        let mut inner = self.inner.lock();
        let suspended = inner.suspended_until > 0;
        if failed {
            inner.failures = inner.failures.saturating_add(1);
            inner.probing = false;
            if inner.failures >= BREAKER_FAILURES {
                let wait = BREAKER_FIRST << (inner.failures - BREAKER_FAILURES).min(10);
                let wait = error
                    .and_then(Error::retry_after)
                    .map_or(wait, crate::clock::millis)
                    .min(BREAKER_MOST);
                inner.suspended_until = now + wait;
            }
            return Verdict::Same;
        }
        inner.failures = 0;
        inner.probing = false;
        inner.suspended_until = 0;
        if suspended {
            Verdict::Changed
        } else {
            Verdict::Same
        }
    }

    /// A suspension that is over: one call may try.
    pub(crate) fn end_suspension(&self, now: Millis) -> bool {
        let mut inner = self.inner.lock();
        if inner.suspended_until > 0 && inner.suspended_until <= now {
            // One more failure suspends it again, for longer.
            inner.suspended_until = 0;
            return true;
        }
        false
    }

    /// It had nothing of a pool, in this failure domain, or if that is empty, in any.
    pub(crate) fn out_of(
        &self,
        pool: &Sym,
        domain: &str,
        now: Millis,
        after: Option<Duration>,
    ) -> Millis {
        let mut inner = self.inner.lock();
        if inner.capacity.len() >= MAX_SHORTAGES {
            // Those that are over have been forgiven by now.
            inner.capacity.retain(|_, (_, until)| *until > now);
        }
        let key = (pool.clone(), domain.into());
        let (times, until) = inner.capacity.entry(key).or_insert((0, 0));
        if *until <= now {
            let wait = (CAPACITY_FIRST << (*times).min(16)).min(CAPACITY_MOST);
            *until =
                now + after.map_or(wait, |after| crate::clock::millis(after).min(CAPACITY_MOST));
            *times += 1;
        }
        *until
    }

    /// It had some of a pool, in these failure domains.
    pub(crate) fn has_again<'a>(
        &self,
        pool: &Sym,
        domains: impl IntoIterator<Item = &'a str>,
    ) -> bool {
        let mut inner = self.inner.lock();
        if inner.capacity.is_empty() {
            return false;
        }
        let before = inner.capacity.len();
        inner.capacity.remove(&(pool.clone(), Sym::default()));
        for domain in domains {
            inner.capacity.remove(&(pool.clone(), domain.into()));
        }
        inner.capacity.len() < before
    }

    pub(crate) fn set_warnings(&self, warnings: Vec<wire::Warning>) {
        self.inner.lock().warnings = warnings;
    }

    /// So many resources of others are there. Answers whether that is another number than before.
    pub(crate) fn set_foreign_resources(&self, count: u32) -> bool {
        std::mem::replace(&mut self.inner.lock().foreign_resources, count) != count
    }

    /// Clusters that nobody here manages: id, owner, number of nodes.
    pub(crate) fn set_foreign(&self, foreign: BTreeMap<String, BTreeMap<String, u32>>) {
        self.inner.lock().foreign = foreign;
    }

    pub(crate) fn foreign(&self) -> BTreeMap<String, BTreeMap<String, u32>> {
        self.inner.lock().foreign.clone()
    }

    pub(crate) fn foreign_owner(&self, cluster: &str) -> Option<String> {
        self.inner
            .lock()
            .foreign
            .get(cluster)
            .and_then(|owners| owners.keys().next().cloned())
    }

    pub(crate) fn add_foreign(&self, cluster: &str, owner: &str) {
        let mut inner = self.inner.lock();
        let owners = inner.foreign.entry(cluster.to_owned()).or_default();
        owners.entry(owner.to_owned()).or_insert(1);
    }

    /// When its backend was last known whole, by its own clock.
    pub(crate) fn observe_time(&self) -> Option<prost_types::Timestamp> {
        self.inner.lock().observe_time
    }

    /// It as the registry answers it.
    pub(crate) fn to_proto(&self, now: Millis) -> pb::Platform {
        let inner = self.inner.lock();
        let visible = inner.visible(now);
        let phase = match inner.phase {
            Phase::Connecting => pb::PlatformPhase::Connecting,
            Phase::Ready if visible => pb::PlatformPhase::Ready,
            Phase::Ready if inner.fresh_at == 0 => pb::PlatformPhase::Connecting,
            Phase::Ready | Phase::Unreachable => pb::PlatformPhase::Unreachable,
            Phase::Refused => pb::PlatformPhase::Refused,
        };
        let condition = |kind: &str, status: bool, reason: &str, message: &str| {
            drover_proto::common::v1::Condition {
                r#type: kind.to_owned(),
                status: Some(status),
                reason: reason.to_owned(),
                message: message.to_owned(),
                last_transition_time: value::to_timestamp_opt(inner.visible_since),
            }
        };
        let reachable = match phase {
            pb::PlatformPhase::Ready => "AsWanted",
            pb::PlatformPhase::Connecting => "Connecting",
            _ if inner.mass_loss > 0 => "Vanished",
            _ => "Unreachable",
        };
        let accepted = inner.phase != Phase::Refused;
        let mut conditions = vec![
            condition("Reachable", visible, reachable, &inner.message),
            condition(
                "Accepted",
                accepted,
                if accepted { "AsWanted" } else { inner.refusal },
                "",
            ),
        ];
        if inner.suspended_until > now {
            let message = "too many calls failed in a row";
            conditions.push(condition(
                "CallsSuspended",
                true,
                "TooManyFailures",
                message,
            ));
        }
        if inner.mass_loss > 0 {
            let message = format!(
                "{} nodes vanished at once; confirm the loss, or bring the nodes back",
                inner.mass_loss
            );
            conditions.push(condition("MassLoss", true, "Vanished", &message));
        }
        if inner.foreign_resources > 0 {
            let message = format!(
                "{} resources belong to nobody here; they are left alone",
                inner.foreign_resources
            );
            conditions.push(condition(
                "ForeignInfrastructure",
                true,
                "Foreign",
                &message,
            ));
        }
        pb::Platform {
            name: self.name.to_string(),
            spec: Some(inner.registration.spec.clone()),
            generation: inner.registration.generation,
            status: Some(pb::PlatformStatus {
                phase: phase.into(),
                message: inner.message.clone(),
                uid: inner.registration.uid.clone(),
                handshake: inner.handshake.as_deref().cloned(),
                observe_time: inner.observe_time,
                node_count: inner.total,
                conditions,
                vanished_count: inner.mass_loss,
            }),
            create_time: value::to_timestamp_opt(inner.registration.create_time),
        }
    }
}

/// Failure domains as planners know them. One without labels is a zone of its name.
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
    /// So many may vanish within a minute and be believed to have.
    fn most_vanished(&self) -> usize {
        drover_planner::PLATFORM_BREAKER_MIN
            .max(self.total * drover_planner::PLATFORM_BREAKER_PERCENT / 100) as usize
    }

    fn visible(&self, now: Millis) -> bool {
        self.snapshot
            && self.mass_loss == 0
            && self.phase == Phase::Ready
            && self.fresh_at > 0
            && now.saturating_sub(self.fresh_at) <= self.patience
    }
}

pub(crate) fn has(handshake: &wire::Platform, capability: wire::Capability) -> bool {
    handshake.capabilities.contains(&i32::from(capability))
}

fn planner_limits(limits: &wire::Limits) -> Limits {
    let default = Limits::default();
    let span = |span: &Option<prost_types::Duration>, default| {
        span.as_ref()
            .and_then(|span| value::duration("", span).ok())
            .map_or(default, crate::clock::millis)
    };
    let visibility_delay = span(&limits.visibility_delay, default.visibility_delay);
    Limits {
        max_batch: limits.max_batch.unwrap_or(default.max_batch).max(1),
        max_creation_time: span(&limits.max_creation_time, default.max_creation_time),
        request_memory: span(&limits.request_memory, default.request_memory),
        visibility_delay,
        replay_delay: span(&limits.replay_delay, visibility_delay),
        call_timeout: span(&limits.provision_timeout, default.call_timeout).max(1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform() -> Platform {
        let registration = Registration {
            uid: "u".into(),
            ..Registration::default()
        };
        let platform = Platform::new("p".into(), registration);
        let routes = tonic::service::Routes::default();
        let client = PlatformClient::new(drover_client::in_process(routes));
        platform.connected(
            client,
            wire::Platform {
                uid: "u".into(),
                ..wire::Platform::default()
            },
        );
        platform
    }

    fn time(seconds: i64) -> Option<prost_types::Timestamp> {
        Some(prost_types::Timestamp { seconds, nanos: 0 })
    }

    #[test]
    fn what_is_seen_is_believed_for_a_while_and_only_if_the_backend_was_read_since() {
        let platform = platform();
        assert!(!platform.is_visible(1_000), "nothing was shown yet");
        platform.snapshot_complete(1_000, time(1));
        assert!(
            platform.is_visible(1_000 + 30_000) && !platform.is_visible(1_000 + 30_001),
            "three poll intervals"
        );
        platform.heartbeat(20_000, time(1));
        assert!(
            !platform.is_visible(40_000),
            "a live stream does not make old data look fresh"
        );
        platform.heartbeat(20_000, time(2));
        assert!(platform.is_visible(40_000));
        assert_eq!(platform.view(40_000).visible_since, 1_000);
        platform.doubt();
        assert!(!platform.is_visible(40_000));
        platform.heartbeat(41_000, time(3));
        assert_eq!(platform.view(41_000).visible_since, 41_000, "seen anew");
        platform.lost(&Error::unavailable("gone"), "gone");
        assert!(!platform.is_visible(41_000));
        platform.heartbeat(42_000, time(4));
        assert!(
            !platform.is_visible(42_000),
            "without a snapshot nothing is known"
        );
    }

    #[test]
    fn calls_are_suspended_after_failures_in_a_row_for_longer_each_time() {
        let platform = platform();
        platform.snapshot_complete(1_000, time(1));
        let failure = Error::unavailable("down");
        for _ in 1..BREAKER_FAILURES {
            platform.judge(Some(&failure), 1_000);
            assert!(platform.view(1_000).callable);
        }
        platform.judge(Some(&failure), 1_000);
        assert!(!platform.view(1_000).callable);
        assert!(!platform.end_suspension(1_000 + BREAKER_FIRST - 1));
        assert!(platform.end_suspension(1_000 + BREAKER_FIRST));
        assert!(platform.view(1_000 + BREAKER_FIRST).callable, "one may try");
        platform.judge(Some(&failure), 3_000);
        assert!(
            !platform.end_suspension(3_000 + BREAKER_FIRST),
            "twice as long"
        );
        assert!(platform.end_suspension(3_000 + 2 * BREAKER_FIRST));
        // What a platform refuses it does answer.
        platform.judge(Some(&Error::invalid("a", "b")), 9_000);
        platform.judge(Some(&failure), 9_000);
        assert!(platform.view(9_000).callable);
    }

    #[test]
    fn capacity_is_asked_for_again_later_each_time_and_by_class() {
        let platform = platform();
        platform.snapshot_complete(1_000, time(1));
        let (small, large): (Sym, Sym) = ("small".into(), "large".into());
        assert_eq!(
            platform.out_of(&small, "", 1_000, None),
            1_000 + CAPACITY_FIRST
        );
        assert_eq!(
            platform.out_of(&small, "", 2_000, None),
            1_000 + CAPACITY_FIRST,
            "many say the same at once"
        );
        let without = |now| {
            platform
                .view(now)
                .no_capacity
                .into_iter()
                .map(|short| short.pool)
                .collect::<Vec<_>>()
        };
        assert!(without(2_000) == [&*small].map(Sym::from));
        assert_eq!(
            platform.out_of(&small, "", 10_000, None),
            10_000 + 2 * CAPACITY_FIRST
        );
        assert_eq!(
            platform.out_of(&large, "", 10_000, Some(Duration::from_secs(1))),
            11_000,
            "its own word counts"
        );
        assert!(without(11_000) == [&*small].map(Sym::from));
        assert!(platform.has_again(&small, []) && !platform.has_again(&small, []));
        assert_eq!(without(2_000), [large]);
    }

    #[test]
    fn many_that_vanish_at_once_hide_the_platform_until_the_right_number_is_confirmed() {
        let platform = platform();
        platform.snapshot_complete(1_000, time(1));
        platform.count(20, 0);
        assert!(!platform.vanished(4, 1_000), "a fifth may vanish");
        assert!(
            !platform.vanished(4, 1_000 + LOSS_WINDOW + 1),
            "not counted together with what was long ago"
        );
        assert!(platform.vanished(1, 1_000 + LOSS_WINDOW + 2));
        assert_eq!(platform.vanished_count(), 5);
        platform.snapshot_complete(70_000, time(2));
        assert!(!platform.is_visible(70_000));
        assert_eq!(
            platform.confirm_loss(4, 70_000).unwrap_err().reason(),
            Reason::LossChanged
        );
        platform.confirm_loss(5, 70_000).unwrap();
        assert!(platform.is_visible(70_000));
    }
}
