//! Converts nodes: from platforms, and to API responses of the orchestrator.

use drover_core::{
    Node, NodeState, Phase, Sym,
    node::{LostHost, Maintenance, MaintenanceKind, Role, Seen, SeenAddress},
    words,
};
use drover_proto::{common::v1 as common, orchestrator::v1 as pb, platform::v1 as platform};
use uuid::Uuid;

use crate::value::{millis, to_timestamp, to_timestamp_opt};

/// Returns the slot that a platform reports for a node. `None` if it is a foreign node.
#[must_use]
pub fn slot(node: &platform::Node) -> Option<(Uuid, Uuid, u32)> {
    let slot = node.slot.as_ref()?;
    Some((
        Uuid::parse_str(&slot.owner).ok()?,
        Uuid::parse_str(&slot.request_id).ok()?,
        slot.index?,
    ))
}

/// Converts the phase of a node; unknown values become `Unknown`.
#[must_use]
pub fn phase(phase: i32) -> Phase {
    use platform::NodePhase;
    match NodePhase::try_from(phase) {
        Ok(NodePhase::Pending) => Phase::Pending,
        Ok(NodePhase::Running) => Phase::Running,
        Ok(NodePhase::Stopped) => Phase::Stopped,
        Ok(NodePhase::Deprovisioning) => Phase::Deprovisioning,
        Ok(NodePhase::Failed) => Phase::Failed,
        Ok(NodePhase::Terminated) => Phase::Terminated,
        Ok(NodePhase::Unspecified | NodePhase::Unknown) | Err(_) => Phase::Unknown,
    }
}

/// Records the current report of a platform. Returns whether anything relevant changed.
pub fn observe(
    seen: &mut Seen,
    node: &platform::Node,
    now: u64,
    intern: &mut dyn FnMut(&str) -> Sym,
) -> bool {
    let phase = phase(node.phase);
    let mut changed =
        seen.phase != phase || seen.ready != node.ready || seen.unlisted || seen.missing_from > 0;
    seen.phase = phase;
    seen.ready = node.ready;
    seen.last = now;
    seen.missing_from = 0;
    seen.unlisted = false;
    seen.silent = false;
    if *seen.failure_domain != *node.failure_domain {
        seen.failure_domain = intern(&node.failure_domain);
        changed = true;
    }
    let same = seen.endpoints.len() == node.endpoints.len()
        && seen
            .endpoints
            .iter()
            .zip(&node.endpoints)
            .all(|((a, b), (c, d))| **a == **c && **b == **d);
    if !same {
        seen.endpoints = node
            .endpoints
            .iter()
            .map(|(name, address)| (intern(name), address.as_str().into()))
            .collect();
        changed = true;
    }
    for (old, new) in [
        (
            &mut seen.agent_address,
            node.agent_address.as_deref().unwrap_or_default(),
        ),
        (&mut seen.provider_id, &*node.provider_id),
        (&mut seen.message, &*node.message),
    ] {
        if **old != *new {
            *old = drover_core::error::cut(new.to_owned()).into();
            changed = true;
        }
    }
    let same = seen.addresses.len() == node.addresses.len()
        && seen.addresses.iter().zip(&node.addresses).all(|(a, b)| {
            a.kind == b.r#type && *a.value == *b.value && *a.interface == *b.interface
        });
    if !same {
        let address = |a: &common::Address| SeenAddress {
            kind: a.r#type,
            value: a.value.as_str().into(),
            interface: intern(&a.interface),
        };
        seen.addresses = node.addresses.iter().map(address).collect();
        changed = true;
    }
    if seen.host.id.as_deref() != node.host_id.as_deref() {
        seen.host.id = node.host_id.as_deref().map(Into::into);
        changed = true;
    }
    let lost = lost_host(node);
    if seen.host.lost.as_deref() != lost.as_ref() {
        seen.host.lost = lost.map(Box::new);
        changed = true;
    }
    let announced = node.maintenance.as_ref().map(maintenance);
    if seen.host.maintenance.as_deref() != announced.as_ref() {
        seen.host.maintenance = announced.map(Box::new);
        changed = true;
    }
    changed
}

/// The machine under a node, if nobody there answers for it.
fn lost_host(node: &platform::Node) -> Option<LostHost> {
    let host = node.host.as_ref()?;
    let gone = match host.state() {
        platform::NodeHostState::Unreachable => false,
        platform::NodeHostState::Gone => true,
        platform::NodeHostState::Unspecified | platform::NodeHostState::Ready => return None,
    };
    let text = |text: &str| drover_core::error::cut(text.to_owned()).into();
    Some(LostHost {
        name: text(&host.name),
        gone,
        message: text(&host.message),
        way_out: text(&host.way_out),
    })
}

fn maintenance(announced: &platform::NodeMaintenance) -> Maintenance {
    let time = |at: &Option<prost_types::Timestamp>| at.as_ref().map_or(0, millis);
    Maintenance {
        kind: match announced.kind() {
            platform::NodeMaintenanceKind::Unspecified => MaintenanceKind::Unknown,
            platform::NodeMaintenanceKind::Restart => MaintenanceKind::Restart,
            platform::NodeMaintenanceKind::Stop => MaintenanceKind::Stop,
        },
        start: time(&announced.start_time),
        end: time(&announced.end_time),
        message: drover_core::error::cut(announced.message.clone()).into(),
    }
}

fn to_maintenance(maintenance: &Maintenance) -> platform::NodeMaintenance {
    platform::NodeMaintenance {
        kind: match maintenance.kind {
            MaintenanceKind::Unknown => platform::NodeMaintenanceKind::Unspecified,
            MaintenanceKind::Restart => platform::NodeMaintenanceKind::Restart,
            MaintenanceKind::Stop => platform::NodeMaintenanceKind::Stop,
        }
        .into(),
        start_time: to_timestamp_opt(maintenance.start),
        end_time: to_timestamp_opt(maintenance.end),
        message: maintenance.message.to_string(),
    }
}

/// The facts about the cluster of a node that its API representation depends on.
pub struct Around<'a> {
    /// Uid of the cluster.
    pub uid: Uuid,
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Whether the platform of the node is currently visible.
    pub visible: bool,
    /// Whether the node no longer matches its group.
    pub outdated: bool,
    /// Whether the node is under repair.
    pub under_repair: bool,
}

/// Returns the role that a platform reports for a node; without a recorded role it is active.
#[must_use]
pub fn role(node: &platform::Node) -> Role {
    match node.role() {
        platform::NodeRole::Standby => Role::Standby,
        platform::NodeRole::Active | platform::NodeRole::Unspecified => Role::Active,
    }
}

/// Converts a role to its public form: a node is reported as active only once it has accepted that role itself.
#[must_use]
pub fn to_role(role: Role) -> platform::NodeRole {
    match role {
        Role::Active => platform::NodeRole::Active,
        Role::Promoting | Role::Demoting | Role::Standby => platform::NodeRole::Standby,
    }
}

/// Returns the current message of the probe, if there is one. It takes precedence over the message recorded when the
/// node became unhealthy, whose cause may be gone.
fn probed(node: &Node) -> Option<String> {
    let words = &node.probe.message;
    match node.state {
        _ if words.is_empty() => None,
        NodeState::Ready if node.message.is_empty() => Some(words.to_string()),
        NodeState::Starting if node.message.is_empty() => {
            Some(format!("is not healthy yet: {words}"))
        }
        NodeState::Unhealthy if &*node.reason == "ProbeFailed" => {
            Some(format!("is not ready any more: {words}"))
        }
        _ => None,
    }
}

/// Converts a node record to its API representation.
#[must_use]
pub fn to_node(node: &Node, around: &Around<'_>) -> pb::Node {
    use drover_proto::orchestrator::v1::NodeState as Wire;
    let state = match node.state {
        // Nodes that are being removed or proven dead keep their state whether they are visible or not.
        NodeState::Draining => Wire::Draining,
        NodeState::Deprovisioning => Wire::Deprovisioning,
        NodeState::Failed => Wire::Failed,
        NodeState::Requested => Wire::Requested,
        NodeState::Provisioning | NodeState::Starting | NodeState::Ready | NodeState::Unhealthy
            if !around.visible =>
        {
            Wire::Unknown
        }
        NodeState::Provisioning => Wire::Provisioning,
        NodeState::Starting => Wire::Starting,
        NodeState::Ready => Wire::Ready,
        NodeState::Unhealthy => Wire::Unhealthy,
    };
    let unknown = state == Wire::Unknown;
    let seen = &node.seen;
    let wire_phase = match seen.phase {
        Phase::Unseen => platform::NodePhase::Unspecified,
        Phase::Pending => platform::NodePhase::Pending,
        Phase::Running => platform::NodePhase::Running,
        Phase::Stopped => platform::NodePhase::Stopped,
        Phase::Deprovisioning => platform::NodePhase::Deprovisioning,
        Phase::Failed => platform::NodePhase::Failed,
        Phase::Terminated => platform::NodePhase::Terminated,
        Phase::Unknown => platform::NodePhase::Unknown,
    };
    let addresses = seen.addresses.iter().map(|address| common::Address {
        r#type: address.kind,
        value: address.value.to_string(),
        interface: address.interface.to_string(),
    });
    pb::Node {
        id: node.id(around.uid),
        name: node.name(),
        cluster: around.cluster.to_owned(),
        group: node.group.to_string(),
        ordinal: node.ordinal,
        role: to_role(node.role).into(),
        platform: node.platform.to_string(),
        state: state.into(),
        reason: if unknown {
            "NotVisible".to_owned()
        } else if node.reason.is_empty() && node.role == Role::Promoting {
            "Promoting".to_owned()
        } else {
            node.reason.to_string()
        },
        message: if let Some(role_change) =
            node.in_flight
                .changes
                .role_change
                .as_ref()
                .filter(|role_change| {
                    node.message.is_empty()
                        && role_change.call.failures > 0
                        && node.role == Role::Promoting
                }) {
            format!(
                "promotion failed {}, the last: {}",
                words::count(role_change.call.failures, "time"),
                role_change.message
            )
        } else if let Some(words) = probed(node).filter(|_| !unknown) {
            words
        } else if node.message.is_empty() {
            seen.message.to_string()
        } else {
            node.message.to_string()
        },
        node_class: node.class.to_string(),
        version: node.version.to_string(),
        endpoints: seen
            .endpoints
            .iter()
            .map(|(name, to)| (name.to_string(), to.to_string()))
            .collect(),
        agent_address: (!seen.agent_address.is_empty()).then(|| seen.agent_address.to_string()),
        platform_node_id: node.node_id.as_ref().map(ToString::to_string),
        provider_id: seen.provider_id.to_string(),
        failure_domain: seen.failure_domain.to_string(),
        create_time: Some(to_timestamp(node.create_time)),
        state_time: Some(to_timestamp(node.state_time)),
        request_id: node.request.to_string(),
        request_index: node.index,
        request_sequence: node.sequence,
        platform_uid: node.platform_uid.to_string(),
        platform_phase: wire_phase.into(),
        observe_time: to_timestamp_opt(seen.last),
        outdated: around.outdated,
        marked: node.marked,
        under_repair: around.under_repair,
        spec_hash: node.spec_hash.to_string(),
        attempts: node.attempts,
        addresses: addresses.collect(),
        maintenance: seen.host.maintenance.as_deref().map(to_maintenance),
        host_id: (seen.host.id.as_deref())
            .or((!node.host.is_empty()).then_some(&*node.host))
            .map(ToOwned::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_counts_as_lost_only_while_nobody_there_answers() {
        use platform::NodeHostState as State;
        let mut seen = Seen::default();
        let mut lost = |state: i32| {
            let host = platform::NodeHost {
                name: "worker-1".to_owned(),
                state,
                message: "silent".to_owned(),
                way_out: "switch it off".to_owned(),
            };
            let node = platform::Node {
                host: Some(host),
                ..platform::Node::default()
            };
            let changed = observe(&mut seen, &node, 1, &mut |text| text.into());
            (changed, seen.host.lost.as_deref().cloned())
        };
        let silent = LostHost {
            name: "worker-1".into(),
            gone: false,
            message: "silent".into(),
            way_out: "switch it off".into(),
        };
        lost(State::Ready.into());
        assert_eq!(lost(State::Ready.into()), (false, None));
        let unreachable = lost(State::Unreachable.into());
        assert_eq!(unreachable, (true, Some(silent.clone())));
        let again = lost(State::Unreachable.into());
        assert_eq!(again, (false, Some(silent.clone())));
        let gone = LostHost {
            gone: true,
            ..silent
        };
        assert_eq!(lost(State::Gone.into()), (true, Some(gone)));
        // A state that a newer platform knows.
        assert_eq!(lost(99), (true, None));
    }

    #[test]
    fn announced_maintenance_is_known_until_it_is_no_longer_announced() {
        use platform::NodeMaintenanceKind as Kind;
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let announced = platform::NodeMaintenance {
            kind: Kind::Stop.into(),
            start_time: at(1_800_000_000),
            end_time: None,
            message: "instance-retirement".to_owned(),
        };
        let mut seen = Seen::default();
        let mut observed = |maintenance: Option<platform::NodeMaintenance>| {
            let node = platform::Node {
                maintenance,
                ..platform::Node::default()
            };
            let changed = observe(&mut seen, &node, 1, &mut |text| text.into());
            (
                changed,
                seen.host.maintenance.as_deref().map(to_maintenance),
            )
        };
        observed(None);
        let same = Some(announced.clone());
        assert_eq!(observed(same.clone()), (true, same.clone()));
        assert_eq!(observed(same.clone()), (false, same));
        // A kind that a newer platform knows, and a time that no clock can show.
        let odd = platform::NodeMaintenance {
            kind: 99,
            start_time: at(i64::MIN),
            end_time: at(i64::MAX),
            ..announced
        };
        let (changed, shown) = observed(Some(odd));
        let shown = shown.unwrap();
        assert!(changed);
        assert_eq!((shown.kind(), shown.start_time), (Kind::Unspecified, None));
        assert_eq!(observed(None), (true, None));
    }
}
