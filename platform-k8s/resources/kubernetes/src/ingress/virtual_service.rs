//! VirtualServices of Gloo, to and from the model.

use std::collections::{BTreeMap, BTreeSet};

use drover_proto::kubernetes::v1 as api;
use kube::{
    ResourceExt,
    core::{DynamicObject, ObjectMeta},
};
use serde_json::{Value, json};

use super::{
    discovery::Kind,
    meta,
    rule::{Holder, Key, Matching, Path, Paths, Rules, ServicePort, Target, Upstream},
};

/// Namespace and name of an upstream.
pub(super) type UpstreamName = (String, String);

/// The services that upstreams stand for, of those that stand for one in the namespace of the ingress.
pub(super) type Known = BTreeMap<UpstreamName, ServicePort>;

/// The hosts of a VirtualService; `*` is every host, as the empty name.
pub(super) fn hosts(object: &DynamicObject) -> Vec<String> {
    let domains = object.data["spec"]["virtualHost"]["domains"].as_array();
    let domains = domains.into_iter().flatten().filter_map(Value::as_str);
    let mut hosts: Vec<String> = domains
        .map(|domain| {
            if domain == "*" {
                String::new()
            } else {
                domain.to_owned()
            }
        })
        .collect();
    hosts.sort();
    hosts.dedup();
    if hosts.is_empty() {
        hosts.push(String::new());
    }
    hosts
}

/// The hosts without their ports: Gloo wants a host that has a port once with it and once without.
pub(super) fn hosts_without_ports(object: &DynamicObject) -> BTreeSet<String> {
    let bare = |host: String| match host.rsplit_once(':') {
        Some((bare, port)) if port.parse::<u16>().is_ok() => match bare {
            "*" => String::new(),
            _ => bare.to_owned(),
        },
        Some(_) | None => host,
    };
    hosts(object).into_iter().map(bare).collect()
}

/// The rules of a VirtualService: its routes, for each of its hosts.
pub(super) fn rules(object: &DynamicObject, known: &Known) -> Rules {
    let entries = raw_routes(object)
        .iter()
        .map(|raw| path(object, raw, known));
    let paths = Paths::of(entries.collect(), Holder::Any);
    let hosts = hosts(object).into_iter();
    hosts.map(|host| (host, paths.clone())).collect()
}

fn raw_routes(object: &DynamicObject) -> &[Value] {
    let routes = object.data["spec"]["virtualHost"]["routes"].as_array();
    routes.map_or(&[], Vec::as_slice)
}

/// The upstreams that routes lead to.
pub(super) fn upstreams(object: &DynamicObject) -> impl Iterator<Item = UpstreamName> {
    let routes = raw_routes(object).iter();
    routes.filter_map(|route| upstream(object, route))
}

fn path(object: &DynamicObject, raw: &Value, known: &Known) -> Path {
    let (key, plain) = key(&raw["matchers"]);
    let plain = plain && only(raw, &["name", "matchers", "routeAction"]);
    let target = upstream(object, raw).filter(|_| plain).map(|name| {
        let service = known.get(&name).cloned();
        let (namespace, name) = name;
        Target::Upstream(Upstream {
            namespace,
            name,
            service,
        })
    });
    Path {
        key,
        name: raw["name"]
            .as_str()
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
        target: target.unwrap_or(Target::Opaque),
        raw: Some(raw.clone()),
    }
}

fn only(value: &Value, fields: &[&str]) -> bool {
    value
        .as_object()
        .is_some_and(|object| object.keys().all(|key| fields.contains(&key.as_str())))
}

/// The key of matchers, and whether it is all that they say. Without any, every path matches.
fn key(matchers: &Value) -> (Key, bool) {
    let all = matchers.as_array().map_or(&[][..], Vec::as_slice);
    let Some(first) = all.first() else {
        let key = Key {
            path: "/".to_owned(),
            matching: Matching::Prefix,
        };
        return (key, true);
    };
    let kinds = [
        ("prefix", Matching::Prefix),
        ("exact", Matching::Exact),
        ("regex", Matching::Regex),
    ];
    let mut said = kinds
        .into_iter()
        .filter_map(|(field, matching)| Some((first[field].as_str()?, matching)));
    let (path, matching) = said.next().unwrap_or(("/", Matching::Prefix));
    let plain = all.len() == 1
        && first.as_object().is_some_and(|it| it.len() <= 1)
        && only(first, &["prefix", "exact", "regex"]);
    let key = Key {
        path: path.to_owned(),
        matching,
    };
    (key, plain)
}

/// The upstream of a route, if the whole traffic goes to it and to nothing else.
fn upstream(object: &DynamicObject, raw: &Value) -> Option<UpstreamName> {
    let action = &raw["routeAction"];
    let single = &action["single"];
    let upstream = &single["upstream"];
    let plain = only(action, &["single"])
        && only(single, &["upstream"])
        && only(upstream, &["name", "namespace"]);
    let name = upstream["name"].as_str().filter(|_| plain)?.to_owned();
    let namespace = match upstream["namespace"].as_str() {
        Some(namespace) if !namespace.is_empty() => namespace.to_owned(),
        Some(_) | None => object.namespace().unwrap_or_default(),
    };
    Some((namespace, name))
}

fn raw(path: &Path) -> Option<Value> {
    if path.raw.is_some() {
        return path.raw.clone();
    }
    let field = match path.key.matching {
        Matching::Prefix => "prefix",
        Matching::Exact => "exact",
        Matching::Regex => "regex",
        Matching::Specific => return None,
    };
    let upstream = match &path.target {
        Target::Upstream(upstream) => upstream,
        Target::Service(_) | Target::Opaque => return None,
    };
    let mut route = json!({
        "matchers": [{field: path.key.path}],
        "routeAction": {"single": {"upstream": {
            "name": upstream.name, "namespace": upstream.namespace,
        }}},
    });
    if let Some(name) = &path.name {
        route["name"] = json!(name);
    }
    Some(route)
}

fn raw_of(paths: &Paths) -> Vec<Value> {
    paths.entries.iter().filter_map(raw).collect()
}

/// A merge patch that makes the routes of a VirtualService these.
pub(super) fn patch(object: &DynamicObject, paths: &Paths) -> Value {
    json!({
        "metadata": {"resourceVersion": object.metadata.resource_version},
        "spec": {"virtualHost": {"routes": raw_of(paths)}},
    })
}

/// A VirtualService for one host.
pub(super) fn object(
    metadata: ObjectMeta,
    host: &str,
    paths: &Paths,
    tls: Option<&api::IngressTls>,
) -> DynamicObject {
    let domain = if host.is_empty() { "*" } else { host };
    let mut spec = json!({"virtualHost": {"domains": [domain], "routes": raw_of(paths)}});
    if let Some(tls) = tls {
        let secret = json!({"name": tls.secret, "namespace": metadata.namespace});
        spec["sslConfig"] = json!({"secretRef": secret});
        if !host.is_empty() {
            spec["sslConfig"]["sniDomains"] = json!([domain]);
        }
    }
    meta::object(Kind::VirtualService, metadata, spec)
}

/// The certificate of a VirtualService.
pub(super) fn tls(object: &DynamicObject) -> Option<api::IngressTls> {
    let ssl = &object.data["spec"]["sslConfig"];
    let secret = ssl["secretRef"]["name"].as_str()?;
    let domains = ssl["sniDomains"].as_array();
    let named: Vec<String> = domains
        .into_iter()
        .flatten()
        .filter_map(|domain| domain.as_str().map(str::to_owned))
        .collect();
    Some(api::IngressTls {
        hosts: if named.is_empty() {
            hosts(object)
        } else {
            named
        },
        secret: secret.to_owned(),
    })
}

#[cfg(test)]
mod tests;
