//! etcd: members that join, leave and go on with what they have, without an orchestrator.

mod aside;
mod chaos;
mod impaired;
mod renewal;
mod tls;

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt, time::Duration};

use drover_templates::stores::ETCD;
use tokio::time::Instant;

use crate::stores::{
    UP,
    alone::{Node, introduce, until},
    installed, run, run_within, said,
};

fn etcd(ports: &[u16], command: &[&str]) -> Option<String> {
    ask(&urls(ports), command)
}

fn urls(ports: &[u16]) -> String {
    let urls: Vec<_> = ports
        .iter()
        .map(|port| format!("http://127.0.0.1:{port}"))
        .collect();
    urls.join(",")
}

/// What the members at these URLs answer.
fn ask(endpoints: &str, command: &[&str]) -> Option<String> {
    ask_within(3, endpoints, command)
}

fn ask_within(seconds: u32, endpoints: &str, command: &[&str]) -> Option<String> {
    let endpoints = format!("--endpoints={endpoints}");
    let timeout = format!("--command-timeout={seconds}s");
    let mut arguments = vec![endpoints.as_str(), "--dial-timeout=1s", &timeout];
    arguments.extend(command);
    said(&run_within(seconds + 5, "etcdctl", &arguments))
}

/// What members answer to a command that may be repeated, as it is until they do.
fn insist(ports: &[u16], command: &[&str]) -> String {
    answered(command, || etcd(ports, command))
}

/// The answer to a command that is given again and again until there is one.
fn answered(command: &[&str], mut ask: impl FnMut() -> Option<String>) -> String {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < UP, "no answer: {command:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
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

/// Waits until the first member says that so many vote.
fn vote(nodes: &mut [Node], count: usize) {
    until("they vote", nodes, |nodes| {
        voters(&[nodes[0].port("client")]).len() == count
    });
}

fn alone(ordinal: u32) -> Node {
    let quick = [
        "--unsafe-no-fsync",
        "--heartbeat-interval=50",
        "--election-timeout=500",
    ];
    Node::new(&ETCD, ordinal, &["client", "peer"]).with(&quick)
}

/// Where clients find a member.
fn url(node: &Node) -> String {
    format!("http://{}:{}", node.host(), node.port("client"))
}

fn at(node: &Node, command: &[&str]) -> Option<String> {
    ask(&url(node), command)
}

fn insist_at(node: &Node, command: &[&str]) -> String {
    answered(command, || at(node, command))
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
    started((0..count).map(alone))
}

fn started(members: impl Iterator<Item = Node>) -> Vec<Node> {
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let mut nodes = Vec::new();
    for member in members {
        nodes.push(member);
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
        insist_at(&nodes[0], &["put", key, "x"]);
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
        let early = insist_at(node, &["get", "--keys-only", "early"]);
        assert_eq!(early, "early", "{}", node.name);
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
        let keys = insist_at(node, &["get", "--keys-only", "--prefix", ""]);
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
        assert_eq!(insist_at(node, &late), "late", "{}", node.name);
    }
    vote(&mut nodes, 3);
}

/// A member that takes nobody for gone within minutes.
fn patient(ordinal: u32) -> Node {
    let node = alone(ordinal);
    let script = fs::read_to_string(node.script()).unwrap();
    assert_eq!(script.matches("longest=30\n").count(), 1);
    let script = script.replace("longest=30\n", "longest=600\n");
    fs::write(node.script(), script).unwrap();
    node
}

#[test]
fn an_etcd_member_that_its_leader_does_not_find_says_where_it_is() {
    // The last one stands still for a while where the others do not know it.
    let mut nodes = started((0..3).map(patient));
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
    vote(&mut nodes, 2);
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
