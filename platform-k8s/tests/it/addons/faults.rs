//! Every call of a request and of a removal with every fault of the API server.

use drover_platform::addons::Addons as _;
use drover_proto::platform::v1::ResourcePhase;
use drover_testing::kubernetes::{Fault, On, refusal, until};

use super::{Bench, bench::balancer, mapping, target};

fn faults() -> Vec<(String, Fault)> {
    let mut faults = vec![
        ("429".to_owned(), Fault::Throttle { seconds: 1 }),
        ("cut off before".to_owned(), Fault::Disconnect),
        ("cut off after".to_owned(), Fault::LoseAnswer),
        ("half an answer".to_owned(), Fault::CutAnswer),
    ];
    for (code, reason) in [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (409, "Conflict"),
        (410, "Expired"),
        (500, "InternalError"),
    ] {
        let (status, body) = refusal(code, reason, "no");
        faults.push((code.to_string(), Fault::Refuse(status, body)));
    }
    faults
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_any_fault_ends_well_when_it_is_repeated_and_so_does_a_removal() {
    let bench = Bench::start().await;
    let wanted = balancer(vec![mapping(None, 80, 1)], vec![target("a", "192.0.2.1")]);
    for (name, fault) in faults() {
        // A list, the first object and the last one.
        for on in [
            On::call("list", "secrets"),
            On::call("patch", "services"),
            On::call("patch", "deployments.apps"),
        ] {
            bench.proxy.fail(on, fault.clone());
            let first = bench.ensure(&wanted).await;
            assert_eq!(bench.proxy.faults_left(), 0, "{name}: the call was made");
            drop(first);
            bench
                .ensure(&wanted)
                .await
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(bench.objects().await.len(), 4, "{name}");

            bench
                .proxy
                .fail(On::call("delete", "services"), fault.clone());
            drop(bench.addons.remove(&bench.owner, "api").await);
            assert_eq!(bench.proxy.faults_left(), 0, "{name}: the call was made");
            bench.remove("api").await;
            assert!(bench.objects().await.is_empty(), "{name}");
        }
    }
}

/// Where it is reached, and what it serves, depends on pods that were not listed.
#[tokio::test(flavor = "multi_thread")]
async fn an_addon_whose_pods_were_listed_before_they_were_ready_is_not_ready() {
    let bench = Bench::start().await;
    let wanted = balancer(vec![mapping(None, 80, 1)], vec![target("a", "192.0.2.1")]);
    // The first list is for what there is to do, the second one for the state: until it is answered, pods get ready.
    let second = On::call("list", "deployments.apps").nth(2);
    bench.proxy.fail(second, Fault::Throttle { seconds: 3 });
    let progress = bench.ensure(&wanted).await.unwrap();
    assert_eq!(bench.proxy.faults_left(), 0);
    let deployment = bench.object("deployments.apps", "").await;
    assert_eq!(deployment["status"]["availableReplicas"], 2);
    let state = progress.state;
    assert_eq!(state.phase(), ResourcePhase::Pending, "{state:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_incomplete_is_an_error_and_an_unknown_addon_is_gone() {
    let bench = Bench::start().await;
    let wanted = balancer(vec![mapping(None, 80, 1)], vec![target("a", "192.0.2.1")]);
    bench.ensure(&wanted).await.unwrap();
    for resource in ["secrets", "pods", "deployments.apps"] {
        // What runs beside it may meet the fault instead.
        until("a list meets the fault", || async {
            let (status, body) = refusal(500, "InternalError", "no");
            bench
                .proxy
                .fail(On::call("list", resource), Fault::Refuse(status, body));
            bench.addons.list(None).await.err()
        })
        .await;
    }
    let gone = bench.addons.remove(&bench.owner, "other").await.unwrap();
    assert_eq!(gone.state.phase(), ResourcePhase::Gone);
    assert_eq!(gone.poll_after, None);
}
