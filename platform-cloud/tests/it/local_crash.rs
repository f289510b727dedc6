//! Kills the platform, as by `kill -9`, at every relevant point. The next one must find exactly one process per slot,
//! and after their deletion nothing must be left.
//!
//! The named points need `cargo test -p drover-platform-cloud --features crash-points local_crash`; the kills at random
//! moments do not.

use crate::local_support;

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use drover_platform::driver::{Deletion, Driver};
use drover_platform_cloud::drivers::local::LocalDriver;
use drover_proto::platform::v1::NodePhase;
#[cfg(feature = "crash-points")]
use local_support::refused;
use local_support::{
    World, adoption, batch, made, processes_of, request, settings, stored, target, test_templates,
    until,
};

/// Passes the state directory to the child.
const DIRECTORY: &str = "DROVER_TEST_DIRECTORY";
/// Selects whether the child creates nodes, adopts them, creates the heir's next node, or deletes nodes.
const ACTION: &str = "DROVER_TEST_ACTION";
/// The crash point of the child; see `crash.rs` of the driver.
#[cfg(feature = "crash-points")]
const CRASH_AT: &str = "DROVER_CRASH_AT";

/// Number of kills at random moments, each in the directory as the previous ones left it.
const RANDOM_KILLS: u32 = 12;

const SLOTS: u32 = 3;

/// Owner that adopts nodes.
const HEIR: &str = "owner-2";

/// Crash points of a creation, including those of the launcher.
#[cfg(feature = "crash-points")]
const CREATE: [&str; 6] = [
    "IntentWritten",
    "IntentDurable",
    "LauncherSpawned",
    "LauncherLocked",
    "LauncherRecorded",
    "BeforeAnswer",
];

/// Crash points of a deletion.
#[cfg(feature = "crash-points")]
const REMOVE: [&str; 3] = ["RemovalRecorded", "Stopped", "DirectoryRenamed"];

/// The platform that dies, started by the tests as a child process.
#[test]
#[ignore = "a part of the other tests"]
fn platform_process() {
    let Ok(directory) = env::var(DIRECTORY) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let driver = LocalDriver::open(settings(Path::new(&directory))).unwrap();
        let wanted = match env::var(ACTION).unwrap().as_str() {
            "create" => Some(request("sleeper", "r1", SLOTS)),
            "follow" => Some(stored(HEIR, "r9", 5)),
            _ => None,
        };
        if let Some(wanted) = wanted {
            let (batch, _caller) = batch(&test_templates(), &wanted);
            driver.create(&batch).await;
        }
        let nodes = driver.list().await.unwrap().nodes;
        if env::var(ACTION).unwrap() == "adopt" {
            for found in &nodes {
                let change = adoption(HEIR, 5);
                let adopted = driver.update(&target(&found.node), &change).await;
                adopted.unwrap();
            }
        }
        let all_run = async || {
            let now = driver.list().await.unwrap().nodes;
            now.iter()
                .all(|found| found.node.phase() != NodePhase::Pending)
        };
        until("no node is pending", all_run).await;
        if env::var(ACTION).unwrap() == "remove" {
            for found in nodes {
                driver
                    .delete(&target(&found.node), &Deletion::default())
                    .await
                    .unwrap();
            }
            until("all are gone", async || {
                driver.list().await.unwrap().nodes.is_empty()
            })
            .await;
        }
    });
}

/// The platform as a child process.
fn platform(directory: &Path, action: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "local_crash::platform_process",
            "--ignored",
            "--quiet",
        ])
        .env(DIRECTORY, directory)
        .env(ACTION, action)
        .stdout(Stdio::null());
    command
}

/// Runs the platform until it dies, or until it is done if only its launchers died.
#[cfg(feature = "crash-points")]
fn run_platform(directory: &Path, action: &str, point: &str) {
    let status = platform(directory, action)
        .env(CRASH_AT, point)
        .status()
        .unwrap();
    let died = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
    let launchers_die = ["LauncherLocked", "LauncherRecorded"].contains(&point);
    assert!(
        died || (launchers_die && status.success()),
        "{action} went through {point}: {status}"
    );
}

/// Waits for exactly one process per slot. A launcher that has recorded itself becomes the process a moment later; two
/// for one slot would both stay.
async fn one_process_a_slot(world: &World, slots: usize) {
    until("exactly one process a slot", async || {
        let mut counts = BTreeMap::<String, usize>::new();
        for slot in processes_of(&world.state()).into_values() {
            *counts.entry(slot).or_default() += 1;
        }
        counts.len() == slots && counts.values().all(|count| *count == 1)
    })
    .await;
}

async fn remove_everything(world: &World) {
    for node in world.nodes().await {
        world.remove(&node).await;
    }
    assert!(processes_of(&world.state()).is_empty());
    assert_eq!(
        fs::read_dir(world.state().join("nodes")).unwrap().count(),
        0
    );
}

/// Files in it already belong to the node's user, who could plant a symlink in the path of a later write.
#[cfg(feature = "crash-points")]
#[test]
fn the_directory_of_a_node_is_entered_by_nobody_else_before_all_of_it_is_written() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let modes = |point: &str| -> Vec<(bool, u32)> {
        run_platform(directory.path(), "create", point);
        let nodes = local_support::state(directory.path()).join("nodes");
        let found = fs::read_dir(nodes).unwrap().map(Result::unwrap).map(|it| {
            let is_new = it.file_name().to_string_lossy().starts_with('.');
            (is_new, it.metadata().unwrap().permissions().mode() & 0o077)
        });
        found.collect()
    };
    let written = modes("IntentWritten");
    assert!(written.contains(&(true, 0)), "{written:?}");
    assert!(
        written
            .iter()
            .all(|(is_new, others)| !is_new || *others == 0)
    );
    let committed = modes("IntentDurable");
    assert!(
        committed
            .iter()
            .any(|(is_new, others)| !is_new && *others != 0),
        "{committed:?}"
    );
}

#[cfg(feature = "crash-points")]
#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_while_nodes_are_made_each_slot_has_exactly_one_process() {
    for point in CREATE {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        run_platform(directory.path(), "create", point);
        let world = World::over(directory, |_| {});
        let nodes = world
            .create(&request("sleeper", "r1", SLOTS))
            .await
            .into_iter()
            .map(made)
            .collect::<Vec<_>>();
        for node in &nodes {
            let node = world
                .wait(&node.node_id, "settled", |node| {
                    node.phase() != NodePhase::Pending
                })
                .await;
            // A killed launcher counts as a dead node; all others run.
            let may_fail = point == "LauncherLocked" || point == "LauncherRecorded";
            assert!(
                node.phase() == NodePhase::Running || may_fail,
                "{point}: {node:?}"
            );
        }
        assert_eq!(world.nodes().await.len(), nodes.len(), "{point}");
        let running = world
            .nodes()
            .await
            .iter()
            .filter(|node| node.phase() == NodePhase::Running)
            .count();
        one_process_a_slot(&world, running).await;
        remove_everything(&world).await;
    }
}

#[cfg(feature = "crash-points")]
#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_while_nodes_are_removed_nothing_is_left_in_the_end() {
    for point in REMOVE {
        let world = World::new();
        world.start(&request("sleeper", "r1", SLOTS)).await;
        let directory = world.stopped().await;
        run_platform(directory.path(), "remove", point);
        let world = World::over(directory, |_| {});
        remove_everything(&world).await;
    }
}

#[cfg(feature = "crash-points")]
#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_within_an_adoption_the_storage_is_that_of_the_node_s_owner() {
    let world = World::new();
    world.start(&stored("owner-1", "r1", 0)).await;
    let directory = world.stopped().await;
    run_platform(directory.path(), "adopt", "NodeAdopted");
    let world = World::over(directory, |_| {});
    let node = world.nodes().await.remove(0);
    assert_eq!(node.slot.clone().unwrap().owner, HEIR);
    // The heir's next node has to wait for it; the former owner's next node does not.
    let error = refused(world.create(&stored(HEIR, "r2", 5)).await.remove(0));
    assert!(error.message().contains("in use by node"), "{error}");
    world.start(&stored("owner-1", "r3", 0)).await;
    let key = world.retire(&node).await;
    let kept = world.driver.kept_storage().await.unwrap();
    assert_eq!((&*kept[0].owner, kept[0].ordinal), (HEIR, 5));
    let next = world.start(&stored(HEIR, "r4", 5)).await.remove(0);
    assert_eq!(world.retire(&next).await, key);
}

#[cfg(feature = "crash-points")]
#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_while_a_node_is_made_its_place_still_has_the_storage_in_use_last() {
    let world = World::new();
    let first = world.start(&stored(HEIR, "r1", 5)).await.remove(0);
    let earlier = world.retire(&first).await;
    let node = world.start(&stored("owner-1", "r2", 0)).await.remove(0);
    let change = adoption(HEIR, 5);
    let node = world.driver.update(&target(&node), &change).await.unwrap();
    let adopted = world.retire(&node).await;
    assert_ne!(adopted, earlier);
    let directory = world.stopped().await;
    run_platform(directory.path(), "follow", "IntentWritten");
    let world = World::over(directory, |_| {});
    let next = world.start(&stored(HEIR, "r3", 5)).await.remove(0);
    assert_eq!(world.retire(&next).await, adopted);
}

#[cfg(feature = "crash-points")]
#[tokio::test(flavor = "multi_thread")]
async fn many_crashes_in_a_row_still_make_each_node_once() {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    for point in [
        "IntentWritten",
        "IntentDurable",
        "LauncherSpawned",
        "BeforeAnswer",
        "BeforeAnswer",
    ] {
        run_platform(directory.path(), "create", point);
    }
    let world = World::over(directory, |_| {});
    for outcome in world.create(&request("sleeper", "r1", SLOTS)).await {
        world.ready(&made(outcome).node_id).await;
    }
    one_process_a_slot(&world, SLOTS as usize).await;
    remove_everything(&world).await;
}

#[cfg(feature = "crash-points")]
#[tokio::test(flavor = "multi_thread")]
async fn cleaning_up_after_a_crash_leaves_no_process_and_no_file() {
    use drover_platform_cloud::drivers::local::remove_all;
    use local_support::state;

    for point in CREATE {
        let directory = tempfile::tempdir().unwrap();
        run_platform(directory.path(), "create", point);
        remove_all(&state(directory.path())).unwrap();
        assert!(!state(directory.path()).exists(), "{point}");
        assert!(processes_of(&state(directory.path())).is_empty(), "{point}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_at_random_moments_neither_double_nor_lose_a_node() {
    let seed = drover_testing::seed::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    for action in ["create", "remove"] {
        let mut directory = Arc::new(tempfile::tempdir().unwrap());
        if action == "remove" {
            let world = World::over(directory, |_| {});
            world.start(&request("sleeper", "r1", SLOTS)).await;
            directory = world.stopped().await;
        }
        for _ in 0..RANDOM_KILLS {
            let mut platform = platform(directory.path(), action).spawn().unwrap();
            tokio::time::sleep(Duration::from_millis(random.u64(0..60))).await;
            platform.kill().unwrap();
            platform.wait().unwrap();
        }
        let world = World::over(directory, |_| {});
        if action == "create" {
            for outcome in world.create(&request("sleeper", "r1", SLOTS)).await {
                world.ready(&made(outcome).node_id).await;
            }
            one_process_a_slot(&world, SLOTS as usize).await;
        }
        remove_everything(&world).await;
    }
}
