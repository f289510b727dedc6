//! Turns the output of a template into the objects of one node, as they are sent to the API server. Performs no I/O.
//!
//! # Templates
//!
//! A template renders to any number of YAML documents, each an object of any namespaced kind. `platform` in its context
//! has:
//!
//! | key | value |
//! |---|---|
//! | `name` | the node id as a DNS name of at most 40 characters, for names of objects |
//! | `group_name` | cluster and group as such a name, for objects that the nodes of a group share |
//! | `own_group_name` | such a name that no other group has, whoever owns it, for what only nodes of the group may read |
//! | `namespace` | the namespace of the node |
//! | `bootstrap` | name of the Secret with the user data under the key `user-data`; empty if none was given |
//! | `cluster_label`, `node_label` | keys of the labels for cluster and node, for selectors |
//! | `cluster_value`, `node_value`, `group_label`, `group_value` | the values of these labels, and the label of the
//! group |
//! | `storage_class` | the requested storage class, or that of the node class; empty for the cluster's default |
//!
//! The platform sets its labels on every object, pod template and claim template, completes selectors, and adds
//! placement, node class, properties and storage to the rendered objects; templates need not know about them. A claim
//! of declared storage gets a name that outlives its node in place of `name`, also where it is mounted; claim templates
//! become claims. A pod that names no controller in `ownerReferences` gets its namespace as one, so that drains evict it.
//!
//! A pod with the annotation `drover.dev/peers: "[]"` learns about its peers: the platform keeps in it a JSON list of
//! the nodes of the cluster whose pods have an address and have not ended, itself included, each with `name`, `id`,
//! `group`, `ordinal`, `role`, `host` and `ports`. A `downwardAPI` volume exposes it, and the role (label
//! `drover.dev/role`), as files that are updated while the pod runs. With `drover.dev/active-service: NAME` beside it
//! (`platform.group_name`), a service of that name leads to the active nodes of the group at their named ports, and with
//! `drover.dev/read-service: NAME` another one to all of them. With `drover.dev/disruption-budget: "1"` beside it, a
//! PodDisruptionBudget lets so many pods of the group be evicted at the same time. All of them outlive every single node,
//! and are deleted half a minute after the last node of the group.
//!
//! With `drover.dev/secrets` beside it, a JSON object with a `name`, the platform keeps Secrets for the group, which pods may
//! mount:
//!
//! | Secret | asked for by | content |
//! |---|---|---|
//! | `NAME-ca` | `"tls": true` | authority of the group: `ca.crt`, `ca.key` |
//! | `NAME-tls` | `"tls": true` | certificate of all nodes, for server and client, valid for 90 days and replaced after 60: `ca.crt`, `tls.crt`, `tls.key`. With `"addresses": true` it names the addresses of the pods, and `names` lists what it is for |
//! | `NAME-app` | `"application": {"user", …}` | who an application is, for nodes: `user`, `password`, with `database` also `dbname` |
//! | that of `application` | `"application": {"secret", "scheme", "service", "port"}` | what an application needs: `host`, `port`, `uri`, with `user` also `user` and `password`, with `database` `dbname`, with `tls` `ca.crt`, with `"certificate": true` also `tls.crt` and `tls.key` of a client |
//!
//! `NAME` is `platform.own_group_name`: under another name a pod might mount what another group has. The password is random; one
//! that somebody writes into the Secret of `application` is passed on. They outlive the nodes like the services, and stay
//! as long as storage is kept for nodes of the group.

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

pub use self::{
    catalogue::CATALOGUE,
    names::{bootstrap_secret, dns_name},
    plan::{MAX_BOOTSTRAP_BYTES, MAX_OBJECT_BYTES, Plan, USER_DATA},
    properties::Properties,
    selector::Selector,
};
pub(crate) use self::{
    names::{group_name, is_path_segment},
    order::sort,
    placement::Constraints,
    pods::templates as pod_templates,
    render::documents,
};
pub use policy::PodPolicySettings;

/// One object of a node. Its content is secret: `Debug` shows only which object it is.
#[derive(Clone, PartialEq)]
pub struct Object {
    /// Number of its document in the template, from 1. `None` if the platform added it.
    pub document: Option<usize>,
    /// `apiVersion`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The whole object.
    pub body: Map<String, Value>,
}

impl Object {
    /// API group. Empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version
            .rsplit_once('/')
            .map_or("", |(group, _)| group)
    }

    /// Kind and name in messages (`Service db-1-x7k2p`).
    #[must_use]
    pub fn label(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    /// An error that names the invalid document of the template.
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

    /// The map at a path, which is created if missing.
    pub(crate) fn map_at(&mut self, path: &[&str]) -> Result<&mut Map<String, Value>, Error> {
        // Checked before it is borrowed mutably: the error needs the whole object.
        let mut at: Option<&Value> = None;
        for (depth, key) in path.iter().enumerate() {
            let map = if depth == 0 {
                Some(&self.body)
            } else {
                at.and_then(Value::as_object)
            };
            at = map.and_then(|map| map.get(*key)).filter(|it| !it.is_null());
            if at.is_some_and(|it| !it.is_object()) {
                return Err(self.wrong(format_args!("{} is not a map", path[..=depth].join("."))));
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

/// The map at a key, which is created if there is none.
pub(crate) fn child<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let value = map.entry(key.to_owned()).or_insert(Value::Null);
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        // Made a map above.
        _ => unreachable!(),
    }
}

/// The list at a key, which is created if there is none.
pub(crate) fn list<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Vec<Value> {
    let value = map.entry(key.to_owned()).or_insert(Value::Null);
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    match value {
        Value::Array(list) => list,
        // Made a list above.
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
