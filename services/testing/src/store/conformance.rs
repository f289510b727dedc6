//! The conformance suite of backends, and of the store over them. [`store_conformance!`](crate::store_conformance)
//! generates a test for each check.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a check fails by panicking"
)]

pub mod backend;
pub mod events;
pub mod facade;
pub mod faults;
pub mod ownership;
pub mod transfer;

pub use crate::wait::holds as eventually;

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use drover_core::Reason;
use drover_store::{
    Backend, Bytes, ClusterRow, Desired, EventRow, Finish, Head, Keyring, Lane, NewEvent, Owned,
    Step, StepDone, Store, Versioned, backend::Range,
};
use uuid::Uuid;

use super::LongLeases;

/// An empty backend under test, with the resources that it needs.
pub struct Subject {
    /// The backend under test.
    pub backend: Arc<dyn Backend>,
    _keep: Box<dyn Any + Send>,
}

impl Subject {
    /// Creates a subject that keeps a resource, such as a temporary directory, as long as it is used.
    pub fn new(backend: impl Backend, keep: impl Any + Send) -> Self {
        Self {
            backend: Arc::new(backend),
            _keep: Box::new(keep),
        }
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.backend)
    }
}

/// Generates a test for each check of the suite. The argument is a function that creates an empty [`Subject`].
#[macro_export]
macro_rules! store_conformance {
    ($make:expr) => {
        $crate::store_conformance!(@ $make, backend:
            two_writers_expect_one_revision_and_one_wins,
            a_refused_transaction_writes_nothing,
            a_lost_fence_is_refused_among_transactions_that_succeed,
            limits_are_answered_and_nothing_is_written,
            a_scan_reads_all_pages_at_one_revision,
            a_scan_keeps_range_and_limit,
            a_watch_gives_each_revision_whole_once_and_in_order,
            a_watch_from_before_a_compaction_ends,
            the_log_is_not_watched_and_goes_by_range,
            keys_vanish_with_their_lease,
            a_renewed_lease_holds_and_an_ended_one_cannot_be_renewed,
            dropping_a_commit_does_not_cancel_it,
        );
        $crate::store_conformance!(@ $make, facade:
            a_name_belongs_to_one_cluster,
            a_change_of_an_old_revision_is_refused,
            a_spec_is_retained_with_the_change_that_replaces_it,
            a_change_of_the_desired_state_stops_a_step_planned_before,
            what_was_stored_is_loaded,
            a_cache_that_follows_changes_equals_a_fresh_load,
            a_step_that_is_too_large_writes_nothing,
            a_cluster_with_records_left_is_not_finished,
            an_apply_before_the_end_wins,
            a_finished_cluster_leaves_name_free_and_a_tombstone,
            a_tombstone_goes_with_its_events_after_its_time,
            a_read_waits_for_its_revision,
            platforms_and_secrets_are_written_by_revision,
        );
        $crate::store_conformance!(@ $make, ownership:
            shards_have_one_owner_whose_epoch_grows,
            who_has_waited_for_the_lead_has_it_under_a_higher_epoch,
            half_a_lead_is_not_that_of_another,
            a_lead_is_handed_to_one_replica_and_no_other,
            a_lead_is_not_handed_to_a_replica_that_has_ended,
            a_hand_over_that_is_cut_off_leaves_a_lead_for_the_next_one,
            a_lease_that_ended_early_is_found_out_by_looking,
            an_owner_that_handed_over_is_refused,
        );
        $crate::store_conformance!(@ $make, events:
            events_are_dense_under_many_writers_and_hand_over,
            events_resume_from_any_number,
            a_log_is_trimmed_by_number,
            a_watch_of_events_sees_all_to_the_end,
        );
        $crate::store_conformance!(@ $make, transfer:
            an_export_imported_elsewhere_is_the_same,
            a_damaged_export_is_refused,
            a_dump_shows_no_secret,
        );
        $crate::store_conformance!(@ $make, faults:
            a_lost_answer_is_resolved_not_repeated,
            a_crash_leaves_all_of_a_step_or_nothing,
            a_full_store_refuses_writes_and_serves_reads,
            random_faults_leave_no_gap_and_no_repeat,
        );
    };
    (@ $make:expr, $part:ident: $($check:ident),* $(,)?) => {
        mod $part {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $check() {
                    $crate::store::conformance::$part::$check(&$make).await;
                }
            )*
        }
    };
}

/// Timeout for conditions that must become true.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("timed out waiting for: {what}"))
}

/// A minimal desired state.
pub fn wanted(name: &str) -> Desired {
    Desired {
        name: name.into(),
        spec: Bytes::from_static(b"spec"),
        generation: 1,
        ..Desired::default()
    }
}

pub(crate) fn event(text: impl Into<String>) -> NewEvent {
    NewEvent {
        time_ms: 1,
        severity: 1,
        reason: "NodeReady".into(),
        message: text.into(),
        count: 1,
        ..NewEvent::default()
    }
}

/// A step that adds a node in the next slot, with an event that names it.
pub fn one_node(uid: Uuid, head: &Versioned<Head>) -> Step {
    let mut new = head.value.clone();
    let slot = new.next_slot;
    new.next_slot += 1;
    Step {
        uid,
        expect_head: head.revision,
        head: new,
        put_nodes: vec![(slot, slot.to_string().into())],
        events: vec![event(slot.to_string())],
        ..Step::default()
    }
}

/// The head before the first step.
pub fn no_head() -> Versioned<Head> {
    Versioned {
        value: Head::default(),
        revision: 0,
    }
}

/// The head that the next step is based on.
pub fn head_of(done: StepDone) -> Versioned<Head> {
    Versioned {
        value: done.head,
        revision: done.revision,
    }
}

/// A key for tests only.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

pub(crate) async fn open(backend: &Arc<dyn Backend>) -> Store {
    try_open(backend).await.unwrap()
}

/// Opens the store, and unlocks it with its key. Its lease outlives a pause of the test.
pub(crate) async fn try_open(backend: &Arc<dyn Backend>) -> drover_core::Result<Store> {
    let store = Store::open(LongLeases::over(Arc::clone(backend))).await?;
    store.unlock(Keyring::parse(KEY, "key").unwrap()).await?;
    Ok(store)
}

/// The stored head of a cluster.
pub async fn present_head(store: &Store, uid: Uuid) -> Versioned<Head> {
    store
        .load_cluster(uid)
        .await
        .unwrap()
        .and_then(|row| row.head)
        .unwrap_or_else(no_head)
}

/// Adds nodes, each in a step of its own.
pub async fn add_nodes(store: &Store, owned: &Owned, uid: Uuid, count: usize) -> Versioned<Head> {
    let mut head = present_head(store, uid).await;
    for _ in 0..count {
        head = head_of(
            store
                .step(owned, one_node(uid, &head), Lane::Bulk)
                .await
                .unwrap(),
        );
    }
    head
}

/// Checks that nodes, events and head of a cluster agree if it was written only by [`one_node`]. Returns the number of
/// nodes.
pub async fn check_consistent(store: &Store, uid: Uuid) -> u64 {
    let row = store
        .load_cluster(uid)
        .await
        .unwrap()
        .expect("the cluster is there");
    let head = row.head.map(|head| head.value).unwrap_or_default();
    let slots: Vec<u64> = row.nodes.iter().map(|node| node.slot).collect();
    assert_eq!(
        slots,
        (0..head.next_slot).collect::<Vec<_>>(),
        "a node for each slot that was given out"
    );
    assert_eq!(head.last_seq(), head.next_slot, "an event for each node");
    let events = all_events(store, uid).await;
    check_dense(&events, head.first_seq(), head.last_seq());
    for row in &events {
        assert_eq!(
            row.event.message,
            (row.seq - 1).to_string(),
            "the event of its node"
        );
    }
    head.next_slot
}

pub(crate) async fn all_events(store: &Store, uid: Uuid) -> Vec<EventRow> {
    let bounds = store.event_bounds(uid).await.unwrap();
    store
        .events(uid, bounds.first_seq - 1, usize::MAX)
        .await
        .unwrap()
        .events
}

pub(crate) fn check_dense(events: &[EventRow], first: u64, last: u64) {
    let numbers: Vec<u64> = events.iter().map(|row| row.seq).collect();
    assert_eq!(
        numbers,
        (first..=last).collect::<Vec<_>>(),
        "numbers without gap or repeat"
    );
}

pub(crate) async fn everything(backend: &dyn Backend) -> Vec<(String, Bytes)> {
    let entries = backend
        .scan(Range::all(), 100)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    entries
        .into_iter()
        .map(|entry| (entry.key.to_string(), entry.value))
        .collect()
}

/// Creates an empty subject.
pub type Make<'a> = &'a dyn Fn() -> Subject;

pub(crate) async fn reason<T: std::fmt::Debug>(
    outcome: impl Future<Output = drover_core::Result<T>>,
) -> Reason {
    outcome.await.expect_err("it is refused").reason()
}

pub(crate) async fn load_all(store: &Store) -> BTreeMap<Uuid, ClusterRow> {
    let mut loader = store.load().await.unwrap();
    let mut rows = BTreeMap::new();
    while let Some(row) = loader.next().await.unwrap() {
        rows.insert(row.uid, row);
    }
    rows
}

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// The end of a cluster without nodes.
pub(crate) fn finish(uid: Uuid, name: &str, desired: u64, head: Versioned<Head>) -> Finish {
    Finish {
        uid,
        name: name.into(),
        expect_head: head.revision,
        expect_desired: desired,
        head: head.value,
        events: vec![event("gone")],
        delete_time_ms: now_ms(),
        platforms: Bytes::from_static(b"platforms"),
    }
}
