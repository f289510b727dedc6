//! The manifests of `deploy/kubernetes`, as kustomize would render them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Raw;

/// Name of the platform's objects in the manifests.
pub const NAME: &str = "drover-platform-k8s";
/// Name of the orchestrator's.
pub const ORCHESTRATOR: &str = "drover-orchestrator";

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes")
}

/// Parses the documents of a file.
pub fn documents(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join(file)).unwrap();
    serde_saphyr::from_multiple::<Value>(&text).unwrap()
}

/// Namespaces of a test, in place of those of the manifests.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// In place of `drover-system`.
    pub system: &'a str,
    /// In place of `drover-nodes` and `drover-addons`.
    pub nodes: &'a str,
}

impl Places<'_> {
    fn of(&self, name: &str) -> String {
        match name {
            "drover-system" => self.system.to_owned(),
            "drover-nodes" | "drover-addons" => self.nodes.to_owned(),
            other => other.to_owned(),
        }
    }
}

/// The kustomizations of the folders that a folder refers to, followed by its own.
pub fn kustomizations(folder: &str) -> Vec<(String, Value)> {
    let own = documents(&format!("{folder}/kustomization.yaml")).remove(0);
    let mut all = Vec::new();
    for resource in list(&own["resources"]) {
        if !resource.ends_with(".yaml") {
            all.extend(kustomizations(&joined(folder, resource)));
        }
    }
    all.push((folder.to_owned(), own));
    all
}

/// The files with the objects of a folder.
pub fn files(folder: &str) -> Vec<String> {
    let mut files = Vec::new();
    for (folder, own) in kustomizations(folder) {
        let named = list(&own["resources"]).filter(|resource| resource.ends_with(".yaml"));
        files.extend(named.map(|resource| joined(&folder, resource)));
    }
    files
}

/// All objects of a folder, in the namespaces of a test. Names of ConfigMaps have no hash.
pub fn built(folder: &str, places: Places<'_>) -> Vec<Value> {
    let mut objects = Vec::new();
    for file in files(folder) {
        objects.extend(placed(&file, places));
    }
    for (folder, own) in kustomizations(folder) {
        for map in own["configMapGenerator"].as_array().into_iter().flatten() {
            let mut data = serde_json::Map::new();
            for file in list(&map["files"]) {
                let path = self::folder().join(&folder).join(file);
                data.insert(
                    file.to_owned(),
                    std::fs::read_to_string(path).unwrap().into(),
                );
            }
            let namespace = places.of(own["namespace"].as_str().unwrap());
            objects.push(json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": map["name"], "namespace": namespace}, "data": data,
            }));
        }
        for image in own["images"].as_array().into_iter().flatten() {
            let containers = objects.iter_mut().flat_map(containers);
            for container in containers.filter(|it| it["image"] == image["name"]) {
                let [name, tag] = ["name", "newTag"].map(|key| image[key].as_str().unwrap());
                container["image"] = format!("{name}:{tag}").into();
            }
        }
        for patch in own["patches"].as_array().into_iter().flatten() {
            let operations: Value =
                serde_saphyr::from_str(patch["patch"].as_str().unwrap()).unwrap();
            let mut meant = objects.iter_mut().filter(|object| {
                object["kind"] == patch["target"]["kind"]
                    && object["metadata"]["name"] == patch["target"]["name"]
            });
            let object = meant.next().unwrap();
            for operation in operations.as_array().unwrap() {
                let path = operation["path"].as_str().unwrap();
                let value = operation["value"].clone();
                match (operation["op"].as_str(), path.strip_suffix("/-")) {
                    (Some("replace"), _) => *object.pointer_mut(path).unwrap() = value,
                    (Some("add"), Some(list)) => {
                        let list = object.pointer_mut(list).unwrap();
                        list.as_array_mut().unwrap().push(value);
                    }
                    _ => panic!("{operation}"),
                }
            }
        }
    }
    objects
}

/// The containers of what an object makes pods of.
fn containers(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    let containers = object.pointer_mut("/spec/template/spec/containers");
    containers
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

fn list(value: &Value) -> impl Iterator<Item = &str> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The documents of a file as rendered by kustomize, in the namespaces of a test.
pub fn placed(file: &str, places: Places<'_>) -> Vec<Value> {
    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    let own = documents(&format!("{folder}/kustomization.yaml")).remove(0);
    let mut documents = documents(file);
    for document in &mut documents {
        let kind = document["kind"].as_str().unwrap().to_owned();
        let metadata = &mut document["metadata"];
        if kind == "Namespace" {
            metadata["name"] = places.of(metadata["name"].as_str().unwrap()).into();
        } else if kind.starts_with("ClusterRole") {
            let own = |name: &Value| format!("{}-{}", name.as_str().unwrap(), places.system);
            metadata["name"] = own(&metadata["name"]).into();
            if kind == "ClusterRoleBinding" {
                document["roleRef"]["name"] = own(&document["roleRef"]["name"]).into();
            }
        } else if !["CustomResourceDefinition", "PriorityClass"].contains(&kind.as_str()) {
            // Definitions and priority classes are the same for all tests.
            let given = metadata["namespace"].as_str().or(own["namespace"].as_str());
            metadata["namespace"] = places.of(given.unwrap()).into();
        }
        let subjects = document.get_mut("subjects").and_then(Value::as_array_mut);
        for subject in subjects.into_iter().flatten() {
            subject["namespace"] = places.of(subject["namespace"].as_str().unwrap()).into();
        }
        for container in containers(document) {
            for argument in container["args"].as_array_mut().into_iter().flatten() {
                *argument = places.of(argument.as_str().unwrap()).into();
            }
        }
    }
    documents
}

/// Path of an object at the API server.
pub fn path(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap();
    let root = if version.contains('/') { "apis" } else { "api" };
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with('s') => format!("{kind}es"),
        None => format!("{kind}s"),
    };
    let name = object["metadata"]["name"].as_str().unwrap();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{root}/{version}/namespaces/{namespace}/{plural}/{name}"),
        None => format!("/{root}/{version}/{plural}/{name}"),
    }
}

pub async fn apply(raw: &Raw, objects: Vec<Value>) {
    for object in objects {
        raw.apply(&path(&object), &object).await.unwrap();
    }
}
