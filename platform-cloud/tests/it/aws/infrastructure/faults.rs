//! Every mutating call with every fault: it is completed, and nothing leaks.

use std::collections::BTreeSet;

use drover_emulators::Fault;
use drover_proto::platform::v1::NodePhase;
use serde_json::Value;

use super::EVERYTHING;
use crate::aws::{
    bench::{Bench, names, until},
    conformance::wanted,
};

/// The mutating calls that create the infrastructure, in their order.
const MAKING: [&str; 11] = [
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

const FREEING: [&str; 7] = [
    "DisassociateAddress",
    "ReleaseAddress",
    "DeleteSecurityGroup",
    "DeleteSubnet",
    "DetachInternetGateway",
    "DeleteInternetGateway",
    "DeleteVpc",
];

fn faults() -> Vec<(&'static str, Fault, bool)> {
    vec![
        (
            "error before",
            Fault::refuse(500, "InternalError", "oops"),
            false,
        ),
        (
            "error after",
            Fault::refuse_after(500, "InternalError", "oops"),
            false,
        ),
        ("answer lost", Fault::LoseAnswer, false),
        ("answer cut", Fault::CutAnswer, false),
        ("connection closed", Fault::Refused, false),
        ("crash before", Fault::Refused, true),
        ("crash after", Fault::LoseAnswer, true),
    ]
}

/// Creates everything, including a running node, whatever fails on the way.
async fn complete(bench: &Bench) {
    let spec = wanted();
    until("everything is there", || async {
        let answer = bench.ensure(&spec).await.ok()?;
        answer.poll_after.is_none().then_some(())
    })
    .await;
    let state = bench.get().await;
    assert_eq!(names(&state.resources), EVERYTHING, "one of each");
}

/// Asserts that no kind ever had more resources than desired.
fn nothing_is_doubled(bench: &Bench, what: &str) {
    let count = |kind: &str| {
        let made = bench.ec2().ledger();
        made.iter()
            .filter(|made| made.kind == kind && !made.foreign && !made.gone)
            .count()
    };
    let kinds: BTreeSet<String> = bench
        .ec2()
        .ledger()
        .into_iter()
        .filter(|made| !made.foreign)
        .map(|made| made.kind)
        .collect();
    for kind in kinds {
        let most = if kind.contains("subnet") { 3 } else { 1 };
        if kind != "instance" && kind != "volume" {
            assert!(count(&kind) <= most, "{what}: {} of {kind}", count(&kind));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_a_call_that_makes_something_it_is_completed() {
    for operation in MAKING {
        for (what, fault, dies) in faults() {
            let what = format!("{operation}: {what}");
            let bench = Bench::emulator().await;
            if operation == "AssociateAddress" {
                complete(&bench).await;
                running_node(&bench).await;
            }
            bench.ec2().control().fail_next(operation, fault.clone());
            let _ = bench.ensure(&wanted()).await;
            assert_eq!(
                bench.ec2().control().faults_left(),
                0,
                "{what}: the fault was met"
            );
            if dies {
                bench.restart().await;
            }
            complete(&bench).await;
            nothing_is_doubled(&bench, &what);
            for node in bench.nodes().await {
                bench.remove(&node).await;
            }
            bench.release_whole().await;
            assert_eq!(bench.left(), vec![], "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_every_half_made_state_everything_is_released() {
    for operation in MAKING {
        for (what, fault) in [("before", Fault::Refused), ("after", Fault::LoseAnswer)] {
            for dies in [false, true] {
                let bench = Bench::emulator().await;
                if operation == "AssociateAddress" {
                    complete(&bench).await;
                    running_node(&bench).await;
                }
                bench.ec2().control().fail_next(operation, fault.clone());
                let _ = bench.ensure(&wanted()).await;
                if dies {
                    bench.restart().await;
                }
                for node in bench.nodes().await {
                    bench.remove(&node).await;
                }
                bench.release_whole().await;
                assert_eq!(bench.left(), vec![], "{what} {operation}, dies: {dies}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_a_release_nothing_is_left() {
    for operation in FREEING {
        for (what, fault, dies) in faults() {
            let bench = Bench::emulator().await;
            complete(&bench).await;
            let node = running_node(&bench).await;
            bench.ensure(&wanted()).await.unwrap();
            if operation != "DisassociateAddress" {
                bench.remove(&node).await;
            }
            bench.ec2().control().fail_next(operation, fault.clone());
            let _ = bench.release().await;
            if dies {
                bench.restart().await;
            }
            if operation == "DisassociateAddress" {
                bench.remove(&node).await;
            }
            bench.release_whole().await;
            assert_eq!(
                bench.ec2().control().faults_left(),
                0,
                "{operation}: {what}: the fault was met"
            );
            assert_eq!(bench.left(), vec![], "{operation}: {what}");
        }
    }
}

async fn running_node(bench: &Bench) -> drover_proto::platform::v1::Node {
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
