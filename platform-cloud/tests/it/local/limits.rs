//! Resource limits of a cluster. Only runs as root, with the kernel's control groups.

use drover_platform_cloud::drivers::local::{ClusterLimits, Isolation, LocalDriver, Settings};
use drover_proto::platform::v1::NodePhase;

use super::{
    inside::exec,
    tenants::{is_root, of, open_directory, shell},
};
use crate::local_support::{World, pid, request, settings, until};

const MEMORY: u64 = 64 * 1024 * 1024;
const PROCESSES: u32 = 24;

fn limited(settings: &mut Settings) {
    settings.isolation = Isolation::Required;
    settings.cluster_limits = ClusterLimits {
        memory_bytes: Some(MEMORY),
        processes: Some(PROCESSES),
        cpus: Some(0.5),
    };
}

/// The directories of Drover's groups that a process is in, as reported by the kernel.
fn groups(pid: u32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let paths = text.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        path.contains("/drover/")
            .then(|| format!("/sys/fs/cgroup/{controllers}{path}"))
    });
    paths.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_cluster_takes_leaves_enough_to_the_others() {
    if !is_root() {
        return;
    }
    let world = World::over(open_directory(), limited);
    let greedy = world
        .start(&of("greedy", request("sleeper", "r1", 2)))
        .await;
    let other = world
        .start(&of("modest", request("sleeper", "r2", 1)))
        .await
        .remove(0);
    // Nodes of one cluster share a group, those of another cluster have another one.
    assert_eq!(groups(pid(&greedy[0])), groups(pid(&greedy[1])));
    assert_ne!(groups(pid(&greedy[0])), groups(pid(&other)));

    let many = "i=0; while [ $i -lt 100 ]; do sleep 60 & i=$((i+1)); done; wait";
    let (said, _) = shell(&world, &greedy[0], many).await;
    assert!(said.to_lowercase().contains("fork"), "{said}");
    // Another node of the cluster cannot exceed the limit either.
    let (said, code) = shell(&world, &greedy[1], &format!("sleep 0 & {many}")).await;
    assert!(code != 0 || said.to_lowercase().contains("fork"), "{said}");
    let much = "head -c 300m /dev/zero | tail -c 200m | wc -c";
    let (said, code) = shell(&world, &greedy[0], much).await;
    assert_ne!(said.trim(), "209715200", "{code}");

    let (said, code) = shell(
        &world,
        &other,
        "for i in 1 2 3 4 5; do /bin/true & done; wait; echo well",
    )
    .await;
    assert_eq!((said.as_str(), code), ("well\n", 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_dies_for_want_of_memory_says_so() {
    if !is_root() {
        return;
    }
    let world = World::over(open_directory(), limited);
    let node = world
        .start(&of("greedy", request("hungry", "r1", 1)))
        .await
        .remove(0);
    std::fs::write(world.node_directory(&node).join("data/eat"), "").unwrap();
    let ended = world
        .wait(&node.node_id, "dead", |node| {
            node.phase() == NodePhase::Failed && node.message.contains("killed")
        })
        .await;
    assert!(
        ended
            .message
            .contains("local.cluster_limits.memory_bytes (67108864)"),
        "{}",
        ended.message
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_the_settings_hold_for_what_runs_and_groups_go_with_the_last_node() {
    if !is_root() {
        return;
    }
    let world = World::over(open_directory(), limited);
    let nodes = world
        .start(&of("orders", request("sleeper", "r1", 2)))
        .await;
    let groups = groups(pid(&nodes[0]));
    assert!(!groups.is_empty());
    let directory = world.stopped().await;
    let world = World::over(directory, |settings| {
        limited(settings);
        settings.cluster_limits.processes = Some(100);
    });
    let found = world.ready(&nodes[0].node_id).await;
    let count = "i=0; while [ $i -lt 50 ]; do sleep 1 & i=$((i+1)); done; wait; echo well";
    let (said, code) = exec(&world, &found, &["sh", "-c", count], &[]).await;
    assert_eq!((said.as_str(), code), ("well\n", 0));
    world.remove(&nodes[0]).await;
    assert!(groups.iter().all(|group| std::fs::exists(group).unwrap()));
    world.remove(&nodes[1]).await;
    until("the groups are gone", async || {
        !groups.iter().any(|group| std::fs::exists(group).unwrap())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_cannot_be_kept_are_refused_and_not_ignored() {
    let directory = open_directory();
    let mut wanted = settings(directory.path());
    limited(&mut wanted);
    wanted.isolation = Isolation::None;
    let error = LocalDriver::open(wanted).err().unwrap();
    assert!(error.message().contains("local.cluster_limits"), "{error}");
    let mut wanted = settings(directory.path());
    wanted.cluster_limits.processes = Some(1);
    let error = LocalDriver::open(wanted).err().unwrap();
    let field = "local.cluster_limits.processes";
    assert!(format!("{error:?}").contains(field), "{error:?}");
}
