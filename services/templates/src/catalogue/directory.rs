//! The files of a catalogue on disk, and how changed ones are detected.

use std::{collections::BTreeMap, fs, io, os::unix::fs::MetadataExt as _, path::Path};

use drover_core::{Error, Reason, Result};

use super::Files;

/// Extensions of the files that are parsed as templates.
const ENDINGS: [&str; 4] = [".yaml", ".yml", ".j2", ".jinja"];

/// Maximum size of a catalogue file in bytes. Larger files are mistakes, not templates.
const MAX_FILE: u64 = 1024 * 1024;

/// Maximum number of files in a catalogue, so that a wrong directory (a home, the root) is rejected instead of read.
const MAX_FILES: usize = 1000;

/// The files found, by their names.
pub(super) type Stamps = BTreeMap<String, Stamp>;
/// Identity of a file version: inode, size, and seconds and nanoseconds of modification and status change. File
/// timestamps are coarse, but a file that replaces another one has a different inode.
type Stamp = (u64, u64, [i64; 4]);

/// Returns stamps by which changed files are detected.
pub(super) fn stamps(directory: &Path) -> Result<Stamps> {
    let mut found = Stamps::new();
    walk(directory, "", &mut found)?;
    Ok(found)
}

fn walk(root: &Path, below: &str, found: &mut Stamps) -> Result<()> {
    let directory = root.join(below);
    let entries = fs::read_dir(&directory).map_err(|error| unreadable(&directory, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(&directory, &error))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if name.starts_with('.') {
            continue;
        }
        let path = if below.is_empty() {
            name
        } else {
            format!("{below}/{name}")
        };
        // Follows symlinks, which mounted configuration consists of.
        let meta = match fs::metadata(entry.path()) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(unreadable(&entry.path(), &error)),
        };
        if meta.is_dir() {
            // One level is enough for includes, and prevents endless symlink loops.
            if below.is_empty() {
                walk(root, &path, found)?;
            }
        } else if meta.is_file() && ENDINGS.iter().any(|ending| path.ends_with(ending)) {
            if meta.len() > MAX_FILE {
                return Err(Error::invalid(
                    entry.path().display().to_string(),
                    "larger than 1 MiB: no template",
                ));
            }
            let times = [
                meta.mtime(),
                meta.mtime_nsec(),
                meta.ctime(),
                meta.ctime_nsec(),
            ];
            found.insert(path, (meta.ino(), meta.len(), times));
            if found.len() > MAX_FILES {
                return Err(Error::invalid(
                    root.display().to_string(),
                    "more than 1000 files: no template catalogue",
                ));
            }
        }
    }
    Ok(())
}

/// Reads the files that were found.
pub(super) fn read(directory: &Path, stamps: &Stamps) -> Result<Files> {
    let files = stamps.keys().map(|name| {
        let path = directory.join(name);
        fs::read_to_string(&path)
            .map(|content| (name.clone(), content))
            .map_err(|error| unreadable(&path, &error))
    });
    files.collect()
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::new(
        Reason::Precondition,
        format!("{} cannot be read: {error}", path.display()),
    )
}
