//! Resources that a platform makes for a cluster besides nodes: infrastructure before them, addons around them.
//!
//! Each is a slot: its intent is durable before the platform is called, and its record stays until the platform reports
//! that nothing is left, in response to a call that began after everything that may have been in flight had ended.

mod addons;
mod answers;
mod infrastructure;
mod orphans;
mod words;

use std::sync::Arc;

use drover_core::{
    Millis, Sym,
    addon::AddonTarget,
    resource::{Asked, ResourceKey, ResourceKind, ResourcePhase, ResourceRecord, Wanted},
};

use words::{content, nodes, noun, place, progress, reason};

use crate::{Call, ConditionKey, ConditionKind, Limits, Op, Planner, PlatformView};

/// Interval of drift checks of ready resources; jittered by 10 %.
pub const DRIFT_INTERVAL: Millis = 10 * 60 * 1000;
/// Interval of drift checks if the platform could not read all of it.
const UNREAD_INTERVAL: Millis = 60_000;
/// Minimum wait before a second read of what a first one lacked.
const SECOND_LOOK: Millis = 1_000;
/// Deadline of a Release call: the platform responds once the release has started.
pub const RELEASE_TIMEOUT: Millis = 30_000;

/// From when on what a release waits for is what blocks a deletion.
const LONG_RELEASE: Millis = 60_000;

/// Reason of a resource whose platform is not there.
const UNAVAILABLE: &str = "PlatformUnavailable";

/// Kind of an operation on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceChange {
    /// It is requested: for the first time, with another spec, or because parts of it are gone.
    Ask,
    /// It is told of other targets, or of another content of its secrets.
    Follow,
    /// The request, or its release, is repeated.
    Again,
    /// It had no record and gets one.
    TakeIn,
    /// A response of the platform is recorded.
    Learn,
    /// Its release is requested; irrevocable.
    Release,
    /// The platform has reported that nothing is left.
    Gone,
    /// The user abandoned it.
    Abandon,
}

impl ResourceChange {
    /// Whether it counts as an action in the report of a plan.
    #[must_use]
    pub fn is_action(self) -> bool {
        matches!(self, Self::Ask | Self::Follow | Self::Release)
    }
}

/// What a resource is to become.
struct Want<'a> {
    wanted: &'a Wanted,
    /// What the platform is told besides the spec, if that is known. Nothing for infrastructure.
    told: Option<Told>,
}

/// What changes more often than a spec.
#[derive(Clone, Default)]
pub(crate) struct Told {
    targets: Arc<[AddonTarget]>,
    targets_hash: Sym,
    secrets_hash: Sym,
    /// Whether some targets are hidden, and stay where they were last reached.
    assumes: bool,
}

impl Told {
    /// Whether the last Ensure was about this.
    fn is_in(&self, record: &ResourceRecord) -> bool {
        (&self.targets_hash, &self.secrets_hash) == (&record.targets_hash, &record.secrets_hash)
    }
}

/// A record that is being changed.
struct Draft<'a> {
    key: &'a ResourceKey,
    record: ResourceRecord,
    change: Option<ResourceChange>,
    /// Operation to call once the record is durable.
    asks: Option<Asked>,
}

impl<'a> Planner<'a> {
    fn is_current(&self, key: &ResourceKey) -> bool {
        let view = self.input.platforms.get(&key.platform);
        view.is_none_or(|view| *view.uid == *key.uid)
    }

    /// Requests a resource that has no record yet.
    fn begin(&mut self, kind: ResourceKind, want: &Want<'_>) {
        let platform = &want.wanted.platform;
        let view = self.input.platforms.get(platform);
        let recorded = |key: &ResourceKey| {
            key.kind == kind
                && key.platform == *platform
                && view.is_none_or(|view| view.uid == key.uid)
        };
        if self.state.resources.keys().any(recorded) || self.full() {
            return;
        }
        let uid = view.map(|view| view.uid.clone()).unwrap_or_default();
        let key = ResourceKey {
            kind,
            platform: platform.clone(),
            uid,
        };
        if let Some(reason) = self.frozen() {
            self.note("", None, false, reason, || {
                format!("no {} is made on {platform}", noun(&key))
            });
            return;
        }
        let Some(view) = view.filter(|view| view.callable && view.visible) else {
            let trouble = view.map_or("is not registered", |view| &view.trouble);
            self.fail_resource(&key, UNAVAILABLE, trouble);
            return;
        };
        let mut draft = Draft {
            key: &key,
            record: ResourceRecord {
                phase_time: self.input.now,
                ..ResourceRecord::default()
            },
            change: None,
            asks: None,
        };
        self.ask(&mut draft, want, &view.limits);
        self.settle(draft, None);
    }

    /// Continues with a recorded resource.
    fn keep(&mut self, key: &ResourceKey, before: &ResourceRecord, want: Option<&Want<'_>>) {
        let view = self.input.platforms.get(&key.platform);
        let view = view.filter(|view| *view.uid == *key.uid);
        if before.in_flight.call.in_flight {
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
        if let Some(answer) = &before.in_flight.answer {
            let etag = view.map(|view| view.etag.clone()).unwrap_or_default();
            if answers::take_in(&mut draft, answer, &limits, &etag) {
                self.remove_record(key, before);
                return;
            }
        }
        match want {
            Some(want) if !draft.record.releasing => self.ensure(&mut draft, want, view, &limits),
            _ => self.release(&mut draft, view, &limits),
        }
        self.hold_trouble(key, &draft.record);
        self.settle(draft, Some(before));
    }

    fn hold_trouble(&mut self, key: &ResourceKey, record: &ResourceRecord) {
        if !record.reason.is_empty() && !self.state.deleting {
            self.fail_resource(key, &record.reason, &record.message);
        }
    }

    fn remove_record(&mut self, key: &ResourceKey, before: &ResourceRecord) {
        self.note("", None, true, reason(key), || {
            format!("{}: nothing is left of {}", place(key), before.named())
        });
        self.gone.push(key.clone());
        self.op(Op::Resource {
            key: key.clone(),
            to: None,
            change: ResourceChange::Gone,
        });
    }

    fn settle(&mut self, draft: Draft<'_>, before: Option<&ResourceRecord>) {
        let Draft {
            key,
            mut record,
            change,
            asks,
        } = draft;
        if let Some(asked) = asks {
            self.plan.calls.push(Call::Resource {
                key: key.clone(),
                asked,
            });
        }
        let Some(change) = change else { return };
        if before.is_none_or(|before| before.phase != record.phase) {
            record.phase_time = self.input.now;
        }
        self.op(Op::Resource {
            key: key.clone(),
            to: Some(Box::new(record.clone())),
            change,
        });
        self.resources.push((key.clone(), record));
    }

    fn ensure(
        &mut self,
        draft: &mut Draft<'_>,
        want: &Want<'_>,
        view: Option<&PlatformView>,
        limits: &Limits,
    ) {
        let now = self.input.now;
        let key = draft.key;
        let changed = draft.record.spec_hash != want.wanted.spec_hash;
        let vanished = draft.record.doubt > 0 && draft.record.phase != ResourcePhase::Ready;
        let Some(told) = &want.told else {
            self.note_unknown_targets(key);
            return;
        };
        let moved = !told.is_in(&draft.record);
        if draft.record.is_ready() && !changed && !moved {
            self.look(draft, told, view, limits);
            return;
        }
        // What is there goes on to follow its nodes, except into a past that the store was restored from.
        let follows = key.is_addon() && !changed && !vanished;
        if let Some(why) = self.frozen().filter(|_| !follows || self.lacks_nodes()) {
            self.note("", None, false, why, || {
                if follows {
                    format!("{} is left as it is", place(key))
                } else {
                    format!("no {} is made on {}", noun(key), key.platform)
                }
            });
            return;
        }
        let Some(view) = view.filter(|view| view.callable && view.visible) else {
            self.unavailable(draft);
            return;
        };
        let next = if changed {
            settled_from(&draft.record, view)
        } else if moved {
            settled_from(&draft.record, view).max(trouble_until(&draft.record))
        } else {
            next_attempt(&draft.record, limits, &view.etag)
        };
        if now < next {
            self.wake(next);
            self.note_until("", None, false, reason(key), Some(next), || {
                format!(
                    "{}: {}; asked again then",
                    place(key),
                    progress(&draft.record)
                )
            });
            return;
        }
        if changed || vanished {
            self.ask(draft, want, limits);
        } else {
            draft.change = Some(ResourceChange::Again);
            if moved {
                self.follow(draft, told);
            }
            attempt(draft, Asked::Ensure, Some(told), now, limits);
        }
    }

    /// Records the intent to create a resource, and requests it.
    fn ask(&mut self, draft: &mut Draft<'_>, want: &Want<'_>, limits: &Limits) {
        let record = &mut draft.record;
        record.sequence = self.next_sequence;
        self.next_sequence += 1;
        record.spec_hash = want.wanted.spec_hash.clone();
        record.body = Arc::clone(&want.wanted.body);
        record.phase = ResourcePhase::Pending;
        record.in_flight.follows = false;
        (record.failures, record.next, record.doubt) = (0, 0, 0);
        answers::clear_trouble(record);
        let key = draft.key;
        self.note("", None, true, reason(key), || match key.addon_name() {
            None => format!("asks {} for it", key.platform),
            Some(name) => format!("asks {} for {name}", key.platform),
        });
        attempt(
            draft,
            Asked::Ensure,
            want.told.as_ref(),
            self.input.now,
            limits,
        );
        draft.change = Some(ResourceChange::Ask);
    }

    /// Records that an addon is told of other targets or of another content of its secrets.
    fn follow(&mut self, draft: &mut Draft<'_>, told: &Told) {
        let record = &mut draft.record;
        record.in_flight.follows |= record.phase == ResourcePhase::Ready;
        record.phase = ResourcePhase::Pending;
        if is_about_content(record) {
            record.failures = 0;
            answers::clear_trouble(record);
        }
        let key = draft.key;
        self.note("", None, true, reason(key), || {
            format!("{}: is told of {}", place(key), nodes(told.targets.len()))
        });
        draft.change = Some(ResourceChange::Follow);
    }

    /// Compares a ready resource with its actual state from time to time.
    fn look(
        &mut self,
        draft: &mut Draft<'_>,
        told: &Told,
        view: Option<&PlatformView>,
        limits: &Limits,
    ) {
        let record = &draft.record;
        let now = self.input.now;
        let Some(view) = view.filter(|view| view.callable && view.visible) else {
            return;
        };
        let interval = jittered(self.state.uid.as_u128(), record.sequence);
        if draft.key.is_addon() {
            // Only an Ensure finds what was edited by hand, and restores it.
            let last = record.in_flight.ensured.max(record.phase_time);
            let due = match record.failures {
                0 => last.max(self.input.process_start) + interval,
                _ => next_attempt(record, limits, &view.etag),
            };
            if self.lacks_nodes() {
                // It would be set back to what it was when the store was copied.
            } else if now < due {
                self.wake(due);
            } else {
                attempt(draft, Asked::Ensure, Some(told), now, limits);
                draft.change = Some(ResourceChange::Again);
            }
            return;
        }
        let read = record
            .in_flight
            .answer
            .as_ref()
            .filter(|a| a.asked == Asked::Read);
        let unread = read.is_some_and(
            |answer| matches!(&answer.outcome, Ok(seen) if seen.phase == ResourcePhase::Unknown),
        );
        let last = read.map_or(0, |answer| answer.at).max(record.phase_time);
        let due = if record.doubt > 0 {
            record.doubt + limits.visibility_delay.max(SECOND_LOOK)
        } else if unread {
            last + UNREAD_INTERVAL
        } else {
            last.max(self.input.process_start) + interval
        };
        let due = due
            .max(record.in_flight.call.next)
            .max(if record.doubt > 0 {
                view.visible_since
            } else {
                0
            });
        if now < due {
            self.wake(due);
            return;
        }
        draft.record.in_flight.call.in_flight = true;
        draft.asks = Some(Asked::Read);
    }

    /// Releases a resource that is no longer wanted, once nothing can use it.
    fn release(&mut self, draft: &mut Draft<'_>, view: Option<&PlatformView>, limits: &Limits) {
        let now = self.input.now;
        let key = draft.key;
        if key.is_addon() && self.lacks_nodes() && !self.state.deleting {
            // It may be wanted again by what the store does not know any more.
            self.note(
                "",
                None,
                false,
                self.frozen().unwrap_or("StoreBehind"),
                || format!("{} is left as it is", place(key)),
            );
            return;
        }
        if let Some(users) = self.users(key) {
            self.note("", None, false, reason(key), || {
                format!("{}: released when {users} are gone", place(key))
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
            self.note_until("", None, false, reason(key), Some(next), || {
                format!(
                    "{} releases {}; asked again then",
                    key.platform,
                    content(key, &draft.record)
                )
            });
            return;
        }
        draft.change = Some(ResourceChange::Again);
        if !draft.record.releasing {
            self.note("", None, true, reason(key), || {
                format!(
                    "has {} release {}",
                    key.platform,
                    content(key, &draft.record)
                )
            });
            draft.record.releasing = true;
            (draft.record.failures, draft.record.next, draft.record.doubt) = (0, 0, 0);
            answers::clear_trouble(&mut draft.record);
            draft.change = Some(ResourceChange::Release);
        }
        attempt(draft, Asked::Release, None, now, limits);
    }

    fn unavailable(&mut self, draft: &Draft<'_>) {
        if self.state.deleting {
            // The condition of the deletion reports what blocks it.
            return;
        }
        let view = self.input.platforms.get(&draft.key.platform);
        let trouble = self.trouble(draft.key, view).to_owned();
        self.fail_resource(draft.key, UNAVAILABLE, &trouble);
    }

    fn trouble<'v>(&self, key: &ResourceKey, view: Option<&'v PlatformView>) -> &'v str {
        match view {
            None => "is not registered",
            Some(view) if *view.uid != *key.uid => {
                "shows another backend than the one that it is on"
            }
            Some(view) => &view.trouble,
        }
    }

    fn fail_resource(&mut self, key: &ResourceKey, why: &str, message: &str) {
        let message = format!("{}: {message}", place(key));
        let condition = ConditionKey {
            group: Sym::default(),
            kind: match key.kind {
                ResourceKind::Infrastructure => ConditionKind::InfrastructureFailed,
                ResourceKind::Addon(_) => ConditionKind::AddonsFailed,
            },
        };
        self.note("", None, false, reason(key), || message.clone());
        self.hold(condition, why, &message);
    }

    /// A record before this plan and as of this plan.
    fn record_of(&self, key: &ResourceKey) -> [Option<&ResourceRecord>; 2] {
        let before = self.state.resources.get(key);
        let changed = self.resources.iter().find(|(own, _)| own == key);
        [before, changed.map(|(_, record)| record).or(before)]
    }

    /// The resources that block a deletion, for people.
    pub(crate) fn blocking_resources(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (key, record) in self.state.resources.iter() {
            let record = self.record_of(key)[1].unwrap_or(record);
            let view = self.input.platforms.get(&key.platform);
            let blocked = match view {
                Some(view) if *view.uid == *key.uid && view.visible && view.callable => {
                    let long = self.input.now >= record.phase_time + LONG_RELEASE;
                    let waits = long && !record.message.is_empty();
                    if !record.releasing || record.reason.is_empty() && !waits {
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
                "{} on {}{resources}, which {blocked}",
                noun(key),
                key.platform
            ));
        }
        words
    }
}

/// Size of a record in the store, about.
pub(crate) fn size(record: &ResourceRecord) -> usize {
    let resources = record.resources.iter();
    let resources = resources.map(|one| 128 + one.name.len() + one.message.len());
    record.body.len() + record.outputs.len() + resources.sum::<usize>()
}

/// From when on no earlier call can change anything.
fn settled_from(record: &ResourceRecord, view: &PlatformView) -> Millis {
    // A platform that has ended the calls of earlier processes starts nothing for them any more.
    if record.deadline == 0 || (view.fenced && !record.in_flight.sent) {
        0
    } else {
        record.deadline
    }
}

fn next_attempt(record: &ResourceRecord, limits: &Limits, etag: &Sym) -> Millis {
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

/// Until when a failure that other targets do not end holds back calls. A refusal, or a resource that does not come up, may
/// well be about the targets.
fn trouble_until(record: &ResourceRecord) -> Millis {
    if record.failures == 0 || is_about_content(record) {
        0
    } else {
        record.next
    }
}

fn is_about_content(record: &ResourceRecord) -> bool {
    matches!(&*record.reason, "Rejected" | "Failed")
}

/// Adds an attempt, whose intent becomes durable with the record.
fn attempt(draft: &mut Draft<'_>, asked: Asked, told: Option<&Told>, now: Millis, limits: &Limits) {
    let record = &mut draft.record;
    if let Some(told) = told {
        if record.in_flight.served.as_ref() != Some(&record.in_flight.targets) {
            let announced = record
                .in_flight
                .targets
                .iter()
                .filter(|target| !target.draining);
            record
                .in_flight
                .announced
                .extend(announced.map(|target| target.slot));
            record.in_flight.announced.sort_unstable();
            record.in_flight.announced.dedup();
        }
        record.in_flight.targets = Arc::clone(&told.targets);
        record.targets_hash = told.targets_hash.clone();
        record.secrets_hash = told.secrets_hash.clone();
    }
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
    record.in_flight.call.in_flight = true;
    record.in_flight.sent = true;
    record.in_flight.answer = None;
    draft.asks = Some(asked);
}

/// Interval of drift checks, spread so that clusters are not checked all at once; constant for each cluster.
fn jittered(uid: u128, sequence: u64) -> Millis {
    let seed = (uid ^ u128::from(sequence)).wrapping_mul(0x2545_f491_4f6c_dd1d);
    let share = (seed >> 40) as u64 % 200;
    DRIFT_INTERVAL * (900 + share) / 1000
}
