//! Random faults in random order: never too many nodes, never too few by our own doing, and in the end the desired
//! state.

#![allow(
    clippy::unwrap_used,
    reason = "what must be there fails the test if it is not"
)]

use crate::world;

use std::time::Duration;

use drover_core::{
    Phase,
    node::MaintenanceKind,
    spec::{Amount, Group, Management, Update},
    storage::{Policy, Retention},
};
use uuid::Uuid;
use world::{
    Crash, World,
    backend::{Faults, Thing},
    build::{choice, fencing, group, pre_stop, stored},
    labels::labelled,
};

fn scenarios(default: u64) -> std::ops::Range<u64> {
    let var = |name: &str| std::env::var(name).ok().and_then(|v| v.parse().ok());
    let from = var("DROVER_SEED").unwrap_or(0);
    from..from + var("PLANNER_SCENARIOS").unwrap_or(default)
}

/// Runs one scenario per seed, and prints the seed of one that fails.
pub(crate) fn for_seeds(default: u64, scenario: fn(u64)) {
    for seed in scenarios(default) {
        if let Err(failure) = std::panic::catch_unwind(|| scenario(seed)) {
            eprintln!("seed {seed}: DROVER_SEED={seed} PLANNER_SCENARIOS=1 repeats it");
            std::panic::resume_unwind(failure);
        }
    }
}

fn random_groups(world: &mut World) -> Vec<Group> {
    let count = world.rng.usize(1..=3);
    let version = ["v1", "v2"][world.rng.usize(0..2)];
    (0..count)
        .map(|at| {
            let platforms: &[&str] = match world.rng.u8(0..3) {
                0 => &["a"],
                1 => &["b"],
                _ => &["a", "b"],
            };
            let mut group = group(&format!("g{at}"), world.rng.u32(0..6), platforms);
            for c in &mut group.choices {
                *c = choice(&c.platform, version);
            }
            let labels = ["", "", "red", "blue"][world.rng.usize(0..4)];
            group = labelled(group, labels);
            if platforms.len() == 1 && world.rng.u8(0..3) == 0 {
                group.placement.hosts = (0..world.rng.usize(5..8))
                    .map(|host| format!("g{at}-m{host}").into())
                    .collect();
            }
            if platforms.len() == 1 && world.rng.u8(0..3) == 0 {
                group = stored(group, random_policy(world));
            }
            if platforms.len() > 1 && world.rng.bool() {
                group.choices[0].max = Some(world.rng.u32(0..4));
            }
            if world.rng.u8(0..3) > 0 {
                group.update = random_update(world);
                if group.budget().surge + group.budget().unavailable == 0 {
                    group.update = Update::default();
                }
            }
            if group.placement.hosts.is_empty() && world.rng.bool() {
                group.standby = world.rng.u32(0..3);
            }
            let fences = world.rng.bool();
            group.remediation.create_first = world.rng.u8(0..4) == 0;
            if world.rng.u8(0..4) == 0 {
                group.max_in_flight = Some(world.rng.u32(1..3));
            }
            if world.rng.u8(0..3) == 0 {
                group.management = Some(Management::OrderedReady);
            }
            if at > 0 && world.rng.u8(0..3) == 0 {
                group.depends_on = vec![format!("g{}", world.rng.usize(0..at)).into()];
            }
            if world.rng.u8(0..3) == 0 {
                group.lifecycle = Some(pre_stop(world.rng.u64(1..40)));
            }
            if world.rng.u8(0..4) == 0 {
                group.expire_after = Some(Duration::from_secs(world.rng.u64(200..2_000)));
            }
            if fences { fencing(group) } else { group }
        })
        .collect()
}

fn random_policy(world: &mut World) -> Policy {
    let mut any = || Retention::of(world.rng.bool());
    Policy {
        replaced: any(),
        scaled: any(),
        deleted: any(),
    }
}

fn random_update(world: &mut World) -> Update {
    let amount = |world: &mut World| match world.rng.u8(0..3) {
        0 => None,
        1 => Some(Amount::Count(world.rng.u32(0..4))),
        _ => Some(Amount::Percent(world.rng.u32(0..=100))),
    };
    Update {
        max_surge: amount(world),
        max_unavailable: amount(world),
        min_ready: Duration::from_secs(world.rng.u64(0..3) * 20),
        ..Update::default()
    }
}

fn foreign() -> Thing {
    Thing {
        id: "of-somebody-else".into(),
        owner: Uuid::from_u128(99),
        request: Uuid::from_u128(98),
        index: 0,
        ordinal: 0,
        sequence: 1,
        other_cluster: true,
        spec_hash: "".into(),
        group: "g0".into(),
        host: "".into(),
        storage: false,
        size: None,
        phase: Phase::Running,
        ready: true,
        acts: false,
        labels: "".into(),
        maintenance: None,
        hidden_until: 0,
    }
}

fn disturb(world: &mut World) {
    let ids: Vec<_> = world
        .ids()
        .into_iter()
        .filter(|(_, id)| id != "of-somebody-else")
        .collect();
    let one = (!ids.is_empty()).then(|| ids[world.rng.usize(0..ids.len())].clone());
    let platform = ["a", "b"][world.rng.usize(0..2)].into();
    match (world.rng.u8(0..16), one) {
        (0 | 1, _) => {
            let groups = random_groups(world);
            world.want(groups);
        }
        (2 | 3, Some((platform, id))) => world.kill(&platform, &id),
        (4, Some((platform, id))) => world.set_ready(&platform, &id, false),
        (5, Some((platform, id))) => world.set_ready(&platform, &id, true),
        (6, Some((platform, id))) => world.flicker(&platform, &id),
        (7, _) => world.set_reachable(&platform, false),
        (8, _) => world.set_reachable(&platform, true),
        (9, _) => world.crash = Some(Crash::BeforeCommit),
        (10, _) => world.crash = Some(Crash::BeforeCalls),
        (11, _) => world.crash = Some(Crash::AfterCalls),
        (12, _) if !world.state.nodes.is_empty() => {
            let at = world.rng.usize(0..world.state.nodes.len());
            let slot = world.state.nodes[at].slot;
            world.mark(slot);
        }
        (13, _) => {
            let paused = world.rng.bool();
            world.pause(paused);
            let capacity = world.rng.usize(0..8);
            world.platforms.get_mut(&platform).unwrap().capacity = capacity;
        }
        (14, _) if !world.state.nodes.is_empty() => scale_one_away(world),
        (15, Some((platform, id))) => {
            let kinds = [
                None,
                Some(MaintenanceKind::Restart),
                Some(MaintenanceKind::Stop),
            ];
            let kind = kinds[world.rng.usize(0..kinds.len())];
            world.announce(&platform, &id, kind);
        }
        _ => {}
    }
}

/// A user scales a group down by one and names the node that is to go.
fn scale_one_away(world: &mut World) {
    let at = world.rng.usize(0..world.state.nodes.len());
    let (slot, path) = {
        let node = &world.state.nodes[at];
        (node.slot, node.group.clone())
    };
    let mut groups = world.groups.clone();
    let group = groups.iter_mut().find(|group| group.path == path);
    let Some(group) = group.filter(|group| group.size > Some(0)) else {
        return;
    };
    group.size = group.size.map(|size| size - 1);
    // A percentage of so few nodes may be none.
    if group.budget().surge + group.budget().unavailable == 0 {
        group.update = Update::default();
    }
    world.scale_away(slot);
    world.want(groups);
}

fn troubled_world(seed: u64) -> World {
    let mut world = World::new(seed, &["a", "b"]);
    let other = foreign();
    let a = world.platforms.get_mut("a").unwrap();
    a.things.insert(other.id.clone(), other);
    let groups = random_groups(&mut world);
    world.want(groups);
    let faults = Faults {
        provision: world.rng.u64(0..70),
        deprovision: world.rng.u64(0..70),
        role_change: world.rng.u64(0..70),
        hidden: world.rng.bool(),
        adopt: 0,
    };
    world.set_faults(faults);
    for _ in 0..world.rng.usize(5..40) {
        disturb(&mut world);
        let span = match world.rng.u8(0..4) {
            0 => world.rng.u64(0..10),
            1 => world.rng.u64(0..2_000),
            2 => world.rng.u64(0..30_000),
            _ => world.rng.u64(0..400_000),
        };
        world.run_for(Duration::from_millis(span));
    }
    world
}

/// Stops all faults, and heals everything that was only disturbed.
fn calm(world: &mut World) {
    world.set_faults(Faults::default());
    world.pause(false);
    // Otherwise it would never be quiet.
    for group in &mut world.groups {
        group.expire_after = None;
    }
    for name in ["a", "b"] {
        world.platforms.get_mut(name).unwrap().capacity = usize::MAX;
        world.set_reachable(&name.into(), true);
    }
    for (platform, id) in world.ids() {
        world.set_ready(&platform, &id, true);
        world.announce(&platform, &id, None);
    }
}

fn assert_foreign_untouched(world: &World) {
    let a = &world.platforms["a"];
    assert!(a.things.contains_key("of-somebody-else"));
    assert!(!a.asked.contains("of-somebody-else"));
}

#[test]
fn converges_from_every_state_once_faults_stop() {
    for_seeds(1_200, |seed| {
        let mut world = troubled_world(seed);
        calm(&mut world);
        let before = world.passes;
        world.settle();
        world.assert_converged();
        let passes = world.passes - before;
        assert!(passes < 500, "{passes} passes");
        assert_foreign_untouched(&world);
    });
}

#[test]
fn a_deletion_ends_from_every_state_once_platforms_answer() {
    for_seeds(800, |seed| {
        let mut world = troubled_world(seed);
        world.delete();
        let faults = Faults {
            provision: 50,
            deprovision: 50,
            role_change: 50,
            hidden: true,
            adopt: 0,
        };
        world.set_faults(faults);
        world.run_for(Duration::from_secs(seed % 100));
        calm(&mut world);
        world.settle();
        assert!(world.finished, "{:?}", world.plan());
        assert_eq!(world.leftovers(), 0);
        assert_foreign_untouched(&world);
    });
}
