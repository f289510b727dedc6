//! Removal of a state directory and all its nodes.

use std::{fs, io, os::fd::OwnedFd, path::Path, thread, time::Duration};

use drover_core::{Error, Reason, Result};

use super::{
    cgroup::Groups,
    files,
    node::lock_out_launchers,
    process::ProcessId,
    state::{PROCESS, StateDir},
};

/// Interval between checks whether killed processes are gone.
const KILL_POLL: Duration = Duration::from_millis(5);

/// How often the removal of a directory is retried while files still appear in it: half a second in total, far longer
/// than a process takes to end.
const REMOVALS: u32 = 100;

/// Summary of [`remove_all`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Number of killed processes: nodes and their descendants.
    pub processes: usize,
    /// Number of removed files.
    pub files: usize,
}

/// Kills all nodes of a state directory and removes the directory. Does nothing if the directory does not exist. Blocks
/// until everything is gone.
///
/// # Errors
/// `Precondition` if a platform uses the directory, if it is not a state directory, or if something cannot be removed.
pub fn remove_all(state_dir: &Path) -> Result<Removed> {
    let failed = |error: io::Error| {
        Error::new(
            Reason::Precondition,
            format!("{} cannot be removed: {error}", state_dir.display()),
        )
    };
    if !fs::exists(state_dir).map_err(failed)? {
        return Ok(Removed::default());
    }
    // Do not remove an unrelated directory that was named by mistake.
    if !fs::exists(state_dir.join("uuid")).map_err(failed)? {
        let what = format!(
            "{} is not a state directory of the local platform; it was left alone",
            state_dir.display()
        );
        return Err(Error::new(Reason::Precondition, what));
    }
    let state = StateDir::open(state_dir)?;
    let mut removed = Removed::default();
    // Held until the directories are removed, so that no launcher starts a node in between.
    let mut locks = Vec::new();
    for node_id in state.node_ids().map_err(failed)? {
        let directory = state.node(&node_id);
        locks.push(lock_out(&directory).map_err(failed)?);
        if let Some(id) = files::read_json::<ProcessId>(&directory.join(PROCESS)).map_err(failed)? {
            removed.processes += kill(&id).map_err(failed)?;
        }
    }
    Groups::remove_empty();
    removed.files = count(state.root()).map_err(failed)?;
    remove(state.root()).map_err(failed)?;
    drop(locks);
    Ok(removed)
}

/// Removes a directory in which killed processes may still create their last files.
fn remove(directory: &Path) -> io::Result<()> {
    for _ in 0..REMOVALS {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                thread::sleep(KILL_POLL);
            }
            result => return result,
        }
    }
    fs::remove_dir_all(directory)
}

/// Waits for the launchers of a killed platform: afterwards either a process is recorded, or none ever will be.
fn lock_out(directory: &Path) -> io::Result<Option<OwnedFd>> {
    loop {
        match lock_out_launchers(directory) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(KILL_POLL),
            result => return result,
        }
    }
}

fn kill(id: &ProcessId) -> io::Result<usize> {
    let mut killed = 0;
    loop {
        match id.kill_session()? {
            0 if !id.lives()? => return Ok(killed),
            0 => {}
            // A process that is hit again is already exiting.
            hit => killed = killed.max(hit),
        }
        thread::sleep(KILL_POLL);
    }
}

fn count(directory: &Path) -> io::Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() {
            count(&entry.path())?
        } else {
            1
        };
    }
    Ok(files)
}
