//! Discovery of the kinds that the API server serves.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use super::{Api, escape};

/// Aggregated discovery: one response for all groups, since Kubernetes 1.30.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Minimum time between two discoveries of unknown kinds.
const MIN_AGE: Duration = Duration::from_secs(1);

/// A kind of objects. Displayed as in RBAC: `pods`, `deployments.apps`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// API group (apps). Empty for the core group.
    pub group: String,
    /// API version (v1).
    pub version: String,
    /// Resource name in paths (deployments).
    pub plural: String,
    /// Kind in objects (Deployment).
    pub kind: String,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
    /// Supported verbs: list, watch, delete, …
    pub verbs: Vec<String>,
}

impl Kind {
    /// `apiVersion` of its objects (`apps/v1`).
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Whether the API server supports a verb for it at all.
    #[must_use]
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    /// Path of the collection, or of one object. An empty namespace means all.
    #[must_use]
    pub fn path(&self, namespace: &str, name: Option<&str>) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if self.namespaced && !namespace.is_empty() {
            path.push_str("/namespaces/");
            path.push_str(&escape(namespace));
        }
        path.push('/');
        path.push_str(&self.plural);
        if let Some(name) = name {
            path.push('/');
            path.push_str(&escape(name));
        }
        path
    }

    /// Display name of an object: `statefulset/db-1`.
    #[must_use]
    pub fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.kind.to_ascii_lowercase())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
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
            .map(|kind| ((kind.api_version(), kind.kind.clone()), Arc::clone(kind)))
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
        let group = self
            .all
            .iter()
            .find(|kind| kind.plural == plural && kind.group == rest);
        let versioned = || {
            let (version, group) = rest.split_once('.').unwrap_or((rest, ""));
            self.all.iter().find(|kind| {
                kind.plural == plural && kind.version == version && kind.group == group
            })
        };
        group.or_else(versioned).cloned().ok_or_else(|| {
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
        let kinds = Arc::new(Kinds::new(kinds.flat_map(Group::kinds).collect()));
        *self.0.lock() = Some((Instant::now(), Arc::clone(&kinds)));
        Ok(kinds)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Groups {
    items: Vec<Group>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Group {
    metadata: super::Meta,
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Version {
    version: String,
    resources: Vec<Resource>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Resource {
    resource: String,
    response_kind: ResponseKind,
    scope: String,
    verbs: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseKind {
    kind: String,
}

impl Group {
    fn kinds(self) -> Vec<Kind> {
        let group = self.metadata.name;
        self.versions
            .into_iter()
            .flat_map(|version| {
                let group = group.clone();
                version.resources.into_iter().map(move |resource| Kind {
                    group: group.clone(),
                    version: version.version.clone(),
                    plural: resource.resource,
                    kind: resource.response_kind.kind,
                    namespaced: resource.scope == "Namespaced",
                    verbs: resource.verbs,
                })
            })
            .collect()
    }
}
