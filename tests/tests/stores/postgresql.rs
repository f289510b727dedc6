//! PostgreSQL: a primary dies again and again, and no row is lost.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::Output,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use drover_proto::{orchestrator::v1 as pb, platform::v1::NodeRole};

use crate::{
    Ports, UP, apply,
    clients::{Writer, lost},
    find, kill_the_active_one, nested, object,
    real::{World, kill_9},
    renew, run, said, server, store, text, up, world,
};

/// The newest that is installed: its major version and programs.
fn postgresql() -> (String, PathBuf) {
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

/// Runs SQL at whichever of these is the primary.
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

/// How many of these are primaries in this moment.
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

/// A primary and two standbys under a client, killed and renewed; answers the world as it is then.
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
                let found = primaries(&psql, &known);
                samples.lock().unwrap().push(found);
                std::thread::sleep(Duration::from_millis(100));
            }
        })
    };
    kill_the_active_one(&mut world, "postgresql", &ports, &writer, 3, 3).await;
    // Standbys are renewed first, and one of them takes over when the primary goes.
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
    println!(
        "postgresql: {} rows acknowledged, 0 lost; {} looks, never two primaries",
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

/// Runs one of the programs as the user that may.
fn as_postgres(program: &std::path::Path, arguments: &[&str]) -> Output {
    let program = program.to_str().unwrap();
    let all = [&["-u", "postgres", "--", program], arguments].concat();
    run("runuser", &all)
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

    // While nobody looks, all that is left of another database takes the place of its data.
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
    let tried = Mutex::new(BTreeSet::new());
    world
        .until_within(UP, "its successors give up", async |world| {
            let nodes = world.records("postgresql").await.unwrap_or_default();
            let successors = nodes
                .into_iter()
                .filter(|node| (node.ordinal, &node.group) == (standby.ordinal, &standby.group));
            let mut tried = tried.lock().unwrap();
            tried.extend(successors.map(|node| node.id));
            tried.len() > 2
        })
        .await;
    assert_eq!(control(), other, "they are there still");
}
