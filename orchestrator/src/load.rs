//! Loads what the store has, when an orchestrator begins.

use std::{pin::pin, sync::Arc};

use drover_cluster::Interner;
use drover_core::{Error, Result};
use drover_secrets::Vault;
use drover_store::{ClusterRow, DigestKey, PlatformRow, Shards, Store, Tombstone, Versioned};
use futures::{TryStreamExt, stream, try_join};
use uuid::Uuid;

mod ahead;
mod fleet;

pub(crate) use ahead::{Ahead, Shelf, follow, has_caught_up};
pub(crate) use fleet::Fleet;
use fleet::Loaded;

/// Clusters that are decoded in one piece.
const LOADED_TOGETHER: usize = 256;
/// Pieces that are decoded at the same time.
const MAX_DECODING: usize = 4;

/// What the store has.
pub(crate) struct Contents {
    pub(crate) digests: Arc<DigestKey>,
    pub(crate) interner: Arc<Interner>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) fleet: Fleet,
    pub(crate) tombstones: Vec<(Uuid, Versioned<Tombstone>)>,
    pub(crate) platforms: Vec<Versioned<PlatformRow>>,
}

/// Reads all of it at the same time, and of the clusters only those that were not decoded ahead.
///
/// # Errors
/// Those of the store, and of decoding.
pub(crate) async fn contents(
    store: &Arc<Store>,
    shards: &Shards,
    ahead: Option<Ahead>,
) -> Result<Contents> {
    store.require_keys()?;
    let secrets = async {
        let digests = Arc::new(store.digest_key().await?);
        let vault = Vault::load(store.clone(), digests.clone()).await?;
        Ok((digests, Arc::new(vault)))
    };
    let ahead = async {
        match ahead {
            Some(ahead) => ahead.finish(store).await,
            None => Ok(None),
        }
    };
    let ((digests, vault), ahead, tombstones, platforms) =
        try_join!(secrets, ahead, store.tombstones(), store.platforms())?;
    let (interner, fleet) = match ahead.filter(|ahead| ahead.digests.is(&digests)) {
        Some(ahead) => {
            for cluster in ahead.fleet.clusters.all() {
                cluster.count_from(shards.of(cluster.uid()).first_sequence());
            }
            (ahead.interner, ahead.fleet)
        }
        None => {
            let interner = Arc::default();
            let fleet = all(store, shards, &interner, &digests).await?;
            (interner, fleet)
        }
    };
    Ok(Contents {
        digests,
        interner,
        vault,
        fleet,
        tombstones,
        platforms,
    })
}

async fn all(
    store: &Store,
    shards: &Shards,
    interner: &Arc<Interner>,
    digests: &Arc<DigestKey>,
) -> Result<Fleet> {
    let rows = stream::try_unfold(store.load().await?, async |mut loader| {
        let rows = loader.next_some(LOADED_TOGETHER).await?;
        Ok((!rows.is_empty()).then_some((rows, loader)))
    });
    let pieces = rows.map_ok(|rows| {
        let rows = rows.into_iter().map(|row| {
            let first = shards.of(row.uid).first_sequence();
            (row, first)
        });
        decode(rows.collect(), interner.clone(), digests.clone())
    });
    let mut pieces = pin!(pieces.try_buffered(MAX_DECODING));
    let mut fleet = Fleet::default();
    while let Some(piece) = pieces.try_next().await? {
        for cluster in piece {
            fleet.put(cluster);
        }
    }
    Ok(fleet)
}

/// Decodes clusters beside the task that reads them, which takes less time than this.
async fn decode(
    rows: Vec<(ClusterRow, u64)>,
    interner: Arc<Interner>,
    digests: Arc<DigestKey>,
) -> Result<Vec<Loaded>> {
    let decoding = tokio::task::spawn_blocking(move || {
        let rows = rows.into_iter();
        rows.map(|(row, first)| Loaded::of(row, first, &interner, &digests))
            .collect()
    });
    decoding
        .await
        .map_err(|_| Error::internal("loading was interrupted"))?
}
