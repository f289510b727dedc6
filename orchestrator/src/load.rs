//! Loads what the store has, when an orchestrator begins.

use std::{pin::pin, sync::Arc};

use drover_cluster::Cluster;
use drover_core::{Error, Millis, Result};
use drover_store::{Clock, ClusterRow, Store};
use futures::{TryStreamExt, stream};

use crate::{records::Records, tombstones::Tombstones};

mod ahead;

pub(crate) use ahead::{Ahead, Shelf, follow};

/// Clusters that are decoded in one piece.
const LOADED_TOGETHER: usize = 256;
/// Pieces that are decoded at the same time.
const MAX_DECODING: usize = 4;

/// Loads clusters, those that were decoded ahead apart.
///
/// # Errors
/// Those of the store, and of decoding.
pub(crate) async fn clusters(
    store: &Store,
    records: &Arc<Records>,
    clock: &Clock,
    ahead: Option<Ahead>,
) -> Result<()> {
    let decoded = match ahead {
        Some(ahead) => ahead.finish(store).await?,
        None => None,
    };
    let latest = match decoded {
        Some(clusters) => {
            for cluster in &clusters {
                cluster.count_from(records.shards().of(cluster.uid()).first_sequence());
            }
            add(records, clusters)
        }
        None => all(store, records).await?,
    };
    let behind = clock.not_before(latest);
    if behind > 0 {
        tracing::warn!(
            behind_ms = behind,
            "the clock of this machine is behind what the store has recorded; time goes on from there"
        );
    }
    Ok(())
}

/// Loads the tombstones of deleted clusters.
///
/// # Errors
/// Those of the store.
pub(crate) async fn tombstones(store: &Store, tombstones: &Tombstones) -> Result<()> {
    for (uid, tombstone) in store.tombstones().await? {
        tombstones.load(uid, &tombstone.value);
    }
    Ok(())
}

/// Returns the latest time that they name.
fn add(records: &Records, clusters: Vec<Cluster>) -> Millis {
    let mut latest = 0;
    for cluster in clusters {
        latest = latest.max(cluster.lock().latest_time());
        records.add(cluster);
    }
    latest
}

async fn all(store: &Store, records: &Arc<Records>) -> Result<Millis> {
    let rows = stream::try_unfold(store.load().await?, async |mut loader| {
        let rows = loader.next_some(LOADED_TOGETHER).await?;
        Ok((!rows.is_empty()).then_some((rows, loader)))
    });
    let pieces = rows.map_ok(|rows| decode(Arc::clone(records), rows));
    let mut pieces = pin!(pieces.try_buffered(MAX_DECODING));
    let mut latest = 0;
    while let Some(clusters) = pieces.try_next().await? {
        latest = latest.max(add(records, clusters));
    }
    Ok(latest)
}

/// Decodes clusters beside the task that reads them, which takes less time than this.
async fn decode(records: Arc<Records>, rows: Vec<ClusterRow>) -> Result<Vec<Cluster>> {
    let decoding = tokio::task::spawn_blocking(move || {
        let clusters = rows.into_iter().map(|row| records.decode(row));
        clusters.collect()
    });
    decoding
        .await
        .map_err(|_| Error::internal("loading was interrupted"))?
}
