//! The manifests themselves: what they say, and that the API server accepts all of them.

use std::collections::{BTreeMap, BTreeSet};

use drover_platform::identity::Identity;
use drover_platform_k8s::{
    labels::{self, LabelKeys, declared::Plain},
    objects::CATALOGUE,
};
use drover_templates::Catalogue;
use drover_testing::kubernetes::{
    manifests::{
        NAME, ORCHESTRATOR, Places, apply, built, documents, files, folder, kustomizations,
    },
    until,
};
use serde_json::{Value, json};

use super::{CLUSTER_ROLE, ROLE, allowed, rig};

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
    for (settings, workload) in [
        ("base/system/platform.yaml", "base/system/deployment.yaml"),
        (
            "orchestrator/orchestrator.yaml",
            "orchestrator/stateful-set.yaml",
        ),
        (
            "orchestrator/single/orchestrator.yaml",
            "orchestrator/single/deployment.yaml",
        ),
    ] {
        let settings = documents(settings).remove(0);
        let tls = &settings["tls"];
        let pod = documents(workload).remove(0)["spec"]["template"]["spec"].take();
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        let mount = mounts.iter().find(|mount| mount["name"] == "tls").unwrap();
        for file in ["cert", "key", "client_ca"] {
            let path = tls[file].as_str().unwrap();
            assert!(
                path.starts_with(mount["mountPath"].as_str().unwrap()),
                "{workload} {path}"
            );
        }
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            let scheme = &pod["containers"][0][probe]["httpGet"]["scheme"];
            assert_eq!(scheme, "HTTPS", "{workload} {probe}");
        }
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
        let entries = catalogue.entries().into_iter();
        // The last is without TLS.
        let entries: Vec<_> = entries.filter(|it| it.store == store).collect();
        let ports = |names: &[String]| -> Value {
            let port = |name: &String| json!({"protocol": "TCP", "port": name});
            names.iter().map(port).collect()
        };
        let rules = spec["ingress"].as_array().unwrap();
        let probed = entries
            .iter()
            .any(|it| it.ports.iter().any(|port| port == "metrics"));
        assert_eq!(rules.len(), if probed { 3 } else { 2 });
        assert_eq!(rules[0]["from"], json!([{"podSelector": own}]));
        assert_eq!(rules[0]["ports"], ports(&entries.last().unwrap().ports));
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
        if probed {
            assert_eq!(rules[2]["from"], json!([clients[1]]));
            assert_eq!(rules[2]["ports"], ports(&["metrics".to_owned()]));
        }
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
    let small = rig().namespace().await;
    // The namespaces enforce the strictest pod security standard: the pods of the Deployment pass it.
    let mut known = BTreeSet::new();
    for folder in [
        "base",
        "all-namespaces",
        "cert-manager",
        "hosts",
        "orchestrator",
        "orchestrator/single",
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
        "orchestrator",
        "resources",
        "resources/drain",
        "stores",
    ] {
        apply(&system.raw, built(folder, places)).await;
    }
    // In place of three orchestrators, so it is not beside them.
    let small_site = Places {
        system: &small.name,
        ..places
    };
    apply(&small.raw, built("orchestrator/single", small_site)).await;
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
    until("three orchestrators are available", || async {
        let set = system.get("statefulsets.apps", ORCHESTRATOR).await.unwrap();
        (set["status"]["availableReplicas"] == 3).then_some(())
    })
    .await;
    until("a drain may take one of them", || async {
        let budgets = "poddisruptionbudgets.policy";
        let budget = system.get(budgets, ORCHESTRATOR).await.unwrap();
        let status = &budget["status"];
        (status["expectedPods"] == 3 && status["disruptionsAllowed"] == 1).then_some(())
    })
    .await;
    // Nothing here makes a volume for it.
    until("the one of a small site waits for its claim", || async {
        let pods = small.list("pods").await;
        (pods.len() == 1).then_some(())
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
