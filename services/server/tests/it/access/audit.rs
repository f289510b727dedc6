//! What is written down.

use drover_client::connect;
use drover_proto::platform::v1::node_access_service_client::NodeAccessServiceClient;
use drover_server::ServerSettings;
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
    // As long as there may be more input, the call goes on.
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let input = futures::StreamExt::take_until(futures::stream::pending(), ended);
    let exec = client.exec(input).await.unwrap();
    let codes = || {
        let text = std::fs::read_to_string(&log).unwrap();
        let code = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            (line["what"].clone(), line["code"].clone())
        };
        text.lines().map(code).collect::<Vec<_>>()
    };
    let what = json!("drover.platform.v1.NodeAccessService/Exec");
    let begun = (what.clone(), json!("STARTED"));
    eventually("its beginning", async || codes() == [begun.clone()]).await;
    drop((logs, exec, end));
    let ended = (what, json!("CANCELLED"));
    eventually("its end", async || {
        codes() == [begun.clone(), ended.clone()]
    })
    .await;
}
