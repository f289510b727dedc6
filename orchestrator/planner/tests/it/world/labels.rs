//! Labels of hosts: how they are changed, and how that is reported.

use drover_core::{
    Sym,
    node::{CHANGING, InFlight, InPlace},
    spec::Group,
};

use super::{Event, World};

/// Milliseconds that a caller waits.
const TIMEOUT: u64 = 10_000;

/// The group with these labels for its hosts, in every choice.
pub fn labelled(mut group: Group, labels: &str) -> Group {
    for choice in &mut group.choices {
        choice.labels_hash = labels.into();
    }
    group
}

/// What becomes of a call that changes a node in place.
pub(super) struct Fate {
    /// Milliseconds until it has its effect.
    pub(super) took: u64,
    pub(super) happens: bool,
    /// Whether the caller hears of it, if it waits for so long.
    pub(super) told: bool,
}

impl World {
    /// Draws what becomes of a call whose caller waits for so many milliseconds.
    pub(super) fn fate(&mut self, platform: &Sym, timeout: u64) -> Fate {
        let backend = &self.platforms[platform];
        let (faults, reachable) = (backend.faults.role_change, backend.reachable);
        let mut fate = Fate {
            took: self.rng.u64(5..3_000),
            happens: reachable,
            told: reachable,
        };
        if reachable && self.chance(faults) {
            // Lost as a request, lost as a response, or still under way when its caller gives up.
            let fault = self.rng.u64(0..3);
            (fate.happens, fate.told) = (fault > 0, false);
            if fault == 2 {
                fate.took += self.rng.u64(timeout..4 * timeout);
            }
        }
        fate
    }

    /// How long a call takes that has its effect after those of before, as long as they are under way: what is asked of a
    /// node happens in the order in which it was asked, whatever became of the callers.
    pub(super) fn in_order(&self, took: u64, is_before: impl Fn(&Event) -> bool) -> u64 {
        let before = self.queue.iter().filter(|(_, event)| is_before(event));
        let last = before.map(|((at, _), _)| at + 1).max().unwrap_or_default();
        took.max(last.saturating_sub(self.now))
    }

    pub(super) fn relabel(&mut self, slot: u64) {
        let intended = self.durable.node(slot).unwrap().labels_hash.clone();
        assert_eq!(&*intended, CHANGING, "intent first");
        let node = self.state.node_mut(slot).unwrap();
        let change = node.in_flight.changes.relabel.get_or_insert_default();
        assert!(!change.call.in_flight, "one change of labels at a time");
        (change.call.in_flight, change.done) = (true, None);
        let node = self.state.node(slot).unwrap();
        let group = self.groups.iter().find(|group| group.path == node.group);
        let wanted = group.unwrap().choice_for(node).unwrap().labels_hash.clone();
        let platform = node.platform.clone();
        let Fate {
            mut took,
            happens,
            told,
        } = self.fate(&platform, TIMEOUT);
        took = self.in_order(
            took,
            |event| matches!(event, Event::Labels(other, _) if *other == slot),
        );
        if happens {
            self.at(took, Event::Labels(slot, wanted.clone()));
        }
        let told = (told && took < TIMEOUT).then_some(wanted);
        let after = (took + 1).min(TIMEOUT);
        self.at(after, Event::Relabelled(self.epoch, slot, told));
    }

    /// The host of a node gets labels.
    pub(super) fn take_labels(&mut self, slot: u64, labels: Sym) {
        let Some(node) = self.durable.node(slot) else {
            return;
        };
        let key = (node.request, node.index);
        let backend = self.platforms.get_mut(&node.platform).unwrap();
        let mut things = backend.things.values_mut();
        if let Some(thing) = things.find(|t| (t.request, t.index) == key) {
            thing.labels = labels;
        }
    }

    /// Changes under way end with the process that asked for them: platforms refuse what its predecessors send late.
    pub(super) fn end_relabels(&mut self) {
        let events = self.queue.iter();
        let changes = events.filter(|(_, event)| matches!(event, Event::Labels(..)));
        let keys: Vec<_> = changes.map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(event) = self.queue.remove(&key) {
                self.happen(event);
            }
        }
    }

    pub(super) fn relabelled(&mut self, epoch: u64, slot: u64, told: Option<Sym>) {
        self.changed_in_place(epoch, slot, told, |calls| &mut calls.changes.relabel);
    }

    /// A change of a living node was answered, or not in time.
    pub(super) fn changed_in_place(
        &mut self,
        epoch: u64,
        slot: u64,
        told: Option<Sym>,
        of: fn(&mut InFlight) -> &mut Option<Box<InPlace>>,
    ) {
        let now = self.now;
        let Some(node) = self.state.node_mut(slot).filter(|_| epoch == self.epoch) else {
            return;
        };
        let change = of(&mut node.in_flight).get_or_insert_default();
        change.call.in_flight = false;
        if told.is_none() {
            change.call.failures = change.call.failures.saturating_add(1);
            change.call.next = now + 1_000;
        }
        change.done = told;
    }

    /// Whether all living nodes of a group have these labels on their hosts.
    pub fn all_labelled(&self, group: &str, labels: &str) -> bool {
        self.living(group)
            .iter()
            .all(|thing| *thing.labels == *labels)
    }
}
