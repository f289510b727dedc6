//! Feeds what platforms show into memory: finds the cluster and the slot, and schedules the planning.

use std::sync::Arc;

use async_trait::async_trait;
use drover_cluster::{Heard, Interner, Observation, Removed, Source};
use drover_core::{Millis, Phase, Result, Urgency};
use drover_platforms::{Foreign, Listener, Platforms, Registered};
use drover_proto::platform::v1 as wire;
use drover_secrets::Vault;
use drover_store::{Clock, Revision};
use uuid::Uuid;

use crate::{observer::Observer, queue::Queue, records::Records, tombstones::Tombstones};

/// Tells clusters what platforms show, and schedules those that must be planned for it.
pub(crate) struct Intake {
    pub(crate) records: Arc<Records>,
    pub(crate) queue: Queue,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) observer: Observer,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) interner: Arc<Interner>,
    pub(crate) clock: Arc<Clock>,
}

#[async_trait]
impl Listener for Intake {
    fn changed(&self, platform: &str, urgency: Urgency) {
        self.wake_users(platform, urgency);
    }

    fn wrote(&self, revision: Revision) {
        self.records.wrote(revision);
    }

    fn watch_begun(&self, registered: &Registered) {
        self.begin(registered);
    }

    async fn shown(
        &self,
        registered: &Registered,
        nodes: Vec<wire::Node>,
        foreign: &mut Foreign,
    ) -> Result<()> {
        let nodes = self.vault.hear(self.records.clusters(), nodes).await;
        self.upserts(registered, &nodes, foreign)
    }

    fn removed(&self, registered: &Registered, nodes: &[wire::NodeRemoved]) {
        self.removals(registered, nodes);
    }

    fn snapshot_complete(&self, registered: &Arc<Registered>, began: Millis, foreign: Foreign) {
        self.snapshot(registered, began, foreign);
    }
}

impl Intake {
    /// Schedules every cluster that names or uses a platform, first those of which it has shown something before it could
    /// be believed.
    fn wake_users(&self, platform: &str, urgency: Urgency) {
        if let Some(registered) = self.platforms.get(platform) {
            self.wake_held(&registered);
        }
        for cluster in self.records.clusters().users(platform) {
            // Without a trace: the platform's state concerns all of them, whichever call noticed it first.
            self.queue.push_for(cluster.uid(), urgency, None);
            self.records.recount(cluster.uid());
        }
    }

    /// Schedules the clusters of which a platform has shown something before it was visible, if it is now.
    fn wake_held(&self, registered: &Registered) {
        if registered.platform.is_visible(self.clock.now()) {
            for (cluster, urgency) in registered.take_held() {
                self.queue.push_for(cluster, urgency, None);
            }
        }
    }

    /// Takes in nodes that were added or changed.
    ///
    /// # Errors
    /// The platform shows more unrecorded nodes than can be kept.
    fn upserts(
        &self,
        registered: &Registered,
        nodes: &[Heard],
        foreign: &mut Foreign,
    ) -> Result<()> {
        let source = Source {
            platform: &registered.platform.name,
            uid: &registered.platform.uid(),
        };
        let now = self.clock.now();
        let mut at = 0;
        while at < nodes.len() {
            // Nodes of one cluster are adjacent, so that the lock is taken once for all of them.
            let owner = owner(&nodes[at]);
            let same = nodes[at..]
                .iter()
                .take_while(|node| self::owner(node) == owner)
                .count();
            let own = &nodes[at..at + same];
            at += same;
            let cluster = owner.and_then(|owner| self.records.clusters().get(owner));
            // A cluster that has just been deleted has a tombstone by now.
            let inner = cluster.as_ref().map(|cluster| cluster.lock());
            let inner = inner.filter(|inner| !inner.is_finished());
            let (Some(cluster), Some(mut inner)) = (&cluster, inner) else {
                for node in own {
                    self.stray(registered, node, owner, foreign, now);
                }
                registered.platform.refuse_flood()?;
                continue;
            };
            for node in own {
                // The node may have been adopted since it was last shown as foreign.
                registered
                    .platform
                    .remove_foreign(&node.cluster_id, &node.node_id);
            }
            let mut urgency = None;
            for node in own {
                let seen = Observation {
                    source,
                    node,
                    as_of: now,
                    now,
                    listed: true,
                };
                urgency = urgency.max(self.observer.observe(cluster, &mut inner, seen));
            }
            if urgency.is_some() {
                self.records.changed(cluster, &mut inner);
            }
            drop(inner);
            if let Some(urgency) = urgency {
                // While a snapshot comes in, ten thousand plans would say that they do not know yet.
                if registered.platform.is_visible(now) {
                    self.queue.push(cluster.uid(), urgency);
                } else {
                    registered.hold(cluster.uid(), urgency);
                }
            }
            registered.platform.refuse_flood()?;
        }
        Ok(())
    }

    /// Takes in a node that belongs to no cluster of this store.
    fn stray(
        &self,
        registered: &Registered,
        node: &wire::Node,
        owner: Option<Uuid>,
        foreign: &mut Foreign,
        now: Millis,
    ) {
        if let Some(owner) = owner
            && self.tombstones.show(owner, &registered.platform, node, now)
        {
            registered.platform.stranger();
            return;
        }
        let owner = node
            .slot
            .as_ref()
            .map(|slot| slot.owner.clone())
            .unwrap_or_default();
        if drover_convert::node::phase(node.phase) == Phase::Terminated {
            registered
                .platform
                .remove_foreign(&node.cluster_id, &node.node_id);
        } else {
            let nodes = foreign.entry(node.cluster_id.clone()).or_default();
            nodes.insert(node.node_id.clone(), owner.clone());
            registered
                .platform
                .add_foreign(&node.cluster_id, &node.node_id, owner);
        }
        if let Ok(cluster) = self.records.clusters().find(&node.cluster_id) {
            let uid = registered.platform.identity().0;
            let source = Source {
                platform: &registered.platform.name,
                uid: &uid,
            };
            let mut inner = cluster.lock();
            let new = inner.observe_foreign(source, node, now, &self.interner);
            drop(inner);
            if new {
                self.queue.push(cluster.uid(), Urgency::Bulk);
            }
        }
    }

    /// Takes in nodes that are no longer visible.
    fn removals(&self, registered: &Registered, nodes: &[wire::NodeRemoved]) {
        let platform = &registered.platform.name;
        let uid = registered.platform.uid();
        let mut vanished = 0;
        for removed in nodes {
            self.tombstones.gone(platform, &removed.node_id);
            registered
                .platform
                .remove_foreign(&removed.cluster_id, &removed.node_id);
            registered
                .platform
                .drop_claim(&removed.cluster_id, &removed.node_id);
            let Ok(cluster) = self.records.clusters().find(&removed.cluster_id) else {
                continue;
            };
            let mut inner = cluster.lock();
            let now = self.clock.now();
            let source = Source {
                platform,
                uid: &uid,
            };
            let urgency = match inner.removed(source, removed, now) {
                Removed::Nothing => continue,
                Removed::Foreign => Urgency::Bulk,
                Removed::Recorded { vanished: lost } => {
                    vanished += usize::from(lost);
                    Urgency::Urgent
                }
            };
            self.records.changed(&cluster, &mut inner);
            drop(inner);
            self.queue.push(cluster.uid(), urgency);
        }
        if vanished > 0 && registered.platform.vanished(vanished, self.clock.now()) {
            tracing::error!(%platform, "too many nodes vanished at once; nothing there is touched until that is confirmed");
            self.wake_users(platform, Urgency::Bulk);
        }
    }

    /// Called when a watch begins.
    fn begin(&self, registered: &Registered) {
        let now = self.clock.now();
        for cluster in self.records.clusters().all() {
            let mut state = cluster.lock();
            state.watch_begun(&registered.platform.name, now);
        }
    }

    /// Called when a snapshot that began at `began` is complete.
    fn snapshot(&self, registered: &Arc<Registered>, began: Millis, foreign: Foreign) {
        let platform = &registered.platform.name;
        let uid = registered.platform.identity().0;
        let delay = registered.platform.view(began).limits.visibility_delay;
        let source = Source {
            platform,
            uid: &uid,
        };
        let mut vanished = 0;
        for cluster in self.records.clusters().all() {
            let mut inner = cluster.lock();
            let end = inner.snapshot_ended(source, began, delay);
            vanished += end.vanished;
            if end.concerned {
                self.records.changed(&cluster, &mut inner);
                drop(inner);
                let lost = end.vanished > 0;
                let urgency = if lost { Urgency::Urgent } else { Urgency::Bulk };
                self.queue.push(cluster.uid(), urgency);
            }
        }
        self.wake_held(registered);
        registered.platform.set_foreign(foreign, began);
        if vanished > 0 && registered.platform.vanished(vanished, self.clock.now()) {
            tracing::error!(%platform, "too many nodes vanished at once; nothing there is touched until that is confirmed");
        }
    }
}

fn owner(node: &wire::Node) -> Option<Uuid> {
    Uuid::parse_str(&node.slot.as_ref()?.owner).ok()
}

#[cfg(test)]
mod tests;
