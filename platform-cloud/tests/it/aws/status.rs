//! Status checks and scheduled events of instances.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drover_emulators::{Fault, ec2::Ec2Settings};
use drover_proto::platform::v1::{Node, NodeMaintenance, NodeMaintenanceKind, NodePhase};
use serde_json::Value;

use crate::aws::bench::{Bench, until};

async fn until_node(bench: &Bench, id: &str, what: &str, is: impl Fn(&Node) -> bool) -> Node {
    until(what, || async {
        bench.node(id).await.filter(|node| is(node))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_status_checks_fail_is_not_ready_and_says_why() {
    let bench = Bench::emulator().await;
    let (_, nodes) = bench.make(2, Value::Null).await;
    let (sick, other) = (&nodes[0].node_id, &nodes[1].node_id);
    for id in [sick, other] {
        until_node(&bench, id, "it is ready", |node| node.ready == Some(true)).await;
    }
    assert!(bench.ec2().impair(sick, true));
    let node = until_node(&bench, sick, "it is not ready", |node| {
        node.ready == Some(false)
    })
    .await;
    assert_eq!(node.phase(), NodePhase::Running);
    assert!(node.message.contains("status check"), "{}", node.message);
    assert_eq!(bench.node(other).await.unwrap().ready, Some(true));
    // What is known stays while it cannot be read.
    let fault = Fault::refuse(500, "InternalError", "An internal error has occurred");
    bench
        .ec2()
        .control()
        .fail_always("DescribeInstanceStatus", Some(fault));
    assert_eq!(bench.node(sick).await.unwrap().ready, Some(false));
    bench.ec2().control().clear_faults();
    assert!(bench.ec2().impair(sick, false));
    until_node(&bench, sick, "it is ready again", |node| {
        node.ready == Some(true)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_that_are_under_way_count_neither_way() {
    let bench = Bench::emulated(Ec2Settings {
        checks_delay: Duration::from_secs(3600),
        ..Ec2Settings::default()
    })
    .await;
    let (_, nodes) = bench.make(1, Value::Null).await;
    until_node(&bench, &nodes[0].node_id, "it is ready", |node| {
        node.ready == Some(true)
    })
    .await;
}

/// Schedules an event for a new node, and returns what is then shown of it.
async fn scheduled(code: &str) -> (Node, NodeMaintenance) {
    let bench = Bench::emulator().await;
    let (_, nodes) = bench.make(1, Value::Null).await;
    let id = &nodes[0].node_id;
    let day = Duration::from_secs(86_400);
    assert!(bench.ec2().schedule_event(id, code, day));
    let node = until_node(&bench, id, "it is shown", |node| node.maintenance.is_some()).await;
    let maintenance = node.maintenance.clone().unwrap();
    (node, maintenance)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_event_says_when_it_begins_and_whether_the_node_survives_it() {
    use NodeMaintenanceKind::{Restart, Stop, Unspecified};
    for (code, kind) in [
        ("instance-retirement", Stop),
        ("instance-stop", Stop),
        ("system-reboot", Restart),
        ("instance-of-tomorrow", Unspecified),
    ] {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let (node, maintenance) = scheduled(code).await;
        assert_eq!(maintenance.kind(), kind, "{code}");
        let start = maintenance.start_time.unwrap().seconds as u64;
        let ahead = start.saturating_sub(now.as_secs());
        assert!((86_000..90_000).contains(&ahead), "in {ahead} s");
        assert!(maintenance.message.contains(code), "{maintenance:?}");
        assert_eq!(node.ready, Some(true), "it runs until then");
        assert_eq!(node.message, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_may_not_read_them_is_listed_all_the_same() {
    let bench = Bench::emulated(Ec2Settings {
        denied: vec!["DescribeInstanceStatus".to_owned()],
        ..Ec2Settings::default()
    })
    .await;
    let (_, nodes) = bench.make(1, Value::Null).await;
    until_node(&bench, &nodes[0].node_id, "it is ready", |node| {
        node.ready == Some(true)
    })
    .await;
}
