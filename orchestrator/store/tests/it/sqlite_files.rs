//! Files of the SQLite backend: who may open them, and what happens if they or their disk are not in order.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use drover_core::{Error, Reason};
use drover_store::{
    Backend, Keyring, Lane, SqliteBackend, Store,
    backend::{CommitError, LIMITS, Range, Txn},
    keys::{Key, Name},
    restore,
    sqlite::{DATABASE, FORMAT, Options},
};
use drover_testing::store::conformance::{add_nodes, check_consistent, wanted};
use rusqlite::{Connection, ffi};
use uuid::Uuid;

fn key(name: &str) -> Key {
    Name::ClusterName(name.into()).into()
}

async fn put(backend: &dyn Backend, name: &str, len: usize) -> Result<u64, CommitError> {
    backend
        .commit(Txn::default().put(key(name), vec![7; len]), Lane::Bulk)
        .await
}

fn refused(directory: &Path) -> Error {
    let before = contents(directory);
    let error = SqliteBackend::open(directory).expect_err("it is refused");
    assert_eq!(error.reason(), Reason::Precondition, "{error:?}");
    assert!(
        contents(directory) == before,
        "{} is untouched",
        directory.display()
    );
    error
}

/// The database and its log; SQLite may leave its index of the log beside them.
fn contents(directory: &Path) -> [Option<Vec<u8>>; 2] {
    [DATABASE.to_owned(), format!("{DATABASE}-wal")].map(|name| fs::read(directory.join(name)).ok())
}

/// Copies the files as a crash would leave them.
fn crashed_copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

#[tokio::test]
async fn what_was_committed_is_there_after_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made/with parents");
    let backend = SqliteBackend::open(&path).unwrap();
    let first = put(&backend, "a", 10).await.unwrap();
    drop(backend);
    assert!(
        !path.join(format!("{DATABASE}-wal")).exists(),
        "a clean stop leaves no log"
    );
    let backend = SqliteBackend::open(&path).unwrap();
    let entries = backend
        .scan(Range::all(), 10)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!((entries.len(), entries[0].revision), (1, first));
    assert!(put(&backend, "a", 10).await.unwrap() > first);
}

#[tokio::test]
async fn claims_end_with_their_process_and_epochs_grow() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_directory(directory.path()).await.unwrap();
    let (id, before) = (store.id(), store.take_all().await.unwrap());
    let copy = crashed_copy(directory.path());
    let store = Store::open_directory(copy.path()).await.unwrap();
    let after = store.take_all().await.expect("nobody owns them any more");
    assert_eq!(store.id(), id);
    for (after, before) in after.all().iter().zip(before.all()) {
        assert!(after.epoch() > before.epoch());
    }
}

#[tokio::test]
async fn a_second_process_is_refused_and_told_who_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let backend = SqliteBackend::open(directory.path()).unwrap();
    let error = SqliteBackend::open(directory.path()).unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    assert!(
        error
            .message()
            .contains(&format!("process {}", std::process::id())),
        "{error}"
    );
    assert!(put(&backend, "a", 1).await.is_ok(), "the first goes on");
    drop(backend);
    SqliteBackend::open(directory.path()).expect("free again");
}

#[tokio::test]
async fn a_handle_opened_earlier_is_fenced_where_the_lock_does_not_hold() {
    let directory = tempfile::tempdir().unwrap();
    let old = SqliteBackend::open(directory.path()).unwrap();
    put(&old, "a", 1).await.unwrap();
    // As on a file system that does not support locks.
    fs::remove_file(directory.path().join("drover.lock")).unwrap();
    let new = SqliteBackend::open(directory.path()).unwrap();
    assert_eq!(put(&old, "b", 1).await, Err(CommitError::Fenced));
    put(&new, "b", 1).await.unwrap();
    assert_eq!(put(&old, "c", 1).await, Err(CommitError::Fenced));
}

#[test]
fn a_file_of_another_program_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(DATABASE), "these are my notes").unwrap();
    assert!(
        refused(directory.path())
            .message()
            .contains("not made by drover")
    );
    fs::remove_file(directory.path().join(DATABASE)).unwrap();
    let directory = tempfile::Builder::new()
        .prefix("odd name?#%")
        .tempdir()
        .unwrap();
    Connection::open(directory.path().join(DATABASE))
        .unwrap()
        .execute_batch("CREATE TABLE t (a)")
        .unwrap();
    assert!(
        refused(directory.path())
            .message()
            .contains("not made by drover")
    );
}

#[tokio::test]
async fn a_newer_format_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    drop(SqliteBackend::open(directory.path()).unwrap());
    let connection = Connection::open(directory.path().join(DATABASE)).unwrap();
    connection
        .pragma_update(
            None,
            "user_version",
            i64::try_from(FORMAT.version + 1).unwrap(),
        )
        .unwrap();
    drop(connection);
    let error = refused(directory.path());
    assert!(
        error.message().contains("newer version of drover"),
        "{error}"
    );
    assert!(
        error.message().contains("start the newer version"),
        "{error}"
    );
}

#[tokio::test]
async fn a_damaged_file_is_refused_after_an_unclean_stop() {
    let directory = tempfile::tempdir().unwrap();
    let backend = SqliteBackend::open(directory.path()).unwrap();
    for i in 0..300 {
        put(&backend, &format!("k{i}"), 500).await.unwrap();
    }
    drop(backend);
    let backend = SqliteBackend::open(directory.path()).unwrap();
    put(&backend, "last", 10).await.unwrap();
    let copy = crashed_copy(directory.path());
    let path = copy.path().join(DATABASE);
    let whole = fs::read(&path).unwrap();
    assert!(whole.len() > 20 * 4096);

    let mut bytes = whole.clone();
    bytes[8 * 4096..18 * 4096].fill(0xa5);
    fs::write(&path, &bytes).unwrap();
    let error = refused(copy.path());
    assert!(error.message().contains("damaged"), "{error}");
    assert!(error.message().contains("restore a backup"), "{error}");

    for cut in [0, 20, 90] {
        fs::write(&path, &whole[..cut]).unwrap();
        refused(copy.path());
    }
    fs::write(&path, &whole).unwrap();
    let backend = SqliteBackend::open(copy.path()).expect("an unclean stop alone is no damage");
    let entries = backend
        .scan(Range::all(), 50)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(entries.len(), 301);
}

#[tokio::test]
async fn a_full_disk_refuses_writes_whole_serves_reads_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        max_bytes: Some(400 * 1024),
        ..Options::default()
    };
    let backend = SqliteBackend::open_with(directory.path(), &options).unwrap();
    let mut stored = 0;
    let refusal = loop {
        let name = |half| key(&format!("{stored:04}{half}"));
        let txn = Txn::default()
            .put(name('a'), vec![7; 3000])
            .put(name('b'), vec![7; 3000]);
        match backend.commit(txn, Lane::Bulk).await {
            Ok(_) => stored += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal, CommitError::StorageFull);
    assert!(stored > 20, "{stored}");
    let count = async |backend: &SqliteBackend| {
        backend
            .scan(Range::all(), 50)
            .await
            .unwrap()
            .collect()
            .await
            .unwrap()
            .len()
    };
    assert_eq!(count(&backend).await, stored * 2, "both of a pair or none");
    backend
        .commit(Txn::default().delete(key("0000a")), Lane::Bulk)
        .await
        .expect("deletions go on");
    put(&backend, "again", 2000)
        .await
        .expect("there is space again");
    drop(backend);
    let backend = SqliteBackend::open(directory.path()).unwrap();
    assert_eq!(count(&backend).await, stored * 2);
    put(&backend, "large", LIMITS.bytes - 100)
        .await
        .expect("a larger disk");
}

fn failed_sync() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), None)
}

#[tokio::test]
async fn a_failed_sync_stops_all_writes() {
    let directory = tempfile::tempdir().unwrap();
    let (fails, stopped) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let options = Options {
        on_failed_sync: Some({
            let stopped = Arc::clone(&stopped);
            Arc::new(move |_| {
                stopped.fetch_add(1, Ordering::Relaxed);
            })
        }),
        commit_fault: Some({
            let fails = Arc::clone(&fails);
            Arc::new(move || fails.load(Ordering::Relaxed).then(failed_sync))
        }),
        ..Options::default()
    };
    let backend = SqliteBackend::open_with(directory.path(), &options).unwrap();
    put(&backend, "a", 1).await.unwrap();
    fails.store(true, Ordering::Relaxed);
    assert_eq!(put(&backend, "b", 1).await, Err(CommitError::Unknown));
    assert_eq!(stopped.load(Ordering::Relaxed), 1);
    fails.store(false, Ordering::Relaxed);
    assert!(
        matches!(
            put(&backend, "c", 1).await,
            Err(CommitError::Unavailable(_))
        ),
        "not even when the disk is well"
    );
    assert_eq!(
        backend
            .scan(Range::all(), 9)
            .await
            .unwrap()
            .collect()
            .await
            .unwrap()
            .len(),
        1,
        "reads go on"
    );
}

const CHILD: &str = "DROVER_STORE_TEST_DIRECTORY";

#[tokio::test]
#[ignore = "run by the test below, in a process of its own"]
async fn child_whose_sync_fails() {
    let options = Options {
        commit_fault: Some(Arc::new(|| Some(failed_sync()))),
        ..Options::default()
    };
    let backend = SqliteBackend::open_with(std::env::var(CHILD).unwrap(), &options).unwrap();
    let outcome = put(&backend, "a", 1).await;
    panic!("still alive after {outcome:?}");
}

#[cfg(unix)]
#[test]
fn a_failed_sync_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    const SIGABRT: i32 = 6;
    let directory = tempfile::tempdir().unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "sqlite_files::child_whose_sync_fails",
        ])
        .env(CHILD, directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(SIGABRT), "{status}");
}

#[tokio::test]
async fn a_backup_made_under_load_is_restored_and_held() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(
        Store::open_directory(directory.path().join("one"))
            .await
            .unwrap(),
    );
    let shards = store.take_all().await.unwrap();
    let (uid, _) = store.create_cluster(wanted("shop")).await.unwrap();
    add_nodes(&store, shards.of(uid), uid, 20).await;

    let writer = tokio::spawn({
        let (store, shards) = (Arc::clone(&store), shards.clone());
        async move { add_nodes(&store, shards.of(uid), uid, 200).await }
    });
    let copy = directory.path().join("copy.db");
    store.backup(&copy).await.unwrap();
    writer.await.unwrap();
    assert_eq!(check_consistent(&store, uid).await, 220);
    assert_eq!(
        store.backup(&copy).await.unwrap_err().reason(),
        Reason::AlreadyExists
    );

    let two = directory.path().join("two");
    restore(&copy, &two).await.unwrap();
    let restored = Store::open_directory(&two).await.unwrap();
    assert_eq!((restored.id(), restored.incarnation()), (store.id(), 2));
    assert!(
        restored.restored_hold(),
        "nothing may be swept before a person confirms"
    );
    assert!(restored.revision() <= store.revision());
    let nodes = check_consistent(&restored, uid).await;
    assert!((20..=220).contains(&nodes), "{nodes}");
    let newer = restored.take_all().await.unwrap();
    assert!(
        newer.of(uid).epoch() > shards.of(uid).epoch(),
        "the owner before is fenced at the platforms"
    );
    let error = restored
        .wait_revision(store.revision() + 1000)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::StoreRestored);

    restored.confirm_restore().await.unwrap();
    assert!(!restored.restored_hold());
    drop((newer, restored));
    // The background work of the store ends a moment later.
    let reopened = tokio::time::timeout(std::time::Duration::from_secs(30), async {
        loop {
            if let Ok(store) = Store::open_directory(&two).await {
                break store;
            }
            tokio::task::yield_now().await;
        }
    });
    assert!(!reopened.await.unwrap().restored_hold(), "for good");
    assert_eq!(
        restore(&copy, &two).await.unwrap_err().reason(),
        Reason::AlreadyExists
    );
}

#[tokio::test]
async fn only_a_whole_backup_of_ours_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_directory(directory.path().join("one"))
        .await
        .unwrap();
    let keys = Keyring::parse(&Keyring::generate().unwrap(), "keys").unwrap();
    store.unlock(keys).await.unwrap();
    for i in 0..200 {
        store
            .put_secret(&format!("s{i}"), vec![1; 300].into(), None)
            .await
            .unwrap();
    }
    let copy = directory.path().join("copy.db");
    store.backup(&copy).await.unwrap();
    let two = directory.path().join("two");
    let mut bytes = fs::read(&copy).unwrap();
    bytes[8 * 4096..14 * 4096].fill(0);
    let damaged = directory.path().join("damaged.db");
    fs::write(&damaged, bytes).unwrap();
    let foreign = directory.path().join("foreign.db");
    fs::write(&foreign, "no database").unwrap();
    for (from, reason) in [
        (damaged, Reason::Precondition),
        (foreign, Reason::Precondition),
        (directory.path().join("missing.db"), Reason::NotFound),
    ] {
        assert_eq!(
            restore(&from, &two).await.unwrap_err().reason(),
            reason,
            "{}",
            from.display()
        );
        assert!(!two.join(DATABASE).exists());
    }
    restore(&copy, &two)
        .await
        .expect("the directory can still be used");
}

#[tokio::test]
async fn a_scan_that_nobody_reads_does_not_keep_the_store_from_being_closed() {
    let directory = tempfile::tempdir().unwrap();
    let backend = SqliteBackend::open(directory.path()).unwrap();
    for i in 0..50 {
        put(&backend, &format!("k{i}"), 10).await.unwrap();
    }
    let mut scan = backend.scan(Range::all(), 1).await.unwrap();
    assert_eq!(scan.next().await.unwrap().unwrap().len(), 1);
    drop(backend);
    while scan.next().await.is_some() {}
    SqliteBackend::open(directory.path()).expect("closed");
}

#[tokio::test]
async fn a_full_lane_refuses_a_write_that_may_not_wait() {
    let directory = tempfile::tempdir().unwrap();
    let (blocked, gate) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicUsize::new(0)),
    );
    let options = Options {
        commit_fault: Some({
            let (blocked, gate) = (Arc::clone(&blocked), Arc::clone(&gate));
            Arc::new(move || {
                gate.fetch_add(1, Ordering::Relaxed);
                while blocked.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                None
            })
        }),
        ..Options::default()
    };
    let backend = Arc::new(SqliteBackend::open_with(directory.path(), &options).unwrap());
    let spawn = |i: usize| {
        let backend = Arc::clone(&backend);
        tokio::spawn(async move { put(&*backend, &format!("k{i}"), 1).await })
    };
    let first = spawn(0);
    while gate.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    // One is being synced; these fill the lane, and more wait for a place in it.
    let rest: Vec<_> = (1..1100).map(spawn).collect();
    let impatient = Txn {
        max_wait: Some(std::time::Duration::from_millis(20)),
        ..Txn::default()
    };
    let mut refused = 0;
    while refused == 0 {
        let txn = impatient.clone().put(key("impatient"), "x");
        let waiting = tokio::time::timeout(
            std::time::Duration::from_millis(100),
            backend.commit(txn, Lane::Bulk),
        );
        if let Ok(outcome) = waiting.await {
            assert_eq!(outcome, Err(CommitError::Overloaded));
            refused += 1;
        }
    }
    let urgent = tokio::spawn({
        let backend = Arc::clone(&backend);
        let txn = impatient.put(key("urgent"), "x");
        async move { backend.commit(txn, Lane::Urgent).await }
    });
    // It takes its place.
    tokio::task::yield_now().await;
    blocked.store(false, Ordering::Relaxed);
    let urgent = urgent.await.unwrap().expect("the other lane has places");
    let first = first.await.unwrap().unwrap();
    let mut last = 0;
    for commit in rest {
        last = last.max(commit.await.unwrap().expect("who may wait is served"));
    }
    assert_eq!(first + 1, urgent, "urgent first");
    assert!(last >= 1100);
}

#[tokio::test]
async fn a_deleted_uid_is_not_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_directory(directory.path()).await.unwrap();
    assert_eq!(
        store
            .event_bounds(Uuid::now_v7())
            .await
            .unwrap_err()
            .reason(),
        Reason::NotFound
    );
}
