//! Infrastructure: created before the nodes, checked for drift, released after them, from every state and after every
//! crash.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what must be there fails the test if it is not"
)]

use crate::world;
mod lives;
mod release;

use std::time::Duration;

use drover_core::{
    Error, Millis,
    error::Reason,
    resource::{Asked, Observed, Resource, ResourceAnswer, ResourcePhase, Wanted},
};
use drover_planner::{
    Call, ConditionKey, ConditionKind, DRIFT_INTERVAL, Foreign, Op, Plan, ResourceChange,
};
use world::{
    Crash, World,
    build::{CALL, CREATION, HIDDEN, group, sym},
    infrastructure::wanted,
};

const ALL: &str = "endpoint,firewall,network";

fn fresh(seed: u64, below: Vec<Wanted>, size: u32) -> World {
    let mut world = World::new(seed, &["a", "b"]);
    world.run_for(Duration::from_secs(10));
    world.want_below(below);
    world.want(vec![group("data", size, &["a"])]);
    world
}

/// A world with all infrastructure ready and its nodes running.
fn settled(below: Vec<Wanted>) -> World {
    let mut world = fresh(1, below, 2);
    world.run_for(Duration::from_secs(120));
    assert_eq!(world.state.nodes.len(), 2);
    world
}

fn condition(world: &World, group: &str, kind: ConditionKind) -> Option<String> {
    let key = ConditionKey {
        group: sym(group),
        kind,
    };
    let held = world.state.conditions.get(&key)?;
    Some(format!("{}: {}", held.reason, held.message))
}

fn failed(world: &World) -> Option<String> {
    condition(world, "", ConditionKind::InfrastructureFailed)
}

/// Plans, and makes the plan durable, without making any calls.
fn step(world: &mut World) -> Plan {
    let planned = world.step();
    for call in &planned.calls {
        if let Call::Resource { key, .. } = call {
            world.resource_call(key).in_flight = true;
        }
    }
    planned
}

/// The infrastructure call of a plan.
fn asked(planned: &Plan) -> Option<Asked> {
    let mut asked = planned.calls.iter().filter_map(|call| match call {
        Call::Resource { asked, .. } => Some(*asked),
        _ => None,
    });
    let first = asked.next();
    assert!(asked.next().is_none());
    first
}

fn changes(planned: &Plan) -> Vec<ResourceChange> {
    let ops = planned.ops.iter();
    ops.filter_map(|op| match op {
        Op::Resource { change, .. } => Some(*change),
        _ => None,
    })
    .collect()
}

/// Answers the call of a step, which began when the step was made.
fn answer(world: &mut World, asked: Asked, outcome: Result<Observed, Error>) {
    let at = world.now;
    let record = world.state.resources.values_mut().next().expect("a record");
    assert!(record.in_flight.call.in_flight);
    record.in_flight.call.in_flight = false;
    record.in_flight.answer = Some(ResourceAnswer {
        asked,
        began: at,
        at,
        outcome,
    });
}

fn seen(phase: ResourcePhase) -> Observed {
    let resources = if phase == ResourcePhase::Gone {
        Vec::new()
    } else {
        vec![Resource {
            kind: "network".into(),
            name: "main".into(),
            id: "n-1".into(),
            phase,
            message: "as the backend says".into(),
            sequence: 1,
            create_time: 0,
        }]
    };
    Observed {
        phase,
        message: "".into(),
        resources,
        outputs: (*b"out").into(),
        poll_after: None,
    }
}

fn refusal(reason: Reason) -> Error {
    Error::new(reason, "in its own words")
}

/// A world that has just requested a network and awaits the response.
fn asking() -> World {
    let mut world = fresh(1, vec![wanted("a", "network")], 1);
    let planned = step(&mut world);
    assert_eq!(asked(&planned), Some(Asked::Ensure));
    assert_eq!(changes(&planned), [ResourceChange::Ask]);
    world
}

fn ready() -> World {
    let mut world = asking();
    answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Ready)));
    while !step(&mut world).is_empty() {
        world.now += 1;
    }
    world
}

/// Waits for an operation. Returns how long that took.
fn wait_for(world: &mut World, what: Asked) -> Millis {
    let from = world.now;
    loop {
        let planned = step(world);
        if let Some(asked) = asked(&planned) {
            assert_eq!(asked, what);
            return world.now - from;
        }
        let wake = planned.wake.expect("it will be asked again");
        world.now = world.now.max(wake);
        assert!(
            world.now < from + 3_600_000,
            "nothing was asked for an hour"
        );
    }
}

#[test]
fn nodes_wait_until_every_entry_is_ready_and_say_what_they_wait_for() {
    let mut world = fresh(1, vec![wanted("a", ALL), wanted("b", "network")], 2);
    let planned = world.pass();
    assert_eq!(
        planned.calls.len(),
        2,
        "both are asked for at once: {planned:?}"
    );
    assert!(
        !planned
            .ops
            .iter()
            .any(|op| matches!(op, Op::Request { .. }))
    );
    world.run_for(Duration::from_millis(3_000));
    let waits = condition(&world, "data", ConditionKind::WaitingForInfrastructure).unwrap();
    assert!(waits.starts_with("Infrastructure: a: "), "{waits}");
    assert!(world.state.nodes.is_empty());
    let note = |n: &drover_planner::Note| &*n.group == "data" && n.reason == "Infrastructure";
    assert!(world.plan().report.iter().any(note));
    assert!(condition(&world, "", ConditionKind::InfrastructureReady).is_none());
    world.run_for(Duration::from_secs(120));
    assert_eq!(world.state.nodes.len(), 2);
    for (group, kind) in [
        ("data", ConditionKind::Ready),
        ("", ConditionKind::Ready),
        ("", ConditionKind::InfrastructureReady),
    ] {
        assert!(condition(&world, group, kind).is_some(), "{kind:?}");
    }
    assert!(condition(&world, "data", ConditionKind::WaitingForInfrastructure).is_none());
    assert!(world.state.used.contains(&(sym("b"), sym("uid-of-b"))));
    assert_eq!(world.site("a").made.len(), 3);
}

#[test]
fn other_clusters_and_groups_know_nothing_of_it() {
    let mut world = fresh(1, Vec::new(), 2);
    world.run_for(Duration::from_secs(120));
    assert_eq!(world.state.nodes.len(), 2);
    assert!(world.state.resources.is_empty() && world.sites.is_empty());
}

#[test]
fn a_converged_cluster_writes_nothing_and_looks_every_ten_minutes() {
    let mut world = settled(vec![wanted("a", ALL)]);
    let before = world.state.resources.clone();
    let ensures = world.site("a").ensures;
    // It is read more often after the last change of a node.
    world.run_for(Duration::from_secs(1_200));
    let reads = world.site("a").reads;
    world.run_for(Duration::from_secs(3_600));
    assert!(world.pass().ops.is_empty());
    let after = world.record("a").unwrap();
    let before = before.values().next().unwrap();
    assert_eq!(
        (after.phase_time, after.sequence, &after.resources),
        (before.phase_time, before.sequence, &before.resources)
    );
    let site = world.site("a");
    assert_eq!(site.ensures, ensures);
    let reads = site.reads - reads;
    assert!((5..=7).contains(&reads), "{reads} reads");
}

/// How often a site is read in a time.
fn reads_in(world: &mut World, seconds: u64) -> usize {
    let before = world.site("a").reads;
    world.run_for(Duration::from_secs(seconds));
    world.site("a").reads - before
}

#[test]
fn where_an_endpoint_leads_is_read_soon_after_a_node_has_changed_and_then_less_and_less_often() {
    let mut world = settled(vec![wanted("a", "endpoint")]);
    world.run_for(Duration::from_secs(3_600));
    let quiet = reads_in(&mut world, 3_600);
    assert!((5..=7).contains(&quiet), "{quiet} while nothing changes");
    let (platform, id) = world.ids().swap_remove(0);
    world.kill(&platform, &id);
    let soon = reads_in(&mut world, 40);
    assert!((1..=5).contains(&soon), "{soon} reads");
    let later = reads_in(&mut world, 560);
    assert!((3..=5).contains(&later), "{later} reads");
    assert!(reads_in(&mut world, 3_600) <= 8);
}

#[test]
fn where_an_endpoint_leads_is_read_after_a_node_has_gone_for_good() {
    let mut world = settled(vec![wanted("a", "endpoint")]);
    world.run_for(Duration::from_secs(3_600));
    world.want(vec![group("data", 0, &["a"])]);
    while !world.state.nodes.is_empty() {
        world.run_for(Duration::from_millis(100));
    }
    let gone = world.now;
    let reads = world.site("a").reads;
    while world.site("a").reads == reads {
        world.run_for(Duration::from_millis(500));
    }
    assert!(world.now - gone <= 7_000, "{} ms", world.now - gone);
}

#[test]
fn what_vanished_is_made_again_after_a_second_look() {
    let mut world = settled(vec![wanted("a", ALL)]);
    let sequence = world.record("a").unwrap().sequence;
    let nodes = world.state.nodes.clone();
    world.site("a").lose("firewall");
    world.run_for(Duration::from_secs(1_200));
    let site = world.site("a");
    assert_eq!(
        site.made.iter().filter(|kind| *kind == "firewall").count(),
        2
    );
    assert_eq!(site.made.len(), 4, "only what was gone: {:?}", site.made);
    let record = world.record("a").unwrap();
    assert!(record.is_ready() && record.sequence > sequence && record.doubt == 0);
    let slots = |nodes: &[drover_core::Node]| nodes.iter().map(|n| n.slot).collect::<Vec<_>>();
    assert_eq!(slots(&nodes), slots(&world.state.nodes), "nodes stay");
}

#[test]
fn one_look_that_lacks_something_changes_nothing() {
    let mut world = ready();
    let waited = wait_for(&mut world, Asked::Read);
    assert!(waited >= DRIFT_INTERVAL * 9 / 10 - 1_000, "{waited}");
    answer(&mut world, Asked::Read, Ok(seen(ResourcePhase::Gone)));
    let planned = step(&mut world);
    assert_eq!(changes(&planned), [ResourceChange::Learn]);
    assert!(world.record("a").unwrap().is_ready());
    assert!(wait_for(&mut world, Asked::Read) >= HIDDEN - 1);
    answer(&mut world, Asked::Read, Ok(seen(ResourcePhase::Ready)));
    step(&mut world);
    assert_eq!(world.record("a").unwrap().doubt, 0);
    // Unreadable is not gone either.
    wait_for(&mut world, Asked::Read);
    answer(&mut world, Asked::Read, Ok(seen(ResourcePhase::Unknown)));
    assert!(step(&mut world).ops.is_empty());
    let waited = wait_for(&mut world, Asked::Read);
    assert!((59_000..=61_000).contains(&waited), "{waited}");
}

#[test]
fn what_a_platform_cannot_is_said_in_its_words_and_tried_slowly() {
    for (reason, word) in [
        (Reason::Immutable, "Rejected"),
        (Reason::Invalid, "Rejected"),
        (Reason::CredentialsRefused, "CREDENTIALS_REFUSED"),
    ] {
        let mut world = asking();
        answer(&mut world, Asked::Ensure, Err(refusal(reason)));
        step(&mut world);
        assert_eq!(
            failed(&world).unwrap(),
            format!("{word}: a: in its own words")
        );
        let waited = wait_for(&mut world, Asked::Ensure);
        let expected = if word == "Rejected" { 600_000 } else { 60_000 };
        assert!((expected - 1_000..=expected).contains(&waited), "{waited}");
        assert_eq!(world.record("a").unwrap().sequence, 1, "the same request");
        assert!(failed(&world).is_some(), "it holds while it is tried");
        assert!(world.state.nodes.is_empty());
        answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Ready)));
        step(&mut world);
        assert!(failed(&world).is_none());
    }
}

#[test]
fn a_refusal_ends_when_the_platform_offers_something_else_or_the_spec_does() {
    let mut world = asking();
    answer(&mut world, Asked::Ensure, Err(refusal(Reason::Invalid)));
    step(&mut world);
    assert_eq!(asked(&step(&mut world)), None);
    world.views.get_mut("a").unwrap().etag = "2".into();
    assert_eq!(asked(&step(&mut world)), Some(Asked::Ensure));
    answer(&mut world, Asked::Ensure, Err(refusal(Reason::Invalid)));
    step(&mut world);
    world.want_below(vec![wanted("a", "endpoint")]);
    let planned = step(&mut world);
    assert_eq!(asked(&planned), Some(Asked::Ensure));
    assert_eq!(changes(&planned), [ResourceChange::Ask]);
    assert!(failed(&world).is_none());
    assert_eq!(&*world.record("a").unwrap().body, b"endpoint");
    assert_eq!(world.record("a").unwrap().sequence, 2);
}

#[test]
fn no_capacity_is_tried_less_and_less_often_and_no_restart_forgets_that() {
    let mut world = asking();
    let mut waits = Vec::new();
    for _ in 0..9 {
        answer(&mut world, Asked::Ensure, Err(refusal(Reason::NoCapacity)));
        step(&mut world);
        world.durable = world.state.clone();
        world.restart();
        let views: Vec<_> = world.views.keys().cloned().collect();
        for name in views {
            let view = world.views.get_mut(&name).unwrap();
            (view.visible, view.callable) = (true, true);
        }
        waits.push(wait_for(&mut world, Asked::Ensure) / 1_000);
    }
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
}

#[test]
fn failed_resources_are_tried_again_and_then_slowly() {
    let mut world = asking();
    let mut waits = Vec::new();
    for _ in 0..4 {
        answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Failed)));
        step(&mut world);
        assert_eq!(
            failed(&world).unwrap(),
            "Failed: a: network main: as the backend says"
        );
        waits.push(wait_for(&mut world, Asked::Ensure) / 1_000);
    }
    assert_eq!(waits, [2, 2, 600, 600]);
}

#[test]
fn a_lost_answer_is_asked_again_as_it_was_and_not_too_soon() {
    let mut world = asking();
    let before = world.record("a").unwrap().clone();
    answer(
        &mut world,
        Asked::Ensure,
        Err(refusal(Reason::DeadlineExceeded)),
    );
    step(&mut world);
    let waited = wait_for(&mut world, Asked::Ensure);
    assert!(waited >= HIDDEN - 1, "{waited}");
    let after = world.record("a").unwrap();
    assert_eq!(
        (before.sequence, &before.body),
        (after.sequence, &after.body)
    );
    assert!(after.unsettled >= before.deadline + CREATION);
}

#[test]
fn after_a_restart_it_is_asked_again_when_the_earlier_call_cannot_surprise() {
    let mut world = fresh(1, vec![wanted("a", ALL)], 1);
    world.crash = Some(Crash::AfterCalls);
    world.pass();
    let sent = world.now;
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.site("a").ensures, 1);
    world.run_for(Duration::from_secs(200));
    assert!(world.site("a").ensures > 1);
    assert!(world.record("a").unwrap().is_ready());
    assert!(world.now > sent + HIDDEN);
    assert_eq!(world.site("a").made.len(), 3);
}

#[test]
fn an_added_part_is_made_and_nodes_that_are_there_stay() {
    let mut world = settled(vec![wanted("a", "network")]);
    let slots: Vec<u64> = world.state.nodes.iter().map(|n| n.slot).collect();
    world.want_below(vec![wanted("a", ALL)]);
    world.want(vec![group("data", 3, &["a"])]);
    world.run_for(Duration::from_millis(500));
    assert_eq!(world.state.nodes.len(), 2, "the third waits");
    world.run_for(Duration::from_secs(120));
    assert_eq!(world.state.nodes.len(), 3);
    assert!(slots.iter().all(|slot| world.state.node(*slot).is_some()));
    let mut made = world.site("a").made.clone();
    made.sort();
    assert_eq!(made, ["endpoint", "firewall", "network"]);
}

#[test]
fn the_dead_are_removed_while_their_infrastructure_is_broken_and_replaced_after() {
    let mut world = settled(vec![wanted("a", ALL)]);
    let refused = Error::new(Reason::Invalid, "no");
    world.site("a").refuses = Some(refused);
    world.want_below(vec![wanted("a", "network,vpn")]);
    let id = world.state.nodes[0].node_id.clone().unwrap();
    let slot = world.state.nodes[0].slot;
    world.run_for(Duration::from_secs(5));
    world.at(
        1,
        world::Event::Phase(sym("a"), id.to_string(), drover_core::Phase::Failed),
    );
    world.run_for(Duration::from_secs(300));
    assert!(world.state.node(slot).is_none(), "it is gone");
    assert_eq!(world.state.nodes.len(), 1, "and waits to be replaced");
    assert!(condition(&world, "data", ConditionKind::WaitingForInfrastructure).is_some());
    world.site("a").refuses = None;
    world.want_below(vec![wanted("a", ALL)]);
    world.run_for(Duration::from_secs(300));
    assert_eq!(world.state.nodes.len(), 2);
}

#[test]
fn nothing_is_made_while_others_have_nodes_of_the_cluster() {
    let mut world = fresh(1, vec![wanted("a", ALL)], 1);
    world
        .state
        .foreign
        .insert((sym("b"), "x-1".into()), Foreign::default());
    let planned = world.plan();
    assert!(planned.calls.is_empty() && changes(&planned).is_empty());
    assert!(planned.report.iter().any(|n| n.reason == "ForeignNodes"));
}

#[test]
fn a_paused_cluster_asks_for_nothing() {
    let mut world = fresh(1, vec![wanted("a", ALL)], 1);
    world.pause(true);
    let planned = step(&mut world);
    assert!(planned.calls.is_empty() && changes(&planned).is_empty());
    assert!(condition(&world, "", ConditionKind::InfrastructureReady).is_none());
    world.pause(false);
    assert_eq!(asked(&step(&mut world)), Some(Asked::Ensure));
    assert!(world.record("a").unwrap().deadline >= world.now + CALL);
}
