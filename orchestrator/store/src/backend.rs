//! The small ordered key-value store below [`Store`](crate::Store).

use std::{fmt, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use tokio::{sync::mpsc, time::Instant};

use crate::{history::Watch, keys::Key};

/// Position in the history of a store. Each transaction has its own, higher than all before; 0 is before the first.
pub type Revision = u64;

/// Properties of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Short name, such as `sqlite`.
    pub kind: &'static str,
    /// Whether no other process can use the same data while this backend is open, so that its leases need no renewal.
    pub exclusive: bool,
    /// Limits of one transaction.
    pub limits: Limits,
}

/// Limits of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of expectations, not counting the fence.
    pub expectations: usize,
    /// Maximum number of operations.
    pub operations: usize,
    /// Maximum size of keys and values together.
    pub bytes: usize,
}

/// Limits that every backend supports: etcd rejects a request above 1.5 MiB or 128 operations, and a batch holds
/// several transactions. The largest secret, 256 KiB of content, fits with the data that is stored beside it. So does a
/// request that contains all of the largest spec twice, as part of the cluster and as inherited by its group, together
/// with as many others as a plan makes at once.
pub const LIMITS: Limits = Limits {
    expectations: 100,
    operations: 100,
    bytes: 640 * 1024,
};

/// Queue that a transaction waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Node deaths and takeovers.
    Urgent,
    /// Everything else.
    Bulk,
}

impl Lane {
    /// Value of the metrics label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Urgent => "urgent",
            Self::Bulk => "bulk",
        }
    }
}

/// An atomic change of several keys.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    /// Proof that the writer still owns the data.
    pub fence: Option<Fence>,
    /// Preconditions on keys (compare-and-swap).
    pub expect: Vec<(Key, Expect)>,
    /// Operations; each key at most once.
    pub ops: Vec<Op>,
    /// Maximum wait for a place in the lane, then [`CommitError::Overloaded`]. `None` to wait without limit.
    pub max_wait: Option<Duration>,
}

/// A claim that must not have been written anew since it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Key of the claim.
    pub key: Key,
    /// Revision that wrote it.
    pub made_at: Revision,
}

/// A precondition on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key does not exist.
    Absent,
    /// The key was last written at this revision.
    Revision(Revision),
}

impl Expect {
    /// The expectation for a present revision: `Absent` for 0.
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
        /// The key to write.
        key: Key,
        /// The value to write.
        value: Bytes,
    },
    /// Writes a value that disappears with a lease. Required for keys with [`Key::is_leased`], not allowed for others.
    PutLeased {
        /// The key to write.
        key: Key,
        /// The value to write.
        value: Bytes,
        /// Lease that the key is bound to.
        lease: LeaseId,
    },
    /// Removes a key if it exists.
    Delete {
        /// The key to remove.
        key: Key,
    },
    /// Removes the log keys from `from` (inclusive) to `below` (exclusive).
    DeleteBelow {
        /// First key to remove.
        from: Key,
        /// First key to keep.
        below: Key,
    },
}

impl Op {
    /// The key that it changes; the first one of a range.
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

    /// Total size of keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ops.iter().map(Op::len).sum::<usize>()
            + self.expect.iter().map(|(key, _)| key.len()).sum::<usize>()
    }

    /// Checks the transaction against limits, and that every backend supports each of its operations.
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

/// Why a transaction was not committed, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The claim was lost. Nothing was written.
    #[error("somebody else owns this now")]
    Fenced,
    /// An expectation did not hold. Nothing was written.
    #[error("{0:?} was changed by somebody else")]
    Conflict(Key),
    /// A limit is exceeded. Nothing was written.
    #[error("{0}")]
    TooLarge(String),
    /// No backend supports this: a bug of the caller. Nothing was written.
    #[error("{0}")]
    Invalid(&'static str),
    /// No place in the lane within `max_wait`. Nothing was written.
    #[error("too many changes wait to be stored")]
    Overloaded,
    /// No space is left. Nothing was written; on etcd the transaction may have been the last for which there was room.
    #[error("the store is full; reads go on. Free space on its disk")]
    StorageFull,
    /// The store cannot be written at present. Nothing was written.
    #[error("{0}")]
    Unavailable(String),
    /// The response was lost: the transaction may have been committed.
    #[error("the store's answer was lost")]
    Unknown,
}

/// Retry delay while the store cannot accept more changes.
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

/// A stored key and value.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The stored key.
    pub key: Key,
    /// The stored value.
    pub value: Bytes,
    /// Revision of the last write.
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

/// Keys from `from` (inclusive) to `below` (exclusive).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// First key.
    pub from: Key,
    /// First key after the range. `None` for no upper bound.
    pub below: Option<Key>,
    /// Maximum number of entries. `None` for all.
    pub limit: Option<usize>,
}

impl Range {
    /// All keys.
    #[must_use]
    pub fn all() -> Self {
        Self {
            from: Key::from_bytes(Vec::new()),
            below: None,
            limit: None,
        }
    }

    /// A single key.
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

    /// All keys with this prefix.
    #[must_use]
    pub fn prefix(prefix: &Key) -> Self {
        Self {
            from: prefix.clone(),
            below: prefix.after_prefix(),
            limit: None,
        }
    }

    /// Whether the range contains a key.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        *key >= self.from && self.below.as_ref().is_none_or(|below| key < below)
    }
}

/// A scan: its entries come in key order, all at one revision.
#[derive(Debug)]
pub struct Scan {
    revision: Revision,
    pages: mpsc::Receiver<Result<Vec<Entry>>>,
}

impl Scan {
    /// Creates a scan whose pages come through a channel; closing the channel ends it.
    #[must_use]
    pub fn new(revision: Revision, pages: mpsc::Receiver<Result<Vec<Entry>>>) -> Self {
        Self { revision, pages }
    }

    /// Revision at which it reads.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the next page, or `None` after the last. An error ends the scan.
    pub async fn next(&mut self) -> Option<Result<Vec<Entry>>> {
        self.pages.recv().await
    }

    /// Collects all remaining entries.
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

/// Id of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// A lease with its deadline.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Id of the lease.
    pub id: LeaseId,
    /// When it ends unless renewed, counted from when it was requested.
    pub deadline: Instant,
}

/// A small ordered key-value store with revisions, compare-and-swap, leases and watches.
///
/// The keys for which [`Key::is_log`] is true form the log: they are not watched and cannot have a lease.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Describes the backend.
    fn info(&self) -> Info;

    /// Commits a transaction atomically; it is durable when this returns. Dropping the future once the transaction has
    /// its place in the lane does not cancel it.
    async fn commit(&self, txn: Txn, lane: Lane) -> Result<Revision, CommitError>;

    /// Reads a range in key order, in pages of at most `page` entries, all at one revision that is at least that of
    /// every commit that was acknowledged before the call.
    async fn scan(&self, range: Range, page: usize) -> Result<Scan>;

    /// Watches the changes of state keys after a revision; each revision comes whole, once and in order.
    async fn watch(&self, after: Revision) -> Result<Watch>;

    /// Grants a lease.
    async fn lease(&self, ttl: Duration) -> Result<Lease>;

    /// Renews a lease, and returns its new deadline, counted from the start of the call. `FENCED` if it has ended.
    async fn renew(&self, lease: LeaseId) -> Result<Instant>;

    /// Ends a lease and removes its keys.
    async fn revoke(&self, lease: LeaseId) -> Result<()>;

    /// Discards values that were replaced before a revision: watches from before it end as compacted.
    async fn compact(&self, revision: Revision) -> Result<()>;

    /// Writes a copy of the whole store to a new file. `UNIMPLEMENTED` if only the portable export can do that.
    async fn backup(&self, _to: &std::path::Path) -> Result<()> {
        Err(Error::new(
            Reason::Unimplemented,
            "this kind of store has no backup of its own; export it instead",
        ))
    }
}

/// Default page size of scans: large enough that the cost per page is small, and small enough that two pages in flight
/// are well below 1 MiB.
pub const PAGE: usize = 512;

impl dyn Backend {
    /// Reads one key.
    pub async fn get(&self, key: &Key) -> Result<Option<Entry>> {
        Ok(self.scan(Range::one(key), 1).await?.collect().await?.pop())
    }
}
