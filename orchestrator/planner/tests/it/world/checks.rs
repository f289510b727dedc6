//! Invariants that always hold, and those that hold in the end.

use std::collections::BTreeSet;

use drover_core::{
    NodeState, Phase,
    node::{RemovalReason, Role},
    spec::{Management, UpdateStrategy},
};
use drover_planner::{Call, Op, Plan};

use super::{World, backend::Thing, build};

impl World {
    /// Our living things of a group, on all platforms that were not abandoned with them.
    pub fn living(&self, group: &str) -> Vec<&Thing> {
        self.platforms
            .values()
            .flat_map(|backend| backend.things.values())
            .filter(|t| t.owner == self.state.uid && *t.group == *group && !t.is_dead())
            .filter(|t| !self.given_up.contains(&t.id))
            .collect()
    }

    /// Everything of ours that still exists, dead or alive.
    pub fn leftovers(&self) -> usize {
        let things = self.platforms.values().flat_map(|b| b.things.values());
        things
            .filter(|t| t.owner == self.state.uid && t.phase != Phase::Terminated)
            .count()
    }

    /// The most nodes that a group may have while calls from before a change may still take effect.
    fn ceiling(&self, group: &str) -> usize {
        let from = self
            .now
            .saturating_sub(build::CALL + build::CREATION + 5_000);
        let any = self.maintains || self.state.nodes.iter().any(|n| n.marked);
        let mut most = 0;
        let mut last = 0;
        for (at, path, plain, marked) in &self.sizes {
            if **path == *group {
                let now = if any { *marked } else { *plain };
                if *at >= from {
                    most = most.max(last).max(now);
                }
                last = now;
            }
        }
        most.max(last)
    }

    /// After something was created: never more than wanted, never two in one place.
    pub fn check_ceiling(&self, group: &str) {
        let living = self.living(group);
        assert!(
            living.len() <= self.ceiling(group),
            "{} of {group} live, at most {} may",
            living.len(),
            self.ceiling(group)
        );
        let places: BTreeSet<u32> = living.iter().map(|t| t.ordinal).collect();
        assert_eq!(places.len(), living.len(), "two of {group} in one place");
    }

    /// An ordered group comes and goes one node at a time, and not before those that it depends on.
    fn check_order(&self, planned: &Plan) {
        let of = |path: &drover_core::Sym| {
            let nodes = self.state.nodes.iter();
            nodes.filter(|n| n.group == *path).collect::<Vec<_>>()
        };
        for group in &self.groups {
            let grown = self.state.grown.get(&group.path).copied().unwrap_or(0);
            let mut made = planned.ops.iter().filter_map(|op| match op {
                Op::Request { nodes, .. } if nodes[0].group == group.path => Some(nodes),
                _ => None,
            });
            let removed = planned.ops.iter().filter(|op| match op {
                Op::Remove { slot, reason, .. } if *reason != RemovalReason::Dead => self
                    .state
                    .node(*slot)
                    .is_some_and(|n| n.group == group.path),
                _ => false,
            });
            if group.management == Some(Management::OrderedReady) {
                assert!(removed.count() <= 1, "{}: one goes at a time", group.path);
                if let Some(nodes) = made.clone().next() {
                    assert_eq!(nodes.len(), 1, "{}: one comes at a time", group.path);
                    let ordinal = nodes[0].ordinal;
                    let lower = of(&group.path)
                        .into_iter()
                        .filter(|n| n.ordinal < ordinal && !n.is_dead());
                    let ready = lower
                        .filter(|n| n.removal.is_none() && group.makes(n) && !n.marked)
                        .all(|n| {
                            n.state != NodeState::Requested && n.state != NodeState::Provisioning
                        });
                    // Standby nodes may not become Ready without an active one, so its place is filled first.
                    let acts = |to: &BTreeSet<u32>| to.contains(&ordinal);
                    let acts = self.state.vacated.get(&group.path).is_some_and(acts)
                        || planned.ops.iter().any(|op| {
                            matches!(op, Op::Vacated { group: path, to }
                                if *path == group.path && acts(to))
                        });
                    // Also in the plan in which it becomes free, which leaves no trace of that.
                    let acts = acts || group.standby > 0 && nodes[0].role.may_act();
                    let waits = planned
                        .ops
                        .iter()
                        .any(|op| matches!(op, Op::StateChanged { .. }));
                    assert!(
                        ready || waits || acts,
                        "{} comes before those below it",
                        nodes[0].name()
                    );
                }
            }
            let first = grown == 0 && made.next().is_some();
            for on in group.depends_on.iter().filter(|_| first) {
                let size = self
                    .groups
                    .iter()
                    .find(|g| g.path == *on)
                    .map_or(0, |g| g.size.unwrap());
                let there = of(on)
                    .into_iter()
                    .filter(|n| n.removal.is_none() && !n.is_dead())
                    .count();
                assert!(there >= size as usize, "{} comes before {on}", group.path);
            }
        }
    }

    fn budget(&self, group: &drover_core::spec::Group) -> drover_core::spec::Budget {
        let mut choices = group.choices.iter();
        group.budget_in(choices.all(|choice| self.views[&choice.platform].finite))
    }

    /// Invariants of every plan.
    pub(super) fn check(&self, planned: &Plan) {
        self.check_order(planned);
        let mut leaving: BTreeSet<u64> = self
            .state
            .nodes
            .iter()
            .filter(|n| n.removal.is_some())
            .map(|n| n.slot)
            .collect();
        for op in &planned.ops {
            let Op::Remove {
                slot,
                reason,
                retain,
            } = op
            else {
                continue;
            };
            assert!(!self.state.paused, "nothing is removed while paused");
            assert!(leaving.insert(*slot), "an intent is recorded once");
            let node = self.state.node(*slot).unwrap();
            self.check_storage(node, *retain);
            let kept = self.groups.iter().find(|g| g.path == node.group);
            let Some(group) = kept.filter(|_| !self.state.deleting) else {
                assert_eq!(*reason, RemovalReason::User);
                continue;
            };
            let view = &self.views[&node.platform];
            assert!(view.visible, "{node:?} cannot be seen and is removed");
            if matches!(
                reason,
                RemovalReason::Sick
                    | RemovalReason::Outdated
                    | RemovalReason::Lifetime
                    | RemovalReason::Maintenance
                    | RemovalReason::Surplus
            ) {
                assert!(!node.seen.unlisted && node.node_id.is_some(), "{node:?}");
            }
            let voluntary = matches!(
                reason,
                RemovalReason::Surplus
                    | RemovalReason::User
                    | RemovalReason::Outdated
                    | RemovalReason::Lifetime
                    | RemovalReason::Maintenance
            );
            if voluntary && node.state == NodeState::Ready && self.is_up(node) {
                let left = self
                    .state
                    .nodes
                    .iter()
                    .filter(|n| n.group == node.group && !leaving.contains(&n.slot))
                    .filter(|n| self.is_up(n))
                    .count();
                // Surplus active nodes while standby nodes are missing: the active ones that stay have to be enough.
                let acts = *reason == RemovalReason::Surplus && group.standby > 0;
                let acts = acts && node.role.may_act();
                let staying = self.state.nodes.iter().filter(|n| {
                    n.group == node.group
                        && !leaving.contains(&n.slot)
                        && n.role == Role::Active
                        && self.is_up(n)
                });
                let (left, least) = if acts {
                    (staying.count(), group.size.unwrap() as usize)
                } else {
                    (left, group.total() as usize)
                };
                let fewer = match reason {
                    // It makes room for an ordinal below the size, whose storage waits.
                    RemovalReason::Surplus
                        if group.hands_on_storage() && Some(node.ordinal) >= group.size =>
                    {
                        self.budget(group).unavailable as usize
                    }
                    RemovalReason::Surplus => 0,
                    _ => self.budget(group).unavailable as usize,
                };
                assert!(
                    left + fewer >= least,
                    "{left} stay Ready, {reason:?} {node:?}"
                );
            }
        }
        for call in &planned.calls {
            if let Call::Deprovision { slot } = call {
                let node = self.state.node(*slot);
                let drain = node.and_then(|node| node.removal).map_or(0, |r| r.drain);
                assert_eq!(drain, 0, "removed while its hook runs: {node:?}");
                assert!(leaving.contains(slot), "removal without an intent");
            }
        }
    }

    /// Whether a node really runs, whatever the record says.
    fn is_up(&self, node: &drover_core::Node) -> bool {
        let things = &self.platforms[&node.platform].things;
        let own = |t: &&Thing| (t.request, t.index) == (node.request, node.index);
        things
            .values()
            .find(own)
            .is_some_and(|t| t.phase == Phase::Running && t.ready)
    }

    /// As many nodes as wanted are alive, nothing else exists or is recorded, and nothing more is planned.
    pub fn assert_converged(&mut self) {
        self.check_scaled();
        let mut wanted = 0;
        for group in &self.groups {
            let size = group.total() as usize;
            wanted += size;
            let living = self.living(&group.path);
            for thing in &living {
                let mut choices = group.choices.iter();
                let choice = choices.find(|choice| choice.is_hash(&thing.spec_hash));
                let labels = choice.map(|choice| &choice.labels_hash);
                assert!(labels.is_none_or(|it| *it == thing.labels), "{thing:?}");
            }
            let wants = group.storage.as_ref().and_then(|it| it.size);
            assert!(living.iter().all(|thing| thing.size >= wants), "{living:?}");
            let acting = living.iter().filter(|thing| thing.acts).count();
            assert_eq!(acting, group.size.unwrap_or(1) as usize, "{living:#?}");
            let all = (living, &self.state.nodes, self.plan().report);
            assert_eq!(all.0.len(), size, "{}: {all:#?}", group.path);
        }
        assert_eq!(self.leftovers(), wanted, "leftovers");
        assert_eq!(self.state.nodes.len(), wanted, "{:?}", self.state.nodes);
        assert!(self.state.requests.is_empty());
        assert!(self.state.rollouts.iter().next().is_none());
        for node in &self.state.nodes {
            let group = self.groups.iter().find(|g| g.path == node.group).unwrap();
            let stays = group.update.strategy == UpdateStrategy::OnDelete;
            assert!(stays || group.makes(node), "outdated: {node:?}");
        }
        for node in &self.state.nodes {
            assert_eq!(node.state, NodeState::Ready, "{node:?}");
            assert!(
                matches!(node.role, Role::Active | Role::Standby),
                "{node:?}"
            );
        }
        for later in [0, 1, 3_600_000] {
            let planned = self.plan_at(self.now + later, false);
            assert!(planned.is_empty(), "{later} ms later: {planned:?}");
            assert!(!planned.again);
        }
    }
}
