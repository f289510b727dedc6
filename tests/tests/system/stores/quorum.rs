//! What PostgreSQL has acknowledged is safe by counting: whoever hears whom, whoever is silent, and whoever is still a primary.

use std::process::{Child, Command, Stdio};

use crate::stores::{
    UP, active,
    alone::{Node, introduce, promoted, refused, until},
    apply, nested, object,
    postgresql::{all_ready, alone, ask, begin, filled, has_replayed, insist, postgresql},
    real::World,
    run, run_within, server, store, text, up, world,
};

const SETTING: &str = "show synchronous_standby_names";

/// A primary and this number of standbys, one of which must have each transaction before it is acknowledged.
pub(super) fn synchronous(standbys: u32) -> Vec<Node> {
    counted("1", standbys)
}

/// A primary and this number of standbys, so many of which must have each transaction before it is acknowledged.
pub(super) fn counted(needed: &str, standbys: u32) -> Vec<Node> {
    let one = |at| alone(at, &[]).with_environment("SYNCHRONOUS", needed);
    let mut nodes: Vec<_> = (0..=standbys).map(one).collect();
    begin(&mut nodes);
    let all: Vec<String> = (1..=standbys).map(|at| format!("db-{at}")).collect();
    until("all standbys count", &mut nodes, |nodes| {
        counts(&nodes[0], &all)
    });
    insist(&nodes[0], "create table t (x int)");
    nodes
}

/// Whether exactly these standbys of a primary are counted.
pub(super) fn counts(primary: &Node, standbys: &[String]) -> bool {
    let setting = ask(primary, SETTING).unwrap_or_default();
    let named: Vec<&str> = setting.split('"').skip(1).step_by(2).collect();
    let all = standbys.iter().all(|name| named.contains(&name.as_str()));
    all && named.len() == standbys.len()
}

/// Whether a row is acknowledged by a server within three seconds.
pub(super) fn acknowledges(node: &Node, row: u32) -> bool {
    acknowledges_within(3, node, row)
}

/// Writes a row that a server is to acknowledge, with time for a busy machine. Once only: else it might be there twice.
pub(super) fn acknowledged(node: &Node, row: u32) {
    let has = acknowledges_within(60, node, row);
    assert!(has, "{}: row {row}\n{}", node.name, node.log());
}

fn acknowledges_within(seconds: u32, node: &Node, row: u32) -> bool {
    let (_, programs) = postgresql();
    let psql = programs.join("psql");
    let port = node.port("client");
    let to = format!(
        "host=127.0.0.1 port={port} user=postgres dbname=postgres connect_timeout={seconds}"
    );
    let insert = format!("insert into t values ({row})");
    let psql = psql.to_str().unwrap();
    let answer = run_within(seconds, psql, &["-XAtqw", "-d", &to, "-c", &insert]);
    answer.status.success() && answer.stderr.is_empty()
}

/// Kills a server, and waits for the last of its processes, which might confirm something still.
pub(super) fn killed(nodes: &mut [Node], at: usize) {
    nodes[at].kill();
    let lock = nodes[at].storage().join("lock");
    until("the last of its processes has ended", nodes, |_| {
        let try_lock = run("flock", &["-n", lock.to_str().unwrap(), "true"]);
        try_lock.status.success()
    });
}

/// Sends a signal to a server and all of its processes.
pub(super) fn signal(node: &Node, name: &str) {
    let pid = node.pid().to_string();
    assert!(run("pkill", &[name, "-P", &pid]).status.success());
    assert!(run("kill", &[name, &pid]).status.success());
}

/// A client that receives the WAL of a server, and confirms it as soon as it has it on disk.
struct Receiver(Child);

impl Receiver {
    fn of(node: &Node) -> Self {
        let (_, programs) = postgresql();
        let folder = node.directory();
        let port = node.port("client").to_string();
        let program = || {
            let mut program = Command::new(programs.join("pg_receivewal"));
            program.args([
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-U",
                "postgres",
                "--slot",
                "s",
            ]);
            program.stdout(Stdio::null()).stderr(Stdio::null());
            program
        };
        assert!(program().arg("--create-slot").status().unwrap().success());
        let receives = program().arg("--synchronous").arg("-D").arg(folder).spawn();
        Self(receives.unwrap())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_client_that_receives_the_wal_is_no_standby() {
    let mut nodes = synchronous(1);
    acknowledged(&nodes[0], 1);
    killed(&mut nodes, 1);
    let _receiver = Receiver::of(&nodes[0]);
    until("the client has all", &mut nodes, |nodes| {
        let streams = "select count(*) from pg_stat_replication where application_name = 'pg_receivewal' \
                       and flush_lsn = pg_current_wal_flush_lsn()";
        ask(&nodes[0], streams).as_deref() == Some("1")
    });
    assert!(!acknowledges(&nodes[0], 2), "no standby has it");
    nodes[1].start("standby");
    introduce(&nodes);
    until("the standby is of use", &mut nodes, all_ready);
    acknowledged(&nodes[0], 3);
}

#[test]
fn a_standby_that_is_silent_may_have_what_the_others_lack() {
    let mut nodes = synchronous(2);
    until("both have the table", &mut nodes, |nodes| {
        has_replayed(&nodes[0], &nodes[1]) && has_replayed(&nodes[0], &nodes[2])
    });
    // Only one of them receives the next row.
    let receiver = insist(&nodes[1], "select pid from pg_stat_wal_receiver");
    let to_receiver = |name: &str| assert!(run("kill", &[name, &receiver]).status.success());
    to_receiver("-STOP");
    acknowledged(&nodes[0], 42);
    signal(&nodes[2], "-STOP");
    nodes[0].kill();
    to_receiver("-CONT");
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    refused(
        &mut nodes[1],
        &["db-2 does not answer", "1 of 2 are, 2 are needed"],
    );
    signal(&nodes[2], "-CONT");
    promoted(&mut nodes[1]);
    assert_eq!(insist(&nodes[1], "select x from t"), "42");
}

#[test]
fn a_standby_that_has_long_been_silent_holds_up_no_promotion() {
    let mut nodes = synchronous(2);
    nodes[2].kill();
    until("it is no longer counted", &mut nodes, |nodes| {
        counts(&nodes[0], &["db-1".to_owned()])
    });
    acknowledged(&nodes[0], 1);
    until("the other one has heard of it", &mut nodes, |nodes| {
        let of_record =
            "select count(*) from pg_db_role_setting where setconfig = '{drover.quorum=1 1 db-1}'";
        ask(&nodes[1], of_record).as_deref() == Some("1")
    });
    nodes[0].kill();
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    assert_eq!(insist(&nodes[1], "select x from t"), "1");
}

#[test]
fn an_old_primary_that_lives_acknowledges_nothing_once_another_one_is_promoted() {
    let mut nodes = synchronous(2);
    acknowledged(&nodes[0], 1);
    // Nobody else hears of it: the old primary, and the standby that goes on taking it for active.
    nodes[1].hears_of(&[nodes[0].seen_as("active"), nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    for row in 2..4 {
        assert!(!acknowledges(&nodes[0], row), "by two servers");
    }
    assert!(!acknowledges(&nodes[1], 5), "nobody follows it");
    nodes[2].hears_of(&[nodes[0].seen_as("active"), nodes[1].seen_as("active")]);
    until(
        "the other standby follows the new one",
        &mut nodes,
        |nodes| counts(&nodes[1], &["db-2".to_owned()]),
    );
    acknowledged(&nodes[1], 6);
    assert!(!acknowledges(&nodes[0], 7), "by two servers");
    nodes[0].hears_role("standby");
    until("the old one ends", &mut nodes, |nodes| nodes[0].has_ended());
    nodes[0].start("standby");
    introduce(&nodes);
    until("it is one of the standbys", &mut nodes, all_ready);
    let rows = "select string_agg(x::text, ' ' order by x) from t where x not in (5)";
    until("it has what they have", &mut nodes, |nodes| {
        ask(&nodes[0], rows).as_deref() == Some("1 6")
    });
}

#[test]
fn a_primary_without_standbys_acknowledges_nothing_until_one_is_back() {
    let mut nodes = synchronous(1);
    nodes[0].kill();
    nodes[1].hears_of(&[]);
    promoted(&mut nodes[1]);
    assert!(!acknowledges(&nodes[1], 1), "it alone has it");
    nodes[0].start("standby");
    introduce(&nodes);
    until("the other one follows", &mut nodes, all_ready);
    until("it counts", &mut nodes, |nodes| {
        counts(&nodes[1], &["db-0".to_owned()])
    });
    acknowledged(&nodes[1], 2);
}

#[test]
fn a_server_holds_the_lock_of_its_volume_until_its_last_process_has_ended() {
    let mut nodes = [alone(0, &[])];
    begin(&mut nodes);
    let lock = nodes[0].storage().join("lock");
    let try_lock = || run("flock", &["-n", lock.to_str().unwrap(), "true"]).status;
    assert!(!try_lock().success(), "the server holds it");
    nodes[0].kill();
    until("the last of its processes has ended", &mut nodes, |_| {
        try_lock().success()
    });
}

#[test]
fn a_server_that_hangs_is_of_no_use_and_is_ended_and_one_that_is_full_is_not() {
    let mut nodes = [alone(0, &["max_connections=10"])];
    begin(&mut nodes);
    let alive = |node: &Node| node.does("alive").status.success();
    let all = filled(&nodes[0]);
    until("it takes nobody more, and lives", &mut nodes, |nodes| {
        alive(&nodes[0])
    });
    drop(all);
    signal(&nodes[0], "-STOP");
    // What was heard of it a moment ago counts for that long.
    until("it is of no use", &mut nodes, |nodes| !alive(&nodes[0]));
    assert!(!nodes[0].is_ready() && !nodes[0].has_ended());
    signal(&nodes[0], "-CONT");
    until("it answers again", &mut nodes, |nodes| alive(&nodes[0]));
    until("it is of use again", &mut nodes, all_ready);
    signal(&nodes[0], "-STOP");
    until("it is of no use", &mut nodes, |nodes| !alive(&nodes[0]));
    for _ in 0..2 {
        assert!(!alive(&nodes[0]));
    }
    until("it has ended", &mut nodes, |nodes| nodes[0].has_ended());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_primary_that_hangs_a_standby_takes_the_place() {
    let (version, _) = postgresql();
    let world = world().await;
    let settings = [("shared_buffers", text("16MB"))];
    let attributes = object(&[("synchronous", text("1")), ("settings", nested(&settings))]);
    apply(&world, &store("postgresql", &version, 1, 1, attributes)).await;
    up(&world, "postgresql", 2).await;
    let nodes = async |world: &World| world.records("postgresql").await.unwrap_or_default();
    let hung = active(&nodes(&world).await).expect("a primary").clone();
    let server = server(&hung).to_string();
    assert!(run("pkill", &["-STOP", "-P", &server]).status.success());
    assert!(run("kill", &["-STOP", &server]).status.success());
    world
        .until_within(UP, "another one is active", async |world| {
            let now = nodes(world).await;
            active(&now).is_some_and(|node| node.id != hung.id)
        })
        .await;
    up(&world, "postgresql", 2).await;
}
