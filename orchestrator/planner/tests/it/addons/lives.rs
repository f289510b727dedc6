//! Whole lifecycles with crashes and faults: whatever goes wrong, nothing is left behind, nothing is made twice, and every
//! addon ends with the targets that there are.

use std::time::Duration;

use crate::addons::world::{
    Crash, World,
    addons::addon,
    build::group,
    infrastructure::{SiteFaults, wanted},
};

/// Runs a lifecycle with crashes at the given passes: it comes up, shrinks, grows and is deleted. Returns the number of
/// passes.
fn life(seed: u64, crashes: &[(usize, Crash)], faults: SiteFaults, hurry: Option<usize>) -> usize {
    let mut world = World::new(seed, &["a", "b"]);
    world.run_for(Duration::from_secs(10));
    world.want_below(vec![wanted("a", "network")]);
    world.want_addons(vec![
        addon("lb", "b", &["data"]),
        addon("jump", "a", &["data"]),
    ]);
    let sites = [("lb", "b"), ("jump", "a")];
    for (name, platform) in sites {
        let site = world.addon(name, platform);
        site.faults = faults;
        site.reload = 1_500;
    }
    let begun = world.passes;
    let mut sizes = vec![2, 1, 3].into_iter();
    world.want(vec![group("data", 0, &["a"])]);
    let (mut next, mut deleting) = (world.now, false);
    let end = world.now + 24 * 3_600_000;
    while !world.finished {
        let pass = world.passes - begun;
        let hurried = hurry.is_some_and(|at| pass >= at);
        if !deleting && (world.now >= next || hurried) {
            match sizes.next().filter(|_| !hurried) {
                Some(size) => world.want(vec![group("data", size, &["a"])]),
                None => {
                    if !hurried {
                        assert_converged(&mut world, seed);
                    }
                    deleting = true;
                    world.want_below(Vec::new());
                    world.delete();
                }
            }
            next = world.now + 1_200_000;
        }
        let crash = crashes.iter().find(|(at, _)| *at == pass);
        world.crash = crash.map(|(_, crash)| *crash);
        world.run_one();
        assert!(
            world.now < end,
            "seed {seed}: not ended: {:?}",
            world.plan()
        );
    }
    let passes = world.passes - begun;
    world.drain();
    let now = world.now;
    for (name, platform) in sites {
        let left = world.addon(name, platform).present(now);
        assert!(
            left.is_empty(),
            "seed {seed}, crashes {crashes:?}: leaked {name}"
        );
    }
    assert!(world.site("a").present(now).is_empty() && world.leftovers() == 0);
    passes
}

/// Every addon serves exactly the nodes that there are.
fn assert_converged(world: &mut World, seed: u64) {
    let mut nodes: Vec<u64> = world.state.nodes.iter().map(|node| node.slot).collect();
    nodes.sort_unstable();
    for (name, platform) in [("lb", "b"), ("jump", "a")] {
        let site = world.addon(name, platform);
        let mut served: Vec<u64> = site.targets.iter().map(|one| one.slot).collect();
        served.sort_unstable();
        assert_eq!(served, nodes, "seed {seed}: {name}");
    }
}

#[test]
fn it_dies_at_every_pass_of_a_life_with_addons_and_leaves_nothing() {
    let mut points = 0;
    for crash in [Crash::BeforeCommit, Crash::BeforeCalls, Crash::AfterCalls] {
        let mut at = 0;
        while life(1, &[(at, crash)], SiteFaults::default(), None) > at {
            at += 1;
            points += 1;
            assert!(at < 2_000, "the life does not end");
        }
    }
    println!("{points} points, 0 leaked");
    assert!(points > 150, "{points}");
}

#[test]
fn no_addon_is_left_whatever_goes_wrong() {
    let first = std::env::var("DROVER_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seeds = first.map_or(0..150, |first: u64| first..first + 1);
    for seed in seeds {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut one_in = || [0, 2, 3, 5][random.usize(..4)];
        let faults = SiteFaults {
            lost: one_in(),
            failed: one_in(),
            half: 0,
        };
        let all = [Crash::BeforeCommit, Crash::BeforeCalls, Crash::AfterCalls];
        let crashes: Vec<(usize, Crash)> = (0..random.usize(0..12))
            .map(|_| (random.usize(0..120), all[random.usize(..3)]))
            .collect();
        let hurry = random.bool().then(|| random.usize(0..100));
        life(seed, &crashes, faults, hurry);
    }
}
