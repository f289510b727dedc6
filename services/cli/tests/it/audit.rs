//! `drover audit` with the log of a server.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use drover_orchestrator::{Orchestrator, Settings};
use drover_server::{ServerSettings, Shutdown};
use serde_json::Value;

use crate::secure::drover;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_checked_offline_and_the_exit_code_says_whether_it_is_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let orchestrator = Orchestrator::open(&Settings {
        data_dir: here.join("data"),
        ..Settings::default()
    })
    .await
    .unwrap();
    let settings = ServerSettings {
        audit_log: Some(here.join("audit.jsonl")),
        ..ServerSettings::default()
    };
    let listener = drover_server::listen(&settings).await.unwrap();
    let running =
        drover_server::spawn(orchestrator.service(), listener, &settings, Shutdown::new()).unwrap();
    let url = format!("http://{}", running.address());
    for name in ["one", "two", "three"] {
        let (code, text) = drover(here, &["pause", name, "--server", &url]).await;
        assert_eq!(code, 3, "{text}");
    }
    running.shutdown().await;
    orchestrator.shutdown().await;

    let verify = async |more: &[&str]| {
        let arguments = [&["audit", "verify", "audit.jsonl"], more].concat();
        drover(here, &arguments).await
    };
    let (code, text) = verify(&[]).await;
    assert_eq!(code, 0, "{text}");
    assert!(
        text.starts_with("3 lines as written, 1 to 3; the last one has "),
        "{text}"
    );
    let (code, text) = verify(&["-o", "json"]).await;
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &report["lines"], &report["problem"]),
        (0, &3.into(), &Value::Null)
    );
    let hash = report["hash"].as_str().unwrap();
    assert!(verify(&[]).await.1.trim_end().ends_with(hash));
    assert_eq!(verify(&["--expect", hash]).await.0, 0);
    assert_eq!(verify(&["--expect", &"0".repeat(64)]).await.0, 1);
    assert_eq!(verify(&["--expect", "0"]).await.0, 64);
    assert_eq!(verify(&["missing.jsonl"]).await.0, 3);

    let log = here.join("audit.jsonl");
    let changed = std::fs::read_to_string(&log)
        .unwrap()
        .replace("cluster/two", "cluster/2");
    std::fs::write(&log, changed).unwrap();
    let (code, text) = verify(&[]).await;
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("audit.jsonl:2: it was edited"), "{text}");
    let (code, text) = verify(&["-o", "json"]).await;
    assert!(code == 1 && text.contains("\"edited\""), "{text}");

    let digest = async |command: &[&str]| {
        let arguments = [
            &["audit", "digest", "--key", "audit.jsonl.key", "--"],
            command,
        ]
        .concat();
        drover(here, &arguments).await
    };
    let (code, text) = digest(&["/bin/redis-cli", "flushall"]).await;
    assert!(code == 0 && text.contains("\"redis-cli\""), "{text}");
    assert_eq!(digest(&["/bin/redis-cli", "flushall"]).await.1, text);
    assert_ne!(digest(&["/bin/redis-cliflushall"]).await.1, text);
}
