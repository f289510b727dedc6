//! Documents from clients, according to the written specification or the SDK. All errors are reported at once, each
//! with the path of its field.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result, storage::parse_quantity};
use drover_proto::platform::v1::{Bootstrap, Storage, bootstrap::UserData};
use serde_json::{Map, Value};

use drover_platform::check::Checker;

/// Field names of the version of a cluster or group, in the SDK and in the specification.
const VERSION: [&str; 2] = ["store_version", "version"];
/// Field names of the group to provision.
const GROUP: [&str; 2] = ["node_group_id", "node_group"];

/// A `NodeProvisionRequest`, reduced to its group and merged with the cluster.
#[derive(Debug)]
pub(crate) struct Provision {
    pub(crate) cluster_id: String,
    pub(crate) store: String,
    /// Version of the cluster.
    pub(crate) version: String,
    pub(crate) attributes: Map<String, Value>,
    /// The group that gets the nodes.
    pub(crate) group_id: String,
    pub(crate) group: Group,
    /// Maximum number of nodes.
    pub(crate) count: u16,
}

#[derive(Debug)]
pub(crate) struct Group {
    /// Attributes of the cluster, merged with those of the group.
    pub(crate) attributes: Map<String, Value>,
    pub(crate) desired_count: u32,
    pub(crate) node_class: String,
    /// Version of the group, or else of the cluster.
    pub(crate) version: String,
    /// User data. Secret.
    pub(crate) bootstrap: Option<Bootstrap>,
    pub(crate) storage: Option<Storage>,
}

/// A `NodeDeprovisionRequest`.
#[derive(Debug)]
pub(crate) struct Deprovision {
    pub(crate) cluster_id: String,
    pub(crate) node_id: String,
}

impl Provision {
    /// # Errors
    ///
    /// `Invalid` with the paths of all missing or invalid fields; `Precondition` for an undefined group.
    pub(crate) fn read(document: &Value) -> Result<Self> {
        let mut check = Checker::default();
        let root = root(&mut check, document);
        let cluster = root.object(&mut check, "cluster");
        let provision = root.object(&mut check, "provision");
        let cluster_id = cluster.name(&mut check, &["cluster_id"]);
        if !cluster_id.is_empty() {
            check.cluster("cluster.cluster_id", &cluster_id);
        }
        let store = cluster.text(&mut check, &["store"]).unwrap_or_default();
        let version = cluster.text(&mut check, &VERSION).unwrap_or_default();
        let attributes = cluster.attributes(&mut check);
        let mut groups =
            cluster
                .object(&mut check, "nodes")
                .groups(&mut check, &version, &attributes);
        let group_id = provision.name(&mut check, &GROUP);
        let count = provision.count(&mut check);
        check.finish()?;
        let Some(group) = groups.remove(&group_id) else {
            let defined = Vec::from_iter(groups.into_keys()).join(", ");
            return Err(Error::new(
                Reason::Precondition,
                format!(
                    "provision.node_group_id: cluster.nodes does not define {group_id:?}; it defines: {defined}"
                ),
            ));
        };
        Ok(Self {
            cluster_id,
            store,
            version,
            attributes,
            group_id,
            group,
            count,
        })
    }
}

impl Deprovision {
    /// # Errors
    ///
    /// `Invalid` with the paths of all missing or invalid fields.
    pub(crate) fn read(document: &Value) -> Result<Self> {
        let mut check = Checker::default();
        let root = root(&mut check, document);
        let cluster_id = root.name(&mut check, &["cluster_id"]);
        let node_id = root.name(&mut check, &["node_id"]);
        check.word("node_id", &node_id);
        check.finish()?;
        Ok(Self {
            cluster_id,
            node_id,
        })
    }
}

/// Returns the requested group if the document does not define it, and the groups that it defines.
pub(crate) fn unknown_group(document: &Value) -> Option<(String, Vec<String>)> {
    let provision = document.get("provision")?;
    let asked = GROUP
        .iter()
        .find_map(|name| provision.get(name)?.as_str())?;
    let mut defined: Vec<_> = document
        .get("cluster")?
        .get("nodes")?
        .as_object()?
        .keys()
        .cloned()
        .collect();
    defined.sort_unstable();
    (!defined.iter().any(|group| group == asked)).then(|| (asked.to_owned(), defined))
}

/// An object of a document with its path.
struct Part<'a> {
    path: String,
    /// `None` if the object is missing, which has already been reported.
    fields: Option<&'a Map<String, Value>>,
}

fn root<'a>(check: &mut Checker, document: &'a Value) -> Part<'a> {
    if !document.is_object() {
        check.wrong("", format!("expected an object, found {}", kind(document)));
    }
    Part {
        path: String::new(),
        fields: document.as_object(),
    }
}

impl<'a> Part<'a> {
    fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// Returns a field under the first of its names that is present. `null` counts as absent.
    fn get(&self, names: &[&str]) -> Option<(String, &'a Value)> {
        let fields = self.fields?;
        names.iter().find_map(|name| {
            let value = fields.get(*name).filter(|value| !value.is_null())?;
            Some((self.path(name), value))
        })
    }

    fn missing(&self, check: &mut Checker, name: &str) {
        if self.fields.is_some() {
            check.wrong(self.path(name), "is required");
        }
    }

    fn object(&self, check: &mut Checker, name: &str) -> Self {
        let path = self.path(name);
        let fields = match self.get(&[name]) {
            None => {
                self.missing(check, name);
                None
            }
            Some((path, value)) => {
                if !value.is_object() {
                    check.wrong(path, format!("expected an object, found {}", kind(value)));
                }
                value.as_object()
            }
        };
        Self { path, fields }
    }

    /// Returns an optional string. Different values under two names are a contradiction.
    fn optional_text(&self, check: &mut Checker, names: &[&str]) -> Option<String> {
        let mut found: Option<(String, String)> = None;
        for name in names {
            let Some((path, value)) = self.get(&[name]) else {
                continue;
            };
            let Some(text) = value.as_str() else {
                check.wrong(path, format!("expected a string, found {}", kind(value)));
                // Present, though invalid, so it must not be reported as missing.
                return Some(String::new());
            };
            match &found {
                Some((other, known)) if known != text => {
                    check.wrong(path, format!("differs from {other}"));
                }
                Some(_) => {}
                None => found = Some((path, text.to_owned())),
            }
        }
        found.map(|(_, text)| text)
    }

    fn text(&self, check: &mut Checker, names: &[&str]) -> Option<String> {
        let text = self.optional_text(check, names);
        if let (None, Some(name)) = (&text, names.first()) {
            self.missing(check, name);
        }
        text
    }

    /// Returns a non-empty string.
    fn name(&self, check: &mut Checker, names: &[&str]) -> String {
        let before = check.count();
        let text = self.text(check, names).unwrap_or_default();
        if text.is_empty()
            && check.count() == before
            && self.fields.is_some()
            && let Some(name) = names.first()
        {
            check.wrong(self.path(name), "is empty");
        }
        text
    }

    fn attributes(&self, check: &mut Checker) -> Map<String, Value> {
        let Some((path, value)) = self.get(&["attributes"]) else {
            return Map::new();
        };
        exact(check, &path, value);
        value.as_object().cloned().unwrap_or_else(|| {
            check.wrong(path, format!("expected an object, found {}", kind(value)));
            Map::new()
        })
    }

    fn count(&self, check: &mut Checker) -> u16 {
        match self.get(&["count"]) {
            None => 1,
            Some((path, value)) => value
                .as_u64()
                .and_then(|count| u16::try_from(count).ok())
                .unwrap_or_else(|| {
                    let found = kind(value);
                    check.wrong(
                        path,
                        format!("expected a whole number 0 to 65535, found {found}"),
                    );
                    0
                }),
        }
    }

    fn bootstrap(&self, check: &mut Checker) -> Option<Bootstrap> {
        let text = self.optional_text(check, &["user_data"])?;
        Some(Bootstrap {
            user_data: Some(UserData::Text(text)),
            ..Bootstrap::default()
        })
    }

    fn storage(&self, check: &mut Checker) -> Option<Storage> {
        self.get(&["storage"])?;
        let storage = self.object(check, "storage");
        let size = storage.get(&["size"]).map(|(path, value)| {
            let bytes = value.as_str().and_then(parse_quantity).unwrap_or_default();
            if bytes == 0 {
                check.wrong(path, "expected a quantity above 0, like \"50Gi\"");
            }
            bytes
        });
        let class = storage.optional_text(check, &["class"]);
        let class = class.unwrap_or_default();
        check.word(&storage.path("class"), &class);
        Some(Storage {
            size_bytes: size,
            class,
        })
    }

    /// Reads all groups, because an invalid group is an error even if another one is requested.
    fn groups(
        &self,
        check: &mut Checker,
        version: &str,
        attributes: &Map<String, Value>,
    ) -> BTreeMap<String, Group> {
        let mut groups = BTreeMap::new();
        for id in self.fields.into_iter().flat_map(Map::keys) {
            let group = self.object(check, id);
            let desired_count = match group.get(&["desired_count"]) {
                None => {
                    group.missing(check, "desired_count");
                    0
                }
                Some((path, value)) => value
                    .as_u64()
                    .and_then(|count| u32::try_from(count).ok())
                    .unwrap_or_else(|| {
                        let found = kind(value);
                        check.wrong(
                            path,
                            format!("expected a whole number 0 to 4294967295, found {found}"),
                        );
                        0
                    }),
            };
            let mut merged = Value::Object(attributes.clone());
            merge(&mut merged, Value::Object(group.attributes(check)));
            let Value::Object(attributes) = merged else {
                continue;
            };
            groups.insert(
                id.clone(),
                Group {
                    attributes,
                    desired_count,
                    node_class: group.text(check, &["node_class"]).unwrap_or_default(),
                    version: group
                        .optional_text(check, &VERSION)
                        .unwrap_or_else(|| version.to_owned()),
                    bootstrap: group.bootstrap(check),
                    storage: group.storage(check),
                },
            );
        }
        groups
    }
}

/// Rejects integers that floating-point numbers, as which values are transmitted, cannot represent exactly.
fn exact(check: &mut Checker, path: &str, value: &Value) {
    const MOST: u64 = 1 << 53;
    match value {
        Value::Number(number) => {
            let magnitude = number
                .as_u64()
                .or_else(|| number.as_i64().map(i64::unsigned_abs));
            if magnitude.is_some_and(|magnitude| magnitude > MOST) {
                check.wrong(path, "is a whole number beyond 2^53; write it as a string");
            }
        }
        Value::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                exact(check, &format!("{path}[{at}]"), value);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                exact(check, &format!("{path}.{name}"), value);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Applies a JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(&key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Describes the type of a value for messages. The value itself may be secret.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "another number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use serde_json::json;

    use super::*;

    #[test]
    fn attributes_are_merged_as_rfc_7396_says() {
        // The test cases of its appendix A.
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            let mut merged = target.clone();
            merge(&mut merged, patch.clone());
            assert_eq!(merged, result, "{target} and {patch}");
        }
    }

    #[test]
    fn everything_that_is_wrong_is_found_at_once_with_its_path_and_without_its_value() {
        let document = json!({
            "cluster": {
                "attributes": ["hunter2"],
                "cluster_id": "",
                "store": 7,
                "store_version": "1",
                "version": "2",
                "nodes": {"data": {"desired_count": -1}, "log": 3},
            },
            "provision": {"count": 65536},
        });
        let error = Provision::read(&document).unwrap_err();
        let fields: Vec<_> = error.fields().iter().map(|v| v.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "cluster.cluster_id",
                "cluster.store",
                "cluster.version",
                "cluster.attributes",
                "cluster.nodes.data.desired_count",
                "cluster.nodes.data.node_class",
                "cluster.nodes.log",
                "provision.node_group_id",
                "provision.count",
            ]
        );
        assert!(!error.message().contains("hunter2"), "{error}");
    }
}
