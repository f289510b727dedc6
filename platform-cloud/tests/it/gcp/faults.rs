//! Every mutating call with every fault: nothing is lost, nothing is created twice.

use std::time::Duration;

use drover_core::Class;
use drover_emulators::{
    Fault, Settings as Common,
    gce::{Gce, GceSettings},
};
use drover_proto::platform::v1::{
    DeprovisionState, Node, NodeChange, NodePhase, NodeRole, ProvisionRequest, UpdateNodeRequest,
};

use futures::{StreamExt, stream};

use drover_testing::platform::{caller::fence, requests};
use uuid::Uuid;

use super::bench::{Bench, CALL_TIMEOUT, serve, settings, until};

const INSERT: &str = "instances.insert";
const WAIT: &str = "zoneOperations.wait";
const DELETE: &str = "instances.delete";
const LABELS: &str = "instances.setLabels";
/// The changing calls.
pub(crate) const ROWS: [&str; 3] = [INSERT, DELETE, LABELS];

/// All faults that leave the outcome open or guarantee that nothing was done.
fn faults() -> Vec<(&'static str, Fault)> {
    vec![
        (
            "refused before",
            Fault::refuse(503, "backendError", "Backend error"),
        ),
        (
            "error after doing it",
            Fault::refuse_after(503, "backendError", "Backend error"),
        ),
        (
            "internal error after doing it",
            Fault::refuse_after(500, "internalError", "Internal"),
        ),
        ("answer lost", Fault::LoseAnswer),
        ("answer cut", Fault::CutAnswer),
        ("throttled", Fault::Throttle { retry_after: None }),
        (
            "throttled for a time",
            Fault::Throttle {
                retry_after: Some(Duration::from_secs(1)),
            },
        ),
        ("connection refused", Fault::Refused),
        (
            "answer too late",
            Fault::Stall(CALL_TIMEOUT + Duration::from_millis(300)),
        ),
    ]
}

/// The same, a refusal for good, and an operation that fails after it was accepted: for calls after which what was asked
/// for can be asked for again.
fn faults_and_failures() -> Vec<(&'static str, Fault)> {
    let mut faults = faults();
    faults.push((
        "forbidden",
        Fault::refuse(403, "forbidden", "Required permission is missing."),
    ));
    faults.push(("fails later", failure()));
    faults
}

fn failure() -> Fault {
    Fault::later("INTERNAL_ERROR", "Internal error. Please try again.")
}

/// Runs a few cases concurrently; each has its own API and platform.
async fn all<F: Future<Output = ()>>(cases: impl IntoIterator<Item = F>) {
    stream::iter(cases)
        .buffer_unordered(4)
        .collect::<Vec<()>>()
        .await;
}

/// New machines are invisible to lists for a while, which is the harder case.
async fn bench() -> Bench {
    Bench::with(GceSettings {
        common: Common {
            visibility_delay: Duration::from_millis(300),
            pending_delay: Duration::from_millis(50),
            stopping_delay: Duration::from_millis(50),
            ..Common::default()
        },
        ..GceSettings::default()
    })
    .await
}

async fn meets_a_fault(operation: &str, name: &str, fault: Fault, crash: bool) {
    let what = format!("{operation}, {name}, crash: {crash}");
    let mut bench = bench().await;
    let request = bench.request(3);
    bench.gce.control().fail_next(operation, fault);
    let first = bench.provision(&request).await;
    if crash {
        bench.crash().await;
    }
    let answer = bench.provision_until_known(&request).await;
    assert_eq!(answer.failures, vec![], "{what}, first {first:?}");
    assert_eq!(answer.nodes.len(), 3, "{what}");
    assert_eq!(bench.gce.machines().len(), 3, "{what}");
    assert_eq!(
        bench.gce.control().faults_left(),
        0,
        "{what}: the fault was met"
    );
    bench.assert_nothing_doubled(&what);
    bench.assert_nothing_leaked(&what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_that_meets_any_fault_makes_each_machine_once() {
    let mut cases = Vec::new();
    for (name, fault) in faults() {
        for crash in [false, true] {
            cases.push(meets_a_fault(INSERT, name, fault.clone(), crash));
        }
    }
    all(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_an_operation_that_meets_any_fault_makes_each_machine_once() {
    let mut cases = Vec::new();
    for (name, fault) in faults() {
        for crash in [false, true] {
            cases.push(meets_a_fault(WAIT, name, fault.clone(), crash));
        }
    }
    all(cases).await;
}

/// The process is killed while a call is in flight: its tasks end where they are.
async fn killed(operation: &'static str, fault: Option<Fault>, what: &str) {
    let gce = Gce::start(GceSettings {
        common: Common {
            visibility_delay: Duration::from_millis(300),
            ..Common::default()
        },
        ..GceSettings::default()
    })
    .await
    .unwrap();
    let bench = Bench::over(gce.clone(), settings(&gce)).await;
    let victim = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let settings = bench.settings.clone();
    let server = victim.spawn(async move { serve(&settings).await.unwrap() });
    let server = server.await.unwrap();
    // The victim does not take it for one from before its time.
    let request = bench.request(3);
    gce.control().clear_requests();
    if let Some(fault) = fault {
        gce.control().fail_next(operation, fault);
    }
    let of_victim = request.clone();
    victim.spawn(async move {
        let mut client =
            drover_proto::platform::v1::platform_service_client::PlatformServiceClient::new(
                drover_client::in_process(server.routes()),
            );
        let _ = client.provision(of_victim).await;
        std::future::pending::<()>().await;
    });
    gce.control().wait_for(operation, 1).await;
    victim.shutdown_background();
    let mut bench = bench;
    bench.crash().await;
    let answer = bench.provision_until_known(&request).await;
    assert_eq!(answer.failures, vec![], "{what}");
    assert_eq!(answer.nodes.len(), 3, "{what}");
    bench.assert_nothing_doubled(what);
    bench.assert_nothing_leaked(what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_platform_killed_at_any_point_of_a_creation_makes_each_machine_once() {
    let late = Fault::Stall(Duration::from_millis(400));
    killed(INSERT, Some(late.clone()), "before it is done").await;
    killed(INSERT, Some(Fault::LoseAnswer), "after it is done").await;
    killed(INSERT, Some(Fault::Refused), "before it is begun").await;
    killed(INSERT, None, "at some insert").await;
    killed(WAIT, None, "while it waits").await;
    killed(WAIT, Some(late), "while it waits long").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_of_unknown_outcome_is_found_though_another_zone_is_chosen_now() {
    for crash in [false, true] {
        let mut bench = Bench::with(GceSettings {
            common: Common {
                visibility_delay: Duration::from_secs(3_600),
                ..Common::default()
            },
            ..GceSettings::default()
        })
        .await;
        bench.settings.common.visibility_delay_seconds = 3_600.0;
        bench.crash().await;
        let request = bench.request(1);
        bench.gce.control().fail_next(INSERT, Fault::LoseAnswer);
        let lost = bench.provision(&request).await;
        assert!(lost.is_err() || !lost.unwrap().unknown.is_empty());
        let machine = bench.gce.machines().remove(0);
        if crash {
            let other = bench
                .platform
                .failure_domains
                .iter()
                .find(|domain| domain.name != machine.zone);
            bench.settings.zones = vec![other.unwrap().name.clone()];
            bench.crash().await;
        } else {
            // The zone is full for another machine, so it is avoided for a while.
            bench.gce.control().fail_next(INSERT, Fault::NoCapacity);
            bench.provision_until_known(&bench.request(1)).await;
        }
        let answer = bench.provision_until_known(&request).await;
        assert_eq!(answer.nodes[0].node_id, machine.id, "crash: {crash}");
        bench.assert_nothing_doubled("another zone");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_without_room_goes_to_another_zone_and_without_quota_fails() {
    let bench = bench().await;
    bench.gce.control().fail_next(INSERT, Fault::NoCapacity);
    let answer = bench.provision(&bench.request(3)).await.unwrap();
    assert_eq!((answer.nodes.len(), answer.failures.len()), (3, 0));
    let zones: std::collections::BTreeSet<_> = answer
        .nodes
        .iter()
        .map(|node| node.failure_domain.clone())
        .collect();
    assert_eq!(zones.len(), 2, "one zone was full");

    bench.gce.control().fail_always(INSERT, Some(Fault::Quota));
    let error = bench.provision(&bench.request(2)).await.unwrap_err();
    assert_eq!(error.reason(), drover_core::Reason::QuotaExceeded);
    assert!(error.message().contains("Quotas"), "{error}");
    bench.gce.control().clear_faults();
    assert_eq!(bench.gce.machines().len(), 3);
    bench.assert_nothing_doubled("capacity");
    bench.assert_nothing_leaked("capacity").await;
}

async fn delete_meets(name: &str, fault: Fault, crash: bool) {
    let what = format!("{DELETE}, {name}, crash: {crash}");
    let mut bench = bench().await;
    let mut nodes = bench.provision_until_known(&bench.request(3)).await.nodes;
    let node = nodes.remove(0);
    bench.gce.control().fail_next(DELETE, fault);
    let removal = bench.removal(&node);
    let first = bench.deprovision(&removal).await;
    if crash {
        bench.crash().await;
    }
    until(&what, || async {
        let answer = bench.deprovision(&removal).await.ok()?;
        (answer.state() == DeprovisionState::Gone).then_some(())
    })
    .await;
    assert_eq!(
        bench.gce.control().faults_left(),
        0,
        "{what}: the fault was met, {first:?}"
    );
    let mut left: Vec<String> = bench
        .gce
        .machines()
        .into_iter()
        .map(|machine| machine.id)
        .collect();
    let mut others: Vec<String> = nodes.into_iter().map(|node| node.node_id).collect();
    left.sort();
    others.sort();
    assert_eq!(left, others, "{what}: nothing else was removed");
    bench.assert_nothing_leaked(&what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_that_meets_any_fault_removes_that_machine_and_no_other() {
    let mut cases = Vec::new();
    for (name, fault) in faults_and_failures() {
        for crash in [false, true] {
            cases.push(delete_meets(name, fault.clone(), crash));
        }
    }
    all(cases).await;
}

fn standby(bench: &Bench, node: &Node) -> UpdateNodeRequest {
    let change = NodeChange {
        role: NodeRole::Standby.into(),
        set_labels: [("tier".to_owned(), "hot".to_owned())].into(),
        remove_labels: vec!["team.example/One".to_owned()],
        ..NodeChange::default()
    };
    bench.change(node, change)
}

async fn labels_meet(operation: &str, name: &str, fault: Fault, dies: bool) {
    let what = format!("{operation}, {name}, crash: {dies}");
    let mut bench = bench().await;
    let node = bench
        .provision_until_known(&bench.request(1))
        .await
        .nodes
        .remove(0);
    bench
        .gce
        .retag_by_hand(&node.node_id, &[("their_own", Some("as_it_is"))]);
    bench.gce.control().fail_next(operation, fault);
    let update = standby(&bench, &node);
    let _ = bench.update(&update).await;
    if dies {
        bench.crash().await;
    }
    until(&what, || async {
        bench.client().update_node(update.clone()).await.ok()
    })
    .await;
    assert_eq!(
        bench.gce.control().faults_left(),
        0,
        "{what}: the fault was met"
    );
    let node = until(&what, || async {
        let nodes = bench.discover(&bench.cluster).await.ok()?;
        nodes
            .into_iter()
            .find(|node| node.role() == NodeRole::Standby)
    })
    .await;
    let expected = [
        ("tier".to_owned(), "hot".to_owned()),
        ("their_own".to_owned(), "as_it_is".to_owned()),
    ];
    assert_eq!(node.labels, expected.into(), "{what}");
    assert_eq!(
        bench.gce.machines()[0].tags["their_own"],
        "as_it_is",
        "{what}"
    );
    bench.assert_nothing_leaked(&what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_that_meet_any_fault_are_set_in_the_end_and_others_stay() {
    let mut faults = faults_and_failures();
    faults.push((
        "changed by somebody else meanwhile",
        Fault::refuse(412, "conditionNotMet", "Fingerprint"),
    ));
    let mut cases = Vec::new();
    for (name, fault) in faults {
        for dies in [false, true] {
            cases.push(labels_meet(LABELS, name, fault.clone(), dies));
        }
    }
    for (name, fault) in self::faults() {
        cases.push(labels_meet(WAIT, name, fault, false));
    }
    all(cases).await;
}

async fn adoption_meets(name: &str, fault: Fault, dies: bool) {
    let what = format!("adoption, {name}, crash: {dies}");
    let mut bench = bench().await;
    let nodes = bench.provision_until_known(&bench.request(3)).await.nodes;
    let node = bench.update(&standby(&bench, &nodes[1])).await.unwrap();
    let heir = Uuid::new_v4();
    let cluster = (bench.cluster.as_str(), heir);
    let adoption = requests::adoption(&bench.platform.uid, fence(), &node, cluster);
    bench.gce.control().fail_next(LABELS, fault);
    let _ = bench.update(&adoption).await;
    assert_eq!(
        bench.gce.control().faults_left(),
        0,
        "{what}: the fault was met"
    );
    if dies {
        bench.crash().await;
    }
    until(&what, || async { bench.update(&adoption).await.ok() }).await;
    let adopted = until(&what, || async {
        let nodes = bench.discover(&bench.cluster).await.ok()?;
        let mut nodes = nodes.into_iter();
        nodes.find(|it| it.node_id == node.node_id && it.id == "db-7-abcde")
    })
    .await;
    let slot = adopted.slot.clone().unwrap();
    assert_eq!((slot.owner, slot.index), (heir.to_string(), Some(0)));
    assert_eq!(
        (adopted.ordinal, adopted.role()),
        (Some(7), NodeRole::Active),
        "{what}"
    );
    bench.assert_nothing_leaked(&what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adoption_that_meets_any_fault_leaves_nothing_of_the_former_life() {
    let mut cases = Vec::new();
    for (name, fault) in faults_and_failures() {
        for dies in [false, true] {
            cases.push(adoption_meets(name, fault.clone(), dies));
        }
    }
    all(cases).await;
}

/// The insert is accepted and its operation fails: the slot goes to another zone, as if that one were full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_that_fails_later_makes_nothing_and_its_repeat_no_machine_twice() {
    for dies in [false, true] {
        let what = format!("fails later, crash: {dies}");
        let mut bench = bench().await;
        let request = bench.request(3);
        bench.gce.control().fail_next(INSERT, failure());
        let _ = bench.provision(&request).await;
        if dies {
            bench.crash().await;
        }
        let answer = bench.provision_until_known(&request).await;
        assert_eq!(
            (answer.nodes.len(), &answer.failures),
            (3, &vec![]),
            "{what}"
        );
        assert_eq!(bench.gce.control().faults_left(), 0, "{what}");
        assert_eq!(bench.gce.machines().len(), 3, "{what}");
        bench.assert_nothing_doubled(&what);
        bench.assert_nothing_leaked(&what).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_after_a_restart_does_not_make_a_removed_machine_again() {
    let mut bench = bench().await;
    let request: ProvisionRequest = bench.request(1);
    let node = bench.provision_until_known(&request).await.nodes.remove(0);
    bench.until_phase(&node.node_id, NodePhase::Running).await;
    bench.assert_nothing_leaked("the first life").await;
    bench.crash().await;
    let error = until("what the first process asked for has ended", || async {
        let error = bench.provision(&request).await.unwrap_err();
        (error.class() != Class::Unknown).then_some(error)
    })
    .await;
    assert!(error.message().contains("not made again"), "{error}");
    assert_eq!(bench.gce.machines(), vec![]);
}
