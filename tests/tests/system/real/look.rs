//! A user's view of a cluster.

use std::{collections::BTreeSet, process::Output};

use drover_proto::orchestrator::v1 as pb;

use super::{World, binary};

/// Reason and message of a condition that holds for the cluster or one of its groups.
pub async fn condition(world: &World, name: &str, kind: &str) -> Option<(String, String)> {
    let status = world.cluster(name).await.ok()??.status?;
    let groups = status.groups.into_iter().flat_map(|group| group.conditions);
    let mut all = status.conditions.into_iter().chain(groups);
    all.find(|c| c.r#type == kind && c.status == Some(true))
        .map(|c| (c.reason, c.message))
}

/// Runs the command line as a user would.
pub fn drover(world: &World, arguments: &[&str]) -> Output {
    drover_testing::processes::program(binary("drover"))
        .args(["--server", &world.orchestrator.endpoint()])
        .args(arguments)
        .output()
        .unwrap()
}

pub fn described(world: &World, name: &str) -> String {
    let output = drover(world, &["describe", "cluster", name]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{output:?}");
    said
}

pub async fn records(world: &World, name: &str) -> Vec<pb::Node> {
    world.records(name).await.unwrap()
}

pub fn ids(nodes: &[pb::Node]) -> BTreeSet<String> {
    nodes.iter().map(|node| node.id.clone()).collect()
}

pub fn ready(nodes: &[pb::Node]) -> BTreeSet<String> {
    let ready = nodes
        .iter()
        .filter(|node| node.state() == pb::NodeState::Ready);
    ready.map(|node| node.id.clone()).collect()
}

/// Pid of the process of a node.
pub fn process(node: &pb::Node) -> u32 {
    let pid = node.provider_id.rsplit('/').next().unwrap();
    pid.parse().unwrap_or_else(|_| panic!("no pid: {node:?}"))
}
