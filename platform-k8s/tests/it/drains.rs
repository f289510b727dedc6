//! What drains of hosts find: budgets of groups, what outlives single nodes, and pods on different hosts.

use std::{collections::BTreeSet, time::Duration};

use drover_platform_k8s::objects::CATALOGUE;
use drover_proto::platform::v1::{Node, ProvisionRequest};
use drover_testing::{
    kubernetes::{Refused, until},
    platform::requests,
};
use serde_json::{Value, json};

use crate::{
    bench::Bench,
    direct::{Direct, batch, built_in, made},
};

const BUDGETS: &str = "poddisruptionbudgets.policy";

/// Asks the API server to evict a pod, as `kubectl drain` does.
async fn evict(bench: &Bench, node: &Node) -> Result<Value, Refused> {
    let name = &node.node_id;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": bench.namespace.name},
    });
    let path = format!("{}/{name}/eviction", bench.namespace.path("pods"));
    bench.namespace.raw.create(&path, &eviction).await
}

/// Waits until the only budget keeps so many pods, and Kubernetes allows so many evictions.
async fn until_budget(bench: &Bench, stay: u32, allowed: u32) -> Value {
    until("the budget is as it should be", || async {
        let budgets = bench.namespace.list(BUDGETS).await;
        let [budget] = &budgets[..] else {
            return None;
        };
        let is_it = budget["spec"]["minAvailable"] == stay
            && budget["status"]["disruptionsAllowed"] == allowed
            && budget["status"]["observedGeneration"] == budget["metadata"]["generation"];
        is_it.then(|| budget.clone())
    })
    .await
}

async fn until_gone(bench: &Bench, node: &Node) {
    until("the platform has seen that the pod is gone", || async {
        bench.node(&node.node_id).await.is_none().then_some(())
    })
    .await;
}

/// Waits until the platform has done everything that follows from a pod being gone: a pod that is left knows of so many
/// nodes, and its service, deleted after that, is back, which is the work of a later round.
async fn until_settled(bench: &Bench, left: &Node, peers: usize) {
    until("a pod hears who is left", || async {
        let pod = bench.namespace.get("pods", &left.node_id).await.ok()?;
        let list = pod["metadata"]["annotations"]["drover.dev/peers"].as_str()?;
        let list: Vec<Value> = serde_json::from_str(list).ok()?;
        (list.len() == peers).then_some(())
    })
    .await;
    let find = async || {
        let services = bench.namespace.list("services").await;
        let of_group = |it: &Value| it["metadata"]["labels"]["drover.dev/group"] == *left.group;
        services.into_iter().find(of_group)
    };
    let before = until("its group has a service", &find).await;
    let name = before["metadata"]["name"].as_str().unwrap();
    bench.namespace.delete("services", name).await;
    until("the service is back", || async {
        let uid = find().await?["metadata"]["uid"].clone();
        (uid != before["metadata"]["uid"]).then_some(())
    })
    .await;
}

/// A node of another group of the same cluster.
async fn beside(bench: &Bench) -> Node {
    let uid = bench.platform().await.uid;
    let of = (&*bench.cluster, bench.owner);
    let other = requests::provision(&uid, bench.fence(), of, "other", 0..1);
    let mut request = bench.request("served", 1).await;
    request.group.as_mut().unwrap().path = "other".to_owned();
    request.request_id = other.request_id;
    request.slots = other.slots;
    bench.whole(&request, "another group").await.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_pods_one_may_be_evicted_until_another_takes_its_place() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("served", 3).await;
    until_budget(&bench, 2, 1).await;
    evict(&bench, &nodes[0]).await.unwrap();
    until_gone(&bench, &nodes[0]).await;
    until_settled(&bench, &nodes[2], 2).await;
    let budgets = bench.namespace.list(BUDGETS).await;
    assert_eq!(budgets[0]["spec"]["minAvailable"], 2);
    let error = evict(&bench, &nodes[1]).await.unwrap_err();
    assert_eq!(error.code, 429, "{error:?}");
    // Its replacement.
    bench.make("served", 1).await;
    until_budget(&bench, 2, 1).await;
    evict(&bench, &nodes[1]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_alone_does_not_hold_up_a_drain() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("served", 1).await;
    until_budget(&bench, 0, 1).await;
    evict(&bench, &nodes[0]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_made_smaller_may_be_drained_again_after_a_while() {
    let bench =
        Bench::with(|settings| settings.smaller_budget_after = Duration::from_secs(1)).await;
    let (_, nodes) = bench.make("served", 3).await;
    until_budget(&bench, 2, 1).await;
    bench.remove(&nodes[2], "a smaller group").await;
    until_budget(&bench, 1, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_somebody_deletes_is_counted_anew_at_once() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("served", 3).await;
    let before = until_budget(&bench, 2, 1).await;
    bench.remove(&nodes[2], "a smaller group").await;
    until_settled(&bench, &nodes[1], 2).await;
    let name = before["metadata"]["name"].as_str().unwrap();
    let now = until_budget(&bench, 2, 0).await;
    assert_eq!(now["metadata"]["uid"], before["metadata"]["uid"]);
    bench.namespace.delete(BUDGETS, name).await;
    until_budget(&bench, 1, 1).await;
}

/// The service of group `db`.
async fn service(bench: &Bench) -> Value {
    until("there is a service", || async {
        let services = bench.namespace.list("services").await;
        let of_group = |it: &Value| it["metadata"]["labels"]["drover.dev/group"] == "db";
        services.into_iter().find(of_group)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_of_a_group_outlives_its_only_pod() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("served", 1).await;
    let other = beside(&bench).await;
    let before = service(&bench).await;
    let name = before["metadata"]["name"].as_str().unwrap();
    let own = json!({"metadata": {"annotations": {"example.com/own": "yes"}}});
    bench.namespace.merge("services", name, &own).await.unwrap();
    bench.namespace.delete("pods", &nodes[0].node_id).await;
    until_gone(&bench, &nodes[0]).await;
    until_settled(&bench, &other, 1).await;
    bench.make("served", 1).await;
    bench.until_running().await;
    let after = service(&bench).await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["spec"]["clusterIP"], before["spec"]["clusterIP"]);
    assert_eq!(after["metadata"]["annotations"]["example.com/own"], "yes");
    assert_eq!(after["metadata"]["ownerReferences"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_a_group_goes_after_its_last_node_even_if_the_platform_was_away() {
    let bench = Bench::with(|settings| settings.unschedulable_timeout_seconds = 1.0).await;
    for restarted in [false, true] {
        let (_, nodes) = bench.make("served", 2).await;
        until_budget(&bench, 1, 1).await;
        service(&bench).await;
        if restarted {
            for node in &nodes {
                bench.namespace.delete("pods", &node.node_id).await;
            }
            bench.reborn().await;
        }
        for node in &nodes {
            bench.remove(node, "the last node").await;
        }
        bench.namespace.until_empty("what belongs to a group").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_writes_to_the_active_nodes_of_a_group_and_reads_from_all() {
    let bench = Bench::start().await;
    bench.make("read", 1).await;
    let roles = until("there are both services", || async {
        let services = bench.namespace.list("services").await;
        let role = |it: &Value| it["spec"]["selector"]["drover.dev/role"].clone();
        let mut roles: Vec<(String, Value)> = services
            .iter()
            .map(|it| {
                (
                    it["metadata"]["name"].as_str().unwrap().to_owned(),
                    role(it),
                )
            })
            .collect();
        roles.sort_by(|a, b| a.0.cmp(&b.0));
        (roles.len() == 2).then_some(roles)
    })
    .await;
    let [(active, first), (read, second)] = &roles[..] else {
        unreachable!("{roles:?}")
    };
    assert_eq!(*read, format!("{active}-read"));
    assert_eq!((first, second), (&json!("active"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_leads_to_active_pods_of_an_earlier_version_until_there_is_none() {
    let bench = Bench::start().await;
    bench.make("read", 1).await;
    let goes_by = async |what: &str, wanted: &Value| {
        until(what, || async {
            let services = bench.namespace.list("services").await;
            let mut selectors = services.iter().map(|it| &it["spec"]["selector"]);
            let active = selectors.find(|it| it["drover.dev/role"] == "active")?;
            (active["drover.dev/active"] == *wanted).then_some(())
        })
        .await;
    };
    goes_by("it leads to who has been promoted", &json!("true")).await;
    let pods = bench.namespace.list("pods").await;
    let name = pods[0]["metadata"]["name"].as_str().unwrap();
    for label in [Value::Null, json!("true")] {
        let patch = json!({"metadata": {"labels": {"drover.dev/active": label}}});
        bench.namespace.merge("pods", name, &patch).await.unwrap();
        goes_by("it goes by what its pod says", &label).await;
    }
}

/// A request for members of etcd, with attributes.
fn members(bench: &Direct, count: u32, attributes: &Value) -> ProvisionRequest {
    let mut request = bench.request(count);
    let cluster = request.cluster.as_mut().unwrap();
    cluster.store = "etcd".to_owned();
    cluster.version = "3.5.21".to_owned();
    let group = request.group.as_mut().unwrap();
    group.attributes = attributes.as_object().map(drover_convert::value::to_struct);
    request
}

async fn make(bench: &Direct, request: &ProvisionRequest) {
    let templates = built_in(CATALOGUE);
    bench.check_by(request, &templates).await.unwrap();
    let (batch, _caller) = batch(request, &templates);
    made(bench.creator.create(&batch).await);
}

/// Waits until so many pods have a host and so many have none. Returns the hosts.
async fn until_placed(bench: &Direct, placed: usize, waiting: usize) -> BTreeSet<String> {
    until("the pods are placed", || async {
        let pods = bench.namespace.list("pods").await;
        let host = |pod: &Value| pod["spec"]["nodeName"].as_str().map(str::to_owned);
        let refused = |pod: &&Value| {
            let conditions = pod["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|it| it["reason"] == "Unschedulable"))
        };
        let hosts: Vec<String> = pods.iter().filter_map(host).collect();
        let is_it = hosts.len() == placed && pods.iter().filter(refused).count() == waiting;
        is_it.then(|| hosts.into_iter().collect())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn members_go_to_different_hosts_where_there_are_some() {
    // All hosts are in one failure domain.
    let bench =
        Direct::with(|settings| "kubernetes.io/os".clone_into(&mut settings.failure_domain_label))
            .await;
    make(&bench, &members(&bench, 3, &json!({}))).await;
    assert_eq!(until_placed(&bench, 3, 0).await.len(), 3);
    let path = "/spec/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/0";
    for pod in bench.namespace.list("pods").await {
        let term = &pod.pointer(path).unwrap()["podAffinityTerm"];
        let selected = term["labelSelector"]["matchLabels"].as_object().unwrap();
        for (key, value) in selected {
            assert_eq!(pod["metadata"]["labels"][key], *value);
        }
        assert_eq!(term["topologyKey"], "kubernetes.io/hostname");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_one_host_members_start_unless_that_was_forbidden() {
    for (spread, placed) in [("preferred", 2), ("required", 1)] {
        let bench = Direct::start().await;
        let mut request = members(&bench, 2, &json!({"spread": spread}));
        let nodes = bench.namespace.raw.get("/api/v1/nodes").await.unwrap();
        let host = &nodes["items"][0]["metadata"]["labels"]["kubernetes.io/hostname"];
        let only = json!({"nodeSelector": {"kubernetes.io/hostname": host}});
        request.group.as_mut().unwrap().properties =
            only.as_object().map(drover_convert::value::to_struct);
        make(&bench, &request).await;
        assert_eq!(until_placed(&bench, placed, 2 - placed).await.len(), 1);
    }
    let bench = Direct::start().await;
    let wrong = members(&bench, 1, &json!({"spread": "some"}));
    let error = bench.check_by(&wrong, &built_in(CATALOGUE)).await;
    assert!(
        error
            .unwrap_err()
            .message()
            .contains("preferred or required")
    );
}
