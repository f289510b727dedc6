//! The kinds of object, and their definitions.

use std::{path::PathBuf, process::Command, sync::OnceLock};

use drover_proto::kubernetes::v1 as api;
use drover_testing::kubernetes::{Raw, until};
use serde_json::Value;

/// The Gateway API whose published definitions are used.
const GATEWAY_API: &str = "sigs.k8s.io/gateway-api@v1.4.1";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ingress,
    HttpRoute,
    VirtualService,
}

impl Kind {
    pub(super) fn backend(self) -> api::IngressBackend {
        match self {
            Self::Ingress => api::IngressBackend::Ingress,
            Self::HttpRoute => api::IngressBackend::HttpRoute,
            Self::VirtualService => api::IngressBackend::VirtualService,
        }
    }

    pub(super) fn class_name(self) -> &'static str {
        match self {
            Self::Ingress => "nginx",
            Self::HttpRoute => "gateways/public",
            Self::VirtualService => "",
        }
    }

    pub(super) fn resource(self) -> &'static str {
        match self {
            Self::Ingress => "ingresses.networking.k8s.io",
            Self::HttpRoute => "httproutes.gateway.networking.k8s.io",
            Self::VirtualService => "virtualservices.gateway.solo.io",
        }
    }

    fn definitions(self) -> Vec<Value> {
        match self {
            Self::Ingress => Vec::new(),
            Self::HttpRoute => {
                let folder = gateway_api().join("config/crd/standard");
                let file = |plural: &str| {
                    let file = format!("gateway.networking.k8s.io_{plural}.yaml");
                    let text = std::fs::read_to_string(folder.join(file)).unwrap();
                    serde_saphyr::from_multiple::<Value>(&text).unwrap()
                };
                [file("httproutes"), file("gateways")].concat()
            }
            Self::VirtualService => serde_saphyr::from_multiple(include_str!("gloo.yaml")).unwrap(),
        }
    }

    /// Defines the kind, and waits until the API server offers it.
    pub(super) async fn install(self, raw: &Raw) {
        for definition in self.definitions().iter().filter(|it| it.is_object()) {
            let name = definition["metadata"]["name"].as_str().unwrap();
            let path = format!("{DEFINITIONS}/{name}");
            raw.apply(&path, definition).await.unwrap();
            let spec = &definition["spec"];
            let group = spec["group"].as_str().unwrap();
            let plural = spec["names"]["plural"].as_str().unwrap();
            let objects = format!("/apis/{group}/v1/{plural}");
            until("the kind is offered", || async {
                raw.get(&objects).await.ok()
            })
            .await;
        }
    }

    /// Takes the kind away, with all objects.
    pub(super) async fn remove(self, raw: &Raw) {
        for definition in self.definitions().iter().filter(|it| it.is_object()) {
            let name = definition["metadata"]["name"].as_str().unwrap();
            let path = format!("{DEFINITIONS}/{name}");
            raw.delete(&path).await.unwrap();
            until("the kind is gone", || async { raw.get(&path).await.err() }).await;
        }
    }
}

/// Folder of the Gateway API in Go's module cache.
fn gateway_api() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let find = || {
        let output = Command::new("go")
            .args(["mod", "download", "-json", GATEWAY_API])
            .current_dir(std::env::temp_dir())
            .output()
            .expect("the definitions of the Gateway API are a Go module: install Go");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let folder = said["Dir"].as_str();
        PathBuf::from(folder.unwrap_or_else(|| panic!("go mod download {GATEWAY_API}: {said}")))
    };
    FOLDER.get_or_init(find).clone()
}
