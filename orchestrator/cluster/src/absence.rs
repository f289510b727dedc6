//! Nodes that a platform no longer shows: what each way of not showing them proves.

use std::collections::{BTreeMap, HashSet};

use drover_core::{Millis, Node, Sym, resource::ResourceKey};
use drover_planner::ResourceOrphan;
use drover_proto::platform::v1 as wire;
use uuid::Uuid;

use crate::{ClusterState, Source};

/// What a removal that a watch reported was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// Nothing of this cluster.
    Nothing,
    /// A node of the cluster's name that is not its own.
    Foreign,
    /// A node with a record. Without confirmation by the backend, it may have vanished.
    Recorded {
        /// Nobody had asked for it.
        vanished: bool,
    },
}

/// The effect of a complete snapshot of a platform.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotEnd {
    /// Whether the cluster is concerned by the platform at all.
    pub concerned: bool,
    /// Number of nodes that have vanished from the list.
    pub vanished: usize,
}

/// A complete read of a platform for one cluster.
#[derive(Debug)]
pub struct CompleteRead<'a> {
    /// The platform that was read.
    pub source: Source<'a>,
    /// When it was made, by our clock.
    pub as_of: Millis,
    /// Requests and indexes of the cluster's own nodes that it shows.
    pub own: HashSet<(Uuid, u32)>,
    /// Ids of all nodes that it shows.
    pub ids: HashSet<&'a str>,
    /// Parts that could not be read.
    pub warnings: &'a [wire::Warning],
    /// Ids of nodes whose agents have proven that they live.
    pub alive: &'a HashSet<String>,
}

impl ClusterState {
    /// Takes in a removal that a watch has reported.
    pub fn removed(
        &mut self,
        source: Source<'_>,
        removed: &wire::NodeRemoved,
        now: Millis,
    ) -> Removed {
        let key = (source.platform.clone(), removed.node_id.as_str().into());
        self.state.orphans.remove(&key);
        let was_foreign = self.state.foreign.remove(&key).is_some();
        let node = self.state.nodes.iter_mut().find(|node| {
            let id = node.node_id.as_deref().unwrap_or(&node.seen.node_id);
            is_on(node, source) && *id == *removed.node_id
        });
        let slot = removed.slot.as_ref();
        // A platform that shows the past may name the owner from before an adoption.
        let of_another = slot.is_some_and(|slot| slot.owner != self.state.uid.to_string());
        // The id may have been reused by another node of the cluster.
        let Some(node) =
            node.filter(|node| is_of(node, slot) || (of_another && !node.is_adopting()))
        else {
            return if was_foreign {
                Removed::Foreign
            } else {
                Removed::Nothing
            };
        };
        let mut vanished = false;
        let confirmed = removed.evidence == i32::from(wire::RemovalEvidence::Confirmed);
        if confirmed && is_of(node, slot) {
            node.seen.gone = true;
        } else {
            node.seen.unlisted = true;
            // It was listed until now, so the delay of the backend's list counts from here.
            node.seen.last = now;
            vanished = node.removal.is_none();
            node.seen.vanished = vanished;
        }
        Removed::Recorded { vanished }
    }

    /// A watch begins. The grace period of orphans starts over, since nobody watched in the meantime. They stay known until
    /// the snapshot is complete: what they hold back must not be released in between.
    pub fn watch_begun(&mut self, platform: &Sym, now: Millis) {
        for ((name, _), orphan) in &mut self.state.orphans {
            if name == platform {
                orphan.since = now;
            }
        }
    }

    /// A snapshot that began at `began` is complete. Nodes that it lacks are not listed, which by itself proves nothing: a
    /// backend may list new nodes only after `delay`.
    pub fn snapshot_ended(
        &mut self,
        source: Source<'_>,
        began: Millis,
        delay: Millis,
    ) -> SnapshotEnd {
        let groups = self.spec.groups.iter();
        let mut choices = groups.flat_map(|group| &group.choices);
        let mut end = SnapshotEnd {
            concerned: choices.any(|choice| choice.platform == *source.platform),
            vanished: 0,
        };
        for node in &mut self.state.nodes {
            if !is_on(node, source) {
                continue;
            }
            end.concerned = true;
            let known = node.seen.last > 0 || node.node_id.is_some();
            if node.seen.last >= began || node.is_adopting() || !known || node.seen.unlisted {
                continue;
            }
            node.seen.unlisted = true;
            if node.seen.last > 0 {
                node.seen.last = began;
            }
            let listed = node.seen.last > 0 || (node.settled > 0 && node.settled + delay < began);
            node.seen.vanished = listed && node.removal.is_none();
            end.vanished += usize::from(node.seen.vanished);
        }
        end.concerned |= !self.state.foreign.is_empty() || !self.state.orphans.is_empty();
        let shown = |name: &Sym, last: Millis| name != source.platform || last >= began;
        (self.state.foreign).retain(|(name, _), one| shown(name, one.last));
        (self.state.orphans).retain(|(name, _), one| shown(name, one.last));
        end
    }

    /// Takes in the complete list of infrastructure, or of addons, that a backend has of this cluster, each with the highest
    /// sequence of a request that made a part of it. Returns whether other ones than before have no record.
    pub fn resources_listed(
        &mut self,
        source: Source<'_>,
        addons: bool,
        listed: &BTreeMap<ResourceKey, Option<u64>>,
        now: Millis,
    ) -> bool {
        let state = &mut self.state;
        let is_of =
            |key: &ResourceKey| key.is_addon() == addons && key.is_on(source.platform, source.uid);
        let is_orphan = |key: &ResourceKey| {
            let sequence = listed.get(key)?;
            let given_out = sequence.is_none_or(|sequence| state.gave_out(sequence));
            (!given_out || !state.resources.contains_key(key)).then_some(*sequence)
        };
        let mut orphans: BTreeMap<ResourceKey, ResourceOrphan> = BTreeMap::new();
        for key in listed.keys() {
            if let Some(sequence) = is_orphan(key) {
                let since = state.resource_orphans.get(key).map_or(now, |one| one.since);
                orphans.insert(key.clone(), ResourceOrphan { sequence, since });
            }
        }
        let others = state.resource_orphans.iter().filter(|(key, _)| !is_of(key));
        orphans.extend(others.map(|(key, one)| (key.clone(), one.clone())));
        let changed = orphans != state.resource_orphans;
        state.resource_orphans = orphans;
        changed
    }

    /// Takes in what a complete read does not show: neither its list nor a look-up by id has these nodes, unless a warning
    /// explains why.
    pub fn read_completely(&mut self, read: &CompleteRead<'_>, name: &str) {
        let uid = self.state.uid;
        for node in &mut self.state.nodes {
            if !is_on(node, read.source) || read.own.contains(&(node.request, node.index)) {
                continue;
            }
            let id = node.node_id.as_deref();
            if node.is_adopting() && read.ids.contains(id.unwrap_or_default()) {
                // It exists and still belongs to somebody else.
                continue;
            }
            let explains = |warning: &wire::Warning| {
                let cluster = warning.cluster_id.as_deref();
                let about = warning.id.as_deref();
                cluster.is_none_or(|cluster| cluster == name)
                    && about.is_none_or(|about| id.is_none_or(|id| id == about))
            };
            if !read.warnings.iter().any(explains) {
                node.seen.missing_from = read.as_of;
                node.seen.silent = !read.alive.contains(&node.id(uid));
            }
        }
    }
}

fn is_on(node: &Node, source: Source<'_>) -> bool {
    node.platform == *source.platform && *node.platform_uid == *source.uid
}

/// Whether the slot that a platform names for a removed node is that of the record. Platforms that name none are believed.
fn is_of(node: &Node, slot: Option<&wire::SlotKey>) -> bool {
    slot.is_none_or(|slot| {
        Uuid::parse_str(&slot.request_id) == Ok(node.request) && slot.index == Some(node.index)
    })
}

#[cfg(test)]
mod tests;
