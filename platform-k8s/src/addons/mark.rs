//! What is written on every object of an addon, and read again.

use std::collections::BTreeMap;

use drover_core::Result;
use drover_platform::addons::Owner;
use drover_proto::platform::v1::AddonKind;
use kube::core::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    client::Meta as _,
    labels::{self, LabelKeys},
    objects::{Object, pod_templates},
};

/// Which addon an object belongs to, and what was applied to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Mark {
    /// UUID of the owning cluster record.
    pub(super) owner: String,
    /// Cluster id.
    pub(super) cluster_id: String,
    /// Name of the addon.
    pub(super) name: String,
    /// Kind of the addon, as in the protos.
    pub(super) kind: String,
    /// The owner's sequence number of the request that applied it as it is.
    pub(super) sequence: u64,
    /// Digest of what was applied.
    pub(super) digest: String,
    /// Number of targets in it.
    pub(super) targets: u32,
    /// Targets that are left out, and why, for people.
    pub(super) note: String,
}

impl Mark {
    /// Reads the mark of an object. `None` if it has none that can be read.
    pub(super) fn of(meta: &ObjectMeta) -> Option<Self> {
        let text = meta.annotations().get(labels::ADDON_IDENTITY)?;
        let mark: Self = serde_json::from_str(text).ok()?;
        (!mark.owner.is_empty() && !mark.name.is_empty()).then_some(mark)
    }

    pub(super) fn kind(&self) -> AddonKind {
        AddonKind::from_str_name(&self.kind).unwrap_or_default()
    }

    pub(super) fn is_of(&self, owner: &Owner, name: &str) -> bool {
        self.owner == owner.owner && self.cluster_id == owner.cluster_id && self.name == name
    }
}

/// Label selector for the objects of an addon, of whichever owner.
pub(super) fn selector(cluster_id: &str, name: &str) -> String {
    format!(
        "{}={},{}={}",
        labels::ADDON,
        labels::value(name),
        labels::ADDON_CLUSTER,
        labels::value(cluster_id)
    )
}

/// Label selector for the objects of all addons of a cluster, or of all.
pub(super) fn selector_of(cluster_id: Option<&str>) -> String {
    match cluster_id {
        None => labels::ADDON.to_owned(),
        Some(id) => format!(
            "{},{}={}",
            labels::ADDON,
            labels::ADDON_CLUSTER,
            labels::value(id)
        ),
    }
}

/// Labels of everything that belongs to an addon, pods included.
fn own_labels(mark: &Mark) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (labels::ADDON, labels::value(&mark.name)),
        (labels::ADDON_CLUSTER, labels::value(&mark.cluster_id)),
        (labels::OWNER, labels::value(&mark.owner)),
        (labels::MANAGED_BY, labels::MANAGER.to_owned()),
    ])
}

/// Puts the labels onto an object and its pod templates, and completes its selectors so that they match nothing of
/// another addon.
///
/// # Errors
/// `Precondition` if the object has something other than a map there.
pub(super) fn stamp(object: &mut Object, mark: &Mark, keys: &LabelKeys) -> Result<()> {
    let own = own_labels(mark);
    let namespace = Value::String(object.namespace.clone());
    object
        .map_at(&["metadata"])?
        .insert("namespace".to_owned(), namespace);
    let templates = pod_templates(object).iter().copied();
    let places: Vec<Vec<&str>> = std::iter::once(&[][..])
        .chain(templates)
        .map(|path| [path, &["metadata", "labels"]].concat())
        .collect();
    for place in places {
        let map = object.map_at(&place)?;
        // Whatever has these is a node, or part of one.
        for key in [&keys.cluster, &keys.node, labels::GROUP, labels::REQUEST] {
            map.remove(key);
        }
        for (key, value) in &own {
            map.insert((*key).to_owned(), value.clone().into());
        }
    }
    let selector: &[&str] = match (object.group(), object.kind.as_str()) {
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet")
        | ("policy", "PodDisruptionBudget") => &["spec", "selector", "matchLabels"],
        ("", "Service") if object.body.get("spec").is_some_and(selects) => &["spec", "selector"],
        _ => return Ok(()),
    };
    let map = object.map_at(selector)?;
    for key in [labels::ADDON, labels::ADDON_CLUSTER, labels::OWNER] {
        if let Some(value) = own.get(key) {
            map.insert(key.to_owned(), value.clone().into());
        }
    }
    Ok(())
}

/// Whether the spec of a service has a selector: endpoints of one without are somebody else's.
fn selects(spec: &Value) -> bool {
    spec.get("selector").is_some_and(Value::is_object)
}

/// Writes the mark onto an object whose labels are there.
pub(super) fn write(object: &mut Object, mark: &Mark) -> Result<()> {
    // Serialising strings and numbers cannot fail.
    let text = serde_json::to_string(mark).unwrap_or_default();
    object
        .map_at(&["metadata", "annotations"])?
        .insert(labels::ADDON_IDENTITY.to_owned(), text.into());
    Ok(())
}
