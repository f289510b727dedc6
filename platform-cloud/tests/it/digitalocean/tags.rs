//! Tags come after the droplet, and stay after it.

use std::time::Duration;

use drover_emulators::{Settings as Common, digitalocean::DigitalOceanSettings};
use drover_platform_cloud::{
    cloud::{Cloud, Filter},
    drivers::digitalocean,
};
use drover_proto::platform::v1::WatchNodesRequest;

use super::bench::Bench;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_droplet_whose_tags_come_late_is_ours_from_its_first_moment() {
    let bench = Bench::with(DigitalOceanSettings {
        tag_delay: Duration::from_secs(600),
        ..DigitalOceanSettings::default()
    })
    .await;
    let nodes = bench.make(3).await;
    for _ in 0..2 {
        let mut listed = bench.discover("").await.unwrap();
        listed.sort_by_key(|node| node.slot.as_ref().map(|slot| slot.index));
        let slots: Vec<_> = listed.iter().map(|node| &node.slot).collect();
        let wanted: Vec<_> = nodes.iter().map(|node| &node.slot).collect();
        assert_eq!(slots, wanted);
    }
    // Its ownership is checked before it is deleted.
    bench.assert_nothing_leaked("tags come late").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_droplet_without_its_tags_yet_stays_ours_when_it_is_looked_at_alone() {
    let bench = Bench::with(DigitalOceanSettings {
        tag_delay: Duration::from_secs(600),
        common: Common {
            // As long as it is looked at: one that runs is looked at no more.
            pending_delay: Duration::from_secs(600),
            ..Common::default()
        },
        ..DigitalOceanSettings::default()
    })
    .await;
    // One droplet is looked at alone where a list takes several calls.
    bench.cloud.add_foreign(201);
    bench.discover("").await.unwrap();
    let node = bench.make(1).await.remove(0);
    let control = bench.cloud.control();
    control.clear_requests();
    let watch = WatchNodesRequest::default();
    let watch = bench.client().watch_nodes(watch).await.unwrap();
    control.wait_for("droplets.get", 2).await;
    drop(watch);
    let listed = bench.discover("").await.unwrap();
    let found = listed.iter().find(|it| it.node_id == node.node_id).unwrap();
    assert_eq!(found.slot, node.slot);
    // While it is being made the API deletes it for nobody.
    assert!(bench.cloud.terminate_behind(&node.node_id));
}

#[tokio::test]
async fn tags_of_requests_go_when_nothing_has_had_them_for_an_hour() {
    let bench = Bench::new().await;
    let nodes = bench.make(2).await;
    bench.make(1).await;
    bench.server.shutdown().await;
    let of_requests = || {
        let tags = bench.cloud.tags().into_iter();
        let tags = tags.filter(|(name, _)| name.starts_with("drover:request:"));
        tags.map(|(_, count)| count).collect::<Vec<_>>()
    };
    assert_eq!(of_requests().len(), 2);
    for node in &nodes {
        assert!(bench.cloud.terminate_behind(&node.node_id));
    }
    let cloud = digitalocean::open(bench.settings.clone()).await.unwrap();
    for minutes in [21, 30, 20] {
        later(minutes).await;
        cloud.list(&Filter::All).await.unwrap();
        assert_eq!(of_requests().len(), 2, "less than an hour");
    }
    later(21).await;
    for _ in 0..5 {
        cloud.list(&Filter::All).await.unwrap();
    }
    assert_eq!(of_requests(), [1], "that of the droplet that is left");
    // What other requests may use stays.
    let cluster = |(name, _): &(String, usize)| name.starts_with("drover:cluster:");
    assert!(bench.cloud.tags().iter().any(cluster));
}

async fn later(minutes: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60 * minutes)).await;
    tokio::time::resume();
}
