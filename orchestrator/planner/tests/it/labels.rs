//! Labels of hosts: a change of them reaches the hosts of existing nodes and replaces nothing.

use std::time::Duration;

use drover_core::{
    node::CHANGING,
    spec::{Group, HOST_LABELS},
};
use drover_planner::{Call, ConditionKey, ConditionKind, Op};

use crate::world::{
    Crash, World,
    build::{at_version, group, rolling, sym},
    labels::labelled,
};

fn spec(labels: &str) -> Group {
    let group = Group {
        standby: 1,
        update: rolling(1, 0),
        ..group("data", 2, &["a"])
    };
    labelled(group, labels)
}

/// Three nodes whose hosts have these labels, Ready for a while.
fn settled(seed: u64, labels: &str) -> World {
    let mut world = World::new(seed, &["a"]);
    world.run_for(Duration::from_secs(10));
    world.want(vec![spec(labels)]);
    world.settle();
    world.assert_converged();
    world
}

fn is_ready(world: &World) -> bool {
    let key = ConditionKey {
        group: sym("data"),
        kind: ConditionKind::Ready,
    };
    world.state.conditions.contains_key(&key)
}

fn slots(world: &World) -> Vec<u64> {
    world.state.nodes.iter().map(|node| node.slot).collect()
}

fn blocked(world: &World) -> Option<String> {
    let key = ConditionKey {
        group: sym("data"),
        kind: ConditionKind::UpdateBlocked,
    };
    let held = world.state.conditions.get(&key)?;
    Some(format!("{}: {}", held.reason, held.message))
}

#[test]
fn a_change_of_labels_reaches_every_host_and_replaces_no_node() {
    let mut world = settled(1, "red");
    let before = slots(&world);
    assert!(world.all_labelled("data", "red"), "from creation on");
    for labels in ["blue", "", "red"] {
        world.want(vec![spec(labels)]);
        world.settle();
        assert!(world.all_labelled("data", labels), "{labels}");
        assert_eq!(slots(&world), before, "{labels}");
        world.assert_converged();
    }
}

#[test]
fn the_group_is_not_ready_until_its_hosts_have_the_labels_and_says_why_they_do_not() {
    let mut world = settled(1, "red");
    world.platforms.get_mut("a").unwrap().faults.role_change = 100;
    world.want(vec![spec("blue")]);
    world.run_for(Duration::from_secs(60));
    assert!(!is_ready(&world));
    assert!(
        blocked(&world)
            .unwrap()
            .starts_with("HostLabels: labels of data-")
    );
    world.set_faults(crate::world::backend::Faults::default());
    world.settle();
    assert!(is_ready(&world) && blocked(&world).is_none());
    assert!(world.all_labelled("data", "blue"));
}

#[test]
fn going_back_while_the_outcome_of_a_change_is_unknown_sends_the_former_labels_again() {
    let mut world = settled(1, "red");
    world.want(vec![spec("blue")]);
    let planned = world.step();
    let intents = planned.ops.iter();
    let intents =
        intents.filter(|op| matches!(op, Op::HostLabels { hash, .. } if **hash == *CHANGING));
    assert_eq!(intents.count(), 3, "{planned:?}");
    // The process ends before it knows anything, and the calls had their effect.
    world.durable = world.state.clone();
    for thing in world.platforms.get_mut("a").unwrap().things.values_mut() {
        thing.labels = "blue".into();
    }
    world.want(vec![spec("red")]);
    world.restart();
    world.settle();
    assert!(world.all_labelled("data", "red"));
}

#[test]
fn a_platform_that_cannot_change_them_is_not_asked_and_the_group_says_so() {
    let mut world = settled(1, "red");
    world.views.get_mut("a").unwrap().relabels = false;
    world.want(vec![spec("blue")]);
    for _ in 0..50 {
        let planned = world.step();
        let mut records = planned.ops.iter();
        assert!(!records.any(|op| matches!(op, Op::HostLabels { .. })));
    }
    assert!(world.all_labelled("data", "red") && !is_ready(&world));
    let why = blocked(&world).unwrap();
    assert!(why.contains("cannot change them in place"), "{why}");
    world.views.get_mut("a").unwrap().relabels = true;
    world.settle();
    assert!(world.all_labelled("data", "blue") && is_ready(&world));
}

/// As after a start on records that do not say which labels hosts have.
fn unrecorded(world: &mut World) {
    for node in &mut world.durable.nodes {
        node.labels_hash = CHANGING.into();
    }
    world.restart();
}

#[test]
fn labels_that_were_not_recorded_are_taken_off_where_the_group_has_none() {
    for relabels in [true, false] {
        let mut world = settled(1, "red");
        unrecorded(&mut world);
        world.views.get_mut("a").unwrap().relabels = relabels;
        world.want(vec![spec("")]);
        world.run_for(Duration::from_secs(120));
        let expected = if relabels { "" } else { "red" };
        assert!(world.all_labelled("data", expected), "{relabels}");
        assert!(is_ready(&world), "{relabels}");
    }
}

#[test]
fn a_hash_over_the_labels_says_which_were_not_recorded() {
    for relabels in [true, false] {
        let mut world = settled(1, "red");
        let mut covering = spec("red");
        for choice in &mut covering.choices {
            let labels = serde_json::json!({"tenant": "red"});
            choice.properties = [(HOST_LABELS.to_owned(), labels)].into_iter().collect();
            choice.former_hashes = vec![choice.spec_hash.clone()];
            choice.spec_hash = "without-labels".into();
        }
        unrecorded(&mut world);
        world.views.get_mut("a").unwrap().relabels = relabels;
        world.want(vec![covering]);
        while !world.is_quiet() {
            let mut calls = world.plan().calls.into_iter();
            assert!(!calls.any(|call| matches!(call, Call::Relabel { .. })));
            world.run_one();
        }
        assert!(is_ready(&world), "{relabels}");
        let mut nodes = world.state.nodes.iter();
        assert!(nodes.all(|node| *node.labels_hash == *"red"), "{relabels}");
    }
}

#[test]
fn an_outdated_node_gets_the_labels_with_its_replacement() {
    let mut world = settled(1, "red");
    world.want(vec![labelled(at_version(spec(""), "v2"), "blue")]);
    world.settle();
    world.assert_converged();
    assert!(world.all_labelled("data", "blue"));
    assert!(slots(&world).iter().all(|slot| *slot > 3), "all replaced");
}

#[test]
fn it_dies_at_every_pass_of_a_change_of_labels_and_all_hosts_have_them_in_the_end() {
    let mut points = 0;
    for crash in [Crash::BeforeCommit, Crash::BeforeCalls, Crash::AfterCalls] {
        for at in 0.. {
            let mut world = settled(3, "red");
            world.set_faults(crate::world::backend::Faults {
                role_change: 30,
                ..Default::default()
            });
            world.want(vec![spec("blue")]);
            let begun = world.passes;
            let before = slots(&world);
            let mut died = false;
            while !(world.is_quiet() && world.crash.is_none()) {
                if !died && world.passes - begun == at {
                    (world.crash, died) = (Some(crash), true);
                }
                world.run_one();
            }
            assert!(world.all_labelled("data", "blue"), "{crash:?} at {at}");
            assert_eq!(slots(&world), before, "{crash:?} at {at}");
            if !died {
                break;
            }
            points += 1;
        }
    }
    println!("{points} points");
    assert!(points > 20, "{points}");
}

#[test]
fn a_change_that_takes_effect_after_its_caller_gave_up_does_not_last() {
    for seed in 1..=20 {
        let mut world = settled(seed, "red");
        world.platforms.get_mut("a").unwrap().faults.role_change = 60;
        for labels in ["blue", "green", "blue", "red"] {
            world.want(vec![spec(labels)]);
            world.run_for(Duration::from_secs(12));
        }
        world.set_faults(crate::world::backend::Faults::default());
        world.settle();
        assert!(world.all_labelled("data", "red"), "seed {seed}");
        world.assert_converged();
    }
}
