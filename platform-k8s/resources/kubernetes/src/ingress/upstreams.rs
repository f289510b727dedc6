//! What paths lead to: services, and for Gloo the upstreams that stand for them. They are found, never made.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt::Debug,
    future::ready,
};

use drover_core::{Error, Reason, Result};
use futures::{
    StreamExt, TryStreamExt,
    future::try_join_all,
    stream::{self, BoxStream},
};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, ResourceExt,
    core::{ApiResource, DynamicObject},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;

use super::{
    discovery::{self, Kind},
    objects::{self, Objects, Scope},
    rule::{Path, Port, Selected, ServicePort, Target, Upstream},
    virtual_service::{self, Known, UpstreamName},
};
use crate::client::{Call, escape};

/// Objects that are read one by one, at once.
const SINGLY: usize = 16;

pub(super) fn resource() -> ApiResource {
    discovery::resource("gloo.solo.io", "v1", "Upstream", "upstreams")
}

/// What the upstreams of a VirtualService stand for.
pub(super) async fn known(
    objects: &Objects,
    namespace: &str,
    object: &DynamicObject,
) -> Result<Known> {
    let names: BTreeSet<UpstreamName> = virtual_service::upstreams(object).collect();
    let kind = resource();
    let mut found = Vec::new();
    if names.len() <= SINGLY {
        let mut reads = Vec::with_capacity(names.len());
        for (namespace, name) in &names {
            reads.push(objects.get(&kind, namespace, name));
        }
        found.extend(try_join_all(reads).await?.into_iter().flatten());
    } else {
        let namespaces: BTreeSet<&String> = names.iter().map(|(namespace, _)| namespace).collect();
        for namespace in namespaces {
            let scope = Scope::of(namespace);
            found.extend(objects.list(&kind, &scope, "").await?);
        }
    }
    let stands = |upstream: DynamicObject| {
        let name = (
            upstream.namespace().unwrap_or_default(),
            upstream.name_any(),
        );
        service_of(&upstream, namespace).map(|service| (name, service))
    };
    Ok(found.into_iter().filter_map(stands).collect())
}

/// The service of this namespace that an upstream stands for.
fn service_of(upstream: &DynamicObject, namespace: &str) -> Option<ServicePort> {
    let kube = &upstream.data["spec"]["kube"];
    let port = kube["servicePort"].as_u64()?;
    (kube["serviceNamespace"].as_str() == Some(namespace)).then_some(())?;
    Some(ServicePort {
        name: kube["serviceName"].as_str()?.to_owned(),
        port: Port::Number(u16::try_from(port).ok()?),
    })
}

/// Whether an ingress of a namespace may lead to an upstream: not to services of other namespaces.
fn may_lead(upstream: &DynamicObject, namespace: &str) -> bool {
    let kube = &upstream.data["spec"]["kube"];
    kube.is_null() || kube["serviceNamespace"].as_str() == Some(namespace)
}

/// Finds what paths lead to.
pub(super) struct Targets<'a> {
    pub(super) objects: &'a Objects,
    pub(super) kind: Kind,
    pub(super) namespace: &'a str,
    /// Where upstreams are besides the namespaces that the server serves.
    pub(super) upstreams: &'a [String],
}

impl Targets<'_> {
    /// The paths with what they lead to, as the kind of object says it. `field` is where they stand in the request.
    pub(super) async fn find(&self, field: &str, paths: &[Path]) -> Result<Vec<Path>> {
        let services = self.services(paths).await?;
        // Many paths lead to few targets.
        let mut seen = HashSet::new();
        let mut targets = Vec::new();
        for (index, path) in paths.iter().enumerate() {
            if seen.insert(&path.target) {
                targets.push(self.target(format!("{field}[{index}]"), &path.target, &services));
            }
        }
        let found: HashMap<&Target, Target> =
            stream::iter(targets).buffered(SINGLY).try_collect().await?;
        let found = |path: &Path| Path {
            target: found[&path.target].clone(),
            ..path.clone()
        };
        Ok(paths.iter().map(found).collect())
    }

    /// A target with what it is as the kind of object says it. `field` is where its path stands in the request.
    async fn target<'p>(
        &self,
        field: String,
        target: &'p Target,
        services: &HashMap<&str, Option<Service>>,
    ) -> Result<(&'p Target, Target)> {
        let found = match target {
            Target::Service(wanted) => {
                let service = match services.get(wanted.name.as_str()) {
                    Some(None) => return Err(self.no_service(&wanted.name)),
                    Some(Some(service)) => Some(service),
                    None => None,
                };
                let field = format!("{field}.service.port");
                self.of_service(&field, service, wanted).await?
            }
            Target::Upstream(wanted) => Target::Upstream(self.named(wanted).await?),
            Target::Opaque => Target::Opaque,
        };
        Ok((target, found))
    }

    /// The upstream that a path names, with the service that it stands for.
    async fn named(&self, wanted: &Upstream) -> Result<Upstream> {
        let (namespace, name) = (&wanted.namespace, &wanted.name);
        let found = if self.may_name(namespace) {
            self.objects.get(&resource(), namespace, name).await?
        } else {
            None
        };
        // One that may not be led to is not told from none: who asks may not know of it.
        let found = found.filter(|it| may_lead(it, self.namespace));
        let found =
            found.ok_or_else(|| missing(format!("there is no Upstream \"{namespace}/{name}\"")))?;
        Ok(Upstream {
            service: service_of(&found, self.namespace),
            ..wanted.clone()
        })
    }

    /// Whether paths may name upstreams of a namespace.
    fn may_name(&self, namespace: &str) -> bool {
        namespace == self.namespace || self.upstreams.iter().any(|it| it == namespace)
    }

    /// The service that has to be read. An upstream says by itself for which port it stands.
    fn asks_for<'p>(&self, path: &'p Path) -> Option<&'p str> {
        match (&path.target, self.kind) {
            (Target::Service(service), Kind::Ingress | Kind::HttpRoute) => Some(&service.name),
            (Target::Service(service), Kind::VirtualService) => match service.port {
                Port::Name(_) => Some(&service.name),
                Port::Number(_) => None,
            },
            (Target::Upstream(_) | Target::Opaque, _) => None,
        }
    }

    /// Adds the other names of the ports of services that are there.
    pub(super) async fn with_aliases(&self, selected: Vec<Selected>) -> Result<Vec<Selected>> {
        let mut all = Vec::with_capacity(selected.len());
        for mut one in selected {
            if let Selected::Service { name, ports } = &mut one
                && let Some(service) = self.service(name).await?
            {
                let spec = service.spec.unwrap_or_default();
                for port in spec.ports.unwrap_or_default() {
                    let both = [
                        u16::try_from(port.port).ok().map(Port::Number),
                        port.name.map(Port::Name),
                    ];
                    if both.iter().flatten().any(|port| ports.contains(port)) {
                        ports.extend(both.into_iter().flatten());
                    }
                }
            }
            all.push(one);
        }
        Ok(all)
    }

    /// The services that have to be read, each once.
    async fn services<'p>(&self, paths: &'p [Path]) -> Result<HashMap<&'p str, Option<Service>>> {
        let names: BTreeSet<&str> = paths.iter().filter_map(|it| self.asks_for(it)).collect();
        let mut reads = Vec::with_capacity(names.len());
        for name in names {
            reads.push(async move { Ok((name, self.service(name).await?)) });
        }
        stream::iter(reads).buffered(SINGLY).try_collect().await
    }

    async fn service(&self, name: &str) -> Result<Option<Service>> {
        let api: Api<Service> = Api::namespaced(self.objects.client(), &escape(self.namespace));
        let found = api.get_opt(&escape(name)).await;
        found.map_err(|error| {
            objects::of_kube(&Call::new("get", "services", self.namespace, name), error)
        })
    }

    fn no_service(&self, name: &str) -> Error {
        missing(format!("there is no service \"{}/{name}\"", self.namespace))
    }

    async fn of_service(
        &self,
        field: &str,
        service: Option<&Service>,
        wanted: &ServicePort,
    ) -> Result<Target> {
        if self.kind == Kind::Ingress {
            return Ok(Target::Service(wanted.clone()));
        }
        let number = number(field, service, &wanted.port)?;
        let wanted = ServicePort {
            name: wanted.name.clone(),
            port: Port::Number(number),
        };
        if self.kind == Kind::HttpRoute {
            return Ok(Target::Service(wanted));
        }
        let (namespace, name) = self.upstream(&wanted.name, number).await?;
        Ok(Target::Upstream(Upstream {
            namespace,
            name,
            service: Some(wanted),
        }))
    }

    /// Where upstreams may be.
    pub(super) fn scope(&self) -> Scope {
        let served = self.objects.everywhere().and(self.namespace);
        let others = self.upstreams.iter();
        others.fold(served, |scope, namespace| scope.and(namespace))
    }

    /// The upstream that stands for a port of a service: the one that Gloo discovered, otherwise the only one.
    async fn upstream(&self, service: &str, port: u16) -> Result<UpstreamName> {
        let wanted = ServicePort {
            name: service.to_owned(),
            port: Port::Number(port),
        };
        let stands = |upstream: &DynamicObject| {
            service_of(upstream, self.namespace).as_ref() == Some(&wanted)
        };
        let name_of = |upstream: &DynamicObject| {
            (
                upstream.namespace().unwrap_or_default(),
                upstream.name_any(),
            )
        };
        let discovered = format!("{}-{service}-{port}", self.namespace);
        for namespace in self.scope().namespaces().flatten() {
            let found = self
                .objects
                .get(&resource(), namespace, &discovered)
                .await?;
            if let Some(found) = found.filter(stands) {
                return Ok(name_of(&found));
            }
        }
        let all = self.objects.list(&resource(), &self.scope(), "").await?;
        let all: BTreeSet<UpstreamName> = all.iter().filter(|it| stands(it)).map(name_of).collect();
        let found = all
            .iter()
            .find(|(_, name)| *name == discovered)
            .or_else(|| all.first().filter(|_| all.len() == 1));
        found.cloned().ok_or_else(|| {
            let what = format!(
                "port {port} of the service \"{}/{service}\"",
                self.namespace
            );
            if all.is_empty() {
                return missing(format!("no Upstream stands for {what}"));
            }
            let names: Vec<String> = all
                .iter()
                .map(|(namespace, name)| format!("{namespace}/{name}"))
                .collect();
            let names = names.join(", ");
            missing(format!(
                "several Upstreams stand for {what}, name one of them: {names}"
            ))
        })
    }
}

fn number(field: &str, service: Option<&Service>, port: &Port) -> Result<u16> {
    match port {
        Port::Number(number) => Ok(*number),
        Port::Name(name) => {
            let spec = service.and_then(|service| service.spec.as_ref());
            let ports = spec.and_then(|spec| spec.ports.as_deref());
            let ports = ports.unwrap_or_default().iter();
            let mut named = ports.filter(|port| port.name.as_ref() == Some(name));
            let found = named.next().and_then(|port| u16::try_from(port.port).ok());
            found.ok_or_else(|| {
                let why = format!("the service has no port {name:?}");
                Error::invalid(format!("{field}.name"), why)
            })
        }
    }
}

fn missing(message: String) -> Error {
    Error::new(Reason::IngressUpstreamMissing, message)
}

impl Targets<'_> {
    /// Waits for what is missing: tries at once, and after each change of what might be it.
    pub(super) async fn wait(&self, field: &str, paths: &[Path]) -> Result<Vec<Path>> {
        let mut changes = self.changes(paths);
        loop {
            let error = match self.find(field, paths).await {
                Err(error) if error.reason() == Reason::IngressUpstreamMissing => error,
                other => return other,
            };
            match changes.next().await {
                Some(changed) => changed?,
                None => return Err(error),
            }
        }
    }

    /// Whenever the services or upstreams were listed anew, or one of them appears, changes or goes.
    fn changes(&self, paths: &[Path]) -> BoxStream<'static, Result<()>> {
        let mut all = Vec::new();
        let services: BTreeSet<String> = paths
            .iter()
            .filter_map(|path| self.asks_for(path).map(str::to_owned))
            .collect();
        if !services.is_empty() {
            let namespace = escape(self.namespace);
            let api: Api<Service> = Api::namespaced(self.objects.client(), &namespace);
            let call = Call::new("watch", "services", self.namespace, "");
            all.push(watched(api, call, move |it| {
                services.contains(&it.name_any())
            }));
        }
        if self.kind == Kind::VirtualService {
            for namespace in self.scope().namespaces() {
                let api = self.objects.api(&resource(), namespace);
                let call = Call::new(
                    "watch",
                    "upstreams.gloo.solo.io",
                    namespace.unwrap_or_default(),
                    "",
                );
                all.push(watched(api, call, |_| true));
            }
        }
        stream::select_all(all).boxed()
    }
}

fn watched<K>(
    api: Api<K>,
    call: Call,
    wanted: impl Fn(&K) -> bool + Send + 'static,
) -> BoxStream<'static, Result<()>>
where
    K: Clone + DeserializeOwned + Debug + Send + kube::Resource + 'static,
{
    let events = watcher(api, watcher::Config::default()).default_backoff();
    let changes = events.filter_map(move |event| {
        let change = match event {
            Ok(Event::InitDone) => Some(Ok(())),
            // Of several that could be meant only one may be left.
            Ok(Event::Apply(object) | Event::Delete(object)) => wanted(&object).then_some(Ok(())),
            Ok(Event::Init | Event::InitApply(_)) => None,
            Err(error) => refused(&call, error).map(Err),
        };
        ready(change)
    });
    changes.boxed()
}

/// The error, if to go on watching is no use.
fn refused(call: &Call, error: watcher::Error) -> Option<Error> {
    let error = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => objects::of_kube(call, error),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => return None,
    };
    let refused = matches!(
        error.reason(),
        Reason::CredentialsRefused | Reason::NotFound
    );
    refused.then_some(error)
}
