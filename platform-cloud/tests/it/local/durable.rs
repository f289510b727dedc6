//! State that outlives a platform or a node: processes, removals, storage, records.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use drover_core::Reason;
use drover_platform::{
    driver::{Change, Deletion, Driver},
    identity::Identity,
};
use drover_platform_cloud::drivers::local::{LocalDriver, Removed, remove_all};
use drover_proto::platform::v1::{NodePhase, NodeRole, Storage};

use crate::local_support::{
    World, adoption, clean, kill, kill_off, phase, pid, processes_of, refused, request, settings,
    stored, target, until,
};

use super::inside::exec;

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_platform_finds_its_nodes_and_sees_them_die() {
    let world = World::new();
    let before = world.start(&request("redis", "r1", 3)).await;
    let uid = world.driver.description().uid;
    let world = world.restarted().await;
    assert_eq!(world.driver.description().uid, uid);
    for node in &before {
        let found = world.ready(&node.node_id).await;
        assert_eq!(&found, node);
    }
    kill(pid(&before[0]), "KILL");
    world
        .wait(&before[0].node_id, "failed", |node| {
            phase(node) == NodePhase::Failed
        })
        .await;
    let world = world.restarted().await;
    world
        .wait(&before[0].node_id, "failed", |node| {
            phase(node) == NodePhase::Failed
        })
        .await;
    for node in &before {
        world.remove(node).await;
    }
    assert!(processes_of(&world.state()).is_empty());
    assert_eq!(
        fs::read_dir(world.state().join("nodes")).unwrap().count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_died_while_no_platform_ran_is_failed() {
    let world = World::new();
    let node = world.start(&request("sleeper", "r1", 1)).await.remove(0);
    let directory = world.stopped().await;
    kill_off(pid(&node)).await;
    let world = World::over(directory, |_| {});
    let failed = world
        .wait(&node.node_id, "failed", |node| {
            phase(node) == NodePhase::Failed
        })
        .await;
    assert!(
        failed
            .message
            .contains("while the platform was not running"),
        "{}",
        failed.message
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_goes_on_after_a_restart_and_keeps_its_deadline() {
    let world = World::new();
    let node = world.start(&request("stubborn", "r1", 1)).await.remove(0);
    let log = world.node_directory(&node).join("log");
    until("it ignores the signal", async || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("ready"))
    })
    .await;
    let grace_period = Some(Duration::from_millis(500));
    world
        .delete(
            &node,
            Deletion {
                grace_period,
                ..Deletion::default()
            },
        )
        .await;
    let world = world.restarted().await;
    if let Some(node) = world.node(&node.node_id).await {
        assert_eq!(phase(&node), NodePhase::Deprovisioning);
    }
    world.gone(&node.node_id).await;
    assert!(processes_of(&world.state()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_platform_on_the_same_directory_is_refused_with_the_pid_of_the_first() {
    let world = World::new();
    let error = LocalDriver::open(settings(world.directory.path()))
        .err()
        .unwrap();
    assert_eq!(error.reason(), Reason::Precondition);
    assert!(
        error
            .message()
            .contains(&format!("in use by process {}", std::process::id())),
        "{error}"
    );
    let error = remove_all(&world.state()).unwrap_err();
    assert!(error.message().contains("in use"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_storage_is_attached_again_and_other_storage_goes_with_its_node() {
    let world = World::new();
    let with_storage = |request_id: &str| {
        let mut request = request("redis", request_id, 1);
        request.storage = Some(Storage::default());
        request
    };
    let node = world.start(&with_storage("r1")).await.remove(0);
    let set = ["sh", "-c", "redis-cli -p $DROVER_PORT_CLIENT set key value"];
    assert_eq!(exec(&world, &node, &set, &[]).await, ("OK\n".to_owned(), 0));

    let error = refused(world.create(&with_storage("r2")).await.remove(0));
    assert!(
        error
            .message()
            .contains(&format!("in use by node {}", node.node_id)),
        "{error}"
    );

    let retain = Deletion {
        retain_storage: true,
        ..Deletion::default()
    };
    let kept = world.delete(&node, retain).await.retained_storage;
    assert_eq!(kept.len(), 1);
    world.gone(&node.node_id).await;
    assert!(world.state().join("storage").join(&kept[0]).exists());
    assert!(world.nodes().await.is_empty());

    let node = world.start(&with_storage("r3")).await.remove(0);
    let get = ["sh", "-c", "redis-cli -p $DROVER_PORT_CLIENT get key"];
    // Redis listens before it has loaded its data.
    until("the data is loaded", async || {
        let (answer, _) = exec(&world, &node, &get, &[]).await;
        !answer.starts_with("LOADING")
    })
    .await;
    assert_eq!(
        exec(&world, &node, &get, &[]).await,
        ("value\n".to_owned(), 0)
    );
    world.remove(&node).await;
    assert_eq!(
        fs::read_dir(world.state().join("storage")).unwrap().count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_of_an_adopted_node_is_its_new_owner_s_for_good() {
    let world = World::new();
    let node = world.start(&stored("owner-1", "r1", 0)).await.remove(0);
    let change = adoption("owner-2", 5);
    let node = world.driver.update(&target(&node), &change).await.unwrap();
    let error = refused(world.create(&stored("owner-2", "r2", 5)).await.remove(0));
    let in_use = format!("in use by node {}", node.node_id);
    assert!(error.message().contains(&in_use), "{error}");
    // The former owner gets new, separate storage.
    let theirs = world.start(&stored("owner-1", "r3", 0)).await.remove(0);
    let key = world.retire(&node).await;
    let data = world.state().join("storage").join(&key).join("data");
    fs::write(&data, "precious").unwrap();
    let listed = world.driver.kept_storage().await.unwrap();
    let whose: Vec<_> = listed
        .iter()
        .map(|it| (&*it.id, &*it.owner, it.ordinal, &*it.store_id))
        .collect();
    assert_eq!(whose, [(&*key, "owner-2", 5, "store-2")]);
    let others = world.retire(&theirs).await;
    assert_ne!(others, key);
    let world = world.restarted().await;
    let theirs = world.start(&stored("owner-1", "r4", 0)).await.remove(0);
    let node = world.start(&stored("owner-2", "r5", 5)).await.remove(0);
    assert_eq!(world.retire(&theirs).await, others);
    assert_eq!(world.retire(&node).await, key);
    assert_eq!(fs::read_to_string(&data).unwrap(), "precious");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_adopts_into_a_place_with_kept_storage_has_both_and_goes_on_with_the_adopted() {
    let world = World::new();
    let first = world.start(&stored("owner-2", "r1", 5)).await.remove(0);
    let earlier = world.retire(&first).await;
    let node = world.start(&stored("owner-1", "r2", 0)).await.remove(0);
    let change = adoption("owner-2", 5);
    let node = world.driver.update(&target(&node), &change).await.unwrap();
    // Not the earlier storage either, while a node with that ordinal exists.
    let error = refused(world.create(&stored("owner-2", "r3", 5)).await.remove(0));
    assert!(error.message().contains("in use by node"), "{error}");
    let adopted = world.retire(&node).await;
    assert_ne!(adopted, earlier);
    for request_id in ["r4", "r5"] {
        let next = world.start(&stored("owner-2", request_id, 5)).await;
        assert_eq!(world.retire(&next[0]).await, adopted);
    }
    let kept = world.driver.kept_storage().await.unwrap();
    let kept: BTreeSet<&str> = kept.iter().map(|it| &*it.id).collect();
    assert_eq!(kept, BTreeSet::from([&*adopted, &*earlier]));
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_follows_its_adopted_node_although_that_could_not_be_written_at_first() {
    let world = World::new();
    let node = world.start(&stored("owner-1", "r1", 0)).await.remove(0);
    let volumes = fs::read_dir(world.state().join("volumes")).unwrap();
    let volume = volumes.map(|it| it.unwrap().path()).next().unwrap();
    let before = fs::read(&volume).unwrap();
    fs::write(&volume, "{").unwrap();
    let change = adoption("owner-2", 5);
    let node = world.driver.update(&target(&node), &change).await.unwrap();
    // No new storage is created while the existing one may belong to it.
    let error = refused(world.create(&stored("owner-2", "r2", 5)).await.remove(0));
    assert!(error.message().contains("volumes/db-0-"), "{error}");
    fs::write(&volume, before).unwrap();
    let key = world.retire(&node).await;
    let next = world.start(&stored("owner-2", "r3", 5)).await.remove(0);
    assert_eq!(world.retire(&next).await, key);
}

#[tokio::test(flavor = "multi_thread")]
async fn role_labels_and_owner_change_durably_and_only_if_the_slot_still_fits() {
    let world = World::new();
    let node = world.start(&request("sleeper", "r1", 1)).await.remove(0);
    let role = world
        .state()
        .join("nodes")
        .join(&node.node_id)
        .join("data/role");
    assert_eq!(fs::read_to_string(&role).unwrap(), "active\n");
    let edit = Change::Edit {
        role: Some(NodeRole::Standby),
        set_labels: BTreeMap::from([
            ("a".to_owned(), "1".to_owned()),
            ("b".to_owned(), "2".to_owned()),
        ]),
        remove_labels: vec!["b".to_owned()],
        host_labels: None,
        storage_size: None,
        spec_hash: String::new(),
        promoting: false,
    };
    let changed = world.driver.update(&target(&node), &edit).await.unwrap();
    assert_eq!(changed.role(), NodeRole::Standby);
    assert_eq!(fs::read_to_string(&role).unwrap(), "standby\n");
    assert_eq!(
        changed.labels,
        BTreeMap::from([("a".to_owned(), "1".to_owned())])
    );
    let adopted = Identity {
        owner: "owner-2".to_owned(),
        cluster_id: "payments".to_owned(),
        request_id: "r9".to_owned(),
        index: 0,
        ..Identity::default()
    };
    let adopt = Change::Adopt(Box::new(adopted));
    let changed = world
        .driver
        .update(&target(&changed), &adopt)
        .await
        .unwrap();
    let error = world
        .driver
        .update(&target(&node), &adopt)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::NodeNotInCluster);
    let world = world.restarted().await;
    let found = world.ready(&node.node_id).await;
    assert_eq!(
        (found.cluster_id.as_str(), &found.slot, pid(&found)),
        ("payments", &changed.slot, pid(&node))
    );
    assert_eq!(
        found.labels,
        BTreeMap::from([("a".to_owned(), "1".to_owned())])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_read_is_a_warning_with_its_id() {
    let world = World::new();
    let nodes = world.start(&request("sleeper", "r1", 2)).await;
    fs::write(world.node_directory(&nodes[0]).join("node.json"), "{").unwrap();
    let world = world.restarted().await;
    let listing = world.driver.list().await.unwrap();
    assert_eq!(listing.nodes.len(), 1);
    assert_eq!(listing.warnings.len(), 1);
    assert_eq!(listing.warnings[0].id.as_ref(), Some(&nodes[0].node_id));
}

#[tokio::test(flavor = "multi_thread")]
async fn remove_all_kills_counts_and_leaves_nothing_and_spares_what_is_not_its_own() {
    let world = World::new();
    world.start(&request("sleeper", "r1", 2)).await;
    let node = world.start(&request("family", "r2", 1)).await.remove(0);
    until("the children are there", async || {
        processes_of(&world.state()).len() == 5
    })
    .await;
    kill(pid(&node), "KILL");
    world
        .wait(&node.node_id, "failed", |node| {
            phase(node) == NodePhase::Failed
        })
        .await;
    let state = world.state();
    let directory = world.stopped().await;
    let Removed { processes, files } = remove_all(&state).unwrap();
    assert!((2..=4).contains(&processes), "{processes}");
    assert!(files > 10, "{files}");
    assert!(!state.exists() && processes_of(&state).is_empty());
    assert_eq!(remove_all(&state).unwrap(), Removed::default());
    let error = remove_all(directory.path()).unwrap_err();
    assert!(error.message().contains("not a state directory"), "{error}");
    clean(directory.path());
}
