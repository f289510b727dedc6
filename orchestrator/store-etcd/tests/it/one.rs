//! The conformance suite over one member of etcd, and what only this backend has.

use std::{sync::Arc, time::Duration};

use drover_core::Reason;
use drover_store::{
    Backend, Lane, Store,
    backend::{CommitError, Range, Txn},
    history::WatchEnd,
    keys::{Key, Name},
};
use drover_store_etcd::{EtcdBackend, EtcdSettings};
use drover_testing::{etcd::Etcd, store::conformance::Subject, wait::PATIENCE};
use tokio::time::{Instant, sleep};

const LOOK: Duration = Duration::from_millis(20);

pub(crate) fn settings(etcd: &Etcd, prefix: &str) -> EtcdSettings {
    EtcdSettings {
        endpoints: etcd.endpoints(),
        prefix: prefix.to_owned(),
        ..EtcdSettings::default()
    }
}

fn subject() -> Subject {
    let etcd = Etcd::start(1);
    let backend = EtcdBackend::new(&settings(&etcd, "drover/")).unwrap();
    Subject::new(backend, etcd)
}

drover_testing::store_conformance!(crate::one::subject);

pub(crate) fn key(name: &str) -> Key {
    Name::ClusterName(name.into()).into()
}

pub(crate) async fn names(backend: &EtcdBackend) -> Vec<String> {
    let scan = backend.scan(Range::all(), 10).await.unwrap();
    let entries = scan.collect().await.unwrap();
    entries.iter().map(|entry| entry.key.to_string()).collect()
}

#[tokio::test]
async fn two_stores_with_prefixes_of_their_own_share_an_etcd_unseen() {
    let etcd = Etcd::start(1);
    let here = EtcdBackend::open(&settings(&etcd, "here/")).await.unwrap();
    let there = EtcdBackend::open(&settings(&etcd, "there/")).await.unwrap();
    let mut watch = there.watch(0).await.unwrap();
    here.commit(Txn::default().put(key("a"), "1"), Lane::Bulk)
        .await
        .unwrap();
    let second = there
        .commit(Txn::default().put(key("b"), "2"), Lane::Bulk)
        .await
        .unwrap();
    assert_eq!(names(&here).await, ["n/a"]);
    assert_eq!(names(&there).await, ["n/b"]);
    assert_eq!(watch.next().await.unwrap().revision, second);
}

#[tokio::test]
async fn watches_of_one_process_share_one_of_etcd_until_one_falls_behind_which_misses_nothing() {
    let etcd = Etcd::start(1);
    let backend = EtcdBackend::open(&settings(&etcd, "drover/"))
        .await
        .unwrap();
    let watched = || etcd.metric(0, "etcd_debugging_mvcc_watcher_total");
    let change = async |name: &str, size: usize| {
        let txn = Txn::default().put(key(name), vec![b'v'; size]);
        backend.commit(txn, Lane::Bulk).await.unwrap()
    };
    let start = change("first", 1).await;
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(backend.watch(start).await.unwrap());
    }
    let second = change("second", 1).await;
    for watch in &mut watches {
        assert_eq!(watch.next().await.unwrap().revision, second);
    }
    assert_eq!(watched(), Some(1.0));
    // More than a process remembers.
    let mut slow = watches.pop().unwrap();
    let mut revisions = Vec::new();
    for i in 0..40 {
        revisions.push(change(&format!("{i}"), 100_000).await);
        for watch in &mut watches {
            assert_eq!(watch.next().await.unwrap().revision, revisions[i]);
        }
    }
    let mut seen = Vec::new();
    while seen.len() < revisions.len() {
        seen.push(slow.next().await.unwrap().revision);
    }
    assert_eq!(seen, revisions);
    // It goes on with the others.
    let began = Instant::now();
    while watched() != Some(1.0) {
        assert!(began.elapsed() < PATIENCE, "{:?} watches", watched());
        sleep(LOOK).await;
    }
    let last = change("last", 1).await;
    watches.push(slow);
    for watch in &mut watches {
        assert_eq!(watch.next().await.unwrap().revision, last);
    }
    // One that begins earlier than the others.
    let mut early = backend.watch(start - 1).await.unwrap();
    assert_eq!(early.next().await.unwrap().revision, start);
}

#[tokio::test]
async fn a_range_of_many_pages_holds_every_key_once() {
    let etcd = Etcd::start(1);
    let backend = EtcdBackend::open(&settings(&etcd, "drover/"))
        .await
        .unwrap();
    // Values so large and small that the size of the answers goes up and down.
    for block in 0..30_usize {
        let txn = (0..90).fold(Txn::default(), |txn, i| {
            let size = if block % 10 < 2 { 7_000 } else { 10 };
            txn.put(key(&format!("{block:03}-{i:03}")), vec![b'v'; size])
        });
        backend.commit(txn, Lane::Bulk).await.unwrap();
    }
    let expected: Vec<String> = (0..30)
        .flat_map(|block| (0..90).map(move |i| format!("n/{block:03}-{i:03}")))
        .collect();
    for page in [1, 7, 512, 5_000] {
        let scan = backend.scan(Range::all(), page).await.unwrap();
        let entries = scan.collect().await.unwrap();
        let found: Vec<String> = entries.iter().map(|entry| entry.key.to_string()).collect();
        assert!(found == expected, "pages of {page}: {} keys", found.len());
    }
}

#[tokio::test]
async fn an_etcd_without_room_refuses_writes_and_lets_leases_live() {
    let etcd = Etcd::with_flags(1, &["--quota-backend-bytes", "4000000"]);
    let backend: Arc<dyn Backend> = Arc::new(
        EtcdBackend::open(&settings(&etcd, "drover/"))
            .await
            .unwrap(),
    );
    let lease = backend.lease(Duration::from_secs(30)).await.unwrap();
    let fill = |i: usize| Txn::default().put(key(&format!("{i}")), vec![0; 500_000]);
    let mut refused = None;
    for i in 0..40 {
        if let Err(error) = backend.commit(fill(i), Lane::Bulk).await {
            refused = Some(error);
            break;
        }
    }
    assert_eq!(refused, Some(CommitError::StorageFull));
    assert!(backend.renew(lease.id).await.is_ok());
    let delete = Txn::default().delete(key("0"));
    assert_eq!(
        backend.commit(delete, Lane::Bulk).await,
        Err(CommitError::StorageFull)
    );
    assert!(backend.lease(Duration::from_secs(30)).await.is_err());
    let read = backend.get(&key("0")).await.unwrap();
    assert!(read.is_some(), "reads go on");
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_with_its_setting() {
    let etcd = Etcd::start(1);
    let other = Etcd::start(1);
    let good = settings(&etcd, "drover/");
    let with = |change: &dyn Fn(&mut EtcdSettings)| {
        let mut settings = good.clone();
        change(&mut settings);
        settings
    };
    let rows: [(EtcdSettings, &str); 7] = [
        (with(&|s| s.prefix.clear()), "etcd.prefix"),
        (with(&|s| s.endpoints.clear()), "etcd.endpoints"),
        (
            with(&|s| s.endpoints.push("etcd:2379".into())),
            "etcd.endpoints[1]",
        ),
        (
            with(&|s| s.endpoints.push(s.endpoints[0].clone())),
            "etcd.endpoints[1]",
        ),
        (with(&|s| s.cert = Some("cert.pem".into())), "etcd.cert"),
        (with(&|s| s.ca = Some("ca.pem".into())), "etcd.endpoints[0]"),
        (
            with(&|s| s.endpoints.extend(other.endpoints())),
            "etcd.endpoints",
        ),
    ];
    for (settings, field) in rows {
        let error = EtcdBackend::open(&settings).await.unwrap_err();
        assert_eq!(error.fields()[0].field, field, "{error}");
    }
}

#[tokio::test]
async fn an_etcd_that_is_not_there_is_named() {
    let mut etcd = Etcd::start(1);
    etcd.kill(0);
    let error = EtcdBackend::open(&settings(&etcd, "drover/"))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable);
    assert!(error.message().contains(&etcd.endpoints()[0]), "{error}");
}

/// They all find none, and make one at slightly different moments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_replicas_make_one_store() {
    let etcd = Etcd::start(1);
    let mut random = fastrand::Rng::with_seed(drover_testing::seed::seed());
    for round in 0..40 {
        let settings = settings(&etcd, &format!("{round}/"));
        let opened = (0..3).map(|_| {
            let wait = Duration::from_micros(random.u64(0..6_000));
            let backend: Arc<dyn Backend> = Arc::new(EtcdBackend::new(&settings).unwrap());
            async move {
                tokio::time::sleep(wait).await;
                Store::open(backend).await.unwrap()
            }
        });
        let opened = futures::future::join_all(opened).await;
        let first = opened[0].id();
        assert!(opened.iter().all(|store| store.id() == first), "{round}");
    }
}

/// Until its revisions are as high again it would say nothing, and then leave out what came before.
#[tokio::test]
async fn a_watch_ends_when_etcd_was_put_back_to_an_earlier_state() {
    let mut etcd = Etcd::start(1);
    let backend = EtcdBackend::open(&settings(&etcd, "drover/"))
        .await
        .unwrap();
    let put = async |name: &str| {
        let txn = Txn::default().put(key(name), "1");
        backend.commit(txn, Lane::Bulk).await
    };
    put("before").await.unwrap();
    etcd.kill(0);
    etcd.keep(0);
    etcd.restart(0);
    assert!(etcd.is_up());
    let mut last = 0;
    while last < 10 {
        last = put(&format!("lost-{last}")).await.unwrap_or(last);
    }
    let mut watch = backend.watch(last).await.unwrap();
    let seen = loop {
        if let Ok(seen) = put("seen").await {
            break seen;
        }
    };
    while watch.next().await.unwrap().revision < seen {}
    etcd.kill(0);
    etcd.put_back(0);
    etcd.restart(0);
    assert!(etcd.is_up());
    assert_eq!(watch.next().await.unwrap_err(), WatchEnd::Compacted);
    assert_eq!(names(&backend).await, ["n/before"]);
}

#[tokio::test]
async fn a_watch_goes_on_over_a_restart_of_etcd() {
    let mut etcd = Etcd::start(1);
    let backend = EtcdBackend::open(&settings(&etcd, "drover/"))
        .await
        .unwrap();
    let txn = || Txn::default().put(key("a"), "1");
    let first = backend.commit(txn(), Lane::Bulk).await.unwrap();
    let mut watch = backend.watch(first).await.unwrap();
    etcd.kill(0);
    etcd.restart(0);
    assert!(etcd.is_up());
    let second = loop {
        if let Ok(revision) = backend.commit(txn(), Lane::Bulk).await {
            break revision;
        }
    };
    while watch.next().await.unwrap().revision < second {}
}
