//! etcd: members are replaced and renewed while a client writes.

mod aside;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use drover_proto::orchestrator::v1 as pb;
use drover_templates::stores::ETCD;
use prost_types::Struct;
use tokio::time::Instant;

use crate::stores::{
    Ports, UP,
    alone::{Node, introduce, until},
    apply,
    clients::{Writer, lost},
    find, installed, nested, object,
    real::{World, binary, kill_9},
    renew, run, said, server, store, text, world,
};

fn etcd(ports: &[u16], command: &[&str]) -> Option<String> {
    let endpoints: Vec<_> = ports
        .iter()
        .map(|port| format!("http://127.0.0.1:{port}"))
        .collect();
    let endpoints = format!("--endpoints={}", endpoints.join(","));
    let mut arguments = vec![
        endpoints.as_str(),
        "--dial-timeout=1s",
        "--command-timeout=3s",
    ];
    arguments.extend(command);
    said(&run("etcdctl", &arguments))
}

/// Names of the nodes that are voting members, as reported by the members.
fn voters(ports: &[u16]) -> BTreeSet<String> {
    let members = etcd(ports, &["member", "list"]).unwrap_or_default();
    let members = members
        .lines()
        .map(|line| line.split(", ").collect::<Vec<_>>());
    members
        .filter(|member| member.get(1) == Some(&"started") && member.last() == Some(&"false"))
        .map(|member| member[2].to_owned())
        .collect()
}

/// Number of terms so far: each election starts one.
fn term(ports: &Ports) -> usize {
    let status = etcd(&ports.lock().unwrap(), &["endpoint", "status"]).unwrap();
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

/// Maximum duration of an election of etcd after its leader was killed, several timeouts of 1 s.
const ELECTION: Duration = Duration::from_secs(5);

/// Samples the number of healthy members of etcd.
struct Sampler {
    on: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Sampler {
    /// A sample below `enough` is repeated for this long: no member is healthy during an election.
    fn start(ports: &Ports, enough: usize, patience: Duration) -> Self {
        let on = Arc::new(AtomicBool::new(true));
        let (ports, sampled) = (Arc::clone(ports), Arc::clone(&on));
        let thread = std::thread::spawn(move || {
            let mut least = usize::MAX;
            while sampled.load(Ordering::Relaxed) {
                let look = || healthy(&ports.lock().unwrap().clone());
                let began = Instant::now();
                // Repeated at once, for members that came or went between the list and the sample.
                let mut most = look().max(look());
                while most < enough && began.elapsed() < patience {
                    most = most.max(look());
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

async fn are_members(world: &World, ports: &Ports, count: usize) {
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

fn quickly(flags: &[(&str, &str)]) -> Struct {
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
    let sampler = Sampler::start(&ports, members - 1, Duration::ZERO);
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
    assert!(least >= members - 1, "only {least} members were healthy");
    etcd_lost_nothing(writer, &ports, least);
}

fn etcd_lost_nothing(writer: Writer, ports: &Ports, least: usize) {
    let pause = writer.longest_pause();
    let acknowledged = writer.finish();
    let known = ports.lock().unwrap().clone();
    let there = etcd(&known, &["get", "number/", "--prefix", "--keys-only"]).unwrap();
    let there = there
        .lines()
        .filter_map(|key| key.strip_prefix("number/")?.parse().ok());
    lost(&acknowledged, &there.collect());
    println!(
        "etcd: {} writes acknowledged, 0 lost, longest pause {pause:?}, at least {least} healthy",
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
    let sampler = Sampler::start(&ports, MEMBERS / 2 + 1, ELECTION);
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
        let put = etcd(&ports.lock().unwrap(), &["put", &key, "x"]);
        put.expect("it is written");
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
        let all = etcd(
            &ports.lock().unwrap(),
            &["get", "--prefix", "--keys-only", "before-"],
        );
        let all = all.expect("it is read");
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
    let all = etcd(
        &ports.lock().unwrap(),
        &["get", "--prefix", "--keys-only", "before-"],
    );
    assert_eq!(all.unwrap().matches("before-").count(), 2);
}

fn alone(ordinal: u32) -> Node {
    let quick = [
        "--unsafe-no-fsync",
        "--heartbeat-interval=50",
        "--election-timeout=500",
    ];
    Node::new(&ETCD, ordinal, &["client", "peer"]).with(&quick)
}

fn at(node: &Node, command: &[&str]) -> Option<String> {
    etcd(&[node.port("client")], command)
}

/// Restarts nodes as soon as they exit.
fn kept_alive(nodes: &mut [Node]) {
    for at in 0..nodes.len() {
        if nodes[at].has_ended() {
            nodes[at].start("active");
            introduce(nodes);
        }
    }
}

fn all_ready(nodes: &mut [Node]) -> bool {
    kept_alive(nodes);
    nodes.iter().all(Node::is_ready)
}

/// Starts this number of members and writes a key to the first one.
fn members_of_etcd(count: u32) -> Vec<Node> {
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let mut nodes = Vec::new();
    for ordinal in 0..count {
        nodes.push(alone(ordinal));
        until("a member more", &mut nodes, all_ready);
    }
    written(&mut nodes, "early");
    nodes
}

/// Writes a key, and waits until the last member has persisted its commit index: a member that goes on alone drops
/// entries not known to be committed. etcd persists the index with the next write.
fn written(nodes: &mut [Node], key: &str) {
    let next = format!("{key}-next");
    for key in [key, &next] {
        at(&nodes[0], &["put", key, "x"]).expect("it is written");
    }
    let key = next.as_str();
    let serializable = ["get", "--consistency=s", "--keys-only", key];
    until("it is at the last one", nodes, |nodes| {
        at(nodes.last().unwrap(), &serializable).as_deref() == Some(key)
    });
}

#[test]
fn an_etcd_member_deletes_nothing_for_a_cluster_that_is_not_its_own() {
    let mut nodes = members_of_etcd(2);
    for node in &mut nodes {
        node.kill();
    }
    // The first one comes back without its data while the other one is down.
    nodes[0].empties();
    until("an empty cluster", &mut nodes[..1], all_ready);
    nodes[1].start("active");
    introduce(&nodes);
    until("it sees that they are strangers", &mut nodes, |nodes| {
        kept_alive(nodes);
        nodes[1].log().contains("is of another cluster")
    });
    assert!(!nodes[1].is_ready());

    // Recovery: it goes on alone with its data, and the other one joins with an empty directory.
    until("it goes on alone", &mut nodes, |nodes| {
        kept_alive(nodes);
        nodes[1].does("recover").status.success()
    });
    until("it is of use", &mut nodes, |nodes| {
        kept_alive(nodes);
        nodes[1].is_ready()
    });
    nodes[0].kill();
    nodes[0].empties();
    until("both are members", &mut nodes, all_ready);
    for node in &nodes {
        let early = at(node, &["get", "--keys-only", "early"]);
        assert_eq!(early.as_deref(), Some("early"), "{}", node.name);
    }
}

#[test]
fn all_members_of_etcd_that_died_go_on_with_what_one_of_them_has_when_somebody_says_so() {
    let mut nodes = members_of_etcd(3);
    let refused = nodes[1].does("recover");
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && words.contains("there is a quorum"),
        "{words}"
    );
    written(&mut nodes, "late");
    for node in &mut nodes {
        node.kill();
    }
    until("one of them goes on", &mut nodes, |nodes| {
        kept_alive(nodes);
        assert!(
            nodes.iter().all(|node| !node.is_ready()),
            "without a quorum"
        );
        nodes[2].does("recover").status.success()
    });
    until("all are members", &mut nodes, all_ready);
    for node in &nodes {
        let keys = at(node, &["get", "--keys-only", "--prefix", ""]).unwrap_or_default();
        assert!(
            keys.contains("early") && keys.contains("late"),
            "{}: {keys}",
            node.name
        );
    }
}

fn path() -> String {
    std::env::var("PATH").unwrap()
}

/// Creates a program of this name with different behavior, and returns a `PATH` on which it comes first.
fn instead_of(name: &str, does: &str) -> (tempfile::TempDir, String) {
    let programs = tempfile::TempDir::new().unwrap();
    let program = programs.path().join(name);
    fs::write(&program, format!("#!/bin/sh\n{does}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.path().display(), path());
    (programs, path)
}

fn signal(node: &Node, name: &str) {
    let sent = run("kill", &[name, &node.pid().to_string()]);
    assert!(sent.status.success(), "{sent:?}");
}

#[test]
fn an_etcd_member_does_not_go_on_alone_if_the_others_have_a_quorum_by_then() {
    let mut nodes = members_of_etcd(3);
    for other in &nodes[1..] {
        signal(other, "-STOP");
    }
    until("it is to go on alone", &mut nodes, |nodes| {
        nodes[0].does("recover").status.success()
    });
    until("it begins again", &mut nodes, |nodes| nodes[0].has_ended());
    for other in &nodes[1..] {
        signal(other, "-CONT");
    }
    until("the others write", &mut nodes, |nodes| {
        at(&nodes[1], &["put", "late", "x"]).is_some()
    });
    until("all are members", &mut nodes, all_ready);
    let late = ["get", "--keys-only", "late"];
    for node in &nodes {
        assert_eq!(at(node, &late).as_deref(), Some("late"), "{}", node.name);
    }
    assert_eq!(voters(&[nodes[0].port("client")]).len(), 3);
}

#[test]
fn an_etcd_member_that_its_leader_does_not_find_says_where_it_is() {
    let mut nodes = members_of_etcd(3);
    let ids = |nodes: &[Node]| {
        let id = |node: &Node| fs::read_to_string(node.storage().join("member")).unwrap();
        nodes.iter().map(id).collect::<Vec<_>>()
    };
    let before = ids(&nodes);
    // Two restart at other addresses while the third one does not respond: both keep their identity.
    signal(&nodes[0], "-STOP");
    for node in &mut nodes[1..] {
        node.start("active");
    }
    introduce(&nodes);
    until("they go on", &mut nodes, |nodes| {
        let goes_on = |node: &Node| node.log().contains("is starting a new election");
        nodes[1..].iter().all(goes_on)
    });
    // The first two have a quorum, and its leader has never learned the new address of the last one.
    signal(&nodes[2], "-STOP");
    signal(&nodes[0], "-CONT");
    until("two have a quorum", &mut nodes, |nodes| nodes[1].is_ready());
    let heir = before[1].trim();
    // Refused if it already is the leader.
    at(&nodes[0], &["move-leader", heir]);
    signal(&nodes[2], "-CONT");
    until("the last one is of use", &mut nodes, |nodes| {
        assert!(!nodes[2].has_ended(), "it lives");
        nodes[2].is_ready()
    });
    assert_eq!(ids(&nodes), before, "the same members");
}

#[test]
fn an_etcd_member_that_died_before_it_had_a_log_joins_again() {
    let mut nodes = members_of_etcd(1);
    nodes.push(alone(1));
    // The state that etcd reaches before it contacts the others.
    let begun = "mkdir -p \"$DROVER_STORAGE/etcd/member/snap\"; exit 1";
    let programs = instead_of("etcd", begun);
    nodes[1].sets("PATH", &programs.1);
    nodes[1].start("active");
    introduce(&nodes);
    until("it is added, and dies", &mut nodes, |nodes| {
        nodes[1].has_ended()
    });
    assert!(nodes[1].storage().join("etcd/member/snap").exists());
    nodes[1].sets("PATH", &path());
    until("both are members", &mut nodes, all_ready);
    assert_eq!(voters(&[nodes[0].port("client")]).len(), 2);
}

#[test]
fn an_etcd_member_has_not_left_for_as_long_as_nobody_says_so() {
    let mut nodes = members_of_etcd(2);
    // The other one hangs as soon as it is asked to remove this one.
    let stop = format!(
        "case \" $* \" in *' member remove '*) kill -STOP {} ;; esac; exec {} \"$@\"",
        nodes[0].pid(),
        said(&run("sh", &["-c", "command -v etcdctl"])).unwrap(),
    );
    let programs = instead_of("etcdctl", &stop);
    nodes[1].sets("PATH", &programs.1);
    let refused = nodes[1].does("leave");
    signal(&nodes[0], "-CONT");
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{words}");
    nodes[1].sets("PATH", &path());
    until("it leaves", &mut nodes, |nodes| {
        nodes[1].does("leave").status.success()
    });
    nodes[1].kill();
    until("the other one goes on alone", &mut nodes, |nodes| {
        at(&nodes[0], &["put", "late", "x"]).is_some()
    });
}

#[test]
fn an_etcd_member_whose_data_are_not_kept_is_not_restarted_to_go_on_alone() {
    let node = alone(0).with_environment("KEPT", "");
    let mut nodes = [node];
    until("a member", &mut nodes, all_ready);
    let refused = nodes[0].does("recover");
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && words.contains("snapshot"),
        "{words}"
    );
    assert!(!nodes[0].has_ended());
}

fn members(ports: &Ports) -> BTreeSet<String> {
    let members = etcd(&ports.lock().unwrap(), &["member", "list"]).unwrap();
    let ids = members
        .lines()
        .map(|line| line.split(", ").next().unwrap().to_owned());
    ids.collect()
}
