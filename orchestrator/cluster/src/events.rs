//! Derives events from the operations of a plan.

use drover_core::{
    Millis, NodeState, Sym,
    node::{CHANGING, RemovalReason, Role},
    resource::ResourceKey,
    storage::quantity,
    words,
};
use drover_planner::{Condition, ConditionKey, ConditionKind, Op, Rollout, Sole, State};
use drover_proto::orchestrator::v1::EventSeverity;
use drover_store::NewEvent;

use crate::resources;

/// Maximum number of node names in a message; the others are counted.
const NAMED: usize = 10;

/// Names of the steps of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    generation: u64,
    revision: u64,
    number: u32,
}

impl Steps {
    /// `revision` is that of the head that the plan is based on, which changes with every durable step.
    pub fn new(generation: u64, revision: u64) -> Self {
        Self {
            generation,
            revision,
            number: 0,
        }
    }

    /// The name of the next step.
    pub fn next_name(&mut self) -> String {
        self.number += 1;
        format!("{}.{}.{}", self.generation, self.revision, self.number)
    }
}

struct Maker<'a> {
    state: &'a State,
    now: Millis,
    /// Name of the step of the current operation.
    step: Option<String>,
    events: Vec<NewEvent>,
}

/// Authors of changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Authors<'a> {
    /// Author of the current generation.
    pub generation: &'a str,
    /// Author of the last pause or resume.
    pub pause: &'a str,
}

/// Appends the author of the reported change to an event, if known.
pub fn sign(event: &mut NewEvent, author: &str) {
    if author.is_empty() {
        return;
    }
    let space = if event.message.is_empty() { "" } else { " " };
    event.message = drover_core::error::cut(format!("{}{space}by {author}", event.message));
    event.author = author.to_owned();
}

/// The events of operations, given the record before they are applied.
pub fn of(
    ops: &[Op],
    state: &State,
    by: Authors<'_>,
    mut steps: Steps,
    now: Millis,
) -> Vec<NewEvent> {
    let mut maker = Maker {
        state,
        now,
        step: None,
        events: Vec::new(),
    };
    // The user's change is reported before its consequences.
    let user = |op: &&Op| matches!(op, Op::Observed { .. });
    let (first, rest): (Vec<&Op>, Vec<&Op>) = ops.iter().partition(user);
    for op in first.into_iter().chain(rest) {
        maker.step = is_step(op).then(|| steps.next_name());
        maker.op(op, by);
    }
    maker.events
}

/// Whether an operation is shown as an action of the plan.
pub fn is_step(op: &Op) -> bool {
    match op {
        Op::Request { .. }
        | Op::Remove { .. }
        | Op::RecordDropped { .. }
        | Op::Close { .. }
        | Op::TakeOrphan { .. } => true,
        Op::RoleChange { role, .. } => *role == Role::Promoting,
        Op::Resource { change, .. } => change.is_action(),
        Op::StateChanged { .. }
        | Op::NodeIdAssigned { .. }
        | Op::Attempt { .. }
        | Op::MadeNothing { .. }
        | Op::BackOff { .. }
        | Op::Condition { .. }
        | Op::Restamp { .. }
        | Op::Grown { .. }
        | Op::Template { .. }
        | Op::HostLabels { .. }
        | Op::Reached { .. }
        | Op::Rollout { .. }
        | Op::Drain { .. }
        | Op::PeakSizeChanged { .. }
        | Op::Vacated { .. }
        | Op::Sole { .. }
        | Op::Own { .. }
        | Op::Adopted { .. }
        | Op::Rebind { .. }
        | Op::Abandon { .. }
        | Op::Sweep { .. }
        | Op::Observed { .. } => false,
    }
}

/// Describes what happens to the storage of a node. Empty if it has no storage.
fn data(state: &State, slot: u64, retain: bool) -> &'static str {
    match state.node(slot) {
        Some(node) if node.storage && retain => " · data kept",
        Some(node) if node.storage => " · data DELETED",
        _ => "",
    }
}

impl Maker<'_> {
    /// Signs the events that were added since `since`.
    fn sign(&mut self, since: usize, author: &str) {
        for event in self.events.iter_mut().skip(since) {
            sign(event, author);
        }
    }

    fn add(&mut self, severity: EventSeverity, reason: &str, message: String) -> &mut NewEvent {
        self.events.push(NewEvent {
            time_ms: i64::try_from(self.now).unwrap_or(i64::MAX),
            severity: severity.into(),
            reason: reason.to_owned(),
            message: drover_core::error::cut(message),
            count: 1,
            step: self.step.clone(),
            ..NewEvent::default()
        });
        let last = self.events.len() - 1;
        &mut self.events[last]
    }

    fn node(&mut self, slot: u64, severity: EventSeverity, reason: &str, message: String) {
        let Some(node) = self.state.node(slot) else {
            return;
        };
        let (id, group, platform) = (
            node.id(self.state.uid),
            node.group.to_string(),
            node.platform.to_string(),
        );
        let event = self.add(severity, reason, message);
        event.node = Some(id);
        event.group = Some(group);
        event.platform = Some(platform);
    }

    fn op(&mut self, op: &Op, by: Authors<'_>) {
        use EventSeverity::{Info, Warning};
        match op {
            Op::StateChanged {
                slot,
                state,
                reason,
                message,
                ..
            } => self.enter(*slot, *state, reason, message),
            Op::Request { request, nodes, .. } => {
                let mut names: Vec<String> = nodes
                    .iter()
                    .take(NAMED)
                    .map(|node| node.name())
                    .collect();
                if nodes.len() > NAMED {
                    names.push(format!("{} more", nodes.len() - NAMED));
                }
                let message = format!("asked {} for {}", request.platform, names.join(", "));
                let only = match nodes.as_slice() {
                    [node] => Some(node.id(self.state.uid)),
                    _ => None,
                };
                let event = self.add(Info, "NodeRequested", message);
                event.node = only;
                event.group = Some(request.group.to_string());
                event.platform = Some(request.platform.to_string());
            }
            Op::Remove {
                slot,
                reason,
                retain,
            } => {
                let severity = match reason {
                    RemovalReason::User
                    | RemovalReason::Surplus
                    | RemovalReason::Outdated
                    | RemovalReason::Lifetime
                    | RemovalReason::Maintenance => Info,
                    RemovalReason::Dead | RemovalReason::Sick | RemovalReason::Orphan => Warning,
                };
                self.node(
                    *slot,
                    severity,
                    "NodeDeprovisioning",
                    format!(
                        "is removed: {}{}",
                        reason.as_str(),
                        data(self.state, *slot, *retain)
                    ),
                );
            }
            Op::Drain {
                slot,
                until: 0,
                failed,
            } => {
                if let Some(failed) = failed {
                    let message = format!("preStop: {failed}; its removal goes on");
                    self.node(*slot, Warning, "DrainFailed", message);
                }
            }
            Op::Drain { slot, until, .. } => {
                #[expect(clippy::cast_precision_loss, reason = "a span for people")]
                let most = until.saturating_sub(self.now) as f64 / 1000.0;
                let message = if self.state.resources.keys().any(ResourceKey::is_addon) {
                    format!("its addons let go of it, and its preStop hook runs if it has one: {most} s at most")
                } else {
                    format!("its preStop hook has {most} s")
                };
                self.node(*slot, Info, "NodeDraining", message);
            }
            Op::RecordDropped {
                slot,
                reason,
                message,
                lost,
            } => {
                let unmade = self
                    .state
                    .node(*slot)
                    .is_some_and(|n| n.node_id.is_none() && n.removal.is_none());
                let (severity, word) = match (lost, unmade) {
                    (_, true) => (Warning, "NodeFailed"),
                    (true, false) => (Warning, "NodeLost"),
                    (false, false) => (Info, "NodeGone"),
                };
                let message = if unmade || *lost {
                    format!("{reason}: {message}")
                } else {
                    message.to_string()
                };
                self.node(*slot, severity, word, message);
            }
            Op::TakeOrphan { node } => {
                let (id, group, platform) = (
                    node.id(self.state.uid),
                    node.group.to_string(),
                    node.platform.to_string(),
                );
                let (severity, word) = match &node.removal {
                    Some(_) => (Warning, "OrphanSeen"),
                    // Reported once the node is ours.
                    None if node.is_adopting() => return,
                    None => (Info, "NodeAdopted"),
                };
                let backend = node.node_id.as_deref().unwrap_or_default();
                let message = format!("{backend} {}", node.message);
                let event = self.add(severity, word, message);
                event.node = Some(id);
                event.group = Some(group);
                event.platform = Some(platform);
            }
            Op::RoleChange { slot, role } => self.change_role(*slot, *role),
            Op::HostLabels { slot, hash } if **hash != *CHANGING => {
                let message = "its host has the labels that its group wants".to_owned();
                self.node(*slot, Info, "HostLabelled", message);
            }
            Op::Grown {
                slot,
                storage_size,
                ..
            } => {
                let message = format!("its storage has grown to {}", quantity(*storage_size));
                self.node(*slot, Info, "StorageGrown", message);
            }
            Op::Sole { group, to, .. } => self.sole(group, *to),
            Op::Own { slot } => {
                let message = "belongs to this cluster now".to_owned();
                self.node(*slot, Info, "NodeAdopted", message);
            }
            Op::Condition { key, to } => {
                let before = self.events.len();
                self.condition(key, to.as_ref());
                if key.kind == ConditionKind::Paused {
                    self.sign(before, by.pause);
                }
            }
            Op::Rollout { group, to } => self.rollout(group, to.as_ref()),
            Op::Resource { key, to, change } => {
                let told = resources::told(self.state, key, to.as_deref(), *change);
                for (severity, reason, message) in told {
                    self.add(severity, reason, message).platform = Some(key.platform.to_string());
                }
            }
            Op::Observed { generation } => {
                let before = self.events.len();
                if self.state.deleting {
                    self.add(
                        Info,
                        "ClusterDeleting",
                        "deletion was requested".to_owned(),
                    );
                } else if self.state.observed_generation == 0 {
                    self.add(
                        Info,
                        "ClusterCreated",
                        format!("generation {generation}"),
                    );
                } else {
                    self.add(
                        Info,
                        "ClusterChanged",
                        format!("generation {generation}"),
                    );
                }
                self.sign(before, by.generation);
            }
            Op::NodeIdAssigned { .. }
            | Op::Attempt { .. }
            | Op::MadeNothing { .. }
            | Op::Close { .. }
            | Op::HostLabels { .. }
            | Op::Reached { .. }
            | Op::Restamp { .. }
            | Op::Template { .. }
            | Op::PeakSizeChanged { .. }
            | Op::Vacated { .. }
            | Op::Adopted { .. }
            | Op::Rebind { .. }
            // Reported for each node.
            | Op::Abandon { .. }
            | Op::Sweep { .. }
            | Op::BackOff { .. } => {}
        }
    }

    fn sole(&mut self, group: &Sym, to: Option<Sole>) {
        use EventSeverity::Info;
        let before = self.state.sole.get(group).copied();
        let Some(sole) = to.or(before) else {
            return;
        };
        let node = self.state.node(sole.slot);
        let change = node.and_then(|node| node.in_flight.changes.sole.as_deref());
        if to.is_none() {
            // Otherwise it had no permission, or has an event of its own.
            if change.is_some_and(|change| !change.allow && change.done) {
                let message = "standbys have everything, and may take over".to_owned();
                self.node(sole.slot, Info, "SoleWriterEnded", message);
            }
        } else if change.is_none_or(|change| change.call.failures == 0) {
            let message =
                "may acknowledge alone while it lacks standbys; none takes over meanwhile";
            self.node(sole.slot, Info, "SoleWriter", message.to_owned());
        }
    }

    fn change_role(&mut self, slot: u64, role: Role) {
        use EventSeverity::{Info, Warning};
        let before = self.state.node(slot).map(|node| node.role);
        if (before, role) == (Some(Role::Active), Role::Standby) {
            // The node is gone and another one is active by now; nothing happened to this one.
            return;
        }
        let (severity, reason, message) = match role {
            Role::Promoting => (Info, "NodePromoting", "is to become active"),
            Role::Active => (Info, "NodePromoted", "is active"),
            Role::Demoting => (
                Warning,
                "NodeDemoting",
                "refuses to become active; another standby is tried",
            ),
            // The promotion was abandoned, so the node is standby as before.
            Role::Standby => (Info, "NodeDemoted", "is standby again"),
        };
        if before != Some(role) {
            self.node(slot, severity, reason, message.to_owned());
        }
    }

    fn enter(&mut self, slot: u64, state: NodeState, reason: &str, message: &str) {
        use EventSeverity::{Info, Warning};
        if self
            .state
            .node(slot)
            .is_some_and(|node| node.state == state)
        {
            // A changed message alone is not an event.
            return;
        }
        let words = words::because(reason, message);
        match state {
            NodeState::Ready => {
                let message = self.state.node(slot).map_or_else(String::new, |node| {
                    let took = self.now.saturating_sub(node.create_time);
                    let agent = &node.seen.agent_address;
                    let agent = if agent.is_empty() {
                        String::new()
                    } else {
                        format!("agent {agent} ")
                    };
                    #[expect(clippy::cast_precision_loss, reason = "a span for people")]
                    let took = took as f64 / 1000.0;
                    match node.state {
                        NodeState::Unhealthy => format!("{agent}is healthy again"),
                        _ => format!("{agent}{} {took:.2} s", node.seen.provider_id),
                    }
                });
                self.node(slot, Info, "NodeReady", message);
            }
            NodeState::Unhealthy => self.node(slot, Warning, "NodeUnhealthy", words),
            NodeState::Failed => self.node(slot, Warning, "NodeFailed", words),
            NodeState::Requested
            | NodeState::Provisioning
            | NodeState::Starting
            | NodeState::Draining
            | NodeState::Deprovisioning => {}
        }
    }

    /// A rollout starts when there are nodes to replace or its target changes, and ends when none are left.
    fn rollout(&mut self, group: &str, to: Option<&Rollout>) {
        let before = self.state.rollouts.get(group);
        let (reason, message) = match (before, to) {
            (None, None) => return,
            (Some(before), Some(to)) if before.target == to.target => return,
            (before, Some(to)) => {
                let over = if before.is_some() {
                    "; what was under way is superseded"
                } else {
                    ""
                };
                let mut nodes = self.state.nodes.iter();
                let cause = if nodes.any(|node| *node.group == *group && to.changes_template(node))
                {
                    "; their template changed"
                } else {
                    ""
                };
                let nodes = words::count(to.left, "node");
                let are = words::are(to.left);
                let message = format!("{nodes} {are} to be replaced{cause}{over}");
                ("UpdateStarted", message)
            }
            (Some(before), None) if before.left > 0 => (
                "UpdateFinished",
                "nothing is left to be replaced".to_owned(),
            ),
            (Some(before), None) => {
                #[expect(clippy::cast_precision_loss, reason = "a span for people")]
                let took = self.now.saturating_sub(before.started) as f64 / 1000.0;
                let message = format!("all nodes are as wanted after {took:.1} s");
                ("UpdateFinished", message)
            }
        };
        self.add(EventSeverity::Info, reason, message).group = Some(group.to_owned());
    }

    fn condition(&mut self, key: &ConditionKey, to: Option<&Condition>) {
        use EventSeverity::{Info, Warning};
        if to.is_some() && self.state.conditions.contains_key(key) {
            return;
        }
        let began = to.is_some();
        let (severity, reason) = match (key.kind, began) {
            (ConditionKind::Ready, true) if key.group.is_empty() => (Info, "ClusterReady"),
            (ConditionKind::Ready, false)
                if key.group.is_empty()
                    && !self.state.deleting
                    && self.state.generation == self.state.observed_generation =>
            {
                (Info, "ClusterDegraded")
            }
            // The event of the generation says so already; the same holds if the desired state differs from what was
            // ready.
            (ConditionKind::Ready | ConditionKind::Deleting, _) => return,
            // Reported for each resource.
            (
                ConditionKind::InfrastructureReady
                | ConditionKind::WaitingForInfrastructure
                | ConditionKind::AddonsReady,
                _,
            ) => {
                return;
            }
            // Everything else is reported for each addon.
            (ConditionKind::AddonsFailed, true)
                if to.is_some_and(|condition| *condition.reason == *"PlatformUnavailable") =>
            {
                (Warning, "AddonFailed")
            }
            (ConditionKind::AddonsFailed, _) => return,
            (ConditionKind::InfrastructureFailed, true)
                if to.is_some_and(|condition| *condition.reason == *"Failed") =>
            {
                return;
            }
            (ConditionKind::InfrastructureFailed, true) => (Warning, "InfrastructureFailed"),
            (ConditionKind::InfrastructureFailed, false) => (Info, "InfrastructureFailedEnded"),
            (ConditionKind::Paused, true) => (Info, "Paused"),
            (ConditionKind::Paused, false) => (Info, "Resumed"),
            (ConditionKind::PlatformUnavailable, true) => (Warning, "PlatformUnavailable"),
            (ConditionKind::PlatformUnavailable, false) => (Info, "PlatformAvailable"),
            (ConditionKind::StoreBehind, true) => (Warning, "StoreBehind"),
            (ConditionKind::StoreBehind, false) => (Info, "StoreBehindEnded"),
            (ConditionKind::ForeignNodes, true) => (Warning, "ForeignNodes"),
            (ConditionKind::ForeignNodes, false) => (Info, "ForeignNodesEnded"),
            (ConditionKind::DeletionBlocked, true) => (Warning, "DeletionBlocked"),
            (ConditionKind::DeletionBlocked, false) => (Info, "DeletionBlockedEnded"),
            (ConditionKind::Rejected, true) => (Warning, "Rejected"),
            (ConditionKind::Rejected, false) => (Info, "RejectedEnded"),
            (ConditionKind::NoCapacity, true) => (Warning, "NoCapacity"),
            (ConditionKind::NoCapacity, false) => (Info, "NoCapacityEnded"),
            (ConditionKind::RemediationBlocked, true) => (Warning, "RemediationBlocked"),
            (ConditionKind::RemediationBlocked, false) => (Info, "RemediationBlockedEnded"),
            (ConditionKind::ProbeUnreachable, true) => (Warning, "ProbeUnreachable"),
            (ConditionKind::ProbeUnreachable, false) => (Info, "ProbeUnreachableEnded"),
            (ConditionKind::UpdateBlocked, true) => (Warning, "UpdateBlocked"),
            (ConditionKind::UpdateBlocked, false) => (Info, "UpdateBlockedEnded"),
            (ConditionKind::PromotionFailed, true) => (Warning, "PromotionFailed"),
            (ConditionKind::PromotionFailed, false) => (Info, "PromotionFailedEnded"),
            (ConditionKind::HostLost, true) => (Warning, "HostLost"),
            (ConditionKind::HostLost, false) => (Info, "HostLostEnded"),
            (ConditionKind::MaintenanceScheduled, true) => (Warning, "MaintenanceScheduled"),
            (ConditionKind::MaintenanceScheduled, false) => (Info, "MaintenanceScheduledEnded"),
            (ConditionKind::Impaired, true) => (Warning, "Impaired"),
            (ConditionKind::Impaired, false) => (Info, "ImpairedEnded"),
            (ConditionKind::Orphans, true) => (Warning, "Orphans"),
            (ConditionKind::Orphans, false) => (Info, "OrphansEnded"),
            (ConditionKind::Failed, true) => (Warning, "Failed"),
            (ConditionKind::Failed, false) => (Info, "FailedEnded"),
        };
        let message = to.map_or_else(String::new, |condition| condition.message.to_string());
        let group = (!key.group.is_empty()).then(|| key.group.to_string());
        self.add(severity, reason, message).group = group;
    }
}

#[cfg(test)]
mod tests;
