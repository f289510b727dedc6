use drover_core::{
    NodeState,
    node::Request,
    resource::{ResourceKey, ResourcePhase, ResourceRecord},
};
use drover_planner::Foreign;

use super::*;
use crate::fixture;

const NOW: Millis = 100_000;
const SLOT: u64 = 7;

fn state() -> ClusterState {
    let mut state = fixture::cluster_state();
    let mut node = fixture::node(SLOT, NodeState::Ready);
    node.in_flight.call.in_flight = true;
    state.state.nodes.push(node);
    state
}

fn node(state: &ClusterState) -> &Node {
    state.state.node(SLOT).unwrap()
}

fn error(reason: Reason) -> Error {
    Error::new(reason, "no")
}

#[test]
fn the_answer_to_a_request_is_left_for_the_next_plan() {
    let mut state = state();
    let id = Uuid::from_u128(3);
    let request = Request {
        in_flight: drover_core::node::RequestInFlight {
            call: Call {
                in_flight: true,
                ..Call::default()
            },
            ..Default::default()
        },
        ..fixture::request(id)
    };
    state.state.requests.insert(id, request);
    let end = CallEnd::Provision {
        request: id,
        outcome: Ok(vec![Outcome::Made("i-1".into())]),
        rendered: Some("digest".into()),
    };
    assert!(state.call_ended(end, NOW));
    let request = &state.state.requests[&id];
    assert!(!request.in_flight.call.in_flight);
    let answer = request.in_flight.answer.as_ref().unwrap();
    assert_eq!((answer.at, answer.taken), (NOW, false));
    assert_eq!(request.in_flight.rendered.as_deref(), Some("digest"));
}

#[test]
fn the_end_of_a_call_whose_record_is_gone_changes_nothing() {
    let mut state = state();
    let before = state.state.clone();
    let end = CallEnd::Provision {
        request: Uuid::from_u128(9),
        outcome: Err(error(Reason::Unavailable)),
        rendered: None,
    };
    assert!(!state.call_ended(end, NOW));
    let end = CallEnd::Deprovision {
        slot: SLOT + 1,
        grace: None,
        answer: Ok(()),
    };
    assert!(!state.call_ended(end, NOW));
    assert_eq!(state.state, before);
}

#[test]
fn an_accepted_removal_is_asked_for_again_after_its_grace_period() {
    let mut state = state();
    let end = CallEnd::Deprovision {
        slot: SLOT,
        grace: Some(Duration::from_secs(60)),
        answer: Ok(()),
    };
    assert!(state.call_ended(end, NOW));
    assert_eq!(node(&state).in_flight.call, idle_until(NOW + 90_000));
}

#[test]
fn failed_calls_wait_longer_each_time_and_say_why() {
    let mut state = state();
    let mut waits = Vec::new();
    for _ in 0..10 {
        let end = CallEnd::Deprovision {
            slot: SLOT,
            grace: None,
            answer: Err(error(Reason::Unavailable)),
        };
        assert!(state.call_ended(end, NOW));
        waits.push(node(&state).in_flight.call.next - NOW);
    }
    assert_eq!(node(&state).in_flight.call.failures, 10);
    assert_eq!(&*node(&state).seen.message, "no");
    assert!((250..=500).contains(&waits[0]), "{waits:?}");
    // Half of each wait is jitter, so that clusters do not come back all at once.
    assert!((30_000..=60_000).contains(&waits[9]), "{waits:?}");
}

#[test]
fn a_platform_says_itself_when_it_is_to_be_called_again() {
    let mut state = state();
    let end = CallEnd::Deprovision {
        slot: SLOT,
        grace: None,
        answer: Err(error(Reason::RateLimited).with_retry_after(Duration::from_secs(5))),
    };
    state.call_ended(end, NOW);
    assert_eq!(node(&state).in_flight.call.next, NOW + 5_000);
}

#[test]
fn a_stale_fence_is_no_news_about_the_node() {
    let mut state = state();
    let end = CallEnd::Deprovision {
        slot: SLOT,
        grace: None,
        answer: Err(error(Reason::Fenced)),
    };
    state.call_ended(end, NOW);
    assert_eq!(&*node(&state).seen.message, "");
    assert_eq!(node(&state).in_flight.call.failures, 1);
}

#[test]
fn a_hook_that_may_not_have_run_is_run_again_and_any_other_failure_is_final() {
    for reason in [
        Reason::NotSent,
        Reason::Unavailable,
        Reason::PlatformRestarted,
        Reason::RateLimited,
        Reason::Fenced,
        Reason::Overloaded,
    ] {
        let mut state = state();
        let ran = Err(error(reason));
        state.call_ended(CallEnd::PreStop { slot: SLOT, ran }, NOW);
        assert_eq!(node(&state).in_flight.changes.hook, None, "{reason:?}");
        assert!(node(&state).in_flight.call.next > NOW, "{reason:?}");
    }
    for (ran, result) in [
        (Ok(()), Ok(())),
        (Err(error(Reason::Precondition)), Err("no".into())),
        (Err(error(Reason::DeadlineExceeded)), Err("no".into())),
        // Only a template can have asked for it; the user's own hook would have been refused at apply.
        (Err(error(Reason::CapabilityMissing)), Ok(())),
    ] {
        let mut state = state();
        state.call_ended(CallEnd::PreStop { slot: SLOT, ran }, NOW);
        assert_eq!(
            node(&state).in_flight.changes.hook.as_deref(),
            Some(&result)
        );
        assert!(!node(&state).in_flight.call.in_flight);
    }
}

#[test]
fn a_role_that_was_taken_counts_only_while_it_is_the_intended_one() {
    for (intended, done) in [(Role::Promoting, true), (Role::Demoting, false)] {
        let mut state = state();
        state.state.node_mut(SLOT).unwrap().role = intended;
        let end = CallEnd::RoleChange {
            slot: SLOT,
            role: Role::Promoting,
            answer: Ok(()),
        };
        state.call_ended(end, NOW);
        assert_eq!(
            node(&state)
                .in_flight
                .changes
                .role_change
                .as_ref()
                .unwrap()
                .done,
            done
        );
    }
}

#[test]
fn a_role_change_is_refused_only_if_every_attempt_certainly_did_nothing() {
    let mut state = state();
    let mut end = |reason| {
        let answer = Err(RoleChangeFailure::from(error(reason)));
        let role = Role::Promoting;
        let end = CallEnd::RoleChange {
            slot: SLOT,
            role,
            answer,
        };
        state.call_ended(end, NOW);
        let change = node(&state).in_flight.changes.role_change.clone().unwrap();
        (change.refused, change.call.failures)
    };
    assert_eq!(end(Reason::NotSent), (true, 1));
    assert_eq!(end(Reason::Precondition), (true, 2));
    assert_eq!(end(Reason::Unavailable), (false, 3));
    assert_eq!(end(Reason::Precondition), (false, 4));
}

/// What its platform reports may be of the past, and say the same after each refusal.
#[test]
fn a_node_that_somebody_else_has_by_now_is_not_waited_for_nor_asked_for_at_once_again() {
    for (reason, taken) in [
        (Reason::SlotMismatch, true),
        (Reason::NodeNotInCluster, true),
        (Reason::Unavailable, false),
    ] {
        let mut state = state();
        let adopted = &mut state.state.nodes[0];
        adopted.node_id = Some("one".into());
        let key = (adopted.platform.clone(), "one".into());
        state.state.foreign.insert(key.clone(), Foreign::default());
        let answer = Err(error(reason));
        state.call_ended(CallEnd::Adopt { slot: SLOT, answer }, NOW);
        assert_eq!(node(&state).seen.gone, taken, "{reason:?}");
        let call = state.state.foreign[&key].call;
        assert_eq!(call.next > NOW, taken, "{reason:?}");
        assert_eq!(call.failures > 0, taken, "{reason:?}");
    }
}

#[test]
fn complete_reads_pause_before_they_look_again() {
    let mut state = state();
    let platform: Sym = "p".into();
    state.state.confirms.or_default(platform.clone()).in_flight = true;
    let end = CallEnd::Confirm {
        platform: platform.clone(),
        answer: Ok(()),
    };
    state.call_ended(end, NOW);
    let call = *state.state.confirms.or_default(platform);
    assert_eq!(call, idle_until(NOW + CONFIRM_PAUSE));
}

#[test]
fn infrastructure_that_cannot_be_read_stays_as_it_was_read_last() {
    let mut state = state();
    let key = ResourceKey::infrastructure("p", "u");
    let record = ResourceRecord {
        phase: ResourcePhase::Ready,
        ..ResourceRecord::default()
    };
    state.state.resources.insert(key.clone(), record);
    let mut end = |asked| {
        let end = CallEnd::Resource {
            key: key.clone(),
            sequence: 1,
            asked,
            began: NOW - 10,
            answer: Err(error(Reason::Unavailable)),
        };
        assert!(state.call_ended(end, NOW));
        state.state.resources.get(&key).unwrap().clone()
    };
    let read = end(Asked::Read);
    assert!(read.in_flight.answer.is_none());
    assert_eq!(
        (read.phase, read.in_flight.call.failures),
        (ResourcePhase::Ready, 1)
    );
    // That an attempt to change it failed is for the planner to judge.
    let ensured = end(Asked::Ensure);
    assert_eq!(ensured.in_flight.call, Call::default());
    assert_eq!(ensured.in_flight.answer.unwrap().at, NOW);
}

#[test]
fn whoever_asked_for_the_pass_hears_how_its_calls_ended() {
    let end = |answer| CallEnd::Deprovision {
        slot: SLOT,
        grace: None,
        answer,
    };
    let failed = end(Err(error(Reason::Unavailable)));
    let (subject, why) = failed.result().unwrap();
    assert_eq!(subject, Subject::Slot(SLOT));
    assert_eq!(why.map(Error::message), Some("no"));
    let done = end(Ok(()));
    assert_eq!(done.result(), Some((Subject::Slot(SLOT), None)));
    let read = CallEnd::Confirm {
        platform: "p".into(),
        answer: Ok(()),
    };
    assert_eq!(read.result(), None, "nobody asks for it");
}

#[test]
fn labels_of_a_host_are_confirmed_by_their_hash_and_a_failure_waits_longer_each_time() {
    let mut state = state();
    let end = |state: &mut ClusterState, answer| {
        state.call_ended(CallEnd::Relabel { slot: SLOT, answer }, NOW);
        node(state).in_flight.changes.relabel.clone().unwrap()
    };
    let failed = end(&mut state, Err(error(Reason::Unavailable)));
    assert_eq!((failed.call.failures, &*failed.message), (1, "no"));
    let again = end(&mut state, Err(error(Reason::Invalid)));
    assert!(again.call.failures == 2 && again.call.next > NOW && again.done.is_none());
    let stale = end(&mut state, Err(error(Reason::Fenced)));
    assert_eq!(stale.call.failures, 0, "only the fence was old");
    let done = end(&mut state, Ok("l1".into()));
    assert_eq!(done.done.as_deref(), Some("l1"));
    assert_eq!(done.call, Call::default());
}
