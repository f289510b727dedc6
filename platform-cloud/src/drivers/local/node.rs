//! One node and the task that looks after it: starts its process, sees it become ready and die, and removes it.

use std::{
    future::pending,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{Node as ProtoNode, NodePhase, RemovalEvidence},
};
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    process::{Child, Command},
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Shared,
    crash::{self, Point},
    files, launch, logs,
    place::Seat,
    process::{Process, ProcessId},
    spec::endpoint,
    state::{EXIT, Exit, LOCK, NODE, PROCESS, REMOVAL, Record, Removal, StateDir},
};
use drover_platform::driver::Found;
use drover_telemetry::Span;

/// Longest time for which a launcher may be silent. It needs milliseconds; a machine that swaps may need seconds.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(20);

/// First and longest wait between two looks whether a node accepts connections. The first ones are short, because most
/// nodes are ready within a tenth of a second.
const READY_POLL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// Longest time that one look may take: the port is on this machine.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the size of a log is looked at. A node that writes 100 MB/s exceeds its limit by half a gigabyte.
const LOG_CHECK: Duration = Duration::from_secs(5);

/// Wait between two looks whether killed processes are gone, at first and at most. Killing takes milliseconds, unless a
/// process hangs in the kernel.
const KILL_POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));

/// Wait after an error of the file system before a removal goes on.
const RETRY: Duration = Duration::from_secs(1);

/// One node.
pub(super) struct Node {
    pub(super) directory: PathBuf,
    state: Mutex<State>,
    /// What is to be removed, and until when; the supervisor and running commands watch it.
    removal: watch::Sender<Option<Removal>>,
    /// Held while the record or the removal is rewritten.
    pub(super) writing: tokio::sync::Mutex<()>,
}

struct State {
    record: Record,
    stage: Stage,
}

/// How far a node is.
#[derive(Clone)]
enum Stage {
    /// It was accepted; its process is not there yet.
    Pending,
    /// Its process runs.
    Running { process: Arc<Process>, ready: bool },
    /// Whether it runs cannot be read now.
    Unknown { message: String },
    /// Its process has ended, or could not be started.
    Ended { pid: Option<u32>, message: String },
}

impl Node {
    pub(super) fn new(directory: PathBuf, record: Record, removal: Option<Removal>) -> Arc<Self> {
        Arc::new(Self {
            directory,
            state: Mutex::new(State {
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

    /// The process, if it runs at this very moment.
    pub(super) fn process(&self) -> Option<Arc<Process>> {
        match &self.state.lock().stage {
            Stage::Running { process, .. } if !process.is_dead() => Some(Arc::clone(process)),
            Stage::Pending
            | Stage::Running { .. }
            | Stage::Unknown { .. }
            | Stage::Ended { .. } => None,
        }
    }

    /// Whether a process may still be started.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.state.lock().stage, Stage::Pending)
    }

    /// The node as Discover shows it. Its process is asked, not remembered.
    pub(super) fn found(&self, host_name: &str) -> Found {
        let removal = self.removal();
        let State { record, stage } = &*self.state.lock();
        let mut node = record.node();
        let pid = match stage {
            Stage::Pending => {
                node.phase = NodePhase::Pending.into();
                node.ready = Some(false);
                None
            }
            Stage::Running { process, ready } => {
                let dead = process.is_dead();
                node.phase = if dead {
                    NodePhase::Failed
                } else {
                    NodePhase::Running
                }
                .into();
                node.ready = Some(*ready && !dead);
                if dead {
                    node.message = format!("process {} has ended", process.id().pid);
                }
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
    /// What it takes from others.
    pub(super) fn seat(&self) -> Seat {
        Seat {
            cluster_id: self.identity.cluster_id.clone(),
            group: self.identity.group.clone(),
            failure_domain: self.failure_domain.clone(),
            ports: self.ports.values().copied().collect(),
            storage: self.storage.clone(),
        }
    }

    /// Where this machine reaches it, whatever becomes of names and networks.
    fn own_address(&self) -> String {
        match self.listen {
            None => self.host.clone(),
            Some(IpAddr::V4(any)) if any.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
            Some(IpAddr::V6(any)) if any.is_unspecified() => Ipv6Addr::LOCALHOST.to_string(),
            Some(address) => address.to_string(),
        }
    }

    /// Everything that does not change while the node lives.
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

/// Milliseconds of Unix time.
pub(super) fn unix_millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Looks after a node until it is removed. Cancelled, it leaves the process alone.
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
                let message = how_it_ended(&process, child.take()).await;
                end(shared, node, Some(process.id().clone()), message).await;
            }
            () = removal_requested(node) => {}
            () = watch_readiness(shared, node, &process) => {}
            () = keep_log_small(node) => {}
        }
        removal_requested(node).await;
        stop(node, &process).await;
        if let Some(mut child) = child {
            // Dead by now, so this only takes its status.
            let _ = child.wait().await;
        }
    }
    removal_requested(node).await;
    clear(shared, node).await;
}

struct Begun {
    /// `None`: it is to be removed before it was started.
    process: Option<Arc<Process>>,
    /// Set if this platform started it.
    child: Option<Child>,
}

/// Finds the process of a node, or starts it. The error says why it will never run.
async fn begin(shared: &Shared, node: &Node) -> Result<Begun, String> {
    let (exit, found) = loop {
        let exit = files::read_json::<Exit>(&node.directory.join(EXIT));
        match exit.and_then(|exit| find(&node.directory).map(|found| (exit, found))) {
            Ok(read) => break read,
            Err(error) => node.set_stage(
                shared,
                Stage::Unknown {
                    message: error.to_string(),
                },
            ),
        }
        sleep(RETRY).await;
    };
    match (exit, found) {
        (_, Recorded::Alive(process)) => Ok(Begun {
            process: Some(process),
            child: None,
        }),
        (Some(exit), _) => Err(exit.message),
        (None, Recorded::Dead) => Err(ENDED_UNSEEN.to_owned()),
        (None, Recorded::Nothing) if node.removal().is_some() => Ok(Begun {
            process: None,
            child: None,
        }),
        (None, Recorded::Nothing) => {
            let mut span = Span::internal("start process");
            let begun = start(shared, node).await;
            if let (Some(span), Err(why)) = (&mut span, &begun) {
                span.fail("failed", why);
            }
            begun
        }
    }
}

/// What is known of the process of a node.
enum Recorded {
    /// None was recorded.
    Nothing,
    Dead,
    Alive(Arc<Process>),
}

const ENDED_UNSEEN: &str = "the process ended while the platform was not running";

fn find(directory: &Path) -> io::Result<Recorded> {
    let unreadable =
        |error| io::Error::other(format!("{PROCESS} in the directory of the node: {error}"));
    let Some(id) = files::read_json::<ProcessId>(&directory.join(PROCESS)).map_err(unreadable)?
    else {
        return Ok(Recorded::Nothing);
    };
    let process = id
        .hold()
        .map_err(|error| io::Error::other(format!("process {}: {error}", id.pid)))?;
    Ok(process.map_or(Recorded::Dead, |process| Recorded::Alive(Arc::new(process))))
}

/// Starts the launcher and hears from it until it has become the node's program.
async fn start(shared: &Shared, node: &Node) -> Result<Begun, String> {
    let launcher = &shared.settings.launcher;
    let mut child = Command::new(launcher)
        .arg("launch")
        .arg(&node.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("the launcher {} cannot be run: {error}", launcher.display()))?;
    crash::point(Point::LauncherSpawned);
    let mut said = Vec::new();
    if let Some(report) = child.stdout.take() {
        // The pipe is closed when the launcher becomes the program, or ends.
        let heard = timeout(LAUNCH_TIMEOUT, report.take(4096).read_to_end(&mut said)).await;
        if heard.is_err() {
            // Without its record it has not become the program, and it never will when it is dead.
            let _ = child.kill().await;
        }
    }
    match said.split_first() {
        Some((&launch::STARTING, [])) => {
            let found = find(&node.directory);
            if let Ok(Recorded::Alive(process)) = found {
                return Ok(Begun {
                    process: Some(process),
                    child: Some(child),
                });
            }
            if let Err(error) = found {
                // It cannot be watched, so it must not run: nobody would see it end.
                warn!(node = %node.directory.display(), %error, "a new process cannot be watched and is killed");
                let _ = child.start_kill();
            }
            Err(how_a_child_ended(child).await)
        }
        Some((&launch::STARTING, [launch::REFUSED, why @ ..]) | (&launch::REFUSED, why)) => {
            let _ = child.wait().await;
            Err(format!(
                "the process could not be started: {}",
                String::from_utf8_lossy(why)
            ))
        }
        // Another launcher, of a platform that was killed, was quicker; or this one died without a word.
        _ => {
            let status = child.wait().await;
            match find(&node.directory) {
                Ok(Recorded::Alive(process)) => Ok(Begun {
                    process: Some(process),
                    child: None,
                }),
                Ok(Recorded::Dead) => Err(ENDED_UNSEEN.to_owned()),
                Ok(Recorded::Nothing) => Err(format!("the launcher {}", describe(status))),
                Err(error) => Err(error.to_string()),
            }
        }
    }
}

async fn how_it_ended(process: &Process, child: Option<Child>) -> String {
    match child {
        Some(child) => how_a_child_ended(child).await,
        None => format!(
            "process {} ended; it was not started by this platform process, so how is not known",
            process.id().pid
        ),
    }
}

async fn how_a_child_ended(mut child: Child) -> String {
    let pid = child.id().unwrap_or_default();
    format!("process {pid} {}", describe(child.wait().await))
}

fn describe(status: io::Result<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;

    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(signal)) => format!("was killed by signal {signal}"),
            (None, None) => "ended".to_owned(),
        },
        Err(error) => format!("ended; its status cannot be read: {error}"),
    }
}

/// Remembers how a process ended, and ends what it left behind.
async fn end(shared: &Shared, node: &Node, id: Option<ProcessId>, message: String) {
    let pid = id.as_ref().map(|id| id.pid);
    info!(node = %node.directory.display(), %message, "the process of a node has ended");
    node.set_stage(
        shared,
        Stage::Ended {
            pid,
            message: message.clone(),
        },
    );
    if let Some(id) = id {
        kill_all(&id, None).await;
    }
    let path = node.directory.join(EXIT);
    let written = blocking(move || {
        if !std::fs::exists(&path)? {
            files::replace(&path, &files::to_json(&Exit { message })?, 0o644)?;
        }
        Ok(())
    });
    if let Err(error) = written.await {
        warn!(node = %node.directory.display(), %error, "how a node ended cannot be written down");
    }
}

async fn removal_requested(node: &Node) {
    let mut changes = node.removal.subscribe();
    // The sender lives in the node.
    let _ = changes.wait_for(Option::is_some).await;
}

/// Sees the node become ready, and then waits forever.
async fn watch_readiness(shared: &Shared, node: &Node, process: &Arc<Process>) {
    let (readiness, host) = {
        let state = node.state.lock();
        (state.record.readiness, state.record.own_address())
    };
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

/// Asks the process to stop, waits until the deadline, and kills whatever is left of its session.
async fn stop(node: &Node, process: &Process) {
    let signal = Signal::from_named_raw(node.record().stop_signal).unwrap_or(Signal::TERM);
    if let Err(error) = process.signal_group(signal) {
        warn!(node = %node.directory.display(), %error, "a node cannot be asked to stop");
    }
    let mut removal = node.removal.subscribe();
    loop {
        let deadline = removal
            .borrow_and_update()
            .as_ref()
            .map_or(0, |removal| removal.deadline);
        let left = Duration::from_millis(deadline.saturating_sub(unix_millis(SystemTime::now())));
        tokio::select! {
            died = process.died() => {
                if died.is_ok() {
                    break;
                }
                sleep(left).await;
                break;
            }
            () = sleep_until(Instant::now() + left) => break,
            _ = removal.changed() => {}
        }
    }
    kill_all(process.id(), Some(process)).await;
    crash::point(Point::Stopped);
}

/// Kills a session until none of it is left.
async fn kill_all(id: &ProcessId, leader: Option<&Process>) {
    let mut wait = KILL_POLL.0;
    loop {
        let session = id.clone();
        match blocking(move || session.kill_session()).await {
            Ok(0) if leader.is_none_or(Process::is_dead) => return,
            Ok(_) => {}
            Err(error) => warn!(pid = id.pid, %error, "what a node has started cannot be killed"),
        }
        sleep(wait).await;
        wait = (wait * 2).min(KILL_POLL.1);
    }
}

/// Removes everything of a node.
async fn clear(shared: &Arc<Shared>, node: &Arc<Node>) {
    let mut said = String::new();
    while let Err(error) = try_clear(&shared.state, node).await {
        if error.kind() != io::ErrorKind::WouldBlock {
            let error = error.to_string();
            // What lasts is said once, not once an attempt.
            if said != error {
                warn!(node = %node.directory.display(), error, "a removed node leaves something behind; trying again");
                said = error;
            }
            sleep(RETRY).await;
        }
        sleep(KILL_POLL.1).await;
    }
    let record = node.record();
    shared.forget(&record.node_id);
    if let Some(changes) = shared.changes.get() {
        changes.removed(
            &record.identity.cluster_id,
            &record.node_id,
            RemovalEvidence::Confirmed,
        );
    }
}

async fn try_clear(state: &Arc<StateDir>, node: &Arc<Node>) -> io::Result<()> {
    let (directory, record) = (node.directory.clone(), node.record());
    let lock = blocking(move || lock_out_launchers(&directory)).await?;
    // Once a record is there, or no launcher can write one any more, what is recorded is all that there is.
    if let Some(id) = files::read_json::<ProcessId>(&node.directory.join(PROCESS))? {
        let process = id.hold()?;
        kill_all(&id, process.as_ref()).await;
    }
    let retain = node.removal().is_some_and(|removal| removal.retain_storage);
    let state = Arc::clone(state);
    blocking(move || {
        if let Some(key) = record.storage.filter(|_| !retain) {
            state.remove_storage(&key)?;
        }
        state.remove(&record.node_id)
    })
    .await?;
    drop(lock);
    Ok(())
}

/// Makes sure that no launcher, perhaps one of a platform that was killed, starts the node from now on: there is a
/// record, or its lock is ours. `WouldBlock`: one is on its way.
pub(super) fn lock_out_launchers(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let record = directory.join(PROCESS);
    if !std::fs::exists(directory)? || std::fs::exists(&record)? {
        return Ok(None);
    }
    let lock = files::lock(&directory.join(LOCK), false)?;
    // A launcher may have recorded itself in between; its lock ends with it.
    if lock.is_none() && !std::fs::exists(&record)? {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(lock)
}

/// Writes the record of a node.
pub(super) async fn write_record(node: &Node, record: Record) -> io::Result<()> {
    let path = node.directory.join(NODE);
    blocking(move || files::replace(&path, &files::to_json(&record)?, 0o644)).await
}

/// Writes down that a node is being removed.
pub(super) async fn write_removal(node: &Node, removal: Removal) -> io::Result<()> {
    let path = node.directory.join(REMOVAL);
    blocking(move || files::replace(&path, &files::to_json(&removal)?, 0o644)).await
}

/// Runs something that blocks outside of the runtime's threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}
