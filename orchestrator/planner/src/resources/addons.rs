//! Addons: begun when their first target is known, told of every change of their targets, removed before nodes and
//! infrastructure. They never block nodes, except that a node waits for a while until they have let go of it.

use std::sync::Arc;

use drover_core::{
    Millis, Node, Phase, Sym,
    addon::{AddonTarget, WantedAddon, targets_hash},
    node::{Reached, Role},
    resource::{ResourceKey, ResourceKind, ResourceRecord},
};

use super::{
    Told, Want,
    trouble::UNAVAILABLE,
    words::{place, reason},
};
use crate::{ConditionKey, ConditionKind, NO_GROUP, Op, Planner, observe::millis};

impl<'a> Planner<'a> {
    pub(super) fn wanted_addons(&self) -> &'a [WantedAddon] {
        if self.state.deleting {
            &[]
        } else {
            self.input.addons
        }
    }

    /// The key of a desired addon on the present backend of its platform. `None` if that is not known.
    pub(super) fn key_of(&self, addon: &WantedAddon) -> Option<ResourceKey> {
        let platform = &addon.wanted.platform;
        let uid = &self.input.platforms.get(platform)?.uid;
        (!uid.is_empty())
            .then(|| ResourceKey::addon(addon.name.clone(), platform.clone(), uid.clone()))
    }

    /// Whether nodes of this cluster are there that the store does not know, or not yet: a list without them would cut
    /// them off.
    pub(super) fn lacks_nodes(&self) -> bool {
        self.behind || (self.adopting && !self.state.orphans.is_empty())
    }

    /// Determines what addons are to be told.
    pub(crate) fn note_told(&mut self) {
        let wanted = self.wanted_addons().iter().enumerate();
        self.told = wanted.map(|(at, addon)| self.told_of(at, addon)).collect();
    }

    /// Releases addons before nodes go, and tells those that remain of what this plan has decided about nodes.
    pub(crate) fn plan_addons(&mut self) {
        let state = self.state;
        let wanted = self.wanted_addons();
        self.note_told();
        for (key, record) in state.resources.iter() {
            let Some(name) = key.addon_name() else {
                continue;
            };
            if self.full() {
                return;
            }
            let at = wanted.iter().position(|addon| {
                addon.name == *name && addon.wanted.platform == key.platform && self.is_current(key)
            });
            let want = at.map(|at| Want {
                wanted: &wanted[at].wanted,
                told: self.told[at].clone(),
            });
            let told = want.as_ref().and_then(|want| want.told.as_ref());
            if told.is_some_and(|told| told.assumes) {
                self.note_unknown_targets(key);
            }
            self.keep(key, record, want.as_ref());
        }
        for (at, addon) in wanted.iter().enumerate() {
            let Some(told) = self.told[at].clone() else {
                continue;
            };
            if !addon.targets.is_empty() && told.targets.is_empty() {
                self.note("", None, false, "Addon", || {
                    format!("{}: begins when its first target is known", addon.name)
                });
                continue;
            }
            let want = Want {
                wanted: &addon.wanted,
                told: Some(told),
            };
            self.begin(ResourceKind::Addon(addon.name.clone()), &want);
        }
        self.record_reached();
    }

    /// Records where targets are reached, for a process that comes after this one and cannot see them.
    fn record_reached(&mut self) {
        let wanted = self.wanted_addons();
        if wanted.is_empty() {
            return;
        }
        let state = self.state;
        for (at, node) in state.nodes.iter().enumerate() {
            let seen = &node.seen;
            let targeted = wanted.iter().any(|addon| addon.serves(&node.group));
            let shown = !matches!(seen.phase, Phase::Unseen | Phase::Pending);
            let known = shown && node.node_id.is_some();
            let mark = &self.marks[at];
            let goes = mark.forgotten || mark.leaving || mark.dead || node.is_adopting();
            if !targeted || !known || goes || seen.addresses.len() + seen.endpoints.len() == 0 {
                continue;
            }
            let same =
                |it: &Reached| (&it.addresses, &it.endpoints) == (&seen.addresses, &seen.endpoints);
            if node.reached.as_deref().is_some_and(same) {
                continue;
            }
            if self.full() {
                return;
            }
            self.op(Op::Reached {
                slot: node.slot,
                to: Box::new(Reached {
                    addresses: seen.addresses.clone(),
                    endpoints: seen.endpoints.clone(),
                }),
            });
        }
    }

    /// Where a node is that this process has not seen: where it was last reached, once its platform has had the time to show
    /// it and still hides it.
    fn assumed<'s>(&self, node: &'s Node) -> Option<&'s Reached> {
        let hidden = self.is_hidden(&node.platform);
        let waited = self.input.now >= self.first_look();
        node.reached.as_deref().filter(|_| hidden && waited)
    }

    /// What an addon is to be told. `None` as long as it is not known where a node is that may be a target and that this
    /// process has not seen: a list without it would cut it off.
    fn told_of(&self, at: usize, addon: &WantedAddon) -> Option<Told> {
        let mut targets = Vec::new();
        let mut assumes = false;
        for (mark, node) in self.marks.iter().zip(&self.state.nodes) {
            let ours = !mark.forgotten && !node.is_adopting() && addon.serves(&node.group);
            let Some(node_id) = node.node_id.as_ref().filter(|_| ours) else {
                continue;
            };
            let seen = &node.seen;
            // One that is pending may have an address and not be whole: its platform may give it back.
            let is_none = matches!(
                seen.phase,
                Phase::Pending | Phase::Terminated | Phase::Failed
            );
            if mark.dead || seen.gone || is_none {
                continue;
            }
            let (mut addresses, mut endpoints) = (&seen.addresses, &seen.endpoints);
            if seen.phase == Phase::Unseen && addresses.is_empty() {
                // What this process has asked for was in no list yet.
                if mark.leaving || node.create_time >= self.input.process_start {
                    continue;
                }
                let reached = self.assumed(node)?;
                (addresses, endpoints) = (&reached.addresses, &reached.endpoints);
                assumes = true;
            }
            if addresses.is_empty() && endpoints.is_empty() {
                continue;
            }
            targets.push(AddonTarget {
                slot: node.slot,
                platform: node.platform.clone(),
                node_id: node_id.clone(),
                name: node.name().into(),
                group: node.group.clone(),
                addresses: addresses.clone(),
                endpoints: endpoints.clone(),
                draining: mark.leaving || seen.phase == Phase::Deprovisioning,
                standby: mark.role != Role::Active,
            });
        }
        let secrets = self.input.addon_secrets.get(at);
        Some(Told {
            targets_hash: targets_hash(&targets),
            targets: targets.into(),
            secrets_hash: secrets.cloned().unwrap_or_default(),
            assumes,
        })
    }

    /// Unknown is not empty: an addon keeps the targets that it has. Reports why.
    pub(super) fn note_unknown_targets(&mut self, key: &ResourceKey) {
        let hidden = self.hidden_from(key).join(", ");
        let alarm = self.first_look();
        let condition = ConditionKey {
            group: Sym::default(),
            kind: ConditionKind::AddonsFailed,
        };
        // Every start begins like this, which is no reason to worry; nor does it end what an earlier process reported.
        let reported = self.state.conditions.get(&condition);
        let early = self.input.now < alarm && reported.is_none_or(|it| &*it.reason != UNAVAILABLE);
        if !hidden.is_empty() && self.input.now < alarm {
            self.wake(alarm);
        }
        if hidden.is_empty() || early {
            self.note("", None, false, reason(key), || {
                format!("{}: waits until its nodes have been seen", place(key))
            });
            return;
        }
        let why = format!("keeps the targets that it has: {hidden} does not show its nodes");
        self.fail_resource(key, UNAVAILABLE, &why);
    }

    /// The platforms that hide nodes of an addon, without which it is not known what it is to be told. Empty if they only
    /// have not been seen yet.
    fn hidden_from(&self, key: &ResourceKey) -> Vec<&'a str> {
        let wanted = self.wanted_addons().iter();
        let wanted = wanted.filter(|addon| self.key_of(addon).as_ref() == Some(key));
        let nodes = wanted.flat_map(|addon| {
            let nodes = self.state.nodes.iter();
            nodes.filter(|node| addon.serves(&node.group) && node.seen.phase == Phase::Unseen)
        });
        let platforms = nodes
            .map(|node| &node.platform)
            .filter(|platform| self.is_hidden(platform));
        let mut names: Vec<&str> = platforms.map(|platform| &**platform).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether an addon may still send new connections to a node, as far as this plan knows.
    pub(crate) fn is_served(&self, at: usize) -> bool {
        let slot = self.state.nodes[at].slot;
        let records = self.state.resources.iter();
        let mut addons = records.filter(|(key, _)| key.is_addon() && !self.gone.contains(*key));
        addons.any(|(key, before)| {
            let record = self.record_of(key)[1].unwrap_or(before);
            if record.in_flight.served.is_some() {
                return serves(record, slot);
            }
            // An earlier process has sent the last list; if it was confirmed and is still the current one, it is known.
            let mut wanted = self.wanted_addons().iter().zip(&self.told);
            match wanted.find(|(addon, _)| self.key_of(addon).as_ref() == Some(key)) {
                Some((_, Some(told))) if record.is_ready() && told.is_in(record) => {
                    lists(&told.targets, slot)
                }
                Some((addon, _)) => addon.serves(&self.state.nodes[at].group),
                None => true,
            }
        })
    }

    /// How long the removal of a node waits until its addons have let go of it. 0 if it has none.
    pub(crate) fn release_span(&self, at: usize) -> Millis {
        if !self.is_served(at) {
            return 0;
        }
        let mark = &self.marks[at];
        let grace = if mark.group == NO_GROUP {
            let leaving = self.leaving(&self.state.nodes[at].group);
            leaving.map(|one| one.grace)
        } else {
            Some(self.input.groups[usize::from(mark.group)].grace)
        };
        grace.map_or(0, millis)
    }

    /// Whether all addons are as desired and know their targets, as of this plan.
    pub(crate) fn state_addons(&mut self) -> bool {
        let wanted = self.wanted_addons();
        let left = |planner: &Self| {
            let mut keys = planner.state.resources.keys().filter(|key| key.is_addon());
            keys.any(|key| {
                let is_of = |addon: &WantedAddon| planner.key_of(addon).as_ref() == Some(key);
                !planner.gone.contains(key) && !wanted.iter().any(is_of)
            })
        };
        if wanted.is_empty() {
            return !left(self);
        }
        let condition = ConditionKey {
            group: Sym::default(),
            kind: ConditionKind::AddonsReady,
        };
        // As long as their targets are unknown, nothing is known to have changed.
        let before = self.state.conditions.contains_key(&condition);
        let mut all = self.told.len() == wanted.len() && !left(self);
        for (addon, told) in wanted.iter().zip(&self.told) {
            let key = self.key_of(addon);
            let record = key.and_then(|key| self.record_of(&key)[1]);
            let is_ready = |record: &ResourceRecord| {
                record.is_ready()
                    && record.reason.is_empty()
                    && record.spec_hash == addon.wanted.spec_hash
                    && told.as_ref().map_or(before, |told| told.is_in(record))
            };
            // It begins with its first target, and nobody is to become one.
            let is_idle = || {
                let mut groups = self.input.groups.iter();
                groups.all(|group| group.total() == 0 || !addon.serves(&group.path))
            };
            all &= record.map_or_else(is_idle, is_ready);
        }
        if all {
            self.hold(condition, "AsWanted", "");
        }
        all
    }
}

fn serves(record: &ResourceRecord, slot: u64) -> bool {
    let served: Option<&Arc<[AddonTarget]>> = record.in_flight.served.as_ref();
    served.is_some_and(|targets| {
        lists(targets, slot)
            || lists(&record.in_flight.targets, slot)
            || record.in_flight.announced.contains(&slot)
    })
}

fn lists(targets: &[AddonTarget], slot: u64) -> bool {
    let mut own = targets.iter().filter(|target| target.slot == slot);
    own.any(|target| !target.draining)
}
