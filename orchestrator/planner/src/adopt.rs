//! Adoption of existing nodes without a record: foreign nodes, whose owner is changed at their platform, and our own
//! nodes that only an older copy of this store does not know.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drover_core::{
    Millis, Node, NodeState, Phase, Rare, Sym,
    node::{Adopted, CHANGING, Former, Origin, Record, Role, Seen},
    spec::{Group, OrphanPolicy},
};
use uuid::Uuid;

use crate::{Call, ConditionKey, ConditionKind, Foreign, Op, Orphan, Planner};

/// Placement of a node: position of the group in the input, and of the choice in the group.
type Place = (usize, usize);

/// Ordinals and sizes of groups, updated while this plan places nodes.
struct Free {
    /// Ordinals in use, by path of the group.
    ordinals: BTreeMap<Sym, BTreeSet<u32>>,
    /// Number of nodes, by position of the group in the input.
    counts: Vec<usize>,
    /// How many of them are active.
    active: Vec<usize>,
}

impl Free {
    /// Takes an ordinal of a group: the wanted one if it is free, otherwise the lowest free one.
    fn ordinal(&mut self, group: &Sym, wanted: Option<u32>) -> u32 {
        let used = self.ordinals.entry(group.clone()).or_default();
        let ordinal = wanted
            .filter(|ordinal| !used.contains(ordinal))
            .or_else(|| (0..).find(|ordinal| !used.contains(ordinal)))
            .unwrap_or_default();
        used.insert(ordinal);
        ordinal
    }

    /// The role for a node whose platform has recorded none: active until there are enough of them.
    fn role(&self, at: usize, group: &Group) -> Role {
        let wanted = group.total().saturating_sub(group.standby);
        if group.standby == 0 || self.active[at] < wanted as usize {
            Role::Active
        } else {
            Role::Standby
        }
    }
}

impl Planner<'_> {
    /// Continues adoptions in progress, and carries out the order to adopt.
    pub(crate) fn adopt(&mut self, new_id: &mut dyn FnMut() -> Uuid) {
        self.call_adoptions();
        if !self.state.adopts() {
            return;
        }
        let mut free = self.free();
        let mut left = self.take_own(&mut free, new_id);
        left |= self.take_foreign(&mut free, new_id);
        left |= self.adopt_resources();
        let pending = self.state.nodes.iter().any(|node| node.is_adopting());
        let sees_all = self.sees_all();
        if left || pending || !sees_all || self.full() {
            return;
        }
        self.op(Op::Adopted {
            order: self.state.adopt,
        });
        // Abandoned backends that are visible are no longer left alone. The others stay abandoned, because their
        // contents have not been seen.
        let views = self.input.platforms.iter();
        let seen: Vec<(Sym, Sym)> = (views.filter(|(_, view)| view.visible))
            .filter(|(_, view)| self.state.is_abandoned(&view.uid))
            .map(|(name, view)| (name.clone(), view.uid.clone()))
            .collect();
        for (platform, uid) in seen {
            let shown_by = Some(platform);
            self.op(Op::Sweep { uid, shown_by });
        }
        self.plan.again = true;
    }

    /// Asks platforms to hand over the nodes whose records are durable.
    fn call_adoptions(&mut self) {
        for at in 0..self.state.nodes.len() {
            let node = &self.state.nodes[at];
            let open = node.is_adopting() && node.seen.last == 0;
            if !open || self.marks[at].forgotten || node.in_flight.call.in_flight {
                continue;
            }
            let view = self.input.platforms.get(&node.platform);
            if !view.is_some_and(|view| view.callable && view.sees(&node.platform_uid)) {
                self.note(
                    &node.group,
                    Some(node.slot),
                    false,
                    "PlatformUnavailable",
                    || format!("{} cannot be asked to hand it over", node.platform),
                );
                continue;
            }
            if self.input.now < node.in_flight.call.next {
                self.wake(node.in_flight.call.next);
                let until = Some(node.in_flight.call.next);
                self.note_until(
                    &node.group,
                    Some(node.slot),
                    false,
                    "Adopting",
                    until,
                    || {
                        format!(
                            "{} has not handed it over: {}",
                            node.platform, node.seen.message
                        )
                    },
                );
                continue;
            }
            self.plan.calls.push(Call::Adopt { slot: node.slot });
        }
    }

    /// Completes an adoption once the node is observed to be ours.
    pub(crate) fn observe_adoption(&mut self, node: &Node) {
        if node.seen.last > 0 {
            self.op(Op::Own { slot: node.slot });
            self.plan.again = true;
        }
    }

    /// Gives up the adoption of a node that is no longer wanted, which was never ours. Returns whether the node is
    /// being adopted.
    pub(crate) fn gives_up_adoption(&mut self, at: usize) -> bool {
        let node = &self.state.nodes[at];
        if !node.is_adopting() {
            return false;
        }
        // If it is handed over after all, it is an unwanted node or an orphan.
        if !node.in_flight.call.in_flight {
            self.op(Op::RecordDropped {
                slot: node.slot,
                reason: "NotAdopted",
                message: "is left to its owner".into(),
                lost: false,
            });
            self.marks[at].forgotten = true;
        }
        true
    }

    /// Whether a node that is being adopted is still reported under another owner.
    pub(crate) fn shows_foreign(&self, node: &Node) -> bool {
        let id = node.node_id.clone().unwrap_or_default();
        let key = (node.platform.clone(), id);
        self.state.foreign.contains_key(&key)
    }

    /// A platform that may have nodes of the cluster and is not visible.
    pub(crate) fn hidden(&self) -> Option<&Sym> {
        let groups = self.input.groups.iter();
        let named = groups.flat_map(|group| group.choices.iter().map(|choice| &choice.platform));
        let used = self.state.used.iter().map(|(platform, _)| platform);
        named.chain(used).find(|platform| {
            let view = self.input.platforms.get(*platform);
            view.is_some_and(|view| !view.visible)
        })
    }

    /// Whether every platform that may have nodes of the cluster is visible.
    fn sees_all(&mut self) -> bool {
        let Some(platform) = self.hidden() else {
            return true;
        };
        let message = format!(
            "{platform} has to be seen before the adoption is over; nothing is made until then"
        );
        for group in self.input.groups {
            let key = ConditionKey {
                group: group.path.clone(),
                kind: ConditionKind::PlatformUnavailable,
            };
            self.hold(key, "PlatformUnavailable", &message);
        }
        self.note("", None, false, "PlatformUnavailable", || message);
        false
    }

    fn free(&self) -> Free {
        let mut ordinals: BTreeMap<Sym, BTreeSet<u32>> = BTreeMap::new();
        let mut counts = vec![0; self.input.groups.len()];
        let mut active = counts.clone();
        for (node, mark) in self.state.nodes.iter().zip(&self.marks) {
            if mark.forgotten || mark.dead {
                continue;
            }
            let used = ordinals.entry(node.group.clone()).or_default();
            used.insert(node.ordinal);
            if let Some(count) = counts.get_mut(usize::from(mark.group)) {
                *count += usize::from(!mark.leaving);
                let acts = !mark.leaving && node.role.may_act();
                active[usize::from(mark.group)] += usize::from(acts);
            }
        }
        Free {
            ordinals,
            counts,
            active,
        }
    }

    /// Adopts our own nodes. Returns whether some are left for later.
    fn take_own(&mut self, free: &mut Free, new_id: &mut dyn FnMut() -> Uuid) -> bool {
        let state = self.state;
        let mut own: Vec<(&(Sym, Box<str>), &Orphan)> = state.orphans.iter().collect();
        // Oldest first: if two nodes claim the same ordinal, the older one keeps it.
        own.sort_by_key(|(key, orphan)| (orphan.sequence, orphan.index, *key));
        for ((platform, node_id), orphan) in own {
            let view = self.input.platforms.get(platform);
            let Some(view) = view.filter(|view| view.sees(&orphan.platform_uid)) else {
                continue;
            };
            if self.full() {
                return true;
            }
            let adopts = view.adopts && view.callable;
            let node = self.own_record(
                platform,
                node_id,
                orphan,
                free,
                adopts.then_some(&mut *new_id),
            );
            self.take(node, "Adopt");
        }
        false
    }

    /// The record of a node of our own that is kept. With `rename`, its platform can be told another ordinal.
    fn own_record(
        &mut self,
        platform: &Sym,
        node_id: &str,
        orphan: &Orphan,
        free: &mut Free,
        rename: Option<&mut dyn FnMut() -> Uuid>,
    ) -> Node {
        let ordinal = free.ordinal(&orphan.group, Some(orphan.ordinal));
        let mut node = Node {
            seen: (*orphan.seen).clone(),
            ..Node::new(Record {
                slot: self.next_slot,
                index: orphan.index,
                ordinal,
                host: orphan
                    .seen
                    .host
                    .id
                    .as_deref()
                    .map(Into::into)
                    .unwrap_or_default(),
                role: orphan.role,
                state: state_of(orphan.seen.phase),
                message: "had no record and is kept".into(),
                ..blank(
                    Origin {
                        request: orphan.request,
                        sequence: orphan.sequence,
                        group: orphan.group.clone(),
                        platform_uid: orphan.platform_uid.clone(),
                        class: orphan.class.clone(),
                        version: orphan.version.clone(),
                        spec_hash: orphan.spec_hash.clone(),
                        storage_size: None,
                        storage: self.orphan_storage(&orphan.group).0,
                        platform: platform.clone(),
                    },
                    node_id,
                    self.input.now,
                )
            })
        };
        if let Some(new_id) = rename.filter(|_| ordinal != orphan.ordinal) {
            node.adopted.former = Some(Former {
                owner: self.state.uid.to_string().into(),
                request: orphan.request.to_string().into(),
                index: Some(orphan.index),
            });
            let origin = node.origin_mut();
            origin.request = new_id();
            // The lost store may have assigned higher numbers than those that are visible here.
            origin.sequence = self.next_sequence.max(orphan.sequence + 1);
            node.index = 0;
            node.state = NodeState::Requested;
            node.seen = Seen::default();
        }
        node.keep_id(&orphan.id, self.state.uid);
        node
    }

    /// Adopts foreign nodes. Returns whether some are left for later.
    fn take_foreign(&mut self, free: &mut Free, new_id: &mut dyn FnMut() -> Uuid) -> bool {
        let state = self.state;
        let taken: BTreeSet<(&str, &str)> = state
            .nodes
            .iter()
            .filter_map(|node| Some((&*node.platform, node.node_id.as_deref()?)))
            .collect();
        let mut foreign: Vec<(&(Sym, Box<str>), &Foreign)> = state
            .foreign
            .iter()
            .filter(|((platform, id), _)| !taken.contains(&(&**platform, &**id)))
            .collect();
        foreign.sort_by_key(|(key, one)| (one.group.clone(), one.ordinal, *key));
        let mut left = false;
        for ((platform, node_id), one) in foreign {
            let view = self.input.platforms.get(platform);
            let Some(view) = view.filter(|view| view.sees(&one.platform_uid)) else {
                continue;
            };
            if let Some(why) = (!view.adopts).then_some("cannot give nodes another owner") {
                self.note(&one.group, None, false, "ForeignNodes", || {
                    format!("{node_id} stays as it is: {platform} {why}")
                });
                continue;
            }
            let Some((group, choice)) = self.place(platform, one, free) else {
                self.note(&one.group, None, false, "ForeignNodes", || {
                    format!("{node_id} stays as it is: no group of the spec is on {platform}")
                });
                continue;
            };
            if self.input.now < one.call.next {
                // It is about to be reported otherwise, or not at all.
                self.wake(one.call.next);
                left = true;
                continue;
            }
            if self.full() {
                return true;
            }
            free.counts[group] += 1;
            let spec = &self.input.groups[group];
            // Without an owner nobody has recorded a role either.
            let role = if one.former.owner.is_empty() {
                free.role(group, spec)
            } else {
                one.role
            };
            free.active[group] += usize::from(role.may_act());
            let recorded = one.ordinal.filter(|_| spec.path == one.group);
            let node = Node::new(Record {
                slot: self.next_slot,
                ordinal: free.ordinal(&spec.path, recorded),
                role,
                host: one.host.clone(),
                message: "belonged to somebody else and is kept".into(),
                adopted: Adopted {
                    given_id: (!one.id.is_empty()).then(|| one.id.clone()),
                    former: Some(one.former.clone()),
                }
                .into(),
                ..blank(
                    Origin {
                        request: new_id(),
                        sequence: self.next_sequence,
                        group: spec.path.clone(),
                        platform_uid: one.platform_uid.clone(),
                        class: one.class.clone(),
                        version: one.version.clone(),
                        // It counts as up to date: a user who wants it replaced restarts the group.
                        spec_hash: spec.choices[choice].spec_hash.clone(),
                        storage_size: spec.storage.as_ref().and_then(|it| it.size),
                        // Treated as that of its group: it is better to retain it needlessly than to delete it.
                        storage: spec.storage.is_some(),
                        platform: platform.clone(),
                    },
                    node_id,
                    self.input.now,
                )
            });
            self.take(node, "Adopt");
        }
        left
    }

    /// The group for a foreign node: the recorded one, else the first on its platform that lacks nodes, else the first
    /// on its platform.
    fn place(&self, platform: &Sym, one: &Foreign, free: &Free) -> Option<Place> {
        let choice = |group: usize| {
            let mut choices = self.input.groups[group].choices.iter();
            choices.position(|choice| choice.platform == *platform)
        };
        let said = self.paths.get(&*one.group).map(|&at| usize::from(at));
        let here: Vec<Place> = (0..self.input.groups.len())
            .filter_map(|group| Some((group, choice(group)?)))
            .collect();
        let lacks = |&(group, _): &Place| {
            let wanted = Self::size(&self.input.groups[group]);
            free.counts[group] < wanted
        };
        here.iter()
            .find(|(group, _)| Some(*group) == said)
            .or_else(|| here.iter().find(|place| lacks(place)))
            .or_else(|| here.first())
            .copied()
    }

    /// Records a node; its platform is called once that is durable.
    pub(crate) fn take(&mut self, node: Node, reason: &'static str) {
        let slot = node.slot;
        self.note(&node.group, Some(slot), true, reason, || {
            format!(
                "{} on {} {}",
                node.node_id.as_deref().unwrap_or_default(),
                node.platform,
                node.message
            )
        });
        self.next_slot += 1;
        self.next_sequence = self.next_sequence.max(node.sequence + 1);
        let asks = node.is_adopting();
        self.op(Op::TakeOrphan {
            node: Box::new(node),
        });
        if asks {
            self.plan.calls.push(Call::Adopt { slot });
        }
        self.plan.again = true;
    }

    /// Number of orphans that become nodes of a group. They count as existing, so nothing is created in their place.
    pub(crate) fn expected_orphans(&self, group: &str) -> usize {
        if self.input.orphans != OrphanPolicy::Adopt {
            return 0;
        }
        let orphans = self.state.orphans.values();
        orphans.filter(|one| *one.group == *group).count()
    }

    /// Adopts an orphan, as the orphan policy of its cluster demands.
    pub(crate) fn keep_orphan(&mut self, platform: &Sym, node_id: &str, orphan: &Orphan) {
        let mut free = self.free();
        for op in &self.plan.ops {
            if let Op::TakeOrphan { node } = op {
                let used = free.ordinals.entry(node.group.clone()).or_default();
                used.insert(node.ordinal);
            }
        }
        let node = self.own_record(platform, node_id, orphan, &mut free, None);
        self.take(node, "Orphan");
    }
}

/// Initial state of a node that existed before its record. A running one may serve although it was never probed, so it
/// counts as Ready: its replacement stays within the budget of its group.
pub(crate) fn state_of(phase: Phase) -> NodeState {
    match phase {
        Phase::Running => NodeState::Ready,
        _ => NodeState::Provisioning,
    }
}

/// A record that has only the origin and the id of the node. No call of ours created it, and none can.
fn blank(origin: Origin, node_id: &str, now: Millis) -> Record {
    Record {
        origin: Arc::new(origin),
        slot: 0,
        index: 0,
        ordinal: 0,
        host: Sym::default(),
        template: Sym::default(),
        labels_hash: CHANGING.into(),
        attempts: 0,
        create_time: now,
        state: NodeState::Requested,
        state_time: now,
        reason: "Adopting".into(),
        message: Box::default(),
        marked: false,
        stable: false,
        role: Role::Active,
        node_id: Some(node_id.into()),
        removal: None,
        settled: now,
        maybe_until: now,
        reached: None,
        adopted: Rare::default(),
    }
}
