//! An address that leads to a node of its cluster.

use std::time::Duration;

use drover_emulators::ec2::{Ec2, Ec2Settings};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{EndpointSpec, Resource, ResourcePhase},
};

use crate::embedded::{World, emulated_ec2, group_on};

async fn endpoint(world: &World) -> Option<Resource> {
    let status = world.cluster("db").await.ok()??.status?;
    let states = status
        .infrastructure
        .into_iter()
        .filter_map(|one| one.state);
    let mut resources = states.flat_map(|state| state.resources);
    resources.find(|one| one.kind == "endpoint")
}

async fn until_told(world: &World, phase: ResourcePhase, words: &str) {
    let what = format!("the endpoint is {}, and {words}", phase.as_str_name());
    world
        .until(&what, async |world| {
            endpoint(world)
                .await
                .is_some_and(|it| it.phase() == phase && it.message == words)
        })
        .await;
}

/// Long before the next check for drift, which is after ten minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_waits_for_the_first_node_and_follows_to_the_one_that_replaces_it() {
    let ec2 = Ec2::start(Ec2Settings::default()).await.unwrap();
    let mut world = World::new().await;
    let settings = emulated_ec2(ec2.url(), world.directory.path(), Duration::from_millis(50));
    world.add("aws", settings).await;
    let mut spec = group_on("aws", 0);
    spec.infrastructure = vec![pb::Infrastructure {
        platform: "aws".to_owned(),
        endpoint: Some(EndpointSpec::default()),
        ..Default::default()
    }];
    world.apply("db", spec.clone()).await;
    until_told(&world, ResourcePhase::Pending, "leads to no node yet").await;
    spec.groups[0].size = Some(1);
    world.apply("db", spec).await;
    world.ready("db", 1).await;
    let first = super::alive(&ec2).remove(0).id;
    until_told(&world, ResourcePhase::Ready, &format!("leads to {first}")).await;
    ec2.terminate_behind(&first);
    world
        .until("another node is there", async |_| {
            super::alive(&ec2).iter().any(|one| one.id != first)
        })
        .await;
    world.ready("db", 1).await;
    let next = super::alive(&ec2).remove(0).id;
    until_told(&world, ResourcePhase::Ready, &format!("leads to {next}")).await;
    world.end().await;
    ec2.shutdown().await;
}
