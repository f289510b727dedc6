//! One zone that does not answer takes no other with it.

use std::{sync::Arc, time::Duration};

use drover_core::Class;
use drover_emulators::{
    Fault,
    gce::{Gce, GceSettings},
};
use drover_proto::platform::v1::{DeprovisionState, Node, NodePhase, Warning};
use drover_testing::{platform::caller::list, wait::best_of_three};
use tokio::time::Instant;

use super::bench::{Bench, settings, until};

const SILENT: &str = "europe-west3-b";

/// A platform whose lists soon show all that could have been made before.
async fn bench() -> Bench {
    let gce = Gce::start(GceSettings::default()).await.unwrap();
    let mut settings = settings(&gce);
    settings.operation_timeout_seconds = 0.5;
    settings.common.call_timeout_seconds = 2.0;
    settings.common.visibility_delay_seconds = 0.2;
    Bench::over(gce, settings).await
}

async fn shown(bench: &Bench) -> (Vec<Node>, Vec<Warning>) {
    list(bench.client(), "").await.unwrap()
}

fn is_silent(node: &Node) -> bool {
    node.failure_domain == SILENT
}

/// Cuts the zone off once all that is in it is known.
async fn silence(bench: &Bench) {
    until("what the zone holds is known", || async {
        bench.gce.set_reachable(SILENT, true);
        shown(bench).await;
        bench.gce.set_reachable(SILENT, false);
        let (_, warnings) = shown(bench).await;
        // Another zone may be slow for a moment.
        let [warning] = warnings.as_slice() else {
            return None;
        };
        assert!(warning.message.contains(SILENT), "{warnings:?}");
        warning.id.as_ref().map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_zone_makes_its_nodes_unknown_and_the_others_go_on() {
    let bench = bench().await;
    let nodes = bench.make(6).await;
    silence(&bench).await;
    let (seen, _) = shown(&bench).await;
    assert_eq!(seen.len(), 6);
    for node in &seen {
        assert_eq!(
            node.phase() == NodePhase::Unknown,
            is_silent(node),
            "{node:?}"
        );
    }
    assert_eq!(seen.iter().filter(|node| is_silent(node)).count(), 2);

    // New nodes are made elsewhere, and dead ones are noticed.
    let more = bench.make(4).await;
    assert!(!more.iter().any(is_silent), "{more:?}");
    let healthy: Vec<&Node> = nodes.iter().filter(|node| !is_silent(node)).collect();
    let [dead, other, ..] = healthy.as_slice() else {
        panic!("{healthy:?}");
    };
    assert!(bench.gce.terminate_behind(&dead.node_id));
    bench.until_gone(&dead.node_id).await;
    let (_, warnings) = shown(&bench).await;
    assert!(warnings[0].id.is_some(), "the absence counts: {warnings:?}");
    let answer = bench.deprovision(&bench.removal(dead)).await.unwrap();
    assert_eq!(answer.state(), DeprovisionState::Gone);
    bench.deprovision(&bench.removal(other)).await.unwrap();

    // One that cannot be reached is never gone.
    let cut_off = nodes.iter().find(|node| is_silent(node)).unwrap();
    let error = bench
        .deprovision(&bench.removal(cut_off))
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::Unknown, "{error:?}");

    bench.gce.set_reachable(SILENT, true);
    bench
        .until_phase(&cut_off.node_id, NodePhase::Running)
        .await;
    let (_, warnings) = shown(&bench).await;
    assert_eq!(warnings, vec![]);
    bench.assert_nothing_doubled("a silent zone");
    bench.assert_nothing_leaked("a silent zone").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zone_that_was_never_read_may_hold_anything() {
    let mut bench = bench().await;
    let request = bench.request(3);
    let nodes = bench.made_by(&request).await;
    bench.gce.set_reachable(SILENT, false);
    bench.crash().await;
    let (seen, warnings) = shown(&bench).await;
    assert_eq!(seen.len(), 2);
    assert_eq!(warnings[0].id, None, "no absence counts: {warnings:?}");
    let cut_off = nodes.iter().find(|node| is_silent(node)).unwrap();
    let error = bench
        .deprovision(&bench.removal(cut_off))
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::Unknown, "{error:?}");
    let error = bench.provision(&request).await.unwrap_err();
    assert_eq!(error.class(), Class::Unknown, "{error:?}");
    bench.gce.set_reachable(SILENT, true);
    let again = bench.provision_until_known(&request).await;
    assert_eq!(again.nodes.len(), 3);
    bench.assert_nothing_doubled("after a restart");
    bench.assert_nothing_leaked("after a restart").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_in_doubt_stays_in_doubt_while_its_zone_is_silent() {
    let bench = bench().await;
    bench.make(3).await;
    silence(&bench).await;
    bench.gce.set_reachable(SILENT, true);
    shown(&bench).await;
    let request = bench.request(3);
    for _ in 0..2 {
        let fault = Fault::LoseAnswer;
        bench.gce.control().fail_next("instances.insert", fault);
    }
    let first = bench.provision(&request).await;
    bench.gce.set_reachable(SILENT, false);
    let _ = bench.provision(&request).await;
    bench.gce.set_reachable(SILENT, true);
    let answer = bench.provision_until_known(&request).await;
    assert_eq!(answer.nodes.len(), 3, "after {first:?}");
    bench.assert_nothing_doubled("in doubt");
    bench.assert_nothing_leaked("in doubt").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zone_that_hangs_delays_lists_only_once() {
    let mut bench = bench().await;
    bench.settings.common.call_timeout_seconds = 3.0;
    bench.crash().await;
    bench.make(3).await;
    bench.gce.set_hanging(SILENT, true);
    until("the zone is silent", || async {
        (shown(&bench).await.1.len() == 1).then_some(())
    })
    .await;
    // Two of four, since other load on the machine may delay some of them.
    let mut soon = 0;
    for _ in 0..4 {
        let began = Instant::now();
        let (nodes, warnings) = shown(&bench).await;
        let took = began.elapsed();
        println!("a list took {took:?}");
        assert_eq!(nodes.len(), 3);
        assert_eq!(warnings.len(), 1);
        // It may have to wait for the poll before it.
        soon += usize::from(took < Duration::from_secs(7));
        if soon == 2 {
            break;
        }
    }
    assert_eq!(soon, 2);
    bench.gce.set_hanging(SILENT, false);
    until("the zone answers", || async {
        shown(&bench).await.1.is_empty().then_some(())
    })
    .await;
}

/// How long a list takes beside creations that take five seconds.
async fn list_beside_creations() -> Duration {
    let gce = Gce::start(GceSettings {
        operation_delay: Duration::from_secs(5),
        ..GceSettings::default()
    })
    .await
    .unwrap();
    let mut settings = settings(&gce);
    settings.common.call_timeout_seconds = 10.0;
    let bench = Arc::new(Bench::over(gce, settings).await);
    let mut creations = Vec::new();
    for _ in 0..3 {
        let (bench, request) = (Arc::clone(&bench), bench.request(32));
        creations.push(tokio::spawn(async move { bench.provision(&request).await }));
    }
    let control = bench.gce.control();
    control.wait_for("zoneOperations.wait", 64).await;
    let began = Instant::now();
    bench.discover("").await.unwrap();
    let took = began.elapsed();
    for creation in creations {
        let answer = creation.await.unwrap().unwrap();
        assert_eq!(answer.nodes.len(), 32);
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_do_not_wait_for_creations_that_take_long() {
    best_of_three(Duration::from_secs(3), list_beside_creations).await;
}
