//! Checks of who owns shards, and of who leads.

use drover_core::Reason;
use drover_store::{Lane, SHARDS, shard_of};

use super::{
    Make, Subject, add_nodes, check_consistent, finish, now_ms, one_node, open, reason, wanted,
};

/// A shard is taken once; after its release it can be taken at a higher epoch.
pub async fn shards_have_one_owner_whose_epoch_grows(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let (one, two) = (open(&backend).await, open(&backend).await);
    let mut epoch = 0;
    for round in 0..6 {
        let (owner, other) = if round % 2 == 0 {
            (&one, &two)
        } else {
            (&two, &one)
        };
        let owned = owner.take_shard(5).await.unwrap();
        assert_eq!(reason(other.take_shard(5)).await, Reason::NotLeader);
        assert!(owned.holds());
        assert!(owned.epoch() > epoch, "epochs grow");
        epoch = owned.epoch();
        owner.release_shard(owned).await.unwrap();
    }
    assert!(
        epoch > u64::try_from(now_ms()).unwrap() - 60_000,
        "at least the time"
    );
    let shards = one.take_all().await.unwrap();
    assert_eq!(shards.all().len(), usize::from(SHARDS));
    one.close().await.unwrap();
    two.take_all()
        .await
        .expect("a store that was closed owns nothing");
    assert_eq!(reason(two.take_shard(SHARDS)).await, Reason::Internal);
}

/// Also over the epochs that others have had since it began to wait for the lead.
pub async fn who_has_waited_for_the_lead_has_it_under_a_higher_epoch(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    for round in 0..3 {
        let (leads, waits, quick) = (
            open(&backend).await,
            open(&backend).await,
            open(&backend).await,
        );
        let shards = leads.take_all().await.unwrap();
        let (vacant, ()) = tokio::join!(waits.vacancy(), async {
            tokio::task::yield_now().await;
            leads.release_all(&shards).await.unwrap();
        });
        vacant.unwrap();
        // One of the first ones that are taken, or of the last, or all.
        let between = match round {
            0 => vec![quick.take_shard(0).await.unwrap()],
            1 => vec![quick.take_shard(SHARDS - 1).await.unwrap()],
            _ => quick.take_all().await.unwrap().all().to_vec(),
        };
        for owned in &between {
            quick.release_shard(owned.clone()).await.unwrap();
        }
        let taken = waits.take_all().await.unwrap();
        for before in shards.all().iter().chain(&between) {
            let after = &taken.all()[usize::from(before.shard())];
            assert!(before.epoch() < after.epoch());
        }
        waits.confirm(&taken).await.unwrap();
        waits.release_all(&taken).await.unwrap();
    }
}

/// Who cannot have all of the lead does not take it for another one's: the part that it has is to be given up.
pub async fn half_a_lead_is_not_that_of_another(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let (one, two) = (open(&backend).await, open(&backend).await);
    let last = one.take_shard(SHARDS - 1).await.unwrap();
    assert_eq!(reason(two.take_all()).await, Reason::Unavailable);
    two.close().await.unwrap();
    one.release_shard(last).await.unwrap();
    one.take_all().await.expect("nobody has any of it");
}

/// A lease can end before its holder can know, which then finds out by looking.
pub async fn a_lease_that_ended_early_is_found_out_by_looking(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let one = open(&backend).await;
    let shards = one.take_all().await.unwrap();
    one.confirm(&shards).await.unwrap();
    if backend.info().exclusive {
        return;
    }
    let replicas = one.replicas().await.unwrap();
    let lease = replicas
        .iter()
        .find(|replica| replica.is_this)
        .unwrap()
        .lease;
    backend.revoke(lease.unwrap()).await.unwrap();
    assert_eq!(reason(one.confirm(&shards)).await, Reason::NotLeader);
    let two = open(&backend).await;
    let taken = two.take_all().await.unwrap();
    two.confirm(&taken).await.unwrap();
    assert_eq!(reason(one.confirm(&shards)).await, Reason::NotLeader);
}

/// The old proof writes nothing any more, and no proof writes a cluster of another shard.
pub async fn an_owner_that_handed_over_is_refused(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let (one, two) = (open(&backend).await, open(&backend).await);
    let (uid, desired) = one.create_cluster(wanted("shop")).await.unwrap();
    let old = one.take_shard(shard_of(uid)).await.unwrap();
    let head = add_nodes(&one, &old, uid, 2).await;
    one.release_shard(old.clone()).await.unwrap();
    assert_eq!(
        reason(one.step(&old, one_node(uid, &head), Lane::Urgent)).await,
        Reason::Fenced,
        "nobody owns it"
    );
    let new = two.take_shard(shard_of(uid)).await.unwrap();
    assert_eq!(
        reason(one.step(&old, one_node(uid, &head), Lane::Urgent)).await,
        Reason::Fenced
    );
    assert_eq!(
        reason(one.finish_cluster(&old, finish(uid, "shop", desired, head.clone()))).await,
        Reason::Precondition
    );
    assert_eq!(check_consistent(&two, uid).await, 2);
    let elsewhere = two.take_shard((shard_of(uid) + 1) % SHARDS).await.unwrap();
    assert_eq!(
        reason(two.step(&elsewhere, one_node(uid, &head), Lane::Bulk)).await,
        Reason::Internal
    );
    two.step(&new, one_node(uid, &head), Lane::Bulk)
        .await
        .unwrap();
    assert_eq!(check_consistent(&two, uid).await, 3);
}
