//! A user who logs in to etcd with a password.

use std::{path::PathBuf, time::Duration};

use drover_core::{Error, Reason};
use drover_store::{
    Backend, Lane,
    backend::{CommitError, Range, Txn},
};
use drover_store_etcd::{EtcdBackend, EtcdSettings};
use drover_testing::{etcd::Etcd, store::conformance::eventually};
use futures::future::join_all;
use tempfile::TempDir;

use crate::{
    one::{key, names, settings},
    users::{self, PASSWORD},
};

const ANOTHER: &str = "staple";
const LEASE: Duration = Duration::from_secs(30);

/// An etcd with users, and the file with the password of one of them.
struct Site {
    etcd: Etcd,
    directory: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self {
            etcd: Etcd::start(1),
            directory: tempfile::tempdir().unwrap(),
        };
        users::make(&site.etcd);
        site.write(&format!("{PASSWORD}\n"));
        site
    }

    fn that_asks() -> Self {
        let site = Self::new();
        users::ask(&site.etcd, true);
        site
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("password")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.file(), text).unwrap();
    }

    fn settings(&self, user: &str) -> EtcdSettings {
        EtcdSettings {
            user: Some(user.to_owned()),
            password_file: Some(self.file()),
            ..settings(&self.etcd, "drover/")
        }
    }

    async fn open(&self) -> EtcdBackend {
        EtcdBackend::open(&self.settings("drover")).await.unwrap()
    }

    /// Has etcd know no login of the user any more.
    fn change_password(&self, password: &str) {
        self.write(password);
        users::change_password(&self.etcd, password);
    }
}

fn put(name: &str) -> Txn {
    Txn::default().put(key(name), "1")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_a_password_commits_reads_watches_and_has_leases_with_one_login() {
    let site = Site::that_asks();
    let backend = site.open().await;
    let mut watch = backend.watch(0).await.unwrap();
    let lease = backend.lease(LEASE).await.unwrap();
    let revision = backend.commit(put("a"), Lane::Bulk).await.unwrap();
    assert_eq!(watch.next().await.unwrap().revision, revision);
    assert_eq!(names(&backend).await, ["n/a"]);
    backend.renew(lease.id).await.unwrap();
    backend.revoke(lease.id).await.unwrap();
    assert_eq!(users::logins(&site.etcd), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_do_not_notice_that_etcd_knows_their_login_no_more() {
    let site = Site::that_asks();
    let backend = site.open().await;
    let lease = backend.lease(LEASE).await.unwrap();
    let before = users::logins(&site.etcd);

    site.change_password(ANOTHER);
    let all: Vec<String> = (10..74).map(|i| i.to_string()).collect();
    let commits = all.iter().map(|name| backend.commit(put(name), Lane::Bulk));
    for done in join_all(commits).await {
        done.unwrap();
    }
    let by_root = 1;
    assert_eq!(
        users::logins(&site.etcd) - before,
        by_root + 1,
        "one for all of them"
    );

    site.change_password(PASSWORD);
    assert_eq!(names(&backend).await.len(), all.len());
    site.change_password(ANOTHER);
    backend.lease(LEASE).await.unwrap();
    backend.renew(lease.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_when_etcd_was_restarted_and_knows_no_login() {
    let mut site = Site::that_asks();
    let backend = site.open().await;
    // With a login of its own, so that the watch gets none from it.
    let writer = site.open().await;
    let first = writer.commit(put("a"), Lane::Bulk).await.unwrap();
    let mut watch = backend.watch(0).await.unwrap();
    assert_eq!(watch.next().await.unwrap().revision, first);
    site.change_password(ANOTHER);
    site.etcd.kill(0);
    site.etcd.restart(0);
    assert!(site.etcd.is_up());
    let second = loop {
        if let Ok(revision) = writer.commit(put("a"), Lane::Bulk).await {
            break revision;
        }
    };
    while watch.next().await.unwrap().revision < second {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_may_begin_and_cease_to_ask_who_calls() {
    let site = Site::new();
    let backend = site.open().await;
    backend.commit(put("a"), Lane::Bulk).await.unwrap();
    users::ask(&site.etcd, true);
    backend.commit(put("b"), Lane::Bulk).await.unwrap();
    users::ask(&site.etcd, false);
    backend.commit(put("c"), Lane::Bulk).await.unwrap();
    assert_eq!(names(&backend).await, ["n/a", "n/b", "n/c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_told_to_callers_until_the_file_holds_the_right_one() {
    let site = Site::that_asks();
    let backend = site.open().await;
    users::change_password(&site.etcd, ANOTHER);
    let error = backend.commit(put("a"), Lane::Bulk).await.unwrap_err();
    assert!(matches!(error, CommitError::Unavailable(_)), "{error:?}");
    let read = backend.scan(Range::all(), 1).await.unwrap_err();
    assert_eq!(read.reason(), Reason::Precondition);
    for said in [error.to_string(), read.to_string()] {
        assert!(said.contains("etcd refuses user \"drover\""), "{said}");
        assert!(!said.contains(PASSWORD), "{said}");
    }
    site.write(ANOTHER);
    eventually("it logs in again", async || {
        backend.commit(put("a"), Lane::Bulk).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_log_in_is_told_why_and_never_the_password() {
    let site = Site::that_asks();
    let file = |name: &str, content: &str| {
        let path = site.directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        Some(path)
    };
    let with = |change: &dyn Fn(&mut EtcdSettings)| {
        let mut settings = site.settings("drover");
        change(&mut settings);
        settings
    };
    let open = async |settings: EtcdSettings| -> Error {
        let error = EtcdBackend::open(&settings).await.unwrap_err();
        for secret in [PASSWORD, ANOTHER] {
            assert!(!format!("{error:?}").contains(secret), "{error}");
            assert!(!format!("{settings:?}").contains(secret));
        }
        error
    };

    let wrong = file("wrong", ANOTHER);
    for (settings, user) in [
        (with(&|s| s.password_file.clone_from(&wrong)), "\"drover\""),
        (site.settings("nobody"), "\"nobody\""),
        (site.settings("shown"), "\"shown\""),
    ] {
        let error = open(settings).await;
        assert_eq!(error.reason(), Reason::Precondition, "{error}");
        let said = format!("etcd refuses user {user}: authentication failed");
        assert!(error.message().contains(&said), "{error}");
    }

    let empty = file("empty", "\n");
    let rows: [(EtcdSettings, &str, &str); 7] = [
        (
            with(&|s| s.password_file = Some("/nowhere/password".into())),
            "etcd.password_file",
            "/nowhere/password: No such file",
        ),
        (
            with(&|s| s.password_file.clone_from(&empty)),
            "etcd.password_file",
            "empty: holds no password",
        ),
        (
            with(&|s| s.password_file = None),
            "etcd.password_file",
            "together",
        ),
        (with(&|s| s.user = None), "etcd.user", "together"),
        (
            with(&|s| s.user = Some(String::new())),
            "etcd.user",
            "empty",
        ),
        (
            with(&|s| s.endpoints = vec!["http://192.0.2.1:2379".into()]),
            "etcd.endpoints[0]",
            "a password needs https://",
        ),
        (
            with(&|s| s.endpoints.push("http://etcd.example:2379".into())),
            "etcd.endpoints[1]",
            "a password needs https://",
        ),
    ];
    for (settings, field, why) in rows {
        let error = open(settings).await;
        assert_eq!(error.fields()[0].field, field, "{error}");
        assert!(error.message().contains(why), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_user_has_no_role_for_can_be_neither_read_nor_changed() {
    let site = Site::that_asks();
    let backend = site.open().await;
    backend.commit(put("a"), Lane::Bulk).await.unwrap();

    let other = EtcdBackend::new(&site.settings("other")).unwrap();
    let read = other.scan(Range::all(), 1).await.unwrap_err();
    assert_eq!(read.reason(), Reason::Precondition);
    let changed = other.commit(put("b"), Lane::Bulk).await.unwrap_err();
    assert!(
        matches!(changed, CommitError::Unavailable(_)),
        "{changed:?}"
    );
    for said in [read.to_string(), changed.to_string()] {
        assert!(said.contains("permission denied"), "{said}");
    }
    assert_eq!(names(&backend).await, ["n/a"]);
}
