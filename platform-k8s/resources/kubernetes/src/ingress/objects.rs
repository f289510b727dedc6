//! Objects of the three kinds at the API server.

use std::{collections::BTreeSet, sync::Arc};

use drover_core::{Error, Reason, Result};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::{ApiResource, DynamicObject},
};
use serde_json::Value;

use super::{
    discovery::Kind,
    meta::{self, INGRESS},
    reserved::{Reservations, Reserved},
    route, virtual_service,
};
use crate::{
    client::{ApiClient, Call, escape},
    errors::{self, Fields},
};

/// Objects in one answer of a list.
const PAGE: u32 = 500;

/// Where objects are looked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    namespaces: Vec<Option<String>>,
    /// Those whose objects are passed over.
    excluded: Vec<String>,
}

impl Scope {
    pub(super) fn of(namespace: &str) -> Self {
        Self {
            namespaces: vec![Some(namespace.to_owned())],
            excluded: Vec::new(),
        }
    }

    /// These namespaces, all of the cluster if there are none, without those that are excluded.
    pub(super) fn all(namespaces: &[String], excluded: &[String]) -> Self {
        let mut served = vec![None];
        if !namespaces.is_empty() {
            let all: BTreeSet<&String> = namespaces.iter().collect();
            let all = all.into_iter().filter(|it| !excluded.contains(it));
            served = all.cloned().map(Some).collect();
        }
        Self {
            namespaces: served,
            excluded: excluded.to_vec(),
        }
    }

    /// This namespace too.
    pub(super) fn and(mut self, namespace: &str) -> Self {
        let known = |it: &Option<String>| it.as_deref().is_none_or(|it| it == namespace);
        if !self.namespaces.iter().any(known) {
            self.namespaces.push(Some(namespace.to_owned()));
        }
        self.excluded.retain(|it| it != namespace);
        self
    }

    fn has(&self, object: &DynamicObject) -> bool {
        let namespace = object.namespace().unwrap_or_default();
        !self.excluded.contains(&namespace)
    }

    pub(super) fn namespaces(&self) -> impl Iterator<Item = Option<&str>> {
        self.namespaces.iter().map(Option::as_deref)
    }
}

#[derive(Clone)]
pub(super) struct Objects {
    client: Source,
    /// Those that the server serves.
    everywhere: Arc<Scope>,
    reservations: Reservations,
}

/// Where calls go.
#[derive(Clone)]
enum Source {
    Api(ApiClient),
    #[cfg(test)]
    Given(Client),
}

impl Objects {
    /// `namespaces`: those that the server serves; empty: all.
    pub(super) fn new(client: ApiClient, namespaces: &[String]) -> Self {
        Self::at(Source::Api(client), namespaces)
    }

    #[cfg(test)]
    pub(super) fn over(client: Client) -> Self {
        Self::at(Source::Given(client), &[])
    }

    fn at(client: Source, namespaces: &[String]) -> Self {
        Self {
            client,
            everywhere: Arc::new(Scope::all(namespaces, &[])),
            reservations: Reservations::default(),
        }
    }

    /// The namespaces that the server serves, without some.
    pub(super) fn excluding(self, namespaces: &[String], excluded: &[String]) -> Self {
        Self {
            everywhere: Arc::new(Scope::all(namespaces, excluded)),
            ..self
        }
    }

    pub(super) fn client(&self) -> Client {
        match &self.client {
            Source::Api(client) => client.kube(),
            #[cfg(test)]
            Source::Given(client) => client.clone(),
        }
    }

    /// Keeps others in this process from adding any of these hosts, until it is dropped.
    pub(super) async fn reserve(&self, kind: Kind, hosts: &BTreeSet<&str>) -> Reserved {
        self.reservations.take(kind, hosts).await
    }

    /// All namespaces that the server serves.
    pub(super) fn everywhere(&self) -> Scope {
        self.everywhere.as_ref().clone()
    }

    /// A namespace, or nothing if it is excluded.
    pub(super) fn within(&self, namespace: &str) -> Scope {
        if self.everywhere.excluded.iter().any(|it| it == namespace) {
            return Scope::default();
        }
        Scope::of(namespace)
    }

    pub(super) fn api(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
    ) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client(), &escape(namespace), resource),
            None => Api::all_with(self.client(), resource),
        }
    }

    pub(super) async fn get(
        &self,
        resource: &ApiResource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<DynamicObject>> {
        let found = self
            .api(resource, Some(namespace))
            .get_opt(&escape(name))
            .await;
        found.map_err(|error| failed("get", resource, namespace, name, error))
    }

    /// All objects, page by page, from the beginning again if the pages expire meanwhile.
    pub(super) async fn list(
        &self,
        resource: &ApiResource,
        scope: &Scope,
        selector: &str,
    ) -> Result<Vec<DynamicObject>> {
        let mut all = Vec::new();
        for namespace in scope.namespaces() {
            let found = self.list_one(resource, namespace, selector).await?;
            all.extend(found.into_iter().filter(|object| scope.has(object)));
        }
        Ok(all)
    }

    async fn list_one(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        selector: &str,
    ) -> Result<Vec<DynamicObject>> {
        let api = self.api(resource, namespace);
        let mut found = Vec::new();
        let mut page = ListParams::default().labels(selector).limit(PAGE);
        loop {
            match api.list(&page).await {
                Ok(list) => {
                    found.extend(list.items);
                    match list.metadata.continue_.filter(|token| !token.is_empty()) {
                        Some(token) => page.continue_token = Some(token),
                        None => return Ok(found),
                    }
                }
                Err(error) => {
                    let namespace = namespace.unwrap_or_default();
                    let error = failed("list", resource, namespace, "", error);
                    let expired = error.reason() == Reason::PageTokenExpired;
                    if !expired || page.continue_token.take().is_none() {
                        return Err(error);
                    }
                    found.clear();
                }
            }
        }
    }

    pub(super) async fn create(
        &self,
        resource: &ApiResource,
        object: &DynamicObject,
    ) -> Result<DynamicObject> {
        let namespace = object.namespace().unwrap_or_default();
        let api = self.api(resource, Some(&namespace));
        let created = api.create(&PostParams::default(), object).await;
        created.map_err(|error| failed("create", resource, &namespace, &object.name_any(), error))
    }

    /// Creates a part of an ingress. `AlreadyExists` only if the ingress has such a part meanwhile, so that to look again
    /// helps.
    pub(super) async fn create_part(
        &self,
        kind: Kind,
        object: &DynamicObject,
    ) -> Result<DynamicObject> {
        let resource = kind.resource();
        let error = match self.create(&resource, object).await {
            Err(error) if error.reason() == Reason::AlreadyExists => error,
            other => return other,
        };
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        match self.get(&resource, &namespace, &name).await? {
            Some(other) if meta::ingress_of(&other) != meta::ingress_of(object) => {
                let kind = kind.name();
                let message = format!("a {kind} {name:?} of somebody else is in the way");
                Err(Error::new(Reason::Precondition, message).with_resource(kind, name))
            }
            Some(_) | None => Err(error),
        }
    }

    /// A merge patch.
    pub(super) async fn patch(
        &self,
        resource: &ApiResource,
        object: &DynamicObject,
        patch: &Value,
    ) -> Result<DynamicObject> {
        let namespace = object.namespace().unwrap_or_default();
        let name = object.name_any();
        let api = self.api(resource, Some(&namespace));
        let patched = api
            .patch(
                &escape(&name),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await;
        patched.map_err(|error| failed("patch", resource, &namespace, &name, error))
    }

    /// Deletes this very object, as it is (`unchanged`) or not. Whether it was there.
    pub(super) async fn delete(
        &self,
        resource: &ApiResource,
        object: &DynamicObject,
        unchanged: bool,
    ) -> Result<bool> {
        let namespace = object.namespace().unwrap_or_default();
        let name = object.name_any();
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: object.uid(),
            resource_version: object.resource_version().filter(|_| unchanged),
        });
        let api = self.api(resource, Some(&namespace));
        match api.delete(&escape(&name), &params).await {
            Ok(_) => Ok(true),
            Err(error) => match failed("delete", resource, &namespace, &name, error) {
                error if error.reason() == Reason::NotFound => Ok(false),
                error => Err(error),
            },
        }
    }

    /// The objects of an ingress, without those that follow from others: ours first, then by name.
    pub(super) async fn of_ingress(
        &self,
        kind: Kind,
        namespace: &str,
        ingress: &str,
    ) -> Result<Vec<DynamicObject>> {
        let mut all = self.with_followers(kind, namespace, ingress).await?;
        all.retain(|object| !route::is_behind(object));
        Ok(all)
    }

    pub(super) async fn with_followers(
        &self,
        kind: Kind,
        namespace: &str,
        ingress: &str,
    ) -> Result<Vec<DynamicObject>> {
        let resource = kind.resource();
        let mut all = match kind {
            Kind::Ingress => Vec::new(),
            Kind::HttpRoute | Kind::VirtualService => {
                let selector = format!("{INGRESS}={}", meta::label(ingress));
                let scope = Scope::of(namespace);
                self.list(&resource, &scope, &selector).await?
            }
        };
        let known = |object: &DynamicObject| object.name_any() == ingress;
        if !all.iter().any(known) {
            all.extend(self.get(&resource, namespace, ingress).await?);
        }
        if kind != Kind::Ingress {
            all.retain(|object| meta::ingress_of(object) == ingress);
        }
        all.sort_by_key(|object| (!meta::is_ours(object), object.name_any()));
        Ok(all)
    }
}

/// The hosts that an object routes.
pub(super) fn hosts(kind: Kind, object: &DynamicObject) -> Vec<String> {
    match kind {
        Kind::Ingress => super::kubernetes::hosts(object)
            .map(str::to_owned)
            .collect(),
        Kind::HttpRoute => route::hosts(object),
        Kind::VirtualService => virtual_service::hosts(object),
    }
}

pub(super) fn not_found(namespace: &str, ingress: &str) -> Error {
    Error::not_found("ingress", format!("{namespace}/{ingress}"))
}

fn failed(
    verb: &'static str,
    resource: &ApiResource,
    namespace: &str,
    name: &str,
    error: kube::Error,
) -> Error {
    let call = Call::new(verb, &rbac(resource), namespace, name);
    in_request(&call, of_kube(&call, error))
}

/// How the fields of a new object are called in a request.
static FIELDS: Fields = Fields {
    object: "ingress",
    names: &[
        ("spec.ingress_class_name", "class_name"),
        ("spec.parent_refs", "class_name"),
        ("spec.tls", "tls"),
        ("].secret_name", "].secret"),
        ("spec.rules", "rules"),
        ("].http.paths", "].paths"),
        ("].path_type", "].type"),
        ("].backend.service", "].service"),
    ],
};

/// An error with the fields of the request. Which of its paths stands where in an object that is changed nobody knows.
fn in_request(call: &Call, error: Error) -> Error {
    if error.reason() != Reason::Invalid || call.verb != "patch" {
        return FIELDS.of_request(call, error);
    }
    let named = Error::new(Reason::Invalid, error.message());
    error.fields().iter().fold(named, |named, violation| {
        named.with_violation("paths", &violation.description)
    })
}

/// The error of a call. A creation that finds no such kind is told like any other call that does not find it.
pub(super) fn of_kube(call: &Call, error: kube::Error) -> Error {
    let lacks_kind = match &error {
        kube::Error::Api(status) => {
            let details = status.details.as_ref();
            status.code == 404 && details.is_none_or(|it| it.kind != "namespaces")
        }
        _ => false,
    };
    let error = errors::of(call, &error);
    if !lacks_kind {
        return error;
    }
    Error::new(Reason::NotFound, error.message()).with_resource(&call.kind, &call.name)
}

/// A kind as permissions name it.
fn rbac(resource: &ApiResource) -> String {
    format!("{}.{}", resource.plural, resource.group)
}
