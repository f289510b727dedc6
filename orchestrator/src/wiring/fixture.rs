//! The parts of an orchestrator over a store in memory, for unit tests. Nothing runs by itself, and no platform can be
//! reached.

use drover_platforms::{Registered, Registration};
use drover_proto::orchestrator::v1 as pb;
use drover_testing::store::MemoryBackend;
use uuid::Uuid;

use super::*;

impl Wiring {
    pub(crate) async fn fixture() -> Self {
        let backend = Arc::new(MemoryBackend::new());
        let store = Arc::new(Store::open(backend).await.unwrap());
        let shards = store.take_all().await.unwrap();
        let digests = Arc::new(store.digest_key().await.unwrap());
        let connector: Connector =
            Arc::new(|_, _| Err(drover_core::Error::unavailable("there is no network here")));
        Self::new(
            store,
            shards,
            digests,
            Arc::default(),
            connector,
            Reach::default(),
            Hooks::default(),
        )
        .await
        .unwrap()
    }

    /// A platform that is registered in memory only.
    pub(crate) fn platform(&self, name: &str, uid: &str) -> Arc<Registered> {
        let registration = Registration {
            spec: pb::PlatformSpec::default(),
            generation: 1,
            uid: uid.to_owned(),
            create_time: 1,
        };
        self.platforms.add(name.into(), registration, 1, (0, 0))
    }

    /// Clusters that are to be planned, and how urgently.
    pub(crate) fn due(&self) -> Vec<(Uuid, Urgency)> {
        std::iter::from_fn(|| self.queue.pop(self.clock.now()))
            .map(|item| (item.cluster, item.urgency))
            .collect()
    }
}
