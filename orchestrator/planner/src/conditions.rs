//! Conditions of the cluster and its groups after a plan, and the completion of a deletion.

use std::{collections::BTreeMap, sync::LazyLock};

use drover_core::{Sym, error::cut, node::Role, words};

use crate::{BackOffKey, Condition, ConditionKey, ConditionKind, Op, Planner};

/// Consecutive failures after which the removal of a node counts as blocked.
const STUCK_REMOVALS: u8 = 3;
/// Reason of conditions that hold as long as everything is as it should be.
const AS_WANTED: &str = "AsWanted";

/// A reason as it is recorded. The one that every cluster has most of the time is allocated once.
fn shared(reason: &str) -> Sym {
    static SHARED: LazyLock<Sym> = LazyLock::new(|| AS_WANTED.into());
    if reason == AS_WANTED {
        SHARED.clone()
    } else {
        reason.into()
    }
}

impl Planner<'_> {
    /// Sets a condition. The first cause that a plan gives wins.
    pub(crate) fn hold(&mut self, key: ConditionKey, reason: &str, message: &str) {
        let before = self.state.conditions.get(&key);
        let now = self.input.now;
        self.holds.entry(key).or_insert_with(|| match before {
            Some(same) if *same.reason == *reason && *same.message == *message => same.clone(),
            _ => Condition {
                reason: shared(reason),
                message: cut(message.to_owned()).into(),
                since: before.map_or(now, |condition| condition.since),
            },
        });
    }

    pub(crate) fn conclude(&mut self) {
        if self.plan.again {
            // An incomplete plan says nothing about the actual state.
            return;
        }
        let whole = |kind| ConditionKey {
            group: Sym::default(),
            kind,
        };
        if self.state.paused {
            self.hold(whole(ConditionKind::Paused), "Paused", "");
        }
        if self.state.deleting {
            self.hold(whole(ConditionKind::Deleting), "User", "");
        }
        self.state_readiness();
        self.state_blocked_deletion();
        self.state_lost_hosts();
        self.state_maintenance();
        self.state_impairments();
        self.drop_rollouts();
        self.drop_growth();
        self.publish();
        if self.state.observed_generation != self.state.generation {
            self.drop_old_back_offs();
            self.op(Op::Observed {
                generation: self.state.generation,
            });
        }
        self.plan.finished = self.state.deleting
            && !self.state.paused
            && self.state.nodes.is_empty()
            && self.state.requests.is_empty()
            && self.state.resources.is_empty()
            && self.state.orphans.is_empty()
            && self.state.resource_orphans.is_empty();
    }

    /// A group is Ready if it has as many available nodes as wanted, and no others.
    fn state_readiness(&mut self) {
        let mut all = !self.state.deleting && !self.input.groups.is_empty();
        all &= self.state_infrastructure();
        all &= self.state_addons();
        let mut looks = false;
        for (at, group) in self.input.groups.iter().enumerate() {
            let size = Self::size(group);
            let (mut present, mut available) = (0, 0);
            let (mut active, mut unseen) = (0, 0);
            for node in self.own(at) {
                let mark = &self.marks[node];
                present += 1;
                active += usize::from(mark.role == Role::Active);
                available += usize::from(mark.available && !mark.leaving);
                unseen += usize::from(!mark.leaving && self.is_unseen(node));
            }
            // Every start begins like this, which takes nothing back: the record is older than what is not known yet.
            let key = ConditionKey {
                group: group.path.clone(),
                kind: ConditionKind::Ready,
            };
            if unseen > 0 && self.state.conditions.contains_key(&key) {
                available += unseen;
                looks = true;
            }
            let renewed = self.own(at).any(|node| self.is_renewed(node));
            let ready = present == size
                && available == size
                && active == Self::actives(group)
                && !renewed
                && self.is_labelled(at)
                && self.is_grown(at)
                && (group.standby == 0 || self.sole(at).is_none())
                && !self.rolls(&group.path);
            all &= ready;
            if ready {
                self.hold(key, AS_WANTED, "");
            }
        }
        if looks {
            self.wake(self.first_look());
        }
        let others = self
            .marks
            .iter()
            .any(|mark| mark.group == crate::NO_GROUP && !mark.forgotten);
        let key = ConditionKey {
            group: Sym::default(),
            kind: ConditionKind::Ready,
        };
        // What was not ready does not become it unseen.
        let known = !looks || self.state.conditions.contains_key(&key);
        if all && !others && known {
            self.hold(key, AS_WANTED, "");
        }
    }

    /// Reports what blocks the deletion of the cluster, of a group or of single nodes, and will not resolve by itself.
    fn state_blocked_deletion(&mut self) {
        let mut blocked: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for (at, (mark, node)) in self.marks.iter().zip(&self.state.nodes).enumerate() {
            let view = self.input.platforms.get(&node.platform);
            let goes = mark.leaving || self.is_unwanted(at);
            let trouble = match view {
                _ if mark.forgotten || !goes => continue,
                None => "is not registered",
                Some(view) if *view.uid != *node.platform_uid => {
                    "shows another backend than the one that they are on"
                }
                Some(view) if !view.visible || !view.callable => &view.trouble,
                Some(_) if node.in_flight.call.failures >= STUCK_REMOVALS => {
                    "keeps failing to remove them"
                }
                Some(_) => continue,
            };
            *blocked.entry((&*node.platform, trouble)).or_default() += 1;
        }
        let mut words: Vec<String> = blocked
            .iter()
            .map(|((platform, trouble), count)| {
                let nodes = words::count(*count, "node");
                format!("{nodes} on {platform}, which {trouble}")
            })
            .collect();
        if self.state.deleting {
            words.extend(self.blocking_resources());
        }
        if self.state.deleting {
            words.extend(self.blocking_orphans());
        }
        let count = self.state.orphans.len() + self.state.resource_orphans.len();
        if self.state.deleting && self.input.orphan_hold && count > 0 {
            words.push(format!(
                "{count} without a record, which a person has to confirm after the restore"
            ));
        }
        let lost = self.deletions_on_lost_hosts();
        let reason = if words.is_empty() {
            "HostLost"
        } else {
            "PlatformUnavailable"
        };
        words.extend(lost);
        if words.is_empty() {
            return;
        }
        let key = ConditionKey {
            group: Sym::default(),
            kind: ConditionKind::DeletionBlocked,
        };
        self.hold(key, reason, &words.join("; "));
    }

    /// Orphans that cannot be swept because their backend is not visible.
    fn blocking_orphans(&self) -> Vec<String> {
        let mut blocked: BTreeMap<&str, usize> = BTreeMap::new();
        for ((platform, _), orphan) in &self.state.orphans {
            if !self.sees_orphan(platform, orphan) {
                *blocked.entry(platform).or_default() += 1;
            }
        }
        for platform in self.hidden_resources() {
            *blocked.entry(platform).or_default() += 1;
        }
        let words = blocked.into_iter().map(|(platform, count)| {
            format!("{count} without a record on {platform}, which cannot be seen")
        });
        words.collect()
    }

    /// Clears back-offs that are over and about specs that are no longer wanted, so that they do not accumulate.
    fn drop_old_back_offs(&mut self) {
        let old: Vec<BackOffKey> = self
            .state
            .backoffs
            .iter()
            .filter(|(key, back_off)| {
                let group = self.paths.get(&*key.group);
                let wanted = group.is_some_and(|&at| {
                    let mut choices = self.input.groups[usize::from(at)].choices.iter();
                    choices.any(|choice| choice.is_hash(&key.spec_hash))
                });
                !wanted && back_off.next <= self.input.now
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in old {
            self.set_back_off(key, None);
        }
    }

    fn publish(&mut self) {
        let ended: Vec<ConditionKey> = self
            .state
            .conditions
            .keys()
            .filter(|key| !self.holds.contains_key(key))
            .cloned()
            .collect();
        for key in ended {
            self.op(Op::Condition { key, to: None });
        }
        let began: Vec<(ConditionKey, Condition)> = self
            .holds
            .iter()
            .filter(|(key, condition)| self.state.conditions.get(key) != Some(condition))
            .map(|(key, condition)| (key.clone(), condition.clone()))
            .collect();
        for (key, condition) in began {
            self.op(Op::Condition {
                key,
                to: Some(condition),
            });
        }
    }
}
