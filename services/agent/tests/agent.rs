//! The agent, in this process and as a separate process (the example `agent`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use clap::Parser;
use drover_agent::{Agent, AgentSettings, start};
use drover_client::{Channel, Target, connect};
use drover_proto::agent::v1::{GetInfoRequest, agent_service_client::AgentServiceClient};
use drover_server::Shutdown;
use rustix::process::{Pid, Signal, kill_process};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    settings: AgentSettings,
}

fn settings(flags: &[&str]) -> AgentSettings {
    Cli::try_parse_from([&["agent", "--node-id", "db-1-x7k2p"], flags].concat())
        .unwrap()
        .settings
}

fn over(address: SocketAddr) -> Channel {
    connect(&format!("http://{address}").parse::<Target>().unwrap())
}

async fn status(channel: &Channel) -> ServingStatus {
    let mut health = HealthClient::new(channel.clone());
    health
        .check(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner()
        .status()
}

async fn becomes(channel: &Channel, wanted: ServingStatus) {
    let patience = tokio::time::timeout(Duration::from_secs(10), async {
        while status(channel).await != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(patience.await.is_ok(), "never {wanted:?}");
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

async fn http(agent: &Agent, path: &'static str) -> String {
    let address = agent.address();
    tokio::task::spawn_blocking(move || get(address, path))
        .await
        .unwrap()
}

#[tokio::test]
async fn it_says_which_node_it_is() {
    let flags = [
        "--cluster-id",
        "orders",
        "--store",
        "postgresql",
        "--version",
        "16.4",
    ];
    let agent = start(settings(&flags), Shutdown::new()).await.unwrap();
    let mut client = AgentServiceClient::new(over(agent.address()));
    let info = client
        .get_info(GetInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (info.node_id.as_str(), info.cluster_id.as_str()),
        ("db-1-x7k2p", "orders")
    );
    assert_eq!(
        (info.store.as_str(), info.version.as_str()),
        ("postgresql", "16.4")
    );
    assert!(info.start_time.is_some());
    agent.shutdown().await;
}

#[tokio::test]
async fn it_is_unhealthy_while_the_file_exists_and_when_toggled() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("unhealthy");
    let agent = start(
        settings(&["--unhealthy-file", file.to_str().unwrap()]),
        Shutdown::new(),
    )
    .await
    .unwrap();
    let channel = over(agent.address());
    assert_eq!(status(&channel).await, ServingStatus::Serving);
    assert_eq!(http(&agent, "/healthz").await, "200");

    std::fs::write(&file, "").unwrap();
    becomes(&channel, ServingStatus::NotServing).await;
    assert_eq!(http(&agent, "/healthz").await, "503");
    assert_eq!(http(&agent, "/readyz").await, "503");
    std::fs::remove_file(&file).unwrap();
    becomes(&channel, ServingStatus::Serving).await;

    agent.toggle();
    becomes(&channel, ServingStatus::NotServing).await;
    agent.toggle();
    becomes(&channel, ServingStatus::Serving).await;
}

#[tokio::test]
async fn one_that_starts_unhealthy_says_so_from_the_first_answer() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let agent = start(
        settings(&["--unhealthy-file", file.path().to_str().unwrap()]),
        Shutdown::new(),
    )
    .await
    .unwrap();
    assert_eq!(
        status(&over(agent.address())).await,
        ServingStatus::NotServing
    );
}

/// An agent process, killed if a test leaves it behind.
struct Process(Child);

impl Process {
    /// Starts the process, and returns the address that it logs.
    fn start(flags: &[&str]) -> (Self, SocketAddr) {
        let directory = std::env::current_exe().unwrap();
        let examples = directory
            .parent()
            .and_then(Path::parent)
            .unwrap()
            .join("examples/agent");
        let mut child = drover_testing::processes::program(examples)
            .args(["--node-id", "n1"])
            .args(flags)
            .env("RUST_LOG", "info")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines
            .find(|line| line.as_ref().unwrap().contains("listening"))
            .unwrap()
            .unwrap();
        let address = line.split('"').find_map(|part| part.parse().ok()).unwrap();
        // Keep reading, so that the process does not block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        (Self(child), address)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn sigusr1_toggles_and_sigterm_ends_it() {
    let (mut process, address) = Process::start(&[]);
    let channel = over(address);
    becomes(&channel, ServingStatus::Serving).await;
    process.signal(Signal::USR1);
    becomes(&channel, ServingStatus::NotServing).await;
    process.signal(Signal::USR1);
    becomes(&channel, ServingStatus::Serving).await;
    process.signal(Signal::TERM);
    let code = tokio::task::spawn_blocking(move || process.0.wait().unwrap().code())
        .await
        .unwrap();
    assert_eq!(code, Some(0));
}

#[test]
fn it_fails_when_told_to() {
    let (mut process, _) = Process::start(&["--fail-after", "50ms", "--start-delay", "10ms"]);
    assert_eq!(process.0.wait().unwrap().code(), Some(1));
}
