//! Every mutating call with every fault: nothing is lost, nothing is created twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use drover_core::{Class, Reason};
use drover_emulators::{Fault, ec2::Ec2Settings};
use drover_proto::platform::v1::{DeprovisionState, Node, NodePhase, NodeRole, ProvisionRequest};
use drover_testing::platform::{
    caller::{list, updated},
    requests,
};
use futures::{
    StreamExt,
    future::{join, join_all},
    stream,
};
use serde_json::Value;
use uuid::Uuid;

use crate::aws::bench::{Bench, index, tags_of, until};

/// The changing calls about nodes.
pub(crate) const NODES: [&str; 4] = [
    "RunInstances",
    "TerminateInstances",
    "CreateTags of i",
    "DeleteTags of i",
];

/// Timeout of a call: long enough for a busy machine, as a late call is a fault of its own.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// An emulator, and a platform on it that gives up on late calls.
pub(crate) async fn bench(settings: Ec2Settings) -> Bench {
    Bench::emulated_with(settings, |settings| {
        settings.common.call_timeout_seconds = CALL_TIMEOUT.as_secs_f64();
    })
    .await
}

/// Runs some of the cases at a time; each has its own API and platform.
pub(crate) async fn all<F: Future<Output = ()>>(cases: impl IntoIterator<Item = F>) {
    stream::iter(cases)
        .buffer_unordered(6)
        .collect::<Vec<()>>()
        .await;
}

/// What the account is not allowed to do.
pub(crate) fn forbidden() -> Fault {
    Fault::refuse(403, "UnauthorizedOperation", "You are not authorized.")
}

/// Faults with their names, and whether the server dies afterwards.
pub(crate) fn faults() -> Vec<(&'static str, Fault, bool)> {
    let refuse = || Fault::refuse(500, "InternalError", "An internal error has occurred");
    let after = || Fault::refuse_after(500, "InternalError", "An internal error has occurred");
    let throttle = || Fault::Throttle { retry_after: None };
    // Only just: who waits for it to show waits no longer than the visibility delay, on a busy machine too.
    let late = Fault::Stall(CALL_TIMEOUT + Duration::from_millis(50));
    vec![
        ("answer too late", late.clone(), false),
        ("answer too late, crash", late, true),
        ("error before", refuse(), false),
        ("error before, crash", refuse(), true),
        ("error after", after(), false),
        ("error after, crash", after(), true),
        ("answer lost", Fault::LoseAnswer, false),
        ("answer cut", Fault::CutAnswer, false),
        ("connection closed", Fault::Refused, false),
        ("throttled", throttle(), false),
        ("throttled, crash", throttle(), true),
        ("crash before", Fault::Refused, true),
        ("crash after", Fault::LoseAnswer, true),
        ("half an answer, crash", Fault::CutAnswer, true),
    ]
}

/// The same and a refusal for good, after which what was asked for can be asked for again.
pub(crate) fn faults_and_refusals() -> Vec<(&'static str, Fault, bool)> {
    let mut faults = faults();
    faults.push(("forbidden", forbidden(), false));
    faults.push(("forbidden, crash", forbidden(), true));
    faults
}

/// Repeats a request until every slot has its node.
async fn provision_whole(bench: &Bench, request: &ProvisionRequest) -> Vec<Node> {
    until("every slot is made", || async {
        let answer = bench.provision(request).await.ok()?;
        assert_eq!(answer.failures, vec![], "nothing here is final");
        (answer.nodes.len() == request.slots.len()).then_some(answer.nodes)
    })
    .await
}

/// The number of instances that were ever made of this request.
fn made_of(bench: &Bench, request: &ProvisionRequest) -> usize {
    bench
        .ec2()
        .ledger()
        .into_iter()
        .filter(|made| made.kind == "instance")
        .filter(|made| made.tags.get("drover.dev/request") == Some(&request.request_id))
        .count()
}

/// Asserts that the ledger has exactly one instance per slot of this request.
fn made_once(bench: &Bench, request: &ProvisionRequest, what: &str) {
    let made = made_of(bench, request);
    assert_eq!(made, request.slots.len(), "{what}: instances ever made");
}

fn one_each(nodes: &[Node], request: &ProvisionRequest, what: &str) {
    let by_index: BTreeMap<u32, &str> = nodes
        .iter()
        .map(|node| (index(node), node.node_id.as_str()))
        .collect();
    assert_eq!(by_index.len(), request.slots.len(), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_a_launch_each_slot_is_made_once() {
    let bench = bench(Ec2Settings::default()).await;
    let mut faults = faults();
    faults.extend([
        // What a quota refuses of a request is final for the server that has asked.
        ("no quota, crash", Fault::Quota, true),
        ("no room, crash", Fault::NoCapacity, true),
        // The last, since the zone counts as full for a while.
        ("no room", Fault::NoCapacity, false),
    ]);
    for (what, fault, dies) in faults {
        for count in [1, 5] {
            let request = bench.request(count, Value::Null).await;
            let calls = bench.ec2().control().count("RunInstances");
            bench
                .ec2()
                .control()
                .fail_next("RunInstances", fault.clone());
            let _ = bench.provision(&request).await;
            assert_eq!(
                bench.ec2().control().faults_left(),
                0,
                "{what}: the fault was met"
            );
            if dies {
                bench.restart().await;
            }
            let nodes = provision_whole(&bench, &request).await;
            one_each(&nodes, &request, what);
            made_once(&bench, &request, what);
            assert!(bench.ec2().control().count("RunInstances") > calls);
            for node in &nodes {
                bench.remove(node).await;
            }
        }
    }
    assert_eq!(bench.left(), vec![], "0 leaked");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_process_has_asked_for_is_not_asked_for_in_another_zone() {
    let bench = bench(Ec2Settings::default()).await;
    let fail = |fault| bench.ec2().control().fail_next("RunInstances", fault);
    // From now on this process takes another zone than one that has just begun would.
    fail(Fault::NoCapacity);
    let (_, nodes) = bench.make(1, Value::Null).await;
    bench.remove(&nodes[0]).await;
    let request = bench.request(1, Value::Null).await;
    fail(Fault::Stall(CALL_TIMEOUT + Duration::from_secs(2)));
    let error = bench.provision(&request).await.map(|answer| answer.nodes);
    assert!(error.is_err() || error.is_ok_and(|made| made.is_empty()));
    assert_eq!(bench.ec2().control().faults_left(), 0, "it was asked for");
    bench.restart().await;
    let made = provision_whole(&bench, &request).await;
    assert_eq!(made[0].failure_domain, nodes[0].failure_domain);
    made_once(&bench, &request, "another zone");
    bench.remove(&made[0]).await;
    assert_eq!(bench.left(), vec![], "0 leaked");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_doubt_is_not_asked_for_in_another_zone() {
    let bench = bench(Ec2Settings::default()).await;
    let (_, first) = bench.make(1, Value::Null).await;
    let request = bench.request(1, Value::Null).await;
    let late = Fault::Stall(CALL_TIMEOUT + Duration::from_secs(2));
    bench.ec2().control().fail_next("RunInstances", late);
    let error = bench.provision(&request).await.map(|answer| answer.nodes);
    assert!(error.is_err() || error.is_ok_and(|made| made.is_empty()));
    assert_eq!(bench.ec2().control().faults_left(), 0, "it was asked for");
    // From now on another zone is the emptier one.
    bench.remove(&first[0]).await;
    let made = provision_whole(&bench, &request).await;
    assert_ne!(made[0].failure_domain, first[0].failure_domain);
    made_once(&bench, &request, "another zone");
    bench.remove(&made[0]).await;
    assert_eq!(bench.left(), vec![], "0 leaked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_at_once_makes_nothing_twice_though_lists_are_behind() {
    let mut settings = Ec2Settings::default();
    settings.common.visibility_delay = Duration::from_millis(300);
    let bench = Bench::emulated(settings).await;
    for dies in [false, true] {
        let request = bench.request(3, Value::Null).await;
        for _ in 0..3 {
            bench
                .ec2()
                .control()
                .fail_next("RunInstances", Fault::LoseAnswer);
        }
        let error = bench.provision(&request).await.unwrap_err();
        assert_eq!(error.class(), Class::Unknown, "{error:?}");
        if dies {
            bench.restart().await;
        }
        // The list does not show them yet: only the token identifies them.
        let nodes = provision_whole(&bench, &request).await;
        one_each(&nodes, &request, "at once");
        made_once(&bench, &request, "at once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_a_removal_the_node_goes_and_no_other() {
    let bench = bench(Ec2Settings::default()).await;
    for (what, fault, dies) in faults_and_refusals() {
        let (_, nodes) = bench.make(2, Value::Null).await;
        bench.ec2().control().fail_next("TerminateInstances", fault);
        let outcome = bench.deprovision(&nodes[0]).await;
        if let Ok(answer) = &outcome {
            assert_ne!(answer.state(), DeprovisionState::Unspecified, "{what}");
        }
        if dies {
            bench.restart().await;
        }
        until("it is gone", || async {
            let answer = bench.deprovision(&nodes[0]).await.ok()?;
            (answer.state() == DeprovisionState::Gone).then_some(())
        })
        .await;
        let left: Vec<String> = bench
            .ec2()
            .machines()
            .into_iter()
            .map(|machine| machine.id)
            .collect();
        assert_eq!(left, [nodes[1].node_id.clone()], "{what}");
        bench.remove(&nodes[1]).await;
    }
    assert_eq!(bench.left(), vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_a_change_of_labels_it_is_whole_in_the_end() {
    let bench = bench(Ec2Settings::default()).await;
    for call in ["CreateTags of i", "DeleteTags of i"] {
        for (what, fault, dies) in faults_and_refusals() {
            let what = format!("{call}, {what}");
            let (_, nodes) = bench.make(2, Value::Null).await;
            let change = bench.change(&nodes[0]).await;
            bench.ec2().control().fail_next(call, fault);
            let _ = bench.client().update_node(change.clone()).await;
            assert_eq!(bench.ec2().control().faults_left(), 0, "{what}");
            if dies {
                bench.restart().await;
            }
            until("the change is made", || async {
                bench.client().update_node(change.clone()).await.ok()
            })
            .await;
            let changed = bench.node(&nodes[0].node_id).await.unwrap();
            assert_eq!(changed.role(), NodeRole::Standby, "{what}");
            let labels = [("stage".to_owned(), "prod".to_owned())];
            assert_eq!(changed.labels, labels.into(), "{what}");
            assert_eq!(changed.slot, nodes[0].slot, "{what}");
            let other = bench.node(&nodes[1].node_id).await.unwrap();
            assert_eq!(other.role(), NodeRole::Active, "{what}");
            assert_eq!(other.labels, nodes[1].labels, "{what}");
            for node in &nodes {
                bench.remove(node).await;
            }
        }
    }
    assert_eq!(bench.left(), vec![], "0 leaked");
}

/// The tags of many slots are longer than one value, and the former role is a tag of its own: what a node was before must
/// not be read as a part of what it is now.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_an_adoption_the_node_is_the_heirs_with_nothing_of_its_former_life() {
    // In one zone, so that all of a request are of one launch.
    let bench = Bench::emulated_with(Ec2Settings::default(), |settings| {
        settings.zones = vec!["eu-central-1a".to_owned()];
        settings.common.call_timeout_seconds = CALL_TIMEOUT.as_secs_f64();
    })
    .await;
    let uid = bench.platform().await.uid;
    for call in ["CreateTags of i", "DeleteTags of i"] {
        for (what, fault, dies) in faults_and_refusals() {
            let what = format!("{call}, {what}");
            let (_, nodes) = bench.make(26, Value::Null).await;
            let change = bench.change(&nodes[21]).await;
            let node = updated(bench.client(), &change).await.unwrap();
            let heir = Uuid::new_v4();
            let cluster = (bench.cluster.as_str(), heir);
            let adoption = requests::adoption(&uid, bench.fence(), &node, cluster);
            bench.ec2().control().fail_next(call, fault);
            let _ = updated(bench.client(), &adoption).await;
            assert_eq!(bench.ec2().control().faults_left(), 0, "{what}");
            if dies {
                bench.restart().await;
            }
            until(&what, || async {
                updated(bench.client(), &adoption).await.ok()
            })
            .await;
            let adopted = bench.node(&node.node_id).await.unwrap();
            let slot = adopted.slot.clone().unwrap();
            assert_eq!((slot.owner, slot.index), (heir.to_string(), Some(0)));
            assert_eq!(
                (adopted.id.as_str(), adopted.ordinal, adopted.role()),
                ("db-7-abcde", Some(7), NodeRole::Active),
                "{what}"
            );
            let nodes = bench.nodes().await;
            join_all(nodes.iter().map(|node| bench.remove(node))).await;
        }
    }
    assert_eq!(bench.left(), vec![], "0 leaked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_that_is_refused_makes_nothing_and_the_next_one_does() {
    for (refusal, reason) in [
        (forbidden(), Reason::CredentialsRefused),
        (Fault::Quota, Reason::QuotaExceeded),
        (Fault::NoCapacity, Reason::NoCapacity),
    ] {
        for dies in [false, true] {
            let bench = bench(Ec2Settings::default()).await;
            let request = bench.request(3, Value::Null).await;
            let control = bench.ec2().control();
            // Of the launches in all zones.
            control.fail_always("RunInstances", Some(refusal.clone()));
            let error = bench.refused(&request).await;
            assert_eq!(error.reason(), reason, "{error:?}");
            control.clear_faults();
            if dies {
                bench.restart().await;
            }
            assert_eq!(bench.left(), vec![]);
            let (request, nodes) = bench.make(3, Value::Null).await;
            made_once(&bench, &request, "the next one");
            for node in &nodes {
                bench.remove(node).await;
            }
            assert_eq!(bench.left(), vec![]);
        }
    }
}

/// EC2 reports success, and the instance does not reach its first boot
/// (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html>).
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_fails_after_its_launch_has_succeeded_is_told_and_not_made_again() {
    for dies in [false, true] {
        let mut settings = Ec2Settings::default();
        settings.common.pending_delay = Duration::from_secs(600);
        let bench = bench(settings).await;
        let (request, nodes) = bench.make(2, Value::Null).await;
        assert!(bench.ec2().terminate_behind(&nodes[0].node_id));
        if dies {
            bench.restart().await;
        }
        let answer = provision_whole(&bench, &request).await;
        one_each(&answer, &request, "failed later");
        made_once(&bench, &request, "failed later");
        until("it is told", || async {
            let (listed, _) = list(bench.client(), &bench.cluster).await.ok()?;
            let failed = listed.iter().find(|it| it.node_id == nodes[0].node_id)?;
            (failed.phase() == NodePhase::Terminated).then_some(())
        })
        .await;
        for node in &nodes {
            bench.remove(node).await;
        }
        assert_eq!(bench.left(), vec![]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_fails_half_way_is_an_error_and_never_a_short_list() {
    let mut settings = Ec2Settings::default();
    settings.common.page_size = Some(5);
    let bench = Bench::emulated_with(settings, |settings| {
        // Background polls would consume the faults.
        settings.common.poll_interval_seconds = 3600.0;
        settings.common.pending_poll_interval_seconds = 3600.0;
        settings.common.call_timeout_seconds = CALL_TIMEOUT.as_secs_f64();
    })
    .await;
    let (_, nodes) = bench.make(12, Value::Null).await;
    let mut faults = faults();
    faults.retain(|(what, _, dies)| !dies && *what != "throttled");
    let expired = Fault::refuse(400, "RequestExpired", "Request has expired.");
    faults.push(("credentials expired", expired, false));
    faults.push(("forbidden", forbidden(), false));
    for (what, fault, _) in faults {
        let control = bench.ec2().control();
        // The first page succeeds, the second one does not.
        control.fail_next("DescribeInstances", Fault::Stall(Duration::ZERO));
        control.fail_next("DescribeInstances", fault);
        let error = bench.discover(&bench.cluster).await.unwrap_err();
        let reason = match what {
            "credentials expired" | "forbidden" => Reason::CredentialsRefused,
            "answer too late" => Reason::DeadlineExceeded,
            _ => Reason::Unavailable,
        };
        assert_eq!(error.reason(), reason, "{what}: {error:?}");
        assert_eq!(control.faults_left(), 0, "{what}");
        assert_eq!(bench.nodes().await.len(), nodes.len(), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_on_two_pages_is_one_node_as_the_later_page_shows_it() {
    let mut settings = Ec2Settings::default();
    settings.common.page_size = Some(5);
    let bench = Bench::emulated_with(settings, |settings| {
        // Background polls would consume the faults.
        settings.common.poll_interval_seconds = 3600.0;
        settings.common.pending_poll_interval_seconds = 3600.0;
    })
    .await;
    let (_, nodes) = bench.make(12, Value::Null).await;
    let ec2 = bench.ec2();
    ec2.repeat_between_pages();
    // The last one of the first page, in the order of their creation.
    let moved = ec2.machines()[4].id.clone();
    let control = ec2.control();
    control.clear_requests();
    for stall in [0, 2] {
        let stall = Fault::Stall(Duration::from_secs(stall));
        control.fail_next("DescribeInstances", stall);
    }
    let stopped = async {
        control.wait_for("DescribeInstances", 2).await;
        assert!(ec2.stop_by_hand(&moved));
    };
    let (listed, ()) = join(bench.discover(&bench.cluster), stopped).await;
    let listed = listed.unwrap();
    assert_eq!(listed.len(), nodes.len());
    let phases: BTreeMap<&str, NodePhase> = listed
        .iter()
        .map(|node| (node.node_id.as_str(), node.phase()))
        .collect();
    assert_eq!(phases.len(), nodes.len(), "each is listed once");
    assert_eq!(phases[moved.as_str()], NodePhase::Stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn throttling_slows_down_and_fails_nothing() {
    let mut settings = Ec2Settings::default();
    settings.common.rate = Some(20.0);
    settings.common.burst = Some(5.0);
    let bench = Bench::emulated(settings).await;
    let requests = futures::future::join_all((0..6).map(|_| bench.request(2, Value::Null))).await;
    let answers =
        futures::future::join_all(requests.iter().map(|request| bench.provision(request))).await;
    for (request, answer) in requests.iter().zip(answers) {
        assert_eq!(answer.unwrap().nodes.len(), 2);
        made_once(&bench, request, "throttled");
    }
    let throttled = bench
        .ec2()
        .control()
        .requests()
        .iter()
        .any(|request| request.status == Some(503));
    assert!(throttled, "the API has throttled");
}

/// Makes two nodes in these zones, terminates one of them, and repeats the request to new servers when it has lost some
/// and all of its tags: `again` are made again in all, and never beside one that lives.
async fn repeated_without_tags(zones: &[&str], again: usize) {
    let settings = Ec2Settings {
        terminated_tagged: Some(Duration::from_millis(300)),
        ..Ec2Settings::default()
    };
    let bench = Bench::emulated_with(settings, |settings| {
        settings.zones = zones.iter().map(|zone| (*zone).to_owned()).collect();
    })
    .await;
    let (request, nodes) = bench.make(2, Value::Null).await;
    let gone = &nodes[0].node_id;
    let sdk = bench.sdk().await;
    let whole = tags_of(&sdk, gone).await.len();
    assert!(bench.ec2().terminate_behind(gone));
    for (what, most) in [("some tags are lost", whole - 1), ("all tags are lost", 0)] {
        until(what, || async {
            (tags_of(&sdk, gone).await.len() <= most).then_some(())
        })
        .await;
        bench.restart().await;
        let answer = bench.provision(&request).await.unwrap();
        assert!(
            answer
                .nodes
                .iter()
                .any(|node| node.node_id == nodes[1].node_id),
            "{what}: {answer:?}"
        );
        let (made, expected) = (made_of(&bench, &request), request.slots.len() + again);
        assert_eq!(made, expected, "{what}: instances ever made");
        let live = bench.nodes().await;
        let slots: BTreeSet<u32> = live.iter().map(index).collect();
        assert_eq!(slots.len(), live.len(), "{what}: one node a slot");
    }
    for node in bench.nodes().await {
        bench.remove(&node).await;
    }
    assert_eq!(bench.left(), vec![], "0 leaked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_node_that_has_lost_its_tags_is_not_made_again() {
    repeated_without_tags(&[], 0).await;
}

/// The launch was of both slots, and the repeat is of one of them: another launch.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_node_that_shared_its_launch_and_lost_its_tags_is_made_again_once() {
    repeated_without_tags(&["eu-central-1a"], 1).await;
}
