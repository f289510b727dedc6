//! What the manifests of the orchestrator say: names that certificates are for, and what becomes of pods on a lost host.

use std::collections::BTreeSet;

use drover_testing::kubernetes::manifests::{ORCHESTRATOR, Places, built, documents, folder};
use serde_json::Value;

const REPLICAS: &str = "orchestrator/stateful-set.yaml";
const SINGLE: &str = "orchestrator/single/deployment.yaml";
const NAMESPACE: &str = "drover-system";

fn pod(workload: &str) -> Value {
    documents(workload).remove(0)["spec"]["template"]["spec"].take()
}

/// Names of the Secrets that the pods wait for.
fn secrets(workload: &str) -> BTreeSet<String> {
    let pod = pod(workload);
    let volumes = pod["volumes"].as_array().unwrap().iter();
    let needed = volumes.filter_map(|volume| volume["secret"]["secretName"].as_str());
    needed.map(str::to_owned).collect()
}

/// Host of the address by which a replica is called.
fn host(replica: u64) -> String {
    let pod = pod(REPLICAS);
    let variables = pod["containers"][0]["env"].as_array().unwrap();
    let variable = |name: &str| variables.iter().find(|it| it["name"] == name).unwrap();
    let name = variable("DROVER_REPLICA__NAME");
    assert_eq!(name["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name");
    let address = variable("DROVER_REPLICA__ADDRESS")["value"]
        .as_str()
        .unwrap();
    let address = address.replace(
        "$(DROVER_REPLICA__NAME)",
        &format!("{ORCHESTRATOR}-{replica}"),
    );
    let host = address.strip_prefix("https://").unwrap();
    host.strip_suffix(":7400").unwrap().to_owned()
}

fn replicas() -> u64 {
    documents(REPLICAS)[0]["spec"]["replicas"].as_u64().unwrap()
}

#[test]
fn the_address_of_a_replica_is_that_of_its_pod_in_the_headless_service() {
    let set = documents(REPLICAS).remove(0);
    let service = documents("orchestrator/replicas.yaml").remove(0);
    let name = service["metadata"]["name"].as_str().unwrap();
    assert_eq!(set["spec"]["serviceName"], name);
    assert_eq!(service["spec"]["clusterIP"], "None");
    // Nobody is ready before somebody leads, and who stands by asks the one that does.
    assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
    assert_eq!(host(1), format!("{ORCHESTRATOR}-1.{name}.{NAMESPACE}.svc"));
}

#[test]
fn cert_manager_makes_certificates_for_the_names_by_which_orchestrators_are_called() {
    let documents = documents("cert-manager/certificates.yaml");
    let certificate = |secret: &str| {
        let mut all = documents.iter();
        let found = all.find(|it| it["spec"]["secretName"] == secret);
        found.unwrap()["spec"].clone()
    };
    let names = |certificate: &Value| -> Vec<String> {
        let names = certificate["dnsNames"].as_array().unwrap().iter();
        names.map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let own = certificate("drover-orchestrator-tls");
    let known = names(&own);
    assert!(known.contains(&format!("{ORCHESTRATOR}.{NAMESPACE}.svc")));
    for replica in 0..replicas() {
        let host = host(replica);
        let (_, domain) = host.split_once('.').unwrap();
        assert!(known.contains(&format!("*.{domain}")), "{host}");
    }
    // Etcd is told this name of those that it lets in.
    let client = certificate("drover-etcd-client-tls");
    assert_eq!(names(&client), ["orchestrator"]);
    // The key of secrets is nobody's but the site's.
    let made: BTreeSet<&str> = documents
        .iter()
        .filter_map(|it| it["spec"]["secretName"].as_str())
        .collect();
    for workload in [REPLICAS, SINGLE] {
        for secret in secrets(workload) {
            let is_made = made.contains(secret.as_str());
            assert!(
                is_made || secret == "drover-orchestrator-secrets",
                "{secret}"
            );
        }
    }
}

#[test]
fn the_page_makes_every_secret_and_names_every_replica() {
    let path = folder().join("../../docs/tasks/kubernetes.md");
    let page = std::fs::read_to_string(path).unwrap();
    for workload in [REPLICAS, SINGLE] {
        for secret in secrets(workload) {
            let command = format!("kubectl create secret generic {secret} ");
            assert!(page.contains(&command), "{secret}");
        }
    }
    for replica in 0..replicas() {
        let host = host(replica);
        assert!(page.contains(&format!("--name {host}")), "{host}");
    }
}

#[test]
fn three_replicas_keep_nothing_that_a_lost_host_could_hold() {
    let places = Places {
        system: NAMESPACE,
        nodes: "drover-nodes",
    };
    let kinds = |folder: &str| -> BTreeSet<String> {
        let objects = built(folder, places).into_iter();
        objects
            .map(|it| it["kind"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(!kinds("orchestrator").contains("PersistentVolumeClaim"));
    let set = documents(REPLICAS).remove(0);
    assert_eq!(set["spec"].get("volumeClaimTemplates"), None);
    assert_eq!(set["spec"]["podManagementPolicy"], "Parallel");
    // A second process on one store is worse than none.
    assert!(kinds("orchestrator/single").contains("PersistentVolumeClaim"));
    let claim = documents("orchestrator/single/claim.yaml").remove(0);
    assert_eq!(claim["spec"]["accessModes"][0], "ReadWriteOncePod");
    let single = documents(SINGLE).remove(0);
    assert_eq!(single["spec"]["strategy"]["type"], "Recreate");
}

#[test]
fn what_keeps_clusters_alive_goes_before_other_pods_and_leaves_a_lost_host_soon() {
    let class = documents("base/common/priority-class.yaml").remove(0);
    for workload in ["base/system/deployment.yaml", REPLICAS, SINGLE] {
        let pod = pod(workload);
        assert_eq!(pod["priorityClassName"], class["metadata"]["name"]);
        for taint in ["unreachable", "not-ready"] {
            let key = format!("node.kubernetes.io/{taint}");
            let mut tolerated = pod["tolerations"].as_array().unwrap().iter();
            let own = tolerated.find(|it| it["key"] == *key && it["effect"] == "NoExecute");
            let seconds = own.unwrap()["tolerationSeconds"].as_u64().unwrap();
            assert!(seconds <= 30, "{workload} {key}");
        }
        // Its variables would be taken for settings.
        assert_eq!(pod["enableServiceLinks"], false);
    }
}
