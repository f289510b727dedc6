use drover_core::{Node, node::Request};
use uuid::Uuid;

use super::*;

fn node(slot: u64, state: NodeState) -> Node {
    crate::fixture::with(crate::fixture::node(slot, state), |node| {
        let origin = node.origin_mut();
        origin.group = "data/hot".into();
        origin.platform = "local".into();
        origin.storage = true;
        node.seen.provider_id = "local://host/7".into();
    })
}

fn told(state: &State, ops: &[Op]) -> Vec<NewEvent> {
    let by = Authors {
        generation: "ann",
        pause: "bob",
    };
    of(ops, state, by, Steps::new(4, 9), 3_500)
}

fn enter(state: NodeState, reason: &'static str, message: &str) -> Op {
    Op::StateChanged {
        slot: 0,
        state,
        reason,
        message: message.into(),
        stable: false,
    }
}

#[test]
fn a_state_is_told_once_with_what_helps() {
    let state = State {
        nodes: vec![node(0, NodeState::Starting)],
        ..State::default()
    };
    let events = told(&state, &[enter(NodeState::Ready, "", "")]);
    assert_eq!(
        (events[0].reason.as_str(), events[0].message.as_str()),
        ("NodeReady", "local://host/7 2.50 s")
    );
    assert_eq!(events[0].group.as_deref(), Some("data/hot"));
    assert!(
        events[0]
            .node
            .as_deref()
            .is_some_and(|id| id.starts_with("data-hot-0-"))
    );
    assert!(told(&state, &[enter(NodeState::Starting, "Other", "words")]).is_empty());
    let events = told(
        &state,
        &[enter(NodeState::Unhealthy, "ProbeFailed", "tcp: refused")],
    );
    assert_eq!(
        (events[0].reason.as_str(), events[0].message.as_str()),
        ("NodeUnhealthy", "ProbeFailed: tcp: refused")
    );
    assert_eq!(events[0].severity, i32::from(EventSeverity::Warning));
    let events = told(
        &state,
        &[enter(NodeState::Failed, "PlatformFailed", "died: killed")],
    );
    assert_eq!(
        (events[0].reason.as_str(), events[0].message.as_str()),
        ("NodeFailed", "died: killed")
    );
}

#[test]
fn events_name_the_step_that_did_it_as_the_plan_does() {
    let state = State {
        nodes: vec![node(0, NodeState::Ready), node(1, NodeState::Ready)],
        ..State::default()
    };
    let ops = [
        Op::Observed { generation: 4 },
        Op::Remove {
            slot: 0,
            reason: RemovalReason::Surplus,
            retain: false,
        },
        enter(NodeState::Failed, "Terminated", ""),
        Op::RecordDropped {
            slot: 1,
            reason: "Terminated",
            message: "by its own word".into(),
            lost: true,
        },
    ];
    let steps: Vec<(String, Option<String>)> = told(&state, &ops)
        .into_iter()
        .map(|event| (event.reason, event.step))
        .collect();
    let named = |reason: &str, step: Option<&str>| (reason.to_owned(), step.map(ToOwned::to_owned));
    assert_eq!(
        steps,
        [
            named("ClusterCreated", None),
            named("NodeDeprovisioning", Some("4.9.1")),
            named("NodeFailed", None),
            named("NodeLost", Some("4.9.2")),
        ]
    );
}

#[test]
fn many_nodes_of_one_request_are_one_event_of_bounded_length() {
    let request = Request {
        group: "data/hot".into(),
        platform: "local".into(),
        ..crate::fixture::request(Uuid::from_u128(3))
    };
    let nodes = (0..45)
        .map(|slot| node(slot, NodeState::Requested))
        .collect();
    let op = Op::Request {
        request: Box::new(request),
        nodes,
        group: 0,
        choice: 0,
        reason: "ScaleUp",
    };
    let events = told(&State::default(), &[op]);
    assert_eq!((events.len(), events[0].count), (1, 1));
    assert!(
        events[0].message.ends_with("data-hot-9, 35 more"),
        "{}",
        events[0].message
    );
    assert!(events[0].node.is_none());
}

#[test]
fn a_condition_is_told_when_it_begins_and_when_it_ends_and_not_when_its_words_change() {
    let key = ConditionKey {
        group: "db".into(),
        kind: ConditionKind::NoCapacity,
    };
    let holds = Condition {
        reason: "NoCapacity".into(),
        message: "none left".into(),
        since: 1,
    };
    let change = |to: Option<Condition>| Op::Condition {
        key: key.clone(),
        to,
    };
    let mut state = State::default();
    assert_eq!(
        told(&state, &[change(Some(holds.clone()))])[0].reason,
        "NoCapacity"
    );
    state.conditions.insert(key.clone(), holds.clone());
    let reworded = Condition {
        message: "still none".into(),
        ..holds
    };
    assert!(told(&state, &[change(Some(reworded))]).is_empty());
    let ended = told(&state, &[change(None)]);
    assert_eq!(
        (ended[0].reason.as_str(), ended[0].group.as_deref()),
        ("NoCapacityEnded", Some("db"))
    );
}

#[test]
fn an_update_of_one_node_is_told_in_the_singular() {
    let rollout = |left| Op::Rollout {
        group: "data/hot".into(),
        to: Some(Rollout {
            target: "h".into(),
            started: 1,
            progress: 1,
            ready: 0,
            left,
            size: 3,
            surplus: 0,
        }),
    };
    for (left, words) in [
        (1, "1 node is to be replaced"),
        (3, "3 nodes are to be replaced"),
    ] {
        let events = told(&State::default(), &[rollout(left)]);
        assert_eq!(
            (events[0].reason.as_str(), events[0].message.as_str()),
            ("UpdateStarted", words)
        );
    }
}

#[test]
fn a_deletion_is_told_as_a_request() {
    let state = State {
        deleting: true,
        ..State::default()
    };
    let events = told(&state, &[Op::Observed { generation: 4 }]);
    assert_eq!(
        (events[0].reason.as_str(), events[0].message.as_str()),
        ("ClusterDeleting", "deletion was requested by ann")
    );
}
