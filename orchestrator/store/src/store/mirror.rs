//! The rows of all clusters in memory, kept by a replica that stands by, so that taking the lead reads none of them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use drover_core::Result;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};
use uuid::Uuid;

use super::clusters::{ClusterRow, row_of};
use crate::{
    backend::{Backend, Entry, PAGE, Range, Revision, Scan},
    history::{Batch, Watch},
    keys::{self, Key},
};

/// How long the mirror may need to see what this process has written a moment ago.
const CATCHES_UP: Duration = Duration::from_millis(500);
/// Delay before a backend that does not answer is read again.
const AGAIN: Duration = Duration::from_millis(500);
/// Pages that wait for their reader.
const AHEAD: usize = 2;

/// How long a cluster has to stay as it is before it is worth decoding.
const SETTLES: Duration = Duration::from_secs(1);

/// Delay before what the mirror had is discarded.
const DISCARDS: Duration = Duration::from_secs(5);

type Rows = BTreeMap<Key, (Bytes, Revision)>;

/// Clusters of which a reader has not told that it knows their present state.
#[derive(Clone, Debug)]
pub struct Unread {
    /// Number of the copy that they are of. With another one nothing of the former is known to be true.
    pub copy: u64,
    /// Each with the revision that it has; without a row if it is gone.
    pub clusters: Vec<(Uuid, Revision, Option<ClusterRow>)>,
}

#[derive(Debug, Default)]
struct Held {
    rows: Rows,
    /// The revision that they have; 0 while they are read.
    revision: Revision,
    /// How often they were read as a whole.
    copy: u64,
    unread: HashMap<Uuid, (Revision, Instant)>,
}

#[derive(Debug)]
pub(super) struct Mirror {
    copy: Arc<Copy>,
    follower: JoinHandle<()>,
}

#[derive(Debug)]
struct Copy {
    held: Mutex<Held>,
    /// The revision that it has, to wait for it.
    at: watch::Sender<Revision>,
}

impl Mirror {
    /// Begins to read, and then to follow.
    pub(super) fn start(backend: &Arc<dyn Backend>) -> Self {
        let copy = Arc::new(Copy {
            held: Mutex::default(),
            at: watch::Sender::new(0),
        });
        let follower = tokio::spawn(follow(copy.clone(), Arc::downgrade(backend)));
        Self { copy, follower }
    }

    /// Whether a scan of this range can be answered from it.
    pub(super) fn has(range: &Range) -> bool {
        *range == Range::prefix(&keys::clusters())
    }

    /// Revision that it has. 0 while it reads.
    pub(super) fn revision(&self) -> Revision {
        *self.copy.at.borrow()
    }

    /// Clusters that have changed and settled since they were read, at most so many.
    pub(super) fn unread(&self, most: usize) -> Result<Unread> {
        let held = self.copy.held.lock();
        let settled = held
            .unread
            .iter()
            .filter(|(_, (_, at))| at.elapsed() >= SETTLES);
        held.rows_of(settled.take(most))
    }

    /// Whether fewer clusters of that copy, the present one, are unread than `most`, besides those that change all the time.
    pub(super) fn is_read(&self, copy: u64, most: usize) -> bool {
        let held = self.copy.held.lock();
        let settled = held.unread.values();
        let settled = settled.filter(|(_, at)| at.elapsed() >= SETTLES);
        held.revision != 0 && held.copy == copy && settled.take(most).count() < most
    }

    /// The reader knows these clusters now.
    pub(super) fn was_read(&self, copy: u64, clusters: impl Iterator<Item = (Uuid, Revision)>) {
        let mut held = self.copy.held.lock();
        if held.copy != copy {
            return;
        }
        for (uid, revision) in clusters {
            if held
                .unread
                .get(&uid)
                .is_some_and(|(now, _)| *now == revision)
            {
                held.unread.remove(&uid);
            }
        }
    }

    /// Ends the mirror with what its reader does not know yet. The mirror itself if the reader knows another copy, or it is
    /// older than a revision.
    pub(super) async fn into_unread(
        self,
        copy: u64,
        least: Revision,
    ) -> Result<std::result::Result<Unread, Self>> {
        if !self.catches_up(least).await {
            return Ok(Err(self));
        }
        let held = {
            let mut held = self.copy.held.lock();
            // The watch may have ended meanwhile.
            if held.copy != copy || held.revision < least {
                drop(held);
                return Ok(Err(self));
            }
            std::mem::take(&mut *held)
        };
        drop(self);
        let unread = held.rows_of(held.unread.iter());
        // Many small pieces, which whoever begins to lead has no time for.
        tokio::spawn(async move {
            sleep(DISCARDS).await;
            let _ = tokio::task::spawn_blocking(move || drop(held)).await;
        });
        unread.map(Ok)
    }

    async fn catches_up(&self, least: Revision) -> bool {
        if self.revision() == 0 {
            return false;
        }
        let mut at = self.copy.at.subscribe();
        let caught_up = at.wait_for(|at| *at >= least);
        tokio::time::timeout(CATCHES_UP, caught_up)
            .await
            .is_ok_and(|reached| reached.is_ok())
    }

    /// Ends the mirror with a scan of what it has, if that is not older than a revision.
    pub(super) async fn into_scan(self, least: Revision) -> Option<Scan> {
        if !self.catches_up(least).await {
            return None;
        }
        let Held { rows, revision, .. } = std::mem::take(&mut *self.copy.held.lock());
        drop(self);
        // The watch may have ended meanwhile.
        if revision < least {
            return None;
        }
        let (sender, pages) = tokio::sync::mpsc::channel(AHEAD);
        tokio::spawn(async move {
            let mut rows = rows.into_iter().map(|(key, (value, revision))| Entry {
                key,
                value,
                revision,
            });
            loop {
                let page: Vec<Entry> = rows.by_ref().take(PAGE).collect();
                if page.is_empty() || sender.send(Ok(page)).await.is_err() {
                    return;
                }
            }
        });
        Some(Scan::new(revision, pages))
    }
}

impl Held {
    fn rows_of<'a>(
        &self,
        clusters: impl Iterator<Item = (&'a Uuid, &'a (Revision, Instant))>,
    ) -> Result<Unread> {
        let clusters = clusters.map(|(uid, (revision, _))| {
            let prefix = keys::cluster(*uid);
            let rows = self.rows.range(prefix.clone()..);
            let rows = rows.take_while(|(key, _)| key.as_bytes().starts_with(prefix.as_bytes()));
            let entries = rows.map(|(key, (value, revision))| Entry {
                key: key.clone(),
                value: value.clone(),
                revision: *revision,
            });
            Ok((*uid, *revision, row_of(entries)?))
        });
        Ok(Unread {
            copy: self.copy,
            clusters: clusters.collect::<Result<_>>()?,
        })
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

async fn follow(copy: Arc<Copy>, backend: Weak<dyn Backend>) {
    loop {
        let Some(held) = backend.upgrade() else {
            return;
        };
        let watch = read(&copy, &*held).await;
        drop(held);
        match watch {
            // At its end it is not known what has changed since.
            Ok(mut watch) => {
                while let Ok(batch) = watch.next().await {
                    copy.apply(&batch);
                }
            }
            Err(error) => tracing::debug!(%error, "cannot read ahead"),
        }
        copy.set(Rows::new(), 0);
        sleep(AGAIN).await;
    }
}

async fn read(copy: &Copy, backend: &dyn Backend) -> Result<Watch> {
    let mut scan = backend.scan(Range::prefix(&keys::clusters()), PAGE).await?;
    let revision = scan.revision();
    let mut rows = Rows::new();
    while let Some(page) = scan.next().await {
        rows.extend(page?.into_iter().map(|entry| {
            // What was read may be a piece of a large answer, all of which it would keep.
            let value = Bytes::copy_from_slice(&entry.value);
            (entry.key, (value, entry.revision))
        }));
    }
    let watch = backend.watch(revision).await?;
    copy.set(rows, revision);
    Ok(watch)
}

impl Copy {
    fn set(&self, rows: Rows, revision: Revision) {
        let mut held = self.held.lock();
        let read = Instant::now();
        // Nothing of it is known, so nothing is waited for.
        let settled = read.checked_sub(SETTLES).unwrap_or(read);
        let uids = rows.keys().filter_map(keys::cluster_of);
        *held = Held {
            unread: uids.map(|uid| (uid, (revision, settled))).collect(),
            copy: held.copy + 1,
            rows,
            revision,
        };
        self.at.send_replace(revision);
    }

    fn apply(&self, batch: &Batch) {
        let now = Instant::now();
        let mut held = self.held.lock();
        let held = &mut *held;
        for change in &batch.changes {
            let Some(uid) = keys::cluster_of(&change.key) else {
                continue;
            };
            held.unread.insert(uid, (batch.revision, now));
            match &change.value {
                Some(value) => {
                    let value = (Bytes::copy_from_slice(value), batch.revision);
                    held.rows.insert(change.key.clone(), value);
                }
                None => {
                    held.rows.remove(&change.key);
                }
            }
        }
        held.revision = batch.revision;
        self.at.send_replace(batch.revision);
    }
}
