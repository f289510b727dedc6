//! Ingresses and their rules: one request shape over Kubernetes Ingress, HTTPRoutes of the Gateway API and VirtualServices
//! of Gloo.

mod discovery;
mod followers;
mod hosts;
mod kubernetes;
#[cfg(test)]
mod memory;
mod meta;
mod objects;
mod request;
mod reserved;
mod route;
mod rule;
mod store;
mod upstreams;
mod virtual_service;
mod whole;
mod writer;

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::IngressRules;

use self::{
    discovery::{Discovery, Kind},
    objects::Objects,
    rule::{Change, Path, Paths, Rules},
    store::{HostObject, IngressObject},
    upstreams::Targets,
    writer::Writers,
};
use crate::client::ApiClient;

/// How ingresses are made.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What they are made of where a request does not say. Unspecified: the first kind that the API server offers.
    pub backend: api::IngressBackend,
    /// Ingress class, or NAMESPACE/NAME of a Gateway, where a request names none. Empty: none.
    pub class_name: String,
    /// Namespaces that the server serves. Empty: all.
    pub namespaces: Vec<String>,
    /// Namespaces of Gloo's upstreams besides those that the server serves: its discovery has one of its own.
    pub upstream_namespaces: Vec<String>,
}

/// Ingresses and their rules at an API server.
pub struct IngressBackends {
    objects: Objects,
    discovery: Discovery,
    options: Options,
    writers: Writers,
}

impl IngressBackends {
    /// Does not contact the API server.
    #[must_use]
    pub fn new(client: ApiClient, options: Options) -> Self {
        Self {
            objects: Objects::new(client.clone(), &options.namespaces),
            discovery: Discovery::new(client, Kind::of(options.backend)),
            options,
            writers: Writers::default(),
        }
    }

    /// Without these namespaces, whatever else is said: their objects are neither shown nor named nor touched.
    #[must_use]
    pub fn excluding(mut self, namespaces: &[String]) -> Self {
        self.objects = self.objects.excluding(&self.options.namespaces, namespaces);
        self
    }

    /// Completes what an earlier server began and did not end. To be called once at the start; what it leaves after an
    /// error the next write of the same rule completes.
    ///
    /// # Errors
    /// Those of the API server.
    pub async fn complete(&self) -> Result<()> {
        match self.discovery.kind(api::IngressBackend::HttpRoute).await {
            Ok(_) => followers::complete_all(&self.objects, &self.objects.everywhere()).await,
            Err(error) if error.reason() == Reason::IngressBackendMissing => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn targets<'a>(&'a self, kind: Kind, namespace: &'a str) -> Targets<'a> {
        Targets {
            objects: &self.objects,
            kind,
            namespace,
            upstreams: &self.options.upstream_namespaces,
        }
    }

    async fn rule(&self, kind: Kind, request: &api::GetRuleRequest) -> Result<api::IngressRule> {
        let api::GetRuleRequest {
            namespace,
            ingress,
            host,
            ..
        } = request;
        let all = self.objects.of_ingress(kind, namespace, ingress).await?;
        if all.is_empty() {
            return Err(objects::not_found(namespace, ingress));
        }
        for object in &all {
            if !objects::hosts(kind, object).contains(host) {
                continue;
            }
            let rules = store::rules(&self.objects, kind, object).await?;
            if let Some(paths) = rules.get(host) {
                return Ok(paths.answer(host));
            }
        }
        Err(rule::no_rule(host))
    }

    async fn upsert(
        &self,
        kind: Kind,
        request: &api::UpsertPathsRequest,
    ) -> Result<api::IngressRule> {
        let api::UpsertPathsRequest {
            namespace,
            ingress,
            host,
            paths,
            ..
        } = request;
        let paths = request::paths("paths", paths, kind, namespace)?;
        // What can never be is not waited for.
        rule::apply(&mut Rules::new(), host, &Change::Upsert(paths.clone()))?;
        let targets = self.targets(kind, namespace);
        let paths: Vec<Path> = if request.wait {
            targets.wait("paths", &paths).await?
        } else {
            targets.find("paths", &paths).await?
        };
        self.change(kind, namespace, ingress, host, Change::Upsert(paths))
            .await
    }

    async fn change(
        &self,
        kind: Kind,
        namespace: &str,
        ingress: &str,
        host: &str,
        change: Change,
    ) -> Result<api::IngressRule> {
        let objects = self.objects.clone();
        let (namespace, ingress) = (namespace.to_owned(), ingress.to_owned());
        let key = format!("{} {namespace}/{ingress}", kind.name());
        if kind == Kind::Ingress {
            let object = IngressObject {
                objects,
                namespace,
                name: ingress,
            };
            return self.writers.change(key, object, host, change).await;
        }
        let key = format!("{key} {host}");
        let object = HostObject {
            objects,
            kind,
            namespace,
            ingress,
            host: host.to_owned(),
        };
        self.writers.change(key, object, host, change).await
    }

    /// The kind that a request means.
    async fn kind(&self, backend: i32) -> Result<Kind> {
        let known = api::IngressBackend::try_from(backend)
            .map_err(|_| Error::invalid("backend", format!("unknown value {backend}")))?;
        self.discovery.kind(known).await
    }

    /// The outcome, unless it is an error that the lack of the whole kind explains.
    async fn explained<T>(&self, kind: Kind, outcome: Result<T>) -> Result<T> {
        match outcome {
            Ok(value) => Ok(value),
            Err(error) => Err(self.discovery.explain(kind, error).await),
        }
    }
}

#[async_trait]
impl IngressRules for IngressBackends {
    async fn get(&self, request: api::GetRuleRequest) -> Result<api::IngressRule> {
        let kind = self.kind(request.backend).await?;
        let outcome = self.rule(kind, &request).await;
        self.explained(kind, outcome).await
    }

    async fn upsert(&self, request: api::UpsertPathsRequest) -> Result<api::IngressRule> {
        let kind = self.kind(request.backend).await?;
        let outcome = Self::upsert(self, kind, &request).await;
        self.explained(kind, outcome).await
    }

    async fn remove(&self, request: api::RemovePathsRequest) -> Result<api::IngressRule> {
        let kind = self.kind(request.backend).await?;
        let outcome = async {
            let selected = request::selected(&request.paths, kind)?;
            let targets = self.targets(kind, &request.namespace);
            let selected = targets.with_aliases(selected).await?;
            let api::RemovePathsRequest {
                namespace,
                ingress,
                host,
                ..
            } = &request;
            let change = Change::Remove(selected);
            self.change(kind, namespace, ingress, host, change).await
        };
        let outcome = outcome.await;
        self.explained(kind, outcome).await
    }
}
