//! Every call to the API server with every fault: nothing is lost, duplicated or left over. The result is read from the
//! API server itself, in every kind that it can list.

use crate::bench;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use bench::{Bench, index, kinds, one_each};
use drover_core::Class;
use drover_proto::platform::v1::{DeprovisionState, ProvisionRequest};
use drover_testing::kubernetes::{Call, Fault, On, until};
use futures::future::join_all;

/// Number of nodes in a request.
const COUNT: u32 = 2;
/// More calls than any creation or removal of that many nodes makes.
const MOST_CALLS: usize = 120;

/// The objects of a node of the store `rich`.
const RICH: [&str; 4] = ["configmaps", "persistentvolumeclaims", "pods", "services"];

fn expected(nodes: usize) -> BTreeMap<String, usize> {
    RICH.into_iter()
        .filter(|_| nodes > 0)
        .map(|kind| (kind.to_owned(), nodes))
        .collect()
}

/// Platforms that share the calls of one sweep: they mostly wait for controllers.
const WORKERS: usize = 4;

async fn bench() -> Bench {
    Bench::with(|settings| {
        // Few kinds are enough: lists of all kinds behave alike.
        settings.kinds = RICH.map(str::to_owned).to_vec();
        settings.kinds.sort_by_key(|kind| kind != "pods");
    })
    .await
}

/// Runs a case for n = 1, 2, … until it reports that there is no n-th call.
async fn sweep(fault: &Fault, case: impl AsyncFn(&Bench, usize) -> bool) {
    let (next, over) = (AtomicUsize::new(1), AtomicBool::new(false));
    let worker = async || {
        let bench = bench().await;
        while !over.load(Ordering::Relaxed) {
            let n = next.fetch_add(1, Ordering::Relaxed);
            assert!(n < MOST_CALLS, "{fault:?}: the calls do not end");
            if !case(&bench, n).await {
                over.store(true, Ordering::Relaxed);
            }
        }
    };
    join_all((0..WORKERS).map(|_| worker())).await;
    let calls = next.load(Ordering::Relaxed);
    assert!(calls > 8, "{fault:?}: there are more than {calls} calls");
}

/// Provisions while the fault hits the n-th call. Returns the request, a description, and whether the call was made.
async fn provision_with(
    bench: &Bench,
    fault: &Fault,
    n: usize,
) -> (ProvisionRequest, String, bool) {
    let request = bench.request("rich", COUNT).await;
    let from = bench.proxy().calls().len();
    bench.proxy().fail(On::any().nth(n), fault.clone());
    let outcome = bench.provision(&request).await;
    let met = bench.proxy().faults_left() == 0;
    let befallen = befallen(&bench.proxy().calls()[from..]);
    let what = format!("{}, call {n} {befallen}: {outcome:?}", fault.name());
    match &outcome {
        Ok(answer) => assert_eq!(answer.failures, vec![], "{what}"),
        Err(error) => assert_eq!(error.class(), Class::Unknown, "{what}"),
    }
    bench.recover(fault).await;
    (request, what, met)
}

/// Injects the fault into the n-th call of a creation, for every n.
async fn whatever_befalls_a_creation(fault: Fault) {
    sweep(&fault, async |bench, n| {
        let (request, what, met) = provision_with(bench, &fault, n).await;
        let nodes = bench.whole(&request, &what).await;
        one_each(&nodes, &request, &what);
        one_each(&bench.nodes().await, &request, &what);
        let things = bench.namespace.everything().await;
        assert_eq!(kinds(&things), expected(nodes.len()), "{what}: {things:?}");
        bench.clean(&what).await;
        met
    })
    .await;
}

/// The same, but the request is not repeated: all created nodes are listed, and can be removed.
async fn what_an_abandoned_creation_made_is_listed(fault: Fault) {
    sweep(&fault, async |bench, n| {
        let (_, what, met) = provision_with(bench, &fault, n).await;
        bench.clean(&what).await;
        met
    })
    .await;
}

/// Injects the fault into the n-th call of a removal, for every n.
async fn whatever_befalls_a_removal(fault: Fault) {
    let calls = calls_of_a_removal(&bench().await).await;
    assert!(calls >= 4, "a removal has more than {calls} calls");
    sweep(&fault, async |bench, n| {
        let (_, nodes) = bench.make("rich", COUNT).await;
        let from = bench.proxy().calls().len();
        bench.proxy().fail(On::any().nth(n), fault.clone());
        let outcome = bench.deprovision(&nodes[0]).await;
        let befallen = befallen(&bench.proxy().calls()[from..]);
        let what = format!("{}, call {n} {befallen}: {outcome:?}", fault.name());
        match &outcome {
            Ok(answer) => assert_ne!(answer.state(), DeprovisionState::Unspecified, "{what}"),
            Err(error) => assert_eq!(error.class(), Class::Unknown, "{what}"),
        }
        bench.recover(&fault).await;
        bench.remove(&nodes[0], &what).await;
        let left = bench.nodes().await;
        assert_eq!(left.len(), 1, "{what}: {left:?}");
        assert_eq!(
            (&left[0].node_id, &left[0].slot),
            (&nodes[1].node_id, &nodes[1].slot)
        );
        until(
            &format!("{what}: the other one is all that is left"),
            || async {
                let things = bench.namespace.everything().await;
                (kinds(&things) == expected(1)).then_some(())
            },
        )
        .await;
        bench.clean(&what).await;
        n < calls.max(9)
    })
    .await;
}

/// Number of calls in the first Deprovision of a node, without faults.
async fn calls_of_a_removal(bench: &Bench) -> usize {
    let (_, nodes) = bench.make("rich", 1).await;
    bench.until_running().await;
    let from = bench.proxy().calls().len();
    bench.deprovision(&nodes[0]).await.unwrap();
    let calls = bench.proxy().calls();
    let counted = calls[from..]
        .iter()
        .filter(|call| call.verb != "watch")
        .count();
    bench.clean("nothing befalls it").await;
    counted
}

/// The calls that were hit by a fault.
fn befallen(calls: &[Call]) -> String {
    let befallen: Vec<&Call> = calls.iter().filter(|call| call.fault.is_some()).collect();
    format!("{befallen:?}")
}

macro_rules! every_fault {
    ($($name:ident: $fault:expr,)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn in_a_creation_makes_each_slot_once() {
                whatever_befalls_a_creation($fault).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn in_an_abandoned_creation_hides_nothing() {
                what_an_abandoned_creation_made_is_listed($fault).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn in_a_removal_removes_the_node_and_no_other() {
                whatever_befalls_a_removal($fault).await;
            }
        }
    )*};
}

every_fault! {
    an_error_before: Fault::internal(),
    an_error_after: Fault::internal_after(),
    a_closed_connection: Fault::Disconnect,
    a_lost_answer: Fault::LoseAnswer,
    a_cut_answer: Fault::CutAnswer,
    a_crash_before: Fault::DieBefore,
    a_crash_after: Fault::DieAfter,
}

/// A call without any answer takes until its timeout, so not every call is tried; a slow answer arrives before it.
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_at_all_is_an_unknown_outcome() {
    let bench = Bench::with(|settings| settings.call_timeout_seconds = 3.0).await;
    for fault in [Fault::Stall, Fault::StallAfter] {
        for kind in RICH {
            let what = format!("{fault:?} of {kind}");
            let request = bench.request("rich", COUNT).await;
            bench.proxy().fail(On::call("create", kind), fault.clone());
            let answer = bench.provision(&request).await;
            assert_eq!(bench.proxy().faults_left(), 0, "{what}");
            match answer {
                Ok(answer) => {
                    assert_eq!(answer.failures, vec![], "{what}");
                    assert_eq!(answer.unknown.len(), 1, "{what}: {answer:?}");
                    assert_eq!(answer.nodes.len(), 1, "{what}: {answer:?}");
                }
                Err(error) => assert_eq!(error.class(), Class::Unknown, "{what}: {error:?}"),
            }
            let nodes = bench.whole(&request, &what).await;
            one_each(&nodes, &request, &what);
            bench.clean(&what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn throttling_slows_everything_down_and_loses_nothing() {
    let bench = Bench::start().await;
    for n in 1..=6 {
        let request = bench.request("rich", COUNT).await;
        let from = bench.proxy().calls().len();
        bench
            .proxy()
            .fail(On::any().nth(n), Fault::Throttle { seconds: 1 });
        let outcome = bench.provision(&request).await;
        assert_eq!(bench.proxy().faults_left(), 0, "call {n}");
        if let Err(error) = &outcome {
            assert_eq!(error.class(), Class::Unknown, "call {n}: {error:?}");
        }
        let nodes = bench.whole(&request, "throttled").await;
        one_each(&nodes, &request, "throttled");
        let calls = bench.proxy().calls();
        let calls = &calls[from..];
        let at = calls.iter().position(|call| call.fault.is_some()).unwrap();
        // Calls that were already under way do not count. A stall may delay those, one of each slot, beyond this time.
        let under_way = calls[at].at + Duration::from_millis(500);
        let early: Vec<&Call> = calls[at + 1..]
            .iter()
            .filter(|call| {
                call.at > under_way && call.at < calls[at].at + Duration::from_millis(950)
            })
            .collect();
        assert!(
            early.len() <= COUNT as usize,
            "call {n}: {early:?} came before the second was over"
        );
        let things = bench.namespace.everything().await;
        assert_eq!(kinds(&things), expected(nodes.len()), "call {n}");
        bench.clean("throttled").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_fails_is_an_error_and_never_a_short_list() {
    let bench = Bench::with(|settings| settings.page_size = 3).await;
    let (_, nodes) = bench.make("pod", 8).await;
    let faults = [
        Fault::internal(),
        Fault::Disconnect,
        Fault::CutAnswer,
        Fault::LoseAnswer,
        Fault::expired(),
    ];
    for fault in faults {
        // The first page succeeds, the second fails.
        bench
            .proxy()
            .fail(On::call("list", "pods").nth(2), fault.clone());
        match bench.list(&bench.cluster).await {
            Err(error) => assert!(error.class() != Class::Cannot, "{fault:?}: {error:?}"),
            // An expired list may be read again from the first page.
            Ok((listed, _)) => assert_eq!(listed.len(), nodes.len(), "{fault:?}"),
        }
        assert_eq!(bench.proxy().faults_left(), 0, "{fault:?}");
        assert_eq!(bench.nodes().await.len(), nodes.len(), "{fault:?}");
    }
    let mut ids: Vec<u32> = bench.nodes().await.iter().map(index).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..8).collect::<Vec<_>>());
    bench.clean("pages").await;
}
