//! Creation of nodes on a real API server.

use crate::direct;

use direct::{
    DEPLOYMENT, Direct, POD, SET, STATEFUL, batch, built_in, failed, made, of_text, unknown,
};
use drover_core::{Class, Reason};
use drover_platform::{driver::Outcome, identity::fingerprint, templates::Templates};
use drover_platform_k8s::objects::CATALOGUE;
use drover_proto::platform::v1::{
    Bootstrap, Placement, ProvisionRequest, Spread, Storage, UnsatisfiableAction,
    bootstrap::UserData,
};
use drover_testing::kubernetes::{Call, Fault, On, refusal, until};
use serde_json::{Value, json};

/// Asserts that an object has the labels and annotations of every object of a node.
#[track_caller]
fn marked(object: &Value, request: &ProvisionRequest) {
    let labels = &object["metadata"]["labels"];
    let what = format!("{} {labels}", object["metadata"]["name"]);
    let cluster = &request.cluster.as_ref().unwrap().id;
    assert_eq!(labels["drover.dev/cluster"], *cluster, "{what}");
    assert_eq!(labels["drover.dev/node"], request.slots[0].id, "{what}");
    assert_eq!(labels["drover.dev/owner"], request.owner, "{what}");
    assert_eq!(labels["drover.dev/request"], request.request_id, "{what}");
    assert_eq!(labels["drover.dev/group"], "db", "{what}");
    let identity = &object["metadata"]["annotations"]["drover.dev/identity"];
    assert!(
        identity.as_str().unwrap().contains(&fingerprint(request)),
        "{what}"
    );
}

fn refused_by_quota(name: &str) -> Fault {
    let message = format!(
        "pods {name:?} is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"
    );
    let (code, body) = refusal(403, "Forbidden", &message);
    Fault::Refuse(code, body)
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_are_on_everything_though_the_template_forgot_them() {
    let bench = Direct::start().await;
    let request = bench.request(1);
    made(bench.make(&request, SET).await);
    for resource in ["pods", "persistentvolumeclaims", "services", "configmaps"] {
        let object = bench
            .namespace
            .get(resource, &request.slots[0].id)
            .await
            .unwrap();
        marked(&object, &request);
        let anchor = &object["metadata"]["annotations"]["drover.dev/anchor"];
        assert_eq!(anchor.as_str() == Some("true"), resource == "pods");
        let manager = &object["metadata"]["managedFields"][0]["manager"];
        assert_eq!(manager, "drover-platform-k8s");
    }
    let service = bench
        .namespace
        .get("services", &request.slots[0].id)
        .await
        .unwrap();
    assert_eq!(
        service["spec"]["selector"]["drover.dev/node"],
        request.slots[0].id
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_workloads_make_carries_the_labels_too() {
    let bench = Direct::start().await;
    for (template, resources) in [
        (STATEFUL, &["pods", "persistentvolumeclaims"][..]),
        (DEPLOYMENT, &["pods", "replicasets.apps"]),
    ] {
        let request = bench.request(1);
        made(bench.make(&request, template).await);
        for resource in resources {
            let object = until("the controller has made its part", || async {
                let all = bench.namespace.list(resource).await;
                let node = json!(request.slots[0].id);
                all.into_iter()
                    .find(|it| it["metadata"]["labels"]["drover.dev/node"] == node)
            })
            .await;
            marked(&object, &request);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_one_call_and_a_batch_one_more_and_a_spec_is_tried_once() {
    let bench = Direct::start().await;
    let request = bench.request(20);
    let templates = of_text(POD);
    bench.proxy.forget();
    for _ in 0..2 {
        bench.check_by(&request, &templates).await.unwrap();
    }
    // The namespace is read for the controller of the pods.
    let reads = |call: &Call| (call.verb, call.resource.as_str()) == ("get", "namespaces");
    let calls = bench.proxy.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(reads(&calls[0]) && calls[1].dry_run && calls[1].verb == "create");
    bench.proxy.forget();
    let (batch, _caller) = batch(&request, &templates);
    made(bench.creator.create(&batch).await);
    let calls = bench.proxy.calls();
    assert_eq!(calls.len(), 21, "{calls:?}");
    assert!(reads(&calls[0]) && calls[1..].iter().all(|call| call.verb == "create"));
    assert_eq!(bench.names("pods").await.len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_makes_nothing_and_finds_the_same() {
    let bench = Direct::start().await;
    let request = bench.request(3);
    let first = made(bench.make(&request, SET).await);
    let before = bench.everything().await;
    let second = made(bench.make(&request, SET).await);
    assert_eq!(first, second);
    assert_eq!(bench.everything().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_of_unknown_fate_is_completed_by_a_repeat() {
    for fault in [
        Fault::LoseAnswer,
        Fault::internal(),
        Fault::internal_after(),
    ] {
        for resource in ["persistentvolumeclaims", "services", "pods"] {
            let bench = Direct::start().await;
            let request = bench.request(1);
            bench
                .proxy
                .fail(On::call("create", resource), fault.clone());
            let error = unknown(bench.make(&request, SET).await);
            assert_eq!(error.class(), Class::Unknown, "{error:?}");
            assert_eq!(bench.proxy.faults_left(), 0);
            made(bench.make(&request, SET).await);
            for resource in ["pods", "persistentvolumeclaims", "services", "configmaps"] {
                let names = bench.names(resource).await;
                assert_eq!(names, [request.slots[0].id.as_str()], "{resource}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_cannot_be_completed_is_removed() {
    let bench = Direct::start().await;
    let request = bench.request(1);
    let name = &request.slots[0].id;
    bench
        .proxy
        .fail(On::call("create", "pods"), refused_by_quota(name));
    let error = failed(bench.make(&request, SET).await);
    assert_eq!(error.reason(), Reason::QuotaExceeded);
    // The error says that nothing exists, so nothing may exist.
    assert_eq!(bench.everything().await, vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_attempt_before_made_is_removed_with_it() {
    let bench = Direct::start().await;
    let request = bench.request(1);
    let name = &request.slots[0].id;
    bench
        .proxy
        .fail(On::call("create", "services"), Fault::LoseAnswer);
    unknown(bench.make(&request, SET).await);
    bench
        .proxy
        .fail(On::call("create", "pods"), refused_by_quota(name));
    let error = failed(bench.make(&request, SET).await);
    assert_eq!(error.reason(), Reason::QuotaExceeded);
    assert_eq!(bench.everything().await, vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_removed_again_is_unknown_and_removed_later() {
    let bench = Direct::start().await;
    let request = bench.request(1);
    let name = &request.slots[0].id;
    bench
        .proxy
        .fail(On::call("create", "pods"), refused_by_quota(name));
    bench
        .proxy
        .fail(On::call("delete", "services"), Fault::internal());
    let error = unknown(bench.make(&request, SET).await);
    assert!(error.message().contains("exceeded quota"), "{error:?}");
    assert!(error.message().contains("not removed yet"), "{error:?}");
    assert!(!bench.names("services").await.is_empty());
    made(bench.make(&request, SET).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_of_an_object_that_was_replaced_conflicts() {
    let bench = Direct::start().await;
    let node = bench.one(POD).await;
    let (api, namespace, name) = (&bench.api, &bench.namespace.name, &node.node_id);
    let pods = api.kinds().await.unwrap().named("pods").unwrap();
    let body = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "uid": uuid::Uuid::new_v4().to_string(), "labels": {"a": "b"}},
    });
    for patched in [
        api.patch(&pods, namespace, name, &body).await.map(drop),
        api.patch_elements(&pods, namespace, name, &body)
            .await
            .map(drop),
        api.apply(&pods, namespace, &body).await.map(drop),
        api.apply_ours(&pods, namespace, &body, false)
            .await
            .map(drop),
    ] {
        let error = patched.unwrap_err();
        assert_eq!(error.reason(), Reason::Conflict, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_somebody_else_has_is_named_and_left_alone() {
    let bench = Direct::start().await;
    let mut request = bench.request(1);
    let name = request.slots[0].id.clone();
    let foreign = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": "None", "ports": [{"port": 1}]},
    });
    let foreign = bench.namespace.create("services", &foreign).await.unwrap();
    let error = failed(bench.make(&request, SET).await);
    assert_eq!(error.reason(), Reason::Precondition);
    assert!(
        error.message().contains(&format!("Service {name}")),
        "{error:?}"
    );
    assert!(error.message().contains("belongs to no node"), "{error:?}");
    let left = bench.everything().await;
    let left: Vec<_> = left.iter().map(|it| it.resource.as_str()).collect();
    assert_eq!(left, ["services"]);
    let after = bench.namespace.get("services", &name).await.unwrap();
    assert_eq!(
        after["metadata"]["resourceVersion"],
        foreign["metadata"]["resourceVersion"]
    );

    request.validate_only = true;
    let error = bench.check(&request, SET).await.unwrap_err();
    assert!(error.message().contains("belongs to no node"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_labels_were_changed_by_hand_is_neither_doubled_nor_removed() {
    let bench = Direct::start().await;
    let request = bench.request(1);
    made(bench.make(&request, SET).await);
    let before = bench.everything().await;
    let changed = json!({"metadata": {"labels": {"drover.dev/request": "other"}}});
    let name = &request.slots[0].id;
    bench.namespace.merge("pods", name, &changed).await.unwrap();
    let error = unknown(bench.make(&request, SET).await);
    assert!(
        error.message().contains(&format!("Pod {name}")),
        "{error:?}"
    );
    assert!(error.message().contains("drover.dev/request"), "{error:?}");
    assert_eq!(bench.everything().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_request_does_not_get_the_node_of_the_first() {
    let bench = Direct::start().await;
    let mut request = bench.request(1);
    made(bench.make(&request, POD).await);
    request.request_id = uuid::Uuid::new_v4().to_string();
    let error = failed(bench.make(&request, POD).await);
    assert!(
        error
            .message()
            .contains(&format!("of cluster {:?}", bench.cluster)),
        "{error:?}"
    );
    assert_eq!(bench.names("pods").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_begun_when_nobody_waits_any_more() {
    let bench = Direct::start().await;
    let (batch, caller) = batch(&bench.request(2), &of_text(SET));
    drop(caller);
    let outcomes = bench.creator.create(&batch).await;
    assert!(
        outcomes.iter().all(|it| matches!(it, Outcome::NotStarted)),
        "{outcomes:?}"
    );
    assert_eq!(bench.changes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_asks_the_api_server_and_makes_nothing() {
    let bench = Direct::start().await;
    let mut request = bench.request(1);
    request.validate_only = true;
    bench.check(&request, SET).await.unwrap();
    let bad = SET.replace("port: 80", "port: 800000");
    let error = bench.check(&request, &bad).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Invalid);
    assert!(
        error.fields()[0].field.contains("spec.ports[0].port"),
        "{error:?}"
    );
    assert_eq!(bench.everything().await, vec![]);
    assert_eq!(bench.changes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_that_cannot_be_managed_are_refused_by_their_document() {
    let bench = Direct::start().await;
    for (document, words) in [
        (
            "{apiVersion: nobody.example/v1, kind: Unheard, metadata: {name: x}}",
            ["Unheard", "nobody.example/v1"],
        ),
        (
            "{apiVersion: v1, kind: Namespace, metadata: {name: x}}",
            ["Namespace x", "no namespace"],
        ),
        (
            "{apiVersion: v1, kind: LimitRange, metadata: {name: x}}",
            ["limitranges", "left behind"],
        ),
    ] {
        let template = format!("{POD}\n---\n{document}\n");
        let request = bench.request(1);
        for error in [
            bench.check(&request, &template).await.unwrap_err(),
            failed(bench.make(&request, &template).await),
        ] {
            assert_eq!(error.reason(), Reason::Precondition);
            assert!(error.message().contains("document 2"), "{error:?}");
            for word in words {
                assert!(error.message().contains(word), "{error:?}");
            }
        }
    }
    assert_eq!(bench.changes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_of_a_new_kind_is_made_and_removed_like_any_other() {
    let raw = direct::rig().raw().await;
    let group = format!("{}.example.com", uuid::Uuid::new_v4().simple());
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("stores.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "stores", "singular": "store", "kind": "Store", "listKind": "StoreList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }}}],
        },
    });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    raw.create(path, &crd).await.unwrap();
    until("the kind is served", || async {
        raw.get(&format!("/apis/{group}/v1/stores"))
            .await
            .ok()
            .map(drop)
    })
    .await;
    let resource = format!("stores.{group}");
    until("discovery tells of the kind", || async {
        raw.get(&format!("/apis/{group}")).await.ok().map(drop)
    })
    .await;
    let bench = Direct::with(|settings| settings.kinds.push(resource.clone())).await;
    let template = format!(
        "{POD}\n---\n{{apiVersion: {group}/v1, kind: Store, metadata: {{name: \"{{{{ platform.name }}}}\"}}, spec: {{template: {{x: 1}}}}}}\n"
    );
    let request = bench.request(1);
    let node = made(bench.make(&request, &template).await).remove(0);
    let store = bench
        .namespace
        .get(&resource, &request.slots[0].id)
        .await
        .unwrap();
    marked(&store, &request);
    assert_eq!(store["spec"], json!({"template": {"x": 1}}));
    bench.gone(&node).await;
    bench.namespace.until_empty("custom resource and pod").await;
    raw.delete(&format!("{path}/stores.{group}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn placement_class_storage_and_user_data_reach_the_pod() {
    let bench = Direct::with(|settings| {
        let class = json!({
            "requests": {"cpu": "100m"},
            "tolerations": [{"key": "large", "operator": "Exists"}],
            "storage_class": "fast",
        });
        let class = serde_json::from_value(class).unwrap();
        settings.node_classes.insert("large".to_owned(), class);
    })
    .await;
    let mut request = bench.request(3);
    let group = request.group.as_mut().unwrap();
    group.node_class = "large".to_owned();
    group.placement = Some(Placement {
        spread: vec![Spread {
            topology_key: "host".to_owned(),
            when_unsatisfiable: UnsatisfiableAction::ScheduleAnyway.into(),
            ..Spread::default()
        }],
        failure_domains: vec!["zone-b".to_owned()],
        ..Placement::default()
    });
    request.storage = Some(Storage {
        size_bytes: Some(3 << 30),
        class: String::new(),
    });
    request.bootstrap = Some(Bootstrap {
        user_data: Some(UserData::Text("hunter2".to_owned())),
        ..Bootstrap::default()
    });
    // A claim without a volume would keep the pod from being scheduled.
    let template = SET.replace("storageClassName: none, ", "").replace(
        "volumes: [{name: data, persistentVolumeClaim: {claimName: \"{{ platform.name }}\"}}]",
        "volumes: [{name: user-data, secret: {secretName: \"{{ platform.bootstrap }}\"}}]",
    );
    let nodes = made(bench.make(&request, &template).await);
    for node in nodes {
        let pod = until("the pod is placed", || async {
            let pod = bench.namespace.get("pods", &node.id).await.unwrap();
            pod["spec"]["nodeName"].is_string().then_some(pod)
        })
        .await;
        let on = pod["spec"]["nodeName"].as_str().unwrap();
        let host = bench
            .namespace
            .raw
            .get(&format!("/api/v1/nodes/{on}"))
            .await
            .unwrap();
        let zone = &host["metadata"]["labels"]["topology.kubernetes.io/zone"];
        assert_eq!(zone, "zone-b");
        let spec = &pod["spec"];
        assert_eq!(
            spec["containers"][0]["resources"]["requests"]["cpu"],
            "100m"
        );
        let spread = &spec["topologySpreadConstraints"][0];
        assert_eq!(spread["topologyKey"], "kubernetes.io/hostname");
        let claims = bench.namespace.list("persistentvolumeclaims").await;
        let label = |claim: &Value| claim["metadata"]["labels"]["drover.dev/node"].clone();
        let claim = claims
            .iter()
            .find(|claim| label(claim) == node.id.as_str())
            .unwrap();
        assert_eq!(claim["spec"]["storageClassName"], "fast");
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "3Gi");
        let secret = spec["volumes"][0]["secret"]["secretName"].as_str().unwrap();
        let secret = bench.namespace.get("secrets", secret).await.unwrap();
        assert_eq!(secret["data"]["user-data"], "aHVudGVyMg==");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_too_large_is_refused_before_anything_is_made() {
    let bench = Direct::start().await;
    for (times, part) in [(1_700_000, "ConfigMap"), (5_000_000, "renders more than")] {
        let template = format!(
            "{POD}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: \"{{{{ platform.name }}}}\"}}\ndata: {{x: \"{{{{ 'y' * {times} }}}}\"}}\n"
        );
        let error = failed(bench.make(&bench.request(1), &template).await);
        assert_eq!(error.reason(), Reason::Precondition);
        assert!(error.message().contains(part), "{error:?}");
        assert!(error.message().len() < 4096);
    }
    assert_eq!(bench.changes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_that_are_built_in_pass_the_strictest_rules_for_pods() {
    let bench = Direct::start().await;
    let strict = json!({"metadata": {"labels": {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/warn": "restricted",
    }}});
    let path = format!("/api/v1/namespaces/{}", bench.namespace.name);
    bench.namespace.raw.merge(&path, &strict).await.unwrap();
    let storage = Storage {
        size_bytes: Some(1 << 30),
        class: String::new(),
    };
    let templates: Templates = built_in(CATALOGUE);
    for (store, attributes, storage) in [
        ("", json!({}), None),
        (
            "redis",
            json!({"image_pull_secret": "pull", "open": true}),
            None,
        ),
        (
            "redis",
            json!({"image": "mine:1", "open": true}),
            Some(storage.clone()),
        ),
        ("etcd", json!({}), Some(storage.clone())),
        (
            "redis",
            json!({"workload": "StatefulSet", "open": true}),
            Some(storage),
        ),
    ] {
        // Nodes that take over from one another are ready only when they are of use, and are not restarted where they
        // died.
        let probes: &[&str] = if store.is_empty() || attributes.get("workload").is_some() {
            &["startupProbe", "livenessProbe", "readinessProbe"]
        } else {
            &["readinessProbe"]
        };
        let mut request = bench.request(1);
        request.storage = storage;
        request.cluster.as_mut().unwrap().store = store.to_owned();
        request.cluster.as_mut().unwrap().version = "7.2".to_owned();
        let attributes = attributes.as_object().map(drover_convert::value::to_struct);
        request.group.as_mut().unwrap().attributes = attributes;
        bench.check_by(&request, &templates).await.unwrap();
        let (batch, _caller) = batch(&request, &templates);
        let node = made(bench.creator.create(&batch).await).remove(0);
        let pod = until("the pod exists", || async {
            bench.namespace.list("pods").await.into_iter().next()
        })
        .await;
        let spec = &pod["spec"];
        assert_eq!(spec["automountServiceAccountToken"], false, "{store}");
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true, "{store}");
        let main = &spec["containers"][0];
        assert_eq!(
            main["securityContext"]["readOnlyRootFilesystem"], true,
            "{store}"
        );
        for probe in probes {
            assert!(main[*probe].is_object(), "{store} {probe}");
        }
        assert!(main["resources"]["requests"].is_object(), "{store}");
        assert_eq!(bench.names("services").await, [node.id.as_str()], "{store}");
        bench.gone(&node).await;
        bench.namespace.until_empty(store).await;
    }
}
