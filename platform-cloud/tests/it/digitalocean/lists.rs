//! Lists are complete, or they are errors.

use std::{sync::Arc, time::Duration};

use drover_core::Reason;
use drover_emulators::{Fault, digitalocean::DigitalOceanSettings};
use drover_platform_cloud::{
    cloud::{Cloud, Filter},
    drivers::digitalocean::{self, DigitalOcean},
};

use super::bench::Bench;

/// The account, without any other reader.
async fn open(bench: &Bench) -> Arc<DigitalOcean> {
    bench.server.shutdown().await;
    digitalocean::open(bench.settings.clone()).await.unwrap()
}

async fn ids(cloud: &DigitalOcean) -> Vec<String> {
    let listed = cloud.list(&Filter::All).await.unwrap();
    let mut ids: Vec<String> = listed
        .machines
        .into_iter()
        .map(|machine| machine.id)
        .collect();
    ids.sort();
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_found_among_10000_droplets_of_others() {
    let mut bench = Bench::new().await;
    bench.cloud.add_foreign(5_000);
    let nodes = bench.make(3).await;
    bench.cloud.add_foreign(5_000);
    let cloud = open(&bench).await;
    let control = bench.cloud.control();
    control.clear_requests();
    let listed = cloud.list(&Filter::All).await.unwrap();
    assert_eq!(control.count("droplets.list"), 51, "pages of 200");
    // Each region has 1,000 foreign droplets, and the platform is one region.
    assert_eq!(listed.machines.len(), 1_003);
    control.clear_requests();
    let cluster = Filter::Cluster(bench.cluster.clone());
    assert_eq!(cloud.list(&cluster).await.unwrap().machines.len(), 3);
    assert_eq!(control.count("droplets.list"), 1, "by tag");
    bench.crash().await;
    let all = bench.discover("").await.unwrap();
    assert_eq!(all.iter().filter(|node| node.slot.is_some()).count(), 3);

    // A foreign node cannot be mistaken for one of ours.
    let foreign = all.iter().find(|node| node.slot.is_none()).unwrap();
    let mut removal = bench.removal(&nodes[0]);
    removal.node_id.clone_from(&foreign.node_id);
    let error = bench.deprovision(&removal).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NodeNotInCluster);
    assert_eq!(bench.cloud.machines().len(), 10_003);
    bench.assert_nothing_leaked("among others").await;
    assert_eq!(bench.cloud.machines().len(), 10_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_fails_makes_an_error_and_never_a_short_list() {
    let bench = Bench::new().await;
    bench.cloud.add_foreign(450);
    let cloud = open(&bench).await;
    let whole = ids(&cloud).await;
    for (fault, reason) in [
        (
            Fault::refuse(500, "server_error", "broken"),
            Reason::Unavailable,
        ),
        (
            Fault::refuse(404, "not_found", "no page"),
            Reason::Unavailable,
        ),
        (Fault::LoseAnswer, Reason::Unavailable),
        (Fault::CutAnswer, Reason::Unavailable),
        (Fault::Refused, Reason::Unavailable),
        // The token expires in between.
        (
            Fault::refuse(401, "Unauthorized", "Unable to authenticate you"),
            Reason::CredentialsRefused,
        ),
        (
            Fault::refuse(403, "Forbidden", "not any more"),
            Reason::PermissionDenied,
        ),
    ] {
        let control = bench.cloud.control();
        control.fail_next("droplets.list", Fault::Stall(Duration::ZERO));
        control.fail_next("droplets.list", fault.clone());
        let error = cloud.list(&Filter::All).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{fault:?}: {error:?}");
        assert_eq!(control.faults_left(), 0);
        assert_eq!(ids(&cloud).await, whole);
    }
    // Throttling is not a failure.
    let throttle = Fault::Throttle { retry_after: None };
    bench.cloud.control().fail_next("droplets.list", throttle);
    assert_eq!(ids(&cloud).await, whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_moves_to_another_page_while_it_is_read_is_not_lost() {
    let bench = Bench::set(DigitalOceanSettings::default(), |settings| {
        settings.common.call_timeout_seconds = 10.0;
    })
    .await;
    bench.cloud.add_foreign(200);
    // The first item of the second page.
    let nodes = bench.make(1).await;
    bench.cloud.add_foreign(150);
    let cloud = open(&bench).await;
    let control = bench.cloud.control();
    assert!(ids(&cloud).await.contains(&nodes[0].node_id));
    for also_made in [0, 1] {
        let first = bench.cloud.machines().first().unwrap().id.clone();
        control.clear_requests();
        control.fail_next("droplets.list", Fault::Stall(Duration::ZERO));
        control.fail_next("droplets.list", Fault::Stall(Duration::from_secs(2)));
        let reading = tokio::spawn({
            let cloud = Arc::clone(&cloud);
            async move { ids(&cloud).await }
        });
        control.wait_for("droplets.list", 2).await;
        assert!(bench.cloud.terminate_behind(&first));
        // With another one created, the list is as long as before.
        bench.cloud.add_foreign(also_made);
        let read = reading.await.unwrap();
        assert!(read.contains(&nodes[0].node_id), "also made: {also_made}");
    }
}
