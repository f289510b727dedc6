//! A cluster whose nodes are hosts of metal3: the real orchestrator, the real platform, a real API server. Nobody runs
//! metal3: the test deletes and changes hosts as it would.

use crate::embedded;

use std::collections::{BTreeMap, BTreeSet};

use drover_platform_k8s::{Settings, settings::DriverKind};
use drover_proto::{
    common::v1::LabelSelector,
    orchestrator::v1 as pb,
    platform::v1::{NodeRole, Spread},
};
use drover_testing::kubernetes::{Namespace, Options, PATIENCE, Rig, definitions};
use embedded::World;
use serde_json::{Value, json};

/// Path of the hosts of a namespace.
fn hosts_of(namespace: &Namespace) -> String {
    format!(
        "/apis/metal3.io/v1alpha1/namespaces/{}/baremetalhosts",
        namespace.name
    )
}

/// Two hosts with the flavour in each of four racks, and one without.
async fn pool(namespace: &Namespace) {
    definitions::define(&namespace.raw, &definitions::metal3()).await;
    for rack in 0..4 {
        for side in ["a", "b"] {
            add(
                namespace,
                &format!("r{rack}-{side}"),
                &format!("r{rack}"),
                "big",
            )
            .await;
        }
    }
    add(namespace, "small", "r9", "small").await;
}

async fn add(namespace: &Namespace, name: &str, rack: &str, flavor: &str) {
    let host = json!({
        "apiVersion": "metal3.io/v1alpha1",
        "kind": "BareMetalHost",
        "metadata": {"name": name, "labels": {
            "vino.airshipit.org/rack": rack,
            "vino.airshipit.org/flavor": flavor,
        }},
        "spec": {"online": true},
    });
    let created = namespace.raw.create(&hosts_of(namespace), &host).await;
    created.unwrap();
}

/// Labels of Drover on each host that has some.
async fn claims(namespace: &Namespace) -> BTreeMap<String, BTreeMap<String, String>> {
    let list = namespace.raw.get(&hosts_of(namespace)).await.unwrap();
    let ours = |host: &Value| {
        let labels = &host["metadata"]["labels"];
        let labels: BTreeMap<String, String> = serde_json::from_value(labels.clone()).unwrap();
        let ours = labels
            .into_iter()
            .filter(|(key, _)| key.starts_with("drover.dev/"));
        let name = host["metadata"]["name"].as_str().unwrap().to_owned();
        (name, ours.collect::<BTreeMap<_, _>>())
    };
    let all = list["items"].as_array().unwrap().iter().map(ours);
    all.filter(|(_, labels)| !labels.is_empty()).collect()
}

fn spec(size: u32, standby: u32) -> pb::ClusterSpec {
    pb::ClusterSpec {
        groups: vec![pb::GroupSpec {
            name: "control-plane".to_owned(),
            size: Some(size),
            standby: Some(standby),
            platforms: vec![pb::PlatformChoice {
                name: "metal3".to_owned(),
                ..Default::default()
            }],
            placement: Some(pb::Placement {
                selector: Some(LabelSelector {
                    match_labels: [("vino.airshipit.org/flavor".to_owned(), "big".to_owned())]
                        .into(),
                    ..Default::default()
                }),
                spread: vec![Spread {
                    topology_key: "rack".to_owned(),
                    max_per_domain: Some(1),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn racks(claims: &BTreeMap<String, BTreeMap<String, String>>) -> BTreeSet<&str> {
    claims.keys().map(|name| &name[..2]).collect()
}

fn of_role(nodes: &[pb::Node], role: NodeRole) -> Vec<String> {
    let of = nodes.iter().filter(|node| node.role() == role);
    of.map(|node| node.name.clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_claims_hosts_replaces_those_that_are_gone_and_gives_all_of_them_back() {
    let rig = Rig::shared(Options::default());
    let namespace = rig.namespace().await;
    pool(&namespace).await;
    let mut world = World::new().await;
    let settings = Settings {
        driver: DriverKind::Hosts,
        kubeconfig: Some(rig.kubeconfig().to_owned()),
        namespaces: vec![namespace.name.clone()],
        ..Settings::default()
    };
    world.add("metal3", settings).await;
    world.apply("blue", spec(2, 1)).await;
    world.ready("blue", 3).await;
    let claimed = claims(&namespace).await;
    assert_eq!(
        (claimed.len(), racks(&claimed).len()),
        (3, 3),
        "{claimed:?}"
    );
    let roles: Vec<&str> = claimed
        .values()
        .map(|it| it["drover.dev/role"].as_str())
        .collect();
    assert_eq!(roles.iter().filter(|role| **role == "standby").count(), 1);

    // An active host goes while nobody looks after the cluster.
    let lost = claimed
        .iter()
        .find(|(_, labels)| labels["drover.dev/role"] == "active")
        .map(|(name, _)| name.clone())
        .unwrap();
    world.kill_orchestrator().await;
    let path = format!("{}/{lost}", hosts_of(&namespace));
    namespace.raw.delete(&path).await.unwrap();
    world
        .until(
            "the standby takes over, and another host is the standby",
            async |world| {
                let nodes = world.nodes("blue").await;
                let ready = nodes
                    .iter()
                    .filter(|it| it.state() == pb::NodeState::Ready)
                    .count();
                let active = of_role(&nodes, NodeRole::Active).len();
                ready == 3 && active == 2 && claims(&namespace).await.len() == 3
            },
        )
        .await;
    let now = claims(&namespace).await;
    assert_eq!((now.len(), racks(&now).len()), (3, 3), "{now:?}");
    assert!(!now.contains_key(&lost));
    let active = now
        .values()
        .filter(|it| it["drover.dev/role"] == "active")
        .count();
    assert_eq!(active, 2, "the label says who is active: {now:?}");

    // Fewer nodes release hosts and claim none.
    world.scale("blue", "control-plane", 1).await;
    world
        .until("one host is released", async |_| {
            claims(&namespace).await.len() == 2
        })
        .await;

    // More than there are racks: said with numbers, and nothing is claimed for half of it.
    world.scale("blue", "control-plane", 4).await;
    world
        .until("it is said why", async |world| {
            let request = pb::ListEventsRequest {
                cluster: "blue".to_owned(),
                ..Default::default()
            };
            let events = world.client().list_events(request, PATIENCE).await;
            let events = events.unwrap().events;
            let mut said = events.iter().map(|event| event.message.as_str());
            said.any(|message| message.contains("domains take no other node"))
        })
        .await;
    let short = claims(&namespace).await;
    assert_eq!(
        short.len(),
        racks(&short).len(),
        "never two in a rack: {short:?}"
    );

    world.delete("blue").await;
    world.gone("blue").await;
    assert_eq!(claims(&namespace).await, BTreeMap::new());
    world.end().await;
}
