//! Nodes as platforms show them, taken into the state of their cluster.

use drover_core::{
    Millis, Phase, Sym, Urgency,
    node::{Call, Former, Reached, Seen},
};
use drover_planner::{Foreign, Orphan};
use drover_proto::platform::v1 as wire;
use uuid::Uuid;

use crate::{ClusterState, Heard, Interner};

/// The platform that shows a node, and the uid of the backend that it speaks for.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Name of the platform.
    pub platform: &'a Sym,
    /// Uid of the backend.
    pub uid: &'a str,
}

impl Source<'_> {
    /// Whether it may say something about a record. A platform has no say in what is recorded on another one.
    fn speaks_for(&self, platform: &Sym, uid: &str) -> bool {
        self.platform == platform && *self.uid == *uid
    }
}

/// One node, as a platform showed it.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// Who showed it.
    pub source: Source<'a>,
    /// The node.
    pub node: &'a Heard,
    /// An answer shows a state of some time since it was asked for. What a watch has shown since then is newer.
    pub as_of: Millis,
    /// The current time.
    pub now: Millis,
    /// Whether it was shown by a list or a watch, which will also tell when the node is gone.
    pub listed: bool,
}

/// What follows from an observation outside of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The node has begun to run, and is to be probed.
    Probe {
        /// Its group.
        group: Sym,
        /// Its slot.
        slot: u64,
    },
    /// A node that had vanished from the list is back.
    Returned,
    /// The platform shows a node that is recorded on another one. Whoever knows the ids of a node could make it say so.
    Claimed {
        /// The platform of the record.
        recorded: Sym,
    },
    /// The same node, which is gone there.
    ClaimEnded,
    /// Nothing records the node.
    Stranger,
}

fn reached(seen: &Seen) -> Reached {
    Reached {
        addresses: seen.addresses.clone(),
        endpoints: seen.endpoints.clone(),
    }
}

/// What to do after an observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// How soon the cluster is to be planned. `None` if nothing changed that a plan depends on.
    pub urgency: Option<Urgency>,
    /// In the order in which they happened.
    pub effects: Vec<Effect>,
}

impl Observed {
    fn only(effect: Effect) -> Self {
        Self {
            urgency: None,
            effects: vec![effect],
        }
    }
}

impl ClusterState {
    /// Takes in one node. Nodes of other owners are ignored.
    pub fn observe(&mut self, seen: Observation<'_>, interner: &Interner) -> Observed {
        let Observation { source, node, .. } = seen;
        let Some((owner, request, index)) = drover_convert::node::slot(node) else {
            return Observed::default();
        };
        if owner != self.state.uid {
            return Observed::default();
        }
        let terminated = drover_convert::node::phase(node.phase) == Phase::Terminated;
        let claim = |recorded: &Sym| {
            Observed::only(if terminated {
                Effect::ClaimEnded
            } else {
                Effect::Claimed {
                    recorded: recorded.clone(),
                }
            })
        };
        let Some(at) = self
            .slot_at(request, index)
            .or_else(|| self.taken_in(request, index))
        else {
            let asked = self.state.requests.get(&request);
            if let Some(asked) =
                asked.filter(|it| !source.speaks_for(&it.platform, &it.platform_uid))
            {
                return claim(&asked.platform);
            }
            return self.observe_orphan(seen, (request, index), interner);
        };
        let record = &self.state.nodes[at];
        if !source.speaks_for(&record.platform, &record.platform_uid) {
            return claim(&record.platform);
        }
        let id = node.node_id.as_str();
        if !self.state.orphans.is_empty() || !self.state.foreign.is_empty() {
            let key = (source.platform.clone(), id.into());
            self.state.orphans.remove(&key);
            self.state.foreign.remove(&key);
        }
        self.observe_record(at, seen, interner)
    }

    fn observe_record(
        &mut self,
        at: usize,
        seen: Observation<'_>,
        interner: &Interner,
    ) -> Observed {
        let Observation {
            node,
            as_of,
            now,
            listed,
            ..
        } = seen;
        let mut observed = Observed::default();
        let mut addons = self.spec.addons.iter();
        let record = &mut self.state.nodes[at];
        let targeted = addons.any(|addon| addon.serves(&record.group));
        if std::mem::take(&mut record.seen.vanished) {
            observed.effects.push(Effect::Returned);
        }
        let was = record.seen.phase;
        let newer = as_of < now && record.seen.last >= as_of && was != Phase::Unseen;
        // Evidence that it was gone was about the node before it, or wrong: it is listed again.
        let back = record.seen.gone
            && listed
            && as_of == now
            && drover_convert::node::phase(node.phase) != Phase::Terminated;
        record.seen.gone &= !back;
        record.seen.unproven = !listed && (record.seen.unproven || record.seen.last == 0);
        let mut moved = false;
        let mut changed = if newer {
            // Doubts that arose after the question was asked are not settled by its answer.
            let doubted =
                record.seen.last == as_of && (record.seen.unlisted || record.seen.missing_from > 0);
            if doubted {
                (record.seen.unlisted, record.seen.missing_from) = (false, 0);
            }
            doubted
        } else {
            let intern = &mut |text: &str| interner.get(text);
            let reached = targeted.then(|| reached(&record.seen));
            let changed = drover_convert::node::observe(&mut record.seen, node, now, intern);
            // An addon sends connections to where the node was.
            moved = reached.is_some_and(|before| {
                !before.addresses.is_empty() && before != self::reached(&record.seen)
            });
            changed
        };
        changed |= back;
        if record.node_id.is_none() && *record.seen.node_id != *node.node_id {
            record.seen.node_id = node.node_id.as_str().into();
            changed = true;
        }
        if !changed {
            return observed;
        }
        let phase = record.seen.phase;
        if phase == Phase::Running && was != Phase::Running {
            let (group, slot) = (record.group.clone(), record.slot);
            observed.effects.push(Effect::Probe { group, slot });
        }
        let death = matches!(phase, Phase::Failed | Phase::Terminated | Phase::Stopped);
        // A standby may take over from one that somebody else ends.
        let ends = phase == Phase::Deprovisioning && record.removal.is_none();
        observed.urgency = Some(if death || ends || moved {
            Urgency::Urgent
        } else {
            Urgency::Bulk
        });
        observed
    }

    /// The position of a node that was an orphan before: its slot has a number of its own.
    fn taken_in(&self, request: Uuid, index: u32) -> Option<usize> {
        let mut nodes = self.state.nodes.iter();
        nodes.position(|node| node.request == request && node.index == index)
    }

    fn observe_orphan(
        &mut self,
        seen: Observation<'_>,
        (request, index): (Uuid, u32),
        interner: &Interner,
    ) -> Observed {
        let Observation {
            source: Source { platform, uid },
            node,
            now,
            ..
        } = seen;
        if drover_convert::node::phase(node.phase) == Phase::Terminated {
            return Observed::default();
        }
        let key: (Sym, Box<str>) = (platform.clone(), node.node_id.as_str().into());
        let mut intern = |text: &str| interner.get(text);
        if let Some(known) = self.state.orphans.get_mut(&key) {
            known.last = now;
            // The same backend may have got another uid.
            if *known.platform_uid != *uid {
                known.platform_uid = interner.get(uid);
            }
            drover_convert::node::observe(&mut known.seen, node, now, &mut intern);
            return Observed::default();
        }
        let is_adopted = self.state.nodes.iter().any(|record| {
            record.is_adopting()
                && record.platform == *platform
                && record.node_id.as_deref() == Some(&node.node_id)
        });
        if is_adopted {
            // It is about to get another slot of this cluster.
            return Observed::default();
        }
        let mut observed = Box::default();
        drover_convert::node::observe(&mut observed, node, now, &mut intern);
        let orphan = Orphan {
            id: node.id.as_str().into(),
            request,
            index,
            sequence: node.sequence,
            group: interner.get(&node.group),
            ordinal: node.ordinal.unwrap_or(0),
            role: drover_convert::node::role(node),
            platform_uid: interner.get(uid),
            since: now,
            last: now,
            spec_hash: interner.get(&node.spec_hash),
            class: interner.get(&node.node_class),
            version: interner.get(&node.version),
            seen: observed,
        };
        self.state.orphans.insert(key, orphan);
        Observed {
            urgency: Some(Urgency::Bulk),
            effects: vec![Effect::Stranger],
        }
    }
}

impl ClusterState {
    /// Takes in a node that has the cluster's id but another owner. Returns whether it is new.
    pub fn observe_foreign(
        &mut self,
        source: Source<'_>,
        node: &wire::Node,
        now: Millis,
        interner: &Interner,
    ) -> bool {
        let key = (source.platform.clone(), node.node_id.as_str().into());
        if drover_convert::node::phase(node.phase) == Phase::Terminated {
            return self.state.foreign.remove(&key).is_some();
        }
        let slot = node.slot.clone().unwrap_or_default();
        let before = self.state.foreign.get(&key);
        let mut foreign = Foreign {
            id: node.id.as_str().into(),
            former: Former {
                owner: slot.owner.into(),
                request: slot.request_id.into(),
                index: slot.index,
            },
            group: interner.get(&node.group),
            ordinal: node.ordinal,
            role: drover_convert::node::role(node),
            class: interner.get(&node.node_class),
            version: interner.get(&node.version),
            host: interner.get(node.host_id.as_deref().unwrap_or_default()),
            platform_uid: interner.get(source.uid),
            last: now,
            call: Call::default(),
        };
        if let Some(same) = before.filter(|before| before.former == foreign.former) {
            foreign.call = same.call;
        }
        self.state.foreign.insert(key, foreign).is_none()
    }
}

#[cfg(test)]
mod tests;
