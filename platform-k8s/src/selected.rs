//! Labels that services and network policies select by, so that no declared label of a cluster decides where traffic
//! goes.

use std::collections::BTreeSet;

use drover_core::Result;
use serde::Deserialize;
use serde_json::{Map, Value};
use tracing::warn;

use crate::{client::Api, errors, labels::declared::Plain, settings::Settings};

/// Kinds that select pods by their labels: `apiVersion`, `kind`, plural.
const SELECTING: [(&str, &str, &str); 2] = [
    ("v1", "Service", "services"),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
];

/// An object with selectors.
#[derive(Clone, Deserialize)]
struct Selecting {
    #[serde(default)]
    spec: Value,
}

/// The declared keys that objects may have under their own names: those that the settings allow, and that nothing
/// selects by in the namespaces of nodes.
///
/// # Errors
/// See [`crate::errors`], except for missing permissions: then only the settings decide.
pub(crate) async fn plain<'a>(
    api: &Api,
    settings: &Settings,
    declared: impl IntoIterator<Item = &'a String>,
) -> Result<Plain> {
    let plain = Plain::of(declared, &settings.plain_labels);
    if plain.is_empty() {
        return Ok(plain);
    }
    let mut keys = BTreeSet::new();
    for (version, kind, _) in SELECTING {
        let kind = api.kind_of(version, kind).await?;
        for namespace in settings.scopes() {
            let read = api.list_json::<Selecting>(&kind, namespace.unwrap_or_default());
            match read.await {
                Ok(objects) => {
                    for object in objects {
                        selected(&kind.resource.kind, &object.spec, &mut keys);
                    }
                }
                Err(error) if errors::is_forbidden(&error) => {
                    warn!(%error, "labels of plain_labels are not compared with what selects by labels");
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(plain.without(&keys))
}

/// Selecting kinds that the credentials may not read, for people.
pub(crate) async fn unseen(api: &Api, settings: &Settings) -> Vec<String> {
    let mut unseen = Vec::new();
    if settings.plain_labels.is_empty() {
        return unseen;
    }
    for (version, _, plural) in SELECTING {
        let group = version.rsplit_once('/').map_or("", |(group, _)| group);
        for namespace in settings.scopes() {
            let namespace = namespace.unwrap_or_default();
            if !api.may_with("list", (group, plural), "", namespace).await {
                let place = match namespace {
                    "" => "all namespaces".to_owned(),
                    namespace => format!("namespace {namespace:?}"),
                };
                unseen.push(format!(
                    "{plural} in {place} may not be listed: labels of plain_labels are put onto nodes even if some of them \
                     select by these"
                ));
            }
        }
    }
    unseen
}

/// Collects the keys that an object to be created selects by.
pub(crate) fn by(kind: &str, body: &Map<String, Value>, keys: &mut BTreeSet<String>) {
    selected(kind, body.get("spec").unwrap_or(&Value::Null), keys);
}

fn selected(kind: &str, spec: &Value, keys: &mut BTreeSet<String>) {
    match kind {
        "Service" => matched(spec.get("selector"), keys),
        "NetworkPolicy" => pod_selectors(spec, keys),
        _ => {}
    }
}

/// Collects all pod selectors in a policy: of its target, its sources and its destinations.
fn pod_selectors(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if name == "podSelector" {
                    matched(value.get("matchLabels"), keys);
                    let expressions = value.get("matchExpressions").and_then(Value::as_array);
                    let expressions = expressions.into_iter().flatten();
                    let named = expressions.filter_map(|it| it.get("key")?.as_str());
                    keys.extend(named.map(str::to_owned));
                } else {
                    pod_selectors(value, keys);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| pod_selectors(value, keys)),
        _ => {}
    }
}

fn matched(labels: Option<&Value>, keys: &mut BTreeSet<String>) {
    let labels = labels.and_then(Value::as_object).into_iter().flatten();
    keys.extend(labels.map(|(key, _)| key.clone()));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys(kind: &str, spec: Value) -> Vec<String> {
        let mut keys = BTreeSet::new();
        selected(kind, &spec, &mut keys);
        keys.into_iter().collect()
    }

    #[test]
    fn every_way_to_select_pods_is_seen() {
        assert_eq!(
            keys("Service", json!({"selector": {"a": "x", "b": "y"}})),
            ["a", "b"]
        );
        assert!(keys("Service", json!({"selector": null})).is_empty());
        assert!(keys("Service", Value::Null).is_empty());
        let policy = json!({
            "podSelector": {"matchLabels": {"a": "x"}},
            "ingress": [{"from": [
                {"podSelector": {"matchExpressions": [{"key": "b", "operator": "Exists"}]}},
                {"namespaceSelector": {"matchLabels": {"ns": "x"}}},
            ]}],
            "egress": [{"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"c": "x"}}}]}],
        });
        assert_eq!(keys("NetworkPolicy", policy), ["a", "b", "c"]);
        assert!(keys("Deployment", json!({"selector": {"a": "x"}})).is_empty());
    }
}
