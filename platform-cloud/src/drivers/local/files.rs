//! Files that survive a crash of the machine, and locks that are released with their process.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::Path,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use serde::{Serialize, de::DeserializeOwned};

/// Writes a file atomically: a temporary file next to it is synced and renamed over it, and the directory is synced.
pub(super) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = sibling(path);
    let written = write_new(&temporary, content, mode).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the relevant one; a leftover is removed at the next start.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    sync_parent(path)
}

/// Creates a file with this content atomically. Returns false if it exists already.
pub(super) fn create_once(path: &Path, content: &[u8], mode: u32) -> io::Result<bool> {
    if fs::exists(path)? {
        return Ok(false);
    }
    let temporary = sibling(path);
    write_new(&temporary, content, mode)?;
    let linked = fs::hard_link(&temporary, path);
    fs::remove_file(&temporary)?;
    match linked {
        Ok(()) => sync_parent(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Reads a JSON file. `None` if it does not exist.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(content) => serde_json::from_slice(&content).map(Some).map_err(|error| {
            // The kind and position of the error, but never the content, which may be secret.
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "not readable as {:?} at line {}, column {}",
                    error.classify(),
                    error.line(),
                    error.column()
                ),
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn to_json<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(io::Error::other)
}

/// Makes renames, links and removals in the parent directory durable.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_directory)
}

/// Makes the entries of a directory durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Locks a file until the last process that has it open ends. `None` if it is locked by another process.
///
/// An `inherited` lock stays open across exec and in child processes.
pub(super) fn lock(path: &Path, inherited: bool) -> io::Result<Option<OwnedFd>> {
    let mut flags = OFlags::RDWR | OFlags::CREATE;
    if !inherited {
        flags |= OFlags::CLOEXEC;
    }
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn sibling(path: &Path) -> std::path::PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.{:x}", std::process::id(), fastrand::u64(..)));
    path.with_file_name(name)
}
