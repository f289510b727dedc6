//! The database files: owner, format and integrity. Nothing here changes a file that is not ours.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use drover_core::{Error, Reason, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

/// File name of the database in its directory.
pub const DATABASE: &str = "drover.db";
const LOCK: &str = "drover.lock";

/// "drov": distinguishes our databases from those of other programs.
const APPLICATION_ID: i32 = 0x6472_6f76;

/// A format with its migrations: `steps[i]` leads from version `i` to `i + 1`.
#[derive(Debug)]
pub struct Format {
    /// Version of the format.
    pub version: usize,
    steps: &'static [Step],
}

type Step = fn(&Transaction<'_>) -> rusqlite::Result<()>;

/// The format that this version reads and writes.
pub const FORMAT: Format = Format {
    version: 1,
    steps: &[create_tables],
};

fn create_tables(txn: &Transaction<'_>) -> rusqlite::Result<()> {
    txn.execute_batch(
        "CREATE TABLE state (k BLOB PRIMARY KEY, rev INTEGER NOT NULL, v BLOB NOT NULL) WITHOUT ROWID;
         CREATE TABLE log (k BLOB PRIMARY KEY, rev INTEGER NOT NULL, v BLOB NOT NULL) WITHOUT ROWID;
         CREATE TABLE meta (k TEXT PRIMARY KEY, v INTEGER NOT NULL) WITHOUT ROWID;
         INSERT INTO meta (k, v) VALUES ('epoch', 0), ('revision', 0);",
    )
}

fn refused(message: String) -> Error {
    Error::new(Reason::Precondition, message)
}

fn io_error(what: &str, path: &Path, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::StorageFull {
        return Error::new(
            Reason::StorageFull,
            format!("cannot {what} {}: {error}", path.display()),
        );
    }
    Error::unavailable(format!("cannot {what} {}: {error}", path.display()))
}

/// Creates the directory and takes its lock, which lasts as long as the file is open.
pub(super) fn lock(directory: &Path) -> Result<File> {
    make_directory(directory).map_err(|e| io_error("make", directory, &e))?;
    refuse_shared(directory)?;
    refuse_network(directory)?;
    let path = directory.join(LOCK);
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|e| io_error("open", &path, &e))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let holder = match lock.read_to_string(&mut holder) {
                Ok(_) if !holder.trim().is_empty() => format!("process {}", holder.trim()),
                Ok(_) | Err(_) => "another process".to_owned(),
            };
            return Err(refused(format!(
                "the data directory {} is in use by {holder}; stop it, or use another directory",
                directory.display()
            )));
        }
        Err(TryLockError::Error(e)) => return Err(io_error("lock", &path, &e)),
    }
    // Only for the message above, so it does not have to be synced.
    lock.set_len(0)
        .and_then(|()| lock.write_all(std::process::id().to_string().as_bytes()))
        .map_err(|e| io_error("write", &path, &e))?;
    Ok(lock)
}

fn make_directory(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        // It contains specs and secrets.
        builder.mode(0o700);
    }
    builder.create(directory)
}

/// A directory that existed before may be accessible to others. A user who can write to it can replace the database;
/// one who can only read it learns little, because its files are private to their owner, and access by a group may be
/// intended.
#[cfg(unix)]
fn refuse_shared(directory: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    const OTHERS_WRITE: u32 = 0o002;
    const NOT_OWNER: u32 = 0o077;
    let found = fs::metadata(directory).map_err(|e| io_error("read", directory, &e))?;
    let mode = found.permissions().mode() & 0o777;
    if mode & OTHERS_WRITE != 0 {
        return Err(refused(format!(
            "everybody may write to the data directory {0} (mode {mode:03o}); chmod 700 {0}, or use a directory inside of it",
            directory.display()
        )));
    }
    if mode & NOT_OWNER != 0 {
        tracing::warn!(
            directory = %directory.display(),
            mode = format_args!("{mode:03o}"),
            "the data directory is open to other users than the one that this runs as; chmod 700 unless that is meant"
        );
    }
    Ok(())
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere there are modes")]
fn refuse_shared(_: &Path) -> Result<()> {
    Ok(())
}

/// Creates an empty file that is private to its owner, regardless of the umask. SQLite fills it, and gives the files
/// that it creates beside it the same mode.
fn make_private(path: &Path) -> Result<()> {
    let failed = |e: io::Error| io_error("make", path, &e);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
        const MODE: u32 = 0o600;
        let file = options.mode(MODE).open(path).map_err(failed)?;
        file.set_permissions(fs::Permissions::from_mode(MODE))
            .map_err(failed)
    }
    #[cfg(not(unix))]
    options.open(path).map(drop).map_err(failed)
}

/// File systems whose shared memory does not span the machines that mount them, as the write-ahead log requires.
const NETWORK: &[&str] = &[
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "ceph",
    "afs",
    "lustre",
    "gpfs",
    "beegfs",
    "ocfs2",
    "gfs2",
    "ncpfs",
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.cephfs",
    "fuse.s3fs",
    "fuse.rclone",
];

fn refuse_network(directory: &Path) -> Result<()> {
    // Only Linux has this list; elsewhere nothing is known, and nothing is refused.
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else {
        return Ok(());
    };
    let directory = directory
        .canonicalize()
        .map_err(|e| io_error("read", directory, &e))?;
    match file_system(&mounts, &directory) {
        Some(kind) if NETWORK.contains(&kind) => Err(refused(format!(
            "the data directory {} is on a network file system ({kind}), where the database would break; use a local disk",
            directory.display()
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Type of the file system that contains a path, from the text of `/proc/self/mountinfo`.
fn file_system<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mount = |line: &'a str| {
        let (mount, source) = line.split_once(" - ")?;
        let point = PathBuf::from(unescape(mount.split(' ').nth(4)?));
        path.starts_with(&point)
            .then_some((point.components().count(), source.split(' ').next()?))
    };
    // A later mount on the same point covers the earlier one; `max_by_key` returns the last of equal ones.
    mounts
        .lines()
        .filter_map(mount)
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, kind)| kind)
}

/// mountinfo escapes whitespace and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// Creates the database, or checks the existing one and migrates it to our format.
pub(super) fn prepare(directory: &Path, format: &Format) -> Result<PathBuf> {
    let path = directory.join(DATABASE);
    match inspect(&path, format, false)? {
        None => create(&path, format)?,
        Some(version) if version < format.version => migrate(&path, version, format)?,
        Some(_) => {}
    }
    Ok(path)
}

const HEADER: u64 = 100;
const MAGIC: &[u8] = b"SQLite format 3\0";

/// Returns the version of a database, or `None` if it does not exist. Refuses one that is foreign, newer or damaged.
fn inspect(path: &Path, format: &Format, thorough: bool) -> Result<Option<usize>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error("open", path, &e)),
    };
    let mut header = Vec::new();
    file.take(HEADER)
        .read_to_end(&mut header)
        .map_err(|e| io_error("read", path, &e))?;
    let foreign = || {
        refused(format!(
            "{} was not made by drover and was left as it is; move it away, or use another directory",
            path.display()
        ))
    };
    let damaged = |why: &dyn std::fmt::Display| {
        refused(format!(
            "{} is damaged ({why}) and was left as it is; move it away and restore a backup",
            path.display()
        ))
    };
    if header.is_empty() {
        return Err(damaged(&"it is empty"));
    }
    if !header.starts_with(MAGIC) {
        return Err(foreign());
    }
    let Some(id) = header.get(68..72) else {
        return Err(damaged(&"it is cut off"));
    };
    if id != APPLICATION_ID.to_be_bytes() {
        return Err(foreign());
    }

    // A database that was closed properly has no log beside it.
    let unclean = fs::metadata(log_of(path)).is_ok_and(|log| log.len() > 0);
    let reading = open_to_look(path, unclean).map_err(|e| damaged(&e))?;
    let version: i64 = reading
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(|e| damaged(&e))?;
    let version = usize::try_from(version).map_err(|_| damaged(&"its format has no number"))?;
    if version > format.version {
        return Err(refused(format!(
            "{} has format {version}, which a newer version of drover wrote; this one knows up to {}. It was left as it \
             is; start the newer version, or restore a backup made before it ran",
            path.display(),
            format.version
        )));
    }
    if unclean || thorough {
        let verdict: String = reading
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(|e| damaged(&e))?;
        if verdict != "ok" {
            return Err(damaged(&verdict));
        }
    }
    if version == format.version {
        let rows: i64 = reading
            .query_row(
                "SELECT count(*) FROM meta WHERE k IN ('epoch', 'revision')",
                [],
                |row| row.get(0),
            )
            .map_err(|e| damaged(&e))?;
        if rows != 2 {
            return Err(damaged(&"it has no revision"));
        }
    }
    Ok(Some(version))
}

/// What is written as it is in the path of a URI.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'.')
    .remove(b'_')
    .remove(b'-');

/// Opens a database without changing it or creating files beside it, except for the index that a log requires.
fn open_to_look(path: &Path, has_log: bool) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if has_log {
        return Connection::open_with_flags(path, flags);
    }
    let path = percent_encode(path.as_os_str().as_encoded_bytes(), PATH);
    let uri = format!("file:{path}?immutable=1");
    Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)
}

fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Creates an empty database beside its place and moves it there, so that a partial one is never found.
fn create(path: &Path, format: &Format) -> Result<()> {
    let new = with_suffix(path, ".new");
    remove_if_there(&new)?;
    make_private(&new)?;
    let made = (|| {
        let mut connection = Connection::open(&new)?;
        connection.pragma_update(None, "synchronous", "OFF")?;
        connection.pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(()))?;
        let txn = connection.transaction()?;
        txn.pragma_update(None, "application_id", APPLICATION_ID)?;
        for step in format.steps {
            step(&txn)?;
        }
        set_version(&txn, format.version)?;
        txn.commit()
    })();
    made.map_err(|e| super::cannot(&new, &e))?;
    put_in_place(&new, path)
}

fn set_version(txn: &Transaction<'_>, version: usize) -> rusqlite::Result<()> {
    txn.pragma_update(
        None,
        "user_version",
        i64::try_from(version).unwrap_or(i64::MAX),
    )
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path, &e)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn put_in_place(new: &Path, path: &Path) -> Result<()> {
    let sync = |path: &Path| {
        File::open(path)
            .and_then(|file| file.sync_all())
            .map_err(|e| io_error("sync", path, &e))
    };
    sync(new)?;
    fs::rename(new, path).map_err(|e| io_error("write", path, &e))?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
        Some(_) | None => sync(Path::new(".")),
    }
}

/// Copies an older database to `<name>.v<version>`, then migrates it to our format in one transaction.
fn migrate(path: &Path, from: usize, format: &Format) -> Result<()> {
    let kept = with_suffix(path, &format!(".v{from}"));
    // An earlier attempt may have left a copy; the database is unchanged since, so the copy is made again.
    remove_if_there(&kept)?;
    backup(path, &kept)?;
    let migrated = (|| {
        let mut connection = Connection::open(path)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let txn = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
        for step in format.steps.iter().skip(from) {
            step(&txn)?;
        }
        set_version(&txn, format.version)?;
        txn.commit()
    })();
    migrated.map_err(|e| {
        Error::unavailable(format!(
            "cannot bring {} from format {from} to {}: {e}. It is unchanged, and a copy is in {}",
            path.display(),
            format.version,
            kept.display()
        ))
    })?;
    tracing::info!(from, to = format.version, copy = %kept.display(), "the store has a new format");
    Ok(())
}

/// Writes a copy of a database, which may be in use, to a new file.
pub(super) fn backup(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        return Err(Error::new(
            Reason::AlreadyExists,
            format!("{} exists already", to.display()),
        ));
    }
    let new = with_suffix(to, ".new");
    remove_if_there(&new)?;
    copy(from, &new)?;
    let checked = Connection::open_with_flags(&new, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .and_then(|copy| copy.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)))
        .map_err(|e| super::cannot(&new, &e))?;
    if checked != "ok" {
        remove_if_there(&new)?;
        return Err(Error::internal(format!(
            "the copy of {} is damaged: {checked}",
            from.display()
        )));
    }
    put_in_place(&new, to)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let name = to.to_str().ok_or_else(|| {
        Error::invalid(
            "path",
            format!("{} is not UTF-8, which SQLite needs", to.display()),
        )
    })?;
    make_private(to)?;
    let copied = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .and_then(|source| source.execute("VACUUM INTO ?1", [name]));
    copied.map(drop).map_err(|e| {
        // The partial copy is useless; the first error is more informative than a second one.
        let _ = fs::remove_file(to);
        match e.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => Error::new(
                Reason::StorageFull,
                format!("no space for {}", to.display()),
            ),
            _ => super::cannot(from, &e),
        }
    })
}

/// Copies the database of a directory, whether or not it is in use.
pub(crate) async fn copy_directory(directory: &Path, to: &Path) -> Result<()> {
    let (path, to) = (directory.join(DATABASE), to.to_owned());
    let copied = tokio::task::spawn_blocking(move || {
        if inspect(&path, &FORMAT, false)?.is_none() {
            return Err(Error::not_found("store", path.display().to_string()));
        }
        backup(&path, &to)
    });
    copied
        .await
        .map_err(|e| Error::internal(format!("the backup was cut off: {e}")))?
}

/// Directory inside the data directory in which a backup becomes a store before it is put in place.
const UNPACKED: &str = "restore.new";

/// Creates a store from a backup in three steps: unpack it aside, let `mark` change it there, put it in place. The data
/// directory must not contain a database yet.
pub(crate) async fn unpack_backup<F>(
    from: &Path,
    directory: &Path,
    mark: impl FnOnce(PathBuf) -> F,
) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let _lock = lock(directory)?;
    let path = directory.join(DATABASE);
    if path.exists() {
        return Err(Error::new(
            Reason::AlreadyExists,
            format!(
                "{} exists already; move it away, or restore into another directory",
                path.display()
            ),
        ));
    }
    let aside = directory.join(UNPACKED);
    if aside.exists() {
        fs::remove_dir_all(&aside).map_err(|e| io_error("remove", &aside, &e))?;
    }
    make_directory(&aside).map_err(|e| io_error("make", &aside, &e))?;
    if inspect(from, &FORMAT, true)?.is_none() {
        return Err(Error::not_found("backup", from.display().to_string()));
    }
    copy(from, &aside.join(DATABASE))?;
    mark(aside.clone()).await?;
    put_in_place(&aside.join(DATABASE), &path)?;
    fs::remove_dir_all(&aside).map_err(|e| io_error("remove", &aside, &e))
}

#[cfg(test)]
mod tests;
