//! An API server in memory, for tests.

use std::{collections::BTreeMap, sync::Arc};

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::{
    Client,
    client::Body,
    core::{ApiResource, DynamicObject},
};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::objects::Objects;

/// Cheap to clone: the same server.
#[derive(Clone, Default)]
pub(super) struct Memory(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    revision: u64,
    /// By plural, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    /// Paths of all calls, as they were written.
    calls: Vec<String>,
    /// A call with this method to an object of this name fails, so many times.
    fails: Option<(Method, String, usize)>,
    /// Such a call is done, and its answer is lost, once.
    loses: Option<(Method, String)>,
    /// What happens while such a call is under way, once.
    meanwhile: Option<(Method, String, Event)>,
    /// Somebody writes a status into each object as soon as it is there.
    tended: bool,
}

type Event = Box<dyn FnOnce(&mut Inner) + Send>;

impl Memory {
    pub(super) fn objects(&self) -> Objects {
        let memory = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let memory = memory.clone();
            async move {
                tokio::task::yield_now().await;
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let (status, answer) = memory.0.lock().answer(&head, body);
                let answer = Body::from(serde_json::to_vec(&answer).unwrap());
                let answer = Response::builder().status(status).body(answer);
                Ok::<_, tower::BoxError>(answer.unwrap())
            }
        });
        Objects::over(Client::new(service, "default"))
    }

    pub(super) fn put(&self, resource: &ApiResource, object: Value) -> DynamicObject {
        let at = place(resource, &object);
        let stored = self.0.lock().store(at, object);
        serde_json::from_value(stored).unwrap()
    }

    /// The names of all objects of a kind.
    pub(super) fn names(&self, resource: &ApiResource) -> Vec<String> {
        let inner = self.0.lock();
        let keys = inner.objects.keys();
        keys.filter(|(plural, ..)| *plural == resource.plural)
            .map(|(_, _, name)| name.clone())
            .collect()
    }

    pub(super) fn calls(&self) -> Vec<String> {
        self.0.lock().calls.clone()
    }

    pub(super) fn fail(&self, method: Method, name: &str) {
        self.fail_times(1, method, name);
    }

    pub(super) fn fail_times(&self, times: usize, method: Method, name: &str) {
        self.0.lock().fails = Some((method, name.to_owned(), times));
    }

    pub(super) fn lose(&self, method: Method, name: &str) {
        self.0.lock().loses = Some((method, name.to_owned()));
    }

    pub(super) fn tend(&self) {
        self.0.lock().tended = true;
    }

    /// Somebody else makes an object while this call is under way.
    pub(super) fn put_during(
        &self,
        (method, name): (Method, &str),
        resource: &ApiResource,
        object: Value,
    ) {
        let at = place(resource, &object);
        let event: Event = Box::new(move |inner| {
            inner.store(at, object);
        });
        self.0.lock().meanwhile = Some((method, name.to_owned(), event));
    }

    /// Somebody else deletes an object while this call is under way.
    pub(super) fn delete_during(
        &self,
        (method, name): (Method, &str),
        resource: &ApiResource,
        object: &DynamicObject,
    ) {
        let object = serde_json::to_value(object).unwrap();
        let at = place(resource, &object);
        let event: Event = Box::new(move |inner| {
            inner.objects.remove(&at);
        });
        self.0.lock().meanwhile = Some((method, name.to_owned(), event));
    }
}

fn place(resource: &ApiResource, object: &Value) -> (String, String, String) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap().to_owned();
    (resource.plural.clone(), text("namespace"), text("name"))
}

impl Inner {
    fn store(&mut self, at: (String, String, String), mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("u{}", self.revision));
        }
        self.objects.insert(at, object.clone());
        object
    }

    fn answer(&mut self, head: &http::request::Parts, body: Value) -> (u16, Value) {
        let path = head.uri.path();
        self.calls.push(path.to_owned());
        let decode = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let mut parts: Vec<String> = path.split('/').skip(1).map(decode).collect();
        parts.drain(..if parts[0] == "api" { 2 } else { 3 });
        let namespace = if parts[0] == "namespaces" {
            let namespace = parts.remove(1);
            parts.remove(0);
            Some(namespace)
        } else {
            None
        };
        let plural = parts[0].clone();
        let Some(name) = parts.get(1).cloned() else {
            return match namespace {
                Some(namespace) if head.method == Method::POST => {
                    let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                    if self.failed(&head.method, &name) {
                        return status(503, "ServiceUnavailable");
                    }
                    self.happens(&head.method, &name);
                    let at = (plural, namespace, name.clone());
                    if self.objects.contains_key(&at) {
                        return status(409, "AlreadyExists");
                    }
                    let stored = self.store(at.clone(), body);
                    if self.tended {
                        self.store(at, stored.clone());
                    }
                    if self.lost(&head.method, &name) {
                        return status(504, "Timeout");
                    }
                    (201, stored)
                }
                namespace => (200, self.list(head, &plural, namespace.as_deref())),
            };
        };
        if self.failed(&head.method, &name) {
            return status(503, "ServiceUnavailable");
        }
        self.happens(&head.method, &name);
        let at = (plural, namespace.unwrap_or_default(), name);
        let Some(found) = self.objects.get(&at).cloned() else {
            return status(404, "NotFound");
        };
        match head.method {
            Method::PATCH => {
                let revision = &body["metadata"]["resourceVersion"];
                if !revision.is_null() && *revision != found["metadata"]["resourceVersion"] {
                    return status(409, "Conflict");
                }
                let mut merged = found;
                merge(&mut merged, &body);
                (200, self.store(at, merged))
            }
            Method::DELETE => {
                for field in ["uid", "resourceVersion"] {
                    let wanted = &body["preconditions"][field];
                    if !wanted.is_null() && *wanted != found["metadata"][field] {
                        return status(409, "Conflict");
                    }
                }
                self.objects.remove(&at);
                status(200, "")
            }
            _ => (200, found),
        }
    }

    fn failed(&mut self, method: &Method, name: &str) -> bool {
        let fails = |it: &&mut (Method, String, usize)| it.0 == *method && it.1 == name;
        let Some((.., times)) = self.fails.as_mut().filter(fails) else {
            return false;
        };
        let fails = *times > 0;
        *times = times.saturating_sub(1);
        fails
    }

    fn lost(&mut self, method: &Method, name: &str) -> bool {
        let loses = |it: &mut (Method, String)| it.0 == *method && it.1 == name;
        self.loses.take_if(loses).is_some()
    }

    fn happens(&mut self, method: &Method, name: &str) {
        let now = |it: &mut (Method, String, Event)| it.0 == *method && it.1 == name;
        if let Some((_, _, event)) = self.meanwhile.take_if(now) {
            event(self);
        }
    }

    fn list(&self, head: &http::request::Parts, plural: &str, namespace: Option<&str>) -> Value {
        let query = head.uri.query().unwrap_or_default();
        let query = percent_decode_str(query).decode_utf8_lossy().into_owned();
        let selector = query
            .split('&')
            .find_map(|it| it.strip_prefix("labelSelector="));
        let selected =
            |object: &Value| match selector.map(|it| it.split_once('=').unwrap_or((it, ""))) {
                None | Some(("", _)) => true,
                Some((label, "")) => !object["metadata"]["labels"][label].is_null(),
                Some((label, value)) => object["metadata"]["labels"][label] == *value,
            };
        let found = self.objects.iter().filter(|((kind, within, _), object)| {
            kind == plural && namespace.is_none_or(|it| it == within) && selected(object)
        });
        let items: Vec<&Value> = found.map(|(_, object)| object).collect();
        json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
    }
}

fn status(code: u16, reason: &str) -> (u16, Value) {
    let success = if code < 300 { "Success" } else { "Failure" };
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": success, "code": code,
        "reason": reason, "message": reason, "details": {"name": "it", "kind": "it"},
    });
    (code, status)
}

fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        into.clone_from(patch);
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (field, value) in fields {
        if value.is_null() {
            if let Some(into) = into.as_object_mut() {
                into.remove(field);
            }
        } else {
            merge(&mut into[field], value);
        }
    }
}
