//! A separate namespace for each test, and its contents.

use std::{fmt, sync::Arc};

use futures::future::join_all;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

use super::{PATIENCE, Raw, Refused, until};
use crate::wait::Wait;

/// A namespace, accessed as the administrator.
pub struct Namespace {
    pub name: String,
    pub raw: Raw,
}

/// An object in a namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Thing {
    /// Plural and group: `pods`, `statefulsets.apps`.
    pub resource: String,
    pub name: String,
    pub uid: String,
    /// Whether it is being deleted.
    pub terminating: bool,
}

impl fmt::Debug for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.terminating {
            " (terminating)"
        } else {
            ""
        };
        write!(f, "{}/{}{end}", self.resource, self.name)
    }
}

/// Path of a resource such as `pods` or `statefulsets.apps` in a namespace; `plural.version.group` for versions other
/// than v1.
pub fn path(namespace: &str, resource: &str) -> String {
    let Some((plural, group)) = resource.split_once('.') else {
        return format!("/api/v1/namespaces/{namespace}/{resource}");
    };
    let versioned = group.split_once('.').filter(|(version, _)| {
        let digits = version.strip_prefix('v').unwrap_or_default();
        digits.starts_with(|first: char| first.is_ascii_digit())
    });
    let (version, group) = versioned.unwrap_or(("v1", group));
    format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}")
}

impl Namespace {
    pub fn path(&self, resource: &str) -> String {
        path(&self.name, resource)
    }

    fn one(&self, resource: &str, name: &str) -> String {
        format!("{}/{name}", self.path(resource))
    }

    pub async fn create(&self, resource: &str, object: &Value) -> Result<Value, Refused> {
        self.raw.create(&self.path(resource), object).await
    }

    pub async fn get(&self, resource: &str, name: &str) -> Result<Value, Refused> {
        self.raw.get(&self.one(resource, name)).await
    }

    pub async fn list(&self, resource: &str) -> Vec<Value> {
        let list = self.raw.get(&self.path(resource)).await.unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Applies a JSON merge patch.
    pub async fn merge(&self, resource: &str, name: &str, patch: &Value) -> Result<Value, Refused> {
        self.raw.merge(&self.one(resource, name), patch).await
    }

    /// Deletes without a grace period; it is not an error if the object does not exist.
    pub async fn delete(&self, resource: &str, name: &str) {
        self.raw.delete(&self.one(resource, name)).await.unwrap();
    }

    /// Creates a pod that does not belong to us.
    pub async fn pod(&self, name: &str, metadata: Value) -> Value {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "example.invalid/main:1", "ports": [{"name": "client", "containerPort": 7000}]}],
            },
        });
        pod["metadata"]["name"] = name.into();
        self.create("pods", &pod).await.unwrap()
    }

    /// Existing objects of all kinds that can be listed, except those that every namespace has.
    pub async fn everything(&self) -> Vec<Thing> {
        let resources = namespaced(&self.raw).await;
        self.things(&resources).await
    }

    /// Existing objects of these kinds.
    async fn things(&self, resources: &[Listable]) -> Vec<Thing> {
        let lists = join_all(resources.iter().map(|resource| async move {
            let list = self.raw.get(&self.path(&resource.versioned)).await;
            (resource.name.as_str(), list)
        }))
        .await;
        let mut things = Vec::new();
        for (resource, list) in lists {
            let list = match list {
                Ok(list) => list,
                // The kind was removed after discovery.
                Err(refused) if refused.code == 404 || refused.code == 405 => continue,
                Err(refused) => panic!("{resource}: {refused:?}"),
            };
            for item in list["items"].as_array().into_iter().flatten() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let thing = Thing {
                    resource: resource.to_owned(),
                    name: text(&item["metadata"]["name"]),
                    uid: text(&item["metadata"]["uid"]),
                    terminating: item["metadata"]["deletionTimestamp"].is_string(),
                };
                if !everywhere(&thing) {
                    things.push(thing);
                }
            }
        }
        things.sort();
        things
    }

    /// Waits until nothing of any kind is left.
    pub async fn until_empty(&self, what: &str) {
        let mut wait = Wait::new(what, PATIENCE);
        loop {
            // Listing all kinds takes two dozen calls, so only those with objects are polled.
            let all = namespaced(&self.raw).await;
            let mut left = self.things(&all).await;
            if left.is_empty() {
                return;
            }
            let has_left = |resource: &Listable| left.iter().any(|it| it.resource == resource.name);
            let kinds: Vec<Listable> = all.into_iter().filter(has_left).collect();
            while !left.is_empty() {
                assert!(wait.goes_on().await, "{what}: left over: {left:?}");
                left = self.things(&kinds).await;
            }
        }
    }

    /// Starts to delete the namespace.
    pub async fn remove(&self) {
        let path = format!("/api/v1/namespaces/{}", self.name);
        self.raw.delete(&path).await.unwrap();
    }

    /// Deletes the namespace and waits until it is gone.
    pub async fn remove_wholly(&self) {
        self.remove().await;
        until("the namespace is gone", || async {
            let path = format!("/api/v1/namespaces/{}", self.name);
            self.raw.get(&path).await.is_err().then_some(())
        })
        .await;
    }
}

/// Objects that controllers and the platform create in every namespace, and events.
fn everywhere(thing: &Thing) -> bool {
    matches!(
        (thing.resource.as_str(), thing.name.as_str()),
        ("configmaps", "kube-root-ca.crt" | "drover-platform") | ("serviceaccounts", "default")
    ) || thing.resource == "events"
        || thing.resource == "events.events.k8s.io"
}

/// A namespaced resource that can be listed.
#[derive(Clone)]
struct Listable {
    /// Plural and group: `statefulsets.apps`.
    name: String,
    /// Plural, version and group: `statefulsets.v1.apps`.
    versioned: String,
}

async fn groups(raw: &Raw, root: &'static str) -> Arc<Value> {
    let known = raw.discovered.lock().get(root).cloned();
    let mut request = Request::builder().method(Method::GET).uri(root).header(
        header::ACCEPT,
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    );
    if let Some((tag, _)) = &known {
        request = request.header(header::IF_NONE_MATCH, tag);
    }
    let request = request.body(Body::empty()).unwrap();
    let answer = raw.client().send(request).await.unwrap();
    if answer.status() == StatusCode::NOT_MODIFIED {
        return known.unwrap().1;
    }
    let tag = answer.headers().get(header::ETAG).cloned();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    let groups: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(groups["kind"], "APIGroupDiscoveryList");
    let groups = Arc::new(groups);
    if let Some(tag) = tag {
        let tag = tag.to_str().unwrap().to_owned();
        let groups = (tag, Arc::clone(&groups));
        raw.discovered.lock().insert(root, groups);
    }
    groups
}

async fn namespaced(raw: &Raw) -> Vec<Listable> {
    let mut resources: Vec<Listable> = Vec::new();
    for root in ["/api", "/apis"] {
        let groups = groups(raw, root).await;
        for group in groups["items"].as_array().unwrap() {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            for version in group["versions"].as_array().unwrap() {
                let number = version["version"].as_str().unwrap();
                for resource in version["resources"].as_array().into_iter().flatten() {
                    let listable = resource["verbs"]
                        .as_array()
                        .is_some_and(|verbs| verbs.iter().any(|verb| verb == "list"));
                    if resource["scope"] != "Namespaced" || !listable {
                        continue;
                    }
                    let plural = resource["resource"].as_str().unwrap();
                    let named = if name.is_empty() {
                        Listable {
                            name: plural.to_owned(),
                            versioned: plural.to_owned(),
                        }
                    } else {
                        Listable {
                            name: format!("{plural}.{name}"),
                            versioned: format!("{plural}.{number}.{name}"),
                        }
                    };
                    if !resources.iter().any(|known| known.name == named.name) {
                        resources.push(named);
                    }
                }
            }
        }
    }
    resources
}
