//! Maintenance that backends have announced: nodes that it stops are replaced before.

use drover_core::{
    Millis,
    node::{Maintenance, MaintenanceKind},
    spec::UpdateStrategy,
};

use crate::{ConditionKey, ConditionKind, Planner};

/// Age from which on a node is replaced as soon as its end is announced. A younger one stays until this long before the
/// beginning, or until it is so old itself: where every machine has a date ahead, replacements would have no end.
const DAY: Millis = 24 * 3_600_000;

impl Planner<'_> {
    /// Why a node that maintenance stops is not replaced ahead of it. `None` if it is.
    fn stays_until_stopped(&self, at: usize) -> Option<&'static str> {
        let node = &self.state.nodes[at];
        let group = self.input.groups.get(usize::from(self.marks[at].group))?;
        if self.state.repairs.contains(&node.slot) {
            Some("it stays while it is under repair")
        } else if !node.host.is_empty() {
            Some("it stays on the machine that it is bound to")
        } else if group.update.strategy == UpdateStrategy::OnDelete {
            Some("it stays as its group is updated OnDelete, until somebody replaces it")
        } else if !group.remediation.enabled {
            Some("it stays as its group has no remediation, until somebody replaces it")
        } else if group.total() == 1 && !group.hands_on_storage() {
            Some("it stays as nothing else has its data, until somebody replaces it")
        } else {
            None
        }
    }

    /// When a node is to be replaced because of announced maintenance. `None` if it is not.
    fn due_for_maintenance(&self, at: usize) -> Option<Millis> {
        let node = &self.state.nodes[at];
        let maintenance = node.seen.host.maintenance.as_deref()?;
        if maintenance.kind != MaintenanceKind::Stop || self.stays_until_stopped(at).is_some() {
            return None;
        }
        let of_age = node.create_time + DAY;
        // One that was made within the last day cannot get away from a date by being made again.
        let ahead = (maintenance.start > of_age).then(|| maintenance.start - DAY);
        Some(ahead.map_or(of_age, |ahead| ahead.min(of_age)))
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
        // What was announced before a start did not end by not being seen yet.
        let looks = self.own(group).any(|at| {
            let node = &self.state.nodes[at];
            node.seen.last == 0 && self.is_hidden(&node.platform)
        });
        if let Some(before) = self.state.conditions.get(&key).filter(|_| looks) {
            let (reason, message) = (before.reason.clone(), before.message.clone());
            self.hold(key, &reason, &message);
            return;
        }
        let mut worst = None;
        let mut words = Vec::new();
        for at in self.own(group) {
            let node = &self.state.nodes[at];
            let announced = node.seen.host.maintenance.as_deref();
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
            MaintenanceKind::Stop if self.state.paused => {
                "it is not replaced while the cluster is paused"
            }
            MaintenanceKind::Stop => self
                .stays_until_stopped(at)
                .unwrap_or("it is to be replaced before"),
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
