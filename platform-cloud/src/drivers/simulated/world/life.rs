//! The lifecycle of nodes: they start, become ready, die, change and are deleted.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{Node, NodePhase, RemovalEvidence};
use tokio::time::Instant;

use super::super::{faults::Death, settings::SimulatedSettings, timers::Event, volumes::Left};
use drover_platform::{
    driver::{Change, Target},
    identity::Identity,
};

use super::World;
use super::node::{SimNode, number, sim_node};

impl World {
    /// Starts the deletion of a node. Returns the storage that is retained; `None` if the node does not exist.
    pub(in crate::drivers::simulated) fn delete(
        &mut self,
        target: &Target,
        retain: bool,
        after: Duration,
    ) -> Result<Option<Vec<String>>> {
        let Some(number) = number(&target.node_id) else {
            return Ok(None);
        };
        let Some(node) = self.nodes.get(&number) else {
            return Ok(None);
        };
        target.matches(&self.node(number, node))?;
        let again = node.phase == NodePhase::Deprovisioning;
        let mut retained = Vec::new();
        if let Some(volume) = self.volumes.release(number, retain, again) {
            if volume.is_kept() {
                retained.push(volume.id.clone());
            }
            self.write_volume(volume);
        }
        if !again {
            self.change(number, |node| {
                node.phase = NodePhase::Deprovisioning;
                node.ready = false;
            });
            self.write(number);
            self.timers.set(Instant::now() + after, number, Event::Gone);
        }
        Ok(Some(retained))
    }

    /// Changes or adopts a node.
    pub(in crate::drivers::simulated) fn update(
        &mut self,
        target: &Target,
        change: &Change,
    ) -> Result<Node> {
        let missing = || Error::not_found("node", &target.node_id);
        let number = number(&target.node_id).ok_or_else(missing)?;
        let node = self.nodes.get(&number).ok_or_else(missing)?;
        target.matches(&self.node(number, node))?;
        let mut next = node.clone();
        match change {
            Change::Edit {
                role,
                set_labels,
                remove_labels,
                storage_size,
                spec_hash,
                promoting,
                ..
            } => {
                if let Some(role) = role {
                    next.role = *role as u8;
                    self.promoting.remove(&target.node_id);
                    if *promoting {
                        self.promoting.insert(target.node_id.clone());
                    }
                }
                if storage_size.is_some() && !self.volumes.has(number) {
                    return Err(Error::new(Reason::Precondition, "the node has no storage"));
                }
                let mut labels = next.shared.labels.clone();
                labels.retain(|key, _| !remove_labels.contains(key));
                labels.extend(set_labels.clone());
                if labels.len() > drover_core::name::MAX_LABELS {
                    return Err(Error::invalid(
                        "change.set_labels",
                        "the node would have more than 64 labels",
                    ));
                }
                let mut changed = Identity {
                    labels,
                    ..Identity::clone(&next.shared)
                };
                if !spec_hash.is_empty() {
                    changed.spec_hash.clone_from(spec_hash);
                }
                if changed != *next.shared {
                    next.shared = Arc::new(changed);
                }
            }
            Change::Adopt(identity) => {
                let kept = &node.shared;
                let identity = Identity {
                    version: kept.version.clone(),
                    node_class: kept.node_class.clone(),
                    labels: kept.labels.clone(),
                    ..Identity::clone(identity)
                };
                let adopted = sim_node(identity, None, 0);
                next = SimNode {
                    created: node.created,
                    message: node.message.clone(),
                    domain: node.domain,
                    host: node.host,
                    phase: node.phase,
                    ready: node.ready,
                    hidden: node.hidden,
                    ..adopted
                };
            }
        }
        let before = node.clone();
        let host = node.host().and_then(|at| self.hosts.get_mut(at));
        if let (Change::Edit { host_labels, .. }, Some(host)) = (change, host)
            && let Some(wanted) = host_labels
        {
            host.lent.clone_from(wanted);
        }
        if let Change::Edit { storage_size, .. } = change
            && let Some(volume) = storage_size.and_then(|size| self.volumes.grow(number, size))
        {
            self.write_volume(volume);
        }
        self.index(number, &before, false);
        self.index(number, &next, true);
        let moved = before.shared.cluster_id != next.shared.cluster_id;
        if let Change::Adopt(identity) = change
            && let Some(volume) = self.volumes.hand_over(number, identity)
        {
            self.write_volume(volume);
        }
        self.nodes.insert(number, next);
        if moved {
            // The node still exists, only not in its former cluster.
            self.tell_removed(number, &before, RemovalEvidence::NotListed);
        }
        self.write(number);
        self.tell(number);
        Ok(self
            .nodes
            .get(&number)
            .map(|node| self.node(number, node))
            .unwrap_or_default())
    }

    fn change(&mut self, number: u32, change: impl FnOnce(&mut SimNode)) {
        if let Some(node) = self.nodes.get_mut(&number) {
            change(node);
            self.tell(number);
        }
    }

    pub(in crate::drivers::simulated) fn run(
        &mut self,
        number: u32,
        settings: &SimulatedSettings,
        now: Instant,
    ) {
        if self
            .nodes
            .get(&number)
            .is_none_or(|node| node.phase != NodePhase::Pending)
        {
            return;
        }
        if settings.boot_failure > 0.0 && self.random.f64() < settings.boot_failure {
            return self.die(number, Death::Failed);
        }
        let ready = settings.jittered(settings.ready_delay, settings.boot_jitter, &mut self.random);
        self.timers.set(now + ready, number, Event::Ready);
        self.change(number, |node| node.phase = NodePhase::Running);
    }

    pub(in crate::drivers::simulated) fn ready(&mut self, number: u32) {
        if self
            .nodes
            .get(&number)
            .is_some_and(|node| node.phase == NodePhase::Running)
        {
            self.change(number, |node| node.ready = true);
        }
    }

    pub(in crate::drivers::simulated) fn set_ready(&mut self, number: u32, ready: bool) -> bool {
        let running = self
            .nodes
            .get(&number)
            .is_some_and(|node| node.phase == NodePhase::Running);
        if running {
            self.change(number, |node| node.ready = ready);
        }
        running
    }

    pub(in crate::drivers::simulated) fn show(&mut self, number: u32) {
        self.change(number, |node| node.hidden = false);
    }

    pub(in crate::drivers::simulated) fn die(&mut self, number: u32, death: Death) {
        let Some(node) = self.nodes.get(&number) else {
            return;
        };
        if !node.is_placed() {
            return;
        }
        let phase = match death {
            Death::Vanished => return self.gone(number, death),
            Death::Failed => NodePhase::Failed,
            Death::Terminated => NodePhase::Terminated,
        };
        self.change(number, |node| {
            node.phase = phase;
            node.ready = false;
            node.message = Some("the simulated node died".into());
        });
        self.write(number);
    }

    /// Removes a node from the backend.
    pub(in crate::drivers::simulated) fn gone(&mut self, number: u32, how: Death) {
        let Some(node) = self.nodes.remove(&number) else {
            return;
        };
        self.index(number, &node, false);
        if let Some(room) = node.domain().and_then(|at| self.domains.get_mut(at)) {
            room.used -= 1;
        }
        if let Some(room) = self.classes.get_mut(&node.shared.node_class) {
            room.used -= 1;
        }
        let host = self.hosts.get_mut(usize::from(node.host));
        // Another node may have claimed it since this one ended.
        if let Some(host) = host.filter(|host| host.node == Some(number)) {
            host.node = None;
            host.lent.clear();
        }
        self.user_data.remove(&number);
        match self.volumes.detach(number, self.now()) {
            Some(Left::Kept(volume)) => self.write_volume(volume),
            Some(Left::Gone(id)) => {
                if let Some(journal) = &mut self.journal {
                    journal.no_volume(id);
                }
            }
            None => {}
        }
        if let Some(journal) = &mut self.journal {
            journal.gone(number);
        }
        let evidence = match how {
            Death::Vanished => RemovalEvidence::NotListed,
            Death::Failed | Death::Terminated => RemovalEvidence::Confirmed,
        };
        self.tell_removed(number, &node, evidence);
    }
}
