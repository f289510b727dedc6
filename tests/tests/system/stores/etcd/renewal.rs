//! Members are replaced and renewed while a client writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use drover_proto::orchestrator::v1 as pb;
use prost_types::Struct;
use tokio::time::Instant;

use super::{etcd, insist, voters};
use crate::stores::{
    Ports, UP, apply,
    clients::{Writer, lost},
    find, installed, nested, object,
    real::{World, binary, kill_9, processes_of},
    renew, run, said, server, store, text, world,
};

/// What the members answer to a command that may be repeated.
fn asked(ports: &Ports, command: &[&str]) -> String {
    let known = ports.lock().unwrap().clone();
    insist(&known, command)
}

/// Number of terms so far: each election starts one.
fn term(ports: &Ports) -> usize {
    let status = asked(ports, &["endpoint", "status"]);
    let terms = status
        .lines()
        .filter_map(|line| line.split(", ").nth(6)?.parse().ok());
    terms.max().unwrap()
}

/// Number of members that report themselves as healthy.
fn healthy(ports: &[u16]) -> usize {
    let answers = ports.iter().map(|port| {
        let url = format!("http://127.0.0.1:{port}/health");
        said(&run("curl", &["-s", "--max-time", "2", &url]))
    });
    answers
        .filter(|answer| {
            answer
                .as_deref()
                .is_some_and(|text| text.contains("\"true\""))
        })
        .count()
}

fn etcd_writer(ports: &Ports) -> Writer {
    let ports = Arc::clone(ports);
    Writer::start(move |number| {
        let known = ports.lock().unwrap().clone();
        etcd(&known, &["put", &format!("number/{number}"), "x"]).is_some()
    })
}

/// Number of members whose servers live, whether or not they answer in time.
fn living(state: &Path) -> usize {
    let servers = processes_of(state).into_keys().filter(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name == "etcd\n")
    });
    servers.count()
}

/// Maximum duration of an election of etcd after its leader was killed, on a busy machine.
const ELECTION: Duration = Duration::from_secs(60);

/// Samples a number of members of etcd.
struct Sampler {
    on: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Sampler {
    /// A sample below `enough` is repeated for this long: no member is healthy during an election.
    fn start(
        sample: impl Fn() -> usize + Send + 'static,
        enough: usize,
        patience: Duration,
    ) -> Self {
        let on = Arc::new(AtomicBool::new(true));
        let sampled = Arc::clone(&on);
        let thread = std::thread::spawn(move || {
            let mut least = usize::MAX;
            while sampled.load(Ordering::Relaxed) {
                let began = Instant::now();
                // Repeated at once, for members that came or went during the sample.
                let mut most = sample().max(sample());
                while most < enough && began.elapsed() < patience {
                    most = most.max(sample());
                }
                least = least.min(most);
                std::thread::sleep(Duration::from_millis(100));
            }
            least
        });
        Self { on, thread }
    }

    /// Stops and returns the minimum.
    fn finish(self) -> usize {
        self.on.store(false, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

const MEMBERS: &str = "every node is a member, and nobody else";

pub(super) async fn are_members(world: &World, ports: &Ports, count: usize) {
    world
        .until_within(UP, MEMBERS, async |world| {
            has_members(world, ports, count).await
        })
        .await;
}

async fn has_members(world: &World, ports: &Ports, count: usize) -> bool {
    let nodes = find(world, "etcd", ports).await;
    let nodes: BTreeSet<String> = nodes.into_iter().map(|node| node.id).collect();
    world.is_ready("etcd", count).await && voters(&ports.lock().unwrap()) == nodes
}

pub(super) fn quickly(flags: &[(&str, &str)]) -> Struct {
    // Disk performance of the test machine is not under test.
    let mut all = BTreeMap::from([("unsafe-no-fsync", "true")]);
    all.extend(flags.iter().copied());
    let all: Vec<_> = all
        .into_iter()
        .map(|(name, value)| (name, text(value)))
        .collect();
    object(&[("flags", nested(&all))])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_members_are_replaced_and_renewed_while_a_client_writes() {
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let world = world().await;
    let members = 5;
    let cluster = store("etcd", "", 5, 0, quickly(&[]));
    apply(&world, &cluster).await;
    let ports = Ports::default();
    are_members(&world, &ports, members).await;
    let writer = etcd_writer(&ports);
    let records = find(&world, "etcd", &ports).await;
    let victim = records
        .iter()
        .find(|node| node.ordinal == 1)
        .unwrap()
        .clone();
    kill_9(server(&victim));
    world
        .until_within(UP, "another one is in its place", async |world| {
            let nodes = find(world, "etcd", &ports).await;
            nodes.len() == members && nodes.iter().all(|node| node.id != victim.id)
        })
        .await;
    are_members(&world, &ports, members).await;
    println!("etcd: a dead member was replaced");

    // Leadership is handed over before a member leaves.
    let state = world.state();
    let sampler = Sampler::start(move || living(&state), members - 1, Duration::ZERO);
    for flags in [quickly(&[("snapshot-count", "5000")]), quickly(&[])] {
        let mut changed = cluster.clone();
        changed.spec.as_mut().unwrap().attributes = Some(flags);
        let before = term(&ports);
        renew(&world, &changed, &ports, members).await;
        are_members(&world, &ports, members).await;
        let elections = term(&ports) - before;
        println!("etcd: every member was renewed, {elections} elections");
        // One for each departing leader, and as many again for a busy machine.
        assert!(elections <= 2 * members, "{elections} elections");
    }
    let least = sampler.finish();
    assert!(least >= members - 1, "only {least} members were there");
    etcd_lost_nothing(writer, &ports, least);
}

fn etcd_lost_nothing(writer: Writer, ports: &Ports, least: usize) {
    let pause = writer.longest_pause();
    let acknowledged = writer.finish();
    let known = ports.lock().unwrap().clone();
    let there = insist(&known, &["get", "number/", "--prefix", "--keys-only"]);
    let there = there
        .lines()
        .filter_map(|key| key.strip_prefix("number/")?.parse().ok());
    lost(&acknowledged, &there.collect());
    println!(
        "etcd: {} writes acknowledged, 0 lost, longest pause {pause:?}, at least {least} members",
        acknowledged.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_etcd_that_is_killed_in_the_middle_of_an_update_costs_neither_quorum_nor_a_write()
 {
    const MEMBERS: usize = 5;
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let world = world().await;
    let cluster = store("etcd", "", 5, 0, quickly(&[]));
    apply(&world, &cluster).await;
    let ports = Ports::default();
    are_members(&world, &ports, MEMBERS).await;
    let writer = etcd_writer(&ports);
    let known = Arc::clone(&ports);
    let look = move || healthy(&known.lock().unwrap().clone());
    let sampler = Sampler::start(look, MEMBERS / 2 + 1, ELECTION);
    let old: BTreeSet<String> = find(&world, "etcd", &ports)
        .await
        .into_iter()
        .map(|node| node.id)
        .collect();
    let mut changed = cluster.clone();
    changed.spec.as_mut().unwrap().attributes = Some(quickly(&[("snapshot-count", "5000")]));
    apply(&world, &changed).await;
    world
        .until_within(UP, "the update is in its middle", async |world| {
            let nodes = find(world, "etcd", &ports).await;
            let renewed =
                |node: &&pb::Node| node.state() == pb::NodeState::Ready && !old.contains(&node.id);
            nodes.iter().filter(renewed).count() >= 1 && nodes.iter().any(is_leaving)
        })
        .await;
    // Neither the node that is being replaced nor the next one.
    let nodes = find(&world, "etcd", &ports).await;
    let untouched = |node: &&pb::Node| {
        node.state() == pb::NodeState::Ready && old.contains(&node.id) && !is_leaving(node)
    };
    let left = nodes.iter().filter(untouched).count();
    let victim = nodes
        .iter()
        .filter(untouched)
        .min_by_key(|node| node.ordinal);
    let victim = victim
        .unwrap_or_else(|| panic!("not in the middle: {nodes:?}"))
        .clone();
    let killed = Instant::now();
    kill_9(server(&victim));
    println!(
        "etcd: {} killed with {left} of {MEMBERS} to be renewed",
        victim.name
    );
    world
        .until_within(UP, "writes are acknowledged again", async |world| {
            find(world, "etcd", &ports).await;
            writer.since(killed).is_some()
        })
        .await;
    world
        .until_within(UP * 2, "every member was renewed", async |world| {
            let nodes = find(world, "etcd", &ports).await;
            let renewed = nodes.iter().all(|node| !old.contains(&node.id));
            renewed && world.is_ready("etcd", MEMBERS).await
        })
        .await;
    are_members(&world, &ports, MEMBERS).await;
    let least = sampler.finish();
    assert!(
        least > MEMBERS / 2,
        "only {least} of {MEMBERS} members were healthy"
    );
    etcd_lost_nothing(writer, &ports, least);
}

fn is_leaving(node: &pb::Node) -> bool {
    use pb::NodeState::{Deprovisioning, Draining};
    matches!(node.state(), Draining | Deprovisioning)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_members_with_kept_storage_come_back_also_without_a_quorum() {
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let world = world().await;
    let mut cluster = store("etcd", "", 3, 0, quickly(&[]));
    cluster.spec.as_mut().unwrap().groups[0].storage = Some(pb::StorageSpec::default());
    apply(&world, &cluster).await;
    let ports = Ports::default();
    are_members(&world, &ports, 3).await;
    let again = async || {
        let are = async |world: &World| has_members(world, &ports, 3).await;
        world.until_healed("etcd", UP, MEMBERS, are).await;
    };
    for deaths in 1..=2 {
        let key = format!("before-{deaths}");
        asked(&ports, &["put", &key, "x"]);
        let ids = || members(&ports);
        let before = ids();
        let nodes = find(&world, "etcd", &ports).await;
        for victim in &nodes[..deaths] {
            kill_9(server(victim));
        }
        world
            .until_healed("etcd", UP, "others are in their places", async |world| {
                let now = find(world, "etcd", &ports).await;
                let victims = &nodes[..deaths];
                let is_new = |node: &pb::Node| victims.iter().all(|victim| node.id != victim.id);
                now.len() == 3 && now.iter().all(is_new)
            })
            .await;
        again().await;
        let all = asked(&ports, &["get", "--prefix", "--keys-only", "before-"]);
        for earlier in 1..=deaths {
            assert!(
                all.contains(&format!("before-{earlier}")),
                "{deaths}: {all}"
            );
        }
        assert_eq!(ids(), before, "{deaths}: the same members as before");
        println!("etcd: {deaths} of 3 died and came back");
    }

    // All of them, because the first one may not have all the data, so a person has to decide to go on with it.
    let nodes = find(&world, "etcd", &ports).await;
    for victim in &nodes {
        kill_9(server(victim));
    }
    let recovered = Mutex::new(BTreeSet::new());
    world
        .until_healed("etcd", UP, "somebody says so", async |world| {
            let again = find(world, "etcd", &ports).await;
            let again = again.iter().find(|node| node.ordinal == 0);
            if again.is_none_or(|node| nodes.iter().any(|old| old.id == node.id)) {
                return false;
            }
            assert!(!world.is_ready("etcd", 3).await, "without a quorum");
            let recover = ["exec", "etcd/db-0", "--", "sh", "etcd.sh", "recover"];
            let mut drover = drover_testing::processes::program(binary("drover"));
            drover.args(["--server", &world.orchestrator.endpoint()]);
            let answer = drover.args(recover).output().unwrap();
            let words = String::from_utf8_lossy(&answer.stderr).into_owned();
            if recovered.lock().unwrap().insert(words.clone()) {
                println!("etcd: recover: {words}");
            }
            answer.status.success()
        })
        .await;
    again().await;
    let all = asked(&ports, &["get", "--prefix", "--keys-only", "before-"]);
    assert_eq!(all.matches("before-").count(), 2);
}

fn members(ports: &Ports) -> BTreeSet<String> {
    let members = asked(ports, &["member", "list"]);
    let ids = members
        .lines()
        .map(|line| line.split(", ").next().unwrap().to_owned());
    ids.collect()
}
