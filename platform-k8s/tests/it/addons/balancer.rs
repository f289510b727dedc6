//! A load balancer from its first request to its removal.

use drover_platform::addons::Addons as _;
use drover_proto::platform::v1::{AddonKind, NodeRole, ResourcePhase};
use drover_testing::kubernetes::until;
use serde_json::{Value, json};

use super::{
    Bench,
    bench::{balancer, owner, properties},
    mapping, target,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_load_balancer_is_made_follows_its_targets_and_goes_without_a_trace() {
    let bench = Bench::start().await;
    let two = vec![target("cp-0", "192.0.2.10"), target("cp-1", "192.0.2.11")];
    let mut wanted = balancer(vec![mapping(None, 6443, 1), mapping(None, 80, 2)], two);
    let state = bench.ensure(&wanted).await.unwrap().state;
    assert_eq!(state.kind(), AddonKind::LoadBalancer);
    assert_eq!((state.name.as_str(), state.target_count), ("api", 2));
    assert_eq!(state.owner, bench.owner.owner);

    let service = bench.object("services", "").await;
    let ports: Vec<u64> = service["spec"]["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| port["port"].as_u64().unwrap())
        .collect();
    assert_eq!(ports, [6443, 80, 81]);
    bench
        .until_told("pods know the targets", 2, |live| {
            live.contains("192.0.2.10:6443") && live.contains("192.0.2.11:81")
        })
        .await;
    for kind in ["pods", "services", "configmaps", "deployments.apps"] {
        for object in bench.namespace.list(kind).await {
            let labels = &object["metadata"]["labels"];
            if object["metadata"]["name"] == "kube-root-ca.crt" {
                continue;
            }
            assert_eq!(labels["drover.dev/addon"], "api", "{kind}");
            assert_eq!(labels["drover.dev/addon-cluster"], "blue");
            assert_eq!(labels["drover.dev/owner"], bench.owner.owner);
            assert_eq!(
                labels["drover.dev/cluster"],
                Value::Null,
                "it is not a node"
            );
        }
    }

    let generation = bench.object("deployments.apps", "").await["metadata"]["generation"].clone();
    wanted.targets[0].draining = true;
    wanted.targets.push(target("cp-2", "192.0.2.12"));
    wanted.targets.push(target("cp-3", "192.0.2.13"));
    wanted.targets[3].role = NodeRole::Standby.into();
    let state = bench.ensure(&wanted).await.unwrap().state;
    assert_eq!(state.target_count, 2);
    bench
        .until_told("pods know the change", 2, |live| {
            !live.contains("192.0.2.10:")
                && live.contains("192.0.2.12:")
                && !live.contains("192.0.2.13:")
        })
        .await;
    let now = bench.object("deployments.apps", "").await["metadata"]["generation"].clone();
    assert_eq!(now, generation, "no pod was replaced for it");
    assert_eq!(bench.list().await.len(), 1);

    bench.remove("api").await;
    bench.namespace.until_empty("the addon").await;
    assert!(bench.list().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_appears_later_is_told_without_a_request() {
    let bench = Bench::start().await;
    let wanted = balancer(vec![mapping(None, 80, 1)], vec![target("a", "192.0.2.1")]);
    bench.ensure(&wanted).await.unwrap();
    bench
        .until_told("pods know", 2, |live| live.contains("192.0.2.1:80"))
        .await;
    let pods = bench.namespace.list("pods").await;
    let name = pods[0]["metadata"]["name"].as_str().unwrap().to_owned();
    bench.namespace.delete("pods", &name).await;
    until("another pod is there", || async {
        let pods = bench.namespace.list("pods").await;
        let others = pods.iter().all(|pod| pod["metadata"]["name"] != *name);
        (pods.len() == 2 && others).then_some(())
    })
    .await;
    bench
        .until_told("it knows, too", 2, |live| live.contains("192.0.2.1:80"))
        .await;
    let pods = bench.namespace.list("pods").await;
    let name = pods[0]["metadata"]["name"].as_str().unwrap();
    let without = json!({"metadata": {"annotations": {"drover.dev/live": "somebody's"}}});
    bench.namespace.merge("pods", name, &without).await.unwrap();
    bench
        .until_told("it knows again", 2, |live| live.contains("192.0.2.1:80"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_or_edited_by_hand_is_restored_and_what_is_too_much_goes() {
    let bench = Bench::start().await;
    let mut wanted = balancer(vec![mapping(None, 80, 1)], vec![target("a", "192.0.2.1")]);
    bench.ensure(&wanted).await.unwrap();
    let before = bench.objects().await;
    let name = before[0].name.clone();

    bench.namespace.delete("services", &name).await;
    let edit = json!({"data": {"live": "nothing"}});
    bench
        .namespace
        .merge("configmaps", &name, &edit)
        .await
        .unwrap();
    let edit = json!({"spec": {"replicas": 0}, "metadata": {"labels": {"drover.dev/addon": null}}});
    bench
        .namespace
        .merge("deployments.apps", &name, &edit)
        .await
        .unwrap();
    let stray = json!({"metadata": {"name": "stray", "labels": {
        "drover.dev/addon": "api", "drover.dev/addon-cluster": "blue", "drover.dev/owner": bench.owner.owner,
    }, "annotations": before_identity(&bench, &name).await}});
    bench.namespace.create("configmaps", &stray).await.unwrap();

    bench.ensure(&wanted).await.unwrap();
    let after = bench.objects().await;
    let names = |things: &[drover_testing::kubernetes::Thing]| -> Vec<(String, String)> {
        things
            .iter()
            .map(|it| (it.resource.clone(), it.name.clone()))
            .collect()
    };
    assert_eq!(names(&after), names(&before));
    let map = bench.namespace.get("configmaps", &name).await.unwrap();
    assert!(
        map["data"]["live"]
            .as_str()
            .unwrap()
            .contains("192.0.2.1:80")
    );
    let deployment = bench
        .namespace
        .get("deployments.apps", &name)
        .await
        .unwrap();
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(deployment["metadata"]["labels"]["drover.dev/addon"], "api");

    // A second time nothing is written.
    let versions = || async {
        let mut versions = Vec::new();
        for thing in bench.objects().await {
            let object = bench
                .namespace
                .get(&thing.resource, &thing.name)
                .await
                .unwrap();
            let meta = &object["metadata"];
            versions.push((
                thing,
                meta["managedFields"].clone(),
                meta["annotations"].clone(),
            ));
        }
        versions
    };
    let before = versions().await;
    bench.addons.ensure(&bench.owner, 2, &wanted).await.unwrap();
    let annotations = |all: &[(drover_testing::kubernetes::Thing, Value, Value)]| -> Vec<Value> {
        all.iter()
            .map(|it| it.2["drover.dev/addon-identity"].clone())
            .collect()
    };
    assert_eq!(annotations(&versions().await), annotations(&before));

    properties(
        &mut wanted,
        json!({"replicas": 3, "serviceType": "ClusterIP"}),
    );
    bench.ensure(&wanted).await.unwrap();
    let service = bench.namespace.get("services", &name).await.unwrap();
    assert_eq!(service["spec"]["type"], "ClusterIP");
    assert_eq!(service["spec"]["ports"][0]["nodePort"], Value::Null);
}

async fn before_identity(bench: &Bench, name: &str) -> Value {
    let map = bench.namespace.get("configmaps", name).await.unwrap();
    map["metadata"]["annotations"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn addons_of_one_name_in_clusters_with_like_names_are_apart() {
    let bench = Bench::start().await;
    let mut others = Vec::new();
    for (cluster, name) in [("a-b", "c"), ("a", "b-c")] {
        let owner = owner(cluster);
        let mut wanted = balancer(vec![mapping(None, 80, 1)], vec![target("x", "192.0.2.1")]);
        wanted.spec.name = name.to_owned();
        bench.addons.ensure(&owner, 1, &wanted).await.unwrap();
        others.push((owner, name));
    }
    assert_eq!(bench.list().await.len(), 2);
    let of_one = bench.addons.list(Some("a")).await.unwrap().0;
    assert_eq!(of_one.len(), 1);
    assert_eq!(
        (of_one[0].cluster_id.as_str(), of_one[0].name.as_str()),
        ("a", "b-c")
    );
    for (owner, name) in others {
        until("it is gone", || async {
            let gone = bench.addons.remove(&owner, name).await.unwrap();
            (gone.state.phase() == ResourcePhase::Gone).then_some(())
        })
        .await;
    }
    bench.namespace.until_empty("both").await;
}
