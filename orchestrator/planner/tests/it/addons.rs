//! Addons: they follow the nodes, never block them, and go completely, from every state and after every crash.

use crate::world;
mod doubts;
mod drains;
mod lives;
mod orphans;

use std::time::Duration;

use drover_core::{
    Error, Phase, Sym,
    error::Reason,
    resource::{Asked, Observed, ResourceAnswer, ResourcePhase},
    spec::Group,
};
use drover_planner::{Call, ConditionKey, ConditionKind, DRIFT_INTERVAL, Op, Plan, ResourceChange};
use world::{
    World,
    addons::{addon, key},
    build::{group, rolling, sym},
    infrastructure::wanted,
};

/// A world with a load balancer `lb` on `b` over the nodes of `data` on `a`, all of it settled.
fn settled(size: u32) -> World {
    let mut world = World::new(1, &["a", "b"]);
    world.run_for(Duration::from_secs(10));
    world.want_addons(vec![addon("lb", "b", &["data"])]);
    world.want(vec![group("data", size, &["a"])]);
    world.run_for(Duration::from_secs(120));
    assert_eq!(ready_targets(&mut world), size as usize);
    assert!(holds(&world, ConditionKind::AddonsReady).is_some());
    world
}

/// Number of nodes that the load balancer sends new connections to.
fn ready_targets(world: &mut World) -> usize {
    let targets = world.addon("lb", "b").targets.clone();
    targets.iter().filter(|one| !one.draining).count()
}

fn holds(world: &World, kind: ConditionKind) -> Option<String> {
    let key = ConditionKey {
        group: sym(""),
        kind,
    };
    let held = world.state.conditions.get(&key)?;
    Some(format!("{}: {}", held.reason, held.message))
}

/// Plans, and makes the plan durable, without making any calls.
fn step(world: &mut World) -> Plan {
    let planned = world.step();
    for call in &planned.calls {
        match call {
            Call::Resource { key, .. } => {
                world.resource_call(key).in_flight = true;
            }
            Call::Deprovision { slot } => {
                world.node_call(*slot).in_flight = true;
            }
            _ => {}
        }
    }
    planned
}

fn asked(planned: &Plan) -> Vec<Asked> {
    let calls = planned.calls.iter();
    calls
        .filter_map(|call| match call {
            Call::Resource { asked, .. } => Some(*asked),
            _ => None,
        })
        .collect()
}

fn changes(planned: &Plan) -> Vec<ResourceChange> {
    let ops = planned.ops.iter();
    ops.filter_map(|op| match op {
        Op::Resource { change, .. } => Some(*change),
        _ => None,
    })
    .collect()
}

fn seen(phase: ResourcePhase) -> Observed {
    Observed {
        phase,
        message: "as the backend says".into(),
        ..Observed::default()
    }
}

/// Answers the call about the load balancer, which began when its step was made.
fn answer(world: &mut World, asked: Asked, outcome: Result<Observed, Error>) {
    let at = world.now;
    let record = world.state.resources.get_mut(&key("lb", "b")).unwrap();
    assert!(record.in_flight.call.in_flight);
    record.in_flight.call.in_flight = false;
    record.in_flight.answer = Some(ResourceAnswer {
        asked,
        began: at,
        at,
        outcome,
    });
}

/// Shows all nodes as running under an address, as of now.
fn show(world: &mut World) {
    world.show_all();
    for node in &mut world.state.nodes {
        node.seen.endpoints = [(sym("client"), format!("10.0.0.{}:80", node.slot).into())].into();
    }
}

/// A still world whose load balancer is ready over `size` nodes.
fn ready(group: Group) -> World {
    let mut world = world::steps::still(vec![group]);
    world.want_addons(vec![addon("lb", "b", &["data"])]);
    let planned = step(&mut world);
    assert!(asked(&planned).is_empty(), "no target is known yet");
    world.answer_all(&planned);
    step(&mut world);
    show(&mut world);
    let planned = step(&mut world);
    assert_eq!(changes(&planned), [ResourceChange::Ask]);
    answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Ready)));
    step(&mut world);
    step(&mut world);
    world
}

fn targets(world: &World) -> Vec<(u64, bool)> {
    let record = world.addon_record("lb", "b").unwrap();
    let targets = record.in_flight.targets.iter();
    targets.map(|one| (one.slot, one.draining)).collect()
}

#[test]
fn an_addon_begins_when_its_first_target_is_known_and_follows_its_group() {
    let mut world = settled(1);
    assert_eq!(world.addon("lb", "b").made, ["proxy"]);
    for size in [3, 2, 0, 1] {
        world.want(vec![group("data", size, &["a"])]);
        world.run_for(Duration::from_secs(300));
        assert_eq!(ready_targets(&mut world), size as usize);
        assert!(holds(&world, ConditionKind::AddonsReady).is_some());
    }
    assert_eq!(world.addon("lb", "b").made, ["proxy"], "made once");
}

#[test]
fn an_addon_before_a_group_without_nodes_is_as_wanted_and_begins_with_the_first() {
    let mut world = settled(0);
    assert!(world.addon_record("lb", "b").is_none());
    world.want(vec![group("data", 1, &["a"])]);
    world.run_for(Duration::from_secs(60));
    assert_eq!(ready_targets(&mut world), 1);
    assert!(holds(&world, ConditionKind::AddonsReady).is_some());
}

#[test]
fn a_node_that_is_pending_is_no_target_until_it_runs() {
    let mut world = world::steps::still(vec![group("data", 2, &["a"])]);
    world.want_addons(vec![addon("lb", "b", &["data"])]);
    let planned = step(&mut world);
    world.answer_all(&planned);
    step(&mut world);
    // As hosts are shown whose request lacks others: they have addresses already.
    show(&mut world);
    let (first, second) = (world.state.nodes[0].slot, world.state.nodes[1].slot);
    world.state.nodes[1].seen.phase = Phase::Pending;
    world.state.nodes[1].seen.ready = Some(false);
    let planned = step(&mut world);
    assert_eq!(asked(&planned), [Asked::Ensure]);
    assert_eq!(targets(&world), [(first, false)]);
    let held = &world.state.nodes[1];
    assert!(held.reached.is_none(), "nor is it one after a restart");
    answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Ready)));
    step(&mut world);
    world.state.nodes[1].seen.phase = Phase::Running;
    world.state.nodes[1].seen.ready = Some(true);
    let planned = step(&mut world);
    assert_eq!(asked(&planned), [Asked::Ensure]);
    assert_eq!(targets(&world), [(first, false), (second, false)]);
    assert!(world.state.nodes[1].reached.is_some());
}

#[test]
fn a_change_of_membership_is_sent_at_once_also_while_a_call_is_in_flight() {
    let mut world = ready(group("data", 2, &["a"]));
    let before = targets(&world);
    assert_eq!(before.len(), 2);
    world.state.nodes[0].seen.endpoints[0].1 = "10.0.0.9:80".into();
    let planned = step(&mut world);
    assert_eq!(changes(&planned), [ResourceChange::Follow]);
    let addresses = world
        .addon_record("lb", "b")
        .unwrap()
        .in_flight
        .targets
        .clone();
    assert_eq!(&*addresses[0].endpoints[0].1, "10.0.0.9:80");
    // Another one during the call: no second call, and then no wait.
    world.state.nodes[1].seen.endpoints[0].1 = "10.0.0.8:80".into();
    assert!(asked(&step(&mut world)).is_empty(), "one call at a time");
    answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Ready)));
    let planned = step(&mut world);
    assert_eq!(asked(&planned), [Asked::Ensure]);
    answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Ready)));
    step(&mut world);
    assert!(step(&mut world).is_empty(), "nothing is sent twice");
}

#[test]
fn a_poll_does_not_delay_other_targets_but_a_platform_in_trouble_does() {
    let mut world = ready(group("data", 1, &["a"]));
    let change = |world: &mut World, port: u32| {
        world.state.nodes[0].seen.endpoints[0].1 = format!("10.0.0.1:{port}").into();
        asked(&step(world))
    };
    assert_eq!(change(&mut world, 1), [Asked::Ensure]);
    let pending = Observed {
        poll_after: Some(60_000),
        ..seen(ResourcePhase::Pending)
    };
    answer(&mut world, Asked::Ensure, Ok(pending));
    assert_eq!(change(&mut world, 2), [Asked::Ensure]);
    let refused = Error::new(Reason::Invalid, "no such interface");
    answer(&mut world, Asked::Ensure, Err(refused));
    assert_eq!(
        change(&mut world, 3),
        [Asked::Ensure],
        "it may be about targets"
    );
    let away = Error::new(Reason::Unavailable, "not now");
    answer(&mut world, Asked::Ensure, Err(away));
    assert!(change(&mut world, 4).is_empty());
}

#[test]
fn targets_that_this_process_has_not_seen_yet_are_unknown_and_not_gone() {
    let mut world = settled(2);
    world.set_reachable(&sym("a"), false);
    world.restart();
    world.run_for(Duration::from_secs(60));
    assert_eq!(
        ready_targets(&mut world),
        2,
        "it keeps the targets that it has"
    );
    world.set_reachable(&sym("a"), true);
    let ensures = world.addon("lb", "b").ensures;
    world.run_for(Duration::from_secs(60));
    assert_eq!(ready_targets(&mut world), 2);
    assert_eq!(world.addon("lb", "b").ensures, ensures, "they are the same");
}

#[test]
fn nodes_that_stand_by_are_told_as_such_until_they_are_promoted() {
    let mut world = ready(Group {
        standby: 1,
        ..group("data", 1, &["a"])
    });
    let standby = |world: &World| -> Vec<bool> {
        let record = world.addon_record("lb", "b").unwrap();
        record
            .in_flight
            .targets
            .iter()
            .map(|one| one.standby)
            .collect()
    };
    assert_eq!(standby(&world), [false, true]);
    let slot = world.state.nodes[0].slot;
    world.state.nodes[0].seen.phase = Phase::Failed;
    let mut last = Vec::new();
    for _ in 0..6 {
        let planned = step(&mut world);
        for call in &planned.calls {
            if let Call::RoleChange { slot } = call {
                let node = world.state.node_mut(*slot).unwrap();
                node.in_flight
                    .changes
                    .role_change
                    .get_or_insert_default()
                    .done = true;
            }
        }
        if !asked(&planned).is_empty() {
            last = standby(&world);
            answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Ready)));
        }
    }
    assert_eq!(
        last,
        [false],
        "the one that took over, without the dead one"
    );
    assert!(targets(&world).iter().all(|(own, _)| *own != slot));
}

#[test]
fn an_addon_that_cannot_be_made_keeps_no_node_from_coming() {
    let mut world = World::new(1, &["a", "b"]);
    world.run_for(Duration::from_secs(10));
    world.want_addons(vec![addon("lb", "b", &["data"])]);
    world.addon("lb", "b").refuses = Some(Error::new(Reason::Invalid, "no port is free"));
    world.want(vec![group("data", 2, &["a"])]);
    world.run_for(Duration::from_secs(120));
    assert_eq!(world.living("data").len(), 2);
    let held = holds(&world, ConditionKind::AddonsFailed).unwrap();
    assert_eq!(held, "Rejected: lb on b: no port is free");
    assert!(holds(&world, ConditionKind::Ready).is_none());
    world.addon("lb", "b").refuses = None;
    world.run_for(Duration::from_secs(900));
    assert!(holds(&world, ConditionKind::Ready).is_some());
    assert!(holds(&world, ConditionKind::AddonsFailed).is_none());
}

#[test]
fn other_versions_of_its_secrets_are_sent_at_once() {
    let mut world = ready(group("data", 1, &["a"]));
    world.addon_secrets = vec!["i1-other".into()];
    assert_eq!(changes(&step(&mut world)), [ResourceChange::Follow]);
    answer(&mut world, Asked::Ensure, Ok(seen(ResourcePhase::Ready)));
    step(&mut world);
    assert!(step(&mut world).is_empty());
}

#[test]
fn drift_is_looked_for_by_asking_again_and_a_converged_addon_costs_nothing_else() {
    let mut world = settled(1);
    world.run_for(Duration::from_millis(DRIFT_INTERVAL * 2));
    let ensures = world.addon("lb", "b").ensures;
    world.run_for(Duration::from_millis(DRIFT_INTERVAL * 10));
    let more = world.addon("lb", "b").ensures - ensures;
    assert!((9..=11).contains(&more), "{more} in ten intervals");
    world.addon("lb", "b").lose("proxy");
    world.run_for(Duration::from_millis(DRIFT_INTERVAL * 2));
    let now = world.now;
    assert_eq!(world.addon("lb", "b").present(now), ["proxy"], "restored");
    assert!(holds(&world, ConditionKind::AddonsReady).is_some());
}

#[test]
fn what_is_no_longer_wanted_is_removed_and_its_nodes_stay() {
    let mut world = settled(2);
    world.want_addons(Vec::new());
    world.run_for(Duration::from_secs(60));
    let now = world.now;
    assert!(world.addon("lb", "b").present(now).is_empty());
    assert!(world.state.resources.is_empty());
    assert_eq!(world.living("data").len(), 2);
}

#[test]
fn a_deletion_removes_addons_before_nodes_and_infrastructure_last() {
    let mut world = settled(1);
    world.want_below(vec![wanted("a", "network")]);
    world.run_for(Duration::from_secs(60));
    world.delete();
    let mut order = Vec::new();
    while !world.finished {
        world.run_one();
        let now = world.now;
        let left = [
            ("addon", world.addon("lb", "b").present(now).is_empty()),
            ("nodes", world.living("data").is_empty()),
            ("infrastructure", world.site("a").present(now).is_empty()),
        ];
        for (what, gone) in left {
            if gone && !order.contains(&what) {
                order.push(what);
            }
        }
    }
    assert_eq!(order, ["addon", "nodes", "infrastructure"]);
}

#[test]
fn an_addon_whose_platform_is_away_keeps_no_node_and_blocks_the_end_by_its_name() {
    let mut world = settled(1);
    world.want_below(vec![wanted("a", "network")]);
    world.run_for(Duration::from_secs(60));
    world.set_reachable(&sym("b"), false);
    world.delete();
    world.run_for(Duration::from_secs(600));
    assert!(world.living("data").is_empty(), "nodes do not wait for it");
    let now = world.now;
    assert!(
        world.site("a").present(now).is_empty(),
        "nor what is elsewhere"
    );
    assert!(!world.finished);
    let blocked = holds(&world, ConditionKind::DeletionBlocked).unwrap();
    assert!(
        blocked.contains("addon lb on b (proxy main), which cannot be reached"),
        "{blocked}"
    );
    world.set_reachable(&sym("b"), true);
    world.settle();
    assert!(world.finished);
}

#[test]
fn a_full_pool_is_renewed_by_taking_a_node_away_first() {
    let update = drover_core::spec::Update::default();
    for (finite, update, expected) in [
        (true, update, (0, 1)),
        (false, update, (1, 0)),
        (true, rolling(1, 0), (1, 0)),
        (
            true,
            drover_core::spec::Update {
                max_unavailable: rolling(0, 0).max_unavailable,
                ..update
            },
            (1, 0),
        ),
    ] {
        let spec = Group {
            update,
            ..group("data", 3, &["a"])
        };
        let budget = spec.budget_in(finite);
        assert_eq!((budget.surge, budget.unavailable), expected);
    }
    let rolls = |version| {
        let spec = Group {
            update,
            ..group("data", 3, &["a"])
        };
        vec![world::build::at_version(spec, version)]
    };
    let mut world = World::new(1, &["a"]);
    world.run_for(Duration::from_secs(10));
    world.views.get_mut("a").unwrap().finite = true;
    world.platforms.get_mut("a").unwrap().capacity = 3;
    world.want(rolls("v1"));
    world.run_for(Duration::from_secs(120));
    assert_eq!(world.living("data").len(), 3);
    world.want(rolls("v2"));
    world.run_for(Duration::from_secs(1_800));
    let hashes: Vec<Sym> = world
        .state
        .nodes
        .iter()
        .map(|n| n.spec_hash.clone())
        .collect();
    assert_eq!(hashes, ["v2-a"; 3].map(sym));
    assert!(holds(&world, ConditionKind::UpdateBlocked).is_none());
}
