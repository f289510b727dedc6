//! From the output of a template to the objects of one node, as they are sent to the API server. Nothing here contacts
//! anything.
//!
//! # Templates
//!
//! A template renders to any number of YAML documents, each an object of any namespaced kind. `platform` in its context
//! has:
//!
//! | key | is |
//! |---|---|
//! | `name` | the node's id as a DNS name of 40 characters at most, for names of objects |
//! | `group_name` | cluster and group as such a name, for what the nodes of a group have in common |
//! | `namespace` | the namespace that the node goes to |
//! | `bootstrap` | name of the Secret with the user data under the key `user-data`; empty: none was given |
//! | `cluster_label`, `node_label` | keys of the labels that say cluster and node, for selectors |
//! | `cluster_value`, `node_value`, `group_label`, `group_value` | the values of these labels, and the group's |
//! | `storage_class` | the storage class asked for, or that of the node class; empty: the cluster's default |
//!
//! The platform puts its labels on every object, pod template and claim template, completes selectors, and renders
//! placement, node class, properties and storage into what the template made; the template need not know of them. A claim
//! of declared storage gets a name that outlives its node in the place of `name`, also where it is mounted; claim templates
//! become claims.
//!
//! A pod with the annotation `drover.dev/peers: "[]"` is told of the other nodes of its cluster: the platform keeps in it a JSON
//! list of those whose pods have an address and have not ended, this one too, each with `name`, `id`, `group`, `ordinal`,
//! `role`, `host` and `ports`. A `downwardAPI` volume shows it, and the role (label `drover.dev/role`), as files that change
//! while the pod lives. With `drover.dev/active-service: NAME` beside it (`platform.group_name`), a service of that name leads to
//! the active nodes of the group at their named ports; it goes with the last node of the group.

mod catalogue;
mod claims;
mod names;
mod order;
mod placement;
mod plan;
mod pods;
mod policy;
mod properties;
mod render;
mod selector;
mod stable;
mod stamp;

use std::fmt;

use drover_core::{Error, Reason};
use serde_json::{Map, Value};

pub(crate) use self::names::is_path_segment;
pub use self::{
    catalogue::CATALOGUE,
    names::{bootstrap_secret, dns_name},
    plan::{MAX_BOOTSTRAP_BYTES, MAX_OBJECT_BYTES, Plan, USER_DATA},
    properties::Properties,
    selector::Selector,
};
pub use policy::PodPolicySettings;

/// One object of a node. Its content is secret: `Debug` shows what it is only.
#[derive(Clone, PartialEq)]
pub struct Object {
    /// Number of the document that it comes from, from 1. `None`: the platform made it itself.
    pub document: Option<usize>,
    /// `apiVersion`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The object itself.
    pub body: Map<String, Value>,
}

impl Object {
    /// API group. Empty: the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version
            .rsplit_once('/')
            .map_or("", |(group, _)| group)
    }

    /// Kind and name (`Service db-1-x7k2p`), for people.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    /// An error that says which document of the template is wrong.
    pub(crate) fn wrong(&self, what: impl fmt::Display) -> Error {
        let place = self.document.map_or_else(
            || self.label(),
            |document| format!("document {document} of the template ({})", self.label()),
        );
        let error = Error::new(Reason::Precondition, format!("{place}: {what}"))
            .with_resource(&self.kind, &self.name);
        match self.document {
            Some(document) => error.with_metadata("document", document),
            None => error,
        }
    }

    /// A part of it that must be a map; made where it is missing.
    pub(crate) fn map_at(&mut self, path: &[&str]) -> Result<&mut Map<String, Value>, Error> {
        // Looked at first: the error needs the whole object.
        let mut at: Option<&Value> = None;
        for (depth, key) in path.iter().enumerate() {
            let map = if depth == 0 {
                Some(&self.body)
            } else {
                at.and_then(Value::as_object)
            };
            at = map.and_then(|map| map.get(*key)).filter(|it| !it.is_null());
            if at.is_some_and(|it| !it.is_object()) {
                return Err(self.wrong(format_args!("{} is no map", path[..=depth].join("."))));
            }
            if at.is_none() {
                break;
            }
        }
        let mut map = &mut self.body;
        for key in path {
            map = child(map, key);
        }
        Ok(map)
    }
}

/// The map at a key; made where there is none.
pub(crate) fn child<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let value = map.entry(key.to_owned()).or_insert(Value::Null);
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        // It was made a map above.
        _ => unreachable!(),
    }
}

/// The list at a key; made where there is none.
pub(crate) fn list<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Vec<Value> {
    let value = map.entry(key.to_owned()).or_insert(Value::Null);
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    match value {
        Value::Array(list) => list,
        // It was made a list above.
        _ => unreachable!(),
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Object({} {} {}/{})",
            self.api_version, self.kind, self.namespace, self.name
        )
    }
}
