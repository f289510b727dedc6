//! Infrastructure: created before the nodes, checked for drift, released after them.
//!
//! The infrastructure of a cluster on one backend is a slot: its intent is durable before the platform is called, and
//! its record stays until the platform reports that nothing is left, in response to a call that began after everything
//! that may have been in flight had ended.

mod answers;

use std::sync::Arc;

use drover_core::{
    Millis, Sym,
    infrastructure::{Asked, Infrastructure, ResourcePhase, Wanted},
};

use crate::{Call, ConditionKey, ConditionKind, Limits, Op, Planner, PlatformView};

/// A backend: name of the platform, uid.
pub type BackendKey = (Sym, Sym);

/// Interval of drift checks of ready infrastructure; jittered by 10 %.
pub const DRIFT_INTERVAL: Millis = 10 * 60 * 1000;
/// Interval of drift checks if the platform could not read all of it.
const UNREAD_INTERVAL: Millis = 60_000;
/// Minimum wait before a second read of what a first one lacked.
const SECOND_LOOK: Millis = 1_000;
/// Deadline of a Release call: the platform responds once the release has started.
pub const RELEASE_TIMEOUT: Millis = 30_000;

/// Kind of an operation on infrastructure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InfrastructureChange {
    /// It is requested: for the first time, with another spec, or because parts of it are gone.
    Ask,
    /// The request, or its release, is repeated.
    Again,
    /// A response of the platform is recorded.
    Learn,
    /// Its release is requested; irrevocable.
    Release,
    /// The platform has reported that nothing is left.
    Gone,
    /// The user abandoned it.
    Abandon,
}

impl InfrastructureChange {
    /// Whether it counts as an action in the report of a plan.
    #[must_use]
    pub fn is_action(self) -> bool {
        matches!(self, Self::Ask | Self::Release)
    }
}

/// A record that is being changed.
struct Draft<'a> {
    key: &'a BackendKey,
    record: Infrastructure,
    change: Option<InfrastructureChange>,
    /// Operation to call once the record is durable.
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

    /// Determines what nodes have to wait for.
    pub(crate) fn note_lacking(&mut self) {
        self.lacks = self.lacking();
    }

    /// Requests infrastructure that has no record yet.
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
        let mut draft = Draft {
            key: &key,
            record: Infrastructure {
                phase_time: self.input.now,
                ..Infrastructure::default()
            },
            change: None,
            asks: None,
        };
        self.ask(&mut draft, wanted, &view.limits);
        self.settle(draft, None);
    }

    /// Continues with recorded infrastructure.
    fn keep(&mut self, key: &BackendKey, before: &Infrastructure, wanted: Option<&Wanted>) {
        let view = self.input.platforms.get(&key.0);
        let view = view.filter(|view| *view.uid == *key.1);
        if before.call.in_flight {
            self.hold_trouble(key, before);
            return;
        }
        let limits = view.map(|view| view.limits).unwrap_or_default();
        let mut draft = Draft {
            key,
            record: before.clone(),
            change: None,
            asks: None,
        };
        if let Some(answer) = &before.answer {
            let etag = view.map(|view| view.etag.clone()).unwrap_or_default();
            if answers::take_in(&mut draft, answer, &limits, &etag) {
                self.remove_record(key, before);
                return;
            }
        }
        if draft.record.releasing || wanted.is_none() {
            self.release(&mut draft, view, &limits);
        } else if let Some(wanted) = wanted {
            self.ensure(&mut draft, wanted, view, &limits);
        }
        self.hold_trouble(key, &draft.record);
        self.settle(draft, Some(before));
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

    fn settle(&mut self, draft: Draft<'_>, before: Option<&Infrastructure>) {
        let Draft {
            key,
            mut record,
            change,
            asks,
        } = draft;
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

    fn ensure(
        &mut self,
        draft: &mut Draft<'_>,
        wanted: &Wanted,
        view: Option<&PlatformView>,
        limits: &Limits,
    ) {
        let now = self.input.now;
        let platform = &draft.key.0;
        let changed = draft.record.spec_hash != wanted.spec_hash;
        let vanished = draft.record.doubt > 0 && draft.record.phase != ResourcePhase::Ready;
        if draft.record.is_ready() && !changed {
            self.look(draft, view, limits);
            return;
        }
        if let Some(reason) = self.frozen() {
            self.note("", None, false, reason, || {
                format!("no infrastructure is made on {platform}")
            });
            return;
        }
        let Some(view) = view.filter(|view| view.callable && view.visible) else {
            self.unavailable(draft);
            return;
        };
        let next = if changed {
            settled_from(&draft.record, view)
        } else {
            next_attempt(&draft.record, limits, &view.etag)
        };
        if now < next {
            self.wake(next);
            self.note_until("", None, false, "Infrastructure", Some(next), || {
                format!("{platform}: {}; asked again then", progress(&draft.record))
            });
            return;
        }
        if changed || vanished {
            self.ask(draft, wanted, limits);
        } else {
            attempt(draft, Asked::Ensure, now, limits);
            draft.change = Some(InfrastructureChange::Again);
        }
    }

    /// Records the intent to create infrastructure, and requests it.
    fn ask(&mut self, draft: &mut Draft<'_>, wanted: &Wanted, limits: &Limits) {
        let record = &mut draft.record;
        record.sequence = self.next_sequence;
        self.next_sequence += 1;
        record.spec_hash = wanted.spec_hash.clone();
        record.body = Arc::clone(&wanted.body);
        record.phase = ResourcePhase::Pending;
        (record.failures, record.next, record.doubt) = (0, 0, 0);
        answers::clear_trouble(record);
        self.note("", None, true, "Infrastructure", || {
            format!("asks {} for it", draft.key.0)
        });
        attempt(draft, Asked::Ensure, self.input.now, limits);
        draft.change = Some(InfrastructureChange::Ask);
    }

    /// Compares ready infrastructure with its actual state from time to time.
    fn look(&mut self, draft: &mut Draft<'_>, view: Option<&PlatformView>, limits: &Limits) {
        let record = &draft.record;
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
        draft.record.call.in_flight = true;
        draft.asks = Some(Asked::Read);
    }

    /// Releases infrastructure that is no longer wanted, once no node can use it.
    fn release(&mut self, draft: &mut Draft<'_>, view: Option<&PlatformView>, limits: &Limits) {
        let now = self.input.now;
        let platform = draft.key.0.clone();
        if let Some(users) = self.users(draft.key) {
            self.note("", None, false, "Infrastructure", || {
                format!("{platform}: released when {users} are gone")
            });
            return;
        }
        let Some(view) = view.filter(|view| view.callable && view.visible) else {
            self.unavailable(draft);
            return;
        };
        let next = if draft.record.releasing {
            next_attempt(&draft.record, limits, &view.etag)
        } else {
            settled_from(&draft.record, view)
        };
        if now < next {
            self.wake(next);
            self.note_until("", None, false, "Infrastructure", Some(next), || {
                format!(
                    "{platform} releases {}; asked again then",
                    draft.record.named()
                )
            });
            return;
        }
        draft.change = Some(InfrastructureChange::Again);
        if !draft.record.releasing {
            self.note("", None, true, "Infrastructure", || {
                format!("has {platform} release {}", draft.record.named())
            });
            draft.record.releasing = true;
            (draft.record.failures, draft.record.next, draft.record.doubt) = (0, 0, 0);
            answers::clear_trouble(&mut draft.record);
            draft.change = Some(InfrastructureChange::Release);
        }
        attempt(draft, Asked::Release, now, limits);
    }

    /// Nodes that may still use it, for people. `None` if nothing does.
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
        // Requests that this plan records are not visible here; they are planned after this.
        let orphans = state
            .orphans
            .iter()
            .filter(|((name, _), orphan)| here(name, &orphan.platform_uid))
            .count();
        (nodes + requests + orphans > 0).then(|| format!("{} nodes", nodes + orphans))
    }

    fn unavailable(&mut self, draft: &Draft<'_>) {
        if self.state.deleting {
            // The condition of the deletion reports what blocks it.
            return;
        }
        let view = self.input.platforms.get(&draft.key.0);
        let trouble = self.trouble(draft.key, view).to_owned();
        self.fail_infrastructure(&draft.key.0, "PlatformUnavailable", &trouble);
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

    /// A record before this plan and as of this plan.
    fn record_of(&self, key: &BackendKey) -> [Option<&Infrastructure>; 2] {
        let before = self.state.infrastructure.get(key);
        let changed = self.infrastructure.iter().find(|(own, _)| own == key);
        [before, changed.map(|(_, record)| record).or(before)]
    }

    /// The infrastructure that nodes wait for. `None` if all of it is up to date and was so before this plan: its
    /// outputs go into requests as recorded.
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

    /// Why no node may be created on a platform now. `None` if infrastructure does not prevent it.
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

    pub(crate) fn wait_for_infrastructure(&mut self, group: &Sym, why: &str) {
        let key = ConditionKey {
            group: group.clone(),
            kind: ConditionKind::WaitingForInfrastructure,
        };
        self.hold(key, "Infrastructure", why);
        self.note(group, None, false, "Infrastructure", || why.to_owned());
    }

    /// Whether all infrastructure is up to date as of this plan.
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

    /// The infrastructure that blocks a deletion, for people.
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

/// From when on no earlier call can change anything.
fn settled_from(record: &Infrastructure, view: &PlatformView) -> Millis {
    // A platform that has ended the calls of earlier processes starts nothing for them any more.
    if record.deadline == 0 || (view.fenced && !record.sent) {
        0
    } else {
        record.deadline
    }
}

fn next_attempt(record: &Infrastructure, limits: &Limits, etag: &Sym) -> Millis {
    if record.deadline > 0 {
        // Nothing is in flight and there is no response: an earlier process may have made the call.
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

/// Adds an attempt, whose intent becomes durable with the record.
fn attempt(draft: &mut Draft<'_>, asked: Asked, now: Millis, limits: &Limits) {
    let record = &mut draft.record;
    if record.deadline > 0 {
        // The outcome of the previous attempt is not known, and never will be.
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
    draft.asks = Some(asked);
}

/// Progress for people.
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

/// Interval of drift checks, spread so that clusters are not checked all at once; constant for each cluster.
fn jittered(uid: u128, sequence: u64) -> Millis {
    let seed = (uid ^ u128::from(sequence)).wrapping_mul(0x2545_f491_4f6c_dd1d);
    let share = (seed >> 40) as u64 % 200;
    DRIFT_INTERVAL * (900 + share) / 1000
}
