//! Discovery of the kinds that the API server serves.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, Request, Resource as _};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use super::{Api, escape};

/// Aggregated discovery: one response for all groups, since Kubernetes 1.30. kube's own constant also takes the beta of
/// 1.26, which is older than what is supported.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Minimum time between two discoveries of unknown kinds.
const MIN_AGE: Duration = Duration::from_secs(1);

/// A kind of objects. Displayed as in RBAC: `pods`, `deployments.apps`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Group, version, kind and plural.
    pub resource: ApiResource,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
    /// Supported verbs: list, watch, delete, …
    pub verbs: Vec<String>,
}

impl Kind {
    /// Whether the API server supports a verb for it at all.
    #[must_use]
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    /// Builder of requests to the collection. An empty namespace means all.
    pub(crate) fn requests(&self, namespace: &str) -> Request {
        let namespace = Some(namespace).filter(|it| self.namespaced && !it.is_empty());
        let namespace = namespace.map(escape);
        Request::new(DynamicObject::url_path(
            &self.resource,
            namespace.as_deref(),
        ))
    }

    /// A namespaced kind of the core group.
    #[cfg(test)]
    pub(crate) fn core(kind: &str, plural: &str) -> Arc<Self> {
        let gvk = GroupVersionKind::gvk("", "v1", kind);
        Arc::new(Self {
            resource: ApiResource::from_gvk_with_plural(&gvk, plural),
            namespaced: true,
            verbs: Vec::new(),
        })
    }

    /// Display name of an object: `statefulset/db-1`.
    #[must_use]
    pub fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.resource.kind.to_ascii_lowercase())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource.plural)?;
        if !self.resource.group.is_empty() {
            write!(f, ".{}", self.resource.group)?;
        }
        Ok(())
    }
}

/// The kinds that the API server serves.
#[derive(Debug, Default)]
pub struct Kinds {
    /// In order of preference: the first of several versions of a group wins.
    all: Vec<Arc<Kind>>,
    by_object: HashMap<(String, String), Arc<Kind>>,
}

impl Kinds {
    /// `kinds` has to be in order of preference.
    #[must_use]
    pub fn new(kinds: Vec<Kind>) -> Self {
        let all: Vec<_> = kinds.into_iter().map(Arc::new).collect();
        let by_object = all
            .iter()
            .map(|kind| {
                let it = &kind.resource;
                ((it.api_version.clone(), it.kind.clone()), Arc::clone(kind))
            })
            .collect();
        Self { all, by_object }
    }

    /// Looks up a kind by `apiVersion` and `kind` of an object.
    #[must_use]
    pub fn of(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        self.by_object
            .get(&(api_version.to_owned(), kind.to_owned()))
            .cloned()
    }

    /// Looks up a kind by a name as in the settings: `plural`, `plural.group` or `plural.version.group`.
    ///
    /// # Errors
    /// `Invalid` if the API server does not serve it.
    pub fn named(&self, name: &str) -> Result<Arc<Kind>> {
        let (plural, rest) = name.split_once('.').unwrap_or((name, ""));
        let find = |version: Option<&str>, group: &str| {
            self.all.iter().find(|kind| {
                let it = &kind.resource;
                it.plural == plural
                    && it.group == group
                    && version.is_none_or(|version| it.version == version)
            })
        };
        let (version, group) = rest.split_once('.').unwrap_or((rest, ""));
        let found = find(None, rest).or_else(|| find(Some(version), group));
        found.cloned().ok_or_else(|| {
            Error::invalid(
                "kinds",
                format!("the API server does not serve {name:?}; expected plural, plural.group or plural.version.group"),
            )
        })
    }

    /// All kinds, in order of preference.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.all.iter()
    }
}

/// The last result, and when it was read.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<Option<(Instant, Arc<Kinds>)>>);

impl Cache {
    pub(super) async fn get(&self, api: &Api) -> Result<Arc<Kinds>> {
        let known = self.0.lock().as_ref().map(|(_, kinds)| Arc::clone(kinds));
        match known {
            Some(kinds) => Ok(kinds),
            None => self.refresh(api).await,
        }
    }

    /// Repeats discovery, at most once a second.
    pub(super) async fn refresh(&self, api: &Api) -> Result<Arc<Kinds>> {
        if let Some((read, kinds)) = self.0.lock().as_ref()
            && read.elapsed() < MIN_AGE
        {
            return Ok(Arc::clone(kinds));
        }
        // The same two calls as kube's `Discovery`, but with our errors.
        let (core, groups) = futures::try_join!(
            api.read_path::<Groups>("/api", AGGREGATED),
            api.read_path::<Groups>("/apis", AGGREGATED)
        )?;
        if core.items.is_empty() {
            return Err(Error::new(
                Reason::Precondition,
                "the API server does not say what it serves in one answer; Kubernetes 1.30 or newer is needed",
            ));
        }
        let kinds = core.items.into_iter().chain(groups.items);
        let kinds = Arc::new(Kinds::new(kinds.flat_map(kinds_of).collect()));
        *self.0.lock() = Some((Instant::now(), Arc::clone(&kinds)));
        Ok(kinds)
    }
}

/// Ours, because kube's types refuse the whole answer if one extension server lists something without verbs (`null`).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Groups {
    items: Vec<Group>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Group {
    metadata: GroupMeta,
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GroupMeta {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Version {
    version: String,
    #[serde(deserialize_with = "super::nullable")]
    resources: Vec<Resource>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Resource {
    resource: String,
    #[serde(deserialize_with = "super::nullable")]
    response_kind: ResponseKind,
    scope: String,
    #[serde(deserialize_with = "super::nullable")]
    verbs: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseKind {
    kind: String,
}

fn kinds_of(group: Group) -> impl Iterator<Item = Kind> {
    let name = group.metadata.name;
    group.versions.into_iter().flat_map(move |version| {
        let group = name.clone();
        let number = version.version;
        version.resources.into_iter().map(move |resource| {
            let gvk = GroupVersionKind::gvk(&group, &number, &resource.response_kind.kind);
            Kind {
                resource: ApiResource::from_gvk_with_plural(&gvk, &resource.resource),
                namespaced: resource.scope == "Namespaced",
                verbs: resource.verbs,
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use kube::api::GetParams;

    use super::*;

    #[test]
    fn an_extension_that_lists_something_without_verbs_hides_nothing_else() {
        let answer = serde_json::json!({"items": [{
            "metadata": {"name": "extensions.example"},
            "versions": [{"version": "v1", "resources": [
                {"resource": "expand", "responseKind": null, "scope": "Namespaced", "verbs": null},
                {
                    "resource": "foos", "responseKind": {"kind": "Foo"}, "scope": "Namespaced",
                    "verbs": ["list"], "subresources": [{"subresource": "bar", "verbs": null}],
                },
            ]}, {"version": "v1beta1", "resources": null}],
        }]});
        let groups: Groups = serde_json::from_value(answer).unwrap();
        let kinds = Kinds::new(groups.items.into_iter().flat_map(kinds_of).collect());
        let foo = kinds.of("extensions.example/v1", "Foo").unwrap();
        assert!(foo.can("list") && foo.namespaced);
        assert!(!kinds.named("expand.extensions.example").unwrap().can("get"));
    }

    #[test]
    fn what_is_no_name_cannot_lead_elsewhere() {
        let pods = Kind::core("Pod", "pods");
        let one = pods
            .requests("a/b")
            .get(&escape("../x?y"), &GetParams::default());
        assert_eq!(
            one.unwrap().uri(),
            "/api/v1/namespaces/a%2Fb/pods/..%2Fx%3Fy"
        );
        assert_eq!(pods.requests("").url_path, "/api/v1/pods");
    }
}
