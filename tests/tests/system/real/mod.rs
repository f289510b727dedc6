//! Orchestrator and local platform as separate processes, and access to the processes of this machine.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared by several tests, which fail when they cannot go on"
)]

pub mod disk;
pub mod look;
pub mod secure;

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use drover_client::{OrchestratorClient, Target, connect_any};
use drover_core::{Error, Reason, Result};
use drover_proto::orchestrator::v1 as pb;
use drover_testing::wait::Wait;
pub use drover_testing::{ports::free_port, processes::processes_of, wait::PATIENCE};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Deadline of a call, with a margin for a busy machine.
const CALL: Duration = Duration::from_secs(30);

/// A binary of this workspace, built on demand.
pub fn binary(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let directory = BUILT.get_or_init(|| {
        let own = std::env::current_exe().unwrap();
        let directory = own.ancestors().nth(2).unwrap().to_owned();
        let all = ["drover-orchestrator", "drover-platform-cloud", "drover"];
        if !all.iter().all(|name| directory.join(name).is_file()) {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "-p", all[0], "-p", all[1], "-p", all[2], "--bins"]);
            if directory.ends_with("release") {
                build.arg("--release");
            }
            assert!(
                build.status().unwrap().success(),
                "the binaries cannot be built"
            );
        }
        directory
    });
    directory.join(name)
}

/// A server process that can be killed and restarted at the same address.
pub struct Server {
    name: &'static str,
    arguments: Vec<String>,
    /// Additional environment variables.
    pub environment: Vec<(&'static str, String)>,
    pub address: SocketAddr,
    log: PathBuf,
    child: Option<Child>,
}

impl Server {
    pub fn new(name: &'static str, directory: &Path, port: u16, arguments: &[&str]) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut all = vec!["--listen".to_owned(), address.to_string()];
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        Self {
            name,
            arguments: all,
            environment: Vec::new(),
            address,
            log: directory.join(format!("{name}.log")),
            child: None,
        }
    }

    /// Adds arguments for the next start.
    pub fn add(&mut self, arguments: &[&str]) {
        let more = arguments.iter().map(|&argument| argument.to_owned());
        self.arguments.extend(more);
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Starts the server and waits until it accepts connections.
    pub async fn start(&mut self) {
        self.launch();
        let begin = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                panic!("{} ended with {status}:\n{}", self.name, self.said());
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{} does not listen:\n{}",
                self.name,
                self.said()
            );
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Starts the server without waiting for it.
    pub fn launch(&mut self) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let child = drover_testing::processes::program(binary(self.name))
            .args(&self.arguments)
            .env("RUST_LOG", "warn")
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Waits until the server exits. Returns whether it succeeded, and its output.
    pub async fn ended(&mut self) -> (bool, String) {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                return (status.success(), self.said());
            }
            assert!(begin.elapsed() < PATIENCE, "{} does not end", self.name);
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn is_running(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let said = self.said();
            let from = said.len().saturating_sub(4_000);
            eprintln!(
                "the last that {} said:\n{}",
                self.name,
                said.get(from..).unwrap_or_default()
            );
        }
    }
}

/// An orchestrator and a local platform with all their files in a temporary directory.
pub struct World {
    pub orchestrator: Server,
    /// Further replicas of it.
    pub others: Vec<Server>,
    pub platform: Server,
    pub directory: TempDir,
}

impl World {
    /// Creates a world with both servers running and the platform registered as `local`.
    pub async fn new() -> Self {
        let mut world = Self::stopped();
        world.platform.start().await;
        world.orchestrator.start().await;
        world.register("local", &world.platform.endpoint()).await;
        world
            .until("the platform is ready", async |world| {
                world.platform_status("local").await.phase() == pb::PlatformPhase::Ready
            })
            .await;
        world
    }

    /// Creates a world with both servers configured but not started.
    pub fn stopped() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        let (store, state) = (root.join("store"), root.join("state"));
        let orchestrator = Server::new(
            "drover-orchestrator",
            &root,
            free_port(),
            &["--data-dir", store.to_str().unwrap()],
        );
        let platform = Server::new(
            "drover-platform-cloud",
            &root,
            free_port(),
            &["--driver", "local", "--state-dir", state.to_str().unwrap()],
        );
        Self {
            orchestrator,
            others: Vec::new(),
            platform,
            directory,
        }
    }

    pub fn state(&self) -> PathBuf {
        fs::canonicalize(self.directory.path())
            .unwrap()
            .join("state")
    }

    pub fn store(&self) -> PathBuf {
        fs::canonicalize(self.directory.path())
            .unwrap()
            .join("store")
    }

    pub fn client(&self) -> OrchestratorClient {
        let servers = std::iter::once(&self.orchestrator).chain(&self.others);
        let targets: Vec<Target> = servers
            .map(|server| server.endpoint().parse().unwrap())
            .collect();
        OrchestratorClient::new(connect_any(&targets))
    }

    pub async fn register(&self, name: &str, endpoint: &str) {
        let platform = pb::Platform {
            name: name.to_owned(),
            spec: Some(pb::PlatformSpec {
                endpoint: endpoint.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = pb::RegisterPlatformRequest {
            platform: Some(platform),
            ..Default::default()
        };
        self.client()
            .register_platform(request, CALL)
            .await
            .unwrap();
    }

    pub async fn platform_status(&self, name: &str) -> pb::PlatformStatus {
        let request = pb::GetPlatformRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        let answer = self.client().get_platform(request, CALL).await.unwrap();
        answer.platform.unwrap().status.unwrap()
    }

    /// Applies a cluster with a group `web` on `local` that runs some software; empty: the agent.
    pub async fn apply(&self, name: &str, software: &str, size: u32) -> Result<()> {
        let group = pb::GroupSpec {
            name: "web".to_owned(),
            size: Some(size),
            ..Default::default()
        };
        let store = pb::StoreSpec {
            software: software.to_owned(),
            ..Default::default()
        };
        let spec = pb::ClusterSpec {
            store: (!software.is_empty()).then_some(store),
            platforms: vec![pb::PlatformChoice {
                name: "local".to_owned(),
                ..Default::default()
            }],
            groups: vec![group],
            termination_grace_period: Some(prost_types::Duration {
                seconds: 2,
                nanos: 0,
            }),
            ..Default::default()
        };
        let cluster = pb::Cluster {
            name: name.to_owned(),
            spec: Some(spec),
            ..Default::default()
        };
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster),
            ..Default::default()
        };
        self.client().apply_cluster(request, CALL).await.map(drop)
    }

    pub async fn scale(&self, name: &str, size: u32) -> Result<()> {
        let request = pb::ScaleGroupRequest {
            cluster: name.to_owned(),
            group: "web".to_owned(),
            size: Some(size),
            ..Default::default()
        };
        self.client().scale_group(request, CALL).await.map(drop)
    }

    /// Resets the backoff of a cluster.
    pub async fn reset_back_off(&self, name: &str) -> Result<()> {
        let request = pb::ReconcileClusterRequest {
            name: name.to_owned(),
            reset_back_off: true,
        };
        self.client()
            .reconcile_cluster(request, CALL)
            .await
            .map(drop)
    }

    pub async fn delete(&self, name: &str) -> Result<()> {
        let request = pb::DeleteClusterRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        self.client().delete_cluster(request, CALL).await.map(drop)
    }

    /// Returns a cluster if it exists. Fails if that is unknown.
    pub async fn cluster(&self, name: &str) -> Result<Option<pb::Cluster>> {
        let request = pb::GetClusterRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        match self.client().get_cluster(request, CALL).await {
            Ok(answer) => Ok(answer.cluster),
            Err(error) if error.reason() == Reason::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn records(&self, name: &str) -> Result<Vec<pb::Node>> {
        let request = pb::ListNodesRequest {
            cluster: Some(name.to_owned()),
            ..Default::default()
        };
        Ok(self.client().list_nodes(request, CALL).await?.nodes)
    }

    pub async fn events(&self, name: &str) -> Vec<pb::Event> {
        let request = pb::ListEventsRequest {
            cluster: name.to_owned(),
            page_size: 500,
            ..Default::default()
        };
        self.client()
            .list_events(request, CALL)
            .await
            .unwrap()
            .events
    }

    /// Whether the records match the size, and all nodes and the cluster are Ready.
    pub async fn is_ready(&self, name: &str, size: usize) -> bool {
        let (Ok(Some(cluster)), Ok(records)) = (self.cluster(name).await, self.records(name).await)
        else {
            return false;
        };
        let status = cluster.status.unwrap();
        status.observed_generation == cluster.generation
            && status.phase() == pb::ClusterPhase::Ready
            && records.len() == size
            && records
                .iter()
                .all(|node| node.state() == pb::NodeState::Ready)
    }

    pub async fn ready(&self, name: &str, size: usize) {
        self.until("the cluster is ready", async |world| {
            world.is_ready(name, size).await
        })
        .await;
    }

    pub async fn until(&self, what: &str, condition: impl AsyncFn(&Self) -> bool) {
        self.until_within(PATIENCE, what, condition).await;
    }

    pub async fn until_within(
        &self,
        patience: Duration,
        what: &str,
        condition: impl AsyncFn(&Self) -> bool,
    ) {
        let mut wait = Wait::new(what, patience);
        while !condition(self).await {
            if !wait.goes_on().await {
                self.explain().await;
                wait.fail();
            }
        }
    }

    /// Waits for a condition that requires killed nodes to be replaced. Repeated deaths cause a backoff, which is reset
    /// whenever the cluster gives up, since a death may be counted late.
    pub async fn until_healed(
        &self,
        cluster: &str,
        patience: Duration,
        what: &str,
        condition: impl AsyncFn(&Self) -> bool,
    ) {
        self.until_within(patience, what, async |world| {
            if world.is_given_up(cluster).await {
                insist(async || world.reset_back_off(cluster).await).await;
            }
            condition(world).await
        })
        .await;
    }

    async fn is_given_up(&self, cluster: &str) -> bool {
        let Ok(Some(cluster)) = self.cluster(cluster).await else {
            return false;
        };
        let conditions = cluster.status.unwrap_or_default().conditions;
        (conditions.iter()).any(|it| it.r#type == "Failed" && it.status == Some(true))
    }

    /// Processes of nodes: node id by pid.
    pub fn processes(&self) -> BTreeMap<u32, String> {
        processes_of(&self.state())
    }

    /// Names of the directories of nodes.
    pub fn node_directories(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.state().join("nodes")) else {
            return Vec::new();
        };
        entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    async fn explain(&self) {
        eprintln!(
            "processes {:?}, directories {:?}",
            self.processes(),
            self.node_directories()
        );
        let Ok(answer) = self
            .client()
            .list_clusters(pb::ListClustersRequest::default(), CALL)
            .await
        else {
            return;
        };
        for cluster in answer.clusters {
            let status = cluster.status.unwrap_or_default();
            eprintln!(
                "{} {:?} {:?}",
                cluster.name,
                status.phase(),
                status.conditions
            );
            for node in self.records(&cluster.name).await.unwrap_or_default() {
                eprintln!(
                    "  {} {:?} {:?} {} {}",
                    node.id,
                    node.state(),
                    node.platform_node_id,
                    node.reason,
                    node.message
                );
            }
            let request = pb::PlanClusterRequest {
                subject: Some(pb::plan_cluster_request::Subject::Name(
                    cluster.name.clone(),
                )),
                ..Default::default()
            };
            let plan = self
                .client()
                .plan_cluster(request, CALL)
                .await
                .map(|answer| answer.plan);
            eprintln!("  plan: {plan:?}");
            for event in self.events(&cluster.name).await.iter().rev().take(30) {
                eprintln!("  {} {} {}", event.sequence, event.reason, event.message);
            }
        }
        for name in ["local"] {
            let status = self.platform_status(name).await;
            eprintln!("platform {name}: {:?} {}", status.phase(), status.message);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.orchestrator.kill();
        self.platform.kill();
        end_nodes(&self.state());
    }
}

/// Kills the nodes of a stopped platform; they would outlive it.
pub fn end_nodes(state: &Path) {
    // Launchers may be starting up. They exit if their directory is missing.
    let _ = fs::remove_dir_all(state);
    for _ in 0..3 {
        for pid in processes_of(state).into_keys() {
            kill_9(pid);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Repeats a call until the orchestrator responds.
pub async fn insist(call: impl AsyncFn() -> Result<()>) {
    let begin = Instant::now();
    while let Err(error) = call().await {
        assert!(
            begin.elapsed() < PATIENCE && is_transient(&error),
            "{error}"
        );
        sleep(Duration::from_millis(20)).await;
    }
}

fn is_transient(error: &Error) -> bool {
    matches!(
        error.reason(),
        Reason::Unavailable | Reason::DeadlineExceeded | Reason::Overloaded
    )
}

/// Kills a process with SIGKILL. It may have exited already.
pub fn kill_9(pid: u32) {
    use rustix::process::{Pid, Signal, kill_process};
    let _ = kill_process(
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(),
        Signal::KILL,
    );
}
