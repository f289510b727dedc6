//! The kinds of object, and their definitions.

use drover_proto::kubernetes::v1 as api;
use drover_testing::kubernetes::{Raw, definitions};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ingress,
    HttpRoute,
    VirtualService,
}

impl Kind {
    pub(crate) fn backend(self) -> api::IngressBackend {
        match self {
            Self::Ingress => api::IngressBackend::Ingress,
            Self::HttpRoute => api::IngressBackend::HttpRoute,
            Self::VirtualService => api::IngressBackend::VirtualService,
        }
    }

    pub(crate) fn class_name(self) -> &'static str {
        match self {
            Self::Ingress => "nginx",
            Self::HttpRoute => "gateways/public",
            Self::VirtualService => "",
        }
    }

    pub(crate) fn resource(self) -> &'static str {
        match self {
            Self::Ingress => "ingresses.networking.k8s.io",
            Self::HttpRoute => "httproutes.gateway.networking.k8s.io",
            Self::VirtualService => "virtualservices.gateway.solo.io",
        }
    }

    fn definitions(self) -> Vec<Value> {
        match self {
            Self::Ingress => Vec::new(),
            Self::HttpRoute => definitions::gateway_api(),
            Self::VirtualService => definitions::gloo(),
        }
    }

    /// Defines the kind, and waits until the API server offers it.
    pub(crate) async fn install(self, raw: &Raw) {
        definitions::define(raw, &self.definitions()).await;
    }

    /// Takes the kind away, with all objects.
    pub(crate) async fn remove(self, raw: &Raw) {
        definitions::undefine(raw, &self.definitions()).await;
    }
}
