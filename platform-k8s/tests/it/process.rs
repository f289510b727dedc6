//! A process of the server.

use std::{path::Path, process::Stdio};

use drover_client::{Channel, Target, connect};
use drover_testing::{kubernetes::PATIENCE, processes::program};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

pub(super) struct Server {
    process: Child,
    pub(super) channel: Channel,
}

impl Server {
    /// Starts it with these arguments, at the API server of a kubeconfig.
    pub(super) async fn start(kubeconfig: &Path, namespace: &str, arguments: &[&str]) -> Self {
        let command = program(env!("CARGO_BIN_EXE_drover-platform-k8s"));
        let mut process = Command::from(command)
            .args(["--listen", "127.0.0.1:0", "--log-format", "json"])
            .args(arguments)
            .args(["--namespace", namespace, "--kubeconfig"])
            .arg(kubeconfig)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = async {
            let mut said = String::new();
            while let Some(line) = lines.next_line().await.unwrap() {
                // Why it ends is no JSON.
                let found = serde_json::from_str::<Value>(&line).ok();
                if let Some(address) = found.and_then(|found| find(&found, "address")) {
                    return address;
                }
                said += &line;
            }
            panic!("the server ended before it served: {said}");
        };
        let address = tokio::time::timeout(PATIENCE, address).await;
        let address = address.expect("it says where it serves");
        // What it says later is not looked at, and must not hold it up.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let target: Target = format!("http://{address}").parse().unwrap();
        Self {
            process,
            channel: connect(&target),
        }
    }

    /// Without notice (`kill -9`).
    pub(super) fn kill(mut self) {
        self.process.start_kill().unwrap();
    }
}

fn find(value: &Value, key: &str) -> Option<String> {
    let object = value.as_object()?;
    let own = object
        .get(key)
        .and_then(|found| found.as_str().map(str::to_owned));
    own.or_else(|| object.values().find_map(|value| find(value, key)))
}
