//! Invariants in situations that have caused incidents elsewhere.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what must be there fails the test if it is not"
)]

use crate::world;

use std::time::Duration;

use drover_core::{
    Error, Millis, NodeState, Phase,
    error::Reason,
    spec::{Health, Probe},
};
use drover_planner::{
    Call, ConditionKey, ConditionKind, Foreign, MAX_BYTES, Op, Orphan, is_troubled, most_troubled,
};
use uuid::Uuid;
use world::{
    Crash, Event, World,
    backend::Faults,
    build::{self, choice, group, sym},
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn settled(size: u32) -> World {
    let mut world = World::new(1, &["a", "b"]);
    world.want(vec![group("data", size, &["a"])]);
    world.settle();
    world.assert_converged();
    world
}

fn holds(world: &World, group: &str, kind: ConditionKind) -> bool {
    let group = sym(group);
    let key = ConditionKey { group, kind };
    world.state.conditions.contains_key(&key)
}

pub(crate) fn removed(world: &World) -> usize {
    let nodes = world.state.nodes.iter();
    nodes.filter(|node| node.removal.is_some()).count()
}

#[test]
fn nodes_that_die_young_for_a_day_are_asked_for_at_the_slow_cadence() {
    let mut world = World::new(2, &["a"]);
    world.lifetime = Some(20_000);
    world.want(vec![group("data", 3, &["a"])]);
    world.run_for(24 * HOUR);
    // Three generations of nodes immediately, after 0 s and after 2 s, then one every ten minutes.
    let generations = 3 + 24 * 6;
    assert!(world.requested.len() <= 3 * generations);
    assert!(world.requested.len() >= generations - 24, "never a stop");
    assert!(holds(&world, "data", ConditionKind::Failed));
    world.lifetime = None;
    world.settle();
    world.assert_converged();
    assert!(!holds(&world, "data", ConditionKind::Failed));
    assert!(world.state.backoffs.is_empty());
}

#[test]
fn a_death_after_a_stable_run_is_replaced_at_once_every_time() {
    let mut world = settled(3);
    for _ in 0..5 {
        world.run_for(HOUR);
        world.now += 3_600_000;
        let requests = world.requested.len();
        let (platform, id) = world.ids().remove(0);
        let thing = world.platforms.get_mut(&platform).unwrap();
        thing.things.get_mut(&id).unwrap().phase = Phase::Failed;
        world.at(0, Event::Phase(platform.clone(), id.clone(), Phase::Failed));
        let key = world.state.nodes.iter_mut();
        for node in key {
            if node.node_id.as_deref() == Some(&*id) {
                node.seen.phase = Phase::Failed;
            }
        }
        let planned = world.pass();
        let asked = planned
            .ops
            .iter()
            .any(|op| matches!(op, Op::Request { .. }));
        assert!(asked, "{planned:?}");
        world.settle();
        world.assert_converged();
        assert_eq!(world.requested.len(), requests + 1);
    }
}

#[test]
fn too_many_sick_nodes_of_a_group_are_not_replaced_and_heal_after_a_reboot() {
    let mut world = settled(3);
    for (platform, id) in world.ids() {
        world.set_ready(&platform, &id, false);
    }
    world.run_for(HOUR);
    assert_eq!(removed(&world), 0);
    assert_eq!(world.state.nodes.len(), 3);
    assert!(holds(&world, "data", ConditionKind::RemediationBlocked));
    for (platform, id) in world.ids() {
        world.set_ready(&platform, &id, true);
    }
    world.settle();
    world.assert_converged();
    assert!(!holds(&world, "data", ConditionKind::RemediationBlocked));
}

#[test]
fn too_many_sick_nodes_of_a_platform_are_not_replaced() {
    let mut world = settled(10);
    world.views.get_mut("a").unwrap().sick = 21;
    let (platform, id) = world.ids().remove(0);
    world.set_ready(&platform, &id, false);
    world.run_for(HOUR);
    assert_eq!(removed(&world), 0);
    assert!(holds(&world, "data", ConditionKind::RemediationBlocked));
    world.views.get_mut("a").unwrap().sick = 20;
    world.settle();
    world.assert_converged();
}

#[test]
fn nothing_is_deleted_or_replaced_while_a_platform_cannot_be_seen() {
    let mut world = settled(5);
    let requests = world.requested.len();
    let ids = world.ids();
    world.set_reachable(&sym("a"), false);
    world.kill(&ids[0].0, &ids[0].1);
    world.want(vec![group("data", 2, &["a"])]);
    world.run_for(HOUR);
    assert_eq!(removed(&world), 0);
    assert_eq!(world.requested.len(), requests);
    world.set_reachable(&sym("a"), true);
    world.settle();
    world.assert_converged();
}

/// Clusters of one node each with network probes, all on one platform.
struct Fleet {
    worlds: Vec<World>,
    /// Probe interval in seconds and failure threshold of each cluster.
    policies: Vec<(u64, u32)>,
    /// Whether the network to each node works.
    reached: Vec<bool>,
    /// When there were last too many troubled nodes.
    calm_since: Millis,
    stormy: bool,
}

impl Fleet {
    fn new(count: u64, policy: impl Fn(u64) -> (u64, u32)) -> Self {
        let policies: Vec<(u64, u32)> = (0..count).map(policy).collect();
        let worlds = (0..count)
            .zip(&policies)
            .map(|(seed, (interval, threshold))| {
                let mut world = World::new(seed, &["a"]);
                let mut one = group("data", 1, &["a"]);
                one.health = Some(Box::new(Health {
                    probe: Probe::Tcp { port: None },
                    interval: Duration::from_secs(*interval),
                    failure_threshold: *threshold,
                    ..Health::default()
                }));
                world.want(vec![one]);
                world
            });
        Self {
            worlds: worlds.collect(),
            policies,
            reached: vec![true; count as usize],
            calm_since: 0,
            stormy: false,
        }
    }

    /// Runs for this time. What platforms report is derived from the records and probes of all clusters.
    fn run(&mut self, seconds: u64) {
        for second in 0..seconds {
            for at in 0..self.worlds.len() {
                let (interval, _) = self.policies[at];
                let due = (second + at as u64).is_multiple_of(interval);
                let nodes = || self.worlds.iter().flat_map(|world| &world.state.nodes);
                let total = nodes().count() as u32;
                let sick = nodes().filter(|node| is_troubled(node)).count() as u32;
                let world = &mut self.worlds[at];
                let many = sick > most_troubled(total);
                if self.stormy && !many {
                    self.calm_since = world.now;
                }
                self.stormy = many;
                for node in &mut world.state.nodes {
                    if due && node.seen.phase == Phase::Running && node.removal.is_none() {
                        if self.reached[at] {
                            (node.probe.good, node.probe.bad) = (1, 0);
                            node.probe.answered = true;
                        } else {
                            node.probe.good = 0;
                            node.probe.bad = node.probe.bad.saturating_add(1);
                        }
                    }
                }
                let view = world.views.get_mut("a").unwrap();
                (view.total, view.sick) = (total, sick);
                view.calm_since = self.calm_since;
                world.run_for(Duration::from_secs(1));
            }
        }
    }

    /// Number of nodes that were removed or created anew.
    fn removed(&self) -> usize {
        let lost = |world: &World| world.requested.len() - 1 + removed(world);
        self.worlds.iter().map(lost).sum()
    }
}

#[test]
fn clusters_of_one_behind_a_cut_network_lose_nobody() {
    let policies: [fn(u64) -> (u64, u32); 3] = [
        |_| (10, 3),
        |_| (10, 1),
        // The nodes that are probed often notice first.
        |at| if at % 10 == 0 { (2, 3) } else { (30, 3) },
    ];
    for policy in policies {
        let mut fleet = Fleet::new(200, policy);
        fleet.run(120);
        let ready = |world: &World| world.state.nodes[0].state == NodeState::Ready;
        assert!(fleet.worlds.iter().all(ready));
        fleet.reached.fill(false);
        fleet.run(900);
        assert_eq!(fleet.removed(), 0);
        let blocked = |world: &&World| holds(world, "data", ConditionKind::RemediationBlocked);
        assert_eq!(fleet.worlds.iter().filter(blocked).count(), 200);
        // The network is back, except for one node.
        fleet.reached[1..].fill(true);
        fleet.run(300);
        assert_eq!(fleet.removed(), 1, "who is really sick is replaced");
        assert!(fleet.worlds[1..].iter().all(ready));
    }
}

#[test]
fn a_thousand_clusters_whose_probes_never_reached_anybody_lose_nothing() {
    for seed in 0..1_000 {
        let mut world = World::new(seed, &["a"]);
        let mut one = group("data", 1, &["a"]);
        one.health = Some(Box::new(Health {
            probe: Probe::Tcp { port: None },
            ..Health::default()
        }));
        world.want(vec![one]);
        world.run_for(Duration::from_secs(20));
        world.state.nodes[0].probe.good = 0;
        world.state.nodes[0].probe.bad = 200;
        world.run_for(HOUR);
        assert_eq!(removed(&world), 0, "seed {seed}");
        assert_eq!(world.requested.len(), 1);
        let kind = ConditionKind::ProbeUnreachable;
        assert!(holds(&world, "data", kind), "{:?}", world.state.conditions);
    }
}

#[test]
fn a_lost_answer_of_ten_with_deaths_and_a_scale_in_between_doubles_and_loses_nothing() {
    for seed in 0..100 {
        let mut world = World::new(seed, &["a"]);
        world.want(vec![group("data", 10, &["a"])]);
        world.run_for(Duration::from_secs(3));
        let a = sym("a");
        // The response never arrives: the process dies while the call is in flight.
        world.crash = Some([Crash::AfterCalls, Crash::BeforeCalls][seed as usize % 2]);
        world.pass();
        world.run_for(Duration::from_secs(seed % 15));
        for (platform, id) in world.ids().into_iter().take(3) {
            world.kill(&platform, &id);
        }
        world.want(vec![group("data", 7 + (seed % 5) as u32, &["a"])]);
        world.run_for(Duration::from_secs(seed % 7));
        // The first call arrives a second time, as late as possible.
        let things: Vec<_> = world.platforms[&a].things.values().cloned().collect();
        world.at(30_000, Event::Make(a.clone(), things));
        world.settle();
        world.assert_converged();
    }
}

#[test]
fn a_store_that_is_behind_freezes_the_cluster() {
    let mut world = settled(3);
    let (platform, id) = world.ids().remove(0);
    world
        .state
        .orphans
        .insert((sym("a"), "newer".into()), orphan(&world, 99));
    world.set_ready(&platform, &id, false);
    world.want(vec![group("data", 6, &["a"])]);
    let requests = world.requested.len();
    world.run_for(HOUR);
    assert!(holds(&world, "", ConditionKind::StoreBehind));
    assert_eq!((world.requested.len(), removed(&world)), (requests, 0));
    let report = world.plan().report;
    assert!(report.iter().any(|note| note.reason == "StoreBehind"));
    world.want(vec![group("data", 1, &["a"])]);
    world.run_for(HOUR);
    assert_eq!(removed(&world), 0, "nor is it scaled down");
}

#[test]
fn nodes_of_another_owner_under_the_same_name_stop_creations_only() {
    let mut world = settled(3);
    world
        .state
        .foreign
        .insert((sym("a"), "x-1".into()), Foreign::default());
    world.want(vec![group("data", 4, &["a"])]);
    world.run_for(HOUR);
    assert!(holds(&world, "", ConditionKind::ForeignNodes));
    assert_eq!(world.state.nodes.len(), 3);
    let report = world.plan().report;
    assert!(report.iter().any(|note| note.reason == "ForeignNodes"));
    world.want(vec![group("data", 2, &["a"])]);
    world.run_for(HOUR);
    assert_eq!(world.state.nodes.len(), 2);
    world.state.foreign.clear();
    world.settle();
    world.assert_converged();
}

fn orphan(world: &World, sequence: u64) -> Orphan {
    Orphan {
        request: Uuid::from_u128(5),
        index: 0,
        sequence,
        group: "data".into(),
        ordinal: 9,
        platform_uid: "uid-of-a".into(),
        since: world.now,
        ..Orphan::default()
    }
}

#[test]
fn an_orphan_is_swept_after_its_grace_and_not_while_orphans_are_held() {
    let mut world = settled(2);
    world.orphan_hold = true;
    let mut left = world.living("data")[0].clone();
    (left.id, left.request, left.ordinal) = ("left-over".into(), Uuid::from_u128(5), 9);
    let a = world.platforms.get_mut("a").unwrap();
    a.things.insert(left.id.clone(), left);
    let id = ("a".into(), "left-over".into());
    world.state.orphans.insert(id.clone(), orphan(&world, 1));
    world.run_for(HOUR);
    assert!(world.state.orphans.contains_key(&id));
    world.state.orphans.get_mut(&id).unwrap().since = world.now;
    world.orphan_hold = false;
    world.run_for(Duration::from_secs(119));
    assert!(world.platforms["a"].asked.is_empty(), "within its grace");
    world.run_for(Duration::from_secs(2));
    assert!(world.platforms["a"].asked.contains("left-over"));
    world.settle();
    world.assert_converged();
}

#[test]
fn a_deletion_waits_for_a_platform_that_is_away_and_says_so() {
    let mut world = settled(3);
    world.set_reachable(&sym("a"), false);
    world.delete();
    world.run_for(HOUR);
    assert!(!world.finished);
    assert!(holds(&world, "", ConditionKind::DeletionBlocked));
    world.set_reachable(&sym("a"), true);
    world.settle();
    assert!(world.finished);
    assert_eq!(world.leftovers(), 0);
}

#[test]
fn a_broken_version_does_not_replace_what_runs() {
    let mut world = settled(3);
    let mut next = group("data", 4, &["a"]);
    next.choices = vec![choice("a", "v2")];
    let refused = Error::new(Reason::Invalid, "no such image");
    world.platforms.get_mut("a").unwrap().refuses = Some(refused);
    world.want(vec![next.clone()]);
    world.run_for(HOUR);
    assert!(holds(&world, "data", ConditionKind::Rejected));
    assert_eq!(world.living("data").len(), 3);
    assert!(world.requested.len() < 10);
    world.platforms.get_mut("a").unwrap().refuses = None;
    world.settle();
    world.assert_converged();
    assert!(!holds(&world, "data", ConditionKind::Rejected));
}

#[test]
#[expect(
    clippy::disallowed_types,
    reason = "real time is what is measured here"
)]
fn ten_thousand_nodes_in_256_groups_are_planned_in_time_linear_in_their_number() {
    let mut world = World::new(3, &["a"]);
    world.run_for(MINUTE);
    let template = {
        let mut small = settled(1);
        small.state.nodes.remove(0)
    };
    let groups: Vec<_> = (0..256)
        .map(|at| group(&format!("g{at}"), 39, &["a"]))
        .collect();
    for (at, spec) in groups.iter().enumerate() {
        for ordinal in 0..39_u32 {
            let mut node = template.clone();
            node.slot = 1 + at as u64 * 39 + u64::from(ordinal);
            node.origin_mut().group = spec.path.clone();
            node.ordinal = ordinal;
            node.node_id = Some(node.slot.to_string().into());
            world.state.nodes.push(node);
        }
    }
    world.want(groups);
    world.state.next_slot = 20_000;
    for _ in 0..3 {
        let planned = world.plan_at(world.now, false);
        drover_planner::apply(&mut world.state, &planned.ops, world.now);
    }
    let begun = std::time::Instant::now();
    let planned = world.plan_at(world.now, false);
    let took = begun.elapsed();
    assert!(planned.is_empty(), "{planned:?}");
    // A quadratic algorithm takes seconds without optimisation.
    assert!(took < Duration::from_millis(500), "{took:?}");
}

#[test]
fn a_complete_read_is_asked_for_only_when_something_may_be_absent() {
    let mut world = settled(3);
    let planned = world.plan_at(world.now + 3_600_000, false);
    assert!(planned.calls.is_empty());
    let (platform, id) = world.ids().remove(0);
    world.flicker(&platform, &id);
    world.run_for(Duration::from_millis(build::HIDDEN + 5_000));
    assert_eq!(world.living("data").len(), 3);
    world.settle();
    world.assert_converged();
    let confirms = |call: &Call| matches!(call, Call::Confirm { .. });
    assert!(!world.plan().calls.iter().any(confirms));
}

#[test]
fn the_breaker_is_not_evaded_by_one_after_the_other() {
    let mut world = settled(10);
    world.set_faults(Faults {
        deprovision: 100,
        ..Faults::default()
    });
    let ids = world.ids();
    for (platform, id) in &ids[..4] {
        world.set_ready(platform, id, false);
    }
    let span = Duration::from_millis(30_050);
    world.run_for(span);
    let going = removed(&world);
    assert!(going > 0);
    for (platform, id) in &ids[4..8] {
        world.set_ready(platform, id, false);
    }
    for _ in 0..40 {
        world.pass();
        world.now += 1_000;
        assert!(removed(&world) <= 4, "while the first ones are there");
    }
}

#[test]
fn a_request_of_unknown_outcome_is_not_sent_again_while_nothing_may_be_made() {
    let mut world = World::new(4, &["a"]);
    world.platforms.get_mut("a").unwrap().refuses = Some(Error::unavailable("broken"));
    world.want(vec![group("data", 2, &["a"])]);
    world.run_for(Duration::from_secs(3));
    world
        .state
        .foreign
        .insert((sym("a"), "x-1".into()), Foreign::default());
    world.platforms.get_mut("a").unwrap().refuses = None;
    world.run_for(HOUR);
    assert_eq!(world.leftovers(), 0);
    world.state.foreign.clear();
    world.settle();
    world.assert_converged();
}

#[test]
fn what_an_abandoned_platform_shows_after_all_is_left_alone_until_it_is_asked_for() {
    for asked in [false, true] {
        let mut world = World::new(1, &["a", "b"]);
        world.want(vec![group("data", 3, &["a", "b"])]);
        world.settle();
        let before = world.ids();
        assert!(before.iter().all(|(platform, _)| **platform == *"a"));
        world.set_reachable(&sym("a"), false);
        world.run_for(MINUTE);
        world.abandon(&sym("a"), true);
        // Nodes that cannot be seen are waited for as long as they are wanted.
        world.want(vec![group("data", 3, &["b"])]);
        world.run_for(HOUR);
        assert_eq!(world.living("data").len(), 3, "three instead of those");
        world.set_reachable(&sym("a"), true);
        world.run_for(HOUR);
        let still = |world: &World| before.iter().filter(|id| world.ids().contains(id)).count();
        assert_eq!(still(&world), 3, "nobody asked for their removal");
        assert!(holds(&world, "", ConditionKind::Orphans));
        if asked {
            world.sweep(&sym("a"));
        } else {
            world.delete();
        }
        world.settle();
        assert_eq!(still(&world), 0);
        assert!(!holds(&world, "", ConditionKind::Orphans));
    }
}

#[test]
fn what_was_given_up_is_left_alone_after_an_adoption_that_has_not_seen_it() {
    let mut world = World::new(1, &["a", "b"]);
    world.want(vec![group("data", 3, &["a", "b"])]);
    world.settle();
    let before = world.ids();
    world.set_reachable(&sym("a"), false);
    world.run_for(MINUTE);
    world.abandon(&sym("a"), true);
    world.want(vec![group("data", 3, &["b"])]);
    world.run_for(HOUR);
    world.order_adoption();
    world.run_for(HOUR);
    assert!(!world.state.adopts(), "it is over");
    world.set_reachable(&sym("a"), true);
    world.run_for(HOUR);
    assert!(before.iter().all(|id| world.ids().contains(id)));
}

#[test]
fn an_orphan_on_a_platform_that_went_away_is_named_and_holds_a_deletion_up_until_it_is_abandoned() {
    let mut world = settled(2);
    let orphan = Orphan {
        request: Uuid::from_u128(5),
        sequence: 1,
        group: sym("data"),
        platform_uid: world.views["a"].uid.clone(),
        since: world.now,
        last: world.now,
        ..Orphan::default()
    };
    let key = (sym("b"), "stray".into());
    let orphan = Orphan {
        platform_uid: world.views["b"].uid.clone(),
        ..orphan
    };
    world.state.orphans.insert(key, orphan);
    world.set_reachable(&sym("b"), false);
    world.run_for(HOUR);
    assert!(holds(&world, "", ConditionKind::Orphans));
    world.delete();
    world.run_for(HOUR);
    assert!(!world.finished);
    assert!(holds(&world, "", ConditionKind::DeletionBlocked));
    world.abandon(&sym("b"), false);
    world.settle();
    assert!(world.finished);
}

#[test]
fn what_is_too_much_for_one_step_of_the_store_is_made_in_several() {
    const EACH: usize = 50 * 1024;
    let paths: Vec<String> = (0..22).map(|at| format!("group-{at}")).collect();
    let one = |path: &String| group(path, 1, &["a"]);
    let mut world = world::steps::still(paths.iter().map(one).collect());
    world.sizes_of_requests = world::Fixed(EACH);
    let mut made = 0;
    for _ in 0..50 {
        let planned = world.step();
        let request = |op: &&Op| matches!(op, Op::Request { .. });
        let requests = planned.ops.iter().filter(request).count();
        assert!(requests * EACH < MAX_BYTES + EACH, "{requests} in one step");
        assert!(
            made + requests == 22 || planned.again,
            "the rest comes with the next one"
        );
        made += requests;
        world.answer_all(&planned);
        world.show_all();
        world.now += 1_000;
        if made == 22 {
            return;
        }
    }
    panic!("{made} of 22 were made");
}
