//! Storage that grows: a larger size reaches the storage of existing nodes through their platforms, and replaces nothing. A
//! platform without the capability has its nodes replaced.

use drover_core::{Phase, Sym, storage::quantity};

use crate::{Call, ConditionKey, ConditionKind, NO_GROUP, Op, Planner};

/// What conditions and steps call it.
const STORAGE: &str = "StorageGrowth";

impl Planner<'_> {
    /// Whether a node lacks nothing but storage, which grows in place.
    pub(crate) fn grows(&self, at: usize) -> bool {
        let (node, group) = (&self.state.nodes[at], self.marks[at].group);
        // What a platform can do is not known before it was reached, and until then it is not asked for another node.
        let view = self.input.platforms.get(&node.platform);
        let replaces = view.is_some_and(|view| view.grows == Some(false));
        group != NO_GROUP
            && !replaces
            && (self.input.groups[usize::from(group)].growth_of(node)).is_some()
    }

    /// Has platforms enlarge the storage of nodes that have less than their group wants.
    pub(crate) fn grow(&mut self, group: usize) {
        let due: Vec<(usize, Sym, u64)> = self
            .own(group)
            .filter_map(|at| {
                let (hash, size) = self.due_growth(group, at)?;
                Some((at, hash, size))
            })
            .collect();
        for (at, hash, size) in due {
            if self.full() {
                return;
            }
            self.grow_storage(group, at, hash, size);
        }
    }

    /// The hash that a node has once its storage has grown, and the size.
    fn due_growth(&self, group: usize, at: usize) -> Option<(Sym, u64)> {
        let (mark, node) = (&self.marks[at], &self.state.nodes[at]);
        let stays = !mark.leaving && !mark.dead && !node.is_adopting() && node.node_id.is_some();
        if !stays || !self.grows(at) {
            return None;
        }
        let (choice, size) = self.input.groups[group].growth_of(node)?;
        Some((choice.spec_hash.clone(), size))
    }

    fn grow_storage(&mut self, group: usize, at: usize, hash: Sym, size: u64) {
        let path = &self.input.groups[group].path;
        let node = &self.state.nodes[at];
        let (slot, platform) = (node.slot, &node.platform);
        let change = node.in_flight.changes.growth.as_deref();
        if let Some(change) = change.filter(|change| change.call.failures > 0) {
            let message = format!("storage of {}: {}", node.name(), change.message);
            let key = ConditionKey {
                group: path.clone(),
                kind: ConditionKind::UpdateBlocked,
            };
            self.hold(key, STORAGE, &message);
        }
        if change.is_some_and(|change| change.call.in_flight) {
            self.note(path, Some(slot), false, STORAGE, || {
                "its storage is growing".into()
            });
            return;
        }
        if change.is_some_and(|change| change.done.as_ref() == Some(&hash)) {
            self.op(Op::Grown {
                slot,
                spec_hash: hash,
                storage_size: size,
            });
            return;
        }
        let view = self.input.platforms.get(platform);
        // A request that is sent once more has the size that it was made with.
        let callable = view.is_some_and(|view| view.callable) && !self.is_open(node.request);
        if !self.marks[at].fresh || node.seen.phase == Phase::Unseen || !callable {
            self.note(path, Some(slot), false, STORAGE, || {
                format!("its storage grows when {platform} shows it")
            });
            return;
        }
        let next = change.map_or(0, |change| change.call.next);
        if self.input.now < next {
            self.wake(next);
            self.note_until(path, Some(slot), false, "BackOff", Some(next), || {
                "its storage is to grow then".into()
            });
            return;
        }
        self.note(path, Some(slot), true, STORAGE, || {
            format!("its storage grows to {}", quantity(size))
        });
        self.plan.calls.push(Call::Grow { slot });
    }

    /// Whether all nodes of a group have as much storage as it wants, as far as is recorded.
    pub(crate) fn is_grown(&self, group: usize) -> bool {
        self.growths(group) == 0
    }

    /// Number of nodes of a group whose storage is still to grow.
    pub(crate) fn growths(&self, group: usize) -> u32 {
        let due = self
            .own(group)
            .filter(|&at| self.due_growth(group, at).is_some());
        due.fold(0, |count, _| count + 1)
    }
}
