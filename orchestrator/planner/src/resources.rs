//! Resources that a platform makes for a cluster besides nodes: infrastructure before them, addons around them.
//!
//! Each is a slot: its intent is durable before the platform is called, and its record stays until the platform reports
//! that nothing is left, in response to a call that began after everything that may have been in flight had ended.

mod addons;
mod answers;
mod attempts;
mod drift;
mod infrastructure;
mod orphans;
mod trouble;
mod words;

pub use attempts::RELEASE_TIMEOUT;
pub use drift::DRIFT_INTERVAL;

use std::sync::Arc;

use drover_core::{
    Sym,
    addon::AddonTarget,
    resource::{Asked, ResourceKey, ResourceKind, ResourcePhase, ResourceRecord, Wanted},
    words::count,
};

use attempts::{attempt, is_about_content, next_attempt, settled_from, trouble_until};
use trouble::UNAVAILABLE;
use words::{content, noun, place, progress, reason};

use crate::{Call, Limits, Op, Planner, PlatformView};

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
            format!(
                "{}: is told of {}",
                place(key),
                count(told.targets.len(), "node")
            )
        });
        draft.change = Some(ResourceChange::Follow);
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

    /// A record before this plan and as of this plan.
    fn record_of(&self, key: &ResourceKey) -> [Option<&ResourceRecord>; 2] {
        let before = self.state.resources.get(key);
        let changed = self.resources.iter().find(|(own, _)| own == key);
        [before, changed.map(|(_, record)| record).or(before)]
    }
}

/// Size of a record in the store, about.
pub(crate) fn size(record: &ResourceRecord) -> usize {
    let resources = record.resources.iter();
    let resources = resources.map(|one| 128 + one.name.len() + one.message.len());
    record.body.len() + record.outputs.len() + resources.sum::<usize>()
}
