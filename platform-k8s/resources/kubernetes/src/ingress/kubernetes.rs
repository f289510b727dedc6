//! Ingresses of Kubernetes, to and from the model. Types of k8s-openapi say what is known; the object itself is only
//! patched, so that what they do not know stays.

use std::collections::BTreeMap;

use drover_core::{Error, Result};
use drover_proto::kubernetes::v1 as api;
use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressRule,
    IngressServiceBackend, IngressSpec, IngressTLS, ServiceBackendPort,
};
use kube::core::{DynamicObject, ObjectMeta};
use serde_json::{Map, Value, json};

use super::rule::{Key, Matching, Path, Paths, Port, Rules, ServicePort, Target};

/// Annotation: names of paths, as JSON, by host and then by type and path.
pub(super) const NAMES: &str = "drover.dev/path-names";

/// Names by host, and by [`label`].
type Names = BTreeMap<String, BTreeMap<String, String>>;

/// What a path's name stands under in [`NAMES`].
fn label(key: &Key) -> String {
    format!("{} {}", key.matching.word(), key.path)
}

/// The rules of an Ingress. Rules of the same host are one.
pub(super) fn rules(object: &DynamicObject) -> Rules {
    let names = names(object);
    let mut rules = Rules::new();
    for rule in raw_rules(object) {
        let host = host(rule);
        let named = names.get(host);
        let raw = rule["http"]["paths"].as_array();
        let paths = raw.into_iter().flatten().map(|raw| path(raw, named));
        rules
            .entry(host.to_owned())
            .or_insert_with(Paths::new)
            .entries
            .extend(paths);
    }
    rules
}

fn names(object: &DynamicObject) -> Names {
    let annotations = object.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(NAMES));
    // Whoever spoils it loses names, not paths.
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

fn raw_rules(object: &DynamicObject) -> &[Value] {
    object.data["spec"]["rules"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

fn host(rule: &Value) -> &str {
    rule["host"].as_str().unwrap_or_default()
}

fn path(raw: &Value, names: Option<&BTreeMap<String, String>>) -> Path {
    let word = raw["pathType"].as_str().unwrap_or_default();
    let matching = Matching::of_word(word).filter(|it| *it != Matching::Regex);
    let key = Key {
        path: raw["path"].as_str().unwrap_or_default().to_owned(),
        matching: matching.unwrap_or(Matching::Specific),
    };
    let target = matching.and_then(|_| service(raw));
    Path {
        name: names.and_then(|names| names.get(&label(&key)).cloned()),
        key,
        target: target.map_or(Target::Opaque, Target::Service),
        raw: Some(raw.clone()),
    }
}

/// The service of a path, if path and service are all that it says.
fn service(raw: &Value) -> Option<ServicePort> {
    let known: HTTPIngressPath = serde_json::from_value(raw.clone()).ok()?;
    if serde_json::to_value(&known).ok().as_ref() != Some(raw) {
        return None;
    }
    let IngressBackend { resource, service } = known.backend;
    let service = service.filter(|_| resource.is_none())?;
    let ServiceBackendPort { name, number } = service.port?;
    let port = match (name, number) {
        (None, Some(number)) => Port::Number(u16::try_from(number).ok()?),
        (Some(name), None) => Port::Name(name),
        (None, None) | (Some(_), Some(_)) => return None,
    };
    Some(ServicePort {
        name: service.name,
        port,
    })
}

/// A merge patch that makes the rules of `before` those of `after`.
pub(super) fn patch(object: &DynamicObject, before: &Rules, after: &Rules) -> Value {
    let mut raw = raw_rules(object).to_vec();
    let goes = |host: &str| before.contains_key(host) && !after.contains_key(host);
    raw.retain(|rule| !goes(host(rule)));
    for (host, paths) in after {
        if before.get(host) == Some(paths) {
            continue;
        }
        let http = (!paths.entries.is_empty()).then(|| json!({"paths": raw_paths(paths)}));
        let of_host = |rule: &Value| self::host(rule) == host;
        let first = raw.iter().position(of_host);
        let first = first.unwrap_or_else(|| {
            let rule = if host.is_empty() {
                json!({})
            } else {
                json!({"host": host})
            };
            raw.push(rule);
            raw.len() - 1
        });
        set(&mut raw[first], "http", http);
        let mut at = 0;
        raw.retain(|rule| {
            at += 1;
            at - 1 <= first || !of_host(rule)
        });
    }
    let mut patch = json!({
        "metadata": {"resourceVersion": object.metadata.resource_version},
        "spec": {"rules": raw},
    });
    let new = annotation(after);
    let annotations = object.metadata.annotations.as_ref();
    if annotations.and_then(|all| all.get(NAMES)) != new.as_ref() {
        patch["metadata"]["annotations"] = json!({NAMES: new});
    }
    patch
}

fn set(rule: &mut Value, field: &str, value: Option<Value>) {
    let Some(fields) = rule.as_object_mut() else {
        return;
    };
    match value {
        None => {
            // Its place in the order does not matter.
            fields.remove(field);
        }
        Some(value) => merge(fields, field, value),
    }
}

/// Keeps what is beside the value's own fields.
fn merge(fields: &mut Map<String, Value>, field: &str, value: Value) {
    match (fields.get_mut(field), value) {
        (Some(Value::Object(old)), Value::Object(new)) => old.extend(new),
        (_, value) => {
            fields.insert(field.to_owned(), value);
        }
    }
}

fn raw_paths(paths: &Paths) -> Vec<Value> {
    let raw = |path: &Path| {
        path.raw
            .clone()
            .or_else(|| serde_json::to_value(typed(path)?).ok())
    };
    paths.entries.iter().filter_map(raw).collect()
}

/// `None` for what only its raw form can say.
fn typed(path: &Path) -> Option<HTTPIngressPath> {
    let service = match &path.target {
        Target::Service(service) => service,
        Target::Upstream(_) | Target::Opaque => return None,
    };
    let (name, number) = match &service.port {
        Port::Number(number) => (None, Some(i32::from(*number))),
        Port::Name(name) => (Some(name.clone()), None),
    };
    let Key { path, matching } = &path.key;
    Some(HTTPIngressPath {
        backend: IngressBackend {
            resource: None,
            service: Some(IngressServiceBackend {
                name: service.name.clone(),
                port: Some(ServiceBackendPort { name, number }),
            }),
        },
        path: (!path.is_empty()).then(|| path.clone()),
        path_type: matching.word().to_owned(),
    })
}

fn annotation(rules: &Rules) -> Option<String> {
    let mut names = Names::new();
    for (host, paths) in rules {
        for path in &paths.entries {
            if let Some(name) = &path.name {
                let of_host = names.entry(host.clone()).or_default();
                of_host.insert(label(&path.key), name.clone());
            }
        }
    }
    // A map of strings always serialises.
    (!names.is_empty()).then(|| serde_json::to_string(&names).unwrap_or_default())
}

/// A new Ingress.
pub(super) fn object(
    metadata: ObjectMeta,
    rules: &Rules,
    tls: &[api::IngressTls],
    class_name: &str,
) -> Result<DynamicObject> {
    let rule = |(host, paths): (&String, &Paths)| IngressRule {
        host: (!host.is_empty()).then(|| host.clone()),
        http: (!paths.entries.is_empty()).then(|| HTTPIngressRuleValue {
            paths: paths.entries.iter().filter_map(typed).collect(),
        }),
    };
    let tls = tls.iter().map(|tls| IngressTLS {
        hosts: Some(tls.hosts.clone()),
        secret_name: Some(tls.secret.clone()),
    });
    let mut metadata = metadata;
    if let Some(names) = annotation(rules) {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(NAMES.to_owned(), names);
    }
    let ingress = Ingress {
        metadata,
        spec: Some(IngressSpec {
            default_backend: None,
            ingress_class_name: (!class_name.is_empty()).then(|| class_name.to_owned()),
            rules: Some(rules.iter().map(rule).collect()),
            tls: Some(tls.collect::<Vec<_>>()).filter(|tls| !tls.is_empty()),
        }),
        status: None,
    };
    serde_json::to_value(ingress)
        .and_then(serde_json::from_value)
        .map_err(|error| Error::internal(format!("an Ingress does not serialise: {error}")))
}

/// The parts of the message beside metadata and rules.
pub(super) fn about(object: &DynamicObject) -> api::Ingress {
    let spec = &object.data["spec"];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let tls = list(&spec["tls"]).into_iter().map(|tls| api::IngressTls {
        hosts: list(&tls["hosts"]).iter().map(text).collect(),
        secret: text(&tls["secretName"]),
    });
    let addresses = list(&object.data["status"]["loadBalancer"]["ingress"]);
    let addresses = addresses.iter().map(|it| {
        let ip = it["ip"].as_str();
        ip.or(it["hostname"].as_str())
            .unwrap_or_default()
            .to_owned()
    });
    api::Ingress {
        tls: tls.collect(),
        class_name: text(&spec["ingressClassName"]),
        addresses: addresses.filter(|it| !it.is_empty()).collect(),
        ..api::Ingress::default()
    }
}

/// The hosts that the Ingress routes.
pub(super) fn hosts(object: &DynamicObject) -> impl Iterator<Item = &str> {
    raw_rules(object).iter().map(host)
}

#[cfg(test)]
mod tests;
