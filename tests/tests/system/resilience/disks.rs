//! Full disks of a platform and of the orchestrator.

use drover_core::Reason;
use drover_proto::orchestrator::v1 as pb;

use crate::resilience::{
    apply, condition, described, document, drover, holds, ids, object, process, ready,
    real::{World, disk::Disk, insist, kill_9},
    records,
};

async fn start(world: &mut World) {
    world.platform.start().await;
    world.orchestrator.start().await;
    world.register("local", &world.platform.endpoint()).await;
    world
        .until("the platform is ready", async |world| {
            world.platform_status("local").await.phase() == pb::PlatformPhase::Ready
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_a_platform_is_named_costs_no_node_and_is_over_when_there_is_room() {
    let mut world = World::stopped();
    let disk = Disk::mount(world.state(), 4);
    start(&mut world).await;
    apply(&world, &document("hello", "", 2)).await.unwrap();
    world.ready("hello", 2).await;
    let before = ids(&records(&world, "hello").await);
    disk.fill();
    world.scale("hello", 3).await.unwrap();
    world
        .until("it is said that there is no space", async |world| {
            let events = world.events("hello").await;
            events
                .iter()
                .any(|event| event.message.contains("No space left"))
        })
        .await;
    let said = described(&world, "hello");
    assert!(said.contains("No space left"), "{said}");
    let now = records(&world, "hello").await;
    assert!(before.is_subset(&ready(&now)), "{before:?} of {now:?}");

    // A platform restarted on the full disk still knows its nodes.
    world.platform.kill();
    world.platform.start().await;
    world
        .until("the platform is ready again", async |world| {
            world.platform_status("local").await.phase() == pb::PlatformPhase::Ready
        })
        .await;
    disk.free();
    insist(async || world.reset_back_off("hello").await).await;
    world.ready("hello", 3).await;
    let now = ids(&records(&world, "hello").await);
    assert!(before.is_subset(&now), "{before:?} of {now:?}");
    drop(world);
    drop(disk);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_the_orchestrator_refuses_changes_keeps_what_is_there_and_is_over_when_there_is_room()
 {
    let mut world = World::stopped();
    let disk = Disk::mount(world.store(), 8);
    start(&mut world).await;
    apply(&world, &document("hello", "", 2)).await.unwrap();
    world.ready("hello", 2).await;
    let before = records(&world, "hello").await;
    disk.fill();

    // The existing files have room for a few more clusters; then further ones are rejected with the reason.
    let mut taken = Vec::new();
    let refused = loop {
        let name = format!("more-{}", taken.len());
        let mut cluster = document(&name, "", 0);
        let filling = object(&[("filling", &"x".repeat(60_000))]);
        cluster.spec.as_mut().unwrap().attributes = Some(filling);
        match apply(&world, &cluster).await {
            Ok(()) => taken.push(name),
            Err(error) => break error,
        }
        assert!(taken.len() < 500, "a full disk takes everything");
    };
    assert_eq!(refused.reason(), Reason::StorageFull, "{refused}");
    assert!(refused.message().contains("full"), "{refused}");
    for name in &taken {
        assert!(
            world.cluster(name).await.unwrap().is_some(),
            "{name} was taken"
        );
    }
    let refused = drover(&world, &["scale", "hello", "web", "3"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("full"), "{said}");

    // A node dies, and that cannot be recorded: the other one is left alone.
    kill_9(process(&before[0]));
    let (reason, message) = holds(&world, "hello", "StoreUnavailable").await;
    assert_eq!(reason, "StorageFull", "{message}");
    let said = described(&world, "hello");
    assert!(
        said.contains("StorageFull") && said.contains("the store is full"),
        "{said}"
    );
    let left: Vec<u32> = world.processes().into_keys().collect();
    assert!(left.contains(&process(&before[1])), "{left:?}");

    disk.free();
    world.ready("hello", 2).await;
    assert_eq!(condition(&world, "hello", "StoreUnavailable").await, None);
    let now = ids(&records(&world, "hello").await);
    assert!(
        now.contains(&before[1].id) && !now.contains(&before[0].id),
        "{now:?}"
    );
    world.scale("hello", 3).await.unwrap();
    world.ready("hello", 3).await;

    // After a kill on a full disk, everything that was acknowledged is still there.
    disk.fill();
    world.orchestrator.kill();
    disk.free();
    world.orchestrator.start().await;
    world.ready("hello", 3).await;
    for name in &taken {
        assert!(
            world.cluster(name).await.unwrap().is_some(),
            "{name} was taken"
        );
    }
    drop(world);
    drop(disk);
}
