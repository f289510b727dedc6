use drover_cluster::Cluster;
use drover_planner::ConditionKind;
use drover_store::{Backend, Revision, Store};
use drover_testing::store::{Fault, FaultBackend, MemoryBackend};
use uuid::Uuid;

use super::*;
use crate::wiring::Wiring;

/// A reconciler with the cluster `orders`, which wants one node on the platform `p`.
struct World {
    wiring: Wiring,
    orders: Arc<Cluster>,
}

impl World {
    async fn new() -> Self {
        Self::of(Wiring::fixture().await).await
    }

    async fn of(wiring: Wiring) -> Self {
        let orders = wiring.cluster("orders", 1).await;
        Self { orders, wiring }
    }

    /// With `p`, which is visible, so that a plan asks it for the node.
    async fn with_platform() -> Self {
        let world = Self::new().await;
        world.show_platform();
        world
    }

    fn show_platform(&self) {
        let p = self.wiring.platform("p", "u");
        p.platform.snapshot_complete(self.wiring.clock.now(), None);
    }

    /// One pass.
    async fn pass(&self) {
        self.wiring.pass(&self.orders).await;
    }

    fn requests(&self) -> usize {
        requests(&self.orders).len()
    }
}

fn requests(cluster: &Cluster) -> Vec<Uuid> {
    let inner = cluster.lock();
    inner.state().requests.keys().copied().collect()
}

/// Of the record of a cluster.
fn revision(cluster: &Cluster) -> Revision {
    cluster.lock().head().revision
}

#[tokio::test]
async fn a_plan_is_in_the_store_and_in_memory_and_its_calls_begin() {
    let world = World::with_platform().await;
    world.pass().await;
    assert_eq!(world.requests(), 1);
    let stored = world.wiring.stored(&world.orders).await.unwrap();
    assert_eq!(requests(&stored), requests(&world.orders));
    assert_eq!(revision(&stored), revision(&world.orders));
    assert!(world.wiring.records.revision() >= revision(&stored));
    let due = world.wiring.due_after_calls().await;
    assert!(!due.is_empty(), "its end is looked at in the next pass");
}

#[tokio::test]
async fn a_process_that_lost_its_clusters_calls_nobody_and_stops() {
    let backend = Arc::new(MemoryBackend::new());
    let world = World::of(Wiring::over(backend.clone()).await).await;
    world.show_platform();
    let wiring = &world.wiring;
    let successor = Store::open(backend.clone()).await.unwrap();
    let leader = successor.leader().await.unwrap().unwrap();
    backend.revoke(leader.lease.unwrap()).await.unwrap();
    successor.take_all().await.unwrap();
    world.pass().await;
    assert!(wiring.tasks.stop().is_cancelled());
    assert_eq!(world.requests(), 0);
    assert_eq!(wiring.due_after_calls().await, [], "no call was made");
}

#[tokio::test]
async fn a_step_that_the_store_refuses_is_tried_again_a_moment_later_and_not_at_once() {
    let backend = Arc::new(FaultBackend::new(Arc::new(MemoryBackend::new())));
    let world = World::of(Wiring::over(backend.clone()).await).await;
    world.show_platform();
    for nth in 1..=200 {
        backend.inject(nth, Fault::Refused);
    }
    let (began, before) = (world.wiring.clock.now(), backend.commits());
    world.pass().await;
    assert_eq!(backend.commits(), before + 1);
    assert_eq!(world.wiring.due_by(began), [], "it waits");
    assert_eq!(world.requests(), 0);
    backend.restart();
    world.pass().await;
    assert_eq!(world.requests(), 1);
}

#[tokio::test]
async fn a_change_that_memory_has_missed_is_read_before_anything_is_done_for_the_old_one() {
    let world = World::with_platform().await;
    let pause = |desired: &mut drover_store::Desired| {
        desired.paused = Some(drover_store::Pause::default());
    };
    world
        .wiring
        .desire_behind_memory(&world.orders, pause)
        .await;
    world.pass().await;
    assert_eq!(world.orders.lock().desired().value.generation, 2);
    assert!(world.orders.lock().state().paused);
    assert_eq!(world.requests(), 0);
}

#[tokio::test]
async fn after_a_step_of_somebody_else_the_cluster_is_read_again_and_planned_anew() {
    let world = World::with_platform().await;
    world.wiring.step_behind_memory(&world.orders).await;
    world.pass().await;
    let stored = world.wiring.stored(&world.orders).await.unwrap();
    assert_eq!(revision(&stored), revision(&world.orders));
    assert_eq!(world.requests(), 1);
}

#[tokio::test]
async fn what_was_stored_while_a_cluster_was_read_again_is_not_forgotten() {
    let world = World::with_platform().await;
    let (wiring, orders) = (&world.wiring, &world.orders);
    let before = wiring.records.read_again(orders.uid()).await.unwrap();
    let label = |desired: &mut drover_store::Desired| {
        desired.labels.insert("new".into(), "yes".into());
    };
    wiring.desire_behind_memory(orders, label).await;
    world.pass().await;
    let (stored, made) = (revision(orders), requests(orders));
    orders.lock().replace(before.unwrap());
    assert_eq!(orders.lock().desired().value.generation, 2);
    assert_eq!((revision(orders), requests(orders)), (stored, made));
    assert_eq!(world.requests(), 1);
}

#[tokio::test]
async fn a_deleted_cluster_of_which_nothing_is_left_becomes_a_tombstone() {
    let world = World::new().await;
    let delete = |desired: &mut drover_store::Desired| desired.delete_time_ms = Some(1);
    let (wiring, orders) = (&world.wiring, &world.orders);
    wiring.desire_behind_memory(orders, delete).await;
    world.pass().await;
    assert!(wiring.records.clusters().find("orders").is_err());
    assert!(wiring.stored(orders).await.is_none());
    assert_eq!(
        wiring.tombstones.name(orders.uid()).as_deref(),
        Some("orders")
    );
    let stored = wiring.store.tombstones().await.unwrap();
    assert!(stored.iter().any(|(uid, _)| *uid == orders.uid()));
}

#[tokio::test]
async fn whoever_waits_for_a_pass_is_told_what_it_does() {
    let world = World::with_platform().await;
    let waiter = world.wiring.waiters.add(world.orders.uid());
    world.pass().await;
    let seen = waiter.take();
    let plan = seen.plan.unwrap();
    assert_eq!(plan.actions.len(), 1, "{plan:?}");
    assert_eq!(seen.results.len(), 1);
    assert!(seen.broken.is_none());
}

#[tokio::test]
async fn without_its_platform_a_cluster_says_what_it_waits_for() {
    let world = World::new().await;
    let began = world.wiring.clock.now();
    world.pass().await;
    let conditions = world.orders.lock().state().conditions.clone();
    let mut kinds = conditions.keys().map(|key| key.kind);
    assert!(kinds.any(|kind| kind == ConditionKind::PlatformUnavailable));
    assert_eq!(world.wiring.due_by(began), [], "it waits");
}
