//! Whoever takes the lead has read all clusters before.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use drover_core::Result;
use drover_store::{
    Backend, ClusterRow, Lane, Revision, Step, Store,
    backend::{CommitError, Info, Lease, LeaseId, Range, Scan, Txn},
    history::Watch,
};
use drover_testing::{
    store::{
        MemoryBackend,
        conformance::{head_of, no_head, one_node, wanted},
    },
    wait::PATIENCE,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

/// Counts what is read of several keys.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn Backend>,
    ranges: AtomicUsize,
    /// Revisions that were lost: what is read of one key is of so many before.
    lost: AtomicU64,
}

#[async_trait]
impl Backend for Counting {
    fn info(&self) -> Info {
        self.inner.info()
    }

    async fn commit(&self, txn: Txn, lane: Lane) -> std::result::Result<Revision, CommitError> {
        self.inner.commit(txn, lane).await
    }

    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        if range != Range::one(&range.from) {
            self.ranges.fetch_add(1, Ordering::Relaxed);
            return self.inner.scan(range, page).await;
        }
        let scan = self.inner.scan(range, page).await?;
        let revision = scan.revision() - self.lost.load(Ordering::Relaxed);
        let (sender, pages) = mpsc::channel(1);
        sender.send(scan.collect().await).await.unwrap();
        Ok(Scan::new(revision, pages))
    }

    async fn watch(&self, after: Revision) -> Result<Watch> {
        self.inner.watch(after).await
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease> {
        self.inner.lease(ttl).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<Instant> {
        self.inner.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.inner.revoke(lease).await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.inner.compact(revision).await
    }
}

struct Pair {
    backend: Arc<dyn Backend>,
    counting: Arc<Counting>,
    stands_by: Store,
}

async fn loaded(store: &Store) -> Vec<ClusterRow> {
    store.load().await.unwrap().next_some(1_000).await.unwrap()
}

impl Pair {
    async fn new() -> Self {
        let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new());
        let counting = Arc::new(Counting {
            inner: backend.clone(),
            ranges: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
        });
        let stands_by = Store::open(counting.clone()).await.unwrap();
        Self {
            backend,
            counting,
            stands_by,
        }
    }

    async fn read_ahead(&self) {
        self.stands_by.read_ahead();
        self.reached(1).await;
    }

    async fn reached(&self, revision: Revision) {
        let reached = async {
            while self.stands_by.read_ahead_to() < revision {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, reached).await.expect("it reads ahead");
    }

    /// What is loaded with the lead, and how many ranges were read for it.
    async fn takes(&self) -> (Vec<ClusterRow>, usize) {
        let before = self.counting.ranges.load(Ordering::Relaxed);
        self.stands_by.take_all().await.unwrap();
        let rows = loaded(&self.stands_by).await;
        (rows, self.counting.ranges.load(Ordering::Relaxed) - before)
    }

    async fn truth(&self) -> Vec<ClusterRow> {
        loaded(&Store::open(self.backend.clone()).await.unwrap()).await
    }
}

#[tokio::test]
async fn it_has_what_was_there_and_what_has_changed_up_to_the_last_moment() {
    let pair = Pair::new().await;
    let leads = Store::open(pair.backend.clone()).await.unwrap();
    let shards = leads.take_all().await.unwrap();
    let (first, _) = leads.create_cluster(wanted("first")).await.unwrap();
    pair.read_ahead().await;
    let (second, _) = leads.create_cluster(wanted("second")).await.unwrap();
    let (gone, _) = leads.create_cluster(wanted("gone")).await.unwrap();
    let mut head = no_head();
    for removed in [&[][..], &[], &[0, 1]] {
        let step = Step {
            delete_nodes: removed.to_vec(),
            ..one_node(second, &head)
        };
        let done = leads.step(shards.of(second), step, Lane::Urgent).await;
        head = head_of(done.unwrap());
    }
    let last = one_node(first, &no_head());
    leads
        .step(shards.of(first), last, Lane::Urgent)
        .await
        .unwrap();
    leads.resign().await.unwrap();
    let (rows, ranges) = pair.takes().await;
    assert_eq!(rows, pair.truth().await);
    assert_eq!(ranges, 0, "nothing was read for it");
    let nodes = |uid| rows.iter().find(|row| row.uid == uid).unwrap().nodes.len();
    assert_eq!((nodes(first), nodes(second), nodes(gone)), (1, 1, 0));
    // Once: afterwards the store is asked.
    let before = pair.counting.ranges.load(Ordering::Relaxed);
    assert_eq!(loaded(&pair.stands_by).await, rows);
    assert_eq!(pair.counting.ranges.load(Ordering::Relaxed), before + 1);
}

#[tokio::test]
async fn one_that_has_not_read_yet_reads_with_the_lead() {
    let pair = Pair::new().await;
    let other = Store::open(pair.backend.clone()).await.unwrap();
    other.create_cluster(wanted("first")).await.unwrap();
    pair.stands_by.read_ahead();
    // Without a turn for the task that reads.
    assert_eq!(pair.stands_by.read_ahead_to(), 0);
    let (rows, _) = pair.takes().await;
    assert_eq!(rows, pair.truth().await);
    assert_eq!(rows.len(), 1);
}

/// An etcd that was put back to an earlier state has not got what was read from it before.
#[tokio::test]
async fn what_the_store_has_never_heard_of_is_not_loaded() {
    let pair = Pair::new().await;
    let other = Store::open(pair.backend.clone()).await.unwrap();
    pair.read_ahead().await;
    pair.stands_by.take_all().await.unwrap();
    let mut last = 0;
    for name in ["a", "b", "c"] {
        (_, last) = other.create_cluster(wanted(name)).await.unwrap();
    }
    pair.reached(last).await;
    pair.counting.lost.store(2, Ordering::Relaxed);
    let before = pair.counting.ranges.load(Ordering::Relaxed);
    assert_eq!(loaded(&pair.stands_by).await.len(), 3);
    assert_eq!(pair.counting.ranges.load(Ordering::Relaxed), before + 1);
}
