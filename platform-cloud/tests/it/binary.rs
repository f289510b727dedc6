//! End-to-end tests of the binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{process::Stdio, time::Duration};

use drover_client::{Target, connect};
use drover_proto::platform::v1::{
    GetPlatformRequest, platform_service_client::PlatformServiceClient,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn it_serves_until_it_is_asked_to_stop() {
    let mut server = Command::from(drover_testing::processes::program(env!(
        "CARGO_BIN_EXE_drover-platform-cloud"
    )))
    .args([
        "--driver",
        "simulated",
        "--listen",
        "127.0.0.1:0",
        "--log-format",
        "json",
    ])
    .stderr(Stdio::piped())
    .stdout(Stdio::null())
    .kill_on_drop(true)
    .spawn()
    .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let address = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            let line: serde_json::Value =
                serde_json::from_str(&line).expect("one JSON object a line");
            let found = find(&line, "address");
            if let Some(address) = found {
                return address;
            }
        }
        panic!("the server ended before it served");
    };
    let address = tokio::time::timeout(PATIENCE, address)
        .await
        .expect("it says where it serves");
    let target: Target = format!("http://{address}").parse().unwrap();
    let mut client = PlatformServiceClient::new(connect(&target));
    let platform = client
        .get_platform(GetPlatformRequest {})
        .await
        .unwrap()
        .into_inner()
        .platform
        .unwrap();
    assert_eq!(
        (platform.kind.as_str(), platform.driver.as_str()),
        ("simulated", "simulated")
    );

    let pid = Pid::from_raw(i32::try_from(server.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let status = tokio::time::timeout(PATIENCE, server.wait())
        .await
        .expect("it ends")
        .unwrap();
    assert!(status.success(), "{status}");
}

fn find(value: &serde_json::Value, key: &str) -> Option<String> {
    let object = value.as_object()?;
    object
        .get(key)
        .and_then(|found| found.as_str().map(str::to_owned))
        .or_else(|| object.values().find_map(|v| find(v, key)))
}

#[tokio::test]
async fn wrong_usage_is_said_with_an_exit_code_of_its_own() {
    let output = Command::from(drover_testing::processes::program(env!(
        "CARGO_BIN_EXE_drover-platform-cloud"
    )))
    .arg("--nonsense")
    .output()
    .await
    .unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--nonsense"));
}
