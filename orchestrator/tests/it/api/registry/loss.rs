//! Mass loss of nodes.

use super::*;

fn ids(nodes: Vec<pb::Node>) -> Vec<String> {
    nodes.into_iter().map(|node| node.id).collect()
}

/// A cluster of twelve nodes on a polled platform, the channel to it, and the switch that empties its lists.
async fn twelve() -> (World, Channel, Arc<AtomicBool>) {
    let world = World::bare(named("one")).await;
    let (channel, empty) = Polled::over(&world.site);
    world.sites.put("http://polled", channel.clone());
    world.register("sim", "http://polled").await.unwrap();
    world
        .apply(document("orders", &[("db", 12)]))
        .await
        .unwrap();
    world.ready("orders").await;
    (world, channel, empty)
}

/// Empties the lists and waits until this is noticed.
async fn lose(world: &World, empty: &AtomicBool) {
    empty.store(true, Ordering::Relaxed);
    until("the loss is noticed", async || {
        (world.platform("sim").await.vanished_count == 12).then_some(())
    })
    .await;
}

/// Waits for longer than a node of this platform may be missing from its lists.
async fn polled_again(world: &World) {
    let mut polled = None;
    for _ in 0..4 {
        until("it was polled again", async || {
            let now = world.platform("sim").await.observe_time;
            (now.is_some() && now != polled).then(|| polled = now)
        })
        .await;
    }
}

#[tokio::test]
async fn nodes_that_vanish_at_once_are_believed_lost_only_when_somebody_says_so() {
    let (world, _, empty) = twelve().await;
    let before = world.nodes("orders").await;
    let ledger = world.site.backend().ledger().len();

    let confirm = |vanished_count| pb::ConfirmNodeLossRequest {
        platform: "sim".into(),
        vanished_count,
    };
    let mut platforms = world.platforms();
    refused(
        platforms.confirm_node_loss(confirm(1)).await,
        Reason::LossChanged,
    );
    let nowhere = pb::ConfirmNodeLossRequest {
        platform: "nowhere".into(),
        vanished_count: 0,
    };
    refused(platforms.confirm_node_loss(nowhere).await, Reason::NotFound);

    lose(&world, &empty).await;
    let status = world.platform("sim").await;
    assert!(
        status
            .conditions
            .iter()
            .any(|c| c.r#type == "MassLoss" && c.status == Some(true))
    );
    // Many polls later, no node was created or removed, and all nodes are unknown.
    let polled = status.observe_time;
    until("it was polled again", async || {
        (world.platform("sim").await.observe_time != polled).then_some(())
    })
    .await;
    let nodes = world.nodes("orders").await;
    assert_eq!(
        nodes.iter().map(|n| &n.id).collect::<Vec<_>>(),
        before.iter().map(|n| &n.id).collect::<Vec<_>>()
    );
    assert!(
        nodes
            .iter()
            .all(|node| node.state() == pb::NodeState::Unknown),
        "{nodes:?}"
    );
    assert_eq!(world.site.backend().ledger().len(), ledger);
    let status = refused(
        platforms.confirm_node_loss(confirm(11)).await,
        Reason::LossChanged,
    );
    assert_eq!(metadata(&status, "vanished_count").as_deref(), Some("12"));

    // The nodes come back on their own.
    empty.store(false, Ordering::Relaxed);
    until("they are back", async || {
        (world.platform("sim").await.vanished_count == 0).then_some(())
    })
    .await;
    world.ready("orders").await;
    assert_eq!(
        world.site.backend().ledger().len(),
        ledger,
        "nothing was made meanwhile"
    );

    // The nodes are really gone.
    for node in world.site.backend().nodes() {
        world.site.backend().kill(
            &node.node_id,
            drover_platform_cloud::drivers::simulated::Death::Vanished,
        );
    }
    lose(&world, &empty).await;
    let confirmed = platforms
        .confirm_node_loss(confirm(12))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        confirmed.platform.unwrap().status.unwrap().vanished_count,
        0
    );
    empty.store(false, Ordering::Relaxed);
    until("all are replaced", async || {
        let nodes = world.nodes("orders").await;
        let ready = nodes
            .iter()
            .filter(|n| n.state() == pb::NodeState::Ready)
            .count();
        let new = nodes
            .iter()
            .all(|node| before.iter().all(|old| old.id != node.id));
        (ready == 12 && nodes.len() == 12 && new).then_some(())
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn nodes_that_vanished_at_once_stay_in_doubt_when_the_registration_changes() {
    let (world, channel, empty) = twelve().await;
    world.sites.put("http://elsewhere", channel);
    let before = world.nodes("orders").await;
    let ledger = world.site.backend().ledger().len();
    lose(&world, &empty).await;

    world.register("sim", "http://elsewhere").await.unwrap();
    polled_again(&world).await;
    assert_eq!(world.platform("sim").await.vanished_count, 12);
    assert_eq!(
        world.site.backend().ledger().len(),
        ledger,
        "nothing was made in their place"
    );
    empty.store(false, Ordering::Relaxed);
    world.ready("orders").await;
    assert_eq!(ids(world.nodes("orders").await), ids(before));
    assert_eq!(world.site.backend().ledger().len(), ledger);
    world.stop().await;
}

#[tokio::test]
async fn a_list_from_before_what_was_shown_proves_nothing_gone() {
    let world = World::bare(named("one")).await;
    let (channel, old) = Polled::with_old_lists(&world.site);
    world.sites.put("http://polled", channel);
    world.register("sim", "http://polled").await.unwrap();
    world.apply(document("orders", &[("db", 3)])).await.unwrap();
    world.ready("orders").await;
    let before = ids(world.nodes("orders").await);

    old.store(1, Ordering::Relaxed);
    until("it was looked for three times", async || {
        let made = world.site.backend().ledger().len();
        (old.load(Ordering::Relaxed) > 3 || made > 3).then_some(())
    })
    .await;
    assert_eq!(world.site.backend().ledger().len(), 3, "none was replaced");
    old.store(0, Ordering::Relaxed);
    world.ready("orders").await;
    assert_eq!(ids(world.nodes("orders").await), before);
    world.stop().await;
}

#[tokio::test]
async fn nodes_that_vanished_at_once_stay_in_doubt_when_their_platform_is_bound_again() {
    let (world, channel, empty) = twelve().await;
    world.sites.put("http://elsewhere", channel);
    let before = ids(world.nodes("orders").await);
    let ledger = world.site.backend().ledger().len();
    lose(&world, &empty).await;

    world.site.backend().set_uid("two");
    let request = pb::RegisterPlatformRequest {
        rebind_uid: Some("two".into()),
        ..registration("sim", "http://elsewhere")
    };
    world.platforms().register_platform(request).await.unwrap();
    polled_again(&world).await;
    assert_eq!(world.platform("sim").await.vanished_count, 12);
    assert_eq!(world.site.backend().ledger().len(), ledger);
    empty.store(false, Ordering::Relaxed);
    world.ready("orders").await;
    assert_eq!(ids(world.nodes("orders").await), before);
    assert_eq!(world.site.backend().ledger().len(), ledger);
    world.stop().await;
}
