//! Sole writers: an active node that acknowledges nothing without its standbys may be allowed to go on alone while it lacks
//! them. That is recorded before the node is told, and the record is dropped only after the node has confirmed that it
//! acknowledges nothing alone any more. While there is a record, nobody else has for certain what was acknowledged, so no
//! other node is promoted: it stands for the vote of those that were not heard.

use drover_core::{Millis, NodeState, Phase, Sym, name, node::Role, spec::SoleWriter};

use crate::{Call, ConditionKey, ConditionKind, Op, Planner, Sole};

/// What conditions and steps call it.
const SOLE_WRITER: &str = "SoleWriter";
/// Failed attempts to end a permission after which a person is told.
const STUCK: u8 = 5;
/// Time over which the permissions of groups without standbys are given again after a start.
const SPREAD: Millis = 60_000;

impl Planner<'_> {
    /// The node of a group that may have acknowledged what nobody else has.
    pub(crate) fn sole(&self, group: usize) -> Option<Sole> {
        let path = &self.input.groups[group].path;
        self.state.sole.get(path).copied()
    }

    /// Gives the permission to acknowledge alone, and takes it back.
    pub(crate) fn follow_sole(&mut self, group: usize) {
        if self.give_up_sole(group) || self.end_refused(group) {
            return;
        }
        let spec = &self.input.groups[group];
        let Some((writer, needs)) = spec.sole_writer() else {
            return;
        };
        // Each of several active nodes is a store of its own.
        let allows = writer.allow.is_some() && Self::actives(spec) == 1;
        let Some(at) = self.sole_candidate(group) else {
            return;
        };
        let standbys = self.own(group).filter(|&other| {
            let mark = &self.marks[other];
            mark.role == Role::Standby && mark.available && !mark.dead && !mark.leaving
        });
        let lacks = standbys.count() < needs as usize;
        let node = &self.state.nodes[at];
        let to = Sole {
            slot: node.slot,
            ordinal: node.ordinal,
        };
        let recorded = self.sole(group);
        if recorded.is_none() && !(lacks && allows) {
            return;
        }
        if recorded == Some(to) {
            let change = node.in_flight.changes.sole.clone().unwrap_or_default();
            if change.call.in_flight {
                return;
            }
            if !lacks && !change.allow && change.done {
                self.forget_sole(group);
                return;
            }
            // One that somebody else ends, as an eviction does, gives its permission back while it still serves, or nobody
            // could take over from it.
            let ends = node.seen.phase == Phase::Deprovisioning;
            if !lacks {
                self.hold_stuck(group, at);
            } else if ends || !allows || spec.standby == 0 && change.allow && change.done {
                return;
            }
        }
        self.call_sole(group, at, to, lacks);
    }

    fn forget_sole(&mut self, group: usize) {
        let group = self.input.groups[group].path.clone();
        self.op(Op::Sole {
            group,
            to: None,
            doubt: false,
        });
    }

    /// Drops the record of a node that has no permission for certain, and never had.
    fn end_refused(&mut self, group: usize) -> bool {
        let recorded = self.sole(group).and_then(|sole| self.state.node(sole.slot));
        let change = recorded.and_then(|node| node.in_flight.changes.sole.as_deref());
        let refused = change.is_some_and(|it| it.allow && it.refused && !it.call.in_flight);
        if refused {
            self.forget_sole(group);
        }
        refused
    }

    /// Whether the permission of a node has not ended though that was tried again and again.
    pub(crate) fn is_stuck_alone(&self, at: usize) -> bool {
        let node = &self.state.nodes[at];
        let sole = self.state.sole.get(&node.group);
        let change = node.in_flight.changes.sole.as_deref();
        sole.is_some_and(|sole| sole.slot == node.slot)
            && change.is_some_and(|change| change.call.failures >= STUCK)
    }

    fn hold_stuck(&mut self, group: usize, at: usize) {
        if !self.is_stuck_alone(at) {
            return;
        }
        let path = &self.input.groups[group].path;
        let node = &self.state.nodes[at];
        let (name, change) = (node.name(), node.in_flight.changes.sole.as_deref());
        let why = change.map_or("", |change| &change.message);
        let message = format!(
            "the permission of {name} to acknowledge alone does not end: {why}. Until it does, no standby takes over. To do \
             without what only it has: drover replace CLUSTER/{name}, then drover failover CLUSTER/{path} --accept-loss"
        );
        let key = ConditionKey {
            group: path.clone(),
            kind: ConditionKind::UpdateBlocked,
        };
        self.hold(key, SOLE_WRITER, &message);
    }

    /// Has the hook run in the active node, after it is recorded.
    fn call_sole(&mut self, group: usize, at: usize, to: Sole, allow: bool) {
        let path = &self.input.groups[group].path;
        let change = self.state.nodes[at].in_flight.changes.sole.as_deref();
        let mut next = match change.filter(|change| change.allow == allow) {
            Some(change) => change.call.next,
            None => 0,
        };
        if self.input.groups[group].standby == 0 && next == 0 && change.is_some_and(|it| it.doubt) {
            // Nobody can be promoted, so it is in no hurry, and after a start there may be very many.
            next = self.input.process_start + self.state.uid.as_u128() as Millis % SPREAD;
        }
        if self.input.now < next {
            self.wake(next);
            self.note_until(path, Some(to.slot), false, "BackOff", Some(next), || {
                "its permission to acknowledge alone is changed then".into()
            });
            return;
        }
        self.note(path, Some(to.slot), true, SOLE_WRITER, || {
            if allow {
                "may acknowledge alone until enough standbys are Ready".into()
            } else {
                "is to acknowledge nothing without standbys any more".into()
            }
        });
        let recorded = self.state.sole.get(path).copied();
        if recorded != Some(to) {
            self.op(Op::Sole {
                group: path.clone(),
                to: Some(to),
                doubt: recorded.is_some(),
            });
        }
        self.plan.calls.push(Call::Sole {
            slot: to.slot,
            allow,
        });
    }

    /// Records an active node that this plan requests, if it gets storage: a node of before may have left its permission
    /// there, and what only it had.
    pub(crate) fn record_heirs_of_storage(&mut self, group: usize) {
        let spec = &self.input.groups[group];
        let allows = |(writer, _): (&SoleWriter, u32)| writer.allow.is_some();
        if spec.storage.is_none() || !spec.sole_writer().is_some_and(allows) {
            return;
        }
        let asked = self.asked(group).find(|node| node.role.may_act());
        let to = asked.map(|node| Sole {
            slot: node.slot,
            ordinal: node.ordinal,
        });
        if to.is_some() {
            let group = spec.path.clone();
            self.op(Op::Sole {
                group,
                to,
                doubt: true,
            });
        }
    }

    /// The same of active nodes that are taken in: a lost store may have known that they may acknowledge alone.
    pub(crate) fn record_adopted(&mut self) {
        let taken: Vec<(Sym, Sole)> = (self.plan.ops.iter())
            .filter_map(|op| match op {
                Op::TakeOrphan { node } if node.removal.is_none() && node.role.may_act() => {
                    let (slot, ordinal) = (node.slot, node.ordinal);
                    Some((node.group.clone(), Sole { slot, ordinal }))
                }
                _ => None,
            })
            .collect();
        for (group, sole) in taken {
            let spec = self
                .paths
                .get(&*group)
                .map(|at| &self.input.groups[usize::from(*at)]);
            let writer = spec.and_then(|spec| spec.sole_writer());
            if writer.is_some_and(|(writer, _)| writer.allow.is_some()) {
                self.op(Op::Sole {
                    group,
                    to: Some(sole),
                    doubt: true,
                });
            }
        }
    }

    /// The recorded node of a group, or else its only active one, if hooks can run in it.
    fn sole_candidate(&self, group: usize) -> Option<usize> {
        if let Some(sole) = self.sole(group)
            && let Some(at) = self.state.at(sole.slot)
            && self.is_active_and(at, &[Phase::Running, Phase::Deprovisioning])
        {
            return Some(at);
        }
        let mut acting = self.own(group).filter(|&at| self.may_act(at));
        let at = acting.next().filter(|_| acting.next().is_none())?;
        self.is_active_and(at, &[Phase::Running]).then_some(at)
    }

    /// Whether a node is active and seen in one of these phases, by a platform that can be called.
    fn is_active_and(&self, at: usize, phases: &[Phase]) -> bool {
        let (mark, node) = (&self.marks[at], &self.state.nodes[at]);
        let view = self.input.platforms.get(&node.platform);
        mark.role == Role::Active
            && !mark.leaving
            && !mark.dead
            && mark.fresh
            && phases.contains(&node.seen.phase)
            && view.is_some_and(|view| view.callable)
    }

    /// Drops the record of a sole writer whose writes a person has given up, unless it may still come back by itself: what
    /// it acknowledges after that nobody has given up.
    fn give_up_sole(&mut self, group: usize) -> bool {
        let accepted = &self.state.accepted_losses;
        let Some(sole) = self
            .sole(group)
            .filter(|sole| accepted.contains(&sole.slot))
        else {
            return false;
        };
        let stays = self.own(group).any(|at| {
            let mark = &self.marks[at];
            self.state.nodes[at].slot == sole.slot && !mark.dead
        });
        if !stays {
            self.forget_sole(group);
        }
        !stays
    }

    /// Whether a standby cannot take over, because a node that is gone may have acknowledged alone. Reported, with the way
    /// out.
    pub(crate) fn awaits_sole(&mut self, group: usize) -> bool {
        let Some(sole) = self.sole(group) else {
            return false;
        };
        let path = self.input.groups[group].path.clone();
        let message = format!(
            "{} may have acknowledged what no standby has, so none takes over: it is awaited. To do \
             without what only it has: drover failover CLUSTER/{path} --accept-loss",
            name::node_name(&path, sole.ordinal)
        );
        let key = ConditionKey {
            group: path.clone(),
            kind: ConditionKind::PromotionFailed,
        };
        self.hold(key, SOLE_WRITER, &message);
        self.note(&path, None, false, SOLE_WRITER, || message);
        true
    }

    /// Whether nobody else has what a node acknowledged, and it would go with the node: it is not replaced for being sick.
    pub(crate) fn has_only_copy(&self, at: usize) -> bool {
        let Some(spec) = self.input.groups.get(usize::from(self.marks[at].group)) else {
            return false;
        };
        let node = &self.state.nodes[at];
        let sole = self.state.sole.get(&spec.path);
        let ran = match node.state {
            NodeState::Requested | NodeState::Provisioning | NodeState::Starting => false,
            NodeState::Unhealthy => *node.reason != *"StartTimeout",
            _ => true,
        };
        sole.is_some_and(|sole| sole.slot == node.slot)
            && spec.standby > 0
            && ran
            && !(node.storage && spec.hands_on_storage())
    }

    /// Takes the node out of the sick ones with which something would go that nobody else has.
    pub(crate) fn keep_only_copies(&mut self, group: usize, sick: &mut Vec<usize>) {
        let only = sick.iter().copied().find(|&at| self.has_only_copy(at));
        let Some(only) = only else {
            return;
        };
        sick.retain(|&at| at != only);
        let path = self.input.groups[group].path.clone();
        let name = self.state.nodes[only].name();
        let message = format!(
            "{name} is sick and left alone: it may have acknowledged what no standby has, and no storage outlives it. To do \
             without what only it has: drover replace CLUSTER/{name}, then drover failover CLUSTER/{path} --accept-loss"
        );
        self.block_remediation(&path, &message);
    }

    /// Whether the place of the sole writer of a group is to be filled by a node that gets its storage.
    pub(crate) fn sole_returns(&self, group: usize) -> bool {
        let sole = self.sole(group);
        sole.is_some_and(|sole| self.vacated(group).contains(&sole.ordinal))
    }

    /// Drops the records of groups that are gone with their nodes.
    pub(crate) fn drop_soles(&mut self) {
        let gone = |path: &&Sym| {
            let mut nodes = self.state.nodes.iter();
            !self.paths.contains_key(&***path) && !nodes.any(|node| node.group == **path)
        };
        let gone: Vec<Sym> = self.state.sole.keys().filter(gone).cloned().collect();
        for group in gone {
            self.op(Op::Sole {
                group,
                to: None,
                doubt: false,
            });
        }
    }
}
