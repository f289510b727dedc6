//! Real processes are killed while they make addons.

use std::time::Duration;

use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{AddonState, ListAddonsRequest, ResourcePhase},
};
use drover_simulation as sim;

use super::{CALL, both};
use crate::real::{self, insist};

/// Number of processes that are killed. More with `DROVER_ADDON_KILLS`.
const KILLS: usize = 8;

/// Real processes: an orchestrator, and a platform whose simulated backend is in a file.
async fn processes() -> real::World {
    let mut world = real::World::stopped();
    let root = std::fs::canonicalize(world.directory.path()).unwrap();
    let file = root.join("platform.json");
    let settings = serde_json::json!({
        "driver": "simulated",
        "simulated": {
            "state_file": root.join("backend.json"),
            "addons": {"steps": true, "apply_delay": "50ms"},
        },
    });
    std::fs::write(&file, settings.to_string()).unwrap();
    let arguments = ["--config", file.to_str().unwrap()];
    let port = real::free_port();
    world.platform = real::Server::new("drover-platform-cloud", &root, port, &arguments);
    world.platform.start().await;
    world.orchestrator.start().await;
    world.register("sim", &world.platform.endpoint()).await;
    world
        .until("the platform is ready", async |world| {
            world.platform_status("sim").await.phase() == pb::PlatformPhase::Ready
        })
        .await;
    world
}

async fn listed(world: &real::World) -> Option<Vec<AddonState>> {
    let endpoint = world.platform.endpoint().parse().unwrap();
    let client = drover_client::PlatformClient::new(drover_client::connect(&endpoint));
    let request = ListAddonsRequest::default();
    let listed = client.list_addons(request, CALL).await;
    listed.ok().map(|it| it.addons)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_killed_at_any_moment_leave_each_addon_once_and_serving_every_node() {
    let seed = drover_testing::seed::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let kills = std::env::var("DROVER_ADDON_KILLS");
    let kills = kills.map_or(KILLS, |kills| kills.parse().unwrap());
    let mut world = processes().await;
    let mut cluster = sim::document("one", "sim", &[("web", 2)]);
    cluster.spec.as_mut().unwrap().addons = both();
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    };
    let applied = world.client().apply_cluster(request, CALL).await;
    applied.unwrap();
    for _ in 0..kills {
        let size = random.u32(1..5);
        insist(async || world.scale("one", size).await).await;
        // Random, so that the kill hits any stage of the work.
        tokio::time::sleep(Duration::from_millis(random.u64(0..300))).await;
        let server = if random.bool() {
            &mut world.orchestrator
        } else {
            &mut world.platform
        };
        server.kill();
        server.start().await;
    }
    insist(async || world.scale("one", 3).await).await;
    world
        .until("both serve three nodes", async |world| {
            let addons = listed(world).await.unwrap_or_default();
            let serves =
                |it: &AddonState| it.phase() == ResourcePhase::Ready && it.target_count == 3;
            addons.len() == 2 && addons.iter().all(serves)
        })
        .await;
    insist(async || world.delete("one").await).await;
    world.orchestrator.kill();
    world.orchestrator.start().await;
    world
        .until("the cluster is gone", async |world| {
            matches!(world.cluster("one").await, Ok(None))
        })
        .await;
    assert_eq!(listed(&world).await, Some(vec![]));
}
