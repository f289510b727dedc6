//! Properties of a group on this platform.

use std::collections::BTreeMap;

use drover_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::address;

/// Properties of a group on this platform. They override the template and the node class.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Properties {
    /// Namespace of the nodes, one that the platform serves. The platform's first if absent.
    pub namespace: Option<String>,
    /// Labels that the Kubernetes node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations, as in a pod, in addition to those of the template.
    pub tolerations: Vec<Value>,
    /// Annotations of the pods.
    pub annotations: BTreeMap<String, String>,
    /// Priority class of the pods.
    pub priority_class_name: Option<String>,
    /// Runtime class of the pods.
    pub runtime_class_name: Option<String>,
    /// Service account of the pods.
    pub service_account_name: Option<String>,
    /// Resources of the first container.
    pub resources: Resources,
}

/// Resources of a container, by name (`cpu: "2"`).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// Guaranteed amounts.
    pub requests: BTreeMap<String, Quantity>,
    /// Maximum amounts.
    pub limits: BTreeMap<String, Quantity>,
}

/// A resource amount, as text or as a number.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Quantity {
    /// Text such as `500m`.
    Text(String),
    /// Number such as `2`.
    Number(serde_json::Number),
}

impl Quantity {
    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Text(text) => Value::String(text.clone()),
            Self::Number(number) => Value::String(number.to_string()),
        }
    }
}

impl Properties {
    /// Reads the properties. Errors are rare, as the JSON Schema was checked before.
    ///
    /// # Errors
    /// `Invalid` with the field.
    pub fn read(properties: Map<String, Value>) -> Result<Self> {
        let read: Self = serde_json::from_value(Value::Object(properties))
            .map_err(|error| Error::invalid("group.properties", error.to_string()))?;
        for key in read.annotations.keys() {
            let refused = if crate::labels::is_ours(key) {
                "belongs to Drover itself"
            } else if key == address::ADDRESS {
                "would have the orchestrator ask any host; the address is that of the pod, unless its template says another"
            } else {
                continue;
            };
            return Err(Error::invalid(
                format!("group.properties.annotations.{key}"),
                refused,
            ));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Properties> {
        match value {
            Value::Object(map) => Properties::read(map),
            _ => unreachable!(),
        }
    }

    #[test]
    fn amounts_may_be_numbers() {
        let it = read(json!({"resources": {"requests": {"cpu": 2, "memory": "1Gi"}}})).unwrap();
        assert_eq!(it.resources.requests["cpu"].to_value(), "2");
        assert_eq!(it.resources.requests["memory"].to_value(), "1Gi");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (properties, field) in [
            (
                json!({"annotations": {"drover.dev/identity": "x"}}),
                "drover.dev/identity",
            ),
            (
                json!({"annotations": {"k8s.replicante.io/agent-address": "http://10.0.0.1:80"}}),
                "group.properties.annotations.k8s.replicante.io/agent-address",
            ),
            (json!({"nodeselector": {}}), "group.properties"),
        ] {
            let error = read(properties).unwrap_err();
            assert!(error.fields()[0].field.contains(field), "{error:?}");
        }
    }
}
