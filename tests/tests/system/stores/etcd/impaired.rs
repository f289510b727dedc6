//! Members that serve, but take no writes: a database has reached its quota.

use super::{
    all_ready, alone, ask_within, at, etcd, insist, insist_at, instead_of, members_of_etcd, path,
    renewal::{are_members, quickly},
    signal, urls,
};
use crate::stores::{
    Ports, UP,
    alone::{Node, until},
    apply,
    disk::Disk,
    impaired::{lacks, not_impaired, roles},
    installed,
    real::look::condition,
    run, said, store, world,
};

const NAME: &str = "etcd";
/// Bytes that a database may have, in a flag of etcd.
const QUOTA: (&str, &str) = ("quota-backend-bytes", "2000000");

/// Writes once more. Returns whether a quota has been reached.
fn is_full(ports: &[u16]) -> bool {
    etcd(ports, &["put", "full", &"x".repeat(100_000)]);
    etcd(ports, &["alarm", "list"]).is_some_and(|alarms| alarms.contains("NOSPACE"))
}

/// Makes room, as one does by hand.
fn make_room(ports: &[u16]) {
    let status = insist(&ports[..1], &["endpoint", "status", "-w", "fields"]);
    let revision = status
        .lines()
        .find_map(|line| line.strip_prefix("\"Revision\" : "))
        .expect("a revision");
    // Once only: a second time it is refused.
    let compact = ["compact", "--physical", revision];
    ask_within(60, &urls(ports), &compact).expect("it is compacted");
    insist(ports, &["defrag"]);
    insist(ports, &["alarm", "disarm"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_whose_quota_is_reached_are_told_and_nobody_is_replaced() {
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let world = world().await;
    apply(&world, &store(NAME, "", 3, 0, quickly(&[QUOTA]))).await;
    let ports = Ports::default();
    are_members(&world, &ports, 3).await;
    let known = ports.lock().unwrap().clone();
    let before = roles(&world, NAME).await;
    assert_eq!(condition(&world, NAME, "Impaired").await, None);
    let what = "every member is Impaired, QuotaExceeded";
    world
        .until_within(UP, "a quota is reached", async |_| is_full(&known))
        .await;
    world
        .until_within(UP, what, async |world| {
            let told = condition(world, NAME, "Impaired").await;
            told.is_some_and(|(reason, message)| {
                let is_named = |at: u32| message.contains(&format!("db-{at}: "));
                reason == "QuotaExceeded" && (0..3).all(is_named)
            })
        })
        .await;
    assert!(world.is_ready(NAME, 3).await, "they serve");
    assert_eq!(insist(&known, &["get", "--keys-only", "full"]), "full");
    assert_eq!(etcd(&known, &["put", "late", "x"]), None);
    assert_eq!(roles(&world, NAME).await, before);
    make_room(&known);
    not_impaired(&world, NAME).await;
    insist(&known, &["put", "late", "x"]);
    assert!(world.is_ready(NAME, 3).await);
    assert_eq!(roles(&world, NAME).await, before);
}

fn with_quota(ordinal: u32) -> Node {
    alone(ordinal).with(&[&format!("--{}={}", QUOTA.0, QUOTA.1)])
}

fn are_impaired(nodes: &[Node]) -> bool {
    nodes.iter().all(|node| lacks(node) == ["QuotaExceeded"])
}

fn is_alive(node: &Node) -> bool {
    node.does("alive").status.success()
}

#[test]
fn a_member_says_that_a_quota_is_reached_also_when_whoever_reached_it_has_left() {
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let mut nodes = vec![alone(0)];
    until("a member", &mut nodes, all_ready);
    nodes.push(with_quota(1));
    until("another one", &mut nodes, all_ready);
    assert!(nodes.iter().all(|node| lacks(node).is_empty()));
    let port = nodes[0].port("client");
    until("the quota is reached", &mut nodes, |_| is_full(&[port]));
    until("both say so", &mut nodes, |nodes| are_impaired(nodes));
    until("it leaves", &mut nodes, |nodes| {
        nodes[1].does("leave").status.success()
    });
    nodes[1].kill();
    until("the other one goes on alone", &mut nodes, |_| {
        etcd(&[port], &["get", "full", "--keys-only"]).is_some()
    });
    assert_eq!(etcd(&[port], &["put", "late", "x"]), None);
    assert!(are_impaired(&nodes[..1]));
    make_room(&[port]);
    until("it says so no more", &mut nodes, |nodes| {
        lacks(&nodes[0]).is_empty()
    });
    insist(&[port], &["put", "late", "x"]);
}

#[test]
fn a_member_without_a_quorum_is_alive_and_one_that_hangs_is_not() {
    let mut nodes = members_of_etcd(2);
    nodes[1].kill();
    until("there is no quorum", &mut nodes, |nodes| {
        at(&nodes[0], &["put", "late", "x"]).is_none()
    });
    assert!(lacks(&nodes[0]).is_empty());
    signal(&nodes[0], "-STOP");
    assert!(!is_alive(&nodes[0]));
    signal(&nodes[0], "-CONT");
    until("it answers again", &mut nodes, |nodes| is_alive(&nodes[0]));
}

#[test]
fn a_member_whose_disk_stands_still_is_alive() {
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let mut nodes = [alone(0)];
    // Goes before the node: what waits for it could not be waited for.
    let disk = Disk::at(nodes[0].storage());
    until("a member", &mut nodes, all_ready);
    disk.stands_still();
    until("a write waits", &mut nodes, |nodes| {
        at(&nodes[0], &["put", "late", "x"]).is_none()
    });
    for _ in 0..3 {
        until("it is alive", &mut nodes, |nodes| is_alive(&nodes[0]));
    }
    disk.goes_on();
    until("it writes again", &mut nodes, |nodes| {
        at(&nodes[0], &["put", "late", "x"]).is_some()
    });
    until("it is alive", &mut nodes, |nodes| is_alive(&nodes[0]));
}

#[test]
fn a_member_with_a_full_disk_says_so_until_there_is_room_again() {
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let mut nodes = [alone(0)];
    let disk = Disk::at(nodes[0].storage());
    until("a member", &mut nodes, all_ready);
    assert!(lacks(&nodes[0]).is_empty());
    // Enough for what is written meanwhile: a member without room for its log ends.
    disk.fill_but(48);
    until("it says so", &mut nodes, |nodes| {
        lacks(&nodes[0]) == ["DiskFull"]
    });
    insist_at(&nodes[0], &["put", "late", "x"]);
    disk.free();
    until("it says so no more", &mut nodes, |nodes| {
        lacks(&nodes[0]).is_empty()
    });
}

#[test]
fn a_member_that_does_not_say_how_it_is_is_alive_and_lacks_what_it_lacked() {
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let mut nodes = [with_quota(0)];
    until("a member", &mut nodes, all_ready);
    let real = said(&run("sh", &["-c", "command -v etcdctl"])).unwrap();
    let silent =
        format!("case \" $* \" in *' endpoint status '*) exit 1 ;; esac; exec {real} \"$@\"");
    let programs = instead_of("etcdctl", &silent);
    nodes[0].sets("PATH", &programs.1);
    assert!(lacks(&nodes[0]).is_empty());
    nodes[0].sets("PATH", &path());
    let port = nodes[0].port("client");
    until("the quota is reached", &mut nodes, |_| is_full(&[port]));
    until("it says so", &mut nodes, |nodes| are_impaired(nodes));
    nodes[0].sets("PATH", &programs.1);
    assert!(are_impaired(&nodes));
    signal(&nodes[0], "-STOP");
    assert!(!is_alive(&nodes[0]));
    signal(&nodes[0], "-CONT");
}
