//! Decodes clusters while another replica leads, so that taking the lead decodes only what has changed just before.

use std::{path::PathBuf, sync::Arc, time::Duration};

use drover_cluster::Interner;
use drover_core::{Error, Result};
use drover_store::{DigestKey, Keyring, Revision, Store, Unread};
use futures::future::try_join_all;
use parking_lot::Mutex;
use tokio::time::sleep;
use uuid::Uuid;

use super::{Fleet, fleet::Loaded};

/// Clusters that are decoded in one piece.
const TOGETHER: usize = 256;
/// Delay after which it is looked whether clusters have changed.
const LOOK: Duration = Duration::from_millis(500);
/// Share of the time that decoding may take, so that a fleet that changes all the time does not cost a processor.
const SHARE: u32 = 4;
/// Delay before a store that does not answer, or has no clusters yet, is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Clusters that are decoded, and what they were decoded with.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) interner: Arc<Interner>,
    pub(crate) digests: Arc<DigestKey>,
    /// The copy of the store that they are of.
    copy: u64,
    pub(crate) fleet: Fleet,
}

/// Where they are while nobody needs them. `None` before any was decoded.
pub(crate) type Shelf = Arc<Mutex<Option<Ahead>>>;

/// Whether nearly all of what the store has is decoded.
pub(crate) fn has_caught_up(shelf: &Shelf, store: &Store) -> bool {
    let shelf = shelf.lock();
    shelf
        .as_ref()
        .is_some_and(|ahead| ahead.has_caught_up(store))
}

/// Decodes what has changed, again and again.
pub(crate) async fn follow(store: Arc<Store>, keys: Option<PathBuf>, shelf: Shelf) {
    let digests = loop {
        match digest_key(&store, keys.as_ref()).await {
            Ok(Some(digests)) => break Arc::new(digests),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "cannot decode ahead"),
        }
        sleep(AGAIN).await;
    };
    *shelf.lock() = Some(Ahead::of_nothing(digests));
    loop {
        let begin = tokio::time::Instant::now();
        let decoded = tokio::task::spawn_blocking({
            let (store, shelf) = (store.clone(), shelf.clone());
            move || decode_some(&store, &shelf)
        });
        match decoded.await {
            // A full piece is followed by the next one.
            Ok(Ok(TOGETHER)) => sleep(begin.elapsed() * (SHARE - 1)).await,
            Ok(Ok(_)) => sleep(LOOK).await,
            // Whoever takes the lead reads it itself, and says what is wrong.
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot decode ahead");
                sleep(AGAIN).await;
            }
            Err(_) => return,
        }
    }
}

/// The keys may be others by now than when this replica joined.
async fn digest_key(store: &Store, keys: Option<&PathBuf>) -> Result<Option<DigestKey>> {
    let keys = keys.map(Keyring::read).transpose()?;
    store.present_digest_key(keys.as_ref()).await
}

fn decode_some(store: &Store, shelf: &Mutex<Option<Ahead>>) -> Result<usize> {
    let Some(unread) = store.unread(TOGETHER)? else {
        return Ok(0);
    };
    let (interner, digests) = match &*shelf.lock() {
        Some(ahead) => (ahead.interner.clone(), ahead.digests.clone()),
        None => return Ok(0),
    };
    let copy = unread.copy;
    let (decoded, read) = decode(unread, &interner, &digests)?;
    let mut shelf = shelf.lock();
    let Some(ahead) = &mut *shelf else {
        return Ok(0);
    };
    ahead.put(copy, decoded);
    // Only now: what is on its way is still unread for whoever takes the lead meanwhile.
    let count = read.len();
    store.was_read(copy, read.into_iter());
    Ok(count)
}

/// Each with its cluster, unless that is gone.
type Decoded = Vec<(Uuid, Option<Loaded>)>;

fn decode(
    unread: Unread,
    interner: &Interner,
    digests: &DigestKey,
) -> Result<(Decoded, Vec<(Uuid, Revision)>)> {
    let mut read = Vec::with_capacity(unread.clusters.len());
    let decoded = unread.clusters.into_iter().map(|(uid, revision, row)| {
        read.push((uid, revision));
        // Under which numbers it makes requests is known with the lead.
        let cluster = row.map(|row| Loaded::of(row, 0, interner, digests));
        Ok((uid, cluster.transpose()?))
    });
    let decoded = decoded.collect::<Result<_>>()?;
    Ok((decoded, read))
}

impl Ahead {
    fn of_nothing(digests: Arc<DigestKey>) -> Self {
        Self {
            interner: Arc::default(),
            digests,
            copy: 0,
            fleet: Fleet::default(),
        }
    }

    /// Whether only clusters that have changed just before would be decoded with the lead.
    pub(crate) fn has_caught_up(&self, store: &Store) -> bool {
        store.is_read(self.copy, TOGETHER)
    }

    fn put(&mut self, copy: u64, decoded: Decoded) {
        if self.copy != copy {
            self.copy = copy;
            self.fleet = Fleet::default();
        }
        for (uid, cluster) in decoded {
            match cluster {
                Some(cluster) => self.fleet.put(cluster),
                None => self.fleet.remove(uid),
            }
        }
    }

    /// All clusters, of which those that were not decoded ahead are decoded now. `None` if they are to be loaded.
    pub(crate) async fn finish(mut self, store: &Store) -> Result<Option<Self>> {
        let Some(unread) = store.load_unread(self.copy).await? else {
            return Ok(None);
        };
        let Unread { copy, clusters } = unread;
        // Nearly all, if this replica has joined a moment ago.
        let pieces = clusters.chunks(TOGETHER).map(|piece| {
            let unread = Unread {
                copy,
                clusters: piece.to_vec(),
            };
            let (interner, digests) = (self.interner.clone(), self.digests.clone());
            tokio::task::spawn_blocking(move || decode(unread, &interner, &digests))
        });
        for decoded in try_join_all(pieces)
            .await
            .map_err(|_| Error::internal("loading was interrupted"))?
        {
            let (decoded, _) = decoded?;
            self.put(copy, decoded);
        }
        Ok(Some(self))
    }
}
