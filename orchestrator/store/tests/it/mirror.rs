//! Whoever takes the lead has read all clusters before.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use drover_core::Result;
use drover_store::{
    Backend, ClusterRow, Finish, Lane, Revision, Step, Store, Unread,
    backend::{CommitError, Info, Lease, LeaseId, Range, Scan, Txn},
    history::Watch,
    keys::Name,
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
    task::yield_now,
    time::{Instant, sleep, timeout},
};
use uuid::Uuid;

/// Counts what is read of several keys.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn Backend>,
    ranges: AtomicUsize,
    /// Revisions that were lost: what is read of one key is of so many before.
    lost: AtomicU64,
    /// Somebody writes just after one key was read, and everybody hears of it before the answer comes.
    overtaken: AtomicBool,
}

impl Counting {
    async fn is_overtaken(&self) {
        let key = Name::Secret("new".to_owned()).into();
        let txn = Txn::default().put(key, Vec::new());
        self.inner.commit(txn, Lane::Urgent).await.unwrap();
        for _ in 0..100 {
            yield_now().await;
        }
    }
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
        if self.overtaken.load(Ordering::Relaxed) {
            self.is_overtaken().await;
        }
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
            overtaken: AtomicBool::new(false),
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
        self.stands_by.take_all().await.unwrap();
        let before = self.counting.ranges.load(Ordering::Relaxed);
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

/// What a reader knows that reads while it stands by, and with the lead only what is left.
#[derive(Debug, Default)]
struct Reader {
    copy: u64,
    known: BTreeMap<Uuid, ClusterRow>,
}

impl Reader {
    fn learn(&mut self, unread: Unread) -> Vec<(Uuid, Revision)> {
        if self.copy != unread.copy {
            self.copy = unread.copy;
            self.known.clear();
        }
        let mut read = Vec::new();
        for (uid, revision, row) in unread.clusters {
            read.push((uid, revision));
            match row {
                Some(row) => self.known.insert(uid, row),
                None => self.known.remove(&uid),
            };
        }
        read
    }

    /// Reads so long until it knows so many.
    async fn reads(&mut self, store: &Store, count: usize) {
        let begin = Instant::now();
        while self.known.len() != count {
            let unread = store.unread(2).unwrap().unwrap();
            let copy = unread.copy;
            let read = self.learn(unread);
            store.was_read(copy, read.into_iter());
            assert!(begin.elapsed() < PATIENCE, "{self:?}");
            sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn a_reader_that_stood_by_is_told_with_the_lead_what_it_does_not_know() {
    let pair = Pair::new().await;
    let leads = Store::open(pair.backend.clone()).await.unwrap();
    let shards = leads.take_all().await.unwrap();
    let mut uids = Vec::new();
    for name in ["same", "changed", "gone"] {
        let (uid, _) = leads.create_cluster(wanted(name)).await.unwrap();
        let step = one_node(uid, &no_head());
        let done = leads.step(shards.of(uid), step, Lane::Urgent).await;
        uids.push((uid, head_of(done.unwrap())));
    }
    pair.read_ahead().await;
    let mut reader = Reader::default();
    reader.reads(&pair.stands_by, 3).await;
    let (changed, head) = &uids[1];
    let step = one_node(*changed, head);
    let done = leads.step(shards.of(*changed), step, Lane::Urgent).await;
    done.unwrap();
    let (gone, head) = &uids[2];
    let step = Step {
        put_nodes: Vec::new(),
        delete_nodes: vec![0],
        ..one_node(*gone, head)
    };
    let done = leads.step(shards.of(*gone), step, Lane::Urgent).await;
    let head = head_of(done.unwrap());
    let desired = leads.desired(*gone).await.unwrap().unwrap().revision;
    let finish = Finish {
        uid: *gone,
        name: "gone".to_owned(),
        expect_head: head.revision,
        expect_desired: desired,
        head: head.value,
        events: Vec::new(),
        delete_time_ms: 1,
        platforms: Default::default(),
    };
    let ended = leads.finish_cluster(shards.of(*gone), finish).await;
    ended.unwrap();
    let (new, _) = leads.create_cluster(wanted("new")).await.unwrap();
    leads.resign().await.unwrap();

    pair.stands_by.take_all().await.unwrap();
    let unread = pair.stands_by.load_unread(reader.copy).await.unwrap();
    let told = reader.learn(unread.unwrap());
    let mut told: Vec<Uuid> = told.into_iter().map(|(uid, _)| uid).collect();
    told.sort();
    let mut expected = vec![*changed, *gone, new];
    expected.sort();
    assert_eq!(told, expected);
    let known: Vec<ClusterRow> = reader.known.into_values().collect();
    assert_eq!(known, pair.truth().await);
}

/// Its memory is of the past as soon as another one may write.
#[tokio::test]
async fn who_gave_up_the_lead_is_out_of_touch_and_stays_a_replica() {
    let pair = Pair::new().await;
    let leads = Store::open(pair.backend.clone()).await.unwrap();
    let shards = leads.take_all().await.unwrap();
    assert!(leads.in_touch().is_ok());
    leads.release_all(&shards).await.unwrap();
    assert!(leads.in_touch().is_err() && !leads.holds());
    assert!(!leads.lost().is_cancelled());
    pair.stands_by.take_all().await.unwrap();
    let named = leads.leader().await.unwrap().unwrap();
    assert!(!named.is_this);
    assert_eq!(leads.replicas().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_reader_of_another_copy_loads_everything() {
    let pair = Pair::new().await;
    let other = Store::open(pair.backend.clone()).await.unwrap();
    other.create_cluster(wanted("first")).await.unwrap();
    pair.read_ahead().await;
    let mut reader = Reader::default();
    reader.reads(&pair.stands_by, 1).await;
    pair.stands_by.take_all().await.unwrap();
    let unread = pair.stands_by.load_unread(reader.copy + 1).await.unwrap();
    assert!(unread.is_none());
    let before = pair.counting.ranges.load(Ordering::Relaxed);
    let rows = loaded(&pair.stands_by).await;
    let ranges = pair.counting.ranges.load(Ordering::Relaxed) - before;
    assert_eq!(rows, pair.truth().await);
    assert_eq!(ranges, 0, "the copy is still there for it");
}

#[tokio::test]
async fn what_others_write_while_the_lead_is_taken_costs_no_reading() {
    let pair = Pair::new().await;
    let other = Store::open(pair.backend.clone()).await.unwrap();
    other.create_cluster(wanted("first")).await.unwrap();
    pair.read_ahead().await;
    pair.counting.overtaken.store(true, Ordering::Relaxed);
    let (rows, ranges) = pair.takes().await;
    assert_eq!(rows, pair.truth().await);
    assert_eq!(ranges, 0, "it was read before");
}

#[tokio::test]
async fn a_reader_has_read_everything_if_it_knows_all_clusters_of_the_present_copy() {
    let pair = Pair::new().await;
    let other = Store::open(pair.backend.clone()).await.unwrap();
    for name in ["one", "two"] {
        other.create_cluster(wanted(name)).await.unwrap();
    }
    assert!(!pair.stands_by.is_read(0, 1), "nothing is read ahead");
    pair.read_ahead().await;
    let mut reader = Reader::default();
    let copy = pair.stands_by.unread(9).unwrap().unwrap().copy;
    assert!(!pair.stands_by.is_read(copy, 1) && pair.stands_by.is_read(copy, 3));
    reader.reads(&pair.stands_by, 2).await;
    assert!(pair.stands_by.is_read(reader.copy, 1));
    assert!(
        !pair.stands_by.is_read(reader.copy + 1, 1),
        "that is another copy"
    );
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
