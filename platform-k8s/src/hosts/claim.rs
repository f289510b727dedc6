//! What a claim writes on a host. Every write is a patch with uid and resourceVersion of the host as it was read, so that it
//! changes that very state or nothing.

use std::collections::BTreeMap;

use drover_core::{Result, sip};
use drover_platform::{
    identity::Identity,
    inventory::properties::{self, HostLabels},
};
use drover_proto::platform::v1::NodeRole;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::labels::{
    self, FORMER, FormerSlot, IDENTITY, LabelKeys, MANAGED_BY, NODE_ID, ROLE,
    declared::{self, Plain},
};

use super::{host::BareMetalHost, unfinished::Unfinished, view::Reader};

/// Annotation: the labels of [`HostLabels`] that a claim set, and what was there before, as JSON.
const HOST_LABELS: &str = "drover.dev/host-labels";

/// Annotation: uid of the host that was claimed. One that is made anew with the labels of another, from a backup for
/// example, is not claimed by them.
pub(super) const HOST_UID: &str = "drover.dev/host-uid";

/// Annotation of the host that a request has claimed first, until all of its slots have hosts: their number, and since
/// when. None of its hosts serves before.
const UNFINISHED: &str = "drover.dev/unfinished-request";

#[derive(Debug, Serialize, Deserialize)]
struct Set {
    to: String,
    was: Option<String>,
}

/// What a claim has set, by key.
type Record = BTreeMap<String, Set>;

/// Checks labels that the group of a cluster wants on its hosts.
///
/// # Errors
/// `Invalid` with the key.
pub(super) fn check(
    field: &str,
    wanted: &HostLabels,
    cluster: &str,
    reader: &Reader,
) -> Result<()> {
    let keys = &reader.keys;
    properties::check_host_labels(field, wanted, cluster, |key| {
        if labels::is_ours(key) || [&keys.cluster, &keys.node].iter().any(|own| *own == key) {
            Some("is written by this platform")
        } else if declared::is_reserved(key) {
            Some("has a meaning for Kubernetes")
        } else if reader.is_topology(key) {
            Some("says where the host is")
        } else {
            None
        }
    })
}

/// Claims a free host. `first_of` is the number of slots of the request if it is the first of several hosts.
pub(super) fn claim(
    host: &BareMetalHost,
    identity: &Identity,
    keys: &LabelKeys,
    wanted: &HostLabels,
    first_of: Option<usize>,
) -> Value {
    let (mut set, mut annotations) = stamp(host, identity, keys);
    let own = host.labels();
    // What a claim left that somebody has removed in part.
    for key in own.keys().filter(|key| is_ours(key, keys)) {
        set.entry(key.clone()).or_insert(Value::Null);
    }
    for key in OURS
        .iter()
        .filter(|key| host.annotations().contains_key(**key))
    {
        annotations.entry(*key).or_insert(Value::Null);
    }
    // What another claim has set is none of this one: nobody knows whether it still holds.
    let (lent, record) = lend(own, Record::new(), wanted);
    set.extend(lent);
    if !record.is_empty() {
        annotations.insert(HOST_LABELS.to_owned(), written(&record));
    }
    if let Some(count) = first_of {
        let mark = Unfinished::now(count).text();
        annotations.insert(UNFINISHED.to_owned(), json!(mark));
    }
    patch(host, &set, &annotations)
}

/// Whether the claim on a host is that of another host, of which it has a copy.
pub(super) fn is_of_another(host: &BareMetalHost) -> bool {
    let uid = host.annotations().get(HOST_UID);
    uid.is_some_and(|uid| Some(uid) != host.uid().as_ref())
}

/// Whose a host is by its claim, whatever its labels say. `None` if nobody has claimed it, or that cannot be read.
pub(super) fn identity(host: &BareMetalHost) -> Option<Identity> {
    let json = host.annotations().get(IDENTITY)?;
    let identity = serde_json::from_str(json).ok()?;
    (!is_of_another(host)).then_some(identity)
}

/// Whether a host says that it is the first one of a request that may lack others.
pub(super) fn is_unfinished(host: &BareMetalHost) -> bool {
    host.annotations().contains_key(UNFINISHED)
}

/// What the first host of a request that may lack others says. `None` if it says nothing that can be read.
pub(super) fn unfinished(host: &BareMetalHost) -> Option<Unfinished> {
    host.annotations()
        .get(UNFINISHED)
        .and_then(|it| Unfinished::read(it))
}

/// Says that all slots of the request have hosts.
pub(super) fn finish(host: &BareMetalHost) -> Value {
    let none = Map::from_iter([(UNFINISHED.to_owned(), Value::Null)]);
    patch(host, &Map::new(), &none)
}

/// The labels to write so that a host has these for its group, and the record of them. What was set before and is not
/// among them goes, unless somebody has changed it.
fn lend(
    own: &BTreeMap<String, String>,
    before: Record,
    wanted: &HostLabels,
) -> (Map<String, Value>, Record) {
    let mut set = Map::new();
    let mut record = Record::new();
    let mut before = before;
    for (key, to) in wanted {
        let was = match before.remove(key) {
            Some(known) => known.was,
            None => own.get(key).cloned(),
        };
        set.insert(key.clone(), json!(to));
        let to = to.clone();
        record.insert(key.clone(), Set { to, was });
    }
    for (key, it) in before {
        if own.get(&key) == Some(&it.to) {
            set.insert(key, json!(it.was));
        }
    }
    (set, record)
}

fn record_of(host: &BareMetalHost) -> Record {
    let record = host.annotations().get(HOST_LABELS);
    record
        .and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_default()
}

fn written(record: &Record) -> Value {
    json!(json!(record).to_string())
}

/// Annotations of a claim.
const OURS: [&str; 6] = [IDENTITY, NODE_ID, FORMER, HOST_LABELS, HOST_UID, UNFINISHED];

/// Whether a label is one of a claim. Whoever manages the object says so with one that looks like them.
fn is_ours(key: &str, keys: &LabelKeys) -> bool {
    (labels::is_ours(key) && key != MANAGED_BY) || key == keys.cluster || key == keys.node
}

/// Whether a host carries a claim, or something of one.
pub(super) fn is_marked(host: &BareMetalHost, keys: &LabelKeys) -> bool {
    let labelled = host.labels();
    host.annotations().contains_key(IDENTITY)
        || [&keys.cluster, &keys.node]
            .into_iter()
            .any(|key| labelled.contains_key(key))
        || [labels::OWNER, labels::REQUEST]
            .into_iter()
            .any(|key| labelled.contains_key(key))
}

/// Labels and annotations of an identity.
fn stamp(
    host: &BareMetalHost,
    identity: &Identity,
    keys: &LabelKeys,
) -> (Map<String, Value>, Map<String, Value>) {
    let stamp = labels::stamp(identity, keys, &Plain::default());
    // Whoever manages the object says so there.
    let own = stamp
        .labels
        .into_iter()
        .filter(|(key, _)| key != MANAGED_BY);
    let declared = identity
        .labels
        .iter()
        .filter_map(|(key, value)| Some((declared::name(key)?, labels::value(value))));
    let set = own.chain(declared).map(|(key, text)| (key, json!(text)));
    let uid = [(HOST_UID.to_owned(), host.uid().unwrap_or_default())];
    let annotations = stamp.annotations.into_iter().chain(uid);
    (
        set.collect(),
        annotations.map(|(key, text)| (key, json!(text))).collect(),
    )
}

/// Releases a host: what its claim wrote goes, and labels that it replaced come back, unless somebody has changed them.
pub(super) fn release(host: &BareMetalHost, keys: &LabelKeys) -> Value {
    let own = host.labels();
    let mut set: Map<String, Value> = own
        .keys()
        .filter(|key| is_ours(key, keys))
        .map(|key| (key.clone(), Value::Null))
        .collect();
    set.extend(lend(own, record_of(host), &HostLabels::new()).0);
    let annotations = OURS
        .into_iter()
        .filter(|key| host.annotations().contains_key(*key))
        .map(|key| (key.to_owned(), Value::Null))
        .collect();
    patch(host, &set, &annotations)
}

/// A change of the node on a host.
#[derive(Clone, Copy)]
pub(super) struct Edit<'a> {
    pub(super) role: Option<NodeRole>,
    pub(super) set_labels: &'a BTreeMap<String, String>,
    pub(super) remove_labels: &'a [String],
    /// All labels that the host has for its group from now on. `None` to leave them unchanged.
    pub(super) host_labels: Option<&'a HostLabels>,
}

impl Edit<'_> {
    pub(super) fn of(&self, host: &BareMetalHost, identity: &Identity, keys: &LabelKeys) -> Value {
        let mut changed = identity.clone();
        if let Some(role) = self.role {
            changed.role = role.into();
        }
        for key in self.remove_labels {
            changed.labels.remove(key);
        }
        let added = self.set_labels.iter();
        changed
            .labels
            .extend(added.map(|(key, text)| (key.clone(), text.clone())));
        let (mut set, mut annotations) = stamp(host, &changed, keys);
        let removed = self.remove_labels.iter();
        let removed = removed.filter_map(|key| declared::name(key));
        for key in removed.filter(|key| host.labels().contains_key(key)) {
            set.entry(key).or_insert(Value::Null);
        }
        // A node that was taken over has kept its id.
        let id = host.annotations().get(NODE_ID).unwrap_or(&changed.id);
        set.insert(keys.node.clone(), json!(labels::value(id)));
        if let Some(wanted) = self.host_labels {
            let (lent, record) = lend(host.labels(), record_of(host), wanted);
            set.extend(lent);
            let none = record.is_empty();
            annotations.insert(
                HOST_LABELS.to_owned(),
                if none { Value::Null } else { written(&record) },
            );
        }
        patch(host, &set, &annotations)
    }
}

/// Gives a claimed host, or one that another tool has labelled, to an heir. The node keeps its id.
pub(super) fn adopt(
    host: &BareMetalHost,
    node_id: &str,
    former: Option<&Identity>,
    heir: &Identity,
    keys: &LabelKeys,
) -> Value {
    let (mut set, mut annotations) = stamp(host, heir, keys);
    // What another tool has labelled goes with the claim: else the host would be taken for its node again.
    let mut record = record_of(host);
    for (key, value) in host.labels().iter().filter(|(key, _)| sip::is_claim(key)) {
        let as_it_is = || Set {
            to: value.clone(),
            was: None,
        };
        record.entry(key.clone()).or_insert_with(as_it_is);
    }
    if !record.is_empty() {
        annotations.insert(HOST_LABELS.to_owned(), written(&record));
    }
    set.insert(keys.node.clone(), json!(labels::value(node_id)));
    if heir.role() == NodeRole::Unspecified {
        set.entry(ROLE).or_insert(Value::Null);
    }
    annotations.insert(NODE_ID.to_owned(), json!(node_id));
    let known = host.annotations().get(FORMER);
    let mut slots: Vec<FormerSlot> = known
        .and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_default();
    slots.extend(former.map(FormerSlot::of));
    // It is of another request now.
    if is_unfinished(host) {
        annotations.insert(UNFINISHED.to_owned(), Value::Null);
    }
    annotations.insert(FORMER.to_owned(), json!(json!(slots).to_string()));
    patch(host, &set, &annotations)
}

fn patch(
    host: &BareMetalHost,
    labels: &Map<String, Value>,
    annotations: &Map<String, Value>,
) -> Value {
    json!({"metadata": {
        "uid": host.uid(),
        "resourceVersion": host.resource_version(),
        "labels": labels,
        "annotations": annotations,
    }})
}

#[cfg(test)]
mod tests;
