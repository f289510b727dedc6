//! HTTPRoutes of the Gateway API, to and from the model. One of ours has one host: the leading one, whose annotation is the
//! truth of the whole rule, and as many behind it as its paths need.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use drover_core::{Error, Reason, Result};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    ResourceExt,
    core::{DynamicObject, ObjectMeta},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    discovery::Kind,
    meta::{self, INGRESS},
    rule::{
        Holder, Key, MAX_PATHS, MAX_ROUTE_RULES, Matching, Path, Paths, Port, Rules, ServicePort,
        Target,
    },
};

/// Annotation of a leading HTTPRoute: the [`Truth`] as JSON.
pub(super) const PATHS: &str = "drover.dev/paths";
/// Annotation of an HTTPRoute behind another: the name of that one.
pub(super) const BEHIND: &str = "drover.dev/paths-behind";
/// Annotation of an HTTPRoute behind another: the version of the truth that it shows.
pub(super) const VERSION: &str = "drover.dev/paths-version";

/// Most HTTPRoutes of a host: not even one path in each would need more.
const MAX_ROUTES: usize = MAX_PATHS + 1;

/// All paths of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Truth {
    /// Counts writes, so that nobody overwrites what follows from a later one.
    #[serde(rename = "v")]
    pub(super) version: u64,
    /// How many HTTPRoutes there may be, the leading one included.
    #[serde(rename = "n")]
    pub(super) routes: usize,
    #[serde(rename = "p")]
    paths: Vec<Entry>,
}

/// The HTTPRoute that shows it (0 is the leading one), path, type, service, port, name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry(usize, String, String, String, u16, Option<String>);

impl Entry {
    fn path(&self) -> Option<Path> {
        let Self(_, path, word, service, port, name) = self;
        Some(Path {
            key: Key {
                path: path.clone(),
                matching: Matching::of_word(word)?,
            },
            name: name.clone(),
            target: Target::Service(ServicePort {
                name: service.clone(),
                port: Port::Number(*port),
            }),
            raw: None,
        })
    }
}

impl Truth {
    /// The truth of a leading HTTPRoute; `None` of any other.
    pub(super) fn of(object: &DynamicObject) -> Result<Option<Self>> {
        let Some(text) = object.annotations().get(PATHS) else {
            return Ok(None);
        };
        let truth = serde_json::from_str(text).ok();
        truth.filter(Self::is_sound).map(Some).ok_or_else(|| {
            let name = object.name_any();
            let message = format!(
                "the annotation {PATHS} of the HTTPRoute {name:?} cannot be read; remove it, and the rules that the object shows count"
            );
            Error::new(Reason::Precondition, message).with_resource("HTTPRoute", name)
        })
    }

    /// Whether a server may have written it. Anybody may, and what it counts is counted to.
    fn is_sound(&self) -> bool {
        let sound = |entry: &Entry| entry.0 < self.routes && entry.path().is_some();
        self.version < u64::MAX && self.routes <= MAX_ROUTES && self.paths.iter().all(sound)
    }

    fn entries(&self) -> Vec<Path> {
        self.paths.iter().filter_map(Entry::path).collect()
    }

    /// The next truth. A path stays in the HTTPRoute that shows it, so that a change touches few of them.
    pub(super) fn next(&self, paths: &Paths) -> Self {
        let known: HashMap<(&str, &str), usize> = self
            .paths
            .iter()
            .map(|Entry(route, path, word, ..)| ((path.as_str(), word.as_str()), *route))
            .collect();
        let place = |key: &Key| {
            known
                .get(&(key.path.as_str(), key.matching.word()))
                .copied()
        };
        let mut used: BTreeMap<usize, usize> = BTreeMap::new();
        for path in &paths.entries {
            if let Some(route) = place(&path.key) {
                *used.entry(route).or_default() += 1;
            }
        }
        let mut entries = Vec::with_capacity(paths.entries.len());
        for path in &paths.entries {
            let Target::Service(ServicePort {
                name: service,
                port: Port::Number(port),
            }) = &path.target
            else {
                continue;
            };
            let route = place(&path.key).unwrap_or_else(|| {
                let free = |route: &usize| used.get(route).is_none_or(|n| *n < MAX_ROUTE_RULES);
                let route = (0..).find(free).unwrap_or_default();
                *used.entry(route).or_default() += 1;
                route
            });
            let Key {
                path: key,
                matching,
            } = &path.key;
            let word = matching.word().to_owned();
            let name = path.name.clone();
            entries.push(Entry(
                route,
                key.clone(),
                word,
                service.clone(),
                *port,
                name,
            ));
        }
        let mut next = Self {
            version: self.version.saturating_add(1),
            routes: self.routes,
            paths: entries,
        };
        next.routes = next.routes.max(next.needed());
        next
    }

    /// The HTTPRoutes that it needs.
    fn needed(&self) -> usize {
        self.paths
            .iter()
            .map(|entry| entry.0.saturating_add(1))
            .max()
            .unwrap_or(1)
    }

    /// The rules that one of its HTTPRoutes shows.
    pub(super) fn shown(&self, route: usize) -> Vec<Value> {
        let here = self.paths.iter().filter(|entry| entry.0 == route);
        here.filter_map(Entry::path)
            .filter_map(|path| raw(&path))
            .collect()
    }

    fn annotation(&self) -> String {
        // Texts and numbers always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Whether an HTTPRoute follows from a leading one.
pub(super) fn is_behind(object: &DynamicObject) -> bool {
    object.annotations().contains_key(BEHIND)
}

/// The hosts of an HTTPRoute or, empty, every host.
pub(super) fn hosts(object: &DynamicObject) -> Vec<String> {
    let hosts = object.data["spec"]["hostnames"].as_array();
    let hosts: BTreeSet<String> = hosts
        .into_iter()
        .flatten()
        .filter_map(|host| host.as_str().map(str::to_owned))
        .collect();
    if hosts.is_empty() {
        return vec![String::new()];
    }
    hosts.into_iter().collect()
}

/// The rules of an HTTPRoute: its paths, for each of its hosts.
pub(super) fn rules(object: &DynamicObject) -> Result<Rules> {
    let paths = match Truth::of(object)? {
        Some(truth) => Paths::of(truth.entries(), Holder::Any),
        None => {
            let namespace = object.namespace().unwrap_or_default();
            let rules = object.data["spec"]["rules"].as_array();
            let rules = rules.into_iter().flatten();
            let entries = rules.map(|rule| path(rule, &namespace)).collect();
            Paths::of(entries, Holder::ForeignRoute)
        }
    };
    let hosts = hosts(object).into_iter();
    Ok(hosts.map(|host| (host, paths.clone())).collect())
}

fn only(value: &Value, fields: &[&str]) -> bool {
    value
        .as_object()
        .is_some_and(|object| object.keys().all(|key| fields.contains(&key.as_str())))
}

/// The only element of a list.
fn single(list: &Value) -> Option<&Value> {
    list.as_array().filter(|all| all.len() == 1)?.first()
}

fn path(rule: &Value, namespace: &str) -> Path {
    let matches = &rule["matches"];
    let first = &matches[0]["path"];
    let word = first["type"].as_str().unwrap_or("PathPrefix");
    let matching = matching(word);
    let plain = only(rule, &["name", "matches", "backendRefs"])
        && (matches.is_null() || single(matches).is_some_and(|it| only(it, &["path"])))
        && (first.is_null() || only(first, &["type", "value"]));
    let target = matching
        .filter(|_| plain)
        .and_then(|_| service(rule, namespace));
    Path {
        key: Key {
            path: first["value"].as_str().unwrap_or("/").to_owned(),
            matching: matching.unwrap_or(Matching::Prefix),
        },
        name: rule["name"].as_str().map(str::to_owned),
        target: target.map_or(Target::Opaque, Target::Service),
        raw: Some(rule.clone()),
    }
}

fn matching(word: &str) -> Option<Matching> {
    match word {
        "PathPrefix" => Some(Matching::Prefix),
        "Exact" => Some(Matching::Exact),
        "RegularExpression" => Some(Matching::Regex),
        _ => None,
    }
}

/// The service of a rule, if the whole traffic goes to it and to nothing else.
fn service(rule: &Value, namespace: &str) -> Option<ServicePort> {
    let backend = single(&rule["backendRefs"])?;
    let fields = ["group", "kind", "name", "namespace", "port", "weight"];
    let is = |field: &str, usual: Value| backend[field].is_null() || backend[field] == usual;
    let plain = only(backend, &fields)
        && is("group", json!(""))
        && is("kind", json!("Service"))
        && is("namespace", json!(namespace))
        && is("weight", json!(1));
    let port = backend["port"].as_u64().filter(|_| plain)?;
    Some(ServicePort {
        name: backend["name"].as_str()?.to_owned(),
        port: Port::Number(u16::try_from(port).ok()?),
    })
}

fn raw(path: &Path) -> Option<Value> {
    if path.raw.is_some() {
        return path.raw.clone();
    }
    let kind = match path.key.matching {
        Matching::Prefix => "PathPrefix",
        Matching::Exact => "Exact",
        Matching::Regex => "RegularExpression",
        Matching::Specific => return None,
    };
    let Target::Service(ServicePort {
        name,
        port: Port::Number(port),
    }) = &path.target
    else {
        return None;
    };
    let mut rule = json!({
        "matches": [{"path": {"type": kind, "value": path.key.path}}],
        "backendRefs": [{"name": name, "port": port}],
    });
    if let Some(name) = &path.name {
        rule["name"] = json!(name);
    }
    Some(rule)
}

/// A merge patch that makes the paths of an HTTPRoute these.
pub(super) fn patch(object: &DynamicObject, paths: &Paths) -> Result<Value> {
    let mut patch = json!({"metadata": {"resourceVersion": object.metadata.resource_version}});
    let rules = match Truth::of(object)? {
        Some(truth) => {
            let truth = truth.next(paths);
            patch["metadata"]["annotations"] = json!({PATHS: truth.annotation()});
            truth.shown(0)
        }
        None => paths.entries.iter().filter_map(raw).collect(),
    };
    patch["spec"] = json!({"rules": rules});
    Ok(patch)
}

/// A leading HTTPRoute. `routes`: how many of its name there may be from earlier.
pub(super) fn leading(
    metadata: ObjectMeta,
    host: &str,
    parents: &Value,
    paths: &Paths,
    routes: usize,
) -> DynamicObject {
    let earlier = Truth {
        routes,
        ..Truth::default()
    };
    let truth = earlier.next(paths);
    let mut metadata = metadata;
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(PATHS.to_owned(), truth.annotation());
    route(metadata, host, parents, truth.shown(0))
}

fn route(metadata: ObjectMeta, host: &str, parents: &Value, rules: Vec<Value>) -> DynamicObject {
    let mut spec = json!({"parentRefs": parents, "rules": rules});
    if !host.is_empty() {
        spec["hostnames"] = json!([host]);
    }
    meta::object(Kind::HttpRoute, metadata, spec)
}

/// Name of the HTTPRoute that an ingress has for a host beside the one of its own name.
pub(super) fn name_for(ingress: &str, host: &str) -> String {
    format!("{ingress}-{}", meta::hash(host))
}

/// Name of an HTTPRoute behind the leading one of a host.
pub(super) fn name_behind(ingress: &str, host: &str, route: usize) -> String {
    format!("{}-{}", name_for(ingress, host), route + 1)
}

/// How many HTTPRoutes a host has, by the names of those behind its leading one.
pub(super) fn count<'a>(behind: impl Iterator<Item = &'a DynamicObject>) -> usize {
    let number = |object: &DynamicObject| {
        let name = object.name_any();
        name.rsplit_once('-')
            .and_then(|(_, number)| number.parse().ok())
            .filter(|number| *number <= MAX_ROUTES)
    };
    behind.filter_map(number).max().unwrap_or(1)
}

/// The HTTPRoute that shows a part of the truth behind its leading one.
pub(super) fn behind(leading: &DynamicObject, truth: &Truth, route: usize) -> DynamicObject {
    let name = leading.name_any();
    let owner = OwnerReference {
        api_version: "gateway.networking.k8s.io/v1".to_owned(),
        kind: Kind::HttpRoute.name().to_owned(),
        name: name.clone(),
        uid: leading.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let ingress = leading.annotations().get(INGRESS).cloned();
    let annotations = [
        (INGRESS, ingress.unwrap_or_default()),
        (BEHIND, name.clone()),
        (VERSION, truth.version.to_string()),
    ];
    let annotations = annotations.map(|(key, text)| (key.to_owned(), text));
    let host = hosts(leading).into_iter().next().unwrap_or_default();
    let metadata = ObjectMeta {
        name: Some(name_behind(&meta::ingress_of(leading), &host, route)),
        namespace: leading.namespace(),
        labels: leading.metadata.labels.clone(),
        annotations: Some(annotations.into()),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    let parents = &leading.data["spec"]["parentRefs"];
    self::route(metadata, &host, parents, truth.shown(route))
}

/// What a route behind a leading one has of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    /// Something older, or what somebody changed by hand.
    Otherwise,
    /// What it has to.
    This,
    /// What follows from a later truth, of this version, as it says itself.
    Later(u64),
}

/// How a route behind a leading one stands to what it should be.
pub(super) fn shows(object: &DynamicObject, wanted: &DynamicObject, truth: &Truth) -> Shows {
    let uid = |object: &DynamicObject| {
        let owners = object.owner_references().iter();
        owners.map(|owner| owner.uid.clone()).next()
    };
    let annotations = object.annotations();
    let version: Option<u64> = annotations.get(VERSION).and_then(|text| text.parse().ok());
    let ours = uid(object) == uid(wanted);
    if let Some(version) = version.filter(|version| ours && *version > truth.version) {
        return Shows::Later(version);
    }
    let same = ours
        && annotations.get(BEHIND) == wanted.annotations().get(BEHIND)
        && content(object) == content(wanted)
        && parents(object) == parents(wanted);
    if same { Shows::This } else { Shows::Otherwise }
}

/// Hosts and paths, without the defaults that the API server adds.
fn content(object: &DynamicObject) -> impl PartialEq + use<> {
    let namespace = object.namespace().unwrap_or_default();
    let rules = object.data["spec"]["rules"].as_array();
    let rules = rules.into_iter().flatten().map(|rule| {
        let path = path(rule, &namespace);
        (path.key, path.name, path.target)
    });
    (hosts(object), rules.collect::<Vec<_>>())
}

/// The parents of an HTTPRoute, as `NAMESPACE/NAME`, with what else tells them apart.
pub(super) fn parents(object: &DynamicObject) -> Vec<(String, Value)> {
    let own = object.namespace().unwrap_or_default();
    let parents = object.data["spec"]["parentRefs"].as_array();
    let parents = parents.into_iter().flatten().map(|parent| {
        let namespace = parent["namespace"].as_str().unwrap_or(&own);
        let name = parent["name"].as_str().unwrap_or_default();
        let section = json!([parent["sectionName"], parent["port"]]);
        (format!("{namespace}/{name}"), section)
    });
    parents.collect()
}

/// The parent that a class name `NAMESPACE/NAME` means.
pub(super) fn parent(class_name: &str) -> Option<Value> {
    let (namespace, name) = class_name.split_once('/')?;
    let plain = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
    plain.then(|| json!([{"namespace": namespace, "name": name}]))
}

#[cfg(test)]
mod tests;
