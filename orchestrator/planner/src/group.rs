//! One group: which nodes are removed.

use drover_core::{
    NodeState, Sym,
    node::{RemovalReason, Role},
    spec::{Amount, Budget, Choice, Group, Probe},
};
use uuid::Uuid;

use crate::{
    BackOffKey, BackOffKind, ConditionKey, ConditionKind, Op, PLATFORM_BREAKER_PAUSE, Planner,
    most_troubled,
};

/// Numbers of nodes of a group, assuming the worst of what is not known.
pub(crate) struct Tally {
    /// Slots that are not proven absent or dead, nor given up: an upper bound of what is of use.
    pub(crate) present: usize,
    /// Fresh nodes of known outcome that are not leaving: a lower bound of what exists.
    pub(crate) certain: Vec<usize>,
    /// Nodes that serve, as judged by `serves`.
    pub(crate) available: usize,
}

impl Planner<'_> {
    pub(crate) fn plan_group(&mut self, at: usize, new_id: &mut dyn FnMut() -> Uuid) {
        self.end_back_offs_of_old_templates(at);
        let group = &self.input.groups[at];
        self.hold_back_offs(group);
        self.hold_hosts(group);
        if self.behind {
            // The spec may be as old as the rest of the store.
            self.note(&group.path, None, false, "StoreBehind", || {
                "nothing is made, healed or scaled while the store is older than reality".into()
            });
            return;
        }
        let rolls = self.state.rollouts.contains_key(&group.path);
        self.scale_away(at);
        self.replace_dead(at);
        let successors = self.replace_sick(at);
        // If nodes go one at a time, marked nodes are not replaced while there are too many.
        let too_many = self.tally(at).certain.len() > Self::size(group) + successors;
        let spare = if too_many && !rolls && self.one_goes(at) {
            successors
        } else {
            self.renew(at).max(successors)
        };
        self.remove_surplus(at, spare);
        self.record_surplus(at);
        self.follow_sole(at);
        self.assign_roles(at);
        self.relabel(at);
        self.grow(at);
        self.create(at, spare, new_id);
        self.record_heirs_of_storage(at);
        self.judge_promotion(at);
        self.judge_update(at);
        self.watch_expiry(at);
        self.watch_maintenance(at);
        self.follow_growth(at);
    }

    pub(crate) fn tally(&self, group: usize) -> Tally {
        let mut tally = Tally {
            present: 0,
            certain: Vec::new(),
            available: 0,
        };
        for at in self.own(group) {
            let mark = &self.marks[at];
            tally.present += usize::from(!mark.dead && !self.is_given_up(at));
            if !mark.leaving && !mark.dead && mark.fresh && self.state.nodes[at].is_resolved() {
                tally.certain.push(at);
            }
            tally.available += usize::from(self.serves(at));
        }
        tally
    }

    /// Desired number of nodes, active and standby.
    pub(crate) fn size(group: &Group) -> usize {
        group.total() as usize
    }

    /// How many nodes of a group may be replaced concurrently.
    pub(crate) fn budget(&self, group: usize) -> Budget {
        let spec = &self.input.groups[group];
        let finite = |choice: &Choice| {
            let view = self.input.platforms.get(&choice.platform);
            view.is_some_and(|view| view.finite)
        };
        spec.budget_in(!spec.choices.is_empty() && spec.choices.iter().all(finite))
    }

    /// Whether a group may have more nodes than it is allowed, so that none of its requests may be sent again.
    pub(crate) fn is_over(&self, group: usize) -> bool {
        let own = || self.own(group);
        let spec = &self.input.groups[group];
        let mut spare = 0;
        if own().any(|at| self.is_renewed(at)) {
            spare = self.budget(group).surge as usize;
        }
        if self.creates_first(group) && own().any(|at| self.marks[at].sick) {
            spare = spare.max(1);
        }
        let most = Self::size(spec) + spare;
        own()
            .filter(|&at| !self.marks[at].dead && !self.is_given_up(at))
            .count()
            > most
            || spec.standby > 0 && self.acting(group) > Self::actives(spec)
    }

    /// Slots of a group on a platform that are being created or removed.
    pub(crate) fn in_flight(&self, group: usize, platform: &str) -> usize {
        self.own(group)
            .filter(|&at| {
                let node = &self.state.nodes[at];
                let making = matches!(
                    node.state,
                    NodeState::Requested | NodeState::Provisioning | NodeState::Starting
                );
                let going = self.marks[at].leaving && !self.is_given_up(at);
                *node.platform == *platform && (going || making)
            })
            .count()
    }

    pub(crate) fn may_fly(&mut self, group: usize, platform: &Sym) -> bool {
        let Some(most) = self.input.groups[group].max_in_flight else {
            return true;
        };
        let may = self.in_flight(group, platform) < most as usize;
        if !may {
            let path = self.input.groups[group].path.clone();
            self.note(&path, None, false, "MaxInFlight", || {
                format!("{most} at a time on {platform}")
            });
        }
        may
    }

    fn replace_dead(&mut self, group: usize) {
        let dead: Vec<usize> = self
            .own(group)
            .filter(|&at| self.marks[at].dead && self.is_removable(at))
            .collect();
        for at in dead {
            if self.full() {
                return;
            }
            let platform = self.state.nodes[at].platform.clone();
            if self.may_fly(group, &platform) {
                self.intend(at, RemovalReason::Dead);
            }
        }
    }

    /// Whether the replacement of a sick node is created before the node is removed.
    pub(crate) fn creates_first(&self, group: usize) -> bool {
        let spec = &self.input.groups[group];
        spec.remediation.create_first && !spec.delete_first()
    }

    /// Removes sick nodes. Returns how many nodes beyond the size may exist for their replacements.
    fn replace_sick(&mut self, group: usize) -> usize {
        self.relieve_ending(group);
        self.relieve_failing(group);
        let spec = &self.input.groups[group];
        let mut sick: Vec<usize> = self
            .own(group)
            .filter(|&at| self.marks[at].sick && !self.marks[at].surplus && self.is_removable(at))
            .collect();
        self.keep_only_copies(group, &mut sick);
        if sick.is_empty() {
            return 0;
        }
        if !spec.remediation.enabled {
            self.note(&spec.path, None, false, "RemediationBlocked", || {
                format!("{} sick, and remediation is switched off", sick.len())
            });
            return 0;
        }
        let most = match spec.remediation.max_unhealthy {
            Amount::Count(count) => count as usize,
            Amount::Percent(percent) => Self::size(spec) * percent as usize / 100,
        };
        let most = most.max(1);
        // Nodes that are already being replaced count too; otherwise the breaker would only slow an epidemic down.
        let going = self
            .own(group)
            .filter(|&at| {
                let removal = self.state.nodes[at].removal;
                removal.is_some_and(|removal| removal.reason == RemovalReason::Sick)
            })
            .count();
        let handed_over = self.handed_over(group, &sick);
        if sick.len() + going > most {
            let message = format!(
                "{} of {} are sick, more than {most}: none is replaced",
                sick.len() + going,
                Self::size(spec)
            );
            self.block_remediation(&spec.path, &message);
            if handed_over.is_empty() {
                return 0;
            }
            sick.clone_from(&handed_over);
        }
        if let Some(reason) = self.frozen() {
            self.note(&spec.path, None, false, reason, || {
                format!(
                    "{} sick; they stay while nothing may be made instead",
                    sick.len()
                )
            });
            return 0;
        }
        if let Some(why) = self.lacks.clone() {
            self.wait_for_infrastructure(&spec.path, &why);
            return 0;
        }
        for &at in &sick {
            if !self.marks[at].ripe {
                let slot = self.state.nodes[at].slot;
                self.note(&spec.path, Some(slot), false, "Budget", || {
                    "sick; replaced when it is known that it is not one of many".into()
                });
            }
        }
        sick.retain(|&at| self.marks[at].ripe);
        sick.sort_by_key(|&at| std::cmp::Reverse(self.state.nodes[at].slot));
        if self.is_ordered(group) {
            if self.one_goes(group) {
                return 0;
            }
            sick.sort_by_key(|&at| self.state.nodes[at].ordinal);
            sick.truncate(1);
        }
        let mut waiting = sick.len();
        let mut spare = 0;
        for at in sick {
            let node = &self.state.nodes[at];
            let (platform, hash) = (node.platform.clone(), node.spec_hash.clone());
            if self.full() {
                return 0;
            }
            if self.platform_breaker_open(&spec.path, &platform) && !handed_over.contains(&at) {
                continue;
            }
            // If it were removed now, it could not be replaced yet: it stays until it can.
            let key = BackOffKey::of(&spec.path, &hash, &platform);
            // Its standby can take over immediately, whether or not a new one can be created.
            let relieved = self.is_relieved(group, at);
            if let Some(next) = self
                .back_off(&key)
                .map(|b| b.next)
                .filter(|next| *next > self.input.now && !relieved)
            {
                self.wake(next);
                self.note_until(
                    &spec.path,
                    Some(node.slot),
                    false,
                    "BackOff",
                    Some(next),
                    || "sick; replaced when new nodes may be made again".into(),
                );
                continue;
            }
            if self.creates_first(group) && !relieved {
                spare = 1;
                if self.tally(group).available + waiting <= Self::size(spec) {
                    let slot = node.slot;
                    self.note(&spec.path, Some(slot), false, "Budget", || {
                        "sick; replaced when its successor is Ready".into()
                    });
                    continue;
                }
            }
            if !self.may_fly(group, &platform) {
                continue;
            }
            waiting -= 1;
            let message = self.why_sick(at);
            self.count_failure(node, Some(spec), BackOffKind::Failure, &message);
            self.intend(at, RemovalReason::Sick);
        }
        if waiting > 0 { spare } else { 0 }
    }

    /// Why a node is sick, as judged by this plan or recorded.
    fn why_sick(&self, at: usize) -> Box<str> {
        let node = &self.state.nodes[at];
        let judged = self.plan.ops.iter().rev().find_map(|op| match op {
            Op::StateChanged { slot, message, .. } if *slot == node.slot => Some(message.clone()),
            _ => None,
        });
        judged.unwrap_or_else(|| node.message.clone())
    }

    fn platform_breaker_open(&mut self, group: &Sym, platform: &Sym) -> bool {
        let Some(view) = self.input.platforms.get(platform) else {
            return true;
        };
        let most = most_troubled(view.total);
        let open = view.sick > most;
        if open {
            let message = format!(
                "{} nodes on {platform} are sick, more than {most}: none is replaced",
                view.sick
            );
            self.block_remediation(group, &message);
            // The nodes that recover may be of other clusters, and nothing notifies this one.
            self.wake(self.input.now + PLATFORM_BREAKER_PAUSE);
        }
        open
    }

    pub(crate) fn block_remediation(&mut self, group: &Sym, message: &str) {
        let key = ConditionKey {
            group: group.clone(),
            kind: ConditionKind::RemediationBlocked,
        };
        self.hold(key, "RemediationBlocked", message);
        self.note(group, None, false, "RemediationBlocked", || {
            message.to_owned()
        });
    }

    pub(crate) fn remove_surplus(&mut self, group: usize, spare: usize) {
        let spec = &self.input.groups[group];
        let tally = self.tally(group);
        let surplus = tally.certain.len().saturating_sub(Self::size(spec) + spare);
        let beyond = self.beyond(group, &tally.certain);
        let strays = beyond.as_ref().map_or(0, |(strays, _)| *strays);
        let mut floor = Self::size(spec);
        if strays > surplus {
            floor = floor.saturating_sub(self.budget(group).unavailable as usize);
        }
        let mut order: Vec<usize> = match beyond {
            Some((strays, last_first)) => {
                last_first.into_iter().take(surplus.max(strays)).collect()
            }
            None => self.surplus_order(group, tally.certain, surplus),
        };
        if order.is_empty() || self.one_goes(group) {
            return;
        }
        if self.is_ordered(group) {
            order.truncate(1);
        }
        let mut available = tally.available;
        let mut acting = self.serving(group);
        for (position, at) in order.into_iter().enumerate() {
            let acts = spec.standby > 0 && self.marks[at].role.may_act();
            if self.may_serve(at) {
                // A node that is only about to become active is not one of those that serve.
                let serves = self.marks[at].role == Role::Active;
                let enough = if acts {
                    acting + usize::from(!serves) > Self::actives(spec)
                } else {
                    available > floor
                };
                if !enough {
                    let slot = self.state.nodes[at].slot;
                    self.note(&spec.path, Some(slot), false, "Budget", || {
                        "goes when enough others are Ready".into()
                    });
                    continue;
                }
                let counted = self.serves(at);
                available -= usize::from(counted);
                acting -= usize::from(acts && serves && counted);
            }
            let platform = self.state.nodes[at].platform.clone();
            if self.full() || !self.may_fly(group, &platform) {
                return;
            }
            // Nodes that only make room for an ordinal below the size are not scaled down: their data is retained.
            let moves = strays > surplus && position >= surplus && self.state.nodes[at].storage;
            let retain = moves || self.retains(at, RemovalReason::Surplus);
            self.intend_with(at, RemovalReason::Surplus, retain);
        }
    }

    /// Whether a node is Ready, stays, and was probed by this process: health that an earlier process observed does not
    /// allow the removal of another node.
    pub(crate) fn serves(&self, at: usize) -> bool {
        let mark = &self.marks[at];
        let known = self.state.nodes[at].probe.answered;
        mark.available && !mark.leaving && (known || self.health_of(at).probe == Probe::Phase)
    }

    /// Whether a node may be Ready, even if that is not observed now.
    pub(crate) fn may_serve(&self, at: usize) -> bool {
        self.marks[at].available || self.state.nodes[at].state == NodeState::Ready
    }

    /// Whether a node is not what its group wants now.
    pub(crate) fn is_outdated(&self, at: usize) -> bool {
        let group = self.input.groups.get(usize::from(self.marks[at].group));
        group.is_some_and(|group| !group.makes(&self.state.nodes[at]) && !self.grows(at))
            || self.is_of_old_template(at)
    }
}
