//! A platform is only believed about the nodes that are recorded on it.

use drover_client::Channel;
use drover_platform::identity::Identity;
use drover_platform_cloud::drivers::simulated::{Death, SimulatedSettings};
use drover_proto::{common::v1::Condition, orchestrator::v1 as pb, platform::v1 as wire};

use crate::api::{
    registry::Polled,
    support::{Site, World, document, until},
};

fn other() -> SimulatedSettings {
    SimulatedSettings {
        uid: Some("another".to_owned()),
        ..SimulatedSettings::default()
    }
}

/// The identity that a compromised platform would store with a node, copied from a node elsewhere.
fn copy(node: &wire::Node) -> Identity {
    let slot = node.slot.clone().unwrap();
    Identity {
        owner: slot.owner,
        cluster_id: node.cluster_id.clone(),
        group: node.group.clone(),
        request_id: slot.request_id,
        index: slot.index.unwrap(),
        sequence: node.sequence,
        store_id: node.store_id.clone(),
        spec_hash: node.spec_hash.clone(),
        id: node.id.clone(),
        name: node.name.clone(),
        ordinal: node.ordinal.unwrap(),
        role: node.role,
        ..Identity::default()
    }
}

async fn claims(world: &World) -> Option<Condition> {
    let status = world.platform("other").await;
    let mut conditions = status.conditions.into_iter();
    conditions.find(|condition| condition.r#type == "ForeignClaims")
}

/// Id, state, address and endpoints of the nodes of a cluster, as the API returns them.
async fn told(world: &World) -> Vec<(String, pb::NodeState, String, Vec<(String, String)>)> {
    let nodes = world.nodes("orders").await.into_iter();
    let told = nodes.map(|node| {
        let state = node.state();
        let address = node.agent_address.clone().unwrap_or_default();
        let endpoints = node.endpoints.into_iter().collect();
        (node.id, state, address, endpoints)
    });
    told.collect()
}

/// Two nodes on `sim`, and another platform behind this channel.
async fn claimed(site: &Site, channel: Channel) -> (World, wire::Node) {
    let world = World::new().await;
    world.sites.put("http://other", channel);
    world.register("other", "http://other").await.unwrap();
    world.apply(document("orders", &[("db", 2)])).await.unwrap();
    world.ready("orders").await;
    let victim = world.site.backend().nodes().remove(0);
    let claim = site.backend().create_as(copy(&victim)).unwrap();
    (world, claim)
}

async fn is_not_believed(site: Site, channel: Channel) {
    let (world, claim) = claimed(&site, channel).await;
    let before = told(&world).await;
    let made = world.site.backend().ledger().len();

    let shown = until("the claim is shown to people", async || {
        claims(&world).await
    })
    .await;
    assert_eq!(
        (shown.status, shown.reason.as_str()),
        (Some(true), "NotItsOwn")
    );
    for word in ["1 node", &claim.node_id, "sim"] {
        assert!(shown.message.contains(word), "{word}: {}", shown.message);
    }
    // Next, the other platform reports the node as dead.
    assert!(site.backend().kill(&claim.node_id, Death::Failed));
    let seen = world.platform("other").await.observe_time;
    until("it has said so", async || {
        (world.platform("other").await.observe_time != seen).then_some(())
    })
    .await;
    assert_eq!(told(&world).await, before);
    assert_eq!(world.site.backend().ledger().len(), made);
    assert_eq!(site.backend().len(), 1, "it is none of ours to remove");

    world.stop().await;
}

#[tokio::test]
async fn a_claim_is_over_when_its_platform_shows_it_no_more() {
    let site = Site::new(other()).await;
    let channel = site.channel();
    let (world, claim) = claimed(&site, channel).await;
    until("the claim is shown to people", async || {
        claims(&world).await
    })
    .await;
    assert!(site.backend().kill(&claim.node_id, Death::Vanished));
    until("the claim is over", async || {
        claims(&world).await.is_none().then_some(())
    })
    .await;
    world.ready("orders").await;
    world.stop().await;
}

#[tokio::test]
async fn what_a_watched_platform_says_of_a_node_of_another_is_shown_and_not_believed() {
    let site = Site::new(other()).await;
    let channel = site.channel();
    is_not_believed(site, channel).await;
}

#[tokio::test]
async fn what_a_polled_platform_says_of_a_node_of_another_is_shown_and_not_believed() {
    let site = Site::new(other()).await;
    let (channel, _) = Polled::over(&site);
    is_not_believed(site, channel).await;
}
