//! The platform dies after any of its calls, and another one finishes or frees what it has begun.

use std::time::Duration;

use drover_emulators::Fault;

use super::slow;
use crate::metal::bench::{Bench, whole};

/// The API becomes unreachable after this many calls of any kind, for the lifetime of the platform.
async fn killed_after(bench: &Bench, calls: usize, last: Option<Fault>) {
    let control = bench.metal.control();
    for _ in 0..calls {
        // A stall of zero duration has no effect.
        control.fail_next(drover_emulators::ANY, Fault::Stall(Duration::ZERO));
    }
    if let Some(last) = last {
        control.fail_next(drover_emulators::ANY, last);
    }
    control.fail_always(drover_emulators::ANY, Some(Fault::Refused));
}

#[tokio::test]
async fn killed_after_every_single_call_it_is_freed_whole_by_a_fresh_platform() {
    let mut spec = whole();
    spec.endpoint.as_mut().unwrap().host = "100.255.254.1".to_owned();
    for loses_last in [false, true] {
        let mut finished = false;
        for calls in 0..40 {
            let what =
                format!("killed after {calls} calls, the answer of the next lost: {loses_last}");
            let mut bench = Bench::new().await;
            killed_after(&bench, calls, loses_last.then_some(Fault::LoseAnswer)).await;
            finished = bench.ensure(&spec).await.is_ok();
            bench.metal.control().clear_faults();
            bench.crash().await;
            bench.release_whole().await;
            bench.assert_all_gone(&what).await;
            bench.assert_nothing_doubled(&what);
            if finished {
                break;
            }
        }
        assert!(finished, "40 calls are enough for one Ensure");
    }
}

#[tokio::test]
async fn killed_after_every_single_call_it_is_completed_by_a_fresh_platform_and_nothing_is_doubled()
{
    for loses_last in [false, true] {
        let mut finished = false;
        for calls in 0..40 {
            let what =
                format!("killed after {calls} calls, the answer of the next lost: {loses_last}");
            let mut bench = Bench::new().await;
            killed_after(&bench, calls, loses_last.then_some(Fault::LoseAnswer)).await;
            finished = bench.ensure(&whole()).await.is_ok();
            bench.metal.control().clear_faults();
            bench.crash().await;
            bench.ensure_whole(&whole()).await;
            for kind in ["network", "firewall"] {
                assert_eq!(bench.living(kind).len(), 1, "{what}: {kind}");
            }
            bench.assert_nothing_doubled(&what);
            bench.release_whole().await;
            bench.assert_all_gone(&what).await;
            if finished {
                break;
            }
        }
        assert!(finished, "40 calls are enough for one Ensure");
    }
}

#[tokio::test]
async fn killed_after_every_single_call_of_a_release_the_next_platform_frees_the_rest() {
    for loses_last in [false, true] {
        for calls in 0..16 {
            let what =
                format!("killed after {calls} calls, the answer of the next lost: {loses_last}");
            let mut bench = Bench::with(slow()).await;
            bench.ensure_whole(&whole()).await;
            killed_after(&bench, calls, loses_last.then_some(Fault::LoseAnswer)).await;
            let _ = bench.release().await;
            bench.metal.control().clear_faults();
            bench.crash().await;
            bench.release_whole().await;
            bench.assert_all_gone(&what).await;
        }
    }
}
