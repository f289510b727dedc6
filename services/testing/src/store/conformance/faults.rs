//! Checks of the store over a backend that fails.

use std::sync::Arc;

use drover_core::Reason;
use drover_store::{Backend, Finish, Lane, PlatformRow, Step, Store, backend::CommitError};
use futures::future::join_all;

use super::{
    Make, Subject, check_consistent, event, head_of, no_head, one_node, open, present_head,
    try_open, wanted,
};
use crate::store::{Fault, FaultBackend};

/// Every kind of write once, in sequence.
async fn script(store: &Store) -> drover_core::Result<()> {
    let (uid, desired) = store.create_cluster(wanted("shop")).await?;
    let owned = store.take_shard(drover_store::shard_of(uid)).await?;
    let mut head = no_head();
    for _ in 0..3 {
        head = head_of(store.step(&owned, one_node(uid, &head), Lane::Bulk).await?);
    }
    let revision = store
        .put_platform(
            PlatformRow {
                name: "eu".into(),
                ..PlatformRow::default()
            },
            Some(0),
        )
        .await?;
    store.delete_platform("eu", Some(revision)).await?;
    store.put_secret("db", "x".into(), Some(0)).await?;
    let desired = store.update_desired(uid, desired, wanted("shop")).await?;
    let (gone, gone_desired) = store.create_cluster(wanted("gone")).await?;
    let other = match drover_store::shard_of(gone) {
        shard if shard == owned.shard() => owned.clone(),
        shard => store.take_shard(shard).await?,
    };
    let finish = Finish {
        uid: gone,
        name: "gone".into(),
        expect_desired: gone_desired,
        events: vec![event("gone")],
        ..Finish::default()
    };
    store.finish_cluster(&other, finish).await?;
    let step = Step {
        expect_desired: Some(desired),
        ..one_node(uid, &head)
    };
    store.step(&owned, step, Lane::Urgent).await?;
    Ok(())
}

/// Number of commits of the script. If both clusters share a shard, one less.
async fn commits_of_script(make: Make<'_>) -> u64 {
    let Subject { backend, _keep } = make();
    let faulty = Arc::new(FaultBackend::new(backend));
    let store = open(&(Arc::clone(&faulty) as Arc<dyn Backend>)).await;
    let before = faulty.commits();
    script(&store).await.unwrap();
    faulty.commits() - before
}

async fn check_finished(store: &Store) {
    let uid = store
        .find_cluster("shop")
        .await
        .unwrap()
        .expect("it was made");
    assert_eq!(check_consistent(store, uid).await, 4);
    assert_eq!(store.find_cluster("gone").await.unwrap(), None);
    let tombstones = store.tombstones().await.unwrap();
    assert_eq!(tombstones.len(), 1);
    let page = store.events(tombstones[0].0, 0, 10).await.unwrap();
    assert_eq!(page.events.len(), 1, "its last event once");
    assert_eq!(store.platforms().await.unwrap(), []);
    assert_eq!(store.secrets().await.unwrap().len(), 1);
}

/// The response of each commit is lost once, whether it was written or not: the outcome is as if none was lost.
pub async fn a_lost_answer_is_resolved_not_repeated(make: Make<'_>) {
    let commits = commits_of_script(make).await;
    assert!(commits >= 11, "{commits}");
    for fault in [Fault::LostAnswer, Fault::LostRequest] {
        for nth in 1..=commits {
            let Subject { backend, _keep } = make();
            let faulty = Arc::new(FaultBackend::new(backend));
            let store = open(&(Arc::clone(&faulty) as Arc<dyn Backend>)).await;
            faulty.inject(nth, fault);
            script(&store)
                .await
                .unwrap_or_else(|error| panic!("{fault:?} of commit {nth}: {error:?}"));
            check_finished(&store).await;
        }
    }
}

/// Before and after each commit, including the creation of the store and its first key.
pub async fn a_crash_leaves_all_of_a_step_or_nothing(make: Make<'_>) {
    let commits = commits_of_script(make).await + 4;
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        for nth in 1..=commits {
            let Subject { backend, _keep } = make();
            let faulty = Arc::new(FaultBackend::new(Arc::clone(&backend)));
            faulty.inject(nth, fault);
            let run = async {
                let store = try_open(&(Arc::clone(&faulty) as Arc<dyn Backend>)).await?;
                script(&store).await
            };
            // The process is gone in the middle of its work; a crash after the last commit interrupts nothing.
            tokio::select! {
                biased;
                () = faulty.wait_crash() => {}
                outcome = run => assert!(outcome.is_ok() || faulty.crashed(), "{fault:?} of commit {nth}: {outcome:?}"),
            }
            let store = open(&backend).await;
            if let Some(uid) = store.find_cluster("shop").await.unwrap() {
                check_consistent(&store, uid).await;
            }
            if let Some(uid) = store.find_cluster("gone").await.unwrap() {
                assert!(store.desired(uid).await.unwrap().is_some());
                assert_eq!(store.tombstones().await.unwrap(), []);
            }
            for (uid, _) in store.tombstones().await.unwrap() {
                assert_eq!(store.events(uid, 0, 10).await.unwrap().events.len(), 1);
                assert!(store.load_cluster(uid).await.unwrap().is_none());
            }
        }
    }
}

/// Nothing is partially written, and writes succeed again once there is space.
pub async fn a_full_store_refuses_writes_and_serves_reads(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let faulty = Arc::new(FaultBackend::new(backend));
    let store = open(&(Arc::clone(&faulty) as Arc<dyn Backend>)).await;
    let shards = store.take_all().await.unwrap();
    let (uid, _) = store.create_cluster(wanted("shop")).await.unwrap();
    let head = head_of(
        store
            .step(shards.of(uid), one_node(uid, &no_head()), Lane::Bulk)
            .await
            .unwrap(),
    );
    faulty.inject(1, Fault::Full);
    let error = store
        .step(shards.of(uid), one_node(uid, &head), Lane::Bulk)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::StorageFull);
    assert!(error.retry_after().is_some());
    faulty.inject(1, Fault::Full);
    let error = store.create_cluster(wanted("other")).await.unwrap_err();
    assert_eq!(error.reason(), Reason::StorageFull);
    assert_eq!(check_consistent(&store, uid).await, 1);
    store
        .step(shards.of(uid), one_node(uid, &head), Lane::Bulk)
        .await
        .unwrap();
    assert_eq!(check_consistent(&store, uid).await, 2);
    let full: drover_core::Error = CommitError::StorageFull.into();
    assert_eq!(full.reason(), Reason::StorageFull);
}

/// Sixteen writers, each with its own cluster, over a store in which a quarter of the commits fails in one way or
/// another.
pub async fn random_faults_leave_no_gap_and_no_repeat(make: Make<'_>) {
    let seed = crate::seed::seed();
    let Subject { backend, _keep } = make();
    let faulty = Arc::new(FaultBackend::new(backend));
    let store = Arc::new(open(&(Arc::clone(&faulty) as Arc<dyn Backend>)).await);
    let shards = store.take_all().await.unwrap();
    let mut uids = Vec::new();
    for i in 0..16 {
        uids.push(
            store
                .create_cluster(wanted(&format!("c{i}")))
                .await
                .unwrap()
                .0,
        );
    }
    faulty.inject_randomly(seed, 0.25);
    let writers = uids.iter().map(|uid| async {
        let (uid, owned) = (*uid, shards.of(*uid));
        let mut head = no_head();
        let mut stored = 0;
        for _ in 0..20 {
            match store.step(owned, one_node(uid, &head), Lane::Bulk).await {
                Ok(done) => {
                    head = head_of(done);
                    stored += 1;
                }
                Err(error) => {
                    assert!(
                        matches!(error.reason(), Reason::Unavailable | Reason::StorageFull),
                        "{error:?}"
                    );
                    assert_eq!(
                        present_head(&store, uid).await.revision,
                        head.revision,
                        "a refused step wrote nothing"
                    );
                }
            }
        }
        stored
    });
    let stored: Vec<u64> = join_all(writers).await;
    faulty.restart();
    for (uid, stored) in uids.iter().zip(stored) {
        assert_eq!(check_consistent(&store, *uid).await, stored, "seed {seed}");
    }
}
