//! Floor and ceiling of rolling updates as seen by the platform: a sampler observes the actual nodes, independently of
//! the orchestrator's beliefs, while specs change, nodes die and the orchestrator crashes at its crash points. Also
//! tests edits of the template with real processes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::real;
use drover_simulation as sim;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use drover_platform_cloud::drivers::simulated::{Death, SimulatedHandle, SimulatedSettings};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{Node, NodePhase},
};
use parking_lot::Mutex;
use sim::{Crash, Site, World, runtime};
use tokio::time::{Instant, sleep};

/// Virtual time between two samples of the platform: five times as often as 20 Hz, and no step is shorter.
const LOOK: Duration = Duration::from_millis(10);
/// Maximum time until the orchestrator learns that a node died or came up, and its own calls arrive: removals within
/// this time are made in good faith.
const NEWS: Duration = Duration::from_secs(3);
/// Number of scenarios, and of updates in each.
const SCENARIOS: u64 = 25;
const UPDATES: usize = 8;

/// Limits on the number of nodes of a group.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    size: u32,
    surge: u32,
    unavailable: u32,
}

/// Nodes that are up, and since when.
type Up = BTreeMap<String, Instant>;

/// Samples the platform continuously.
struct Sampler {
    looks: AtomicU64,
    /// Nodes killed by the test, with the time.
    killed: Mutex<BTreeMap<String, Instant>>,
    start: Instant,
    violations: Mutex<Vec<String>>,
    lowest: AtomicU64,
    highest: AtomicU64,
}

fn is_up(node: &Node) -> bool {
    node.phase() == NodePhase::Running && node.ready == Some(true)
}

fn lives(node: &Node) -> bool {
    !matches!(node.phase(), NodePhase::Failed | NodePhase::Terminated)
}

impl Sampler {
    fn start(backend: SimulatedHandle, bounds: Bounds) -> (Arc<Self>, tokio::task::JoinHandle<()>) {
        let sampler = Arc::new(Self {
            looks: AtomicU64::new(0),
            killed: Mutex::default(),
            start: Instant::now(),
            violations: Mutex::default(),
            lowest: AtomicU64::new(u64::MAX),
            highest: AtomicU64::new(0),
        });
        let own = sampler.clone();
        let task = tokio::spawn(async move {
            let mut before = Up::new();
            loop {
                before = own.look(&backend.nodes(), &before, bounds);
                sleep(LOOK).await;
            }
        });
        (sampler, task)
    }

    /// Takes a sample. Returns the nodes that are up, and since when.
    fn look(&self, nodes: &[Node], before: &Up, bounds: Bounds) -> Up {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let killed = self.killed.lock();
        // A killed node does not count as living, whatever its phase.
        let living = nodes
            .iter()
            .filter(|node| lives(node) && !killed.contains_key(&node.node_id))
            .count();
        let most = (bounds.size + bounds.surge) as usize;
        if living > most {
            self.violate(format!("{living} live, at most {most} may"), nodes);
        }
        let now = Instant::now();
        let since = |id: &String| before.get(id).copied().unwrap_or(now);
        let up: Up = nodes
            .iter()
            .filter(|node| is_up(node))
            .map(|node| (node.node_id.clone(), since(&node.node_id)))
            .collect();
        self.highest.fetch_max(living as u64, Ordering::Relaxed);
        self.lowest.fetch_min(up.len() as u64, Ordering::Relaxed);
        // A node that has just come up is not yet counted by the orchestrator, so it may still be removed.
        let taken = before.iter().any(|(id, since)| {
            !up.contains_key(id) && !killed.contains_key(id) && since.elapsed() > NEWS
        });
        // A node that has just died may still have been counted.
        let recent = killed.values().filter(|at| at.elapsed() < NEWS).count();
        drop(killed);
        let floor = (bounds.size - bounds.unavailable.min(bounds.size)) as usize;
        if taken && up.len() + recent < floor {
            let (now, left) = (self.start.elapsed(), up.len());
            let words = format!("{now:?}: {left} are up after a removal, at least {floor} must be");
            self.violate(words, nodes);
        }
        up
    }

    fn violate(&self, what: String, nodes: &[Node]) {
        let seen: Vec<String> = nodes
            .iter()
            .map(|node| format!("{} {:?} {:?}", node.node_id, node.phase(), node.ready))
            .collect();
        self.violations.lock().push(format!("{what}: {seen:?}"));
    }
}

/// Prints the events for diagnosis.
async fn tell(world: &World) {
    let request = pb::ListEventsRequest {
        cluster: "one".to_owned(),
        page_size: 1_000,
        ..Default::default()
    };
    let client = world.client();
    let answer = client.list_events(request, Duration::from_secs(10)).await;
    for event in answer.map(|answer| answer.events).unwrap_or_default() {
        let time = event.event_time.unwrap_or_default();
        let (seconds, millis) = (time.seconds % 10_000, time.nanos / 1_000_000);
        eprintln!(
            "{seconds}.{millis:03} {} {} {}",
            event.reason,
            event.node.unwrap_or_default(),
            event.message
        );
    }
}

fn spec(bounds: Bounds, version: usize, min_ready: u64) -> impl Fn(&mut pb::ClusterSpec) {
    let count = |count| {
        let amount = Some(pb::count_or_percent::Amount::Count(count));
        Some(pb::CountOrPercent { amount })
    };
    move |spec: &mut pb::ClusterSpec| {
        spec.groups[0].node_class = Some(format!("v{version}"));
        spec.update = Some(pb::UpdatePolicy {
            max_surge: count(bounds.surge),
            max_unavailable: count(bounds.unavailable),
            min_ready: Some(prost_types::Duration {
                seconds: i64::try_from(min_ready).unwrap(),
                nanos: 0,
            }),
            ..Default::default()
        });
    }
}

#[test]
fn floor_and_ceiling_hold_on_the_platform_through_updates_deaths_and_crashes() {
    let (mut updates, mut deaths, mut crashes, mut looks) = (0, 0, 0, 0);
    for seed in drover_testing::seed::seeds(SCENARIOS) {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let settings = SimulatedSettings {
            seed: Some(seed),
            latency: Duration::from_millis(random.u64(0..400)),
            jitter: Duration::from_millis(random.u64(0..400)),
            boot_delay: Duration::from_millis(random.u64(0..4_000)),
            ready_delay: Duration::from_millis(random.u64(0..4_000)),
            boot_jitter: Duration::from_millis(random.u64(0..4_000)),
            stop_delay: Duration::from_millis(random.u64(0..4_000)),
            visibility_delay: Duration::from_secs(10 * random.u64(0..2)),
            ..SimulatedSettings::default()
        };
        let unavailable = random.u32(0..3);
        let bounds = Bounds {
            size: random.u32(2..8),
            surge: random.u32(u32::from(unavailable == 0)..4),
            unavailable,
        };
        let min_ready = random.u64(0..3);
        // Crashes at random points throughout the run.
        let mut at = 0;
        let hits: Vec<usize> = (0..60)
            .map(|_| {
                at += random.usize(1..40);
                at
            })
            .collect();
        runtime().block_on(async {
            let mut world = World::new(settings, Crash::at(hits)).await;
            let groups = [("db", bounds.size)];
            world
                .try_apply_with("one", &groups, &spec(bounds, 0, min_ready))
                .await
                .unwrap();
            world.converge().await;
            let backend = world.site.backend.clone();
            let (sampler, task) = Sampler::start(backend.clone(), bounds);
            for _ in 0..UPDATES {
                // Includes rollbacks to the current version.
                let version = random.usize(0..4);
                world
                    .try_apply_with("one", &groups, &spec(bounds, version, min_ready))
                    .await
                    .unwrap();
                updates += 1;
                for _ in 0..random.usize(0..3) {
                    world
                        .pass(Duration::from_millis(random.u64(0..8_000)))
                        .await;
                    let up: Vec<Node> = backend.nodes().into_iter().filter(is_up).collect();
                    if up.is_empty() {
                        continue;
                    }
                    let id = up[random.usize(0..up.len())].node_id.clone();
                    sampler.killed.lock().insert(id.clone(), Instant::now());
                    println!("  {:?}: {id} dies", sampler.start.elapsed());
                    backend.kill(&id, Death::Failed);
                    deaths += 1;
                }
                if random.bool() {
                    world
                        .pass(Duration::from_millis(random.u64(0..30_000)))
                        .await;
                } else {
                    world.converge().await;
                }
            }
            // Deaths count as failures, and the resulting backoff is not under test.
            let request = pb::ReconcileClusterRequest {
                name: "one".to_owned(),
                reset_back_off: true,
            };
            let reset = async |client: drover_client::OrchestratorClient| {
                client
                    .reconcile_cluster(request.clone(), Duration::from_secs(60))
                    .await
            };
            world.call(reset).await.unwrap();
            world.converge().await;
            task.abort();
            let violations = sampler.violations.lock().clone();
            if !violations.is_empty() {
                tell(&world).await;
            }
            assert!(violations.is_empty(), "{bounds:?}: {violations:#?}");
            looks += sampler.looks.load(Ordering::Relaxed);
            println!(
                "  {bounds:?}: {} to {} seen, {} crashes",
                sampler.lowest.load(Ordering::Relaxed),
                sampler.highest.load(Ordering::Relaxed),
                world.crash.died().len(),
            );
            crashes += world.crash.died().len();
        });
    }
    println!("{updates} updates, {deaths} deaths, {crashes} crashes, {looks} looks, 0 violations");
}

#[test]
fn a_thousand_nodes_are_rolled_in_little_more_than_the_time_that_their_readiness_takes() {
    let (size, surge) = (1_000, 100);
    let each = Duration::from_secs(20);
    let settings = SimulatedSettings {
        seed: Some(1),
        boot_delay: each / 2,
        ready_delay: each / 2,
        ledger: false,
        ..SimulatedSettings::default()
    };
    let bounds = Bounds {
        size,
        surge,
        unavailable: 0,
    };
    runtime().block_on(async {
        let mut world = World::new(settings, Crash::at([])).await;
        let groups = [("db", size)];
        world
            .try_apply_with("one", &groups, &spec(bounds, 0, 0))
            .await
            .unwrap();
        world.converge().await;
        let begun = Instant::now();
        world
            .try_apply_with("one", &groups, &spec(bounds, 1, 0))
            .await
            .unwrap();
        world
            .until("all are updated", async |world| {
                let group = world
                    .cluster("one")
                    .await
                    .unwrap()
                    .status
                    .unwrap()
                    .groups
                    .remove(0);
                group.updated_ready == size && group.present == size
            })
            .await;
        let took = begun.elapsed();
        let least = each * (size / surge);
        println!(
            "1,000 nodes, surge 100: {took:?} of virtual time, at least {least:?} by readiness"
        );
        assert!(took < least * 3 / 2, "{took:?}, {least:?} at least");
    });
}

/// Maximum number of calls within any second.
fn busiest(calls: &[Instant]) -> usize {
    let second = Duration::from_secs(1);
    let until = |begin: Instant| calls.partition_point(|it| *it < begin + second);
    let counts = calls.iter().enumerate();
    counts
        .map(|(at, begin)| until(*begin) - at)
        .max()
        .unwrap_or(0)
}

#[test]
fn two_hundred_groups_updating_at_once_keep_to_the_rate_of_every_platform() {
    let settings = |rate| SimulatedSettings {
        seed: Some(1),
        boot_delay: Duration::from_secs(5),
        ready_delay: Duration::from_secs(5),
        calls_per_second: Some(rate),
        ..SimulatedSettings::default()
    };
    let names: Vec<String> = (0..100).map(|group| format!("g{group}")).collect();
    let groups: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 2)).collect();
    runtime().block_on(async {
        let mut world = World::new(settings(5.0), Crash::at([])).await;
        let other = Site::new(settings(20.0));
        world.sites.put("http://other", &other);
        world.register("other", "http://other").await.unwrap();
        let sites = [("sim", world.site.clone(), 5), ("other", other, 20)];
        let classed = |platform: &'static str, class: &'static str| {
            move |spec: &mut pb::ClusterSpec| {
                spec.platforms[0].name = platform.to_owned();
                spec.node_class = Some(class.to_owned());
            }
        };
        let updated = async |world: &mut World, name: &str| {
            let status = world.cluster(name).await.unwrap().status.unwrap();
            let mut groups = status.groups.iter();
            groups.all(|group| group.updated_ready == 2 && group.present == 2)
        };
        for class in ["v0", "v1"] {
            let before = sites.clone().map(|(_, site, _)| site.calls().len());
            let begun = Instant::now();
            for (platform, ..) in &sites {
                world
                    .try_apply_with(platform, &groups, &classed(platform, class))
                    .await
                    .unwrap();
            }
            for (platform, ..) in &sites {
                world
                    .until("all are as wanted", async |world| {
                        updated(world, platform).await
                    })
                    .await;
            }
            for ((platform, site, rate), before) in sites.iter().zip(before) {
                let calls = &site.calls()[before..];
                let took = *calls.last().unwrap() - begun;
                println!(
                    "{class} on {platform}: {} calls in {took:?}, {rate}/s stated",
                    calls.len()
                );
                // One call may be at either end of the second.
                assert!(
                    busiest(calls) <= rate + 1,
                    "{} on {platform}",
                    busiest(calls)
                );
            }
        }
    });
}

/// The agent's template with an include file that sets the edition.
const EDITED: &str = concat!(
    include_str!("../../../platform-cloud/catalogue/local/agent.yaml"),
    "environment: {% include \"edition.j2\" %}\n"
);

fn write_edition(catalogue: &std::path::Path, edition: u32) {
    let text = format!("{{EDITION: \"{edition}\"}}");
    std::fs::write(catalogue.join("edition.j2"), text).unwrap();
}

/// The editions of all processes of nodes.
fn editions(world: &real::World) -> Vec<String> {
    let of = |pid: &u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environ = String::from_utf8_lossy(&environ).into_owned();
        let mut own = environ.split('\0');
        let edition = own.find_map(|entry| entry.strip_prefix("EDITION="));
        edition.unwrap_or("none").to_owned()
    };
    world.processes().keys().map(of).collect()
}

async fn all_outdated(world: &real::World, wanted: bool) {
    world
        .until("the catalogue is read again", async |world| {
            let records = world.records("hello").await.unwrap_or_default();
            records.len() == 3 && records.iter().all(|node| node.outdated == wanted)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edited_template_rolls_the_nodes_one_by_one_and_one_that_is_put_back_rolls_none() {
    let call = Duration::from_secs(60);
    let mut world = real::World::stopped();
    let catalogue = world.directory.path().join("catalogue");
    std::fs::create_dir(&catalogue).unwrap();
    let index = "default: {template: web.yaml, ports: [agent], health: {grpc: {}}}";
    std::fs::write(catalogue.join("index.yaml"), index).unwrap();
    std::fs::write(catalogue.join("web.yaml"), EDITED).unwrap();
    write_edition(&catalogue, 1);
    let directory = catalogue.to_str().unwrap();
    world.platform.add(&["--templates", directory]);
    world.platform.start().await;
    world.orchestrator.start().await;
    world.register("local", &world.platform.endpoint()).await;
    world.apply("hello", "", 3).await.unwrap();
    world.ready("hello", 3).await;
    let ids = |records: Vec<pb::Node>| -> Vec<String> {
        let mut ids: Vec<String> = records.into_iter().map(|node| node.id).collect();
        ids.sort();
        ids
    };
    let first = ids(world.records("hello").await.unwrap());
    assert_eq!(editions(&world), ["1"; 3]);

    // While the cluster is paused, the pending changes are visible and can be reverted.
    let pause = pb::PauseClusterRequest {
        name: "hello".to_owned(),
        ..Default::default()
    };
    world.client().pause_cluster(pause, call).await.unwrap();
    write_edition(&catalogue, 2);
    all_outdated(&world, true).await;
    let stored = world.cluster("hello").await.unwrap().unwrap();
    let request = pb::PlanClusterRequest {
        subject: Some(pb::plan_cluster_request::Subject::Cluster(pb::Cluster {
            name: stored.name,
            spec: stored.spec,
            ..Default::default()
        })),
        min_revision: None,
    };
    let answer = world.client().plan_cluster(request, call).await.unwrap();
    let renewals = answer.plan.unwrap().renewals;
    let causes: Vec<&[String]> = renewals
        .iter()
        .flat_map(|group| group.nodes.iter().map(|node| &*node.causes))
        .collect();
    assert_eq!(causes, [["template web.yaml of platform local"]; 3]);
    write_edition(&catalogue, 1);
    all_outdated(&world, false).await;
    let resume = pb::ResumeClusterRequest {
        name: "hello".to_owned(),
    };
    world.client().resume_cluster(resume, call).await.unwrap();
    world.ready("hello", 3).await;
    assert_eq!(ids(world.records("hello").await.unwrap()), first);

    // The template is edited while the orchestrator is down.
    world.orchestrator.kill();
    write_edition(&catalogue, 2);
    world.orchestrator.start().await;
    let fewest = AtomicU64::new(u64::MAX);
    world
        .until("all nodes are of the second edition", async |world| {
            let Ok(records) = world.records("hello").await else {
                return false;
            };
            // Unknown: not seen yet since the restart.
            let serves = [pb::NodeState::Ready, pb::NodeState::Unknown];
            let up = records.iter().filter(|node| serves.contains(&node.state()));
            fewest.fetch_min(up.count() as u64, Ordering::Relaxed);
            assert!(
                records.len() <= 4,
                "one more, and no more than that: {records:?}"
            );
            let new = records.iter().all(|node| !first.contains(&node.id));
            new && world.is_ready("hello", 3).await
        })
        .await;
    assert!(
        fewest.load(Ordering::Relaxed) >= 3,
        "one goes when the next one is Ready"
    );
    world
        .until("the processes of old nodes are gone", async |world| {
            editions(world) == ["2"; 3]
        })
        .await;
    let cluster = world.cluster("hello").await.unwrap().unwrap();
    let group = &cluster.status.unwrap().groups[0];
    assert_eq!((group.updated_ready, group.renewing), (3, 0));
    assert_eq!((cluster.generation, group.update_start_time), (1, None));
    world.delete("hello").await.unwrap();
    world
        .until("the cluster is gone", async |world| {
            matches!(world.cluster("hello").await, Ok(None))
        })
        .await;
}
