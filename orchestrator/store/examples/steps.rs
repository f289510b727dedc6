//! Measures the store in the temporary directory of this machine (`TMPDIR`): `cargo run --release -p drover-store
//! --example steps`. A step writes a head, an event chunk and three nodes.

use std::{error::Error, sync::Arc, time::Duration};

use drover_store::{Desired, Head, Lane, NewEvent, Shards, Step, StepDone, Store};
use tokio::{task::JoinSet, time::Instant};
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Steps in the measurement with one caller.
const ALONE: usize = 2_000;
/// Concurrent callers.
const CALLERS: usize = 1_024;
/// Steps of each caller: 100,000 nodes in all.
const EACH: usize = 33;
/// Concurrent urgent steps.
const URGENT: usize = 200;
/// Size of a node record in bytes.
const NODE: usize = 200;

fn step(uid: Uuid, head: Head, expect_head: u64, slots: u64) -> Step {
    let mut new = head;
    let first = new.next_slot;
    new.next_slot += slots;
    let event = NewEvent {
        time_ms: 1_700_000_000_000,
        severity: 1,
        reason: "NodeRequested".into(),
        message: "asked the platform for 3 nodes".into(),
        group: Some("workers".into()),
        count: 1,
        ..NewEvent::default()
    };
    Step {
        uid,
        expect_head,
        head: new,
        put_nodes: (first..first + slots)
            .map(|slot| (slot, vec![7; NODE].into()))
            .collect(),
        events: vec![event],
        ..Step::default()
    }
}

async fn cluster(store: &Store, name: String) -> Outcome<Uuid> {
    let desired = Desired {
        name,
        spec: vec![1; 1_000].into(),
        generation: 1,
        ..Desired::default()
    };
    Ok(store.create_cluster(desired).await?.0)
}

async fn steps(
    store: &Store,
    shards: &Shards,
    uid: Uuid,
    lane: Lane,
    count: usize,
) -> Outcome<Vec<Duration>> {
    let (mut head, mut revision) = (Head::default(), 0);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        let done: StepDone = store
            .step(shards.of(uid), step(uid, head, revision, 3), lane)
            .await?;
        times.push(begun.elapsed());
        (head, revision) = (done.head, done.revision);
    }
    Ok(times)
}

fn row(what: &str, value: impl std::fmt::Display) {
    println!("{what:<52} {value}");
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |share: f64| {
        times
            .get((times.len() as f64 * share) as usize)
            .copied()
            .unwrap_or_default()
    };
    format!("p50 {:.2?}, p99 {:.2?}", at(0.5), at(0.99))
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let begun = Instant::now();
    let store = Arc::new(Store::open_directory(directory.path()).await?);
    row(
        "open an empty directory",
        format!("{:.1?}", begun.elapsed()),
    );
    let begun = Instant::now();
    let shards = store.take_all().await?;
    row("take all shards", format!("{:.1?}", begun.elapsed()));

    let alone = cluster(&store, "alone".into()).await?;
    row(
        "one caller alone, a step",
        spread(steps(&store, &shards, alone, Lane::Bulk, ALONE).await?),
    );

    let mut uids = Vec::with_capacity(CALLERS);
    for i in 0..CALLERS {
        uids.push(cluster(&store, format!("c{i}")).await?);
    }
    let urgent = cluster(&store, "urgent".into()).await?;
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for uid in uids {
        let (store, shards) = (Arc::clone(&store), shards.clone());
        callers.spawn(async move {
            steps(&store, &shards, uid, Lane::Bulk, EACH)
                .await
                .map(|_| ())
        });
    }
    let beside = tokio::spawn({
        let (store, shards) = (Arc::clone(&store), shards.clone());
        async move { steps(&store, &shards, urgent, Lane::Urgent, URGENT).await }
    });
    while let Some(caller) = callers.join_next().await {
        caller??;
    }
    let rate = (CALLERS * EACH) as f64 / begun.elapsed().as_secs_f64();
    row("1,024 callers", format!("{rate:.0} steps/s"));
    row("an urgent step beside them", spread(beside.await??));

    let begun = Instant::now();
    let mut loader = store.load().await?;
    let mut nodes = 0;
    while let Some(row) = loader.next().await? {
        nodes += row.nodes.len();
    }
    row(
        &format!("load of {nodes} nodes"),
        format!("{:.0?}", begun.elapsed()),
    );
    let begun = Instant::now();
    store.backup(directory.path().join("copy.db")).await?;
    row("backup", format!("{:.0?}", begun.elapsed()));
    drop(loader);
    drop(store);
    let begun = Instant::now();
    drop(Store::open_directory(directory.path()).await?);
    row("open it again", format!("{:.0?}", begun.elapsed()));
    Ok(())
}
