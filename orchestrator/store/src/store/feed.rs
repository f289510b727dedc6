//! Notifications of changes: for caches, for reads that wait for a revision, and to wake event watches.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use drover_core::Result;
use parking_lot::Mutex;
use prost::Message;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::sleep,
};
use uuid::Uuid;

use super::{Versioned, damaged};
use crate::{
    backend::{Backend, Range, Revision},
    history::{Batch, Change, Watch, WatchEnd},
    keys::{Key, Name},
    value::{Desired, Head, PlatformRow, Tombstone},
};

/// Follows a backend for one process. Its memory is one number for each cluster that has a waiter.
#[derive(Debug)]
pub(super) struct Feed {
    revision: watch::Sender<Revision>,
    /// Whether this process is asked whether it lives.
    doubt: Key,
    doubted: Notify,
    /// The key that whoever leads has.
    lead: Key,
    lead_changed: Notify,
    clusters: Mutex<HashMap<Uuid, watch::Sender<Revision>>>,
}

impl Feed {
    pub(super) async fn start(
        backend: &Arc<dyn Backend>,
        after: Revision,
        own: &str,
    ) -> Result<(Arc<Self>, JoinHandle<()>)> {
        let feed = Arc::new(Self {
            revision: watch::Sender::new(after),
            doubt: Name::Doubt(own.to_owned()).into(),
            doubted: Notify::new(),
            lead: Name::Owner(0).into(),
            lead_changed: Notify::new(),
            clusters: Mutex::default(),
        });
        let watch = backend.watch(after).await?;
        let follower = tokio::spawn(follow(Arc::clone(&feed), Arc::downgrade(backend), watch));
        Ok((feed, follower))
    }

    pub(super) fn revision(&self) -> Revision {
        *self.revision.borrow()
    }

    pub(super) fn subscribe_revision(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    /// Notifies of each change of the cluster's head or tombstone.
    pub(super) fn subscribe(&self, uid: Uuid) -> watch::Receiver<Revision> {
        self.clusters
            .lock()
            .entry(uid)
            .or_insert_with(|| watch::Sender::new(0))
            .subscribe()
    }

    /// Forgets a cluster that nothing waits for any more.
    pub(super) fn unsubscribe(&self, uid: Uuid, receiver: watch::Receiver<Revision>) {
        let mut clusters = self.clusters.lock();
        drop(receiver);
        if clusters
            .get(&uid)
            .is_some_and(|sender| sender.receiver_count() == 0)
        {
            clusters.remove(&uid);
        }
    }

    /// Waits until this process may be asked whether it lives. Returns the key that is to be deleted then.
    pub(super) async fn doubted(&self) -> Key {
        self.doubted.notified().await;
        self.doubt.clone()
    }

    /// Waits until another one may lead.
    pub(super) async fn lead_changed(&self) {
        self.lead_changed.notified().await;
    }

    fn apply(&self, batch: &Batch) {
        if batch.changes.iter().any(|change| change.key == self.lead) {
            self.lead_changed.notify_one();
        }
        let asks = |change: &Change| change.key == self.doubt && change.value.is_some();
        if batch.changes.iter().any(asks) {
            self.doubted.notify_one();
        }
        {
            let clusters = self.clusters.lock();
            if !clusters.is_empty() {
                for change in &batch.changes {
                    if let Some(Name::Head(uid) | Name::Tombstone(uid)) = change.key.parse()
                        && let Some(sender) = clusters.get(&uid)
                    {
                        sender.send_replace(batch.revision);
                    }
                }
            }
        }
        self.revision.send_replace(batch.revision);
    }

    /// After a gap anything may have changed.
    fn jump(&self, revision: Revision) {
        for sender in self.clusters.lock().values() {
            sender.send_replace(revision);
        }
        self.revision.send_replace(revision);
        self.doubted.notify_one();
        self.lead_changed.notify_one();
    }
}

/// Delay before a lost watch is opened again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

async fn follow(feed: Arc<Feed>, backend: Weak<dyn Backend>, mut watch: Watch) {
    loop {
        match watch.next().await {
            Ok(batch) => feed.apply(&batch),
            Err(end) => loop {
                if end == WatchEnd::Closed {
                    sleep(AGAIN_AFTER).await;
                }
                let Some(backend) = backend.upgrade() else {
                    return;
                };
                match again(&*backend).await {
                    Ok((revision, new)) => {
                        feed.jump(revision);
                        watch = new;
                        break;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot follow the store");
                        drop(backend);
                        sleep(AGAIN_AFTER).await;
                    }
                }
            },
        }
    }
}

async fn again(backend: &dyn Backend) -> Result<(Revision, Watch)> {
    let revision = backend
        .scan(Range::one(&Name::Meta.into()), 1)
        .await?
        .revision();
    Ok((revision, backend.watch(revision).await?))
}

/// The changes of one revision.
#[derive(Clone, Debug)]
pub struct Update {
    /// Revision of the changes.
    pub revision: Revision,
    /// The changes. Empty if it changed only internal state of the store.
    pub changes: Vec<Changed>,
}

/// A change; `None` if the record was removed.
#[derive(Clone, Debug)]
pub enum Changed {
    /// Desired state of a cluster.
    Desired(Uuid, Option<Versioned<Desired>>),
    /// The head of a cluster.
    Head(Uuid, Option<Versioned<Head>>),
    /// A node record, by slot.
    Node(Uuid, u64, Option<Bytes>),
    /// An open provision request, by id.
    Request(Uuid, String, Option<Bytes>),
    /// A record of a resource, by kind and name.
    Resource(Uuid, String, String, Option<Bytes>),
    /// A platform's registration, by name.
    Platform(String, Option<Versioned<PlatformRow>>),
    /// A secret by name, without its value. `false` if it was removed.
    Secret(String, bool),
    /// Tombstone of a deleted cluster.
    Tombstone(Uuid, Option<Versioned<Tombstone>>),
}

/// A stream of updates in revision order.
#[derive(Debug)]
pub struct Changes {
    watch: Watch,
}

impl Changes {
    pub(super) fn new(watch: Watch) -> Self {
        Self { watch }
    }

    /// Waits for the next update. After an error, load anew and watch from there.
    pub async fn next(&mut self) -> Result<Update, WatchEnd> {
        let batch = self.watch.next().await?;
        let changes = batch
            .changes
            .iter()
            .filter_map(|change| typed(change, batch.revision))
            .collect();
        Ok(Update {
            revision: batch.revision,
            changes,
        })
    }
}

fn typed(change: &Change, revision: Revision) -> Option<Changed> {
    fn value<M: Message + Default>(
        change: &Change,
        revision: Revision,
    ) -> Option<Option<Versioned<M>>> {
        let Some(bytes) = &change.value else {
            return Some(None);
        };
        match M::decode(bytes.clone()) {
            Ok(value) => Some(Some(Versioned { value, revision })),
            Err(_) => {
                tracing::error!("{}", damaged(&change.key));
                None
            }
        }
    }
    Some(match change.key.parse()? {
        Name::Desired(uid) => Changed::Desired(uid, value(change, revision)?),
        Name::Head(uid) => Changed::Head(uid, value(change, revision)?),
        Name::Node(uid, slot) => Changed::Node(uid, slot, change.value.clone()),
        Name::Request(uid, id) => Changed::Request(uid, id, change.value.clone()),
        Name::Resource(uid, kind, name) => Changed::Resource(uid, kind, name, change.value.clone()),
        Name::Platform(name) => Changed::Platform(name, value(change, revision)?),
        Name::Secret(name) => Changed::Secret(name, change.value.is_some()),
        Name::Tombstone(uid) => Changed::Tombstone(uid, value(change, revision)?),
        Name::Replica(_)
        | Name::Doubt(_)
        | Name::Epoch(_)
        | Name::Owner(_)
        | Name::Meta
        | Name::ClusterName(_)
        | Name::UserData(..)
        | Name::Revision(..)
        | Name::Events(..) => {
            return None;
        }
    })
}
