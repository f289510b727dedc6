//! Redis: a replica takes over with all data.

mod chaos;
mod hangs;
mod impaired;
mod password;
mod tls;

use std::{collections::BTreeSet, fs, sync::Arc, time::Duration};

use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{HealthPolicy, PhaseProbe, health_policy::Probe},
};
use drover_templates::stores::REDIS;
use prost_types::Struct;
use serde_json::json;
use tokio::time::Instant;

use self::hangs::signal;
use crate::stores::{
    Ports, UP, active,
    alone::{Node, introduce, promoted, refused, until},
    apply,
    clients::{Writer, lost},
    find,
    impaired::lacks,
    installed, kill_the_active_one, nested, object,
    real::kill_9,
    renew, run, said, server, store, text, up, world,
};

fn redis(port: u16, command: &[&str]) -> Option<String> {
    let port = port.to_string();
    let mut arguments = vec!["-h", "127.0.0.1", "-p", &port];
    arguments.extend(command);
    said(&run("redis-cli", &arguments))
}

fn redis_holds(port: u16) -> BTreeSet<u64> {
    let keys = redis(port, &["keys", "*"]).unwrap();
    keys.lines().filter_map(|key| key.parse().ok()).collect()
}

fn redis_writer(ports: &Ports) -> Writer {
    let ports = Arc::clone(ports);
    let mut last = None;
    Writer::start(move |number| {
        let known = ports.lock().unwrap().clone();
        let number = number.to_string();
        for port in last.into_iter().chain(known) {
            // On one connection, because WAIT covers only writes of its own connection.
            let script = format!(
                "printf 'set {number} x\\nwait 1 2000\\n' | timeout 5 redis-cli -h 127.0.0.1 -p {port}"
            );
            let output = run("sh", &["-c", &script]);
            if String::from_utf8_lossy(&output.stdout) == "OK\n1\n" {
                last = Some(port);
                return true;
            }
        }
        last = None;
        false
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_replica_takes_over_with_everything_that_it_has_acknowledged() {
    installed("redis-server", "redis-server");
    let mut world = world().await;
    let mut cluster = store("redis", "", 1, 1, Struct::default());
    apply(&world, &cluster).await;
    up(&world, "redis", 2).await;
    let ports = Ports::default();
    find(&world, "redis", &ports).await;
    let writer = redis_writer(&ports);
    kill_the_active_one(&mut world, "redis", &ports, &writer, 2, 2).await;

    // The replica is renewed first, and takes over when the active node is replaced.
    let config = nested(&[("maxmemory", text("64mb"))]);
    cluster.spec.as_mut().unwrap().attributes = Some(object(&[("config", config)]));
    renew(&world, &cluster, &ports, 2).await;
    writer.writes(&world, "redis", &ports).await;
    let records = find(&world, "redis", &ports).await;
    let acknowledged = writer.finish();
    let primary = active(&records).unwrap();
    let port = port(primary);
    let most = redis(port, &["config", "get", "maxmemory"]).unwrap();
    assert_eq!(most, "maxmemory\n67108864");
    lost(&acknowledged, &redis_holds(port));
    println!("redis: {} writes acknowledged, 0 lost", acknowledged.len());
}

fn port(node: &pb::Node) -> u16 {
    let endpoint = &node.endpoints["client"];
    endpoint.rsplit(':').next().unwrap().parse().unwrap()
}

/// One standby is stopped; only the other one has the writes made meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_replica_takes_from_another_one_what_it_lacks_and_keeps_to_the_declared_minimum() {
    installed("redis-server", "redis-server");
    let world = world().await;
    let config = nested(&[("min-replicas-to-write", text("1"))]);
    let attributes = object(&[("config", config)]);
    let mut cluster = store("redis", "", 1, 2, attributes);
    // Its own probe would end the one that is stopped.
    cluster.spec.as_mut().unwrap().health = Some(HealthPolicy {
        probe: Some(Probe::Phase(PhaseProbe {})),
        ..Default::default()
    });
    apply(&world, &cluster).await;
    up(&world, "redis", 3).await;
    let ports = Ports::default();
    let mut records = find(&world, "redis", &ports).await;
    let primary = active(&records).unwrap().clone();
    records.retain(|node| node.id != primary.id);
    // Of two equally suitable replicas, the older one is promoted.
    records.sort_by_key(|node| node.ordinal);
    let (late, other) = (&records[0], &records[1]);

    let signal = |name: &str| {
        let sent = run("kill", &[name, &server(late).to_string()]);
        assert!(sent.status.success(), "{sent:?}");
    };
    signal("-STOP");
    redis(port(&primary), &["client", "kill", "type", "replica"]).unwrap();
    let script = format!(
        "printf 'set 7 x\\nwait 1 5000\\n' | timeout 8 redis-cli -h 127.0.0.1 -p {}",
        port(&primary)
    );
    world
        .until_within(UP, "the other one has it", async |_| {
            String::from_utf8_lossy(&run("sh", &["-c", &script]).stdout) == "OK\n1\n"
        })
        .await;
    kill_9(server(&primary));
    signal("-CONT");
    let killed = Instant::now();
    world
        .until_within(UP, "another one is active", async |world| {
            let now = find(world, "redis", &ports).await;
            active(&now).is_some_and(|node| node.id != primary.id)
        })
        .await;
    println!("redis: another one was active after {:?}", killed.elapsed());
    up(&world, "redis", 3).await;
    let records = find(&world, "redis", &ports).await;
    let now = active(&records).unwrap();
    println!("redis: {} took over, {} had it", now.id, other.id);
    assert!(redis_holds(port(now)).contains(&7));
    let least = redis(port(now), &["config", "get", "min-replicas-to-write"]).unwrap();
    assert_eq!(least, "min-replicas-to-write\n1");
}

fn alone(ordinal: u32) -> Node {
    let arguments = [
        "--bind",
        "127.0.0.1",
        "--port",
        "{port}",
        "--dir",
        "{storage}",
    ];
    let arguments = [
        &arguments[..],
        &["--save", "", "--repl-diskless-sync-delay", "0"],
    ];
    Node::new(&REDIS, ordinal, &["client"]).with(&arguments.concat())
}

fn all_ready(nodes: &mut [Node]) -> bool {
    nodes.iter().all(Node::is_ready)
}

/// A primary and two replicas.
fn three() -> Vec<Node> {
    installed("redis-server", "redis-server");
    let mut nodes: Vec<_> = (0..3).map(alone).collect();
    nodes[0].start("active");
    nodes[1].start("standby");
    nodes[2].start("standby");
    introduce(&nodes);
    until("all are of use", &mut nodes, all_ready);
    nodes
}

#[test]
fn a_redis_that_hears_neither_of_its_two_replicas_refuses_writes_until_one_is_heard_or_they_are_gone()
 {
    let mut nodes = three();
    let port = nodes[0].port("client");
    let needs = |port| redis(port, &["config", "get", "min-replicas-to-write"]);
    until("it needs one of them", &mut nodes, |_| {
        needs(port).unwrap().ends_with("\n1")
    });
    confirmed(&nodes[0], "1", 1);
    let refuses = "NOREPLICAS Not enough good replicas to write.";
    let writes = |says: &str| redis(port, &["set", "2", "x"]).is_some_and(|it| it.trim() == says);
    for node in &nodes[1..] {
        signal(node.pid(), "-STOP");
    }
    until("it refuses writes", &mut nodes, |_| writes(refuses));
    signal(nodes[1].pid(), "-CONT");
    until("it takes writes", &mut nodes, |_| writes("OK"));
    signal(nodes[1].pid(), "-STOP");
    until("it refuses writes again", &mut nodes, |_| writes(refuses));
    // The group has one of them left, which may be renewed.
    nodes[0].hears_of(&[nodes[1].seen_as("standby")]);
    until("it does without", &mut nodes, |_| writes("OK"));
}

#[test]
fn a_redis_that_takes_over_needs_as_many_replicas_as_its_group_says_in_whatever_letters() {
    installed("redis-server", "redis-server");
    let made = |ordinal| alone(ordinal).with(&["--Min-Replicas-To-Write", "2"]);
    let mut nodes = [made(0), made(1)];
    nodes[0].start("active");
    nodes[1].start("standby");
    introduce(&nodes);
    until("both are of use", &mut nodes, all_ready);
    nodes[0].kill();
    nodes[1].hears_of(&[]);
    promoted(&mut nodes[1]);
    let needs = redis(
        nodes[1].port("client"),
        &["config", "get", "min-replicas-to-write"],
    );
    assert_eq!(needs.as_deref(), Some("min-replicas-to-write\n2"));
}

/// Writes a key, and waits until this number of replicas has it.
fn confirmed(primary: &Node, key: &str, replicas: u32) {
    let port = primary.port("client");
    let script = format!(
        "printf 'set {key} x\\nwait {replicas} 5000\\n' | timeout 8 redis-cli -h 127.0.0.1 -p {port}"
    );
    let began = Instant::now();
    loop {
        let answer = String::from_utf8_lossy(&run("sh", &["-c", &script]).stdout).into_owned();
        let have = answer
            .strip_prefix("OK\n")
            .and_then(|count| count.trim().parse::<u32>().ok());
        if have >= Some(replicas) {
            return;
        }
        assert!(began.elapsed() < UP, "{key}: {answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A dead primary and two replicas, one of which lacks the last write.
fn three_without(late: usize) -> Vec<Node> {
    let mut nodes = three();
    let signal = |node: &Node, name: &str| {
        let sent = run("kill", &[name, &node.pid().to_string()]);
        assert!(sent.status.success(), "{sent:?}");
    };
    signal(&nodes[late], "-STOP");
    let port = nodes[0].port("client");
    redis(port, &["client", "kill", "type", "replica"]).unwrap();
    until("the other one is back", &mut nodes, |_| {
        let info = redis(port, &["info", "replication"]).unwrap();
        info.contains("connected_slaves:1")
    });
    confirmed(&nodes[0], "1", 1);
    nodes[0].kill();
    signal(&nodes[late], "-CONT");
    nodes
}

fn holds(node: &Node) -> BTreeSet<u64> {
    redis_holds(node.port("client"))
}

/// A number from `io` or `status` in a process's directory in /proc.
fn number(pid: u32, file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line[name.len()..].trim().parse().unwrap()
}

/// Pid of the script that supervises a node.
fn watcher(node: &Node) -> Option<u32> {
    let script = node.script();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let mut all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    all.find(|pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with("sh\0") && line.contains(&script)
    })
}

#[test]
fn a_node_of_which_nothing_changes_does_not_read_the_list_of_all_nodes_again_and_again() {
    installed("redis-server", "redis-server");
    let mut node = alone(0);
    node.start("active");
    let others: Vec<_> = (0..5_000)
        .map(|ordinal| json!({"name": format!("other-{ordinal}"), "group": "other", "ordinal": ordinal}))
        .collect();
    node.hears_of(&others);
    let mut nodes = [node];
    until("it is of use", &mut nodes, all_ready);
    let pid = watcher(&nodes[0]).unwrap();
    let turns = || number(pid, "status", "voluntary_ctxt_switches:");
    let look_on = |nodes: &mut [Node]| {
        let from = turns();
        until("it has looked ten times", nodes, |_| turns() >= from + 20);
    };
    // The new list is read once.
    look_on(&mut nodes);
    let before = number(pid, "io", "syscr:");
    look_on(&mut nodes);
    let reads = number(pid, "io", "syscr:") - before;
    assert!(reads < 2_000, "{reads} reads of a list that is the same");
}

#[test]
fn a_redis_replica_that_was_let_go_at_an_earlier_promotion_takes_over_with_what_came_since() {
    // It is detached so that its data can be copied; only the promoted one knows of the other.
    let mut nodes = three_without(1);
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    assert_eq!(holds(&nodes[1]), BTreeSet::from([1]));
    nodes[0].start("standby");
    let (active, other) = (nodes[1].seen_as("active"), nodes[2].seen_as("standby"));
    nodes[0].hears_of(&[active, other]);
    until("the old primary is a replica", &mut nodes, |nodes| {
        nodes[0].is_ready()
    });
    confirmed(&nodes[1], "2", 1);

    nodes[1].kill();
    nodes[2].hears_of(&[nodes[0].seen_as("standby")]);
    promoted(&mut nodes[2]);
    assert_eq!(holds(&nodes[2]), BTreeSet::from([1, 2]));
}

#[test]
fn a_redis_replica_that_was_let_go_is_not_made_to_drop_what_another_one_lacks() {
    let mut nodes = three_without(2);
    // The promotion for which it was detached did not complete.
    let port = nodes[1].port("client");
    redis(port, &["config", "set", "min-replicas-to-write", "1000"]).unwrap();
    redis(port, &["replicaof", "no", "one"]).unwrap();
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    assert_eq!(holds(&nodes[1]), BTreeSet::from([1]));
}

#[test]
fn a_redis_standby_that_never_heard_its_primary_takes_over_from_one_that_did() {
    let mut nodes = three();
    confirmed(&nodes[0], "1", 2);
    nodes[1].start("standby");
    nodes[0].kill();
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    assert_eq!(holds(&nodes[1]), BTreeSet::from([1]));
}

/// Keeps this node busy with a script until the script is killed.
fn keep_busy(nodes: &mut [Node], at: usize) {
    let port = nodes[at].port("client");
    redis(port, &["config", "set", "busy-reply-threshold", "1"]).unwrap();
    let endless = "while true do end";
    std::thread::spawn(move || redis(port, &["eval", endless, "0"]));
    until("it is busy", nodes, |_| {
        redis(port, &["ping"]).is_some_and(|answer| answer.starts_with("BUSY"))
    });
}

#[test]
fn no_redis_replica_is_promoted_while_another_one_that_lives_cannot_be_asked() {
    let mut nodes = three_without(1);
    keep_busy(&mut nodes, 2);
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    refused(&mut nodes[1], &["does not answer"]);
    redis(nodes[2].port("client"), &["script", "kill"]).unwrap();
    promoted(&mut nodes[1]);
    assert_eq!(holds(&nodes[1]), BTreeSet::from([1]));
}

#[test]
fn no_redis_replica_is_promoted_over_a_primary_that_lives_and_cannot_be_asked() {
    let mut nodes = three();
    confirmed(&nodes[0], "1", 2);
    keep_busy(&mut nodes, 0);
    // It was demoted a moment ago, or is about to be.
    nodes[1].hears_of(&[nodes[0].seen_as("active"), nodes[2].seen_as("standby")]);
    refused(&mut nodes[1], &["does not answer"]);
    let port = nodes[0].port("client");
    redis(port, &["script", "kill"]).unwrap();
    // It has not listened to its replicas meanwhile.
    until("it takes writes", &mut nodes, |_| {
        redis(port, &["set", "2", "x"]).as_deref() == Some("OK")
    });
    promoted(&mut nodes[1]);
    let late = redis(port, &["set", "3", "x"]).unwrap_or_default();
    assert!(late.starts_with("NOREPLICAS"), "{late}");
    assert_eq!(holds(&nodes[1]), BTreeSet::from([1, 2]));
}

#[test]
fn no_redis_replica_with_a_password_is_promoted_over_a_primary_that_is_full() {
    installed("redis-server", "redis-server");
    let mut nodes = [alone(0).with(&["--maxclients", "9"]), alone(1)];
    for (node, role) in nodes.iter_mut().zip(["active", "standby"]) {
        node.is_given(b"Sekante-3391\n");
        node.start(role);
    }
    introduce(&nodes);
    until("both are of use", &mut nodes, all_ready);
    let to = ("127.0.0.1", nodes[0].port("client"));
    let (mut taken, mut times) = (Vec::new(), 0);
    until("nobody is let in any more", &mut nodes, |nodes| {
        taken.extend(std::net::TcpStream::connect(to));
        let is_full = lacks(&nodes[0]) == ["ConnectionsExhausted"];
        times = if is_full { times + 1 } else { 0 };
        times == 20
    });
    refused(&mut nodes[1], &["does not answer"]);
    drop(taken);
    until("it lets somebody in", &mut nodes, |nodes| {
        lacks(&nodes[0]).is_empty()
    });
    promoted(&mut nodes[1]);
}

#[test]
fn a_redis_replica_is_promoted_whoever_has_the_address_of_the_old_primary() {
    let mut nodes = three();
    confirmed(&nodes[0], "1", 2);
    let port = nodes[0].port("client");
    nodes[0].kill();
    // It takes connections and says nothing that Redis says.
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = std::io::Write::write_all(&mut stream.unwrap(), b"HTTP/1.1 400\r\n\r\n");
        }
    });
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    assert_eq!(holds(&nodes[1]), BTreeSet::from([1]));
}

#[test]
fn a_busy_redis_replica_is_promoted_when_it_has_the_time() {
    let mut nodes = three();
    confirmed(&nodes[0], "1", 2);
    nodes[2].kill();
    keep_busy(&mut nodes, 1);
    nodes[0].kill();
    nodes[1].hears_of(&[]);
    refused(&mut nodes[1], &["does not answer"]);
    let port = nodes[1].port("client");
    redis(port, &["script", "kill"]).unwrap();
    promoted(&mut nodes[1]);
    assert_eq!(redis(port, &["set", "2", "x"]).as_deref(), Some("OK"));
    assert_eq!(holds(&nodes[1]), BTreeSet::from([1, 2]));
}
