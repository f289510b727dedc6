//! Clusters, nodes, events and ownership over any backend.

mod clusters;
mod commit;
mod events;
mod feed;
mod hand_over;
mod led;
mod mirror;
mod own;
mod records;
mod replicas;
mod secrets;
mod step;
mod transfer;

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use parking_lot::Mutex;
use prost::Message;
use tokio::{sync::watch, task::JoinHandle};
use uuid::Uuid;

pub use self::{
    clusters::{Along, ClusterRow, Former, Loader, MAX_USER_DATA, NodeRow, ResourceRow, UserData},
    events::{EventPage, EventWatch},
    feed::{Changed, Changes, Update},
    hand_over::Vacant,
    mirror::Unread,
    own::{Owned, SHARDS, Shards, shard_of},
    replicas::{Me, ReplicaRow},
    step::{Finish, MAX_STEP_NODES, Step, StepDone},
    transfer::{Decoder, Summary, import},
};
use self::{
    feed::Feed,
    led::Led,
    replicas::{Holding, now_ms},
};
use crate::{
    backend::{Backend, Entry, Info, PAGE, RETRY_AFTER, Range, Revision},
    keys::{self, Key, Name},
    seal::Keyring,
    sqlite::{self, SqliteBackend},
    value::{Head, Meta},
};

/// A value with the revision of its last write.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned<T> {
    /// The stored value.
    pub value: T,
    /// Revision of the last write.
    pub revision: Revision,
}

/// Newest known format of the values.
const VALUE_FORMAT: u32 = SEALED_FORMAT;
/// Format of a store without encryption.
const PLAIN_FORMAT: u32 = 1;
/// Format of a store with encryption. A version that knows only format 1 would give nodes data that it cannot read.
/// Format 2 had no write numbers of secrets.
const SEALED_FORMAT: u32 = 3;

/// Sequence numbers that a lost store may have assigned to one cluster since its copy was taken: one an hour for a
/// hundred years.
const LOST: u64 = 1_000_000;

/// Maximum wait of an API write for a place in the lane: beyond that, telling the caller to retry costs less than
/// holding its request.
pub(crate) const API_WAIT: Duration = Duration::from_millis(250);

/// The durable state of the orchestrator.
///
/// Owner state is written only with an [`Owned`], which only the key of a shard that is this process's creates.
pub struct Store {
    backend: Arc<dyn Backend>,
    /// The same.
    led: Arc<Led>,
    info: Info,
    meta: Mutex<Versioned<Meta>>,
    id: Uuid,
    replica: Me,
    holding: Arc<Holding>,
    /// Epochs as they were read when another replica led.
    epochs: Mutex<Option<own::Epochs>>,
    /// What it was given while it waited for the lead.
    given: Mutex<hand_over::Given>,
    feed: Arc<Feed>,
    tasks: Vec<JoinHandle<()>>,
    /// Keys that encrypt secrets and user data. If unset, there are no secrets, and user data is stored unencrypted.
    keys: OnceLock<Keyring>,
}

impl Store {
    /// Opens a store over a backend, and creates it if the backend is empty. Requires a tokio runtime.
    pub async fn open(backend: Arc<dyn Backend>) -> Result<Self> {
        Self::open_as(backend, Me::nameless()).await
    }

    /// Opens a store as one of its replicas. `ALREADY_EXISTS` if another process goes on to have its name.
    pub async fn open_as(backend: Arc<dyn Backend>, replica: Me) -> Result<Self> {
        let info = backend.info();
        let meta = match read_meta(&*backend).await? {
            Some(meta) => meta,
            None => make_meta(&*backend).await?,
        };
        let id = Uuid::from_slice(&meta.value.id).map_err(|_| damaged(&Name::Meta.into()))?;
        let start = backend
            .scan(Range::one(&Name::Meta.into()), 1)
            .await?
            .revision();
        let (feed, follower) = Feed::start(&backend, start, &replica.name).await?;
        let (holding, renewer) = replicas::join(&backend, &replica).await?;
        let mut tasks = vec![follower];
        tasks.extend(renewer);
        if !info.exclusive {
            let answering = replicas::answer_doubts(Arc::downgrade(&backend), Arc::clone(&feed));
            tasks.push(tokio::spawn(answering));
        }
        let led = Arc::new(Led::new(backend));
        Ok(Self {
            backend: led.clone(),
            led,
            info,
            meta: Mutex::new(meta),
            id,
            replica,
            holding,
            epochs: Mutex::default(),
            given: Mutex::default(),
            feed,
            tasks,
            keys: OnceLock::new(),
        })
    }

    /// Opens the store in a directory of this machine.
    pub async fn open_directory(directory: impl AsRef<Path>) -> Result<Self> {
        Self::open_directory_as(directory, Me::nameless()).await
    }

    /// The same, for a process that tells its name.
    pub async fn open_directory_as(directory: impl AsRef<Path>, me: Me) -> Result<Self> {
        let directory = directory.as_ref().to_owned();
        let opened = tokio::task::spawn_blocking(move || SqliteBackend::open(directory));
        let backend = opened
            .await
            .map_err(|e| Error::internal(format!("opening the store was cut off: {e}")))??;
        Self::open_as(Arc::new(backend), me).await
    }

    /// Keeps what [`Store::load`] reads in memory until then, so that taking the lead need not wait for it.
    pub fn read_ahead(&self) {
        self.led.read_ahead();
    }

    /// Clusters that were read ahead, at most so many, which a reader has not read (again) since they changed. `None` if
    /// nothing is read ahead. What changes all the time is left out, as it would have to be read again.
    pub fn unread(&self, most: usize) -> Result<Option<Unread>> {
        self.led.unread(most)
    }

    /// Whether the reader has read all of that copy but fewer than `most`, and but what changes all the time.
    #[must_use]
    pub fn is_read(&self, copy: u64, most: usize) -> bool {
        self.led.is_read(copy, most)
    }

    /// The reader has read these, with these revisions, from that copy.
    pub fn was_read(&self, copy: u64, clusters: impl Iterator<Item = (Uuid, Revision)>) {
        self.led.was_read(copy, clusters);
    }

    /// The revision up to which that has come. 0 while nothing was read.
    #[must_use]
    pub fn read_ahead_to(&self) -> Revision {
        self.led.ahead()
    }

    /// Gives up all shards immediately, so that another replica does not have to wait for the lease to end.
    pub async fn close(self) -> Result<()> {
        self.resign().await
    }

    /// As [`Store::close`], while others still hold it: they can neither write nor begin anything any more.
    pub async fn resign(&self) -> Result<()> {
        self.holding.lost().cancel();
        self.backend.revoke(self.holding.id()).await
    }

    /// Uid of the store. Nodes carry it, so that the nodes of another store are never taken for orphans.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Starts at 1 and increases with each restore.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.meta.lock().value.incarnation
    }

    /// Properties of the backend.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Whether it was restored and no person has confirmed that yet: nodes created after the backup are healthy and
    /// unknown here, so no orphan may be deleted.
    #[must_use]
    pub fn restored_hold(&self) -> bool {
        self.meta.lock().value.held
    }

    /// Ends the hold after a restore, while nothing else uses the store. Every cluster continues with sequence numbers
    /// that the lost store cannot have assigned, so that nodes from the lost store are orphans, and no longer a sign
    /// that this store is behind.
    pub async fn confirm_restore(&self) -> Result<()> {
        let meta = read_meta(&*self.backend)
            .await?
            .ok_or_else(|| damaged(&Name::Meta.into()))?;
        if meta.value.held {
            self.outnumber().await?;
            let value = Meta {
                held: false,
                ..meta.value
            };
            let revision = self
                .put_record(Name::Meta.into(), value.clone(), Some(meta.revision))
                .await?;
            *self.meta.lock() = Versioned { value, revision };
        } else {
            *self.meta.lock() = meta;
        }
        Ok(())
    }

    /// Raises the next sequence number of every cluster. After an interruption it is done again, which does no harm.
    async fn outnumber(&self) -> Result<()> {
        let entries = self
            .backend
            .scan(Range::prefix(&keys::clusters()), PAGE)
            .await?
            .collect()
            .await?;
        let mut heads: BTreeMap<Uuid, Versioned<Head>> = BTreeMap::new();
        for entry in entries {
            match entry.key.parse() {
                Some(Name::Head(uid)) => {
                    heads.insert(uid, decode(&entry)?);
                }
                // Not planned yet when the copy was taken, but perhaps later.
                Some(Name::Desired(uid)) => {
                    let value = Head {
                        next_slot: 1,
                        next_sequence: 1,
                        ..Head::default()
                    };
                    heads.entry(uid).or_insert(Versioned { value, revision: 0 });
                }
                _ => {}
            }
        }
        for (uid, Versioned { value, revision }) in heads {
            // No process of the lost store has started later than now.
            let next_sequence = value.next_sequence.saturating_add(LOST);
            let value = Head {
                next_sequence: next_sequence.max(own::first_sequence(now_ms() + 1)),
                skipped: Vec::new(),
                ..value
            };
            self.put_record(Name::Head(uid).into(), value, Some(revision))
                .await?;
        }
        Ok(())
    }

    /// Newest revision whose changes this process has seen.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.feed.revision()
    }

    /// Watches [`Store::revision`].
    #[must_use]
    pub fn subscribe_revision(&self) -> watch::Receiver<Revision> {
        self.feed.subscribe_revision()
    }

    /// Waits until this process has seen a revision. `STORE_RESTORED` if the store never assigned it.
    pub async fn wait_revision(&self, revision: Revision) -> Result<()> {
        if revision <= self.revision() {
            return Ok(());
        }
        let newest = self
            .backend
            .scan(Range::one(&Name::Meta.into()), 1)
            .await?
            .revision();
        if revision > newest {
            let message = format!(
                "revision {revision} was never given out, {newest} is the newest: the store was restored"
            );
            return Err(
                Error::new(Reason::StoreRestored, message).with_metadata("revision", newest)
            );
        }
        let mut seen = self.feed.subscribe_revision();
        let waited = seen.wait_for(|seen| *seen >= revision).await;
        waited
            .map(drop)
            .map_err(|_| Error::unavailable("the store was closed"))
    }

    /// Watches the changes after a revision, for a cache. A cache that was just loaded starts at [`Loader::revision`].
    pub async fn changes(&self, after: Revision) -> Result<Changes> {
        Ok(Changes::new(self.backend.watch(after).await?))
    }

    /// Discards the history before a revision.
    pub async fn compact(&self, before: Revision) -> Result<()> {
        self.backend.compact(before).await
    }

    /// Writes a copy of the store to a new file, from which [`restore`] creates a store. Writes continue meanwhile.
    pub async fn backup(&self, to: impl AsRef<Path>) -> Result<()> {
        self.backend.backup(to.as_ref()).await
    }

    /// The backend, for operations that the store does not offer.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    async fn read<M: Message + Default>(&self, key: &Key) -> Result<Option<Versioned<M>>> {
        self.backend
            .get(key)
            .await?
            .map(|entry| decode(&entry))
            .transpose()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({}, {:?})", self.id, self.backend)
    }
}

fn decode<M: Message + Default>(entry: &Entry) -> Result<Versioned<M>> {
    let value = M::decode(entry.value.clone()).map_err(|_| damaged(&entry.key))?;
    Ok(Versioned {
        value,
        revision: entry.revision,
    })
}

fn damaged(key: &Key) -> Error {
    Error::internal(format!(
        "what is stored under {key} cannot be read; restore a backup"
    ))
}

async fn read_meta(backend: &dyn Backend) -> Result<Option<Versioned<Meta>>> {
    let Some(entry) = backend.get(&Name::Meta.into()).await? else {
        return Ok(None);
    };
    let meta: Versioned<Meta> = decode(&entry)?;
    if meta.value.format > VALUE_FORMAT {
        return Err(Error::new(
            Reason::Precondition,
            format!(
                "the store has format {}, which a newer version of drover wrote; this one knows up to {VALUE_FORMAT}. \
                 Start the newer version, or restore a backup made before it ran",
                meta.value.format
            ),
        ));
    }
    Ok(Some(meta))
}

async fn make_meta(backend: &dyn Backend) -> Result<Versioned<Meta>> {
    let something = backend
        .scan(
            Range {
                limit: Some(1),
                ..Range::all()
            },
            1,
        )
        .await?
        .collect()
        .await?;
    if !something.is_empty() {
        // Another replica may have made it since it was looked for.
        if let Some(meta) = read_meta(backend).await? {
            return Ok(meta);
        }
        return Err(Error::new(
            Reason::Precondition,
            "the store was left half made by an import that did not end; remove it and import again",
        ));
    }
    let id = Bytes::copy_from_slice(Uuid::new_v4().as_bytes());
    let value = Meta {
        id,
        format: PLAIN_FORMAT,
        incarnation: 1,
        ..Meta::default()
    };
    let made = commit::put(backend, Name::Meta.into(), value.clone(), Some(0), None).await;
    match made {
        Ok(revision) => Ok(Versioned { value, revision }),
        // Another replica created it at the same time.
        Err(error) if error.reason() == Reason::RevisionMismatch => read_meta(backend)
            .await?
            .ok_or_else(|| damaged(&Name::Meta.into())),
        Err(error) => Err(error),
    }
}

/// Copies the store in a directory to a new file. An orchestrator may use the store meanwhile and is not blocked: the
/// copy is a snapshot of one moment.
///
/// `NOT_FOUND` if there is no store, `ALREADY_EXISTS` if the file exists, `FAILED_PRECONDITION` if the store is
/// foreign, newer or damaged.
pub async fn backup(directory: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    sqlite::copy_directory(directory.as_ref(), to.as_ref()).await
}

/// Creates a store from a backup file in a directory that does not contain one yet. The store is held until
/// [`Store::confirm_restore`].
pub async fn restore(backup: impl AsRef<Path>, directory: impl AsRef<Path>) -> Result<()> {
    sqlite::unpack_backup(backup.as_ref(), directory.as_ref(), |aside| async move {
        let backend = SqliteBackend::open(aside)?;
        mark_restored(&backend).await
    })
    .await
}

/// Starts a new incarnation, in which no orphan is deleted until a person confirms.
async fn mark_restored(backend: &dyn Backend) -> Result<()> {
    let meta = read_meta(backend)
        .await?
        .ok_or_else(|| damaged(&Name::Meta.into()))?;
    let value = Meta {
        held: true,
        incarnation: meta.value.incarnation + 1,
        ..meta.value
    };
    commit::put(backend, Name::Meta.into(), value, Some(meta.revision), None).await?;
    tracing::info!(
        at = now_ms(),
        "the store was restored; orphans are kept until a person confirms"
    );
    Ok(())
}

/// The error of a call whose outcome is not known.
fn outcome_unknown() -> Error {
    Error::unavailable("the store did not answer; the change may have been stored")
        .with_retry_after(RETRY_AFTER)
}
