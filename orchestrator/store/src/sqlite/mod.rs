//! SQLite in one directory for one process, with a writer thread that does group commit, and two readers.

mod file;
mod queue;
mod reader;
mod writer;

use std::{
    fmt,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use async_trait::async_trait;
use drover_core::{Error, Result};
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};
use tokio::{sync::oneshot, time::Instant};

use self::{
    queue::{Job, Queue},
    reader::{Readers, ScanJob},
    writer::{Leases, Writer},
};
use crate::{
    backend::{
        Backend, CommitError, Info, LIMITS, Lane, Lease, LeaseId, Range, Revision, Scan, Txn,
    },
    history::{History, Watch, WatchEnd},
};

pub use self::file::{DATABASE, FORMAT};
pub(crate) use self::file::{copy_directory, unpack_backup};

/// Called when a sync has failed, so that the contents of the disk are not known any more.
pub type SyncFailure = Arc<dyn Fn(&str) + Send + Sync>;

/// Options for opening a directory.
#[derive(Clone, Default)]
pub struct Options {
    /// Maximum size of the database in bytes, beyond which the store is full. `None` for the size of the disk.
    pub max_bytes: Option<u64>,
    /// Called after a failed sync instead of aborting the process. The store rejects all writes afterwards.
    pub on_failed_sync: Option<SyncFailure>,
    /// Called before each commit; a returned error counts as the failure of that commit.
    #[doc(hidden)]
    pub commit_fault: Option<CommitFault>,
}

#[doc(hidden)]
pub type CommitFault = Arc<dyn Fn() -> Option<rusqlite::Error> + Send + Sync>;

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

/// The store in a directory of this machine. Dropping it commits pending transactions, then closes the database; both
/// block.
pub struct SqliteBackend {
    directory: PathBuf,
    queue: Arc<Queue>,
    readers: Option<Readers>,
    writer: Option<JoinHandle<()>>,
    history: Arc<History>,
    leases: Arc<Mutex<Leases>>,
    /// Released last: no other process may open the files before they are closed.
    _lock: File,
}

impl SqliteBackend {
    /// Opens a directory, and creates it if it does not exist.
    ///
    /// `FAILED_PRECONDITION` if another process uses it, if it is on a network file system, or if its contents are
    /// foreign, newer or damaged; nothing in it is changed then.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(directory, &Options::default())
    }

    /// Like [`Self::open`], with options.
    pub fn open_with(directory: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let directory = directory.as_ref();
        let lock = file::lock(directory)?;
        let path = file::prepare(directory, &FORMAT)?;
        let mut writing = open_connection(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)
            .map_err(|e| cannot(&path, &e))?;
        let started =
            writer::start(&mut writing, options.max_bytes).map_err(|e| cannot(&path, &e))?;
        let reading = (0..READERS)
            .map(|_| open_reader(&path))
            .collect::<rusqlite::Result<Vec<_>>>()
            .map_err(|e| cannot(&path, &e))?;

        let queue = Arc::new(Queue::default());
        let history = History::new(started.revision);
        let leases = Arc::new(Mutex::new(Leases::default()));
        let writer = Writer::new(
            writing,
            started,
            Arc::clone(&queue),
            Arc::clone(&history),
            Arc::clone(&leases),
            options,
        );
        let writer = spawn("drover-writer", move || writer.run())?;
        let readers = Readers::start(reading)?;
        Ok(Self {
            directory: directory.to_owned(),
            queue,
            readers: Some(readers),
            writer: Some(writer),
            history,
            leases,
            _lock: lock,
        })
    }

    /// Directory of its files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// One for short reads while the other streams a long scan.
const READERS: usize = 2;

/// A commit of ours holds the database for milliseconds; only a third-party backup tool can take longer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

fn open_connection(path: &Path, mode: OpenFlags) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// Cache of a reader, in KiB as a negative number: scans read nearly every page once.
const READER_CACHE: i64 = -256;

fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection = open_connection(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.pragma_update(None, "cache_size", READER_CACHE)?;
    Ok(connection)
}

fn cannot(path: &Path, error: &rusqlite::Error) -> Error {
    Error::unavailable(format!("cannot use {}: {error}", path.display()))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .map_err(|e| Error::unavailable(format!("cannot start the thread {name}: {e}")))
}

#[async_trait]
impl Backend for SqliteBackend {
    fn info(&self) -> Info {
        Info {
            kind: "sqlite",
            exclusive: true,
            limits: LIMITS,
        }
    }

    async fn commit(&self, txn: Txn, lane: Lane) -> Result<Revision, CommitError> {
        txn.check(&LIMITS)?;
        let began = Instant::now();
        let (answer, answered) = oneshot::channel();
        self.queue
            .push(lane, txn, |txn, place| Job {
                bytes: txn.bytes(),
                txn,
                answer,
                place,
            })
            .await?;
        let outcome = answered.await.unwrap_or(Err(CommitError::Unknown));
        metrics::histogram!("drover_store_transaction_duration_seconds", "lane" => lane.as_str())
            .record(began.elapsed().as_secs_f64());
        outcome
    }

    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        let closed = || Error::unavailable("the store is closed");
        let readers = self.readers.as_ref().ok_or_else(closed)?;
        let (answer, answered) = oneshot::channel();
        readers
            .send(ScanJob {
                range,
                page: page.max(1),
                answer,
            })
            .await?;
        answered.await.map_err(|_| closed())?
    }

    async fn watch(&self, after: Revision) -> Result<Watch> {
        Ok(self.history.watch(after))
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease> {
        let lease = self.leases.lock().grant(ttl);
        // The writer sleeps until the first lease ends, which may be this one.
        self.queue.wake();
        Ok(lease)
    }

    async fn renew(&self, lease: LeaseId) -> Result<Instant> {
        self.leases
            .lock()
            .renew(lease)
            .ok_or_else(|| CommitError::Fenced.into())
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        let (gone, ended) = oneshot::channel();
        self.leases.lock().end(lease, gone);
        self.queue.wake();
        ended.await.map_err(|_| Error::from(CommitError::Unknown))
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.history.compact(revision);
        Ok(())
    }

    async fn backup(&self, to: &Path) -> Result<()> {
        let (from, to) = (self.directory.join(DATABASE), to.to_owned());
        // The copy belongs to this call, which awaits its end. If the caller is gone, only a temporary file is left
        // behind.
        tokio::task::spawn_blocking(move || file::backup(&from, &to))
            .await
            .map_err(|e| Error::internal(format!("the backup was cut off: {e}")))?
    }
}

impl Drop for SqliteBackend {
    fn drop(&mut self) {
        self.history.end(WatchEnd::Closed);
        // The last connection to close checkpoints the write-ahead log, which a reader cannot do.
        drop(self.readers.take());
        self.queue.close();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the store's writer thread panicked");
        }
    }
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteBackend({})", self.directory.display())
    }
}
