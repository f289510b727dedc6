//! Labels of hosts: how they are changed, and how that is reported.

use drover_core::{Sym, node::CHANGING, spec::Group};

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

impl World {
    pub(super) fn relabel(&mut self, slot: u64) {
        let intended = self.durable.node(slot).unwrap().labels_hash.clone();
        assert_eq!(&*intended, CHANGING, "intent first");
        let node = self.state.node_mut(slot).unwrap();
        let change = node.in_flight.relabel.get_or_insert_default();
        assert!(!change.call.in_flight, "one change of labels at a time");
        (change.call.in_flight, change.done) = (true, None);
        let node = self.state.node(slot).unwrap();
        let group = self.groups.iter().find(|group| group.path == node.group);
        let wanted = group.unwrap().choice_for(node).unwrap().labels_hash.clone();
        let backend = &self.platforms[&node.platform];
        let (faults, reachable) = (backend.faults.role_change, backend.reachable);
        let mut took = self.rng.u64(5..3_000);
        let (mut happens, mut told) = (reachable, reachable);
        if reachable && self.chance(faults) {
            // Lost as a request, lost as a response, or still under way when its caller gives up.
            let fault = self.rng.u64(0..3);
            (happens, told) = (fault > 0, false);
            if fault == 2 {
                took += self.rng.u64(TIMEOUT..4 * TIMEOUT);
            }
        }
        // Platforms change a node in the order in which they are asked, whatever became of the callers.
        let pending = self.queue.iter().filter_map(|((at, _), event)| {
            matches!(event, Event::Labels(other, _) if *other == slot).then_some(at + 1)
        });
        took = took.max(pending.max().unwrap_or_default().saturating_sub(self.now));
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
        let now = self.now;
        let Some(node) = self.state.node_mut(slot).filter(|_| epoch == self.epoch) else {
            return;
        };
        let change = node.in_flight.relabel.get_or_insert_default();
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
