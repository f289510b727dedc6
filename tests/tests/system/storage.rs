//! Data in the storage of nodes survives the nodes and kills of the servers, according to the policy of the group.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use crate::real;

use std::{collections::BTreeMap, fs, time::Duration};

use drover_core::Reason;
use drover_proto::orchestrator::v1 as pb;
use real::{World, insist, kill_9};

const CALL: Duration = Duration::from_secs(20);

/// A cluster of agents with storage and this retention policy for its deletion.
fn document(size: u32, when_deleted: pb::StorageRetention) -> pb::Cluster {
    pb::Cluster {
        name: "orders".to_owned(),
        spec: Some(pb::ClusterSpec {
            platforms: vec![pb::PlatformChoice {
                name: "local".to_owned(),
                ..Default::default()
            }],
            groups: vec![pb::GroupSpec {
                name: "web".to_owned(),
                size: Some(size),
                storage: Some(pb::StorageSpec {
                    size: "1Gi".to_owned(),
                    when_deleted: when_deleted.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }],
            termination_grace_period: Some(prost_types::Duration {
                seconds: 2,
                nanos: 0,
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

async fn apply(world: &World, cluster: pb::Cluster) -> Vec<String> {
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    };
    let answer = world.client().apply_cluster(request, CALL).await.unwrap();
    answer.warnings
}

/// Contents of all volumes, by key.
fn marks(world: &World) -> BTreeMap<String, String> {
    let storage = world.state().join("storage");
    let entries = fs::read_dir(storage).unwrap().map(|entry| entry.unwrap());
    entries
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| {
            let mark = fs::read_to_string(entry.path().join("mark")).unwrap_or_default();
            (entry.file_name().into_string().unwrap(), mark)
        })
        .collect()
}

async fn kept(world: &World) -> Vec<pb::KeptStorage> {
    let request = pb::ListStorageRequest::default();
    let answer = world.client().list_storage(request, CALL).await.unwrap();
    assert_eq!(answer.unreachable_platforms, Vec::<String>::new());
    answer.storage
}

fn deletion(one: &pb::KeptStorage) -> pb::DeleteStorageRequest {
    let storage = one.storage.clone().unwrap();
    pb::DeleteStorageRequest {
        platform: one.platform.clone(),
        id: storage.id,
        owner: storage.owner,
        cluster: storage.cluster_id,
        group: storage.group,
        ordinal: Some(storage.ordinal),
    }
}

async fn gone(world: &World) {
    insist(async || match world.delete("orders").await {
        Err(error) if error.reason() == Reason::NotFound => Ok(()),
        other => other,
    })
    .await;
    world
        .until("the cluster is gone", async |world| {
            matches!(world.cluster("orders").await, Ok(None))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_outlives_nodes_servers_and_the_cluster_and_goes_when_it_is_said() {
    let mut world = World::new().await;
    apply(&world, document(2, pb::StorageRetention::Retain)).await;
    world.ready("orders", 2).await;
    let keys: Vec<String> = marks(&world).into_keys().collect();
    assert_eq!(keys.len(), 2, "{keys:?}");
    for key in &keys {
        let path = world.state().join("storage").join(key).join("mark");
        fs::write(path, key).unwrap();
    }
    let intact: BTreeMap<String, String> = keys.iter().map(|k| (k.clone(), k.clone())).collect();

    // A node dies, and both servers are killed while it is being replaced.
    let before = world.processes();
    kill_9(*before.keys().next().unwrap());
    world.platform.kill();
    world.orchestrator.kill();
    world.platform.start().await;
    world.orchestrator.start().await;
    world
        .until("the dead node is replaced", async |world| {
            let now = world.processes();
            now.len() == 2 && now.keys().any(|pid| !before.contains_key(pid))
        })
        .await;
    world.ready("orders", 2).await;
    assert_eq!(marks(&world), intact, "its successor has its storage");
    let names = async |world: &World| {
        let records = world.records("orders").await.unwrap();
        let mut names: Vec<String> = records.into_iter().map(|node| node.name).collect();
        names.sort();
        names
    };
    assert_eq!(names(&world).await, ["web-0", "web-1"]);
    assert_eq!(kept(&world).await, vec![]);

    // After scaling down, the volume of the last node is retained and listed.
    world.scale("orders", 1).await.unwrap();
    world
        .until("the last node is gone", async |world| {
            kept(world).await.len() == 1
        })
        .await;
    assert_eq!(marks(&world), intact);
    let last = kept(&world).await.remove(0);
    assert_eq!(last.claim(), pb::StorageClaim::Cluster);
    let storage = last.storage.clone().unwrap();
    assert_eq!((storage.group.as_str(), storage.ordinal), ("web", 1));
    assert_eq!(storage.storage.unwrap().size_bytes, Some(1 << 30));

    // The node's successor takes over the volume, which can then not be deleted.
    world.scale("orders", 2).await.unwrap();
    world.ready("orders", 2).await;
    assert_eq!(kept(&world).await, vec![]);
    assert_eq!(marks(&world), intact);
    let error = world.client().delete_storage(deletion(&last), CALL).await;
    assert_eq!(error.unwrap_err().reason(), Reason::Precondition);

    // The cluster is deleted, its data stays; a cluster of the same name is a different owner.
    gone(&world).await;
    assert_eq!(marks(&world), intact);
    let left = kept(&world).await;
    assert_eq!(left.len(), 2);
    assert!(left.iter().all(|one| one.claim() == pb::StorageClaim::None));
    let warnings = apply(&world, document(1, pb::StorageRetention::Delete)).await;
    assert!(
        warnings
            .iter()
            .any(|it| it.contains("an earlier cluster orders")),
        "{warnings:?}"
    );
    world.ready("orders", 1).await;
    assert_eq!(marks(&world).len(), 3, "it has storage of its own");
    assert_eq!(kept(&world).await.len(), 2);
    for one in &left {
        let answer = world.client().delete_storage(deletion(one), CALL).await;
        assert!(answer.unwrap().gone);
    }
    assert_eq!(marks(&world).len(), 1);

    // The policy of this cluster is to delete its data.
    gone(&world).await;
    assert_eq!(marks(&world), BTreeMap::new());
    assert_eq!(kept(&world).await, vec![]);
}
