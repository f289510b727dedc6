//! One registered platform: what is known of it, and how it may be called.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use drover_client::PlatformClient;
use drover_convert::value;
use drover_core::{Error, Millis, Reason, Result, Sym};
use drover_planner::{Limits, PlatformView};
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
    client: Option<PlatformClient>,
    phase: Phase,
    message: String,
    handshake: Option<Arc<wire::Platform>>,
    /// The last complete observation, by our clock; 0: none.
    fresh_at: Millis,
    /// The same by the platform's clock, to see whether it advances.
    observe_time: Option<prost_types::Timestamp>,
    visible_since: Millis,
    /// A snapshot is complete and newer than any doubt.
    snapshot: bool,
    /// How old an observation may be.
    patience: Millis,
    failures: u32,
    suspended_until: Millis,
    probing: bool,
    capacity: BTreeMap<Sym, (u32, Millis)>,
    normal: Arc<Semaphore>,
    urgent: Arc<Semaphore>,
    next_call: Millis,
    foreign: BTreeMap<String, BTreeMap<String, u32>>,
    vanished: VecDeque<Millis>,
    mass_loss: u32,
    warnings: Vec<wire::Warning>,
    sick: u32,
    total: u32,
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
                registration,
                client: None,
                phase: Phase::Connecting,
                message: "has not answered yet".into(),
                handshake: None,
                fresh_at: 0,
                observe_time: None,
                visible_since: 0,
                snapshot: false,
                patience: 15_000,
                failures: 0,
                suspended_until: 0,
                probing: false,
                capacity: BTreeMap::new(),
                normal: Arc::new(Semaphore::new(DEFAULT_CONCURRENCY - DEFAULT_CONCURRENCY / URGENT_SHARE)),
                urgent: Arc::new(Semaphore::new(DEFAULT_CONCURRENCY / URGENT_SHARE)),
                next_call: 0,
                foreign: BTreeMap::new(),
                vanished: VecDeque::new(),
                mass_loss: 0,
                warnings: Vec::new(),
                sick: 0,
                total: 0,
            }),
        }
    }

    pub(crate) fn registration(&self) -> Registration {
        self.inner.lock().registration.clone()
    }

    pub(crate) fn set_registration(&self, registration: Registration) {
        self.inner.lock().registration = registration;
    }

    pub(crate) fn handshake(&self) -> Option<Arc<wire::Platform>> {
        self.inner.lock().handshake.clone()
    }

    pub(crate) fn client(&self) -> Option<PlatformClient> {
        self.inner.lock().client.clone()
    }

    pub(crate) fn has(&self, capability: wire::Capability) -> bool {
        self.handshake().is_some_and(|handshake| has(&handshake, capability))
    }

    /// Uid of the backend and this start of its server, as calls have to name them.
    pub(crate) fn identity(&self) -> (String, String) {
        let inner = self.inner.lock();
        let instance = inner.handshake.as_ref().map(|h| h.instance_id.clone()).unwrap_or_default();
        (inner.registration.uid.clone(), instance)
    }

    /// A handshake was made. Calls may follow; what exists there is known with the first snapshot.
    pub(crate) fn connected(&self, client: PlatformClient, handshake: wire::Platform) {
        let mut inner = self.inner.lock();
        let limits = handshake.limits.clone().unwrap_or_default();
        let most = limits.max_concurrent_calls.map_or(DEFAULT_CONCURRENCY, |n| (n as usize).clamp(1, 1024));
        let urgent = (most / URGENT_SHARE).max(1);
        inner.normal = Arc::new(Semaphore::new((most - urgent).max(1)));
        inner.urgent = Arc::new(Semaphore::new(urgent));
        inner.client = Some(client);
        inner.phase = Phase::Ready;
        inner.message.clear();
        inner.failures = 0;
        inner.suspended_until = 0;
        inner.capacity.clear();
        let poll = limits.min_poll_interval.and_then(|p| value::duration("", &p).ok()).unwrap_or(Duration::from_secs(10));
        inner.patience = (3 * crate::clock::millis(poll)).max(15_000);
        inner.handshake = Some(Arc::new(handshake));
    }

    /// The catalogue or something else changed; the connection stays.
    pub(crate) fn refreshed(&self, handshake: wire::Platform) {
        self.inner.lock().handshake = Some(Arc::new(handshake));
    }

    /// It cannot be seen any more.
    pub(crate) fn lost(&self, phase: Phase, message: &str) -> bool {
        let mut inner = self.inner.lock();
        let changed = inner.phase != phase || inner.snapshot;
        inner.phase = phase;
        message.clone_into(&mut inner.message);
        inner.snapshot = false;
        changed
    }

    /// Everything that exists there was just shown.
    pub(crate) fn snapshot_complete(&self, now: Millis, observe_time: Option<prost_types::Timestamp>) {
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

    /// What planners may know of it.
    pub(crate) fn view(&self, now: Millis) -> PlatformView {
        let inner = self.inner.lock();
        let limits = inner.handshake.as_ref().and_then(|h| h.limits.clone()).unwrap_or_default();
        let kind = inner.handshake.as_ref().map_or("", |h| h.kind.as_str());
        let visible = inner.visible(now);
        let suspended = inner.suspended_until > now || inner.probing;
        let trouble = match inner.phase {
            _ if inner.mass_loss > 0 => format!("lost {} nodes at once; confirm the loss to go on", inner.mass_loss),
            Phase::Ready if visible && suspended => "fails too many calls and is left alone for a while".to_owned(),
            Phase::Ready if visible => String::new(),
            Phase::Ready => "has not shown its nodes for too long".to_owned(),
            Phase::Connecting | Phase::Unreachable | Phase::Refused => inner.message.clone(),
        };
        PlatformView {
            uid: inner.registration.uid.as_str().into(),
            visible,
            visible_since: inner.visible_since,
            callable: visible && !suspended,
            trouble: trouble.into(),
            etag: inner.handshake.as_ref().map_or("", |h| h.etag.as_str()).into(),
            limits: planner_limits(&limits),
            provision_timeout: if kind == "metal" { PROVISION_TIMEOUT_METAL } else { PROVISION_TIMEOUT },
            no_capacity: inner
                .capacity
                .iter()
                .filter(|(_, (_, until))| *until > now)
                .map(|(class, (_, until))| (class.clone(), *until))
                .collect(),
            sick: inner.sick,
            total: inner.total,
            warns: inner.handshake.as_ref().is_some_and(|h| has(h, wire::Capability::GracePeriod)),
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
        while inner.vanished.front().is_some_and(|at| at + LOSS_WINDOW < now) {
            inner.vanished.pop_front();
        }
        let most = drover_planner::PLATFORM_BREAKER_MIN
            .max(inner.total * drover_planner::PLATFORM_BREAKER_PERCENT / 100) as usize;
        if inner.vanished.len() > most {
            inner.mass_loss = u32::try_from(inner.vanished.len()).unwrap_or(u32::MAX);
            return true;
        }
        false
    }

    /// A person says that the vanished nodes are really gone.
    pub(crate) fn confirm_loss(&self, count: u32, now: Millis) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.mass_loss != count {
            let message = format!("{} nodes vanished, not {count}", inner.mass_loss);
            return Err(Error::new(Reason::LossChanged, message).with_metadata("vanished_count", inner.mass_loss));
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
    pub(crate) async fn permit(&self, urgency: Urgency, now: impl Fn() -> Millis) -> Option<OwnedSemaphorePermit> {
        let (normal, urgent, pause) = {
            let mut inner = self.inner.lock();
            let rate = inner.handshake.as_ref().and_then(|h| h.limits.as_ref()).and_then(|l| l.calls_per_second);
            let mut pause = 0;
            if let Some(rate) = rate.filter(|rate| *rate > 0.0) {
                let at = inner.next_call.max(now());
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a span in milliseconds")]
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
        tokio::time::timeout(PERMIT_WAIT, normal.acquire_owned()).await.ok()?.ok()
    }

    /// Takes in how a call ended, for the circuit breaker.
    pub(crate) fn judge(&self, error: Option<&Error>, now: Millis) -> Verdict {
        let failed = error.is_some_and(|error| {
            matches!(
                error.reason(),
                Reason::Unavailable | Reason::DeadlineExceeded | Reason::Internal | Reason::RateLimited | Reason::Overloaded
            )
        });
        let mut inner = self.inner.lock();
        let suspended = inner.suspended_until > 0;
        if failed {
            inner.failures = inner.failures.saturating_add(1);
            inner.probing = false;
            if inner.failures >= BREAKER_FAILURES {
                let wait = BREAKER_FIRST << (inner.failures - BREAKER_FAILURES).min(10);
                let wait = error.and_then(Error::retry_after).map_or(wait, crate::clock::millis).min(BREAKER_MOST);
                inner.suspended_until = now + wait;
            }
            return Verdict::Same;
        }
        inner.failures = 0;
        inner.probing = false;
        inner.suspended_until = 0;
        if suspended { Verdict::Changed } else { Verdict::Same }
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

    /// It had none of a node class.
    pub(crate) fn out_of(&self, class: &Sym, now: Millis, after: Option<Duration>) -> Millis {
        let mut inner = self.inner.lock();
        let (times, until) = inner.capacity.entry(class.clone()).or_insert((0, 0));
        if *until <= now {
            let wait = (CAPACITY_FIRST << (*times).min(16)).min(CAPACITY_MOST);
            *until = now + after.map_or(wait, |after| crate::clock::millis(after).min(CAPACITY_MOST));
            *times += 1;
        }
        *until
    }

    /// It had some of a node class.
    pub(crate) fn has_again(&self, class: &Sym) -> bool {
        self.inner.lock().capacity.remove(class).is_some()
    }

    pub(crate) fn set_warnings(&self, warnings: Vec<wire::Warning>) {
        self.inner.lock().warnings = warnings;
    }

    /// Clusters that nobody here manages: id, owner, number of nodes.
    pub(crate) fn set_foreign(&self, foreign: BTreeMap<String, BTreeMap<String, u32>>) {
        self.inner.lock().foreign = foreign;
    }

    pub(crate) fn foreign(&self) -> BTreeMap<String, BTreeMap<String, u32>> {
        self.inner.lock().foreign.clone()
    }

    pub(crate) fn foreign_owner(&self, cluster: &str) -> Option<String> {
        self.inner.lock().foreign.get(cluster).and_then(|owners| owners.keys().next().cloned())
    }

    pub(crate) fn add_foreign(&self, cluster: &str, owner: &str) {
        let mut inner = self.inner.lock();
        let owners = inner.foreign.entry(cluster.to_owned()).or_default();
        owners.entry(owner.to_owned()).or_insert(1);
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
        let condition = |kind: &str, status: bool, message: &str| drover_proto::common::v1::Condition {
            r#type: kind.to_owned(),
            status: Some(status),
            reason: "AsWanted".to_owned(),
            message: message.to_owned(),
            last_transition_time: value::to_timestamp_opt(inner.visible_since),
        };
        let mut conditions = vec![
            condition("Reachable", visible, &inner.message),
            condition("Accepted", inner.phase != Phase::Refused, ""),
        ];
        if inner.suspended_until > now {
            conditions.push(condition("CallsSuspended", true, "too many calls failed in a row"));
        }
        if inner.mass_loss > 0 {
            conditions.push(condition("MassLoss", true, "confirm the loss, or bring the nodes back"));
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

impl Inner {
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
        span.as_ref().and_then(|span| value::duration("", span).ok()).map_or(default, crate::clock::millis)
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
