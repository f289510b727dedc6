//! FailOverGroup: a standby takes over without what only the last active node of its group may have acknowledged.

use drover_cluster::AcceptedLosses;
use drover_core::{Error, Phase, Reason, Result, Sym, name::node_name};
use drover_planner::{ConditionKey, ConditionKind, Sole, State};
use drover_proto::orchestrator::v1 as pb;

use super::clusters::{Edits, no_group, refuse_deleting};

/// The field that says that a loss is accepted.
const ACCEPT_LOSS: &str = "accept_loss";

impl Edits {
    pub(super) async fn fail_over(
        &self,
        request: pb::FailOverGroupRequest,
    ) -> Result<pb::FailOverGroupResponse> {
        self.access
            .caller
            .about("group", &format!("{}/{}", request.cluster, request.group));
        let cluster = self.access.find_to_change(&request.cluster)?;
        let _change = self.editor.lock(&cluster).await;
        let (desired, lost, id, is_new) = {
            let inner = cluster.lock();
            refuse_deleting(&inner, cluster.name())?;
            let mut groups = inner.spec().groups.iter();
            let group = groups
                .find(|group| *group.path == *request.group)
                .ok_or_else(|| no_group(cluster.name(), &request.group))?;
            let state = inner.state();
            let sole = recorded(cluster.name(), state, &group.path)?;
            refuse_living(cluster.name(), state, sole)?;
            let lost = node_name(&group.path, sole.ordinal);
            if !request.accept_loss {
                return Err(unaccepted(cluster.name(), &group.path, &lost));
            }
            let mut desired = inner.desired().clone();
            let mut accepted = AcceptedLosses::of(&desired.value)?;
            let matters = |slot: &u64| {
                state.sole.values().any(|sole| sole.slot == *slot) || state.node(*slot).is_some()
            };
            accepted.slots.retain(matters);
            let is_new = !accepted.slots.contains(&sole.slot);
            if is_new {
                accepted.slots.push(sole.slot);
            }
            accepted.put(&mut desired.value);
            let node = state.node(sole.slot);
            let id = node.map(|node| node.id(cluster.uid()));
            (desired, lost, id, is_new)
        };
        let revision = self.editor.store(&cluster, desired, None).await?;
        if is_new {
            let words = format!("what {lost} may have acknowledged alone is done without");
            self.editor
                .tell_always(&cluster, "LossAccepted", words, |event| {
                    event.severity = pb::EventSeverity::Warning.into();
                    (event.node, event.group) = (id, Some(request.group));
                })
                .await;
        }
        Ok(pb::FailOverGroupResponse {
            node_name: lost,
            revision,
        })
    }
}

/// The node of a group that may have acknowledged alone. Without one there is nothing to do without.
fn recorded(cluster: &str, state: &State, group: &Sym) -> Result<Sole> {
    if let Some(sole) = state.sole.get(group) {
        return Ok(*sole);
    }
    let key = ConditionKey {
        group: group.clone(),
        kind: ConditionKind::PromotionFailed,
    };
    let mut message =
        format!("no node of {cluster}/{group} is recorded to have acknowledged alone");
    if let Some(held) = state.conditions.get(&key) {
        message = format!("{message}; {}: {}", key.kind.as_str(), held.message);
    }
    Err(Error::new(Reason::Precondition, message))
}

/// Refuses as long as the node may go on with what it acknowledged. A slot whose loss is accepted must never come back:
/// what it acknowledged alone after that would be given up, too.
fn refuse_living(cluster: &str, state: &State, sole: Sole) -> Result<()> {
    let Some(node) = state.node(sole.slot) else {
        return Ok(());
    };
    if node.is_dead() || !node.role.may_act() {
        return Ok(());
    }
    let name = node.name();
    let is = if node.seen.phase == Phase::Running {
        "still runs"
    } else {
        "is not proven gone"
    };
    let message = format!(
        "{name} {is}, and may go on acknowledging alone: wait for it, or first drover replace {cluster}/{name} (if its host \
         is lost, say that it is off, as the condition HostLost does)"
    );
    Err(Error::new(Reason::Precondition, message))
}

/// Says what would be lost.
fn unaccepted(cluster: &str, group: &str, lost: &str) -> Error {
    let message = format!(
        "{lost} may have acknowledged writes that no standby of {cluster}/{group} has; one that takes over does without \
         them, for good"
    );
    Error::new(Reason::Precondition, message)
        .with_violation(ACCEPT_LOSS, "has to be true, to do without them")
}

#[cfg(test)]
mod tests {
    use drover_cluster::fixture;
    use drover_core::{
        Node, NodeState,
        node::{Removal, RemovalReason, Role},
    };
    use drover_planner::Condition;

    use super::*;

    const SOLE: Sole = Sole {
        slot: 7,
        ordinal: 7,
    };

    fn with(node: Option<Node>) -> State {
        let mut state = State::default();
        state.sole.insert("db".into(), SOLE);
        state.nodes.extend(node);
        state
    }

    #[test]
    fn who_is_not_recorded_has_nothing_to_lose() {
        let group: Sym = "db".into();
        assert_eq!(recorded("orders", &with(None), &group).unwrap(), SOLE);
        let mut state = State::default();
        let said = |state: &State| {
            let error = recorded("orders", state, &group).unwrap_err();
            assert_eq!(error.reason(), Reason::Precondition);
            error.message().to_owned()
        };
        let nobody = "no node of orders/db is recorded to have acknowledged alone";
        assert_eq!(said(&state), nobody);
        let key = ConditionKey {
            group: group.clone(),
            kind: ConditionKind::PromotionFailed,
        };
        let held = Condition {
            reason: "NoStandbyReady".into(),
            message: "db-1 is not Ready".into(),
            since: 1,
        };
        state.conditions.insert(key, held);
        let why = format!("{nobody}; PromotionFailed: db-1 is not Ready");
        assert_eq!(said(&state), why);
    }

    #[test]
    fn what_a_node_has_is_given_up_only_when_it_cannot_come_back() {
        let node = || fixture::node(SOLE.slot, NodeState::Unhealthy);
        let said = |node: Node| {
            refuse_living("orders", &with(Some(node)), SOLE)
                .map_err(|error| error.message().to_owned())
        };
        for (phase, word) in [
            (Phase::Running, "db-7 still runs"),
            (Phase::Stopped, "db-7 is not proven gone"),
            (Phase::Unseen, "db-7 is not proven gone"),
        ] {
            let message = said(fixture::with(node(), |node| node.seen.phase = phase)).unwrap_err();
            assert!(message.starts_with(word), "{message}");
            assert!(message.contains("drover replace orders/db-7"), "{message}");
        }
        let removal = Removal {
            reason: RemovalReason::Sick,
            since: 1,
            retain: true,
            drain: 0,
        };
        said(fixture::with(node(), |node| node.removal = Some(removal))).unwrap_err();
        said(fixture::with(node(), |node| node.state = NodeState::Failed)).unwrap();
        said(fixture::with(node(), |node| node.role = Role::Standby)).unwrap();
        refuse_living("orders", &with(None), SOLE).unwrap();
    }

    #[test]
    fn what_would_be_lost_is_said_with_the_field_that_accepts_it() {
        let error = unaccepted("orders", "db", "db-0");
        assert!(
            error.message().starts_with("db-0 may have acknowledged"),
            "{error}"
        );
        assert_eq!(error.fields()[0].field, ACCEPT_LOSS);
    }
}
