//! Every changing call with every fault: it is completed, and nothing leaks.

mod given;

use std::collections::BTreeSet;

use drover_emulators::{Fault, ec2::Ec2Settings};
use drover_proto::platform::v1::{InfrastructureSpec, Node, NodePhase};
use serde_json::Value;

use super::{EVERYTHING, other_rules};
use crate::aws::{
    bench::{Bench, names, until},
    conformance::wanted,
    faults::{self, all, faults_and_refusals},
};

/// The changing calls that create the infrastructure, in their order.
pub(crate) const MAKING: [&str; 11] = [
    "CreateVpc",
    "CreateInternetGateway",
    "AttachInternetGateway",
    "CreateRoute",
    "ModifyVpcAttribute",
    "CreateSubnet",
    "ModifySubnetAttribute",
    "CreateSecurityGroup",
    "AuthorizeSecurityGroupIngress",
    "AllocateAddress",
    "AssociateAddress",
];

/// Those that change what is there after a change of the spec, or after somebody else's.
pub(crate) const CHANGING: [&str; 5] = [
    "ReplaceRoute",
    "AuthorizeSecurityGroupEgress",
    "RevokeSecurityGroupEgress",
    "RevokeSecurityGroupIngress",
    "CreateTags of eipalloc",
];

/// Those about a network and an address that somebody else has made.
pub(crate) const BORROWING: [&str; 3] = [
    "CreateTags of eipalloc",
    "CreateTags of sg",
    "DeleteTags of eipalloc",
];

pub(crate) const FREEING: [&str; 7] = [
    "DisassociateAddress",
    "ReleaseAddress",
    "DeleteSecurityGroup",
    "DeleteSubnet",
    "DetachInternetGateway",
    "DeleteInternetGateway",
    "DeleteVpc",
];

async fn bench() -> Bench {
    let bench = faults::bench(Ec2Settings::default()).await;
    bench.settled().await;
    bench
}

/// Each of these calls with each fault.
fn cases(calls: &[&'static str]) -> Vec<(&'static str, String, Fault, bool)> {
    let mut cases = Vec::new();
    for call in calls {
        let of_call = faults_and_refusals()
            .into_iter()
            .map(|(what, fault, dies)| (*call, format!("{call}: {what}"), fault, dies));
        cases.extend(of_call);
    }
    cases
}

/// Makes what is wanted, whatever fails on the way.
async fn ensure(bench: &Bench, spec: &InfrastructureSpec) {
    until("everything is there", || async {
        let answer = bench.ensure(spec).await.ok()?;
        answer.poll_after.is_none().then_some(())
    })
    .await;
}

async fn complete(bench: &Bench) {
    ensure(bench, &wanted()).await;
    let state = bench.get().await;
    assert_eq!(names(&state.resources), EVERYTHING, "one of each");
}

/// Asserts that no more resources than desired were ever made, of any kind.
fn nothing_was_doubled(bench: &Bench, what: &str) {
    let made = bench.ec2().ledger();
    let ours = || made.iter().filter(|made| !made.foreign);
    let kinds: BTreeSet<&str> = ours().map(|made| made.kind.as_str()).collect();
    for kind in kinds {
        let most = if kind.contains("subnet") { 3 } else { 1 };
        let count = ours().filter(|made| made.kind == kind).count();
        if kind != "instance" && kind != "volume" {
            assert!(count <= most, "{what}: {count} of {kind}");
        }
    }
}

fn the_fault_was_met(bench: &Bench, what: &str) {
    let left = bench.ec2().control().faults_left();
    assert_eq!(left, 0, "{what}: the fault was met");
}

/// A cluster that has met this fault while it was made, and has nothing of what comes after it.
async fn half_made(call: &str, what: &str, fault: Fault, dies: bool) -> Bench {
    let bench = bench().await;
    // The address is not associated before there is a node, and then by whoever is first.
    let needs_node = call == "AssociateAddress";
    if needs_node {
        complete(&bench).await;
    }
    bench.ec2().control().fail_next(call, fault);
    if needs_node {
        running_node(&bench).await;
    }
    let _ = bench.ensure(&wanted()).await;
    the_fault_was_met(&bench, what);
    if dies {
        bench.restart().await;
    }
    bench
}

async fn made((call, what, fault, dies): (&str, String, Fault, bool)) {
    let bench = half_made(call, &what, fault, dies).await;
    complete(&bench).await;
    nothing_was_doubled(&bench, &what);
    for node in bench.nodes().await {
        bench.remove(&node).await;
    }
    bench.release_whole().await;
    assert_eq!(bench.left(), vec![], "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_a_call_that_makes_something_it_is_completed() {
    all(cases(&MAKING).into_iter().map(made)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_every_half_made_state_everything_is_released() {
    all(cases(&MAKING)
        .into_iter()
        .map(|(call, what, fault, dies)| async move {
            let bench = half_made(call, &what, fault, dies).await;
            for node in bench.nodes().await {
                bench.remove(&node).await;
            }
            bench.release_whole().await;
            assert_eq!(bench.left(), vec![], "{what}");
        }))
    .await;
}

/// What is wanted after a change of all that can be changed.
fn changed() -> InfrastructureSpec {
    let mut spec = wanted();
    spec.endpoint.as_mut().unwrap().port = 7443;
    spec.firewall.as_mut().unwrap().rules = other_rules(7443);
    spec
}

/// Deletes the gateway, as a person might: the route to it stays.
async fn lose_the_gateway(bench: &Bench) {
    let sdk = bench.sdk().await;
    let state = bench.get().await;
    let id = |kind: &str| {
        let mut resources = state.resources.iter();
        resources.find(|it| it.kind == kind).unwrap().id.clone()
    };
    let (gateway, vpc) = (id("gateway"), id("network"));
    let detached = sdk.detach_internet_gateway().vpc_id(vpc);
    let detached = detached.internet_gateway_id(&gateway).send().await;
    detached.unwrap();
    let deleted = sdk.delete_internet_gateway();
    let deleted = deleted.internet_gateway_id(&gateway).send().await;
    deleted.unwrap();
}

/// The gateways to which the default routes of a network lead.
async fn default_routes(bench: &Bench, vpc: &str) -> Vec<String> {
    let tables = bench.sdk().await.describe_route_tables().send().await;
    let tables = tables.unwrap();
    let tables = tables.route_tables().iter();
    let routes = tables
        .filter(|table| table.vpc_id() == Some(vpc))
        .flat_map(aws_sdk_ec2::types::RouteTable::routes);
    routes
        .filter(|route| route.destination_cidr_block() == Some("0.0.0.0/0"))
        .map(|route| route.gateway_id().unwrap_or_default().to_owned())
        .collect()
}

async fn followed((call, what, fault, dies): (&str, String, Fault, bool)) {
    let bench = bench().await;
    complete(&bench).await;
    let loses_gateway = call == "ReplaceRoute";
    if loses_gateway {
        lose_the_gateway(&bench).await;
    }
    bench.ec2().control().fail_next(call, fault);
    let _ = bench.ensure(&changed()).await;
    the_fault_was_met(&bench, &what);
    if dies {
        bench.restart().await;
    }
    ensure(&bench, &changed()).await;
    let state = bench.get().await;
    assert_eq!(names(&state.resources), EVERYTHING, "{what}");
    let outputs = state.outputs.unwrap();
    assert_eq!(outputs.endpoint.unwrap().port, 7443, "{what}");
    let id = |kind: &str| {
        let mut resources = state.resources.iter();
        resources.find(|it| it.kind == kind).unwrap().id.clone()
    };
    let (ingress, egress) = super::rules(&bench, &id("firewall")).await;
    let (ingress, egress): (Vec<_>, Vec<_>) =
        (ingress.into_iter().collect(), egress.into_iter().collect());
    assert_eq!(ingress, ["-1 -1 self", "tcp 7443 10.0.0.0/8"], "{what}");
    assert_eq!(egress, ["-1 -1 self", "udp 53 10.0.0.2/32"], "{what}");
    let routes = default_routes(&bench, &id("network")).await;
    assert_eq!(routes, [id("gateway")], "{what}");
    if !loses_gateway {
        nothing_was_doubled(&bench, &what);
    }
    bench.release_whole().await;
    assert_eq!(bench.left(), vec![], "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_a_change_of_what_is_there_it_is_as_wanted_in_the_end() {
    all(cases(&CHANGING).into_iter().map(followed)).await;
}

async fn freed((call, what, fault, dies): (&str, String, Fault, bool)) {
    let bench = bench().await;
    complete(&bench).await;
    let node = running_node(&bench).await;
    bench.ensure(&wanted()).await.unwrap();
    if call != "DisassociateAddress" {
        bench.remove(&node).await;
    }
    bench.ec2().control().fail_next(call, fault);
    let _ = bench.release().await;
    if dies {
        bench.restart().await;
    }
    if call == "DisassociateAddress" {
        bench.remove(&node).await;
    }
    bench.release_whole().await;
    the_fault_was_met(&bench, &what);
    assert_eq!(bench.left(), vec![], "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_a_release_nothing_is_left() {
    all(cases(&FREEING).into_iter().map(freed)).await;
}

async fn running_node(bench: &Bench) -> Node {
    let outputs = bench.get().await.outputs.unwrap();
    let mut request = bench.request(1, Value::Null).await;
    request.infrastructure = vec![outputs];
    let answer = bench.provision(&request).await.unwrap();
    let id = answer.nodes[0].node_id.clone();
    until("the node runs", || async {
        bench
            .node(&id)
            .await
            .filter(|node| node.phase() == NodePhase::Running)
    })
    .await
}
