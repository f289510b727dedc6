//! An instance that its cloud is about to retire.

use std::time::Duration;

use drover_emulators::ec2::{Ec2, Ec2Settings};
use drover_proto::{orchestrator::v1 as pb, platform::v1::NodeMaintenanceKind};

use crate::embedded::{World, emulated_ec2, group_on};

/// A little more than the day before which a node that is younger is not replaced.
const DAY: Duration = Duration::from_secs(24 * 3600 + 1);

async fn announced(world: &World) -> Option<String> {
    let cluster = world.cluster("db").await.ok()??;
    let groups = cluster.status?.groups;
    let mut conditions = groups.into_iter().flat_map(|group| group.conditions);
    let found = conditions.find(|condition| condition.r#type == "MaintenanceScheduled")?;
    (found.status == Some(true)).then_some(found.message)
}

async fn node_on(world: &World, instance: &str) -> Option<pb::Node> {
    let mut nodes = world.nodes("db").await.into_iter();
    nodes.find(|node| node.platform_node_id.as_deref() == Some(instance))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_moved_from_an_instance_before_that_is_retired_and_stays_if_it_is_only_rebooted()
{
    let ec2 = Ec2::start(Ec2Settings::default()).await.unwrap();
    let mut world = World::new().await;
    let settings = emulated_ec2(ec2.url(), world.directory.path(), Duration::from_millis(50));
    world.add("aws", settings).await;
    world.apply("db", group_on("aws", 2)).await;
    world.ready("db", 2).await;
    let instances: Vec<String> = super::alive(&ec2).into_iter().map(|one| one.id).collect();
    let [rebooted, retired] = &instances[..] else {
        unreachable!("two nodes on {instances:?}")
    };
    assert!(ec2.schedule_event(rebooted, "instance-reboot", DAY));
    world
        .until("the reboot is announced", async |world| {
            announced(world).await.is_some()
        })
        .await;
    let node = node_on(&world, rebooted).await.unwrap();
    assert_eq!(
        node.maintenance.unwrap().kind(),
        NodeMaintenanceKind::Restart
    );
    let reboot = announced(&world).await.unwrap();
    assert!(reboot.contains("instance-reboot"), "{reboot}");
    assert!(reboot.starts_with(&format!("{}: ", node.name)), "{reboot}");
    assert!(ec2.schedule_event(retired, "instance-retirement", DAY));
    world
        .until("the node is elsewhere", async |world| {
            node_on(world, retired).await.is_none()
        })
        .await;
    world.ready("db", 2).await;
    let left: Vec<String> = super::alive(&ec2).into_iter().map(|one| one.id).collect();
    assert!(
        left.contains(rebooted) && !left.contains(retired),
        "{left:?}"
    );
    assert_eq!(announced(&world).await.unwrap(), reboot);
    world.end().await;
    ec2.shutdown().await;
}
