//! A node and its supervisor task, which starts the process, observes readiness and exit, and removes the node.

mod removal;
mod start;

use std::{
    future::pending,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{Node as ProtoNode, NodePhase, NodeRole},
};
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    Shared, files, logs,
    make::{ROLE, role_words},
    place::NodePlacement,
    process::Process,
    spec::endpoint,
    state::{DATA, NODE, Record, Removal},
};
use drover_platform::driver::Found;
use removal::{clear, removal_requested, stop};
pub(super) use removal::{lock_out_launchers, write_removal};
use start::{Begun, begin, end, how_it_ended};

/// Initial and maximum interval between readiness checks. It starts short, as most nodes are ready within a tenth of a
/// second.
const READY_POLL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// Timeout of one readiness check: the port is on this machine.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the size of a log is checked. A node that writes 100 MB/s exceeds its limit by half a gigabyte.
const LOG_CHECK: Duration = Duration::from_secs(5);

/// Retry delay of a removal after a file system error.
const RETRY: Duration = Duration::from_secs(1);

pub(super) struct Node {
    pub(super) directory: PathBuf,
    state: Mutex<LocalNodeState>,
    /// The requested removal and its deadline; watched by the supervisor and by running commands.
    removal: watch::Sender<Option<Removal>>,
    /// Held while the record or the removal is rewritten.
    pub(super) writing: tokio::sync::Mutex<()>,
}

struct LocalNodeState {
    record: Record,
    stage: Stage,
}

#[derive(Clone)]
enum Stage {
    /// Accepted; its process does not exist yet.
    Pending,
    /// Its process runs.
    Running { process: Arc<Process>, ready: bool },
    /// It cannot currently be determined whether the process runs.
    Unknown { message: String },
    /// Its process has ended or could not be started.
    Ended { pid: Option<u32>, message: String },
}

impl Node {
    pub(super) fn new(directory: PathBuf, record: Record, removal: Option<Removal>) -> Arc<Self> {
        Arc::new(Self {
            directory,
            state: Mutex::new(LocalNodeState {
                record,
                stage: Stage::Pending,
            }),
            removal: watch::Sender::new(removal),
            writing: tokio::sync::Mutex::new(()),
        })
    }

    pub(super) fn record(&self) -> Record {
        self.state.lock().record.clone()
    }

    pub(super) fn cluster_id(&self) -> String {
        self.state.lock().record.identity.cluster_id.clone()
    }

    pub(super) fn set_record(&self, record: Record) {
        self.state.lock().record = record;
    }

    pub(super) fn removal(&self) -> Option<Removal> {
        self.removal.borrow().clone()
    }

    pub(super) fn set_removal(&self, removal: Removal) {
        self.removal.send_replace(Some(removal));
    }

    /// The process, if it runs right now.
    pub(super) fn process(&self) -> Option<Arc<Process>> {
        match &self.state.lock().stage {
            Stage::Running { process, .. } if !process.is_dead() => Some(Arc::clone(process)),
            Stage::Pending
            | Stage::Running { .. }
            | Stage::Unknown { .. }
            | Stage::Ended { .. } => None,
        }
    }

    /// Whether its process is gone for good.
    pub(super) fn has_ended(&self) -> bool {
        match &self.state.lock().stage {
            Stage::Ended { .. } => true,
            Stage::Running { process, .. } => process.is_dead(),
            Stage::Pending | Stage::Unknown { .. } => false,
        }
    }

    /// Whether it takes clients. `None` while it is not ready, or not known to be: a platform that was just started
    /// has not looked yet.
    pub(super) fn serves(&self) -> Option<bool> {
        if self.removal().is_some() {
            return Some(false);
        }
        match &self.state.lock().stage {
            Stage::Ended { .. } => Some(false),
            Stage::Running { process, .. } if process.is_dead() => Some(false),
            Stage::Running { ready: true, .. } => Some(true),
            Stage::Running { .. } | Stage::Pending | Stage::Unknown { .. } => None,
        }
    }

    /// Whether a process may still be started.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.state.lock().stage, Stage::Pending)
    }

    /// The node as reported to callers. Whether its process lives is read, not cached.
    pub(super) fn found(&self, host_name: &str) -> Found {
        let removal = self.removal();
        let LocalNodeState { record, stage } = &*self.state.lock();
        let mut node = record.node();
        let pid = match stage {
            Stage::Pending => {
                node.phase = NodePhase::Pending.into();
                node.ready = Some(false);
                None
            }
            Stage::Running { process, ready } => {
                // One that has just died is failed once its supervisor knows how it ended: whoever sees it failed
                // records the reason and removes it.
                node.phase = NodePhase::Running.into();
                node.ready = Some(*ready && !process.is_dead());
                Some(process.id().pid)
            }
            Stage::Unknown { message } => {
                node.phase = NodePhase::Unknown.into();
                node.message.clone_from(message);
                None
            }
            Stage::Ended { pid, message } => {
                node.phase = NodePhase::Failed.into();
                node.ready = Some(false);
                node.message.clone_from(message);
                *pid
            }
        };
        if removal.is_some() {
            node.phase = NodePhase::Deprovisioning.into();
            node.ready = Some(false);
        }
        node.provider_id = pid
            .map(|pid| format!("local://{host_name}/{pid}"))
            .unwrap_or_default();
        Found {
            node,
            fingerprint: record.identity.fingerprint.clone(),
        }
    }

    fn set_stage(&self, shared: &Shared, stage: Stage) {
        let (cluster_id, node_id) = {
            let mut state = self.state.lock();
            state.stage = stage;
            (
                state.record.identity.cluster_id.clone(),
                state.record.node_id.clone(),
            )
        };
        shared.changed(&cluster_id, &node_id);
    }
}

impl Record {
    /// The resources that the node occupies.
    pub(super) fn placement(&self) -> NodePlacement {
        NodePlacement {
            cluster_id: self.identity.cluster_id.clone(),
            group: self.identity.group.clone(),
            failure_domain: self.failure_domain.clone(),
            ports: self.ports.values().copied().collect(),
            storage: self.storage.clone(),
        }
    }

    /// The address by which this machine reaches the node, independently of names and networks.
    fn own_address(&self) -> String {
        match self.listen {
            None => self.host.clone(),
            Some(IpAddr::V4(any)) if any.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
            Some(IpAddr::V6(any)) if any.is_unspecified() => Ipv6Addr::LOCALHOST.to_string(),
            Some(address) => address.to_string(),
        }
    }

    /// The fields that are constant for the lifetime of the node.
    fn node(&self) -> ProtoNode {
        ProtoNode {
            failure_domain: self.failure_domain.clone(),
            endpoints: self
                .ports
                .iter()
                .map(|(name, port)| (name.clone(), endpoint(&self.host, *port)))
                .collect(),
            agent_address: self.agent_address.clone(),
            create_time: Some((UNIX_EPOCH + Duration::from_millis(self.created)).into()),
            addresses: vec![Address {
                r#type: match self.host.parse::<IpAddr>() {
                    Ok(_) => AddressType::InternalIp,
                    Err(_) => AddressType::InternalDns,
                }
                .into(),
                value: self.host.clone(),
                interface: String::new(),
            }],
            ..self.identity.node(&self.node_id)
        }
    }
}

/// Milliseconds since the Unix epoch.
pub(super) fn unix_millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Supervises a node until it is removed. On cancellation the process is left running.
pub(super) async fn supervise(shared: Arc<Shared>, node: Arc<Node>, cancel: CancellationToken) {
    tokio::select! {
        () = cancel.cancelled() => {}
        () = life(&shared, &node) => {}
    }
}

async fn life(shared: &Arc<Shared>, node: &Arc<Node>) {
    let mut child = None;
    let process = match begin(shared, node).await {
        Ok(Begun {
            process,
            child: started,
        }) => {
            child = started;
            process
        }
        Err(message) => {
            end(shared, node, None, message).await;
            None
        }
    };
    if let Some(process) = process {
        node.set_stage(
            shared,
            Stage::Running {
                process: Arc::clone(&process),
                ready: false,
            },
        );
        tokio::select! {
            died = process.died() => {
                if let Err(error) = died {
                    warn!(node = %node.directory.display(), %error, "a process cannot be watched");
                }
                let message = how_it_ended(shared, node, &process, child.take()).await;
                end(shared, node, Some(process.id().clone()), message).await;
            }
            () = removal_requested(node) => {}
            () = watch_readiness(shared, node, &process) => {}
            () = keep_log_small(node) => {}
        }
        removal_requested(node).await;
        stop(node, &process).await;
        if let Some(mut child) = child {
            // The child is dead already, so this only reaps it.
            let _ = child.wait().await;
        }
    }
    removal_requested(node).await;
    clear(shared, node).await;
}

/// Waits for the node to become ready, and then forever.
async fn watch_readiness(shared: &Shared, node: &Node, process: &Arc<Process>) {
    let (readiness, file, host) = {
        let state = node.state.lock();
        let Record {
            readiness,
            readiness_file,
            ..
        } = &state.record;
        (
            *readiness,
            readiness_file
                .as_ref()
                .map(|path| node.directory.join(DATA).join(path)),
            state.record.own_address(),
        )
    };
    if let Some(file) = file {
        let mut wait = READY_POLL.0;
        while !tokio::fs::try_exists(&file).await.unwrap_or_default() {
            sleep(wait).await;
            wait = (wait * 3 / 2).min(READY_POLL.1);
        }
    }
    if let Some(port) = readiness {
        let mut wait = READY_POLL.0;
        while !matches!(
            timeout(READY_TIMEOUT, TcpStream::connect((host.as_str(), port))).await,
            Ok(Ok(_))
        ) {
            sleep(wait).await;
            wait = (wait * 3 / 2).min(READY_POLL.1);
        }
    }
    node.set_stage(
        shared,
        Stage::Running {
            process: Arc::clone(process),
            ready: true,
        },
    );
    pending::<()>().await;
}

async fn keep_log_small(node: &Node) {
    loop {
        sleep(LOG_CHECK).await;
        let directory = node.directory.clone();
        if let Err(error) = blocking(move || logs::rotate(&directory)).await {
            warn!(node = %node.directory.display(), %error, "the log of a node cannot be rotated");
        }
    }
}

pub(super) async fn write_record(node: &Node, record: Record) -> io::Result<()> {
    let path = node.directory.join(NODE);
    blocking(move || files::replace(&path, &files::to_json(&record)?, 0o644)).await
}

/// Writes the role file, from which the process reads its role.
pub(super) async fn write_role(node: &Node, role: NodeRole) -> io::Result<()> {
    let path = node.directory.join(DATA).join(ROLE);
    blocking(move || files::replace(&path, role_words(role).as_bytes(), 0o644)).await
}

/// Runs blocking I/O outside the runtime's worker threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::json;

    use super::*;
    use crate::drivers::local::process::ProcessId;

    fn running(process: Process) -> Arc<Node> {
        let record = json!({
            "node_id": "db-0-abcde", "identity": {}, "created": 0, "failure_domain": "", "host": "127.0.0.1",
            "ports": {}, "agent_address": null, "readiness": null, "stop_signal": 15, "storage": null,
        });
        let record = serde_json::from_value(record).unwrap();
        let node = Node::new(PathBuf::new(), record, None);
        node.state.lock().stage = Stage::Running {
            process: Arc::new(process),
            ready: true,
        };
        node
    }

    #[tokio::test]
    async fn a_node_is_failed_only_once_it_is_known_how_its_process_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = ProcessId::of(child.id()).unwrap().unwrap();
        let process = process.hold().unwrap().unwrap();
        let node = running(process);
        let found = || node.found("host").node;
        assert_eq!(
            (found().phase(), found().ready),
            (NodePhase::Running, Some(true))
        );

        child.kill().unwrap();
        child.wait().unwrap();
        assert!(node.has_ended());
        assert_eq!(
            (found().phase(), found().ready),
            (NodePhase::Running, Some(false))
        );

        node.state.lock().stage = Stage::Ended {
            pid: Some(child.id()),
            message: "killed by signal 9".to_owned(),
        };
        assert_eq!(
            (found().phase(), found().ready),
            (NodePhase::Failed, Some(false))
        );
        assert_eq!(found().message, "killed by signal 9");
    }
}
