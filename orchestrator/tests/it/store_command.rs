//! `drover-orchestrator store`, used like a person would.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{path::Path, process::Output};

use drover_testing::etcd::Etcd;

fn store(directory: &Path, arguments: &[&str]) -> Output {
    drover_testing::processes::program(env!("CARGO_BIN_EXE_drover-orchestrator"))
        .arg("store")
        .args(arguments)
        .arg("--data-dir")
        .arg(directory)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_copied_restored_held_and_confirmed() {
    let home = tempfile::tempdir().unwrap();
    let (first, second, copy) = (
        home.path().join("a"),
        home.path().join("b"),
        home.path().join("copy"),
    );
    let opened = drover_store::Store::open_directory(&first).await.unwrap();
    let desired = drover_store::Desired {
        name: "orders".into(),
        generation: 3,
        ..Default::default()
    };
    opened.create_cluster(desired).await.unwrap();
    // While the store is in use, other commands fail and name its owner, but a backup is possible.
    let live = home.path().join("live");
    assert!(
        store(&first, &["backup", live.to_str().unwrap()])
            .status
            .success()
    );
    let refused = store(&first, &["dump"]);
    assert!(
        !refused.status.success() && said(&refused).contains(&std::process::id().to_string()),
        "{}",
        said(&refused)
    );
    opened.close().await.unwrap();

    let file = copy.to_str().unwrap();
    assert!(store(&first, &["backup", file]).status.success());
    assert!(
        !store(&first, &["backup", file]).status.success(),
        "a copy is never overwritten"
    );
    let restored = store(&second, &["restore", file]);
    assert!(
        restored.status.success() && said(&restored).contains("confirm-restore"),
        "{}",
        said(&restored)
    );
    assert!(
        !store(&second, &["restore", file]).status.success(),
        "a store is never overwritten"
    );

    let dump = store(&second, &["dump"]);
    let lines = String::from_utf8(dump.stdout).unwrap();
    assert!(
        lines
            .lines()
            .all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
    );
    assert!(lines.contains("\"orders\""), "{lines}");

    assert!(said(&store(&second, &["confirm-restore"])).contains("confirmed"));
    assert!(said(&store(&second, &["confirm-restore"])).contains("nothing waits"));
}

#[test]
fn a_directory_without_a_store_is_named_and_nothing_is_made_there() {
    let home = tempfile::tempdir().unwrap();
    let nowhere = home.path().join("nowhere");
    let refused = store(&nowhere, &["dump"]);
    assert!(
        !refused.status.success() && said(&refused).contains("nowhere"),
        "{}",
        said(&refused)
    );
    assert!(!nowhere.exists());
}

/// Offsets of the format version and of the application id in the first page of an SQLite file.
const VERSION: usize = 60;
const OWNER: usize = 68;

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_newer_foreign_or_damaged_is_refused_and_left_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("store");
    let opened = drover_store::Store::open_directory(&directory)
        .await
        .unwrap();
    opened.close().await.unwrap();
    let path = directory.join("drover.db");
    let whole = std::fs::read(&path).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let copy = home.path().join("copy");
    for (content, words) in [
        (
            with(VERSION, &2_u32.to_be_bytes()),
            "has format 2, which a newer version of drover wrote",
        ),
        (with(OWNER, b"mine"), "was not made by drover"),
        (b"no database at all".to_vec(), "was not made by drover"),
        (whole[..50].to_vec(), "is damaged"),
        (Vec::new(), "is damaged"),
    ] {
        std::fs::write(&path, &content).unwrap();
        let copy = copy.to_str().unwrap();
        for arguments in [&["dump"][..], &["backup", copy], &["confirm-restore"]] {
            let refused = store(&directory, arguments);
            let why = said(&refused);
            assert!(
                !refused.status.success() && why.contains(words),
                "{arguments:?}: {why}"
            );
        }
        // The server itself, which would otherwise keep running.
        let server = drover_testing::processes::program(env!("CARGO_BIN_EXE_drover-orchestrator"))
            .args(["--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&directory)
            .output()
            .unwrap();
        assert!(
            !server.status.success() && said(&server).contains(words),
            "{}",
            said(&server)
        );
        assert!(
            std::fs::read(&path).unwrap() == content,
            "{words}: it was changed"
        );
    }
    assert!(!home.path().join("copy").exists());
    std::fs::write(&path, &whole).unwrap();
    assert!(store(&directory, &["dump"]).status.success());
}

/// The same for a store in etcd.
fn in_etcd(etcd: &Etcd, arguments: &[&str]) -> Output {
    drover_testing::processes::program(env!("CARGO_BIN_EXE_drover-orchestrator"))
        .arg("store")
        .args(arguments)
        .args(["--etcd-endpoint", &etcd.endpoints()[0]])
        .output()
        .unwrap()
}

fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "it is refused");
    said(output)
}

/// What is stored of clusters, without the revisions, which each store counts for itself.
fn clusters(dump: &str) -> Vec<serde_json::Value> {
    let lines = dump.lines().map(|line| serde_json::from_str(line).unwrap());
    lines
        .map(|mut line: serde_json::Value| {
            line.as_object_mut().unwrap().remove("revision");
            line
        })
        .filter(|line| line.to_string().contains("orders"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_moves_from_a_directory_to_etcd_and_back() {
    let home = tempfile::tempdir().unwrap();
    let [first, second] = ["a", "b"].map(|name| home.path().join(name));
    let [there, back] = ["there", "back"].map(|name| home.path().join(name));
    let [there, back] = [there.to_str().unwrap(), back.to_str().unwrap()];
    let opened = drover_store::Store::open_directory(&first).await.unwrap();
    let desired = drover_store::Desired {
        name: "orders".into(),
        generation: 3,
        ..Default::default()
    };
    opened.create_cluster(desired).await.unwrap();
    opened.close().await.unwrap();
    let before = clusters(&done(&store(&first, &["dump"])));
    assert!(!before.is_empty());

    let etcd = Etcd::start(1);
    let why = refused(&in_etcd(&etcd, &["export", there]));
    assert!(why.contains("there is no store in drover/ at"), "{why}");
    done(&store(&first, &["export", there]));
    let why = refused(&store(&first, &["export", there]));
    assert!(why.contains("there"), "it is never overwritten: {why}");
    let imported = in_etcd(&etcd, &["import", there]);
    done(&imported);
    assert!(said(&imported).contains("confirm-restore"), "held");
    refused(&in_etcd(&etcd, &["import", there]));
    assert_eq!(clusters(&done(&in_etcd(&etcd, &["dump"]))), before);
    assert!(said(&in_etcd(&etcd, &["confirm-restore"])).contains("confirmed"));
    assert!(said(&in_etcd(&etcd, &["confirm-restore"])).contains("nothing waits"));
    for arguments in [&["backup", back][..], &["restore", there]] {
        let why = refused(&in_etcd(&etcd, arguments));
        assert!(why.contains("store export"), "{why}");
    }

    done(&in_etcd(&etcd, &["export", back]));
    done(&store(&second, &["import", back]));
    assert_eq!(clusters(&done(&store(&second, &["dump"]))), before);
    refused(&store(&second, &["import", back]));
}

#[test]
fn a_file_of_the_password_for_etcd_that_cannot_be_read_is_named() {
    for action in ["dump", "maintain"] {
        let output = drover_testing::processes::program(env!("CARGO_BIN_EXE_drover-orchestrator"))
            .args(["store", action, "--etcd-endpoint", "http://127.0.0.1:1"])
            .args(["--etcd-user", "drover"])
            .args(["--etcd-password-file", "/nowhere/password"])
            .output()
            .unwrap();
        let why = refused(&output);
        assert!(
            why.contains("etcd.password_file: /nowhere/password"),
            "{why}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_does_not_answer_is_named_and_a_file_that_is_no_export_makes_no_store() {
    let home = tempfile::tempdir().unwrap();
    let nowhere = drover_testing::processes::program(env!("CARGO_BIN_EXE_drover-orchestrator"))
        .args(["store", "dump", "--etcd-endpoint", "http://127.0.0.1:1"])
        .output()
        .unwrap();
    let why = refused(&nowhere);
    assert!(
        why.contains("no member of etcd answers (http://127.0.0.1:1)"),
        "{why}"
    );
    let etcd = Etcd::start(1);
    let file = home.path().join("file");
    for content in [&b""[..], b"no export", b"{}\n"] {
        std::fs::write(&file, content).unwrap();
        refused(&in_etcd(&etcd, &["import", file.to_str().unwrap()]));
        let why = refused(&in_etcd(&etcd, &["dump"]));
        assert!(why.contains("there is no store"), "{why}");
    }
}
