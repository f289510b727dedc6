//! Pods of a platform that may not read the namespaces that they are in.

use drover_testing::kubernetes::manifests::{path, placed};
use serde_json::{Value, json};

use super::{CLUSTER_ROLE, deployed, until_may_not, warnings_of_another};

#[tokio::test(flavor = "multi_thread")]
async fn where_namespaces_may_not_be_read_pods_have_no_controller_and_the_platform_says_so() {
    let bench = deployed(&[CLUSTER_ROLE], |settings| settings.namespaces.clear()).await;
    let of_drains = |it: &String| it.contains("namespaces") && it.contains("kubectl drain");
    let warnings = bench.platform().await.warnings;
    assert!(!warnings.iter().any(of_drains), "{warnings:?}");

    let mut role = placed(CLUSTER_ROLE, bench.places()).remove(0);
    for rule in role["rules"].as_array_mut().unwrap() {
        if rule["resources"] == json!(["namespaces"]) {
            rule["resourceNames"] = json!(["kube-system"]);
        }
    }
    let raw = &bench.namespace.raw;
    raw.replace(&path(&role), &role).await.unwrap();
    until_may_not(&bench, "get", "namespaces").await;
    let mut request = bench.request("pod", 1).await;
    let properties = json!({"namespace": bench.namespace.name});
    let properties = drover_convert::value::to_struct(properties.as_object().unwrap());
    request.group.as_mut().unwrap().properties = Some(properties);
    let node = bench.whole(&request, "it may not read").await.remove(0);
    let pod = bench.namespace.list("pods").await.remove(0);
    assert_eq!(pod["metadata"]["ownerReferences"], Value::Null);
    let warnings = warnings_of_another(&bench).await;
    assert!(warnings.iter().any(of_drains), "{warnings:?}");
    bench.remove(&node, "it may not read").await;
}
