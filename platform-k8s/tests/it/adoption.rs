//! Nodes that get another owner, on a real API server: whatever fails in between, each has exactly one owner at any
//! time, and none of its objects is lost or left over.

use crate::bench;

use bench::Bench;
use drover_core::{Class, Reason};
use drover_proto::platform::v1::{
    Capability, DeprovisionRequest, ListStorageRequest, Node, NodePhase, ProvisionRequest, Storage,
    UpdateNodeRequest, storage_service_client::StorageServiceClient,
};
use drover_testing::{
    kubernetes::{Fault, On, refusal, until},
    platform::requests,
};
use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

/// More calls than any adoption makes.
const MOST_CALLS: usize = 60;
/// The cluster of foreign nodes.
const THEIRS: &str = "theirs";

/// A request that gives a node to an owner.
pub(crate) async fn adoption(bench: &Bench, node: &Node, owner: Uuid) -> UpdateNodeRequest {
    let platform = bench.platform().await.uid;
    requests::adoption(&platform, bench.fence(), node, (&node.cluster_id, owner))
}

fn owner(node: &Node) -> String {
    node.slot
        .as_ref()
        .map(|it| it.owner.clone())
        .unwrap_or_default()
}

/// Kind, name and owner label of every object of the namespace with a node label.
async fn owners(bench: &Bench) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for thing in bench.namespace.everything().await {
        let Ok(object) = bench.namespace.get(&thing.resource, &thing.name).await else {
            continue;
        };
        let labels = &object["metadata"]["labels"];
        // Objects that controllers derive belong to the controllers.
        let derived = ["endpoint", "controllerrevisions", "replicasets"];
        let derived = derived.iter().any(|it| thing.resource.starts_with(it));
        if labels["drover.dev/node"].is_string() && !derived {
            let owner = labels["drover.dev/owner"].as_str().unwrap_or_default();
            all.push((thing.resource, thing.name, owner.to_owned()));
        }
    }
    all
}

/// The only node of the cluster.
async fn only(bench: &Bench, what: &str) -> Node {
    let nodes = bench.nodes().await;
    assert_eq!(nodes.len(), 1, "{what}: {nodes:?}");
    nodes.into_iter().next().unwrap()
}

async fn until_is_of(bench: &Bench, node_id: &str, heir: Uuid, what: &str) -> Node {
    until(what, || async {
        let node = bench.node(node_id).await?;
        (owner(&node) == heir.to_string()).then_some(node)
    })
    .await
}

/// Injects the fault into the n-th call of an adoption, for every n.
async fn whatever_befalls_an_adoption(store: &str, fault: Fault, repeated: bool) {
    let bench = Bench::with(|settings| {
        let kinds = ["pods", "configmaps", "persistentvolumeclaims", "services"];
        settings.kinds = kinds.map(str::to_owned).to_vec();
        settings.kinds.push("deployments.apps".to_owned());
    })
    .await;
    for n in 1..MOST_CALLS {
        let (_, nodes) = bench.make(store, 1).await;
        bench.until_running().await;
        let heir = Uuid::new_v4();
        let request = adoption(&bench, &nodes[0], heir).await;
        bench.proxy().fail(On::any().nth(n), fault.clone());
        let outcome = bench.update(&request).await;
        let met = bench.proxy().faults_left() == 0;
        let what = format!("{store}, {}, call {n}: {outcome:?}", fault.name());
        if let Err(error) = &outcome {
            assert_eq!(error.class(), Class::Unknown, "{what}");
        }
        bench.recover(&fault).await;
        if repeated {
            let adopted = bench.update(&request).await.expect(&what);
            assert_eq!(adopted.node_id, nodes[0].node_id, "{what}");
            until_is_of(&bench, &nodes[0].node_id, heir, &what).await;
        } else {
            let node = only(&bench, &what).await;
            let whose = [owner(&nodes[0]), heir.to_string()];
            assert!(whose.contains(&owner(&node)), "{what}: {node:?}");
        }
        assert_eq!(
            only(&bench, &what).await.node_id,
            nodes[0].node_id,
            "{what}"
        );
        bench.clean(&what).await;
        if !met {
            assert!(n > 4, "{what}: there are more calls");
            return;
        }
    }
    panic!("{fault:?}: the calls do not end");
}

macro_rules! every_fault {
    ($($name:ident: $fault:expr,)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn in_an_adoption_that_is_repeated_gives_the_node_to_its_heir() {
                whatever_befalls_an_adoption("rich", $fault, true).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn in_an_abandoned_adoption_leaves_the_node_to_one_owner() {
                whatever_befalls_an_adoption("rich", $fault, false).await;
            }
        }
    )*};
}

every_fault! {
    an_error_after: Fault::internal_after(),
    a_lost_answer: Fault::LoseAnswer,
    a_crash_before: Fault::DieBefore,
    a_crash_after: Fault::DieAfter,
}

/// The pods, once there are this many.
async fn until_pods(bench: &Bench, count: usize) -> Vec<Value> {
    until("the pods are there", || async {
        let pods = bench.namespace.list("pods").await;
        (pods.len() == count).then_some(pods)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_of_a_node_says_whose_it_is() {
    for store in ["rich", "stateful", "deployed"] {
        let bench = Bench::start().await;
        let can = bench.platform().await.capabilities;
        assert!(can.contains(&Capability::Adopt.into()), "{can:?}");
        let (_, nodes) = bench.make(store, 2).await;
        until_pods(&bench, 2).await;
        let heir = Uuid::new_v4();
        let request = adoption(&bench, &nodes[0], heir).await;
        let adopted = bench.update(&request).await.unwrap();
        assert_eq!(adopted.node_id, nodes[0].node_id);
        assert_eq!(
            (adopted.id.as_str(), adopted.ordinal),
            ("db-7-abcde", Some(7))
        );
        assert_eq!(adopted.labels["team"], "storage", "labels stay");
        let said = owners(&bench).await;
        let of = |node: &Node, owner: &str| {
            let name = node.node_id.clone();
            let of_node = said.iter().filter(|(_, it, _)| it.contains(&name));
            let (all, ours): (Vec<_>, Vec<_>) = (
                of_node.clone().collect(),
                of_node.filter(|it| it.2 == owner).collect(),
            );
            assert_eq!(all, ours, "{store}");
            all.len()
        };
        assert_eq!(
            of(&nodes[0], &heir.to_string()),
            of(&nodes[1], &owner(&nodes[1]))
        );
        // The former owner has lost it.
        let error = bench.deprovision(&nodes[0]).await.unwrap_err();
        assert_eq!(error.reason(), Reason::NodeNotInCluster, "{store}: {error}");
        let node = until_is_of(&bench, &nodes[0].node_id, heir, "it is listed").await;
        bench.remove(&node, store).await;
        assert_eq!(bench.nodes().await.len(), 1, "{store}: the other one stays");
        bench.clean(store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_made_anew_stays_with_the_heir() {
    for store in ["deployed", "stateful"] {
        let bench = Bench::start().await;
        let (_, nodes) = bench.make(store, 1).await;
        let before = until_pods(&bench, 1).await;
        let heir = Uuid::new_v4();
        let request = adoption(&bench, &nodes[0], heir).await;
        bench.update(&request).await.unwrap();
        let (name, uid) = (
            &before[0]["metadata"]["name"],
            &before[0]["metadata"]["uid"],
        );
        let pods = until_pods(&bench, 1).await;
        assert_eq!(
            pods[0]["metadata"]["uid"], *uid,
            "{store}: nothing was restarted"
        );
        bench.namespace.delete("pods", name.as_str().unwrap()).await;
        let new = until("another pod is there", || async {
            let pods = bench.namespace.list("pods").await;
            let new = pods.iter().find(|pod| pod["metadata"]["uid"] != *uid);
            new.filter(|_| pods.len() == 1).cloned()
        })
        .await;
        let shown = format!("/{}", new["metadata"]["name"].as_str().unwrap());
        let node = until("the node is the new pod", || async {
            let node = bench.node(&nodes[0].node_id).await?;
            let is_new = node.provider_id.ends_with(&shown);
            (is_new && node.phase() != NodePhase::Deprovisioning).then_some(node)
        })
        .await;
        assert_eq!(
            (owner(&node), node.id.as_str()),
            (heir.to_string(), "db-7-abcde")
        );
        assert_eq!(only(&bench, store).await.node_id, nodes[0].node_id);
        // Another platform over the same cluster sees the same.
        bench.reborn().await;
        assert_eq!(owner(&only(&bench, store).await), heir.to_string());
        let error = bench.deprovision(&nodes[0]).await.unwrap_err();
        assert_eq!(error.reason(), Reason::NodeNotInCluster, "{store}: {error}");
        bench.clean(store).await;
    }
}

/// Waits until the only service leads to the active nodes of this owner.
async fn until_leads_to(bench: &Bench, owner: &str) {
    until("the service leads to the owner's nodes", || async {
        let services = bench.namespace.list("services").await;
        let [service] = &services[..] else {
            return None;
        };
        let selected = &service["spec"]["selector"]["drover.dev/owner"];
        let labelled = &service["metadata"]["labels"]["drover.dev/owner"];
        (selected == owner && labelled == owner).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_of_the_active_nodes_goes_with_them() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("served", 2).await;
    bench.until_running().await;
    until_leads_to(&bench, &owner(&nodes[0])).await;
    let heir = Uuid::new_v4();
    for node in &nodes {
        let request = adoption(&bench, node, heir).await;
        bench.update(&request).await.unwrap();
    }
    until_leads_to(&bench, &heir.to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_at_once_one_gets_it() {
    let bench = Bench::start().await;
    for store in ["pod", "rich"] {
        let (_, nodes) = bench.make(store, 1).await;
        let mut requests = Vec::new();
        for _ in 0..6 {
            requests.push(adoption(&bench, &nodes[0], Uuid::new_v4()).await);
        }
        let outcomes = requests.iter().map(|request| bench.update(request));
        let outcomes = futures::future::join_all(outcomes).await;
        let won: Vec<&Node> = outcomes.iter().filter_map(|it| it.as_ref().ok()).collect();
        assert_eq!(won.len(), 1, "{outcomes:?}");
        for error in outcomes.iter().filter_map(|it| it.as_ref().err()) {
            let reason = error.reason();
            assert_eq!(reason, Reason::NodeNotInCluster, "{error}");
        }
        let node = until("it is the winner's", || async {
            let node = bench.node(&nodes[0].node_id).await?;
            (owner(&node) == owner(won[0])).then_some(node)
        })
        .await;
        bench.remove(&node, store).await;
        bench.clean(store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_in_between_is_no_reason_to_lose() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("pod", 1).await;
    let (code, body) = refusal(409, "Conflict", "the object has been modified");
    let conflict = Fault::Refuse(code, body);
    let heir = Uuid::new_v4();
    let request = adoption(&bench, &nodes[0], heir).await;
    bench
        .proxy()
        .fail(On::call("patch", "pods").times(3), conflict.clone());
    bench.update(&request).await.unwrap();
    let late = adoption(&bench, &nodes[0], Uuid::new_v4()).await;
    bench
        .proxy()
        .fail(On::call("patch", "pods").always(), conflict);
    assert!(bench.update(&late).await.is_err());
    bench.proxy().heal();
    until_is_of(&bench, &nodes[0].node_id, heir, "it is the first one's").await;
    bench.clean("conflicts").await;
}

/// A foreign node, once it is listed.
async fn foreign(bench: &Bench, name: &str) -> Node {
    until("the foreign node is listed", || async {
        let (nodes, _) = bench.list(THEIRS).await.unwrap();
        nodes.into_iter().find(|node| node.node_id == name)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_went_or_was_replaced_meanwhile_is_left_alone() {
    let bench = Bench::start().await;
    let labels = json!({"labels": {"drover.dev/cluster": THEIRS}});
    bench.namespace.pod("stray", labels.clone()).await;
    let node = foreign(&bench, "stray").await;
    let request = adoption(&bench, &node, Uuid::new_v4()).await;
    // From here on the platform's cache is stale.
    bench.proxy().watches().silence("pods");
    bench.namespace.delete("pods", "stray").await;
    until("it is gone", || async {
        bench.namespace.list("pods").await.is_empty().then_some(())
    })
    .await;
    let error = bench.update(&request).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NotFound, "{error}");
    let other = json!({"labels": {"drover.dev/cluster": "another"}});
    let made = bench.namespace.pod("stray", other).await;
    let error = bench.update(&request).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NotFound, "{error}");
    let now = bench.namespace.get("pods", "stray").await.unwrap();
    assert_eq!(now["metadata"]["uid"], made["metadata"]["uid"]);
    assert!(now["metadata"]["annotations"]["drover.dev/identity"].is_null());
}

/// A StatefulSet of somebody else. With `named`, it and its pod have a node label.
async fn set_of_others(bench: &Bench, named: bool) {
    let mut labels = json!({"drover.dev/cluster": THEIRS, "app": "web"});
    if named {
        labels["drover.dev/node"] = "web".into();
    }
    let set = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "web", "labels": labels},
        "spec": {
            "serviceName": "web",
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": "example.invalid/main:1"}],
                },
            },
        },
    });
    bench
        .namespace
        .create("statefulsets.apps", &set)
        .await
        .unwrap();
}

async fn remove_by(bench: &Bench, node: &Node) {
    until("it is removed", || async {
        bench.deprovision(node).await.unwrap();
        for kind in ["pods", "statefulsets.apps", "persistentvolumeclaims"] {
            if !bench.namespace.list(kind).await.is_empty() {
                return None;
            }
        }
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_under_a_controller_is_refused_with_the_way_out_which_works() {
    let bench = Bench::start().await;
    set_of_others(&bench, false).await;
    let node = foreign(&bench, "web-0").await;
    let request = adoption(&bench, &node, Uuid::new_v4()).await;
    let error = bench.update(&request).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    let said = error.message();
    assert!(said.contains("StatefulSet \"web\""), "{said}");
    assert!(
        said.contains("delete statefulset web --cascade=orphan"),
        "{said}"
    );
    let path = format!("{}/web", bench.namespace.path("statefulsets.apps"));
    let orphan =
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Orphan"});
    let body = Some(("application/json", &orphan));
    bench
        .namespace
        .raw
        .call(Method::DELETE, &path, body)
        .await
        .unwrap();
    let adopted = until("the pod is free and adopted", || async {
        bench.update(&request).await.ok()
    })
    .await;
    assert_eq!(
        (adopted.node_id.as_str(), adopted.name.as_str()),
        ("web-0", "db-7")
    );
    assert_eq!(adopted.labels["app"], "web");
    let pod = bench.namespace.get("pods", "web-0").await.unwrap();
    assert_eq!(pod["metadata"]["labels"]["drover.dev/node"], "web-0");
    remove_by(&bench, &adopted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_of_the_node_is_adopted_with_it() {
    let bench = Bench::start().await;
    set_of_others(&bench, true).await;
    let node = foreign(&bench, "web").await;
    let request = adoption(&bench, &node, Uuid::new_v4()).await;
    let adopted = bench.update(&request).await.unwrap();
    bench.namespace.delete("pods", "web-0").await;
    let node = until("its new pod is the heir's", || async {
        let node = foreign(&bench, "web").await;
        (node.phase() == NodePhase::Running && node.slot == adopted.slot).then_some(node)
    })
    .await;
    remove_by(&bench, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pods_of_one_name_are_no_node() {
    let bench = Bench::start().await;
    let labels = json!({"labels": {"drover.dev/cluster": THEIRS, "drover.dev/node": "twin"}});
    for name in ["one", "two"] {
        bench.namespace.pod(name, labels.clone()).await;
    }
    let node = foreign(&bench, "twin").await;
    until("both are seen", || async {
        let error = bench
            .update(&adoption(&bench, &node, Uuid::new_v4()).await)
            .await;
        (error.unwrap_err().message().contains("2 pods")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_goes_with_the_node_and_to_the_one_that_follows() {
    let bench = Bench::start().await;
    for store in ["stateful", "rich"] {
        let storage = Storage {
            size_bytes: Some(1 << 30),
            class: "none".to_owned(),
        };
        let mut request = bench.request(store, 1).await;
        request.storage = Some(storage);
        let node = bench.whole(&request, store).await.remove(0);
        let heir = Uuid::new_v4();
        let wanted = adoption(&bench, &node, heir).await;
        let node = bench.update(&wanted).await.unwrap();
        let before = claim(&bench).await;
        retire(&bench, &node).await;
        let channel = drover_client::in_process(bench.server().routes());
        let list = ListStorageRequest {
            expected_platform_uid: bench.platform().await.uid,
            ..ListStorageRequest::default()
        };
        let kept = StorageServiceClient::new(channel).list_storage(list).await;
        let kept = kept.unwrap().into_inner().storage;
        assert_eq!(kept.len(), 1, "{store}: {kept:?}");
        assert_eq!((&kept[0].owner, kept[0].ordinal), (&heir.to_string(), 7));
        // The heir's next node of that ordinal gets it, twice in a row.
        for _ in 0..2 {
            let next = next(&bench, &request, heir).await;
            let node = bench.whole(&next, "the next node").await.remove(0);
            let after = claim(&bench).await;
            assert_eq!(
                after["metadata"]["uid"], before["metadata"]["uid"],
                "{store}"
            );
            bench.whole(&next, "asked again").await;
            retire(&bench, &node).await;
        }
        let next = next(&bench, &request, heir).await;
        bench.whole(&next, "the last node").await;
        bench.clean("with its storage").await;
    }
}

async fn retire(bench: &Bench, node: &Node) {
    until("the node is gone, its storage is not", || async {
        let slot = node.slot.clone().unwrap();
        let removal = DeprovisionRequest {
            expected_platform_uid: bench.platform().await.uid,
            fence: Some(bench.fence()),
            request_id: Uuid::new_v4().to_string(),
            owner: slot.owner,
            cluster_id: node.cluster_id.clone(),
            node_request_id: slot.request_id,
            index: slot.index,
            node_id: node.node_id.clone(),
            retain_storage: true,
            ..DeprovisionRequest::default()
        };
        bench.client().deprovision(removal).await.unwrap();
        bench.nodes().await.is_empty().then_some(())
    })
    .await;
}

/// A request of the heir for its next node of ordinal 7.
async fn next(bench: &Bench, like: &ProvisionRequest, heir: Uuid) -> ProvisionRequest {
    let mut request = bench.request("", 1).await;
    request.cluster.clone_from(&like.cluster);
    request.storage.clone_from(&like.storage);
    request.owner = heir.to_string();
    let slot = &mut request.slots[0];
    slot.ordinal = Some(7);
    "db-7".clone_into(&mut slot.name);
    slot.id = format!("db-7-{}", &Uuid::new_v4().simple().to_string()[..5]);
    request
}

async fn claim(bench: &Bench) -> Value {
    let mut claims = bench.namespace.list("persistentvolumeclaims").await;
    assert_eq!(claims.len(), 1, "{claims:?}");
    claims.remove(0)
}
