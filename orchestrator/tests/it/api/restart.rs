//! The process crashes and restarts on the same directory.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, SystemTime},
};

use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{self as wire, platform_service_client::PlatformServiceClient},
};
use drover_store::Store;
use prost::Message;

use crate::api::support::{Site, World, changed, document, invalid, open_again, until};

#[tokio::test]
async fn state_events_and_counters_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    world.register("sim", "http://sim").await.unwrap();
    world.apply(document("orders", &[("db", 3)])).await.unwrap();
    let before = world.ready("orders").await;
    let (nodes, events) = (world.nodes("orders").await, world.events("orders").await);
    let revision = world
        .apply(document("orders", &[("db", 3)]))
        .await
        .unwrap()
        .revision;

    world.restart(directory.path()).await;
    // State that was returned before is still reached.
    let request = pb::GetClusterRequest {
        name: "orders".into(),
        min_revision: Some(revision),
    };
    let after = world
        .clusters()
        .get_cluster(request)
        .await
        .unwrap()
        .into_inner()
        .cluster
        .unwrap();
    assert_eq!(
        (&after.uid, after.generation, &after.spec),
        (&before.uid, before.generation, &before.spec)
    );
    world.ready("orders").await;
    let ids = |nodes: &[pb::Node]| nodes.iter().map(|node| node.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&world.nodes("orders").await), ids(&nodes));
    assert_eq!(world.site.backend().len(), 3);

    world.apply(document("orders", &[("db", 4)])).await.unwrap();
    world.ready("orders").await;
    let all = world.events("orders").await;
    assert_eq!(
        &all[..events.len()],
        &events[..],
        "what was read stays as it was"
    );
    assert!(
        all.windows(2)
            .all(|pair| pair[0].sequence + 1 == pair[1].sequence)
    );
    let new = world
        .nodes("orders")
        .await
        .into_iter()
        .find(|node| !ids(&nodes).contains(&node.id))
        .unwrap();
    assert!(
        nodes
            .iter()
            .all(|node| node.request_sequence < new.request_sequence)
    );
    assert!(world.site.backend().doubles().is_empty());

    world.delete("orders").await.unwrap();
    world.restart(directory.path()).await;
    world.gone("orders").await;
    world.restart(directory.path()).await;
    let generation = world
        .apply(document("orders", &[("db", 0)]))
        .await
        .unwrap()
        .cluster
        .unwrap()
        .generation;
    assert!(
        generation > after.generation,
        "not even a deleted generation is given out again"
    );
    world.stop().await;
}

#[tokio::test]
async fn what_dies_in_the_middle_of_work_is_taken_up() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    world.register("sim", "http://sim").await.unwrap();
    // Sizes only grow, because requests that are no longer needed are waited for until their deadline.
    for size in [2, 5, 5, 7] {
        world
            .apply(document("orders", &[("db", size)]))
            .await
            .unwrap();
        world.restart(directory.path()).await;
    }
    until("as it was wanted last", async || {
        let ready =
            world.get("orders").await.unwrap().status.unwrap().phase() == pb::ClusterPhase::Ready;
        (ready && world.nodes("orders").await.len() == 7 && world.site.backend().len() == 7)
            .then_some(())
    })
    .await;
    assert!(world.site.backend().doubles().is_empty());
    world.stop().await;
}

#[tokio::test]
async fn a_stored_spec_that_could_not_be_applied_today_is_loaded_and_can_be_mended() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    world.register("sim", "http://sim").await.unwrap();
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    world.orchestrator.take().unwrap().kill().await;
    let short = |spec: &mut pb::ClusterSpec| {
        spec.expire_after = Some(Duration::from_secs(30).try_into().unwrap());
    };
    let store = open_again(directory.path()).await;
    let uid = store.find_cluster("orders").await.unwrap().unwrap();
    let stored = store.desired(uid).await.unwrap().unwrap();
    let mut desired = stored.value;
    let mut spec = pb::ClusterSpec::decode(&*desired.spec).unwrap();
    short(&mut spec);
    desired.spec = spec.encode_to_vec().into();
    let wrote = store.update_desired(uid, stored.revision, desired).await;
    wrote.unwrap();
    store.close().await.unwrap();

    world.start(directory.path()).await;
    let kept = world.get("orders").await.unwrap().spec.unwrap();
    assert_eq!(kept.expire_after, spec.expire_after);
    world.apply(document("other", &[("db", 1)])).await.unwrap();
    world.ready("other").await;
    let again = changed(document("orders", &[("db", 1)]), short);
    invalid(world.apply(again).await, "spec.expire_after");
    // The former spec is kept among the revisions, which every later apply reads.
    for size in [1, 2] {
        let mended = document("orders", &[("db", size)]);
        world.apply(mended).await.unwrap();
        world.ready("orders").await;
    }
    world.stop().await;
}

#[tokio::test]
async fn a_store_that_is_damaged_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    world.register("sim", "http://sim").await.unwrap();
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.stop().await;
    crate::api::support::open_again(directory.path())
        .await
        .close()
        .await
        .unwrap();
    let files = || {
        let entries = std::fs::read_dir(directory.path()).unwrap();
        let mut files: Vec<_> = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .collect();
        files.sort();
        files
    };
    let database = files()
        .into_iter()
        .find(|path| std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"SQLite format 3")))
        .expect("a database");
    let good = std::fs::read(&database).unwrap();
    let newer = {
        let mut bytes = good.clone();
        // `user_version` in the SQLite header.
        bytes[60..64].copy_from_slice(&9999_u32.to_be_bytes());
        bytes
    };
    let foreign = {
        let mut bytes = good.clone();
        // `application_id` in the SQLite header.
        bytes[68..72].copy_from_slice(&1_u32.to_be_bytes());
        bytes
    };
    for (what, bad) in [
        ("garbage", b"not a database at all".repeat(1000)),
        ("newer", newer),
        ("foreign", foreign),
    ] {
        std::fs::write(&database, &bad).unwrap();
        let error = Store::open_directory(directory.path())
            .await
            .expect_err(what);
        assert!(!error.message().is_empty());
        assert!(
            std::fs::read(&database).unwrap() == bad,
            "{what}: the file was touched"
        );
    }
    std::fs::write(&database, &good).unwrap();
    let world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    assert_eq!(world.get("orders").await.unwrap().name, "orders");
    world.stop().await;
}

#[tokio::test]
async fn registrations_and_their_uids_survive() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    world.register("sim", "http://sim").await.unwrap();
    let uid = world.platform("sim").await.uid;
    world.restart(directory.path()).await;
    until("it is visible again", async || {
        let status = world.platform("sim").await;
        (status.phase() == pb::PlatformPhase::Ready && status.uid == uid).then_some(())
    })
    .await;
    world.stop().await;
}

fn ids(site: &Site) -> BTreeSet<String> {
    let nodes = site.backend().nodes().into_iter();
    nodes.map(|node| node.node_id).collect()
}

/// Groups of these sizes: `db` on the platform `sim`, `web` on `other`.
fn on_two_platforms(db: u32, web: u32) -> pb::Cluster {
    changed(document("orders", &[("db", db), ("web", web)]), |spec| {
        let on = |name: &str| {
            vec![pb::PlatformChoice {
                name: name.to_owned(),
                ..Default::default()
            }]
        };
        spec.platforms = Vec::new();
        (spec.groups[0].platforms, spec.groups[1].platforms) = (on("sim"), on("other"));
        let grace = Duration::from_millis(1);
        spec.orphan_grace = Some(grace.try_into().unwrap());
    })
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

async fn is_behind(world: &World) -> Option<String> {
    let status = world.get("orders").await.unwrap().status.unwrap();
    let mut conditions = status.conditions.into_iter();
    let behind = conditions.find(|one| one.r#type == "StoreBehind" && one.status == Some(true))?;
    Some(behind.message)
}

#[tokio::test]
async fn a_store_that_somebody_put_back_knows_what_it_never_made_however_much_it_has_made_since() {
    let (directory, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    let other = Site::new(SimulatedSettings::default()).await;
    world.sites.put("http://other", other.channel());
    world.register("sim", "http://sim").await.unwrap();
    world.register("other", "http://other").await.unwrap();
    world.apply(on_two_platforms(1, 1)).await.unwrap();
    world.ready("orders").await;
    world.orchestrator.take().unwrap().kill().await;
    let store = crate::api::support::open_again(directory.path()).await;
    store.close().await.unwrap();
    copy(directory.path(), kept.path());

    // The cluster changes, and then older store files are restored without notice.
    world.start(directory.path()).await;
    world.apply(on_two_platforms(1, 4)).await.unwrap();
    world.ready("orders").await;
    let living = ids(&other);
    assert_eq!(living.len(), 4);
    world.sites.remove("http://other");
    world.orchestrator.take().unwrap().kill().await;
    let store = crate::api::support::open_again(directory.path()).await;
    store.close().await.unwrap();
    copy(kept.path(), directory.path());
    world.start(directory.path()).await;

    // It keeps counting while the platform with the newer nodes is unreachable, and restarts.
    for size in 2..7 {
        world.apply(on_two_platforms(size, 1)).await.unwrap();
        until("what can be made is made", async || {
            (world.site.backend().len() == size as usize).then_some(())
        })
        .await;
    }
    world.restart(directory.path()).await;
    assert_eq!(is_behind(&world).await, None);

    world.sites.put("http://other", other.channel());
    let message = until("it says that it is behind", async || {
        assert_eq!(ids(&other), living);
        is_behind(&world).await
    })
    .await;
    assert!(message.contains("never gave it out"), "{message}");

    let request = pb::ApplyClusterRequest {
        cluster: Some(on_two_platforms(6, 4)),
        adopt: true,
        ..Default::default()
    };
    world.clusters().apply_cluster(request).await.unwrap();
    world.ready("orders").await;
    until("its nodes are those that are there", async || {
        (world.nodes("orders").await.len() == 10 && is_behind(&world).await.is_none()).then_some(())
    })
    .await;
    assert_eq!(ids(&other), living);
    assert_eq!(world.site.backend().len(), 6);
    world.stop().await;
}

#[tokio::test]
async fn who_starts_with_a_clock_behind_that_of_an_earlier_owner_is_told_so_and_touches_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    world.register("sim", "http://sim").await.unwrap();
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    let store_id = world.site.backend().nodes()[0].store_id.clone();
    let mut client = PlatformServiceClient::new(world.site.channel());
    let platform = client
        .get_platform(wire::GetPlatformRequest::default())
        .await
        .unwrap()
        .into_inner()
        .platform
        .unwrap();
    let ahead = SystemTime::now() + Duration::from_secs(3600);
    let ahead = ahead.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let fence = wire::FenceRequest {
        expected_platform_uid: platform.uid,
        expected_instance_id: platform.instance_id,
        fence: Some(wire::Fence {
            store_id,
            shard: 0,
            epoch: u64::try_from(ahead.as_millis()).unwrap(),
        }),
    };
    client.fence(fence).await.unwrap();

    world.restart(directory.path()).await;
    let message = until("it says why", async || {
        let status = world.platform("sim").await;
        let fenced = status.message.contains("another orchestrator");
        (fenced && status.phase() != pb::PlatformPhase::Ready).then_some(status.message)
    })
    .await;
    let started = prost_types::Timestamp {
        seconds: i64::try_from(ahead.as_secs()).unwrap(),
        nanos: 0,
    }
    .to_string();
    assert!(message.contains(started.trim_end_matches('Z')), "{message}");
    assert!(message.contains("set the clock"), "{message}");
    world.apply(document("orders", &[("db", 2)])).await.unwrap();
    until("the change is taken in", async || {
        let cluster = world.get("orders").await.unwrap();
        (cluster.status.unwrap().observed_generation == cluster.generation).then_some(())
    })
    .await;
    assert_eq!(world.site.backend().len(), 1);
    world.stop().await;
}
