//! Maintenance that backends have announced: nodes that it stops are replaced before.

use drover_core::{
    Millis,
    node::{Maintenance, MaintenanceKind},
};

use crate::{ConditionKey, ConditionKind, Planner};

/// Age from which on a node is replaced as soon as its end is announced. A younger one stays until this long before the
/// beginning: where every machine has a date ahead, replacements would have no end.
const DAY: Millis = 24 * 3_600_000;

impl Planner<'_> {
    /// When a node is to be replaced because of announced maintenance. `None` if it survives that, or if its successor
    /// would be on the same machine.
    fn due_for_maintenance(&self, at: usize) -> Option<Millis> {
        let node = &self.state.nodes[at];
        let maintenance = node.seen.maintenance.as_deref()?;
        let is_kept = !node.host.is_empty() || self.state.repairs.contains(&node.slot);
        if maintenance.kind != MaintenanceKind::Stop || is_kept {
            return None;
        }
        let of_age = node.create_time + DAY;
        Some(match maintenance.start {
            0 => of_age,
            start => of_age.min(start.saturating_sub(DAY)),
        })
    }

    /// Whether maintenance stops a node, so that it is to be replaced now.
    pub(crate) fn is_stopped_soon(&self, at: usize) -> bool {
        self.due_for_maintenance(at)
            .is_some_and(|due| self.input.now >= due)
    }

    /// Wakes when the next node of a group is to be replaced.
    pub(crate) fn watch_maintenance(&mut self, group: usize) {
        let now = self.input.now;
        let next = self
            .own(group)
            .filter(|&at| !self.marks[at].leaving)
            .filter_map(|at| self.due_for_maintenance(at))
            .filter(|due| *due > now)
            .min();
        if let Some(next) = next {
            self.wake(next);
        }
    }

    /// Reports what is announced for the nodes of each group.
    pub(crate) fn state_maintenance(&mut self) {
        for group in 0..self.input.groups.len() {
            self.state_maintenance_of(group);
        }
    }

    fn state_maintenance_of(&mut self, group: usize) {
        let key = ConditionKey {
            group: self.input.groups[group].path.clone(),
            kind: ConditionKind::MaintenanceScheduled,
        };
        // Every start begins without having seen anything, which ends nothing.
        let looks = self.own(group).any(|at| self.is_unseen(at));
        if let Some(before) = self.state.conditions.get(&key).filter(|_| looks) {
            let (reason, message) = (before.reason.clone(), before.message.clone());
            self.hold(key, &reason, &message);
            return;
        }
        let mut worst = None;
        let mut words = Vec::new();
        for at in self.own(group) {
            let node = &self.state.nodes[at];
            let announced = node.seen.maintenance.as_deref();
            let Some(maintenance) = announced.filter(|_| !self.marks[at].dead) else {
                continue;
            };
            worst = worst.max(Some(severity(maintenance.kind)));
            words.push(format!(
                "{}: {}; {}",
                node.name(),
                maintenance.message,
                self.what_becomes_of(at, maintenance)
            ));
        }
        if let Some((_, reason)) = worst {
            self.hold(key, reason, &words.join(". "));
        }
    }

    fn what_becomes_of(&self, at: usize, maintenance: &Maintenance) -> &'static str {
        match maintenance.kind {
            _ if self.marks[at].leaving => "it is going",
            MaintenanceKind::Unknown => "nothing is done ahead of it",
            MaintenanceKind::Restart => "it stays, or comes back by itself",
            MaintenanceKind::Stop if self.due_for_maintenance(at).is_none() => {
                "it stays where it is bound to, and is replaced if it ends"
            }
            MaintenanceKind::Stop => "it is replaced before",
        }
    }
}

/// How much maintenance does to a node, and its name as the reason of a condition.
fn severity(kind: MaintenanceKind) -> (u8, &'static str) {
    match kind {
        MaintenanceKind::Unknown => (0, "Unknown"),
        MaintenanceKind::Restart => (1, "Restart"),
        MaintenanceKind::Stop => (2, "Stop"),
    }
}
