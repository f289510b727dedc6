//! Real processes that start and stop in order, and run their preStop hook before they stop.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::embedded;

use std::{path::Path, time::SystemTime};

use drover_platform_cloud::{DriverSettings, drivers::local};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{Lifecycle, LifecycleHook, ManagementPolicy},
};
use embedded::{World, group_on};

async fn world() -> World {
    let mut world = World::new().await;
    let mut local = local::Settings::new(world.directory.path().join("local")).unwrap();
    // The launcher of the processes, which cargo builds next to the tests.
    let own = std::env::current_exe().unwrap();
    local.launcher = own
        .ancestors()
        .nth(2)
        .unwrap()
        .join("drover-platform-cloud");
    world.add("local", DriverSettings::Local(local)).await;
    world
}

/// An ordered group whose nodes run this script before they stop.
fn spec(size: u32, script: &str, seconds: i64) -> pb::ClusterSpec {
    let mut spec = group_on("local", size);
    spec.management_policy = ManagementPolicy::OrderedReady.into();
    spec.lifecycle = Some(Lifecycle {
        pre_stop: Some(LifecycleHook {
            exec: ["sh", "-c", script].map(str::to_owned).into(),
            timeout: Some(prost_types::Duration { seconds, nanos: 0 }),
            fences: false,
        }),
        ..Lifecycle::default()
    });
    spec
}

fn time(stamp: Option<prost_types::Timestamp>) -> SystemTime {
    stamp.unwrap().try_into().unwrap()
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(ToOwned::to_owned).collect()
}

async fn events(world: &World, name: &str) -> Vec<pb::Event> {
    let request = pb::ListEventsRequest {
        cluster: name.to_owned(),
        page_size: 500,
        ..Default::default()
    };
    let deadline = std::time::Duration::from_secs(10);
    world
        .client()
        .list_events(request, deadline)
        .await
        .unwrap()
        .events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordered_nodes_come_and_go_one_by_one_and_run_their_hook_first() {
    let mut world = world().await;
    let said = world.directory.path().join("said");
    let script = format!("echo \"$DROVER_NODE_NAME\" >>{}", said.display());
    world.apply("one", spec(3, &script, 20)).await;
    world.ready("one", 3).await;
    let mut nodes = world.nodes("one").await;
    nodes.sort_by_key(|node| node.ordinal);
    for pair in nodes.windows(2) {
        let (before, after) = (time(pair[0].state_time), time(pair[1].create_time));
        assert!(
            after >= before,
            "{} came before {} was Ready",
            pair[1].name,
            pair[0].name
        );
    }
    world.scale("one", "web", 1).await;
    world.ready("one", 1).await;
    assert_eq!(lines(&said), ["web-2", "web-1"]);
    assert_eq!(world.nodes("one").await[0].name, "web-0");

    // With a hanging hook and a crash of the orchestrator, the node is still removed, and the failure is reported.
    let hang = format!("echo hangs >>{}; exec sleep 1000", said.display());
    world.apply("one", spec(1, &hang, 10)).await;
    world.ready("one", 1).await;
    world.scale("one", "web", 0).await;
    world
        .until("the hook runs", async |_| {
            lines(&said).contains(&"hangs".to_owned())
        })
        .await;
    let nodes = world.nodes("one").await;
    assert_eq!(nodes[0].state(), pb::NodeState::Draining);
    world.kill_orchestrator().await;
    world.ready("one", 0).await;
    let events = events(&world, "one").await;
    let failed = events.iter().find(|event| event.reason == "DrainFailed");
    let failed = failed.unwrap_or_else(|| panic!("nobody says that the hook hung: {events:?}"));
    assert!(failed.message.contains("preStop"), "{}", failed.message);

    // The nodes of a deleted cluster run their hooks as well.
    world.apply("one", spec(2, &script, 20)).await;
    world.ready("one", 2).await;
    world.delete("one").await;
    world.gone("one").await;
    let said = lines(&said);
    assert_eq!(said[said.len() - 2..], ["web-1", "web-0"]);
    world.end().await;
}
