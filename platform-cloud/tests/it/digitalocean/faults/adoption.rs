//! An adoption changes many tags, one call each. Wherever it is interrupted, the droplet is either still its former
//! owner's, or already the heir's, and the same adoption can be asked for again.

use std::time::Duration;

use drover_emulators::{ANY, Fault, digitalocean::DigitalOceanSettings};
use drover_proto::platform::v1::{NodeChange, NodeRole};
use drover_testing::platform::{caller::fence, requests};
use uuid::Uuid;

use super::try_all;
use crate::digitalocean::bench::{Bench, until};

/// More calls than an adoption makes.
const MANY: usize = 100;

/// The API cannot be reached after this many calls of any kind, as if the platform had died.
fn killed_after(bench: &Bench, calls: usize, loses_last: bool) {
    let control = bench.cloud.control();
    for _ in 0..calls {
        // A stall of zero duration has no effect.
        control.fail_next(ANY, Fault::Stall(Duration::ZERO));
    }
    if loses_last {
        control.fail_next(ANY, Fault::LoseAnswer);
    }
    control.fail_always(ANY, Some(Fault::Refused));
}

/// An emulator whose droplets have their tags late, and a platform on it that makes no calls but those of its callers.
async fn quiet_bench() -> Bench {
    let emulator = DigitalOceanSettings {
        tag_delay: Duration::from_millis(300),
        ..DigitalOceanSettings::default()
    };
    Bench::set(emulator, |settings| {
        settings.common.poll_interval_seconds = 3600.0;
        settings.common.pending_poll_interval_seconds = 3600.0;
    })
    .await
}

/// Interrupts an adoption. Returns the number of calls it took if it had ended before.
async fn interrupted(heir: &str, calls: usize, loses_last: bool) -> Option<usize> {
    let what = format!("killed after {calls} calls, the last lost: {loses_last}, heir {heir}");
    let heir: Uuid = heir.parse().unwrap();
    let mut bench = quiet_bench().await;
    let nodes = bench.make(3).await;
    let standby = NodeChange {
        role: NodeRole::Standby.into(),
        ..NodeChange::default()
    };
    let change = bench.change(&nodes[1], standby);
    // Its tags come later than the droplet itself.
    let node = until(&what, || async { bench.update(&change).await.ok() }).await;
    let cluster = format!("{}-heir", bench.cluster);
    let adoption = requests::adoption(&bench.platform.uid, fence(), &node, (&cluster, heir));
    killed_after(&bench, calls, loses_last);
    let control = bench.cloud.control();
    control.clear_requests();
    let ended = bench.update(&adoption).await.is_ok();
    let ended = ended.then(|| control.count(ANY));
    control.clear_faults();
    bench.crash().await;
    let former = bench.discover(&bench.cluster).await.unwrap();
    let heirs = bench.discover(&cluster).await.unwrap();
    assert_eq!(
        former.len() + heirs.len(),
        3,
        "{what}: {former:?} {heirs:?}"
    );
    if let Some(still) = former.iter().find(|it| it.node_id == node.node_id) {
        assert_eq!(
            (&still.slot, still.role()),
            (&node.slot, NodeRole::Standby),
            "{what}"
        );
    }
    until(&what, || async { bench.update(&adoption).await.ok() }).await;
    let found = bench.discover(&cluster).await.unwrap();
    assert_eq!(found.len(), 1, "{what}");
    let slot = found[0].slot.clone().unwrap();
    assert_eq!(
        (slot.owner, slot.index),
        (heir.to_string(), Some(0)),
        "{what}"
    );
    assert_eq!(
        (found[0].id.as_str(), found[0].ordinal, found[0].role()),
        ("db-7-abcde", Some(7), NodeRole::Active),
        "{what}"
    );
    assert_eq!(found[0].message, "", "{what}");
    assert_eq!(
        bench.discover(&bench.cluster).await.unwrap().len(),
        2,
        "{what}"
    );
    bench.assert_nothing_leaked(&what).await;
    ended
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_at_any_call_an_adoption_is_not_begun_or_done_and_can_be_asked_for_again() {
    // Where tags have two values for a while, the order of these must not decide.
    let heirs = [
        "00000000-0000-4000-8000-000000000001",
        "ffffffff-ffff-4fff-bfff-fffffffffffe",
    ];
    for heir in heirs {
        let whole = interrupted(heir, MANY, false).await;
        let whole = whole.expect("it ends if nothing interrupts it");
        assert!((10..MANY).contains(&whole), "{whole} calls");
        let cases = (0..whole).flat_map(|calls| [(calls, false), (calls, true)]);
        try_all(cases.map(|(calls, loses_last)| async move {
            interrupted(heir, calls, loses_last).await;
        }))
        .await;
    }
}
