//! End-to-end tests on clouds: the real orchestrator and the real drivers, with emulated clouds.
#![cfg(feature = "clouds")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod boot;
mod endpoint;
mod machines;
mod maintenance;

use crate::embedded;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use drover_convert::value::to_struct;
use drover_emulators::{
    Fault,
    ec2::{Ec2, Ec2Settings},
};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{Spread, UnsatisfiableAction},
};
use embedded::{World, emulated_ec2, group_on};
use serde_json::{Value, json};
use tokio::time::Instant;

fn properties(value: &Value) -> Option<prost_types::Struct> {
    value.as_object().map(to_struct)
}

/// Instances that exist or are being created.
fn alive(ec2: &Ec2) -> Vec<drover_emulators::Machine> {
    let mut machines = ec2.machines();
    machines.retain(|machine| {
        ["pending", "running", "stopped", "stopping"].contains(&machine.state.as_str())
    });
    machines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_cluster_costs_one_list_each_poll_interval_and_its_status_checks_a_sixth_as_often()
{
    let poll = Duration::from_millis(200);
    let ec2 = Ec2::start(Ec2Settings::default()).await.unwrap();
    let mut world = World::new().await;
    let settings = emulated_ec2(ec2.url(), world.directory.path(), poll);
    world.add("aws", settings).await;
    world.apply("quiet", group_on("aws", 100)).await;
    world.ready("quiet", 100).await;
    // Wait until all activity caused by the creation has ended.
    let calls = ec2.control().count("DescribeInstances");
    ec2.control()
        .wait_for("DescribeInstances", calls + 15)
        .await;
    ec2.control().clear_requests();
    let began = Instant::now();
    ec2.control().wait_for("DescribeInstances", 50).await;
    let took = began.elapsed();
    let (all, lists) = (
        ec2.control().count("*"),
        ec2.control().count("DescribeInstances"),
    );
    let checks = ec2.control().count("DescribeInstanceStatus");
    assert_eq!(all, lists + checks, "{:?}", ec2.control().requests());
    assert!(checks <= 50 / 6 + 1, "{checks} in 50 polls");
    assert!(took >= poll * 48, "50 lists in {took:?}, one each {poll:?}");
    world.delete("quiet").await;
    world.gone("quiet").await;
    assert_eq!(alive(&ec2), vec![]);
    world.end().await;
    ec2.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spot_first_and_on_demand_where_there_is_none_evenly_over_the_zones() {
    let zones = ["eu-central-1a", "eu-central-1b", "eu-central-1c"];
    let settings = Ec2Settings {
        spot_capacity: zones.map(|zone| (zone.to_owned(), 2)).into(),
        ..Ec2Settings::default()
    };
    let ec2 = Ec2::start(settings).await.unwrap();
    let mut world = World::new().await;
    let settings = emulated_ec2(ec2.url(), world.directory.path(), Duration::from_millis(50));
    world.add("aws", settings).await;
    let choice = |capacity: &str, max| pb::PlatformChoice {
        name: "aws".to_owned(),
        max,
        properties: properties(&json!({"capacityType": capacity})),
        ..Default::default()
    };
    let mut spec = group_on("aws", 5);
    spec.platforms = vec![choice("spot", Some(2)), choice("on-demand", None)];
    spec.placement = Some(pb::Placement {
        failure_domains: zones.map(str::to_owned).to_vec(),
        spread: vec![Spread {
            topology_key: "zone".to_owned(),
            max_skew: Some(1),
            when_unsatisfiable: UnsatisfiableAction::DoNotSchedule.into(),
            ..Spread::default()
        }],
        ..Default::default()
    });
    world.apply("registry", spec).await;
    world.ready("registry", 5).await;
    let mut by_zone: BTreeMap<String, usize> = BTreeMap::new();
    for machine in alive(&ec2) {
        *by_zone.entry(machine.zone).or_default() += 1;
    }
    let mut counts: Vec<usize> = by_zone.values().copied().collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2, 2], "{by_zone:?}");
    world.delete("registry").await;
    world.gone("registry").await;
    assert_eq!(alive(&ec2), vec![]);
    world.end().await;
    ec2.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_and_a_faulty_cloud_lose_and_double_nothing() {
    let mut random = fastrand::Rng::with_seed(drover_testing::seed::seed());
    let mut settings = Ec2Settings::default();
    settings.common.pending_delay = Duration::from_millis(100);
    settings.common.stopping_delay = Duration::from_millis(100);
    settings.common.visibility_delay = Duration::from_millis(500);
    let ec2 = Ec2::start(settings).await.unwrap();
    let mut world = World::new().await;
    let platform = emulated_ec2(ec2.url(), world.directory.path(), Duration::from_millis(50));
    world.add("aws", platform).await;
    world.apply("chaos", group_on("aws", 3)).await;
    let mut size = 3;
    for _ in 0..15 {
        let operations = ["RunInstances", "TerminateInstances", "DescribeInstances"];
        for _ in 0..random.usize(0..4) {
            let operation = operations[random.usize(0..operations.len())];
            let faults = [
                Fault::LoseAnswer,
                Fault::CutAnswer,
                Fault::Refused,
                Fault::refuse(503, "Unavailable", "the service is away for a moment"),
                Fault::refuse_after(500, "InternalError", "an internal error has occurred"),
                Fault::Throttle { retry_after: None },
                Fault::NoCapacity,
            ];
            ec2.control()
                .fail_next(operation, faults[random.usize(0..faults.len())].clone());
        }
        size = random.u32(0..12);
        world.scale("chaos", "web", size).await;
        let calls = ec2.control().count("*");
        ec2.control()
            .wait_for("*", calls + random.usize(0..6))
            .await;
        match random.u8(0..3) {
            0 => world.kill_orchestrator().await,
            1 => world.kill_platform("aws").await,
            _ => {
                let alive = alive(&ec2);
                if let Some(machine) = alive.get(random.usize(0..alive.len().max(1))) {
                    ec2.terminate_behind(&machine.id);
                }
            }
        }
    }
    ec2.control().clear_faults();
    world.reset_back_off("chaos").await;
    world.ready("chaos", size as usize).await;
    let recorded: BTreeSet<String> = world
        .nodes("chaos")
        .await
        .into_iter()
        .filter_map(|node| node.platform_node_id)
        .collect();
    let existing: BTreeSet<String> = alive(&ec2).into_iter().map(|machine| machine.id).collect();
    assert_eq!(existing, recorded, "what exists is what is recorded");
    world.delete("chaos").await;
    world.gone("chaos").await;
    assert_eq!(alive(&ec2), vec![]);
    world.end().await;
    ec2.shutdown().await;
}
