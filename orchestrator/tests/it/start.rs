//! Configured files that cannot be read prevent the start, and are named as the cause.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::{collections::BTreeMap, path::Path, process::Stdio, time::Duration};

use drover_testing::certs::Authority;
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts the server, which must fail on its own. Returns its error output.
fn start(directory: &Path, flags: &BTreeMap<&str, String>) -> String {
    let mut child = drover_testing::processes::program(env!("CARGO_BIN_EXE_drover-orchestrator"))
        .args(["--listen", "127.0.0.1:0", "--data-dir"])
        .arg(directory.join("store"))
        .args(flags.iter().flat_map(|(flag, file)| [*flag, file.as_str()]))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let said = child.wait_with_output().unwrap().stderr;
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(!status.success(), "{flags:?}: {said}");
            return said;
        }
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it runs: {flags:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn each_file_that_is_missing_unreadable_or_nonsense_is_named() {
    let authority = Authority::new("ours");
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let server = authority.server();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    std::fs::write(at("access.yaml"), "bindings: []").unwrap();
    let good: BTreeMap<&str, String> = [
        ("--tls-cert", text(&server.cert)),
        ("--tls-key", text(&server.key)),
        ("--tls-client-ca", text(&authority.ca())),
        ("--access", at("access.yaml")),
        ("--platform-ca", text(&authority.ca())),
    ]
    .into();
    std::fs::write(at("nonsense"), "bindings: 7\n").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    for flag in good.keys().copied().chain(["--config"]) {
        for bad in ["missing", "folder", "nonsense"] {
            let mut flags = good.clone();
            flags.insert(flag, at(bad));
            let said = start(directory.path(), &flags);
            assert!(said.contains(&at(bad)), "{flag} {bad}: {said}");
            assert!(!said.contains("-----BEGIN"), "{said}");
        }
    }
    let mut flags = good.clone();
    flags.insert("--audit-log", at("missing/audit.jsonl"));
    let said = start(directory.path(), &flags);
    assert!(said.contains(&at("missing/audit.jsonl")), "{said}");
}
