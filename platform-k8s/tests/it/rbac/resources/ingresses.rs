//! Calls of ingresses.

use drover_core::{Reason, Result};
use drover_proto::kubernetes::v1::{
    self as api,
    IngressBackend::{self, HttpRoute, Ingress, Unspecified, VirtualService},
    ingress_path::Target,
    ingress_service_client::IngressServiceClient,
    path_key::Key,
};
use drover_testing::kubernetes::{FaultProxy, until};
use serde_json::json;

use super::{
    calls::{Caller, done, watches},
    rows::UPSTREAMS,
};

impl Caller {
    pub(super) async fn create_ingress(&self, name: &str, backend: IngressBackend) -> Result<()> {
        let class_name = match backend {
            HttpRoute => format!("{}/public", self.gloo.name),
            Ingress | VirtualService | Unspecified => String::new(),
        };
        let ingress = Some(api::Ingress {
            metadata: self.metadata(name),
            rules: vec![api::IngressRule {
                host: self.host(name),
                paths: Vec::new(),
            }],
            class_name,
            ..api::Ingress::default()
        });
        let request = api::CreateIngressRequest {
            ingress,
            backend: backend.into(),
        };
        let mut client = IngressServiceClient::new(self.channel.clone());
        done(client.create_ingress(request)).await.map(drop)
    }

    fn host(&self, ingress: &str) -> String {
        format!("{ingress}.{}.example", self.namespace.name)
    }

    fn upsert(&self, backend: IngressBackend, service: &str) -> api::UpsertPathsRequest {
        api::UpsertPathsRequest {
            namespace: self.space(),
            ingress: ingress(backend),
            host: self.host(&ingress(backend)),
            backend: backend.into(),
            paths: vec![api::IngressPath {
                path: format!("/{}", self.fresh()),
                target: Some(Target::Service(api::ServiceTarget {
                    name: service.to_owned(),
                    port: Some(api::PortRef {
                        port: Some(api::port_ref::Port::Number(80)),
                    }),
                })),
                ..api::IngressPath::default()
            }],
            wait: false,
        }
    }

    /// What the path leads to is created as soon as it is seen to be waited for.
    pub(super) async fn upsert_and_wait(
        &self,
        backend: IngressBackend,
        proxy: &FaultProxy,
    ) -> Result<()> {
        let service = self.fresh();
        // Upstreams may be in the namespace of the ingress, too.
        let (kind, places) = match backend {
            VirtualService => (UPSTREAMS, 2),
            Ingress | HttpRoute | Unspecified => ("services", 1),
        };
        let before = watches(proxy, kind).len();
        let request = api::UpsertPathsRequest {
            wait: true,
            ..self.upsert(backend, &service)
        };
        let mut client = IngressServiceClient::new(self.channel.clone());
        let call = done(client.upsert_paths(request));
        let watched = until("it is waited for", || async {
            let statuses = watches(proxy, kind).into_iter().skip(before);
            (statuses.filter(|status| *status == 200).count() >= places).then_some(())
        });
        tokio::pin!(call);
        tokio::select! {
            outcome = &mut call => return outcome.map(drop),
            () = watched => {}
        }
        if backend == VirtualService {
            self.upstream(&service).await;
        } else {
            let service = json!({
                "metadata": {"name": service}, "spec": {"ports": [{"port": 80}]},
            });
            self.namespace.create("services", &service).await.unwrap();
        }
        call.await.map(drop)
    }

    /// One that no object has the label of could still be an object of that name.
    pub(super) async fn get_what_is_not_there(&self, backend: IngressBackend) -> Result<()> {
        let request = api::GetIngressRequest {
            namespace: self.space(),
            name: "never-made".to_owned(),
            backend: backend.into(),
        };
        let mut client = IngressServiceClient::new(self.channel.clone());
        match done(client.get_ingress(request)).await {
            Err(error) if error.reason() == Reason::NotFound => Ok(()),
            other => other.map(drop),
        }
    }

    pub(super) async fn ingresses(&self, call: &str, backend: IngressBackend) -> Result<()> {
        let mut client = IngressServiceClient::new(self.channel.clone());
        let (namespace, name) = (self.space(), ingress(backend));
        match call {
            "CreateIngress" => self.create_ingress(&self.fresh(), backend).await,
            "GetIngress" => {
                let request = api::GetIngressRequest {
                    namespace,
                    name,
                    backend: backend.into(),
                };
                done(client.get_ingress(request)).await.map(drop)
            }
            "ListIngresses" => {
                let request = api::ListIngressesRequest {
                    namespace,
                    backend: backend.into(),
                    ..api::ListIngressesRequest::default()
                };
                done(client.list_ingresses(request)).await.map(drop)
            }
            "GetRule" => {
                let request = api::GetRuleRequest {
                    namespace,
                    host: self.host(&name),
                    ingress: name,
                    backend: backend.into(),
                };
                done(client.get_rule(request)).await.map(drop)
            }
            "UpsertPaths" => done(client.upsert_paths(self.upsert(backend, "web")))
                .await
                .map(drop),
            "RemovePaths" => {
                // Of all names, this one has no path until now: without one there would be nothing to write.
                let mut upsert = self.upsert(backend, "web");
                let named = self.fresh();
                upsert.paths[0].name.clone_from(&named);
                done(client.upsert_paths(upsert)).await?;
                let request = api::RemovePathsRequest {
                    namespace,
                    host: self.host(&name),
                    ingress: name,
                    backend: backend.into(),
                    paths: vec![api::PathKey {
                        key: Some(Key::Name(named)),
                    }],
                };
                done(client.remove_paths(request)).await.map(drop)
            }
            "DeleteIngress" => {
                let name = self.fresh();
                self.create_ingress(&name, backend).await?;
                let request = api::DeleteIngressRequest {
                    namespace,
                    name,
                    backend: backend.into(),
                };
                done(client.delete_ingress(request)).await.map(drop)
            }
            other => panic!("{other}"),
        }
    }
}

/// The ingress that most calls are about.
pub(super) fn ingress(backend: IngressBackend) -> String {
    format!("web-{}", i32::from(backend))
}
