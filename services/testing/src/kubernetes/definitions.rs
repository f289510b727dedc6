//! Definitions of kinds that Kubernetes itself does not have: those of the Gateway API as published, and those of Gloo with
//! the fields that are documented; that of metal3 with the fields that Drover reads.

use std::{path::PathBuf, process::Command, sync::OnceLock};

use serde_json::Value;

use super::{Raw, until};

const GATEWAY_API: &str = "sigs.k8s.io/gateway-api@v1.4.1";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Of HTTPRoutes and Gateways.
pub fn gateway_api() -> Vec<Value> {
    let folder = folder().join("config/crd/standard");
    let file = |plural: &str| {
        let file = format!("gateway.networking.k8s.io_{plural}.yaml");
        parsed(&std::fs::read_to_string(folder.join(file)).unwrap())
    };
    [file("httproutes"), file("gateways")].concat()
}

/// Of VirtualServices and Upstreams.
pub fn gloo() -> Vec<Value> {
    parsed(include_str!("gloo.yaml"))
}

/// Of BareMetalHosts.
pub fn metal3() -> Vec<Value> {
    parsed(include_str!(
        "../../../../tests/kubernetes/crds/baremetalhosts.yaml"
    ))
}

fn parsed(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    documents.into_iter().filter(Value::is_object).collect()
}

/// Folder of the Gateway API in Go's module cache.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let output = Command::new("go")
            .args(["mod", "download", "-json", GATEWAY_API])
            .current_dir(std::env::temp_dir())
            .output()
            .expect("the definitions of the Gateway API are a Go module: install Go");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let folder = said["Dir"].as_str();
        PathBuf::from(folder.unwrap_or_else(|| panic!("go mod download {GATEWAY_API}: {said}")))
    })
}

/// Defines kinds, and waits until the API server offers them.
pub async fn define(raw: &Raw, definitions: &[Value]) {
    for definition in definitions {
        raw.apply(&path(definition), definition).await.unwrap();
        let spec = &definition["spec"];
        let group = spec["group"].as_str().unwrap();
        let plural = spec["names"]["plural"].as_str().unwrap();
        let version = spec["versions"][0]["name"].as_str().unwrap();
        let objects = format!("/apis/{group}/{version}/{plural}");
        until("the kind is offered", || async {
            raw.get(&objects).await.ok()
        })
        .await;
    }
}

/// Takes kinds away, with all objects.
pub async fn undefine(raw: &Raw, definitions: &[Value]) {
    for definition in definitions {
        let path = path(definition);
        raw.delete(&path).await.unwrap();
        until("the kind is gone", || async { raw.get(&path).await.err() }).await;
    }
}

fn path(definition: &Value) -> String {
    let name = definition["metadata"]["name"].as_str().unwrap();
    format!("{DEFINITIONS}/{name}")
}
