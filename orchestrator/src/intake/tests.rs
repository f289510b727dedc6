use drover_client::platform::MAX_ITEMS;
use drover_cluster::{Cluster, fixture};
use drover_core::NodeState;

use super::*;
use crate::wiring::Wiring;

const SLOT: u64 = 7;
/// The request of the fixture's nodes.
const REQUEST: Uuid = Uuid::from_u128(3);

/// An intake with the cluster `orders`, which has one node on the platform `p`.
struct World {
    wiring: Wiring,
    intake: Intake,
    orders: Arc<Cluster>,
    p: Arc<Registered>,
}

impl World {
    async fn new() -> Self {
        let wiring = Wiring::fixture().await;
        let orders = wiring
            .records
            .add(fixture::cluster(Uuid::from_u128(1), "orders"));
        fixture::record(&orders, fixture::node(SLOT, NodeState::Starting));
        let p = wiring.platform("p", "u");
        p.platform.snapshot_complete(wiring.clock.now(), None);
        Self {
            p,
            orders,
            intake: wiring.intake(),
            wiring,
        }
    }

    fn show(&self, by: &Registered, node: wire::Node) -> Result<()> {
        let heard = [Heard::of(node, None)];
        self.intake.upserts(by, &heard, &mut Foreign::new())
    }

    fn phase(&self) -> Phase {
        self.orders.lock().state().nodes[0].seen.phase
    }

    fn due(&self) -> Vec<(Uuid, Urgency)> {
        self.wiring.due()
    }
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
    world.wiring.queue.done(owner);
    world.show(&world.p, running).unwrap();
    assert_eq!(world.due(), [], "the same again is no news");
    let failed = node(owner, wire::NodePhase::Failed);
    world.show(&world.p, failed).unwrap();
    assert_eq!(world.due(), [(owner, Urgency::Urgent)]);
}

#[tokio::test]
async fn what_is_shown_before_a_platform_is_visible_waits_and_is_planned_first_then() {
    let world = World::new().await;
    let owner = world.orders.uid();
    let other = Uuid::from_u128(2);
    let p = world.wiring.platform("p", "u");
    world
        .show(&p, node(owner, wire::NodePhase::Failed))
        .unwrap();
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(world.due(), [], "no plan would act on it");
    // Nor if its connection breaks before it has shown everything.
    world.intake.wake_users("p", Urgency::Bulk);
    assert_eq!(world.due(), []);
    p.platform.snapshot_complete(world.wiring.clock.now(), None);
    world.wiring.queue.push(other, Urgency::Bulk);
    world.intake.wake_users("p", Urgency::Bulk);
    let first = world.due()[0];
    assert_eq!(first, (owner, Urgency::Urgent));
}

#[tokio::test]
async fn a_platform_is_not_believed_about_a_node_of_another_one() {
    let world = World::new().await;
    let liar = world.wiring.platform("q", "another");
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
                world.intake.removals(&world.p, &[removed]);
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
    world
        .intake
        .upserts(&world.p, fits, &mut Foreign::new())
        .unwrap();
    let refused = world.intake.upserts(&world.p, more, &mut Foreign::new());
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
    world.wiring.queue.done(owner);
    let long_after = world.wiring.clock.now() + 3_600_000;
    world.intake.snapshot(&world.p, long_after, Foreign::new());
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
        recorded.origin_mut().request = Uuid::from_u128(4);
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
    world.intake.removals(&world.p, &gone[..1]);
    assert_eq!(world.p.platform.vanished_count(), 0, "one may vanish");
    world.intake.removals(&world.p, &gone[1..]);
    assert_eq!(world.p.platform.vanished_count(), 100);
}
