//! Role changes: their effect on nodes, and how they are reported.

use drover_core::{
    Phase,
    node::{RemovalReason, Role},
};
use uuid::Uuid;

use super::{Event, World, build};

impl World {
    pub(super) fn change_role(&mut self, slot: u64) {
        let faults = {
            let node = self.state.node_mut(slot).unwrap();
            let role_change = node.in_flight.changes.role_change.get_or_insert_default();
            assert!(
                !role_change.call.in_flight,
                "one change of a role at a time"
            );
            role_change.call.in_flight = true;
            let backend = &self.platforms[&node.platform];
            if backend.reachable {
                backend.faults.role_change
            } else {
                100
            }
        };
        let (node, epoch) = (self.state.node(slot).unwrap(), self.epoch);
        let (role, reachable) = (node.role, self.platforms[&node.platform].reachable);
        assert!(matches!(role, Role::Promoting | Role::Demoting), "{node:?}");
        assert_eq!(self.durable.node(slot).unwrap().role, role, "intent first");
        let took = self.rng.u64(5..3_000);
        let (happens, outcome) = if !self.chance(faults) {
            (true, Ok(()))
        } else if !reachable {
            (false, Err(false))
        } else {
            // Refused before or after it took effect; lost as a request or as a response.
            let happens = self.rng.bool();
            (happens, Err(self.rng.bool()))
        };
        if happens {
            self.at(took, Event::RoleChange(slot, role));
        }
        self.at(took + 1, Event::Turned(epoch, slot, role, outcome));
    }

    /// A node that still runs takes the role.
    pub(super) fn take_role(&mut self, slot: u64, role: Role) {
        let Some(node) = self.durable.node(slot) else {
            return;
        };
        let (group, key) = (node.group.clone(), (node.request, node.index));
        let backend = self.platforms.get_mut(&node.platform).unwrap();
        let mut things = backend.things.values_mut();
        let Some(thing) = things.find(|t| (t.request, t.index) == key && !t.is_dead()) else {
            return;
        };
        thing.acts = role == Role::Promoting;
        if thing.acts {
            self.fence(&group, key);
            self.check_acting(&group);
        }
    }

    /// A promotion keeps those out that are to go or end already, whether or not they live. Nobody else: whoever relies on
    /// that for a node that stays has two that act.
    fn fence(&mut self, group: &str, promoted: (Uuid, u32)) {
        if !self
            .groups
            .iter()
            .any(|it| *it.path == *group && it.fences())
        {
            return;
        }
        let going = self.durable.nodes.iter().filter(|node| {
            let reason = node.removal.map(|removal| removal.reason);
            *node.group == *group && reason == Some(RemovalReason::Sick)
        });
        let going: Vec<(Uuid, u32)> = going.map(|node| (node.request, node.index)).collect();
        for backend in self.platforms.values_mut() {
            for thing in backend.things.values_mut() {
                let key = (thing.request, thing.index);
                let ends = *thing.group == *group && thing.phase == Phase::Deprovisioning;
                thing.acts &= key == promoted || !(ends || going.contains(&key));
            }
        }
    }

    pub(super) fn turned(&mut self, epoch: u64, slot: u64, role: Role, outcome: Result<(), bool>) {
        let now = self.now;
        let Some(node) = self.state.node_mut(slot).filter(|_| epoch == self.epoch) else {
            return;
        };
        if node.role != role {
            return;
        }
        let role_change = node.in_flight.changes.role_change.get_or_insert_default();
        role_change.call.in_flight = false;
        role_change.done = outcome.is_ok();
        if let Err(refused) = outcome {
            role_change.failed(refused, "");
            role_change.call.next = now + 1_000;
        }
    }

    /// After a node became active: never more than wanted.
    pub fn check_acting(&self, group: &str) {
        let from = self
            .now
            .saturating_sub(build::CALL + build::CREATION + 5_000);
        let (mut most, mut last) = (0, 0);
        for (at, path, actives) in &self.actives {
            if **path == *group {
                if *at >= from {
                    most = most.max(last).max(*actives);
                }
                last = *actives;
            }
        }
        let most = most.max(last);
        let acting = self.living(group).iter().filter(|t| t.acts).count();
        assert!(
            acting <= most,
            "{acting} of {group} are active, at most {most} may"
        );
    }
}
