//! Removal of a node: stops the process, kills its descendants and deletes its files.

use std::{
    io,
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use drover_proto::platform::v1::RemovalEvidence;
use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use super::super::{
    Shared,
    crash::{self, Point},
    files,
    process::{Process, ProcessId},
    spec::ProcessSpec,
    state::{LOCK, PROCESS, REMOVAL, Removal, SPEC},
};

use super::{Node, RETRY, blocking, unix_millis};

/// Initial and maximum interval between checks whether killed processes are gone. Killing takes milliseconds, unless a
/// process hangs in the kernel.
const KILL_POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));

pub(super) async fn removal_requested(node: &Node) {
    let mut changes = node.removal.subscribe();
    // The sender lives as long as the node.
    let _ = changes.wait_for(Option::is_some).await;
}

/// Asks the process to stop, waits until the deadline, and kills the rest of its session.
pub(super) async fn stop(node: &Node, process: &Process) {
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

/// Kills a session until no member is left.
pub(super) async fn kill_all(id: &ProcessId, leader: Option<&Process>) {
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

/// Removes all files of a node.
pub(super) async fn clear(shared: &Arc<Shared>, node: &Arc<Node>) {
    let mut said = String::new();
    while let Err(error) = try_clear(shared, node).await {
        if error.kind() != io::ErrorKind::WouldBlock {
            let error = error.to_string();
            // A persistent error is logged once, not once per attempt.
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

async fn try_clear(shared: &Shared, node: &Arc<Node>) -> io::Result<()> {
    let state = &shared.state;
    let (directory, record) = (node.directory.clone(), node.record());
    let lock = blocking(move || lock_out_launchers(&directory)).await?;
    // Once a record exists, or no launcher can write one any more, the record is complete.
    if let Some(id) = files::read_json::<ProcessId>(&node.directory.join(PROCESS))? {
        let process = id.hold()?;
        kill_all(&id, process.as_ref()).await;
    }
    let retain = node.removal().is_some_and(|removal| removal.retain_storage);
    if retain && let Some(key) = record.storage.clone() {
        // The owner must not change between reading and writing it.
        let _writing = node.writing.lock().await;
        let (state, identity) = (Arc::clone(state), node.record().identity);
        let now = unix_millis(SystemTime::now());
        blocking(move || state.keep(&key, &identity, now)).await?;
    }
    let state = Arc::clone(state);
    let (spec, tenancy) = (node.directory.join(SPEC), Arc::clone(&shared.tenancy));
    blocking(move || {
        if let Some(key) = record.storage.filter(|_| !retain) {
            state.remove_storage(&key)?;
        }
        let spec = files::read_json::<ProcessSpec>(&spec).ok().flatten();
        state.remove(&record.node_id)?;
        if let Some(group) = spec.and_then(|spec| tenancy.group(&spec)) {
            group.remove();
        }
        Ok(())
    })
    .await?;
    drop(lock);
    Ok(())
}

/// Ensures that no launcher, not even one of a killed platform, starts the node from now on: either its process is
/// recorded, or its lock is ours. Returns `WouldBlock` while a launcher is in progress.
pub(in crate::drivers::local) fn lock_out_launchers(
    directory: &Path,
) -> io::Result<Option<OwnedFd>> {
    let record = directory.join(PROCESS);
    if !std::fs::exists(directory)? || std::fs::exists(&record)? {
        return Ok(None);
    }
    let lock = files::lock(&directory.join(LOCK), false)?;
    // A launcher may have recorded itself in between; its lock is released with it.
    if lock.is_none() && !std::fs::exists(&record)? {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(lock)
}

/// Records that a node is being removed.
pub(in crate::drivers::local) async fn write_removal(
    node: &Node,
    removal: Removal,
) -> io::Result<()> {
    let path = node.directory.join(REMOVAL);
    blocking(move || files::replace(&path, &files::to_json(&removal)?, 0o644)).await
}
