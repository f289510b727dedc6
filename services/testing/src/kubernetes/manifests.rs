//! The manifests of `deploy/kubernetes`, as kustomize would send them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Raw;

/// The name of everything there.
pub const NAME: &str = "drover-platform-k8s";

/// Where they are.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes")
}

/// The documents of a file.
pub fn documents(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join(file)).unwrap();
    serde_saphyr::from_multiple::<Value>(&text).unwrap()
}

/// What kustomize makes of the documents in a namespace.
pub fn placed(file: &str, namespace: &str) -> Vec<Value> {
    let mut documents = documents(file);
    for document in &mut documents {
        let cluster_wide = document["kind"].as_str().unwrap().starts_with("Cluster");
        if cluster_wide {
            document["metadata"]["name"] = format!("{NAME}-{namespace}").into();
            if document["kind"] == "ClusterRoleBinding" {
                document["roleRef"]["name"] = format!("{NAME}-{namespace}").into();
            }
        } else {
            document["metadata"]["namespace"] = namespace.into();
        }
        let subjects = document.get_mut("subjects").and_then(Value::as_array_mut);
        for subject in subjects.into_iter().flatten() {
            subject["namespace"] = namespace.into();
        }
    }
    documents
}

/// Where an object is at the API server.
pub fn path(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap();
    let root = if version.contains('/') { "apis" } else { "api" };
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    };
    let name = object["metadata"]["name"].as_str().unwrap();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{root}/{version}/namespaces/{namespace}/{plural}/{name}"),
        None => format!("/{root}/{version}/{plural}/{name}"),
    }
}

/// Applies objects.
pub async fn apply(raw: &Raw, objects: Vec<Value>) {
    for object in objects {
        raw.apply(&path(&object), &object).await.unwrap();
    }
}
