use drover_core::{
    NodeState, Phase,
    node::{
        Answer, Call, Former, Node, Outcome, Removal, RemovalReason, Request, RequestInFlight,
        Role, RoleChange,
    },
    resource::{Asked, ResourceAnswer, ResourceKey, ResourceKind, ResourceRecord},
};
use drover_planner::{Input, Limits, Op, PlatformView};
use uuid::Uuid;

use super::*;
use crate::fixture::with;

const ID: Uuid = Uuid::from_u128(3);
const FLYING: Call = Call {
    in_flight: true,
    failures: 2,
    next: 7,
};

fn request() -> Request {
    Request {
        deadline: 61_000,
        in_flight: RequestInFlight::default(),
        ..crate::fixture::request(ID)
    }
}

fn node() -> Node {
    crate::fixture::node(1, NodeState::Ready)
}

fn state(node: Node, request: Option<Request>) -> State {
    State {
        uid: Uuid::from_u128(9),
        next_slot: 2,
        next_sequence: 2,
        nodes: vec![node],
        requests: request
            .into_iter()
            .map(|request| (request.id, request))
            .collect(),
        ..State::default()
    }
}

fn removal() -> Option<Removal> {
    Some(Removal {
        reason: RemovalReason::User,
        since: 1,
        retain: false,
        drain: 0,
    })
}

/// The plan for an empty spec, on a platform where calls of earlier processes have ended.
fn plan(state: &State) -> drover_planner::Plan {
    let view = PlatformView {
        uid: "u".into(),
        visible: true,
        visible_since: 1,
        callable: true,
        trouble: "".into(),
        etag: "".into(),
        limits: Limits::default(),
        provision_timeout: 900_000,
        no_capacity: Vec::new(),
        domains: std::sync::Arc::default(),
        sick: 0,
        total: 1,
        calm_since: 0,
        fenced: true,
        adopts: false,
        relabels: false,
        grows: Some(false),
        finite: false,
    };
    let platforms = [("p".into(), view)].into();
    let input = Input {
        now: 2_000,
        process_start: 1,
        groups: &[],
        infrastructure: &[],
        addons: &[],
        addon_secrets: &[],
        health_defaults: &[],
        leaving: &[],
        orphans: drover_core::spec::OrphanPolicy::Delete,
        orphan_grace: 120_000,
        orphan_hold: false,
        state,
        platforms: &platforms,
        sizes: &(),
        explain: false,
    };
    drover_planner::plan(&input, &mut Uuid::now_v7)
}

#[test]
fn a_call_that_is_under_way_is_not_taken_for_one_of_an_earlier_process() {
    let unseen = || {
        with(node(), |node| {
            node.node_id = None;
            node.state = NodeState::Requested;
        })
    };
    let mut sent = request();
    sent.in_flight.sent = true;
    sent.in_flight.call = FLYING;
    let old = state(unseen(), Some(sent));
    let mut new = state(unseen(), Some(request()));
    keep_unrecorded(old, &mut new);
    let carried = new.requests.get(&ID).unwrap();
    assert!(carried.in_flight.sent);
    assert_eq!(carried.in_flight.call, FLYING);
    // The request settles only once the call in flight can no longer create the node.
    let plan = plan(&new);
    let settled = plan.ops.iter().find_map(|op| match op {
        Op::Close { settled, .. } => Some(*settled),
        _ => None,
    });
    assert_eq!(settled, Some(61_000), "{:?}", plan.ops);
}

#[test]
fn an_answer_is_taken_in_once() {
    let answer = Answer {
        at: 1_500,
        taken: false,
        outcome: Ok(vec![Outcome::Made("i-1".into())]),
    };
    let answered = |attempts, made_nothing| Request {
        in_flight: RequestInFlight {
            answer: Some(answer.clone()),
            ..RequestInFlight::default()
        },
        attempts,
        made_nothing,
        ..request()
    };
    let carried = |old: Request, new: Request| {
        let mut state_after = state(node(), Some(new));
        keep_unrecorded(state(node(), Some(old)), &mut state_after);
        state_after
            .requests
            .get(&ID)
            .unwrap()
            .in_flight
            .answer
            .clone()
    };
    assert_eq!(carried(answered(1, 0), request()), Some(answer.clone()));
    let again = Request {
        attempts: 2,
        ..request()
    };
    assert_eq!(carried(answered(1, 0), again), None, "it was sent again");
    let taken = Request {
        made_nothing: 1,
        ..request()
    };
    assert_eq!(carried(answered(1, 0), taken), None, "the record shows it");
}

#[test]
fn what_is_asked_of_a_node_goes_on_unless_its_record_is_a_step_further() {
    let leaving = |drain| {
        let removal = removal().map(|removal| Removal { drain, ..removal });
        with(node(), |node| node.removal = removal)
    };
    let flying = |node: Node| {
        with(node, |node| {
            node.in_flight.call = FLYING;
            node.in_flight.changes.hook = Some(Box::new(Ok(())));
            node.seen.phase = Phase::Running;
            node.seen.node_id = "i-1".into();
        })
    };
    let carried = |old: Node, new: Node| {
        let mut after = state(new, None);
        keep_unrecorded(state(flying(old), None), &mut after);
        after.nodes.remove(0)
    };
    let same = carried(leaving(5), leaving(5));
    assert_eq!(
        (same.in_flight.call, same.in_flight.changes.hook.is_some()),
        (FLYING, true)
    );
    assert_eq!(same.seen.phase, Phase::Running);
    assert!(same.seen.node_id.is_empty(), "it is recorded");
    for (old, new) in [(node(), leaving(0)), (leaving(5), leaving(0))] {
        let further = carried(old, new);
        assert_eq!(
            (further.in_flight.call, &further.in_flight.changes.hook),
            (Call::default(), &None)
        );
    }
}

#[test]
fn the_change_of_another_role_is_not_the_change_of_this_one() {
    let role_change = RoleChange {
        call: FLYING,
        done: true,
        doubt: true,
        refused: false,
        message: "".into(),
    };
    let old = with(node(), |node| {
        node.role = Role::Promoting;
        node.in_flight.changes.role_change = Some(Box::new(role_change.clone()));
    });
    for (role, kept) in [(Role::Promoting, Some(role_change)), (Role::Active, None)] {
        let mut new = state(with(node(), |node| node.role = role), None);
        keep_unrecorded(state(old.clone(), None), &mut new);
        assert_eq!(
            new.nodes[0]
                .in_flight
                .changes
                .role_change
                .as_deref()
                .cloned(),
            kept
        );
    }
}

#[test]
fn a_read_that_failed_is_not_made_again_at_once() {
    let mut old = state(node(), None);
    old.confirms.insert("p".into(), FLYING);
    let mut new = state(node(), None);
    keep_unrecorded(old, &mut new);
    assert_eq!(new.confirms.get("p"), Some(&FLYING));
}

#[test]
fn what_an_addon_was_told_and_confirmed_is_known_after_its_record_was_read_again() {
    let key = ResourceKey {
        kind: ResourceKind::Addon("lb".into()),
        platform: "p".into(),
        uid: "u".into(),
    };
    let record = ResourceRecord::default();
    let mut told = record.clone();
    told.in_flight.sent = true;
    told.in_flight.call = FLYING;
    told.in_flight.ensured = 5;
    told.in_flight.served = Some([].into());
    told.in_flight.announced = vec![1];
    told.in_flight.follows = true;
    let mut answered = told.clone();
    // It may be recorded already, and must not be taken in again.
    answered.in_flight.answer = Some(ResourceAnswer {
        asked: Asked::Ensure,
        began: 4,
        at: 5,
        outcome: Err(drover_core::Error::unavailable("no")),
    });
    let of = |record: &ResourceRecord| {
        let mut state = state(node(), None);
        state.resources.insert(key.clone(), record.clone());
        state
    };
    let mut new = of(&record);
    keep_unrecorded(of(&answered), &mut new);
    assert_eq!(new.resources.get(&key), Some(&told));
}

#[test]
fn a_change_of_labels_and_a_call_go_on_unless_the_record_has_others_or_is_adopted() {
    let flying = with(node(), |node| {
        node.in_flight.call = FLYING;
        node.in_flight.changes.relabel = Some(Box::default());
    });
    let after = |change: fn(&mut Node)| {
        let mut new = state(with(node(), change), None);
        keep_unrecorded(state(flying.clone(), None), &mut new);
        new.nodes.remove(0).in_flight
    };
    assert_eq!(after(|_| {}), flying.in_flight);
    let other = after(|node| node.labels_hash = "l".into());
    assert_eq!((other.call, &other.changes.relabel), (FLYING, &None));
    let adopted = after(|node| node.adopted.former = Some(Former::default()));
    assert_eq!(adopted.call, Call::default());
}
