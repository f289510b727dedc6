//! Checks of a backend on its own.

use std::{sync::Arc, time::Duration};

use drover_core::Reason;
use drover_store::{
    Backend, Lane,
    backend::{CommitError, Entry, Expect, Fence, LIMITS, LeaseId, Op, Range, Revision, Txn},
    history::WatchEnd,
    keys::{Key, Name},
};
use futures::{FutureExt, future::join_all};
use tokio::time::Instant;
use uuid::Uuid;

use super::{Make, PATIENCE, Subject, eventually, within};

fn key(name: &str) -> Key {
    Name::ClusterName(name.into()).into()
}

async fn put(backend: &dyn Backend, name: &str, value: &str) -> Revision {
    backend
        .commit(Txn::default().put(key(name), value.to_owned()), Lane::Bulk)
        .await
        .unwrap()
}

async fn entries(backend: &dyn Backend, range: Range) -> Vec<Entry> {
    backend
        .scan(range, 7)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap()
}

fn leased(shard: u8, lease: LeaseId) -> Txn {
    let op = Op::PutLeased {
        key: Name::Owner(shard).into(),
        value: "me".into(),
        lease,
    };
    Txn {
        ops: vec![op],
        ..Txn::default()
    }
    .expect(Name::Owner(shard).into(), Expect::Absent)
}

/// Two transactions expect the same revision: one is committed, the other conflicts.
pub async fn two_writers_expect_one_revision_and_one_wins(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let mut revision = put(&*backend, "a", "0").await;
    for round in 0..50 {
        let txn = |value: String| {
            Txn::default()
                .expect(key("a"), Expect::Revision(revision))
                .put(key("a"), value)
        };
        let outcomes = join_all(
            (0..4).map(|writer| backend.commit(txn(format!("{round} {writer}")), Lane::Bulk)),
        )
        .await;
        let won: Vec<Revision> = outcomes
            .iter()
            .filter_map(|outcome| outcome.clone().ok())
            .collect();
        assert_eq!(won.len(), 1, "one of {outcomes:?} wins");
        let lost = outcomes
            .iter()
            .filter(|outcome| **outcome == Err(CommitError::Conflict(key("a"))));
        assert_eq!(lost.count(), 3, "the others of {outcomes:?} conflict");
        assert!(won[0] > revision, "revisions grow");
        revision = won[0];
    }
    let stored = backend.get(&key("a")).await.unwrap().unwrap();
    assert_eq!(stored.revision, revision);
}

/// If a transaction conflicts, or a key that it expects to be absent exists, none of it is written.
pub async fn a_refused_transaction_writes_nothing(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    put(&*backend, "a", "1").await;
    let before = super::everything(&*backend).await;
    let txn = Txn::default().put(key("b"), "2").delete(key("a"));
    let refused = [
        txn.clone().expect(key("a"), Expect::Absent),
        txn.clone().expect(key("a"), Expect::Revision(999)),
        txn.expect(key("c"), Expect::Revision(1)),
    ];
    for txn in refused {
        let at = txn.expect[0].0.clone();
        assert_eq!(
            backend.commit(txn, Lane::Bulk).await,
            Err(CommitError::Conflict(at))
        );
    }
    assert_eq!(super::everything(&*backend).await, before);
}

/// The fence of a previous owner is refused, even in a batch whose other transactions succeed.
pub async fn a_lost_fence_is_refused_among_transactions_that_succeed(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let first = backend.lease(PATIENCE * 10).await.unwrap();
    let made_at = backend
        .commit(leased(7, first.id), Lane::Urgent)
        .await
        .unwrap();
    let old = Fence {
        key: Name::Owner(7).into(),
        made_at,
    };
    let fenced = |fence: &Fence, name: String| {
        Txn {
            fence: Some(fence.clone()),
            ..Txn::default()
        }
        .put(key(&name), "x")
    };
    backend
        .commit(fenced(&old, "before".into()), Lane::Bulk)
        .await
        .unwrap();

    backend.revoke(first.id).await.unwrap();
    assert_eq!(
        backend
            .commit(fenced(&old, "gone".into()), Lane::Bulk)
            .await,
        Err(CommitError::Fenced)
    );
    let second = backend.lease(PATIENCE * 10).await.unwrap();
    let made_at = backend
        .commit(leased(7, second.id), Lane::Urgent)
        .await
        .unwrap();
    let new = Fence {
        key: Name::Owner(7).into(),
        made_at,
    };

    let outcomes = join_all((0..40).map(|i| {
        let fence = if i % 2 == 0 { &old } else { &new };
        backend.commit(fenced(fence, format!("n{i}")), Lane::Bulk)
    }))
    .await;
    for (i, outcome) in outcomes.iter().enumerate() {
        let stored = backend.get(&key(&format!("n{i}"))).await.unwrap().is_some();
        assert_eq!(
            (outcome.is_ok(), stored),
            (i % 2 == 1, i % 2 == 1),
            "{i}: {outcome:?}"
        );
        assert!(i % 2 == 1 || *outcome == Err(CommitError::Fenced));
    }
    assert_eq!(
        backend.commit(leased(8, first.id), Lane::Bulk).await,
        Err(CommitError::Fenced),
        "its lease has ended"
    );
}

/// A transaction with too many operations or bytes is refused as a whole.
pub async fn limits_are_answered_and_nothing_is_written(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let many = |count: usize| {
        (0..count).fold(Txn::default(), |txn, i| {
            txn.put(key(&format!("k{i:03}")), "v")
        })
    };
    let expecting = |count: usize| {
        (0..count).fold(Txn::default(), |txn, i| {
            txn.expect(key(&format!("x{i}")), Expect::Absent)
        })
    };
    let too_large = [
        many(LIMITS.operations + 1),
        expecting(LIMITS.expectations + 1).put(key("a"), "v"),
        Txn::default().put(key("a"), vec![0; LIMITS.bytes]),
    ];
    for txn in too_large {
        let outcome = backend.commit(txn, Lane::Bulk).await;
        assert!(
            matches!(outcome, Err(CommitError::TooLarge(_))),
            "{outcome:?}"
        );
    }
    let twice = Txn::default().put(key("a"), "1").delete(key("a"));
    assert!(matches!(
        backend.commit(twice, Lane::Bulk).await,
        Err(CommitError::Invalid(_))
    ));
    assert_eq!(entries(&*backend, Range::all()).await, []);

    backend
        .commit(many(LIMITS.operations), Lane::Bulk)
        .await
        .unwrap();
    backend
        .commit(
            expecting(LIMITS.expectations).put(key("a"), "v"),
            Lane::Bulk,
        )
        .await
        .unwrap();
    let room = LIMITS.bytes - key("b").len();
    backend
        .commit(Txn::default().put(key("b"), vec![0; room]), Lane::Bulk)
        .await
        .unwrap();
    assert_eq!(
        entries(&*backend, Range::all()).await.len(),
        LIMITS.operations + 2
    );
}

/// A long scan does not see concurrent writes.
pub async fn a_scan_reads_all_pages_at_one_revision(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    for i in 0..200 {
        put(&*backend, &format!("k{i:03}"), "old").await;
    }
    let mut scan = backend.scan(Range::all(), 10).await.unwrap();
    let mut read = scan.next().await.unwrap().unwrap();
    assert_eq!(read.len(), 10, "a page is full");
    for i in 0..200 {
        put(&*backend, &format!("k{i:03}"), "new").await;
        put(&*backend, &format!("more{i:03}"), "new").await;
    }
    let revision = scan.revision();
    while let Some(page) = scan.next().await {
        read.extend(page.unwrap());
    }
    assert_eq!(read.len(), 200);
    assert!(
        read.iter()
            .all(|entry| entry.value == "old" && entry.revision <= revision)
    );
    assert!(read.is_sorted_by(|a, b| a.key < b.key), "in key order");
    let fresh = backend.scan(Range::all(), 10).await.unwrap();
    assert!(
        fresh.revision() >= revision + 400,
        "a scan sees every commit before it"
    );
}

/// Bounds of a range, its limit, and empty ranges.
pub async fn a_scan_keeps_range_and_limit(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    for name in ["a", "b", "ba", "c"] {
        put(&*backend, name, "v").await;
    }
    let uid = Uuid::now_v7();
    backend
        .commit(
            Txn::default().put(Name::Events(uid, 1).into(), "e"),
            Lane::Bulk,
        )
        .await
        .unwrap();
    let names = async |range: Range| -> Vec<String> {
        entries(&*backend, range)
            .await
            .iter()
            .map(|entry| entry.key.to_string())
            .collect()
    };
    let range = |from: &str, below: &str| Range {
        from: key(from),
        below: Some(key(below)),
        limit: None,
    };
    assert_eq!(names(range("b", "c")).await, ["n/b", "n/ba"]);
    assert_eq!(
        names(Range {
            limit: Some(1),
            ..range("b", "c")
        })
        .await,
        ["n/b"]
    );
    assert_eq!(
        names(Range {
            limit: Some(0),
            ..range("b", "c")
        })
        .await,
        [""; 0]
    );
    assert_eq!(names(Range::one(&key("b"))).await, ["n/b"]);
    assert_eq!(names(Range::prefix(&key("b"))).await, ["n/b", "n/ba"]);
    assert_eq!(names(range("c", "b")).await, [""; 0]);
    assert_eq!(names(range("x", "y")).await, [""; 0]);
    let log = format!("z/{uid}/1");
    assert_eq!(
        names(Range::all()).await,
        ["n/a", "n/b", "n/ba", "n/c", &log],
        "the log comes last"
    );
}

/// From any revision on, with many writers or few.
pub async fn a_watch_gives_each_revision_whole_once_and_in_order(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let start = put(&*backend, "start", "v").await;
    let mut live = backend.watch(start).await.unwrap();
    let commits = join_all((0..100).map(|i| {
        let txn = Txn::default()
            .put(key(&format!("a{i}")), i.to_string())
            .put(key(&format!("b{i}")), i.to_string());
        backend.commit(txn, Lane::Bulk)
    }))
    .await;
    let last = commits.into_iter().map(Result::unwrap).max().unwrap();
    for revision in start + 1..=last {
        let batch = within("a change", live.next()).await.unwrap();
        assert_eq!(batch.revision, revision);
        assert_eq!(batch.changes.len(), 2, "whole");
        assert_eq!(batch.changes[0].value, batch.changes[1].value);
    }
    for after in [start, start + 1, start + 57, last - 1] {
        let mut again = backend.watch(after).await.unwrap();
        assert_eq!(
            within("a change", again.next()).await.unwrap().revision,
            after + 1,
            "resumed"
        );
    }
}

/// The watcher then scans, and watches from there.
pub async fn a_watch_from_before_a_compaction_ends(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let first = put(&*backend, "a", "1").await;
    let mut behind = backend.watch(first).await.unwrap();
    put(&*backend, "a", "2").await;
    let third = put(&*backend, "a", "3").await;
    let fourth = put(&*backend, "a", "4").await;
    backend.compact(third).await.unwrap();
    // Changes that were already fetched may still come, in order; then the watch ends, and nothing is skipped.
    let mut seen = first;
    loop {
        match within("the end of the watch", behind.next()).await {
            Ok(batch) => {
                assert_eq!(batch.revision, seen + 1);
                seen = batch.revision;
                if seen == fourth {
                    break;
                }
            }
            Err(end) => {
                assert_eq!(end, WatchEnd::Compacted);
                break;
            }
        }
    }
    let mut late = backend.watch(first).await.unwrap();
    assert_eq!(
        within("the end of the watch", late.next())
            .await
            .unwrap_err(),
        WatchEnd::Compacted
    );
    let mut edge = backend.watch(third).await.unwrap();
    assert_eq!(
        within("a change", edge.next()).await.unwrap().revision,
        fourth
    );
    let scan = backend.scan(Range::all(), 10).await.unwrap();
    let mut fresh = backend.watch(scan.revision()).await.unwrap();
    let fifth = put(&*backend, "a", "5").await;
    assert_eq!(
        within("a change", fresh.next()).await.unwrap().revision,
        fifth
    );
}

/// Log keys are in no batch; a range of them is removed at once, and nothing beside it.
pub async fn the_log_is_not_watched_and_goes_by_range(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let (uid, other) = (Uuid::now_v7(), Uuid::now_v7());
    let chunk = |uid, seq| Key::from(Name::Events(uid, seq));
    let start = put(&*backend, "a", "1").await;
    let mut watch = backend.watch(start).await.unwrap();
    for seq in 1..=10 {
        let txn = Txn::default()
            .put(chunk(uid, seq), "e")
            .put(chunk(other, seq), "e");
        backend.commit(txn, Lane::Bulk).await.unwrap();
    }
    let mut trim = Txn::default().put(key("b"), "2");
    trim.ops.push(Op::DeleteBelow {
        from: chunk(uid, 0),
        below: chunk(uid, 8),
    });
    let last = backend.commit(trim, Lane::Bulk).await.unwrap();
    loop {
        let batch = within("a change", watch.next()).await.unwrap();
        assert!(batch.changes.iter().all(|change| !change.key.is_log()));
        if batch.revision == last {
            assert_eq!(batch.changes.len(), 1);
            break;
        }
    }
    let left = async |uid| {
        entries(
            &*backend,
            Range {
                from: chunk(uid, 0),
                below: Some(chunk(uid, 99)),
                limit: None,
            },
        )
        .await
    };
    assert_eq!(
        left(uid)
            .await
            .iter()
            .map(|entry| entry.key.clone())
            .collect::<Vec<_>>(),
        [8, 9, 10].map(|seq| chunk(uid, seq))
    );
    assert_eq!(left(other).await.len(), 10);
    let state = Txn {
        ops: vec![Op::DeleteBelow {
            from: key("a"),
            below: key("z"),
        }],
        ..Txn::default()
    };
    assert!(matches!(
        backend.commit(state, Lane::Bulk).await,
        Err(CommitError::Invalid(_))
    ));
}

/// On expiry and on revocation, with a change that watches see.
pub async fn keys_vanish_with_their_lease(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let start = put(&*backend, "a", "1").await;
    let mut watch = backend.watch(start).await.unwrap();
    let short = backend.lease(Duration::from_millis(100)).await.unwrap();
    let long = backend.lease(PATIENCE * 10).await.unwrap();
    for (shard, lease) in [(1, short.id), (2, short.id), (3, long.id)] {
        backend
            .commit(leased(shard, lease), Lane::Bulk)
            .await
            .unwrap();
    }
    let owner = |shard| Key::from(Name::Owner(shard));
    eventually("the short lease to end", async || {
        backend.get(&owner(1)).await.unwrap().is_none()
    })
    .await;
    assert!(
        backend.get(&owner(2)).await.unwrap().is_none(),
        "both keys at one revision"
    );
    assert!(backend.get(&owner(3)).await.unwrap().is_some());
    backend.revoke(long.id).await.unwrap();
    assert!(backend.get(&owner(3)).await.unwrap().is_none());

    let mut gone = Vec::new();
    while gone.len() < 3 {
        let batch = within("a change", watch.next()).await.unwrap();
        gone.extend(
            batch
                .changes
                .iter()
                .filter(|change| change.value.is_none())
                .map(|change| change.key.clone()),
        );
    }
    gone[..2].sort();
    assert_eq!(gone, [1, 2, 3].map(owner));
    let unleased = Txn::default().put(owner(4), "v");
    assert!(matches!(
        backend.commit(unleased, Lane::Bulk).await,
        Err(CommitError::Invalid(_))
    ));
}

/// Has a lease hold a key for twice its length. `None` if the test itself was too late to renew it.
async fn hold(backend: &dyn Backend, ttl: Duration, number: u8) -> Option<LeaseId> {
    let lease = backend.lease(ttl).await.unwrap();
    let txn = leased(number, lease.id);
    backend.commit(txn, Lane::Bulk).await.unwrap();
    let (mut deadline, mut renewed_at) = (lease.deadline, Instant::now());
    for _ in 0..8 {
        tokio::time::sleep(ttl / 4).await;
        let renewed = backend.renew(lease.id).await;
        let late = renewed_at.elapsed() >= ttl / 2;
        renewed_at = Instant::now();
        match renewed {
            Err(_) if late => return None,
            renewed => {
                let renewed = renewed.unwrap();
                assert!(renewed > deadline, "the deadline moves on");
                deadline = renewed;
            }
        }
    }
    let held = backend.get(&Name::Owner(number).into()).await.unwrap();
    if renewed_at.elapsed() >= ttl / 2 {
        return None;
    }
    assert!(held.is_some(), "held for twice its length");
    Some(lease.id)
}

/// Renewed for several times its duration, then left to expire.
pub async fn a_renewed_lease_holds_and_an_ended_one_cannot_be_renewed(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let ttl = Duration::from_secs(1);
    let mut held = None;
    for number in 1..20 {
        let lease = hold(&*backend, ttl, number).await;
        held = lease.map(|lease| (lease, Key::from(Name::Owner(number))));
        if held.is_some() {
            break;
        }
    }
    let (lease, owner) = held.expect("it can be renewed in time");
    eventually("the lease to end", async || {
        backend.get(&owner).await.unwrap().is_none()
    })
    .await;
    assert_eq!(
        backend.renew(lease).await.unwrap_err().reason(),
        Reason::Fenced
    );
}

/// Once it has its place in the lane, it is written.
pub async fn dropping_a_commit_does_not_cancel_it(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let dropped: Arc<dyn Backend> = Arc::clone(&backend);
    for i in 0..20 {
        let commit = dropped.commit(Txn::default().put(key(&format!("d{i}")), "v"), Lane::Bulk);
        drop(commit.now_or_never());
    }
    for i in 0..20 {
        let key = key(&format!("d{i}"));
        eventually("the dropped commit", async || {
            backend.get(&key).await.unwrap().is_some()
        })
        .await;
    }
}
