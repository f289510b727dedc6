//! Addons over hosts: standby hosts take over, and labels of hosts change in place.

use std::{collections::BTreeMap, time::Duration};

use drover_platform_cloud::drivers::simulated::{Death, HostSettings, SimulatedSettings};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{HealthPolicy, Host, HostState, NodeRole},
};
use drover_simulation as sim;
use serde_json::json;
use sim::{World, immortal, runtime};
use tokio::time::Instant;

use super::{CALL, TICK, apply_with, balancer, nodes_ready, quick, served, targets};

/// A platform with this number of hosts.
pub(super) fn pool(hosts: usize) -> SimulatedSettings {
    let host = |at: usize| HostSettings {
        id: format!("lab/h{at}"),
        addresses: [("oam".to_owned(), format!("10.0.0.{}", at + 1))].into(),
        ..HostSettings::default()
    };
    SimulatedSettings {
        inventory: true,
        hosts: (0..hosts).map(host).collect(),
        ..quick()
    }
}

/// Has the hosts of all groups get these labels.
pub(super) fn label(spec: &mut pb::ClusterSpec, labels: &[(&str, &str)]) {
    let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
    let properties = json!({"hostLabels": labels});
    spec.properties = properties.as_object().map(drover_convert::value::to_struct);
}

async fn hosts(world: &mut World) -> Vec<Host> {
    let request = pb::ListHostsRequest {
        platform: "sim".to_owned(),
        ..Default::default()
    };
    let call = async |client: drover_client::OrchestratorClient| {
        client.list_hosts(request.clone(), CALL).await
    };
    world
        .call(call)
        .await
        .map(|it| it.hosts)
        .unwrap_or_default()
}

/// Hosts that are claimed, with the value that they have under a key.
async fn claimed(world: &mut World, key: &str) -> BTreeMap<String, Option<String>> {
    let all = hosts(world).await.into_iter();
    let claimed = all.filter(|host| host.state() == HostState::Claimed);
    claimed
        .map(|mut host| (host.id, host.labels.remove(key)))
        .collect()
}

pub(super) async fn until_labelled(world: &mut World, count: usize, key: &str, value: &str) {
    world
        .until("all hosts have the label", async |world| {
            let claimed = claimed(world, key).await;
            claimed.len() == count && claimed.values().all(|it| it.as_deref() == Some(value))
        })
        .await;
}

pub(super) async fn until_claimed(world: &mut World, count: usize) {
    world
        .until("as many hosts are claimed as are wanted", async |world| {
            claimed(world, "").await.len() == count
        })
        .await;
}

/// One failed probe is enough.
pub(super) fn strict() -> HealthPolicy {
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    HealthPolicy {
        interval: seconds(1),
        timeout: seconds(1),
        failure_threshold: Some(1),
        ..HealthPolicy::default()
    }
}

#[test]
fn of_an_active_host_in_error_and_one_that_is_deleted_standby_hosts_take_the_place() {
    runtime().block_on(async {
        let mut world = World::new(pool(8), immortal()).await;
        let spec = |spec: &mut pb::ClusterSpec| {
            spec.groups[0].standby = Some(2);
            spec.health = Some(strict());
        };
        apply_with(&mut world, vec![balancer(30_001)], 3, &spec)
            .await
            .unwrap();
        nodes_ready(&mut world, 5).await;
        world
            .until("three of five are served", async |world| served(world) == 3)
            .await;
        let active: Vec<String> = targets(&world, "lb")
            .into_iter()
            .filter(|it| it.role() != NodeRole::Standby)
            .map(|it| it.node_id)
            .collect();
        assert_eq!(active.len(), 3);
        let (sick, deleted) = (&active[0], &active[1]);
        let began = Instant::now();
        assert!(world.site.backend.set_ready(sick, false));
        assert!(world.site.backend.kill(deleted, Death::Terminated));
        let mut left = Vec::new();
        let all_serve = |world: &World, left: &mut Vec<(String, Duration)>| {
            let told = targets(world, "lb");
            for lost in [sick, deleted] {
                let serves = told.iter().any(|it| it.node_id == *lost && !it.draining);
                if !serves && left.iter().all(|(id, _)| id != lost) {
                    left.push((lost.clone(), began.elapsed()));
                }
            }
            let serving = told.iter().filter(|it| {
                let lost = it.node_id == *sick || it.node_id == *deleted;
                it.role() != NodeRole::Standby && !it.draining && !lost
            });
            serving.count() == 3 && left.len() == 2
        };
        let mut waited = 0;
        while !all_serve(&world, &mut left) {
            waited += 1;
            assert!(
                waited < 1_200,
                "nobody takes over: {:?}",
                targets(&world, "lb")
            );
            world.pass(TICK).await;
        }
        println!(
            "three serve again after {:?}; let go of {left:?}",
            began.elapsed()
        );
        until_claimed(&mut world, 5).await;
        nodes_ready(&mut world, 5).await;
    });
}

#[test]
fn changed_labels_reach_the_hosts_of_a_cluster_and_no_host_is_given_up_for_them() {
    runtime().block_on(async {
        let mut world = World::new(pool(4), immortal()).await;
        let wants = |labels: &'static [(&'static str, &'static str)]| {
            move |spec: &mut pb::ClusterSpec| label(spec, labels)
        };
        let lb = || vec![balancer(30_001)];
        let blue = wants(&[("tenant", "blue"), ("tier", "gold")]);
        apply_with(&mut world, lb(), 3, &blue).await.unwrap();
        until_labelled(&mut world, 3, "tenant", "blue").await;
        world.check().await;
        let before: Vec<String> = claimed(&mut world, "tenant").await.into_keys().collect();
        let red = wants(&[("tenant", "red")]);
        apply_with(&mut world, lb(), 3, &red).await.unwrap();
        until_labelled(&mut world, 3, "tenant", "red").await;
        world.check().await;
        let tiers = claimed(&mut world, "tier").await;
        assert!(tiers.values().all(Option::is_none), "taken off: {tiers:?}");
        assert_eq!(tiers.into_keys().collect::<Vec<_>>(), before);
        apply_with(&mut world, lb(), 3, &|_| {}).await.unwrap();
        world
            .until("none is left", async |world| {
                let all = claimed(world, "tenant").await;
                all.len() == 3 && all.values().all(Option::is_none)
            })
            .await;
        world.check().await;
        assert_eq!(world.site.backend.ledger().len(), 3, "no host was replaced");
        let calls = world.site.calls().len();
        world.pass(Duration::from_secs(300)).await;
        assert!(
            world.site.calls().len() < calls + 40,
            "a settled cluster is left alone"
        );
    });
}
