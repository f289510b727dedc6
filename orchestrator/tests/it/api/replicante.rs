//! Nodes created by clients of the Replicante Platform API are foreign to an orchestrator.

use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::{orchestrator::v1 as pb, platform::v1::Node};
use drover_server::{Running, ServerSettings, Shutdown};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::api::support::{Site, World, document, refused, until};

async fn serve(site: &Site) -> Running {
    let settings = ServerSettings::default();
    let listener = drover_server::listen(&settings).await.unwrap();
    drover_server::spawn(site.server.service(), listener, &settings, Shutdown::new()).unwrap()
}

/// Creates two nodes of group `db` in a cluster.
async fn provision(door: &Running, cluster: &str) {
    let body = serde_json::json!({
        "cluster": {
            "cluster_id": cluster, "store": "", "store_version": "",
            "nodes": {"db": {"desired_count": 2, "node_class": ""}},
        },
        "provision": {"count": 2, "node_group_id": "db"},
    })
    .to_string();
    let request = format!(
        "POST /provision HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(door.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn of(world: &World, owner: &str) -> Vec<Node> {
    let mut nodes = world.site.backend().nodes();
    nodes.retain(|node| node.slot.as_ref().is_some_and(|slot| slot.owner == owner));
    nodes.sort_by(|a, b| a.node_id.cmp(&b.node_id));
    nodes
}

#[tokio::test]
async fn nodes_that_came_over_http_are_never_touched() {
    const OWNER: &str = "7c1d5a0e-93f4-4b62-8e17-52acd60b3f98";
    let world = World::with(SimulatedSettings::default()).await;
    let door = serve(&world.site).await;

    // In the cluster of an orchestrator, and in a cluster that it does not know.
    world.apply(document("orders", &[("db", 2)])).await.unwrap();
    world.ready("orders").await;
    provision(&door, "orders").await;
    provision(&door, "theirs").await;
    let settled = |nodes: &[Node]| nodes.len() == 4 && nodes.iter().all(Node::ready);
    let before = until("all are up", async || {
        Some(of(&world, OWNER)).filter(|nodes| settled(nodes))
    })
    .await;

    // Changes that could count or sweep these nodes: a smaller size, zero, and the deletion of the cluster. Nothing is
    // created for the cluster while it has foreign nodes.
    for size in [1, 0] {
        let scale = pb::ScaleGroupRequest {
            cluster: "orders".into(),
            group: "db".into(),
            size: Some(size),
            ..Default::default()
        };
        world.clusters().scale_group(scale).await.unwrap();
        until("the orchestrator's own are as many", async || {
            let all = world.site.backend().len();
            (all == 4 + size as usize).then_some(())
        })
        .await;
        assert_eq!(of(&world, OWNER), before);
    }
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    assert_eq!(of(&world, OWNER), before);
    assert_eq!(world.site.backend().len(), 4);

    // The nodes keep their cluster id, and are not adopted implicitly.
    let taken = world.apply(document("theirs", &[("db", 2)])).await;
    refused(taken, Reason::ClusterExists);
    assert_eq!(of(&world, OWNER), before);
    door.shutdown().await;
    world.stop().await;
}
