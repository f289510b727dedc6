//! The platform with exactly the permissions that `deploy/kubernetes` grants it, and the manifests there.

mod manifests;
mod orchestrator;
mod owners;
mod resources;

use crate::bench;

use std::{collections::BTreeSet, ops::Deref};

use bench::{Bench, one_each, rig, settings};
use drover_core::{Class, Reason};
use drover_platform_k8s::{PlatformServer, Settings};
use drover_proto::{
    common::v1::{chunk::Content, process_output::Output},
    platform::v1::{
        ExecRequest, ExecStart, GetPlatformRequest, Node, NodeTarget, StreamLogsRequest,
        exec_request::Input, node_access_service_client::NodeAccessServiceClient,
        platform_service_client::PlatformServiceClient,
    },
};
use drover_testing::kubernetes::{
    Call, Fault, FaultProxy, Namespace, On, Rig, Speaks,
    manifests::{NAME, Places, apply, documents, folder, path, placed},
    until,
};
use serde::Deserialize;
use serde_json::{Value, json};

const ROLE: &str = "base/nodes/role.yaml";
const HOSTS: &str = "base/cluster-role.yaml";
const CLUSTER_ROLE: &str = "all-namespaces/cluster-role.yaml";

/// The kinds in `platform.yaml`, which have to match the rules.
fn kinds() -> Vec<String> {
    #[derive(Deserialize)]
    struct File {
        kinds: Vec<String>,
    }
    let text = std::fs::read_to_string(folder().join("base/system/platform.yaml")).unwrap();
    serde_saphyr::from_str::<File>(&text).unwrap().kinds
}

/// A token of the ServiceAccount, from the TokenRequest API.
pub(crate) async fn token(namespace: &Namespace) -> String {
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}});
    let path = format!("{}/{NAME}/token", namespace.path("serviceaccounts"));
    let answer = namespace.raw.create(&path, &request).await.unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// A platform with the permissions of the manifests, and a namespace for nodes.
struct Deployed {
    bench: Bench,
    /// The namespace of its ServiceAccount.
    system: Namespace,
}

impl Deref for Deployed {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.bench
    }
}

impl Deployed {
    fn places(&self) -> Places<'_> {
        Places {
            system: &self.system.name,
            nodes: &self.bench.namespace.name,
        }
    }
}

async fn deployed(rules: &[&str], change: impl FnOnce(&mut Settings)) -> Deployed {
    let rig: &'static Rig = rig();
    let (namespace, system) = (rig.namespace().await, rig.namespace().await);
    let places = Places {
        system: &system.name,
        nodes: &namespace.name,
    };
    for file in ["base/system/service-account.yaml"].iter().chain(rules) {
        apply(&namespace.raw, placed(file, places)).await;
    }
    let proxy = FaultProxy::over(rig.kubeconfig(), Speaks::AsClient).await;
    let token = token(&system).await;
    proxy.write_kubeconfig(&format!("token: {token}"));
    let mut settings = settings(&namespace.name);
    settings.kinds = kinds();
    change(&mut settings);
    let bench = Bench::over(rig, namespace, settings, proxy).await;
    Deployed { bench, system }
}

/// Everything that the platform does: validates, creates, repeats, lists, watches, reads a log, removes.
async fn live(bench: &Bench) {
    for store in ["pod", "rich", "stateful", "deployed"] {
        let mut request = bench.request(store, 2).await;
        request.validate_only = true;
        bench.provision(&request).await.unwrap();
        request.validate_only = false;
        let nodes = bench.whole(&request, store).await;
        one_each(&nodes, &request, store);
        bench.whole(&request, "again").await;
        if store == "pod" {
            let nodes = bench.until_running().await;
            read_a_log(bench, &nodes[0]).await;
            run_a_command(bench, &nodes[0]).await;
        }
        for node in bench.nodes().await {
            bench.remove(&node, store).await;
        }
    }
}

fn target(uid: String, node: &Node) -> NodeTarget {
    NodeTarget {
        expected_platform_uid: uid,
        cluster_id: node.cluster_id.clone(),
        node_id: node.node_id.clone(),
        expected_slot: node.slot.clone(),
        ..NodeTarget::default()
    }
}

async fn read_a_log(bench: &Bench, node: &Node) {
    let request = StreamLogsRequest {
        node: Some(target(bench.platform().await.uid, node)),
        as_text: true,
        ..StreamLogsRequest::default()
    };
    let channel = drover_client::in_process(bench.server().routes());
    let mut client = NodeAccessServiceClient::new(channel);
    let mut stream = client.stream_logs(request).await.unwrap().into_inner();
    let mut text = String::new();
    while let Some(answer) = stream.message().await.unwrap() {
        if let Some(Content::Text(part)) = answer.chunk.and_then(|chunk| chunk.content) {
            text.push_str(&part);
        }
    }
    assert!(text.contains("a pod of kwok"), "{text}");
}

async fn run_a_command(bench: &Bench, node: &Node) {
    let start = ExecStart {
        node: Some(target(bench.platform().await.uid, node)),
        command: vec!["true".to_owned()],
        ..ExecStart::default()
    };
    let start = ExecRequest {
        input: Some(Input::Start(start)),
    };
    let channel = drover_client::in_process(bench.server().routes());
    let mut client = NodeAccessServiceClient::new(channel);
    let calls = futures::stream::iter([start]);
    let mut stream = client.exec(calls).await.unwrap().into_inner();
    let mut last = None;
    while let Some(answer) = stream.message().await.unwrap() {
        last = answer.output.and_then(|output| output.output);
    }
    assert_eq!(last, Some(Output::ExitCode(0)));
}

/// The calls that were refused for missing permissions.
fn forbidden(bench: &Bench) -> Vec<Call> {
    let mut calls = bench.proxy().calls();
    calls.retain(|call| call.status == Some(403));
    calls
}

/// Every (verb, resource) pair that a file of rules allows.
fn allowed(file: &str) -> BTreeSet<(String, String)> {
    let mut allowed = BTreeSet::new();
    let texts = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    for document in documents(file) {
        for rule in document["rules"].as_array().into_iter().flatten() {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        let resource = if group.is_empty() {
                            resource.clone()
                        } else {
                            format!("{resource}.{group}")
                        };
                        allowed.insert((verb, resource));
                    }
                }
            }
        }
    }
    allowed
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_the_role_is_enough_for_one_namespace() {
    let bench = deployed(&[ROLE, HOSTS], |_| {}).await;
    live(&bench).await;
    let refused = forbidden(&bench);
    assert!(refused.is_empty(), "{refused:?}");
    // The allowed kinds are exactly those that the platform handles, and the Kubernetes nodes.
    let mut allowed = allowed(ROLE);
    allowed.extend(self::allowed(HOSTS));
    let read: BTreeSet<String> = bench
        .proxy()
        .calls()
        .iter()
        .filter(|call| matches!(call.verb, "list" | "watch") && call.status == Some(200))
        .map(|call| call.resource.clone())
        .collect();
    let listable: BTreeSet<String> = allowed
        .iter()
        .filter(|(verb, _)| verb == "list")
        .map(|(_, resource)| resource.clone())
        .collect();
    assert_eq!(read, listable);
    let handled = kinds().into_iter().chain(["nodes".to_owned()]);
    assert_eq!(listable, handled.collect());
    // Completing an interrupted creation needs no other permissions.
    for kind in kinds() {
        let request = bench.request("every", 1).await;
        bench
            .proxy()
            .fail(On::call("create", &kind), Fault::LoseAnswer);
        let nodes = bench.whole(&request, &kind).await;
        assert_eq!(bench.proxy().faults_left(), 0, "{kind}");
        bench.remove(&nodes[0], &kind).await;
    }
    assert_eq!(forbidden(&bench).len(), 0, "{:?}", forbidden(&bench));
    // No permission is unused.
    let used: BTreeSet<(String, String)> = bench
        .proxy()
        .calls()
        .iter()
        .filter(|call| call.status.is_none_or(|status| status != 403))
        .map(|call| (call.verb.to_owned(), call.resource.clone()))
        .collect();
    let idle: Vec<_> = allowed
        .into_iter()
        .filter(|(verb, resource)| {
            // The verb for exec depends on the version of Kubernetes.
            let verb = if resource == "pods/exec" {
                "connect"
            } else {
                verb
            };
            !used.contains(&(verb.to_owned(), resource.clone()))
        })
        .collect();
    assert!(idle.is_empty(), "allowed and never used: {idle:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_the_cluster_role_is_enough_for_all_namespaces() {
    let elsewhere = rig().namespace().await;
    let bench = deployed(&[CLUSTER_ROLE], |settings| {
        settings.namespaces.clear();
    })
    .await;
    let mut request = bench.request("rich", 2).await;
    let properties = json!({"namespace": elsewhere.name});
    let properties = drover_convert::value::to_struct(properties.as_object().unwrap());
    request.group.as_mut().unwrap().properties = Some(properties);
    let nodes = bench.whole(&request, "elsewhere").await;
    one_each(&nodes, &request, "elsewhere");
    assert!(!elsewhere.everything().await.is_empty());
    let zones = until("the nodes are placed", || async {
        let nodes = bench.until_running().await;
        let zones: Vec<String> = nodes
            .iter()
            .map(|node| node.failure_domain.clone())
            .collect();
        zones
            .iter()
            .all(|zone| zone.starts_with("zone-"))
            .then_some(zones)
    })
    .await;
    assert_eq!(zones.len(), 2);
    for node in bench.nodes().await {
        bench.remove(&node, "elsewhere").await;
    }
    elsewhere.until_empty("elsewhere").await;
    assert_eq!(forbidden(&bench).len(), 0, "{:?}", forbidden(&bench));
}

/// Removes a verb from the rule for a resource.
async fn without(bench: &Deployed, verb: &str, resource: &str) {
    let mut role = placed(ROLE, bench.places()).remove(0);
    let mut rules = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        for one in rule["resources"].as_array().unwrap() {
            let mut rule = rule.clone();
            rule["resources"] = json!([one]);
            if one == resource {
                rule["verbs"]
                    .as_array_mut()
                    .unwrap()
                    .retain(|it| it != verb);
            }
            rules.push(rule);
        }
    }
    role["rules"] = Value::Array(rules);
    bench
        .namespace
        .raw
        .replace(&path(&role), &role)
        .await
        .unwrap();
}

/// Waits until the API server no longer allows this to the ServiceAccount.
async fn until_may_not(bench: &Deployed, verb: &str, resource: &str) {
    let namespace = &bench.namespace;
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:{}:{NAME}", bench.system.name),
            "resourceAttributes": {"namespace": namespace.name, "verb": verb, "resource": resource},
        },
    });
    until("the right is taken", || async {
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = namespace.raw.create(path, &review).await.unwrap();
        (answer["status"]["allowed"] != true).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_with_verb_and_kind() {
    let bench = deployed(&[ROLE], |_| {}).await;
    without(&bench, "create", "services").await;
    until_may_not(&bench, "create", "services").await;
    let request = bench.request("rich", 2).await;
    let error = bench.refused(&request).await;
    assert_eq!(error.reason(), Reason::CredentialsRefused, "{error:?}");
    assert_eq!(error.class(), Class::Credentials, "{error:?}");
    let text = format!("{error:?}");
    assert!(
        text.contains("create") && text.contains("services"),
        "{text}"
    );
    let things = bench.namespace.everything().await;
    let ours: Vec<_> = things
        .iter()
        .filter(|thing| thing.name.starts_with("db-"))
        .collect();
    assert!(ours.is_empty(), "{ours:?}");

    without(&bench, "delete", "configmaps").await;
    until_may_not(&bench, "delete", "configmaps").await;
    let request = bench.request("rich", 1).await;
    let nodes = bench.whole(&request, "may not delete").await;
    let error = until("the removal is refused", || async {
        bench.deprovision(&nodes[0]).await.err()
    })
    .await;
    assert_eq!(error.reason(), Reason::CredentialsRefused, "{error:?}");
    let text = format!("{error:?}");
    assert!(
        text.contains("delete") && text.contains("configmaps"),
        "{text}"
    );
    // It is still listed, as it still exists.
    assert_eq!(bench.nodes().await.len(), 1);
    apply(&bench.namespace.raw, placed(ROLE, bench.places())).await;
    bench.remove(&nodes[0], "may delete again").await;
    assert_eq!(bench.nodes().await, vec![]);
}

/// Warnings of a platform that begins now, with the same credentials.
async fn warnings_of_another(bench: &Deployed) -> Vec<String> {
    let settings = Settings {
        kubeconfig: Some(bench.proxy().kubeconfig()),
        ..bench.settings.clone()
    };
    let other = PlatformServer::open(settings).await.unwrap();
    let mut client = PlatformServiceClient::new(drover_client::in_process(other.routes()));
    let answer = client.get_platform(GetPlatformRequest {}).await.unwrap();
    other.shutdown().await;
    answer.into_inner().platform.unwrap().warnings
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_compared_with_labels_is_named() {
    let allow = |settings: &mut Settings| settings.plain_labels = vec!["team".to_owned()];
    let bench = deployed(&[ROLE], allow).await;
    let warnings = bench.platform().await.warnings;
    let of_labels = |it: &String| it.contains("plain_labels");
    assert!(!warnings.iter().any(of_labels), "{warnings:?}");
    let (_, nodes) = bench.make("pod", 1).await;
    without(&bench, "list", "services").await;
    until_may_not(&bench, "list", "services").await;
    let warnings = warnings_of_another(&bench).await;
    let said = |it: &String| it.contains("services") && of_labels(it);
    assert!(warnings.iter().any(said), "{warnings:?}");
    // Only the settings decide.
    let (_, more) = bench.make("pod", 1).await;
    for node in [&nodes[0], &more[0]] {
        let pod = bench.namespace.get("pods", &node.id).await.unwrap();
        assert_eq!(pod["metadata"]["labels"]["team"], "storage");
        bench.remove(node, "labels").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_namespace_of_the_platform_is_closed_to_nodes_and_to_the_platform_itself() {
    let bench = deployed(&[CLUSTER_ROLE], |settings| settings.namespaces.clear()).await;
    let settings = Settings {
        excluded_namespaces: vec![bench.system.name.clone()],
        kubeconfig: Some(bench.proxy().kubeconfig()),
        ..bench.settings.clone()
    };
    let server = PlatformServer::open(settings).await.unwrap();
    let mut request = bench.request("pod", 1).await;
    let properties = json!({"namespace": bench.system.name});
    let properties = drover_convert::value::to_struct(properties.as_object().unwrap());
    request.group.as_mut().unwrap().properties = Some(properties);
    let mut client = PlatformServiceClient::new(drover_client::in_process(server.routes()));
    let status = client.provision(request).await.unwrap_err();
    let error = drover_client::to_error(&status);
    assert_eq!(error.reason(), Reason::NamespaceNotServed, "{error:?}");
    assert_eq!(bench.system.list("pods").await, Vec::<Value>::new());
    server.shutdown().await;
    // The rules for one namespace of nodes allow nothing in another one.
    let bench = deployed(&[ROLE], |_| {}).await;
    let settings = Settings {
        namespaces: vec![bench.system.name.clone()],
        kubeconfig: Some(bench.proxy().kubeconfig()),
        ..bench.settings.clone()
    };
    let Err(error) = PlatformServer::open(settings).await else {
        panic!("it may read its own namespace");
    };
    assert_eq!(error.reason(), Reason::CredentialsRefused, "{error:?}");
}
