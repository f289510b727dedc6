//! Storage that grows: how platforms do it, and how that is reported.

use drover_core::{
    Sym,
    spec::{ClusterSpec, Group, GroupSpec, PlatformChoice, Settings},
    storage::{Policy, Storage},
};

use super::{Event, World, labels::Fate};

/// Milliseconds that a caller waits.
const TIMEOUT: u64 = 30_000;

/// The group with this much storage for its nodes, which is kept, and the hashes that such nodes have.
pub fn sized(mut group: Group, size: u64) -> Group {
    let storage = Storage {
        size: Some(size),
        policy: Policy::default(),
        ..Storage::default()
    };
    group.storage = Some(Box::new(storage.clone()));
    for choice in &mut group.choices {
        let version = choice.spec_hash.split('-').next().unwrap_or_default();
        let spec = ClusterSpec {
            software: "a-store".into(),
            version: version.into(),
            groups: vec![GroupSpec {
                name: group.path.to_string(),
                settings: Settings {
                    platforms: vec![PlatformChoice {
                        name: choice.platform.to_string(),
                        ..PlatformChoice::default()
                    }],
                    storage: Some(storage.clone()),
                    ..Settings::default()
                },
                ..GroupSpec::default()
            }],
            ..ClusterSpec::default()
        };
        let made = spec.resolve().unwrap().remove(0).choices.remove(0);
        choice.spec_hash = made.spec_hash;
        choice.sizes = made.sizes;
    }
    group
}

impl World {
    pub(super) fn grow(&mut self, slot: u64) {
        let node = self.state.node_mut(slot).unwrap();
        let change = node.in_flight.changes.growth.get_or_insert_default();
        assert!(!change.call.in_flight, "one change of storage at a time");
        (change.call.in_flight, change.done) = (true, None);
        let node = self.state.node(slot).unwrap();
        let group = self.groups.iter().find(|group| group.path == node.group);
        let (choice, size) = group.unwrap().growth_of(node).unwrap();
        let hash = choice.spec_hash.clone();
        let platform = node.platform.clone();
        let Fate {
            took,
            happens,
            told,
        } = self.fate(&platform, TIMEOUT);
        if happens {
            self.at(took, Event::Grows(slot, size, hash.clone()));
        }
        let told = (told && took < TIMEOUT).then_some(hash);
        let after = (took + 1).min(TIMEOUT);
        self.at(after, Event::Grown(self.epoch, slot, told));
    }

    /// The storage of a node grows.
    pub(super) fn enlarge(&mut self, slot: u64, size: u64, hash: Sym) {
        let Some(node) = self.durable.node(slot) else {
            return;
        };
        let key = (node.request, node.index);
        let backend = self.platforms.get_mut(&node.platform).unwrap();
        let mut things = backend.things.values_mut();
        if let Some(thing) = things.find(|t| (t.request, t.index) == key) {
            thing.size = thing.size.max(Some(size));
            thing.spec_hash = hash;
        }
    }

    pub(super) fn grown(&mut self, epoch: u64, slot: u64, told: Option<Sym>) {
        self.changed_in_place(epoch, slot, told, |calls| &mut calls.changes.growth);
    }

    /// Sizes of the storage of all living nodes of a group.
    pub fn sizes_of(&self, group: &str) -> Vec<Option<u64>> {
        self.living(group).iter().map(|thing| thing.size).collect()
    }
}
