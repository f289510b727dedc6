//! Lists are complete or an error, and cost no more calls than necessary.

use std::{collections::BTreeMap, time::Duration};

use drover_core::Reason;
use drover_emulators::{
    Fault, Settings as Common,
    gce::{Gce, GceSettings},
};
use drover_platform::driver::Driver;
use drover_platform_cloud::{
    cloud::{Cloud, CloudDriver, Filter},
    drivers::gcp,
};
use drover_proto::platform::v1::NodePhase;
use futures::future::join;

use super::bench::{Bench, CALL_TIMEOUT, settings};

const LIST: &str = "instances.list";

async fn small_pages(page_size: usize) -> Gce {
    Gce::start(GceSettings {
        common: Common {
            page_size: Some(page_size),
            ..Common::default()
        },
        ..GceSettings::default()
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn every_machine_of_every_page_and_zone_is_listed() {
    let gce = small_pages(7).await;
    gce.add_foreign(150);
    let cloud = gcp::open(settings(&gce)).await.unwrap();
    gce.control().clear_requests();
    let listed = cloud.list(&Filter::All).await.unwrap();
    // 6 zones in two regions: half of the machines belong to this platform.
    assert_eq!(listed.machines.len(), 75);
    assert_eq!(
        gce.control().count(LIST),
        3 * 4,
        "25 in a zone are 4 pages of 7"
    );
    assert!(
        listed
            .machines
            .iter()
            .all(|machine| machine.failure_domain.starts_with("europe-west3-"))
    );
}

/// The credentials have expired since the page before.
fn expired() -> Fault {
    let message = "Request had invalid authentication credentials.";
    Fault::refuse(401, "authError", message)
}

#[tokio::test]
async fn a_page_that_fails_half_way_is_an_error_and_never_a_short_list() {
    let gce = small_pages(5).await;
    gce.add_foreign(120);
    let cloud = gcp::open(settings(&gce)).await.unwrap();
    let forbidden = "Required 'compute.instances.list' permission";
    let faults = [
        (
            Fault::refuse(500, "internalError", "Internal"),
            Reason::Unavailable,
        ),
        (
            Fault::refuse(403, "forbidden", forbidden),
            Reason::PermissionDenied,
        ),
        (expired(), Reason::CredentialsRefused),
        (Fault::CutAnswer, Reason::Unavailable),
        (Fault::LoseAnswer, Reason::Unavailable),
        (Fault::Refused, Reason::Unavailable),
        (
            Fault::Stall(CALL_TIMEOUT + Duration::from_millis(500)),
            Reason::DeadlineExceeded,
        ),
    ];
    for (fault, reason) in faults {
        for good in [0, 3, 7] {
            // A stall of zero duration has no effect.
            for _ in 0..good {
                gce.control().fail_next(LIST, Fault::Stall(Duration::ZERO));
            }
            gce.control().fail_next(LIST, fault.clone());
            let listed = cloud.list(&Filter::All).await.unwrap();
            let failed: Vec<_> = listed
                .domains
                .iter()
                .filter(|(_, read)| read.is_err())
                .collect();
            let [(zone, Err(error))] = failed.as_slice() else {
                panic!("{fault:?} after {good} pages: {failed:?}");
            };
            assert_eq!(error.reason(), reason, "{fault:?}: {error:?}");
            assert!(error.message().contains(LIST), "{fault:?}: {error}");
            let partial = listed
                .machines
                .iter()
                .filter(|machine| machine.failure_domain == *zone);
            assert_eq!(partial.count(), 0, "{fault:?} after {good} pages");
            assert_eq!(gce.control().faults_left(), 0);
        }
    }
    assert_eq!(cloud.list(&Filter::All).await.unwrap().machines.len(), 60);
}

/// A zone that does not answer is left out and named; credentials that expire are no matter of one zone.
#[tokio::test]
async fn credentials_that_expire_half_way_fail_the_whole_list() {
    let gce = small_pages(5).await;
    gce.add_foreign(120);
    let cloud = gcp::open(settings(&gce)).await.unwrap();
    let driver = CloudDriver::new(cloud, settings(&gce).common).unwrap();
    for good in [0, 3, 7] {
        for _ in 0..good {
            gce.control().fail_next(LIST, Fault::Stall(Duration::ZERO));
        }
        gce.control().fail_next(LIST, expired());
        let error = driver.list().await.unwrap_err();
        assert_eq!(error.reason(), Reason::CredentialsRefused, "{error:?}");
        assert_eq!(gce.control().faults_left(), 0);
    }
    assert_eq!(driver.list().await.unwrap().nodes.len(), 60);
}

#[tokio::test]
async fn a_machine_on_two_pages_is_one_machine_as_the_later_page_shows_it() {
    // Of one zone, the pages are read one after the other.
    let zones = vec!["europe-west3-a".to_owned()];
    let gce = Gce::start(GceSettings {
        common: Common {
            page_size: Some(5),
            ..Common::default()
        },
        regions: [("europe-west3".to_owned(), zones)].into(),
        ..GceSettings::default()
    })
    .await
    .unwrap();
    gce.add_foreign(12);
    gce.repeat_between_pages();
    let mut settings = settings(&gce);
    settings.common.call_timeout_seconds = 10.0;
    let cloud = gcp::open(settings).await.unwrap();
    // The last one of the first page, in the order of their ids.
    let moved = gce.machines()[4].id.clone();
    let control = gce.control();
    for stall in [0, 2] {
        control.fail_next(LIST, Fault::Stall(Duration::from_secs(stall)));
    }
    let stopped = async {
        control.wait_for(LIST, 2).await;
        assert!(gce.stop_by_hand(&moved));
    };
    let (listed, ()) = join(cloud.list(&Filter::All), stopped).await;
    let machines = listed.unwrap().machines;
    assert_eq!(machines.len(), 12);
    let phases: BTreeMap<&str, NodePhase> = machines
        .iter()
        .map(|machine| (machine.id.as_str(), machine.phase))
        .collect();
    assert_eq!(phases.len(), 12, "each is listed once");
    assert_eq!(phases[moved.as_str()], NodePhase::Stopped);
}

#[tokio::test]
async fn a_region_that_does_not_answer_is_an_error_and_another_region_does_not_matter() {
    let gce = Gce::start(GceSettings::default()).await.unwrap();
    gce.add_foreign(12);
    let cloud = gcp::open(settings(&gce)).await.unwrap();
    gce.set_reachable("us-central1-a", false);
    assert_eq!(cloud.list(&Filter::All).await.unwrap().machines.len(), 6);
    for zone in ["europe-west3-a", "europe-west3-b", "europe-west3-c"] {
        gce.set_reachable(zone, false);
    }
    let driver = CloudDriver::new(cloud, settings(&gce).common).unwrap();
    let error = driver.list().await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable);
    assert!(error.message().contains("europe-west3-"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_machines_of_others_are_listed_and_left_alone() {
    let bench = Bench::new().await;
    bench.gce.add_foreign(20_004);
    let answer = bench.provision_until_known(&bench.request(6)).await;
    assert_eq!(answer.nodes.len(), 6);
    let all = bench.discover("").await.unwrap();
    assert_eq!(
        all.len(),
        10_002 + 6,
        "those of the other region are not ours to see"
    );
    assert_eq!(bench.discover(&bench.cluster).await.unwrap().len(), 6);
    let foreign = all.iter().find(|node| node.slot.is_none()).unwrap();
    let mut removal = bench.removal(&answer.nodes[0]);
    removal.node_id.clone_from(&foreign.node_id);
    let error = bench.deprovision(&removal).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NodeNotInCluster);
    bench.assert_nothing_leaked("own nodes").await;
    assert_eq!(bench.gce.machines().len(), 20_004);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_nothing_changes_each_poll_is_one_list_of_the_region() {
    let mut bench = Bench::new().await;
    bench.settings.common.visibility_delay_seconds = 0.1;
    bench.crash().await;
    let answer = bench.provision_until_known(&bench.request(20)).await;
    for node in &answer.nodes {
        bench.until_phase(&node.node_id, NodePhase::Running).await;
    }
    let mut client = bench.client();
    let watch = client
        .watch_nodes(drover_proto::platform::v1::WatchNodesRequest::default())
        .await;
    assert!(watch.is_ok());
    // New machines are polled more often for a while; then it is quiet.
    tokio::time::sleep(Duration::from_millis(500)).await;
    bench.gce.control().clear_requests();
    let began = tokio::time::Instant::now();
    bench.gce.control().wait_for(LIST, 30).await;
    let polls = began.elapsed().as_secs_f64() / bench.settings.common.poll_interval_seconds;
    let requests = bench.gce.control().requests();
    assert!(
        requests.iter().all(|request| request.operation == LIST),
        "lists only"
    );
    assert!(
        requests.len() as f64 <= 3.0 * (polls + 2.0),
        "{} calls in {polls} polls",
        requests.len()
    );
    drop(watch);
}
