//! The small ordered key-value store underneath.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use tokio::{sync::mpsc, time::Instant};

use crate::{history::Watch, keys::Key};

/// Position in the history of a store. Each transaction has its own, each higher than the one before; 0 is before all.
pub type Revision = u64;

/// What a backend is and what it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Short name (`sqlite`).
    pub kind: &'static str,
    /// Nobody else can use the same data while this backend is open, so its leases need no renewal.
    pub exclusive: bool,
    /// Limits of one transaction.
    pub limits: Limits,
}

/// Limits of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most expectations, the fence not counted.
    pub expectations: usize,
    /// Most operations.
    pub operations: usize,
    /// Most bytes of keys and values together.
    pub bytes: usize,
}

/// The limits that every backend keeps: etcd refuses a request above 1.5 MiB or 128 operations, and a batch holds several.
/// The largest secret, 256 KiB of content, fits with what is stored beside it, and so does a request that says all of the
/// largest spec twice, as what the cluster says and as what its group inherits, beside as many others as a plan makes at once.
pub const LIMITS: Limits = Limits {
    expectations: 8,
    operations: 100,
    bytes: 640 * 1024,
};

/// Which queue a transaction waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Deaths and take-overs.
    Urgent,
    /// Everything else.
    Bulk,
}

impl Lane {
    /// As a label of metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Urgent => "urgent",
            Self::Bulk => "bulk",
        }
    }
}

/// A change of several keys: all of it or nothing.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    /// Proof that the writer still owns what it writes.
    pub fence: Option<Fence>,
    /// What must be true of keys.
    pub expect: Vec<(Key, Expect)>,
    /// What to change; a key at most once.
    pub ops: Vec<Op>,
    /// Longest wait for a place in the lane, then [`CommitError::Overloaded`]. `None`: as long as it takes.
    pub max_wait: Option<Duration>,
}

/// A key that must not have been made anew since it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Key of the claim, made once and never overwritten.
    pub key: Key,
    /// Revision that made it.
    pub made_at: Revision,
}

/// What must be true of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It does not exist.
    Absent,
    /// It was last written at this revision.
    Revision(Revision),
}

impl Expect {
    /// `Absent` for revision 0.
    #[must_use]
    pub fn at(revision: Revision) -> Self {
        if revision == 0 {
            Self::Absent
        } else {
            Self::Revision(revision)
        }
    }
}

/// A change of a key, or of a range of log keys.
#[derive(Clone)]
pub enum Op {
    /// Writes a value.
    Put {
        /// Key.
        key: Key,
        /// Value.
        value: Bytes,
    },
    /// Writes a value that vanishes with a lease. Keys with [`Key::is_leased`] only, and those only so.
    PutLeased {
        /// Key.
        key: Key,
        /// Value.
        value: Bytes,
        /// Lease.
        lease: LeaseId,
    },
    /// Removes a key, if it is there.
    Delete {
        /// Key.
        key: Key,
    },
    /// Removes the log keys from `from` up to but without `below`.
    DeleteBelow {
        /// First key to go.
        from: Key,
        /// First key to stay.
        below: Key,
    },
}

impl Op {
    /// Key that it changes; the first for a range.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::PutLeased { key, .. } | Self::Delete { key } => key,
            Self::DeleteBelow { from, .. } => from,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Put { key, value } | Self::PutLeased { key, value, .. } => {
                key.len() + value.len()
            }
            Self::Delete { key } => key.len(),
            Self::DeleteBelow { from, below } => from.len() + below.len(),
        }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { key, value } => write!(f, "put {key:?} ({} bytes)", value.len()),
            Self::PutLeased { key, value, lease } => {
                write!(f, "put {key:?} ({} bytes, lease {})", value.len(), lease.0)
            }
            Self::Delete { key } => write!(f, "delete {key:?}"),
            Self::DeleteBelow { from, below } => write!(f, "delete {from:?} .. {below:?}"),
        }
    }
}

impl Txn {
    /// Adds an expectation.
    #[must_use]
    pub fn expect(mut self, key: Key, expect: Expect) -> Self {
        self.expect.push((key, expect));
        self
    }

    /// Adds a write.
    #[must_use]
    pub fn put(mut self, key: Key, value: impl Into<Bytes>) -> Self {
        self.ops.push(Op::Put {
            key,
            value: value.into(),
        });
        self
    }

    /// Adds a removal.
    #[must_use]
    pub fn delete(mut self, key: Key) -> Self {
        self.ops.push(Op::Delete { key });
        self
    }

    /// Bytes of its keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ops.iter().map(Op::len).sum::<usize>()
            + self.expect.iter().map(|(key, _)| key.len()).sum::<usize>()
    }

    /// Checks it against limits, and that each operation is one that every backend can do.
    pub fn check(&self, limits: &Limits) -> Result<(), CommitError> {
        let too_large = |what: &str, is: usize, most: usize| {
            Err(CommitError::TooLarge(format!(
                "{is} {what} in one transaction; at most {most} are possible"
            )))
        };
        if self.expect.len() > limits.expectations {
            return too_large("expectations", self.expect.len(), limits.expectations);
        }
        if self.ops.len() > limits.operations {
            return too_large("operations", self.ops.len(), limits.operations);
        }
        let bytes = self.bytes();
        if bytes > limits.bytes {
            return too_large("bytes", bytes, limits.bytes);
        }
        let mut keys: Vec<&[u8]> = self.ops.iter().map(|op| op.key().as_bytes()).collect();
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(CommitError::Invalid(
                "a key is changed twice in one transaction",
            ));
        }
        for op in &self.ops {
            match op {
                Op::PutLeased { key, .. } if !key.is_leased() => {
                    return Err(CommitError::Invalid("this kind of key has no lease"));
                }
                Op::Put { key, .. } if key.is_leased() => {
                    return Err(CommitError::Invalid("this kind of key needs a lease"));
                }
                Op::DeleteBelow { from, below } if !from.is_log() || !below.is_log() => {
                    return Err(CommitError::Invalid(
                        "only log keys can be removed by range",
                    ));
                }
                Op::Put { .. }
                | Op::PutLeased { .. }
                | Op::Delete { .. }
                | Op::DeleteBelow { .. } => {}
            }
        }
        Ok(())
    }
}

/// Why a transaction was not, or perhaps not, committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The claim was lost. Nothing was written.
    #[error("somebody else owns this now")]
    Fenced,
    /// An expectation did not hold. Nothing was written.
    #[error("{0:?} was changed by somebody else")]
    Conflict(Key),
    /// It passes a limit. Nothing was written.
    #[error("{0}")]
    TooLarge(String),
    /// No backend can do this: a defect of the caller. Nothing was written.
    #[error("{0}")]
    Invalid(&'static str),
    /// No place in the lane within `max_wait`. Nothing was written.
    #[error("too many changes wait to be stored")]
    Overloaded,
    /// No space left. Nothing was written.
    #[error("the store is full; reads go on. Free space on its disk")]
    StorageFull,
    /// The store cannot be written now. Nothing was written.
    #[error("{0}")]
    Unavailable(String),
    /// The answer was lost: it may have been committed.
    #[error("the store's answer was lost")]
    Unknown,
}

/// When to try again while the store cannot take more.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        let message = error.to_string();
        match error {
            CommitError::Fenced => Error::new(Reason::Fenced, message),
            CommitError::Conflict(_) => Error::new(Reason::Conflict, message),
            CommitError::TooLarge(_) => Error::new(Reason::Invalid, message),
            CommitError::Invalid(_) => Error::internal(message),
            CommitError::Overloaded => {
                Error::new(Reason::Overloaded, message).with_retry_after(RETRY_AFTER)
            }
            CommitError::StorageFull => {
                Error::new(Reason::StorageFull, message).with_retry_after(RETRY_AFTER)
            }
            CommitError::Unavailable(_) | CommitError::Unknown => {
                Error::unavailable(message).with_retry_after(RETRY_AFTER)
            }
        }
    }
}

/// A key with what is stored under it.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Key.
    pub key: Key,
    /// Value.
    pub value: Bytes,
    /// Revision that wrote it last.
    pub revision: Revision,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} ({} bytes, revision {})",
            self.key,
            self.value.len(),
            self.revision
        )
    }
}

/// Keys from `from` up to but without `below`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// First key.
    pub from: Key,
    /// First key that is no longer in it. `None`: to the end.
    pub below: Option<Key>,
    /// Most entries. `None`: all.
    pub limit: Option<usize>,
}

impl Range {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self {
            from: Key::from_bytes(Vec::new()),
            below: None,
            limit: None,
        }
    }

    /// One key.
    #[must_use]
    pub fn one(key: &Key) -> Self {
        let mut next = key.as_bytes().to_vec();
        next.push(0);
        Self {
            from: key.clone(),
            below: Some(Key::from_bytes(next)),
            limit: Some(1),
        }
    }

    /// All keys that begin with these bytes.
    #[must_use]
    pub fn prefix(prefix: &Key) -> Self {
        Self {
            from: prefix.clone(),
            below: prefix.after_prefix(),
            limit: None,
        }
    }

    /// Whether a key is in it.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        *key >= self.from && self.below.as_ref().is_none_or(|below| key < below)
    }
}

/// Entries of one scan, in key order, all at one revision.
#[derive(Debug)]
pub struct Scan {
    revision: Revision,
    pages: mpsc::Receiver<Result<Vec<Entry>>>,
}

impl Scan {
    /// A scan whose pages come through a channel; a closed channel is its end.
    #[must_use]
    pub fn new(revision: Revision, pages: mpsc::Receiver<Result<Vec<Entry>>>) -> Self {
        Self { revision, pages }
    }

    /// Revision at which it reads.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The next page, `None` after the last. An error ends it.
    pub async fn next(&mut self) -> Option<Result<Vec<Entry>>> {
        self.pages.recv().await
    }

    /// All entries that are left.
    pub async fn collect(mut self) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        while let Some(page) = self.next().await {
            let mut page = page?;
            if all.is_empty() {
                all = page;
            } else {
                all.append(&mut page);
            }
        }
        Ok(all)
    }
}

/// Name of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// A lease and until when it holds.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// When it ends unless renewed, counted from when it was asked for.
    pub deadline: Instant,
}

/// A small ordered key-value store with revisions, compare-and-swap, leases and watch.
///
/// Keys whose [`Key::is_log`] is true are the log: they are not watched and cannot have a lease.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What it is and what it takes.
    fn info(&self) -> Info;

    /// Commits a transaction: all or nothing, durable when it answers. Dropping the future once the transaction has its
    /// place in the lane does not cancel it.
    async fn commit(&self, txn: Txn, lane: Lane) -> Result<Revision, CommitError>;

    /// Reads a range in key order in pages of at most `page` entries, all at one revision that is at least that of every
    /// commit answered before the call.
    async fn scan(&self, range: Range, page: usize) -> Result<Scan>;

    /// Changes of state keys after a revision, each revision whole, once and in order.
    async fn watch(&self, after: Revision) -> Result<Watch>;

    /// A new lease.
    async fn lease(&self, ttl: Duration) -> Result<Lease>;

    /// Renews a lease; answers its new deadline, counted from when the call began. `FENCED` when it has ended.
    async fn renew(&self, lease: LeaseId) -> Result<Instant>;

    /// Ends a lease and removes its keys.
    async fn revoke(&self, lease: LeaseId) -> Result<()>;

    /// Lets go of what was replaced before a revision: watches from before it end as compacted.
    async fn compact(&self, revision: Revision) -> Result<()>;

    /// Writes a copy of the whole store into a new file. `UNIMPLEMENTED` where only the portable export can do that.
    async fn backup(&self, _to: &std::path::Path) -> Result<()> {
        Err(Error::new(
            Reason::Unimplemented,
            "this kind of store has no backup of its own; export it instead",
        ))
    }
}

/// Entries of a page where the caller has no reason for another number: large enough that the hand-over costs little,
/// small enough that two in flight are well below 1 MiB.
pub const PAGE: usize = 512;

impl dyn Backend {
    /// Reads one key.
    pub async fn get(&self, key: &Key) -> Result<Option<Entry>> {
        Ok(self.scan(Range::one(key), 1).await?.collect().await?.pop())
    }
}
