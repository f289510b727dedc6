//! Tags come after the droplet, and stay after it.

use std::time::Duration;

use drover_emulators::digitalocean::DigitalOceanSettings;
use drover_platform_cloud::{
    cloud::{Cloud, Filter},
    drivers::digitalocean,
};

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
