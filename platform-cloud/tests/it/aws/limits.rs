//! The limits of the real API: each action has a bucket of its own.

use std::{sync::Arc, time::Duration};

use drover_core::Reason;
use drover_emulators::{Fault, ec2::Ec2Settings};
use drover_proto::platform::v1::{DeprovisionState, NodePhase};
use drover_testing::wait::best_of_three;
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::aws::bench::{Bench, until};

async fn throttled() -> Bench {
    let settings = Ec2Settings {
        throttled: true,
        ..Ec2Settings::default()
    };
    Bench::emulated_with(settings, |settings| {
        settings.common.poll_interval_seconds = 2.0;
        settings.common.pending_poll_interval_seconds = 1.0;
    })
    .await
}

/// How long lists take beside launches that wait for their bucket.
async fn slowest_list_beside_launches() -> Duration {
    let bench = Arc::new(throttled().await);
    let mut launches = Vec::new();
    for _ in 0..24 {
        let (bench, request) = (Arc::clone(&bench), bench.request(1, Value::Null).await);
        launches.push(tokio::spawn(async move { bench.provision(&request).await }));
    }
    // The bucket holds five launches and gets two a second.
    bench.ec2().control().wait_for("RunInstances", 12).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..3 {
        let began = Instant::now();
        bench.discover(&bench.cluster).await.unwrap();
        slowest = slowest.max(began.elapsed());
    }
    for launch in launches {
        launch.abort();
    }
    slowest
}

#[tokio::test(flavor = "multi_thread")]
async fn launches_beyond_their_bucket_do_not_delay_lists() {
    best_of_three(Duration::from_secs(2), slowest_list_beside_launches).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_are_removed_by_few_calls_and_one_that_is_protected_stops_no_other() {
    let bench = Bench::emulator().await;
    let (_, nodes) = bench.make(120, Value::Null).await;
    let (_, kept) = bench
        .make(1, json!({ "terminationProtection": true }))
        .await;
    assert!(bench.ec2().terminate_behind(&nodes[0].node_id));
    until("they run", || async {
        let running = bench.nodes().await;
        let running = running
            .iter()
            .filter(|node| node.phase() == NodePhase::Running);
        (running.count() == 120).then_some(())
    })
    .await;
    // As long as a call takes there, however busy this machine is: what arrives meanwhile goes with the next one.
    for operation in ["DescribeInstances", "TerminateInstances"] {
        let takes = Fault::Stall(Duration::from_millis(200));
        bench.ec2().control().fail_always(operation, Some(takes));
    }
    bench.ec2().control().clear_requests();
    let all: Vec<_> = nodes.iter().chain(&kept).collect();
    let outcomes = join_all(all.iter().map(|node| bench.deprovision(node))).await;
    for (node, outcome) in all.iter().zip(outcomes) {
        match outcome {
            Ok(answer) => assert_ne!(answer.state(), DeprovisionState::Unspecified),
            Err(error) => {
                assert_eq!(node.node_id, kept[0].node_id, "{error:?}");
                assert_eq!(error.reason(), Reason::Protected, "{error:?}");
            }
        }
    }
    let calls = |operation: &str| bench.ec2().control().count(operation);
    // All in the zone of the protected one may need a call of their own.
    assert!(
        calls("TerminateInstances") <= 60,
        "{}",
        calls("TerminateInstances")
    );
    assert!(
        calls("DescribeInstances") <= 30,
        "{}",
        calls("DescribeInstances")
    );
    let left = until("all others are gone", || async {
        let left = bench.nodes().await;
        (left.len() == 1).then_some(left)
    })
    .await;
    assert_eq!(left[0].node_id, kept[0].node_id);
}
