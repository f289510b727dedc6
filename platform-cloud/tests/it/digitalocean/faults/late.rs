//! What becomes of a creation after its answer: its tags may be late, and it may fail.

use std::time::Duration;

use drover_core::Reason;
use drover_emulators::{Fault, Request, Settings as Common, digitalocean::DigitalOceanSettings};
use drover_proto::platform::v1::{NodePhase, ProvisionRequest};

use crate::digitalocean::bench::{Bench, until};

/// Long after a request of unknown outcome is sent again.
const TAGS: Duration = Duration::from_secs(900);
/// Longer than lists may lack a droplet.
const SETTLED: Duration = Duration::from_secs(120);

async fn later(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// A platform that makes no calls but those of its callers, with this many droplets of others.
async fn quiet_bench(others: usize) -> Bench {
    let emulator = DigitalOceanSettings {
        common: Common {
            page_size: Some(25),
            ..Common::default()
        },
        tag_delay: TAGS,
        ..DigitalOceanSettings::default()
    };
    let bench = Bench::set(emulator, |settings| {
        settings.common.poll_interval_seconds = 3600.0;
        settings.common.pending_poll_interval_seconds = 3600.0;
    })
    .await;
    bench.cloud.add_foreign(others);
    // From now on it knows how many calls a list takes.
    bench.discover("").await.unwrap();
    bench
}

/// Sends a request again, whose droplets are there without their tags. Returns the lists that were read for it.
async fn doubted(bench: &Bench, request: &ProvisionRequest) -> Vec<Request> {
    let control = bench.cloud.control();
    control.clear_requests();
    let error = bench.provision(request).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable, "{error}");
    assert!(error.message().contains("an earlier call"), "{error}");
    assert_eq!(control.count("droplets.create"), 0, "{error}");
    control.requests_of("droplets.list")
}

/// Once lists tell of all that was made, names cost no calls, and with their tags the droplets are those of the request.
async fn settles(bench: &Bench, request: &ProvisionRequest, what: &str) {
    later(SETTLED).await;
    bench.discover("").await.unwrap();
    let lists = doubted(bench, request).await;
    assert_eq!(lists.len(), 1, "{what}: {lists:?}");
    let control = bench.cloud.control();
    control.clear_requests();
    bench.make(2).await;
    assert_eq!(control.count("droplets.list"), 1, "{what}: a new request");
    later(TAGS).await;
    let answer = bench.provision(request).await.unwrap();
    assert_eq!(answer.nodes.len(), 3, "{what}: {answer:?}");
    assert_eq!(bench.cloud.names().len(), 5, "{what}: made once");
    bench.assert_nothing_doubled(what);
    bench.assert_nothing_leaked(what).await;
}

#[tokio::test]
async fn a_lost_answer_about_droplets_that_have_no_tags_yet_doubles_nothing() {
    // Where a list takes more calls than there are names, they are asked for.
    for (others, named) in [(0, 0), (100, 3)] {
        let what = format!("{others} others");
        let bench = quiet_bench(others).await;
        let request = bench.request(3);
        let control = bench.cloud.control();
        control.fail_next("droplets.create", Fault::LoseAnswer);
        bench.provision(&request).await.unwrap_err();
        later(Duration::from_secs(4)).await;
        let lists = doubted(&bench, &request).await;
        let by_name = lists.iter().filter(|it| it.parameter("name").is_some());
        assert_eq!(by_name.count(), named, "{what}: {lists:?}");
        settles(&bench, &request, &what).await;
    }
}

/// Dies while the call is in flight, so that the first list of the next platform shows nothing.
#[tokio::test]
async fn droplets_without_tags_that_outlive_their_platform_are_not_doubled_by_the_next_one() {
    let mut bench = quiet_bench(0).await;
    let request = bench.request(3);
    let stall = Fault::Stall(Duration::from_millis(500));
    bench.cloud.control().fail_next("droplets.create", stall);
    let mut client = bench.client();
    let sent = request.clone();
    let call = tokio::spawn(async move { client.provision(sent).await });
    bench.cloud.control().wait_for("droplets.create", 1).await;
    bench.crash().await;
    call.abort();
    bench.discover("").await.unwrap();
    until("the droplets are there", || async {
        (bench.cloud.names().len() == 3).then_some(())
    })
    .await;
    later(Duration::from_secs(4)).await;
    doubted(&bench, &request).await;
    settles(&bench, &request, "another platform").await;
}

/// The creation is accepted, its action ends errored, and the droplet is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_droplet_that_fails_after_it_was_accepted_is_told_freed_and_not_made_again() {
    for dies in [false, true] {
        let what = format!("it fails later, dies: {dies}");
        let mut bench = Bench::with(DigitalOceanSettings {
            common: Common {
                pending_delay: Duration::from_millis(500),
                ..Common::default()
            },
            ..DigitalOceanSettings::default()
        })
        .await;
        let well = bench.make(1).await.remove(0);
        let request = bench.request(2);
        let fault = Fault::later("errored", "no room");
        bench.cloud.control().fail_next("droplets.create", fault);
        let nodes = bench.made_by(&request).await;
        if dies {
            // Nothing of them is left that the next one could find.
            bench.crash().await;
        } else {
            for node in &nodes {
                let failed = until(&what, || async {
                    let found = bench.discover("").await.ok()?.into_iter();
                    let mut failed = found.filter(|found| found.phase() == NodePhase::Failed);
                    failed.find(|found| found.node_id == node.node_id)
                })
                .await;
                assert_eq!(failed.slot, node.slot, "{what}");
                let told = &failed.message;
                assert!(told.contains("failed to create it"), "{what}: {told}");
            }
            let answer = bench.provision_until_known(&request).await;
            assert_eq!(answer.nodes.len(), 2, "{what}: {answer:?}");
            for node in &nodes {
                bench.deprovision(&bench.removal(node)).await.unwrap();
            }
        }
        for node in &nodes {
            bench.until_gone(&node.node_id).await;
        }
        assert_eq!(bench.cloud.names().len(), 3, "{what}: made once");
        let left = bench.cloud.machines().into_iter();
        let left: Vec<String> = left.map(|machine| machine.id).collect();
        assert_eq!(left, [well.node_id], "{what}");
        bench.assert_nothing_doubled(&what);
        bench.assert_nothing_leaked(&what).await;
    }
}
