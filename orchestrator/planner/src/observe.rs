//! Derives the states of nodes (dead, sick, absent, ready) from what platforms and probes report.

use std::sync::LazyLock;

use drover_core::{
    Millis, Node, NodeState, Phase, Sym,
    node::RemovalReason,
    spec::{Group, Health, Probe},
};

use crate::{BackOffKind, ConditionKey, ConditionKind, NO_GROUP, Op, Planner, PlatformView};

static DEFAULT_HEALTH: LazyLock<Health> = LazyLock::new(Health::default);

struct Entered(NodeState, &'static str, Box<str>);

impl<'a> Planner<'a> {
    /// Evaluates the observations of all nodes.
    pub(crate) fn observe(&mut self) {
        for at in 0..self.state.nodes.len() {
            if self.full() {
                return;
            }
            if !self.marks[at].forgotten {
                self.observe_node(at);
            }
        }
        self.judge_probes();
    }

    fn observe_node(&mut self, at: usize) {
        let node = &self.state.nodes[at];
        let Some(view) = self
            .input
            .platforms
            .get(&node.platform)
            .filter(|_| self.marks[at].visible)
        else {
            return;
        };
        if self.forget_absent(at, node, view) {
            return;
        }
        if node.is_adopting() {
            self.observe_adoption(node);
            return;
        }
        let mark = &self.marks[at];
        let group = (mark.group != NO_GROUP).then(|| &self.input.groups[usize::from(mark.group)]);
        let health = self.health_of(at);
        if node.node_id.is_none() && !node.seen.node_id.is_empty() {
            self.op(Op::NodeIdAssigned {
                slot: node.slot,
                node_id: node.seen.node_id.clone(),
            });
        }
        if node.removal.is_some() {
            return;
        }
        let entered = self.judge(node, view, group, health);
        let state = entered.as_ref().map_or(node.state, |entered| entered.0);
        let reason = entered.as_ref().map_or(&*node.reason, |entered| entered.1);
        let late = reason == "StartTimeout";
        if let Some(Entered(state, reason, message)) = entered
            && (state != node.state || *reason != *node.reason || message != node.message)
        {
            let stable = node.stable || self.ran_stably(node, group);
            self.op(Op::StateChanged {
                slot: node.slot,
                state,
                reason,
                message: message.clone(),
                stable,
            });
            if state == NodeState::Failed && node.state != NodeState::Failed {
                self.count_failure(node, group, BackOffKind::Failure, &message);
            }
        }
        let fresh = self.marks[at].fresh;
        let available = fresh && state == NodeState::Ready && node.seen.phase == Phase::Running;
        let (sick, ripe) = if fresh && state == NodeState::Unhealthy {
            self.is_sick(node, view, health, late)
        } else {
            (false, false)
        };
        let repaired = self.state.repairs.contains(&node.slot);
        if repaired && sick {
            self.note(&node.group, Some(node.slot), false, "UnderRepair", || {
                "sick, and somebody works on it: it is not replaced".into()
            });
        }
        let sick = sick && !repaired;
        let mark = &mut self.marks[at];
        mark.dead |= state == NodeState::Failed;
        mark.available = available;
        mark.sick = sick;
        mark.ripe = ripe;
        if available {
            self.watch_stability(node, group);
        }
    }

    /// Returns whether an unhealthy node has been so for long enough, as observed by this process, and whether it may
    /// already be replaced for that.
    fn is_sick(
        &mut self,
        node: &Node,
        view: &PlatformView,
        health: &Health,
        late: bool,
    ) -> (bool, bool) {
        let refuted = health.probe != Probe::Phase
            && node.seen.phase == Phase::Running
            && u32::from(node.probe.bad) >= health.failure_threshold;
        // If only this plan judges it unhealthy, the record still has its previous state.
        let judged = node.state == NodeState::Unhealthy;
        let late = late && (!judged || node.state_time >= self.input.process_start);
        let since = if judged {
            node.state_time
        } else {
            self.input.now
        };
        let since = since.max(view.calm_since);
        let known = refuted || late;
        let due = if known {
            // By then every other node was probed as well: if many do not respond, the cause is not in the nodes.
            since + millis(health.interval + health.timeout)
        } else {
            let from = since.max(view.visible_since).max(self.input.process_start);
            from + millis(health.interval) * u64::from(health.failure_threshold)
        };
        let ripe = self.input.now >= due;
        if !ripe {
            self.wake(due);
        }
        (known || ripe, ripe)
    }

    /// The health policy of a group: its own, else that of its template, else the default.
    pub(crate) fn health(&self, group: u16) -> &'a Health {
        let own = self.input.groups.get(usize::from(group));
        own.and_then(|group| group.health.as_deref())
            .or_else(|| self.suggested_health(group))
            .unwrap_or(&DEFAULT_HEALTH)
    }

    /// The health policy that its template suggests for a group without one of its own.
    fn suggested_health(&self, group: u16) -> Option<&'a Health> {
        let at = usize::from(group);
        let own = self
            .input
            .groups
            .get(at)
            .is_some_and(|group| group.health.is_some());
        let suggested = self.input.health_defaults.get(at).filter(|_| !own);
        suggested.and_then(Option::as_ref)
    }

    /// Whether the probe of its group says anything about a node.
    fn is_probed(&self, at: usize) -> bool {
        let suggested = self.suggested_health(self.marks[at].group);
        suggested.is_none_or(|health| health.probe.judges(&self.state.nodes[at]))
    }

    /// The health policy that a node is judged by: that of its group, unless it is only suggested and cannot be applied
    /// to the node, which is then judged as without a suggestion.
    pub(crate) fn health_of(&self, at: usize) -> &'a Health {
        if self.is_probed(at) {
            self.health(self.marks[at].group)
        } else {
            &DEFAULT_HEALTH
        }
    }

    /// The state that the observations of a node imply. `None` if they say nothing new.
    fn judge(
        &mut self,
        node: &Node,
        view: &PlatformView,
        group: Option<&Group>,
        health: &Health,
    ) -> Option<Entered> {
        let seen = &node.seen;
        let plain = |state| Some(Entered(state, "", "".into()));
        if node.state == NodeState::Failed {
            // Its replacement may already be on its way, so a dead node stays dead.
            return None;
        }
        if seen.unlisted && seen.last > 0 && !seen.gone {
            // Not being listed proves nothing. The previous state holds until a complete read proves otherwise.
            return None;
        }
        match seen.phase {
            Phase::Unseen | Phase::Unknown => {
                let accepted = node.state == NodeState::Requested && node.node_id.is_some();
                if accepted {
                    return plain(NodeState::Provisioning);
                }
                self.start_timeout(node, view, group, health)
            }
            Phase::Pending => {
                if let Some(late) = self.start_timeout(node, view, group, health) {
                    return Some(late);
                }
                match node.state {
                    NodeState::Requested | NodeState::Provisioning => {
                        plain(NodeState::Provisioning)
                    }
                    _ if node.state == NodeState::Unhealthy && &*node.reason == "StartTimeout" => {
                        None
                    }
                    _ => Some(Entered(
                        NodeState::Unhealthy,
                        "PlatformFailed",
                        "is pending again after it ran".into(),
                    )),
                }
            }
            Phase::Running => self.judge_running(node, view, group, health),
            Phase::Stopped => Some(Entered(
                NodeState::Unhealthy,
                "Stopped",
                words("exists and does not run", &seen.message),
            )),
            Phase::Deprovisioning => Some(Entered(
                NodeState::Unhealthy,
                "Terminated",
                words("is being removed, and not by us", &seen.message),
            )),
            Phase::Failed => Some(Entered(
                NodeState::Failed,
                "PlatformFailed",
                words("died", &seen.message),
            )),
            // Handled by its absence; this is reached only while its request is open.
            Phase::Terminated => Some(Entered(
                NodeState::Failed,
                "Terminated",
                words("is terminated", &seen.message),
            )),
        }
    }

    fn judge_running(
        &mut self,
        node: &Node,
        view: &PlatformView,
        group: Option<&Group>,
        health: &Health,
    ) -> Option<Entered> {
        let network = health.probe != Probe::Phase;
        let passes = if network {
            u32::from(node.probe.good) >= health.success_threshold
        } else {
            node.seen.ready != Some(false)
        };
        if passes {
            return Some(Entered(NodeState::Ready, "", "".into()));
        }
        let failing = if network {
            u32::from(node.probe.bad) >= health.failure_threshold
        } else {
            node.seen.ready == Some(false)
        };
        match node.state {
            // A node that was Ready is not doubted until its probes have failed often enough in this process.
            NodeState::Ready | NodeState::Unhealthy if !failing => None,
            NodeState::Ready => {
                let message = if network {
                    node.probe.message.clone()
                } else {
                    node.seen.message.clone()
                };
                Some(Entered(
                    NodeState::Unhealthy,
                    "ProbeFailed",
                    words("is not ready any more", &message),
                ))
            }
            NodeState::Unhealthy => None,
            NodeState::Requested | NodeState::Provisioning => {
                Some(Entered(NodeState::Starting, "", "".into()))
            }
            NodeState::Starting => self.start_timeout(node, view, group, health),
            NodeState::Draining | NodeState::Deprovisioning | NodeState::Failed => None,
        }
    }

    /// A node that takes too long to run, or to become healthy, is sick. Only time during which its platform is visible
    /// counts.
    fn start_timeout(
        &mut self,
        node: &Node,
        view: &PlatformView,
        group: Option<&Group>,
        health: &Health,
    ) -> Option<Entered> {
        let (limit, what) = match node.state {
            NodeState::Provisioning => {
                let limit = group
                    .and_then(|g| g.provision_timeout)
                    .map_or(view.provision_timeout, millis);
                (limit, "does not run")
            }
            NodeState::Starting => (millis(health.startup_timeout), "is not healthy"),
            NodeState::Requested
            | NodeState::Ready
            | NodeState::Draining
            | NodeState::Deprovisioning
            | NodeState::Unhealthy
            | NodeState::Failed => return None,
        };
        let from = node
            .state_time
            .max(view.visible_since)
            .max(self.input.process_start);
        let end = from + limit;
        if self.input.now < end {
            self.wake(end);
            return None;
        }
        let detail = if node.probe.message.is_empty() {
            &node.seen.message
        } else {
            &node.probe.message
        };
        let message = words(&format!("{what} after {}", seconds(limit)), detail);
        Some(Entered(NodeState::Unhealthy, "StartTimeout", message))
    }

    /// Drops the record of a node that is proven absent. Returns whether it was dropped.
    fn forget_absent(&mut self, at: usize, node: &Node, view: &PlatformView) -> bool {
        let gone = node.seen.gone || node.seen.phase == Phase::Terminated;
        if self.is_open(node.request) {
            if gone {
                // Sent again, the request could create the node anew: what is gone must not come back under this slot.
                self.close(node.request, self.input.now + view.limits.max_creation_time);
            }
            return false;
        }
        // If this plan has just closed the request, the record has no deadline yet; the next plan handles it.
        if node.settled == 0 || self.closed.contains(&node.request) {
            return false;
        }
        let asked = node.removal.is_some();
        let absent = gone
            || (node.seen.missing_from > 0
                && node.seen.missing_from >= absence_from(node, view, self.input.process_start)
                && (asked || node.seen.silent || node.node_id.is_none()));
        if !absent {
            return false;
        }
        let lost = !asked && !node.is_adopting();
        let (reason, message): (&'static str, Box<str>) = match node.removal {
            Some(removal) => (removal.reason.as_str(), "is gone".into()),
            None if node.is_adopting() => (
                "NotAdopted",
                words(
                    "is gone, or belongs to somebody else by now",
                    &node.seen.message,
                ),
            ),
            None if node.node_id.is_none() => (
                "NotVisible",
                "was asked for and never came into being".into(),
            ),
            None if gone => (
                "Terminated",
                words("was terminated, and not by us", &node.seen.message),
            ),
            None => (
                "NotVisible",
                "is no longer there: complete reads lack it and its agent is silent".into(),
            ),
        };
        self.op(Op::RecordDropped {
            slot: node.slot,
            reason,
            message: message.clone(),
            lost,
        });
        self.marks[at].forgotten = true;
        if lost {
            let group = self.marks[at].group;
            let group = (group != NO_GROUP).then(|| &self.input.groups[usize::from(group)]);
            self.count_failure(node, group, BackOffKind::Failure, &message);
        }
        true
    }

    /// If no node of a group has ever answered its network probe, no node is judged by it.
    fn judge_probes(&mut self) {
        for (group, spec) in self.input.groups.iter().enumerate() {
            // Exec probes are run by the platform, so their result comes from the node itself.
            if matches!(
                self.health(group as u16).probe,
                Probe::Phase | Probe::Exec { .. }
            ) {
                continue;
            }
            let nodes: Vec<usize> = self.own(group).filter(|&at| self.is_probed(at)).collect();
            let answered = nodes.iter().any(|&at| {
                let node = &self.state.nodes[at];
                node.probe.answered
                    || self.marks[at].available
                    || node.state == NodeState::Ready
                    || node.stable
            });
            // No node is judged while it starts, so there is nothing to report yet.
            let judged = nodes
                .iter()
                .any(|&at| self.marks[at].sick && self.state.nodes[at].probe.bad > 0);
            if answered || !judged {
                continue;
            }
            for &at in &nodes {
                self.marks[at].sick &= self.state.nodes[at].seen.phase == Phase::Stopped;
            }
            let message = nodes
                .iter()
                .find(|&&at| self.state.nodes[at].probe.bad > 0)
                .map_or("", |&at| &*self.state.nodes[at].probe.message);
            let message = words(
                "no node of the group ever answered its probe, so none is replaced for it",
                message,
            );
            self.hold(
                ConditionKey {
                    group: spec.path.clone(),
                    kind: ConditionKind::ProbeUnreachable,
                },
                "ProbeFailed",
                &message,
            );
        }
    }

    /// Clears a back-off when a node that was requested after the last failure has been Ready for long enough.
    fn watch_stability(&mut self, node: &Node, group: Option<&Group>) {
        let Some(group) = group else { return };
        let key = crate::BackOffKey::of(&node.group, &node.spec_hash, &node.platform);
        let Some(back_off) = self.back_off(&key) else {
            return;
        };
        if node.create_time < back_off.last {
            return;
        }
        let since = if node.state == NodeState::Ready {
            node.state_time
        } else {
            self.input.now
        };
        let stable = since + millis(group.stable_after);
        if self.input.now >= stable {
            self.set_back_off(key, None);
        } else {
            self.wake(stable);
        }
    }

    /// Whether a node has been Ready for as long as its group requires to count as stable.
    pub(crate) fn ran_stably(&self, node: &Node, group: Option<&Group>) -> bool {
        let ran = self.input.now.saturating_sub(node.state_time);
        node.state == NodeState::Ready
            && group.is_some_and(|group| ran >= millis(group.stable_after))
    }

    /// Whether a node is a candidate for removal at all: visible, neither leaving nor being adopted, and its record
    /// stays.
    pub(crate) fn is_removable(&self, at: usize) -> bool {
        let mark = &self.marks[at];
        !mark.forgotten && !mark.leaving && mark.visible && !self.state.nodes[at].is_adopting()
    }

    /// Marks a node for removal, with its storage treated according to the policies. With [`Self::intend_with`], this
    /// is the only place where the intent to delete a recorded node originates.
    pub(crate) fn intend(&mut self, at: usize, reason: RemovalReason) {
        let surplus = self.goes_for_surplus(at, reason);
        let retain = self.retains(at, reason) || surplus || self.keeps_as_scaled_away(at);
        self.intend_with(at, reason, retain);
    }

    /// Marks a node for removal, with its storage retained or not.
    pub(crate) fn intend_with(&mut self, at: usize, reason: RemovalReason, retain: bool) {
        let node = &self.state.nodes[at];
        self.marks[at].leaving = true;
        self.marks[at].dead |= reason == RemovalReason::Dead;
        self.marks[at].available = false;
        // An open request could be sent again, and create the node anew.
        if self.is_open(node.request) {
            let limits = self
                .input
                .platforms
                .get(&node.platform)
                .map(|view| view.limits)
                .unwrap_or_default();
            let request = &self.state.requests[&node.request];
            let until = request.deadline.max(self.input.now) + limits.max_creation_time;
            self.close(node.request, until);
        }
        self.op(Op::Remove {
            slot: node.slot,
            reason,
            retain,
        });
        self.begin_drain(at, reason);
    }
}

/// How long after its start a process waits for platforms to show nodes before it reports that they do not.
const FIRST_LOOK: Millis = 60_000;

impl Planner<'_> {
    /// When this process has had the time to look at all platforms.
    pub(crate) fn first_look(&self) -> Millis {
        self.input.process_start + FIRST_LOOK
    }

    /// Whether a node was Ready, and its platform has not shown this process yet all that is there, nor anything else of the
    /// node.
    pub(crate) fn is_unseen(&self, at: usize) -> bool {
        let node = &self.state.nodes[at];
        let runs = node.seen.phase == Phase::Running && node.seen.ready != Some(false);
        node.state == NodeState::Ready
            && !node.seen.unlisted
            && (node.seen.last == 0 || runs)
            && self.is_hidden(&node.platform)
            && self.input.now < self.first_look()
    }

    pub(crate) fn is_hidden(&self, platform: &Sym) -> bool {
        let view = self.input.platforms.get(platform);
        view.is_none_or(|view| !view.visible)
    }
}

/// The time from which on a complete read that lacks the slot proves that it is absent.
pub(crate) fn absence_from(node: &Node, view: &PlatformView, process_start: Millis) -> Millis {
    // An accepted node exists once its request is settled; one that was never accepted may be created until
    // `maybe_until`.
    let made_by = if node.node_id.is_some() {
        node.settled
    } else {
        node.maybe_until
    };
    // It may have been listed until the moment before this process could look.
    let shown = node.seen.last.max(view.visible_since).max(process_start);
    node.settled
        .max(made_by.max(shown) + view.limits.visibility_delay)
}

pub(crate) fn millis(duration: std::time::Duration) -> Millis {
    duration.as_millis().try_into().unwrap_or(Millis::MAX / 4)
}

/// Formats a duration for people.
pub(crate) fn seconds(span: Millis) -> String {
    match span {
        0..1000 => format!("{span}ms"),
        1000..120_000 => format!("{}s", span / 1000),
        _ => format!("{}m", span / 60_000),
    }
}

fn words(own: &str, detail: &str) -> Box<str> {
    if detail.is_empty() {
        own.into()
    } else {
        format!("{own}: {detail}").into()
    }
}
