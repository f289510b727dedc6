use drover_client::platform::MAX_ITEMS;
use drover_cluster::fixture;
use drover_core::NodeState;
use drover_executor::Hooks;
use drover_platforms::{Connector, Registration};
use drover_proto::orchestrator::v1 as pb;
use drover_store::Store;
use tempfile::TempDir;

use super::*;
use crate::Orchestrator;

const SLOT: u64 = 7;
/// The request of the fixture's nodes.
const REQUEST: Uuid = Uuid::from_u128(3);

/// An orchestrator with the cluster `orders`, which has one node on the platform `p`. No platform can be reached.
struct World {
    orchestrator: Orchestrator,
    orders: Arc<Cluster>,
    p: Arc<Registered>,
    _data: TempDir,
}

impl World {
    async fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open_directory(data.path()).await.unwrap();
        let connector: Connector =
            Arc::new(|_, _| Err(drover_core::Error::unavailable("there is no network here")));
        let orchestrator = Orchestrator::start(store, connector, Hooks::default())
            .await
            .unwrap();
        let shared = &orchestrator.shared;
        let orders = shared.add(fixture::cluster(Uuid::from_u128(1), "orders"));
        fixture::record(&orders, fixture::node(SLOT, NodeState::Starting));
        let p = platform(shared, "p", "u");
        p.platform.snapshot_complete(shared.now(), None);
        Self {
            p,
            orders,
            orchestrator,
            _data: data,
        }
    }

    fn shared(&self) -> &Shared {
        &self.orchestrator.shared
    }

    fn show(&self, by: &Registered, node: wire::Node) -> Result<()> {
        let heard = [Heard::of(node, None)];
        upserts(self.shared(), by, &heard, &mut Foreign::new())
    }

    fn phase(&self) -> Phase {
        self.orders.lock().state().nodes[0].seen.phase
    }

    /// Clusters that are to be planned, and how urgently.
    fn due(&self) -> Vec<(Uuid, Urgency)> {
        let queue = &self.shared().queue;
        std::iter::from_fn(|| queue.pop(self.shared().now()))
            .map(|item| (item.cluster, item.urgency))
            .collect()
    }
}

fn platform(shared: &Shared, name: &str, uid: &str) -> Arc<Registered> {
    let registration = Registration {
        spec: pb::PlatformSpec::default(),
        generation: 1,
        uid: uid.to_owned(),
        create_time: 1,
    };
    shared.platforms.add(name.into(), registration, 1, (0, 0))
}

/// A node in the slot of the cluster's only record, as a platform shows it.
fn node(owner: Uuid, phase: wire::NodePhase) -> wire::Node {
    wire::Node {
        cluster_id: "orders".to_owned(),
        node_id: "i-1".to_owned(),
        phase: phase.into(),
        slot: Some(wire::SlotKey {
            owner: owner.to_string(),
            request_id: REQUEST.to_string(),
            index: Some(0),
        }),
        ..wire::Node::default()
    }
}

#[tokio::test]
async fn what_a_platform_shows_reaches_the_record_and_its_cluster_is_planned_once() {
    let world = World::new().await;
    let owner = world.orders.uid();
    let running = node(owner, wire::NodePhase::Running);
    world.show(&world.p, running.clone()).unwrap();
    assert_eq!(world.phase(), Phase::Running);
    assert_eq!(world.due(), [(owner, Urgency::Bulk)]);
    world.shared().queue.done(owner);
    world.show(&world.p, running).unwrap();
    assert_eq!(world.due(), [], "the same again is no news");
    let failed = node(owner, wire::NodePhase::Failed);
    world.show(&world.p, failed).unwrap();
    assert_eq!(world.due(), [(owner, Urgency::Urgent)]);
}

#[tokio::test]
async fn what_is_shown_before_a_platform_is_visible_waits_and_is_planned_first_then() {
    let world = World::new().await;
    let (shared, owner) = (world.shared(), world.orders.uid());
    let other = Uuid::from_u128(2);
    let p = platform(shared, "p", "u");
    world
        .show(&p, node(owner, wire::NodePhase::Failed))
        .unwrap();
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(world.due(), [], "no plan would act on it");
    // Nor if its connection breaks before it has shown everything.
    shared.wake_users("p", Urgency::Bulk);
    assert_eq!(world.due(), []);
    p.platform.snapshot_complete(shared.now(), None);
    shared.queue.push(other, Urgency::Bulk);
    shared.wake_users("p", Urgency::Bulk);
    let first = world.due()[0];
    assert_eq!(first, (owner, Urgency::Urgent));
}

#[tokio::test]
async fn a_platform_is_not_believed_about_a_node_of_another_one() {
    let world = World::new().await;
    let liar = platform(world.shared(), "q", "another");
    let owner = world.orders.uid();
    let before = world.phase();
    world
        .show(&liar, node(owner, wire::NodePhase::Failed))
        .unwrap();
    assert_eq!(world.phase(), before);
    assert_eq!(world.due(), []);
    assert_eq!(liar.platform.foreign(), Default::default());
}

#[tokio::test]
async fn a_node_of_nobody_is_foreign_until_it_ends_or_is_recorded() {
    let world = World::new().await;
    let stranger = Uuid::from_u128(99);
    let shown = || world.p.platform.foreign_owner("orders");
    for end in ["terminated", "removed", "adopted"] {
        let running = node(stranger, wire::NodePhase::Running);
        world.show(&world.p, running).unwrap();
        assert_eq!(shown(), Some(stranger.to_string()));
        match end {
            "terminated" => {
                let gone = node(stranger, wire::NodePhase::Terminated);
                world.show(&world.p, gone).unwrap();
            }
            "removed" => {
                let removed = wire::NodeRemoved {
                    cluster_id: "orders".to_owned(),
                    node_id: "i-1".to_owned(),
                    ..wire::NodeRemoved::default()
                };
                removals(world.shared(), &world.p, &[removed]);
            }
            _ => {
                let own = node(world.orders.uid(), wire::NodePhase::Running);
                world.show(&world.p, own).unwrap();
            }
        }
        assert_eq!(shown(), None, "{end}");
    }
}

#[tokio::test]
async fn a_platform_that_shows_more_than_can_be_kept_is_refused() {
    let world = World::new().await;
    let stranger = Uuid::from_u128(99);
    let nodes: Vec<Heard> = (0..=MAX_ITEMS)
        .map(|number| {
            let mut node = node(stranger, wire::NodePhase::Running);
            node.node_id = format!("i-{number}");
            Heard::of(node, None)
        })
        .collect();
    let (fits, more) = nodes.split_at(MAX_ITEMS);
    upserts(world.shared(), &world.p, fits, &mut Foreign::new()).unwrap();
    let refused = upserts(world.shared(), &world.p, more, &mut Foreign::new());
    assert!(refused.unwrap_err().message().contains("more than"));
}

#[tokio::test]
async fn a_node_that_a_complete_list_lacks_is_unlisted_and_its_cluster_is_planned() {
    let world = World::new().await;
    let owner = world.orders.uid();
    world
        .show(&world.p, node(owner, wire::NodePhase::Running))
        .unwrap();
    world.due();
    world.shared().queue.done(owner);
    let long_after = world.shared().now() + 3_600_000;
    snapshot(world.shared(), &world.p, long_after, Foreign::new());
    let seen = world.orders.lock().state().nodes[0].seen.clone();
    assert!(seen.unlisted && seen.vanished);
    assert_eq!(seen.missing_from, 0, "only a look-up proves it absent");
    assert_eq!(world.due(), [(owner, Urgency::Urgent)]);
}

#[tokio::test]
async fn when_many_nodes_vanish_at_once_the_platform_is_touched_no_more() {
    let world = World::new().await;
    let owner = world.orders.uid();
    let mut gone = Vec::new();
    for slot in 100..200 {
        let index = u32::try_from(slot - 100).unwrap();
        let id = format!("i-{slot}");
        let mut recorded = fixture::node(slot, NodeState::Ready);
        recorded.request = Uuid::from_u128(4);
        recorded.index = index;
        recorded.node_id = Some(id.as_str().into());
        fixture::record(&world.orders, recorded);
        let mut shown = node(owner, wire::NodePhase::Running);
        shown.node_id.clone_from(&id);
        if let Some(key) = &mut shown.slot {
            key.request_id = Uuid::from_u128(4).to_string();
            key.index = Some(index);
        }
        world.show(&world.p, shown).unwrap();
        gone.push(wire::NodeRemoved {
            cluster_id: "orders".to_owned(),
            node_id: id,
            ..wire::NodeRemoved::default()
        });
    }
    removals(world.shared(), &world.p, &gone[..1]);
    assert_eq!(world.p.platform.vanished_count(), 0, "one may vanish");
    removals(world.shared(), &world.p, &gone[1..]);
    assert_eq!(world.p.platform.vanished_count(), 100);
}
