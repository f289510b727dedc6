//! Removes nodes of deleted clusters.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use drover_core::{Class, Sym, Urgency};
use drover_executor::{Envelope, Executor, Kind};
use drover_platforms::Platforms;
use drover_proto::platform::v1 as wire;
use drover_store::{Clock, Store};
use futures::{
    StreamExt,
    stream::{self, FuturesUnordered},
};
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use super::{Late, Tombstones};

/// Interval between checks for late nodes.
const INTERVAL: Duration = Duration::from_secs(5);
/// Maximum concurrent removals per platform, within the platform's call limits.
const AT_ONCE: usize = 8;
/// Deadline of a removal.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Has late nodes removed, within the limits of their platforms.
pub(crate) struct LateNodes {
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Arc<Clock>,
}

impl LateNodes {
    /// Removes late nodes until it is dropped. In a task of its own with one round per platform, so that a slow
    /// platform does not delay anything else.
    pub(crate) async fn run(self) {
        let mut look = tokio::time::interval(INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rounds = FuturesUnordered::new();
        let mut busy: BTreeSet<Sym> = BTreeSet::new();
        loop {
            tokio::select! {
                Some(platform) = rounds.next() => {
                    busy.remove(&platform);
                }
                _ = look.tick() => {
                    if self.store.restored_hold() {
                        continue;
                    }
                    for (platform, late) in self.tombstones.due(self.clock.now()) {
                        if busy.insert(platform.clone()) {
                            rounds.push(self.round(platform, late));
                        }
                    }
                }
            }
        }
    }

    /// Removes late nodes of one platform. Returns the platform.
    async fn round(&self, platform: Sym, late: Vec<(String, Late)>) -> Sym {
        let late = late.into_iter();
        let removals = late.map(|(node_id, late)| self.remove(platform.clone(), node_id, late));
        stream::iter(removals)
            .buffer_unordered(AT_ONCE)
            .collect::<()>()
            .await;
        platform
    }

    /// Removes one late node, subject to the platform's call limits and circuit breaker like every call.
    async fn remove(&self, platform: Sym, node_id: String, late: Late) {
        let Some(registered) = self.platforms.get(&platform) else {
            return;
        };
        let health = registered.platform.health(self.clock.now());
        if !health.visible || health.suspended {
            return;
        }
        let uid = registered.platform.uid();
        let envelope = Envelope {
            executor: &self.executor,
            kind: Kind::Deprovision,
            platform: &platform,
            uid: &uid,
            owner: late.owner,
            urgency: Urgency::Bulk,
            turn: None,
        };
        let answer = envelope
        .send(async |open| {
            // The tombstone is the durable intent; the platform's compare-and-delete guards against removing another
            // node.
            let message = wire::DeprovisionRequest {
                expected_platform_uid: uid.to_string(),
                expected_instance_id: open.instance.clone(),
                fence: Some(open.fence.clone()),
                request_id: Uuid::now_v7().to_string(),
                owner: late.owner.to_string(),
                cluster_id: late.cluster.clone(),
                node_request_id: late.request,
                index: late.index,
                node_id: node_id.clone(),
                reason: "Orphan".to_owned(),
                // The node may have taken over retained storage, and the storage policy of its cluster is no longer
                // known.
                retain_storage: open.registered.platform.has(wire::Capability::RetainStorage),
                ..wire::DeprovisionRequest::default()
            };
            tracing::info!(%platform, %node_id, cluster = %late.cluster, "removing a late node of a deleted cluster");
            self.tombstones.asked(&platform, &node_id, self.clock.now());
            open.call(async |client| client.deprovision(message, TIMEOUT).await)
                .await
        })
        .await;
        match answer {
            // If the node is shown again after all, it is remembered as late again.
            Ok(answer) if answer.state() == wire::DeprovisionState::Gone => {
                self.tombstones.gone(&platform, &node_id);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%platform, %node_id, %error, "a late node could not be removed");
                // Not if the platform was unregistered, so that nobody was asked.
                if error.class() == Class::Cannot && self.platforms.get(&platform).is_some() {
                    self.tombstones.gone(&platform, &node_id);
                }
            }
        }
    }
}
