//! The maintenance of an etcd of three members, and what is known of its room.

use std::collections::BTreeMap;

use drover_core::Reason;
use drover_store::{
    Backend, Lane,
    backend::{CommitError, Txn},
    keys::{Key, Name},
};
use drover_store_etcd::{EtcdBackend, EtcdSettings, Maintenance, Report};
use drover_testing::{etcd::Etcd, store::conformance::eventually};

use crate::{
    one::settings,
    users::{self, PASSWORD},
};

const MIB: u64 = 1024 * 1024;
const QUOTA: u64 = 16 * MIB;

fn key(i: usize) -> Key {
    Name::ClusterName(i.to_string()).into()
}

fn maintenance(etcd: &Etcd) -> Maintenance {
    Maintenance::new(&settings(etcd, "drover/")).unwrap()
}

async fn opened(etcd: &Etcd) -> EtcdBackend {
    EtcdBackend::open(&settings(etcd, "drover/")).await.unwrap()
}

/// Numbers of the members that were defragmented, in order.
fn order(etcd: &Etcd, report: &Report) -> Vec<usize> {
    let mut turns: Vec<(usize, usize)> = Vec::new();
    for member in &report.members {
        let at = etcd
            .endpoints()
            .iter()
            .position(|it| *it == member.endpoint);
        let turn = member.defragmented.as_ref().map(|it| it.turn);
        turns.extend(turn.zip(at));
    }
    turns.sort_unstable();
    turns.into_iter().map(|(_, at)| at).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_was_filled_takes_writes_again_and_has_lost_nothing() {
    let quota = QUOTA.to_string();
    let etcd = Etcd::with_flags(3, &["--quota-backend-bytes", &quota]);
    let backend = opened(&etcd).await;
    let mut known = BTreeMap::new();
    let mut unsure = None;
    for i in 0..200_usize {
        let value = vec![u8::try_from(i % 251).unwrap(); 300_000];
        match backend
            .commit(Txn::default().put(key(i % 8), value.clone()), Lane::Bulk)
            .await
        {
            Ok(_) => drop(known.insert(i % 8, value)),
            Err(CommitError::StorageFull) => {
                unsure = Some((i % 8, value));
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let (last, last_value) = unsure.expect("it is full by now");
    eventually("every member knows of the alarm", async || {
        backend.space().await.is_ok_and(|space| space.alarmed)
    })
    .await;
    let refused = backend
        .commit(Txn::default().put(key(9), "new"), Lane::Bulk)
        .await;
    assert_eq!(refused, Err(CommitError::StorageFull));

    // Far larger than any member: it does not matter now.
    let report = maintenance(&etcd).run(1024 * MIB).await;
    assert!(report.failure.is_none(), "{report:?}");
    assert!(report.alarmed && report.compacted.is_some() && report.disarmed);
    assert_eq!(order(&etcd, &report).len(), 3, "{report:?}");

    let space = backend.space().await.unwrap();
    assert!(!space.alarmed && space.used < QUOTA / 2, "{space:?}");
    let reads: &dyn Backend = &backend;
    for (i, value) in known {
        let found = reads.get(&key(i)).await.unwrap().unwrap().value;
        // What came last may have been written all the same.
        assert!(found == value || (i == last && found == last_value), "{i}");
    }
    for i in 10..20 {
        backend
            .commit(Txn::default().put(key(i), vec![0; 100_000]), Lane::Bulk)
            .await
            .unwrap();
    }
}

/// Leaves each member of an etcd with much that is not used.
async fn leave_holes(etcd: &Etcd, backend: &EtcdBackend) {
    for i in 0..40 {
        backend
            .commit(Txn::default().put(key(i), vec![0; 500_000]), Lane::Bulk)
            .await
            .unwrap();
    }
    let mut revision = 0;
    for i in 0..40 {
        revision = backend
            .commit(Txn::default().delete(key(i)), Lane::Bulk)
            .await
            .unwrap();
    }
    backend.compact(revision).await.unwrap();
    for endpoint in etcd.endpoints() {
        let mut alone = settings(etcd, "drover/");
        alone.endpoints = vec![endpoint];
        let member = EtcdBackend::open(&alone).await.unwrap();
        eventually("what was deleted is discarded", async || {
            // What a transaction frees is known with the next one.
            let next = Txn::default().put(key(99), "");
            backend.commit(next, Lane::Bulk).await.unwrap();
            let space = member.space().await.unwrap();
            space.in_use < MIB && space.used > 16 * MIB
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_which_little_is_used_shrink_one_by_one_the_leader_last() {
    let etcd = Etcd::start(3);
    let backend = opened(&etcd).await;
    leave_holes(&etcd, &backend).await;
    let small = maintenance(&etcd).run(64 * MIB).await;
    assert!(small.failure.is_none(), "{small:?}");
    assert!(order(&etcd, &small).is_empty(), "not worth it: {small:?}");

    let report = maintenance(&etcd).run(MIB).await;
    assert!(report.failure.is_none() && !report.alarmed, "{report:?}");
    let order = order(&etcd, &report);
    assert_eq!(order.len(), 3, "{report:?}");
    assert_eq!(order.last(), Some(&etcd.leader()), "{report:?}");
    for member in &report.members {
        let done = member.defragmented.as_ref().unwrap();
        assert!(
            member.size > 16 * MIB && done.size.unwrap() < MIB,
            "{report:?}"
        );
        assert_eq!(member.leads, done.turn == 2, "{report:?}");
    }
    assert!(backend.space().await.unwrap().used < MIB);

    let again = maintenance(&etcd).run(0).await;
    assert!(again.failure.is_none(), "{again:?}");
    let done = again.members.iter().any(|it| it.defragmented.is_some());
    assert!(!done, "nothing is left to do: {again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_member_down_nothing_is_defragmented_and_it_is_named() {
    let mut etcd = Etcd::start(3);
    let backend = opened(&etcd).await;
    leave_holes(&etcd, &backend).await;
    let down = (etcd.leader() + 1) % 3;
    etcd.kill(down);
    let report = maintenance(&etcd).run(0).await;
    let failure = report.failure.as_ref().expect("a member is down");
    let endpoint = &etcd.endpoints()[down];
    assert_eq!(failure.reason(), Reason::Unavailable);
    assert!(failure.message().contains(endpoint), "{failure}");
    assert!(order(&etcd, &report).is_empty(), "{report:?}");
    assert!(report.members[down].trouble.is_some(), "{report:?}");
    assert!(backend.space().await.unwrap().used > 16 * MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_the_members_is_not_looked_after_alone() {
    let etcd = Etcd::start(3);
    let mut some = settings(&etcd, "drover/");
    let missing = some.endpoints.pop().unwrap();
    let report = Maintenance::new(&some).unwrap().run(0).await;
    let failure = report.failure.as_ref().expect("one is not listed");
    assert_eq!(failure.reason(), Reason::Invalid);
    assert!(failure.message().contains(&missing), "{failure}");
    assert!(order(&etcd, &report).is_empty());
}

#[tokio::test]
async fn a_member_that_is_listed_twice_or_not_at_all_is_named() {
    let etcd = Etcd::start(1);
    let mut twice = settings(&etcd, "drover/");
    let other = twice.endpoints[0].replace("127.0.0.1", "localhost");
    twice.endpoints.push(other.clone());
    let report = Maintenance::new(&twice).unwrap().run(0).await;
    let failure = report.failure.expect("one member under two names");
    assert_eq!(failure.reason(), Reason::Invalid);
    assert!(failure.message().contains(&other), "{failure}");

    let none = settings(&etcd, "drover/");
    let none = EtcdSettings {
        endpoints: Vec::new(),
        ..none
    };
    assert!(Maintenance::new(&none).is_err());
}

/// With authentication on, only the role `root` may do it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_may_not_is_told_of_the_role() {
    let etcd = Etcd::start(1);
    leave_holes(&etcd, &opened(&etcd).await).await;
    users::make(&etcd);
    users::ask(&etcd, true);
    let file = tempfile::NamedTempFile::new().unwrap();
    let password = file.path();
    let of = async |user: Option<&str>| {
        let settings = EtcdSettings {
            user: user.map(str::to_owned),
            password_file: user.map(|_| password.to_owned()),
            ..settings(&etcd, "drover/")
        };
        Maintenance::new(&settings).unwrap().run(0).await
    };
    std::fs::write(password, PASSWORD).unwrap();
    for nobody in [None, Some("drover")] {
        let failure = of(nobody).await.failure.expect("this is not root");
        assert_eq!(failure.reason(), Reason::Precondition, "{failure}");
        assert!(failure.message().contains("role `root`"), "{failure}");
    }
    let report = of(Some("root")).await;
    assert!(report.failure.is_none(), "{report:?}");
    assert_eq!(order(&etcd, &report), [0], "{report:?}");

    std::fs::write(password, "not this one").unwrap();
    let failure = of(Some("root")).await.failure.expect("a wrong password");
    assert_eq!(failure.reason(), Reason::Precondition, "{failure}");
    let message = failure.message();
    assert!(message.contains("etcd refuses user \"root\""), "{message}");
}
