//! Every changing call with every fault: it is completed once, and nothing leaks.

use std::time::Duration;

use drover_emulators::Fault;
use drover_proto::platform::v1::{InfrastructureSpec, InfrastructureState};
use futures::StreamExt;

use super::slow;
use crate::metal::bench::{Bench, until, whole};

/// The changing calls, in the order in which Ensure and Release make them.
pub(crate) const MAKING: [&str; 4] = [
    "network.allocate",
    "ip.allocate",
    "ip.allocate-specific",
    "firewall.allocate",
];
pub(crate) const CHANGING: [&str; 1] = ["ip.update"];
pub(crate) const FREEING: [&str; 3] = ["machine.free of firewall", "ip.free", "network.free"];
/// Timeout of a call: long enough for a busy machine, as a late call is a fault of its own.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// Faults of a call whose effect shows at once.
fn faults() -> Vec<Fault> {
    vec![
        Fault::refuse(500, "", "before"),
        Fault::refuse_after(500, "", "after"),
        Fault::LoseAnswer,
        Fault::CutAnswer,
        Fault::Refused,
        Fault::Throttle { retry_after: None },
        Fault::refuse(403, "", "you are not member in one of [maas-all-all-edit]"),
        Fault::refuse(422, "", "not today"),
    ]
}

/// What is wanted, such that this call is made for it.
fn wanted_by(call: &str) -> InfrastructureSpec {
    let mut spec = whole();
    if call == "ip.allocate-specific" {
        "100.255.254.9".clone_into(&mut spec.endpoint.as_mut().unwrap().host);
    }
    spec
}

#[tokio::test]
async fn whatever_call_fails_and_however_it_ends_up_made_once_and_freed_whole() {
    for fault in faults() {
        for operation in MAKING {
            for crash in [false, true] {
                let what = format!("{operation} with {fault:?}, crash {crash}");
                let spec = wanted_by(operation);
                let mut bench = Bench::new().await;
                bench.metal.control().fail_next(operation, fault.clone());
                let _ = bench.ensure(&spec).await;
                assert_eq!(bench.metal.control().faults_left(), 0, "{what}");
                if crash {
                    bench.crash().await;
                }
                let state = bench.ensure_whole(&spec).await;
                assert_eq!(state.resources.len(), 3, "{what}");
                bench.assert_nothing_doubled(&what);
                bench.release_whole().await;
                bench.assert_all_gone(&what).await;
            }
        }
        for operation in FREEING {
            for crash in [false, true] {
                let what = format!("{operation} with {fault:?}, crash {crash}");
                let mut bench = Bench::new().await;
                bench.ensure_whole(&whole()).await;
                bench.metal.control().fail_next(operation, fault.clone());
                let _ = bench.release().await;
                assert_eq!(bench.metal.control().faults_left(), 0, "{what}");
                if crash {
                    bench.crash().await;
                }
                bench.release_whole().await;
                bench.assert_all_gone(&what).await;
                bench.assert_nothing_doubled(&what);
            }
        }
    }
}

#[tokio::test]
async fn whatever_befalls_a_change_of_the_address_it_is_as_wanted_in_the_end() {
    let mut spec = whole();
    spec.endpoint.as_mut().unwrap().port = 7443;
    for fault in faults() {
        for operation in CHANGING {
            for crash in [false, true] {
                let what = format!("{operation} with {fault:?}, crash {crash}");
                let mut bench = Bench::new().await;
                let before = bench.ensure_whole(&whole()).await;
                bench.metal.control().fail_next(operation, fault.clone());
                let _ = bench.ensure(&spec).await;
                assert_eq!(bench.metal.control().faults_left(), 0, "{what}");
                if crash {
                    bench.crash().await;
                }
                let state = bench.ensure_whole(&spec).await;
                let endpoint = |state: &InfrastructureState| {
                    let outputs = state.outputs.clone().unwrap();
                    outputs.endpoint.unwrap()
                };
                let (then, now) = (endpoint(&before), endpoint(&state));
                assert_eq!((then.host, now.port), (now.host, 7443), "{what}");
                bench.assert_nothing_doubled(&what);
                bench.release_whole().await;
                bench.assert_all_gone(&what).await;
            }
        }
    }
}

/// A call that meets one of these, and however late it has its effect.
async fn shown_late(operation: &str, fault: Option<Fault>, crash: bool) {
    let what = format!("{operation} with {fault:?}, crash {crash}");
    let mut emulator = slow();
    emulator.common.visibility_delay = Duration::from_millis(250);
    let mut bench = Bench::set(emulator, |settings| {
        settings.common.visibility_delay_seconds = 0.6;
        settings.common.call_timeout_seconds = CALL_TIMEOUT.as_secs_f64();
    })
    .await;
    let spec = wanted_by(operation);
    until_settled(&bench).await;
    if let Some(fault) = fault {
        bench.metal.control().fail_next(operation, fault);
    }
    for _ in 0..3 {
        let _ = bench.ensure(&spec).await;
    }
    if crash {
        bench.crash().await;
    }
    bench.ensure_whole(&spec).await;
    assert_eq!(bench.metal.control().faults_left(), 0, "{what}");
    bench.assert_nothing_doubled(&what);
    bench.release_whole().await;
    bench.assert_all_gone(&what).await;
}

#[tokio::test]
async fn what_the_api_does_not_show_yet_is_waited_for_and_not_made_again() {
    let late = Fault::Stall(CALL_TIMEOUT + Duration::from_millis(200));
    let faults = [
        None,
        Some(Fault::LoseAnswer),
        Some(Fault::CutAnswer),
        Some(late),
    ];
    let mut cases = Vec::new();
    for fault in faults {
        for operation in MAKING {
            for crash in [false, true] {
                cases.push(shown_late(operation, fault.clone(), crash));
            }
        }
    }
    let cases = futures::stream::iter(cases).buffer_unordered(6);
    cases.collect::<Vec<()>>().await;
}

#[tokio::test]
async fn a_release_right_after_a_lost_answer_waits_until_nothing_can_be_hidden() {
    let mut emulator = slow();
    emulator.common.visibility_delay = Duration::from_millis(250);
    for operation in MAKING {
        let mut bench = Bench::set(emulator.clone(), |settings| {
            settings.common.visibility_delay_seconds = 0.4;
        })
        .await;
        until_settled(&bench).await;
        bench
            .metal
            .control()
            .fail_next(operation, Fault::LoseAnswer);
        let _ = bench.ensure(&wanted_by(operation)).await;
        bench.crash().await;
        bench.release_whole().await;
        bench.assert_all_gone(operation).await;
    }
}

/// Waits until the platform creates things without delay.
async fn until_settled(bench: &Bench) {
    until("the platform has settled", || async {
        let state = bench.release().await.ok()?;
        state.poll_after.is_none().then_some(())
    })
    .await;
}
