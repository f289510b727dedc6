//! The content of the audit log.

use drover_client::connect;
use drover_proto::platform::v1::node_access_service_client::NodeAccessServiceClient;
use drover_server::ServerSettings;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use drover_testing::certs::replace;

use crate::access::{
    TOKENS, at, call,
    common::{eventually, follow},
    http, start,
};

#[tokio::test]
async fn an_audit_log_that_is_moved_away_goes_on_in_a_new_file() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    let rules = directory.path().join("access.yaml");
    replace(&rules, TOKENS);
    let settings = ServerSettings {
        access: Some(rules),
        audit_log: Some(log.clone()),
        audit_reads: true,
        ..ServerSettings::default()
    };
    let running = start(&settings).await;
    let target = at(running.address(), "platform-0123456789");
    let lines = || std::fs::read_to_string(&log).map_or(0, |text| text.lines().count());
    call(&target).await.unwrap();
    eventually("a line", async || lines() == 1).await;
    let old = directory.path().join("audit.jsonl.1");
    std::fs::rename(&log, &old).unwrap();
    eventually("a line in the new file", async || {
        call(&target).await.unwrap();
        lines() > 0
    })
    .await;
    assert_eq!(http(running.address(), "/discover", None).await, 401);
    eventually("the refusal", async || {
        std::fs::read_to_string(&log)
            .unwrap()
            .contains("\"GET /discover\"")
    })
    .await;
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&log).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_stream_that_changes_something_is_written_down_when_it_begins_and_when_it_ends() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    let rules = directory.path().join("access.yaml");
    replace(&rules, TOKENS);
    let settings = ServerSettings {
        access: Some(rules),
        audit_log: Some(log.clone()),
        ..ServerSettings::default()
    };
    let running = start(&settings).await;
    let channel = connect(&at(running.address(), "platform-0123456789"));
    let mut client = NodeAccessServiceClient::new(channel);
    let logs = client.stream_logs(follow("open")).await.unwrap();
    // The call lasts as long as there may be more input.
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let input = futures::StreamExt::take_until(futures::stream::pending(), ended);
    let exec = client.exec(input).await.unwrap();
    let codes = |of: &str| {
        let what = format!("drover.platform.v1.NodeAccessService/{of}");
        let own = read(&log).into_iter().filter(|line| line["what"] == what);
        own.map(|line| line["code"].clone()).collect::<Vec<_>>()
    };
    for of in ["StreamLogs", "Exec"] {
        eventually(of, async || codes(of) == ["STARTED"]).await;
    }
    drop((logs, exec, end));
    for of in ["StreamLogs", "Exec"] {
        eventually(of, async || codes(of) == ["STARTED", "CANCELLED"]).await;
    }
}

/// Returns the complete lines of a log.
fn read(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines = text.lines().map(serde_json::from_str);
    lines.map(Result::unwrap_or_default).collect()
}

fn sha256(line: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, line.as_bytes());
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[tokio::test]
async fn each_line_names_the_one_before_across_rotation_and_restarts() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    let settings = ServerSettings {
        audit_log: Some(log.clone()),
        audit_reads: true,
        ..ServerSettings::default()
    };
    let moved = |number: u32| directory.path().join(format!("audit.jsonl.{number}"));
    let turn = async |calls: usize| {
        let running = start(&settings).await;
        let target = format!("http://{}", running.address()).parse().unwrap();
        for _ in 0..calls {
            call(&target).await.unwrap();
        }
        running
    };
    // The file is moved away while no server is writing, so that a new file is started; or the existing file is
    // continued.
    for (calls, to) in [(2, Some(1)), (1, None), (3, Some(2)), (1, Some(3))] {
        turn(calls).await.shutdown().await;
        if let Some(to) = to {
            std::fs::rename(&log, moved(to)).unwrap();
        }
    }
    let texts = [1, 2, 3].map(|number| std::fs::read_to_string(moved(number)).unwrap());
    let all: Vec<&str> = texts.iter().flat_map(|text| text.lines()).collect();
    let values: Vec<Value> = (all.iter())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(texts.each_ref().map(|text| text.lines().count()), [2, 4, 1]);
    for (at, line) in values.iter().enumerate() {
        let before = at
            .checked_sub(1)
            .map_or_else(|| "0".repeat(64), |before| sha256(all[before]));
        assert_eq!(
            (&line["seq"], &line["prev"]),
            (&json!(at + 1), &json!(before)),
            "{line}"
        );
    }
}
