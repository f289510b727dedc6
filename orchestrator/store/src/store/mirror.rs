//! The rows of all clusters in memory, kept by a replica that stands by, so that taking the lead reads none of them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use drover_core::Result;
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle, time::sleep};

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

type Rows = BTreeMap<Key, (Bytes, Revision)>;

#[derive(Debug)]
pub(super) struct Mirror {
    copy: Arc<Copy>,
    follower: JoinHandle<()>,
}

#[derive(Debug)]
struct Copy {
    /// The rows, and the revision that they have; 0 while they are read.
    rows: Mutex<(Rows, Revision)>,
    /// The same revision, to wait for it.
    at: watch::Sender<Revision>,
}

impl Mirror {
    /// Begins to read, and then to follow.
    pub(super) fn start(backend: &Arc<dyn Backend>) -> Self {
        let copy = Arc::new(Copy {
            rows: Mutex::default(),
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

    /// Ends the mirror with a scan of what it has, if that is not older than a revision.
    pub(super) async fn into_scan(self, least: Revision) -> Option<Scan> {
        if self.revision() == 0 {
            return None;
        }
        let mut at = self.copy.at.subscribe();
        let caught_up = at.wait_for(|at| *at >= least);
        tokio::time::timeout(CATCHES_UP, caught_up)
            .await
            .ok()?
            .ok()?;
        let (rows, revision) = std::mem::take(&mut *self.copy.rows.lock());
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
        *self.rows.lock() = (rows, revision);
        self.at.send_replace(revision);
    }

    fn apply(&self, batch: &Batch) {
        let all = keys::clusters();
        let mut held = self.rows.lock();
        let (rows, revision) = &mut *held;
        for change in &batch.changes {
            if !change.key.as_bytes().starts_with(all.as_bytes()) {
                continue;
            }
            match &change.value {
                Some(value) => {
                    let value = (Bytes::copy_from_slice(value), batch.revision);
                    rows.insert(change.key.clone(), value);
                }
                None => {
                    rows.remove(&change.key);
                }
            }
        }
        *revision = batch.revision;
        self.at.send_replace(batch.revision);
    }
}
