//! Crash points at which tests make this process die as by `kill -9`. No-ops in normal builds.

/// A crash point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// The directory of a node is written but not renamed into place.
    IntentWritten,
    /// The node exists; nothing was started.
    IntentDurable,
    /// The launcher runs; it has not reported anything.
    LauncherSpawned,
    /// In the launcher: the lock is held, the process is not recorded.
    LauncherLocked,
    /// In the launcher: the process is recorded but has not become the node's program.
    LauncherRecorded,
    /// The process runs; the caller has not received the response.
    BeforeAnswer,
    /// The node has its new owner; the record of its storage does not.
    NodeAdopted,
    /// The deletion is recorded; nothing was stopped.
    RemovalRecorded,
    /// The process was stopped; its directory still exists.
    Stopped,
    /// The directory is renamed but not removed.
    DirectoryRenamed,
}

/// Kills this process if a test has selected this point.
#[inline]
pub(super) fn point(point: Point) {
    #[cfg(feature = "crash-points")]
    if std::env::var("DROVER_CRASH_AT").is_ok_and(|wanted| wanted == format!("{point:?}")) {
        use rustix::process::{Signal, getpid, kill_process};
        // SIGKILL, because no handler can intercept it.
        let _ = kill_process(getpid(), Signal::KILL);
    }
    #[cfg(not(feature = "crash-points"))]
    let _ = point;
}
