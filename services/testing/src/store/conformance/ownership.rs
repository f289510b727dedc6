//! Checks of who owns shards, and of who leads.

use std::{sync::Arc, time::Duration};

use drover_core::Reason;
use drover_store::{
    Backend, Lane, ReplicaRow, SHARDS, Shards, Store, Vacant,
    backend::{CommitError, Fence, Txn},
    keys::{Key, Name},
    shard_of,
};

use super::{
    Make, Subject, add_nodes, check_consistent, finish, now_ms, one_node, open, reason, wanted,
    within,
};
use crate::store::{Fault, FaultBackend};

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

/// How long a lease goes on whose holder gives nothing up.
const LEASE_ENDS: Duration = Duration::from_millis(200);

async fn this(store: &Store) -> ReplicaRow {
    let mut replicas = store.replicas().await.unwrap().into_iter();
    replicas.find(|replica| replica.is_this).unwrap()
}

async fn hand_over(from: &Store, shards: &Shards, to: &Store) -> drover_core::Result<Option<u64>> {
    let to = this(to).await;
    from.hand_over(shards, &to.name, to.lease.unwrap()).await
}

/// The fences of whoever has the shards now.
async fn claims(backend: &Arc<dyn Backend>) -> Vec<Fence> {
    let mut claims = Vec::new();
    for shard in 0..SHARDS {
        let key: Key = Name::Owner(shard).into();
        let made_at = backend.get(&key).await.unwrap().unwrap().revision;
        claims.push(Fence { key, made_at });
    }
    claims
}

/// Whether nothing that is still on its way under these claims can be written.
async fn is_fenced(backend: &Arc<dyn Backend>, claims: &[Fence]) -> bool {
    for claim in claims {
        let late = Txn {
            fence: Some(claim.clone()),
            ..Txn::default()
        };
        let late = late.put(Name::ClusterName("late".to_owned()).into(), "x");
        if backend.commit(late, Lane::Urgent).await != Err(CommitError::Fenced) {
            return false;
        }
    }
    true
}

fn are_higher(epochs: &Shards, than: &Shards) -> bool {
    let mut pairs = epochs.all().iter().zip(than.all());
    pairs.all(|(after, before)| before.epoch() < after.epoch())
}

/// Nobody else can take it in between, and who had it writes nothing any more.
pub async fn a_lead_is_handed_to_one_replica_and_no_other(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let stores = [
        open(&backend).await,
        open(&backend).await,
        open(&backend).await,
    ];
    let (uid, _) = stores[0].create_cluster(wanted("shop")).await.unwrap();
    let mut shards = stores[0].take_all().await.unwrap();
    add_nodes(&stores[0], shards.of(uid), uid, 1).await;
    // Each has it once, and the first one waits for it before it is handed on, the others afterwards.
    for (round, to) in [1, 2].into_iter().enumerate() {
        let (from, to, other) = (&stores[to - 1], &stores[to], &stores[(to + 1) % 3]);
        let claims = claims(&backend).await;
        let (given, vacant) = if round == 0 {
            tokio::join!(
                async {
                    tokio::task::yield_now().await;
                    hand_over(from, &shards, to).await
                },
                within("the lead is given", to.vacancy())
            )
        } else {
            let given = hand_over(from, &shards, to).await;
            (given, within("the lead is given", to.vacancy()).await)
        };
        let epoch = given.unwrap().expect("it lives");
        assert_eq!(vacant.unwrap(), Vacant::Given { epoch });
        if round == 0 {
            assert_eq!(reason(other.take_all()).await, Reason::NotLeader);
        }
        assert!(is_fenced(&backend, &claims).await);
        assert!(!from.holds() && !shards.of(uid).holds());
        let taken = to.take_all().await.unwrap();
        assert!(are_higher(&taken, &shards));
        to.confirm(&taken).await.unwrap();
        add_nodes(to, taken.of(uid), uid, 1).await;
        shards = taken;
    }
    assert_eq!(check_consistent(&stores[2], uid).await, 3);
}

/// It is still there to be released then.
pub async fn a_lead_is_not_handed_to_a_replica_that_has_ended(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let (one, two, three) = (
        open(&backend).await,
        open(&backend).await,
        open(&backend).await,
    );
    let shards = one.take_all().await.unwrap();
    let ended = this(&two).await;
    two.close().await.unwrap();
    let given = one.hand_over(&shards, &ended.name, ended.lease.unwrap());
    assert_eq!(given.await.unwrap(), None);
    assert_eq!(reason(three.take_all()).await, Reason::NotLeader);
    one.release_all(&shards).await.unwrap();
    assert_eq!(three.vacancy().await.unwrap(), Vacant::Free);
    assert!(are_higher(&three.take_all().await.unwrap(), &shards));
}

/// Whichever part of it is written, and whether its writer knows or is killed: once its lease has ended the next one has all.
pub async fn a_hand_over_that_is_cut_off_leaves_a_lead_for_the_next_one(make: Make<'_>) {
    let faults = [
        Fault::Refused,
        Fault::Full,
        Fault::LostRequest,
        Fault::LostAnswer,
        Fault::CrashBefore,
        Fault::CrashAfter,
    ];
    for (fault, nth) in faults
        .into_iter()
        .flat_map(|fault| [(fault, 1), (fault, 2)])
    {
        let Subject { backend, _keep } = make();
        let faulty = Arc::new(FaultBackend::new(Arc::clone(&backend)));
        let one = open(&(Arc::clone(&faulty) as Arc<dyn Backend>)).await;
        let two = open(&backend).await;
        let (uid, _) = one.create_cluster(wanted("shop")).await.unwrap();
        let shards = one.take_all().await.unwrap();
        add_nodes(&one, shards.of(uid), uid, 1).await;
        let claims = claims(&backend).await;
        let (own, to) = (this(&one).await.lease.unwrap(), this(&two).await);
        faulty.inject(nth, fault);
        let handing_over = tokio::select! {
            given = one.hand_over(&shards, &to.name, to.lease.unwrap()) => given,
            () = faulty.wait_crash() => Ok(None),
        };
        let is_resolved = matches!(fault, Fault::LostRequest | Fault::LostAnswer);
        assert_eq!(
            handing_over.is_ok_and(|given| given.is_some()),
            is_resolved,
            "{fault:?} of {nth}"
        );
        // A part may be another one's for a while.
        let (vacant, ()) = tokio::join!(within("there is a lead", two.vacancy()), async {
            tokio::time::sleep(LEASE_ENDS).await;
            backend.revoke(own).await.unwrap();
        });
        vacant.unwrap();
        let taken = two.take_all().await;
        let taken = taken.unwrap_or_else(|error| panic!("{fault:?} of {nth}: {error}"));
        assert!(are_higher(&taken, &shards));
        assert!(is_fenced(&backend, &claims).await);
        add_nodes(&two, taken.of(uid), uid, 1).await;
        assert_eq!(check_consistent(&two, uid).await, 2);
    }
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
