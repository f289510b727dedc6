//! Forgets tombstones of which nothing can show up any more.

use std::{sync::Arc, time::Duration};

use drover_store::{Clock, Shards, Store};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{resources::Leaks, tombstones::Tombstones};

/// Retention of tombstones.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Interval between checks for expired tombstones.
const FORGET_INTERVAL: Duration = Duration::from_secs(3600);

/// Keeps a tombstone for a while, and for as long as platforms show something of its cluster.
pub(crate) struct Expiry {
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) leaks: Arc<Leaks>,
    pub(crate) store: Arc<Store>,
    pub(crate) shards: Shards,
    pub(crate) clock: Arc<Clock>,
}

impl Expiry {
    /// Goes on until the orchestrator stops.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut forget = tokio::time::interval(FORGET_INTERVAL);
        while stop.run_until_cancelled(forget.tick()).await.is_some() {
            self.forget_expired().await;
        }
    }

    async fn forget_expired(&self) {
        let mut late = self.leaks.owners();
        late.extend(self.tombstones.late_owners());
        let settled = |uid: Uuid, _: &drover_store::Tombstone| !late.contains(&uid);
        let swept = self
            .store
            .sweep_tombstones(self.shards.all(), KEPT, settled);
        match swept.await {
            Ok(0) => {}
            Ok(_) => {
                let oldest = self.clock.now().saturating_sub(drover_core::millis(KEPT));
                self.tombstones.expire(oldest, &late);
            }
            Err(error) => tracing::warn!(%error, "deleted clusters could not be forgotten"),
        }
    }
}
