//! Three members of etcd, some of which die or stand still.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use drover_store::{
    Backend, Lane, Revision,
    backend::{CommitError, Expect, Txn},
    keys::{Key, Name},
};
use drover_store_etcd::EtcdBackend;
use drover_testing::{etcd::Etcd, store::conformance::eventually};
use tokio::time::timeout;

use crate::one::settings;

fn key() -> Key {
    Name::ClusterName("counter".into()).into()
}

/// Adds 1 to a counter if nobody else did in between. What becomes of an unknown outcome is read.
async fn add(backend: &dyn Backend) -> Option<u64> {
    let entry = backend.get(&key()).await.ok()?;
    let (value, revision) = entry.map_or((0, 0), |entry| {
        let text = String::from_utf8(entry.value.to_vec()).unwrap();
        (text.parse::<u64>().unwrap(), entry.revision)
    });
    let next = value + 1;
    let txn = Txn::default()
        .expect(key(), Expect::at(revision))
        .put(key(), next.to_string());
    match backend.commit(txn, Lane::Bulk).await {
        Ok(_) => Some(next),
        Err(CommitError::Unknown | CommitError::Conflict(_) | CommitError::Unavailable(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// While one member after another is killed or stands still: no addition that was acknowledged is lost, and a watch sees
/// each value in order, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_die_or_stand_still_lose_no_commit_and_no_change() {
    let mut etcd = Etcd::start(3);
    let backend: Arc<dyn Backend> = Arc::new(
        EtcdBackend::open(&settings(&etcd, "drover/"))
            .await
            .unwrap(),
    );
    let start: Revision = backend
        .commit(Txn::default().put(key(), "0"), Lane::Bulk)
        .await
        .unwrap();
    let mut watch = backend.watch(start).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (backend, stop) = (backend.clone(), stop.clone());
        async move {
            let mut acknowledged = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                acknowledged.extend(add(&*backend).await);
            }
            acknowledged
        }
    });
    let progress = async |backend: &Arc<dyn Backend>| {
        let mut first = None;
        eventually("writes go on", async || {
            let Ok(Some(entry)) = backend.get(&key()).await else {
                return false;
            };
            entry.revision > *first.get_or_insert(entry.revision) + 20
        })
        .await;
    };
    for round in 0..4 {
        progress(&backend).await;
        let leader = etcd.leader();
        // Of three, so that the leader and a follower have each fault.
        let at = if round % 2 == 0 {
            leader
        } else {
            (leader + 1) % 3
        };
        if round < 2 {
            etcd.kill(at);
        } else {
            etcd.pause(at, true);
        }
        progress(&backend).await;
        if round < 2 {
            etcd.restart(at);
        } else {
            etcd.pause(at, false);
        }
        assert!(etcd.is_up());
    }
    stop.store(true, Ordering::Relaxed);
    let acknowledged = writer.await.unwrap();
    let last = backend.get(&key()).await.unwrap().unwrap();
    let total: u64 = String::from_utf8(last.value.to_vec())
        .unwrap()
        .parse()
        .unwrap();
    assert!(acknowledged.is_sorted_by(|a, b| a < b), "no number twice");
    assert!(acknowledged.last().is_some_and(|&most| most <= total));

    let mut seen = 0;
    while seen < total {
        let batch = timeout(Duration::from_secs(20), watch.next())
            .await
            .unwrap()
            .unwrap();
        for change in &batch.changes {
            seen += 1;
            let value = change.value.as_ref().unwrap();
            assert_eq!(*value, seen.to_string(), "each once, in order");
        }
    }
}
