//! Infrastructure: asked for before nodes, looked at now and then, released after them.
//!
//! The infrastructure of a cluster on one backend is a slot: its intent is durable before the platform is called, and
//! its record stays until the platform says that nothing is left, in an answer to a question that began after whatever
//! may have been under way had ended.

use std::sync::Arc;

use drover_core::{
    Class, Error, Millis, Sym,
    infrastructure::{
        Asked, Infrastructure, InfrastructureAnswer, Observed, ResourcePhase, Wanted,
    },
};

use crate::{
    Call, ConditionKey, ConditionKind, Limits, Op, Planner, PlatformView, SLOW_CADENCE,
    observe::millis,
};

/// A backend: name of the platform, uid.
pub type BackendKey = (Sym, Sym);

/// How often infrastructure that is ready is compared with what is there; jittered by a tenth.
pub const DRIFT_INTERVAL: Millis = 10 * 60 * 1000;
/// The same when the platform could not read all of it.
const UNREAD_INTERVAL: Millis = 60_000;
/// Shortest wait before a second look at what a first one lacked.
const SECOND_LOOK: Millis = 1_000;
/// Wait before it is asked again, where the platform does not say.
const POLL: Millis = 2_000;
/// Shortest and longest wait that a platform may ask for.
const POLL_LIMITS: (Millis, Millis) = (100, SLOW_CADENCE);
/// Wait after the second failure in a row; it doubles.
const FIRST_BACK_OFF: Millis = 2_000;
/// Failures in a row after which the slow cadence begins.
const MAX_FAILURES: u32 = 3;
/// Wait after the backend refused the platform's credentials.
const CREDENTIALS_BACK_OFF: Millis = 60_000;
/// First wait after the platform had no capacity; it doubles.
const CAPACITY_FIRST: Millis = 5_000;
/// Longest wait after the platform had no capacity.
const CAPACITY_MOST: Millis = 300_000;
/// First wait after a call of unknown outcome; it doubles.
const RETRY_FIRST: Millis = 500;
/// Longest wait after a call of unknown outcome, and after a release that failed.
const RETRY_MOST: Millis = 60_000;
/// Wait before a call is repeated that the platform refused for being out of date.
const STALE_RETRY: Millis = 100;
/// Deadline of a Release call: the platform answers when it has begun.
pub const RELEASE_TIMEOUT: Millis = 30_000;

/// What an operation on infrastructure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InfrastructureChange {
    /// It is asked for: for the first time, as something else, or because some of it is gone.
    Ask,
    /// It is asked for again, or its release is.
    Again,
    /// What the platform said is taken in.
    Learn,
    /// Its release is asked for; irrevocable.
    Release,
    /// The platform has said that nothing is left.
    Gone,
    /// Its user gave it up.
    Abandon,
}

impl InfrastructureChange {
    /// Whether it is an action of the plan, as plans are answered.
    #[must_use]
    pub fn is_action(self) -> bool {
        matches!(self, Self::Ask | Self::Release)
    }
}

/// A record in the making.
struct Turn<'a> {
    key: &'a BackendKey,
    record: Infrastructure,
    change: Option<InfrastructureChange>,
    /// What is asked once the record is durable.
    asks: Option<Asked>,
}

impl<'a> Planner<'a> {
    fn wanted_infrastructure(&self) -> &'a [Wanted] {
        if self.state.deleting {
            &[]
        } else {
            self.input.infrastructure
        }
    }

    fn is_current(&self, key: &BackendKey) -> bool {
        let view = self.input.platforms.get(&key.0);
        view.is_none_or(|view| *view.uid == *key.1)
    }

    pub(crate) fn plan_infrastructure(&mut self) {
        let state = self.state;
        for (key, record) in state.infrastructure.iter() {
            if self.full() {
                break;
            }
            let wanted = self
                .wanted_infrastructure()
                .iter()
                .find(|wanted| wanted.platform == key.0 && self.is_current(key));
            self.keep(key, record, wanted);
        }
        for wanted in self.wanted_infrastructure() {
            self.begin(wanted);
        }
        self.note_lacking();
    }

    /// Notes what nodes wait for.
    pub(crate) fn note_lacking(&mut self) {
        self.lacks = self.lacking();
    }

    /// Asks for what was never asked for.
    fn begin(&mut self, wanted: &Wanted) {
        let view = self.input.platforms.get(&wanted.platform);
        let recorded = |(name, uid): &BackendKey| {
            *name == wanted.platform && view.is_none_or(|view| view.uid == *uid)
        };
        if self.state.infrastructure.keys().any(recorded) || self.full() {
            return;
        }
        if let Some(reason) = self.frozen() {
            self.note("", None, false, reason, || {
                format!("no infrastructure is made on {}", wanted.platform)
            });
            return;
        }
        let Some(view) = view.filter(|view| view.callable && view.visible) else {
            let trouble = view.map_or("is not registered", |view| &view.trouble);
            self.fail_infrastructure(&wanted.platform, "PlatformUnavailable", trouble);
            return;
        };
        let key = (wanted.platform.clone(), view.uid.clone());
        let mut turn = Turn {
            key: &key,
            record: Infrastructure {
                phase_time: self.input.now,
                ..Infrastructure::default()
            },
            change: None,
            asks: None,
        };
        self.ask(&mut turn, wanted, &view.limits);
        self.settle_turn(turn, None);
    }

    /// Goes on with what was asked for.
    fn keep(&mut self, key: &BackendKey, before: &Infrastructure, wanted: Option<&Wanted>) {
        let view = self.input.platforms.get(&key.0);
        let view = view.filter(|view| *view.uid == *key.1);
        if before.call.in_flight {
            self.hold_trouble(key, before);
            return;
        }
        let limits = view.map(|view| view.limits).unwrap_or_default();
        let mut turn = Turn {
            key,
            record: before.clone(),
            change: None,
            asks: None,
        };
        if let Some(answer) = &before.answer {
            let etag = view.map(|view| view.etag.clone()).unwrap_or_default();
            if self.take_in(&mut turn, answer, &limits, &etag) {
                self.remove_record(key, before);
                return;
            }
        }
        if turn.record.releasing || wanted.is_none() {
            self.release(&mut turn, view, &limits);
        } else if let Some(wanted) = wanted {
            self.ensure(&mut turn, wanted, view, &limits);
        }
        self.hold_trouble(key, &turn.record);
        self.settle_turn(turn, Some(before));
    }

    fn hold_trouble(&mut self, key: &BackendKey, record: &Infrastructure) {
        if !record.reason.is_empty() && !self.state.deleting {
            self.fail_infrastructure(&key.0, &record.reason, &record.message);
        }
    }

    fn remove_record(&mut self, key: &BackendKey, before: &Infrastructure) {
        self.note("", None, true, "Infrastructure", || {
            format!("{}: nothing is left of {}", key.0, before.named())
        });
        self.op(Op::Infrastructure {
            key: key.clone(),
            to: None,
            change: InfrastructureChange::Gone,
        });
    }

    fn settle_turn(&mut self, turn: Turn<'_>, before: Option<&Infrastructure>) {
        let Turn {
            key,
            mut record,
            change,
            asks,
        } = turn;
        if let Some(asked) = asks {
            self.plan.calls.push(Call::Infrastructure {
                platform: key.0.clone(),
                uid: key.1.clone(),
                asked,
            });
        }
        let Some(change) = change else { return };
        if before.is_none_or(|before| before.phase != record.phase) {
            record.phase_time = self.input.now;
        }
        self.op(Op::Infrastructure {
            key: key.clone(),
            to: Some(Box::new(record.clone())),
            change,
        });
        self.infrastructure.push((key.clone(), record));
    }

    /// Takes in an answer. True: the platform has proven that nothing is left.
    fn take_in(
        &mut self,
        turn: &mut Turn<'_>,
        answer: &InfrastructureAnswer,
        limits: &Limits,
        etag: &Sym,
    ) -> bool {
        match (answer.asked, &answer.outcome) {
            (Asked::Read, Ok(observed)) => take_read(turn, answer.began, observed),
            // Who made the read has noted when it may be made again.
            (Asked::Read, Err(_)) => {}
            (Asked::Ensure, Ok(observed)) => take_ensured(turn, answer.at, observed, limits),
            (Asked::Release, Ok(observed)) => {
                if observed.phase == ResourcePhase::Gone
                    && answer.began >= turn.record.unsettled + limits.visibility_delay
                {
                    return true;
                }
                take_released(turn, answer.at, observed, limits);
            }
            (asked, Err(error)) => take_failure(turn, asked, answer.at, error, limits, etag),
        }
        false
    }

    fn ensure(
        &mut self,
        turn: &mut Turn<'_>,
        wanted: &Wanted,
        view: Option<&PlatformView>,
        limits: &Limits,
    ) {
        let now = self.input.now;
        let platform = &turn.key.0;
        let changed = turn.record.spec_hash != wanted.spec_hash;
        let vanished = turn.record.doubt > 0 && turn.record.phase != ResourcePhase::Ready;
        if turn.record.is_ready() && !changed {
            self.look(turn, view, limits);
            return;
        }
        if let Some(reason) = self.frozen() {
            self.note("", None, false, reason, || {
                format!("no infrastructure is made on {platform}")
            });
            return;
        }
        let Some(view) = view.filter(|view| view.callable && view.visible) else {
            self.unavailable(turn);
            return;
        };
        let next = if changed {
            settled_from(&turn.record, view)
        } else {
            next_attempt(&turn.record, limits, &view.etag)
        };
        if now < next {
            self.wake(next);
            self.note_until("", None, false, "Infrastructure", Some(next), || {
                format!("{platform}: {}; asked again then", progress(&turn.record))
            });
            return;
        }
        if changed || vanished {
            self.ask(turn, wanted, limits);
        } else {
            attempt(turn, Asked::Ensure, now, limits);
            turn.change = Some(InfrastructureChange::Again);
        }
    }

    /// Makes the intent to have something made, and asks for it.
    fn ask(&mut self, turn: &mut Turn<'_>, wanted: &Wanted, limits: &Limits) {
        let record = &mut turn.record;
        record.sequence = self.next_sequence;
        self.next_sequence += 1;
        record.spec_hash = wanted.spec_hash.clone();
        record.body = Arc::clone(&wanted.body);
        record.phase = ResourcePhase::Pending;
        (record.failures, record.next, record.doubt) = (0, 0, 0);
        clear_trouble(record);
        self.note("", None, true, "Infrastructure", || {
            format!("asks {} for it", turn.key.0)
        });
        attempt(turn, Asked::Ensure, self.input.now, limits);
        turn.change = Some(InfrastructureChange::Ask);
    }

    /// Compares what is ready with what is there, now and then.
    fn look(&mut self, turn: &mut Turn<'_>, view: Option<&PlatformView>, limits: &Limits) {
        let record = &turn.record;
        let now = self.input.now;
        let Some(view) = view.filter(|view| view.callable && view.visible) else {
            return;
        };
        let read = record.answer.as_ref().filter(|a| a.asked == Asked::Read);
        let unread = read.is_some_and(
            |answer| matches!(&answer.outcome, Ok(seen) if seen.phase == ResourcePhase::Unknown),
        );
        let last = read.map_or(0, |answer| answer.at).max(record.phase_time);
        let due = if record.doubt > 0 {
            record.doubt + limits.visibility_delay.max(SECOND_LOOK)
        } else if unread {
            last + UNREAD_INTERVAL
        } else {
            last.max(self.input.process_start) + jittered(self.state.uid.as_u128(), record.sequence)
        };
        let due = due.max(record.call.next).max(if record.doubt > 0 {
            view.visible_since
        } else {
            0
        });
        if now < due {
            self.wake(due);
            return;
        }
        turn.record.call.in_flight = true;
        turn.asks = Some(Asked::Read);
    }

    /// Frees what nobody wants any more, once no node can use it.
    fn release(&mut self, turn: &mut Turn<'_>, view: Option<&PlatformView>, limits: &Limits) {
        let now = self.input.now;
        let platform = turn.key.0.clone();
        if let Some(users) = self.users(turn.key) {
            self.note("", None, false, "Infrastructure", || {
                format!("{platform}: released when {users} are gone")
            });
            return;
        }
        let Some(view) = view.filter(|view| view.callable && view.visible) else {
            self.unavailable(turn);
            return;
        };
        let next = if turn.record.releasing {
            next_attempt(&turn.record, limits, &view.etag)
        } else {
            settled_from(&turn.record, view)
        };
        if now < next {
            self.wake(next);
            self.note_until("", None, false, "Infrastructure", Some(next), || {
                format!(
                    "{platform} releases {}; asked again then",
                    turn.record.named()
                )
            });
            return;
        }
        turn.change = Some(InfrastructureChange::Again);
        if !turn.record.releasing {
            self.note("", None, true, "Infrastructure", || {
                format!("has {platform} release {}", turn.record.named())
            });
            turn.record.releasing = true;
            (turn.record.failures, turn.record.next, turn.record.doubt) = (0, 0, 0);
            clear_trouble(&mut turn.record);
            turn.change = Some(InfrastructureChange::Release);
        }
        attempt(turn, Asked::Release, now, limits);
    }

    /// What may still use it. None: nothing does.
    fn users(&self, (platform, uid): &BackendKey) -> Option<String> {
        let state = self.state;
        let here = |name: &Sym, own: &Sym| state.deleting || (name == platform && own == uid);
        let nodes = state
            .nodes
            .iter()
            .filter(|node| here(&node.platform, &node.platform_uid))
            .count();
        let requests = state
            .requests
            .values()
            .filter(|request| here(&request.platform, &request.platform_uid))
            .count();
        // A request that this very plan records cannot be seen yet; it is planned after this.
        let orphans = state
            .orphans
            .iter()
            .filter(|((name, _), orphan)| here(name, &orphan.platform_uid))
            .count();
        (nodes + requests + orphans > 0).then(|| format!("{} nodes", nodes + orphans))
    }

    fn unavailable(&mut self, turn: &Turn<'_>) {
        if self.state.deleting {
            // The deletion says what blocks it.
            return;
        }
        let view = self.input.platforms.get(&turn.key.0);
        let trouble = self.trouble(turn.key, view).to_owned();
        self.fail_infrastructure(&turn.key.0, "PlatformUnavailable", &trouble);
    }

    fn trouble<'v>(&self, key: &BackendKey, view: Option<&'v PlatformView>) -> &'v str {
        match view {
            None => "is not registered",
            Some(view) if *view.uid != *key.1 => "shows another backend than the one that it is on",
            Some(view) => &view.trouble,
        }
    }

    fn fail_infrastructure(&mut self, platform: &Sym, reason: &str, message: &str) {
        let message = format!("{platform}: {message}");
        let key = ConditionKey {
            group: Sym::default(),
            kind: ConditionKind::InfrastructureFailed,
        };
        self.note("", None, false, "Infrastructure", || message.clone());
        self.hold(key, reason, &message);
    }

    /// A record as it is, and as this plan leaves it.
    fn record_of(&self, key: &BackendKey) -> [Option<&Infrastructure>; 2] {
        let before = self.state.infrastructure.get(key);
        let changed = self.infrastructure.iter().find(|(own, _)| own == key);
        [before, changed.map(|(_, record)| record).or(before)]
    }

    /// What nodes wait for. None: everything is as wanted, and was so before this plan: what it offers goes into
    /// requests as it is recorded.
    fn lacking(&self) -> Option<String> {
        let mut lacks = Vec::new();
        for wanted in self.wanted_infrastructure() {
            let platform = &wanted.platform;
            let uid = self.input.platforms.get(platform).map(|view| &view.uid);
            let records = uid.map_or([None, None], |uid| {
                self.record_of(&(platform.clone(), uid.clone()))
            });
            let ready =
                |record: &Infrastructure| record.is_ready() && record.spec_hash == wanted.spec_hash;
            match records {
                [Some(before), Some(after)] if ready(before) && ready(after) => {}
                [_, Some(after)] => lacks.push(format!("{platform}: {}", progress(after))),
                [_, None] => lacks.push(format!("{platform}: not asked for yet")),
            }
        }
        (!lacks.is_empty()).then(|| lacks.join("; "))
    }

    /// Why no node may be made on a platform now. None: nothing of the infrastructure is in the way.
    pub(crate) fn awaits_infrastructure(&self, platform: &Sym) -> Option<String> {
        if let Some(lacks) = &self.lacks {
            return Some(lacks.clone());
        }
        let mut keys = self.state.infrastructure.keys();
        keys.any(|key| {
            key.0 == *platform && self.record_of(key)[1].is_some_and(|record| record.releasing)
        })
        .then(|| format!("{platform}: what was there is being released first"))
    }

    /// Holds the condition that a group waits for infrastructure.
    pub(crate) fn wait_for_infrastructure(&mut self, group: &Sym, why: &str) {
        let key = ConditionKey {
            group: group.clone(),
            kind: ConditionKind::WaitingForInfrastructure,
        };
        self.hold(key, "Infrastructure", why);
        self.note(group, None, false, "Infrastructure", || why.to_owned());
    }

    /// Whether all infrastructure is as wanted, after this plan.
    pub(crate) fn state_infrastructure(&mut self) -> bool {
        if self.wanted_infrastructure().is_empty() {
            return true;
        }
        if self.lacks.is_some() {
            return false;
        }
        let key = ConditionKey {
            group: Sym::default(),
            kind: ConditionKind::InfrastructureReady,
        };
        self.hold(key, "AsWanted", "");
        true
    }

    /// What of the infrastructure keeps a deletion from ending, for people.
    pub(crate) fn blocking_infrastructure(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (key, record) in self.state.infrastructure.iter() {
            let record = self.record_of(key)[1].unwrap_or(record);
            let view = self.input.platforms.get(&key.0);
            let blocked = match view {
                Some(view) if *view.uid == *key.1 && view.visible && view.callable => {
                    if !record.releasing || record.reason.is_empty() {
                        continue;
                    }
                    format!("does not release it: {}", record.message)
                }
                view => self.trouble(key, view).to_owned(),
            };
            let resources = match record.named() {
                names if names.is_empty() => String::new(),
                names => format!(" ({names})"),
            };
            words.push(format!(
                "infrastructure on {}{resources}, which {blocked}",
                key.0
            ));
        }
        words
    }
}

/// From when on no call that was made before can change anything.
fn settled_from(record: &Infrastructure, view: &PlatformView) -> Millis {
    // A platform that has ended the calls of earlier processes begins nothing of theirs any more.
    if record.deadline == 0 || (view.fenced && !record.sent) {
        0
    } else {
        record.deadline
    }
}

fn next_attempt(record: &Infrastructure, limits: &Limits, etag: &Sym) -> Millis {
    if record.deadline > 0 {
        // Nothing is under way and nothing was answered: an earlier process asked, perhaps.
        let timeout = if record.releasing {
            RELEASE_TIMEOUT
        } else {
            limits.call_timeout
        };
        return record.deadline.saturating_sub(timeout) + limits.replay_delay;
    }
    if !record.etag.is_empty() && record.etag != *etag {
        return 0;
    }
    record.next
}

/// One more attempt whose intent becomes durable with the record.
fn attempt(turn: &mut Turn<'_>, asked: Asked, now: Millis, limits: &Limits) {
    let record = &mut turn.record;
    if record.deadline > 0 {
        // What became of the one before is not known, and never will be.
        let begun = record.deadline + limits.max_creation_time;
        record.unsettled = record.unsettled.max(begun);
    }
    record.deadline = now
        + match asked {
            Asked::Release => RELEASE_TIMEOUT,
            Asked::Ensure | Asked::Read => limits.call_timeout,
        };
    record.call.in_flight = true;
    record.sent = true;
    record.answer = None;
    turn.asks = Some(asked);
}

fn clear_trouble(record: &mut Infrastructure) {
    record.reason = Sym::default();
    record.message = Box::default();
    record.etag = Sym::default();
}

fn take_read(turn: &mut Turn<'_>, began: Millis, seen: &Observed) {
    let record = &mut turn.record;
    if !record.is_ready() || seen.phase == ResourcePhase::Unknown {
        return;
    }
    let ready = seen.phase == ResourcePhase::Ready || is_nothing(seen);
    let complete = ready
        && record.resources.iter().all(|own| {
            let same = |one: &&drover_core::infrastructure::Resource| {
                (&one.kind, &one.name) == (&own.kind, &own.name)
            };
            seen.resources.iter().any(|one| same(&one))
        });
    let before = (record.doubt, record.phase);
    if complete {
        record.doubt = 0;
        let same = record.resources == seen.resources && record.outputs == seen.outputs;
        if !same {
            record.resources.clone_from(&seen.resources);
            record.outputs = Arc::clone(&seen.outputs);
        }
        if same && before.0 == 0 {
            return;
        }
    } else if record.doubt == 0 {
        // It may be shown late: believed when a second read says the same.
        record.doubt = began.max(1);
    } else if began > record.doubt {
        record.phase = match seen.phase {
            ResourcePhase::Ready | ResourcePhase::Unknown => ResourcePhase::Pending,
            other => other,
        };
        record.resources.clone_from(&seen.resources);
        record.next = 0;
    } else {
        return;
    }
    turn.change = Some(InfrastructureChange::Learn);
}

fn take_ensured(turn: &mut Turn<'_>, at: Millis, seen: &Observed, limits: &Limits) {
    let record = &mut turn.record;
    settle(record, at);
    record.phase = match (seen.phase, seen.poll_after) {
        (_, None) if is_nothing(seen) => ResourcePhase::Ready,
        // What is there is ready, and more is to come.
        (ResourcePhase::Ready, Some(_)) => ResourcePhase::Pending,
        (phase, _) => phase,
    };
    record.resources.clone_from(&seen.resources);
    record.outputs = Arc::clone(&seen.outputs);
    turn.change = Some(InfrastructureChange::Learn);
    let poll = poll_after(seen);
    match record.phase {
        ResourcePhase::Ready => {
            (record.failures, record.next, record.doubt) = (0, 0, 0);
            clear_trouble(record);
        }
        ResourcePhase::Failed => {
            record.unsettled = record.unsettled.max(at + limits.max_creation_time);
            record.failures = record.failures.saturating_add(1);
            record.next = at + back_off(record.failures).max(poll);
            record.reason = "Failed".into();
            record.message = failure(seen).into();
        }
        ResourcePhase::Pending
        | ResourcePhase::Releasing
        | ResourcePhase::Gone
        | ResourcePhase::Unknown => {
            // It goes on making things after this answer.
            record.unsettled = record.unsettled.max(at + limits.max_creation_time);
            record.next = at + poll;
            clear_trouble(record);
        }
    }
}

fn take_released(turn: &mut Turn<'_>, at: Millis, seen: &Observed, limits: &Limits) {
    let record = &mut turn.record;
    // A release makes nothing: it does not put off what counts as a proof.
    record.deadline = 0;
    record.answer = None;
    record.phase = seen.phase;
    record.resources.clone_from(&seen.resources);
    turn.change = Some(InfrastructureChange::Learn);
    match seen.phase {
        // Too early to be a proof: what was asked for before may still come into being.
        ResourcePhase::Gone => {
            record.failures = 0;
            clear_trouble(record);
            record.next = record.unsettled + limits.visibility_delay;
        }
        ResourcePhase::Failed => {
            record.failures = record.failures.saturating_add(1);
            let wait = (RETRY_FIRST << record.failures.min(16)).min(RETRY_MOST);
            record.next = at + wait.max(poll_after(seen));
            record.reason = "Failed".into();
            record.message = failure(seen).into();
        }
        ResourcePhase::Pending
        | ResourcePhase::Ready
        | ResourcePhase::Releasing
        | ResourcePhase::Unknown => {
            record.failures = 0;
            clear_trouble(record);
            record.next = at + poll_after(seen);
        }
    }
}

fn take_failure(
    turn: &mut Turn<'_>,
    asked: Asked,
    at: Millis,
    error: &Error,
    limits: &Limits,
    etag: &Sym,
) {
    let record = &mut turn.record;
    let class = error.class();
    let unknown = matches!(class, Class::Unknown | Class::Reused);
    if unknown {
        let begun = record.deadline.max(at)
            + if asked == Asked::Release {
                0
            } else {
                limits.max_creation_time
            };
        record.unsettled = record.unsettled.max(begun);
    } else if asked == Asked::Ensure && class != Class::Stale {
        // What was made before it failed stays.
        record.unsettled = record.unsettled.max(at);
    }
    record.deadline = 0;
    record.answer = None;
    turn.change = Some(InfrastructureChange::Learn);
    if class == Class::Stale {
        record.next = at + STALE_RETRY;
        return;
    }
    record.failures = record.failures.saturating_add(1);
    let doubled = |first: Millis, most: Millis| (first << (record.failures - 1).min(20)).min(most);
    let said = error.retry_after().map(millis);
    let wait = match class {
        _ if asked == Asked::Release => said
            .unwrap_or_else(|| doubled(RETRY_FIRST, RETRY_MOST))
            .min(RETRY_MOST),
        Class::Cannot => SLOW_CADENCE,
        Class::Credentials => CREDENTIALS_BACK_OFF,
        Class::NoCapacity => said
            .unwrap_or_else(|| doubled(CAPACITY_FIRST, CAPACITY_MOST))
            .min(CAPACITY_MOST),
        Class::Stale | Class::Reused | Class::Unknown => said
            .unwrap_or_else(|| doubled(RETRY_FIRST, RETRY_MOST))
            .max(limits.replay_delay)
            .min(SLOW_CADENCE),
    };
    record.next = at + wait;
    record.etag = if class == Class::Cannot {
        etag.clone()
    } else {
        Sym::default()
    };
    if !unknown || record.failures >= MAX_FAILURES {
        record.reason = match class {
            Class::Cannot => "Rejected",
            Class::Credentials => "CREDENTIALS_REFUSED",
            Class::NoCapacity => "NoCapacity",
            Class::Stale | Class::Reused | Class::Unknown => "PlatformFailed",
        }
        .into();
        record.message = drover_core::error::cut(error.message().to_owned()).into();
    }
}

/// An Ensure or Release was answered: nothing of it is under way.
fn settle(record: &mut Infrastructure, at: Millis) {
    record.deadline = 0;
    record.answer = None;
    // It may have been made a moment before the answer, and be shown late.
    record.unsettled = record.unsettled.max(at);
}

/// Whether nothing is there, which is all that a spec without parts asks for.
fn is_nothing(seen: &Observed) -> bool {
    seen.phase == ResourcePhase::Gone && seen.resources.is_empty()
}

fn poll_after(seen: &Observed) -> Millis {
    seen.poll_after
        .unwrap_or(POLL)
        .clamp(POLL_LIMITS.0, POLL_LIMITS.1)
}

fn back_off(failures: u32) -> Millis {
    match failures {
        0 | 1 => 0,
        MAX_FAILURES.. => SLOW_CADENCE,
        more => FIRST_BACK_OFF << (more - 2),
    }
}

fn failure(seen: &Observed) -> String {
    let failed = seen
        .resources
        .iter()
        .filter(|one| one.phase == ResourcePhase::Failed);
    let words: Vec<String> = failed
        .map(|one| format!("{} {}: {}", one.kind, one.name, one.message))
        .collect();
    drover_core::error::cut(words.join("; "))
}

/// How far it is, for people.
fn progress(record: &Infrastructure) -> String {
    let waits: Vec<String> = record
        .resources
        .iter()
        .filter(|one| one.phase != ResourcePhase::Ready)
        .map(|one| {
            let detail = if one.message.is_empty() {
                String::new()
            } else {
                format!(" ({})", one.message)
            };
            format!("{} {} is {}{detail}", one.kind, one.name, word(one.phase))
        })
        .collect();
    if !record.reason.is_empty() {
        record.message.to_string()
    } else if waits.is_empty() {
        "is being made".to_owned()
    } else {
        waits.join(", ")
    }
}

fn word(phase: ResourcePhase) -> &'static str {
    match phase {
        ResourcePhase::Pending => "pending",
        ResourcePhase::Ready => "ready",
        ResourcePhase::Failed => "failed",
        ResourcePhase::Releasing => "being released",
        ResourcePhase::Gone => "gone",
        ResourcePhase::Unknown => "unknown",
    }
}

/// The interval of looks, spread so that many clusters do not look at once; always the same for one of them.
fn jittered(uid: u128, sequence: u64) -> Millis {
    let seed = (uid ^ u128::from(sequence)).wrapping_mul(0x2545_f491_4f6c_dd1d);
    let share = (seed >> 40) as u64 % 200;
    DRIFT_INTERVAL * (900 + share) / 1000
}
