//! Infrastructure and addons of ours without a record: taken in as the user orders, or after a grace, to be released like
//! everything that is not wanted.

use drover_core::{
    Sym,
    resource::{ResourceKey, ResourceKind, ResourcePhase, ResourceRecord},
};

use super::{ResourceChange, words::noun};
use crate::{
    Op, Planner, ResourceOrphan,
    orphans::{Kept, OUT_OF_SIGHT},
};

impl<'a> Planner<'a> {
    /// Adopts what has no record, and what is of a request that this record never gave out. Such a thing stays as it is
    /// unless the spec wants it: a spec as old as the record does not know of it. Returns whether some is left for later.
    pub(crate) fn adopt_resources(&mut self) -> bool {
        for (key, orphan) in &self.state.resource_orphans {
            if !self.sees_resource(key) {
                continue;
            }
            let given = orphan.sequence.is_none_or(|it| self.state.gave_out(it));
            if !given && !self.wants(key) {
                continue;
            }
            if self.full() {
                return true;
            }
            self.take_resource(key, orphan);
        }
        false
    }

    /// Takes in what nobody wants, so that it is released.
    pub(crate) fn sweep_resources(&mut self, kept: &mut Kept<'a>) {
        for (key, orphan) in &self.state.resource_orphans {
            // What is wanted gets a record when it is asked for.
            if self.record_of(key)[1].is_some() || self.wants(key) {
                continue;
            }
            let name = noun(key);
            let why = format!("{name} on {} is ours and has no record", key.platform);
            if let Some((reason, stays)) = self.keeps_orphan(&key.uid) {
                self.note("", None, false, reason, || why);
                if !stays.is_empty() {
                    kept.add(&key.platform, stays, name);
                }
                continue;
            }
            let due = orphan.since + self.input.orphan_grace;
            if self.input.now < due {
                self.wake(due);
                self.note_until("", None, false, "Grace", Some(due), || why);
            } else if !self.sees_resource(key) {
                kept.add(&key.platform, OUT_OF_SIGHT, name);
            } else if !self.full() {
                self.take_resource(key, orphan);
                self.plan.again = true;
            }
        }
    }

    /// Platforms that hide orphans, for people.
    pub(crate) fn hidden_resources(&self) -> impl Iterator<Item = &Sym> {
        let keys = self.state.resource_orphans.keys();
        keys.filter(|key| self.record_of(key)[1].is_none() && !self.sees_resource(key))
            .map(|key| &key.platform)
    }

    fn take_resource(&mut self, key: &ResourceKey, orphan: &ResourceOrphan) {
        let sequence = orphan.sequence.unwrap_or_else(|| {
            self.next_sequence += 1;
            self.next_sequence - 1
        });
        let before = self.record_of(key)[1];
        let record = ResourceRecord {
            sequence,
            ..before.cloned().unwrap_or_else(|| ResourceRecord {
                phase: ResourcePhase::Pending,
                phase_time: self.input.now,
                ..ResourceRecord::default()
            })
        };
        self.next_sequence = self.next_sequence.max(sequence + 1);
        self.op(Op::Resource {
            key: key.clone(),
            to: Some(Box::new(record.clone())),
            change: ResourceChange::TakeIn,
        });
        self.resources.push((key.clone(), record));
    }

    fn sees_resource(&self, key: &ResourceKey) -> bool {
        let view = self.input.platforms.get(&key.platform);
        view.is_some_and(|view| view.sees(&key.uid))
    }

    fn wants(&self, key: &ResourceKey) -> bool {
        match &key.kind {
            ResourceKind::Infrastructure => {
                let mut wanted = self.wanted_infrastructure().iter();
                self.is_current(key) && wanted.any(|wanted| wanted.platform == key.platform)
            }
            ResourceKind::Addon(_) => {
                let mut wanted = self.wanted_addons().iter();
                wanted.any(|addon| self.key_of(addon).as_ref() == Some(key))
            }
        }
    }
}
