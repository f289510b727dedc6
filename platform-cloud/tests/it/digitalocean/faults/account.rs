//! What belongs to the account and no droplet: the firewall, and tags that nothing has any more.

use std::time::Duration;

use drover_emulators::Fault;
use drover_platform_cloud::{
    cloud::{Cloud, Filter},
    drivers::digitalocean::{self, DigitalOcean},
};
use serde_json::json;

use super::{bench, circumstances, try_all};
use crate::digitalocean::bench::{Bench, until};

/// A droplet with the firewall is open to everybody if that does not exist, or lacks its tag.
async fn closed(operation: &str, fault: Fault, dies: bool) {
    let what = format!("{operation}, {fault:?}, dies: {dies}");
    let mut bench = bench().await;
    let request = bench.request_with(3, &json!({"firewall": true}));
    bench.cloud.control().fail_next(operation, fault);
    let _ = bench.provision(&request).await;
    assert_eq!(bench.cloud.control().faults_left(), 0, "{what}: it was met");
    if dies {
        bench.crash().await;
    }
    bench.replay_delay().await;
    let answer = bench.provision_until_known(&request).await;
    assert_eq!(answer.nodes.len(), 3, "{what}: {answer:?}");
    let next = bench.request_with(2, &json!({"firewall": true}));
    let next = bench.provision_until_known(&next).await;
    assert_eq!(next.nodes.len(), 2, "{what}: {next:?}");
    let machines = bench.cloud.machines();
    assert_eq!(machines.len(), 5, "{what}");
    until(&what, || async {
        let closed = |id: &str| bench.cloud.lets_in(id, 22) && !bench.cloud.lets_in(id, 80);
        machines
            .iter()
            .all(|machine| closed(&machine.id))
            .then_some(())
    })
    .await;
    bench.assert_nothing_doubled(&what);
    bench.assert_nothing_leaked(&what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_befalls_the_firewall_no_droplet_is_made_without_it() {
    let operations = ["tags.create", "firewalls.create"];
    let all = operations.into_iter().flat_map(|operation| {
        let of = circumstances().into_iter();
        of.map(move |(fault, dies)| closed(operation, fault, dies))
    });
    try_all(all).await;
}

/// Lets time pass and has the driver read the account, with a few lists more for what is due.
async fn pass(cloud: &DigitalOcean, minutes: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60 * minutes)).await;
    tokio::time::resume();
    for _ in 0..3 {
        cloud.list(&Filter::All).await.unwrap();
    }
}

fn tags(bench: &Bench) -> Vec<(String, usize)> {
    let mut tags = bench.cloud.tags();
    tags.sort();
    tags
}

async fn swept(fault: Fault, dies: bool) {
    let what = format!("tags.delete, {fault:?}, dies: {dies}");
    let bench = bench().await;
    let gone = bench.make(2).await;
    bench.make(1).await;
    bench.server.shutdown().await;
    until("they have their tags", || async {
        let machines = bench.cloud.machines();
        machines
            .iter()
            .all(|machine| !machine.tags.is_empty())
            .then_some(())
    })
    .await;
    for node in &gone {
        assert!(bench.cloud.terminate_behind(&node.node_id));
    }
    let before = tags(&bench);
    let is_unused = |(name, count): &(String, usize)| {
        let of_request = ["request", "fingerprint", "slots"];
        let of_request = of_request.map(|key| format!("drover:{key}"));
        *count == 0 && of_request.iter().any(|key| name.starts_with(key))
    };
    let unused = before.iter().filter(|tag| is_unused(tag)).count();
    assert!(unused > 0, "{before:?}");
    let mut cloud = digitalocean::open(bench.settings.clone()).await.unwrap();
    let control = bench.cloud.control();
    control.fail_next("tags.delete", fault);
    for _ in 0..4 {
        pass(&cloud, 21).await;
    }
    assert_eq!(control.faults_left(), 0, "{what}: it was met");
    if dies {
        cloud = digitalocean::open(bench.settings.clone()).await.unwrap();
    }
    // Another hour for a new process, which has not seen for how long they have been unused.
    for _ in 0..5 {
        pass(&cloud, 21).await;
    }
    let mut expected = before;
    expected.retain(|tag| !is_unused(tag));
    assert_eq!(tags(&bench), expected, "{what}: those, and no others");
    assert_eq!(bench.cloud.machines().len(), 1, "{what}");
}

#[tokio::test]
async fn whatever_befalls_the_removal_of_tags_the_unused_ones_go_and_no_others() {
    for (fault, dies) in circumstances() {
        swept(fault, dies).await;
    }
}
