//! Every call of a claim and of a release with every fault of the API server: no half request, no host with two owners,
//! and the same request again ends well.

use drover_core::Class;
use drover_platform_k8s::PlatformServer;
use drover_proto::platform::v1::{HostLabels, NodeChange, update_node_request::Update};
use drover_testing::kubernetes::{Fault, FaultProxy, On, Options, Rig, refusal, until};
use serde_json::Value;
use uuid::Uuid;

use super::{
    Place, host,
    place::{HOSTS, settings},
};

async fn place() -> (Place, FaultProxy) {
    let hosts: Vec<_> = (0..4).map(|at| host(&format!("h{at}"), &[])).collect();
    over(&hosts).await
}

/// A platform over these hosts whose calls can fail.
pub(super) async fn over(hosts: &[Value]) -> (Place, FaultProxy) {
    let rig = Rig::shared(Options::default());
    let direct = Place::with(hosts).await;
    let proxy = FaultProxy::start(rig).await;
    let mut settings = settings(rig, &direct.namespace.name);
    settings.kubeconfig = Some(proxy.kubeconfig());
    settings.call_timeout_seconds = 2.0;
    let server = PlatformServer::open(settings).await.unwrap();
    (direct.served_by(server).await, proxy)
}

fn faults() -> Vec<(String, Fault)> {
    let mut faults = vec![
        ("429".to_owned(), Fault::Throttle { seconds: 1 }),
        ("cut off before".to_owned(), Fault::Disconnect),
        ("cut off after".to_owned(), Fault::LoseAnswer),
        ("half an answer".to_owned(), Fault::CutAnswer),
        ("silent before".to_owned(), Fault::Stall),
        ("silent after".to_owned(), Fault::StallAfter),
    ];
    for (code, reason) in [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (404, "NotFound"),
        (409, "Conflict"),
        (410, "Expired"),
        (422, "Invalid"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ] {
        let (status, body) = refusal(code, reason, "no");
        faults.push((code.to_string(), Fault::Refuse(status, body)));
    }
    let (status, body) = refusal(500, "InternalError", "no");
    faults.push(("500 after".to_owned(), Fault::RefuseAfter(status, body)));
    faults
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_with_any_fault_is_whole_or_not_there_and_its_repetition_ends_well() {
    let (place, proxy) = place().await;
    // The first host, the second one, that both are claimed, and the look at what became of the first without an answer.
    for (verb, nth) in [("patch", 1), ("patch", 2), ("patch", 3), ("get", 1)] {
        for (name, fault) in faults() {
            let what = format!("{verb} {nth}: {name}");
            let request = place.request(("blue", Uuid::new_v4()), 0..2, &[]);
            if verb == "get" {
                proxy.fail(On::call("patch", HOSTS), Fault::LoseAnswer);
            }
            proxy.fail(On::call(verb, HOSTS).nth(nth), fault);
            let answer = place.answer(&request).await;
            assert_eq!(proxy.faults_left(), 0, "{what} was reached");
            proxy.heal();
            if let Ok(answer) = &answer
                && answer.unknown.is_empty()
                && answer.nodes.len() < 2
            {
                assert_eq!(answer.nodes, vec![], "{what}: all of them or none");
            }
            let failed: Vec<u32> = match &answer {
                Ok(answer) => answer.failures.iter().map(|it| it.index).collect(),
                Err(error) if error.class() == Class::Unknown => Vec::new(),
                Err(_) => vec![0, 1],
            };
            for node in place.nodes().await {
                let index = node.slot.as_ref().and_then(|slot| slot.index).unwrap();
                assert!(
                    !failed.contains(&index),
                    "{what}: said to have failed, and is there: {answer:?}"
                );
            }
            let nodes = until(&format!("{what}: the same request again"), || async {
                let answer = place.answer(&request).await.ok()?;
                (answer.nodes.len() == 2).then_some(answer.nodes)
            })
            .await;
            assert_eq!(place.nodes().await.len(), 2, "{what}: none beside them");
            for node in &nodes {
                until(&format!("{what}: the release"), || async {
                    place.remove(node).await.ok()
                })
                .await;
            }
            assert_eq!(place.nodes().await, vec![], "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_with_any_fault_ends_well_when_it_is_repeated() {
    let (place, proxy) = place().await;
    for (verb, nth) in [("get", 1), ("patch", 1)] {
        for (name, fault) in faults() {
            let what = format!("{verb} {nth}: {name}");
            let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
            let node = place.provision(&request).await.unwrap().remove(0);
            proxy.fail(On::call(verb, HOSTS).nth(nth), fault);
            let first = place.remove(&node).await;
            proxy.heal();
            // A GET that was refused with 404 says that there is no host.
            if first.is_ok() && name != "404" {
                assert_eq!(
                    place.nodes().await,
                    vec![],
                    "{what}: what is said to be gone"
                );
            }
            until(&what, || async {
                place.remove(&node).await.ok()?;
                place.nodes().await.is_empty().then_some(())
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_labels_with_any_fault_is_whole_when_it_is_repeated() {
    let (place, proxy) = place().await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let node = place.provision(&request).await.unwrap().remove(0);
    let name = node.host_id.as_deref().unwrap().split_once('/').unwrap().1;
    let tenant = async || place.object(name).await["metadata"]["labels"]["tenant"].clone();
    let silent = |fault: &Fault| matches!(fault, Fault::Stall | Fault::StallAfter);
    let mut round = 0;
    for verb in ["get", "patch"] {
        for (name, fault) in faults().into_iter().filter(|(_, fault)| !silent(fault)) {
            let what = format!("{verb}: {name}");
            let before = tenant().await;
            round += 1;
            let wanted = format!("t{round}");
            let change = Update::Change(NodeChange {
                host_labels: Some(HostLabels {
                    labels: [("tenant".to_owned(), wanted.clone())].into(),
                }),
                ..NodeChange::default()
            });
            proxy.fail(On::call(verb, HOSTS), fault);
            let first = place.update(&node, change.clone()).await;
            assert_eq!(proxy.faults_left(), 0, "{what} was reached");
            let now = tenant().await;
            assert!(
                now == wanted || (now == before && first.is_err()),
                "{what}: {now}"
            );
            until(&format!("{what}: again"), || async {
                place.update(&node, change.clone()).await.ok()
            })
            .await;
            assert_eq!(tenant().await, wanted, "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_whose_api_server_is_silent_does_not_say_that_nodes_are_gone() {
    let (place, proxy) = place().await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    place.provision(&request).await.unwrap();
    let (status, body) = refusal(503, "ServiceUnavailable", "no");
    proxy.fail(
        On::call("list", HOSTS).times(100),
        Fault::Refuse(status, body),
    );
    assert!(
        place.try_nodes().await.is_err(),
        "a list is complete or an error"
    );
    proxy.heal();
    assert_eq!(place.nodes().await.len(), 1);
}
