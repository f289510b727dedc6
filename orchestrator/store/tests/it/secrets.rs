//! Encryption of secrets and user data: with a key, with another one, interrupted in between, and with the wrong one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, sync::Arc};

use drover_core::{Reason, spec::digest};
use drover_store::{
    Along, Backend, Bytes, Desired, Keyring, Store, UserData,
    backend::{Entry, Range},
    keys::{Key, Name},
    sqlite::DATABASE,
};
use drover_testing::store::{Fault, FaultBackend, MemoryBackend, conformance::wanted};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

const SECRET: &str = "correct horse battery staple";
const DATA: &str = "#cloud-config\ntoken: hush-hush\n";

fn line() -> String {
    Keyring::generate().unwrap()
}

fn ring(lines: &[&String]) -> Keyring {
    let text: String = lines.iter().map(|line| line.as_str()).collect();
    Keyring::parse(&text, "/etc/drover/keys").unwrap()
}

/// All stored keys and values, as they are on the disk.
async fn raw(backend: &Arc<dyn Backend>) -> String {
    let scan = backend.scan(Range::all(), 100).await.unwrap();
    let entries = scan.collect().await.unwrap().into_iter();
    let lines =
        entries.map(|entry| format!("{} {}\n", entry.key, String::from_utf8_lossy(&entry.value)));
    lines.collect()
}

fn data(texts: &[&str]) -> UserData {
    let put = texts.iter().map(|text| {
        let data = Bytes::copy_from_slice(text.as_bytes());
        (digest(&data), data)
    });
    UserData {
        put: put.collect::<BTreeMap<_, _>>(),
        drop: Vec::new(),
    }
}

async fn make(store: &Store, texts: &[&str]) -> Uuid {
    let desired: Desired = wanted("orders");
    let uid = Uuid::now_v7();
    let made = store.create_cluster_with(uid, desired, data(texts)).await;
    made.unwrap();
    uid
}

async fn read(store: &Store, uid: Uuid, text: &str) -> Bytes {
    let found = store.user_data(uid, &digest(text.as_bytes())).await;
    found.unwrap().expect("user data")
}

#[tokio::test]
async fn with_a_key_nothing_secret_is_readable_at_rest() {
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new());
    let key = line();
    let store = Store::open(backend.clone()).await.unwrap();
    // Stored before there was a key.
    let uid = make(&store, &[DATA]).await;
    assert!(raw(&backend).await.contains("hush"));
    assert_eq!(store.unlock(ring(&[&key])).await.unwrap(), 1);
    store
        .put_secret("db", SECRET.into(), Some(0))
        .await
        .unwrap();
    let at = store.desired(uid).await.unwrap().unwrap();
    let more = Along {
        data: data(&["second hush"]),
        ..Along::default()
    };
    store
        .update_desired_with(uid, at.revision, at.value, more)
        .await
        .unwrap();
    let stored = raw(&backend).await;
    assert!(
        !stored.contains("hush") && !stored.contains("horse"),
        "{stored}"
    );
    assert_eq!(
        &*store.secret("db").await.unwrap().unwrap().value,
        SECRET.as_bytes()
    );
    assert_eq!(&*read(&store, uid, DATA).await, DATA.as_bytes());
    assert_eq!(&*read(&store, uid, "second hush").await, b"second hush");

    // The next start finds all of it encrypted, and refuses to continue without the key.
    drop(store);
    let store = Store::open(backend).await.unwrap();
    let refused = store.require_keys().unwrap_err();
    assert_eq!(refused.reason(), Reason::Precondition);
    assert!(refused.message().contains("secrets.key_file"), "{refused}");
    assert_eq!(store.unlock(ring(&[&key])).await.unwrap(), 0);
    store.require_keys().unwrap();
    assert_eq!(&*read(&store, uid, DATA).await, DATA.as_bytes());
}

#[tokio::test]
async fn a_store_without_secrets_needs_no_key_and_takes_none() {
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new());
    let store = Store::open(backend).await.unwrap();
    store.require_keys().unwrap();
    let refused = store
        .put_secret("db", SECRET.into(), None)
        .await
        .unwrap_err();
    assert_eq!(refused.reason(), Reason::Precondition);
    assert!(refused.message().contains("secrets.key_file"), "{refused}");
    assert!(!refused.message().contains("horse"));
}

/// What is stored beside what belongs to processes.
async fn kept(backend: &dyn Backend) -> Vec<Entry> {
    let scan = backend.scan(Range::all(), 100).await.unwrap();
    let mut entries = scan.collect().await.unwrap();
    entries.retain(|entry| !entry.key.is_leased());
    entries
}

#[tokio::test]
async fn the_wrong_key_is_refused_with_the_file_and_changes_nothing() {
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new());
    let (right, wrong) = (line(), line());
    let store = Store::open(backend.clone()).await.unwrap();
    store.unlock(ring(&[&right])).await.unwrap();
    store.put_secret("db", SECRET.into(), None).await.unwrap();
    let uid = make(&store, &[DATA]).await;
    drop(store);
    let before = kept(&*backend).await;
    let store = Store::open(backend.clone()).await.unwrap();
    let refused = store.unlock(ring(&[&wrong])).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Precondition);
    assert!(refused.message().contains("/etc/drover/keys"), "{refused}");
    assert_eq!(kept(&*backend).await, before);
    // The way out: the old key together with the new one.
    drop(store);
    let store = Store::open(backend.clone()).await.unwrap();
    assert_eq!(store.unlock(ring(&[&wrong, &right])).await.unwrap(), 2);
    drop(store);
    let store = Store::open(backend).await.unwrap();
    assert_eq!(store.unlock(ring(&[&wrong])).await.unwrap(), 0, "rotated");
    assert_eq!(
        &*store.secret("db").await.unwrap().unwrap().value,
        SECRET.as_bytes()
    );
    assert_eq!(&*read(&store, uid, DATA).await, DATA.as_bytes());
}

#[tokio::test]
async fn a_value_that_somebody_moved_or_changed_is_refused() {
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new());
    let key = line();
    let store = Store::open(backend.clone()).await.unwrap();
    store.unlock(ring(&[&key])).await.unwrap();
    store
        .put_secret("weak", "guessed".into(), None)
        .await
        .unwrap();
    store
        .put_secret("strong", SECRET.into(), None)
        .await
        .unwrap();
    let entry = |name: &str| Key::from(Name::Secret(name.to_owned()));
    let weak = backend.get(&entry("weak")).await.unwrap().unwrap();
    let txn = drover_store::backend::Txn::default().put(entry("strong"), weak.value);
    backend.commit(txn, drover_store::Lane::Bulk).await.unwrap();
    let refused = store.secret("strong").await.unwrap_err();
    assert!(refused.message().contains("s/strong"), "{refused}");
    assert!(!refused.message().contains("guessed"));
}

/// The row of a secret in the database file.
fn row(file: &std::path::Path, name: &str) -> Option<(i64, Vec<u8>)> {
    let key = Key::from(Name::Secret(name.to_owned()));
    let file = Connection::open(file).unwrap();
    let row = file.query_row(
        "SELECT rev, v FROM state WHERE k = ?1",
        [key.as_bytes()],
        |row| Ok((row.get(0)?, row.get(1)?)),
    );
    row.optional().unwrap()
}

fn put_row(file: &std::path::Path, name: &str, (rev, value): &(i64, Vec<u8>)) {
    let key = Key::from(Name::Secret(name.to_owned()));
    let file = Connection::open(file).unwrap();
    let sql = "INSERT OR REPLACE INTO state (k, rev, v) VALUES (?1, ?2, ?3)";
    file.execute(sql, params![key.as_bytes(), rev, value])
        .unwrap();
}

#[tokio::test]
async fn an_old_row_of_a_secret_that_somebody_put_back_is_refused_and_the_others_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(DATABASE);
    let key = line();
    let store = Store::open_directory(directory.path()).await.unwrap();
    store.unlock(ring(&[&key])).await.unwrap();
    for name in ["db", "gone", "other"] {
        store.put_secret(name, "leaked".into(), None).await.unwrap();
    }
    let [db, gone] = ["db", "gone"].map(|name| row(&file, name).unwrap());
    store.put_secret("db", SECRET.into(), None).await.unwrap();
    store.delete_secret("gone", None).await.unwrap();
    assert_ne!(row(&file, "db").unwrap(), db);
    assert_eq!(row(&file, "gone"), None);

    put_row(&file, "db", &db);
    put_row(&file, "gone", &gone);
    for name in ["db", "gone"] {
        let refused = store.secret(name).await.unwrap_err();
        assert_eq!(refused.reason(), Reason::Precondition);
        let words = format!("what is stored under s/{name} was changed by somebody else");
        assert!(refused.message().contains(&words), "{refused}");
        assert!(!refused.message().contains("leaked"));
    }
    let other = store.secret("other").await.unwrap().unwrap();
    assert_eq!(&*other.value, b"leaked");
    // Written again, it is readable again.
    store.put_secret("db", SECRET.into(), None).await.unwrap();
    let again = store.secret("db").await.unwrap().unwrap();
    assert_eq!(&*again.value, SECRET.as_bytes());
}

/// A rotation is interrupted before and after each of its commits; the next start completes it, with nothing lost and
/// nothing readable.
#[tokio::test]
async fn a_rotation_that_is_cut_off_goes_on_at_the_next_start() {
    let mut commits = 0;
    for nth in 1.. {
        let mut crashed = false;
        for fault in [Fault::CrashBefore, Fault::CrashAfter] {
            let inner: Arc<dyn Backend> = Arc::new(MemoryBackend::new());
            let faulty = Arc::new(FaultBackend::new(inner.clone()));
            let backend: Arc<dyn Backend> = faulty.clone();
            let (old, new) = (line(), line());
            let store = Store::open(backend.clone()).await.unwrap();
            let uid = make(&store, &[DATA, "other hush"]).await;
            store.unlock(ring(&[&old])).await.unwrap();
            for name in ["a", "b"] {
                store.put_secret(name, SECRET.into(), None).await.unwrap();
            }
            drop(store);
            let store = Store::open(backend.clone()).await.unwrap();
            faulty.inject(nth, fault);
            let outcome = tokio::select! {
                outcome = store.unlock(ring(&[&new, &old])) => Some(outcome),
                () = faulty.wait_crash() => None,
            };
            crashed |= faulty.crashed();
            if let Some(Ok(changed)) = outcome
                && !faulty.crashed()
            {
                assert_eq!(changed, 4);
            }
            drop(store);
            faulty.restart();
            assert!(!raw(&inner).await.contains("hush"));
            // With only one of the two keys, the store either refuses to start or can read everything.
            let store = Store::open(backend.clone()).await.unwrap();
            store.require_keys().unwrap_err();
            if store.unlock(ring(&[&old])).await.is_ok() {
                assert_eq!(&*read(&store, uid, DATA).await, DATA.as_bytes());
            }
            drop(store);
            let store = Store::open(backend.clone()).await.unwrap();
            store.unlock(ring(&[&new, &old])).await.unwrap();
            drop(store);
            let store = Store::open(backend.clone()).await.unwrap();
            assert_eq!(
                store.unlock(ring(&[&new])).await.unwrap(),
                0,
                "{nth} {fault:?}"
            );
            for name in ["a", "b"] {
                let secret = store.secret(name).await.unwrap().unwrap();
                assert_eq!(&*secret.value, SECRET.as_bytes());
            }
            assert_eq!(&*read(&store, uid, DATA).await, DATA.as_bytes());
            assert_eq!(&*read(&store, uid, "other hush").await, b"other hush");
            assert!(!raw(&inner).await.contains("hush"));
        }
        if !crashed {
            break;
        }
        commits = nth;
    }
    assert!(
        commits >= 6,
        "two of the store itself and four values: {commits}"
    );
}

#[test]
fn a_key_file_is_refused_by_name_if_it_is_open_to_others_or_no_key_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("secrets.key");
    let wrong = |path: &std::path::Path| {
        let error = Keyring::read(path).unwrap_err();
        assert_eq!(error.reason(), Reason::Invalid);
        let message = error.message().to_owned();
        assert!(message.contains("secrets.key"), "{message}");
        message
    };
    assert!(wrong(&path).contains("cannot be read"));
    fs::write(&path, line()).unwrap();
    for mode in [0o644, 0o660, 0o604, 0o777] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let why = wrong(&path);
        assert!(
            why.contains(&format!("{mode:04o}")) && why.contains("chmod"),
            "{why}"
        );
    }
    for mode in [0o600, 0o400, 0o640] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Keyring::read(&path).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, "hunter2\n").unwrap();
    let why = wrong(&path);
    assert!(why.contains("line 1") && !why.contains("hunter2"), "{why}");
    fs::write(&path, [0xff, 0xfe]).unwrap();
    wrong(&path);
    let folder = directory.path().join("secrets.key.d");
    fs::create_dir(&folder).unwrap();
    assert!(wrong(&folder).contains("is not a file"));
}

#[tokio::test]
async fn the_key_of_digests_stays_the_same_and_is_encrypted_as_secrets_are() {
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new());
    let open = async || Store::open(backend.clone()).await.unwrap();
    let known = async |store: &Store| store.digest_key().await.unwrap().secret(b"hush");
    let first = known(&open().await).await;
    assert_eq!(known(&open().await).await, first, "made once");

    // With a key for the first time, and with another one later.
    let (old, new) = (line(), line());
    for ring in [ring(&[&old]), ring(&[&new, &old]), ring(&[&new])] {
        let store = open().await;
        store.unlock(ring).await.unwrap();
        assert_eq!(known(&store).await, first);
    }
    let other = Store::open(Arc::new(MemoryBackend::new())).await.unwrap();
    assert_ne!(known(&other).await, first, "each store has its own");
}
