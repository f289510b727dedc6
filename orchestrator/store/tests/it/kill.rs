//! A process that writes is killed at random moments: everything that was acknowledged is there, and nothing is there
//! in part.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    time::Duration,
};

use drover_store::{Lane, Shards, Store};
use drover_testing::store::conformance::{
    check_consistent, head_of, one_node, present_head, wanted,
};
use uuid::Uuid;

const DIRECTORY: &str = "DROVER_STORE_TEST_DIRECTORY";
const CLUSTERS: usize = 4;
const ROUNDS: usize = 12;

async fn write(store: &Store, shards: &Shards, name: String) {
    let uid = match store.find_cluster(&name).await.unwrap() {
        Some(uid) => uid,
        None => store.create_cluster(wanted(&name)).await.unwrap().0,
    };
    let mut head = present_head(store, uid).await;
    loop {
        head = head_of(
            store
                .step(shards.of(uid), one_node(uid, &head), Lane::Bulk)
                .await
                .unwrap(),
        );
        let mut out = std::io::stdout();
        writeln!(out, "stored {uid} {}", head.value.last_seq()).unwrap();
        out.flush().unwrap();
    }
}

#[tokio::test]
#[ignore = "run by the test below, in a process of its own"]
async fn child_that_writes_until_it_is_killed() {
    let store = Store::open_directory(std::env::var(DIRECTORY).unwrap())
        .await
        .unwrap();
    let shards = store.take_all().await.unwrap();
    futures::future::join_all((0..CLUSTERS).map(|i| write(&store, &shards, format!("c{i}")))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_writer_leaves_all_of_a_step_or_nothing() {
    let seed = drover_testing::seed::seed();
    let mut rng = fastrand::Rng::with_seed(seed);
    let directory = tempfile::tempdir().unwrap();
    let mut told: HashMap<Uuid, u64> = HashMap::new();
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "--nocapture",
                "kill::child_that_writes_until_it_is_killed",
            ])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let mut note = |line: String| {
            // Between two lines of ours the test harness may have written without a line end.
            let Some((_, told_now)) = line.split_once("stored ") else {
                return false;
            };
            let Some((uid, seq)) = told_now.split_once(' ') else {
                return false;
            };
            told.insert(uid.parse().unwrap(), seq.parse().unwrap());
            true
        };
        let writes = rng.usize(1..40);
        let mut seen = 0;
        while seen < writes {
            let line = lines
                .next()
                .unwrap_or_else(|| panic!("the child ended by itself, round {round}, seed {seed}"));
            seen += usize::from(note(line));
        }
        std::thread::sleep(Duration::from_micros(rng.u64(..5000)));
        child.kill().unwrap();
        child.wait().unwrap();
        // The last line may be cut off.
        let rest: Vec<String> = lines.collect();
        for line in rest.into_iter().filter(|line| line.split(' ').count() == 3) {
            note(line);
        }

        let store = Store::open_directory(directory.path()).await.unwrap();
        for i in 0..CLUSTERS {
            let Some(uid) = store.find_cluster(&format!("c{i}")).await.unwrap() else {
                continue;
            };
            let stored = check_consistent(&store, uid).await;
            let told = told.get(&uid).copied().unwrap_or(0);
            assert!(
                stored >= told,
                "event {told} of {uid} was acknowledged, {stored} is the last; seed {seed}"
            );
        }
    }
    assert_eq!(told.len(), CLUSTERS, "every cluster was written");
}
