use drover_cluster::{Cluster, codec::UsedList, fixture};
use drover_core::NodeState;
use drover_proto::platform::v1 as wire;
use uuid::Uuid;

use super::*;
use crate::wiring::Wiring;

fn spec(endpoint: &str) -> pb::PlatformSpec {
    pb::PlatformSpec {
        endpoint: endpoint.to_owned(),
        ..pb::PlatformSpec::default()
    }
}

async fn register(registry: &Arc<Registry>, endpoint: &str) -> (pb::ApplyOutcome, Arc<Registered>) {
    registry.register("p", spec(endpoint), None).await.unwrap()
}

/// A cluster with a node on the platform `p`.
fn orders(wiring: &Wiring) -> Arc<Cluster> {
    let orders = fixture::cluster(Uuid::from_u128(1), "orders");
    let orders = wiring.records.add(orders);
    fixture::record(&orders, fixture::node(7, NodeState::Ready));
    orders
}

#[tokio::test]
async fn a_registration_is_stored_and_followed_and_only_a_change_starts_it_anew() {
    let wiring = Wiring::fixture().await;
    let registry = Arc::new(wiring.registry());
    let (outcome, first) = register(&registry, "http://a").await;
    assert_eq!(outcome, pb::ApplyOutcome::Created);
    assert_eq!(wiring.records.revision(), first.revision());
    let (outcome, same) = register(&registry, "http://a").await;
    assert_eq!(outcome, pb::ApplyOutcome::Unchanged);
    assert!(Arc::ptr_eq(&first, &same));
    let (outcome, changed) = register(&registry, "http://b").await;
    assert_eq!(outcome, pb::ApplyOutcome::Configured);
    assert_eq!(changed.platform.registration().generation, 2);
    let current = wiring.platforms.get("p").unwrap();
    assert!(Arc::ptr_eq(&changed, &current));
    let stored = wiring.store.platforms().await.unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].revision, changed.revision());
}

/// What the store did not answer in time can be made all the same.
#[tokio::test]
async fn a_change_that_arrives_late_is_followed_and_another_one_can_be_made() {
    let wiring = Wiring::fixture().await;
    let registry = Arc::new(wiring.registry());
    let (_, first) = register(&registry, "http://a").await;
    let late = Registration {
        spec: spec("http://late"),
        ..first.platform.registration()
    };
    let late = wiring.store.put_platform(late.row("p"), None).await;
    let refused = registry.register("p", spec("http://b"), None).await;
    assert_eq!(refused.unwrap_err().reason(), Reason::RevisionMismatch);
    let known = || {
        let p = wiring.platforms.get("p").unwrap();
        (p.platform.registration().spec.endpoint, p.revision())
    };
    drover_testing::wait::holds("it is read again", async || known().0 == "http://late").await;
    assert!(known().1 > late.unwrap(), "nothing older can be made");
    let (outcome, _) = register(&registry, "http://b").await;
    assert_eq!(outcome, pb::ApplyOutcome::Configured);
}

#[tokio::test]
async fn a_stored_registration_is_followed_after_a_start_with_its_nodes_counted() {
    let wiring = Wiring::fixture().await;
    let registry = Arc::new(wiring.registry());
    register(&registry, "http://a").await;
    wiring.platforms.remove("p");
    orders(&wiring);
    let rows = wiring.store.platforms().await.unwrap();
    registry.load(rows, &registry.counts()).unwrap();
    let p = wiring.platforms.get("p").unwrap();
    assert_eq!(p.platform.registration().spec, spec("http://a"));
    let shown = p.platform.to_proto(wiring.clock.now());
    assert_eq!(shown.status.unwrap().node_count, 1);
}

#[tokio::test]
async fn a_platform_that_a_cluster_is_on_stays_registered() {
    let wiring = Wiring::fixture().await;
    let registry = Arc::new(wiring.registry());
    register(&registry, "http://a").await;
    let orders = orders(&wiring);
    let refused = registry.unregister("p").await.unwrap_err();
    assert_eq!(refused.reason(), Reason::PlatformInUse);
    assert!(wiring.platforms.get("p").is_some());
    wiring.records.remove(&orders);
    let revision = registry.unregister("p").await.unwrap();
    assert_eq!(wiring.records.revision(), revision);
    assert!(wiring.platforms.get("p").is_none());
    assert!(wiring.store.platforms().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_platform_that_shows_something_of_a_deleted_cluster_stays_registered() {
    let wiring = Wiring::fixture().await;
    let registry = Arc::new(wiring.registry());
    let (_, p) = register(&registry, "http://a").await;
    let uid = Uuid::from_u128(9);
    let now = wiring.clock.now();
    wiring
        .tombstones
        .add(uid, "gone", 100, now, UsedList::default());
    let late = wire::Node {
        cluster_id: "gone".to_owned(),
        node_id: "i-1".to_owned(),
        sequence: 1,
        slot: Some(wire::SlotKey::default()),
        ..wire::Node::default()
    };
    assert!(wiring.tombstones.show(uid, &p.platform, &late, now));
    let refused = registry.unregister("p").await.unwrap_err();
    assert_eq!(refused.reason(), Reason::PlatformInUse);
    assert!(refused.message().contains("gone"), "{refused}");
    wiring.tombstones.gone(&"p".into(), "i-1");
    registry.unregister("p").await.unwrap();
}

#[tokio::test]
async fn only_platforms_that_name_a_secret_are_reached_anew_after_it_was_changed() {
    let wiring = Wiring::fixture().await;
    let registry = Arc::new(wiring.registry());
    let (_, without) = register(&registry, "http://a").await;
    let named = pb::PlatformSpec {
        token_secret: "access".to_owned(),
        ..spec("http://b")
    };
    let (_, with) = registry.register("q", named, None).await.unwrap();
    registry.secret_changed("access").await;
    let now = |name: &str| wiring.platforms.get(name).unwrap();
    assert!(Arc::ptr_eq(&without, &now("p")));
    let anew = now("q");
    assert!(!Arc::ptr_eq(&with, &anew));
    assert_eq!(with.revision(), anew.revision(), "nothing is stored for it");
}
