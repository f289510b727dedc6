//! Every mutating call with every fault, with and without a crash of the platform: nothing is lost, nothing is created
//! twice.

use std::time::Duration;

use drover_emulators::{Fault, Settings as Common, digitalocean::DigitalOceanSettings};
use drover_proto::platform::v1::{DeprovisionState, NodeChange, NodeRole};
use futures::{StreamExt, stream};

mod account;
mod adoption;
mod late;

use super::bench::{Bench, until};

/// The changing calls.
pub(crate) const ROWS: [&str; 7] = [
    "droplets.create",
    "droplets.delete",
    "tags.create",
    "tags.tag",
    "tags.untag",
    "tags.delete",
    "firewalls.create",
];

/// Timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum number of concurrent accounts.
const AT_ONCE: usize = 8;

/// Runs all futures, some of them concurrently.
pub(super) async fn try_all<F: Future<Output = ()>>(all: impl Iterator<Item = F>) {
    stream::iter(all)
        .buffer_unordered(AT_ONCE)
        .collect::<()>()
        .await;
}

/// All faults, each without and with a crash of the platform.
pub(super) fn circumstances() -> Vec<(Fault, bool)> {
    let faults = [
        Fault::refuse(422, "unprocessable_entity", "not today"),
        Fault::refuse(500, "server_error", "not today"),
        Fault::refuse_after(500, "server_error", "not today"),
        Fault::refuse_after(504, "timeout", "not today"),
        Fault::LoseAnswer,
        Fault::CutAnswer,
        Fault::Throttle { retry_after: None },
        Fault::Refused,
        // Longer than the timeout of a call: it takes effect after the caller has given up.
        Fault::Stall(CALL_TIMEOUT + Duration::from_millis(500)),
    ];
    let both = |fault: Fault| [(fault.clone(), false), (fault, true)];
    faults.into_iter().flat_map(both).collect()
}

pub(super) async fn bench() -> Bench {
    let emulator = DigitalOceanSettings {
        tag_delay: Duration::from_millis(300),
        ..DigitalOceanSettings::default()
    };
    Bench::set(emulator, |settings| {
        settings.common.call_timeout_seconds = CALL_TIMEOUT.as_secs_f64();
        settings.common.visibility_delay_seconds = 0.5;
    })
    .await
}

async fn creation(fault: Fault, dies: bool) {
    let what = format!("creation, {fault:?}, dies: {dies}");
    let mut bench = bench().await;
    let final_refusal = matches!(fault, Fault::Refuse { status: 422, .. });
    let request = bench.request(12);
    bench.cloud.control().fail_next("droplets.create", fault);
    let first = bench.provision(&request).await;
    if dies {
        bench.crash().await;
    }
    bench.replay_delay().await;
    let answer = bench.provision_until_known(&request).await;
    if final_refusal && !dies {
        // One of two calls was refused permanently. Its slots stay failed, however often the request is repeated.
        let first = first.unwrap();
        assert_eq!(first.failures, answer.failures, "{what}");
        assert_eq!(answer.nodes.len() + answer.failures.len(), 12, "{what}");
    } else {
        assert_eq!(
            (answer.nodes.len(), &answer.failures),
            (12, &vec![]),
            "{what}"
        );
    }
    // By now, pending effects of the first attempt have completed.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let again = bench.provision_until_known(&request).await;
    let ids = |nodes: &[drover_proto::platform::v1::Node]| {
        let mut ids: Vec<_> = nodes.iter().map(|node| node.node_id.clone()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(&answer.nodes), ids(&again.nodes), "{what}");
    assert_eq!(bench.cloud.machines().len(), answer.nodes.len(), "{what}");
    bench.assert_nothing_doubled(&what);
    bench.assert_nothing_leaked(&what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_of_a_creation_loses_or_doubles_a_droplet() {
    try_all(
        circumstances()
            .into_iter()
            .map(|(fault, dies)| creation(fault, dies)),
    )
    .await;
}

/// Dies while the call is in flight, so that it takes effect after the next platform has started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_that_outlives_its_platform_is_found_by_the_next_one() {
    let mut bench = Bench::with(DigitalOceanSettings {
        common: Common {
            visibility_delay: Duration::from_millis(300),
            ..Common::default()
        },
        ..DigitalOceanSettings::default()
    })
    .await;
    let request = bench.request(3);
    let stall = Fault::Stall(Duration::from_millis(400));
    bench.cloud.control().fail_next("droplets.create", stall);
    let mut client = bench.client();
    let sent = request.clone();
    let call = tokio::spawn(async move { client.provision(sent).await });
    bench.cloud.control().wait_for("droplets.create", 1).await;
    bench.crash().await;
    call.abort();
    bench.replay_delay().await;
    let answer = bench.provision_until_known(&request).await;
    assert_eq!(answer.nodes.len(), 3);
    assert_eq!(bench.cloud.names().len(), 3, "made once");
    bench.assert_nothing_leaked("late creation").await;
}

/// The droplets are not listed for a while; the request is retried once they are guaranteed to be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_about_what_is_not_listed_yet_doubles_nothing() {
    let mut bench = Bench::with(DigitalOceanSettings {
        common: Common {
            visibility_delay: Duration::from_millis(800),
            ..Common::default()
        },
        ..DigitalOceanSettings::default()
    })
    .await;
    let request = bench.request(10);
    bench
        .cloud
        .control()
        .fail_next("droplets.create", Fault::LoseAnswer);
    bench.provision(&request).await.unwrap_err();
    bench.crash().await;
    bench.replay_delay().await;
    let answer = bench.provision_until_known(&request).await;
    assert_eq!(answer.nodes.len(), 10);
    assert_eq!(bench.cloud.control().count("droplets.create"), 1);
    bench.assert_nothing_leaked("lost answer").await;
}

async fn deletion(fault: Fault, dies: bool) {
    let what = format!("deletion, {fault:?}, dies: {dies}");
    let mut bench = bench().await;
    let nodes = bench.make(3).await;
    bench.cloud.control().fail_next("droplets.delete", fault);
    let removal = bench.removal(&nodes[1]);
    let _ = bench.deprovision(&removal).await;
    if dies {
        bench.crash().await;
    }
    until(&what, || async {
        let answer = bench.deprovision(&bench.removal(&nodes[1])).await.ok()?;
        (answer.state() == DeprovisionState::Gone).then_some(())
    })
    .await;
    let left: Vec<String> = bench
        .cloud
        .machines()
        .into_iter()
        .map(|machine| machine.id)
        .collect();
    assert_eq!(
        left,
        [nodes[0].node_id.clone(), nodes[2].node_id.clone()],
        "{what}"
    );
    bench.assert_nothing_leaked(&what).await;
    bench.assert_nothing_doubled(&what);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_of_a_deletion_leaves_a_droplet_or_takes_another() {
    try_all(
        circumstances()
            .into_iter()
            .map(|(fault, dies)| deletion(fault, dies)),
    )
    .await;
}

async fn change(operation: &str, fault: Fault, dies: bool) {
    let what = format!("{operation}, {fault:?}, dies: {dies}");
    let mut bench = bench().await;
    let nodes = bench.make(2).await;
    let request = |bench: &Bench| {
        let change = NodeChange {
            role: NodeRole::Standby.into(),
            set_labels: [("team.io/One".to_owned(), "B".to_owned())].into(),
            remove_labels: Vec::new(),
            ..NodeChange::default()
        };
        bench.change(&nodes[0], change)
    };
    bench.cloud.control().fail_next(operation, fault);
    let _ = bench.update(&request(&bench)).await;
    if dies {
        bench.crash().await;
    }
    until(&what, || async {
        bench.update(&request(&bench)).await.ok()
    })
    .await;
    let listed = bench.discover(&bench.cluster).await.unwrap();
    assert_eq!(listed.len(), 2, "{what}");
    for node in listed {
        let changed = node.node_id == nodes[0].node_id;
        let (role, label) = if changed {
            (NodeRole::Standby, "B")
        } else {
            (NodeRole::Active, "A.b_C")
        };
        assert_eq!(
            (node.role(), node.labels["team.io/One"].as_str()),
            (role, label),
            "{what}"
        );
        assert_eq!(node.message, "", "{what}: no tag has two values");
    }
    bench.assert_nothing_leaked(&what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_met_a_fault_can_be_made_again() {
    let operations = ["tags.create", "tags.tag", "tags.untag"];
    let all = operations.into_iter().flat_map(|operation| {
        let of = circumstances().into_iter();
        of.map(move |(fault, dies)| change(operation, fault, dies))
    });
    try_all(all).await;
}
