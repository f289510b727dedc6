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

/// A document of SIP for hosts that it has labelled.
const SIP: &str = "apiVersion: airship.airshipit.org/v1
kind: SIPCluster
metadata: {name: blue, namespace: tenants}
spec:
  nodes:
    ControlPlane:
      labelSelector: {matchLabels: {vino.airshipit.org/flavor: big}}
      topologyKey: vino.airshipit.org/rack
      count: {active: 1, standby: 1}
    Worker:
      labelSelector: {matchLabels: {vino.airshipit.org/flavor: small}}
      count: {active: 1, standby: 1}
";

/// Labels of SIP on each host that has some.
async fn labelled(namespace: &Namespace) -> BTreeMap<String, BTreeMap<String, String>> {
    let list = namespace.raw.get(&hosts_of(namespace)).await.unwrap();
    let own = |host: &Value| {
        let labels = &host["metadata"]["labels"];
        let labels: BTreeMap<String, String> = serde_json::from_value(labels.clone()).unwrap();
        let own = labels
            .into_iter()
            .filter(|(key, _)| key.starts_with("sip.airshipit.org/"));
        let name = host["metadata"]["name"].as_str().unwrap().to_owned();
        (name, own.collect::<BTreeMap<_, _>>())
    };
    let all = list["items"].as_array().unwrap().iter().map(own);
    all.filter(|(_, labels)| !labels.is_empty()).collect()
}

/// The labels that SIP writes now.
fn of_today(kind: &str) -> Value {
    json!({
        "sip.airshipit.org/cluster-namespace": "tenants",
        "sip.airshipit.org/cluster-name": "blue",
        "sip.airshipit.org/node-type": kind,
    })
}

/// Two racks with three hosts of a control plane and two of workers that SIP has labelled, in both of its families, and
/// four more that are free.
async fn pool_of_sip(namespace: &Namespace) {
    definitions::define(&namespace.raw, &definitions::metal3()).await;
    let former = json!({
        "sip.airshipit.org/workload-cluster": "tenants_blue",
        "sip.airshipit.org/scheduled": "true",
        "sip.airshipit.org/node-type": "worker",
    });
    for (name, rack, flavor, labels) in [
        ("c1", "r1", "big", Some(of_today("ControlPlane"))),
        ("c2", "r2", "big", Some(of_today("ControlPlane"))),
        ("c3", "r3", "big", Some(of_today("ControlPlane"))),
        ("c0-free", "r0", "big", None),
        ("c4-free", "r4", "big", None),
        ("w1", "r1", "small", Some(former.clone())),
        ("w2", "r2", "small", Some(former)),
        ("w0-free", "r0", "small", None),
        ("w3-free", "r3", "small", None),
    ] {
        add(namespace, name, rack, flavor).await;
        if let Some(labels) = labels {
            let path = format!("{}/{name}", hosts_of(namespace));
            let patch = json!({"metadata": {"labels": labels}});
            namespace.raw.merge(&path, &patch).await.unwrap();
        }
    }
}

fn count(plan: &pb::Plan, kind: pb::ActionKind) -> u32 {
    let actions = plan.actions.iter().filter(|action| action.kind() == kind);
    actions.map(|action| action.count).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_sip_is_taken_over_with_the_hosts_that_it_has() {
    let rig = Rig::shared(Options::default());
    let namespace = rig.namespace().await;
    pool_of_sip(&namespace).await;
    let mut world = World::new().await;
    let settings = Settings {
        driver: DriverKind::Hosts,
        kubeconfig: Some(rig.kubeconfig().to_owned()),
        namespaces: vec![namespace.name.clone()],
        ..Settings::default()
    };
    world.add("metal3", settings).await;
    let mut manifests = drover_manifest::Manifests::default();
    manifests.add_text("sip.yaml", ".".into(), SIP.to_owned());
    let objects = manifests.decode(Some(&["metal3".to_owned()]));
    assert!(
        objects.diagnostics.is_empty(),
        "{}",
        objects.diagnostics.render("")
    );
    let cluster = objects.clusters[0].object.clone();
    let (name, spec) = (cluster.name.as_str(), cluster.spec.unwrap());

    let before = labelled(&namespace).await;
    let planned = world.adopt(name, spec.clone(), true).await.unwrap();
    let plan = planned.plan.unwrap();
    let counts = [
        pb::ActionKind::Adopt,
        pb::ActionKind::Provision,
        pb::ActionKind::Deprovision,
    ]
    .map(|kind| count(&plan, kind));
    assert_eq!(counts, [5, 0, 1], "{plan:#?}");
    let said = planned.warnings.join("; ");
    assert!(said.contains("1 node more than wanted"), "{said}");
    assert_eq!(labelled(&namespace).await, before, "it was only asked");

    world.adopt(name, spec, false).await.unwrap();
    world.ready(name, 4).await;
    world
        .until("what is more than wanted is released", async |_| {
            claims(&namespace).await.len() == 4
        })
        .await;
    let claims = claims(&namespace).await;
    let names: Vec<&str> = claims.keys().map(String::as_str).collect();
    assert!(names.contains(&"c1"), "{names:?}");
    assert!(names.contains(&"w1") && names.contains(&"w2"), "{names:?}");
    let role = |name: &str| claims[name]["drover.dev/role"].as_str();
    assert_eq!(
        [role("c1"), role("w1"), role("w2")],
        ["active", "active", "standby"]
    );
    let after = labelled(&namespace).await;
    for name in claims.keys() {
        let kind = if name.starts_with('c') {
            "ControlPlane"
        } else {
            "Worker"
        };
        let wanted = of_today(kind);
        assert_eq!(json!(after[name]), wanted, "{name} is selected as by SIP");
    }
    assert_eq!(after.len(), 4, "the released one is free: {after:?}");

    world.delete(name).await;
    world.gone(name).await;
    assert_eq!(labelled(&namespace).await, BTreeMap::new());
    world.end().await;
}
