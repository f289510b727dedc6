//! How long a change of membership takes until an addon has it, from the event at the platform on.

use std::time::Duration;

use drover_client::Channel;
use drover_platform_cloud::drivers::simulated::{Death, SimulatedHandle};
use drover_proto::{
    orchestrator::v1::{self as pb, cluster_service_client::ClusterServiceClient},
    platform::v1::{AddonKind, NodeRole, PortRef, port_ref::Port},
};
use futures::StreamExt;
use tokio::time::Instant;

use super::{World, cluster, ms, percentile, row};

/// Clusters that change at the same time.
const CLUSTERS: usize = 8;
/// Active nodes of each.
const ACTIVE: usize = 3;
/// Longest wait for a change.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of three nodes and a standby behind a load balancer.
fn balanced(number: usize) -> pb::ApplyClusterRequest {
    let mut request = cluster(number, 3);
    let spec = request.cluster.as_mut().unwrap().spec.as_mut().unwrap();
    spec.groups[0].standby = Some(1);
    // Each of them dies young, which would count as a failure to make one.
    spec.groups[0].stable_after = Some(prost_types::Duration {
        seconds: 0,
        nanos: 1_000_000,
    });
    spec.addons = vec![pb::Addon {
        name: "lb".to_owned(),
        r#type: AddonKind::LoadBalancer.into(),
        platform: "simulated".to_owned(),
        targets: vec!["web".to_owned()],
        target_port: Some(PortRef {
            port: Some(Port::Number(8080)),
        }),
        ..pb::Addon::default()
    }];
    request
}

/// Nodes that a load balancer was told to serve, and those that stand by.
fn told(handle: &SimulatedHandle, cluster: &str) -> (Vec<String>, usize) {
    let wanted = handle.addon_wanted(cluster, "lb");
    let targets = wanted.map(|it| it.targets).unwrap_or_default();
    let staying = targets.into_iter().filter(|it| !it.draining);
    let (standby, active): (Vec<_>, Vec<_>) =
        staying.partition(|it| it.role() == NodeRole::Standby);
    let active = active.into_iter().map(|it| it.node_id);
    (active.collect(), standby.len())
}

async fn until(what: impl Fn() -> bool) -> Duration {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < PATIENCE, "the addon is never told");
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    began.elapsed()
}

/// An active node dies. Returns how long its balancer is told to serve it, and how long until its standby is served.
async fn change(handle: &SimulatedHandle, cluster: &str) -> [Duration; 2] {
    until(|| {
        let (active, standby) = told(handle, cluster);
        (active.len(), standby) == (ACTIVE, 1)
    })
    .await;
    // A standby that is not ready yet is not promoted.
    tokio::time::sleep(super::DELAY * 4).await;
    let lost = told(handle, cluster).0.swap_remove(0);
    assert!(handle.kill(&lost, Death::Failed));
    let gone = until(|| !told(handle, cluster).0.contains(&lost)).await;
    let more = until(|| told(handle, cluster).0.len() == ACTIVE).await;
    [gone, gone + more]
}

/// Changes clusters behind balancers, and prints how long that takes.
pub(crate) async fn membership(changes: usize) {
    let world = World::start().await;
    let channel: Channel = world.orchestrator.channel();
    for number in 0..CLUSTERS {
        let mut client = ClusterServiceClient::new(channel.clone());
        client.apply_cluster(balanced(number)).await.unwrap();
    }
    let handle = world.handle();
    let of_one = |number: usize| async move {
        let name = format!("bench-{number}");
        let mut all = Vec::new();
        for _ in 0..changes / CLUSTERS {
            all.push(change(handle, &name).await);
        }
        all
    };
    let all: Vec<Vec<[Duration; 2]>> = futures::stream::iter(0..CLUSTERS)
        .map(of_one)
        .buffer_unordered(CLUSTERS)
        .collect()
        .await;
    let all = all.concat();
    for (at, what) in [
        "it is told to let go of it",
        "its standby is served instead",
    ]
    .into_iter()
    .enumerate()
    {
        let mut times: Vec<Duration> = all.iter().map(|one| one[at]).collect();
        times.sort();
        row(
            &format!(
                "a node behind a balancer dies until {what}, p50 / p99 of {}",
                times.len()
            ),
            format!(
                "{} / {}",
                ms(percentile(&times, 50)),
                ms(percentile(&times, 99))
            ),
            "p99 < 1 s",
        );
    }
}
