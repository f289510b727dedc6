//! The conformance suite over the memory backend.

use std::{sync::Arc, time::Duration};

use drover_core::Reason;
use drover_store::{Backend, Store};
use drover_testing::store::{MemoryBackend, conformance::Subject};

fn subject() -> Subject {
    Subject::new(MemoryBackend::new(), ())
}

drover_testing::store_conformance!(crate::memory::subject);

#[tokio::test(start_paused = true)]
async fn shards_of_a_dead_replica_are_free_after_its_lease() {
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new());
    let dead = Store::open(Arc::clone(&backend)).await.unwrap();
    let alive = Store::open(Arc::clone(&backend)).await.unwrap();
    let (lost, kept) = (
        dead.take_shard(1).await.unwrap(),
        alive.take_shard(2).await.unwrap(),
    );
    // Without notice, as when a process dies.
    drop(dead);
    assert_eq!(
        alive.take_shard(1).await.unwrap_err().reason(),
        Reason::NotLeader
    );
    tokio::time::sleep(Duration::from_millis(1_700)).await;
    assert!(
        !lost.holds(),
        "nothing new is begun in the last half second"
    );
    assert_eq!(
        alive.take_shard(1).await.unwrap_err().reason(),
        Reason::NotLeader,
        "it may still be writing"
    );
    tokio::time::sleep(Duration::from_millis(400)).await;
    let taken = alive.take_shard(1).await.expect("the lease has ended");
    assert!(taken.epoch() > lost.epoch());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(
        taken.holds() && kept.holds(),
        "a replica that lives renews its lease"
    );
}
