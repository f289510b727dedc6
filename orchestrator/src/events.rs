//! What happened, from the operations of a plan.

use drover_core::{Millis, NodeState, node::RemovalReason};
use drover_planner::{Condition, ConditionKey, ConditionKind, Op, State};
use drover_proto::orchestrator::v1::EventSeverity;
use drover_store::NewEvent;

/// Most node names in one message; the rest is counted.
const NAMED: usize = 10;

struct Maker<'a> {
    state: &'a State,
    now: Millis,
    events: Vec<NewEvent>,
}

/// The events of operations on a record as it was before them.
pub(crate) fn of(ops: &[Op], state: &State, author: &str, now: Millis) -> Vec<NewEvent> {
    let mut maker = Maker { state, now, events: Vec::new() };
    for op in ops {
        maker.op(op, author);
    }
    maker.events
}

impl Maker<'_> {
    fn add(&mut self, severity: EventSeverity, reason: &str, message: String) -> &mut NewEvent {
        self.events.push(NewEvent {
            time_ms: i64::try_from(self.now).unwrap_or(i64::MAX),
            severity: severity.into(),
            reason: reason.to_owned(),
            message: drover_core::error::cut(message),
            count: 1,
            ..NewEvent::default()
        });
        let last = self.events.len() - 1;
        &mut self.events[last]
    }

    fn node(&mut self, slot: u64, severity: EventSeverity, reason: &str, message: String) {
        let Some(node) = self.state.node(slot) else { return };
        let (id, group, platform) = (node.id(self.state.uid), node.group.to_string(), node.platform.to_string());
        let event = self.add(severity, reason, message);
        event.node = Some(id);
        event.group = Some(group);
        event.platform = Some(platform);
    }

    fn op(&mut self, op: &Op, author: &str) {
        use EventSeverity::{Info, Warning};
        match op {
            Op::Enter { slot, state, reason, message, .. } => self.enter(*slot, *state, reason, message),
            Op::Request { request, nodes, .. } => {
                let mut names: Vec<String> = nodes.iter().take(NAMED).map(drover_core::Node::name).collect();
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
                event.count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
            }
            Op::Remove { slot, reason } => {
                let severity = match reason {
                    RemovalReason::User | RemovalReason::Surplus => Info,
                    RemovalReason::Dead | RemovalReason::Sick | RemovalReason::Orphan => Warning,
                };
                self.node(*slot, severity, "NodeDeprovisioning", format!("is removed: {}", reason.as_str()));
            }
            Op::Forget { slot, reason, message, lost } => {
                let unmade = self.state.node(*slot).is_some_and(|n| n.node_id.is_none() && n.removal.is_none());
                let (severity, word) = match (lost, unmade) {
                    (_, true) => (Warning, "NodeFailed"),
                    (true, false) => (Warning, "NodeLost"),
                    (false, false) => (Info, "NodeGone"),
                };
                let message =
                    if unmade || *lost { format!("{reason}: {message}") } else { message.to_string() };
                self.node(*slot, severity, word, message);
            }
            Op::TakeOrphan { node } => {
                let (id, group, platform) =
                    (node.id(self.state.uid), node.group.to_string(), node.platform.to_string());
                let event = self.add(Warning, "OrphanSeen", node.message.to_string());
                event.node = Some(id);
                event.group = Some(group);
                event.platform = Some(platform);
            }
            Op::Condition { key, to } => self.condition(key, to.as_ref()),
            Op::Observed { generation } => {
                let by = if author.is_empty() { String::new() } else { format!(" by {author}") };
                if self.state.deleting {
                    self.add(Info, "ClusterDeleting", format!("deletion was asked for{by}"));
                } else if self.state.observed_generation == 0 {
                    self.add(Info, "ClusterCreated", format!("generation {generation}{by}"));
                } else {
                    self.add(Info, "ClusterChanged", format!("generation {generation}{by}"));
                }
            }
            Op::Learn { .. }
            | Op::Attempt { .. }
            | Op::MadeNothing { .. }
            | Op::Close { .. }
            | Op::BackOff { .. } => {}
        }
    }

    fn enter(&mut self, slot: u64, state: NodeState, reason: &str, message: &str) {
        use EventSeverity::{Info, Warning};
        if self.state.node(slot).is_some_and(|node| node.state == state) {
            // The same state in other words is no event.
            return;
        }
        let words = if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") };
        match state {
            NodeState::Ready => {
                let message = self.state.node(slot).map_or_else(String::new, |node| {
                    let took = self.now.saturating_sub(node.create_time);
                    let agent = &node.seen.agent_address;
                    let agent = if agent.is_empty() { String::new() } else { format!("agent {agent} ") };
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

    fn condition(&mut self, key: &ConditionKey, to: Option<&Condition>) {
        use EventSeverity::{Info, Warning};
        if to.is_some() && self.state.conditions.contains_key(key) {
            return;
        }
        let began = to.is_some();
        let (severity, reason) = match (key.kind, began) {
            (ConditionKind::Ready, true) if key.group.is_empty() => (Info, "ClusterReady"),
            (ConditionKind::Ready, false) if key.group.is_empty() && !self.state.deleting => (Info, "ClusterDegraded"),
            // The generation says it already.
            (ConditionKind::Ready | ConditionKind::Deleting, _) => return,
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
            (ConditionKind::Failed, true) => (Warning, "Failed"),
            (ConditionKind::Failed, false) => (Info, "FailedEnded"),
        };
        let message = to.map_or_else(String::new, |condition| condition.message.to_string());
        let group = (!key.group.is_empty()).then(|| key.group.to_string());
        self.add(severity, reason, message).group = group;
    }
}
