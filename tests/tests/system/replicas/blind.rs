//! A leader that no longer reaches a platform, which another replica does. Each replica has a table of hosts of its own, so
//! that the platform can be taken away from one alone; that needs root.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use drover_testing::{etcd::Etcd, wait::PATIENCE};
use tokio::time::{Instant, sleep};

use super::{REPLICAS, Site, replica};
use crate::real::{Server, World, binary, kill_9};

const NAME: &str = "localhost";
const HERE: &str = "127.0.0.1";
/// Nobody listens there.
const NOWHERE: &str = "127.0.0.77";

fn hosts(world: &World, at: usize) -> PathBuf {
    world.state().with_file_name(format!("hosts-{at}"))
}

/// What the names mean for one replica from now on. The file stays the same one, since it is mounted.
fn points(world: &World, at: usize, to: &str) {
    fs::write(hosts(world, at), format!("{to} {NAME}\n")).unwrap();
}

/// The same replica with its own table of hosts.
fn with_own_hosts(world: &World, etcd: &Etcd, at: usize) -> Server {
    points(world, at, HERE);
    let script = world.state().with_file_name(format!("replica-{at}"));
    let text = format!(
        "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind {} /etc/hosts && exec {} \"$@\"' sh \"$@\"\n",
        hosts(world, at).display(),
        binary("drover-orchestrator").display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let script: &'static str = script.to_str().unwrap().to_owned().leak();
    replica(script, world, etcd, &format!("r{at}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_reaches_fewer_platforms_than_another_replica_hands_over() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("no replica is cut off from a platform: that needs root");
        return;
    }
    let etcd = Etcd::start(1);
    let mut world = World::stopped();
    world.orchestrator = with_own_hosts(&world, &etcd, 0);
    for at in 1..REPLICAS {
        let other = with_own_hosts(&world, &etcd, at);
        world.others.push(other);
    }
    let mut site = Site { world, etcd };
    site.begin(|platform| format!("http://{NAME}:{}", platform.port()))
        .await;
    site.world.apply("prey", "", 2).await.unwrap();
    site.world.ready("prey", 2).await;
    let nodes = site.world.processes();
    let (leader, epoch) = site.leader_after(None).await;
    site.until("all reach it", |replicas| {
        replicas
            .values()
            .all(|replica| replica.platforms == ["local"])
    })
    .await;

    points(&site.world, leader, NOWHERE);
    let (next, later) = site.leader_after(Some(leader)).await;
    assert!(later > epoch);
    site.until("the former one says why", |replicas| {
        let former = replicas.get(&leader);
        former.is_some_and(|former| former.unfit.contains("reaches local"))
    })
    .await;
    assert_eq!(site.leader_after(None).await, (next, later), "it stays so");
    assert_eq!(site.world.processes(), nodes, "no node noticed anything");
    let victim = *nodes.keys().next().unwrap();
    kill_9(victim);
    site.exactly(2).await;

    // With the other ones gone it leads all the same.
    points(&site.world, leader, HERE);
    let others: BTreeSet<usize> = (0..REPLICAS).filter(|&at| at != leader).collect();
    for at in others {
        site.server(at).kill();
    }
    assert_eq!(site.leader_after(Some(next)).await.0, leader);
}

impl Site {
    async fn until(
        &self,
        what: &str,
        so: impl Fn(&std::collections::BTreeMap<usize, super::pb::Replica>) -> bool,
    ) {
        let begin = Instant::now();
        loop {
            let replicas = self.replicas().await;
            if so(&replicas) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {replicas:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}
