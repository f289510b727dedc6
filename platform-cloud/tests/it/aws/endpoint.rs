//! The address of a cluster leads to one of its nodes without being asked for.

use drover_emulators::{Fault, ec2::Ec2Settings};
use drover_proto::platform::v1::{Node, NodePhase};
use futures::future::join_all;
use serde_json::Value;

use crate::aws::{
    bench::{Bench, until},
    conformance::wanted,
    faults::{self, all, faults_and_refusals},
};

async fn nodes_behind(bench: &Bench, count: usize) -> (String, Vec<Node>) {
    let outputs = bench.ensure_whole(&wanted()).await.outputs.unwrap();
    let host = outputs.endpoint.clone().unwrap().host;
    let mut request = bench.request(count, Value::Null).await;
    request.infrastructure = vec![outputs];
    let nodes = bench.provision(&request).await.unwrap().nodes;
    assert_eq!(nodes.len(), count);
    (host, nodes)
}

/// The instance that the address leads to, once it is one of these.
async fn leads_to_one_of(bench: &Bench, host: &str, nodes: &[&str]) -> String {
    let sdk = bench.sdk().await;
    until("the address leads to a node", || async {
        let answer = sdk.describe_addresses().public_ips(host).send().await;
        let id = answer.unwrap().addresses()[0]
            .instance_id()
            .unwrap_or_default()
            .to_owned();
        nodes.contains(&id.as_str()).then_some(id)
    })
    .await
}

fn others<'a>(nodes: &'a [Node], gone: &[&String]) -> Vec<&'a str> {
    let ids = nodes.iter().map(|node| &node.node_id);
    ids.filter(|id| !gone.contains(id))
        .map(String::as_str)
        .collect()
}

async fn it_follows_what_dies(bench: Bench) {
    let (host, nodes) = nodes_behind(&bench, 2).await;
    let first = leads_to_one_of(&bench, &host, &others(&nodes, &[])).await;
    let node = nodes.iter().find(|node| node.node_id == first).unwrap();
    bench.remove(node).await;
    leads_to_one_of(&bench, &host, &others(&nodes, &[&first])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_its_nodes_without_being_asked() {
    it_follows_what_dies(Bench::emulator().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_its_nodes_on_moto() {
    it_follows_what_dies(Bench::moto().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_leaves_a_node_whose_status_checks_fail_and_stays_with_the_next() {
    let bench = Bench::emulator().await;
    let (host, nodes) = nodes_behind(&bench, 3).await;
    for node in &nodes {
        until("they run", || async {
            let node = bench.node(&node.node_id).await?;
            (node.phase() == NodePhase::Running).then_some(())
        })
        .await;
    }
    let first = leads_to_one_of(&bench, &host, &others(&nodes, &[])).await;
    assert!(bench.ec2().impair(&first, true));
    let second = leads_to_one_of(&bench, &host, &others(&nodes, &[&first])).await;
    assert!(bench.ec2().impair(&first, false));
    let calls = bench.ec2().control().count("AssociateAddress");
    bench.ec2().control().clear_requests();
    bench.ec2().control().wait_for("DescribeInstances", 5).await;
    assert_eq!(
        leads_to_one_of(&bench, &host, &others(&nodes, &[])).await,
        second
    );
    assert_eq!(
        bench.ec2().control().count("AssociateAddress"),
        0,
        "after {calls}"
    );
    assert!(
        bench.ec2().control().count("DescribeAddresses") <= 2,
        "nothing is read while nothing changes"
    );
}

/// Nobody asks for the address here, so it is the driver that moves it.
async fn follows_through((what, fault, dies): (&str, Fault, bool)) {
    let bench = faults::bench(Ec2Settings::default()).await;
    let (host, nodes) = nodes_behind(&bench, 3).await;
    let first = leads_to_one_of(&bench, &host, &others(&nodes, &[])).await;
    let control = bench.ec2().control();
    control.fail_next("AssociateAddress", fault);
    assert!(bench.ec2().terminate_behind(&first), "{what}");
    until("the fault was met", || async {
        (control.faults_left() == 0).then_some(())
    })
    .await;
    if dies {
        bench.restart().await;
    }
    let second = leads_to_one_of(&bench, &host, &others(&nodes, &[&first])).await;
    let sdk = bench.sdk().await;
    let addresses = sdk.describe_addresses().send().await.unwrap();
    let led = addresses.addresses().iter().map(|it| it.instance_id());
    let led: Vec<_> = led.collect();
    assert_eq!(led, [Some(second.as_str())], "{what}");
    let left = nodes.iter().filter(|node| node.node_id != first);
    join_all(left.map(|node| bench.remove(node))).await;
    bench.release_whole().await;
    assert_eq!(bench.left(), vec![], "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_its_move_it_leads_to_a_node_that_runs_and_nowhere_else() {
    all(faults_and_refusals().into_iter().map(follows_through)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_and_a_restart_lead_it_to_a_node_all_the_same() {
    let bench = Bench::emulator().await;
    let fault = Fault::refuse(500, "InternalError", "An internal error has occurred");
    for _ in 0..3 {
        bench
            .ec2()
            .control()
            .fail_next("AssociateAddress", fault.clone());
    }
    let (host, nodes) = nodes_behind(&bench, 2).await;
    let first = leads_to_one_of(&bench, &host, &others(&nodes, &[])).await;
    bench.restart().await;
    assert!(bench.ec2().terminate_behind(&first));
    leads_to_one_of(&bench, &host, &others(&nodes, &[&first])).await;
}
