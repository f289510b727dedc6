//! Every mutating call on a machine with every fault: nothing is lost, nothing is created twice.

use drover_emulators::{Fault, Settings as Common, metal::MetalSettings};
use drover_proto::platform::v1::{Node, NodeChange, NodePhase, NodeRole, UpdateNodeRequest};
use drover_testing::platform::requests;
use std::time::Duration;
use uuid::Uuid;

use super::bench::{Bench, NAMED_MACHINE, fence, until};

/// The changing calls about machines.
pub(crate) const ROWS: [&str; 3] = [
    "machine.allocate",
    "machine.free of machine",
    "machine.update",
];
/// Timeout of a call: long enough for a busy machine, as a late call is a fault of its own.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

fn faults() -> Vec<Fault> {
    vec![
        Fault::refuse(500, "", "error before doing"),
        Fault::refuse_after(500, "", "error after doing"),
        Fault::LoseAnswer,
        Fault::CutAnswer,
        Fault::Refused,
        Fault::Throttle { retry_after: None },
        Fault::refuse(
            422,
            "",
            "too many parallel machine allocations taking place, try again later",
        ),
    ]
}

/// Faults of a call about a machine that is there, which can be made again whatever became of it.
fn faults_of_a_change() -> Vec<Fault> {
    let mut faults = faults();
    faults.push(Fault::refuse(403, "", "you are not member of the project"));
    // It takes effect after the caller has given up.
    faults.push(Fault::Stall(CALL_TIMEOUT + Duration::from_millis(100)));
    faults
}

/// A platform that gives up soon if the fault is a stall.
async fn bench_for(fault: &Fault) -> Bench {
    Bench::set(MetalSettings::default(), |settings| {
        if matches!(fault, Fault::Stall(_)) {
            settings.common.call_timeout_seconds = CALL_TIMEOUT.as_secs_f64();
        }
    })
    .await
}

#[tokio::test]
async fn whatever_happens_to_an_allocation_nothing_is_leaked_or_doubled() {
    for fault in faults() {
        for crash in [false, true] {
            for named in [false, true] {
                let what = format!("allocate with {fault:?}, crash {crash}, named {named}");
                let mut bench = Bench::new().await;
                let request = if named {
                    bench.on_host(NAMED_MACHINE)
                } else {
                    bench.request(3)
                };
                bench
                    .metal
                    .control()
                    .fail_next("machine.allocate", fault.clone());
                let _ = bench.provision(&request).await;
                if crash {
                    bench.crash().await;
                }
                let mut request = request;
                request.expected_platform_uid = bench.platform.uid.clone();
                let answer = bench.provision_until_known(&request).await;
                assert_eq!(
                    answer.nodes.len(),
                    request.slots.len(),
                    "{what}: {answer:?}"
                );
                assert_eq!(bench.living("machine").len(), request.slots.len(), "{what}");
                bench.assert_nothing_doubled(&what);
                bench.assert_nothing_leaked(&what).await;
            }
        }
    }
}

#[tokio::test]
async fn an_allocation_that_is_slow_to_show_is_not_made_again() {
    let delay = Duration::from_millis(250);
    let mut faults = faults();
    faults.push(Fault::Stall(CALL_TIMEOUT + Duration::from_millis(100)));
    for fault in faults {
        let what = format!("allocate with {fault:?}");
        let mut bench = Bench::set(
            MetalSettings {
                common: Common {
                    visibility_delay: delay,
                    ..Common::default()
                },
                ..MetalSettings::default()
            },
            |settings| {
                settings.common.visibility_delay_seconds = 0.6;
                settings.common.call_timeout_seconds = CALL_TIMEOUT.as_secs_f64();
            },
        )
        .await;
        let request = bench.request(2);
        bench.metal.control().fail_next("machine.allocate", fault);
        let _ = bench.provision(&request).await;
        bench.crash().await;
        let delay: Duration = bench
            .platform
            .limits
            .unwrap()
            .replay_delay
            .unwrap()
            .try_into()
            .unwrap();
        tokio::time::sleep(delay).await;
        bench.provision_until_known(&request).await;
        bench.assert_nothing_doubled(&what);
        bench.assert_nothing_leaked(&what).await;
    }
}

#[tokio::test]
async fn whatever_happens_to_a_removal_the_machine_goes_and_no_other() {
    for fault in faults_of_a_change() {
        for crash in [false, true] {
            let what = format!("free with {fault:?}, crash {crash}");
            let mut bench = bench_for(&fault).await;
            let nodes = bench.make(2).await;
            bench
                .metal
                .control()
                .fail_next("machine.free", fault.clone());
            let _ = bench.deprovision(&bench.removal(&nodes[0])).await;
            assert_eq!(bench.metal.control().faults_left(), 0, "{what}");
            if crash {
                bench.crash().await;
            }
            until(&what, || async {
                let _ = bench.deprovision(&bench.removal(&nodes[0])).await;
                (bench.living("machine").len() == 1).then_some(())
            })
            .await;
            bench.until_gone(&nodes[0].node_id).await;
            assert_eq!(bench.metal.machines()[0].id, nodes[1].node_id, "{what}");
            bench.assert_nothing_leaked(&what).await;
        }
    }
}

fn standby(bench: &Bench, node: &Node) -> UpdateNodeRequest {
    let change = NodeChange {
        role: NodeRole::Standby.into(),
        set_labels: [("tier".to_owned(), "hot".to_owned())].into(),
        remove_labels: vec!["team.io/one".to_owned()],
        ..NodeChange::default()
    };
    bench.change(node, change)
}

#[tokio::test]
async fn whatever_happens_to_a_change_of_tags_the_node_keeps_its_identity() {
    for fault in faults_of_a_change() {
        for crash in [false, true] {
            let what = format!("update with {fault:?}, crash {crash}");
            let mut bench = bench_for(&fault).await;
            let node = bench.make(1).await.remove(0);
            let change = standby(&bench, &node);
            bench
                .metal
                .control()
                .fail_next("machine.update", fault.clone());
            let _ = bench.update(&change).await;
            assert_eq!(bench.metal.control().faults_left(), 0, "{what}");
            if crash {
                bench.crash().await;
            }
            until(&what, || async { bench.update(&change).await.ok() }).await;
            let found = bench.discover(&bench.cluster).await.unwrap().remove(0);
            assert_eq!(
                (&found.slot, found.role()),
                (&node.slot, NodeRole::Standby),
                "{what}"
            );
            assert_eq!(
                found.labels,
                [("tier".to_owned(), "hot".to_owned())].into(),
                "{what}"
            );
            bench.assert_nothing_leaked(&what).await;
        }
    }
}

#[tokio::test]
async fn whatever_happens_to_an_adoption_the_node_has_nothing_of_its_former_life() {
    for fault in faults_of_a_change() {
        for crash in [false, true] {
            let what = format!("adoption with {fault:?}, crash {crash}");
            let mut bench = bench_for(&fault).await;
            let node = bench.make(1).await.remove(0);
            let node = bench.update(&standby(&bench, &node)).await.unwrap();
            let heir = Uuid::new_v4();
            let cluster = (bench.cluster.as_str(), heir);
            let adoption = requests::adoption(&bench.platform.uid, fence(), &node, cluster);
            bench
                .metal
                .control()
                .fail_next("machine.update", fault.clone());
            let _ = bench.update(&adoption).await;
            assert_eq!(bench.metal.control().faults_left(), 0, "{what}");
            if crash {
                bench.crash().await;
            }
            until(&what, || async { bench.update(&adoption).await.ok() }).await;
            let found = bench.discover(&bench.cluster).await.unwrap().remove(0);
            let slot = found.slot.clone().unwrap();
            assert_eq!((slot.owner, slot.index), (heir.to_string(), Some(0)));
            assert_eq!(
                (found.id.as_str(), found.ordinal, found.role()),
                ("db-7-abcde", Some(7), NodeRole::Active),
                "{what}"
            );
            bench.assert_nothing_leaked(&what).await;
        }
    }
}

/// The allocation succeeds, and the installation crashes again and again.
#[tokio::test]
async fn a_machine_that_fails_after_its_allocation_is_told_freed_and_not_made_again() {
    for crash in [false, true] {
        let what = format!("crash loop, crash {crash}");
        let mut bench = Bench::with(MetalSettings {
            common: Common {
                pending_delay: Duration::from_secs(600),
                ..Common::default()
            },
            ..MetalSettings::default()
        })
        .await;
        let request = bench.request(2);
        let nodes = bench.made_by(&request).await;
        bench.metal.crash_loop_by_hand(&nodes[0].node_id);
        if crash {
            bench.crash().await;
        }
        bench
            .until_phase(&nodes[0].node_id, NodePhase::Failed)
            .await;
        let answer = bench.provision_until_known(&request).await;
        assert_eq!(answer.nodes.len(), 2, "{what}: {answer:?}");
        bench.assert_nothing_doubled(&what);
        bench.assert_nothing_leaked(&what).await;
    }
}

#[tokio::test]
async fn a_list_that_fails_or_is_cut_off_is_an_error_and_never_short() {
    let bench = Bench::new().await;
    bench.make(3).await;
    for fault in [
        Fault::refuse(500, "", "no"),
        Fault::CutAnswer,
        Fault::LoseAnswer,
        Fault::refuse(404, "", "no"),
    ] {
        bench
            .metal
            .control()
            .fail_always("machine.ipmi.find", Some(fault.clone()));
        until("the failure shows", || async {
            bench.discover("").await.err()
        })
        .await;
        bench.metal.control().clear_faults();
        let nodes = until("it is whole again", || async {
            bench.discover("").await.ok()
        })
        .await;
        assert_eq!(nodes.len(), 3, "{fault:?}");
    }
}
