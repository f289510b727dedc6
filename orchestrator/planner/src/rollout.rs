//! Rollouts: nodes that are outdated or marked by the user are replaced one after the other, within the budget of their
//! group.

use drover_core::{
    Millis, NodeState, Sym,
    node::RemovalReason,
    spec::{Budget, Group, UpdateStrategy},
    words,
};

use crate::{
    BackOffKey, BackOffKind, ConditionKey, ConditionKind, Op, Planner, Renewal, Rollout,
    observe::{millis, seconds},
};

/// Nodes of a group, by their progress in a rollout.
struct Progress {
    /// To be replaced and not leaving yet.
    left: Vec<usize>,
    /// Up to date, and available for as long as the update requires.
    ready: usize,
    /// Up to date and not available yet, or leaving: replacements in progress.
    pending: usize,
}

impl Planner<'_> {
    /// Removes nodes that are to be replaced, as the budget allows. Returns how many nodes beyond the size may exist
    /// for that.
    pub(crate) fn renew(&mut self, group: usize) -> usize {
        self.restamp(group);
        if self.renewal_waits(group) {
            return 0;
        }
        let progress = self.progress(group);
        self.follow_rollout(group, &progress);
        let spec = &self.input.groups[group];
        if progress.left.is_empty() {
            if self.rolls(&self.input.groups[group].path) {
                self.block_by_back_off(group);
            }
            return 0;
        }
        let budget = self.budget(group);
        self.explain_renewal(group, budget, &progress.left);
        self.block_by_back_off(group);
        if let Some(reason) = self.frozen() {
            self.note(&spec.path, None, false, reason, || {
                format!(
                    "{} to be replaced; they stay while nothing may be made instead",
                    progress.left.len()
                )
            });
            return 0;
        }
        if let Some(why) = self.lacks.clone() {
            self.wait_for_infrastructure(&spec.path, &why);
            return 0;
        }
        self.remove_renewed(group, budget, progress);
        let waits = self
            .own(group)
            .any(|at| self.is_renewed(at) && !self.marks[at].leaving);
        if waits { budget.surge as usize } else { 0 }
    }

    fn remove_renewed(&mut self, group: usize, budget: Budget, progress: Progress) {
        if self.one_is_renewed(group) {
            return;
        }
        let spec = &self.input.groups[group];
        let floor = Self::size(spec).saturating_sub(budget.unavailable as usize);
        let pace = (budget.surge + budget.unavailable).max(1) as usize;
        let mut pending = progress.pending;
        let mut available = self.seasoned(group);
        let removable: Vec<usize> = progress
            .left
            .into_iter()
            .filter(|&at| self.is_removable(at))
            // A node that was not named by the user is removed only if its state and the outcome of its creation are
            // known.
            .filter(|&at| {
                let node = &self.state.nodes[at];
                node.marked || self.marks[at].fresh && node.is_resolved()
            })
            .collect();
        let count = removable.len();
        for at in self.renewal_order(group, removable, count) {
            let node = &self.state.nodes[at];
            let (slot, platform) = (node.slot, node.platform.clone());
            let counts = usize::from(self.is_seasoned(group, at));
            let others = available - counts;
            // A node that once ran may still run with only its probes cut off: such nodes are replaced as slowly as
            // those that serve.
            let ran = node.state == NodeState::Unhealthy && *node.reason != *"StartTimeout";
            if self.may_serve(at) && others < floor {
                self.note(&spec.path, Some(slot), false, "Budget", || {
                    if budget.surge > 0 {
                        "replaced when its successor is Ready".into()
                    } else {
                        "replaced when all others are Ready".into()
                    }
                });
                continue;
            }
            if !self.may_serve(at) && ran && pending >= pace {
                self.note(&spec.path, Some(slot), false, "Budget", || {
                    "replaced when those before it are Ready".into()
                });
                continue;
            }
            let kept = self.has_only_copy(at) && !self.state.nodes[at].marked;
            if kept || self.may_serve(at) && self.awaits_standby(group, at, budget) {
                continue;
            }
            if self.full() || !self.may_fly(group, &platform) {
                return;
            }
            let reason = if self.state.nodes[at].marked {
                RemovalReason::User
            } else if self.is_expired(at) && !self.is_outdated(at) {
                RemovalReason::Lifetime
            } else if self.is_stopped_soon(at) && !self.is_outdated(at) {
                RemovalReason::Maintenance
            } else {
                RemovalReason::Outdated
            };
            self.intend(at, reason);
            (pending, available) = (pending + 1, available - counts);
            if self.is_ordered(group) {
                return;
            }
        }
    }

    /// Whether a node is to be replaced: it is marked, expired or misplaced, maintenance stops it, or it is outdated and
    /// the group updates nodes by itself.
    pub(crate) fn is_renewed(&self, at: usize) -> bool {
        let Some(group) = self.input.groups.get(usize::from(self.marks[at].group)) else {
            return false;
        };
        let mark = &self.marks[at];
        !mark.forgotten
            && !mark.dead
            && !mark.surplus
            && (self.state.nodes[at].marked
                || self.is_expired(at)
                || self.is_misplaced(at)
                || self.is_stopped_soon(at)
                || group.update.strategy == UpdateStrategy::Rolling && self.is_outdated(at))
    }

    /// Whether a node has been available for as long as an update of its group requires.
    fn is_seasoned(&self, group: usize, at: usize) -> bool {
        let node = &self.state.nodes[at];
        let min_ready = millis(self.input.groups[group].update.min_ready);
        self.serves(at)
            && (min_ready == 0
                || node.state == NodeState::Ready && self.input.now >= node.state_time + min_ready)
    }

    fn seasoned(&self, group: usize) -> usize {
        self.own(group)
            .filter(|&at| self.is_seasoned(group, at))
            .count()
    }

    fn progress(&mut self, group: usize) -> Progress {
        let mut progress = Progress {
            left: Vec::new(),
            ready: 0,
            pending: 0,
        };
        let min_ready = millis(self.input.groups[group].update.min_ready);
        let mut soon = Millis::MAX;
        for at in self.own(group) {
            let (mark, node) = (&self.marks[at], &self.state.nodes[at]);
            if mark.dead {
                continue;
            }
            if mark.leaving {
                progress.pending += 1;
            } else if self.is_renewed(at) {
                progress.left.push(at);
            } else if self.is_seasoned(group, at) {
                progress.ready += 1;
            } else {
                progress.pending += 1;
                let due = node.state_time + min_ready;
                // A node that lacks only a probe result needs no timer: the probe wakes the cluster.
                if mark.available && node.state == NodeState::Ready && due > self.input.now {
                    soon = soon.min(due);
                }
            }
        }
        let path = &self.input.groups[group].path;
        let rolls = !progress.left.is_empty() || self.state.rollouts.contains_key(path);
        if soon != Millis::MAX && rolls {
            self.wake(soon);
        }
        progress
    }

    /// Records the progress of a rollout: when it began, and when it last advanced.
    fn follow_rollout(&mut self, group: usize, progress: &Progress) {
        let spec = &self.input.groups[group];
        let before = self.rollout(&spec.path);
        let before = before.as_ref();
        let counts = (progress.ready as u32, progress.left.len() as u32);
        let (ready, left) = counts;
        let now = self.input.now;
        let target = spec.choices.first().map(crate::template::target);
        let target = target.unwrap_or_default();
        let to = match before {
            _ if left == 0 && before.is_none() => None,
            // While the last node leaves, the rollout goes on: its replacement still has to show that it works.
            _ if left == 0 && progress.pending == 0 && progress.ready >= Self::size(spec) => None,
            Some(same) if crate::template::is_same(&same.target, &target) => {
                let mut same = same.clone();
                if left != same.left || ready > same.ready {
                    (same.progress, same.left) = (now, left);
                    same.ready = same.ready.max(ready);
                }
                Some(same)
            }
            _ => Some(Rollout {
                target,
                started: now,
                progress: now,
                ready,
                left,
                size: before.map_or(0, |before| before.size),
                surplus: before.map_or(0, |before| before.surplus),
            }),
        };
        if before != to.as_ref() {
            self.op(Op::Rollout {
                group: spec.path.clone(),
                to,
            });
        }
    }

    /// Reports a rollout as blocked if it has not advanced for too long. Called after everything else that may explain
    /// why.
    pub(crate) fn judge_update(&mut self, group: usize) {
        let spec = &self.input.groups[group];
        let Some(rollout) = self.state.rollouts.get(&spec.path) else {
            return;
        };
        let left = self.own(group).filter(|&at| self.is_renewed(at));
        let left = left.filter(|&at| !self.marks[at].leaving).count();
        let done = self.own(group).filter(|&at| !self.is_renewed(at));
        let done = done.filter(|&at| self.is_seasoned(group, at)).count();
        let open = left.max(Self::size(spec).saturating_sub(done));
        if open == 0 || self.plan.ops.iter().any(|op| is_rollout(op, &spec.path)) {
            return;
        }
        // A node counts as progress only after it has been ready for `min_ready`.
        let patience = millis(spec.update.progress_deadline + spec.update.min_ready);
        let due = rollout.progress + patience;
        if self.input.now < due {
            self.wake(due);
            return;
        }
        let mut message = format!(
            "{open} of {} {} not updated and nothing has come on for {}",
            Self::size(spec),
            words::are(open),
            seconds(patience),
        );
        let slow = self.own(group).find(|&at| {
            let mark = &self.marks[at];
            !mark.leaving && !mark.dead && !mark.available && !self.is_renewed(at)
        });
        if let Some(at) = slow {
            let node = &self.state.nodes[at];
            let words = words::because(&node.reason, &node.message);
            message.push_str(&format!("; {} does not become ready", node.name()));
            if !words.is_empty() {
                message.push_str(&format!(" ({words})"));
            }
        }
        self.block_update(&spec.path, "ProgressDeadline", &message);
    }

    /// A rollout for which no new nodes can be created is blocked, and the old nodes stay.
    fn block_by_back_off(&mut self, group: usize) {
        let spec = &self.input.groups[group];
        let mut blocked = None;
        for choice in &spec.choices {
            let key = BackOffKey::of(&spec.path, &choice.spec_hash, &choice.platform);
            let Some(back_off) = self.back_off(&key) else {
                // Another choice may still work.
                return;
            };
            let reason = match back_off.kind {
                BackOffKind::Rejected => "Rejected",
                BackOffKind::Credentials => "CREDENTIALS_REFUSED",
                BackOffKind::Failure if back_off.failures >= spec.remediation.max_retries => {
                    "Failed"
                }
                BackOffKind::Failure | BackOffKind::NoCapacity => return,
            };
            blocked = blocked.or_else(|| {
                let message = format!("{}: {}", choice.platform, back_off.message);
                Some((reason, message))
            });
        }
        if let Some((reason, message)) = blocked {
            self.block_update(&spec.path, reason, &message);
        }
    }

    pub(crate) fn block_update(&mut self, group: &Sym, reason: &'static str, message: &str) {
        let key = ConditionKey {
            group: group.clone(),
            kind: ConditionKind::UpdateBlocked,
        };
        self.hold(key, reason, message);
        self.note(group, None, false, "UpdateBlocked", || message.to_owned());
    }

    /// Replaces hashes of an earlier formula by the present ones: the formula has changed, not the node. Records the size of
    /// storage with them where it was not.
    fn restamp(&mut self, group: usize) {
        let spec = &self.input.groups[group];
        let storage_size = spec.storage.as_ref().and_then(|it| it.size);
        let old: Vec<Op> = self
            .own(group)
            .filter(|&at| !self.marks[at].leaving && !self.is_open(self.state.nodes[at].request))
            .filter_map(|at| {
                let node = &self.state.nodes[at];
                let mut choices = spec.choices.iter();
                let choice = choices.find(|choice| choice.is_hash(&node.spec_hash))?;
                let stamped = choice.spec_hash == node.spec_hash;
                (!stamped || node.storage_size != storage_size).then(|| Op::Restamp {
                    slot: node.slot,
                    spec_hash: choice.spec_hash.clone(),
                    storage_size,
                    labels_hash: choice.labels_of(node).clone(),
                })
            })
            .collect();
        for op in old {
            if self.full() {
                return;
            }
            self.op(op);
        }
    }

    /// Whether nodes of a group are being replaced, as of this plan.
    pub(crate) fn rolls(&self, path: &Sym) -> bool {
        self.rollout(path).is_some()
    }

    /// The rollout of a group as of this plan.
    pub(crate) fn rollout(&self, path: &Sym) -> Option<Rollout> {
        let changed = self.plan.ops.iter().rev().find_map(|op| match op {
            Op::Rollout { group, to } if group == path => Some(to.clone()),
            _ => None,
        });
        changed.unwrap_or_else(|| self.state.rollouts.get(path).cloned())
    }

    /// Drops the rollouts of groups that are gone.
    pub(crate) fn drop_rollouts(&mut self) {
        let gone: Vec<Sym> = self
            .state
            .rollouts
            .keys()
            .filter(|path| !self.paths.contains_key(&***path))
            .cloned()
            .collect();
        for group in gone {
            self.op(Op::Rollout { group, to: None });
        }
    }

    pub(crate) fn explain_renewal(&mut self, group: usize, budget: Budget, left: &[usize]) {
        if !self.input.explain {
            return;
        }
        let spec = &self.input.groups[group];
        let order = self.renewal_order(group, left.to_vec(), left.len());
        let order = order.into_iter().map(|at| self.state.nodes[at].slot);
        let at_most = self.longest(group, spec, budget, left.len());
        let renewal = Renewal {
            group: spec.path.clone(),
            budget,
            size: Self::size(spec) as u32,
            order: order.collect(),
            at_most,
        };
        self.plan.renewals.push(renewal);
    }

    /// Upper bound for the replacement of `count` nodes if none fails: each round takes as long as a node may take.
    fn longest(&self, group: usize, spec: &Group, budget: Budget, count: usize) -> Millis {
        let platform = spec.choices.first().map(|choice| &choice.platform);
        let view = platform.and_then(|platform| self.input.platforms.get(platform));
        let provision = spec
            .provision_timeout
            .map(millis)
            .or_else(|| view.map(|view| view.provision_timeout))
            .unwrap_or_default();
        let health = self.health(group as u16);
        let each = provision
            + millis(health.startup_timeout)
            + millis(spec.update.min_ready)
            + millis(spec.grace);
        let together = (budget.surge + budget.unavailable).max(1) as usize;
        each * count.div_ceil(together) as u64
    }
}

fn is_rollout(op: &Op, path: &Sym) -> bool {
    matches!(op, Op::Rollout { group, to: Some(_) } if group == path)
}
