//! The platform with exactly the permissions that `deploy/kubernetes` grants it, and the manifests there.

mod resources;

use crate::bench;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
};

use bench::{Bench, one_each, rig, settings};
use drover_core::{Class, Reason};
use drover_platform::identity::Identity;
use drover_platform_k8s::{
    PlatformServer, Settings,
    labels::{self, LabelKeys, declared::Plain},
    objects::CATALOGUE,
};
use drover_proto::{
    common::v1::{chunk::Content, process_output::Output},
    platform::v1::{
        ExecRequest, ExecStart, GetPlatformRequest, Node, NodeTarget, StreamLogsRequest,
        exec_request::Input, node_access_service_client::NodeAccessServiceClient,
        platform_service_client::PlatformServiceClient,
    },
};
use drover_templates::Catalogue;
use drover_testing::kubernetes::{
    Call, Fault, FaultProxy, Namespace, On, Rig, Speaks,
    manifests::{
        NAME, Places, apply, built, documents, files, folder, kustomizations, path, placed,
    },
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
    let settings = Settings {
        kubeconfig: Some(bench.proxy().kubeconfig()),
        ..bench.settings.clone()
    };
    let other = PlatformServer::open(settings).await.unwrap();
    let mut client = PlatformServiceClient::new(drover_client::in_process(other.routes()));
    let answer = client.get_platform(GetPlatformRequest {}).await.unwrap();
    let warnings = answer.into_inner().platform.unwrap().warnings;
    let said = |it: &String| it.contains("services") && of_labels(it);
    assert!(warnings.iter().any(said), "{warnings:?}");
    other.shutdown().await;
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

#[test]
fn nothing_that_is_shipped_serves_plaintext() {
    let mut looked = 0;
    let mut folders = vec![folder()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("insecure"), "{}", path.display());
            looked += 1;
        }
    }
    assert!(looked > 10, "{looked}");
    let settings = documents("base/system/platform.yaml").remove(0);
    let tls = &settings["tls"];
    let deployment = documents("base/system/deployment.yaml").remove(0);
    let pod = &deployment["spec"]["template"]["spec"];
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["name"] == "tls").unwrap();
    for file in ["cert", "key", "client_ca"] {
        let path = tls[file].as_str().unwrap();
        assert!(
            path.starts_with(mount["mountPath"].as_str().unwrap()),
            "{path}"
        );
    }
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let scheme = &pod["containers"][0][probe]["httpGet"]["scheme"];
        assert_eq!(scheme, "HTTPS", "{probe}");
    }
}

#[test]
fn cert_manager_makes_the_secret_that_the_platform_has() {
    let deployment = documents("base/system/deployment.yaml").remove(0);
    let volumes = deployment["spec"]["template"]["spec"]["volumes"].clone();
    let volumes = volumes.as_array().unwrap();
    let secret = volumes
        .iter()
        .find_map(|it| it["secret"]["secretName"].as_str());
    let documents = documents("cert-manager/certificates.yaml");
    let certificate = |name: &str| {
        let named = |it: &&Value| it["kind"] == "Certificate" && it["metadata"]["name"] == name;
        documents.iter().find(named).unwrap()["spec"].clone()
    };
    let platform = certificate(NAME);
    assert_eq!(platform["secretName"].as_str(), secret);
    let name = format!("{NAME}.drover-system.svc");
    assert!(
        platform["dnsNames"]
            .as_array()
            .unwrap()
            .contains(&name.into())
    );
    let uris = |of: &Value| of["uris"][0].as_str().unwrap().to_owned();
    assert!(uris(&platform).starts_with("spiffe://drover/platform/"));
    let orchestrator = certificate("drover-orchestrator");
    assert!(uris(&orchestrator).starts_with("spiffe://drover/orchestrator/"));
    // Every certificate of the authority grants access, so nobody else may request one.
    for document in &documents {
        assert_eq!(document["metadata"]["namespace"], "drover-system");
        assert_ne!(document["kind"], "ClusterIssuer");
    }
}

/// A store that `drover init` shows: its name, and the names of its cluster and its group.
fn shown(file: &str) -> (String, String, String) {
    let path = folder().join("../examples").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let cluster: Value = serde_saphyr::from_str(&text).unwrap();
    let groups = cluster["spec"]["groups"].as_object().unwrap();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    (
        word(&cluster["spec"]["store"]["software"]),
        word(&cluster["metadata"]["name"]),
        groups.keys().next().unwrap().clone(),
    )
}

#[test]
fn the_policies_of_stores_select_what_the_platform_stamps_and_let_in_nobody_without_a_label() {
    let catalogue = Catalogue::embedded(CATALOGUE).unwrap();
    let mut policies = documents("stores/network-policies.yaml").into_iter();
    for file in ["redis.yaml", "etcd.yaml", "postgresql.yaml"] {
        let (store, cluster, group) = shown(file);
        let policy = policies.next().unwrap();
        let name = format!("{cluster}-{group}");
        assert_eq!(policy["metadata"]["name"], *name);
        let identity = Identity {
            cluster_id: cluster.clone(),
            group,
            ..Identity::default()
        };
        let keys = LabelKeys::default();
        let stamped = labels::stamp(&identity, &keys, &Plain::default()).labels;
        let own = [keys.cluster.as_str(), labels::GROUP];
        let own: BTreeMap<_, _> = own.map(|key| (key, stamped[key].as_str())).into();
        let own = json!({"matchLabels": own});
        let spec = &policy["spec"];
        assert_eq!(spec["podSelector"], own);
        assert_eq!(spec["policyTypes"], json!(["Ingress"]));
        let entry = catalogue.entries().into_iter().find(|it| it.store == store);
        let ports = |names: &[String]| -> Value {
            let port = |name: &String| json!({"protocol": "TCP", "port": name});
            names.iter().map(port).collect()
        };
        let rules = spec["ingress"].as_array().unwrap();
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[0]["from"], json!([{"podSelector": own}]));
        assert_eq!(rules[0]["ports"], ports(&entry.unwrap().ports));
        assert_eq!(rules[1]["ports"], ports(&["client".to_owned()]));
        let system = documents("base/system/network-policy.yaml").remove(0);
        let orchestrator = &system["spec"]["ingress"][0]["from"][0]["podSelector"];
        let of = |namespace: &str, pods: &Value| {
            let name = json!({"kubernetes.io/metadata.name": namespace});
            json!({"namespaceSelector": {"matchLabels": name}, "podSelector": pods})
        };
        let client = json!({"matchLabels": {"store-client": cluster}});
        let clients = json!([of("apps", &client), of("drover-system", orchestrator)]);
        assert_eq!(rules[1]["from"], clients);
    }
    assert_eq!(policies.next(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_manifest_is_accepted_by_the_api_server() {
    let (system, nodes) = (rig().namespace().await, rig().namespace().await);
    let places = Places {
        system: &system.name,
        nodes: &nodes.name,
    };
    // The namespaces enforce the strictest pod security standard: the pods of the Deployment pass it.
    let mut known = BTreeSet::new();
    for folder in [
        "base",
        "all-namespaces",
        "cert-manager",
        "hosts",
        "resources",
        "resources/drain",
        "resources/gloo",
        "stores",
    ] {
        known.extend(files(folder));
        for (folder, own) in kustomizations(folder) {
            known.insert(format!("{folder}/kustomization.yaml"));
            for map in own["configMapGenerator"].as_array().into_iter().flatten() {
                let of_map = map["files"].as_array().unwrap().iter();
                known.extend(of_map.map(|file| format!("{folder}/{}", file.as_str().unwrap())));
            }
        }
    }
    // Pods are the last of what is made of the one Deployment.
    for folder in [
        "hosts",
        "all-namespaces",
        "base",
        "resources",
        "resources/drain",
        "stores",
    ] {
        apply(&system.raw, built(folder, places)).await;
    }
    // The namespace of Gloo is not that of a test.
    for mut object in built("resources/gloo", places) {
        object["metadata"]["namespace"] = nodes.name.clone().into();
        apply(&system.raw, vec![object]).await;
    }
    // Kustomize knows every file in the folders.
    let mut folders = vec![String::new()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(folder().join(&at)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            let name = if at.is_empty() {
                name
            } else {
                format!("{at}/{name}")
            };
            if entry.path().is_dir() {
                folders.push(name);
            } else {
                assert!(known.contains(&name), "{name}");
            }
        }
    }
    // The same rules in both, except for namespaces and nodes.
    let besides = |allowed: BTreeSet<(String, String)>| -> BTreeSet<(String, String)> {
        let own =
            |(_, resource): &(String, String)| resource != "namespaces" && resource != "nodes";
        allowed.into_iter().filter(own).collect()
    };
    assert_eq!(besides(allowed(ROLE)), besides(allowed(CLUSTER_ROLE)));
    until("the Deployment is available", || async {
        let deployment = system.get("deployments.apps", NAME).await.unwrap();
        (deployment["status"]["availableReplicas"] == 1).then_some(())
    })
    .await;
    // The network policy admits pods of its own namespace, where no node is.
    let policy = system
        .get("networkpolicies.networking.k8s.io", NAME)
        .await
        .unwrap();
    for peer in policy["spec"]["ingress"][0]["from"].as_array().unwrap() {
        assert_eq!(peer.get("namespaceSelector"), None, "{peer}");
        assert_eq!(peer.get("ipBlock"), None, "{peer}");
    }
    assert_eq!(nodes.list("deployments.apps").await, Vec::<Value>::new());
}
