//! Checks of the event log of a cluster.

use std::sync::Arc;

use drover_core::Reason;
use drover_store::{Lane, Owned, Step, shard_of};
use futures::future::try_join_all;
use uuid::Uuid;

use super::{
    Make, Subject, all_events, check_consistent, check_dense, event, eventually, everything,
    finish, head_of, no_head, one_node, open, present_head, reason, wanted, within,
};

/// Sixteen writers of one cluster, while its shard changes its owner.
pub async fn events_are_dense_under_many_writers_and_hand_over(make: Make<'_>) {
    const WRITERS: usize = 16;
    const EACH: usize = 10;
    let Subject { backend, _keep } = make();
    let stores = [
        Arc::new(open(&backend).await),
        Arc::new(open(&backend).await),
    ];
    let (uid, _) = stores[0].create_cluster(wanted("shop")).await.unwrap();
    let present: Arc<parking_lot::Mutex<(usize, Option<Owned>)>> = Arc::default();
    present.lock().1 = Some(stores[0].take_shard(shard_of(uid)).await.unwrap());

    let writers = (0..WRITERS).map(|_| {
        let (stores, present) = (stores.clone(), Arc::clone(&present));
        tokio::spawn(async move {
            let mut written = 0;
            while written < EACH {
                let (holder, owned) = present.lock().clone();
                let Some(owned) = owned else {
                    tokio::task::yield_now().await;
                    continue;
                };
                let head = present_head(&stores[holder], uid).await;
                match stores[holder]
                    .step(&owned, one_node(uid, &head), Lane::Bulk)
                    .await
                {
                    Ok(_) => written += 1,
                    Err(e) => assert!(
                        matches!(e.reason(), Reason::Conflict | Reason::Fenced),
                        "{e:?}"
                    ),
                }
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    for round in 1..=6 {
        let target = round * WRITERS * EACH / 8;
        eventually("the writers to go on", async || {
            present_head(&stores[0], uid).await.value.last_seq() >= target as u64
        })
        .await;
        let (holder, owned) = std::mem::take(&mut *present.lock());
        // The writers still have copies of it, which are invalid from here on.
        stores[holder].release_shard(owned.unwrap()).await.unwrap();
        let next = 1 - holder;
        let owned = stores[next].take_shard(shard_of(uid)).await.unwrap();
        *present.lock() = (next, Some(owned));
    }
    within("the writers", try_join_all(writers)).await.unwrap();
    assert_eq!(
        check_consistent(&stores[1], uid).await,
        (WRITERS * EACH) as u64
    );
}

/// Readers do not notice the bounds of chunks; numbers that were never assigned are refused.
pub async fn events_resume_from_any_number(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let (uid, _) = store.create_cluster(wanted("shop")).await.unwrap();
    assert_eq!(
        store.events(uid, 0, 10).await.unwrap().events,
        [],
        "no step yet"
    );
    let mut head = no_head();
    // Steps with no events, one, many, more than a chunk takes, and large ones.
    for (count, len) in [
        (1, 5),
        (0, 0),
        (7, 5),
        (300, 5),
        (1, 4000),
        (20, 4000),
        (2, 5),
    ] {
        let step = Step {
            uid,
            expect_head: head.revision,
            head: head.value,
            events: (0..count).map(|_| event("x".repeat(len))).collect(),
            ..Step::default()
        };
        head = head_of(store.step(shards.of(uid), step, Lane::Bulk).await.unwrap());
    }
    let all = all_events(&store, uid).await;
    check_dense(&all, 1, 331);
    for after in 0..=331 {
        let page = store.events(uid, after, 5).await.unwrap();
        let from = usize::try_from(after).unwrap();
        assert_eq!(
            page.events,
            all[from..all.len().min(from + 5)],
            "after {after}"
        );
        assert_eq!((page.first_seq, page.last_seq, page.ended), (1, 331, false));
    }
    let error = store.events(uid, 332, 5).await.unwrap_err();
    assert_eq!(
        (error.reason(), error.metadata()["last_sequence"].as_str()),
        (Reason::StoreRestored, "331")
    );
    assert_eq!(
        reason(store.events(Uuid::now_v7(), 0, 5)).await,
        Reason::NotFound
    );
}

/// The newest thousand events stay; older ones are refused, with the number of the oldest.
pub async fn a_log_is_trimmed_by_number(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let (uid, _) = store.create_cluster(wanted("shop")).await.unwrap();
    let owned = shards.of(uid);
    let mut head = no_head();
    for _ in 0..200 {
        let events = (0..11).map(|_| event("e"));
        let step = Step {
            uid,
            expect_head: head.revision,
            head: head.value,
            events: events.collect(),
            ..Step::default()
        };
        head = head_of(store.step(owned, step, Lane::Bulk).await.unwrap());
    }
    let last = 200 * 11;
    let first = head.value.first_seq();
    assert_eq!(head.value.last_seq(), last);
    assert!(
        (1000..=1128).contains(&(last + 1 - first)),
        "{first} is the oldest of {last}"
    );
    check_dense(&all_events(&store, uid).await, first, last);
    let error = store.events(uid, first - 2, 5).await.unwrap_err();
    assert_eq!(error.reason(), Reason::EventsTrimmed);
    assert_eq!(error.metadata()["oldest_sequence"], first.to_string());
    let log = everything(&*backend)
        .await
        .into_iter()
        .filter(|(key, _)| key.starts_with("z/"))
        .count();
    assert!(log <= (1128 + 128) / 11 + 2, "{log} chunks are left");
}

/// Watches from the start, from the middle and slow ones all see the same events, until the cluster is gone.
pub async fn a_watch_of_events_sees_all_to_the_end(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = Arc::new(open(&backend).await);
    let shards = store.take_all().await.unwrap();
    let (uid, desired) = store.create_cluster(wanted("shop")).await.unwrap();
    let watchers: Vec<_> = [1, 3, 1000]
        .map(|limit| {
            let mut watch = store.watch_events(uid, 0);
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while let Some(events) = watch.next(limit).await.unwrap() {
                    assert!(events.len() <= limit);
                    seen.extend(events);
                }
                seen
            })
        })
        .into();
    let mut head = no_head();
    for _ in 0..30 {
        let step = Step {
            put_nodes: vec![],
            ..one_node(uid, &head)
        };
        head = head_of(store.step(shards.of(uid), step, Lane::Bulk).await.unwrap());
    }
    let mut late = store.watch_events(uid, 25);
    assert_eq!(
        late.next(100).await.unwrap().unwrap().first().unwrap().seq,
        26
    );
    assert_eq!(late.position(), 30);
    store
        .finish_cluster(shards.of(uid), finish(uid, "shop", desired, head))
        .await
        .unwrap();
    for watcher in watchers {
        check_dense(&within("the end of the log", watcher).await.unwrap(), 1, 31);
    }
    assert_eq!(
        within("the last event", late.next(100))
            .await
            .unwrap()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(within("the end", late.next(100)).await.unwrap(), None);
    let error = store.watch_events(uid, 40).next(1).await.unwrap_err();
    assert_eq!(error.reason(), Reason::StoreRestored);
}
