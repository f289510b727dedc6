//! Recent changes of a store, for watches. The log is bounded and shared: a watch is only a position in it.

use std::{collections::VecDeque, fmt, pin::Pin, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{backend::Revision, keys::Key};

/// A changed key.
#[derive(Clone, PartialEq, Eq)]
pub struct Change {
    /// The changed key.
    pub key: Key,
    /// New value, `None` if the key was removed.
    pub value: Option<Bytes>,
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{:?} = {} bytes", self.key, value.len()),
            None => write!(f, "{:?} gone", self.key),
        }
    }
}

/// All changes of state keys in one revision; possibly none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Revision of the changes.
    pub revision: Revision,
    /// Changes in this revision.
    pub changes: Vec<Change>,
}

impl Batch {
    fn bytes(&self) -> usize {
        let contents: usize = self
            .changes
            .iter()
            .map(|c| c.key.len() + c.value.as_ref().map_or(0, Bytes::len) + OVERHEAD)
            .sum();
        contents + OVERHEAD
    }
}

/// Memory for the bookkeeping of a batch, so that many empty batches are bounded as well.
const OVERHEAD: usize = 96;

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// Changes that it had not seen yet were discarded. Scan again, then watch from the scan's revision.
    #[error("the changes in between are no longer known")]
    Compacted,
    /// The store was closed, or the connection to it was lost. Watch again from the last revision seen.
    #[error("the store was closed")]
    Closed,
}

/// A stream of batches in revision order.
pub struct Watch(Pin<Box<dyn Stream<Item = Result<Arc<Batch>, WatchEnd>> + Send>>);

impl Watch {
    /// Creates a watch from a stream that ends with its first error.
    pub fn new(stream: impl Stream<Item = Result<Arc<Batch>, WatchEnd>> + Send + 'static) -> Self {
        Self(Box::pin(stream))
    }

    /// Waits for the next batch. An error is final.
    pub async fn next(&mut self) -> Result<Arc<Batch>, WatchEnd> {
        self.0.next().await.unwrap_or(Err(WatchEnd::Closed))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Bounded log of the most recent batches of a store in this process.
#[derive(Debug)]
pub struct History {
    log: Mutex<Log>,
    newest: watch::Sender<Newest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newest {
    At(Revision),
    Ended(WatchEnd),
}

#[derive(Debug)]
struct Log {
    batches: VecDeque<Arc<Batch>>,
    bytes: usize,
    most: usize,
    /// All later batches are in `batches`.
    since: Revision,
}

/// Enough for a watch to lag hundreds of commits behind; older changes are read from the store.
const HISTORY_BYTES: usize = 2 * 1024 * 1024;

impl History {
    /// Creates an empty log for a store at this revision.
    #[must_use]
    pub fn new(revision: Revision) -> Arc<Self> {
        Self::of_bytes(revision, HISTORY_BYTES)
    }

    /// The same, with at most so many bytes of batches.
    #[must_use]
    pub fn of_bytes(revision: Revision, most: usize) -> Arc<Self> {
        let log = Log {
            batches: VecDeque::new(),
            bytes: 0,
            most,
            since: revision,
        };
        Arc::new(Self {
            log: Mutex::new(log),
            newest: watch::Sender::new(Newest::At(revision)),
        })
    }

    /// Appends committed batches, in order.
    pub fn publish(&self, batches: impl IntoIterator<Item = Batch>) {
        let mut newest = None;
        {
            let mut log = self.log.lock();
            for batch in batches {
                newest = Some(batch.revision);
                log.bytes += batch.bytes();
                log.batches.push_back(Arc::new(batch));
            }
            while log.bytes > log.most && log.batches.len() > 1 {
                log.drop_oldest();
            }
        }
        if let Some(revision) = newest {
            self.newest.send_replace(Newest::At(revision));
        }
    }

    /// Discards all batches up to and including a revision.
    pub fn compact(&self, revision: Revision) {
        let mut log = self.log.lock();
        while log
            .batches
            .front()
            .is_some_and(|batch| batch.revision <= revision)
        {
            log.drop_oldest();
        }
    }

    /// Ends all watches.
    pub fn end(&self, end: WatchEnd) {
        self.newest.send_replace(Newest::Ended(end));
    }

    /// Whether a watch from that revision on would miss nothing.
    #[must_use]
    pub fn reaches(&self, after: Revision) -> bool {
        self.log.lock().since <= after
    }

    /// Whether there are watches.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.newest.receiver_count() > 0
    }

    /// Watches the changes after a revision.
    #[must_use]
    pub fn watch(self: &Arc<Self>, after: Revision) -> Watch {
        let position = Some(Position {
            newest: self.newest.subscribe(),
            after,
            pending: Vec::new(),
        });
        let log = Arc::downgrade(self);
        Watch::new(stream::unfold(
            (log, position),
            |(log, position)| async move {
                let mut position = position?;
                loop {
                    if let Some(batch) = position.pending.pop() {
                        return Some((Ok(batch), (log, Some(position))));
                    }
                    // The history is not kept alive while waiting, so that a closed store can be dropped.
                    let newest = *position.newest.borrow_and_update();
                    let ended = match (newest, log.upgrade()) {
                        (Newest::At(_), Some(history)) => history.read(&mut position).err(),
                        (Newest::Ended(end), _) => Some(end),
                        (_, None) => Some(WatchEnd::Closed),
                    };
                    if let Some(end) = ended {
                        return Some((Err(end), (log, None)));
                    }
                    if position.pending.is_empty() && position.newest.changed().await.is_err() {
                        return Some((Err(WatchEnd::Closed), (log, None)));
                    }
                }
            },
        ))
    }

    fn read(&self, position: &mut Position) -> Result<(), WatchEnd> {
        let log = self.log.lock();
        if position.after < log.since {
            return Err(WatchEnd::Compacted);
        }
        let start = log
            .batches
            .partition_point(|batch| batch.revision <= position.after);
        position.pending = log
            .batches
            .range(start..)
            .take(READ_BATCHES)
            .rev()
            .cloned()
            .collect();
        if let Some(last) = position.pending.first() {
            position.after = last.revision;
        }
        Ok(())
    }
}

/// Maximum number of batches that a watch takes from the log at once.
const READ_BATCHES: usize = 64;

struct Position {
    newest: watch::Receiver<Newest>,
    after: Revision,
    /// Batches that were read and not delivered yet, the next one last.
    pending: Vec<Arc<Batch>>,
}

impl Log {
    fn drop_oldest(&mut self) {
        if let Some(batch) = self.batches.pop_front() {
            self.bytes -= batch.bytes();
            self.since = batch.revision;
        }
    }
}
