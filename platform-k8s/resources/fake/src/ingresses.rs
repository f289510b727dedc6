//! Ingresses of all three kinds, and the paths of their hosts.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1::{
    self as api, IngressBackend, PathType, PortRef, ingress_path::Target, path_key, port_ref::Port,
};
use drover_resources::{
    MAX_PATHS,
    parts::{IngressRules, Ingresses},
};

use crate::{
    Shared,
    selector::selects,
    store::{Key, Store, Table, exists, key, named},
};

fn kind(backend: IngressBackend) -> &'static str {
    match backend {
        IngressBackend::Unspecified | IngressBackend::Ingress => "Ingress",
        IngressBackend::HttpRoute => "HTTPRoute",
        IngressBackend::VirtualService => "VirtualService",
    }
}

fn missing(message: String) -> Error {
    Error::new(Reason::IngressUpstreamMissing, message)
}

impl Store {
    /// The backend that a request means.
    fn backend(&self, asked: i32) -> Result<IngressBackend> {
        let asked = IngressBackend::try_from(asked).unwrap_or_default();
        let offered = match asked {
            IngressBackend::Unspecified => self.backends.iter().min().copied(),
            asked => self.backends.contains(&asked).then_some(asked),
        };
        offered.ok_or_else(|| {
            let message = format!("the API server does not offer {}", kind(asked));
            Error::new(Reason::IngressBackendMissing, message)
        })
    }

    fn table(&mut self, backend: IngressBackend) -> &mut Table<api::Ingress> {
        self.ingresses.entry(backend as i32).or_default()
    }

    fn create_ingress(&mut self, mut new: api::Ingress, backend: i32) -> Result<api::Ingress> {
        let backend = self.backend(backend)?;
        let key = key(&new);
        self.check_namespace(&key.0)?;
        if new.rules.is_empty() {
            let why = "is required: at least one, which may be without paths";
            return Err(Error::invalid("ingress.rules", why));
        }
        for (at, rule) in new.rules.iter_mut().enumerate() {
            let field = format!("ingress.rules[{at}].paths");
            check_paths(&field, &rule.paths, backend)?;
            // An Ingress may be made before what it leads to, as Kubernetes has it.
            if backend != IngressBackend::Ingress {
                let paths = std::mem::take(&mut rule.paths);
                rule.paths = self.resolved(&field, paths, backend, &key.0)?;
            }
            order(&mut rule.paths);
        }
        if backend == IngressBackend::VirtualService {
            check_class(&new.class_name, backend)?;
        }
        certificates(&mut new, backend)?;
        if backend == IngressBackend::HttpRoute {
            check_class(&new.class_name, backend)?;
        }
        if self.table(backend).get(&key).is_some() {
            return Err(exists::<api::Ingress>(&key));
        }
        for rule in &new.rules {
            self.check_host(backend, &key, &rule.host)?;
        }
        // That of an Ingress is judged by the API server, at last.
        check_class(&new.class_name, backend)?;
        new.rules.sort_by(|a, b| a.host.cmp(&b.host));
        new.backend = backend as i32;
        self.stamp(&mut new);
        self.table(backend).put(new.clone());
        Ok(shown(new))
    }

    fn check_host(&mut self, backend: IngressBackend, own: &Key, host: &str) -> Result<()> {
        if host.is_empty() {
            return Ok(());
        }
        let routes = |ingress: &&api::Ingress| {
            key(*ingress) != *own && ingress.rules.iter().any(|rule| rule.host == host)
        };
        let Some(other) = self.table(backend).all().find(routes).map(key) else {
            return Ok(());
        };
        let (kind, name) = (kind(backend), named(&other));
        let message = format!("the {kind} {name:?} routes the host {host:?}");
        Err(Error::new(Reason::IngressHostTaken, message)
            .with_resource(kind, name)
            .with_metadata("host", host))
    }

    /// Paths as this backend says them.
    fn resolved(
        &self,
        field: &str,
        paths: Vec<api::IngressPath>,
        backend: IngressBackend,
        namespace: &str,
    ) -> Result<Vec<api::IngressPath>> {
        let paths = paths.into_iter().enumerate();
        let resolve =
            |(at, path)| self.resolve(&format!("{field}[{at}]"), path, backend, namespace);
        paths.map(resolve).collect()
    }

    fn resolve(
        &self,
        field: &str,
        mut path: api::IngressPath,
        backend: IngressBackend,
        namespace: &str,
    ) -> Result<api::IngressPath> {
        match &mut path.target {
            Some(Target::Upstream(upstream)) => {
                let key = (upstream.namespace.clone(), upstream.name.clone());
                match self.stands_for(&key) {
                    Some((of, service, port)) if of == namespace => {
                        path.target = Some(Target::Service(target(service, port)));
                    }
                    // One that leads into another namespace is not told from none.
                    Some(_) | None => {
                        let upstream = named(&key);
                        return Err(missing(format!("there is no Upstream {upstream:?}")));
                    }
                }
            }
            Some(Target::Service(service)) => {
                if backend == IngressBackend::Ingress {
                    self.check_service(namespace, &service.name)?;
                    return Ok(path);
                }
                let gloo = backend == IngressBackend::VirtualService;
                let number =
                    self.number(&format!("{field}.service.port"), service, namespace, gloo)?;
                if gloo {
                    self.check_upstreams(namespace, &service.name, number)?;
                }
                *service = target(service.name.clone(), number);
            }
            None => {}
        }
        Ok(path)
    }

    fn check_service(&self, namespace: &str, name: &str) -> Result<()> {
        let key = (namespace.to_owned(), name.to_owned());
        if self.services.get(&key).is_none() {
            return Err(missing(format!("there is no service {:?}", named(&key))));
        }
        Ok(())
    }

    /// The number of a port of a service that is there. Of one that is given by number, an upstream says enough.
    fn number(
        &self,
        field: &str,
        service: &api::ServiceTarget,
        namespace: &str,
        gloo: bool,
    ) -> Result<u32> {
        let port = service.port.as_ref().and_then(|port| port.port.as_ref());
        if let (Some(Port::Number(number)), true) = (port, gloo) {
            return Ok(*number);
        }
        self.check_service(namespace, &service.name)?;
        match port {
            Some(Port::Number(number)) => Ok(*number),
            Some(Port::Name(name)) => self.port_of(namespace, service).ok_or_else(|| {
                let why = format!("the service has no port {name:?}");
                Error::invalid(format!("{field}.name"), why)
            }),
            None => Err(Error::invalid(field, "is required")),
        }
    }

    /// Namespace, service and port of an upstream: one that was added, or that is discovered for a service.
    fn stands_for(&self, upstream: &Key) -> Option<(String, String, u32)> {
        if let Some((service, port)) = self.upstreams.get(upstream) {
            return Some((upstream.0.clone(), service.clone(), *port));
        }
        self.services.all().find_map(|service| {
            let (namespace, name) = key(service);
            let ports = &service.spec.as_ref()?.ports;
            let discovered = |port: &&api::ServicePort| {
                format!("{namespace}-{name}-{}", port.port) == upstream.1
            };
            let port = ports.iter().find(discovered)?.port;
            (upstream.0 == namespace).then_some((namespace, name, port))
        })
    }

    /// Refuses a service whose discovered upstream is missing, and that several others stand for.
    fn check_upstreams(&self, namespace: &str, service: &str, port: u32) -> Result<()> {
        let discovered = (
            namespace.to_owned(),
            format!("{namespace}-{service}-{port}"),
        );
        if self.stands_for(&discovered).is_some() {
            return Ok(());
        }
        Err(missing(format!(
            "there is no Upstream for the service \"{namespace}/{service}\" and port {port}"
        )))
    }

    /// Changes the paths of one host of an ingress.
    fn change_rule(
        &mut self,
        backend: IngressBackend,
        (key, host): (&Key, &str),
        change: impl FnOnce(&mut Self, Option<Vec<api::IngressPath>>) -> Result<Vec<api::IngressPath>>,
    ) -> Result<api::IngressRule> {
        let mut ingress = self.table(backend).find(key)?.clone();
        let before = ingress.clone();
        let at = ingress.rules.iter().position(|rule| rule.host == host);
        let paths = at.map(|at| ingress.rules[at].paths.clone());
        let mut paths = change(self, paths)?;
        order(&mut paths);
        let rule = api::IngressRule {
            host: host.to_owned(),
            paths,
        };
        match at {
            Some(at) => ingress.rules[at] = rule.clone(),
            None => {
                self.check_host(backend, key, host)?;
                ingress.rules.push(rule.clone());
                ingress.rules.sort_by(|a, b| a.host.cmp(&b.host));
            }
        }
        if ingress != before {
            self.touch(&mut ingress);
            self.table(backend).put(ingress);
        }
        Ok(shown_rule(rule))
    }

    fn upsert(&mut self, request: &api::UpsertPathsRequest) -> Result<api::IngressRule> {
        let backend = self.backend(request.backend)?;
        let key = (request.namespace.clone(), request.ingress.clone());
        check_paths("paths", &request.paths, backend)?;
        let wanted = self.resolved("paths", request.paths.clone(), backend, &key.0)?;
        self.change_rule(backend, (&key, &request.host), |_, paths| {
            let mut paths = paths.unwrap_or_default();
            let before = paths.len();
            for path in wanted {
                upsert_one(&mut paths, path);
            }
            if paths.len() > MAX_PATHS && paths.len() > before {
                let why = format!(
                    "the host would have {} paths, and at most {MAX_PATHS} are possible",
                    paths.len()
                );
                return Err(Error::invalid("paths", why));
            }
            Ok(paths)
        })
    }

    fn remove(&mut self, request: &api::RemovePathsRequest) -> Result<api::IngressRule> {
        let backend = self.backend(request.backend)?;
        let key = (request.namespace.clone(), request.ingress.clone());
        for (at, wanted) in request.paths.iter().enumerate() {
            if let Some(path_key::Key::Match(one)) = &wanted.key {
                check_type(&format!("paths[{at}].match"), one.r#type(), backend)?;
            }
        }
        self.change_rule(backend, (&key, &request.host), |store, paths| {
            let mut paths = paths.ok_or_else(|| no_rule(&request.host))?;
            let names = names(&paths);
            let mut at = 0;
            paths.retain(|path| {
                at += 1;
                let name = names[at - 1].as_deref();
                !request
                    .paths
                    .iter()
                    .any(|key| store.meant(&request.namespace, key, path, name))
            });
            Ok(paths)
        })
    }

    fn meant(
        &self,
        namespace: &str,
        wanted: &api::PathKey,
        path: &api::IngressPath,
        name: Option<&str>,
    ) -> bool {
        match &wanted.key {
            None => false,
            Some(path_key::Key::Match(one)) => one.path == path.path && one.r#type == path.r#type,
            Some(path_key::Key::Name(wanted)) => name == Some(wanted),
            Some(path_key::Key::Service(service)) => {
                let Some(Target::Service(found)) = &path.target else {
                    return false;
                };
                let same = || {
                    let number = self.port_of(namespace, service);
                    number.is_some() && number == self.port_of(namespace, found)
                };
                found.name == service.name && (found.port == service.port || same())
            }
        }
    }
}

fn target(name: String, port: u32) -> api::ServiceTarget {
    api::ServiceTarget {
        name,
        port: Some(PortRef {
            port: Some(Port::Number(port)),
        }),
    }
}

fn check_class(class: &str, backend: IngressBackend) -> Result<()> {
    let gateway = class.contains('/');
    let why = match backend {
        IngressBackend::Ingress | IngressBackend::Unspecified if gateway => {
            "expected the name of an ingress class"
        }
        IngressBackend::HttpRoute if !gateway && !class.is_empty() => {
            "expected NAMESPACE/NAME of a Gateway"
        }
        IngressBackend::VirtualService if !class.is_empty() => {
            "VirtualServices have none: Gloo's gateways choose them"
        }
        IngressBackend::Ingress
        | IngressBackend::Unspecified
        | IngressBackend::HttpRoute
        | IngressBackend::VirtualService => return Ok(()),
    };
    Err(Error::invalid("ingress.class_name", why))
}

/// Refuses what a backend does not know.
fn check_paths(field: &str, paths: &[api::IngressPath], backend: IngressBackend) -> Result<()> {
    for (at, path) in paths.iter().enumerate() {
        let field = format!("{field}[{at}]");
        check_type(&field, path.r#type(), backend)?;
        if matches!(path.target, Some(Target::Upstream(_)))
            && backend != IngressBackend::VirtualService
        {
            let why = format!("{} does not know upstreams", kind(backend));
            return Err(Error::invalid(format!("{field}.upstream"), why));
        }
    }
    Ok(())
}

fn check_type(field: &str, matching: PathType, backend: IngressBackend) -> Result<()> {
    let plain = backend == IngressBackend::Ingress;
    let refused = match matching {
        PathType::Regex => plain,
        PathType::ImplementationSpecific => !plain,
        PathType::Unspecified | PathType::Prefix | PathType::Exact => false,
    };
    if refused {
        let why = format!("{} does not know this", kind(backend));
        return Err(Error::invalid(format!("{field}.type"), why));
    }
    Ok(())
}

/// Certificates as a backend has them: those of an HTTPRoute are its Gateway's, and a VirtualService has one.
fn certificates(new: &mut api::Ingress, backend: IngressBackend) -> Result<()> {
    match backend {
        IngressBackend::Unspecified | IngressBackend::Ingress => return Ok(()),
        IngressBackend::HttpRoute if new.tls.is_empty() => return Ok(()),
        IngressBackend::HttpRoute => {
            let why = "certificates of HTTPRoutes stand in the listeners of their Gateway";
            return Err(Error::invalid("ingress.tls", why));
        }
        IngressBackend::VirtualService => {}
    }
    let mut seen = BTreeSet::new();
    let mut by_secret: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (index, tls) in new.tls.iter().enumerate() {
        for (at, host) in tls.hosts.iter().enumerate() {
            let known = new.rules.iter().any(|rule| rule.host == *host);
            if !known || !seen.insert(host) {
                let why = "a VirtualService has one certificate, for its host";
                return Err(Error::invalid(
                    format!("ingress.tls[{index}].hosts[{at}]"),
                    why,
                ));
            }
            let hosts = by_secret.entry(tls.secret.clone()).or_default();
            hosts.insert(host.clone());
        }
    }
    let entry = |(secret, hosts): (String, BTreeSet<String>)| api::IngressTls {
        hosts: hosts.into_iter().filter(|host| !host.is_empty()).collect(),
        secret,
    };
    new.tls = by_secret.into_iter().map(entry).collect();
    Ok(())
}

fn no_rule(host: &str) -> Error {
    let message = if host.is_empty() {
        "the ingress has no rule for every host".to_owned()
    } else {
        format!("the ingress has no rule for the host {host:?}")
    };
    Error::new(Reason::RuleNotFound, message).with_resource("ingress rule", host)
}

fn upsert_one(paths: &mut Vec<api::IngressPath>, wanted: api::IngressPath) {
    let same = |path: &api::IngressPath| path.path == wanted.path && path.r#type == wanted.r#type;
    if !wanted.name.is_empty() {
        // A name that nobody wrote is only shown: to write it elsewhere takes nothing from the path.
        paths.retain(|path| same(path) || path.name != wanted.name);
    }
    match paths.iter().position(same) {
        Some(at) => paths[at] = wanted,
        None => paths.push(wanted),
    }
}

fn order(paths: &mut [api::IngressPath]) {
    paths.sort_by(|a, b| (&a.path, a.r#type).cmp(&(&b.path, b.r#type)));
}

/// The names that answers show: those that were written, otherwise the service's if no other path has it.
fn names(paths: &[api::IngressPath]) -> Vec<Option<String>> {
    let written: BTreeSet<&str> = paths.iter().map(|path| path.name.as_str()).collect();
    let service = |path: &api::IngressPath| match &path.target {
        Some(Target::Service(service)) if path.name.is_empty() => Some(service.name.clone()),
        Some(Target::Service(_) | Target::Upstream(_)) | None => None,
    };
    let mut unnamed: BTreeMap<String, usize> = BTreeMap::new();
    for service in paths.iter().filter_map(service) {
        *unnamed.entry(service).or_default() += 1;
    }
    let name = |path: &api::IngressPath| {
        if !path.name.is_empty() {
            return Some(path.name.clone());
        }
        let free =
            |name: &String| !written.contains(name.as_str()) && unnamed.get(name) == Some(&1);
        service(path).filter(free)
    };
    paths.iter().map(name).collect()
}

fn shown_rule(mut rule: api::IngressRule) -> api::IngressRule {
    let names = names(&rule.paths);
    for (path, name) in rule.paths.iter_mut().zip(names) {
        path.name = name.unwrap_or_default();
    }
    rule
}

fn shown(mut ingress: api::Ingress) -> api::Ingress {
    ingress.rules = ingress.rules.into_iter().map(shown_rule).collect();
    ingress
}

#[async_trait]
impl Ingresses for Shared {
    async fn create(&self, ingress: api::Ingress, backend: IngressBackend) -> Result<api::Ingress> {
        self.call("ingresses.create", async {
            self.change(|store| store.create_ingress(ingress, backend as i32))
        })
        .await
    }

    async fn get(&self, request: api::GetIngressRequest) -> Result<api::Ingress> {
        self.call("ingresses.get", async {
            let mut store = self.store.lock();
            let backend = store.backend(request.backend)?;
            let key = (request.namespace, request.name);
            store.table(backend).find(&key).cloned().map(shown)
        })
        .await
    }

    async fn list(&self, request: api::ListIngressesRequest) -> Result<api::ListIngressesResponse> {
        self.call("ingresses.list", async {
            let mut store = self.store.lock();
            let revision = store.tick();
            let backend = store.backend(request.backend)?;
            let matches = |ingress: &api::Ingress| {
                let metadata = ingress.metadata.clone().unwrap_or_default();
                (request.namespace.is_empty() || metadata.namespace == request.namespace)
                    && selects(request.selector.as_ref(), &metadata.labels)
            };
            let place = (request.page_size, &*request.page_token);
            let (found, next_page_token) = store.table(backend).page(place, revision, matches)?;
            Ok(api::ListIngressesResponse {
                ingresses: found.into_iter().map(shown).collect(),
                next_page_token,
            })
        })
        .await
    }

    async fn delete(&self, request: api::DeleteIngressRequest) -> Result<bool> {
        self.call("ingresses.delete", async {
            let key = (request.namespace, request.name);
            self.change(|store| {
                let backend = store.backend(request.backend)?;
                Ok(store.table(backend).remove(&key).is_some())
            })
        })
        .await
    }
}

#[async_trait]
impl IngressRules for Shared {
    async fn get(&self, request: api::GetRuleRequest) -> Result<api::IngressRule> {
        self.call("ingress_rules.get", async {
            let mut store = self.store.lock();
            let backend = store.backend(request.backend)?;
            let key = (request.namespace, request.ingress);
            let ingress = store.table(backend).find(&key)?;
            let rule = ingress.rules.iter().find(|rule| rule.host == request.host);
            rule.cloned()
                .map(shown_rule)
                .ok_or_else(|| no_rule(&request.host))
        })
        .await
    }

    async fn upsert(&self, request: api::UpsertPathsRequest) -> Result<api::IngressRule> {
        self.call("ingress_rules.upsert", async {
            let mut changed = self.changed.subscribe();
            loop {
                changed.mark_unchanged();
                let done = {
                    let mut store = self.store.lock();
                    let done = store.upsert(&request);
                    store.tick();
                    done
                };
                let waits = request.wait
                    && done
                        .as_ref()
                        .is_err_and(|error| error.reason() == Reason::IngressUpstreamMissing);
                if !waits || changed.changed().await.is_err() {
                    return done;
                }
            }
        })
        .await
    }

    async fn remove(&self, request: api::RemovePathsRequest) -> Result<api::IngressRule> {
        self.call("ingress_rules.remove", async {
            self.change(|store| store.remove(&request))
        })
        .await
    }
}
