//! The orchestrator crashes at every crash point, and after its restart everything converges: no node is lost, none is
//! created twice, nothing is left over.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod sole;

use drover_simulation as sim;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drover_core::Error;
use drover_platform_cloud::drivers::simulated::{
    Death, ErrorRate, ErrorRates, Fault, HostSettings, Operation, SimulatedSettings,
};
use drover_proto::orchestrator::v1 as pb;
use sim::{Crash, World, runtime};

/// Prints where a failed run crashed, so that it can be reproduced.
struct Context<'a> {
    scenario: &'a str,
    at: &'a [usize],
    crash: Arc<Crash>,
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "failed: {} with deaths at hits {:?}, died at {:?}",
                self.scenario,
                self.at,
                self.crash.died()
            );
        }
    }
}

/// Runs a scenario with crashes at these hits. Returns whether it crashed at the first of them.
fn run(
    scenario: &str,
    at: &[usize],
    settings: &SimulatedSettings,
    script: impl AsyncFn(&mut World),
) -> bool {
    let crash = Crash::at(at.iter().copied());
    let context = Context {
        scenario,
        at,
        crash: crash.clone(),
    };
    runtime().block_on(async {
        let mut world = World::new(settings.clone(), crash.clone()).await;
        script(&mut world).await;
        world.check().await;
    });
    let died = context
        .crash
        .died()
        .first()
        .is_some_and(|(hit, _)| *hit == at[0]);
    drop(context);
    died
}

/// Crashes a scenario at its first crash point, then at its second, and so on until it completes without a crash.
/// Returns the number of crash points.
fn at_every_point(
    scenario: &str,
    settings: &SimulatedSettings,
    script: impl AsyncFn(&mut World) + Copy,
) -> usize {
    let points = (1..)
        .take_while(|at| run(scenario, &[*at], settings, script))
        .count();
    assert!(
        points >= 6,
        "{scenario} passes through {points} points only"
    );
    tally(scenario, points);
    points
}

/// Prints the total number of crash points tested so far.
fn tally(scenario: &str, points: usize) {
    static ALL: AtomicUsize = AtomicUsize::new(0);
    let all = ALL.fetch_add(points, Ordering::Relaxed) + points;
    println!("{scenario}: {points} points, 0 lost, 0 doubled ({all} so far)");
}

/// Variants of the backend: strong or eventual consistency, fast or slow responses.
fn variants() -> [(&'static str, SimulatedSettings); 4] {
    let base = SimulatedSettings {
        seed: Some(1),
        ..SimulatedSettings::default()
    };
    let late = SimulatedSettings {
        visibility_delay: Duration::from_secs(60),
        ..base.clone()
    };
    let flickering = SimulatedSettings {
        visibility_delay: Duration::from_secs(30),
        flickering: true,
        // Push notifications would make lists unnecessary.
        push: false,
        ..base.clone()
    };
    let slow = SimulatedSettings {
        latency: Duration::from_millis(200),
        jitter: Duration::from_millis(200),
        ..base.clone()
    };
    [
        ("at once", base),
        ("shown after 60 s", late),
        ("in every second list for 30 s", flickering),
        ("answers of 0.2 to 0.4 s", slow),
    ]
}

fn in_all_variants(scenario: &str, least: usize, script: impl AsyncFn(&mut World) + Copy) {
    let points = variants().into_iter().map(|(variant, settings)| {
        at_every_point(&format!("{scenario}, {variant}"), &settings, script)
    });
    let points: usize = points.sum();
    assert!(
        points >= least,
        "{points} points are fewer than {least}: something is not tried any more"
    );
}

#[test]
fn three_nodes_are_created() {
    in_all_variants("create 3", 30, async |world| {
        world.apply("one", &[("web", 3)]).await;
    });
}

#[test]
fn ten_nodes_in_two_groups_are_created() {
    in_all_variants("create 10 in two groups", 36, async |world| {
        world.apply("one", &[("web", 6), ("data", 4)]).await;
    });
}

#[test]
fn a_group_is_scaled_up() {
    in_all_variants("scale up", 60, async |world| {
        world.apply("one", &[("web", 3)]).await;
        world.converge().await;
        world.scale("one", "web", 7).await;
    });
}

#[test]
fn a_group_is_scaled_down() {
    in_all_variants("scale down", 60, async |world| {
        world.apply("one", &[("web", 6)]).await;
        world.converge().await;
        world.scale("one", "web", 2).await;
    });
}

#[test]
fn nodes_die_and_are_replaced() {
    in_all_variants("deaths", 90, async |world| {
        world.apply("one", &[("web", 5)]).await;
        world.converge().await;
        for how in [Death::Failed, Death::Terminated, Death::Vanished] {
            assert_eq!(world.kill("one", 1, how), 1);
            world.pass(Duration::from_millis(30)).await;
        }
    });
}

#[test]
fn storage_grows_under_its_nodes() {
    let sized = |size: &'static str| {
        move |spec: &mut pb::ClusterSpec| {
            spec.groups[0].storage = Some(pb::StorageSpec {
                size: size.to_owned(),
                ..Default::default()
            });
        }
    };
    let ids = |world: &World| -> BTreeSet<String> {
        let nodes = world.site.nodes("one").into_iter();
        nodes.map(|node| node.node_id).collect()
    };
    in_all_variants("grow", 60, async |world| {
        let groups = [("web", 3)];
        let small = world.try_apply_with("one", &groups, &sized("1Gi")).await;
        small.unwrap();
        world.converge().await;
        let before = ids(world);
        let large = world.try_apply_with("one", &groups, &sized("2Gi")).await;
        large.unwrap();
        world
            .until("all storage has grown", async |world| {
                let all = world.site.backend.storage().into_iter();
                let mut sizes = all.map(|(one, _)| one.storage.and_then(|it| it.size_bytes));
                sizes.all(|size| size == Some(2 << 30))
            })
            .await;
        world.converge().await;
        assert_eq!(ids(world), before, "nothing was replaced");
    });
}

#[test]
fn the_answer_of_a_create_is_lost() {
    in_all_variants("lost answer", 36, async |world| {
        world
            .site
            .backend
            .fail_next(Operation::Create, Fault::LoseAnswer);
        world.apply("one", &[("web", 5)]).await;
    });
}

#[test]
fn calls_fail() {
    in_all_variants("errors", 60, async |world| {
        let backend = world.site.backend.clone();
        let refuse = || Fault::Refuse(Error::unavailable("not now"));
        backend.fail_next(Operation::Create, refuse());
        backend.fail_next(Operation::Create, Fault::LoseAnswer);
        backend.fail_next(Operation::Delete, refuse());
        backend.fail_next(Operation::Delete, Fault::LoseAnswer);
        backend.fail_next(Operation::List, refuse());
        world.apply("one", &[("web", 4)]).await;
        world.converge().await;
        world.scale("one", "web", 1).await;
    });
}

#[test]
fn a_cluster_is_deleted_and_its_name_is_free() {
    in_all_variants("delete", 90, async |world| {
        world.apply("one", &[("web", 4)]).await;
        world.converge().await;
        world.delete("one").await;
        world
            .until("the cluster is gone", async |world| {
                world.cluster("one").await.is_none()
            })
            .await;
        assert!(
            world.site.all().is_empty(),
            "a deleted cluster leaves nothing"
        );
        world.apply("one", &[("web", 1)]).await;
    });
}

#[test]
fn a_cluster_is_deleted_while_it_is_made() {
    in_all_variants("apply, then delete at once", 20, async |world| {
        world.apply("one", &[("web", 4), ("data", 2)]).await;
        world.delete("one").await;
    });
}

#[test]
fn the_platform_starts_again() {
    in_all_variants("platform restart", 60, async |world| {
        world.apply("one", &[("web", 3)]).await;
        world.pass(Duration::from_millis(10)).await;
        world.site.stop();
        world.scale("one", "web", 5).await;
        world.pass(Duration::from_secs(3)).await;
        world.site.start();
        world.converge().await;
        world.scale("one", "web", 2).await;
        world.site.stop();
        world.site.start();
    });
}

#[test]
fn the_backend_shows_an_old_picture_for_a_while() {
    in_all_variants("old picture", 60, async |world| {
        world.apply("one", &[("web", 3)]).await;
        world.converge().await;
        world.site.backend.freeze_visibility(true);
        world.scale("one", "web", 5).await;
        world.pass(Duration::from_secs(8)).await;
        world.scale("one", "web", 1).await;
        world.pass(Duration::from_secs(8)).await;
        world.site.backend.freeze_visibility(false);
    });
}

#[test]
fn the_backend_cannot_be_reached_for_a_while() {
    in_all_variants("backend away", 60, async |world| {
        world.apply("one", &[("web", 3)]).await;
        world.converge().await;
        world.site.backend.pause_backend(true);
        world.scale("one", "web", 5).await;
        world.pass(Duration::from_secs(40)).await;
        world.site.backend.pause_backend(false);
        world.converge().await;
        world.site.backend.pause_backend(true);
        world.delete("one").await;
        world.pass(Duration::from_secs(40)).await;
        world.site.backend.pause_backend(false);
    });
}

fn hook(command: &[&str], seconds: i64) -> Option<drover_proto::platform::v1::Lifecycle> {
    use drover_proto::platform::v1::{Lifecycle, LifecycleHook};
    Some(Lifecycle {
        pre_stop: Some(LifecycleHook {
            exec: command.iter().map(|word| (*word).to_owned()).collect(),
            timeout: Some(prost_types::Duration { seconds, nanos: 0 }),
            fences: false,
        }),
        ..Lifecycle::default()
    })
}

fn drained_by(what: &str, command: &[&str]) {
    in_all_variants(&format!("{what} hook"), 60, async |world| {
        let with = |spec: &mut pb::ClusterSpec| {
            spec.management_policy =
                drover_proto::platform::v1::ManagementPolicy::OrderedReady.into();
            spec.lifecycle = hook(command, 5);
            spec.groups[1].depends_on = vec!["data".to_owned()];
        };
        world
            .try_apply_with("one", &[("data", 2), ("web", 1)], &with)
            .await
            .unwrap();
        world.converge().await;
        world.scale("one", "data", 1).await;
        world.converge().await;
        world.delete("one").await;
    });
}

#[test]
fn nodes_are_drained_before_they_go() {
    drained_by("good", &["sleep", "2"]);
}

#[test]
fn nodes_whose_drain_fails_go_all_the_same() {
    drained_by("failing", &["false"]);
}

#[test]
fn nodes_whose_drain_hangs_go_all_the_same() {
    drained_by("hanging", &["sleep", "100000"]);
}

const MACHINES: [&str; 4] = ["m1", "m2", "m3", "m4"];

/// Asserts that every node is on a machine of its own.
fn assert_on_machines(world: &World) {
    let nodes = world.site.nodes("one");
    let used: BTreeSet<&str> = nodes.iter().filter_map(|n| n.host_id.as_deref()).collect();
    assert_eq!(used.len(), nodes.len(), "{nodes:?}");
    assert!(used.iter().all(|used| MACHINES.contains(used)), "{used:?}");
}

#[test]
fn named_machines_are_claimed_used_again_and_freed() {
    let mut points = 0;
    for (variant, mut settings) in variants() {
        let host = |id: &&str| HostSettings {
            id: (*id).to_owned(),
            ..HostSettings::default()
        };
        settings.hosts = MACHINES.iter().map(host).collect();
        let on_machines = |spec: &mut pb::ClusterSpec| {
            spec.groups[0].placement = Some(pb::Placement {
                hosts: MACHINES.map(str::to_owned).into(),
                ..Default::default()
            });
        };
        let scenario = format!("named machines, {variant}");
        points += at_every_point(&scenario, &settings, async |world| {
            let groups = [("web", 4)];
            world
                .try_apply_with("one", &groups, &on_machines)
                .await
                .unwrap();
            world.converge().await;
            for how in [Death::Failed, Death::Vanished] {
                assert_eq!(world.kill("one", 1, how), 1);
                world.pass(Duration::from_millis(30)).await;
            }
            world.converge().await;
            assert_on_machines(world);
            world.scale("one", "web", 2).await;
            world.converge().await;
            world.scale("one", "web", 3).await;
            world.converge().await;
            assert_on_machines(world);
        });
    }
    assert!(points >= 120, "{points} points");
}

#[test]
fn user_data_is_the_same_whatever_dies() {
    let own = std::env::current_exe().unwrap();
    let target = own.ancestors().nth(2).unwrap();
    drover_templates::worker::use_program(target.join("examples/system_texts"));
    in_all_variants("user data", 100, async |world| {
        let with = |text: &'static str| {
            move |spec: &mut pb::ClusterSpec| {
                spec.bootstrap = Some(pb::BootstrapSource {
                    source: Some(pb::bootstrap_source::Source::Text(text.to_owned())),
                    render: true,
                });
                spec.update = Some(pb::UpdatePolicy {
                    strategy: pb::UpdateStrategy::OnDelete.into(),
                    ..Default::default()
                });
            }
        };
        let backend = world.site.backend.clone();
        let given = |node: &drover_proto::platform::v1::Node| {
            String::from_utf8(backend.user_data(&node.node_id).unwrap()).unwrap()
        };
        let groups = [("web", 3)];
        backend.fail_next(
            Operation::Create,
            Fault::Refuse(Error::unavailable("not now")),
        );
        backend.fail_next(Operation::Create, Fault::LoseAnswer);
        let first = with("first of {{ node.name }}");
        world.try_apply_with("one", &groups, &first).await.unwrap();
        world.converge().await;
        for node in world.site.nodes("one") {
            assert_eq!(given(&node), format!("first of {}", node.name));
        }
        let second = with("second of {{ node.name }}");
        world.try_apply_with("one", &groups, &second).await.unwrap();
        assert_eq!(world.kill("one", 1, Death::Terminated), 1);
        world.converge().await;
        let nodes = world.site.nodes("one");
        let new = nodes
            .iter()
            .filter(|n| given(n).starts_with("second of web-"));
        assert_eq!(new.count(), 1);
        world.delete("one").await;
        world
            .until("the cluster is gone", async |world| {
                world.cluster("one").await.is_none()
            })
            .await;
    });
}

#[test]
fn it_dies_twice() {
    let settings = SimulatedSettings {
        seed: Some(1),
        latency: Duration::from_millis(50),
        ..SimulatedSettings::default()
    };
    let mut points = 0;
    for gap in 1..=4 {
        let scenario = format!("two deaths, {gap} apart");
        let twice = |at: &usize| {
            run(&scenario, &[*at, at + gap], &settings, async |world| {
                world.apply("one", &[("web", 4)]).await;
                world.converge().await;
                world.kill("one", 1, Death::Failed);
                world.scale("one", "web", 2).await;
            })
        };
        points += (1..).take_while(twice).count();
    }
    tally("two deaths", points);
    assert!(points >= 80, "{points} points");
}

/// A backend on which a share of all calls fails, before or after they take effect.
fn unreliable(seed: u64) -> SimulatedSettings {
    let rate = ErrorRate {
        before: 0.1,
        after: 0.15,
    };
    SimulatedSettings {
        seed: Some(seed),
        latency: Duration::from_millis(20),
        jitter: Duration::from_millis(300),
        boot_jitter: Duration::from_secs(2),
        visibility_delay: Duration::from_secs(seed % 4),
        boot_failure: 0.05,
        errors: ErrorRates {
            create: rate,
            delete: rate,
            list: ErrorRate {
                before: 0.05,
                after: 0.0,
            },
            update: rate,
        },
        ..SimulatedSettings::default()
    }
}

/// Random actions of users and backends in any order, with several crashes of the orchestrator.
async fn anything(world: &mut World, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let began = tokio::time::Instant::now();
    world
        .apply(
            "one",
            &[("web", random.u32(1..6)), ("data", random.u32(0..4))],
        )
        .await;
    for _ in 0..10 {
        let exists = world.wanted.contains_key("one");
        let turn = random.u32(..10);
        println!(
            "  {:?}: turn {turn}, {} made",
            tokio::time::Instant::now() - began,
            world.site.all().len()
        );
        match turn {
            0..3 if exists => {
                world
                    .scale(
                        "one",
                        if random.bool() { "web" } else { "data" },
                        random.u32(0..7),
                    )
                    .await;
            }
            3 if exists => world.delete("one").await,
            4 if exists => {
                let how = [Death::Failed, Death::Terminated, Death::Vanished][random.usize(..3)];
                world.kill("one", random.usize(1..3), how);
            }
            5 => {
                world.site.stop();
                world.pass(Duration::from_millis(random.u64(..5_000))).await;
                world.site.start();
            }
            6 => {
                world.site.backend.freeze_visibility(true);
                world
                    .pass(Duration::from_millis(random.u64(..10_000)))
                    .await;
                world.site.backend.freeze_visibility(false);
            }
            7 => world
                .site
                .backend
                .fail_next(Operation::Create, Fault::LoseAnswer),
            8 if !exists => {
                world
                    .until("the name is free", async |world| {
                        world.cluster("one").await.is_none()
                    })
                    .await;
                world
                    .apply(
                        "one",
                        &[("web", random.u32(1..6)), ("data", random.u32(0..4))],
                    )
                    .await;
            }
            _ => {
                world
                    .pass(Duration::from_millis(random.u64(..20_000)))
                    .await;
            }
        }
    }
}

fn seeds(seeds: std::ops::Range<u64>) {
    let first = drover_testing::seed::seeds(seeds.end).start;
    let seeds = first + seeds.start..first + seeds.end;
    let mut points = 0;
    for seed in seeds.clone() {
        let mut random = fastrand::Rng::with_seed(seed ^ 0xdead);
        let mut at = vec![random.usize(1..30)];
        while at.len() < 5 {
            at.push(at[at.len() - 1] + random.usize(1..30));
        }
        let crash = Crash::at(at.iter().copied());
        let scenario = format!("anything, seed {seed}");
        let _context = Context {
            scenario: &scenario,
            at: &at,
            crash: crash.clone(),
        };
        runtime().block_on(async {
            let mut world = World::new(unreliable(seed), crash.clone()).await;
            anything(&mut world, seed).await;
            world.check().await;
        });
        points += crash.died().len();
    }
    tally(&format!("anything, seeds {seeds:?}"), points);
    assert!(points >= 80, "{points} points");
}

#[test]
fn anything_happens_on_an_unreliable_backend() {
    seeds(0..40);
}

#[test]
fn anything_else_happens_on_an_unreliable_backend() {
    seeds(40..80);
}
