//! Checks of the store over a backend.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drover_core::Reason;
use drover_store::{
    Along, Bytes, Changed, Desired, Finish, Former, Head, Keyring, Lane, NodeRow, PlatformRow,
    RevisionRow, Step, Store, Versioned, backend::LIMITS,
};
use futures::future::join_all;
use uuid::Uuid;

use super::{
    Make, Subject, add_nodes, check_consistent, check_dense, event, everything, finish, head_of,
    load_all, no_head, now_ms, one_node, open, present_head, reason, wanted, within,
};

/// Of ten concurrent creations one succeeds; another name is free.
pub async fn a_name_belongs_to_one_cluster(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let made = join_all((0..10).map(|_| store.create_cluster(wanted("shop")))).await;
    let won: Vec<_> = made.iter().filter_map(|made| made.as_ref().ok()).collect();
    assert_eq!(won.len(), 1);
    assert!(
        made.iter()
            .filter_map(|made| made.as_ref().err())
            .all(|e| e.reason() == Reason::ClusterExists)
    );
    assert_eq!(store.find_cluster("shop").await.unwrap(), Some(won[0].0));
    assert_eq!(store.find_cluster("other").await.unwrap(), None);
    store.create_cluster(wanted("other")).await.unwrap();
    assert_eq!(load_all(&store).await.len(), 2);
}

/// The error contains the present revision; steps of the owner do not make revisions of users stale.
pub async fn a_change_of_an_old_revision_is_refused(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let (uid, first) = store.create_cluster(wanted("shop")).await.unwrap();
    add_nodes(&store, shards.of(uid), uid, 3).await;
    let change = |generation| Desired {
        generation,
        ..wanted("shop")
    };
    let second = store.update_desired(uid, first, change(2)).await.unwrap();
    let error = store
        .update_desired(uid, first, change(3))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::RevisionMismatch);
    assert_eq!(error.metadata()["revision"], second.to_string());
    let stored = store.desired(uid).await.unwrap().unwrap();
    assert_eq!((stored.revision, stored.value.generation), (second, 2));
    assert_eq!(
        reason(store.update_desired(Uuid::now_v7(), 1, change(1))).await,
        Reason::NotFound
    );
    let large = Desired {
        spec: vec![0; 128 * 1024 + 1].into(),
        ..wanted("shop")
    };
    assert_eq!(
        reason(store.update_desired(uid, second, large)).await,
        Reason::Invalid
    );
}

/// Both or neither, and with them those go that are kept no longer.
pub async fn a_spec_is_retained_with_the_change_that_replaces_it(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let (uid, mut revision) = store.create_cluster(wanted("shop")).await.unwrap();
    let former = |generation: u64, drop: Vec<u64>| Along {
        former: Some(Former {
            generation,
            row: RevisionRow {
                author: format!("author of {generation}"),
                ..RevisionRow::default()
            },
            drop,
        }),
        ..Along::default()
    };
    let retained = async || {
        let kept = store.revisions(uid).await.unwrap();
        let kept = kept
            .into_iter()
            .map(|(generation, row)| (generation, row.author));
        kept.collect::<Vec<_>>()
    };
    for generation in [1, 2] {
        let along = former(generation, Vec::new());
        let change = store.update_desired_with(uid, revision, wanted("shop"), along);
        revision = change.await.unwrap();
    }
    let both = retained().await;
    assert_eq!(
        both,
        [(1, "author of 1".to_owned()), (2, "author of 2".to_owned())]
    );
    let late = store.update_desired_with(uid, revision - 1, wanted("shop"), former(3, vec![1]));
    assert_eq!(reason(late).await, Reason::RevisionMismatch);
    assert_eq!(retained().await, both);
    let change = store.update_desired_with(uid, revision, wanted("shop"), former(3, vec![1]));
    change.await.unwrap();
    assert_eq!(
        retained().await,
        [(2, "author of 2".to_owned()), (3, "author of 3".to_owned())]
    );
}

/// A plan that is based on an older desired state or head writes nothing.
pub async fn a_change_of_the_desired_state_stops_a_step_planned_before(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let (uid, first) = store.create_cluster(wanted("shop")).await.unwrap();
    let owned = shards.of(uid);
    let head = add_nodes(&store, owned, uid, 1).await;
    let planned = Step {
        expect_desired: Some(first),
        ..one_node(uid, &head)
    };
    let second = store
        .update_desired(uid, first, wanted("shop"))
        .await
        .unwrap();
    let error = store
        .step(owned, planned.clone(), Lane::Bulk)
        .await
        .unwrap_err();
    assert_eq!(
        (error.reason(), error.metadata()["changed"].as_str()),
        (Reason::Conflict, "desired")
    );
    assert_eq!(check_consistent(&store, uid).await, 1);

    let planned = Step {
        expect_desired: Some(second),
        ..planned
    };
    let done = store
        .step(owned, planned.clone(), Lane::Urgent)
        .await
        .unwrap();
    assert_eq!(done.last_seq, 2);
    let error = store.step(owned, planned, Lane::Urgent).await.unwrap_err();
    assert_eq!(
        (error.reason(), error.metadata()["changed"].as_str()),
        (Reason::Conflict, "head")
    );
    assert_eq!(check_consistent(&store, uid).await, 2);
}

/// All kinds of records, over many clusters, also through another handle.
pub async fn what_was_stored_is_loaded(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let mut expected = BTreeMap::new();
    for i in 0..40_u64 {
        let desired = Desired {
            labels: [("team".to_owned(), format!("t{i}"))].into(),
            author: "someone".into(),
            marks: vec!["node-1".into()],
            extra: [("plan".to_owned(), vec![1, 2])].into(),
            ..wanted(&format!("c{i}"))
        };
        let (uid, _) = store.create_cluster(desired).await.unwrap();
        let mut head = Head::default();
        (head.next_slot, head.next_sequence, head.observed_generation) = (50, i, 1);
        head.state = "s".into();
        let step = Step {
            uid,
            head,
            put_nodes: (0..50)
                .map(|slot| (slot, format!("{i}/{slot}").into()))
                .collect(),
            put_requests: vec![("r1".into(), "one".into()), ("r2".into(), "two".into())],
            put_resources: vec![("infrastructure".into(), "net/a".into(), "net".into())],
            ..Step::default()
        };
        let head = head_of(store.step(shards.of(uid), step, Lane::Bulk).await.unwrap());
        let step = Step {
            uid,
            expect_head: head.revision,
            head: head.value,
            put_nodes: vec![(3, "changed".into())],
            delete_nodes: vec![4, 5],
            delete_requests: vec!["r1".into()],
            ..Step::default()
        };
        let done = store.step(shards.of(uid), step, Lane::Bulk).await.unwrap();
        expected.insert(uid, (i, done));
    }
    let (bare, _) = store.create_cluster(wanted("bare")).await.unwrap();
    let mut rows = load_all(&store).await;
    let without = rows.remove(&bare).unwrap();
    assert_eq!((without.head, without.nodes), (None, vec![]));
    assert_eq!(rows.len(), expected.len());
    for (uid, (i, done)) in &expected {
        let row = &rows[uid];
        assert_eq!(row.head.as_ref(), Some(&head_of(done.clone())));
        assert_eq!(row.desired.value.name, format!("c{i}"));
        assert_eq!(row.desired.value.extra["plan"], [1, 2]);
        assert_eq!(row.nodes.len(), 48);
        assert!(row.nodes.contains(&NodeRow {
            slot: 3,
            value: "changed".into()
        }));
        assert!(row.nodes.contains(&NodeRow {
            slot: 49,
            value: format!("{i}/49").into()
        }));
        assert_eq!(row.requests, [("r2".to_owned(), "two".into())]);
        assert_eq!(
            (
                row.resources[0].kind.as_str(),
                row.resources[0].name.as_str()
            ),
            ("infrastructure", "net/a")
        );
        assert_eq!(store.load_cluster(*uid).await.unwrap().as_ref(), Some(row));
    }
    assert_eq!(store.load_cluster(Uuid::now_v7()).await.unwrap(), None);
    let again = open(&backend).await;
    assert_eq!(again.id(), store.id());
    assert_eq!(load_all(&again).await.len(), 41);
}

/// A load followed by all later changes equals a load at the end.
pub async fn a_cache_that_follows_changes_equals_a_fresh_load(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let (uid, _) = store.create_cluster(wanted("before")).await.unwrap();
    add_nodes(&store, shards.of(uid), uid, 2).await;
    let loader = store.load().await.unwrap();
    let mut changes = store.changes(loader.revision()).await.unwrap();
    drop(loader);
    let mut nodes: BTreeMap<(Uuid, u64), Bytes> = BTreeMap::new();
    for (uid, row) in load_all(&store).await {
        nodes.extend(
            row.nodes
                .into_iter()
                .map(|node| ((uid, node.slot), node.value)),
        );
    }
    let (other, _) = store.create_cluster(wanted("after")).await.unwrap();
    add_nodes(&store, shards.of(other), other, 5).await;
    let head = present_head(&store, uid).await;
    let step = Step {
        uid,
        expect_head: head.revision,
        head: head.value,
        delete_nodes: vec![0],
        ..Step::default()
    };
    let last = store
        .step(shards.of(uid), step, Lane::Bulk)
        .await
        .unwrap()
        .revision;
    let mut names = Vec::new();
    loop {
        let update = within("a change", changes.next()).await.unwrap();
        for change in update.changes {
            match change {
                Changed::Node(uid, slot, Some(value)) => drop(nodes.insert((uid, slot), value)),
                Changed::Node(uid, slot, None) => drop(nodes.remove(&(uid, slot))),
                Changed::Desired(_, Some(desired)) => {
                    assert_eq!(desired.revision, update.revision);
                    names.push(desired.value.name);
                }
                _ => {}
            }
        }
        if update.revision == last {
            break;
        }
    }
    assert_eq!(names, ["after"]);
    let mut fresh = BTreeMap::new();
    for (uid, row) in load_all(&store).await {
        fresh.extend(
            row.nodes
                .into_iter()
                .map(|node| ((uid, node.slot), node.value)),
        );
    }
    assert_eq!(nodes, fresh);
}

/// By the number of nodes and by size.
pub async fn a_step_that_is_too_large_writes_nothing(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let (uid, _) = store.create_cluster(wanted("shop")).await.unwrap();
    let before = everything(&*backend).await;
    let nodes = |count: u64, len: usize| Step {
        uid,
        put_nodes: (0..count).map(|slot| (slot, vec![0; len].into())).collect(),
        events: vec![event("e")],
        ..Step::default()
    };
    assert_eq!(
        reason(store.step(shards.of(uid), nodes(91, 1), Lane::Bulk)).await,
        Reason::Internal
    );
    assert_eq!(
        reason(store.step(shards.of(uid), nodes(90, LIMITS.bytes / 90), Lane::Bulk)).await,
        Reason::Invalid
    );
    assert_eq!(everything(&*backend).await, before);
    store
        .step(shards.of(uid), nodes(90, 200), Lane::Bulk)
        .await
        .unwrap();
}

/// A node that is left keeps the cluster from being finished.
pub async fn a_cluster_with_records_left_is_not_finished(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let (uid, desired) = store.create_cluster(wanted("shop")).await.unwrap();
    let head = add_nodes(&store, shards.of(uid), uid, 1).await;
    let ended = store.finish_cluster(shards.of(uid), finish(uid, "shop", desired, head));
    assert_eq!(reason(ended).await, Reason::Precondition);
    assert_eq!(check_consistent(&store, uid).await, 1);
}

/// A change of a cluster that is about to end keeps it.
pub async fn an_apply_before_the_end_wins(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let (uid, desired) = store.create_cluster(wanted("shop")).await.unwrap();
    store
        .update_desired(uid, desired, wanted("shop"))
        .await
        .unwrap();
    let ended = store.finish_cluster(shards.of(uid), finish(uid, "shop", desired, no_head()));
    assert_eq!(reason(ended).await, Reason::Conflict);
    assert!(store.desired(uid).await.unwrap().is_some());
    assert_eq!(store.tombstones().await.unwrap(), []);
}

/// The name can be reused immediately, by another uid with a log of its own.
pub async fn a_finished_cluster_leaves_name_free_and_a_tombstone(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let (uid, desired) = store.create_cluster(wanted("shop")).await.unwrap();
    let mut head = add_nodes(&store, shards.of(uid), uid, 1).await;
    head.value.next_sequence = 9;
    let step = Step {
        uid,
        expect_head: head.revision,
        head: head.value,
        delete_nodes: vec![0],
        ..Step::default()
    };
    let head = head_of(store.step(shards.of(uid), step, Lane::Bulk).await.unwrap());
    let done = store
        .finish_cluster(shards.of(uid), finish(uid, "shop", desired, head))
        .await
        .unwrap();
    assert_eq!(done.last_seq, 2);
    assert_eq!(store.load_cluster(uid).await.unwrap(), None);
    assert_eq!(store.find_cluster("shop").await.unwrap(), None);
    let tombstones = store.tombstones().await.unwrap();
    let [(buried, tombstone)] = tombstones.as_slice() else {
        panic!("one of {tombstones:?}")
    };
    assert_eq!(
        (
            *buried,
            tombstone.value.name.as_str(),
            tombstone.value.next_sequence
        ),
        (uid, "shop", 9)
    );
    assert_eq!(tombstone.value.platforms, "platforms");
    let page = store.events(uid, 0, 10).await.unwrap();
    assert!(page.ended);
    check_dense(&page.events, 1, 2);
    let (again, _) = store.create_cluster(wanted("shop")).await.unwrap();
    assert_ne!(again, uid);
    assert_eq!(store.events(again, 0, 10).await.unwrap().last_seq, 0);
}

/// Never within a day, and only by the owner of its shard.
pub async fn a_tombstone_goes_with_its_events_after_its_time(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let mut ended = Vec::new();
    for (name, days) in [("old", 8), ("kept", 8), ("new", 0)] {
        let (uid, desired) = store.create_cluster(wanted(name)).await.unwrap();
        let delete_time_ms = now_ms() - days * 24 * 3600 * 1000 - 1;
        let finish = Finish {
            delete_time_ms,
            ..finish(uid, name, desired, no_head())
        };
        store.finish_cluster(shards.of(uid), finish).await.unwrap();
        ended.push(uid);
    }
    let settled = |uid: Uuid, _: &drover_store::Tombstone| uid != ended[1];
    assert_eq!(
        reason(store.drop_tombstone(shards.of(ended[2]), ended[2])).await,
        Reason::Precondition
    );
    assert_eq!(
        store
            .sweep_tombstones(shards.all(), Duration::ZERO, settled)
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        reason(store.events(ended[0], 0, 10)).await,
        Reason::NotFound
    );
    let left: Vec<String> = store
        .tombstones()
        .await
        .unwrap()
        .into_iter()
        .map(|(_, t)| t.value.name)
        .collect();
    assert_eq!(left.len(), 2);
    assert!(!left.contains(&"old".to_owned()));
    let log = everything(&*backend)
        .await
        .into_iter()
        .filter(|(key, _)| key.starts_with("z/"))
        .count();
    assert_eq!(log, 2, "its events went with it");
}

/// A replica sees its own write; a revision that was never assigned is refused.
pub async fn a_read_waits_for_its_revision(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let (one, two) = (open(&backend).await, open(&backend).await);
    let mut newest = 0;
    for i in 0..50 {
        let (_, revision) = one.create_cluster(wanted(&format!("c{i}"))).await.unwrap();
        newest = revision;
        within("the revision", two.wait_revision(revision))
            .await
            .unwrap();
        assert!(two.revision() >= revision);
    }
    let error = two.wait_revision(newest + 1000).await.unwrap_err();
    assert_eq!(error.reason(), Reason::StoreRestored);
    assert_eq!(error.metadata()["revision"], newest.to_string());
}

/// Records that are new, changed, stale and removed.
pub async fn platforms_and_secrets_are_written_by_revision(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = Store::open(Arc::clone(&backend)).await.unwrap();
    let platform = |generation| PlatformRow {
        name: "eu".into(),
        generation,
        spec: "spec".into(),
        ..PlatformRow::default()
    };
    let first = store.put_platform(platform(1), Some(0)).await.unwrap();
    let error = store.put_platform(platform(2), Some(0)).await.unwrap_err();
    assert_eq!(error.reason(), Reason::RevisionMismatch);
    assert_eq!(error.metadata()["revision"], first.to_string());
    let second = store.put_platform(platform(2), Some(first)).await.unwrap();
    assert_eq!(
        reason(store.delete_platform("eu", Some(first))).await,
        Reason::RevisionMismatch
    );
    let third = store.put_platform(platform(3), None).await.unwrap();
    assert!(third > second);
    let stored = store.platforms().await.unwrap();
    assert_eq!(
        stored
            .iter()
            .map(|p| (p.revision, p.value.generation))
            .collect::<Vec<_>>(),
        [(third, 3)]
    );
    store.delete_platform("eu", Some(third)).await.unwrap();
    assert_eq!(store.platform("eu").await.unwrap(), None);
    assert_eq!(
        reason(store.delete_platform("eu", None)).await,
        Reason::NotFound
    );

    assert_eq!(
        reason(store.put_secret("db", "one".into(), Some(0))).await,
        Reason::Precondition,
        "there is no key"
    );
    let keys = Keyring::parse(&Keyring::generate().unwrap(), "keys").unwrap();
    assert_eq!(store.unlock(keys).await.unwrap(), 0);
    let first = store.put_secret("db", "one".into(), Some(0)).await.unwrap();
    let second = store
        .put_secret("db", "two".into(), Some(first))
        .await
        .unwrap();
    assert_eq!(
        reason(store.put_secret("db", "three".into(), Some(first))).await,
        Reason::RevisionMismatch
    );
    assert_eq!(
        store.secret("db").await.unwrap(),
        Some(Versioned {
            value: "two".into(),
            revision: second
        })
    );
    assert_eq!(
        store.secrets().await.unwrap(),
        [Versioned {
            value: "db".into(),
            revision: second
        }]
    );
    store.delete_secret("db", None).await.unwrap();
    assert_eq!(store.secret("db").await.unwrap(), None);
}
