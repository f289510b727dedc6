//! Points at which tests let this process die as `kill -9` would. Nothing at all in normal builds.

/// Where a crash is worth a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// The directory of a node is written and not yet in its place.
    IntentWritten,
    /// The node exists; nothing was started.
    IntentDurable,
    /// The launcher runs; it has not said anything.
    LauncherSpawned,
    /// In the launcher: the lock is held, the process is not recorded.
    LauncherLocked,
    /// In the launcher: the process is recorded and has not become the node's program.
    LauncherRecorded,
    /// The process runs; the caller was not answered.
    BeforeAnswer,
    /// The node is another owner's; its storage does not say so yet.
    NodeAdopted,
    /// The removal is recorded; nothing was stopped.
    RemovalRecorded,
    /// The process was stopped; its directory is there.
    Stopped,
    /// The directory is renamed and not removed.
    DirectoryRenamed,
}

/// Dies here if a test wants it.
#[inline]
pub(super) fn point(point: Point) {
    #[cfg(feature = "crash-points")]
    if std::env::var("DROVER_CRASH_AT").is_ok_and(|wanted| wanted == format!("{point:?}")) {
        use rustix::process::{Signal, getpid, kill_process};
        // SIGKILL, because it is what cannot be prepared for.
        let _ = kill_process(getpid(), Signal::KILL);
    }
    #[cfg(not(feature = "crash-points"))]
    let _ = point;
}
