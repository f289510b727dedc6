//! A local driver with a temporary state directory, and inspection of the machine's processes.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared by several tests, which fail when they cannot go on"
)]

pub(crate) use drover_testing::wait::holds as until;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drover_platform::{
    batch::{Batch, Caller, Lifetime},
    driver::{Change, Changes, Deleted, Deletion, Driver, Outcome, Target},
    feed::Listener,
    identity::{Identity, fingerprint},
    templates::Templates,
};
use drover_platform_cloud::drivers::local::{CATALOGUE, LocalDriver, Settings, remove_all};
use drover_proto::platform::v1::{
    ClusterContext, Fence, Node, NodePhase, NodeRole, ProvisionRequest, RemovalEvidence,
    ResolvedGroup, Slot, Storage,
};
use drover_templates::{Catalogue, EmbeddedFile, stores};
pub(crate) use drover_testing::processes::processes_of;
use drover_testing::wait::PATIENCE;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// The program that launches nodes.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_drover-platform-cloud");

/// Templates for tests, in addition to the shipped ones.
const TEST_CATALOGUE: &[EmbeddedFile] = &[
    EmbeddedFile {
        name: "index.yaml",
        content: r#"
stores:
  - {store: redis, versions: [{version: "*", template: redis.yaml, ports: [client]}]}
  - {store: sleeper, versions: [{version: "*", template: sleeper.yaml, ports: [client, admin]}]}
  - {store: needy, versions: [{version: "*", template: needy.yaml}]}
  - {store: social, versions: [{version: "*", template: social.yaml, ports: [client]}]}
  - {store: family, versions: [{version: "*", template: family.yaml}]}
  - {store: hungry, versions: [{version: "*", template: hungry.yaml}]}
  - {store: stubborn, versions: [{version: "*", template: stubborn.yaml}]}
  - {store: printer, versions: [{version: "*", template: printer.yaml}]}
  - {store: brief, versions: [{version: "*", template: brief.yaml}]}
  - {store: missing, versions: [{version: "*", template: missing.yaml}]}
  - {store: unknown-field, versions: [{version: "*", template: unknown-field.yaml}]}
  - {store: fixed, versions: [{version: "*", template: fixed.yaml}]}
  - {store: everything, versions: [{version: "*", template: everything.yaml, ports: [client]}]}
"#,
    },
    EmbeddedFile {
        name: "redis.yaml",
        content: include_str!("../../../catalogue/local/redis.yaml"),
    },
    stores::REDIS,
    stores::NODE,
    EmbeddedFile {
        name: "sleeper.yaml",
        content: "{command: sleep, arguments: ['1000']}",
    },
    EmbeddedFile {
        name: "needy.yaml",
        content: "{requires: [{program: sh, package: dash}, {program: no-such-program, package: some-package}], command: sleep, arguments: ['1000']}",
    },
    EmbeddedFile {
        name: "social.yaml",
        content: "{peers: true, command: sh, arguments: [-c, 'while ! [ -e go ]; do sleep 0.02; done; : >there; exec sleep 1000'], readiness: {file: there}}",
    },
    EmbeddedFile {
        name: "family.yaml",
        content: "{command: sh, arguments: [-c, 'sleep 1000 & sleep 1000 & echo born; wait']}",
    },
    EmbeddedFile {
        name: "hungry.yaml",
        content: "{command: sh, arguments: [-c, 'while ! [ -e eat ]; do sleep 0.02; done; head -c 300m /dev/zero | tail -c 200m >/dev/null']}",
    },
    EmbeddedFile {
        name: "stubborn.yaml",
        content: "{command: sh, arguments: [-c, \"trap '' TERM; sleep 1000 & echo ready; while :; do sleep 1000; done\"]}",
    },
    EmbeddedFile {
        name: "printer.yaml",
        content: "{command: sh, arguments: [-c, 'echo one; echo two >&2; while ! [ -e more ]; do sleep 0.02; done; echo three; exec sleep 1000']}",
    },
    EmbeddedFile {
        name: "brief.yaml",
        content: "{command: sh, arguments: [-c, 'exit 3']}",
    },
    EmbeddedFile {
        name: "missing.yaml",
        content: "{command: no-such-program-here}",
    },
    EmbeddedFile {
        name: "unknown-field.yaml",
        content: "command: sleep\n{{ cluster.attributes.secret }}: x",
    },
    EmbeddedFile {
        name: "fixed.yaml",
        content: "{command: sleep, arguments: ['1000'], ports: {client: {{ cluster.attributes.port }}}}",
    },
    EmbeddedFile {
        name: "everything.yaml",
        content: r#"
command: sh
arguments: [-c, 'pwd > where; env > environment; exec sleep 1000']
environment: {FROM_TEMPLATE: "{{ cluster.id }}", OVER: template}
workingDirectory: work
files:
  - {path: work/settings.conf, content: "secret {{ cluster.attributes.secret }}", mode: "0640"}
agent: {scheme: http, port: client}
stopSignal: SIGINT
"#,
    },
];

/// A driver with a temporary directory. Its processes are killed at the end, even if the test fails.
pub(crate) struct World {
    pub(crate) directory: Arc<TempDir>,
    pub(crate) driver: Arc<LocalDriver>,
    pub(crate) templates: Templates,
    pub(crate) recorder: Arc<ChangeRecorder>,
}

/// Records the changes that the driver reports.
#[derive(Default)]
pub(crate) struct ChangeRecorder(pub(crate) Mutex<Vec<(String, Option<RemovalEvidence>)>>);

impl Listener for ChangeRecorder {
    fn changed(&self, _: &str, node_id: &str) {
        self.0.lock().push((node_id.to_owned(), None));
    }

    fn removed(&self, _: &str, node_id: &str, evidence: RemovalEvidence) {
        self.0.lock().push((node_id.to_owned(), Some(evidence)));
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        Self::over(Arc::new(tempfile::tempdir().unwrap()), change)
    }

    pub(crate) fn over(directory: Arc<TempDir>, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings(directory.path());
        change(&mut settings);
        let driver = Arc::new(LocalDriver::open(settings).unwrap());
        let recorder = Arc::new(ChangeRecorder::default());
        driver
            .live()
            .unwrap()
            .connect(Changes::new(Arc::clone(&recorder) as Arc<dyn Listener>));
        Self {
            directory,
            driver,
            templates: test_templates(),
            recorder,
        }
    }

    /// Ends the platform and starts a new one on the same directory.
    pub(crate) async fn restarted(self) -> Self {
        Self::over(self.stopped().await, |_| {})
    }

    /// Ends the platform; its nodes keep running.
    pub(crate) async fn stopped(self) -> Arc<TempDir> {
        let directory = Arc::clone(&self.directory);
        let lock = self.state().join("lock");
        self.driver.shutdown().await;
        drop(self);
        // Another test of this process may be forking a child, which holds a copy of the lock for a moment.
        let free = || {
            std::process::Command::new("flock")
                .arg("-n")
                .arg(&lock)
                .arg("true")
                .status()
                .unwrap()
                .success()
        };
        until("the lock is free", async || free()).await;
        directory
    }

    pub(crate) fn state(&self) -> PathBuf {
        state(self.directory.path())
    }

    pub(crate) fn node_directory(&self, node: &Node) -> PathBuf {
        self.state().join("nodes").join(&node.node_id)
    }

    pub(crate) async fn create(&self, request: &ProvisionRequest) -> Vec<Outcome> {
        let (batch, _caller) = batch(&self.templates, request);
        self.driver.create(&batch).await
    }

    /// Creates the nodes of a request and waits until each is ready.
    pub(crate) async fn start(&self, request: &ProvisionRequest) -> Vec<Node> {
        let mut nodes = Vec::new();
        for outcome in self.create(request).await {
            nodes.push(self.ready(&made(outcome).node_id).await);
        }
        nodes
    }

    pub(crate) async fn nodes(&self) -> Vec<Node> {
        self.driver
            .list()
            .await
            .unwrap()
            .nodes
            .into_iter()
            .map(|found| found.node)
            .collect()
    }

    pub(crate) async fn node(&self, node_id: &str) -> Option<Node> {
        self.nodes()
            .await
            .into_iter()
            .find(|node| node.node_id == node_id)
    }

    pub(crate) async fn ready(&self, node_id: &str) -> Node {
        self.wait(node_id, "ready", |node| node.ready == Some(true))
            .await
    }

    pub(crate) async fn wait(
        &self,
        node_id: &str,
        what: &str,
        holds: impl Fn(&Node) -> bool,
    ) -> Node {
        let begin = Instant::now();
        loop {
            let node = self
                .node(node_id)
                .await
                .unwrap_or_else(|| panic!("{node_id} is not listed"));
            if holds(&node) {
                return node;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{node_id} is not {what}: {node:?}"
            );
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn delete(&self, node: &Node, options: Deletion) -> Deleted {
        self.driver.delete(&target(node), &options).await.unwrap()
    }

    /// Deletes a node and waits until it is gone.
    pub(crate) async fn remove(&self, node: &Node) {
        self.delete(node, Deletion::default()).await;
        self.gone(&node.node_id).await;
    }

    /// Deletes a node and retains its storage. Returns the storage key.
    pub(crate) async fn retire(&self, node: &Node) -> String {
        let retain = Deletion {
            retain_storage: true,
            ..Deletion::default()
        };
        let kept = self.delete(node, retain).await.retained_storage;
        self.gone(&node.node_id).await;
        kept.into_iter().next().expect("it has storage")
    }

    pub(crate) async fn gone(&self, node_id: &str) {
        until("the node is gone", async || {
            self.node(node_id).await.is_none()
        })
        .await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Only the last user cleans up: a restarted platform has the same directory.
        if Arc::strong_count(&self.directory) == 1 {
            let state = self.state();
            // Launchers may be in progress. Without their directory they exit.
            let _ = fs::remove_dir_all(&state);
            for _ in 0..3 {
                for pid in processes_of(&state).into_keys() {
                    kill(pid, "KILL");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            // The control groups of clusters are removed with their last process.
            for group in ["/sys/fs/cgroup/drover", "/sys/fs/cgroup/*/drover"] {
                let empty = format!("rmdir {group}/* 2>/dev/null");
                let _ = std::process::Command::new("sh")
                    .args(["-c", &empty])
                    .status();
            }
        }
    }
}

pub(crate) fn settings(directory: &Path) -> Settings {
    let mut settings = Settings::new(state(directory)).unwrap();
    settings.launcher = program_in(directory);
    settings
}

/// A copy of the program in a directory that node users can enter: the target directory may be below a private home
/// directory.
pub(crate) fn program_in(directory: &Path) -> PathBuf {
    let there = directory.join("drover-platform-cloud");
    if !there.exists() && fs::hard_link(PROGRAM, &there).is_err() {
        fs::copy(PROGRAM, &there).unwrap();
    }
    there
}

/// The state directory within a temporary one.
pub(crate) fn state(directory: &Path) -> PathBuf {
    fs::canonicalize(directory).unwrap().join("state")
}

pub(crate) fn test_templates() -> Templates {
    Templates::Catalogue(Arc::new(Catalogue::embedded(TEST_CATALOGUE).unwrap()))
}

pub(crate) fn shipped_templates() -> Templates {
    Templates::Catalogue(Arc::new(Catalogue::embedded(CATALOGUE).unwrap()))
}

/// A request of the cluster `orders` for nodes of one store.
pub(crate) fn request(store: &str, request_id: &str, count: u32) -> ProvisionRequest {
    let slots = (0..count).map(|index| Slot {
        index: Some(index),
        id: format!("db-{index}-{request_id}"),
        name: format!("db-{index}"),
        ordinal: Some(index),
        role: NodeRole::Active.into(),
        host_id: None,
    });
    ProvisionRequest {
        owner: "owner-1".to_owned(),
        request_id: request_id.to_owned(),
        sequence: 7,
        slots: slots.collect(),
        cluster: Some(ClusterContext {
            id: "orders".to_owned(),
            store: store.to_owned(),
            ..ClusterContext::default()
        }),
        group: Some(ResolvedGroup {
            path: "db".to_owned(),
            size: count,
            ..ResolvedGroup::default()
        }),
        spec_hash: "hash".to_owned(),
        fence: Some(Fence {
            store_id: "store-1".to_owned(),
            shard: 0,
            epoch: 1,
        }),
        ..ProvisionRequest::default()
    }
}

/// A request of one owner for the node of one ordinal, with storage.
pub(crate) fn stored(owner: &str, request_id: &str, ordinal: u32) -> ProvisionRequest {
    let mut request = request("sleeper", request_id, 1);
    request.owner = owner.to_owned();
    request.storage = Some(Storage::default());
    request.slots[0].ordinal = Some(ordinal);
    request
}

/// The change that passes a node to another owner, in the same cluster and group.
pub(crate) fn adoption(owner: &str, ordinal: u32) -> Change {
    Change::Adopt(Box::new(Identity {
        owner: owner.to_owned(),
        cluster_id: "orders".to_owned(),
        group: "db".to_owned(),
        request_id: format!("adopted-{ordinal}"),
        id: format!("db-{ordinal}-adopted"),
        ordinal,
        store_id: "store-2".to_owned(),
        ..Identity::default()
    }))
}

pub(crate) fn batch(templates: &Templates, request: &ProvisionRequest) -> (Batch, Caller) {
    let lifetime = Lifetime::new();
    let caller = lifetime.join(None);
    let renderer = templates.select(request).unwrap();
    let positions = (0..request.slots.len()).collect();
    let batch = Batch::new(
        Arc::new(request.clone()),
        fingerprint(request),
        positions,
        Arc::new(renderer),
        lifetime,
    );
    (batch, caller)
}

pub(crate) fn made(outcome: Outcome) -> Node {
    match outcome {
        Outcome::Made(node) => *node,
        other => panic!("not made: {other:?}"),
    }
}

pub(crate) fn refused(outcome: Outcome) -> drover_core::Error {
    match outcome {
        Outcome::Failed(error) => error,
        other => panic!("not refused: {other:?}"),
    }
}

pub(crate) fn target(node: &Node) -> Target {
    Target {
        cluster_id: node.cluster_id.clone(),
        node_id: node.node_id.clone(),
        slot: node.slot.clone(),
    }
}

pub(crate) fn pid(node: &Node) -> u32 {
    node.provider_id
        .rsplit('/')
        .next()
        .unwrap()
        .parse()
        .unwrap_or_else(|_| panic!("no pid: {node:?}"))
}

pub(crate) fn kill(pid: u32, signal: &str) {
    // It may have exited by itself.
    let _ = std::process::Command::new("kill")
        .args([&format!("-{signal}"), &pid.to_string()])
        .status();
}

/// Kills a process and waits until it is dead.
pub(crate) async fn kill_off(pid: u32) {
    kill(pid, "KILL");
    until("a process that was killed is dead", async || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The state follows the name. A zombie only waits for its parent.
        stat.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
    })
    .await;
}

pub(crate) fn phase(node: &Node) -> NodePhase {
    node.phase()
}

/// Removes the state of a test from a directory, after its drivers are gone.
pub(crate) fn clean(directory: &Path) {
    remove_all(&state(directory)).unwrap();
}
