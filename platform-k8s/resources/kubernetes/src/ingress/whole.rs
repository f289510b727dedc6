//! Ingresses as a whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::Ingresses;
use kube::{ResourceExt, core::DynamicObject};
use prost::Message as _;

use super::{
    IngressBackends, Kind, Objects, Paths, discovery, hosts, kubernetes, meta, objects, request,
    route,
    rule::{self, Change, Rules},
    store, virtual_service,
};
use crate::{convert, objects::after_write};

/// Ingresses in a page where the request does not say, and at most.
const PAGE: usize = 500;
const MAX_PAGE: usize = 1_000;
/// Before each attempt to find or to remove a part of an ingress that could not be created whole.
const PAUSES: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(250),
    Duration::from_secs(1),
];
/// Most bytes of a page, but for one ingress: below what a client takes in one message.
const MAX_PAGE_BYTES: usize = 1024 * 1024;

impl IngressBackends {
    async fn make(&self, kind: Kind, ingress: &api::Ingress) -> Result<api::Ingress> {
        let metadata = ingress.metadata.clone().unwrap_or_default();
        let (namespace, name) = (&metadata.namespace, &metadata.name);
        let rules = self.new_rules(kind, namespace, ingress).await?;
        let class_name = match ingress.class_name.as_str() {
            "" => self.options.class_name.as_str(),
            given => given,
        };
        let built = new_objects(kind, &metadata, &rules, &ingress.tls, class_name)?;
        let new = New {
            objects: self.objects.clone(),
            kind,
            namespace: namespace.clone(),
            name: name.clone(),
            hosts: rules.into_keys().collect(),
            built,
        };
        let created = self.writers.whole(new.create()).await?;
        let mut gateways = BTreeMap::new();
        let made = self.answer(kind, (namespace, name), created, &mut gateways);
        made.await.map_err(after_write)
    }

    async fn new_rules(
        &self,
        kind: Kind,
        namespace: &str,
        ingress: &api::Ingress,
    ) -> Result<Rules> {
        if ingress.rules.is_empty() {
            let why = "is required: at least one, which may be without paths";
            return Err(Error::invalid("ingress.rules", why));
        }
        let mut rules = Rules::new();
        for (index, wanted) in ingress.rules.iter().enumerate() {
            let field = format!("ingress.rules[{index}].paths");
            let paths = request::paths(&field, &wanted.paths, kind, namespace)?;
            let targets = self.targets(kind, namespace);
            let paths = match kind {
                // It may be made before what it leads to, as Kubernetes has it.
                Kind::Ingress => paths,
                Kind::HttpRoute | Kind::VirtualService => targets.find(&field, &paths).await?,
            };
            rule::apply(&mut rules, &wanted.host, &Change::Upsert(paths))?;
        }
        Ok(rules)
    }

    /// The message of an ingress. `gateways` remembers addresses.
    async fn answer(
        &self,
        kind: Kind,
        (namespace, name): (&str, &str),
        objects: Vec<DynamicObject>,
        gateways: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<api::Ingress> {
        let mut rules = Rules::new();
        for object in &objects {
            for (host, paths) in store::rules(&self.objects, kind, object).await? {
                rules.entry(host).or_insert(paths);
            }
        }
        let mut ingress = match (kind, objects.first()) {
            (Kind::Ingress, Some(object)) => kubernetes::about(object),
            (Kind::HttpRoute, Some(object)) => {
                let parents = route::parents(object);
                let class_name = parents.first().map(|(name, _)| name.clone());
                let mut addresses = Vec::new();
                for (name, _) in parents {
                    for address in self.addresses(&name, gateways).await? {
                        if !addresses.contains(&address) {
                            addresses.push(address);
                        }
                    }
                }
                api::Ingress {
                    class_name: class_name.unwrap_or_default(),
                    addresses,
                    ..api::Ingress::default()
                }
            }
            (Kind::VirtualService, Some(_)) => api::Ingress {
                tls: certificates(&objects),
                ..api::Ingress::default()
            },
            (_, None) => return Err(objects::not_found(namespace, name)),
        };
        ingress.metadata = Some(meta::answer(name, &objects));
        ingress.rules = rules
            .iter()
            .map(|(host, paths)| paths.answer(host))
            .collect();
        ingress.backend = kind.backend().into();
        Ok(ingress)
    }

    /// Addresses of a Gateway; none if it is not there.
    async fn addresses(
        &self,
        gateway: &str,
        known: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<Vec<String>> {
        if let Some(addresses) = known.get(gateway) {
            return Ok(addresses.clone());
        }
        let (namespace, name) = gateway.split_once('/').unwrap_or_default();
        let kind = discovery::resource("gateway.networking.k8s.io", "v1", "Gateway", "gateways");
        let found = self.objects.get(&kind, namespace, name).await?;
        let addresses: Vec<String> = found
            .iter()
            .flat_map(|found| found.data["status"]["addresses"].as_array())
            .flatten()
            .filter_map(|address| address["value"].as_str().map(str::to_owned))
            .collect();
        known.insert(gateway.to_owned(), addresses.clone());
        Ok(addresses)
    }

    async fn page(
        &self,
        kind: Kind,
        request: &api::ListIngressesRequest,
    ) -> Result<api::ListIngressesResponse> {
        let selector = convert::selector_text("selector", request.selector.as_ref())?;
        let query = meta::hash(&format!("{} {} {selector}", kind.name(), request.namespace));
        let after = position(&request.page_token, &query)?;
        let scope = match request.namespace.as_str() {
            "" => self.objects.everywhere(),
            namespace => self.objects.within(namespace),
        };
        let found = self
            .objects
            .list(&kind.resource(), &scope, &selector)
            .await?;
        // By `NAMESPACE/NAME`, as other lists come from the API server.
        let mut groups: BTreeMap<String, Vec<DynamicObject>> = BTreeMap::new();
        for object in found.into_iter().filter(|object| !route::is_behind(object)) {
            let name = match kind {
                Kind::Ingress => object.name_any(),
                Kind::HttpRoute | Kind::VirtualService => meta::ingress_of(&object),
            };
            let at = format!("{}/{name}", object.namespace().unwrap_or_default());
            if after.as_ref().is_none_or(|after| at > *after) {
                groups.entry(at).or_default().push(object);
            }
        }
        groups.retain(|_, objects| is_readable(kind, objects));
        let most = match usize::try_from(request.page_size) {
            Ok(0) => PAGE,
            Ok(size) => size.min(MAX_PAGE),
            Err(_) => return Err(Error::invalid("page_size", "is negative")),
        };
        let (mut page, mut bytes) = (api::ListIngressesResponse::default(), 0);
        let mut gateways = BTreeMap::new();
        let mut last = String::new();
        for (at, mut objects) in groups {
            if page.ingresses.len() == most || bytes >= MAX_PAGE_BYTES {
                page.next_page_token = token(&query, &last);
                break;
            }
            objects.sort_by_key(|object| (!meta::is_ours(object), object.name_any()));
            let place = at.split_once('/').unwrap_or_default();
            let ingress = self.answer(kind, place, objects, &mut gateways).await?;
            bytes += ingress.encoded_len();
            page.ingresses.push(ingress);
            last = at;
        }
        Ok(page)
    }
}

/// Deletes all objects of an ingress. Whether there was any.
async fn remove(objects: Objects, kind: Kind, namespace: String, name: String) -> Result<bool> {
    let (mut asked, mut deleted) = (BTreeSet::new(), Vec::new());
    loop {
        let all = match objects.with_followers(kind, &namespace, &name).await {
            Err(error) if !deleted.is_empty() => return Err(after_write(error)),
            all => all?,
        };
        // Leading ones first: without them nobody completes what is behind.
        let (behind, leading): (Vec<_>, Vec<_>) = all
            .into_iter()
            .filter(|object| asked.insert(object.uid()))
            .partition(route::is_behind);
        if behind.is_empty() && leading.is_empty() {
            return Ok(!deleted.is_empty());
        }
        for object in leading.iter().chain(&behind) {
            match objects.delete(&kind.resource(), object, false).await {
                Ok(true) => deleted.push(object.name_any()),
                Ok(false) => {}
                Err(error) => return Err(half_way(error, kind, &deleted)),
            }
        }
        if kind == Kind::Ingress {
            return Ok(!deleted.is_empty());
        }
        // A host that was added meanwhile is seen now; who adds one later finds no ingress.
    }
}

fn half_way(error: Error, kind: Kind, deleted: &[String]) -> Error {
    crate::objects::half_way(error, kind.name(), deleted)
}

/// An ingress that is to be created whole or not at all.
#[derive(Clone)]
struct New {
    objects: Objects,
    kind: Kind,
    namespace: String,
    name: String,
    hosts: BTreeSet<String>,
    built: Vec<DynamicObject>,
}

impl New {
    async fn create(self) -> Result<Vec<DynamicObject>> {
        let Self {
            objects,
            kind,
            namespace,
            name,
            hosts,
            ..
        } = &self;
        let hosts: BTreeSet<&str> = hosts.iter().map(String::as_str).collect();
        let reserved = objects.reserve(*kind, &hosts).await;
        if !objects.of_ingress(*kind, namespace, name).await?.is_empty() {
            return Err(exists(namespace, name));
        }
        hosts::check_free(objects, *kind, namespace, name, &hosts).await?;
        let (created, failed) = self.create_parts().await;
        let failed = match failed {
            // Another server may have looked at the same time.
            None => hosts::check_free(objects, *kind, namespace, name, &hosts)
                .await
                .err(),
            failed => failed,
        };
        if let Some(error) = failed {
            return Err(self.undo(&created, error).await);
        }
        drop(reserved);
        if *kind == Kind::HttpRoute {
            for leading in &created {
                store::settle(objects, leading).await?;
            }
        }
        Ok(created)
    }

    /// Creates the parts one after the other, up to one that cannot be.
    async fn create_parts(&self) -> (Vec<DynamicObject>, Option<Error>) {
        let request = format!("{:032x}", fastrand::u128(..));
        let mut created = Vec::with_capacity(self.built.len());
        for object in &self.built {
            let mut object = object.clone();
            let annotations = object.metadata.annotations.get_or_insert_default();
            annotations.insert(meta::REQUEST.to_owned(), request.clone());
            match self.create_part(&object, &request).await {
                Ok(object) => created.push(object),
                Err(error) => return (created, Some(error)),
            }
        }
        (created, None)
    }

    async fn create_part(&self, object: &DynamicObject, request: &str) -> Result<DynamicObject> {
        let (kind, name) = (self.kind, object.name_any());
        let error = match self.objects.create_part(kind, object).await {
            Err(error) => error,
            made => return made,
        };
        match error.reason() {
            Reason::AlreadyExists if name == self.name => Err(exists(&self.namespace, &name)),
            Reason::AlreadyExists => Err(in_the_way(kind, &name)),
            reason if is_refusal(reason) => Err(error),
            _ => self.found(&name, request).await.ok_or(error),
        }
    }

    /// A part whose creation nobody has confirmed, if it is there.
    async fn found(&self, name: &str, request: &str) -> Option<DynamicObject> {
        for pause in PAUSES {
            tokio::time::sleep(pause).await;
            let kind = self.kind.resource();
            let found = self.objects.get(&kind, &self.namespace, name).await;
            let is_own = |object: &DynamicObject| {
                let of = object.annotations().get(meta::REQUEST);
                of.is_some_and(|it| it == request)
            };
            if let Some(object) = found.ok().flatten().filter(is_own) {
                return Some(object);
            }
        }
        None
    }

    /// Removes what was created of an ingress that could not be created whole. Returns the error to answer.
    async fn undo(&self, created: &[DynamicObject], error: Error) -> Error {
        let mut stays = Vec::new();
        for object in created {
            if let Err(error) = self.remove(object).await {
                let (kind, name) = (self.kind.name(), object.name_any());
                tracing::warn!(kind, name, %error, "part of an ingress stays");
                stays.push(name);
            }
        }
        if stays.is_empty() {
            return error;
        }
        // Nobody may take it for a refusal.
        let (kind, stays) = (self.kind.name(), stays.join(", "));
        Error::unavailable(format!(
            "a part of the ingress could neither be created whole nor removed again ({kind} {stays}), delete the ingress: {}",
            error.message()
        ))
    }

    async fn remove(&self, object: &DynamicObject) -> Result<()> {
        let (kind, mut last) = (self.kind.resource(), Ok(()));
        for pause in PAUSES {
            tokio::time::sleep(pause).await;
            // Whatever its controllers have written into it by now.
            let deleted = self.objects.delete(&kind, object, false);
            last = deleted.await.map(drop);
            if last.is_ok() {
                break;
            }
        }
        last
    }
}

/// Whether an error says that nothing was done.
fn is_refusal(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Invalid
            | Reason::Precondition
            | Reason::QuotaExceeded
            | Reason::NotFound
            | Reason::Conflict
            | Reason::CredentialsRefused
            | Reason::PermissionDenied
            | Reason::RateLimited
            | Reason::Overloaded
            | Reason::NotSent
            | Reason::IngressBackendMissing
    )
}

/// Logs and passes over what would keep a list from all else.
fn is_readable(kind: Kind, objects: &[DynamicObject]) -> bool {
    if kind != Kind::HttpRoute {
        return true;
    }
    let failed = |object: &DynamicObject| route::Truth::of(object).err();
    let Some(error) = objects.iter().find_map(failed) else {
        return true;
    };
    tracing::warn!(%error, "an ingress is not listed");
    false
}

/// A part of the ingress cannot be made, though there is no ingress of that name.
fn in_the_way(kind: Kind, part: &str) -> Error {
    let kind = kind.name();
    let message = format!("the {kind} {part:?} is in the way");
    Error::new(Reason::Precondition, message).with_resource(kind, part)
}

fn exists(namespace: &str, name: &str) -> Error {
    let name = format!("{namespace}/{name}");
    let message = format!("there is an ingress {name:?} already");
    Error::new(Reason::AlreadyExists, message).with_resource("ingress", name)
}

/// The objects of a new ingress.
fn new_objects(
    kind: Kind,
    metadata: &api::Metadata,
    rules: &Rules,
    tls: &[api::IngressTls],
    class_name: &str,
) -> Result<Vec<DynamicObject>> {
    let base = convert::object_meta(Some(metadata.clone()));
    let name = &metadata.name;
    // The first one has the name of the ingress, so that only one can be made of that name.
    let part = |at: usize, host: &str| {
        let named = if at == 0 {
            name.clone()
        } else {
            route::name_for(name, host)
        };
        meta::part(&base, name, named)
    };
    match kind {
        Kind::Ingress => Ok(vec![kubernetes::object(
            base.clone(),
            rules,
            tls,
            class_name,
        )?]),
        Kind::HttpRoute => {
            if !tls.is_empty() {
                let why = "certificates of HTTPRoutes stand in the listeners of their Gateway";
                return Err(Error::invalid("ingress.tls", why));
            }
            let parents = route::parent(class_name).ok_or_else(|| {
                let why = "names the Gateway of HTTPRoutes, as NAMESPACE/NAME";
                Error::invalid("ingress.class_name", why)
            })?;
            let leading = |(at, (host, paths)): (usize, (&String, &Paths))| {
                route::leading(part(at, host), host, &parents, paths, 1)
            };
            Ok(rules.iter().enumerate().map(leading).collect())
        }
        Kind::VirtualService => {
            if !class_name.is_empty() {
                let why = "VirtualServices have none: Gloo's gateways choose them";
                return Err(Error::invalid("ingress.class_name", why));
            }
            check_certificates(rules, tls)?;
            let service = |(at, (host, paths)): (usize, (&String, &Paths))| {
                let tls = tls.iter().find(|tls| tls.hosts.contains(host));
                virtual_service::object(part(at, host), host, paths, tls)
            };
            Ok(rules.iter().enumerate().map(service).collect())
        }
    }
}

/// A VirtualService has one certificate, for the host that it routes.
fn check_certificates(rules: &Rules, tls: &[api::IngressTls]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for (index, tls) in tls.iter().enumerate() {
        for (at, host) in tls.hosts.iter().enumerate() {
            let why = if !rules.contains_key(host) {
                "no rule has this host, and a VirtualService has certificates for its host only"
            } else if !seen.insert(host) {
                "another entry has this host, and a VirtualService has one certificate"
            } else {
                continue;
            };
            let field = format!("ingress.tls[{index}].hosts[{at}]");
            return Err(Error::invalid(field, why));
        }
    }
    Ok(())
}

/// The certificates of all VirtualServices, one entry for each secret.
fn certificates(objects: &[DynamicObject]) -> Vec<api::IngressTls> {
    let mut by_secret: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for tls in objects.iter().filter_map(virtual_service::tls) {
        by_secret.entry(tls.secret).or_default().extend(tls.hosts);
    }
    let entry = |(secret, hosts): (String, BTreeSet<String>)| api::IngressTls {
        hosts: hosts.into_iter().filter(|host| !host.is_empty()).collect(),
        secret,
    };
    by_secret.into_iter().map(entry).collect()
}

fn token(query: &str, last: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{query} {last}"))
}

/// Namespace and name of the last ingress of the page before.
fn position(token: &str, query: &str) -> Result<Option<String>> {
    if token.is_empty() {
        return Ok(None);
    }
    let invalid = |why: &str| Error::invalid("page_token", why);
    let text = URL_SAFE_NO_PAD.decode(token).ok();
    let text = text.and_then(|bytes| String::from_utf8(bytes).ok());
    match text.as_deref().and_then(|text| text.split_once(' ')) {
        Some((of, last)) if of == query => Ok(Some(last.to_owned())),
        Some(_) => Err(invalid("belongs to another query")),
        None => Err(invalid("was not given out by this server")),
    }
}

#[async_trait]
impl Ingresses for IngressBackends {
    async fn create(
        &self,
        ingress: api::Ingress,
        backend: api::IngressBackend,
    ) -> Result<api::Ingress> {
        let kind = self.discovery.kind(backend).await?;
        let outcome = self.make(kind, &ingress).await;
        self.explained(kind, outcome).await
    }

    async fn get(&self, request: api::GetIngressRequest) -> Result<api::Ingress> {
        let kind = self.kind(request.backend).await?;
        let outcome = async {
            let api::GetIngressRequest {
                namespace, name, ..
            } = &request;
            let all = self.objects.of_ingress(kind, namespace, name).await?;
            self.answer(kind, (namespace, name), all, &mut BTreeMap::new())
                .await
        };
        let outcome = outcome.await;
        self.explained(kind, outcome).await
    }

    async fn list(&self, request: api::ListIngressesRequest) -> Result<api::ListIngressesResponse> {
        let kind = self.kind(request.backend).await?;
        let outcome = self.page(kind, &request).await;
        self.explained(kind, outcome).await
    }

    async fn delete(&self, request: api::DeleteIngressRequest) -> Result<bool> {
        let kind = self.kind(request.backend).await?;
        let removal = remove(
            self.objects.clone(),
            kind,
            request.namespace.clone(),
            request.name.clone(),
        );
        let outcome = self.writers.whole(removal).await;
        self.explained(kind, outcome).await
    }
}

#[cfg(test)]
mod tests;
