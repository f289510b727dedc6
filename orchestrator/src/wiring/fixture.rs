//! The parts of an orchestrator over a store in memory, for unit tests. Nothing runs by itself, and no platform can be
//! reached.

use drover_cluster::Cluster;
use drover_platforms::{Registered, Registration};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Backend, Desired, Lane};
use drover_testing::store::{LongLeases, MemoryBackend};
use prost::Message;
use uuid::Uuid;

use super::*;

impl Wiring {
    pub(crate) async fn fixture() -> Self {
        Self::over(LongLeases::over(Arc::new(MemoryBackend::new()))).await
    }

    /// The same over a backend that others may use, too.
    pub(crate) async fn over(backend: Arc<dyn Backend>) -> Self {
        let store = Arc::new(Store::open(backend).await.unwrap());
        let shards = store.take_all().await.unwrap();
        let contents = crate::load::contents(&store, &shards, None).await.unwrap();
        let connector: Connector =
            Arc::new(|_, _| Err(drover_core::Error::unavailable("there is no network here")));
        let (reach, hooks) = (Reach::default(), Hooks::default());
        Self::new(store, shards, contents, connector, reach, hooks).0
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

    /// A cluster of the store and of memory, with a group `db` of this size on the platform `p`.
    pub(crate) async fn cluster(&self, name: &str, size: u32) -> Arc<Cluster> {
        let spec = pb::ClusterSpec {
            groups: vec![pb::GroupSpec {
                name: "db".to_owned(),
                size: Some(size),
                platforms: vec![pb::PlatformChoice {
                    name: "p".to_owned(),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let desired = Desired {
            name: name.to_owned(),
            spec: spec.encode_to_vec().into(),
            generation: 1,
            ..Desired::default()
        };
        let (uid, _) = self.store.create_cluster(desired).await.unwrap();
        let row = self.store.load_cluster(uid).await.unwrap().unwrap();
        self.records.add(self.records.decode(row).unwrap())
    }

    /// One pass over a cluster.
    pub(crate) async fn pass(&self, cluster: &Arc<Cluster>) {
        self.queue.push(cluster.uid(), Urgency::Bulk);
        let item = self.queue.pop(self.clock.now()).unwrap();
        self.reconciler().pass(cluster, item).await;
        self.queue.done(cluster.uid());
    }

    /// What the store has of a cluster, decoded.
    pub(crate) async fn stored(&self, cluster: &Cluster) -> Option<Cluster> {
        let row = self.store.load_cluster(cluster.uid()).await.unwrap()?;
        Some(self.records.decode(row).unwrap())
    }

    /// Stores a step of which memory is not told.
    pub(crate) async fn step_behind_memory(&self, cluster: &Cluster) {
        let mut step = cluster.lock().encode_step(&[], &[], self.clock.now());
        (step.uid, step.expect_desired) = (cluster.uid(), None);
        self.records.step(step, Lane::Bulk).await.unwrap();
    }

    /// Changes what is wanted in the store, of which memory is not told.
    pub(crate) async fn desire_behind_memory(
        &self,
        cluster: &Cluster,
        change: impl FnOnce(&mut Desired),
    ) {
        let mut desired = cluster.lock().desired().clone();
        desired.value.generation += 1;
        change(&mut desired.value);
        let stored = self
            .store
            .update_desired(cluster.uid(), desired.revision, desired.value);
        stored.await.unwrap();
    }

    /// The reasons of all events of a cluster.
    pub(crate) async fn event_reasons(&self, cluster: &Cluster) -> Vec<String> {
        let page = self.store.events(cluster.uid(), 0, 100).await.unwrap();
        page.events
            .into_iter()
            .map(|row| row.event.reason)
            .collect()
    }

    /// Clusters that are to be planned, and how urgently.
    pub(crate) fn due(&self) -> Vec<(Uuid, Urgency)> {
        self.due_by(self.clock.now())
    }

    /// Those that are to be planned by a moment: one that looks again later is not, however slow the machine.
    pub(crate) fn due_by(&self, moment: drover_core::Millis) -> Vec<(Uuid, Urgency)> {
        std::iter::from_fn(|| self.queue.pop(moment))
            .map(|item| (item.cluster, item.urgency))
            .collect()
    }

    /// The same after all calls have ended.
    pub(crate) async fn due_after_calls(&self) -> Vec<(Uuid, Urgency)> {
        self.tasks.tracker().close();
        self.tasks.tracker().wait().await;
        self.due()
    }
}
