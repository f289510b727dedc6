//! PostgreSQL: a primary dies repeatedly, and no row is lost.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use drover_proto::{orchestrator::v1 as pb, platform::v1::NodeRole};
use drover_templates::stores::POSTGRESQL;

use crate::stores::{
    Ports, UP,
    alone::{Node, introduce, promoted, refused, until},
    apply,
    clients::{Writer, lost},
    find, kill_the_active_one, nested, object,
    pgbench::{self, Pgbench},
    real::{World, kill_9},
    renew, run, run_within, said, server, store, text, up, world,
};

/// Of the superuser, where nodes ask for one.
pub(super) const PASSWORD: &str = "correct-horse";

/// Major version and programs of the newest installation.
pub(super) fn postgresql() -> (String, PathBuf) {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let versions = versions
        .flatten()
        .filter(|entry| entry.path().join("bin/postgres").is_file());
    let newest = versions
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .max();
    let version = newest
        .expect("PostgreSQL is not installed: apt-get install postgresql, and run this test again")
        .to_string();
    let programs = PathBuf::from("/usr/lib/postgresql")
        .join(&version)
        .join("bin");
    (version, programs)
}

/// Runs SQL on the current primary among these servers.
fn sql(psql: &str, ports: &[u16], statement: &str) -> Option<String> {
    let hosts = vec!["127.0.0.1"; ports.len()].join(",");
    let ports = ports
        .iter()
        .map(u16::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let to = format!(
        "host={hosts} port={ports} user=postgres dbname=postgres connect_timeout=2 target_session_attrs=read-write"
    );
    said(&run(psql, &["-XAtqw", "-d", &to, "-c", statement]))
}

/// Number of servers that currently are primaries.
fn primaries(psql: &str, ports: &[u16]) -> usize {
    let asks = ports.iter().map(|port| {
        let to =
            format!("host=127.0.0.1 port={port} user=postgres dbname=postgres connect_timeout=2");
        said(&run(
            psql,
            &["-XAtqw", "-d", &to, "-c", "select pg_is_in_recovery()"],
        ))
    });
    asks.filter(|answer| answer.as_deref() == Some("f")).count()
}

/// What a server answers within three seconds.
pub(super) fn ask_at(node: &pb::Node, statement: &str) -> Option<String> {
    ask_within(3, node, statement)
}

/// What a server is to answer, with time for a busy machine. It is asked once only: else a row might be there twice.
pub(super) fn insist_at(node: &pb::Node, statement: &str) -> String {
    let answer = ask_within(60, node, statement);
    answer.unwrap_or_else(|| panic!("{}: {statement}", node.name))
}

fn ask_within(seconds: u32, node: &pb::Node, statement: &str) -> Option<String> {
    let (_, programs) = postgresql();
    let psql = programs.join("psql");
    let (host, port) = node.endpoints["client"].rsplit_once(':').unwrap();
    let to =
        format!("host={host} port={port} user=postgres dbname=postgres connect_timeout={seconds}");
    said(&run_within(
        seconds,
        psql.to_str().unwrap(),
        &["-XAtqw", "-d", &to, "-c", statement],
    ))
}

/// A primary and two standbys under load, killed and renewed; returns the resulting world.
async fn lose_no_row(storage: Option<pb::StorageSpec>) -> World {
    let (version, programs) = postgresql();
    let psql = programs.join("psql").to_str().unwrap().to_owned();
    let mut world = world().await;
    let attributes = |memory: &str| {
        let settings = [
            ("shared_buffers", text("16MB")),
            ("max_connections", text("30")),
            ("work_mem", text(memory)),
        ];
        object(&[("synchronous", text("1")), ("settings", nested(&settings))])
    };
    let mut cluster = store("postgresql", &version, 1, 2, attributes("4MB"));
    cluster.spec.as_mut().unwrap().groups[0].storage = storage;
    apply(&world, &cluster).await;
    up(&world, "postgresql", 3).await;
    let ports = Ports::default();
    find(&world, "postgresql", &ports).await;
    let known = || ports.lock().unwrap().clone();
    sql(
        &psql,
        &known(),
        "create table numbers (number bigint primary key)",
    )
    .expect("a table");
    sql(&psql, &known(), pgbench::TABLE).expect("another one");
    let writer = {
        let (ports, psql) = (Arc::clone(&ports), psql.clone());
        Writer::start(move |number| {
            let known = ports.lock().unwrap().clone();
            sql(
                &psql,
                &known,
                &format!("insert into numbers values ({number})"),
            )
            .is_some()
        })
    };
    let (sampled, samples) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let sampler = {
        let (ports, psql) = (Arc::clone(&ports), psql.clone());
        let (sampled, samples) = (Arc::clone(&sampled), Arc::clone(&samples));
        std::thread::spawn(move || {
            while sampled.load(Ordering::Relaxed) {
                let known = ports.lock().unwrap().clone();
                let mut found = primaries(&psql, &known);
                // One is asked after the other, and somebody may have taken over meanwhile.
                if found > 1 {
                    found = found.min(primaries(&psql, &known));
                }
                samples.lock().unwrap().push(found);
                std::thread::sleep(Duration::from_millis(100));
            }
        })
    };
    let load = Pgbench::start(&programs, &ports);
    kill_the_active_one(&mut world, "postgresql", &ports, &writer, 3, 3).await;
    // Standbys are renewed first, and one of them takes over when the primary is replaced.
    cluster.spec.as_mut().unwrap().attributes = Some(attributes("8MB"));
    renew(&world, &cluster, &ports, 3).await;
    writer.writes(&world, "postgresql", &ports).await;
    let memory = sql(&psql, &known(), "show work_mem");
    assert_eq!(memory.as_deref(), Some("8MB"));
    sampled.store(false, Ordering::Relaxed);
    sampler.join().unwrap();
    let samples = samples.lock().unwrap().clone();
    assert!(
        samples.iter().all(|found| *found <= 1),
        "two primaries: {samples:?}"
    );
    let acknowledged = writer.finish();
    let there = sql(&psql, &known(), "select number from numbers").unwrap();
    let there = there
        .lines()
        .map(|number| number.parse().unwrap())
        .collect();
    lost(&acknowledged, &there);
    let load = load.finish();
    let rows = sql(&psql, &known(), pgbench::ROWS).unwrap();
    let transactions = pgbench::none_lost(&load, &rows);
    assert!(transactions > 0, "pgbench did nothing");
    println!(
        "postgresql: {} rows and {transactions} transactions of pgbench acknowledged, 0 lost; {} looks, never two primaries",
        acknowledged.len(),
        samples.len()
    );
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_loses_no_acknowledged_row_when_its_primary_is_killed_again_and_again() {
    lose_no_row(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_with_kept_storage_comes_back_by_rewinding_it() {
    let world = lose_no_row(Some(pb::StorageSpec::default())).await;
    let logs = world.node_directories().into_iter().map(|node| {
        let log = world.state().join("nodes").join(node).join("log");
        fs::read_to_string(log).unwrap_or_default()
    });
    let logs: Vec<_> = logs.collect();
    assert!(
        logs.iter().any(|log| log.contains("drover: rewound to ")),
        "nobody was rewound: {logs:#?}"
    );
}

/// Runs a program as the user postgres.
fn as_postgres(program: &std::path::Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    // As long as it takes: a new database takes many seconds on a busy machine.
    command.args(arguments).output().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_of_another_database_are_never_copied_over() {
    let (version, programs) = postgresql();
    let mut world = world().await;
    let settings = [("shared_buffers", text("16MB"))];
    let attributes = object(&[("settings", nested(&settings))]);
    let mut cluster = store("postgresql", &version, 1, 1, attributes);
    cluster.spec.as_mut().unwrap().groups[0].storage = Some(pb::StorageSpec::default());
    apply(&world, &cluster).await;
    up(&world, "postgresql", 2).await;
    let nodes = world.records("postgresql").await.unwrap();
    let standby = nodes.iter().find(|node| node.role() == NodeRole::Standby);
    let standby = standby.unwrap();
    let storage = fs::read_dir(world.state().join("storage")).unwrap();
    let prefix = format!("db-{}-", standby.ordinal);
    let mut storage = storage
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    let data = storage.next().unwrap().path().join("postgresql");

    // While both servers are down, the data directory is replaced by that of another database.
    world.orchestrator.kill();
    world.platform.kill();
    kill_9(server(standby));
    fs::remove_dir_all(&data).unwrap();
    let made = as_postgres(
        &programs.join("initdb"),
        &["-D", data.to_str().unwrap(), "-U", "postgres"],
    );
    assert!(made.status.success(), "{made:?}");
    let control = || {
        let shown = as_postgres(&programs.join("pg_controldata"), &[data.to_str().unwrap()]);
        let shown = String::from_utf8(shown.stdout).unwrap();
        let mut lines = shown.lines();
        lines
            .find(|line| line.starts_with("Database system identifier"))
            .unwrap()
            .to_owned()
    };
    let other = control();
    world.platform.start().await;
    world.orchestrator.start().await;
    // Counted by events, because their records disappear quickly.
    world
        .until_within(UP, "two successors give up", async |world| {
            let events = world.events("postgresql").await;
            let gave_up = events.iter().filter(|event| {
                event.reason == "NodeFailed" && event.message.contains("exited with code 1")
            });
            gave_up.count() >= 2
        })
        .await;
    assert_eq!(control(), other, "they are there still");
}

pub(super) fn alone(ordinal: u32, settings: &[&str]) -> Node {
    let (_, programs) = postgresql();
    let usual = ["shared_buffers=16MB", "max_connections=30", "fsync=off"];
    let arguments = usual.iter().chain(settings).flat_map(|it| ["-c", it]);
    Node::new(&POSTGRESQL, ordinal, &["client"])
        .with(&arguments.collect::<Vec<_>>())
        .with_environment("BIN", programs.to_str().unwrap())
        .with_environment("SYNCHRONOUS", "")
        .run_by("postgres")
}

/// Starts a primary and this number of standbys.
fn servers(standbys: u32, settings: &[&str]) -> Vec<Node> {
    let mut nodes: Vec<_> = (0..=standbys).map(|at| alone(at, settings)).collect();
    begin(&mut nodes);
    nodes
}

/// Starts the first node as the primary and the others as standbys.
pub(super) fn begin(nodes: &mut [Node]) {
    nodes[0].start("active");
    for standby in &mut nodes[1..] {
        standby.start("standby");
    }
    introduce(nodes);
    until("all are of use", nodes, all_ready);
}

pub(super) fn all_ready(nodes: &mut [Node]) -> bool {
    nodes.iter().all(Node::is_ready)
}

/// Restarts nodes as standbys as soon as they exit.
fn kept_alive(nodes: &mut [Node]) {
    for at in 0..nodes.len() {
        if nodes[at].has_ended() {
            nodes[at].start("standby");
            introduce(nodes);
        }
    }
}

/// Queries this server, whether it is the primary or not.
pub(super) fn ask(node: &Node, statement: &str) -> Option<String> {
    let (_, programs) = postgresql();
    let to = address(node);
    let psql = programs.join("psql");
    said(&run(
        psql.to_str().unwrap(),
        &["-XAtqw", "-d", &to, "-c", statement],
    ))
}

pub(super) fn insist(node: &Node, statement: &str) -> String {
    ask(node, statement).unwrap_or_else(|| panic!("{}: {statement}\n{}", node.name, node.log()))
}

fn address(node: &Node) -> String {
    let (host, port) = (node.host(), node.port("client"));
    format!(
        "host={host} port={port} user=postgres dbname=postgres password={PASSWORD} connect_timeout=2"
    )
}

/// A client with a persistent connection.
pub(super) struct Session {
    psql: Child,
    answers: BufReader<ChildStdout>,
}

impl Session {
    pub(super) fn at(node: &Node) -> Self {
        let (_, programs) = postgresql();
        let mut psql = Command::new(programs.join("psql"));
        psql.args(["-XAtqw", "-d", &address(node)]);
        let mut psql = psql
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(psql.stdout.take().unwrap());
        Self { psql, answers }
    }

    /// Runs statements and waits for their completion.
    fn does(&mut self, statements: &str) {
        assert!(self.did(statements), "{statements}");
    }

    /// Whether the session lasted to the end of these statements.
    pub(super) fn did(&mut self, statements: &str) -> bool {
        let whole = format!("{statements}\n\\echo done\n");
        let stdin = self.psql.stdin.as_mut().unwrap();
        if stdin.write_all(whole.as_bytes()).is_err() {
            return false;
        }
        let mut line = String::new();
        while line != "done\n" {
            line.clear();
            if self.answers.read_line(&mut line).unwrap() == 0 {
                return false;
            }
        }
        true
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}

pub(super) fn has_replayed(primary: &Node, standby: &Node) -> bool {
    let position = insist(primary, "select pg_current_wal_lsn()");
    let question = format!("select pg_last_wal_replay_lsn() >= '{position}'");
    ask(standby, &question).as_deref() == Some("t")
}

#[test]
fn a_standby_that_lets_nobody_in_yet_hears_its_primary_all_the_same() {
    let mut nodes = servers(1, &[]);
    insist(&nodes[0], "create table t (x int)");
    // With more than 64 subtransactions, a restarting standby cannot determine which transactions are still in
    // progress.
    let mut open = Session::at(&nodes[0]);
    let savepoints = (0..70).map(|at| format!("savepoint s{at}; insert into t values ({at});"));
    open.does(&format!("begin; {}", savepoints.collect::<String>()));
    insist(&nodes[0], "checkpoint");
    until("the standby is there", &mut nodes, |nodes| {
        has_replayed(&nodes[0], &nodes[1])
    });
    insist(&nodes[1], "checkpoint");
    nodes[1].start("standby");
    introduce(&nodes);
    until("it hears its primary", &mut nodes, |nodes| {
        nodes[1].log().contains("drover: following db-0")
    });
    assert_eq!(ask(&nodes[1], "select 1"), None, "it lets nobody in");
    open.does("commit;");
    insist(&nodes[0], "checkpoint");
    until("it is of use", &mut nodes, all_ready);
    assert_eq!(insist(&nodes[1], "select count(*) from t"), "70");
}

#[test]
fn a_standby_whose_replay_waits_for_a_query_is_not_copied_anew() {
    let mut nodes = servers(1, &["max_standby_streaming_delay=-1"]);
    insist(
        &nodes[0],
        "create table t as select generate_series(1, 100) as x",
    );
    until("the standby has it", &mut nodes, |nodes| {
        has_replayed(&nodes[0], &nodes[1])
    });
    let mut query = Session::at(&nodes[1]);
    query.does("begin isolation level repeatable read; select count(*) from t;");
    insist(&nodes[0], "delete from t");
    let startup = "select wait_event from pg_stat_activity where backend_type = 'startup'";
    until("replay waits", &mut nodes, |nodes| {
        // Whoever still sees the rows keeps them.
        insist(&nodes[0], "vacuum t");
        insist(&nodes[1], startup).starts_with("RecoveryConflict")
    });
    let (standby, position) = (nodes[1].pid(), nodes[1].log().len());
    insist(
        &nodes[0],
        "select pg_terminate_backend(pid) from pg_stat_replication",
    );
    until("it is looked at more closely", &mut nodes, |nodes| {
        assert!(!nodes[1].has_ended(), "it lives");
        nodes[1].log()[position..].contains("what it has is still replayed")
    });
    drop(query);
    until("it streams again", &mut nodes, |nodes| {
        insist(&nodes[0], "select count(*) from pg_stat_replication") == "1"
    });
    until("it is there", &mut nodes, |nodes| {
        has_replayed(&nodes[0], &nodes[1])
    });
    assert_eq!(nodes[1].pid(), standby);
}

#[test]
fn a_standby_whose_wal_is_gone_is_copied_anew() {
    let mut nodes = servers(
        1,
        &["wal_keep_size=0", "max_wal_size=32MB", "min_wal_size=32MB"],
    );
    nodes[1].kill();
    insist(&nodes[0], "create table t (x int)");
    for _ in 0..6 {
        insist(&nodes[0], "insert into t values (1)");
        insist(&nodes[0], "select pg_switch_wal()");
    }
    insist(&nodes[0], "checkpoint");
    nodes[1].start("standby");
    introduce(&nodes);
    until("it gives up what it has", &mut nodes, |nodes| {
        nodes[1].has_ended()
    });
    assert!(
        nodes[1].log().contains("it needs a new base backup"),
        "{}",
        nodes[1].log()
    );
    kept_alive(&mut nodes);
    until("it is of use", &mut nodes, all_ready);
    assert_eq!(insist(&nodes[1], "select count(*) from t"), "6");
}

#[test]
fn an_old_primary_whose_history_only_looks_like_that_of_the_new_one_is_copied_anew() {
    let mut nodes = servers(2, &[]);
    insist(&nodes[0], "create table t (x int)");
    for at in [1, 2] {
        until("the standbys have it", &mut nodes, |nodes| {
            has_replayed(&nodes[0], &nodes[at])
        });
    }
    nodes[0].kill();
    // Both are promoted one after the other from the same position, without knowing of each other.
    let promote = |nodes: &mut [Node], at: usize, row: &str| {
        promoted(&mut nodes[at]);
        insist(&nodes[at], &format!("insert into t values ({row})"));
    };
    nodes[1].hears_of(&[]);
    nodes[2].hears_of(&[]);
    promote(&mut nodes, 1, "1");
    nodes[1].kill();
    promote(&mut nodes, 2, "2");
    kept_alive(&mut nodes);
    until("the others follow the last one", &mut nodes, |nodes| {
        kept_alive(nodes);
        all_ready(nodes)
    });
    for node in &nodes {
        assert_eq!(insist(node, "select x from t"), "2", "{}", node.name);
    }
}

/// Uses up all connections of a server.
pub(super) fn filled(node: &Node) -> Vec<Session> {
    let most = insist(node, "show max_connections").parse().unwrap();
    let mut sessions = Vec::new();
    // What the server is asked meanwhile by its own scripts may take the place of one.
    while sessions.len() < most {
        let mut session = Session::at(node);
        if session.did("") {
            sessions.push(session);
        }
    }
    sessions
}

#[test]
fn no_standby_is_promoted_while_another_one_that_lives_cannot_be_asked() {
    let mut nodes: Vec<_> = (0..3)
        .map(|at| alone(at, &["max_connections=10"]).with_environment("SYNCHRONOUS", "1"))
        .collect();
    begin(&mut nodes);
    insist(&nodes[0], "create table t (x int)");
    until("both have it, and are counted", &mut nodes, |nodes| {
        let counted = insist(&nodes[0], "show synchronous_standby_names");
        let are = counted.contains("db-1") && counted.contains("db-2");
        are && has_replayed(&nodes[0], &nodes[1]) && has_replayed(&nodes[0], &nodes[2])
    });
    // It may take a while, after which a standby that receives nothing would be given up.
    let all = filled(&nodes[2]);
    // Only one of them receives the next row.
    let receiver = insist(&nodes[1], "select pid from pg_stat_wal_receiver");
    let signal = |name: &str| assert!(run("kill", &[name, &receiver]).status.success());
    signal("-STOP");
    insist(&nodes[0], "insert into t values (42)");
    nodes[0].kill();
    signal("-CONT");
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    nodes[2].hears_of(&[]);
    refused(&mut nodes[1], &["db-2 does not answer"]);
    drop(all);
    promoted(&mut nodes[1]);
    assert_eq!(insist(&nodes[1], "select x from t"), "42");
}

#[test]
fn a_demoted_primary_ends_also_if_it_takes_nobody_in_any_more() {
    let mut nodes = [alone(0, &["max_connections=10"])];
    begin(&mut nodes);
    let _all = filled(&nodes[0]);
    nodes[0].hears_role("standby");
    until("it has ended", &mut nodes, |nodes| nodes[0].has_ended());
}
