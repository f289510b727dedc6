//! `kill -9` of orchestrator and platform at any moment: no node is lost, duplicated or left over.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use crate::real;

use std::{collections::BTreeSet, time::Duration};

use drover_core::Reason;
use real::{PATIENCE, World, insist, kill_9};
use tokio::time::sleep;

/// Number of kills.
const KILLS: usize = 60;

#[derive(Clone, Copy, Debug)]
enum Victim {
    Orchestrator,
    Platform,
    Both,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_killed_at_any_moment_lose_and_double_nothing() {
    let seed = drover_testing::seed::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new().await;
    world.apply("prey", "", 3).await.unwrap();
    let mut kills = 0;
    while kills < KILLS {
        let size = random.u32(0..6);
        insist(async || world.scale("prey", size).await).await;
        // Random, so that the kill hits any stage of the work.
        sleep(Duration::from_millis(random.u64(0..200))).await;
        if random.u8(..5) == 0
            && let Some(pid) = world.processes().into_keys().next()
        {
            kill_9(pid);
        }
        let victim = [Victim::Orchestrator, Victim::Platform, Victim::Both][random.usize(..3)];
        if matches!(victim, Victim::Orchestrator | Victim::Both) {
            world.orchestrator.kill();
            kills += 1;
        }
        if matches!(victim, Victim::Platform | Victim::Both) {
            world.platform.kill();
            kills += 1;
        }
        sleep(Duration::from_millis(random.u64(0..60))).await;
        if matches!(victim, Victim::Platform | Victim::Both) {
            world.platform.start().await;
        }
        if matches!(victim, Victim::Orchestrator | Victim::Both) {
            world.orchestrator.start().await;
        }
    }
    insist(async || world.scale("prey", 4).await).await;
    let begin = tokio::time::Instant::now();
    world
        .until_healed(
            "prey",
            // Until interrupted calls are known to have created nothing, which takes a minute.
            PATIENCE,
            "the cluster is ready",
            async |world| world.is_ready("prey", 4).await,
        )
        .await;
    println!("as wanted after {:?}", begin.elapsed());
    let exact = async |world: &World| {
        let records = world.records("prey").await.unwrap_or_default();
        let recorded: BTreeSet<String> = records
            .into_iter()
            .filter_map(|node| node.platform_node_id)
            .collect();
        let directories: BTreeSet<String> = world.node_directories().into_iter().collect();
        world.processes().len() == 4 && recorded.len() == 4 && recorded == directories
    };
    world
        .until(
            "four processes, four directories, four records, the same",
            exact,
        )
        .await;
    let nodes: BTreeSet<String> = world.processes().into_values().collect();
    assert_eq!(nodes.len(), 4, "each process is another node");

    let mut numbers: Vec<u64> = world
        .events("prey")
        .await
        .into_iter()
        .map(|event| event.sequence)
        .collect();
    numbers.sort_unstable();
    assert!(
        numbers.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "events are numbered without a gap: {numbers:?}"
    );

    insist(async || match world.delete("prey").await {
        Err(error) if error.reason() == Reason::NotFound => Ok(()),
        other => other,
    })
    .await;
    world
        .until("the cluster is gone", async |world| {
            matches!(world.cluster("prey").await, Ok(None))
        })
        .await;
    assert_eq!(
        world.processes().len(),
        0,
        "a deleted cluster has no processes"
    );
    assert_eq!(
        world.node_directories(),
        Vec::<String>::new(),
        "and no directories"
    );
    println!("killed {kills} times, 0 lost, 0 doubled, 0 left over");
}
