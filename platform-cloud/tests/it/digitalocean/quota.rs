//! The hourly quota of the account is not used up by reading what does not change.

use std::time::Duration;

use drover_emulators::{ANY, Settings as Common, digitalocean::DigitalOceanSettings};
use drover_proto::platform::v1::{GetPlatformRequest, NodePhase, WatchNodesRequest};

use super::bench::{Bench, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_grow_rare_before_the_hour_is_half_used_and_the_platform_says_so() {
    let bench = Bench::with(DigitalOceanSettings {
        common: Common {
            page_size: Some(25),
            ..Common::default()
        },
        hourly_limit: Some(120),
        ..DigitalOceanSettings::default()
    })
    .await;
    bench.cloud.add_foreign(90);
    let control = bench.cloud.control();
    // Lists of four calls, five of them a second.
    control.wait_for("droplets.list", 24).await;
    let slow = |warning: &String| warning.contains("quota");
    until("it is said", || async {
        let answer = bench.client().get_platform(GetPlatformRequest {}).await;
        let platform = answer.ok()?.into_inner().platform?;
        let interval: Duration = platform.limits?.min_poll_interval?.try_into().ok()?;
        (interval > Duration::from_secs(60) && platform.warnings.iter().any(slow)).then_some(())
    })
    .await;
    let calls = control.count(ANY);
    assert!(calls <= 60, "{calls}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_droplet_that_is_being_made_is_asked_for_alone() {
    let bench = Bench::set(
        DigitalOceanSettings {
            common: Common {
                page_size: Some(25),
                pending_delay: Duration::from_secs(2),
                ..Common::default()
            },
            ..DigitalOceanSettings::default()
        },
        |settings| settings.common.poll_interval_seconds = 60.0,
    )
    .await;
    bench.cloud.add_foreign(190);
    let request = WatchNodesRequest::default();
    let watch = bench.client().watch_nodes(request).await.unwrap();
    let node = bench.make(1).await.remove(0);
    let control = bench.cloud.control();
    bench.discover("").await.unwrap();
    control.clear_requests();
    control.wait_for("droplets.get", 10).await;
    assert_eq!(control.count("droplets.list"), 0);
    bench.until_phase(&node.node_id, NodePhase::Running).await;
    drop(watch);
}
