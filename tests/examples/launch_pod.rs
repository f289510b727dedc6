//! Creates a pod, waits for it, runs a command in it and reads a file, over `drover.kubernetes.v1`:
//! `cargo run -p drover-tests --example launch_pod -- http://127.0.0.1:7401`, against `drover-platform-k8s --fake` or a real
//! one (`--resources`).
#![allow(missing_docs)]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drover_client::{KubernetesClient, Target, connect, kubernetes::Update};
use drover_proto::kubernetes::v1 as api;
use futures::TryStreamExt;

const NAME: &str = "launched";
const CALL: Duration = Duration::from_secs(30);
const START: Duration = Duration::from_secs(300);
/// More than the command of this example writes.
const MAX_OUTPUT: usize = 1 << 20;

fn pod() -> api::Pod {
    let container = api::Container {
        name: "shell".to_owned(),
        image: "busybox:1.36".to_owned(),
        command: ["sleep", "3600"].map(str::to_owned).into(),
        ..Default::default()
    };
    let metadata = api::Metadata {
        name: NAME.to_owned(),
        ..Default::default()
    };
    let spec = api::PodSpec {
        containers: vec![container],
        ..Default::default()
    };
    api::Pod {
        metadata: Some(metadata),
        spec: Some(spec),
        status: None,
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let address = std::env::args().nth(1).context("usage: launch_pod URL")?;
    let client = KubernetesClient::new(connect(&address.parse::<Target>()?));
    let message = api::CreatePodRequest { pod: Some(pod()) };
    client.create_pod(message, CALL).await?;
    let message = api::WaitPodsRequest {
        names: vec![NAME.to_owned()],
        ..Default::default()
    };
    let mut wait = client.wait_pods(message, START);
    while let Some(update) = wait.try_next().await? {
        match update {
            Update::Progress(it) => println!("{} of {} ready {:?}", it.met, it.matched, it.pending),
            Update::Reconnecting(error) => println!("connecting again: {error}"),
        }
    }
    let start = api::ExecStart {
        pod: NAME.to_owned(),
        command: vec!["sh".to_owned()],
        stdin: true,
        ..Default::default()
    };
    let (input, output) = client.exec(start, CALL).await?;
    input.write(b"echo hello > /tmp/greeting\n").await?;
    drop(input);
    let code = output.finish(MAX_OUTPUT).await?.exit_code;
    ensure!(code == 0, "the command ends with {code}");

    let message = api::ReadFileRequest {
        pod: NAME.to_owned(),
        path: "/tmp/greeting".to_owned(),
        ..Default::default()
    };
    let mut file = Vec::new();
    client.read_file_into(message, &mut file, CALL).await?;
    print!("{}", String::from_utf8_lossy(&file));
    Ok(())
}
