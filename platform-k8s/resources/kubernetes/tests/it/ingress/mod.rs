//! Ingresses over the three kinds of object that they can be made of, at a real API server.

pub(crate) mod kinds;
mod story;
mod upstreams;

use drover_core::{Error, Result};
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::{IngressRules, Ingresses};
use drover_resources_kubernetes::{
    client::{ApiClient, ClientSettings},
    ingress::{IngressBackends, Options},
};
use drover_testing::kubernetes::{self, Namespace, Rig};
use serde_json::{Value, json};

use self::kinds::Kind;

const INGRESS: &str = "web";

/// A namespace, and a server for ingresses in it.
struct Place {
    rig: &'static Rig,
    kind: Kind,
    namespace: Namespace,
    server: IngressBackends,
    /// A host that no other test has.
    host: String,
}

impl Place {
    async fn of(kind: Kind) -> Self {
        Self::on(Rig::shared(kubernetes::Options::default()), kind).await
    }

    async fn on(rig: &'static Rig, kind: Kind) -> Self {
        let namespace = rig.namespace().await;
        kind.install(&namespace.raw).await;
        let server = server(rig.kubeconfig(), kind, &namespace.name).await;
        let host = format!("{}.example", namespace.name);
        let place = Self {
            rig,
            kind,
            namespace,
            server,
            host,
        };
        for service in ["one", "two"] {
            place.service(service).await;
        }
        place
    }

    /// Another server for the same.
    async fn server(&self) -> IngressBackends {
        server(self.rig.kubeconfig(), self.kind, &self.namespace.name).await
    }

    /// A service with port 80, and what Gloo's discovery would make of it.
    async fn service(&self, name: &str) {
        let service = json!({
            "metadata": {"name": name},
            "spec": {"ports": [{"name": "http", "port": 80}]},
        });
        self.namespace.create("services", &service).await.unwrap();
        if self.kind == Kind::VirtualService {
            self.upstream(&format!("{}-{name}-80", self.namespace.name), name)
                .await;
        }
    }

    async fn upstream(&self, name: &str, service: &str) {
        let upstream = json!({
            "apiVersion": "gloo.solo.io/v1", "kind": "Upstream", "metadata": {"name": name},
            "spec": {"kube": {
                "serviceName": service, "serviceNamespace": self.namespace.name, "servicePort": 80,
            }},
        });
        self.namespace
            .create("upstreams.gloo.solo.io", &upstream)
            .await
            .unwrap();
    }

    /// An ingress with these hosts, without paths.
    async fn ingress(&self, name: &str, hosts: &[&str]) -> Result<api::Ingress> {
        let rule = |host: &&str| api::IngressRule {
            host: (*host).to_owned(),
            paths: Vec::new(),
        };
        let metadata = api::Metadata {
            namespace: self.namespace.name.clone(),
            name: name.to_owned(),
            labels: [("team".to_owned(), "blue".to_owned())].into(),
            ..api::Metadata::default()
        };
        let ingress = api::Ingress {
            metadata: Some(metadata),
            rules: hosts.iter().map(rule).collect(),
            ..api::Ingress::default()
        };
        let unspecified = api::IngressBackend::Unspecified;
        Ingresses::create(&self.server, ingress, unspecified).await
    }

    fn upsert_request(&self, paths: Vec<api::IngressPath>) -> api::UpsertPathsRequest {
        api::UpsertPathsRequest {
            namespace: self.namespace.name.clone(),
            ingress: INGRESS.to_owned(),
            host: self.host.clone(),
            paths,
            ..api::UpsertPathsRequest::default()
        }
    }

    fn remove_request(&self, key: api::path_key::Key) -> api::RemovePathsRequest {
        api::RemovePathsRequest {
            namespace: self.namespace.name.clone(),
            ingress: INGRESS.to_owned(),
            host: self.host.clone(),
            paths: vec![api::PathKey { key: Some(key) }],
            ..api::RemovePathsRequest::default()
        }
    }

    async fn upsert(&self, paths: Vec<api::IngressPath>) -> Result<Vec<String>> {
        let request = self.upsert_request(paths);
        let rule = IngressRules::upsert(&self.server, request).await?;
        Ok(shown(&rule))
    }

    async fn remove(&self, key: api::path_key::Key) -> Result<Vec<String>> {
        let request = self.remove_request(key);
        let rule = IngressRules::remove(&self.server, request).await?;
        Ok(shown(&rule))
    }

    async fn rule(&self) -> Result<Vec<String>> {
        let request = api::GetRuleRequest {
            namespace: self.namespace.name.clone(),
            ingress: INGRESS.to_owned(),
            host: self.host.clone(),
            ..api::GetRuleRequest::default()
        };
        let rule = IngressRules::get(&self.server, request).await?;
        Ok(shown(&rule))
    }

    async fn get(&self, name: &str) -> Result<api::Ingress> {
        let request = api::GetIngressRequest {
            namespace: self.namespace.name.clone(),
            name: name.to_owned(),
            ..api::GetIngressRequest::default()
        };
        Ingresses::get(&self.server, request).await
    }

    async fn delete(&self, name: &str) -> Result<bool> {
        let request = api::DeleteIngressRequest {
            namespace: self.namespace.name.clone(),
            name: name.to_owned(),
            ..api::DeleteIngressRequest::default()
        };
        Ingresses::delete(&self.server, request).await
    }

    async fn objects(&self) -> Vec<Value> {
        self.namespace.list(self.kind.resource()).await
    }
}

async fn server(
    kubeconfig: impl AsRef<std::path::Path>,
    kind: Kind,
    namespace: &str,
) -> IngressBackends {
    let settings = ClientSettings {
        kubeconfig: Some(kubeconfig.as_ref().to_owned()),
        ..ClientSettings::default()
    };
    let options = Options {
        backend: kind.backend(),
        class_name: kind.class_name().to_owned(),
        namespaces: vec![namespace.to_owned()],
        ..Options::default()
    };
    IngressBackends::new(ApiClient::open(&settings).await.unwrap(), options)
}

fn path(at: &str, name: &str, service: &str) -> api::IngressPath {
    api::IngressPath {
        path: at.to_owned(),
        name: name.to_owned(),
        target: Some(api::ingress_path::Target::Service(target(service))),
        ..api::IngressPath::default()
    }
}

fn target(service: &str) -> api::ServiceTarget {
    api::ServiceTarget {
        name: service.to_owned(),
        port: Some(api::PortRef {
            port: Some(api::port_ref::Port::Number(80)),
        }),
    }
}

fn by_path(at: &str) -> api::path_key::Key {
    api::path_key::Key::Match(api::PathMatch {
        path: at.to_owned(),
        r#type: api::PathType::Prefix.into(),
    })
}

fn by_name(name: &str) -> api::path_key::Key {
    api::path_key::Key::Name(name.to_owned())
}

/// Path, name and service of each path.
fn shown(rule: &api::IngressRule) -> Vec<String> {
    let one = |path: &api::IngressPath| {
        let to = match &path.target {
            Some(api::ingress_path::Target::Service(service)) => service.name.as_str(),
            Some(api::ingress_path::Target::Upstream(upstream)) => upstream.name.as_str(),
            None if path.opaque => "opaque",
            None => "nowhere",
        };
        format!("{} {} {to}", path.path, path.name)
    };
    rule.paths.iter().map(one).collect()
}

fn reason<T: std::fmt::Debug>(outcome: Result<T>) -> drover_core::Reason {
    outcome.map_err(|error: Error| error.reason()).unwrap_err()
}
