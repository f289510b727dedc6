use drover_cluster::fixture;
use drover_core::{NodeState, resource::ResourceRecord};

use super::*;
use crate::wiring::Wiring;

/// A cluster with this many nodes and a request on the backend `u` of the platform `p`.
async fn cluster(wiring: &Wiring, nodes: u64) -> Arc<Cluster> {
    let p = wiring.platform("p", "u");
    p.platform.snapshot_complete(wiring.clock.now(), None);
    let orders = wiring.cluster("orders", 1).await;
    wiring.pass(&orders).await;
    for slot in 1_000..1_000 + nodes {
        let mut node = fixture::node(slot, NodeState::Ready);
        node.origin_mut().request = Uuid::from_u128(slot.into());
        fixture::record(&orders, node);
    }
    orders
}

/// The backends of all records of a cluster.
fn backends(cluster: &Cluster) -> BTreeSet<String> {
    let inner = cluster.lock();
    let state = inner.state();
    let nodes = state.nodes.iter().map(|node| &node.platform_uid);
    let requests = state.requests.values().map(|it| &it.platform_uid);
    nodes.chain(requests).map(ToString::to_string).collect()
}

#[tokio::test]
async fn all_records_of_a_backend_move_to_its_new_uid_and_the_cluster_tells_of_it_once() {
    let wiring = Wiring::fixture().await;
    let orders = cluster(&wiring, 1).await;
    assert_eq!(backends(&orders), BTreeSet::from(["u".to_owned()]));
    let moved = wiring.rebinder().move_all("p", "u", "v").await;
    assert!(moved.unwrap());
    let new = BTreeSet::from(["v".to_owned()]);
    assert_eq!(backends(&orders), new);
    assert_eq!(backends(&wiring.stored(&orders).await.unwrap()), new);
    let again = wiring.rebinder().move_all("p", "u", "v").await;
    assert!(!again.unwrap(), "nothing is left to move");
    let events = wiring.event_reasons(&orders).await;
    let told = events.iter().filter(|reason| *reason == "PlatformRebound");
    assert_eq!(told.count(), 1, "{events:?}");
    let due = wiring.due();
    assert!(due.contains(&(orders.uid(), Urgency::Bulk)));
}

#[tokio::test]
async fn more_records_than_a_step_has_room_for_move_in_several() {
    let wiring = Wiring::fixture().await;
    let count = u64::try_from(MAX_ROWS).unwrap() * 2;
    let orders = cluster(&wiring, count).await;
    assert!(wiring.rebinder().move_all("p", "u", "v").await.unwrap());
    let stored = wiring.stored(&orders).await.unwrap();
    assert_eq!(backends(&stored), BTreeSet::from(["v".to_owned()]));
    assert_eq!(
        stored.lock().state().nodes.len(),
        orders.lock().state().nodes.len()
    );
}

#[tokio::test]
async fn a_move_that_was_interrupted_leaves_nothing_behind_when_it_is_repeated() {
    let wiring = Wiring::fixture().await;
    let orders = cluster(&wiring, 1).await;
    assert!(wiring.rebinder().move_all("p", "u", "half").await.unwrap());
    // The registration still has the uid from before.
    assert!(wiring.rebinder().move_all("p", "u", "v").await.unwrap());
    assert_eq!(backends(&orders), BTreeSet::from(["v".to_owned()]));
}

#[tokio::test]
async fn a_cluster_that_was_changed_meanwhile_is_moved_from_what_it_is_then() {
    let wiring = Wiring::fixture().await;
    let orders = cluster(&wiring, 1).await;
    wiring.step_behind_memory(&orders).await;
    let rebinder = wiring.rebinder();
    let pass = async {
        tokio::task::yield_now().await;
        rebinder.committer.reload(&orders).await.unwrap();
    };
    let (moved, ()) = tokio::join!(rebinder.move_all("p", "u", "v"), pass);
    assert!(moved.unwrap());
    let new = BTreeSet::from(["v".to_owned()]);
    assert_eq!(backends(&wiring.stored(&orders).await.unwrap()), new);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_goes_on_changing_is_a_conflict() {
    let wiring = Wiring::fixture().await;
    let orders = cluster(&wiring, 0).await;
    wiring.step_behind_memory(&orders).await;
    let refused = wiring.rebinder().move_all("p", "u", "v").await;
    assert_eq!(refused.unwrap_err().reason(), Reason::Conflict);
    assert_eq!(backends(&orders), BTreeSet::from(["u".to_owned()]));
}

#[test]
fn resources_move_as_far_as_there_is_room_and_one_that_is_too_large_moves_alone() {
    let mut state = fixture::cluster_state().state().clone();
    let large = ResourceRecord {
        body: vec![0; MAX_BYTES].into(),
        ..ResourceRecord::default()
    };
    let first = ResourceKey::infrastructure("p", "u");
    let second = ResourceKey::addon("a", "p", "u");
    state.resources.insert(first.clone(), large);
    state
        .resources
        .insert(second.clone(), ResourceRecord::default());
    let fit = |keys: &[&ResourceKey], rows| resources_that_fit(&state, keys, rows, 0).len();
    assert_eq!(fit(&[&first, &second], 0), 1, "alone");
    assert_eq!(fit(&[&first, &second], 1), 0, "not beside others");
    assert_eq!(fit(&[&second], 1), 1);
    assert_eq!(fit(&[&second], MAX_ROWS), 0);
    assert_eq!(fit(&[], 0), 0);
}
